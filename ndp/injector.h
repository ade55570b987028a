// SPDX-License-Identifier: Apache-2.0
// Injector: an engine around another one, whose faults are chosen, to see what those who use
// engines make of them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "ndp/engine.h"

namespace bowhead::ndp {

struct Fault {
  enum class Kind {
    FAIL,     ///< ends with `status`, and is not carried out
    CORRUPT,  ///< a bit of the answer is another one
    DELAY,    ///< is done `delay_ms` late
    DROP,     ///< is never done: TIMED_OUT at the job's time limit, else DEVICE_LOST after 10 s
  };
  Kind kind = Kind::FAIL;
  uint64_t every = 1;  ///< of each so many jobs the last one has it
  uint64_t count = 0;  ///< so many jobs in all; 0: no end
  Status status = Status::DEVICE_LOST;
  uint64_t delay_ms = 20;
};

/// "fail", "corrupt", "delay" or "drop", then :EVERY, then :COUNT. INVALID_ARGUMENT.
Result<Fault> parse_fault(std::string_view text);

class Injector final : public Engine {
 public:
  using Engine::submit;
  /// `of` must outlive it. A job with several faults has the first of them.
  Injector(Engine& of, std::vector<Fault> faults);

  const char* name() const override { return "injector"; }
  void submit(std::span<Job> jobs) override;
  bool poll(Job& job) override;
  void wait(Job& job) override;
  void cancel(Job& job) override;

  uint64_t injected() const;  ///< faults so far

 private:
  /// A job that was submitted with a fault and is not done.
  struct Faulty {
    Fault fault;
    uint64_t until_ns = 0;  ///< when it ends, or may end
    bool is_limited = false;
  };
  const Fault* next_fault();
  bool inject(Job& job, const Fault& fault);
  bool finish(Job& job, const Faulty& faulty);

  Engine& of_;
  const std::vector<Fault> faults_;
  mutable std::mutex mutex_;
  uint64_t jobs_ = 0, injected_all_ = 0;
  std::vector<uint64_t> injected_;  // by fault
  std::map<const Job*, Faulty> faulty_;
};

}  // namespace bowhead::ndp
