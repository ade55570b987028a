// SPDX-License-Identifier: Apache-2.0
// Lanes that are fibers (fiber_warps.h). gpu/kernels/warp.h includes this file where
// BOWHEAD_LANES_HEADER names it; that header defines these names.
#pragma once

#include <algorithm>
#include <cstring>
#include <source_location>

#include "tests/gpu/fiber_warps.h"

#define BOWHEAD_LANES fiber_lanes

namespace bowhead::gpu {
inline namespace fiber_lanes {

template <class T>
class Lanes {
 public:
  T& operator[](uint32_t) { return own_; }
  const T& operator[](uint32_t) const { return own_; }

 private:
  T own_;
};

struct Warp {
  using Where = std::source_location;

  template <class F>
  static void each(F f) {
    f(fibers::lane());
  }

  template <class T>
  static Lanes<T> sum(Lanes<T> values, uint32_t lane_bits, Where where = Where::current()) {
    return fold(values, lane_bits, where, [](T a, T b) { return a + b; });
  }
  static Lanes<float> largest(Lanes<float> values, uint32_t lane_bits,
                              Where where = Where::current()) {
    return fold(values, lane_bits, where, [](float a, float b) { return fmaxf(a, b); });
  }

  static Lanes<uint32_t> running_sum(Lanes<uint32_t> values, Where where = Where::current()) {
    const uint64_t* all = fibers::exchange(values[0], where);
    if (all == nullptr) return values;
    for (uint32_t lane = 0; lane < fibers::lane(); ++lane)
      values[0] += static_cast<uint32_t>(all[lane]);
    return values;
  }

  static uint32_t of_lane(const Lanes<uint32_t>& values, uint32_t lane,
                          Where where = Where::current()) {
    const uint64_t* all = fibers::exchange(values[0], where);
    return all == nullptr ? values[0] : static_cast<uint32_t>(all[lane]);
  }

  static void sync(Where where = Where::current()) { fibers::sync(where); }

 private:
  // Each lane computes the collective result, in the order of a GPU.
  template <class T, class F>
  static Lanes<T> fold(Lanes<T> values, uint32_t lane_bits, Where where, F f) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t own = 0;
    std::memcpy(&own, &values[0], sizeof(T));
    const uint64_t* all = fibers::exchange(own, where);
    if (all == nullptr) return values;
    T now[kWarpLanes], next[kWarpLanes];
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane)
      std::memcpy(&now[lane], &all[lane], sizeof(T));
    for (uint32_t bit = 1; bit < kWarpLanes; bit *= 2) {
      if ((lane_bits & bit) == 0) continue;
      for (uint32_t lane = 0; lane < kWarpLanes; ++lane) next[lane] = f(now[lane], now[lane ^ bit]);
      std::copy(next, next + kWarpLanes, now);
    }
    values[0] = now[fibers::lane()];
    return values;
  }
};

template <class T>
T load(const T* from) {
  fibers::access(fibers::Access::LOAD, from, sizeof(T));
  return *from;
}
template <class T>
T load_constant(const T* from) {
  fibers::access(fibers::Access::LOAD_CONSTANT, from, sizeof(T));
  return *from;
}
template <class T>
T load_streaming(const T* from) {
  return load(from);
}
template <class T>
T load_shared(const T* from) {
  return load(from);
}
template <class T>
void store(T* to, T value) {
  fibers::access(fibers::Access::STORE, to, sizeof(T));
  *to = value;
}
template <class T>
void store_streaming(T* to, T value) {
  store(to, value);
}
template <class T>
void store_shared(T* to, T value) {
  store(to, value);
}

inline void keep_order(std::source_location where = std::source_location::current()) {
  fibers::keep_order(where);
  asm volatile("" ::: "memory");
}

inline void add(uint32_t* to, uint32_t value) {
  fibers::access(fibers::Access::ADD, to, sizeof(*to));
  *to += value;
}

inline constexpr uint32_t kMostCpuWarps = 4;

template <class F>
void run_warps(uint32_t units, F f) {
  fibers::run_warps(units, f);
}

}  // namespace fiber_lanes
}  // namespace bowhead::gpu
