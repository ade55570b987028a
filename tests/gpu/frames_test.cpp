// SPDX-License-Identifier: Apache-2.0
// Frames decoded into device memory, compared with the decoder of frames.
#include "gpu/jobs/frames.h"

#include <bowhead/format/frame.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/random.h"
#include "compression/frame.h"
#include "compression/tiles.h"
#include "tests/gpu/devices.h"
#include "tests/support/reseal.h"
#include "tests/support/tensors.h"

namespace bowhead::gpu {
namespace {

using compression::Content;
using compression::Decoder;
using compression::Encoder;
using compression::Profile;
using compression::Shape;

using Buffer = std::vector<uint8_t>;

constexpr Profile kProfiles[] = {Profile::FAST, Profile::BALANCED, Profile::DENSE};

Buffer frame_of(const Shape& shape, const Buffer& values, Profile profile) {
  Encoder encoder(profile);
  Buffer frame(compression::frame_bound(shape));
  const auto size = encoder.encode(shape, values, frame);
  EXPECT_TRUE(size);
  if (size) frame.resize(*size);
  return frame;
}

Status decode_on_cpu(const Buffer& frame, uint32_t planes, Buffer& values) {
  Decoder decoder;
  return planes == 0 ? decoder.decode(frame, values) : decoder.decode_prefix(frame, planes, values);
}

/// The bytes of a frame that are LZ4 streams.
std::vector<std::span<uint8_t>> lz4_streams(Buffer& frame) {
  std::vector<std::span<uint8_t>> streams;
  compression::TileReader tiles;
  EXPECT_EQ(tiles.open(frame, 0), Status::OK);
  compression::TileParts parts;
  while (!tiles.at_end() && tiles.next(parts) == Status::OK) {
    for (uint32_t s = 0; s < parts.stream_count; ++s) {
      if (parts.streams[s].codec != compression::StreamCodec::LZ4) continue;
      streams.push_back(std::span(frame).subspan(parts.offsets[s], parts.streams[s].coded_bytes));
    }
  }
  return streams;
}

/// Values in which LZ4 finds many repeats.
Buffer repeated_values(const Shape& shape) {
  if (shape.number != NumberFormat::BYTES)
    return compression::make_tensor(shape, Content::REPEATED, 1);
  Buffer values(shape.size_bytes());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i % 7);
  return values;
}

/// Counts the streams that the device has to decode.
class CountingDevice : public WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  Result<void> launch(const Work& work, Stream stream) override {
    if (const auto* lz4 = std::get_if<DecodeLz4>(&work)) lz4_streams_ += lz4->stream_count;
    return WrappedDevice::launch(work, stream);
  }
  size_t lz4_streams() const { return lz4_streams_; }

 private:
  size_t lz4_streams_ = 0;
};

struct Wanted {
  Buffer frame;
  size_t values_bytes;
  uint32_t planes = 0;
  bool is_pinned = false;
};

class DecodedFrames : public EveryDevice {
 protected:
  void SetUp() override {
    if (GetParam() == kWithoutLz4) {
      device_ = gated_cpu_device(gate_, {.decodes_lz4 = false});
    } else {
      EveryDevice::SetUp();
    }
    if (IsSkipped()) return;
    counting_.emplace(device());
    auto stream = device().make_stream(0);
    ASSERT_DONE(stream);
    stream_ = *stream;
    decoder_.emplace(*counting_);
  }
  void TearDown() override {
    decoder_.reset();
    for (void* memory : memory_) device().free(memory);
    if (stream_ != nullptr) device().destroy_stream(stream_);
  }

  void* memory(size_t bytes, bool is_pinned) {
    auto allocated = is_pinned ? device().allocate_pinned(bytes) : device().allocate(bytes);
    EXPECT_DONE(allocated);
    if (!allocated) return nullptr;
    memory_.push_back(*allocated);
    return *allocated;
  }

  /// Values of all frames, with the bytes right before and after them.
  struct Outcome {
    std::vector<Buffer> values;
    std::vector<Status> statuses;
  };
  Outcome decode(const std::vector<Wanted>& wanted) {
    constexpr size_t kGap = 64;
    std::vector<FrameJob> jobs;
    std::vector<Buffer> before;
    for (const Wanted& one : wanted) {
      FrameJob job;
      job.frame = one.frame;
      if (one.is_pinned) {
        auto* pinned = static_cast<uint8_t*>(memory(one.frame.size(), true));
        std::memcpy(pinned, one.frame.data(), one.frame.size());
        job.frame = {pinned, one.frame.size()};
      }
      auto* values = static_cast<uint8_t*>(memory(one.values_bytes + 2 * kGap, false));
      before.emplace_back(one.values_bytes + 2 * kGap, uint8_t{0xA5});
      EXPECT_DONE(device().copy(values, before.back().data(), before.back().size(), stream_));
      job.values = values + kGap;
      job.values_bytes = one.values_bytes;
      job.planes = one.planes;
      jobs.push_back(job);
    }
    Outcome outcome;
    EXPECT_DONE(decoder_->start(jobs, stream_));
    const auto statuses = decoder_->finish();
    EXPECT_DONE(statuses);
    if (!statuses) return outcome;
    outcome.statuses.assign(statuses->begin(), statuses->end());
    for (const FrameJob& job : jobs) {
      Buffer all(job.values_bytes + 2 * kGap);
      EXPECT_DONE(
          device().copy(all.data(), static_cast<uint8_t*>(job.values) - kGap, all.size(), stream_));
      auto event = device().make_event();
      EXPECT_DONE(event);
      EXPECT_DONE(device().record(*event, stream_));
      EXPECT_DONE(device().synchronize(*event));
      device().destroy_event(*event);
      const auto is_untouched = [](uint8_t byte) { return byte == 0xA5; };
      EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGap, is_untouched));
      EXPECT_TRUE(std::all_of(all.end() - kGap, all.end(), is_untouched));
      outcome.values.emplace_back(all.begin() + kGap, all.end() - kGap);
    }
    for (void* memory : memory_) device().free(memory);
    memory_.clear();
    return outcome;
  }

  /// The result of the decoder of frames: status or values.
  void check(const std::vector<Wanted>& wanted) {
    const Outcome outcome = decode(wanted);
    ASSERT_EQ(outcome.statuses.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "job " << i << ", " << wanted[i].planes << " planes");
      Buffer values(wanted[i].values_bytes);
      EXPECT_EQ(outcome.statuses[i], decode_on_cpu(wanted[i].frame, wanted[i].planes, values));
      EXPECT_TRUE(outcome.statuses[i] != Status::OK || outcome.values[i] == values);
    }
  }

  static constexpr std::string_view kWithoutLz4 = "cpu_without_lz4";

  Stream stream_ = nullptr;
  std::optional<CountingDevice> counting_;
  std::optional<FrameDecoder> decoder_;
  std::vector<void*> memory_;
};

TEST_P(DecodedFrames, MatchTheDecoder) {
  constexpr NumberFormat kKinds[] = {NumberFormat::BF16,     NumberFormat::FP16,
                                     NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2,
                                     NumberFormat::INT8,     NumberFormat::BYTES};
  uint32_t seed = 0;
  for (const NumberFormat kind : kKinds) {
    std::vector<Wanted> wanted;
    for (const Profile profile : kProfiles) {
      for (const Content content : compression::kContents) {
        Shape shape{kind, 2, 30 + seed % 70, 64 + 16 * (seed % 5), {}};
        if (seed % 3 != 0) shape.rotary = compression::rotary_of(10000, 16);
        shape.rotary.interleaved = seed % 9 == 1;  // by the CPU
        if (seed % 4 == 3) shape.channels -= 11;   // rows in parts of bytes, without rotation
        if (seed % 4 == 3) shape.rotary = {};
        if (kind == NumberFormat::BYTES) shape = {kind, 1, 3000, 1, {}};
        const auto* number = compression::number_of(kind);
        const uint32_t planes = number == nullptr ? 0 : seed % (number->planes() + 1);
        const Buffer values = compression::make_tensor(shape, content, seed);
        wanted.push_back({frame_of(shape, values, profile), values.size(), planes, seed % 2 == 0});
        ++seed;
      }
    }
    SCOPED_TRACE(number_name(kind));
    check(wanted);
    if (HasFailure()) return;
  }
}

TEST_P(DecodedFrames, TakeEveryNumberOfPlanes) {
  const Shape shape{NumberFormat::BF16, 3, 200, 128, compression::rotary_of(10000, 128)};
  const Buffer values = compression::make_tensor(shape, Content::ROTATED, 1);
  const Buffer frame = frame_of(shape, values, Profile::DENSE);
  std::vector<Wanted> wanted;
  for (uint32_t planes = 0; planes <= 9; ++planes) {
    for (const bool is_pinned : {false, true})
      wanted.push_back({frame, values.size(), planes, is_pinned});
  }
  check(wanted);
}

TEST_P(DecodedFrames, ThatNoKernelTurnsAreDecodedByTheCpu) {
  // Heads of 700 channels in rows of 1400: no step has whole ones.
  const Shape shape{NumberFormat::FP16, 1, 20, 1400, compression::rotary_of(10000, 700)};
  const Buffer values = compression::make_tensor(shape, Content::ROTATED, 1);
  const Buffer frame = frame_of(shape, values, Profile::FAST);
  check({{frame, values.size(), 0, true}, {frame, values.size(), 4, false}});
}

TEST_P(DecodedFrames, GoldenOnes) {
  std::vector<Wanted> wanted;
  for (const auto& entry : std::filesystem::directory_iterator(BOWHEAD_GOLDEN_FRAMES)) {
    if (entry.path().extension() != ".frame") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const Buffer frame(std::istreambuf_iterator<char>(in), {});
    const auto info = compression::frame_info(frame);
    ASSERT_TRUE(info);
    wanted.push_back({frame, info->shape.size_bytes(), 0, wanted.size() % 2 == 0});
    if (info->planes > 4) wanted.push_back({frame, info->shape.size_bytes(), 4, false});
  }
  ASSERT_GE(wanted.size(), 12u);
  check(wanted);
}

TEST_P(DecodedFrames, FailAloneIfTheyAreDamaged) {
  const Shape shape{NumberFormat::BF16, 2, 50, 128, compression::rotary_of(10000, 128)};
  const Buffer values = compression::make_tensor(shape, Content::ROTATED, 3);
  const Buffer good = frame_of(shape, values, Profile::FAST);
  std::vector<Wanted> wanted;
  for (size_t at = 0; at < good.size(); at += good.size() / 60) {
    Wanted one{good, values.size(), static_cast<uint32_t>(wanted.size() % 4), at % 2 == 0};
    one.frame[at] ^= 0x10;
    wanted.push_back(one);
    wanted.push_back({good, values.size(), 0, at % 2 != 0});
  }
  Wanted shorter{good, values.size(), 0, true};
  shorter.frame.resize(good.size() - 9);
  wanted.push_back(shorter);
  check(wanted);
}

/// With correct checksums only the kernel can find the damage: it must read only the stream, and
/// find wrong lengths.
TEST_P(DecodedFrames, MayHoldAnythingUnderRightChecksums) {
  Random random(5);
  uint32_t failed = 0, missed = 0;
  constexpr NumberFormat kKinds[] = {NumberFormat::BF16, NumberFormat::FP16,
                                     NumberFormat::FP8_E4M3};
  for (uint32_t round = 0; round < 2 * std::size(kKinds); ++round) {
    const Shape shape{kKinds[round / 2], 1, 70, 48, compression::rotary_of(10000, 16)};
    const Content content = round % 2 == 0 ? Content::ROTATED : Content::REPEATED;  // LZ4
    const Buffer values = compression::make_tensor(shape, content, 3);
    const Buffer good = frame_of(shape, values, Profile::FAST);
    std::vector<Wanted> wanted;
    for (uint32_t i = 0; i < 150; ++i) {
      Wanted one{good, values.size(), i % 5 == 0 ? 3u : 0u, i % 2 == 0};
      for (uint64_t flips = 1 + random.below(3); flips > 0; --flips)
        one.frame[28 + random.below(good.size() - 28)] ^=
            static_cast<uint8_t>(1 + random.below(255));
      compression::reseal(one.frame);
      wanted.push_back(one);
    }
    const Outcome outcome = decode(wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      Buffer cpu(values.size());
      const Status status = decode_on_cpu(wanted[i].frame, wanted[i].planes, cpu);
      failed += status != Status::OK;
      missed += status != Status::OK && outcome.statuses[i] == Status::OK;
      // Both detect damage in the headers.
      EXPECT_TRUE(status == Status::OK || status == Status::DAMAGED ||
                  status == outcome.statuses[i]);
    }
  }
  EXPECT_GT(failed, 50u);
  EXPECT_LE(missed, failed / 20) << "of " << failed;
}

/// A tile whose head is as wide as it can be, and whose streams are as long.
Buffer widest_frame(const Shape& shape) {
  using compression::StreamCodec;
  const auto& number = *compression::number_of(shape.number);
  const uint64_t plane = compression::plane_bytes(shape.channels, shape.tokens);
  const uint64_t values = uint64_t{shape.tokens} * shape.channels;
  compression::TileHeader head;
  head.searchable = head.has_spreads = true;
  head.exponent_base = number.magnitude_bits;  // each value is an exception
  head.exponent_width = 8;
  head.centre_width = 15;
  head.step_bits_width = compression::kMaxStepBitsWidth;
  head.step_exceptions_width = compression::kMaxStepExceptionsWidth;
  head.steps_noted = compression::Steps::of(shape.tokens, shape.channels).noted();
  for (uint32_t p = 0; p < number.planes(); ++p)
    head.streams[p] = {StreamCodec::STORED, plane, plane};
  head.streams[number.planes()] = {StreamCodec::ZERO, 0,
                                   compression::most_remainder_bytes(number, values)};
  head.streams[number.planes() + 1] = {StreamCodec::ZERO, 0, values};
  const bh_frame_header header{.magic = BH_FRAME_MAGIC,
                               .version = BH_FRAME_VERSION,
                               .number = static_cast<uint8_t>(shape.number),
                               .channels = static_cast<uint16_t>(shape.channels),
                               .outer = 1,
                               .tokens = shape.tokens,
                               .tile_tokens = static_cast<uint16_t>(shape.tokens)};
  Buffer frame(sizeof header + compression::kMaxTileHeaderBytes);
  std::memcpy(frame.data(), &header, sizeof header);
  compression::ByteWriter to(frame.data() + sizeof header);
  write_tile_header(to, number, head);
  frame.resize(sizeof header + to.size());
  frame.resize(frame.size() + parameter_bytes(head, shape.channels) + 4 + number.planes() * plane);
  compression::reseal(frame);
  return frame;
}

TEST_P(DecodedFrames, OfTheMostBytes) {
  for (const uint32_t channels : {1u, 64u, 1024u}) {
    const Shape shape{NumberFormat::BF16, 1, 16, channels};
    const Buffer frame = widest_frame(shape);
    Buffer values(shape.size_bytes());
    ASSERT_EQ(decode_on_cpu(frame, 0, values), Status::OK);
    check({{frame, values.size()}, {frame, values.size(), 0, true}});
  }
}

TEST_P(DecodedFrames, HaveLz4DecodedByTheDeviceIfItDoes) {
  const bool device_decodes = device().info().decodes_lz4;
  for (const NumberFormat kind : {NumberFormat::BF16, NumberFormat::BYTES}) {
    const Shape shape{kind, 1, 400, kind == NumberFormat::BYTES ? 1u : 128u, {}};
    const Buffer values = repeated_values(shape);
    Buffer frame = frame_of(shape, values, Profile::FAST);
    const size_t streams = lz4_streams(frame).size();
    ASSERT_GT(streams, 0u);
    for (const bool is_pinned : {false, true}) {
      const size_t before = counting_->lz4_streams();
      check({{frame, values.size(), 0, is_pinned}, {frame, values.size(), 0, !is_pinned}});
      EXPECT_EQ(counting_->lz4_streams() - before, device_decodes ? 2 * streams : 0);
    }
  }
}

/// The last byte of the length of a match, or of literals: one more or less changes the length of
/// the stream.
TEST_P(DecodedFrames, FailAloneIfLz4HasAnotherLength) {
  for (const NumberFormat kind : {NumberFormat::BF16, NumberFormat::BYTES}) {
    const Shape shape{kind, 1, 4000, kind == NumberFormat::BYTES ? 1u : 128u, {}};
    const Buffer values = repeated_values(shape);
    const Buffer good = frame_of(shape, values, Profile::FAST);
    Buffer bytes = good;
    std::vector<Wanted> wanted;
    for (const std::span<uint8_t> stream : lz4_streams(bytes)) {
      for (size_t i = 1; i < stream.size() && wanted.size() < 30; ++i) {
        if (stream[i - 1] != 255 || stream[i] == 0 || stream[i] >= 254) continue;
        for (const int change : {-1, 1}) {
          Wanted one{good, values.size(), 0, i % 2 == 0};
          one.frame[&stream[i] - bytes.data()] += static_cast<uint8_t>(change);
          compression::reseal(one.frame);
          Buffer cpu(values.size());
          if (decode_on_cpu(one.frame, 0, cpu) == Status::DAMAGED) wanted.push_back(one);
        }
      }
    }
    ASSERT_GE(wanted.size(), 2u);
    wanted.push_back({good, values.size(), 0, true});
    check(wanted);
  }
}

TEST_P(DecodedFrames, RefuseMemoryOutOfTheDevicesReach) {
  const Shape shape{NumberFormat::BF16, 1, 4, 8, {}};
  Buffer values = compression::make_tensor(shape, Content::NORMAL, 1);
  const Buffer frame = frame_of(shape, values, Profile::FAST);
  FrameJob job{frame, values.data(), values.size(), 0};
  EXPECT_EQ(message_of(decoder_->start({&job, 1}, stream_)),
            "INVALID_ARGUMENT: values of job 0 are host memory, not this device's");
  auto* odd = static_cast<uint8_t*>(memory(values.size() + 2, false));
  job.values = odd + 1;
  const auto result = decoder_->start({&job, 1}, stream_);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("no multiple of 2 bytes"), std::string::npos);
  EXPECT_EQ(decoder_->finish().status(), Status::INVALID_ARGUMENT);
}

TEST_P(DecodedFrames, GoOneBatchAtATime) {
  const Shape shape{NumberFormat::BF16, 1, 4, 8, {}};
  const Buffer values = compression::make_tensor(shape, Content::NORMAL, 1);
  const Buffer frame = frame_of(shape, values, Profile::FAST);
  void* const to = memory(values.size(), false);
  const FrameJob jobs[] = {{frame, to, values.size(), 0},
                           {frame, to, values.size() - 2, 0},
                           {frame, to, values.size(), 10}};
  EXPECT_EQ(decoder_->is_done().status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(decoder_->start(jobs, stream_));
  EXPECT_EQ(decoder_->start(jobs, stream_).status(), Status::BUSY);
  const auto statuses = decoder_->finish();
  ASSERT_DONE(statuses);
  EXPECT_EQ((*statuses)[0], Status::OK);
  EXPECT_EQ((*statuses)[1], Status::INVALID_ARGUMENT);
  EXPECT_EQ((*statuses)[2], Status::INVALID_ARGUMENT);
  ASSERT_DONE(decoder_->start({}, stream_));
  ASSERT_DONE(decoder_->finish());
}

INSTANTIATE_TEST_SUITE_P(Device, DecodedFrames, kEveryDevice, device_name);
INSTANTIATE_TEST_SUITE_P(Other, DecodedFrames, testing::Values("cpu_without_lz4"), device_name);

}  // namespace
}  // namespace bowhead::gpu
