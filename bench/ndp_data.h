// SPDX-License-Identifier: Apache-2.0
// Keys, values and queries of normal random numbers, and their division among cores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/private_memory.h"
#include "ndp/operations.h"

namespace bowhead::bench {

inline constexpr uint32_t kHeadChannels = 128;
inline constexpr uint32_t kSpanTokens = 512;

/// Numbers of one format, enough for rows of any shape. Rows of int8 have scales.
class NdpData {
 public:
  /// `bytes`: a multiple of the bytes of a span of kHeadChannels.
  NdpData(NumberFormat number, uint64_t bytes);

  /// False: the allocation failed.
  bool there() const { return memory_.data() != nullptr; }
  NumberFormat number() const { return number_; }
  uint64_t bytes() const { return memory_.bytes().size(); }
  std::span<const uint8_t> share(uint64_t from, uint64_t size) const {
    return memory_.bytes().subspan(from, size);
  }
  /// As many whole spans as the share holds, contiguous, from `first_token` on. Rows of
  /// kHeadChannels have scales.
  std::vector<ndp::KeySpan> spans(std::span<const uint8_t> share, uint32_t channels,
                                  uint32_t first_token) const;

 private:
  const NumberFormat number_;
  const PrivateMemory memory_;
  std::vector<float> scales_;  ///< by token of kHeadChannels; empty: 1
};

/// The part that each of several cores walks over. The data outlives it.
struct Walk {
  const NdpData* data;
  std::vector<std::span<const uint8_t>> shares;

  uint64_t bytes() const;
  /// By share; tokens are numbered across the shares.
  std::vector<std::vector<ndp::KeySpan>> spans(uint32_t channels) const;
};

/// Queries in bf16, as in models.
ndp::Queries make_queries(uint32_t count, uint32_t channels, NumberFormat keys);

}  // namespace bowhead::bench
