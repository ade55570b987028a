// SPDX-License-Identifier: Apache-2.0
// Blocks of random formats, shapes and places, and the same for the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "ndp/rows.h"
#include "tests/support/attention_oracle.h"

namespace bowhead::test {

/// Of rows in parts: channels after those of the first part.
struct Part {
  NumberFormat number;
  uint32_t channels;
  bool with_scales;
};

struct Shape {
  NumberFormat number = NumberFormat::BF16;
  uint32_t queries = 1, key_channels = 64, value_channels = 64;  ///< of the first part
  uint32_t tokens = 200;                                         ///< of all spans together
  uint32_t most_in_a_span = 100;
  bool latent = false;         ///< values are the first channels of the keys
  bool with_scales = false;    ///< of keys and values
  bool float_queries = false;  ///< else queries are bf16
  float soft_cap = 0;
  std::vector<Part> more_keys = {}, more_values = {};  ///< latent: the first parts of the keys

  uint32_t all_key_channels() const { return with_more(key_channels, more_keys); }
  uint32_t all_value_channels() const { return with_more(value_channels, more_values); }
  static uint32_t with_more(uint32_t channels, const std::vector<Part>& more) {
    for (const Part& part : more) channels += part.channels;
    return channels;
  }
};

/// Owns the memory that its spans point to.
class Problem {
 public:
  Problem(const Shape& shape, uint64_t seed);

  const std::vector<ndp::KvSpan>& spans() const { return spans_; }
  std::vector<ndp::KeySpan> key_spans() const;
  const Sequence& sequence() const { return sequence_; }
  ndp::Queries queries() const;
  const std::vector<double>& query(uint32_t q) const { return queries_[q]; }
  double scale() const { return scale_; }
  const Shape& shape() const { return shape_; }

  /// Overwrites a channel of a token's keys with these bits.
  void set_key(uint32_t token, uint32_t channel, uint32_t bits);

 private:
  ndp::Rows make_rows(uint32_t tokens, const Part& part);
  ndp::Rows make_parts(uint32_t tokens, uint32_t channels, const std::vector<Part>& more);
  const ndp::Rows* keep(const ndp::Rows& rows) {
    return parts_.emplace_back(std::make_unique<ndp::Rows>(rows)).get();
  }
  ndp::Rows first_parts(ndp::Rows keys, size_t more);
  std::vector<double> values_of(const ndp::Rows& rows, uint32_t token) const;
  void see();

  Shape shape_;
  Random random_;
  double scale_ = 1;
  std::vector<std::unique_ptr<uint8_t[]>> bytes_;
  std::vector<std::unique_ptr<float[]>> scales_;
  std::vector<std::unique_ptr<ndp::Rows>> parts_;
  std::vector<ndp::KvSpan> spans_;
  std::vector<std::vector<double>> queries_;
  Sequence sequence_;
};

}  // namespace bowhead::test
