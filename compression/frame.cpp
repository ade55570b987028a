// SPDX-License-Identifier: Apache-2.0
#include "compression/frame.h"

#include <bowhead/format/frame.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "compression/frame_parts.h"

namespace bowhead::compression {

uint32_t checksum32(ConstBytes bytes, uint64_t seed) {
  return static_cast<uint32_t>(hash64(bytes.data(), bytes.size(), seed));
}

uint32_t head_checksum(const bh_frame_header& header, ConstBytes behind) {
  constexpr size_t kBefore = offsetof(bh_frame_header, table_checksum);
  return static_cast<uint32_t>(hash64(behind.data(), behind.size(), hash64(&header, kBefore)));
}

namespace {

Rotary rotary_in(const KvLayout& layout) {
  if (layout.rotary == BH_ROTARY_NONE) return {};
  Rotary rotary = rotary_of(rotary_base(layout), layout.rotary_channels);
  rotary.head = layout.key_channels;
  rotary.first = layout.rotary_first;
  rotary.interleaved = layout.rotary == BH_ROTARY_INTERLEAVED;
  return rotary;
}

/// DAMAGED: no rotation that an encoder writes; UNSUPPORTED_CODEC: pairs of a later version.
Status read_rotation(const bh_frame_header& header, ConstBytes behind, Rotary& rotary) {
  rotary = {.dim = header.rotary_dim, .ratio = header.rotary_ratio, .head = header.rotary_dim};
  if (header.version != BH_FRAME_VERSION_ROTATION) return Status::OK;
  bh_frame_rotation rotation;
  if (behind.size() < sizeof rotation) return Status::DAMAGED;
  std::memcpy(&rotation, behind.data(), sizeof rotation);
  rotary.head = rotation.head;
  rotary.first = rotation.first;
  rotary.step = rotation.step;
  rotary.interleaved = rotation.pairs == BH_ROTARY_INTERLEAVED;
  if (rotation.pairs > BH_ROTARY_INTERLEAVED) return Status::UNSUPPORTED_CODEC;
  const auto& reserved = rotation.reserved;
  const bool zero =
      std::all_of(std::begin(reserved), std::end(reserved), [](uint8_t byte) { return byte == 0; });
  return rotation.pairs != BH_ROTARY_NONE && has_rotation(rotary) && zero ? Status::OK
                                                                          : Status::DAMAGED;
}

}  // namespace

Result<Shape> shape_of(const KvLayout& l, uint64_t payload_bytes) {
  const auto no = [](std::string text) {
    return Error{Status::NOT_SUPPORTED, "compression of a layout: " + std::move(text)};
  };
  if (l.parts == 2 && l.key_channels != l.value_channels)
    return no(fmt::format("keys have {} channels and values {}, but both must have the same number",
                          l.key_channels, l.value_channels));
  if (l.scale_place != BH_SCALES_ELSEWHERE) return no("scales in the block are not supported");
  if (!is_opaque(l) && number_of(number_format(l)) == nullptr)
    return no(fmt::format("number format {} is not supported", number_name(number_format(l))));
  const bool heads_first = l.order == BH_ORDER_HEADS_FIRST;
  const uint32_t channels = heads_first ? l.key_channels : uint32_t{l.heads} * l.key_channels;
  if (channels > UINT16_MAX)
    return no(fmt::format("a token has {} channels in all heads, but at most {} are supported",
                          channels, UINT16_MAX));
  const auto tokens = tokens_in(l, payload_bytes);
  if (is_opaque(l) || !tokens)
    return Shape{NumberFormat::BYTES, 1, static_cast<uint32_t>(payload_bytes), 1, {}};
  const uint32_t outer = uint32_t{l.layers} * l.parts * (heads_first ? l.heads : 1u);
  return Shape{number_format(l), outer, static_cast<uint32_t>(*tokens), channels, rotary_in(l)};
}

size_t frame_bound(const Shape& shape) {
  if (!valid_shape(shape)) return 0;
  const Tiling tiling = tiling_of(shape.outer, shape.tokens, tile_tokens_of(shape));
  return head_bytes_of(shape, tiling) + tiling.tiles * kStoredTileHeaderBytes + shape.size_bytes();
}

bool valid_shape(const Shape& shape) {
  const bool known = shape.number == NumberFormat::BYTES || number_of(shape.number) != nullptr;
  const Rotary& rotary = shape.rotary;
  const bool turns = rotary.dim != 0;
  const bool turnable = rotary.dim % 2 == 0 && rotary.ratio != 0 && rotary.step != 0 &&
                        uint32_t{rotary.first} + rotary.dim <= rotary.head &&
                        shape.channels % std::max<uint32_t>(rotary.head, 1) == 0;
  return known && shape.outer > 0 && shape.tokens > 0 && shape.channels > 0 &&
         shape.channels <= UINT16_MAX &&
         (shape.number != NumberFormat::BYTES || shape.channels == 1) &&
         (turns ? turnable && shape.number != NumberFormat::BYTES : rotary == Rotary{}) &&
         shape.size_bytes() / shape.outer / shape.tokens == shape.row_bytes() &&
         shape.size_bytes() <= kMaxValuesBytes;
}

uint32_t tile_tokens_of(const Shape& shape) {
  constexpr uint64_t kTileBytes = 64 << 10, kGoodTokens = 128;
  if (shape.number == NumberFormat::BYTES)
    return static_cast<uint32_t>(std::min<uint64_t>(shape.tokens, kTileBytes - 1024));
  const uint64_t row = shape.row_bytes();
  const uint64_t most = kMaxTileValuesBytes / row;
  const uint64_t wanted =
      std::min<uint64_t>(std::min(std::max(kTileBytes / row, kGoodTokens), most), UINT16_MAX);
  const uint64_t tiles = (shape.tokens + wanted - 1) / wanted;
  return static_cast<uint32_t>((shape.tokens + tiles - 1) / tiles);
}

Result<Frame> open_frame(ConstBytes bytes) {
  bh_frame_header header;
  if (bytes.size() < sizeof header)
    return Error{Status::DAMAGED, "the frame ends within its header"};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != BH_FRAME_MAGIC) return Error{Status::DAMAGED, "not a frame"};
  if (header.version != BH_FRAME_VERSION && header.version != BH_FRAME_VERSION_ROTATION)
    return Error{Status::UNSUPPORTED_CODEC,
                 "the frame has a version that this build does not know"};
  Frame frame;
  frame.bytes = bytes;
  const ConstBytes behind = bytes.subspan(sizeof header);
  frame.shape = {
      static_cast<NumberFormat>(header.number), header.outer, header.tokens, header.channels, {}};
  const bool known = frame.shape.number == NumberFormat::BYTES || number_of(frame.shape.number);
  if (!known)
    return Error{Status::UNSUPPORTED_CODEC,
                 "the frame has a number format that this build does not know"};
  const Status rotation = read_rotation(header, behind, frame.shape.rotary);
  if (rotation == Status::UNSUPPORTED_CODEC)
    return Error{rotation, "the frame has a rotation that this build does not know"};
  if (rotation != Status::OK) return Error{rotation, "the frame has an impossible rotation"};
  if (!valid_shape(frame.shape) || header.tile_tokens == 0)
    return Error{Status::DAMAGED, "the frame has an impossible shape"};
  if (std::min<uint64_t>(header.tokens, header.tile_tokens) * frame.shape.row_bytes() >
      kMaxTileValuesBytes)
    return Error{Status::DAMAGED, "the tiles of the frame are too large"};
  frame.tiling = tiling_of(header.outer, header.tokens, header.tile_tokens);
  // Every tile has at least one byte, so a complete table bounds the shape.
  const uint64_t head_bytes = frame.head_bytes();
  if (head_bytes > bytes.size()) return Error{Status::DAMAGED, "the frame ends within its table"};
  frame.table = bytes.subspan(head_bytes - frame.tiling.table_bytes(), frame.tiling.table_bytes());
  if (head_checksum(header, behind.first(head_bytes - sizeof header)) != header.table_checksum)
    return Error{Status::DAMAGED, "the header of the frame does not match its checksum"};
  return frame;
}

Result<FrameInfo> frame_info(ConstBytes bytes) {
  const auto frame = open_frame(bytes);
  if (!frame) return frame.error();
  const Number* number = number_of(frame->shape.number);
  uint64_t size = frame->head_bytes();
  for (uint64_t tile = 0; tile < frame->table.size() / 4; ++tile) size += frame->table_entry(tile);
  if (frame->table.empty()) size = bytes.size();
  if (size != bytes.size())
    return Error{Status::DAMAGED, "the size of the frame differs from the sum of its tiles"};
  return FrameInfo{frame->shape, frame->tiling.tile_tokens,
                   number == nullptr ? 0 : number->planes(), size};
}

// ---- headers of tiles ----

void write_tile_header(ByteWriter& to, const Number& number, const TileHeader& header) {
  const uint32_t streams = stream_count(number);
  to.u8(header.searchable ? BH_TILE_SEARCHABLE : BH_TILE_PLANES);
  to.u8(header.exponent_base);
  to.u8(header.exponent_width | uint32_t{header.centre_width} << 4);
  to.u8(header.centre_shift | (header.centre_turns ? 0x80u : 0u));
  for (uint32_t s = 0; s < streams; s += 2) {
    const uint32_t next = s + 1 < streams ? static_cast<uint32_t>(header.streams[s + 1].codec) : 0;
    to.u8(static_cast<uint32_t>(header.streams[s].codec) | next << 4);
  }
  for (uint32_t s = 0; s < streams; ++s) {
    const StreamSize& stream = header.streams[s];
    if (s >= number.planes()) to.varint(stream.plain_bytes);
    if (stream.codec >= StreamCodec::LZ4) to.varint(stream.coded_bytes);
  }
  const Groups groups(number, header.streams[0].plain_bytes);
  for (uint32_t group = 0; group < groups.count(); ++group) to.u32(header.checksums[group]);
  if (!header.searchable) return;
  to.u8(header.has_spreads ? 1 : 0);
  if (!number.is_float()) return;
  to.varint(header.step_bits_least);
  to.u8(header.step_bits_width | uint32_t{header.step_exceptions_width} << 4);
}

namespace {

Status read_directory_sizes(ByteReader& from, const Shape& shape, uint32_t tokens,
                            TileHeader& header) {
  const uint32_t parts = from.u8();
  if (parts > 1) return Status::UNSUPPORTED_CODEC;
  header.has_spreads = parts == 1;
  if (!number_of(shape.number)->is_float()) return Status::OK;
  const uint64_t least = from.varint();
  const uint32_t widths = from.u8();
  header.step_bits_width = widths & 0xF;
  header.step_exceptions_width = static_cast<uint8_t>(widths >> 4);
  if (least > UINT16_MAX || header.step_bits_width > kMaxStepBitsWidth ||
      header.step_exceptions_width > kMaxStepExceptionsWidth)
    return Status::DAMAGED;
  header.step_bits_least = static_cast<uint32_t>(least);
  header.steps_noted = Steps::of(tokens, shape.channels).noted();
  return Status::OK;
}

}  // namespace

Status read_tile_header(ByteReader& from, const Shape& shape, uint32_t tokens, TileHeader& header) {
  const Number& number = *number_of(shape.number);
  const uint64_t plane_bytes = compression::plane_bytes(shape.channels, tokens);
  const uint32_t streams = stream_count(number);
  header = {};
  const uint32_t layout = from.u8();
  if (!is_in_planes(layout)) return Status::DAMAGED;
  header.searchable = layout == BH_TILE_SEARCHABLE;
  header.exponent_base = static_cast<uint8_t>(from.u8());
  const uint32_t widths = from.u8(), centre = from.u8();
  header.exponent_width = widths & 0xF;
  header.centre_width = static_cast<uint8_t>(widths >> 4);
  header.centre_shift = centre & 0x7F;
  header.centre_turns = (centre & 0x80) != 0;
  if (header.exponent_width > 8 || header.centre_shift > 15) return Status::DAMAGED;
  uint32_t pair = 0;
  for (uint32_t s = 0; s < streams; ++s) {
    pair = s % 2 == 0 ? from.u8() : pair >> 4;
    header.streams[s].codec = static_cast<StreamCodec>(pair & 0xF);
    if ((pair & 0xF) > kLastStreamCodec) return Status::UNSUPPORTED_CODEC;
  }
  const uint64_t values = uint64_t{tokens} * shape.channels;
  const uint64_t most[] = {most_remainder_bytes(number, values), values};
  for (uint32_t s = 0; s < streams; ++s) {
    StreamSize& stream = header.streams[s];
    stream.plain_bytes = s < number.planes() ? plane_bytes : from.varint();
    if (s >= number.planes() && stream.plain_bytes > most[s - number.planes()])
      return Status::DAMAGED;
    stream.coded_bytes = stream.codec == StreamCodec::ZERO     ? 0
                         : stream.codec == StreamCodec::STORED ? stream.plain_bytes
                                                               : from.varint();
  }
  const Groups groups(number, plane_bytes);
  header.checksums_at = from.at();
  for (uint32_t group = 0; group < groups.count(); ++group) header.checksums[group] = from.u32();
  if (header.searchable) {
    const Status status = read_directory_sizes(from, shape, tokens, header);
    if (status != Status::OK) return status;
  }
  return from.good() ? Status::OK : Status::DAMAGED;
}

namespace {

/// False: no encoder makes such parameters.
bool unpack_parameters(const Shape& shape, const TileHeader& header, ConstBytes packed,
                       TileParameters& parameters) {
  const uint32_t channels = shape.channels;
  if (header.centre_turns && shape.rotary.dim == 0) return false;
  parameters.exponents.assign(channels + 64, 0);
  const uint32_t most = (1u << number_of(shape.number)->exponent_bits) - 1;
  bool good = true;
  for_packed(packed, header.exponent_width, channels, [&](uint32_t c, uint32_t above) {
    const uint32_t exponent = header.exponent_base + above;
    good &= exponent <= most;
    parameters.exponents[c] = static_cast<uint16_t>(exponent);
  });
  parameters.amplitudes.clear();
  if (!good || header.centre_width == 0) return good;
  parameters.amplitudes.resize(channels);
  const uint32_t sign = 1u << (header.centre_width - 1);
  for_packed(packed.subspan(packed_bytes(channels, header.exponent_width)), header.centre_width,
             channels, [&](uint32_t c, uint32_t value) {
               parameters.amplitudes[c] = static_cast<int16_t>((value ^ sign) - sign);
             });
  return true;
}

}  // namespace

Status read_tile_parameters(ByteReader& from, const Shape& shape, ConstBytes tile, uint32_t tokens,
                            TileHeader& header, TileParameters& parameters) {
  const uint32_t channels = shape.channels;
  if (const Status status = read_tile_header(from, shape, tokens, header); status != Status::OK)
    return status;
  const ConstBytes packed = from.bytes(channel_bytes(header, channels));
  parameters.directory = from.bytes(directory_bytes(header, channels));
  const size_t covered = from.at();
  if (from.u32() != checksum32(tile.first(covered)) || !from.good()) return Status::DAMAGED;
  return unpack_parameters(shape, header, packed, parameters) ? Status::OK : Status::DAMAGED;
}

void read_steps(const TileHeader& header, uint32_t channels, ConstBytes directory,
                std::vector<StepCount>& steps) {
  steps.resize(header.steps_noted);
  directory = directory.subspan(header.has_spreads ? channels : 0);
  for_packed(directory, header.step_bits_width, header.steps_noted, [&](uint32_t i, uint32_t bits) {
    steps[i].bits = static_cast<uint16_t>(header.step_bits_least + bits);
  });
  directory = directory.subspan(packed_bytes(header.steps_noted, header.step_bits_width));
  for_packed(
      directory, header.step_exceptions_width, header.steps_noted,
      [&](uint32_t i, uint32_t count) { steps[i].exceptions = static_cast<uint16_t>(count); });
}

}  // namespace bowhead::compression
