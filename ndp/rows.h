// SPDX-License-Identifier: Apache-2.0
// Keys and values where they lie, and the queries about them.
//
// One KV head at a time: several lie side by side or one behind the other, which is a matter of
// `data` and `stride_bytes`. Where a layout is known, span_of() finds both. Multi-head attention
// has one query per KV head, grouped-query and multi-query attention have several, which are
// answered in one pass over the rows. Latent attention (MLA) has one head whose values are the
// first channels of its keys: both then have the same `data` and differ in `channels`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/kv_layout.h"
#include "base/status.h"
#include "compression/number.h"

namespace bowhead::ndp {

inline constexpr uint32_t kMaxChannels = 1024;
inline constexpr uint32_t kMaxQueries = 1024;

/// Keys or values of one head: tokens of a span, one row each.
///
/// Rows may come in parts: each has some channels, of a kind, in a place and with scales of its
/// own, as keys of latent attention whose latent is fp8, with a scale for each 128 channels, and
/// whose rotary channels are bf16. Of values all parts but the last have a multiple of 64 channels.
struct Rows {
  NumberFormat number = NumberFormat::BF16;  ///< any but BYTES
  uint32_t channels = 0;                     ///< 1 to kMaxChannels in operations
  uint32_t tokens = 0;
  const void* data = nullptr;     ///< of the first token; aligned to anything
  size_t stride_bytes = 0;        ///< from token to token, at least a row
  const float* scales = nullptr;  ///< by token: the factor of its numbers; null: 1
  /// The channels after these, of the same tokens; null: none. They stay where they are while this
  /// is used.
  const Rows* more = nullptr;

  /// Of all parts.
  uint32_t all_channels() const {
    uint32_t all = 0;
    for (const Rows* part = this; part != nullptr; part = part->more) all += part->channels;
    return all;
  }
  /// Of this part.
  size_t row_bytes() const { return size_t{channels} * element_bytes(number); }
  const uint8_t* row(uint32_t token) const {
    return static_cast<const uint8_t*>(data) + size_t{token} * stride_bytes;
  }
};

/// Some channels of rows in one part: a head among others.
inline Rows some_channels(Rows rows, uint32_t first, uint32_t channels) {
  rows.data = rows.row(0) + size_t{first} * element_bytes(rows.number);
  rows.channels = channels;
  return rows;
}

/// A span: some tokens in a row of the sequence, and where their keys and values lie. The spans of
/// a sequence may be in blocks of the pool, in pages of an engine's cache or anywhere else, and
/// come in any order.
struct KeySpan {
  uint32_t first_token = 0;  ///< position of the span's first token in the sequence
  Rows keys;
};
struct KvSpan {
  uint32_t first_token = 0;
  Rows keys, values;  ///< of as many tokens
};

/// The rows of one part of one head, in one layer of a payload of so many tokens: where rows_of()
/// of base/kv_layout.h has them, without scales. Of a layout that is not opaque. Values of latent
/// attention are the first channels of part 0.
Rows rows_in(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
             uint32_t part, uint32_t head);
/// Their scales, of tokens from `first` on, where scales_of() of base/kv_layout.h has them: there
/// have to be some.
void load_scales(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                 uint32_t part, uint32_t head, uint32_t first, std::span<float> scales);
/// The span of the head. A layout without values gives some of no channels. Scales that lie
/// elsewhere are for the caller to add. NOT_SUPPORTED: opaque values, scales in the block.
Result<KvSpan> span_of(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                       uint32_t head, uint32_t first_token);

/// The tokens that a query may look at: those from `begin` to before `end`, and the first `sinks`
/// ones, unless they are behind the end. Causal: `end` is the query's position + 1; a window:
/// `begin` is so many less.
struct Visible {
  uint32_t begin = 0;
  uint32_t end = std::numeric_limits<uint32_t>::max();
  uint32_t sinks = 0;

  bool has(uint32_t token) const { return token < end && (token >= begin || token < sinks); }
  /// All, or one, of `count` tokens from `first` on.
  bool has_all(uint32_t first, uint32_t count) const {
    const uint64_t behind = uint64_t{first} + count;
    return behind <= end && (first >= begin || behind <= sinks || sinks >= begin);
  }
  bool has_some(uint32_t first, uint32_t count) const {
    const uint64_t behind = std::min(uint64_t{first} + count, uint64_t{end});
    return first < std::min<uint64_t>(sinks, behind) || std::max(first, begin) < behind;
  }
  /// How many of them.
  uint32_t count_of(uint32_t first, uint32_t count) const {
    const uint64_t behind = std::min(uint64_t{first} + count, uint64_t{end});
    const uint64_t from = std::max(first, begin), sinks_end = std::min<uint64_t>(sinks, begin);
    const uint64_t seen_sinks = std::min(sinks_end, behind);
    return static_cast<uint32_t>((behind > from ? behind - from : 0) +
                                 (seen_sinks > first ? seen_sinks - first : 0));
  }

  bool operator==(const Visible&) const = default;
};

/// What each of some queries may look at: all of them the same, or each its own, as queries of
/// several positions do (those of a draft, or of a chunk of a prompt).
class Views {
 public:
  Views() = default;
  Views(const Visible& all) : any_(all) {}
  /// By query. They stay where they are while this is used.
  Views(std::span<const Visible> each);

  /// INVALID_ARGUMENT: neither one for all nor one for each of so many queries.
  Result<void> check(uint32_t queries) const;
  bool are_own() const { return own_; }  ///< each query has its own
  const Visible& of(uint32_t query) const { return own_ ? each_[query] : any_; }
  /// All tokens that one of them has; there may be others.
  const Visible& any() const { return any_; }
  /// Whether each of so many queries has all of these tokens.
  bool have_all(uint32_t queries, uint32_t first, uint32_t count) const;
  /// Whether one of them has one of these tokens.
  bool have_some(uint32_t first, uint32_t count) const;

 private:
  Visible any_;
  bool own_ = false;  // each has its own
  std::span<const Visible> each_;
};

/// The queries that share a KV head, made ready once for any number of spans whose keys are of one
/// kind. Not changed afterwards: threads may share it.
class Queries {
 public:
  /// `values`: [count][channels]. Scores are dot products times `scale`, in general
  /// 1 / sqrt(channels); a soft cap above 0 makes them cap * tanh(score / cap). That changes no
  /// order, so hits have scores without it, unless they are of sums. INVALID_ARGUMENT: none or more
  /// than kMaxQueries, no or more than kMaxChannels channels, `values` of another size, a scale not
  /// finite or not above 0, a cap not finite or below 0, keys of no kind of number.
  static Result<Queries> of(std::span<const float> values, uint32_t count, uint32_t channels,
                            float scale, NumberFormat keys, float soft_cap = 0);

  /// The queries of rows in parts: these are for the first channels, `more` for Rows::more.
  /// INVALID_ARGUMENT: `more` differs in number, scale or cap, one of them is summed, these have
  /// more already, together they have more than kMaxChannels.
  Result<Queries> with(const Queries& more) const;

  /// The same queries, of which each `group` has one answer: the sum of weight * score, or, if
  /// `rectified`, of weight * max(score, 0), as indexers of sparse attention choose tokens. For
  /// score() and TopK. INVALID_ARGUMENT: `count()` is no multiple of `group`; not as many weights
  /// as queries, or one that is not finite.
  Result<Queries> summed(std::span<const float> weights, uint32_t group, bool rectified) const;
  /// The number of answers: that of the queries, or of the groups that are summed.
  uint32_t answers() const { return count_ / group_; }
  bool are_summed() const { return !weights_.empty(); }

  /// Some of these, by their numbers: one or more, and none that are summed.
  Queries some(std::span<const uint32_t> which) const;

  uint32_t count() const { return count_; }
  /// Of the first part, as keys(), floats() and what is for kernels.
  uint32_t channels() const { return channels_; }
  const Queries* more() const { return more_.get(); }
  uint32_t all_channels() const {
    return channels_ + (more_ == nullptr ? 0 : more_->all_channels());
  }
  float scale() const { return scale_; }
  float soft_cap() const { return soft_cap_; }
  std::span<const float> weights() const { return weights_; }
  uint32_t group() const { return group_; }
  bool are_rectified() const { return rectified_; }
  NumberFormat keys() const { return keys_; }
  /// All of its numbers are, in all parts. Others have scores that no bound holds for.
  bool is_finite(uint32_t query) const { return finite_[query]; }

  // ---- for kernels ----

  const float* floats(uint32_t query) const { return &floats_[size_t{query} * padded()]; }
  /// Channels in memory, a multiple of 64: the surplus ones are zero.
  uint32_t padded() const { return (channels_ + 63) / 64 * 64; }

  /// Units of 32 bits that are multiplied at once: two channels as bf16 for keys of bf16 and fp8,
  /// one as float for fp16, four as bytes with a sign for int8. For fp8 in the order in which the
  /// bytes of 64 channels unpack: of each 16 the first 8, then the others.
  uint32_t units() const {
    return keys_ == NumberFormat::FP16   ? padded()
           : keys_ == NumberFormat::INT8 ? padded() / 4
                                         : padded() / 2;
  }
  /// A query is the sum of so many terms: of 1, or, where the queries are no bf16, of 2, the
  /// nearest bf16 numbers and their errors. For int8 always of 2: whole numbers' high bytes, worth
  /// 256, and their low ones.
  uint32_t terms() const { return terms_; }
  /// Queries are taken in groups of 8, then of 4, 2 and 1. The units of a group lie in lines of 16,
  /// each of four queries, or of all if they are fewer: the first units of each query, the next
  /// ones ...; of 8 queries a line of the first four, then one of the others.
  const uint32_t* group(uint32_t first_query, uint32_t term) const {
    return &units_[(size_t{term} * count_ + first_query) * units()];
  }
  /// For int8: the negative sums, by lane of the line that begins with this query, of 128 times its
  /// units' bytes.
  const int32_t* starts(uint32_t query, uint32_t term) const {
    return &starts_[(size_t{term} * count_ + query) * 16];
  }
  /// The factor of the sum of products of units, the scale included.
  const float* factors(uint32_t query) const { return &factors_[query]; }

 private:
  Queries() = default;
  void set_floats();
  void set_bf16();
  void set_integers();
  void set_starts();
  void group_units(std::span<const uint32_t> by_query);
  uint32_t queries_of_group(uint32_t first_query) const;

  uint32_t count_ = 0, channels_ = 0, terms_ = 1;
  float scale_ = 1, soft_cap_ = 0;
  NumberFormat keys_ = NumberFormat::BF16;
  uint32_t group_ = 1;
  bool rectified_ = false;
  std::shared_ptr<const Queries> more_;
  std::vector<bool> finite_;    // by query
  std::vector<float> weights_;  // of the scores of a group; empty: they are not summed
  std::vector<float> floats_, factors_;
  std::vector<uint32_t> units_;
  std::vector<int32_t> starts_;
};

}  // namespace bowhead::ndp
