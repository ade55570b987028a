// SPDX-License-Identifier: Apache-2.0
// A warp merges the partials of one head of one sequence: it finds the total weight of all
// partials, a partial in each lane, and then adds up their outputs, some channels in each lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/attend.h"
#include "gpu/kernels/floats.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

/// Unit `unit` of sequences * heads.
class PartialsMerger {
 public:
  BOWHEAD_WARP_CODE PartialsMerger(const MergePartials& work, uint32_t unit)
      : work_(work), sequence_(unit / work.heads), head_(unit % work.heads), unit_(unit) {}

  BOWHEAD_WARP_CODE void merge() {
    find_weight();
    for (uint32_t first = 0; first < work_.channels; first += kWarpLanes * kLaneFloats)
      merge_channels(first);
    if (work_.log_sum_exps == nullptr) return;
    Warp::each([&](uint32_t lane) {
      const float weight = weight_[lane];
      if (lane == 0)
        store(work_.log_sum_exps + unit_,
              weight == 0 ? kNever : largest_[lane] + log2f(weight) * kLn2);
    });
  }

 private:
  static constexpr uint32_t kLaneFloats = 4;  // 16 bytes
  static constexpr uint32_t kAtOnce = 8;      // partials that are under way

  struct Partials {
    const float *outputs, *log_sum_exps;  // of this head, of the first partial
    uint32_t count;
  };

  BOWHEAD_WARP_CODE Partials partials_of(uint32_t number) const {
    const MergeSource& source = work_.sources[number];
    uint32_t first = sequence_, end = sequence_ + 1;
    if (source.first_partials != nullptr) {
      first = load_constant(source.first_partials + sequence_);
      end = load_constant(source.first_partials + sequence_ + 1);
    }
    const size_t at = size_t{first} * work_.heads + head_;
    return {source.outputs + at * work_.channels, source.log_sum_exps + at, end - first};
  }

  // Log-sum-exps are compared by differences, which are exact where it matters.
  static BOWHEAD_WARP_CODE float weight_of(float log_sum_exp, float largest) {
    return exp2f((log_sum_exp - largest) * kLog2OfE);
  }

  template <class F>  // f(lane, log-sum-exp) for each partial
  BOWHEAD_WARP_CODE void for_partials(F f) const {
    for (uint32_t source = 0; source < work_.source_count; ++source) {
      const Partials partials = partials_of(source);
      Warp::each([&](uint32_t lane) {
        for (uint32_t partial = lane; partial < partials.count; partial += kWarpLanes)
          f(lane, load_constant(partials.log_sum_exps + size_t{partial} * work_.heads));
      });
    }
  }

  BOWHEAD_WARP_CODE void find_weight() {
    Warp::each([&](uint32_t lane) { largest_[lane] = kLeast; });
    for_partials([&](uint32_t lane, float log_sum_exp) {
      largest_[lane] = fmaxf(largest_[lane], log_sum_exp);
    });
    largest_ = Warp::largest(largest_, kWarpLanes - 1);
    Warp::each([&](uint32_t lane) { weight_[lane] = 0; });
    for_partials([&](uint32_t lane, float log_sum_exp) {
      weight_[lane] += weight_of(log_sum_exp, largest_[lane]);
    });
    weight_ = Warp::sum(weight_, kWarpLanes - 1);
  }

  BOWHEAD_WARP_CODE void merge_channels(uint32_t first) const {
    Warp::each([&](uint32_t lane) {
      const uint32_t channel = first + lane * kLaneFloats;
      if (channel >= work_.channels) return;
      float sums[kLaneFloats] = {};
      for (uint32_t source = 0; source < work_.source_count; ++source) {
        const Partials partials = partials_of(source);
        for (uint32_t partial = 0; partial < partials.count; partial += kAtOnce)
          add(partials, partial, channel, largest_[lane], sums);
      }
      const float share = weight_[lane] == 0 ? 0 : 1 / weight_[lane];
      for (float& sum : sums) sum *= share;
      write(size_t{unit_} * work_.channels + channel, sums);
    });
  }

  BOWHEAD_WARP_CODE void add(const Partials& partials, uint32_t first, uint32_t channel,
                             float largest, float (&sums)[kLaneFloats]) const {
    float weights[kAtOnce];
    Bytes16 outputs[kAtOnce];
    BOWHEAD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const size_t partial = first + i;
      const bool is_there = partial < partials.count;
      weights[i] = is_there ? load_constant(partials.log_sum_exps + partial * work_.heads) : kNever;
      outputs[i] = is_there
                       ? load_constant(reinterpret_cast<const Bytes16*>(
                             partials.outputs + partial * work_.heads * work_.channels + channel))
                       : Bytes16{};
    }
    BOWHEAD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (weights[i] == kNever) continue;  // whatever its outputs are
      const float weight = weight_of(weights[i], largest);
      const auto output = __builtin_bit_cast(FourFloats, outputs[i]);
      BOWHEAD_UNROLL
      for (uint32_t c = 0; c < kLaneFloats; ++c) sums[c] += weight * output.at[c];
    }
  }

  BOWHEAD_WARP_CODE void write(size_t at, const float (&values)[kLaneFloats]) const {
    BOWHEAD_UNROLL
    for (uint32_t c = 0; c < kLaneFloats; ++c) {
      if (work_.number == NumberFormat::FP32) {
        store(static_cast<float*>(work_.outputs) + at + c, values[c]);
      } else {
        const uint32_t bits = work_.number == NumberFormat::BF16 ? bf16_from_float(values[c])
                                                                 : fp16_from_float(values[c]);
        store(static_cast<uint16_t*>(work_.outputs) + at + c, static_cast<uint16_t>(bits));
      }
    }
  }

  const MergePartials& work_;
  const uint32_t sequence_, head_, unit_;
  Lanes<float> largest_, weight_;  // of log-sum-exps; the sum of e^(log-sum-exp - largest)
};

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
