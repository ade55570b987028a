// SPDX-License-Identifier: Apache-2.0
// Tiles of 64 KiB of synthetic keys and values, the same ones again and again but each with streams
// of its own. The kernel is timed with its streams decoded and on the device; a batch of frames
// from pinned memory to the end of the kernel.
#include "bench/gpu_rebuild_bench.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/team.h"
#include "compression/stream.h"
#include "compression/tiles.h"
#include "gpu/jobs/frame_tiles.h"
#include "gpu/jobs/frames.h"
#include "gpu/kernels/check.h"
#include "gpu/kernels/rebuild_tiles.h"
#include "tools/program/kv_data.h"

namespace bowhead::bench {
namespace {

using compression::Shape;
using gpu::RebuildTile;
using gpu::RebuildTiles;
using namespace tensors;

using Buffer = std::vector<uint8_t>;

/// Memory of the device or pinned, until the end of a scope.
class Memory {
 public:
  explicit Memory(gpu::Device& device) : device_(device) {}
  ~Memory() {
    for (void* memory : all_) device_.free(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Result<uint8_t*> take(size_t bytes, bool is_pinned) {
    auto memory = is_pinned ? device_.allocate_pinned(bytes) : device_.allocate(bytes);
    if (!memory) return memory.error();
    all_.push_back(*memory);
    return static_cast<uint8_t*>(*memory);
  }

 private:
  gpu::Device& device_;
  std::vector<void*> all_;
};

/// A frame's tiles as the kernel takes them, over and over.
struct Image {
  Buffer streams;
  std::vector<RebuildTile> tiles;   ///< offsets are in `streams`
  std::vector<uint64_t> values_at;  ///< by tile
};

Result<Image> image_of(const Buffer& frame, uint32_t planes) {
  Image image;
  compression::TileReader reader;
  compression::StreamCoder coder;
  compression::TileParts parts;
  const auto append = [&](compression::ConstBytes bytes) {
    const auto at = static_cast<uint32_t>(image.streams.size());
    image.streams.insert(image.streams.end(), bytes.begin(), bytes.end());
    return at;
  };
  Status status = reader.open(frame, planes);
  while (status == Status::OK && !reader.at_end()) {
    status = reader.next(parts);
    if (status != Status::OK) break;
    if (!parts.in_planes) return Error{Status::DAMAGED, "a tile is not in planes"};
    const auto place = [&](uint64_t offset, uint64_t bytes) {
      return append({frame.data() + offset, bytes});
    };
    const auto place_stream = [&](uint32_t stream, bool) -> std::optional<uint32_t> {
      Buffer plain(parts.streams[stream].plain_bytes);
      if (!coder.decode(parts.streams[stream].codec, parts.stream(frame, stream), plain))
        return std::nullopt;
      return append(plain);
    };
    const auto tile = gpu::rebuild_tile_of(reader.frame().shape, parts, place, place_stream);
    if (!tile) return Error{Status::DAMAGED, "a stream does not decode"};
    image.tiles.push_back(*tile);
    image.values_at.push_back(parts.values_offset);
  }
  image.streams.resize((image.streams.size() + 15) / 16 * 16);
  return status == Status::OK ? Result<Image>(std::move(image))
                              : Result<Image>(Error{status, "a frame cannot be read"});
}

RebuildTile moved(RebuildTile tile, uint32_t offset) {
  for (uint32_t& plane : tile.planes) plane += offset;
  tile.remainder += offset;
  tile.exceptions += offset;
  tile.parameters += offset;
  return tile;
}

class Rebuilds {
 public:
  Rebuilds(GpuRig& rig, const GpuBenchOptions& options, const Report& report)
      : rig_(rig), options_(options), report_(report), memory_(*rig.device) {}

  Result<void> open(const KvTensor& tensor) {
    what_ = kv_role_name(tensor.role);
    const uint32_t tokens = options_.quick ? 256 : tensor.tokens();
    shape_ = {tensor.number, 1, tokens, tensor.channels(), tensor.rotary};
    values_.assign(tensor.values.begin(),
                   tensor.values.begin() + static_cast<ptrdiff_t>(shape_.size_bytes()));
    frame_.resize(compression::frame_bound(shape_));
    const auto size =
        compression::Encoder(compression::Profile::FAST).encode(shape_, values_, frame_);
    if (!size) return size.error();
    frame_.resize(*size);
    copies_ = options_.quick ? 1 : (256u << 20) / shape_.size_bytes();
    auto out = memory_.take(2 * bytes(), false);
    if (!out) return out.error();
    out_ = *out;
    return {};
  }

  /// 0 planes: exact values.
  Result<void> kernel(uint32_t planes) {
    Memory memory(*rig_.device);
    const auto work = place(memory, planes);
    if (!work) return work.error();
    const auto rebuild = [&] {
      return rig_.run([&] { return rig_.device->launch(*work, rig_.stream); });
    };
    if (auto done = rebuild(); !done) return done;
    if (auto good = check_values(planes); !good) return good;
    std::vector<double> rates, limits;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      if (auto done = time(rates, rebuild); !done) return done;
      if (auto done = time(limits, [&] { return rig_.copy(out_ + bytes(), out_, bytes()); }); !done)
        return done;
    }
    Figure figure = figure_of("rebuild_bf16", planes, rates);
    rig_.set_limit(figure, "a copy on the device", rates, limits, 0.70);
    report_.add(figure);
    return {};
  }

  Result<void> frames() {
    Memory memory(*rig_.device);
    const auto pinned = memory.take(frame_.size() * copies_, true);
    if (!pinned) return pinned.error();
    std::vector<gpu::FrameJob> jobs;
    for (uint64_t i = 0; i < copies_; ++i) {
      uint8_t* const frame = *pinned + i * frame_.size();
      std::memcpy(frame, frame_.data(), frame_.size());
      jobs.push_back({{frame, frame_.size()}, out_ + i * values_.size(), values_.size(), 0});
    }
    gpu::FrameDecoder decoder(*rig_.device);
    const auto decode = [&]() -> Result<void> {
      if (auto started = decoder.start(jobs, rig_.stream); !started) return started;
      const auto statuses = decoder.finish();
      if (!statuses) return statuses.error();
      for (const Status status : *statuses) {
        if (status != Status::OK) return Error{status, "a frame failed"};
      }
      return {};
    };
    if (auto done = decode(); !done) return done;
    if (auto good = check_values(0); !good) return good;
    // No target: most of it is what one core of the CPU does.
    const auto source = memory.take(bytes(), true);
    if (!source) return source.error();
    std::vector<double> rates, limits;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      if (auto done = time(rates, decode); !done) return done;
      if (auto done = time(limits, [&] { return rig_.copy(out_, *source, bytes()); }); !done)
        return done;
    }
    Figure figure = figure_of("frames_bf16", 0, rates);
    figure.limit = Limit{"one pinned copy", summarize(limits)};
    figure.ratio = ratio_of(rates, limits);
    report_.add(figure);
    return {};
  }

 private:
  uint64_t bytes() const { return copies_ * values_.size(); }

  template <class F>
  Result<void> time(std::vector<double>& rates, const F& f) {
    const uint64_t begin_ns = now_ns();
    if (auto done = f(); !done) return done;
    rates.push_back(static_cast<double>(bytes()) / static_cast<double>(now_ns() - begin_ns));
    return {};
  }

  /// All copies of the tiles on the device, for a launch.
  Result<RebuildTiles> place(Memory& memory, uint32_t planes) {
    const auto image = image_of(frame_, planes);
    if (!image) return image.error();
    const uint64_t stream_bytes = image->streams.size() * copies_;
    const size_t count = image->tiles.size() * copies_, tile_bytes = count * sizeof(RebuildTile);
    const auto turns = compression::turns_of(shape_.rotary);
    const uint64_t turn_bytes = turns.size() * sizeof(compression::Turn);
    const auto pinned = memory.take(stream_bytes + tile_bytes + turn_bytes, true);
    if (!pinned) return pinned.error();
    const uint64_t scratch_bytes =
        gpu::rebuild_scratch_bytes(shape_.channels, static_cast<uint32_t>(count));
    const auto streams = memory.take(stream_bytes + RebuildTiles::kSlackBytes, false);
    const auto tiles = memory.take(tile_bytes + turn_bytes, false);
    const auto scratch = memory.take(scratch_bytes + count * sizeof(uint32_t), false);
    if (!streams || !tiles || !scratch)
      return Error{Status::NO_SPACE, "no device memory for the tiles"};
    std::vector<RebuildTile> all;
    for (uint64_t copy = 0; copy < copies_; ++copy) {
      std::memcpy(*pinned + copy * image->streams.size(), image->streams.data(),
                  image->streams.size());
      for (size_t i = 0; i < image->tiles.size(); ++i) {
        const auto offset = static_cast<uint32_t>(copy * image->streams.size());
        all.push_back(moved(image->tiles[i], offset));
        all.back().values = out_ + copy * values_.size() + image->values_at[i];
      }
    }
    std::memcpy(*pinned + stream_bytes, all.data(), tile_bytes);
    if (turn_bytes != 0) std::memcpy(*pinned + stream_bytes + tile_bytes, turns.data(), turn_bytes);
    if (auto copied = rig_.copy(*streams, *pinned, stream_bytes); !copied) return copied.error();
    if (auto copied = rig_.copy(*tiles, *pinned + stream_bytes, tile_bytes + turn_bytes); !copied)
      return copied.error();

    RebuildTiles work = gpu::rebuild_tiles_of(shape_, planes);
    work.turns = reinterpret_cast<const compression::Turn*>(*tiles + tile_bytes);
    work.bytes = *streams;
    work.size_bytes = stream_bytes;
    work.scratch = *scratch;
    work.faults = reinterpret_cast<uint32_t*>(*scratch + scratch_bytes);
    work.tile_count = static_cast<uint32_t>(count);
    work.tiles = all.data();
    if (auto good = gpu::check(work); !good) return good.error();
    work.tiles = reinterpret_cast<const RebuildTile*>(*tiles);
    return work;
  }

  /// The last copy of the values, and nothing of what was there before.
  Result<void> check_values(uint32_t planes) {
    Buffer wanted(values_.size()), got(values_.size());
    compression::Decoder decoder;
    const Status status = planes == 0 ? decoder.decode(frame_, wanted)
                                      : decoder.decode_prefix(frame_, planes, wanted);
    if (status != Status::OK) return Error{status, "a frame does not decode"};
    uint8_t* const last = out_ + (copies_ - 1) * values_.size();
    if (auto copied = rig_.copy(got.data(), last, got.size()); !copied) return copied;
    if (got != wanted) return Error{Status::DAMAGED, "values are rebuilt as other ones"};
    const Buffer other(values_.size(), 0x5A);
    return rig_.copy(last, other.data(), other.size());
  }

  Figure figure_of(const char* row, uint32_t planes, const std::vector<double>& rates) const {
    Figure figure = rig_.figure(row, rates);
    figure.what = fmt::format("{}, {}, {}", row, what_,
                              planes == 0 ? "exact" : fmt::format("{} planes", planes));
    figure.parameters["tensor"] = what_;
    figure.parameters["planes"] = planes;
    figure.parameters["bytes"] = bytes();
    return figure;
  }

  GpuRig& rig_;
  const GpuBenchOptions& options_;
  const Report& report_;
  Memory memory_;
  std::string what_;
  Shape shape_;
  Buffer values_, frame_;
  uint64_t copies_ = 0;
  uint8_t* out_ = nullptr;  ///< values, and as much again for the copy
};

}  // namespace

Result<void> measure_rebuild(GpuRig& rig, const GpuBenchOptions& options, const Report& report) {
  for (const KvTensor& tensor : make_kv_data().tensors) {
    if (tensor.number != NumberFormat::BF16 || tensor.role == KvRole::QUERIES) continue;
    report.progress(fmt::format("frames of {}", kv_role_name(tensor.role)));
    Rebuilds rebuilds(rig, options, report);
    if (auto opened = rebuilds.open(tensor); !opened) return opened;
    for (const uint32_t planes : {0u, 4u, 5u}) {
      if (auto good = rebuilds.kernel(planes); !good) return good;
    }
    if (auto good = rebuilds.frames(); !good) return good;
  }
  return {};
}

}  // namespace bowhead::bench
