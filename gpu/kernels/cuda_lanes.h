// SPDX-License-Identifier: Apache-2.0
// Lanes that are threads of a GPU. Included by warp.h, which describes these names.
#pragma once

#define BOWHEAD_LANES cuda_lanes

namespace bowhead::gpu {
inline namespace cuda_lanes {

template <class T>
class Lanes {
 public:
  BOWHEAD_WARP_CODE T& operator[](uint32_t) { return own_; }
  BOWHEAD_WARP_CODE const T& operator[](uint32_t) const { return own_; }

 private:
  T own_;
};

struct Warp {
  template <class F>
  static BOWHEAD_WARP_CODE void each(F f) {
    f(threadIdx.x % kWarpLanes);
  }

  template <class T>
  static BOWHEAD_WARP_CODE Lanes<T> sum(Lanes<T> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](T a, T b) { return a + b; });
  }
  static BOWHEAD_WARP_CODE Lanes<float> largest(Lanes<float> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](float a, float b) { return fmaxf(a, b); });
  }

  static BOWHEAD_WARP_CODE Lanes<uint32_t> running_sum(Lanes<uint32_t> values) {
    BOWHEAD_UNROLL
    for (uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, values[0], distance);
      if (threadIdx.x % kWarpLanes >= distance) values[0] += before;
    }
    return values;
  }

  static BOWHEAD_WARP_CODE uint32_t of_lane(const Lanes<uint32_t>& values, uint32_t lane) {
    return __shfl_sync(~0u, values[0], static_cast<int>(lane));
  }

  static BOWHEAD_WARP_CODE void sync() { __syncwarp(); }

 private:
  template <class T, class F>
  static BOWHEAD_WARP_CODE Lanes<T> fold(Lanes<T> values, uint32_t lane_bits, F f) {
    BOWHEAD_UNROLL
    for (uint32_t bit = 1; bit < kWarpLanes; bit *= 2) {
      if ((lane_bits & bit) == 0) continue;
      values[0] = f(values[0], __shfl_xor_sync(~0u, values[0], bit));
    }
    return values;
  }
};

// The type that the intrinsics below take for a T.
template <class T>
using CudaWord = std::conditional_t<std::is_pointer_v<T>, uintptr_t,
                                    std::conditional_t<std::is_same_v<T, Bytes16>, ulonglong2, T>>;

template <class T>
BOWHEAD_WARP_CODE T load(const T* from) {
  __builtin_assume(__isGlobal(from));
  return __builtin_bit_cast(T, *reinterpret_cast<const CudaWord<T>*>(from));
}

template <class T>
BOWHEAD_WARP_CODE T load_constant(const T* from) {
  return __builtin_bit_cast(T, __ldg(reinterpret_cast<const CudaWord<T>*>(from)));
}

template <class T>
BOWHEAD_WARP_CODE T load_streaming(const T* from) {
  return __builtin_bit_cast(T, __ldcs(reinterpret_cast<const CudaWord<T>*>(from)));
}

template <class T>
BOWHEAD_WARP_CODE void store(T* to, T value) {
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<CudaWord<T>*>(to) = __builtin_bit_cast(CudaWord<T>, value);
}

template <class T>
BOWHEAD_WARP_CODE void store_streaming(T* to, T value) {
  __stcs(reinterpret_cast<CudaWord<T>*>(to), __builtin_bit_cast(CudaWord<T>, value));
}

template <class T>
BOWHEAD_WARP_CODE T load_shared(const T* from) {
  return *from;
}

template <class T>
BOWHEAD_WARP_CODE void store_shared(T* to, T value) {
  *to = value;
}

BOWHEAD_WARP_CODE void keep_order() { asm volatile("" ::: "memory"); }

BOWHEAD_WARP_CODE void add(uint32_t* to, uint32_t value) { atomicAdd(to, value); }

}  // namespace cuda_lanes
}  // namespace bowhead::gpu
