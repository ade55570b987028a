// SPDX-License-Identifier: Apache-2.0
// Which parts of a device's memory are read most: a hotness monitoring unit in the manner of CXL
// (CXL r3.2, 8.2.8, CHMU Register Interface), in epoch-based reporting mode with a global epoch.
//
// Memory is divided into units of a power of two of bytes. A counter for each unit counts the lines
// of 64 bytes that are accessed, one of 2^sampling_log2 on average. When an epoch ends, the units
// whose counters exceed the threshold go to the hot list, hottest first, and all counters begin
// again at zero. The hot list is a ring that one reader empties; units that find it full are
// dropped, and the overflow bit is set.
//
// Differences from a CHMU: no always-on mode, no range bitmap (all memory is tracked), no choice of
// reads or writes, no interrupts; entries of one epoch are in order, which CXL leaves open.
//
// Invariants
//   H1 A counter loses no count but by saturation: epochs take counts by exchange.
//   H2 The counters have a place for every unit of the smallest size, so that a note() that runs
//      beside configure() stays within them, whichever setting it saw. Its count may be of the
//      other unit size: an error of one access.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace bowhead::device {

struct HotUnit {
  uint64_t offset = 0;  ///< of its first byte
  uint32_t count = 0;   ///< sampled accesses: 2^sampling_log2 times as many are estimated
};

/// What policies, such as eviction and recompression, ask of hotness. All answers are about the
/// epoch that ended last, and are empty or zero before one has.
class Hotness {
 public:
  virtual ~Hotness() = default;
  /// The units with the most accesses, hottest first, without those that had none.
  virtual std::vector<HotUnit> hottest(size_t count_max) const = 0;
  /// Estimate of the lines of a range that were accessed; accesses of a unit that is only partly in
  /// the range count in proportion.
  virtual uint64_t accessed_lines(uint64_t offset, uint64_t bytes) const = 0;
};

struct HotnessConfig {
  bool enabled = false;
  uint8_t unit_log2 = 21;     ///< bytes of a unit, as a power of two
  uint8_t sampling_log2 = 6;  ///< one of so many lines is counted, as a power of two; 15 at most
  uint32_t threshold = 0;     ///< a unit is hot if its counter exceeds this
  uint32_t epoch_ms = 1000;   ///< 1 to 4,095,000, as in CXL
};

/// The hot list is a ring of `places`, of which one is always free.
struct HotListState {
  uint16_t head = 0;  ///< the oldest entry that is not read; head == tail: empty
  uint16_t tail = 0;  ///< where the next one goes
  bool overflow = false;
  uint64_t epochs = 0;  ///< that have ended since the unit was configured
};

/// All of it is thread-safe; note() is lock-free.
class HotnessMonitor final : public Hotness {
 public:
  static constexpr uint16_t kPlaces = 1024;
  static constexpr uint8_t kCounterBits = 32;  ///< of a counter, and of a count in the hot list
  static constexpr uint8_t kSamplingLog2Max = 15;

  /// Disabled until it is configured. The smallest unit is 4 KiB, or more for memory that would
  /// have more than 2^20 of them; it takes 8 bytes for each unit of this size.
  explicit HotnessMonitor(uint64_t capacity_bytes);

  /// An access. It costs some ns: most accesses have no line that is sampled. Bytes beyond the
  /// capacity do not count.
  void note(uint64_t offset, uint64_t bytes) noexcept {
    const uint32_t setting = setting_.load(std::memory_order_relaxed);
    if ((setting & kEnabled) == 0 || bytes == 0) return;
    const uint64_t line = offset / kLineBytes;
    const uint64_t lines = (offset % kLineBytes + bytes - 1) / kLineBytes + 1;
    // The first line that is sampled; after it, every 2^sampling_log2-th.
    const uint64_t first = random() & ((uint64_t{1} << (setting >> 8)) - 1);
    if (first < lines) count(setting, line, lines, first);
  }

  /// Empties counters and list. Returns INVALID_ARGUMENT.
  Result<void> configure(const HotnessConfig& config);
  /// Ends the epoch if its time is over. The device calls it often, with a clock that never goes
  /// back; the epoch begins with the first call after configure().
  void advance(uint64_t now_ns);
  void end_epoch();

  HotnessConfig config() const;
  HotListState state() const;
  uint32_t unit_sizes() const { return unit_sizes_; }  ///< bit n: units of 2^n bytes are possible

  struct HotList {
    HotnessConfig config;
    HotListState state;             ///< with the overflow bit as it was
    std::vector<uint64_t> entries;  ///< a unit's number above kCounterBits of its count (8.2.8.8)
  };
  /// Sets the head, then copies entries from there, up to `count_max`, without taking them off: the
  /// reader names the first entry that it has not read. Returns INVALID_ARGUMENT: the head is not
  /// between the present head and the tail.
  Result<HotList> read(uint16_t head, size_t count_max, bool clear_overflow);

  std::vector<HotUnit> hottest(size_t count_max) const override;
  uint64_t accessed_lines(uint64_t offset, uint64_t bytes) const override;

 private:
  static constexpr uint64_t kLineBytes = 64;
  static constexpr uint32_t kEnabled = 0x80;
  /// A counter that has reached this counts no further. The rest is for threads that saw it below.
  static constexpr uint32_t kSaturated = uint32_t{1} << 31;

  /// A linear congruential generator for each thread, of which the high bits are used.
  static uint64_t random() noexcept {
    if (random_ == 0) random_ = seed();
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 48;
  }
  static uint64_t seed() noexcept;
  void count(uint32_t setting, uint64_t line, uint64_t lines, uint64_t first) noexcept;
  uint64_t units() const;   // under mutex_
  void list_hot_units();    // under mutex_
  void end_epoch_locked();  // under mutex_
  static inline constinit thread_local uint64_t random_ = 0;

  const uint64_t lines_;  // of the memory
  uint32_t unit_sizes_ = 0;
  uint64_t places_ = 0;                                // of counters
  std::unique_ptr<std::atomic<uint32_t>[]> counters_;  // of this epoch
  std::unique_ptr<std::atomic<uint32_t>[]> last_;      // of the last one
  /// unit_log2 - 6 | kEnabled | sampling_log2 << 8, so that note() sees one setting.
  std::atomic<uint32_t> setting_{0};
  std::atomic<uint64_t> epoch_end_ns_{0};  // 0: it has not begun

  mutable std::mutex mutex_;
  HotnessConfig config_;
  HotListState state_;
  std::vector<uint64_t> list_;
};

}  // namespace bowhead::device
