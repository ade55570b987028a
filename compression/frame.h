// SPDX-License-Identifier: Apache-2.0
// Frames: a tensor of keys or values in fewer bytes. Lossless, and readable at lower precision from
// the first part of its bytes.
//
// A tensor is [outer][tokens][channels], contiguous, little-endian. It is divided into tiles of
// some tokens of one outer index, which are coded independently: a reader of some tokens touches
// only their tiles. Within a tile the numbers are fixed-point relative to the largest exponent of
// their channel, around a centre of the channel, split into bit-planes, the most significant first
// (compression/planes.h); each plane is coded on its own, or stored. docs/frame.md is the format.
//
// Statuses: DAMAGED means that no encoder wrote the frame; UNSUPPORTED_CODEC, that a newer Bowhead
// may have. In neither case does a decoder read or write out of bounds, or take longer than the
// size of its output justifies.
//
// Encoders and decoders are for one thread at a time. They allocate only when they meet a larger
// tile or another codec than before, and throw nothing but std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/kv_layout.h"
#include "base/status.h"
#include "compression/centre.h"
#include "compression/number.h"

namespace bowhead::compression {

using Bytes = std::span<uint8_t>;
using ConstBytes = std::span<const uint8_t>;

struct Shape {
  NumberFormat number = NumberFormat::BYTES;
  uint32_t outer = 1;     ///< product of all dimensions before the tokens: layers, K and V, heads
  uint32_t tokens = 0;    ///< BYTES: number of bytes
  uint32_t channels = 1;  ///< 1 to 65,535; BYTES: 1
  Rotary rotary = {};     ///< of keys after rotary position embedding

  uint64_t row_bytes() const { return uint64_t{channels} * element_bytes(number); }
  uint64_t size_bytes() const { return outer * tokens * row_bytes(); }
  /// Decodes to rows of the same shape: how keys rotate is for the encoder to use or not.
  bool has_rows_of(const Shape& other) const {
    Shape turned = other;
    turned.rotary = rotary;
    return *this == turned;
  }
  bool operator==(const Shape&) const = default;
};

enum class Profile : uint8_t {
  FAST,      ///< LZ4
  BALANCED,  ///< ZSTD where it saves an eighth of a plane
  DENSE      ///< ZSTD wherever it saves
};

/// The shape of a payload of this layout. A payload whose length fits no number of tokens is BYTES.
/// NOT_SUPPORTED: K and V with different channels, scales in the block, fp32, rows of more than
/// 65,535 channels.
Result<Shape> shape_of(const KvLayout& layout, uint64_t payload_bytes);

/// The largest size of a frame of this shape: the values and the headers.
size_t frame_bound(const Shape& shape);

class Encoder {
 public:
  explicit Encoder(Profile profile);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  /// Returns the bytes of the frame. INVALID_ARGUMENT: a shape that is empty, too large, or of
  /// another size than `values`; `out` is smaller than frame_bound().
  Result<size_t> encode(const Shape& shape, ConstBytes values, Bytes out);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct FrameInfo {
  Shape shape;
  uint32_t tile_tokens = 0;
  uint32_t planes = 0;      ///< of each value; 0 for BYTES
  uint64_t size_bytes = 0;  ///< of the frame
};

/// DAMAGED, UNSUPPORTED_CODEC.
Result<FrameInfo> frame_info(ConstBytes frame);

/// Whether the bytes of a frame stay as they are while they are decoded. Those of a leased block
/// may change if its lease lapses: then the values are wrong, or the frame seems to be damaged.
enum class FrameBytes { STAY, MAY_CHANGE };

struct ReadReport {
  uint64_t bytes_read = 0;  ///< bytes of the frame that were read to verify and decode
};

/// Fetches a frame piece by piece from memory that is far or should not be read whole: first the
/// bytes that decode_prefix() of few planes touches; later, into the same buffer, those of more
/// planes.
class FramePieces {
 public:
  /// Copies a part of the frame; a status other than OK ends the fetch.
  using Read = std::function<Status(uint64_t offset, Bytes to)>;

  /// Reads the missing parts of `frame`, which has space for all of it, so that decode_prefix()
  /// with this number of planes, or decode() if `planes` is 0, finds what it touches. Other bytes
  /// keep their content. INVALID_ARGUMENT: too many planes; DAMAGED, UNSUPPORTED_CODEC, as far as
  /// the headers show; any status of `read`. After any of these, start again.
  Status fetch(uint32_t planes, const Read& read, Bytes frame);
  uint64_t bytes_fetched() const { return bytes_fetched_; }

 private:
  uint64_t header_end_ = 0;     ///< end of the frame's header and table
  std::vector<uint64_t> ends_;  ///< by tile: end of the bytes fetched
  uint64_t bytes_fetched_ = 0;
};

class Decoder {
 public:
  explicit Decoder(FrameBytes bytes = FrameBytes::STAY);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  /// Decodes all values, exactly. INVALID_ARGUMENT: `out` has another size; DAMAGED;
  /// UNSUPPORTED_CODEC. On failure the content of `out` is undefined.
  Status decode(ConstBytes frame, Bytes out);

  /// Decodes tokens first .. first + count - 1 of one outer index, exactly. Adds the bytes of its
  /// tiles to the report: who decodes parts of a frame reads its header and table once.
  Status decode_tokens(ConstBytes frame, uint32_t outer, uint32_t first, uint32_t count, Bytes out,
                       ReadReport* report = nullptr);

  /// Decodes all values from the first `planes` planes (1 is only the sign; at most
  /// FrameInfo::planes). Each result has the same number format and is the middle of the interval
  /// of possible values, so its error is at most 2^(FrameInfo::planes - planes - 1) of its
  /// channel's unit, before it is rounded to the format (integers: down). Channels that hold
  /// infinities or NaN have no such bound; tiles that are not in planes are exact.
  Status decode_prefix(ConstBytes frame, uint32_t planes, Bytes out, ReadReport* report = nullptr);

  /// Adds the sizes of the frame's streams: planes (of kMaxPlanes), the remainder, the exceptions,
  /// and all other bytes (heads, tiles that are not in planes).
  Status stream_bytes(ConstBytes frame, std::span<uint64_t, kMaxPlanes + 3> out);

  /// The unit of each channel in the tile of this token; 0 where the values are exact at any
  /// precision. INVALID_ARGUMENT: no such token, or out.size() is not the number of channels.
  Status units(ConstBytes frame, uint32_t outer, uint32_t token, std::span<float> out);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::compression
