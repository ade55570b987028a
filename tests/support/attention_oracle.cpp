// SPDX-License-Identifier: Apache-2.0
#include "tests/support/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace bowhead::test {
namespace {

/// IEEE 754's interchange format with this number of bits; `special` gives the use of the largest
/// exponent.
enum class Special { INFINITY_AND_NAN, NAN_ONLY_AT_THE_END };

double decode(uint32_t bits, int exponent_bits, int mantissa_bits, Special special) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto fraction = static_cast<int>(bits % (1u << mantissa_bits));
  const auto exponent = static_cast<int>(bits >> mantissa_bits) % (1 << exponent_bits);
  const double sign = bits >> (mantissa_bits + exponent_bits) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    if (special == Special::INFINITY_AND_NAN)
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    if (fraction == (1 << mantissa_bits) - 1) return std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa_bits);
  return sign * std::ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

}  // namespace

double oracle_value(const char* kind, uint32_t bits) {
  if (std::strcmp(kind, "bf16") == 0) return decode(bits, 8, 7, Special::INFINITY_AND_NAN);
  if (std::strcmp(kind, "fp16") == 0) return decode(bits, 5, 10, Special::INFINITY_AND_NAN);
  if (std::strcmp(kind, "fp8_e4m3") == 0) return decode(bits, 4, 3, Special::NAN_ONLY_AT_THE_END);
  if (std::strcmp(kind, "fp8_e5m2") == 0) return decode(bits, 5, 2, Special::INFINITY_AND_NAN);
  return bits < 128 ? bits : static_cast<double>(bits) - 256;
}

bool oracle_sees(const OracleVisible& visible, uint64_t token) {
  if (token >= visible.end) return false;
  return token < visible.sinks || token >= visible.begin;
}

double oracle_score(const std::vector<double>& query, const std::vector<double>& key, double scale,
                    double cap) {
  double sum = 0;
  for (size_t c = 0; c < query.size(); ++c) sum += query[c] * key[c];
  return cap == 0 ? sum * scale : cap * std::tanh(sum * scale / cap);
}

double oracle_reach(const std::vector<double>& query, const std::vector<double>& key, double scale,
                    bool whole) {
  double largest = 0, sum = 0;
  for (const double q : query) largest = std::max(largest, std::abs(q));
  for (size_t c = 0; c < query.size(); ++c)
    sum += (whole ? largest : std::abs(query[c])) * std::abs(key[c]);
  return sum * scale;
}

std::vector<OracleHit> oracle_order(const Sequence& sequence, const std::vector<double>& query,
                                    double scale, const OracleVisible& visible, double cap) {
  std::vector<OracleHit> hits;
  for (uint32_t token = 0; token < sequence.keys.size(); ++token) {
    if (!sequence.keys[token].empty() && oracle_sees(visible, token))
      hits.push_back({oracle_score(query, sequence.keys[token], scale, cap), token});
  }
  std::stable_sort(hits.begin(), hits.end(), [](const OracleHit& a, const OracleHit& b) {
    if (std::isnan(a.score) || std::isnan(b.score)) return !std::isnan(a.score);
    return a.score > b.score;
  });
  return hits;
}

OracleAttention oracle_attention(const Sequence& sequence, const std::vector<double>& query,
                                 double scale, const OracleVisible& visible, double cap) {
  OracleAttention result;
  result.output.assign(sequence.value_channels, 0);
  result.reach.assign(sequence.value_channels, 0);
  result.weights.assign(sequence.keys.size(), 0);
  const auto order = oracle_order(sequence, query, scale, visible, cap);
  double sum = 0;
  for (const OracleHit& hit : order) sum += std::exp(hit.score - order.front().score);
  result.log_sum_exp = order.empty() ? -std::numeric_limits<double>::infinity()
                                     : order.front().score + std::log(sum);
  for (const OracleHit& hit : order) {
    const double weight = std::exp(hit.score - order.front().score) / sum;
    result.weights[hit.token] = weight;
    for (uint32_t c = 0; c < sequence.value_channels; ++c) {
      result.output[c] += weight * sequence.values[hit.token][c];
      result.reach[c] += weight * std::abs(sequence.values[hit.token][c]);
    }
  }
  return result;
}

}  // namespace bowhead::test
