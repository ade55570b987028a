// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without a fuzzing engine: on every file of its corpus, and on a fixed number
// of mutations of them. If a fault ends the process, the input is printed in the format of xxd -r
// -p, to become a file of the corpus.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/fuzz/input.h"

namespace {

constexpr int kMutations = 1000;

struct CorpusFile {
  std::string name;
  std::string bytes;
};

std::vector<CorpusFile> read_corpus() {
  std::vector<CorpusFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(BOWHEAD_FUZZ_CORPUS)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.push_back({entry.path().filename(), std::string(std::istreambuf_iterator<char>(in), {})});
  }
  std::sort(files.begin(), files.end(),
            [](const CorpusFile& a, const CorpusFile& b) { return a.name < b.name; });
  return files;
}

std::string running;  // as text, for print_running()

void print_running(int signal) {
  (void)!write(STDERR_FILENO, running.data(), running.size());
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

void run(const std::string& name, const std::string& bytes) {
  running = name + ":\n";
  for (const char byte : bytes) running += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  running += '\n';
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
    const auto before = std::signal(signal, print_running);
    if (before != SIG_DFL) (void)std::signal(signal, before);  // a sanitizer's
  }
  // On the heap and of exact length, so that a sanitizer sees a read past its end.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::string mutated(const std::vector<CorpusFile>& files, bowhead::Random& random) {
  std::string bytes = files[random.below(files.size())].bytes;
  for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
    const size_t at = random.below(bytes.size() + 1);
    switch (random.below(4)) {
      case 0:
        bytes.insert(at, 1, static_cast<char>(random.next()));
        break;
      case 1:
        bytes.erase(at, random.below(8));
        break;
      case 2: {
        const std::string& other = files[random.below(files.size())].bytes;
        bytes.insert(at, other.substr(random.below(other.size() + 1), random.below(64)));
        break;
      }
      default:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random.next());
    }
  }
  return bytes;
}

TEST(Fuzz, Corpus) {
  const auto files = read_corpus();
  ASSERT_GE(files.size(), 5u) << "no corpus in " << BOWHEAD_FUZZ_CORPUS;
  for (const CorpusFile& file : files) run(file.name, file.bytes);
}

TEST(Fuzz, Mutations) {
  const auto files = read_corpus();
  ASSERT_FALSE(files.empty());
  bowhead::Random random(1);
  for (int i = 0; i < kMutations; ++i) run(fmt::format("mutation {}", i), mutated(files, random));
}

}  // namespace
