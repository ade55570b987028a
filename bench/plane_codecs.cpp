// SPDX-License-Identifier: Apache-2.0
// The kernels of compression/planes.h in the role of codecs: their share of a codec's time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/codecs.h"
#include "compression/planes.h"

namespace bowhead::bench {
namespace {

using namespace compression;

constexpr uint32_t kPrefixPlanes = 5;

/// The header before the planes of a block; exponents follow.
struct PlanesHeader {
  uint64_t remainder_bits;
  uint64_t exceptions;
};

class PlaneCodec : public Codec {
 public:
  std::string name() const override { return "planes alone"; }
  bool takes(NumberFormat number) const override { return element_bytes(number) == 2; }
  bool is_format() const override { return false; }

  size_t encode(const Shape& shape, ConstBytes values, Bytes out) override {
    const Number& number = *number_of(shape.number);
    const Places places = places_of(shape);
    auto* exponents = reinterpret_cast<uint16_t*>(out.data() + sizeof(PlanesHeader));
    kernels_.largest_exponents(number, values.data(), shape.tokens, shape.channels, exponents);
    std::memset(exponents + shape.channels, 0, kSlackChannels * sizeof(uint16_t));
    beyond_.resize(shape.channels + kSlackChannels);
    exceptions_.resize(size_t{shape.tokens} * shape.channels + kSlackChannels);
    Split split{.remainder = out.data() + places.remainder,
                .exceptions = exceptions_.data(),
                .beyond = beyond_.data()};
    for (uint32_t p = 0; p < number.planes(); ++p)
      split.planes[p] = out.data() + places.planes + p * places.plane;
    kernels_.split(tile_of(shape, exponents), values.data(), split);
    const PlanesHeader head{split.remainder_bits, split.exception_count};
    std::memcpy(out.data(), &head, sizeof head);
    const size_t end = places.remainder + (head.remainder_bits + 7) / 8;
    std::memcpy(out.data() + end, exceptions_.data(), head.exceptions);
    return round_up(end + head.exceptions);
  }

  bool decode(const Shape& shape, ConstBytes coded, Bytes out) override {
    return merge(shape, coded, number_of(shape.number)->planes(), true, out);
  }

 protected:
  bool merge(const Shape& shape, ConstBytes coded, uint32_t planes, bool exact, Bytes out) {
    const Places places = places_of(shape);
    PlanesHeader head;
    std::memcpy(&head, coded.data(), sizeof head);
    const size_t remainder_bytes = (head.remainder_bits + 7) / 8;
    Merge in{.plane_count = planes,
             .exact = exact,
             .remainder = coded.subspan(places.remainder, remainder_bytes),
             .exceptions = coded.subspan(places.remainder + remainder_bytes, head.exceptions)};
    for (uint32_t p = 0; p < planes; ++p)
      in.planes[p] = coded.data() + places.planes + p * places.plane;
    const auto* exponents = reinterpret_cast<const uint16_t*>(coded.data() + sizeof(PlanesHeader));
    return kernels_.merge(tile_of(shape, exponents), in, out.data());
  }

 private:
  static constexpr uint32_t kSlackChannels = 64;  // after arrays by channel, for the kernels

  /// Offsets within a coded block.
  struct Places {
    size_t planes, plane, remainder;
  };
  static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static Places places_of(const Shape& shape) {
    const size_t plane = plane_bytes(shape.channels, shape.tokens) + 8;
    const size_t planes =
        sizeof(PlanesHeader) + (shape.channels + kSlackChannels) * sizeof(uint16_t);
    return {planes, plane, planes + number_of(shape.number)->planes() * plane};
  }

  TileFrame tile_of(const Shape& shape, const uint16_t* exponents) {
    const Number& number = *number_of(shape.number);
    return {number, shape.tokens, shape.channels, exponents,
            centres_.make(number, {exponents, shape.channels}, {}, 0, {})};
  }

  const PlaneKernels& kernels_ = plane_kernels();
  CentreMaker centres_;
  std::vector<uint8_t> beyond_, exceptions_;
};

/// The first planes only.
class PrefixCodec : public PlaneCodec {
 public:
  std::string name() const override { return "planes alone, first 5"; }
  bool encodes() const override { return false; }
  bool decode(const Shape& shape, ConstBytes coded, Bytes out) override {
    return merge(shape, coded, kPrefixPlanes, false, out);
  }

  /// With a sign and four bits no error exceeds a sixteenth of the power of two below the channel's
  /// largest value, before rounding to the format.
  bool right(const Shape& shape, ConstBytes values, ConstBytes out) const override {
    const auto at = [&](ConstBytes bytes, uint32_t token, uint32_t channel) {
      const size_t i = (size_t{token} * shape.channels + channel) * 2;
      return value_of(shape.number, bytes[i] | uint32_t{bytes[i + 1]} << 8);
    };
    for (uint32_t c = 0; c < shape.channels; ++c) {
      double largest = 0, furthest = 0;
      for (uint32_t t = 0; t < shape.tokens; ++t) {
        largest = std::max(largest, std::abs(at(values, t, c)));
        furthest = std::max(furthest, std::abs(at(values, t, c) - at(out, t, c)));
      }
      if (furthest > 1.01 / 16 * std::exp2(std::floor(std::log2(largest)))) return false;
    }
    return true;
  }
};

}  // namespace

void add_plane_codecs(Codecs& codecs) {
  codecs.push_back(std::make_unique<PlaneCodec>());
  codecs.push_back(std::make_unique<PrefixCodec>());
}

}  // namespace bowhead::bench
