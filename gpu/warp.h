// SPDX-License-Identifier: Apache-2.0
// What makes the code of a warp run on a GPU, and on a CPU in its place: written once, in steps
// that all lanes do before any does the next.
//
//   Lanes<uint64_t> squares;
//   Warp::each([&](uint32_t lane) { squares[lane] = lane * lane; });
//   squares = Warp::sum(squares, 31);  // each lane: the sum over all of them
//
// nvcc makes functions of a GPU of it, with a lane in each thread; other compilers make loops over
// 32 lanes. All 32 of a warp have to come along.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define BOWHEAD_WARP_CODE __device__ __forceinline__
#define BOWHEAD_UNROLL _Pragma("unroll")  // arrays that loops index stay in registers
#define BOWHEAD_NO_UNROLL _Pragma("unroll 1")
#else
#define BOWHEAD_WARP_CODE inline
#define BOWHEAD_UNROLL
#define BOWHEAD_NO_UNROLL
#endif

namespace bowhead::gpu {

inline constexpr uint32_t kWarpLanes = 32;

/// The widest that a lane loads and stores at once.
struct alignas(16) Bytes16 {
  uint64_t low = 0, high = 0;
};
inline constexpr uint32_t kLaneBytes = sizeof(Bytes16);

/// A T of each lane. Of what a GPU has, `lane` is the own one.
template <class T>
class Lanes {
 public:
#ifdef __CUDACC__
  BOWHEAD_WARP_CODE T& operator[](uint32_t) { return own_; }
  BOWHEAD_WARP_CODE const T& operator[](uint32_t) const { return own_; }

 private:
  T own_;
#else
  T& operator[](uint32_t lane) { return all_[lane]; }
  const T& operator[](uint32_t lane) const { return all_[lane]; }

 private:
  T all_[kWarpLanes];
#endif
};

struct Warp {
  /// f(lane) for each lane; a lane may not use what another does in the same call.
  template <class F>
  static BOWHEAD_WARP_CODE void each(F f) {
#ifdef __CUDACC__
    f(threadIdx.x % kWarpLanes);
#else
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) f(lane);
#endif
  }

  /// For each lane the sum over those whose numbers differ from its own in no bit but `lane_bits`.
  template <class T>
  static BOWHEAD_WARP_CODE Lanes<T> sum(Lanes<T> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](T a, T b) { return a + b; });
  }
  /// The same for the largest; what is not a number is passed over.
  static BOWHEAD_WARP_CODE Lanes<float> largest(Lanes<float> values, uint32_t lane_bits) {
    return fold(values, lane_bits, [](float a, float b) { return fmaxf(a, b); });
  }

  /// For each lane the sum over those up to it.
  static BOWHEAD_WARP_CODE Lanes<uint32_t> running_sum(Lanes<uint32_t> values) {
#ifdef __CUDACC__
    BOWHEAD_UNROLL
    for (uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, values[0], distance);
      if (threadIdx.x % kWarpLanes >= distance) values[0] += before;
    }
#else
    for (uint32_t lane = 1; lane < kWarpLanes; ++lane) values[lane] += values[lane - 1];
#endif
    return values;
  }

  /// The value of one lane, for all.
  static BOWHEAD_WARP_CODE uint32_t of_lane(const Lanes<uint32_t>& values, uint32_t lane) {
#ifdef __CUDACC__
    return __shfl_sync(~0u, values[0], static_cast<int>(lane));
#else
    return values[lane];
#endif
  }

  /// What lanes stored before, others of the warp load behind it.
  static BOWHEAD_WARP_CODE void sync() {
#ifdef __CUDACC__
    __syncwarp();
#endif
  }

 private:
  template <class T, class F>
  static BOWHEAD_WARP_CODE Lanes<T> fold(Lanes<T> values, uint32_t lane_bits, F f) {
    BOWHEAD_UNROLL
    for (uint32_t bit = 1; bit < kWarpLanes; bit *= 2) {
      if ((lane_bits & bit) == 0) continue;
#ifdef __CUDACC__
      values[0] = f(values[0], __shfl_xor_sync(~0u, values[0], bit));
#else
      const Lanes<T> before = values;
      each([&](uint32_t lane) { values[lane] = f(before[lane], before[lane ^ bit]); });
#endif
    }
    return values;
  }
};

/// Four of the eight bytes of `low` and `high`: each digit of `digits` (of 16, the lowest first) is
/// the number of one.
BOWHEAD_WARP_CODE uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t digits) {
#ifdef __CUDACC__
  return __byte_perm(low, high, digits);
#else
  const uint64_t all = uint64_t{high} << 32 | low;
  uint32_t picked = 0;
  for (uint32_t i = 0; i < 4; ++i)
    picked |= static_cast<uint32_t>(all >> 8 * (digits >> 4 * i & 7) & 0xFF) << 8 * i;
  return picked;
#endif
}

/// The low half of both, `high` above `low`, shifted right by 0 to 31 bits.
BOWHEAD_WARP_CODE uint32_t shift_right(uint32_t low, uint32_t high, uint32_t bits) {
#ifdef __CUDACC__
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> bits);
#endif
}

/// The number of the lowest bit that is set; there is one.
BOWHEAD_WARP_CODE uint32_t lowest_bit(uint32_t bits) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__ffs(static_cast<int>(bits))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(bits));
#endif
}

BOWHEAD_WARP_CODE uint32_t count_bits(uint32_t bits) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

#ifdef __CUDACC__
// What the intrinsics below take for a T.
template <class T>
using CudaWord = std::conditional_t<std::is_pointer_v<T>, uintptr_t,
                                    std::conditional_t<std::is_same_v<T, Bytes16>, ulonglong2, T>>;
#endif

/// A load, at once and of global memory.
template <class T>
BOWHEAD_WARP_CODE T load(const T* from) {
#ifdef __CUDACC__
  __builtin_assume(__isGlobal(from));
  return __builtin_bit_cast(T, *reinterpret_cast<const CudaWord<T>*>(from));
#else
  return *from;
#endif
}

/// A load of what nobody writes while the kernel runs: the compiler may move it across stores.
template <class T>
BOWHEAD_WARP_CODE T load_constant(const T* from) {
#ifdef __CUDACC__
  return __builtin_bit_cast(T, __ldg(reinterpret_cast<const CudaWord<T>*>(from)));
#else
  return *from;
#endif
}

/// A load of what is used once: first to leave the caches.
template <class T>
BOWHEAD_WARP_CODE T load_streaming(const T* from) {
#ifdef __CUDACC__
  return __builtin_bit_cast(T, __ldcs(reinterpret_cast<const CudaWord<T>*>(from)));
#else
  return *from;
#endif
}

template <class T>
BOWHEAD_WARP_CODE void store(T* to, T value) {
#ifdef __CUDACC__
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<CudaWord<T>*>(to) = __builtin_bit_cast(CudaWord<T>, value);
#else
  *to = value;
#endif
}

template <class T>
BOWHEAD_WARP_CODE void store_streaming(T* to, T value) {
#ifdef __CUDACC__
  __stcs(reinterpret_cast<CudaWord<T>*>(to), __builtin_bit_cast(CudaWord<T>, value));
#else
  *to = value;
#endif
}

/// What a lane stored before it finds behind it, also as another type.
BOWHEAD_WARP_CODE void keep_order() { asm volatile("" ::: "memory"); }

/// Adds to a word that all warps count in: on the CPU a kernel is one thread.
BOWHEAD_WARP_CODE void add(uint32_t* to, uint32_t value) {
#ifdef __CUDACC__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

}  // namespace bowhead::gpu
