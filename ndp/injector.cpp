// SPDX-License-Identifier: Apache-2.0
#include "ndp/injector.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace bowhead::ndp {
namespace {

constexpr uint64_t kLostAfterMs = 10'000;

constexpr std::array<std::pair<std::string_view, Fault::Kind>, 4> kKinds = {
    {{"fail", Fault::Kind::FAIL},
     {"corrupt", Fault::Kind::CORRUPT},
     {"delay", Fault::Kind::DELAY},
     {"drop", Fault::Kind::DROP}}};

}  // namespace

Result<Fault> parse_fault(std::string_view text) {
  const auto refuse = [&] {
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("fault '{}': give fail, corrupt, delay or drop, then of how many "
                             "requests one has it, then how often in all, as in drop:100:3",
                             text)};
  };
  Fault fault;
  size_t at = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, at);
  const auto* kind = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const auto& known) { return known.first == name; });
  if (kind == kKinds.end()) return refuse();
  fault.kind = kind->second;
  for (uint64_t* number : {&fault.every, &fault.count}) {
    if (at == text.size()) return fault;
    const size_t end = std::min(text.find(':', at + 1), text.size());
    const auto parsed = std::from_chars(&text[at] + 1, text.data() + end, *number);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + end || *number == 0)
      return refuse();
    at = end;
  }
  if (at != text.size()) return refuse();
  return fault;
}

Injector::Injector(Engine& of, std::vector<Fault> faults)
    : of_(of), faults_(std::move(faults)), injected_(faults_.size()) {}

uint64_t Injector::injected() const {
  const std::lock_guard lock(mutex_);
  return injected_all_;
}

/// Of the job that comes next.
const Fault* Injector::next_fault() {
  ++jobs_;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (jobs_ % fault.every != 0 || (fault.count != 0 && injected_[i] == fault.count)) continue;
    ++injected_[i];
    ++injected_all_;
    return &fault;
  }
  return nullptr;
}

void Injector::submit(std::span<Job> jobs) {
  for (Job& job : jobs) {
    job.answer.reset();
    const Fault* fault;
    {
      const std::lock_guard lock(mutex_);
      fault = next_fault();
    }
    if (fault == nullptr || inject(job, *fault)) of_.submit(job);
  }
}

/// Whether it is to be carried out nevertheless.
bool Injector::inject(Job& job, const Fault& fault) {
  if (fault.kind == Fault::Kind::FAIL) {
    job.answer = Error{fault.status, "a fault was injected: it fails"};
    return false;
  }
  const uint64_t limit_ms = job.time_limit_ms == 0 ? kLostAfterMs : job.time_limit_ms;
  Faulty faulty{fault, now_ns(), job.time_limit_ms != 0};
  if (fault.kind == Fault::Kind::DELAY) faulty.until_ns += fault.delay_ms * 1'000'000;
  if (fault.kind == Fault::Kind::DROP) faulty.until_ns += limit_ms * 1'000'000;
  const std::lock_guard lock(mutex_);
  faulty_[&job] = std::move(faulty);
  return fault.kind != Fault::Kind::DROP;
}

/// Under the mutex. Whether it is done now.
bool Injector::finish(Job& job, const Faulty& faulty) {
  switch (faulty.fault.kind) {
    case Fault::Kind::DROP:
      if (now_ns() < faulty.until_ns) return false;
      job.answer = Error{faulty.is_limited ? Status::TIMED_OUT : Status::DEVICE_LOST,
                         "a fault was injected: the request is lost"};
      return true;
    case Fault::Kind::DELAY:
      return now_ns() >= faulty.until_ns && of_.poll(job);
    default:
      if (!of_.poll(job)) return false;
      // A high bit of a number, wherever a float ends: a low one may pass for rounding.
      if (*job.answer && !job.room.first.empty())
        job.room.first[std::min(job.room.first.size() / 2 | 3, job.room.first.size() - 1)] ^=
            std::byte{0x10};
      return true;
  }
}

bool Injector::poll(Job& job) {
  const std::lock_guard lock(mutex_);
  const auto it = faulty_.find(&job);
  if (it == faulty_.end()) return job.answer || of_.poll(job);
  if (!finish(job, it->second)) return false;
  faulty_.erase(it);
  return true;
}

void Injector::wait(Job& job) {
  const auto is_faulty = [&] {
    const std::lock_guard lock(mutex_);
    return faulty_.find(&job) != faulty_.end();
  };
  while (is_faulty() && !poll(job)) std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (!job.answer) of_.wait(job);
}

void Injector::cancel(Job& job) {
  const std::lock_guard lock(mutex_);
  const auto it = faulty_.find(&job);
  if (it == faulty_.end() || it->second.fault.kind != Fault::Kind::DROP) {
    of_.cancel(job);
    return;
  }
  job.answer = Error{Status::CANCELLED, "a fault was injected: the request is lost"};
  faulty_.erase(it);
}

}  // namespace bowhead::ndp
