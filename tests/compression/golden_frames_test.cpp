// SPDX-License-Identifier: Apache-2.0
// Golden frames decode to their values with every version; a fault behind correct checksums is
// found, and costs no more time and memory than the size of the frame justifies.
#include <bowhead/format/frame.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "tests/compression/allocations.h"
#include "tests/support/reseal.h"
#include "tests/support/tensors.h"

namespace bowhead::compression {
namespace {

using Buffer = std::vector<uint8_t>;

Buffer read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  Buffer bytes(std::istreambuf_iterator<char>(in), {});
  EXPECT_FALSE(bytes.empty()) << path << " is missing";
  return bytes;
}

Buffer golden(const std::string& name) {
  return read_file(std::filesystem::path(BOWHEAD_GOLDEN_FRAMES) / (name + ".frame"));
}

TEST(GoldenFrames, Decode) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(BOWHEAD_GOLDEN_FRAMES)) {
    if (entry.path().extension() != ".frame") continue;
    SCOPED_TRACE(entry.path().filename());
    ++count;
    const Buffer frame = read_file(entry.path());
    const Buffer raw = read_file(std::filesystem::path(entry.path()).replace_extension(".raw"));
    const auto info = frame_info(frame);
    ASSERT_TRUE(info) << info.error().message();
    ASSERT_EQ(info->shape.size_bytes(), raw.size());
    Decoder decoder;
    Buffer out(raw.size());
    ASSERT_EQ(decoder.decode(frame, out), Status::OK);
    EXPECT_TRUE(out == raw);
    const uint32_t last = info->shape.outer - 1, token = info->shape.tokens / 2;
    Buffer row(info->shape.row_bytes());
    ASSERT_EQ(decoder.decode_tokens(frame, last, token, 1, row), Status::OK);
    const size_t at = (size_t{last} * info->shape.tokens + token) * row.size();
    EXPECT_TRUE(std::equal(row.begin(), row.end(), raw.begin() + static_cast<ptrdiff_t>(at)));
  }
  EXPECT_GE(count, 12u);
}

// ---- damage ----

constexpr size_t kTile = sizeof(bh_frame_header);  // in frames of one tile
constexpr size_t kBase = kTile + 1, kWidths = kTile + 2, kCentre = kTile + 3, kCodecs = kTile + 4;

template <class T>
void put(Buffer& frame, size_t at, T value) {
  ASSERT_LE(at + sizeof value, frame.size());
  std::memcpy(frame.data() + at, &value, sizeof value);
}

/// Sets the codec of a stream of the only tile.
void put_codec(Buffer& frame, uint32_t stream, uint32_t codec) {
  uint8_t& pair = frame[kCodecs + stream / 2];
  pair = static_cast<uint8_t>(stream % 2 == 0 ? (pair & 0xF0) | codec : (pair & 0x0F) | codec << 4);
}

/// In bf16 frames: the offset of the sizes of the streams.
constexpr size_t kSizesOfBf16 = kCodecs + 6;

/// A header of this shape, and a few zeros, which are a tile of any layout under test.
Buffer tiny(const Shape& shape, uint32_t tile_tokens, const Buffer& tile) {
  const bh_frame_header header{.magic = BH_FRAME_MAGIC,
                               .version = BH_FRAME_VERSION,
                               .number = static_cast<uint8_t>(shape.number),
                               .channels = static_cast<uint16_t>(shape.channels),
                               .outer = shape.outer,
                               .tokens = shape.tokens,
                               .tile_tokens = static_cast<uint16_t>(tile_tokens)};
  Buffer frame(sizeof header + tile.size());
  std::memcpy(frame.data(), &header, sizeof header);
  std::copy(tile.begin(), tile.end(), frame.begin() + sizeof header);
  return frame;
}

/// A tile of integers of any shape whose streams are all zero.
Buffer zero_integers() {
  Buffer tile = {BH_TILE_PLANES, 0, 0, 0, 0x11, 0x11, 0x11, 0x11, 0x11, 0, 0};
  tile.resize(tile.size() + 16);
  return tile;
}

struct Case {
  const char* name;
  const char* golden;
  std::function<void(Buffer&)> damage;
  Status status = Status::DAMAGED;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kHeaders = {
    {"OtherMagic", "bf16_values", [](Buffer& f) { f[3] = '2'; }},
    {"OtherVersion", "bf16_values", [](Buffer& f) { f[4] = 3; }, Status::UNSUPPORTED_CODEC},
    {"RotationWithoutRotaryDim", "bf16_values", [](Buffer& f) { f[4] = 2; }},
    {"RotationOfVersion1", "rotation_fp16_slow",
     [](Buffer& f) { put<uint32_t>(f, 32, kTurnOfOneRadian); }},
    {"RotationOfNoHead", "rotation_bf16_part", [](Buffer& f) { put<uint16_t>(f, 28, 0); }},
    {"RotationOfHeadsThatDoNotFit", "rotation_bf16_part",
     [](Buffer& f) { put<uint16_t>(f, 28, 12); }},
    {"RotationBehindTheHead", "rotation_bf16_part", [](Buffer& f) { put<uint16_t>(f, 30, 10); }},
    {"RotationWithoutStep", "rotation_bf16_part", [](Buffer& f) { put<uint32_t>(f, 32, 0); }},
    {"RotationOfNoPairs", "rotation_bf16_part", [](Buffer& f) { f[36] = 0; }},
    {"RotationOfUnknownPairs", "rotation_bf16_part", [](Buffer& f) { f[36] = 3; },
     Status::UNSUPPORTED_CODEC},
    {"RotationWithReservedBytes", "rotation_bf16_part", [](Buffer& f) { f[39] = 1; }},
    {"RotationCutOff", "rotation_bf16_part", [](Buffer& f) { f.resize(36); }},
    {"KindZero", "bf16_values", [](Buffer& f) { f[5] = 0; }, Status::UNSUPPORTED_CODEC},
    {"UnknownKind", "bf16_values", [](Buffer& f) { f[5] = 7; }, Status::UNSUPPORTED_CODEC},
    {"OtherKindOfTheSameSize", "fp8_e4m3_keys", [](Buffer& f) { f[5] = BH_NUMBER_INT8; },
     Status::UNSUPPORTED_CODEC},  // bytes that were sizes are now codecs
    {"NoChannels", "bf16_values", [](Buffer& f) { put<uint16_t>(f, 6, 0); }},
    {"NoOuter", "bf16_values", [](Buffer& f) { put<uint32_t>(f, 8, 0); }},
    {"NoTokens", "bf16_values", [](Buffer& f) { put<uint32_t>(f, 12, 0); }},
    {"NoTileTokens", "bf16_values", [](Buffer& f) { put<uint16_t>(f, 16, 0); }},
    {"MoreTokens", "bf16_values", [](Buffer& f) { put<uint32_t>(f, 12, 21); }},
    {"MoreChannels", "bf16_values", [](Buffer& f) { put<uint16_t>(f, 6, 73); }},
    {"MoreOuter", "bf16_values", [](Buffer& f) { put<uint32_t>(f, 8, 2); }},
    {"OddRotaryDim", "bf16_keys", [](Buffer& f) { put<uint16_t>(f, 18, 1); }},
    {"RotaryDimOfNoHead", "bf16_keys", [](Buffer& f) { put<uint16_t>(f, 18, 6); }},
    {"NoRotaryDimButARatio", "bf16_keys", [](Buffer& f) { put<uint16_t>(f, 18, 0); }},
    {"NoRotaryRatio", "bf16_keys", [](Buffer& f) { put<uint32_t>(f, 20, 0); }},
    {"BytesWithChannels", "bytes_text", [](Buffer& f) { put<uint16_t>(f, 6, 2); }},
    {"MostTokens", "bf16_values",
     [](Buffer& f) {
       f = tiny({NumberFormat::BYTES, 1, UINT32_MAX, 1}, 65'535, zero_integers());
     }},
    {"MostOfAll", "bf16_values",
     [](Buffer& f) {
       f = tiny({NumberFormat::BF16, UINT32_MAX, UINT32_MAX, 65'535}, 65'535, zero_integers());
     }},
    {"ProductsThatWrap", "bf16_values",
     [](Buffer& f) {
       f = tiny({NumberFormat::INT8, 1u << 16, 1u << 16, 1}, 65'535, zero_integers());
     }},
    {"TileOfTwoGigabytes", "bf16_values",
     [](Buffer& f) {
       f = tiny({NumberFormat::INT8, 1, 32'767, 65'535}, 32'767, zero_integers());
     }},
    {"TableWithoutEnd", "bf16_values",
     [](Buffer& f) {
       f = tiny({NumberFormat::INT8, 1, 1u << 30, 1}, 1, zero_integers());
     }},
};

const std::vector<Case> kTables = {
    {"TileTooShort", "bytes_tiles", [](Buffer& f) { put<uint32_t>(f, kTile, 1); }},
    {"TileTooLong", "bytes_tiles", [](Buffer& f) { put<uint32_t>(f, kTile, 1 << 20); }},
    {"TileOfMostBytes", "bytes_tiles", [](Buffer& f) { put<uint32_t>(f, kTile, UINT32_MAX); }},
    {"TileWithoutBytes", "bytes_tiles", [](Buffer& f) { put<uint32_t>(f, kTile, 0); }},
    {"LastTileTooShort", "bytes_tiles", [](Buffer& f) { f.push_back(0); }},
    {"SizesExchanged", "bytes_tiles",
     [](Buffer& f) {
       std::swap_ranges(f.begin() + kTile, f.begin() + kTile + 4, f.begin() + kTile + 4);
     }},
};

const std::vector<Case> kTiles = {
    {"UnknownLayout", "bf16_values", [](Buffer& f) { f[kTile] = 4; }, Status::UNSUPPORTED_CODEC},
    {"PlanesOfBytes", "bytes_text", [](Buffer& f) { f[kTile] = BH_TILE_PLANES; },
     Status::UNSUPPORTED_CODEC},
    {"UnknownCodecOfATile", "bytes_text", [](Buffer& f) { f[kTile + 1] = 5; },
     Status::UNSUPPORTED_CODEC},
    {"OtherCodecOfATile", "bytes_text", [](Buffer& f) { f[kTile + 1] = BH_STREAM_LZ4; }},
    {"StoredTooShort", "bf16_random", [](Buffer& f) { f.pop_back(); }},
    {"StoredTooLong", "bf16_random", [](Buffer& f) { f.push_back(0); }},
    {"UnknownCodec", "bf16_values", [](Buffer& f) { put_codec(f, 1, 15); },
     Status::UNSUPPORTED_CODEC},
    {"SecondZstdFrame", "bytes_text",
     [](Buffer& f) {
       const uint8_t skippable[] = {0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0};
       f.insert(f.end(), std::begin(skippable), std::end(skippable));
     }},
    {"StoredThatWasNibbles", "bf16_values", [](Buffer& f) { put_codec(f, 1, BH_STREAM_STORED); }},
    {"NibblesThatWereStored", "bf16_values", [](Buffer& f) { put_codec(f, 0, 4); }},
    {"ZeroThatWasStored", "bf16_values", [](Buffer& f) { put_codec(f, 0, BH_STREAM_ZERO); }},
    {"Lz4ThatWasNibbles", "bf16_values", [](Buffer& f) { put_codec(f, 1, BH_STREAM_LZ4); }},
    {"ZstdThatWasLz4", "bf16_repeated", [](Buffer& f) { put_codec(f, 0, BH_STREAM_ZSTD); }},
    {"ExponentOfNoNumber", "bf16_values", [](Buffer& f) { f[kBase] = 255; }},
    {"ExponentTooWide", "bf16_values",
     [](Buffer& f) { f[kWidths] = static_cast<uint8_t>((f[kWidths] & 0xF0) | 9); }},
    {"ExponentOfAnInteger", "int8_sparse", [](Buffer& f) { f[kBase] = 1; }},
    {"CentreShiftTooLarge", "bf16_values", [](Buffer& f) { f[kCentre] = 16; }},
    {"CentreTurnsWithoutRotary", "bf16_values", [](Buffer& f) { f[kCentre] |= 0x80; }},
    {"CentreWider", "bf16_values",
     [](Buffer& f) { f[kWidths] = static_cast<uint8_t>(f[kWidths] + 0x10); }},
    {"StreamTooShort", "bf16_repeated", [](Buffer& f) { --f[kSizesOfBf16]; }},
    {"StreamTooLong", "bf16_repeated", [](Buffer& f) { ++f[kSizesOfBf16]; }},
    {"StreamsBehindTheEnd", "bf16_repeated", [](Buffer& f) { f[kSizesOfBf16 + 2] = 0x7F; }},
    {"SizeWithoutEnd", "bf16_repeated",
     [](Buffer& f) { std::fill_n(f.begin() + kSizesOfBf16, 7, uint8_t{0xFF}); }},
    {"SizeOfMostBytes", "bf16_repeated",
     [](Buffer& f) {
       const uint8_t most[] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F};
       f.insert(f.begin() + kSizesOfBf16, std::begin(most), std::end(most) - 1);
     }},
    {"OneExceptionMore", "bf16_keys",
     [](Buffer& f) {
       size_t at = kSizesOfBf16;
       for (int size = 0; size < 3; ++size) {  // two streams of nibbles, the remainder
         while (f[at] >= 0x80) ++at;
         ++at;
       }
       ASSERT_EQ(f[at], 13);
       ++f[at];  // the map of nibbles has space for one more, which is zero
     }},
    {"BytesBehindTheStreams", "bf16_values", [](Buffer& f) { f.push_back(0); }},
    {"ByteMissing", "bf16_values", [](Buffer& f) { f.pop_back(); }},
    {"MapOfNibblesWithTwoMore", "int8_sparse",
     [](Buffer& f) {
       // Only a byte of the map can be zero.
       const auto at = std::find(f.rbegin(), f.rend(), 0);
       ASSERT_LT(at - f.rbegin(), 120);
       *at = 3;
     }},
};

/// Bytes of the values, according to the header.
uint64_t claimed_bytes(const Buffer& frame) {
  bh_frame_header header;
  std::memcpy(&header, frame.data(), sizeof header);
  return uint64_t{header.outer} * header.tokens * header.channels *
         element_bytes(static_cast<NumberFormat>(header.number));
}

class DamagedFrames : public ::testing::TestWithParam<Case> {};

/// Faults with correct checksums.
TEST_P(DamagedFrames, AreRefused) {
  Buffer frame = golden(GetParam().golden);
  const uint64_t honest_bytes = frame_info(frame)->shape.size_bytes();
  GetParam().damage(frame);
  reseal(frame);
  frame.shrink_to_fit();
  largest_allocation = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto info = frame_info(frame);
  Buffer out(std::min(claimed_bytes(frame), honest_bytes * 2));
  EXPECT_EQ(Decoder().decode(frame, out), GetParam().status);
  if (!info) {
    Buffer row(2);
    std::vector<float> units(1);
    EXPECT_NE(Decoder().decode_prefix(frame, 1, out), Status::OK);
    EXPECT_NE(Decoder().decode_tokens(frame, 0, 0, 1, row), Status::OK);
  }
  EXPECT_LE(largest_allocation, honest_bytes * 8 + (1 << 16));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Headers, DamagedFrames, ::testing::ValuesIn(kHeaders), name_of_case);
INSTANTIATE_TEST_SUITE_P(Tables, DamagedFrames, ::testing::ValuesIn(kTables), name_of_case);
INSTANTIATE_TEST_SUITE_P(Tiles, DamagedFrames, ::testing::ValuesIn(kTiles), name_of_case);

TEST(Reseal, ChangesWrongChecksumsOnly) {
  for (const char* name : {"bf16_keys", "bf16_random", "bytes_tiles", "fp8_e5m2_values"}) {
    const Buffer frame = golden(name);
    Buffer resealed = frame;
    reseal(resealed);
    EXPECT_TRUE(resealed == frame) << name;
    auto wrong = frame;
    wrong[sizeof(bh_frame_header) - 1] ^= 1;
    reseal(wrong);
    EXPECT_TRUE(wrong == frame) << name;
  }
}

}  // namespace
}  // namespace bowhead::compression
