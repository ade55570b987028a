// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <vector>

#include "compression/tiles.h"

namespace bowhead::compression {

class Decoder::Impl {
 public:
  explicit Impl(FrameBytes bytes) : coder_(bytes) {}

  /// `planes` 0: exact.
  Status decode(ConstBytes bytes, uint32_t planes, Bytes out, ReadReport* report) {
    TileReader tiles;
    if (const Status status = tiles.open(bytes, planes); status != Status::OK) return status;
    const Frame& frame = tiles.frame();
    if (out.size() != frame.shape.size_bytes()) return Status::INVALID_ARGUMENT;
    uint64_t read_bytes = frame.head_bytes();
    while (!tiles.at_end()) {
      if (const Status status = tiles.next(parts_); status != Status::OK) return status;
      read_bytes += parts_.bytes_read;
      const Bytes part = out.subspan(parts_.values_offset, parts_.values_bytes);
      if (const Status status = decode_tile(frame, planes, part); status != Status::OK)
        return status;
    }
    if (report != nullptr) report->bytes_read = read_bytes;
    return Status::OK;
  }

  Status decode_tokens(ConstBytes bytes, uint32_t outer, uint32_t first, uint32_t count, Bytes out,
                       ReadReport* report) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    const Shape& shape = frame->shape;
    if (outer >= shape.outer || count == 0 || first >= shape.tokens ||
        count > shape.tokens - first || out.size() != count * shape.row_bytes())
      return Status::INVALID_ARGUMENT;
    const Tiling& tiling = frame->tiling;
    uint64_t tile = tiling.tile_of(outer, first);
    for (uint64_t at = frame->offset_of(tile); !out.empty(); ++tile) {
      const uint32_t tokens = tiling.tokens_of(shape.tokens, tile);
      const uint32_t skipped = first % tiling.tile_tokens;
      const uint32_t taken = std::min(tokens - skipped, count);
      const size_t part = taken * shape.row_bytes();
      if (const Status status = read_tile(*frame, tile, at, 0, parts_); status != Status::OK)
        return status;
      if (taken == tokens) {
        const Status status = decode_tile(*frame, 0, out.first(part));
        if (status != Status::OK) return status;
      } else {
        values_.resize(std::max(values_.size(), tokens * shape.row_bytes()));
        const Bytes whole = Bytes(values_).first(tokens * shape.row_bytes());
        const Status status = decode_tile(*frame, 0, whole);
        if (status != Status::OK) return status;
        std::memcpy(out.data(), whole.data() + skipped * shape.row_bytes(), part);
      }
      out = out.subspan(part);
      first += taken;
      count -= taken;
      const size_t tile_bytes = frame->tile_at(tile, at).size();
      if (report != nullptr) report->bytes_read += tile_bytes;
      at += tile_bytes;
    }
    return Status::OK;
  }

  Status stream_bytes(ConstBytes bytes, std::span<uint64_t, kMaxPlanes + 3> out) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    const Number* number = number_of(frame->shape.number);
    uint64_t& rest = out[kMaxPlanes + 2];
    uint64_t at = frame->head_bytes();
    rest += at;
    for (uint64_t tile = 0; tile < frame->tiling.tiles; ++tile) {
      const ConstBytes part = frame->tile_at(tile, at);
      if (part.empty()) return Status::DAMAGED;
      at += part.size();
      rest += part.size();
      ByteReader from(part);
      if (!is_in_planes(part[0]) || number == nullptr) continue;
      TileHeader header;
      const uint32_t tokens = frame->tiling.tokens_of(frame->shape.tokens, tile);
      if (const Status status =
              read_tile_parameters(from, frame->shape, part, tokens, header, parameters_);
          status != Status::OK)
        return status;
      for (uint32_t s = 0; s < stream_count(*number); ++s) {
        const uint32_t to = s < number->planes() ? s : kMaxPlanes + s - number->planes();
        out[to] += header.streams[s].coded_bytes;
        rest -= std::min(rest, header.streams[s].coded_bytes);
      }
    }
    return at == bytes.size() ? Status::OK : Status::DAMAGED;
  }

  Status units(ConstBytes bytes, uint32_t outer, uint32_t token, std::span<float> out) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    const Shape& shape = frame->shape;
    if (outer >= shape.outer || token >= shape.tokens || out.size() != shape.channels)
      return Status::INVALID_ARGUMENT;
    const uint64_t tile = frame->tiling.tile_of(outer, token);
    const ConstBytes part = frame->tile_at(tile, frame->offset_of(tile));
    if (part.empty()) return Status::DAMAGED;
    std::fill(out.begin(), out.end(), 0.0f);
    const Number* number = number_of(shape.number);
    ByteReader from(part);
    if (!is_in_planes(part[0]) || number == nullptr) return Status::OK;
    TileHeader header;
    const uint32_t tokens = frame->tiling.tokens_of(shape.tokens, tile);
    if (const Status status =
            read_tile_parameters(from, frame->shape, part, tokens, header, parameters_);
        status != Status::OK)
      return status;
    const int bias = number->is_float() ? (1 << (number->exponent_bits - 1)) - 1 : 0;
    for (uint32_t c = 0; c < shape.channels; ++c)
      out[c] = std::ldexp(1.0f, parameters_.exponents[c] - bias - number->mantissa_bits);
    return Status::OK;
  }

 private:
  /// `planes`: the number for which `parts_` were read.
  Status decode_tile(const Frame& frame, uint32_t planes, Bytes out) {
    if (!parts_.in_planes)
      return coder_.decode(parts_.streams[0].codec, parts_.stream(frame.bytes, 0), out)
                 ? Status::OK
                 : Status::DAMAGED;
    const Number& number = *number_of(frame.shape.number);
    const uint32_t channels = frame.shape.channels;
    const bool exact = planes == 0;
    Merge in{.plane_count = exact ? number.planes() : planes, .exact = exact};
    if (!decode_streams(frame.bytes, number, in)) return Status::DAMAGED;
    const TileParameters& parameters = parts_.parameters;
    const TileHeader& header = parts_.header;
    const TileFrame tile{
        number, parts_.tokens, channels, parameters.exponents.data(),
        centres_.make(number, {parameters.exponents.data(), channels}, parameters.amplitudes,
                      header.centre_shift, header.centre_turns ? frame.shape.rotary : Rotary{})};
    return plane_kernels().merge(tile, in, out.data()) ? Status::OK : Status::DAMAGED;
  }

  /// For a tile in planes.
  bool decode_streams(ConstBytes frame, const Number& number, Merge& in) {
    size_t needed = 0;
    for (uint32_t s = 0; s < parts_.stream_count; ++s) needed += parts_.streams[s].plain_bytes;
    plain_.resize(std::max(plain_.size(), needed));
    Bytes to(plain_);
    for (uint32_t s = 0; s < parts_.stream_count; ++s) {
      ConstBytes plain = parts_.stream(frame, s);
      if (parts_.streams[s].codec != StreamCodec::STORED) {
        const Bytes part = to.first(parts_.streams[s].plain_bytes);
        if (!coder_.decode(parts_.streams[s].codec, plain, part)) return false;
        plain = part;
        to = to.subspan(part.size());
      }
      if (s < number.planes())
        in.planes[s] = plain.data();
      else
        (s == number.planes() ? in.remainder : in.exceptions) = plain;
    }
    return true;
  }

  StreamCoder coder_;
  CentreMaker centres_;
  TileParts parts_;
  TileParameters parameters_;
  Lines<uint8_t> plain_, values_;
};

Decoder::Decoder(FrameBytes bytes) : impl_(std::make_unique<Impl>(bytes)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Status Decoder::decode(ConstBytes frame, Bytes out) {
  return impl_->decode(frame, 0, out, nullptr);
}

Status Decoder::decode_tokens(ConstBytes frame, uint32_t outer, uint32_t first, uint32_t count,
                              Bytes out, ReadReport* report) {
  return impl_->decode_tokens(frame, outer, first, count, out, report);
}

Status Decoder::decode_prefix(ConstBytes frame, uint32_t planes, Bytes out, ReadReport* report) {
  if (planes == 0) return Status::INVALID_ARGUMENT;
  return impl_->decode(frame, planes, out, report);
}

Status Decoder::stream_bytes(ConstBytes frame, std::span<uint64_t, kMaxPlanes + 3> out) {
  return impl_->stream_bytes(frame, out);
}

Status Decoder::units(ConstBytes frame, uint32_t outer, uint32_t token, std::span<float> out) {
  return impl_->units(frame, outer, token, out);
}

}  // namespace bowhead::compression
