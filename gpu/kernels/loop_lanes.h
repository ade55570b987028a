// SPDX-License-Identifier: Apache-2.0
// Lanes that are the turns of a loop: all 32 do a step before any does the next, so that a sync has
// nothing to do. Included by warp.h, which describes these names.
#pragma once

#define BOWHEAD_LANES loop_lanes

namespace bowhead::gpu {
inline namespace loop_lanes {

template <class T>
class Lanes {
 public:
  T& operator[](uint32_t lane) { return all_[lane]; }
  const T& operator[](uint32_t lane) const { return all_[lane]; }

 private:
  T all_[kWarpLanes];
};

struct Warp {
  template <class F>
  static void each(F f) {
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) f(lane);
  }

  template <class T>
  static Lanes<T> sum(Lanes<T> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](T a, T b) { return a + b; });
  }
  static Lanes<float> largest(Lanes<float> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](float a, float b) { return fmaxf(a, b); });
  }

  static Lanes<uint32_t> running_sum(Lanes<uint32_t> values) {
    for (uint32_t lane = 1; lane < kWarpLanes; ++lane) values[lane] += values[lane - 1];
    return values;
  }

  static uint32_t of_lane(const Lanes<uint32_t>& values, uint32_t lane) { return values[lane]; }

  static void sync() {}

 private:
  template <class T, class F>
  static Lanes<T> fold(Lanes<T> values, uint32_t lane_bits, F f) {
    for (uint32_t bit = 1; bit < kWarpLanes; bit *= 2) {
      if ((lane_bits & bit) == 0) continue;
      const Lanes<T> before = values;
      each([&](uint32_t lane) { values[lane] = f(before[lane], before[lane ^ bit]); });
    }
    return values;
  }
};

template <class T>
T load(const T* from) {
  return *from;
}
template <class T>
T load_constant(const T* from) {
  return *from;
}
template <class T>
T load_streaming(const T* from) {
  return *from;
}
template <class T>
T load_shared(const T* from) {
  return *from;
}
template <class T>
void store(T* to, T value) {
  *to = value;
}
template <class T>
void store_streaming(T* to, T value) {
  *to = value;
}
template <class T>
void store_shared(T* to, T value) {
  *to = value;
}

inline void keep_order() { asm volatile("" ::: "memory"); }

/// A kernel is one thread.
inline void add(uint32_t* to, uint32_t value) { *to += value; }

inline constexpr uint32_t kMostCpuWarps = 1;

template <class F>
void run_warps(uint32_t units, F f) {
  for (uint32_t unit = 0; unit < units; ++unit) f(unit, 0);
}

}  // namespace loop_lanes
}  // namespace bowhead::gpu
