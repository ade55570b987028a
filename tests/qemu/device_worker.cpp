// SPDX-License-Identifier: Apache-2.0
// Asks the device of a pool, and compares each answer byte by byte with what this process computes.
// tests/qemu/device.py runs it in guests. SIGTERM ends it; it prints its counts then. Exit code 1:
// the last line says what is wrong.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "driver-shim/queue_pair.h"
#include "tests/device/sequence.h"

namespace bowhead::test {
namespace {

struct Arguments {
  std::string locator;
  uint32_t host = kAnyHost;
  uint64_t progress_at = 0;
};

[[noreturn]] void fail(const std::string& why) {
  fmt::print("wrong: {}\n", why);
  std::fflush(stdout);
  std::exit(1);
}

std::atomic<bool> stopped{false};

/// In the memory of the device behind the pool, where the test on the host finds it.
struct Progress {
  std::atomic<uint64_t> right, lost;
};

Progress& progress_at(const Arguments& arguments) {
  const int device = open(arguments.locator.substr(std::strlen("dax:")).c_str(), O_RDWR);
  void* page = mmap(nullptr, kMediaGrainBytes, PROT_READ | PROT_WRITE, MAP_SHARED, device,
                    static_cast<off_t>(arguments.progress_at));
  if (page == MAP_FAILED) fail("the device cannot be mapped at --progress-at");
  return *new (page) Progress{};
}

/// One request, and the answer of this process.
struct Question {
  explicit Question(const ndp::Request& asked) : request(asked), wanted(asked) {
    if (auto done = ndp::ProcessEngine().run(request, wanted.room()); !done)
      fail(done.error().message());
  }
  ndp::Request request;
  Answer wanted;
};

/// A request of each operation about blocks of both kinds.
class Questions {
 public:
  explicit Questions(Pool& pool)
      : plain_(pool, "plain", CompressionProfile::NONE, {300, 40, 16, 512}),
        coded_(pool, "coded", CompressionProfile::FAST, {300, 40, 16, 512}) {
    Random random(7);
    for (float& value : queries_) value = (static_cast<float>(random.below(2001)) - 1000) / 512;
    for (LeasedSequence* sequence : {&plain_, &coded_}) {
      for (const ndp::Operation operation :
           {ndp::Operation::SCORE, ndp::Operation::TOP_K, ndp::Operation::ATTEND,
            ndp::Operation::GATHER, ndp::Operation::DIGEST})
        all_.emplace_back(request(*sequence, operation));
    }
  }
  const std::vector<Question>& all() const { return all_; }

 private:
  ndp::Request request(const LeasedSequence& sequence, ndp::Operation operation) const {
    ndp::Request request = sequence.request(operation);
    request.queries.values = queries_;
    request.queries.count = kQueries;
    request.queries.scale = 0.125f;
    request.k = 20;
    request.tokens = tokens_;
    request.page_tokens = 16;
    return request;
  }

  static constexpr uint32_t kQueries = 3;
  LeasedSequence plain_, coded_;
  std::vector<float> queries_ = std::vector<float>(size_t{2} * kQueries * kChannels);
  const std::array<uint32_t, 6> tokens_ = {0, 355, 7, 7, 310, 800};
  std::vector<Question> all_;
};

Pool open_pool(const Arguments& arguments) {
  OpenOptions options;
  options.host = arguments.host;
  auto pool = Pool::open(arguments.locator, options);
  if (!pool) fail(pool.error().message());
  return *std::move(pool);
}

/// Asks all at once, again and again. The device may end and begin anew: what it does not answer is
/// DEVICE_LOST, and nothing else.
void ask(const Arguments& arguments) {
  Pool pool = open_pool(arguments);
  const Questions questions(pool);
  auto pair = driver::QueuePair::open(pool);
  if (!pair) fail(pair.error().message());
  Progress& progress = progress_at(arguments);
  while (!stopped) {
    std::vector<Answer> answers;
    std::vector<ndp::Job> jobs;
    for (const Question& question : questions.all()) answers.emplace_back(question.request);
    for (size_t i = 0; i < answers.size(); ++i)
      jobs.push_back({questions.all()[i].request, answers[i].room()});
    (*pair)->submit(std::span(jobs));
    for (size_t i = 0; i < jobs.size(); ++i) {
      (*pair)->wait(jobs[i]);
      const Result<ndp::BlocksRead>& answer = *jobs[i].answer;
      if (answer.status() == Status::DEVICE_LOST) {
        ++progress.lost;
        continue;
      }
      const char* name = ndp::operation_name(jobs[i].request.operation);
      if (!answer) fail(fmt::format("{}: {}", name, answer.error().message()));
      if (!jobs[i].was_elsewhere) fail(fmt::format("{}: not from the device", name));
      if (answers[i] != questions.all()[i].wanted) fail(fmt::format("{}: another answer", name));
      ++progress.right;
    }
  }
  fmt::print("{}\n", nlohmann::json{{"right", progress.right.load()},
                                    {"lost", progress.lost.load()},
                                    {"at_once", questions.all().size()}}
                         .dump());
}

int run(int count, char** words) {
  CLI::App app("Asks the device of a pool, and compares its answers with those of this process");
  Arguments arguments;
  app.add_option("locator", arguments.locator)->required();
  app.add_option("--host", arguments.host, "Host slot (default: any)");
  app.add_option("--progress-at", arguments.progress_at,
                 "Where to count right answers and lost requests: a byte of the memory device")
      ->required();
  CLI11_PARSE(app, count, words);
  std::signal(SIGTERM, [](int) { stopped = true; });
  ask(arguments);
  return 0;
}

}  // namespace
}  // namespace bowhead::test

int main(int count, char** words) { return bowhead::test::run(count, words); }
