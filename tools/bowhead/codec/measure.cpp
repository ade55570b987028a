// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/codec/measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

namespace bowhead::cli {
namespace {

using namespace compression;

/// Values and frames together exceed the caches, unless `quick`.
uint64_t walk_bytes(bool quick) {
  if (quick) return 256 << 10;
  const auto cache = static_cast<uint64_t>(std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L));
  return std::max<uint64_t>(64 << 20, cache);
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Speed speed_of(std::vector<double> seconds, uint64_t bytes) {
  std::sort(seconds.begin(), seconds.end());
  const auto gb_per_s = [&](double s) { return static_cast<double>(bytes) * 1e-9 / s; };
  return {gb_per_s(seconds[seconds.size() / 2]), gb_per_s(seconds.back()),
          gb_per_s(seconds.front())};
}

/// Several copies of the tensor's blocks, and their frames.
class Walk {
 public:
  static Result<Walk> of(const Tensor& tensor, const CodecOptions& options) {
    Walk walk;
    const uint64_t channels = tensor.number == NumberFormat::BYTES ? 1 : tensor.shape.back();
    const uint64_t dim = options.rotary_dim == 0 ? channels : options.rotary_dim;
    if (channels > UINT16_MAX)
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("{}: {} channels, but a frame takes at most 65,535", tensor.name, channels)};
    if (options.rope_base != 0 && (dim % 2 != 0 || channels % dim != 0 || options.rope_base <= 1))
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("{}: {} channels cannot be divided into heads of {} rotary channels",
                               tensor.name, channels, dim)};
    const uint64_t row = channels * element_bytes(tensor.number);
    const uint64_t all = tensor.values.size() / row;
    const uint64_t tokens = tensor.number == NumberFormat::BYTES || tensor.shape.size() < 2
                                ? all
                                : tensor.shape[tensor.shape.size() - 2];
    const uint64_t wanted = std::max<uint64_t>(options.block_bytes / row, 1);
    for (uint64_t first = 0; first < all; first += tokens) {
      for (uint64_t t = 0; t < tokens; t += wanted) {
        const uint64_t count = std::min(wanted, tokens - t);
        walk.blocks_.push_back({(first + t) * row, static_cast<uint32_t>(count)});
      }
    }
    walk.shape_ = {tensor.number, 1, static_cast<uint32_t>(std::min(wanted, tokens)),
                   static_cast<uint32_t>(channels)};
    if (options.rope_base != 0) {
      walk.shape_.rotary = rotary_of(options.rope_base, static_cast<uint32_t>(dim));
      walk.shape_.rotary.interleaved = options.rope_interleaved;
    }
    walk.tensor_bytes_ = tensor.values.size();
    walk.copies_ = std::max<uint64_t>(walk_bytes(options.quick) / walk.tensor_bytes_, 1);
    for (uint64_t copy = 0; copy < walk.copies_; ++copy)
      walk.values_.insert(walk.values_.end(), tensor.values.begin(), tensor.values.end());
    walk.out_.resize(walk.values_.size());
    for (const auto& block : walk.blocks_) walk.room_ += frame_bound(walk.shape_of(block));
    walk.frames_.resize(walk.room_ * walk.copies_);
    return walk;
  }

  const Shape& shape() const { return shape_; }
  uint64_t block_count() const { return blocks_.size(); }
  uint64_t walked_bytes() const { return values_.size(); }
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  void copy() { std::memcpy(out_.data(), values_.data(), values_.size()); }
  Status encode(Encoder& encoder) {
    ends_.clear();
    uint64_t at = 0;
    for (uint64_t copy = 0; copy < copies_; ++copy) {
      for (const Block& block : blocks_) {
        const Shape shape = shape_of(block);
        const auto size = encoder.encode(
            shape, ConstBytes(values_).subspan(copy * tensor_bytes_ + block.at, shape.size_bytes()),
            Bytes(frames_).subspan(at));
        if (!size) return size.status();
        at += *size;
        ends_.push_back(at);
      }
    }
    return Status::OK;
  }
  /// Calls decode(frame, values) for each block.
  template <class Decode>
  Status decode(const Decode& decode) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < ends_.size(); ++i) {
      const Block& block = blocks_[i % blocks_.size()];
      const uint64_t begin = i / blocks_.size() * tensor_bytes_ + block.at;
      const Status status = decode(ConstBytes(frames_).subspan(at, ends_[i] - at),
                                   Bytes(out_).subspan(begin, shape_of(block).size_bytes()));
      if (status != Status::OK) return status;
      at = ends_[i];
    }
    return Status::OK;
  }
  bool came_back() const { return out_ == values_; }
  void forget() { std::fill(out_.begin(), out_.end(), uint8_t{0}); }
  /// For one copy of the tensor.
  uint64_t frames_bytes() const { return ends_[blocks_.size() - 1]; }

  /// Root mean square error, relative to the root mean square of the values.
  double error() const {
    double wrong = 0, all = 0;
    const uint32_t bytes = element_bytes(shape_.number);
    for (uint64_t i = 0; i < tensor_bytes_; i += bytes) {
      const double right = value_of(shape_.number, bits_at(values_, i));
      if (!std::isfinite(right)) continue;
      const double difference = right - value_of(shape_.number, bits_at(out_, i));
      wrong += difference * difference;
      all += right * right;
    }
    return all == 0 ? 0 : std::sqrt(wrong / all);
  }

 private:
  struct Block {
    uint64_t at;
    uint32_t tokens;
  };

  Shape shape_of(const Block& block) const {
    Shape shape = shape_;
    shape.tokens = block.tokens;
    return shape;
  }
  uint32_t bits_at(const std::vector<uint8_t>& values, uint64_t at) const {
    return element_bytes(shape_.number) == 1 ? values[at]
                                             : values[at] | uint32_t{values[at + 1]} << 8;
  }

  Shape shape_;
  uint64_t tensor_bytes_ = 0, copies_ = 0, room_ = 0;
  std::vector<Block> blocks_;
  std::vector<uint8_t> values_, out_, frames_;
  std::vector<uint64_t> ends_;
};

Result<ProfileReport> measure_profile(Walk& walk, Profile profile, const CodecOptions& options) {
  ProfileReport report{.profile = profile, .values_bytes = walk.tensor_bytes()};
  Encoder encoder(profile);
  Decoder decoder;
  std::vector<double> encode, decode, copy;
  const auto decode_one = [&](ConstBytes frame, Bytes out) { return decoder.decode(frame, out); };
  Status status = Status::OK;
  for (uint32_t round = 0; round <= options.rounds && status == Status::OK; ++round) {
    const double copied = seconds_of([&] { walk.copy(); });
    const double encoded = seconds_of([&] { status = walk.encode(encoder); });
    if (status != Status::OK) break;
    if (round == 0) walk.forget();
    const double decoded = seconds_of([&] { status = walk.decode(decode_one); });
    if (status == Status::OK && !walk.came_back()) status = Status::DAMAGED;
    if (round == 0) continue;  // the first round verifies and touches every page
    copy.push_back(copied);
    encode.push_back(encoded);
    decode.push_back(decoded);
  }
  if (status != Status::OK)
    return Error{status, fmt::format("a block was not restored exactly ({})", status_name(status))};
  uint64_t frames = 0;
  status = walk.decode([&](ConstBytes frame, Bytes) {
    if (frames++ >= walk.block_count()) return Status::OK;
    if (const auto info = frame_info(frame)) report.planes = info->planes;
    return decoder.stream_bytes(frame, report.stream_bytes);
  });
  if (status != Status::OK) return status;
  report.frames_bytes = walk.frames_bytes();
  report.encode = speed_of(encode, walk.walked_bytes());
  report.decode = speed_of(decode, walk.walked_bytes());
  report.copy = speed_of(copy, walk.walked_bytes());
  return report;
}

Result<PrecisionReport> measure_precision(Walk& walk, uint32_t planes,
                                          const CodecOptions& options) {
  PrecisionReport report{.planes = planes};
  Decoder decoder;
  std::vector<double> seconds;
  uint64_t read = 0;
  Status status = Status::OK;
  const auto decode_one = [&](ConstBytes frame, Bytes out) {
    ReadReport one;
    const Status decoded = decoder.decode_prefix(frame, planes, out, &one);
    read += one.bytes_read;
    return decoded;
  };
  for (uint32_t round = 0; round < options.rounds && status == Status::OK; ++round) {
    read = 0;
    seconds.push_back(seconds_of([&] { status = walk.decode(decode_one); }));
  }
  if (status != Status::OK) return status;
  const auto values = static_cast<double>(walk.walked_bytes() / element_bytes(walk.shape().number));
  report.bits_per_value = static_cast<double>(read) * 8 / values;
  report.error = walk.error();
  report.decode = speed_of(seconds, walk.walked_bytes());
  return report;
}

}  // namespace

Result<TensorReport> measure_tensor(const Tensor& tensor, const CodecOptions& options,
                                    const std::vector<Profile>& profiles) {
  auto walk = Walk::of(tensor, options);
  if (!walk) return walk.error();
  TensorReport report{walk->block_count(), walk->shape(), {}, {}};
  for (const Profile profile : profiles) {
    auto measured = measure_profile(*walk, profile, options);
    if (!measured) return Error{measured.status(), tensor.name + ": " + measured.error().message()};
    report.profiles.push_back(std::move(*measured));
  }
  for (uint32_t planes = 2; planes <= report.profiles.back().planes; ++planes) {
    auto measured = measure_precision(*walk, planes, options);
    if (!measured) return measured.error();
    report.precisions.push_back(*measured);
  }
  return report;
}

}  // namespace bowhead::cli
