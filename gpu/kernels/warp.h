// SPDX-License-Identifier: Apache-2.0
// The code of a warp, for a GPU and for a CPU in its place: written once, in steps that all lanes
// do before any does the next.
//
//   Lanes<uint64_t> squares;
//   Warp::each([&](uint32_t lane) { squares[lane] = lane * lane; });
//   squares = Warp::sum(squares, 31);  // each lane: the sum over all of them
//
// Each way to run lanes is a header of its own. All of them define the same names:
//
//   Lanes<T>       a T of each lane: [lane] is the own one. No lane reads another's.
//   Warp::each(f)  f(lane) for each lane; a lane may not use results of another in the same call
//   Warp::sum(values, lane_bits)
//                  for each lane the sum over those whose numbers differ from its own in no bit
//                  but `lane_bits`
//   Warp::largest(values, lane_bits)
//                  the same for the largest; NaN is passed over
//   Warp::running_sum(values)
//                  for each lane the sum over those up to it
//   Warp::of_lane(values, lane)
//                  the value of one lane, for all
//   Warp::sync()   stores of lanes before it are seen by loads of the warp behind it. The calls
//                  above exchange values, and order no memory.
//   load(from)     at once, and of global memory
//   load_constant(from)
//                  of memory that is not written while the kernel runs: the compiler may move
//                  it across stores
//   load_streaming(from)
//                  of memory that is used once: first to leave the caches
//   store(to, value), store_streaming(to, value)
//   load_shared(from), store_shared(to, value)
//                  of memory that the warps of a block share
//   keep_order()   a lane's stores before it are seen by its loads behind it, also as another type
//   add(to, value) to a word that all warps count in
//
// and, for a CPU, run_warps(units, f): f(unit, warp) for each of `units`, by warps with numbers
// below kMostCpuWarps, each of which takes one unit after the other without a sync between them.
//
// All 32 lanes of a warp have to come to each call of Warp that exchanges or syncs. Kernels are in
// the inline namespace that their lanes' header names, so that one program may have them twice:
// tests run them on lanes in any order (tests/gpu/fiber_lanes.h).
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

/// The widest unit that a lane loads and stores at once.
struct alignas(16) Bytes16 {
  uint64_t low = 0, high = 0;
};
inline constexpr uint32_t kLaneBytes = sizeof(Bytes16);

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

}  // namespace bowhead::gpu

#if defined(__CUDACC__)
#include "gpu/kernels/cuda_lanes.h"
#elif defined(BOWHEAD_LANES_HEADER)
#include BOWHEAD_LANES_HEADER
#else
#include "gpu/kernels/loop_lanes.h"
#endif
