// SPDX-License-Identifier: Apache-2.0
// Decoders of frames on any bytes, and encoders on any values.
//
// A decoder must neither read past a frame nor write past its output (both end at a page without
// access), and all ways to read a frame must agree. Encoded values must be restored.
#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "base/assert.h"
#include "compression/frame.h"
#include "tests/fuzz/input.h"
#include "tests/support/reseal.h"

namespace bowhead::compression {
namespace {

constexpr size_t kMostBytes = 4 << 20;

/// Memory before a page without access.
class Guarded {
 public:
  Guarded() {
    void* memory = mmap(nullptr, kBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOWHEAD_ASSERT(memory != MAP_FAILED);
    end_ = static_cast<uint8_t*>(memory) + kBytes;
    BOWHEAD_ASSERT(mprotect(end_, kGuardBytes, PROT_NONE) == 0);
  }
  Bytes last(size_t size) {
    BOWHEAD_ASSERT(size <= kBytes);
    return {end_ - size, size};
  }
  Bytes copy(ConstBytes bytes) {
    const Bytes to = last(bytes.size());
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
    return to;
  }

 private:
  static constexpr size_t kBytes = 2 * kMostBytes, kGuardBytes = 1 << 16;
  uint8_t* end_;
};

bool equal(ConstBytes a, ConstBytes b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

/// One token, and its tile's units; of a frame with any header.
Status read_token(Decoder& decoder, ConstBytes frame, const Shape& shape, Bytes row) {
  const uint32_t outer = shape.outer / 2, token = shape.tokens / 2;
  std::vector<float> units(shape.channels);
  const Status of_units = decoder.units(frame, outer, token, units);
  const Status status = decoder.decode_tokens(frame, outer, token, 1, row);
  BOWHEAD_ASSERT(status != Status::OK || of_units == Status::OK);
  return status;
}

/// A frame that is read in pieces gives the same as the whole.
void read_in_pieces(Decoder& decoder, ConstBytes frame, uint32_t planes, ConstBytes right) {
  static Guarded nears, outs;
  const Bytes near = nears.last(frame.size()), out = outs.last(right.size());
  FramePieces pieces;
  const auto read = [&](uint64_t offset, Bytes to) {
    BOWHEAD_ASSERT(offset <= frame.size() && to.size() <= frame.size() - offset);
    std::memcpy(to.data(), frame.data() + offset, to.size());
    return Status::OK;
  };
  const Status fetched = pieces.fetch(planes, read, near);
  if (right.empty()) return;
  BOWHEAD_ASSERT(fetched == Status::OK);
  const Status status =
      planes == 0 ? decoder.decode(near, out) : decoder.decode_prefix(near, planes, out);
  BOWHEAD_ASSERT(status == Status::OK && equal(out, right));
}

void read_prefixes(Decoder& decoder, ConstBytes frame, uint32_t planes, Bytes out, bool good) {
  for (uint32_t n = 1; n <= planes; ++n) {
    ReadReport report;
    const Status status = decoder.decode_prefix(frame, n, out, &report);
    BOWHEAD_ASSERT(!good || status == Status::OK);
    BOWHEAD_ASSERT(status != Status::OK || report.bytes_read <= frame.size());
    if (n == 2) read_in_pieces(decoder, frame, n, status == Status::OK ? out : Bytes());
  }
}

void check_frame(ConstBytes bytes) {
  static Guarded frames, outs, parts;
  static Decoder decoder;
  const ConstBytes frame = frames.copy(bytes);
  const auto info = frame_info(frame);
  const auto refusal = [](Status s) {
    return s == Status::DAMAGED || s == Status::UNSUPPORTED_CODEC;
  };
  if (!info) {
    BOWHEAD_ASSERT(refusal(info.status()));
    uint8_t byte;
    BOWHEAD_ASSERT(decoder.decode(frame, {&byte, 1}) != Status::OK);
    return;
  }
  const Shape& shape = info->shape;
  const Bytes row = parts.last(shape.row_bytes());
  const Status of_token = read_token(decoder, frame, shape, row);
  if (shape.size_bytes() > kMostBytes) return;
  const Bytes out = outs.last(shape.size_bytes());
  const Status status = decoder.decode(frame, out);
  BOWHEAD_ASSERT(status == Status::OK || refusal(status));
  if (status == Status::OK) {
    const uint64_t at = uint64_t{shape.outer / 2} * shape.tokens + shape.tokens / 2;
    uint64_t sizes[kMaxPlanes + 3] = {};
    BOWHEAD_ASSERT(decoder.stream_bytes(frame, sizes) == Status::OK);
    BOWHEAD_ASSERT(std::accumulate(std::begin(sizes), std::end(sizes), uint64_t{0}) ==
                   frame.size());
    BOWHEAD_ASSERT(of_token == Status::OK && equal(row, out.subspan(at * row.size(), row.size())));
  }
  read_in_pieces(decoder, frame, 0, status == Status::OK ? out : Bytes());
  read_prefixes(decoder, frame, info->planes, out, status == Status::OK);
}

Shape take_shape(fuzz::Input& input) {
  Shape shape;
  shape.number = static_cast<NumberFormat>(1 + input.take<uint8_t>() % 6);
  shape.outer = 1 + input.take<uint8_t>() % 3u;
  const auto channels = input.take<uint16_t>();
  const auto ratio = input.take<uint32_t>();
  if (shape.number == NumberFormat::BYTES) return shape;
  shape.channels = 1 + channels % 300u;
  if (ratio == 0 || shape.channels % 2 != 0) return shape;
  const bool two_heads = shape.channels % 4 == 0 && ratio % 2 != 0;
  shape.rotary.ratio = ratio;
  shape.rotary.head = static_cast<uint16_t>(two_heads ? shape.channels / 2 : shape.channels);
  shape.rotary.dim = shape.rotary.head;
  if (shape.rotary.head > 2 && ratio % 3 == 0) {
    shape.rotary.dim = static_cast<uint16_t>(shape.rotary.head / 4 * 2);
    shape.rotary.first = static_cast<uint16_t>(ratio / 3 % (shape.rotary.head / 2u));
  }
  shape.rotary.interleaved = ratio % 5 == 0;
  if (ratio % 7 == 0) shape.rotary.step = ratio;
  return shape;
}

/// {profile, shape}, then values, as many whole tokens as the input has.
void check_values(fuzz::Input& input) {
  static Guarded in, frames;
  static Encoder encoders[] = {Encoder(Profile::FAST), Encoder(Profile::BALANCED),
                               Encoder(Profile::DENSE)};
  Encoder& encoder = encoders[input.take<uint8_t>() % 3];
  Shape shape = take_shape(input);
  const std::string_view bytes = input.take_bytes(kMostBytes);
  shape.tokens = static_cast<uint32_t>(bytes.size() / (shape.outer * shape.row_bytes()));
  if (shape.tokens == 0) return;
  const ConstBytes values =
      in.copy({reinterpret_cast<const uint8_t*>(bytes.data()), shape.size_bytes()});
  const Bytes frame = frames.last(frame_bound(shape));
  const auto size = encoder.encode(shape, values, frame);
  BOWHEAD_ASSERT(size && *size <= frame.size());
  const std::vector<uint8_t> encoded(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(*size));
  std::vector<uint8_t> decoded(values.size());
  BOWHEAD_ASSERT(Decoder().decode(encoded, decoded) == Status::OK && equal(decoded, values));
  check_frame(encoded);
  auto resealed = encoded;
  reseal(resealed);
  BOWHEAD_ASSERT(resealed == encoded);
}

}  // namespace
}  // namespace bowhead::compression

/// {0: a frame, 1: a frame whose checksums are corrected, else: values}
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bowhead::compression;
  bowhead::fuzz::Input input(data, size);
  const uint32_t what = input.take<uint8_t>() % 3;
  if (what == 2) {
    check_values(input);
    return 0;
  }
  const std::string_view bytes = input.take_bytes(size);
  std::vector<uint8_t> frame(bytes.begin(), bytes.end());
  if (what == 1) reseal(frame);
  check_frame(frame);
  return 0;
}
