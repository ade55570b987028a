// SPDX-License-Identifier: Apache-2.0
// The data before the streams of a tile, written and read (docs/frame.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "compression/directory.h"
#include "compression/planes.h"
#include "compression/stream.h"

namespace bowhead::compression {

inline constexpr uint32_t kMaxStreams = kMaxPlanes + 2;  // planes, remainder, exceptions

/// One stream of a tile: its bytes in the frame and decoded.
struct StreamSize {
  StreamCodec codec = StreamCodec::STORED;
  uint64_t coded_bytes = 0;
  uint64_t plain_bytes = 0;
};

struct TileHeader {
  uint8_t exponent_base = 0;
  uint8_t exponent_width = 0;  ///< bits of each channel's exponent above the base
  uint8_t centre_width = 0;    ///< bits of each channel's amplitude; 0: no centre
  uint8_t centre_shift = 0;
  bool centre_turns = false;
  bool searchable = false;            ///< with a directory, of which the next members say the size
  bool has_spreads = false;           ///< of each channel
  uint32_t step_bits_least = 0;       ///< is added to the bits of each step
  uint8_t step_bits_width = 0;        ///< bits of a step's number of bits
  uint8_t step_exceptions_width = 0;  ///< and of exceptions
  uint32_t steps_noted = 0;
  std::array<StreamSize, kMaxStreams> streams;
  std::array<uint32_t, kMaxPlanes + 1> checksums;  ///< of groups of streams
  size_t checksums_at = 0;                         ///< in the tile, if it was read
};

inline uint32_t stream_count(const Number& number) { return number.planes() + 2; }
inline size_t packed_bytes(size_t count, uint32_t width) { return (count * width + 7) / 8; }
/// The bytes of exponents and amplitudes, and of the directory after them.
inline size_t channel_bytes(const TileHeader& header, uint32_t channels) {
  return packed_bytes(channels, header.exponent_width) +
         packed_bytes(channels, header.centre_width);
}
inline size_t directory_bytes(const TileHeader& header, uint32_t channels) {
  return (header.has_spreads ? channels : 0) +
         packed_bytes(header.steps_noted, header.step_bits_width) +
         packed_bytes(header.steps_noted, header.step_exceptions_width);
}
inline size_t parameter_bytes(const TileHeader& header, uint32_t channels) {
  return channel_bytes(header, channels) + directory_bytes(header, channels);
}
/// Whether this is the layout of a tile in planes.
inline bool is_in_planes(uint32_t layout) {
  return layout == BH_TILE_PLANES || layout == BH_TILE_SEARCHABLE;
}

/// The streams that one checksum covers: each plane, or, where planes are short, the sign and four
/// planes, then the other planes; last the streams after the planes.
class Groups {
 public:
  Groups(const Number& number, uint64_t plane_bytes)
      : planes_(number.planes()), single_(plane_bytes >= 1024) {}
  uint32_t count() const { return of(planes_) + 1; }
  uint32_t of(uint32_t stream) const {
    if (stream >= planes_) return single_ ? planes_ : 2;
    return single_ ? stream : stream < 5 ? 0u : 1u;
  }

 private:
  uint32_t planes_;
  bool single_;
};

/// Writes bytes one after the other; the caller guarantees the space.
class ByteWriter {
 public:
  explicit ByteWriter(uint8_t* to) : begin_(to), to_(to) {}
  void u8(uint32_t value) { *to_++ = static_cast<uint8_t>(value); }
  void u32(uint32_t value) {
    for (int i = 0; i < 4; ++i) u8(value >> 8 * i & 0xFF);
  }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) u8(static_cast<uint32_t>(value & 0x7F) | 0x80);
    u8(static_cast<uint32_t>(value));
  }
  void bytes(std::span<const uint8_t> bytes) {
    if (!bytes.empty()) std::memcpy(to_, bytes.data(), bytes.size());
    to_ += bytes.size();
  }
  /// Writes `width` bits of each value, the first lowest.
  template <class Values>
  void packed(const Values& values, uint32_t width) {
    uint64_t pending = 0;
    uint32_t fill = 0;
    if (width == 0) return;
    for (const auto value : values) {
      pending |= (static_cast<uint64_t>(value) & ((1ull << width) - 1)) << fill;
      for (fill += width; fill >= 8; fill -= 8, pending >>= 8) u8(pending & 0xFF);
    }
    if (fill > 0) u8(static_cast<uint32_t>(pending));
  }
  size_t size() const { return static_cast<size_t>(to_ - begin_); }
  uint8_t* position() { return to_; }

 private:
  uint8_t* begin_;
  uint8_t* to_;
};

/// Reads bytes one after the other; after the end all bytes are zero and good() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> from) : from_(from) {}
  uint32_t u8() {
    if (at_ < from_.size()) return from_[at_++];
    good_ = false;
    return 0;
  }
  uint32_t u32() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= u8() << 8 * i;
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 42; shift += 7) {
      const uint64_t byte = u8();
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  std::span<const uint8_t> bytes(uint64_t count) {
    if (count > from_.size() - at_) {
      good_ = false;
      return {};
    }
    const auto part = from_.subspan(at_, count);
    at_ += count;
    return part;
  }
  bool good() const { return good_; }
  size_t at() const { return at_; }

 private:
  std::span<const uint8_t> from_;
  size_t at_ = 0;
  bool good_ = true;
};

/// Calls each(i, value) for the values of a complete packed array.
template <class Each>
void for_packed(std::span<const uint8_t> packed, uint32_t width, uint32_t count, const Each& each) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t bit = 0;
  for (uint32_t i = 0; i < count; ++i, bit += width) {
    const auto from = packed.subspan(std::min<size_t>(bit / 8, packed.size()));
    uint64_t bits = 0;
    if (from.size() >= 8) {
      std::memcpy(&bits, from.data(), 8);
    } else {
      for (size_t byte = 0; byte < from.size(); ++byte) bits |= uint64_t{from[byte]} << 8 * byte;
    }
    each(i, static_cast<uint32_t>(bits >> bit % 8 & mask));
  }
}

/// The tiles of a frame.
struct Tiling {
  uint32_t tile_tokens = 0;
  uint32_t tiles_per_outer = 0;
  uint64_t tiles = 0;

  /// Bytes of the table of sizes; one tile needs none.
  uint64_t table_bytes() const { return tiles > 1 ? tiles * 4 : 0; }
  uint64_t tile_of(uint32_t outer, uint32_t token) const {
    return uint64_t{outer} * tiles_per_outer + token / tile_tokens;
  }
  /// Tokens of tile `index`.
  uint32_t tokens_of(uint32_t tokens, uint64_t index) const {
    const auto within = static_cast<uint32_t>(index % tiles_per_outer);
    return std::min(tile_tokens, tokens - within * tile_tokens);
  }
};

inline Tiling tiling_of(uint32_t outer, uint32_t tokens, uint32_t tile_tokens) {
  const uint32_t per_outer = (tokens + tile_tokens - 1) / tile_tokens;
  return {tile_tokens, per_outer, uint64_t{outer} * per_outer};
}

}  // namespace bowhead::compression
