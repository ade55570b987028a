// SPDX-License-Identifier: Apache-2.0
#include "base/kv_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace bowhead {
namespace {

struct Field {
  const char* name;
  uint64_t (*value)(const KvLayout&);
};

#define BOWHEAD_FIELD(name)                                             \
  {                                                                     \
#name, [](const KvLayout& layout) { return uint64_t{layout.name}; } \
  }
constexpr Field kFields[] = {BOWHEAD_FIELD(number_format),
                             BOWHEAD_FIELD(order),
                             BOWHEAD_FIELD(parts),
                             BOWHEAD_FIELD(layers),
                             BOWHEAD_FIELD(heads),
                             BOWHEAD_FIELD(key_channels),
                             BOWHEAD_FIELD(value_channels),
                             BOWHEAD_FIELD(block_tokens),
                             BOWHEAD_FIELD(scales),
                             BOWHEAD_FIELD(scale_format),
                             BOWHEAD_FIELD(scale_place),
                             BOWHEAD_FIELD(rotary),
                             BOWHEAD_FIELD(rotary_first),
                             BOWHEAD_FIELD(rotary_channels),
                             BOWHEAD_FIELD(rotary_base_thousandths),
                             BOWHEAD_FIELD(first_layer),
                             BOWHEAD_FIELD(model_layers),
                             BOWHEAD_FIELD(first_head),
                             BOWHEAD_FIELD(model_heads)};
#undef BOWHEAD_FIELD

/// The value of a field, for texts.
std::string text_of(const Field& field, const KvLayout& layout) {
  constexpr const char* kOrders[] = {"heads first", "tokens first"};
  constexpr const char* kRotaries[] = {"none", "halves", "interleaved"};
  const std::string_view name = field.name;
  const uint64_t at = field.value(layout);
  if (name == "number_format" || (name == "scale_format" && at != 0))
    return number_name(static_cast<NumberFormat>(at));
  if (name == "order" && at < std::size(kOrders)) return kOrders[at];
  if (name == "rotary" && at < std::size(kRotaries)) return kRotaries[at];
  return std::to_string(at);
}

constexpr uint64_t kMostBaseThousandths = 1'000'000'000'000'000;

template <class... Values>
Error wrong(fmt::format_string<Values...> text, Values&&... values) {
  return Error{Status::INVALID_ARGUMENT,
               "layout: " + fmt::format(text, std::forward<Values>(values)...)};
}

bool is_number(uint8_t format) {
  return format != BH_NUMBER_BYTES && format >= BH_NUMBER_BF16 && format <= BH_NUMBER_FP32;
}

Result<void> check_scales(const KvLayout& l) {
  if (l.scales == BH_SCALES_NONE) {
    if (l.scale_format != 0 || l.scale_place != 0)
      return wrong("without scales, scale_format and scale_place must be 0");
    return {};
  }
  if (l.scales > BH_SCALES_PER_CHANNEL) return wrong("scales is {}, which is unknown", l.scales);
  if (!is_number(l.scale_format) || l.scale_format == BH_NUMBER_INT8)
    return wrong("scale_format is {}, but must be a floating-point format", l.scale_format);
  if (l.scale_place > BH_SCALES_BEHIND_PART)
    return wrong("scale_place is {}, which is unknown", l.scale_place);
  if (l.scale_place == BH_SCALES_BEHIND_ROW && l.scales != BH_SCALES_PER_ROW)
    return wrong("scale_place: scales can follow rows only if each row has one");
  return {};
}

Result<void> check_turns(const KvLayout& l) {
  if (l.rotary == BH_ROTARY_NONE) {
    if (l.rotary_first != 0 || l.rotary_channels != 0 || l.rotary_base_thousandths != 0)
      return wrong(
          "without rotary embedding, rotary_first, rotary_channels and rotary_base_thousandths "
          "must be 0");
    return {};
  }
  if (l.rotary > BH_ROTARY_INTERLEAVED) return wrong("rotary is {}, which is unknown", l.rotary);
  if (l.rotary_channels == 0 || l.rotary_channels % 2 != 0)
    return wrong("rotary_channels is {}, but must be even", l.rotary_channels);
  if (uint32_t{l.rotary_first} + l.rotary_channels > l.key_channels)
    return wrong("rotary embedding ends at channel {}, but keys have {}",
                 uint32_t{l.rotary_first} + l.rotary_channels, l.key_channels);
  if (l.rotary_base_thousandths <= 1000 || l.rotary_base_thousandths > kMostBaseThousandths)
    return wrong(
        "rotary_base_thousandths is {}, but the base must be above 1 and at most 10^12, such as "
        "500,000,000 for 500,000",
        l.rotary_base_thousandths);
  return {};
}

Result<void> check_share(const char* what, uint32_t first, uint32_t some, uint32_t all) {
  if (all == 0 && first != 0) return wrong("first_{} is {}, but model_{}s is 0", what, first, what);
  if (all != 0 && first + some > all)
    return wrong("{}s {} to {}, but the model has {}", what, first, first + some - 1, all);
  return {};
}

/// The distance from a row to the next one.
uint64_t row_step(const KvLayout& l, uint32_t part) {
  return row_bytes(l, part) + (l.scale_place == BH_SCALES_BEHIND_ROW ? scale_bytes(l) : 0);
}

/// Bytes per token of a part of a layer.
uint64_t token_bytes(const KvLayout& l, uint32_t part) {
  uint64_t bytes = l.heads * row_step(l, part);
  if (l.scale_place == BH_SCALES_BEHIND_PART && l.scales == BH_SCALES_PER_TOKEN)
    bytes += scale_bytes(l);
  if (l.scale_place == BH_SCALES_BEHIND_PART && l.scales == BH_SCALES_PER_ROW)
    bytes += l.heads * scale_bytes(l);
  return bytes;
}
uint64_t fixed_bytes(const KvLayout& l, uint32_t part) {
  const bool there = l.scale_place == BH_SCALES_BEHIND_PART && l.scales == BH_SCALES_PER_CHANNEL;
  return there ? l.heads * channels(l, part) * scale_bytes(l) : 0;
}

/// Of all parts and layers: bytes per token, and bytes that do not depend on the tokens.
struct Sizes {
  uint64_t token = 0, fixed = 0;
};
Sizes sizes_of(const KvLayout& l) {
  Sizes sizes;
  for (uint32_t part = 0; part < l.parts; ++part) {
    sizes.token += token_bytes(l, part);
    sizes.fixed += fixed_bytes(l, part);
  }
  return {sizes.token * l.layers, sizes.fixed * l.layers};
}

}  // namespace

Result<void> check_layout(const KvLayout& l) {
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  if (l.reserved0 != 0 || !std::all_of(std::begin(l.reserved), std::end(l.reserved), is_zero))
    return Error{Status::NOT_SUPPORTED,
                 "layout: reserved bytes must be 0; this Bowhead does not know what they mean"};
  if (is_opaque(l)) {
    if (const auto more = difference(l, kOpaqueLayout))
      return wrong("opaque values (bytes) have no other field, but {}", *more);
    return {};
  }
  if (!is_number(l.number_format))
    return wrong("number_format is {}, which is unknown", l.number_format);
  if (l.order > BH_ORDER_TOKENS_FIRST) return wrong("order is {}, which is unknown", l.order);
  if (l.parts != 1 && l.parts != 2) return wrong("parts is {}, but must be 1 or 2", l.parts);
  if (l.layers == 0 || l.heads == 0 || l.key_channels == 0 ||
      (l.parts == 2 && l.value_channels == 0))
    return wrong("{} layers, {} heads, {} channels of keys and {} of values: none of them may be 0",
                 l.layers, l.heads, l.key_channels, l.value_channels);
  if (l.parts == 1 && l.value_channels > l.key_channels)
    return wrong("values are the first {} channels of keys, but keys have {}", l.value_channels,
                 l.key_channels);
  if (auto good = check_scales(l); !good) return good;
  if (auto good = check_turns(l); !good) return good;
  if (auto good = check_share("layer", l.first_layer, l.layers, l.model_layers); !good) return good;
  if (auto good = check_share("head", l.first_head, l.heads, l.model_heads); !good) return good;
  const uint64_t tokens = std::max<uint64_t>(l.block_tokens, 1);
  const Sizes sizes = sizes_of(l);
  if (sizes.token > BH_VALUE_BYTES_MAX || payload_bytes(l, tokens) > BH_VALUE_BYTES_MAX)
    return wrong("{} token(s) of {} bytes each, but a block has at most {}", tokens, sizes.token,
                 BH_VALUE_BYTES_MAX);
  return {};
}

uint64_t payload_bytes(const KvLayout& layout, uint64_t tokens) {
  if (is_opaque(layout)) return tokens;
  const Sizes sizes = sizes_of(layout);
  return sizes.token * tokens + sizes.fixed;
}

std::optional<uint64_t> tokens_in(const KvLayout& layout, uint64_t payload_bytes) {
  if (is_opaque(layout)) return payload_bytes;
  const Sizes sizes = sizes_of(layout);
  if (payload_bytes <= sizes.fixed || (payload_bytes - sizes.fixed) % sizes.token != 0)
    return std::nullopt;
  return (payload_bytes - sizes.fixed) / sizes.token;
}

KvRows rows_of(const KvLayout& l, uint64_t tokens, uint32_t layer, uint32_t part, uint32_t head) {
  const Sizes sizes = sizes_of(l);
  uint64_t offset = layer * (sizes.token * tokens + sizes.fixed) / l.layers;
  if (part == 1) offset += token_bytes(l, 0) * tokens + fixed_bytes(l, 0);
  const uint64_t step = row_step(l, part);
  if (l.order == BH_ORDER_HEADS_FIRST)
    return {offset + head * tokens * step, step, row_bytes(l, part)};
  return {offset + head * step, l.heads * step, row_bytes(l, part)};
}

std::optional<KvScales> scales_of(const KvLayout& l, uint64_t tokens, uint32_t layer, uint32_t part,
                                  uint32_t head) {
  if (l.scale_place == BH_SCALES_ELSEWHERE || l.scales == BH_SCALES_PER_CHANNEL)
    return std::nullopt;
  const KvRows rows = rows_of(l, tokens, layer, part, head);
  if (l.scale_place == BH_SCALES_BEHIND_ROW)
    return KvScales{rows.offset_bytes + rows.row_bytes, rows.stride_bytes};
  const uint64_t bytes = scale_bytes(l);
  const uint64_t begin =
      rows_of(l, tokens, layer, part, 0).offset_bytes + l.heads * row_step(l, part) * tokens;
  if (l.scales == BH_SCALES_PER_TOKEN) return KvScales{begin, bytes};
  if (l.order == BH_ORDER_HEADS_FIRST) return KvScales{begin + head * tokens * bytes, bytes};
  return KvScales{begin + head * bytes, l.heads * bytes};
}

std::optional<std::string> difference(const KvLayout& there, const KvLayout& wanted) {
  for (const Field& field : kFields) {
    if (field.value(there) != field.value(wanted))
      return fmt::format("{} is {}, not {}", field.name, text_of(field, there),
                         text_of(field, wanted));
  }
  if (std::memcmp(&there, &wanted, sizeof there) != 0)
    return "a field differs that this Bowhead does not know";
  return std::nullopt;
}

std::string to_text(const KvLayout& l) {
  if (is_opaque(l)) return "opaque values";
  std::string text =
      fmt::format("{}, {} layer{} of {}, {} head{} of {}", number_name(number_format(l)), l.layers,
                  l.layers == 1 ? "" : "s", l.parts == 2 ? "K and V" : "K", l.heads,
                  l.heads == 1 ? "" : "s", l.key_channels);
  if (l.parts == 2 && l.value_channels != l.key_channels)
    text += fmt::format(" and {}", l.value_channels);
  text += " channels";
  if (l.parts == 1 && l.value_channels != 0)
    text += fmt::format(", the first {} of them V", l.value_channels);
  if (l.heads > 1) text += l.order == BH_ORDER_HEADS_FIRST ? ", heads first" : ", tokens first";
  if (l.block_tokens != 0) text += fmt::format(", blocks of {} tokens", l.block_tokens);
  if (l.scales != BH_SCALES_NONE)
    text += fmt::format(", {} scales", number_name(NumberFormat{l.scale_format}));
  if (l.rotary != BH_ROTARY_NONE)
    text += fmt::format(", rotary {}{}{} of base {:.6g}", l.rotary_channels,
                        l.rotary_first == 0 ? "" : fmt::format(" from channel {}", l.rotary_first),
                        l.rotary == BH_ROTARY_INTERLEAVED ? " interleaved" : "", rotary_base(l));
  if (l.model_layers != 0)
    text += fmt::format(", from layer {} of {}", l.first_layer, l.model_layers);
  if (l.model_heads != 0) text += fmt::format(", from head {} of {}", l.first_head, l.model_heads);
  return text;
}

}  // namespace bowhead
