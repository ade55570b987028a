// SPDX-License-Identifier: Apache-2.0
#include "ndp/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ndp/numbers.h"

namespace bowhead::ndp {

Views::Views(std::span<const Visible> each) : own_(true), each_(each) {
  if (each.empty()) return;
  any_ = each[0];
  for (const Visible& one : each) {
    any_.begin = std::min(any_.begin, one.begin);
    any_.end = std::max(any_.end, one.end);
    any_.sinks = std::max(any_.sinks, one.sinks);
  }
}

Result<void> Views::check(uint32_t queries) const {
  if (!own_ || each_.size() == queries) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{} views of {} queries: give one for all, or one for each",
                           each_.size(), queries)};
}

bool Views::have_all(uint32_t queries, uint32_t first, uint32_t count) const {
  for (uint32_t q = 0; q < (own_ ? queries : 1); ++q) {
    if (!of(q).has_all(first, count)) return false;
  }
  return true;
}

bool Views::have_some(uint32_t first, uint32_t count) const {
  const auto has_some = [&](const Visible& view) { return view.has_some(first, count); };
  return own_ ? std::any_of(each_.begin(), each_.end(), has_some) : has_some(any_);
}

namespace {

float scale_at(NumberFormat number, const uint8_t* at) {
  if (number != NumberFormat::FP32) return load_number(number, at);
  float scale;
  std::memcpy(&scale, at, sizeof scale);
  return scale;
}

}  // namespace

Result<KvSpan> span_of(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                       uint32_t head, uint32_t first_token, SpanScales* scales) {
  if (is_opaque(layout)) return Error{Status::NOT_SUPPORTED, "opaque values have no rows"};
  const bool scaled = layout.scale_place != BH_SCALES_ELSEWHERE;
  if (scaled && (scales == nullptr || layout.scales == BH_SCALES_PER_CHANNEL))
    return Error{Status::NOT_SUPPORTED, scales == nullptr
                                            ? "rows with scales in the block: elsewhere they may be"
                                            : "rows with a scale for each channel"};
  const auto rows = [&](uint32_t part, uint32_t channels) {
    const KvRows at = rows_of(layout, tokens, layer, part, head);
    return Rows{number_format(layout),
                channels,
                tokens,
                static_cast<const uint8_t*>(payload) + at.offset_bytes,
                at.stride_bytes,
                nullptr};
  };
  KvSpan span{first_token, rows(0, layout.key_channels),
              rows(layout.parts - 1u, layout.value_channels)};
  const auto bring = [&](uint32_t part, std::vector<float>& to) {
    const KvScales at = *scales_of(layout, tokens, layer, part, head);
    const uint8_t* from = static_cast<const uint8_t*>(payload) + at.offset_bytes;
    to.resize(tokens);
    for (uint32_t token = 0; token < tokens; ++token, from += at.stride_bytes)
      to[token] = scale_at(NumberFormat{layout.scale_format}, from);
    return to.data();
  };
  if (scaled) span.keys.scales = span.values.scales = bring(0, scales->keys);
  if (scaled && layout.parts == 2) span.values.scales = bring(1, scales->values);
  return span;
}

}  // namespace bowhead::ndp
