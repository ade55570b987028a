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

Rows rows_in(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
             uint32_t part, uint32_t head) {
  const KvRows at = rows_of(layout, tokens, layer, part, head);
  return {number_format(layout), channels(layout, part), tokens,
          static_cast<const uint8_t*>(payload) + at.offset_bytes, at.stride_bytes};
}

void load_scales(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                 uint32_t part, uint32_t head, uint32_t first, std::span<float> scales) {
  const KvScales at = scales_of(layout, tokens, layer, part, head).value();
  const uint8_t* from =
      static_cast<const uint8_t*>(payload) + at.offset_bytes + first * at.stride_bytes;
  for (float& scale : scales) {
    scale = scale_at(NumberFormat{layout.scale_format}, from);
    from += at.stride_bytes;
  }
}

Result<KvSpan> span_of(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                       uint32_t head, uint32_t first_token) {
  if (is_opaque(layout)) return Error{Status::NOT_SUPPORTED, "opaque values have no rows"};
  if (layout.scale_place != BH_SCALES_ELSEWHERE)
    return Error{Status::NOT_SUPPORTED, "rows with scales in the block: elsewhere they may be"};
  KvSpan span{first_token, rows_in(layout, payload, tokens, layer, 0, head),
              rows_in(layout, payload, tokens, layer, layout.parts - 1u, head)};
  span.values.channels = layout.value_channels;
  return span;
}

}  // namespace bowhead::ndp
