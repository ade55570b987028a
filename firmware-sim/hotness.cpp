// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/hotness.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace bowhead::device {
namespace {

constexpr uint8_t kLineLog2 = 6;
constexpr uint8_t kUnitLog2Least = 12, kUnitLog2Most = 30;
constexpr uint64_t kUnitsMost = uint64_t{1} << 20;
constexpr uint32_t kEpochMsMost = 4'095'000;
constexpr uint64_t kNsPerMs = 1'000'000;

uint64_t units_of(uint64_t lines, uint8_t unit_log2) {
  const uint8_t shift = unit_log2 - kLineLog2;
  return (lines + (uint64_t{1} << shift) - 1) >> shift;
}

}  // namespace

HotnessMonitor::HotnessMonitor(uint64_t capacity_bytes)
    : lines_(capacity_bytes / kLineBytes), list_(kPlaces) {
  for (uint8_t log2 = kUnitLog2Least; log2 <= kUnitLog2Most; ++log2) {
    if (units_of(lines_, log2) <= kUnitsMost) unit_sizes_ |= uint32_t{1} << log2;
  }
  BOWHEAD_ASSERT(unit_sizes_ != 0);  // a capacity of more than 1 PiB
  const auto least = static_cast<uint8_t>(__builtin_ctz(unit_sizes_));
  places_ = units_of(lines_, least);
  counters_ = std::make_unique<std::atomic<uint32_t>[]>(places_);
  last_ = std::make_unique<std::atomic<uint32_t>[]>(places_);
  config_.unit_log2 = std::max(config_.unit_log2, least);
}

uint64_t HotnessMonitor::seed() noexcept {
  static std::atomic<uint64_t> threads{0};
  return (threads.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15u;
}

void HotnessMonitor::count(uint32_t setting, uint64_t line, uint64_t lines,
                           uint64_t first) noexcept {
  if (line >= lines_) return;
  const uint32_t shift = setting & (kEnabled - 1), sampling = setting >> 8;
  const uint64_t end = line + std::min(lines, lines_ - line);
  for (uint64_t at = line + first; at < end;) {
    const uint64_t unit = at >> shift;
    const uint64_t unit_end = std::min(end, (unit + 1) << shift);
    const uint64_t samples = ((unit_end - at - 1) >> sampling) + 1;
    std::atomic<uint32_t>& counter = counters_[unit];
    if (counter.load(std::memory_order_relaxed) < kSaturated)
      counter.fetch_add(static_cast<uint32_t>(samples), std::memory_order_relaxed);
    at += samples << sampling;
  }
}

Result<void> HotnessMonitor::configure(const HotnessConfig& config) {
  if (config.unit_log2 > kUnitLog2Most || (unit_sizes_ >> config.unit_log2 & 1) == 0)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("units of 2^{} bytes: this memory can have units of 2^{} to 2^{}",
                             config.unit_log2, __builtin_ctz(unit_sizes_), kUnitLog2Most)};
  if (config.sampling_log2 > kSamplingLog2Max)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("one of 2^{} lines is sampled: 2^0 to 2^{} are possible",
                             config.sampling_log2, kSamplingLog2Max)};
  if (config.epoch_ms == 0 || config.epoch_ms > kEpochMsMost)
    return Error{Status::INVALID_ARGUMENT, fmt::format("an epoch of {} ms: 1 to {} are possible",
                                                       config.epoch_ms, kEpochMsMost)};
  const std::lock_guard lock(mutex_);
  config_ = config;
  state_ = {};
  epoch_end_ns_.store(0, std::memory_order_relaxed);
  const auto setting = static_cast<uint32_t>(config.unit_log2 - kLineLog2) |
                       (config.enabled ? kEnabled : 0) | uint32_t{config.sampling_log2} << 8;
  setting_.store(setting, std::memory_order_relaxed);
  for (uint64_t i = 0; i < places_; ++i) {
    counters_[i].store(0, std::memory_order_relaxed);
    last_[i].store(0, std::memory_order_relaxed);
  }
  return {};
}

void HotnessMonitor::advance(uint64_t now_ns) {
  const uint64_t end_ns = epoch_end_ns_.load(std::memory_order_relaxed);
  if (end_ns != 0 && now_ns < end_ns) return;
  const std::lock_guard lock(mutex_);
  if (epoch_end_ns_.load(std::memory_order_relaxed) != end_ns) return;  // another thread did it
  if (end_ns != 0) end_epoch_locked();
  epoch_end_ns_.store(now_ns + config_.epoch_ms * kNsPerMs, std::memory_order_relaxed);
}

void HotnessMonitor::end_epoch() {
  const std::lock_guard lock(mutex_);
  end_epoch_locked();
}

void HotnessMonitor::end_epoch_locked() {
  if (!config_.enabled) return;
  for (uint64_t unit = 0, end = units(); unit < end; ++unit) {
    uint32_t count = counters_[unit].load(std::memory_order_relaxed);
    if (count != 0) count = counters_[unit].exchange(0, std::memory_order_relaxed);
    last_[unit].store(count, std::memory_order_relaxed);
  }
  ++state_.epochs;
  list_hot_units();
}

uint64_t HotnessMonitor::units() const { return units_of(lines_, config_.unit_log2); }

namespace {

/// The hottest `most` of `all`, in order; of equals those with the lower number first.
void keep_hottest(std::vector<std::pair<uint32_t, uint64_t>>& all, size_t most) {
  const auto hotter = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const size_t kept = std::min(most, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(),
                    hotter);
  all.resize(kept);
}

}  // namespace

void HotnessMonitor::list_hot_units() {
  std::vector<std::pair<uint32_t, uint64_t>> hot;
  for (uint64_t unit = 0, end = units(); unit < end; ++unit) {
    const uint32_t count = last_[unit].load(std::memory_order_relaxed);
    if (count > config_.threshold) hot.emplace_back(count, unit);
  }
  const size_t used = (size_t{kPlaces} + state_.tail - state_.head) % kPlaces;
  const size_t room = kPlaces - 1 - used;
  if (hot.size() > room) state_.overflow = true;
  keep_hottest(hot, room);
  for (const auto& [count, unit] : hot) {
    list_[state_.tail] = unit << kCounterBits | count;
    state_.tail = static_cast<uint16_t>((state_.tail + 1) % kPlaces);
  }
}

HotnessConfig HotnessMonitor::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

HotListState HotnessMonitor::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Result<HotnessMonitor::HotList> HotnessMonitor::read(uint16_t head, size_t count_max,
                                                     bool clear_overflow) {
  const std::lock_guard lock(mutex_);
  const size_t used = (size_t{kPlaces} + state_.tail - state_.head) % kPlaces;
  const size_t passed = (size_t{kPlaces} + head - state_.head) % kPlaces;
  if (head >= kPlaces || passed > used)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("place {} of the hot list: its entries are at {} to before {}", head,
                             state_.head, state_.tail)};
  state_.head = head;
  HotList list{config_, state_, {}};
  if (clear_overflow) state_.overflow = false;
  for (size_t i = 0; i < std::min(count_max, used - passed); ++i)
    list.entries.push_back(list_[(head + i) % kPlaces]);
  return list;
}

std::vector<HotUnit> HotnessMonitor::hottest(size_t count_max) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<uint32_t, uint64_t>> all;
  for (uint64_t unit = 0, end = units(); unit < end; ++unit) {
    const uint32_t count = last_[unit].load(std::memory_order_relaxed);
    if (count > 0) all.emplace_back(count, unit);
  }
  keep_hottest(all, count_max);
  std::vector<HotUnit> units;
  for (const auto& [count, unit] : all) units.push_back({unit << config_.unit_log2, count});
  return units;
}

uint64_t HotnessMonitor::accessed_lines(uint64_t offset, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const uint64_t capacity = lines_ * kLineBytes;
  if (offset >= capacity || bytes == 0) return 0;
  const uint64_t end = offset + std::min(bytes, capacity - offset);
  double lines = 0;
  for (uint64_t at = offset; at < end;) {
    const uint64_t unit = at >> config_.unit_log2;
    const uint64_t unit_begin = unit << config_.unit_log2;
    const uint64_t unit_end = std::min(capacity, (unit + 1) << config_.unit_log2);
    const uint64_t part_end = std::min(end, unit_end);
    const double share =
        static_cast<double>(part_end - at) / static_cast<double>(unit_end - unit_begin);
    lines += share * last_[unit].load(std::memory_order_relaxed);
    at = part_end;
  }
  return static_cast<uint64_t>(lines * static_cast<double>(uint64_t{1} << config_.sampling_log2));
}

}  // namespace bowhead::device
