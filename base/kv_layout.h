// SPDX-License-Identifier: Apache-2.0
// The position of each row of a tensor in a block (bowhead/format/tensor.h): only this code knows
// it.
//
// A row is one token of one head, of K or of V. All functions except check_layout() need a layout
// that it has accepted.
#pragma once

#include <bowhead/format/tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/number_format.h"
#include "base/status.h"

namespace bowhead {

using KvLayout = bh_kv_layout;

/// Opaque values.
inline constexpr KvLayout kOpaqueLayout = {.number_format = BH_NUMBER_BYTES};

/// Keys only, of one layer; for BYTES, opaque values.
constexpr KvLayout keys_layout(NumberFormat format, uint16_t key_channels, uint16_t heads = 1) {
  if (format == NumberFormat::BYTES) return kOpaqueLayout;
  KvLayout layout{};
  layout.number_format = static_cast<uint8_t>(format);
  layout.parts = 1;
  layout.layers = 1;
  layout.heads = heads;
  layout.key_channels = key_channels;
  return layout;
}

/// The order of the rows of a layer's K or V.
enum class RowOrder : uint32_t {
  HEADS_FIRST = BH_ORDER_HEADS_FIRST,  ///< all tokens of a head, then the next head
  TOKENS_FIRST = BH_ORDER_TOKENS_FIRST
};
inline RowOrder row_order(const KvLayout& layout) { return RowOrder{layout.order}; }

/// K and V of equal length.
constexpr KvLayout pairs_layout(NumberFormat format, uint16_t layers, uint16_t heads,
                                uint16_t channels, RowOrder order = RowOrder::HEADS_FIRST) {
  KvLayout layout = keys_layout(format, channels, heads);
  layout.parts = 2;
  layout.layers = layers;
  layout.value_channels = channels;
  layout.order = static_cast<uint8_t>(order);
  return layout;
}

/// INVALID_ARGUMENT, with the wrong field, for a layout that no block can have. NOT_SUPPORTED for
/// one with a field of a later version.
Result<void> check_layout(const KvLayout& layout);

inline bool is_opaque(const KvLayout& layout) { return layout.number_format == BH_NUMBER_BYTES; }
inline NumberFormat number_format(const KvLayout& layout) {
  return NumberFormat{layout.number_format};
}
/// Channels of part 0 (K) or 1 (V).
inline uint32_t channels(const KvLayout& layout, uint32_t part) {
  return part == 0 ? layout.key_channels : layout.value_channels;
}

/// Bytes of a row of that part, without its scale.
inline uint32_t row_bytes(const KvLayout& layout, uint32_t part) {
  return channels(layout, part) * element_bytes(number_format(layout));
}

/// Bytes of a scale; 0 without scales.
inline uint32_t scale_bytes(const KvLayout& layout) {
  return layout.scales == BH_SCALES_NONE ? 0 : element_bytes(NumberFormat{layout.scale_format});
}

inline double rotary_base(const KvLayout& layout) {
  return static_cast<double>(layout.rotary_base_thousandths) / 1000;
}

/// Bytes of a block of that many tokens. Opaque: as many bytes.
uint64_t payload_bytes(const KvLayout& layout, uint64_t tokens);
/// The number of tokens in a payload of this size; empty if no number has that size.
std::optional<uint64_t> tokens_in(const KvLayout& layout, uint64_t payload_bytes);

/// The rows of one head in one part of one layer: token t is at offset_bytes + t * stride_bytes.
struct KvRows {
  uint64_t offset_bytes;  ///< from the start of the payload
  uint64_t stride_bytes;
  uint32_t row_bytes;
};
KvRows rows_of(const KvLayout& layout, uint64_t tokens, uint32_t layer, uint32_t part,
               uint32_t head);

/// Their scales: that of token t is at offset_bytes + t * stride_bytes.
struct KvScales {
  uint64_t offset_bytes;  ///< from the start of the payload
  uint64_t stride_bytes;
};
/// Empty unless the block has a scale for each token or row.
std::optional<KvScales> scales_of(const KvLayout& layout, uint64_t tokens, uint32_t layer,
                                  uint32_t part, uint32_t head);

/// "heads is 8, not 4": the first field that differs; empty if all bytes are equal.
std::optional<std::string> difference(const KvLayout& there, const KvLayout& wanted);

/// "bf16, 32 layers of K and V, 8 heads of 128 channels, heads first"; "opaque values".
std::string to_text(const KvLayout& layout);

}  // namespace bowhead
