// SPDX-License-Identifier: Apache-2.0
// Frames: a tensor of keys or values in fewer bytes, bit for bit, and readable at less than full
// precision from the first part of its bytes.
//
// A tensor is [outer][tokens][channels], contiguous, little-endian. It is cut into tiles of some
// tokens of one outer index, which are coded independently: what reads some tokens touches their
// tiles only. Within a tile the numbers are fixed point relative to the largest exponent of their
// channel, around a centre of the channel, cut into bit-planes, the most significant first
// (compression/planes.h); each plane is coded on its own, or stored. docs/frame.md is the format.
//
// Statuses: DAMAGED is what frames are that nobody encoded; UNSUPPORTED_CODEC is what a newer
// Bowhead may have encoded. Neither kind makes a decoder read or write beyond what it was given,
// nor take longer than its output deserves.
//
// Encoders and decoders are for one thread at a time. They allocate when they meet a larger tile
// than before, and never otherwise; they do not throw.
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
  uint32_t outer = 1;     ///< layers, K and V, heads: whatever lies around the tokens
  uint32_t tokens = 0;    ///< BYTES: how many bytes
  uint32_t channels = 1;  ///< 1 to 65,535; BYTES: 1
  Rotary rotary = {};     ///< of keys after rotary position embedding; channels is a multiple of it

  uint64_t row_bytes() const { return uint64_t{channels} * element_bytes(number); }
  uint64_t size_bytes() const { return outer * tokens * row_bytes(); }
};

enum class Profile : uint8_t {
  FAST,      ///< LZ4
  BALANCED,  ///< ZSTD where it saves an eighth of a plane
  DENSE      ///< ZSTD wherever it saves
};

/// What a payload of this layout is to frames. Rotary embedding helps where it turns the halves of
/// whole heads; else it is left out, and the frames are larger. A payload of a length that no
/// number of tokens has is BYTES. NOT_SUPPORTED: K and V of different channels, scales in the
/// block, fp32, rows of more than 65,535 channels.
Result<Shape> shape_of(const KvLayout& layout, uint64_t payload_bytes);

/// The most that a frame of this shape takes: the values, and what says so.
size_t frame_bound(const Shape& shape);

class Encoder {
 public:
  explicit Encoder(Profile profile);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  /// Bytes of the frame. INVALID_ARGUMENT: a shape without values, too large, or another size than
  /// `values`; `out` is smaller than frame_bound().
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

struct ReadReport {
  uint64_t bytes_read = 0;  ///< of the frame, to verify and decode
};

/// Brings a frame near piece by piece, from memory that is far or not to be read whole: first what
/// decode_prefix() of few planes touches, later, into the same bytes, what more planes do.
class FramePieces {
 public:
  /// Copies a part of the frame; what it returns but OK ends the fetch.
  using Read = std::function<Status(uint64_t offset, Bytes to)>;

  /// Reads what is missing in `frame`, all of whose bytes the caller has room for, so that
  /// decode_prefix() with so many planes, or decode() if `planes` is 0, find what they touch. The
  /// others keep what they held. INVALID_ARGUMENT: too many planes; DAMAGED, UNSUPPORTED_CODEC, as
  /// far as the heads tell; what `read` returns. After any of these begin anew.
  Status fetch(uint32_t planes, const Read& read, Bytes frame);
  uint64_t bytes_fetched() const { return bytes_fetched_; }

 private:
  uint64_t head_end_ = 0;       ///< of the frame's head
  std::vector<uint64_t> ends_;  ///< how much of each tile is there
  uint64_t bytes_fetched_ = 0;
};

class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  /// All values, exactly. INVALID_ARGUMENT: `out` has another size; DAMAGED; UNSUPPORTED_CODEC:
  /// then `out` holds anything.
  Status decode(ConstBytes frame, Bytes out);

  /// Tokens first .. first + count - 1 of one outer index, exactly.
  Status decode_tokens(ConstBytes frame, uint32_t outer, uint32_t first, uint32_t count, Bytes out);

  /// All values as the first `planes` planes show them (1 is the sign alone; at most
  /// FrameInfo::planes): numbers of the same kind, in the middle of what they can be, so that none
  /// is further off than 2^(FrameInfo::planes - planes - 1) of its channel's unit, and then rounded
  /// to the kind (integers: down). Channels that hold infinities or what is not a number have no
  /// such bound; tiles that are not in planes are exact.
  Status decode_prefix(ConstBytes frame, uint32_t planes, Bytes out, ReadReport* report = nullptr);

  /// Adds what the frame's streams take: planes (of kMaxPlanes), the remainder, the exceptions, and
  /// all else (heads, tiles that are not in planes).
  Status stream_bytes(ConstBytes frame, std::span<uint64_t, kMaxPlanes + 3> out);

  /// The unit of each channel in the tile that holds this token; 0 where all is exact at any
  /// precision. INVALID_ARGUMENT: no such token, or out.size() is not the channels.
  Status units(ConstBytes frame, uint32_t outer, uint32_t token, std::span<float> out);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::compression
