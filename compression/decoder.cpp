// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <vector>

#include "compression/frame_parts.h"

namespace bowhead::compression {

class Decoder::Impl {
 public:
  /// `planes` 0: exactly.
  Status decode(ConstBytes bytes, uint32_t planes, Bytes out, ReadReport* report) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    if (out.size() != frame->shape.size_bytes()) return Status::INVALID_ARGUMENT;
    const Number* number = number_of(frame->shape.number);
    if (planes > (number == nullptr ? 0 : number->planes())) return Status::INVALID_ARGUMENT;
    read_bytes_ = sizeof(bh_frame_header) + frame->table.size();
    uint64_t at = read_bytes_;
    for (uint64_t tile = 0; tile < frame->tiling.tiles; ++tile) {
      const ConstBytes part = frame->tile_at(tile, at);
      const uint32_t tokens = frame->tiling.tokens_of(frame->shape.tokens, tile);
      const size_t values_bytes = tokens * frame->shape.row_bytes();
      const Status status = decode_tile(*frame, part, tokens, planes, out.first(values_bytes));
      if (status != Status::OK) return status;
      out = out.subspan(values_bytes);
      at += part.size();
    }
    if (report != nullptr) report->bytes_read = read_bytes_;
    return at == bytes.size() ? Status::OK : Status::DAMAGED;
  }

  Status decode_tokens(ConstBytes bytes, uint32_t outer, uint32_t first, uint32_t count,
                       Bytes out) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    const Shape& shape = frame->shape;
    if (outer >= shape.outer || count == 0 || first >= shape.tokens ||
        count > shape.tokens - first || out.size() != count * shape.row_bytes())
      return Status::INVALID_ARGUMENT;
    const Tiling& tiling = frame->tiling;
    uint64_t tile = tiling.tile_of(outer, first);
    for (uint64_t at = frame->offset_of(tile); !out.empty(); ++tile) {
      const ConstBytes coded = frame->tile_at(tile, at);
      const uint32_t tokens = tiling.tokens_of(shape.tokens, tile);
      const uint32_t skipped = first % tiling.tile_tokens;
      const uint32_t taken = std::min(tokens - skipped, count);
      const size_t part = taken * shape.row_bytes();
      if (taken == tokens) {
        const Status status = decode_tile(*frame, coded, tokens, 0, out.first(part));
        if (status != Status::OK) return status;
      } else {
        values_.resize(std::max(values_.size(), tokens * shape.row_bytes()));
        const Bytes whole = Bytes(values_).first(tokens * shape.row_bytes());
        const Status status = decode_tile(*frame, coded, tokens, 0, whole);
        if (status != Status::OK) return status;
        std::memcpy(out.data(), whole.data() + skipped * shape.row_bytes(), part);
      }
      out = out.subspan(part);
      first += taken;
      count -= taken;
      at += coded.size();
    }
    return Status::OK;
  }

  Status stream_bytes(ConstBytes bytes, std::span<uint64_t, kMaxPlanes + 3> out) {
    const auto frame = open_frame(bytes);
    if (!frame) return frame.status();
    const Number* number = number_of(frame->shape.number);
    uint64_t& rest = out[kMaxPlanes + 2];
    uint64_t at = sizeof(bh_frame_header) + frame->table.size();
    rest += at;
    for (uint64_t tile = 0; tile < frame->tiling.tiles; ++tile) {
      const ConstBytes part = frame->tile_at(tile, at);
      if (part.empty()) return Status::DAMAGED;
      at += part.size();
      rest += part.size();
      ByteReader from(part);
      if (from.u8() != BH_TILE_PLANES || number == nullptr) continue;
      TileHead head;
      const uint32_t tokens = frame->tiling.tokens_of(frame->shape.tokens, tile);
      if (const Status status =
              read_tile_parameters(from, frame->shape, part, tokens, head, parameters_);
          status != Status::OK)
        return status;
      for (uint32_t s = 0; s < stream_count(*number); ++s) {
        const uint32_t to = s < number->planes() ? s : kMaxPlanes + s - number->planes();
        out[to] += head.streams[s].coded_bytes;
        rest -= std::min(rest, head.streams[s].coded_bytes);
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
    if (from.u8() != BH_TILE_PLANES || number == nullptr) return Status::OK;
    TileHead head;
    const uint32_t tokens = frame->tiling.tokens_of(shape.tokens, tile);
    if (const Status status =
            read_tile_parameters(from, frame->shape, part, tokens, head, parameters_);
        status != Status::OK)
      return status;
    const int bias = number->is_float() ? (1 << (number->exponent_bits - 1)) - 1 : 0;
    for (uint32_t c = 0; c < shape.channels; ++c)
      out[c] = std::ldexp(1.0f, parameters_.exponents[c] - bias - number->mantissa_bits);
    return Status::OK;
  }

 private:
  Status decode_tile(const Frame& frame, ConstBytes tile, uint32_t tokens, uint32_t planes,
                     Bytes out) {
    ByteReader from(tile);
    const uint32_t layout = from.u8();
    if (layout == BH_TILE_PLANES && number_of(frame.shape.number) != nullptr)
      return decode_planes(frame, tile, from, tokens, planes, out);
    if (layout != BH_TILE_STORED && layout != BH_TILE_BYTES)
      return from.good() ? Status::UNSUPPORTED_CODEC : Status::DAMAGED;
    const uint32_t codec = layout == BH_TILE_BYTES ? from.u8() : uint32_t{BH_STREAM_STORED};
    if (codec > kLastStreamCodec) return Status::UNSUPPORTED_CODEC;
    const uint32_t checksum = from.u32();
    if (!from.good()) return Status::DAMAGED;
    const ConstBytes coded = tile.subspan(from.at());
    read_bytes_ += tile.size();
    if (rest_checksum(layout, codec, coded) != checksum) return Status::DAMAGED;
    return coder_.decode(static_cast<StreamCodec>(codec), coded, out) ? Status::OK
                                                                      : Status::DAMAGED;
  }

  Status decode_planes(const Frame& frame, ConstBytes bytes, ByteReader& from, uint32_t tokens,
                       uint32_t planes, Bytes out) {
    const Number& number = *number_of(frame.shape.number);
    const uint32_t channels = frame.shape.channels;
    TileHead head;
    if (const Status status =
            read_tile_parameters(from, frame.shape, bytes, tokens, head, parameters_);
        status != Status::OK)
      return status;
    read_bytes_ += from.at();

    const bool exact = planes == 0;
    Merge in{.plane_count = exact ? number.planes() : planes, .exact = exact};
    if (const Status status =
            read_streams(number, head, bytes.subspan(from.at()), tokens, channels, in);
        status != Status::OK)
      return status;
    const TileFrame tile{
        number, tokens, channels, parameters_.exponents.data(),
        centres_.make(number, {parameters_.exponents.data(), channels}, parameters_.amplitudes,
                      head.centre_shift, head.centre_turns ? frame.shape.rotary : Rotary{})};
    return plane_kernels().merge(tile, in, out.data()) ? Status::OK : Status::DAMAGED;
  }

  /// Finds, verifies and decodes the streams that `in` wants.
  Status read_streams(const Number& number, const TileHead& head, ConstBytes bytes, uint32_t tokens,
                      uint32_t channels, Merge& in) {
    const uint32_t streams = stream_count(number);
    const uint64_t values = uint64_t{tokens} * channels;
    const uint64_t most[] = {most_remainder_bytes(number, values), values};
    ByteReader from(bytes);
    ConstBytes coded[kMaxStreams];
    const Groups groups(number, plane_bytes(channels, tokens));
    size_t begins[kMaxPlanes + 2] = {};  // of groups; of what is behind them
    for (uint32_t s = 0; s < streams; ++s) {
      const StreamSize& stream = head.streams[s];
      if (s >= number.planes() && stream.plain_bytes > most[s - number.planes()])
        return Status::DAMAGED;
      coded[s] = from.bytes(stream.coded_bytes);
      if (!from.good()) return Status::DAMAGED;
      for (uint32_t next = groups.of(s) + 1; next <= groups.count(); ++next)
        begins[next] = from.at();
    }
    if (from.at() != bytes.size()) return Status::DAMAGED;
    const uint32_t wanted = in.exact ? streams : in.plane_count;
    for (uint32_t group = 0; group <= groups.of(wanted - 1); ++group) {
      const ConstBytes covered = bytes.subspan(begins[group], begins[group + 1] - begins[group]);
      if (checksum32(covered) != head.checksums[group]) return Status::DAMAGED;
      read_bytes_ += covered.size();
    }
    size_t needed = 0;
    for (uint32_t s = 0; s < wanted; ++s) needed += head.streams[s].plain_bytes;
    plain_.resize(std::max(plain_.size(), needed));
    Bytes to(plain_);
    for (uint32_t s = 0; s < wanted; ++s) {
      ConstBytes plain = coded[s];
      if (head.streams[s].codec != StreamCodec::STORED) {
        const Bytes part = to.first(head.streams[s].plain_bytes);
        if (!coder_.decode(head.streams[s].codec, coded[s], part)) return Status::DAMAGED;
        plain = part;
        to = to.subspan(part.size());
      }
      if (s < number.planes())
        in.planes[s] = plain.data();
      else
        (s == number.planes() ? in.remainder : in.exceptions) = plain;
    }
    return Status::OK;
  }

  StreamCoder coder_;
  CentreMaker centres_;
  TileParameters parameters_;
  Lines<uint8_t> plain_, values_;
  uint64_t read_bytes_ = 0;
};

Decoder::Decoder() : impl_(std::make_unique<Impl>()) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Status Decoder::decode(ConstBytes frame, Bytes out) {
  return impl_->decode(frame, 0, out, nullptr);
}

Status Decoder::decode_tokens(ConstBytes frame, uint32_t outer, uint32_t first, uint32_t count,
                              Bytes out) {
  return impl_->decode_tokens(frame, outer, first, count, out);
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
