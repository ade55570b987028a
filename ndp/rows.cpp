// SPDX-License-Identifier: Apache-2.0
#include "ndp/rows.h"

namespace bowhead::ndp {

Result<KvSpan> span_of(const KvLayout& layout, const void* payload, uint32_t tokens, uint32_t layer,
                       uint32_t head, uint32_t first_token) {
  if (is_opaque(layout)) return Error{Status::NOT_SUPPORTED, "opaque values have no rows"};
  if (layout.scale_place != BH_SCALES_ELSEWHERE)
    return Error{Status::NOT_SUPPORTED, "rows with scales in the block: elsewhere they may be"};
  const auto rows = [&](uint32_t part, uint32_t channels) {
    const KvRows at = rows_of(layout, tokens, layer, part, head);
    return Rows{number_format(layout),
                channels,
                tokens,
                static_cast<const uint8_t*>(payload) + at.offset_bytes,
                at.stride_bytes,
                nullptr};
  };
  return KvSpan{first_token, rows(0, layout.key_channels),
                rows(layout.parts - 1u, layout.value_channels)};
}

}  // namespace bowhead::ndp
