// SPDX-License-Identifier: Apache-2.0
#include "base/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace bowhead {
namespace {

KvLayout random_layout(Random& random) {
  const auto below = [&](uint64_t most) { return static_cast<uint16_t>(random.below(most)); };
  KvLayout l{};
  l.number_format = static_cast<uint8_t>(random.below(2) == 0 ? BH_NUMBER_BF16 : BH_NUMBER_INT8);
  l.order = static_cast<uint8_t>(random.below(2));
  l.parts = static_cast<uint8_t>(1 + random.below(2));
  l.layers = static_cast<uint16_t>(1 + below(3));
  l.heads = static_cast<uint16_t>(1 + below(4));
  l.key_channels = static_cast<uint16_t>(1 + below(9));
  l.value_channels = l.parts == 2 ? static_cast<uint16_t>(1 + below(9)) : below(l.key_channels);
  l.scales = static_cast<uint8_t>(random.below(4));
  if (l.scales == BH_SCALES_NONE) return l;
  l.scale_format = static_cast<uint8_t>(random.below(2) == 0 ? BH_NUMBER_FP32 : BH_NUMBER_FP16);
  l.scale_place = static_cast<uint8_t>(random.below(3));
  if (l.scale_place == BH_SCALES_BEHIND_ROW) l.scales = BH_SCALES_PER_ROW;
  return l;
}

/// The number of scales in a block, counted from the text of the format header.
uint64_t scales_in(const KvLayout& l, uint64_t tokens) {
  uint64_t count = 0;
  for (uint32_t part = 0; part < l.parts; ++part) {
    if (l.scales == BH_SCALES_PER_TOKEN) count += tokens;
    if (l.scales == BH_SCALES_PER_ROW) count += l.heads * tokens;
    if (l.scales == BH_SCALES_PER_CHANNEL) count += l.heads * channels(l, part);
  }
  return l.scale_place == BH_SCALES_ELSEWHERE ? 0 : count * l.layers;
}

/// Each byte of a block belongs to one row of one head, or to a scale.
TEST(KvLayout, RowsLieApartAndFillTheBlock) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const KvLayout l = random_layout(random);
    ASSERT_TRUE(check_layout(l)) << check_layout(l).error().message();
    const uint64_t tokens = 1 + random.below(7);
    const uint64_t size = payload_bytes(l, tokens);
    std::vector<uint8_t> owned(size);
    uint64_t rows_bytes = 0;
    for (uint32_t layer = 0; layer < l.layers; ++layer) {
      for (uint32_t part = 0; part < l.parts; ++part) {
        for (uint32_t head = 0; head < l.heads; ++head) {
          const KvRows rows = rows_of(l, tokens, layer, part, head);
          ASSERT_EQ(rows.row_bytes, channels(l, part) * element_bytes(number_format(l)));
          for (uint64_t token = 0; token < tokens; ++token) {
            for (uint64_t i = 0; i < rows.row_bytes; ++i) {
              const uint64_t at = rows.offset_bytes + token * rows.stride_bytes + i;
              ASSERT_LT(at, size) << to_text(l);
              ASSERT_EQ(owned[at]++, 0) << to_text(l);
              ++rows_bytes;
            }
          }
        }
      }
    }
    const uint64_t scale = l.scales == 0 ? 0 : element_bytes(NumberFormat{l.scale_format});
    EXPECT_EQ(rows_bytes + scales_in(l, tokens) * scale, size) << to_text(l);
    EXPECT_EQ(tokens_in(l, size), tokens);
    EXPECT_NE(tokens_in(l, size + 1), tokens);
  }
}

/// The scales of tokens and rows are all bytes that no row has.
TEST(KvLayout, ScalesLieWhereNoRowDoes) {
  Random random(2);
  for (int round = 0; round < 3000; ++round) {
    const KvLayout l = random_layout(random);
    const uint64_t tokens = 1 + random.below(7), size = payload_bytes(l, tokens);
    const bool there = l.scales != BH_SCALES_NONE && l.scales != BH_SCALES_PER_CHANNEL &&
                       l.scale_place != BH_SCALES_ELSEWHERE;
    std::vector<uint8_t> of_row(size), of_scale(size);
    for (uint32_t layer = 0; layer < l.layers; ++layer) {
      for (uint32_t part = 0; part < l.parts; ++part) {
        for (uint32_t head = 0; head < l.heads; ++head) {
          const KvRows rows = rows_of(l, tokens, layer, part, head);
          for (uint64_t token = 0; token < tokens; ++token)
            std::fill_n(&of_row[rows.offset_bytes + token * rows.stride_bytes], rows.row_bytes,
                        uint8_t{1});
          const auto scales = scales_of(l, tokens, layer, part, head);
          ASSERT_EQ(scales.has_value(), there) << to_text(l);
          if (!there || (head > 0 && l.scales == BH_SCALES_PER_TOKEN)) continue;
          for (uint64_t token = 0; token < tokens; ++token) {
            const uint64_t at = scales->offset_bytes + token * scales->stride_bytes;
            ASSERT_LE(at + scale_bytes(l), size) << to_text(l);
            for (uint32_t i = 0; i < scale_bytes(l); ++i) ASSERT_EQ(of_scale[at + i]++, 0);
          }
        }
      }
    }
    for (uint64_t i = 0; there && i < size; ++i)
      ASSERT_EQ(of_row[i] + of_scale[i], 1) << to_text(l) << ", byte " << i;
  }
}

TEST(KvLayout, ScalesLieInTheStatedOrder) {
  KvLayout l = pairs_layout(NumberFormat::INT8, 2, 2, 10);
  l.scales = BH_SCALES_PER_ROW;
  l.scale_format = BH_NUMBER_FP32;
  l.scale_place = BH_SCALES_BEHIND_PART;
  const auto expect = [&](uint32_t part, uint32_t head, uint64_t offset, uint64_t stride) {
    const auto scales = scales_of(l, 3, 1, part, head);
    ASSERT_TRUE(scales);
    EXPECT_EQ(scales->offset_bytes, offset);
    EXPECT_EQ(scales->stride_bytes, stride);
  };
  // A part: 2 heads x 3 tokens x 10 bytes, then 6 scales; a layer: 2 of them.
  expect(0, 1, 168 + 60 + 12, 4);
  expect(1, 0, 168 + 84 + 60, 4);
  l.order = BH_ORDER_TOKENS_FIRST;
  expect(0, 1, 168 + 60 + 4, 8);
  l.scale_place = BH_SCALES_BEHIND_ROW;
  expect(0, 1, 168 + 14 + 10, 28);
  l.scales = BH_SCALES_PER_TOKEN;
  l.scale_place = BH_SCALES_BEHIND_PART;  // 60 + 12 bytes
  expect(0, 1, 144 + 60, 4);
  expect(1, 1, 144 + 72 + 60, 4);
}

TEST(KvLayout, RowsLieInTheStatedOrder) {
  KvLayout l{};
  l.number_format = BH_NUMBER_BF16;
  l.parts = 2;
  l.layers = 2;
  l.heads = 4;
  l.key_channels = 8;
  l.value_channels = 4;
  // 3 tokens: K of a layer takes 3 * 4 * 16 = 192 bytes, V half of that.
  KvRows rows = rows_of(l, 3, 1, 1, 2);
  EXPECT_EQ(rows.offset_bytes, 288 + 192 + 2 * 3 * 8u);
  EXPECT_EQ(rows.stride_bytes, 8u);
  l.order = BH_ORDER_TOKENS_FIRST;
  rows = rows_of(l, 3, 1, 1, 2);
  EXPECT_EQ(rows.offset_bytes, 288 + 192 + 2 * 8u);
  EXPECT_EQ(rows.stride_bytes, 32u);
}

TEST(KvLayout, ImpossibleLayoutsAreNamed) {
  const KvLayout good = keys_layout(NumberFormat::BF16, 64, 8);
  ASSERT_TRUE(check_layout(good));
  ASSERT_TRUE(check_layout(kOpaqueLayout));
  const std::pair<const char*, void (*)(KvLayout&)> wrong[] = {
      {"number_format is 0", [](KvLayout& l) { l.number_format = 0; }},
      {"number_format is 8", [](KvLayout& l) { l.number_format = 8; }},
      {"opaque values (bytes) have no other field",
       [](KvLayout& l) { l.number_format = BH_NUMBER_BYTES; }},
      {"order is 2", [](KvLayout& l) { l.order = 2; }},
      {"parts is 3", [](KvLayout& l) { l.parts = 3; }},
      {"0 layers", [](KvLayout& l) { l.layers = 0; }},
      {"0 heads", [](KvLayout& l) { l.heads = 0; }},
      {"0 of values", [](KvLayout& l) { l.parts = 2; }},
      {"first 65 channels of keys, but keys have 64", [](KvLayout& l) { l.value_channels = 65; }},
      {"scale_format and scale_place must be 0", [](KvLayout& l) { l.scale_format = 1; }},
      {"scales is 4", [](KvLayout& l) { l.scales = 4; }},
      {"scale_format is 5",
       [](KvLayout& l) {
         l.scales = BH_SCALES_PER_ROW;
         l.scale_format = BH_NUMBER_INT8;
       }},
      {"only if each row has one",
       [](KvLayout& l) {
         l.scales = BH_SCALES_PER_TOKEN;
         l.scale_format = BH_NUMBER_FP32;
         l.scale_place = BH_SCALES_BEHIND_ROW;
       }},
      {"without rotary embedding", [](KvLayout& l) { l.rotary_first = 1; }},
      {"rotary is 3", [](KvLayout& l) { l.rotary = 3; }},
      {"rotary_channels is 3",
       [](KvLayout& l) {
         l.rotary = BH_ROTARY_HALVES;
         l.rotary_channels = 3;
       }},
      {"ends at channel 66, but keys have 64",
       [](KvLayout& l) {
         l.rotary = BH_ROTARY_HALVES;
         l.rotary_first = 64;
         l.rotary_channels = 2;
       }},
      {"rotary_base_thousandths is 1000",
       [](KvLayout& l) {
         l.rotary = BH_ROTARY_HALVES;
         l.rotary_channels = 64;
         l.rotary_base_thousandths = 1000;
       }},
      {"heads 4 to 11, but the model has 8",
       [](KvLayout& l) {
         l.first_head = 4;
         l.model_heads = 8;
       }},
      {"first_layer is 1, but model_layers is 0", [](KvLayout& l) { l.first_layer = 1; }},
      {"a block has at most 1073741824", [](KvLayout& l) { l.block_tokens = 1u << 31; }}};
  for (const auto& [text, change] : wrong) {
    KvLayout bad = good;
    change(bad);
    const auto refused = check_layout(bad);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.status(), Status::INVALID_ARGUMENT);
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
  }
}

/// A later version may use the reserved bytes. No other field changes the status.
TEST(KvLayout, FieldsOfALaterVersionAreNotSupported) {
  for (const KvLayout& good : {keys_layout(NumberFormat::BF16, 64), kOpaqueLayout, KvLayout{}}) {
    for (size_t at = 0; at < sizeof(KvLayout); ++at) {
      if (at != offsetof(KvLayout, reserved0) && at < offsetof(KvLayout, reserved)) continue;
      KvLayout later = good;
      reinterpret_cast<unsigned char*>(&later)[at] = 0x80;
      const auto refused = check_layout(later);
      EXPECT_EQ(refused.status(), Status::NOT_SUPPORTED) << at;
    }
  }
}

TEST(KvLayout, EveryByteThatDiffersIsADifference) {
  const KvLayout there = keys_layout(NumberFormat::BF16, 64, 8);
  EXPECT_EQ(difference(there, there), std::nullopt);
  for (size_t at = 0; at < sizeof there; ++at) {
    KvLayout other = there;
    reinterpret_cast<unsigned char*>(&other)[at] ^= 1;
    EXPECT_TRUE(difference(there, other)) << "byte " << at;
    EXPECT_TRUE(difference(other, there)) << "byte " << at;
  }
}

/// Layouts are also read from shared memory: any bytes must give a result and a text.
TEST(KvLayout, AnyBytesAreCheckedAndWritten) {
  Random random(2);
  int good = 0;
  for (int round = 0; round < 200'000; ++round) {
    KvLayout layout = random_layout(random);
    auto* bytes = reinterpret_cast<unsigned char*>(&layout);
    for (uint64_t changes = random.below(4); changes > 0; --changes)
      bytes[random.below(sizeof layout)] = static_cast<unsigned char>(random.next());
    good += static_cast<bool>(check_layout(layout));
    EXPECT_FALSE(to_text(layout).empty());
  }
  EXPECT_GT(good, 50'000);
  EXPECT_LT(good, 190'000);
}

}  // namespace
}  // namespace bowhead
