// SPDX-License-Identifier: Apache-2.0
#include "tests/compression/planes_check.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace bowhead::compression {
namespace {

struct Planes {
  std::vector<uint16_t> exponents;
  std::vector<uint8_t> remainder, exceptions, beyond;
  std::vector<std::vector<uint8_t>> planes;
  uint64_t remainder_bits = 0;
};

Planes split(const PlaneKernels& kernels, const Shape& shape, const std::vector<uint8_t>& values,
             const std::vector<int16_t>& amplitudes, uint32_t shift) {
  const Number& number = *number_of(shape.number);
  Planes out;
  out.exponents.resize(shape.channels + 64);
  if (number.is_float())
    kernels.largest_exponents(number, values.data(), shape.tokens, shape.channels,
                              out.exponents.data());
  std::fill(out.exponents.begin() + shape.channels, out.exponents.end(), uint16_t{0xFF});
  CentreMaker centres;
  const TileFrame tile{number, shape.tokens, shape.channels, out.exponents.data(),
                       centres.make(number, {out.exponents.data(), shape.channels}, amplitudes,
                                    shift, shape.rotary)};
  Split split{};
  out.planes.assign(number.planes(), std::vector<uint8_t>(tile.plane_bytes() + 8));
  for (uint32_t p = 0; p < number.planes(); ++p) split.planes[p] = out.planes[p].data();
  out.remainder.resize(remainder_room(number, size_t{shape.tokens} * shape.channels));
  out.exceptions.resize(size_t{shape.tokens} * shape.channels + 64);
  out.beyond.resize(shape.channels + 64);
  split.remainder = out.remainder.data();
  split.exceptions = out.exceptions.data();
  split.beyond = out.beyond.data();
  kernels.split(tile, values.data(), split);
  out.remainder_bits = split.remainder_bits;
  const auto cut = [](std::vector<uint8_t>& bytes, size_t size) {
    bytes.resize(size);
    bytes.shrink_to_fit();  // so that a sanitizer sees reads past the end
  };
  cut(out.remainder, (split.remainder_bits + 7) / 8);
  cut(out.exceptions, split.exception_count);
  cut(out.beyond, shape.channels);
  for (auto& plane : out.planes) cut(plane, tile.plane_bytes());
  return out;
}

bool merge(const PlaneKernels& kernels, const Shape& shape, const Planes& planes,
           const std::vector<int16_t>& amplitudes, uint32_t shift, uint32_t count,
           std::vector<uint8_t>& values) {
  const Number& number = *number_of(shape.number);
  CentreMaker centres;
  const TileFrame tile{number, shape.tokens, shape.channels, planes.exponents.data(),
                       centres.make(number, {planes.exponents.data(), shape.channels}, amplitudes,
                                    shift, shape.rotary)};
  Merge in{.plane_count = count == 0 ? number.planes() : count,
           .exact = count == 0,
           .remainder = planes.remainder,
           .exceptions = planes.exceptions};
  for (uint32_t p = 0; p < number.planes(); ++p) in.planes[p] = planes.planes[p].data();
  values.assign(shape.size_bytes(), 0xEE);
  return kernels.merge(tile, in, values.data());
}

/// Rows for searches of the first `count` planes, truncated to the channels.
std::vector<int16_t> rows_of(const PlaneKernels& kernels, const Shape& shape, const Planes& planes,
                             const std::vector<int16_t>& amplitudes, uint32_t shift,
                             uint32_t count) {
  const Number& number = *number_of(shape.number);
  const uint32_t padded = padded_channels(shape.channels);
  std::vector<int16_t> rows(size_t{2} * shape.tokens * padded), out;
  const uint8_t* shown[kMaxPlanes + 1] = {};
  for (uint32_t p = 0; p < count; ++p) shown[p] = planes.planes[p].data();
  kernels.differences(number, shown, count, shape.tokens, shape.channels, rows.data());
  CentreMaker centres;
  const TurningCentre centre = centres.make(number, {planes.exponents.data(), shape.channels},
                                            amplitudes, shift, shape.rotary);
  int16_t* to = &rows[size_t{shape.tokens} * padded];
  kernels.centres(centre, 1, to);  // it continues at its position
  kernels.centres(centre, shape.tokens - 1, to + padded);
  for (size_t at = 0; at < rows.size(); at += padded)
    out.insert(out.end(), &rows[at], &rows[at] + shape.channels);
  return out;
}

/// The rows of middles are the sums of the others; states are the definition's. If `scaled`, with
/// differences times something for each channel.
std::string fault_in_middles(const PlaneKernels& kernels, const Shape& shape, const Planes& planes,
                             const std::vector<int16_t>& amplitudes, uint32_t shift, uint32_t count,
                             const std::vector<int16_t>& rows, bool scaled) {
  const Number& number = *number_of(shape.number);
  const uint32_t padded = padded_channels(shape.channels);
  std::vector<int16_t> scales(padded + 64);
  for (uint32_t c = 0; c < padded; ++c) scales[c] = static_cast<int16_t>(c * 2654435761u >> 17);
  const uint8_t* shown[kMaxPlanes + 1] = {};
  for (uint32_t p = 0; p < count; ++p) shown[p] = planes.planes[p].data();
  std::vector<int16_t> states[2], middles;
  for (const bool right : {true, false}) {
    CentreMaker centres;
    const TileFrame tile{number, shape.tokens, shape.channels, planes.exponents.data(),
                         centres.make(number, {planes.exponents.data(), shape.channels}, amplitudes,
                                      shift, shape.rotary)};
    middles.assign(size_t{shape.tokens} * padded, 0);
    states[right].resize(size_t{(shape.tokens + kStateTokens - 1) / kStateTokens} * shape.channels);
    (right ? kPlaneKernelsScalar : kernels)
        .middles(tile, shown, count, scaled ? scales.data() : nullptr, middles.data(),
                 states[right].data());
  }
  if (states[0] != states[1]) return "has other states of centres";
  for (size_t i = 0; i < rows.size() / 2; ++i) {
    const size_t at = i / shape.channels * padded + i % shape.channels;
    const double product = rows[i] * scales[i % shape.channels] / 32768.0;
    const int difference = scaled ? static_cast<int>(std::floor(product + 0.5)) : rows[i];
    if (middles[at] != static_cast<int16_t>(difference + 2 * rows[rows.size() / 2 + i]))
      return "has middles that are not the sums, planes: " + std::to_string(count);
  }
  return {};
}

/// The value of a few planes differs from that of all planes by less than half a step.
std::string fault_in_rows(const PlaneKernels& kernels, const Shape& shape, const Planes& planes,
                          const std::vector<int16_t>& amplitudes, uint32_t shift) {
  const uint32_t all = number_of(shape.number)->planes();
  const auto whole = rows_of(kPlaneKernelsScalar, shape, planes, amplitudes, shift, all);
  for (uint32_t count = 1; count <= all; ++count) {
    const auto rows = rows_of(kernels, shape, planes, amplitudes, shift, count);
    if (rows != rows_of(kPlaneKernelsScalar, shape, planes, amplitudes, shift, count))
      return "has other rows for searches, planes: " + std::to_string(count);
    for (const bool scaled : {false, true}) {
      const std::string fault =
          fault_in_middles(kernels, shape, planes, amplitudes, shift, count, rows, scaled);
      if (!fault.empty()) return fault;
    }
    for (size_t i = 0; i < rows.size() / 2; ++i) {
      if (std::abs(rows[i] - whole[i]) >= 1 << (all - count))
        return "has rows that are too far off, planes: " + std::to_string(count);
    }
  }
  return {};
}

/// The counts of all steps are the definition's, and add up to the lengths of the streams.
std::string fault_in_counts(const PlaneKernels& kernels, const Shape& shape,
                            const std::vector<uint8_t>& values, const Planes& planes) {
  const Number& number = *number_of(shape.number);
  if (!number.is_float()) return {};
  const Steps steps = Steps::of(shape.tokens, shape.channels);
  uint64_t bits = 0, exceptions = 0;
  for (uint32_t i = 0; i < steps.count; ++i) {
    const uint32_t token = i / steps.per_token * steps.tokens;
    const uint32_t channel = i % steps.per_token * kStepValues;
    if (steps.of_token(token) != i - i % steps.per_token) return "the steps of tokens differ";
    const auto count_by = [&](const PlaneKernels& set) {
      return set.count_rests(
          number,
          values.data() + token * shape.row_bytes() + size_t{channel} * number.element_bytes,
          shape.row_bytes(), std::min(steps.tokens, shape.tokens - token),
          std::min(shape.channels - channel, kStepValues), planes.exponents.data() + channel);
    };
    const StepCount count = count_by(kernels);
    if (count != count_by(kPlaneKernelsScalar)) return "the counts of steps differ";
    bits += count.bits;
    exceptions += count.exceptions;
  }
  if (bits != planes.remainder_bits) return "counts add up to another remainder";
  if (exceptions != planes.exceptions.size()) return "counts add up to other exceptions";
  return {};
}

/// The difference after a tensor is split and merged.
std::string fault_with_centre(const PlaneKernels& kernels, const Shape& shape,
                              const std::vector<uint8_t>& values,
                              const std::vector<int16_t>& amplitudes) {
  const Number& number = *number_of(shape.number);
  const uint32_t shift = number.magnitude_bits / 2;
  const Planes right = split(kPlaneKernelsScalar, shape, values, amplitudes, shift);
  const Planes other = split(kernels, shape, values, amplitudes, shift);
  if (right.exponents != other.exponents) return "largest exponents differ";
  if (right.beyond != other.beyond) return "the bytes beyond differ";
  if (*std::max_element(right.beyond.begin(), right.beyond.end()) != 0) return {};
  if (right.planes != other.planes) return "planes differ";
  if (right.remainder_bits != other.remainder_bits) return "the remainder is not as long";
  if (right.remainder != other.remainder) return "the remainder differs";
  if (right.exceptions != other.exceptions) return "exceptions differ";
  const std::string fault = fault_in_counts(kernels, shape, values, right);
  if (!fault.empty()) return fault;
  for (uint32_t count = 0; count <= number.planes(); ++count) {
    std::vector<uint8_t> a, b;
    if (!merge(kPlaneKernelsScalar, shape, right, amplitudes, shift, count, a))
      return "the definition does not merge what it split";
    if (!merge(kernels, shape, right, amplitudes, shift, count, b)) return "does not merge";
    if (count == 0 && a != values) return "the definition merges to other values";
    if (a != b) return "merges to other values by planes: " + std::to_string(count);
  }
  return fault_in_rows(kernels, shape, right, amplitudes, shift);
}

}  // namespace

std::string fault_in_agreement(const PlaneKernels& kernels, NumberFormat kind) {
  Rotary interleaved = rotary_of(1e4, 64), part = rotary_of(1e4, 32), odd = rotary_of(1e4, 24);
  interleaved.interleaved = odd.interleaved = true;
  part.head = 64;
  part.first = 16;
  part.step = kTurnOfOneRadian / 4;
  odd.head = 40;
  Rotary behind = rotary_of(1e4, 64);
  behind.head = 96;
  behind.first = 32;
  for (const Shape& shape :
       {Shape{kind, 1, 65, 64, rotary_of(1e4, 64)}, Shape{kind, 1, 33, 128, rotary_of(5e5, 128)},
        Shape{kind, 1, 20, 128, interleaved}, Shape{kind, 1, 20, 128, part},
        Shape{kind, 1, 20, 80, odd}, Shape{kind, 1, 20, 96, behind}, Shape{kind, 1, 10, 72},
        Shape{kind, 1, 3, 600}, Shape{kind, 1, 40, 8, rotary_of(1e4, 8)}, Shape{kind, 1, 5, 1},
        Shape{kind, 1, 7, 191}}) {
    for (const Content content : kContents) {
      const auto values = make_tensor(shape, content, 7);
      for (const bool centred : {false, true}) {
        std::vector<int16_t> amplitudes;
        for (uint32_t c = 0; centred && c < shape.channels; ++c)
          amplitudes.push_back(static_cast<int16_t>(c * 37 % 11) - 5);
        const std::string fault = fault_with_centre(kernels, shape, values, amplitudes);
        if (!fault.empty())
          return fault + ": " + describe(shape, content) + (centred ? ", centred" : "");
      }
    }
  }
  return {};
}

std::string fault_in_lengths(const PlaneKernels& kernels, NumberFormat kind) {
  const Shape shape{kind, 1, 20, 72};
  const auto values = make_tensor(shape, Content::SPARSE, 8);
  const Planes good = split(kernels, shape, values, {}, 0);
  std::vector<uint8_t> out;
  const auto merges = [&](const Planes& planes) {
    return merge(kernels, shape, planes, {}, 0, 0, out);
  };
  if (!merges(good)) return "does not merge what it split";
  if (good.exceptions.empty()) return "there are no exceptions: this test no longer tests them";
  Planes bad = good;
  bad.remainder.pop_back();
  if (merges(bad)) return "merges with a remainder too short";
  bad.remainder.clear();
  if (merges(bad)) return "merges without a remainder";
  bad = good;
  bad.remainder.push_back(0);
  if (merges(bad)) return "merges with a remainder too long";
  bad = good;
  bad.exceptions.push_back(0);
  if (merges(bad)) return "merges with an exception too many";
  bad.exceptions.clear();
  if (merges(bad)) return "merges without exceptions";
  return {};
}

std::string fault_in_lies(const PlaneKernels& kernels, NumberFormat kind) {
  const Number& number = *number_of(kind);
  Random random(9);
  const auto random_bytes = [&](size_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
    return bytes;
  };
  for (uint32_t i = 0; i < 1000; ++i) {
    // Also rows that are whole vectors.
    const auto tokens = static_cast<uint32_t>(1 + random.below(9));
    const auto channels =
        static_cast<uint32_t>(i % 2 == 0 ? 1 + random.below(150) : 32 * (1 + random.below(5)));
    const Shape shape{kind, 1, tokens, channels};
    Planes lies;
    for (uint32_t c = 0; c < channels + 64; ++c)
      lies.exponents.push_back(static_cast<uint16_t>(random.below(1u << number.exponent_bits)));
    for (uint32_t p = 0; p < number.planes(); ++p)
      lies.planes.push_back(random_bytes(plane_bytes(channels, tokens)));
    lies.remainder = random_bytes(random.below(2 * most_remainder_bytes(number, channels) + 1));
    lies.exceptions = random_bytes(random.below(channels));
    std::vector<int16_t> amplitudes;
    for (uint32_t c = 0; c < channels; ++c)
      amplitudes.push_back(static_cast<int16_t>(random.next()));
    const uint32_t count = i % (number.planes() + 1);
    std::vector<uint8_t> a, b;
    if (merge(kPlaneKernelsScalar, shape, lies, amplitudes, 1, count, a) !=
        merge(kernels, shape, lies, amplitudes, 1, count, b))
      return "judges otherwise: " + describe(shape, Content::RANDOM);
    if (a != b) return "merges to other values: " + describe(shape, Content::RANDOM);
  }
  return {};
}

namespace {

std::string fault_in_nibbles_of(const PlaneKernels& kernels, const std::vector<uint8_t>& bytes) {
  const size_t size = bytes.size();
  const auto packed_by = [&](const PlaneKernels& set) {
    std::vector<uint8_t> packed(set.nibbles_size(bytes) + 8);
    set.pack_nibbles(bytes, packed.data());
    packed.resize(packed.size() - 8);
    return packed;
  };
  const std::vector<uint8_t> packed = packed_by(kPlaneKernelsScalar);
  if (packed_by(kernels) != packed) return "packs to other bytes";
  std::vector<uint8_t> out(size, 0xEE);
  if (!kernels.unpack_nibbles(packed, out)) return "does not unpack";
  if (out != bytes) return "unpacks to other bytes";
  std::vector<uint8_t> bad = packed;
  bad.push_back(0);
  if (kernels.unpack_nibbles(bad, out)) return "unpacks a byte too many";
  if (size == 0) return {};
  bad.resize(packed.size() - 1);
  if (kernels.unpack_nibbles(bad, out)) return "unpacks a byte too few";
  if (size % 4 == 0) return {};
  bad = packed;
  bad[(size * 2 + 7) / 8 - 1] |= 0x80;
  if (kernels.unpack_nibbles(bad, out)) return "unpacks a nibble after the end";
  return {};
}

}  // namespace

std::string fault_in_nibbles(const PlaneKernels& kernels) {
  Random random(5);
  for (size_t size = 0; size < 300; ++size) {
    for (const uint64_t rarity : {1, 2, 20}) {
      std::vector<uint8_t> bytes(size);
      for (uint8_t& byte : bytes) {
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0xF0);
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0x0F);
      }
      const std::string fault = fault_in_nibbles_of(kernels, bytes);
      if (!fault.empty()) return fault + ": " + std::to_string(size) + " bytes";
    }
  }
  return {};
}

}  // namespace bowhead::compression
