// SPDX-License-Identifier: Apache-2.0
// Keys and values where they lie, and who asks about them.
//
// One KV head at a time: engines lay several out side by side or one behind the other, which is a
// matter of `data` and `stride_bytes`. Multi-head attention has one query per KV head,
// grouped-query and multi-query attention have several, which are answered in one pass over the
// rows. Latent attention (MLA) has one head whose values are the first channels of its keys: both
// then have the same `data` and differ in `channels`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "compression/number.h"

namespace bowhead::ndp {

using compression::NumberKind;

inline constexpr uint32_t kMaxChannels = 4096;
inline constexpr uint32_t kMaxQueries = 1024;

/// Keys or values of one head: tokens of a block, one row each.
struct Rows {
  NumberKind number = NumberKind::BF16;  ///< any but BYTES
  uint32_t channels = 0;                 ///< 1 to kMaxChannels
  uint32_t tokens = 0;
  const void* data = nullptr;     ///< of the first token; aligned to anything
  size_t stride_bytes = 0;        ///< from token to token, at least a row
  const float* scales = nullptr;  ///< by token: what its numbers are to be multiplied by; null: 1

  size_t row_bytes() const { return size_t{channels} * compression::element_bytes(number); }
  const uint8_t* row(uint32_t token) const {
    return static_cast<const uint8_t*>(data) + size_t{token} * stride_bytes;
  }
};

/// Some tokens in a row of the sequence. The blocks of a sequence may lie anywhere, and come in any
/// order.
struct KeyBlock {
  uint32_t first_token = 0;  ///< position of the block's first token in the sequence
  Rows keys;
};
struct KvBlock {
  uint32_t first_token = 0;
  Rows keys, values;  ///< of as many tokens
};

/// The tokens that a query may look at: those from `begin` to before `end`, and the first `sinks`
/// ones, unless they are behind the end. Causal: `end` is the query's position + 1; a window:
/// `begin` is so many less.
struct Visible {
  uint32_t begin = 0;
  uint32_t end = std::numeric_limits<uint32_t>::max();
  uint32_t sinks = 0;

  bool has(uint32_t token) const { return token < end && (token >= begin || token < sinks); }
};

/// The queries that share a KV head, made ready once for any number of blocks. Not changed
/// afterwards: threads may share it.
class Queries {
 public:
  /// `values`: [count][channels]. Scores are dot products times `scale`, in general
  /// 1 / sqrt(channels). INVALID_ARGUMENT: none or more than kMaxQueries, no or more than
  /// kMaxChannels channels, `values` of another size, a scale that is not a finite number above 0.
  static Result<Queries> of(std::span<const float> values, uint32_t count, uint32_t channels,
                            float scale);

  uint32_t count() const { return count_; }
  uint32_t channels() const { return channels_; }
  float scale() const { return scale_; }

  // ---- for kernels ----

  /// Channels in memory: the next multiple of 64, the surplus ones zero.
  uint32_t padded() const { return (channels_ + 63) / 64 * 64; }
  const float* floats(uint32_t query) const { return &floats_[size_t{query} * padded()]; }

  /// As bf16: the nearest ones, and, unless all queries are bf16 anyway, what is left of them.
  uint32_t bf16_parts() const { return exact_bf16_ ? 1 : 2; }
  const uint16_t* bf16(uint32_t query, uint32_t part) const {
    return &bf16_[(size_t{part} * count_ + query) * padded()];
  }
  /// The same in the order in which bytes of 64 channels unpack: of each 16 the first 8, then the
  /// others.
  const uint16_t* bf16_unpacked(uint32_t query, uint32_t part) const {
    return &bf16_unpacked_[(size_t{part} * count_ + query) * padded()];
  }

  /// As whole numbers of `unit(query)`: so few that no sum of products with int8 overflows.
  const int16_t* integers(uint32_t query) const { return &integers_[size_t{query} * padded()]; }
  float unit(uint32_t query) const { return units_[query]; }

 private:
  Queries() = default;
  void set_bf16();
  void set_integers();

  uint32_t count_ = 0, channels_ = 0;
  bool exact_bf16_ = true;
  float scale_ = 1;
  std::vector<float> floats_, units_;
  std::vector<uint16_t> bf16_, bf16_unpacked_;
  std::vector<int16_t> integers_;
};

}  // namespace bowhead::ndp
