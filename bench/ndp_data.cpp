// SPDX-License-Identifier: Apache-2.0
#include "bench/ndp_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/assert.h"
#include "base/random.h"
#include "ndp/numbers.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kSeed = 5;
constexpr size_t kNormals = 1u << 16;  // numbers are drawn from this many, by 16 random bits

double uniform(Random& random) {  // above 0
  return (static_cast<double>(random.next() >> 11) + 1) * 0x1p-53;
}

std::vector<float> normal_numbers(Random& random, size_t count) {
  std::vector<float> normals(count);
  for (float& normal : normals)
    normal = static_cast<float>(std::sqrt(-2 * std::log(uniform(random))) *
                                std::cos(2 * std::numbers::pi * uniform(random)));
  return normals;
}

/// All finite numbers of a format with their bit patterns, in order.
std::vector<std::pair<float, uint16_t>> numbers_of(NumberFormat kind) {
  std::vector<std::pair<float, uint16_t>> numbers;
  const uint32_t patterns = 1u << 8 * element_bytes(kind);
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const uint8_t bytes[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    const float value = ndp::load_number(kind, bytes);
    if (std::isfinite(value)) numbers.emplace_back(value, static_cast<uint16_t>(bits));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Bit patterns of the numbers of a format nearest to normal random numbers; for int8, times 32.
std::vector<uint16_t> normal_patterns(Random& random, NumberFormat kind) {
  const auto numbers = numbers_of(kind);
  std::vector<uint16_t> patterns;
  for (const float normal : normal_numbers(random, kNormals)) {
    const float value = kind == NumberFormat::INT8 ? normal * 32 : normal;
    auto above = std::lower_bound(numbers.begin(), numbers.end(), std::pair(value, uint16_t{0}));
    if (above == numbers.end()) --above;
    if (above != numbers.begin() && value - (above - 1)->first < above->first - value) --above;
    patterns.push_back(above->second);
  }
  return patterns;
}

template <class Element>
void fill(Random& random, std::span<uint8_t> bytes, const std::vector<uint16_t>& patterns) {
  for (size_t at = 0; at < bytes.size(); at += 4 * sizeof(Element)) {
    uint64_t bits = random.next();
    Element elements[4];
    for (Element& element : elements) {
      element = static_cast<Element>(patterns[bits % kNormals]);
      bits >>= 16;
    }
    std::memcpy(&bytes[at], elements, sizeof(elements));
  }
}

}  // namespace

NdpData::NdpData(NumberFormat number, uint64_t bytes) : number_(number), memory_(bytes) {
  if (!there()) return;
  Random random(kSeed);
  const auto patterns = normal_patterns(random, number);
  if (element_bytes(number) == 2)
    fill<uint16_t>(random, memory_.bytes(), patterns);
  else
    fill<uint8_t>(random, memory_.bytes(), patterns);
  if (number != NumberFormat::INT8) return;
  scales_.resize(bytes / kHeadChannels);
  for (float& scale : scales_) scale = static_cast<float>(1 + uniform(random)) / 48;
}

std::vector<ndp::KeySpan> NdpData::spans(std::span<const uint8_t> share, uint32_t channels,
                                         uint32_t first_token) const {
  BOWHEAD_ASSERT(scales_.empty() || channels == kHeadChannels);
  const size_t row_bytes = size_t{channels} * element_bytes(number_);
  std::vector<ndp::KeySpan> spans;
  for (size_t at = 0; at + kSpanTokens * row_bytes <= share.size(); at += kSpanTokens * row_bytes) {
    const uint8_t* rows = share.data() + at;
    const auto before = static_cast<size_t>(rows - memory_.bytes().data());
    const float* scales = scales_.empty() ? nullptr : &scales_[before / row_bytes];
    spans.push_back({first_token, {number_, channels, kSpanTokens, rows, row_bytes, scales}});
    first_token += kSpanTokens;
  }
  return spans;
}

uint64_t Walk::bytes() const {
  uint64_t sum = 0;
  for (const auto& share : shares) sum += share.size();
  return sum;
}

std::vector<std::vector<ndp::KeySpan>> Walk::spans(uint32_t channels) const {
  std::vector<std::vector<ndp::KeySpan>> by_share;
  uint32_t tokens = 0;
  for (const auto& share : shares) {
    by_share.push_back(data->spans(share, channels, tokens));
    tokens += static_cast<uint32_t>(by_share.back().size()) * kSpanTokens;
  }
  return by_share;
}

ndp::Queries make_queries(uint32_t count, uint32_t channels, NumberFormat keys) {
  Random random(kSeed + 1);
  std::vector<float> values = normal_numbers(random, size_t{count} * channels);
  for (float& value : values) value = ndp::from_bf16(ndp::to_bf16(value));
  auto queries =
      ndp::Queries::of(values, count, channels, 1 / std::sqrt(static_cast<float>(channels)), keys);
  BOWHEAD_ASSERT(queries);
  return std::move(*queries);
}

}  // namespace bowhead::bench
