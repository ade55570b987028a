// SPDX-License-Identifier: Apache-2.0
// A warp attends to one split of tokens, for one head of keys and values and the query heads that
// share it: scores, weights and their sum of values in one pass, each key and value loaded once.
//
// Rows come over a link that takes microseconds to answer, so the next tile of tokens is under way
// while this one is computed with. Lanes lie side by side along a row, 16 bytes each, and several
// tokens beside each other where rows are short; each lane has its channels of every output in
// registers, and queries come from the nearest cache, once for a tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gpu/kernels/floats.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

inline constexpr uint32_t kLaneChannels = kLaneBytes / 2;
inline constexpr uint32_t kMostAttendChannels = 3 * kWarpLanes * kLaneChannels;
inline constexpr float kLog2OfE = 1.44269504f, kLn2 = 0.693147181f;
/// The score of no token, and the least score of one.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();
inline constexpr float kLeast = std::numeric_limits<float>::lowest();

/// How lanes share the work, by the longer of keys and values.
struct AttendShape {
  uint32_t row_lanes;  ///< that share a row: 16 or 32
  uint32_t vectors;    ///< of 16 bytes, that a lane has of a row
  uint32_t heads;      ///< query heads that one reading serves
};

/// Chosen to fit a lane's registers: outputs are heads * vectors * 8 of them.
constexpr AttendShape attend_shape(uint32_t channels, uint32_t queries_per_head) {
  const uint32_t lanes = (channels + kLaneChannels - 1) / kLaneChannels;
  if (lanes > 2 * kWarpLanes) return {kWarpLanes, 3, 4};
  if (lanes > kWarpLanes) return {kWarpLanes, 2, 4};
  const uint32_t heads = queries_per_head == 1   ? 1
                         : queries_per_head <= 4 ? 4
                         : queries_per_head <= 8 ? 8
                                                 : 16;
  return {lanes > 16 ? 32u : 16u, 1, heads};
}
constexpr AttendShape attend_shape(const Attend& work) {
  return attend_shape(
      work.key_channels > work.value_channels ? work.key_channels : work.value_channels,
      work.queries_per_head);
}

/// The number of warps that there is work for.
constexpr uint64_t attend_units(const Attend& work) {
  const uint32_t heads = attend_shape(work).heads;
  return uint64_t{work.split_count} * work.heads * ((work.queries_per_head + heads - 1) / heads);
}

/// One unit of attend_units().
template <NumberFormat kNumber, uint32_t kRowLanes, uint32_t kVectors, uint32_t kHeads>
class SplitAttender {
 public:
  BOWHEAD_WARP_CODE SplitAttender(const Attend& work, uint32_t unit) : work_(work) {
    const uint32_t groups = (work.queries_per_head + kHeads - 1) / kHeads;
    const uint32_t split_head = unit / groups, group = unit % groups;
    head_ = split_head % work.heads;
    split_ = split_head / work.heads;
    first_query_ = head_ * work.queries_per_head + group * kHeads;
    query_count_ = work.queries_per_head - group * kHeads;
    if (query_count_ > kHeads) query_count_ = kHeads;
  }

  BOWHEAD_WARP_CODE void attend() {
    const AttendSplit split = work_.splits[split_];
    queries_ = work_.queries + split.sequence * work_.query_stride_bytes +
               first_query_ * work_.query_head_stride_bytes;
    clear();
    Place at = enter(split.first_span, split.first_token, split.tokens);
    Tile tile;
    uint32_t tokens = load_tile(at, tile);
    while (tokens != 0) {
      Tile next;
      const uint32_t next_tokens = load_tile(at, next);
      take(tile, tokens);
      tile = next;
      tokens = next_tokens;
    }
    finish();
  }

 private:
  static constexpr uint32_t kStepTokens = kWarpLanes / kRowLanes;  // side by side
  static constexpr uint32_t kSteps = kVectors == 3 || kHeads > 8 ? 1 : kVectors == 2 ? 2 : 4;
  static constexpr uint32_t kTileTokens = kSteps * kStepTokens;
  static constexpr uint32_t kLaneFloats = kVectors * kLaneChannels;
  static constexpr uint32_t kOtherTokens = kWarpLanes - kRowLanes;  // bits of a lane's number

  struct Tile {
    Lanes<Bytes16> keys[kSteps][kVectors], values[kSteps][kVectors];
  };
  struct Place {
    const uint8_t *keys, *values;  // of the next token
    size_t stride_bytes;
    uint32_t tokens;  // of the split in this span, from here on
    uint32_t later;   // and in those behind it
    uint32_t span;
  };
  using Numbers = float[kLaneFloats];

  BOWHEAD_WARP_CODE Place enter(uint32_t number, uint32_t first_token, uint32_t tokens) const {
    const AttendSpan* span = work_.spans + number;
    const size_t stride = load_constant(&span->token_stride_bytes);
    const size_t at = work_.layer * load_constant(&span->layer_stride_bytes) +
                      head_ * load_constant(&span->head_stride_bytes) + first_token * stride;
    const uint32_t there = load_constant(&span->tokens) - first_token;
    const uint32_t here = there < tokens ? there : tokens;
    return {load_constant(&span->keys) + at,
            load_constant(&span->values) + at,
            stride,
            here,
            tokens - here,
            number};
  }

  // The next tokens, all of one span; none at the end of the split.
  BOWHEAD_WARP_CODE uint32_t load_tile(Place& at, Tile& tile) const {
    if (at.tokens == 0 && at.later != 0) at = enter(at.span + 1, 0, at.later);
    const uint32_t tokens = at.tokens < kTileTokens ? at.tokens : kTileTokens;
    BOWHEAD_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      BOWHEAD_UNROLL
      for (uint32_t vector = 0; vector < kVectors; ++vector) {
        Warp::each([&](uint32_t lane) {
          const uint32_t token = step * kStepTokens + lane / kRowLanes;
          const uint32_t channel = channel_of(lane, vector);
          const size_t offset = token * at.stride_bytes + size_t{channel} * 2;
          const bool is_there = token < tokens;
          tile.keys[step][vector][lane] =
              load_if(is_there && channel < work_.key_channels, at.keys + offset);
          tile.values[step][vector][lane] =
              load_if(is_there && channel < work_.value_channels, at.values + offset);
        });
      }
    }
    at.keys += tokens * at.stride_bytes;
    at.values += tokens * at.stride_bytes;
    at.tokens -= tokens;
    return tokens;
  }

  static BOWHEAD_WARP_CODE uint32_t channel_of(uint32_t lane, uint32_t vector) {
    return (vector * kRowLanes + lane % kRowLanes) * kLaneChannels;
  }
  static BOWHEAD_WARP_CODE Bytes16 load_if(bool is_there, const uint8_t* from) {
    if (!is_there) return {};
    return load_streaming(reinterpret_cast<const Bytes16*>(from));
  }

  BOWHEAD_WARP_CODE void clear() {
    BOWHEAD_UNROLL
    for (uint32_t query = 0; query < kHeads; ++query) {
      Warp::each([&](uint32_t lane) {
        // Finite: negative infinity less it is not NaN.
        largest_[query][lane] = kLeast;
        weights_[query][lane] = 0;
        for (uint32_t i = 0; i < kLaneFloats; ++i) sums_[query][lane].at[i] = 0;
      });
    }
  }

  BOWHEAD_WARP_CODE void take(const Tile& tile, uint32_t tokens) {
    BOWHEAD_UNROLL
    for (uint32_t query = 0; query < kHeads; ++query) {
      Lanes<float> scores[kSteps];
      score(tile, query, tokens, scores);
      weigh(tile, query, scores);
    }
  }

  // Scores are for powers of 2, so that a weight is one instruction.
  BOWHEAD_WARP_CODE void score(const Tile& tile, uint32_t query, uint32_t tokens,
                               Lanes<float> (&scores)[kSteps]) const {
    // Where there are too few queries, the last one again.
    const uint32_t number = query < query_count_ ? query : query_count_ - 1;
    const uint8_t* row = queries_ + number * work_.query_head_stride_bytes;
    Warp::each([&](uint32_t lane) {
      BOWHEAD_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step) scores[step][lane] = 0;
      BOWHEAD_UNROLL
      for (uint32_t vector = 0; vector < kVectors; ++vector) {
        const uint32_t channel = channel_of(lane, vector);
        if (channel >= work_.key_channels) continue;
        float wanted[kLaneChannels], key[kLaneChannels];
        unpack<kNumber>(load_constant(reinterpret_cast<const Bytes16*>(row + size_t{channel} * 2)),
                        wanted);
        BOWHEAD_UNROLL
        for (uint32_t step = 0; step < kSteps; ++step) {
          unpack<kNumber>(tile.keys[step][vector][lane], key);
          BOWHEAD_UNROLL
          for (uint32_t i = 0; i < kLaneChannels; ++i) scores[step][lane] += wanted[i] * key[i];
        }
      }
    });
    const float factor = work_.scale * kLog2OfE;
    BOWHEAD_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      scores[step] = Warp::sum(scores[step], kRowLanes - 1);
      Warp::each([&](uint32_t lane) {
        const bool is_there = step * kStepTokens + lane / kRowLanes < tokens;
        scores[step][lane] = is_there ? scores[step][lane] * factor : kNever;
      });
    }
  }

  // Sums are relative to the largest score so far.
  BOWHEAD_WARP_CODE void weigh(const Tile& tile, uint32_t query,
                               const Lanes<float> (&scores)[kSteps]) {
    Lanes<float> largest = largest_[query];
    Warp::each([&](uint32_t lane) {
      BOWHEAD_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step)
        largest[lane] = fmaxf(largest[lane], scores[step][lane]);
    });
    largest = Warp::largest(largest, kOtherTokens);
    Warp::each([&](uint32_t lane) {
      const float less = exp2f(largest_[query][lane] - largest[lane]);
      largest_[query][lane] = largest[lane];
      weights_[query][lane] *= less;
      Numbers& sums = sums_[query][lane].at;
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < kLaneFloats; ++i) sums[i] *= less;
      BOWHEAD_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step) {
        const float weight = exp2f(scores[step][lane] - largest[lane]);
        weights_[query][lane] += weight;
        BOWHEAD_UNROLL
        for (uint32_t vector = 0; vector < kVectors; ++vector) {
          float value[kLaneChannels];
          unpack<kNumber>(tile.values[step][vector][lane], value);
          BOWHEAD_UNROLL
          for (uint32_t i = 0; i < kLaneChannels; ++i)
            sums[vector * kLaneChannels + i] += weight * value[i];
        }
      }
    });
  }

  BOWHEAD_WARP_CODE void finish() {
    const uint32_t query_heads = work_.heads * work_.queries_per_head;
    BOWHEAD_UNROLL
    for (uint32_t query = 0; query < kHeads; ++query) {
      const size_t to = size_t{split_} * query_heads + first_query_ + query;
      weights_[query] = Warp::sum(weights_[query], kOtherTokens);
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < kLaneFloats; ++i) {
        Lanes<float> sum;
        Warp::each([&](uint32_t lane) { sum[lane] = sums_[query][lane].at[i]; });
        sum = Warp::sum(sum, kOtherTokens);
        Warp::each([&](uint32_t lane) { sums_[query][lane].at[i] = sum[lane]; });
      }
      if (query < query_count_) write(query, to);
    }
  }

  BOWHEAD_WARP_CODE void write(uint32_t query, size_t to) const {
    Warp::each([&](uint32_t lane) {
      if (lane >= kRowLanes) return;
      const float weight = weights_[query][lane];
      const float share = weight == 0 ? 0 : 1 / weight;
      BOWHEAD_UNROLL
      for (uint32_t vector = 0; vector < kVectors; ++vector) {
        const uint32_t channel = channel_of(lane, vector);
        if (channel >= work_.value_channels) continue;
        auto* out = reinterpret_cast<Bytes16*>(work_.outputs + to * work_.value_channels + channel);
        BOWHEAD_UNROLL
        for (uint32_t half = 0; half < 2; ++half) {
          FourFloats four;
          BOWHEAD_UNROLL
          for (uint32_t i = 0; i < 4; ++i)
            four.at[i] = sums_[query][lane].at[vector * kLaneChannels + half * 4 + i] * share;
          store(out + half, __builtin_bit_cast(Bytes16, four));
        }
      }
      if (lane == 0)
        store(work_.log_sum_exps + to,
              weight == 0 ? kNever : (largest_[query][lane] + log2f(weight)) * kLn2);
    });
  }

  const Attend& work_;
  uint32_t split_, head_;
  uint32_t first_query_, query_count_;
  const uint8_t* queries_ = nullptr;
  struct LaneNumbers {
    Numbers at;
  };
  Lanes<float> largest_[kHeads], weights_[kHeads];  // of scores; the sum of 2^(score - largest)
  Lanes<LaneNumbers> sums_[kHeads];                 // of values by these weights
};

/// Calls f.template operator()<number, row lanes, vectors, heads>() with those of `work`.
template <class F>
void with_attend_shape(const Attend& work, F f) {
  const AttendShape shape = attend_shape(work);
  const auto by_heads = [&]<NumberFormat kNumber, uint32_t kRowLanes>() {
    switch (shape.heads) {
      case 1:
        return f.template operator()<kNumber, kRowLanes, 1, 1>();
      case 4:
        return f.template operator()<kNumber, kRowLanes, 1, 4>();
      case 8:
        return f.template operator()<kNumber, kRowLanes, 1, 8>();
      default:
        return f.template operator()<kNumber, kRowLanes, 1, 16>();
    }
  };
  const auto by_rows = [&]<NumberFormat kNumber>() {
    if (shape.vectors == 3) return f.template operator()<kNumber, 32, 3, 4>();
    if (shape.vectors == 2) return f.template operator()<kNumber, 32, 2, 4>();
    return shape.row_lanes == 32 ? by_heads.template operator()<kNumber, 32>()
                                 : by_heads.template operator()<kNumber, 16>();
  };
  return work.number == NumberFormat::BF16 ? by_rows.template operator()<NumberFormat::BF16>()
                                           : by_rows.template operator()<NumberFormat::FP16>();
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
