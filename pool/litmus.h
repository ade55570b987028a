// SPDX-License-Identifier: Apache-2.0
// Litmus: finds out which flush primitive lets two hosts share a pool, by running the patterns that
// sharing rests on (litmus_patterns.h) between them.
//
// Two processes, one on each host, call run_litmus() on one pool that was made for two or more
// hosts and that no process has open. They meet in the lines that each of the first two host slots
// has for requests to the other, and restore them afterwards. A stale read proves that sharing is
// unsafe; a run without stale reads proves nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/coherence.h"
#include "base/status.h"
#include "pool/pool.h"

namespace bowhead {

struct LitmusOptions {
  uint32_t host = 0;         ///< 0: host A, 1: host B
  double seconds = 10;       ///< duration of the trials; host A's counts
  double wait_seconds = 60;  ///< how long to wait for the other host
  Progress progress = {};
};

enum class LitmusPattern : uint32_t { MESSAGE_PASSING, STORE_BUFFERING, LEASE_AGAINST_RETIRE };
inline constexpr uint32_t kLitmusPatterns = 3;

/// "message passing", ...
const char* litmus_pattern_name(LitmusPattern pattern);

struct LitmusTally {
  uint64_t rounds = 0;
  uint64_t stale = 0;  ///< reads of a value that was replaced before
};

/// The results of a primitive. NONE, which flushes nothing, is tried as well: if it shows no stale
/// reads, the hardware may be keeping the two hosts coherent.
struct LitmusResult {
  FlushKind kind = FlushKind::NONE;
  std::array<LitmusTally, kLitmusPatterns> patterns;
  std::array<double, 2> publish_ns{};  ///< of host A and B: a line just stored to
  std::array<double, 2> acquire_ns{};  ///< a line, and a load from it

  bool stale() const;
  double cost_ns() const;  ///< of a publish and an acquire, each where it takes longer
};

/// The same on both hosts.
struct LitmusReport {
  std::vector<LitmusResult> results;  ///< for each primitive that both CPUs support, NONE last
  std::array<FlushKind, 2> in_use{};  ///< the primitive that Bowhead uses there on a shared pool
  bool one_machine = false;           ///< both run under one kernel: its caches are coherent

  /// The cheapest primitive that flushes and had no stale reads; the one that both use, unless
  /// another is much cheaper. Nothing if there is none.
  std::optional<FlushKind> recommended() const;
  /// Whether the primitives in use had no stale reads.
  bool safe_in_use() const;
};

/// Returns NO_SUCH_POOL, NOT_A_POOL and the statuses of open_media(); INVALID_ARGUMENT (the pool is
/// for one host), IN_USE (processes, or another litmus, have it open), BUSY (the other host did not
/// come, or stopped answering).
Result<LitmusReport> run_litmus(const std::string& locator, const LitmusOptions& options);

}  // namespace bowhead
