// SPDX-License-Identifier: Apache-2.0
// Processes that measure together: one per CPU, each with its own mapping of the pool, starting
// every timed section at the same moment.
//
// A handle of a pool does not survive fork(), so members open pools, never the process that forks
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace bowhead::bench {

/// Makes this process die with its parent. Call it first in a forked child, with the parent's
/// getpid().
void die_with_parent(int parent_pid);

class Team;

/// A member's view of its team.
class Member {
 public:
  uint32_t index() const { return index_; }
  uint32_t count() const;

  /// Waits for all members, then runs and times `work`; `section` is below the team's count.
  void time(uint32_t section, const std::function<void()>& work);

  /// Leaves a number for the process that runs the team; `place` is below the team's count of
  /// numbers.
  void leave(uint32_t place, double number);

  /// Leaves a text of up to 400 bytes.
  void leave_text(const std::string& text);

 private:
  friend class Team;
  Member(Team& team, uint32_t index) : team_(team), index_(index) {}
  Team& team_;
  uint32_t index_;
};

class Team {
 public:
  /// One member is pinned to each of `cpus`. Each can time `sections` sections and leave `numbers`
  /// numbers.
  Team(std::vector<int> cpus, uint32_t sections, uint32_t numbers);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// Runs `body` in every member and waits. Returns the error of a member that failed (the others
  /// are ended), SYSTEM if one died or could not be created. Once per team.
  Result<void> run(const std::function<Result<void>(Member&)>& body);

  uint32_t count() const { return static_cast<uint32_t>(cpus_.size()); }

  /// From the first member's start of a section to the last one's end.
  double seconds(uint32_t section) const;
  double number(uint32_t member, uint32_t place) const;
  std::string text(uint32_t member) const;

 private:
  friend class Member;
  struct Shared;  // barrier
  struct Interval {
    uint64_t begin_ns, end_ns;
  };
  struct Outcome {
    int32_t status;
    char detail[512];
    char text[408];
  };

  int run_member(uint32_t index, int parent_pid, const std::function<Result<void>(Member&)>& body);
  Result<void> wait_for(std::vector<int> pids);
  Interval& interval(uint32_t member, uint32_t section) const;
  double& slot(uint32_t member, uint32_t place) const;

  const std::vector<int> cpus_;
  const uint32_t sections_;
  const uint32_t numbers_;
  size_t shared_bytes_ = 0;
  Shared* shared_ = nullptr;  // shared anonymous memory: barrier, outcomes, intervals, numbers
  Outcome* outcomes_ = nullptr;
  Interval* intervals_ = nullptr;
  double* numbers_left_ = nullptr;
};

}  // namespace bowhead::bench
