// SPDX-License-Identifier: Apache-2.0
// The code that exists once per instruction set. Everything else in ndp/ is written once.
//
// Arithmetic is in float, sums in several lanes: the scalar set, which is the definition, sums in
// double. The tolerances of operations.h say how far sets may be apart.
#pragma once

#include <span>

#include "ndp/operations.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

/// Tokens that are worked on at once: their scores, and rows of usual heads, stay in the nearest
/// cache.
inline constexpr uint32_t kTileTokens = 64;

/// Queries that are multiplied by rows of whole numbers at once; fewer ones are filled up with
/// zeros.
inline constexpr uint32_t kProductQueries = 8;
inline constexpr uint32_t kExactRows = 4;

struct Products {
  const int16_t* queries;  ///< kProductQueries rows
  const int16_t* rows;
  uint32_t count;     ///< rows
  uint32_t channels;  ///< of a row, a multiple of 64; rows lie one behind the other
};

struct Kernels {
  const char* name;

  /// scores[q * kTileTokens + i]: of query q and token first + i, i < count <= kTileTokens.
  void (*score)(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                float* scores);
  /// sums[q * stride + c] += weights[q * kTileTokens + i] * channel c of token first + i, for all
  /// i. Weights of a tile's tokens behind `count` are zero.
  void (*weigh)(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
                uint32_t count, float* sums, size_t stride);
  /// The largest of kTileTokens numbers; any of them if one is NaN.
  float (*largest)(const float* values);
  /// values[i] = exp(values[i] - largest) for kTileTokens numbers; returns their sum.
  float (*exponentials)(float* values, float largest);
  /// values[i] = cap * tanh(values[i] / cap) for kTileTokens numbers.
  void (*soft_cap)(float* values, float cap);
  /// Hits of those of the first `count` scores that are `least` or more, or of all, if `least` is
  /// NaN. Returns how many; kTileTokens may be written.
  uint32_t (*select)(const float* scores, uint32_t count, float least, uint32_t first_token,
                     Hit* out);
  /// sums[i] = sum over channels of query * row i, of so many rows, one behind the other, whose
  /// channels are a multiple of 64. Off by at most (channels / 4 + 4) * 2^-24 times the sum of
  /// |query * row|.
  void (*dots)(const float* query, const int16_t* rows, uint32_t count, uint32_t channels,
               float* sums);
  /// sums[i * kProductQueries + q] = sum over channels of query q * row i. The caller sees to
  /// it that no sum of sizes of products exceeds 31 bits.
  void (*products)(const Products& in, int32_t* sums);
  /// Adds to counts[q] how many of so many rows of sums, as products() writes them, are cuts[q] or
  /// more.
  void (*count_reaching)(const int32_t* sums, size_t rows, const int32_t* cuts, int32_t* counts);
  /// The numbers of the rows in which the sum of some query is its cut or more; returns how many.
  /// `reaching` has room for all.
  uint32_t (*rows_reaching)(const int32_t* sums, uint32_t rows, const int32_t* cuts,
                            uint32_t* reaching);
  /// How many of so many ranks, as rank_of() of best.h makes them, are `cut` or more.
  size_t (*count_ranks)(const uint64_t* ranks, size_t count, uint64_t cut);
  /// sums[i * kProductQueries + q] = sum over channels, in their order and each product exact, of
  /// queries[channel * kProductQueries + q] * row i: of kExactRows rows one behind the other, which
  /// like the queries are floats.
  void (*exact)(const double* queries, const double* rows, uint32_t channels, double* sums);
  /// By channel: the least and largest of so many tokens' numbers, scales included; NaN makes them
  /// infinite.
  void (*bounds)(const Rows& keys, uint32_t first, uint32_t count, float* least, float* largest);
};

/// The best that this CPU has, or BOWHEAD_ISA allows.
const Kernels& kernels();
/// All that this CPU has, the scalar ones first.
std::span<const Kernels* const> kernels_here();

extern const Kernels kKernelsScalar;  ///< the definition
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsNeon;

}  // namespace bowhead::ndp
