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

struct Shape {
  NumberFormat number = NumberFormat::BF16;
  uint32_t queries = 1, key_channels = 64, value_channels = 64;
  uint32_t tokens = 200;  ///< of all spans together
  uint32_t most_in_a_span = 100;
  bool latent = false;         ///< values are the first channels of the keys
  bool with_scales = false;    ///< of keys and values
  bool float_queries = false;  ///< else queries are bf16
  float soft_cap = 0;
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
  ndp::Rows make_rows(uint32_t tokens, uint32_t channels);
  std::vector<double> values_of(const ndp::Rows& rows, uint32_t token) const;
  void see();

  Shape shape_;
  Random random_;
  double scale_ = 1;
  std::vector<std::unique_ptr<uint8_t[]>> bytes_;
  std::vector<std::unique_ptr<float[]>> scales_;
  std::vector<ndp::KvSpan> spans_;
  std::vector<std::vector<double>> queries_;
  Sequence sequence_;
};

}  // namespace bowhead::test
