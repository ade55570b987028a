// SPDX-License-Identifier: Apache-2.0
// Frames are lossless; a prefix of the planes is as precise as promised; a frame that no encoder
// wrote is refused.
#include "compression/frame.h"

#include <bowhead/format/frame.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "base/random.h"
#include "compression/thread_team.h"
#include "tests/support/tensors.h"

namespace bowhead::compression {
namespace {

constexpr Profile kProfiles[] = {Profile::FAST, Profile::BALANCED, Profile::DENSE};
constexpr NumberFormat kFloats[] = {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                    NumberFormat::FP8_E5M2};

std::vector<uint8_t> encode(const Shape& shape, const std::vector<uint8_t>& values,
                            Profile profile) {
  std::vector<uint8_t> frame(frame_bound(shape));
  Encoder encoder(profile);
  const auto size = encoder.encode(shape, values, frame);
  EXPECT_TRUE(size) << (size ? "" : size.error().message());
  frame.resize(size ? *size : 0);
  frame.shrink_to_fit();
  return frame;
}

std::vector<uint8_t> decode(const Shape& shape, const std::vector<uint8_t>& frame) {
  std::vector<uint8_t> values(shape.size_bytes());
  EXPECT_EQ(Decoder().decode(frame, values), Status::OK);
  return values;
}

std::vector<Shape> shapes(NumberFormat kind) {
  if (kind == NumberFormat::BYTES)
    return {{kind, 1, 1, 1}, {kind, 1, 100, 1}, {kind, 3, 70'000, 1}, {kind, 1, 200'001, 1}};
  const Rotary r8 = rotary_of(1e4, 8), r64 = rotary_of(1e4, 64), r128 = rotary_of(5e5, 128);
  Rotary interleaved = r64, part = r8;
  interleaved.interleaved = part.interleaved = true;
  part.head = 36;
  part.first = 20;
  return {{kind, 1, 300, 128, interleaved},
          {kind, 3, 40, 72, part},
          {kind, 1, 1, 1},
          {kind, 1, 7, 3},
          {kind, 2, 33, 8, r8},
          {kind, 1, 512, 64, r64},
          {kind, 1, 512, 64},
          {kind, 1, 256, 128, r128},
          {kind, 1, 40, 80},
          {kind, 3, 300, 72},
          {kind, 1, 17, 1024, r128},
          {kind, 2, 1100, 64, r64},
          {kind, 1, 130, 192, r64},
          {kind, 1, 9, 65},
          {kind, 1, 3, 65'535},
          {kind, 1, 70'000, 1}};
}

class Frames : public ::testing::TestWithParam<NumberFormat> {};

TEST_P(Frames, ComeBackBitForBit) {
  for (const Shape& shape : shapes(GetParam())) {
    for (const Content content : kContents) {
      for (const Profile profile : kProfiles) {
        const auto values = make_tensor(shape, content, 1);
        const auto frame = encode(shape, values, profile);
        EXPECT_LE(frame.size(), frame_bound(shape));
        ASSERT_EQ(decode(shape, frame), values) << describe(shape, content);
      }
    }
  }
}

/// A rotation that is declared saves, whatever it is.
TEST(Rotations, SaveWhereTheyAreDeclared) {
  Rotary rotations[] = {rotary_of(1e4, 64), rotary_of(1e4, 64), rotary_of(1e4, 32),
                        rotary_of(1e4, 64)};
  rotations[1].interleaved = true;
  rotations[2].head = 64;
  rotations[2].first = 16;
  rotations[3].step = kTurnOfOneRadian / 4;
  for (const Rotary& rotary : rotations) {
    const Shape shape{NumberFormat::BF16, 1, 512, 64, rotary};
    Shape none = shape;
    none.rotary = {};
    const auto values = make_tensor(shape, Content::ROTATED, 3);
    EXPECT_LT(encode(shape, values, Profile::FAST).size(),
              encode(none, values, Profile::FAST).size() * 98 / 100)
        << rotary.dim << " " << rotary.interleaved << " " << rotary.step;
  }
}

/// All that a layout can say can be compressed.
TEST(Rotations, OfTwoChannelsAndAnyBase) {
  KvLayout layout = keys_layout(NumberFormat::BF16, 128);
  layout.rotary = BH_ROTARY_HALVES;
  layout.rotary_channels = 2;
  for (const uint64_t base : {10'000ull, 1'000'000'000'000ull}) {
    layout.rotary_base_thousandths = base * 1000;
    ASSERT_TRUE(check_layout(layout));
    const Shape shape = shape_of(layout, payload_bytes(layout, 200)).value();
    const auto values = make_tensor(shape, Content::NORMAL, 1);
    EXPECT_EQ(decode(shape, encode(shape, values, Profile::FAST)), values);
  }
}

TEST_P(Frames, DescribeTheirContent) {
  for (const Shape& shape : shapes(GetParam())) {
    const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 2), Profile::FAST);
    const auto info = frame_info(frame);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->shape.number, shape.number);
    EXPECT_EQ(info->shape.outer, shape.outer);
    EXPECT_EQ(info->shape.tokens, shape.tokens);
    EXPECT_EQ(info->shape.channels, shape.channels);
    EXPECT_EQ(info->shape.rotary, shape.rotary);
    EXPECT_EQ(info->size_bytes, frame.size());
  }
}

TEST_P(Frames, GiveAnyTokens) {
  Random random(3);
  for (const Shape& shape : shapes(GetParam())) {
    const auto values = make_tensor(shape, Content::NORMAL, 3);
    const auto frame = encode(shape, values, Profile::DENSE);
    Decoder decoder;
    for (int i = 0; i < 20; ++i) {
      const auto outer = static_cast<uint32_t>(random.below(shape.outer));
      const auto first = static_cast<uint32_t>(random.below(shape.tokens));
      const auto count = static_cast<uint32_t>(1 + random.below(shape.tokens - first));
      std::vector<uint8_t> part(count * shape.row_bytes());
      ASSERT_EQ(decoder.decode_tokens(frame, outer, first, count, part), Status::OK);
      const auto begin =
          values.begin() +
          static_cast<ptrdiff_t>((uint64_t{outer} * shape.tokens + first) * shape.row_bytes());
      ASSERT_TRUE(std::equal(part.begin(), part.end(), begin)) << describe(shape, Content::NORMAL);
    }
    std::vector<uint8_t> row(shape.row_bytes());
    EXPECT_EQ(decoder.decode_tokens(frame, shape.outer, 0, 1, row), Status::INVALID_ARGUMENT);
    EXPECT_EQ(decoder.decode_tokens(frame, 0, shape.tokens, 1, row), Status::INVALID_ARGUMENT);
    EXPECT_EQ(decoder.decode_tokens(frame, 0, 0, 0, {}), Status::INVALID_ARGUMENT);
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, Frames,
                         ::testing::Values(NumberFormat::BF16, NumberFormat::FP16,
                                           NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2,
                                           NumberFormat::INT8, NumberFormat::BYTES),
                         name_of_param);

TEST(Frame, HoldsEveryBitPattern) {
  for (const NumberFormat kind : kFloats) {
    const uint32_t patterns = element_bytes(kind) == 2 ? 65'536 : 256;
    const Shape shape{kind, 1, patterns / 64, 64};
    std::vector<uint8_t> values(shape.size_bytes());
    for (uint32_t order = 0; order < 3; ++order) {
      for (uint32_t i = 0; i < patterns; ++i) {
        const uint32_t bits = order == 0 ? i : order == 1 ? i * 40'503u : i / 64 + i % 64 * 1024;
        values[i * element_bytes(kind)] = static_cast<uint8_t>(bits);
        if (element_bytes(kind) == 2) values[i * 2 + 1] = static_cast<uint8_t>(bits >> 8);
      }
      for (const Profile profile : kProfiles)
        ASSERT_EQ(decode(shape, encode(shape, values, profile)), values);
    }
  }
}

void expect_within_bound(const Shape& shape, const std::vector<uint8_t>& frame,
                         const std::vector<uint8_t>& values, const std::vector<uint8_t>& out,
                         uint32_t planes) {
  const Number& number = *number_of(shape.number);
  const int bias = (1 << (number.exponent_bits - 1)) - 1;
  std::vector<float> units(shape.channels);
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    ASSERT_EQ(Decoder().units(frame, 0, t, units), Status::OK);
    for (uint32_t c = 0; c < shape.channels; ++c) {
      const size_t i = size_t{t} * shape.channels + c;
      const double right = value_of(shape.number, load_element(shape.number, values, i));
      const double got = value_of(shape.number, load_element(shape.number, out, i));
      const double bound = std::ldexp(units[c], static_cast<int>(number.planes() - planes) - 1);
      const double rounding = std::ldexp(std::abs(right) + bound, -number.mantissa_bits);
      const double least = std::ldexp(2.0, 1 - bias);  // a zero is below the least exponent
      ASSERT_LE(std::abs(right - got), bound + rounding + least)
          << " planes " << planes << " token " << t << " channel " << c;
    }
  }
}

TEST(Prefix, IsAsGoodAsPromised) {
  for (const NumberFormat kind : kFloats) {
    for (const Shape& shape : {Shape{kind, 1, 512, 64, rotary_of(1e4, 64)}, Shape{kind, 1, 300, 72},
                               Shape{kind, 1, 33, 8}}) {
      for (const Content content : {Content::NORMAL, Content::ROTATED, Content::SPARSE}) {
        const auto values = make_tensor(shape, content, 4);
        const auto frame = encode(shape, values, Profile::DENSE);
        std::vector<uint8_t> out(values.size());
        uint64_t read_before = 0;
        for (uint32_t planes = 1; planes <= number_of(kind)->planes(); ++planes) {
          ReadReport report;
          ASSERT_EQ(Decoder().decode_prefix(frame, planes, out, &report), Status::OK);
          EXPECT_GE(report.bytes_read, read_before);
          EXPECT_LE(report.bytes_read, frame.size());
          read_before = report.bytes_read;
          expect_within_bound(shape, frame, values, out, planes);
        }
      }
    }
  }
}

TEST(Prefix, OfFiniteValuesIsFinite) {
  for (const NumberFormat kind : kFloats) {
    const Number& number = *number_of(kind);
    const Shape shape{kind, 1, 256, 8};
    std::vector<uint8_t> values(shape.size_bytes()), out(values.size());
    for (uint32_t i = 0; i < shape.tokens * shape.channels; ++i) {
      const uint32_t bits = number.largest_finite - i / 100 % 3;
      values[i * number.element_bytes] = static_cast<uint8_t>(bits);
      if (number.element_bytes == 2) values[i * 2 + 1] = static_cast<uint8_t>(bits >> 8);
    }
    const auto frame = encode(shape, values, Profile::FAST);
    ASSERT_LT(frame.size(), values.size());  // in planes
    for (uint32_t planes = 1; planes <= number.planes(); ++planes) {
      ASSERT_EQ(Decoder().decode_prefix(frame, planes, out), Status::OK);
      const uint32_t magnitude = (1u << (number.element_bytes * 8 - 1)) - 1;
      for (uint32_t i = 0; i < shape.tokens * shape.channels; ++i)
        ASSERT_LE(load_element(kind, out, i) & magnitude, number.largest_finite) << i;
    }
  }
}

TEST(Prefix, RefusesPlanesThatTheFrameLacks) {
  const Shape shape{NumberFormat::BF16, 1, 16, 64};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 5), Profile::FAST);
  std::vector<uint8_t> out(shape.size_bytes());
  EXPECT_EQ(Decoder().decode_prefix(frame, 0, out), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Decoder().decode_prefix(frame, 10, out), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Decoder().decode_prefix(frame, 9, out), Status::OK);
  out.pop_back();
  EXPECT_EQ(Decoder().decode_prefix(frame, 9, out), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Decoder().decode(frame, out), Status::INVALID_ARGUMENT);
}

TEST_P(Frames, ComeInPieces) {
  if (GetParam() == NumberFormat::BYTES) return;
  for (const Shape& shape : shapes(GetParam())) {
    const auto frame = encode(shape, make_tensor(shape, Content::ROTATED, 4), Profile::DENSE);
    const uint32_t planes = frame_info(frame)->planes;
    std::vector<uint8_t> near(frame.size(), 0xEE), out(shape.size_bytes()), right = out;
    const auto read = [&](uint64_t offset, Bytes to) {
      EXPECT_LE(offset + to.size(), frame.size());
      std::memcpy(to.data(), frame.data() + offset, to.size());
      return Status::OK;
    };
    FramePieces pieces;
    Decoder decoder;
    const uint64_t tiles = uint64_t{shape.outer} * shape.tokens;  // or fewer
    for (const uint32_t n : {1u, 2u, 3u, planes, 0u}) {
      ASSERT_EQ(pieces.fetch(n, read, near), Status::OK);
      ReadReport report;
      ASSERT_EQ(n == 0 ? decoder.decode(near, out) : decoder.decode_prefix(near, n, out, &report),
                Status::OK);
      ASSERT_EQ(n == 0 ? decoder.decode(frame, right) : decoder.decode_prefix(frame, n, right),
                Status::OK);
      ASSERT_EQ(out, right) << describe(shape, Content::ROTATED) << " planes " << n;
      if (n != 0) {
        EXPECT_LE(pieces.bytes_fetched(),
                  std::min<uint64_t>(frame.size(), report.bytes_read + 256) + 256 * tiles);
      }
    }
    EXPECT_EQ(near, frame);
  }
}

TEST(Pieces, OfAPrefixAreFew) {
  const Shape shape{NumberFormat::BF16, 1, 512, 64};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 4), Profile::FAST);
  std::vector<uint8_t> near(frame.size());
  FramePieces pieces;
  ASSERT_EQ(pieces.fetch(
                5,
                [&](uint64_t offset, Bytes to) {
                  std::memcpy(to.data(), frame.data() + offset, to.size());
                  return Status::OK;
                },
                near),
            Status::OK);
  EXPECT_LT(pieces.bytes_fetched(), shape.size_bytes() * 36 / 100);
}

TEST(Pieces, AreRefused) {
  const Shape shape{NumberFormat::BF16, 2, 512, 64};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 4), Profile::FAST);
  const auto fetch = [&](const std::vector<uint8_t>& from, uint32_t planes) {
    std::vector<uint8_t> near(from.size());
    return FramePieces().fetch(
        planes,
        [&](uint64_t offset, Bytes to) {
          std::memcpy(to.data(), from.data() + offset, to.size());
          return Status::OK;
        },
        near);
  };
  EXPECT_EQ(fetch(frame, 9), Status::OK);
  EXPECT_EQ(fetch(frame, 10), Status::INVALID_ARGUMENT);
  EXPECT_EQ(fetch({}, 1), Status::DAMAGED);
  for (const size_t at : {0, 4, 16, 28, 40}) {
    auto bad = frame;
    bad[at] ^= 0x7F;
    EXPECT_NE(fetch(bad, 1), Status::OK) << at;
  }
  auto less = frame;
  less.pop_back();
  EXPECT_EQ(fetch(less, 1), Status::DAMAGED);
  EXPECT_EQ(FramePieces().fetch(
                1, [](uint64_t, Bytes) { return Status::BUSY; }, less),
            Status::BUSY);
}

TEST(ThreadTeam, DoesAllJobsAsOneWould) {
  for (const uint32_t threads : {1u, 3u}) {
    ThreadTeam team(Profile::FAST, threads);
    ASSERT_EQ(team.threads(), threads);
    std::vector<std::vector<uint8_t>> values, frames, outs;
    std::vector<EncodeJob> encode_jobs;
    std::vector<DecodeJob> decode_jobs;
    for (uint32_t i = 0; i < 20; ++i) {
      const Shape shape{NumberFormat::BF16, 1, 10 + 30 * i, 64};
      values.push_back(make_tensor(shape, Content::NORMAL, i));
      frames.emplace_back(frame_bound(shape));
      outs.emplace_back(values.back().size());
      encode_jobs.push_back({shape, values.back(), frames.back()});
    }
    encode_jobs[7].shape.channels = 0;
    team.encode(encode_jobs);
    for (uint32_t i = 0; i < encode_jobs.size(); ++i) {
      ASSERT_EQ(static_cast<bool>(encode_jobs[i].size), i != 7) << i;
      if (i == 7) continue;
      ASSERT_EQ(std::vector<uint8_t>(frames[i].begin(),
                                     frames[i].begin() + static_cast<long>(*encode_jobs[i].size)),
                encode(encode_jobs[i].shape, values[i], Profile::FAST));
      const ConstBytes frame = ConstBytes(frames[i]).first(*encode_jobs[i].size);
      decode_jobs.push_back({frame, outs[i], i == 9 ? 3u : 0u});
    }
    decode_jobs[5].frame = decode_jobs[5].frame.first(40);
    team.decode(decode_jobs);
    for (size_t i = 0; i < decode_jobs.size(); ++i)
      EXPECT_EQ(decode_jobs[i].status, i == 5 ? Status::DAMAGED : Status::OK) << i;
    EXPECT_EQ(outs[19], values[19]);
    EXPECT_NE(outs[9], values[9]);
  }
}

TEST(Encoder, RefusesShapesWithoutValues) {
  Encoder encoder(Profile::FAST);
  std::vector<uint8_t> values(1024), out(4096);
  const auto status = [&](const Shape& shape) {
    return encoder.encode(shape, values, out).status();
  };
  EXPECT_EQ(status({NumberFormat::BF16, 1, 8, 64}), Status::OK);
  EXPECT_EQ(status({NumberFormat::BF16, 1, 0, 64}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({NumberFormat::BF16, 0, 8, 64}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({NumberFormat::BF16, 1, 8, 0}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({NumberFormat::BF16, 1, 8, 32}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({NumberFormat::BF16, 1, 8, 64, {48, 1}}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({NumberFormat::BYTES, 1, 8, 128}), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status({static_cast<NumberFormat>(9), 1, 8, 64}), Status::INVALID_ARGUMENT);
  out.resize(frame_bound({NumberFormat::BF16, 1, 8, 64}) - 1);
  EXPECT_EQ(status({NumberFormat::BF16, 1, 8, 64}), Status::INVALID_ARGUMENT);
}

/// Dense gains by tables of frequencies where nothing repeats. This needs a library with the
/// parameter for them.
/// Bytes that repeat from places that are no whole rows before: no plane repeats.
TEST(Encoder, DenseTakesNumbersOfOneByteAsOneStreamWhereThatIsShorter) {
  for (const NumberFormat kind :
       {NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2, NumberFormat::INT8}) {
    const Shape shape{kind, 1, 512, 64, {}};
    auto values = make_tensor(shape, Content::NORMAL, 1);
    const size_t before = encode(shape, values, Profile::DENSE).size();
    for (size_t i = 40 * 64; i < values.size(); ++i)
      if (i % 23 > 2) values[i] = values[i - 37 * 64 - 5];
    const auto dense = encode(shape, values, Profile::DENSE);
    EXPECT_EQ(dense[sizeof(bh_frame_header)], BH_TILE_BYTES);
    EXPECT_LT(dense.size(), before * 9 / 10);
    EXPECT_EQ(decode(shape, dense), values);
    std::vector<uint8_t> prefix(values.size());
    EXPECT_EQ(Decoder().decode_prefix(dense, 2, prefix), Status::OK);
    EXPECT_EQ(prefix, values);  // a tile that is not in planes is exact
  }
}

TEST(Encoder, DenseIsSmallerThanFast) {
  const Shape shape{NumberFormat::BF16, 1, 512, 64};
  const auto values = make_tensor(shape, Content::NORMAL, 1);
  const size_t fast = encode(shape, values, Profile::FAST).size();
  EXPECT_LT(encode(shape, values, Profile::DENSE).size(), fast - fast / 100);
}

std::vector<std::vector<uint8_t>> small_frames() {
  std::vector<std::vector<uint8_t>> frames;
  for (const Shape& shape :
       {Shape{NumberFormat::BF16, 1, 24, 64, rotary_of(1e4, 64)},
        Shape{NumberFormat::FP16, 2, 9, 16}, Shape{NumberFormat::FP8_E4M3, 1, 60, 24},
        Shape{NumberFormat::INT8, 1, 30, 16}, Shape{NumberFormat::BYTES, 1, 500, 1}}) {
    for (const Content content : {Content::NORMAL, Content::REPEATED, Content::RANDOM})
      frames.push_back(encode(shape, make_tensor(shape, content, 6), Profile::DENSE));
  }
  return frames;
}

/// The status of a frame that may be damaged, without use of the sizes that it states.
Status read(const std::vector<uint8_t>& frame, size_t values_bytes) {
  std::vector<uint8_t> out(values_bytes);
  return Decoder().decode(frame, out);
}

TEST(Damage, AnyWrongBitIsFound) {
  for (const auto& frame : small_frames()) {
    const size_t bytes = frame_info(frame)->shape.size_bytes();
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      auto damaged = frame;
      damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
      const Status status = read(damaged, bytes);
      ASSERT_TRUE(status == Status::DAMAGED || status == Status::UNSUPPORTED_CODEC)
          << "bit " << bit << ": " << status_name(status);
    }
  }
}

TEST(Damage, AnyMissingOrSurplusByteIsFound) {
  for (const auto& frame : small_frames()) {
    const size_t bytes = frame_info(frame)->shape.size_bytes();
    for (size_t size = 0; size < frame.size(); ++size) {
      const std::vector<uint8_t> cut(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(size));
      ASSERT_EQ(read(cut, bytes), Status::DAMAGED) << size;
    }
    auto longer = frame;
    longer.push_back(0);
    ASSERT_EQ(read(longer, bytes), Status::DAMAGED);
  }
}

}  // namespace
}  // namespace bowhead::compression
