// SPDX-License-Identifier: Apache-2.0
// Tiles rebuilt by the warp's code, compared with the decoder of frames.
#include "gpu/kernels/rebuild_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "compression/stream.h"
#include "compression/tiles.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/jobs/frame_tiles.h"
#include "gpu/kernels/check.h"
#include "tests/support/tensors.h"

namespace bowhead::gpu {
namespace {

using compression::Content;
using compression::Decoder;
using compression::Encoder;
using compression::Profile;
using compression::Shape;
using compression::TileParts;

using Buffer = std::vector<uint8_t>;

constexpr uint8_t kUntouched = 0xA5;

/// The input of RebuildTiles for a frame with decoded streams; each array has exactly the stated
/// size.
class Rebuild {
 public:
  Rebuild(const Shape& shape, uint32_t planes)
      : shape_(shape), work_(rebuild_tiles_of(shape, planes)) {}

  void add(const Buffer& frame) {
    compression::TileReader tiles;
    ASSERT_EQ(tiles.open(frame, work_.exact ? 0 : work_.plane_count), Status::OK);
    while (!tiles.at_end()) {
      TileParts parts;
      ASSERT_EQ(tiles.next(parts), Status::OK);
      if (parts.in_planes) add(frame, parts);
    }
  }
  /// Its values begin at that offset.
  void add(const RebuildTile& tile, size_t offset) {
    tiles_.push_back(tile);
    offsets_.push_back(offset);
  }

  uint32_t append(const uint8_t* data, size_t size) {
    const auto at = static_cast<uint32_t>(bytes_.size());
    bytes_.insert(bytes_.end(), data, data + size);
    return at;
  }

  RebuildTiles& work() { return work_; }
  std::vector<RebuildTile>& tiles() { return tiles_; }

  /// `shift`: offset of the values from an address that is a multiple of 16.
  Buffer run(size_t shift = 0) {
    bytes_.resize((bytes_.size() + 3) / 4 * 4 + RebuildTiles::kSlackBytes);
    Buffer values(shape_.size_bytes() + shift, kUntouched);
    for (size_t i = 0; i < tiles_.size(); ++i)
      tiles_[i].values = values.data() + shift + offsets_[i];
    std::unique_ptr<uint8_t[]> bytes(new uint8_t[bytes_.size()]);
    std::memcpy(bytes.get(), bytes_.data(), bytes_.size());
    const auto slots = static_cast<uint32_t>(tiles_.size());
    Buffer scratch(rebuild_scratch_bytes(shape_.channels, slots), kUntouched);
    faults_.assign(tiles_.size(), 9);
    const auto turns = compression::turns_of(shape_.rotary);
    work_.turns = turns.data();
    work_.bytes = bytes.get();
    work_.size_bytes = bytes_.size() - RebuildTiles::kSlackBytes;
    work_.scratch = scratch.data();
    work_.tiles = tiles_.data();
    work_.tile_count = slots;
    work_.faults = faults_.data();
    const Result<void> good = check(work_);
    EXPECT_TRUE(good) << good.error().message();
    if (good) run_on_cpu(work_);
    return values;
  }
  const std::vector<uint32_t>& faults() const { return faults_; }

 private:
  void add(const Buffer& frame, const TileParts& parts) {
    const auto place = [&](uint64_t offset, uint64_t bytes) {
      return append(frame.data() + offset, bytes);
    };
    const auto place_stream = [&](uint32_t stream, bool is_plane) -> std::optional<uint32_t> {
      Buffer plain(parts.streams[stream].plain_bytes);
      EXPECT_TRUE(coder_.decode(parts.streams[stream].codec, parts.stream(frame, stream), plain));
      const bool is_zero =
          std::count(plain.begin(), plain.end(), 0) == static_cast<ptrdiff_t>(plain.size());
      return is_plane && is_zero ? RebuildTile::kAllZero : append(plain.data(), plain.size());
    };
    const RebuildTile tile = *rebuild_tile_of(shape_, parts, place, place_stream);
    add(tile, parts.values_offset);
  }

  compression::StreamCoder coder_;
  Shape shape_;
  Buffer bytes_;
  std::vector<RebuildTile> tiles_;
  std::vector<size_t> offsets_;
  std::vector<uint32_t> faults_;
  RebuildTiles work_;
};

Buffer frame_of(const Shape& shape, const Buffer& values, Profile profile = Profile::FAST) {
  Encoder encoder(profile);
  Buffer frame(compression::frame_bound(shape));
  const auto size = encoder.encode(shape, values, frame);
  EXPECT_TRUE(size);
  if (size) frame.resize(*size);
  return frame;
}

/// Values of tiles in planes, by the decoder; other tiles unchanged.
Buffer decoded(const Buffer& frame, uint32_t planes) {
  Decoder decoder;
  const auto info = compression::frame_info(frame);
  EXPECT_TRUE(info);
  Buffer values(info->shape.size_bytes());
  EXPECT_EQ(
      planes == 0 ? decoder.decode(frame, values) : decoder.decode_prefix(frame, planes, values),
      Status::OK);
  compression::TileReader tiles;
  EXPECT_EQ(tiles.open(frame, planes), Status::OK);
  while (!tiles.at_end()) {
    TileParts parts;
    EXPECT_EQ(tiles.next(parts), Status::OK);
    if (parts.in_planes) continue;
    std::fill_n(values.begin() + static_cast<ptrdiff_t>(parts.values_offset), parts.values_bytes,
                kUntouched);
  }
  return values;
}

void expect_same(const Buffer& got, const Buffer& wanted, const Shape& shape, size_t shift = 0) {
  const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), got.begin() + shift);
  if (a == wanted.end()) return;
  const auto value = static_cast<size_t>(a - wanted.begin()) / element_bytes(shape.number);
  ADD_FAILURE() << "value of token " << value / shape.channels << " channel "
                << value % shape.channels << " has a byte " << int{*b} << " for " << int{*a};
}

/// Cases that a run of tests must have covered.
struct Met {
  uint64_t tiles = 0, centres = 0, turning = 0, exceptions = 0, zero_planes = 0;

  void add(const RebuildTile& tile) {
    ++tiles;
    centres += tile.centre_width != 0;
    turning += tile.centre_turns;
    exceptions += tile.exception_bytes;
    zero_planes += tile.planes[0] == RebuildTile::kAllZero;
  }
};

void check_frame(const Shape& shape, const Buffer& values, Met& met) {
  const Buffer frame = frame_of(shape, values);
  const uint32_t planes = compression::number_of(shape.number)->planes();
  for (uint32_t count = 0; count <= planes; ++count) {
    SCOPED_TRACE(testing::Message() << count << " planes");
    Rebuild rebuild(shape, count);
    rebuild.add(frame);
    // The last plane misaligns one channel's rows, or all of them.
    const size_t shift = count == planes ? element_bytes(shape.number) : 0;
    expect_same(rebuild.run(shift), decoded(frame, count), shape, shift);
    const std::vector<uint32_t>& faults = rebuild.faults();
    EXPECT_EQ(std::count(faults.begin(), faults.end(), 0), faults.size());
    for (const RebuildTile& tile : rebuild.tiles()) met.add(tile);
  }
}

struct Size {
  uint32_t outer, tokens, channels, dim;
};

class RebuildTilesOf : public testing::TestWithParam<NumberFormat> {};

TEST_P(RebuildTilesOf, MatchTheDecoder) {
  constexpr Size kSizes[] = {
      {2, 40, 128, 128}, {1, 300, 64, 64}, {1, 16, 1024, 128}, {2, 21, 80, 80},   {1, 33, 72, 24},
      {1, 130, 1, 0},    {1, 65, 7, 0},    {3, 17, 13, 0},     {1, 9, 1000, 250}, {1, 5, 2048, 256},
      {1, 4, 3000, 0},   {1, 6, 1032, 0},  {1, 600, 128, 64},  {1, 1, 6, 6},      {1, 50, 36, 2}};
  Met met;
  for (const Size& size : kSizes) {
    for (const Content content : compression::kContents) {
      Shape shape{GetParam(), size.outer, size.tokens, size.channels, {}};
      if (size.dim != 0) shape.rotary = compression::rotary_of(10000, size.dim);
      SCOPED_TRACE(compression::describe(shape, content));
      check_frame(shape, compression::make_tensor(shape, content, size.tokens), met);
      if (HasFailure()) return;
    }
    // Few tokens with one sign: their first plane is zero.
    Shape shape{GetParam(), 200, 2, size.channels, {}};
    auto values = compression::make_tensor(shape, Content::NORMAL, size.tokens);
    const size_t bytes = element_bytes(GetParam());
    for (size_t i = bytes - 1; i < values.size(); i += bytes) values[i] &= 0x7F;
    check_frame(shape, values, met);
    if (HasFailure()) return;
  }
  EXPECT_GT(met.tiles, 500u);
  EXPECT_GT(met.zero_planes, 10u);
  if (GetParam() == NumberFormat::INT8) return;
  EXPECT_GT(met.centres, 100u);
  EXPECT_GT(met.turning, 50u);
  EXPECT_GT(met.exceptions, 1000u);
}

/// Random planes around centres that no encoder would choose: they can exceed 16 bits, and partners
/// can have far larger exponents.
void check_any_centre(NumberFormat kind, uint64_t seed) {
  Random random(seed);
  const compression::Number& number = *compression::number_of(kind);
  const bool is_wild = seed % 2 != 0, turns = seed % 3 != 0;
  const uint32_t dim = 2 + 2 * static_cast<uint32_t>(random.below(40));
  Shape shape{kind, 1, 1 + static_cast<uint32_t>(random.below(90)), 3 * dim,
              compression::rotary_of(10000, dim)};
  const uint32_t planes = 1 + static_cast<uint32_t>(random.below(number.planes()));

  RebuildTile tile;
  tile.tokens = shape.tokens;
  tile.exponent_base = number.is_float();
  tile.exponent_width = static_cast<uint8_t>(std::max(number.exponent_bits, uint8_t{1}) - 1);
  tile.centre_width = is_wild ? 4 : 9;
  tile.centre_shift = static_cast<uint8_t>(is_wild ? 0 : 7);
  tile.centre_turns = turns;
  std::vector<uint16_t> exponents(shape.channels + 64);
  std::vector<int16_t> amplitudes(shape.channels);
  const uint64_t most = 1u << tile.exponent_width;
  for (uint32_t c = 0; c < shape.channels; ++c) {
    exponents[c] =
        static_cast<uint16_t>(tile.exponent_base + (is_wild ? random.below(most) : most / 2));
    amplitudes[c] = static_cast<int16_t>(random.below(1u << tile.centre_width));
    amplitudes[c] = static_cast<int16_t>(amplitudes[c] - (1 << (tile.centre_width - 1)));
  }
  Rebuild rebuild(shape, planes);
  Buffer parameters(shape.channels * 3);
  compression::ByteWriter to(parameters.data());
  std::vector<uint16_t> above(exponents.begin(), exponents.end() - 64);
  for (uint16_t& exponent : above) exponent = static_cast<uint16_t>(exponent - tile.exponent_base);
  to.packed(above, tile.exponent_width);
  to.packed(amplitudes, tile.centre_width);
  tile.parameters = rebuild.append(parameters.data(), to.size());

  compression::Merge merge{.plane_count = planes, .exact = false};
  std::vector<Buffer> bits(planes, Buffer(compression::plane_bytes(shape.channels, shape.tokens)));
  for (uint32_t p = 0; p < planes; ++p) {
    for (uint8_t& byte : bits[p]) byte = static_cast<uint8_t>(random.next());
    merge.planes[p] = bits[p].data();
    tile.planes[p] = rebuild.append(bits[p].data(), bits[p].size());
  }
  compression::CentreMaker centres;
  const compression::TileFrame frame{
      number, shape.tokens, shape.channels, exponents.data(),
      centres.make(number, {exponents.data(), shape.channels}, amplitudes, tile.centre_shift,
                   turns ? shape.rotary : compression::Rotary{})};
  Buffer wanted(shape.size_bytes());
  compression::kPlaneKernelsScalar.merge(frame, merge, wanted.data());
  rebuild.add(tile, 0);
  expect_same(rebuild.run(), wanted, shape);
}

TEST_P(RebuildTilesOf, TakesAnyCentre) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    check_any_centre(GetParam(), seed);
    if (HasFailure()) return;
  }
}

TEST(RebuildTiles, SayWhichLengthsAreWrong) {
  const Shape shape{NumberFormat::BF16, 4, 40, 64, {}};
  Rebuild rebuild(shape, 0);
  rebuild.add(frame_of(shape, compression::make_tensor(shape, Content::NORMAL, 1)));
  std::vector<RebuildTile>& tiles = rebuild.tiles();
  ASSERT_EQ(tiles.size(), 4u);
  ASSERT_GT(tiles[2].exception_bytes, 0u);
  --tiles[0].remainder_bytes;
  ++tiles[1].remainder_bytes;
  --tiles[2].exception_bytes;
  rebuild.run();
  EXPECT_EQ(rebuild.faults(), (std::vector<uint32_t>{1, 1, 1, 0}));
}

/// Under AddressSanitizer this detects reads past the end.
TEST(RebuildTiles, ReadNothingBehindStreamsThatAreTooShort) {
  const Shape shape{NumberFormat::BF16, 1, 64, 64, {}};
  Rebuild rebuild(shape, 0);
  Random random(1);
  RebuildTile tile;
  tile.tokens = shape.tokens;
  Buffer bits(compression::plane_bytes(shape.channels, shape.tokens));
  for (uint32_t& plane : tile.planes) {
    for (uint8_t& byte : bits) byte = static_cast<uint8_t>(random.next() & random.next());
    plane = rebuild.append(bits.data(), bits.size());
  }
  tile.remainder = tile.exceptions = rebuild.append(bits.data(), 4);
  tile.remainder_bytes = tile.exception_bytes = 4;
  rebuild.add(tile, 0);
  rebuild.run();
  EXPECT_EQ(rebuild.faults(), std::vector<uint32_t>{1});
}

/// Valid, except for the change by `change`.
void expect_wrong(const std::string& sentence,
                  const std::function<void(RebuildTiles&, RebuildTile&)>& change) {
  alignas(16) static uint8_t bytes[64];
  uint32_t fault = 0;
  RebuildTile tile;
  tile.tokens = 4;
  tile.values = bytes;
  RebuildTiles work;
  work.channels = 8;
  work.plane_count = 9;
  work.exact = true;
  work.bytes = work.scratch = bytes;
  work.size_bytes = 16;
  work.tiles = &tile;
  work.tile_count = 1;
  work.faults = &fault;
  EXPECT_TRUE(check(work));
  change(work, tile);
  const Result<void> result = check(work);
  ASSERT_FALSE(result) << sentence;
  EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(result.error().message(), sentence);
}

TEST(RebuildTiles, AreCheckedBeforeTheyAreRebuilt) {
  expect_wrong("number is bytes", [](auto& work, auto&) { work.number = NumberFormat::BYTES; });
  expect_wrong("channels is 0: 1 to 65535", [](auto& work, auto&) { work.channels = 0; });
  expect_wrong("plane_count is 10: 1 to 9", [](auto& work, auto&) { work.plane_count = 10; });
  expect_wrong("plane_count is 8, but exact values have all 9",
               [](auto& work, auto&) { work.plane_count = 8; });
  expect_wrong("turning_channels is 6: even, and channels, 8, a multiple of it",
               [](auto& work, auto&) { work.turning_channels = 6; });
  expect_wrong("turns is null", [](auto& work, auto&) { work.turning_channels = 8; });
  expect_wrong("turning_channels is 1400 of 1400 channels: no step has whole heads",
               [](auto& work, auto&) { work.channels = work.turning_channels = 1400; });
  expect_wrong("bytes is null", [](auto& work, auto&) { work.bytes = nullptr; });
  expect_wrong("scratch is null", [](auto& work, auto&) { work.scratch = nullptr; });
  expect_wrong("faults is null", [](auto& work, auto&) { work.faults = nullptr; });
  expect_wrong("size_bytes is 15: a multiple of 4 below 4 GiB",
               [](auto& work, auto&) { work.size_bytes = 15; });
  expect_wrong("tile 0 has 0 tokens of 8 channels: at most 1 MiB",
               [](auto&, auto& tile) { tile.tokens = 0; });
  expect_wrong("values of tile 0 is null", [](auto&, auto& tile) { tile.values = nullptr; });
  expect_wrong("tile 0 has exponents of 9 bits, a centre of 0, shifted by 0",
               [](auto&, auto& tile) { tile.exponent_width = 9; });
  expect_wrong("tile 0 has a centre that turns, but no channels do, or it has no bits",
               [](auto&, auto& tile) { tile.centre_turns = true; });
  expect_wrong("parameters of tile 0 are 8 bytes at 9 of 16", [](auto&, auto& tile) {
    tile.exponent_width = 8;
    tile.parameters = 9;
  });
  expect_wrong("plane 3 of tile 0 is 4 bytes at 13 of 16",
               [](auto&, auto& tile) { tile.planes[3] = 13; });
  expect_wrong("remainder of tile 0 is 5 bytes at 12 of 16", [](auto&, auto& tile) {
    tile.remainder = 12;
    tile.remainder_bytes = 5;
  });
  expect_wrong("exceptions of tile 0 are 1 bytes at 16 of 16", [](auto&, auto& tile) {
    tile.exceptions = 16;
    tile.exception_bytes = 1;
  });
}

INSTANTIATE_TEST_SUITE_P(Number, RebuildTilesOf,
                         testing::Values(NumberFormat::BF16, NumberFormat::FP16,
                                         NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2,
                                         NumberFormat::INT8),
                         compression::name_of_param);

}  // namespace
}  // namespace bowhead::gpu
