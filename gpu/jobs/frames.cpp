// SPDX-License-Identifier: Apache-2.0
// A batch is one image in pinned memory, copied to the device as it is: the descriptors of tiles,
// the turns of centres, then streams one behind the other. Frames that the device reaches follow
// the image there, and their stored streams are read where they lie in them. Where the device
// decodes LZ4, LZ4 streams are read there too, and are decoded to memory behind the frames.
#include "gpu/jobs/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "compression/frame.h"
#include "compression/stream.h"
#include "compression/tiles.h"
#include "gpu/jobs/frame_tiles.h"
#include "gpu/kernels/check.h"
#include "gpu/kernels/rebuild_tiles.h"

namespace bowhead::gpu {
namespace {

using compression::Bytes;
using compression::ConstBytes;
using compression::Number;
using compression::Shape;
using compression::StreamCodec;
using compression::TileParts;

constexpr uint64_t kAlign = 16;
constexpr uint64_t kMostImageBytes = uint64_t{1} << 32;

uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// The most bytes that a frame of this shape takes of the image, behind the tiles.
uint64_t most_streams_bytes(const Shape& shape, uint64_t tiles) {
  const Number* number = compression::number_of(shape.number);
  const uint64_t turns = shape.rotary.dim * sizeof(compression::Turn) + kAlign;
  if (number == nullptr) return shape.size_bytes() + turns;
  const uint64_t rows = uint64_t{shape.outer} * shape.tokens, values = rows * shape.channels;
  const uint64_t planes = number->planes() * rows * ((shape.channels + 7) / 8);
  // The rest of each value and an exception, which is more than the values as they are; bits of
  // exponents and amplitudes in whole bytes.
  const uint64_t parameters = uint64_t{shape.channels} * 3 + 2;
  return planes + compression::most_remainder_bytes(*number, values) + values +
         tiles * (parameters + 1) + turns;
}

/// The parameters that tiles of a launch have in common.
struct Kind {
  Shape shape;  ///< but for outer and tokens
  uint32_t planes = 0;

  bool operator==(const Kind& other) const {
    return shape.number == other.shape.number && shape.channels == other.shape.channels &&
           shape.rotary == other.shape.rotary && planes == other.planes;
  }
};

struct Launch {
  Kind kind;
  uint64_t turns = 0;  ///< in the image
  uint32_t first_tile = 0, tiles = 0;
};

/// The streams that the device decodes; all addresses are the device's.
struct Lz4Streams {
  std::vector<const uint8_t*> from;
  std::vector<uint8_t*> to;
  std::vector<size_t> from_bytes, to_bytes;
  std::vector<size_t> jobs;

  size_t size() const { return jobs.size(); }
  void resize(size_t count) {
    from.resize(count);
    to.resize(count);
    from_bytes.resize(count);
    to_bytes.resize(count);
    jobs.resize(count);
  }
};

// Bytes of the descriptor of a stream for a kernel, and of its answer.
constexpr uint64_t kLz4DescriptorBytes = 2 * sizeof(uint8_t*) + 2 * sizeof(size_t);
constexpr uint64_t kLz4AnswerBytes = sizeof(size_t) + sizeof(uint32_t);

/// A job whose header is good.
struct Opened {
  size_t index;
  const FrameJob* job;
  Kind kind;
  bool by_cpu = false;         ///< as a whole
  bool is_registered = false;  ///< and copied as a whole
  uint64_t frame_at = 0;       ///< on the device, if so
};

}  // namespace

class FrameDecoder::Impl {
 public:
  explicit Impl(Device& device) : device_(device) {}
  ~Impl() {
    if (is_started_) (void)finish();
    if (event_ != nullptr) device_.destroy_event(event_);
    device_.free(image_);
    device_.free(memory_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> start(std::span<const FrameJob> jobs, Stream stream) {
    if (is_started_) return Error{Status::BUSY, "the last batch was not finished"};
    if (auto good = device_.check_stream(stream); !good) return good;
    if (auto good = open(jobs); !good) return good;
    if (auto good = make_room(); !good) return good;
    for (Opened& opened : opened_) {
      const size_t tiles = tile_count_, runs = runs_.size(), lz4 = lz4_.size();
      const Status status = opened.by_cpu ? decode_on_cpu(opened) : prepare(opened);
      statuses_[opened.index] = status;
      if (status == Status::OK) continue;
      tile_count_ = static_cast<uint32_t>(tiles);
      runs_.resize(runs);
      lz4_.resize(lz4);
    }
    end_launches();
    return queue(stream);
  }

  Result<bool> is_done() {
    if (!is_started_) return Error{Status::INVALID_ARGUMENT, "no batch was started"};
    return device_.is_done(event_);
  }

  Result<std::span<const Status>> finish() {
    if (!is_started_) return Error{Status::INVALID_ARGUMENT, "no batch was started"};
    is_started_ = false;
    if (auto done = device_.synchronize(event_); !done) {
      abandon();
      return done.error();
    }
    for (uint32_t tile = 0; tile < tile_count_; ++tile) {
      if (faults_in(answers())[tile] != 0) statuses_[job_of_[tile]] = Status::DAMAGED;
    }
    const auto* decoded_bytes = reinterpret_cast<const size_t*>(answers());
    const auto* lz4_faults = reinterpret_cast<const uint32_t*>(decoded_bytes + lz4_.size());
    for (size_t i = 0; i < lz4_.size(); ++i) {
      if (lz4_faults[i] != 0 || decoded_bytes[i] != lz4_.to_bytes[i])
        statuses_[lz4_.jobs[i]] = Status::DAMAGED;
    }
    return std::span<const Status>(statuses_);
  }

 private:
  // ---- before the batch ----

  Result<void> open(std::span<const FrameJob> jobs) {
    statuses_.assign(jobs.size(), Status::OK);
    opened_.clear();
    launches_.clear();
    runs_.clear();
    job_of_.clear();
    lz4_.resize(0);
    tile_count_ = most_channels_ = 0;
    most_tiles_ = frames_bytes_ = most_streams_bytes_ = plain_used_ = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const auto opened = compression::open_frame(jobs[i].frame);
      if (!opened) {
        statuses_[i] = opened.status();
        continue;
      }
      if (auto good = add(i, jobs[i], *opened); !good) return good;
    }
    return {};
  }

  Result<void> add(size_t index, const FrameJob& job, const compression::Frame& frame) {
    const Shape& shape = frame.shape;
    const Number* number = compression::number_of(shape.number);
    if (shape.size_bytes() != job.values_bytes ||
        job.planes > (number == nullptr ? 0 : number->planes())) {
      statuses_[index] = Status::INVALID_ARGUMENT;
      return {};
    }
    if (auto good = check_values(index, job, shape); !good) return good;
    const auto kind = device_.classify(job.frame.data());
    if (!kind) return kind.error();
    Opened opened{index, &job, {shape, job.planes}};
    opened.by_cpu = shape.rotary.dim != 0 &&
                    !(shape.rotary.is_of_halves() && can_turn(shape.channels, shape.rotary.dim));
    opened.is_registered = *kind == PointerKind::REGISTERED && job.planes == 0 && !opened.by_cpu;
    if (opened.is_registered) {
      opened.frame_at = frames_bytes_;
      frames_bytes_ += aligned(job.frame.size());
    }
    most_streams_bytes_ += most_streams_bytes(shape, frame.tiling.tiles);
    most_tiles_ += frame.tiling.tiles;
    most_channels_ = std::max(most_channels_, shape.channels);
    opened_.push_back(opened);
    return {};
  }

  Result<void> check_values(size_t index, const FrameJob& job, const Shape& shape) {
    const auto kind = device_.classify(job.values);
    if (!kind) return kind.error();
    if (*kind != PointerKind::DEVICE) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("values of job {} are {} memory, not this device's", index,
                               pointer_kind_name(*kind))};
    }
    const uint32_t element = element_bytes(shape.number);
    const auto address = reinterpret_cast<uintptr_t>(job.values);
    if (address % element != 0) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("values of job {} are at {:#x}, no multiple of {} bytes", index,
                               address, element)};
    }
    return {};
  }

  /// In the image: tiles, turns and streams, then answers, which come back. On the device: the
  /// same, but frames and plain streams before the answers, and then scratch.
  Result<void> make_room() {
    const uint64_t tiles_bytes = aligned(most_tiles_ * sizeof(RebuildTile));
    const bool has_lz4 = device_.info().decodes_lz4;
    const uint64_t most_lz4 = has_lz4 ? most_tiles_ * compression::kMaxStreams : 0;
    const uint64_t answers_bytes =
        aligned(most_tiles_ * sizeof(uint32_t) + most_lz4 * kLz4AnswerBytes);
    plain_bytes_ = has_lz4 ? aligned(most_streams_bytes_) : 0;
    image_bytes_ =
        aligned(tiles_bytes + most_streams_bytes_ + most_lz4 * kLz4DescriptorBytes + kAlign);
    const uint64_t bytes = image_bytes_ + frames_bytes_ + plain_bytes_;
    if (bytes + RebuildTiles::kSlackBytes >= kMostImageBytes) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("a batch whose streams may take {} bytes: start fewer jobs", bytes)};
    }
    const auto tiles = static_cast<uint32_t>(most_tiles_);
    answers_at_ = bytes + aligned(RebuildTiles::kSlackBytes);
    scratch_at_ = answers_at_ + answers_bytes;
    const uint64_t scratch = rebuild_scratch_bytes(most_channels_, tiles);
    if (auto grown = grow(image_, image_room_, image_bytes_ + answers_bytes, true); !grown)
      return grown;
    if (auto grown = grow(memory_, memory_room_, scratch_at_ + scratch, false); !grown)
      return grown;
    used_ = tiles_bytes;
    return {};
  }

  /// The device may still write to this memory: it is neither used again nor freed.
  void abandon() {
    image_ = memory_ = nullptr;
    image_room_ = memory_room_ = 0;
  }

  Result<void> grow(uint8_t*& memory, uint64_t& room, uint64_t bytes, bool is_pinned) {
    if (bytes <= room) return {};
    device_.free(std::exchange(memory, nullptr));
    room = 0;
    auto allocated = is_pinned ? device_.allocate_pinned(bytes) : device_.allocate(bytes);
    if (!allocated) return allocated.error();
    memory = static_cast<uint8_t*>(*allocated);
    room = bytes;
    return {};
  }

  uint8_t* answers() { return image_ + image_bytes_; }
  uint64_t lz4_answers_bytes() const { return lz4_.size() * kLz4AnswerBytes; }
  /// The faults of tiles: behind the answers of streams.
  uint32_t* faults_in(uint8_t* answers) const {
    return reinterpret_cast<uint32_t*>(answers + lz4_answers_bytes());
  }
  RebuildTile* tiles() { return reinterpret_cast<RebuildTile*>(image_); }
  Bytes append(uint64_t bytes) {
    BOWHEAD_ASSERT(bytes <= image_bytes_ - used_);
    const Bytes part(image_ + used_, bytes);
    used_ += bytes;
    return part;
  }
  uint32_t offset_of(ConstBytes part) const { return static_cast<uint32_t>(part.data() - image_); }

  // ---- the CPU's part ----

  Status decode_on_cpu(const Opened& opened) {
    const FrameJob& job = *opened.job;
    const Bytes values = append(job.values_bytes);
    const Status status = job.planes == 0 ? decoder_.decode(job.frame, values)
                                          : decoder_.decode_prefix(job.frame, job.planes, values);
    if (status == Status::OK) runs_.push_back({job.values, values.data(), values.size()});
    return status;
  }

  Status prepare(const Opened& opened) {
    const FrameJob& job = *opened.job;
    compression::TileReader reader;
    if (const Status status = reader.open(job.frame, job.planes); status != Status::OK)
      return status;
    if (opened.is_registered)
      runs_.push_back(
          {memory_ + image_bytes_ + opened.frame_at, job.frame.data(), job.frame.size()});
    begin_launch(opened.kind);
    while (!reader.at_end()) {
      Status status = reader.next(parts_);
      if (status == Status::OK) status = parts_.in_planes ? add_tile(opened) : copy_tile(opened);
      if (status != Status::OK) return status;
    }
    return Status::OK;
  }

  /// Copies a tile whose values are one stream.
  Status copy_tile(const Opened& opened) {
    const FrameJob& job = *opened.job;
    ConstBytes from = parts_.stream(job.frame, 0);
    if (is_for_device(parts_.streams[0].codec, from.size(), parts_.values_bytes)) {
      add_lz4(opened, 0, static_cast<uint8_t*>(job.values) + parts_.values_offset,
              parts_.values_bytes);
      return Status::OK;
    }
    if (parts_.streams[0].codec == StreamCodec::STORED) {
      if (from.size() != parts_.values_bytes) return Status::DAMAGED;
    }
    if (parts_.streams[0].codec != StreamCodec::STORED || !opened.is_registered) {
      const Bytes plain = append(parts_.values_bytes);
      if (!coder_.decode(parts_.streams[0].codec, from, plain)) return Status::DAMAGED;
      from = plain;
    }
    runs_.push_back(
        {static_cast<uint8_t*>(job.values) + parts_.values_offset, from.data(), from.size()});
    return Status::OK;
  }

  Status add_tile(const Opened& opened) {
    auto tile = rebuild_tile_of(
        opened.kind.shape, parts_,
        [&](uint64_t offset, uint64_t bytes) { return place(opened, offset, bytes); },
        [&](uint32_t stream, bool is_plane) { return place_stream(opened, stream, is_plane); });
    if (!tile) return Status::DAMAGED;
    tile->values = static_cast<uint8_t*>(opened.job->values) + parts_.values_offset;
    tiles()[tile_count_++] = *tile;
    job_of_.resize(tile_count_);
    job_of_.back() = opened.index;
    return Status::OK;
  }

  /// Where the device will find these bytes of a frame.
  uint32_t place(const Opened& opened, uint64_t offset, uint64_t bytes) {
    if (opened.is_registered) return static_cast<uint32_t>(image_bytes_ + opened.frame_at + offset);
    const Bytes part = append(bytes);
    if (bytes != 0) std::memcpy(part.data(), opened.job->frame.data() + offset, bytes);
    return offset_of(part);
  }

  /// Nothing if the stream does not decode.
  std::optional<uint32_t> place_stream(const Opened& opened, uint32_t index, bool is_plane) {
    const compression::StreamSize& stream = parts_.streams[index];
    if (stream.codec == StreamCodec::STORED)
      return place(opened, parts_.offsets[index], stream.coded_bytes);
    if (stream.codec == StreamCodec::ZERO && is_plane) return RebuildTile::kAllZero;
    if (is_for_device(stream.codec, stream.coded_bytes, stream.plain_bytes)) {
      const uint64_t at = image_bytes_ + frames_bytes_ + plain_used_;
      BOWHEAD_ASSERT(stream.plain_bytes <= plain_bytes_ - plain_used_);
      plain_used_ += stream.plain_bytes;
      add_lz4(opened, index, memory_ + at, stream.plain_bytes);
      return static_cast<uint32_t>(at);
    }
    const Bytes plain = append(stream.plain_bytes);
    if (!coder_.decode(stream.codec, parts_.stream(opened.job->frame, index), plain))
      return std::nullopt;
    return offset_of(plain);
  }

  /// No stream takes more of the image than if it were decoded here.
  bool is_for_device(StreamCodec codec, uint64_t coded_bytes, uint64_t plain_bytes) const {
    return codec == StreamCodec::LZ4 && device_.info().decodes_lz4 && coded_bytes != 0 &&
           coded_bytes <= plain_bytes;
  }

  void add_lz4(const Opened& opened, uint32_t index, uint8_t* to, size_t to_bytes) {
    const uint64_t bytes = parts_.streams[index].coded_bytes;
    const uint32_t at = place(opened, parts_.offsets[index], bytes);
    lz4_.from.push_back(memory_ + at);
    lz4_.to.push_back(to);
    lz4_.from_bytes.push_back(bytes);
    lz4_.to_bytes.push_back(to_bytes);
    lz4_.jobs.push_back(opened.index);
  }

  // ---- the device's part ----

  void begin_launch(const Kind& kind) {
    if (!launches_.empty() && launches_.back().kind == kind) return;
    end_launches();
    Launch launch{kind};
    launch.first_tile = tile_count_;
    if (kind.shape.rotary.dim != 0) {
      const auto turns = compression::turns_of(kind.shape.rotary);
      used_ = aligned(used_);
      const Bytes to = append(turns.size() * sizeof turns[0]);
      std::memcpy(to.data(), turns.data(), to.size());
      launch.turns = offset_of(to);
    }
    launches_.push_back(launch);
  }
  void end_launches() {
    if (!launches_.empty()) launches_.back().tiles = tile_count_ - launches_.back().first_tile;
  }

  RebuildTiles work_of(const Launch& launch) const {
    RebuildTiles work = rebuild_tiles_of(launch.kind.shape, launch.kind.planes);
    work.turns = reinterpret_cast<const compression::Turn*>(memory_ + launch.turns);
    work.bytes = memory_;
    work.size_bytes = image_bytes_ + frames_bytes_ + plain_bytes_;
    work.scratch = memory_ + scratch_at_;
    work.tiles = reinterpret_cast<const RebuildTile*>(memory_) + launch.first_tile;
    work.tile_count = launch.tiles;
    work.faults = faults_in(memory_ + answers_at_) + launch.first_tile;
    return work;
  }

  /// The device's address of an object in the image.
  template <class T>
  const T* write_down(const std::vector<T>& array) {
    const Bytes part = append(array.size() * sizeof(T));
    if (!array.empty()) std::memcpy(part.data(), array.data(), part.size());
    return reinterpret_cast<const T*>(memory_ + offset_of(part));
  }

  DecodeLz4 tell_lz4() {
    DecodeLz4 work;
    work.stream_count = static_cast<uint32_t>(lz4_.size());
    work.decoded_bytes = reinterpret_cast<size_t*>(memory_ + answers_at_);
    work.faults = reinterpret_cast<uint32_t*>(work.decoded_bytes + lz4_.size());
    work.from = lz4_.from.data();
    work.from_bytes = lz4_.from_bytes.data();
    work.to = lz4_.to.data();
    work.to_bytes = lz4_.to_bytes.data();
    const Result<void> good = check(work);
    BOWHEAD_ASSERT(good);
    used_ = aligned(used_);
    work.from = write_down(lz4_.from);
    work.from_bytes = write_down(lz4_.from_bytes);
    work.to = write_down(lz4_.to);
    work.to_bytes = write_down(lz4_.to_bytes);
    return work;
  }

  Result<void> queue(Stream stream) {
    if (event_ == nullptr) {
      auto made = device_.make_event();
      if (!made) return made.error();
      event_ = *made;
    }
    const DecodeLz4 lz4 = tell_lz4();
    if (tile_count_ != 0 || lz4_.size() != 0) runs_.push_back({memory_, image_, used_});
    Result<void> queued = device_.copy_batch(runs_, stream);
    if (queued && lz4_.size() != 0) queued = device_.launch(lz4, stream);
    for (const Launch& launch : launches_) {
      if (!queued || launch.tiles == 0) continue;
      const RebuildTiles work = work_of(launch);
      RebuildTiles descriptor = work;
      descriptor.tiles = tiles() + launch.first_tile;
      const Result<void> good = check(descriptor);
      BOWHEAD_ASSERT(good);
      queued = device_.launch(work, stream);
    }
    const uint64_t answers_bytes = lz4_answers_bytes() + tile_count_ * sizeof(uint32_t);
    if (queued && answers_bytes != 0)
      queued = device_.copy(answers(), memory_ + answers_at_, answers_bytes, stream);
    const Result<void> recorded = device_.record(event_, stream);
    // Queued work uses the memory until it is done.
    if (!queued && recorded) (void)device_.synchronize(event_);
    if (!recorded) abandon();
    if (!queued) return queued;
    is_started_ = static_cast<bool>(recorded);
    return recorded;
  }

  Device& device_;
  Event event_ = nullptr;
  bool is_started_ = false;

  uint8_t *image_ = nullptr, *memory_ = nullptr;  ///< pinned; of the device
  uint64_t image_room_ = 0, memory_room_ = 0;
  uint64_t image_bytes_ = 0, frames_bytes_ = 0, plain_bytes_ = 0;
  uint64_t used_ = 0, plain_used_ = 0;        ///< of the image, of plain streams
  uint64_t answers_at_ = 0, scratch_at_ = 0;  ///< on the device

  uint64_t most_tiles_ = 0, most_streams_bytes_ = 0;
  uint32_t most_channels_ = 0, tile_count_ = 0;
  std::vector<Opened> opened_;
  std::vector<Launch> launches_;
  std::vector<CopyRun> runs_;
  std::vector<size_t> job_of_;  ///< by tile
  Lz4Streams lz4_;
  std::vector<Status> statuses_;

  compression::Decoder decoder_{compression::FrameBytes::MAY_CHANGE};
  compression::StreamCoder coder_{compression::FrameBytes::MAY_CHANGE};
  TileParts parts_;
};

FrameDecoder::FrameDecoder(Device& device) : impl_(std::make_unique<Impl>(device)) {}
FrameDecoder::~FrameDecoder() = default;
FrameDecoder::FrameDecoder(FrameDecoder&&) noexcept = default;

Result<void> FrameDecoder::start(std::span<const FrameJob> jobs, Stream stream) {
  return impl_->start(jobs, stream);
}

Result<bool> FrameDecoder::is_done() { return impl_->is_done(); }

Result<std::span<const Status>> FrameDecoder::finish() { return impl_->finish(); }

}  // namespace bowhead::gpu
