// SPDX-License-Identifier: Apache-2.0
#include "tests/ndp/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace bowhead::test {
namespace {

double uniform(Random& random) { return static_cast<double>(random.below(1u << 20)) / (1u << 20); }

/// About normal.
double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform(random);
  return sum;
}

/// The bits of the format whose number is next to `value`, found by bisection among positive ones.
uint32_t bits_of(NumberFormat number, double value) {
  const char* name = number_name(number);
  const uint32_t sign = 1u << (element_bytes(number) * 8 - 1);
  if (number == NumberFormat::INT8)
    return static_cast<uint8_t>(
        static_cast<int8_t>(std::clamp(std::lround(value * 30), -128L, 127L)));
  uint32_t low = 0, high = number == NumberFormat::FP8_E4M3   ? 0x7E
                           : number == NumberFormat::FP8_E5M2 ? 0x7B
                           : number == NumberFormat::FP16     ? 0x7BFF
                                                              : 0x7F7F;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (oracle_value(name, middle) < std::abs(value))
      low = middle + 1;
    else
      high = middle;
  }
  return low | (value < 0 ? sign : 0);
}

}  // namespace

Problem::Problem(const Shape& shape, uint64_t seed)
    : shape_(shape), random_(seed), scale_(1 / std::sqrt(shape.all_key_channels())) {
  for (uint32_t q = 0; q < shape.queries; ++q) {
    std::vector<double>& query = queries_.emplace_back();
    for (uint32_t c = 0; c < shape.all_key_channels(); ++c) {
      const auto value = static_cast<float>(normal(random_) * 2);
      query.push_back(
          shape.float_queries ? value : oracle_value("bf16", std::bit_cast<uint32_t>(value) >> 16));
    }
  }
  for (uint32_t token = 0; token < shape.tokens;) {
    const auto some = static_cast<uint32_t>(
        std::min<uint64_t>(1 + random_.below(shape.most_in_a_span), shape.tokens - token));
    ndp::KvSpan span{token, make_parts(some, shape.key_channels, shape.more_keys), {}};
    span.values = shape.latent ? first_parts(span.keys, shape.more_values.size())
                               : make_parts(some, shape.value_channels, shape.more_values);
    span.values.channels = shape.value_channels;
    spans_.push_back(span);
    token += some;
  }
  for (size_t i = spans_.size(); i > 1; --i) std::swap(spans_[i - 1], spans_[random_.below(i)]);
  see();
}

ndp::Rows Problem::make_parts(uint32_t tokens, uint32_t channels, const std::vector<Part>& more) {
  ndp::Rows rows = make_rows(tokens, {shape_.number, channels, shape_.with_scales});
  const ndp::Rows* behind = nullptr;
  for (size_t part = more.size(); part > 0; --part) {
    ndp::Rows of = make_rows(tokens, more[part - 1]);
    of.more = behind;
    behind = keep(of);
  }
  rows.more = behind;
  return rows;
}

/// The first part of keys, and so many more.
ndp::Rows Problem::first_parts(ndp::Rows keys, size_t more) {
  keys.more = more == 0 ? nullptr : keep(first_parts(*keys.more, more - 1));
  return keys;
}

/// With gaps between rows, and exactly the bytes of the rows: sanitizers find reads past the end.
ndp::Rows Problem::make_rows(uint32_t tokens, const Part& part) {
  ndp::Rows rows{part.number, part.channels, tokens, nullptr, 0, nullptr};
  const uint64_t gaps = random_.below(3);
  rows.stride_bytes = rows.row_bytes() + gaps * random_.below(40);
  const size_t before = random_.below(64);
  const size_t all = before + rows.stride_bytes * (tokens - 1) + rows.row_bytes();
  auto& bytes = bytes_.emplace_back(std::make_unique<uint8_t[]>(all));
  for (size_t i = 0; i < all; ++i) bytes[i] = 0xFF;  // NaN between the rows
  rows.data = bytes.get() + before;
  const uint32_t element = element_bytes(part.number);
  for (uint32_t token = 0; token < tokens; ++token) {
    for (uint32_t c = 0; c < part.channels; ++c) {
      // Some far smaller: denormals of the small formats.
      const double factor = random_.below(8) == 0 ? 0.01 : 1;
      const uint32_t bits = bits_of(part.number, normal(random_) * factor);
      std::memcpy(const_cast<uint8_t*>(rows.row(token)) + size_t{c} * element, &bits, element);
    }
  }
  if (!part.with_scales) return rows;
  auto& scales = scales_.emplace_back(std::make_unique<float[]>(tokens));
  for (uint32_t token = 0; token < tokens; ++token)
    scales[token] = static_cast<float>(0.01 + uniform(random_));
  rows.scales = scales.get();
  return rows;
}

std::vector<double> Problem::values_of(const ndp::Rows& rows, uint32_t token) const {
  std::vector<double> values;
  for (const ndp::Rows* part = &rows; part != nullptr; part = part->more) {
    const uint32_t element = element_bytes(part->number);
    for (uint32_t c = 0; c < part->channels; ++c) {
      uint32_t bits = 0;
      std::memcpy(&bits, part->row(token) + size_t{c} * element, element);
      values.push_back(oracle_value(number_name(part->number), bits) *
                       (part->scales == nullptr ? 1.0 : part->scales[token]));
    }
  }
  return values;
}

void Problem::see() {
  sequence_ = {shape_.all_key_channels(), shape_.all_value_channels(), {}, {}};
  sequence_.keys.resize(shape_.tokens);
  sequence_.values.resize(shape_.tokens);
  for (const ndp::KvSpan& span : spans_) {
    for (uint32_t i = 0; i < span.keys.tokens; ++i) {
      sequence_.keys[span.first_token + i] = values_of(span.keys, i);
      sequence_.values[span.first_token + i] = values_of(span.values, i);
    }
  }
}

std::vector<ndp::KeySpan> Problem::key_spans() const {
  std::vector<ndp::KeySpan> spans;
  for (const ndp::KvSpan& span : spans_) spans.push_back({span.first_token, span.keys});
  return spans;
}

ndp::Queries Problem::queries() const {
  const auto of_part = [&](uint32_t first, uint32_t channels, NumberFormat number) {
    std::vector<float> all;
    for (const auto& query : queries_)
      all.insert(all.end(), query.begin() + first, query.begin() + first + channels);
    return ndp::Queries::of(all, shape_.queries, channels, static_cast<float>(scale_), number,
                            shape_.soft_cap)
        .value();
  };
  std::optional<ndp::Queries> more;
  uint32_t end = shape_.all_key_channels();
  for (size_t part = shape_.more_keys.size(); part > 0; --part) {
    const Part& of = shape_.more_keys[part - 1];
    end -= of.channels;
    const ndp::Queries queries = of_part(end, of.channels, of.number);
    more = more ? queries.with(*more).value() : queries;
  }
  const ndp::Queries queries = of_part(0, shape_.key_channels, shape_.number);
  return more ? queries.with(*more).value() : queries;
}

void Problem::set_key(uint32_t token, uint32_t channel, uint32_t bits) {
  const uint32_t element = element_bytes(shape_.number);
  for (const ndp::KvSpan& span : spans_) {
    if (token < span.first_token || token >= span.first_token + span.keys.tokens) continue;
    std::memcpy(
        const_cast<uint8_t*>(span.keys.row(token - span.first_token)) + size_t{channel} * element,
        &bits, element);
  }
  see();
}

}  // namespace bowhead::test
