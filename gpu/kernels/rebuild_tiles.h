// SPDX-License-Identifier: Apache-2.0
// A warp makes the values of a tile in planes, step by step from the first to the last, as
// compression/planes.h says.
//
// A step is the values of up to 128 bytes of each plane, of whole tokens or of a part of one. A
// lane has four bytes of each, the values of 32 channels side by side in most tiles: so planes are
// loaded by words, turned into bytes of magnitudes by 8 x 8 bits at once, and a sum over lanes once
// in a step tells where their bits of the remainder begin. Separate lanes turn the centres of pairs
// of channels, a step ahead.
//
// A difference of m or ~m from the centre is m + 0.5 or its negative, less 0.5, and so is every
// later sum. So arithmetic is on floats: they are exact here, their exponent is the number of bits,
// and their mantissa has that number's bits behind the first where values have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

inline constexpr uint32_t kStepPlaneBytes = 128;
inline constexpr uint32_t kStepValues = kStepPlaneBytes * 8;
/// As many warps are at work at once, at most; more than any GPU has room for.
inline constexpr uint32_t kMostRebuilders = 4096;

/// A warp's notes on the channels of its tile: exponents, and pairs that turn.
struct TurningPair {
  int16_t x, y;
  uint16_t right_x, right_y;
};
BOWHEAD_WARP_CODE uint64_t rebuild_slot_bytes(uint32_t channels) {
  return ((uint64_t{channels} + 7) / 8 * 8 + channels / 2 * sizeof(TurningPair) + 15) / 16 * 16;
}
BOWHEAD_WARP_CODE uint64_t rebuild_scratch_bytes(uint32_t channels, uint32_t tiles) {
  return rebuild_slot_bytes(channels) * (tiles < kMostRebuilders ? tiles : kMostRebuilders);
}

/// Whether whole heads are in a step, if their centres turn.
inline bool can_turn(uint32_t channels, uint32_t head_channels) {
  return channels <= kStepValues || kStepValues % head_channels == 0;
}

/// Transposes the 8 x 8 bits of each byte of the words: bit i of word j becomes bit j of word i.
BOWHEAD_WARP_CODE void transpose_bits(uint32_t (&words)[8]) {
  constexpr uint32_t kMasks[3] = {0x55555555, 0x33333333, 0x0F0F0F0F};
  BOWHEAD_UNROLL
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const uint32_t distance = 1u << stage, mask = kMasks[stage];
    BOWHEAD_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t a = words[i], b = words[i + distance];
      words[i] = (a & mask) | (b << distance & ~mask);
      words[i + distance] = (a >> distance & mask) | (b & ~mask);
    }
  }
}

/// The number kNumbers[kIndex] (compression/number.h).
template <uint32_t kIndex, bool kExact>
class TileRebuilder {
 public:
  /// `centres`: kStepValues of the warp's own, as is the slot of the scratch.
  BOWHEAD_WARP_CODE TileRebuilder(const RebuildTiles& work, uint32_t tile, uint32_t slot,
                                  float* centres)
      : work_(work),
        tile_(work.tiles[tile]),
        fault_(work.faults + tile),
        row_bytes_((work.channels + 7) / 8),
        exponents_(work.scratch + slot * rebuild_slot_bytes(work.channels)),
        pairs_(reinterpret_cast<uint64_t*>(exponents_ + row_bytes_ * 8)),
        centres_(centres),
        values_(reinterpret_cast<Element*>(tile_.values)),
        is_wide_(work.channels % 8 == 0 &&
                 reinterpret_cast<uintptr_t>(values_) % (8 * sizeof(Element)) == 0),
        half_(half_of(work.plane_count)) {}

  BOWHEAD_WARP_CODE void rebuild() {
    take_parameters();
    // A step holds several rows, or a part of one.
    const uint32_t step_tokens = row_bytes_ < kStepPlaneBytes ? kStepPlaneBytes / row_bytes_ : 1;
    Warp::each([&](uint32_t lane) {
      row_[lane] = row_bytes_ < kStepPlaneBytes ? lane * kWordBytes / row_bytes_ : 0;
      column_[lane] = lane * kWordBytes - row_[lane] * row_bytes_;
    });
    BOWHEAD_NO_UNROLL
    for (uint32_t token = 0; token < tile_.tokens; token += step_tokens) {
      const uint32_t left = tile_.tokens - token;
      const uint32_t tokens = left < step_tokens ? left : step_tokens;
      BOWHEAD_NO_UNROLL
      for (uint32_t column = 0; column < row_bytes_; column += kStepPlaneBytes) {
        const uint32_t bytes = tokens * (row_bytes_ - column);
        rebuild_step({token, tokens, column, bytes < kStepPlaneBytes ? bytes : kStepPlaneBytes});
      }
    }
    Warp::each([&](uint32_t lane) {
      if (lane == 0) store(fault_, uint32_t{!is_consumed()});
    });
  }

 private:
  static constexpr compression::Number kNumber = compression::kNumbers[kIndex];
  static constexpr bool kIsFloat = kNumber.exponent_bits != 0;
  static constexpr uint32_t kMantissa = kNumber.mantissa_bits, kMagnitude = kNumber.magnitude_bits;
  static constexpr uint32_t kPlanes = kMagnitude + 1, kWordBytes = 4;
  static constexpr uint32_t kSignShift = kNumber.element_bytes * 8 - 1;
  using Element = std::conditional_t<kNumber.element_bytes == 2, uint16_t, uint8_t>;

  // Of floats: the exponent field of 1, its place; a float of 2^23, in whose low bits integers are.
  static constexpr uint32_t kOne = 127, kFraction = 23, kIntegers = 0x4B000000;
  static constexpr uint32_t kSign = 0x80000000;

  struct Step {
    uint32_t token, tokens, column, bytes;
  };

  /// A lane's part of a step: eight values for each byte.
  struct Cut {
    uint32_t floats[kWordBytes][8];  ///< the cut value, at least 1, with its sign
    uint32_t counts[kWordBytes];     ///< of bits in the remainder, 4 bits for each
    uint32_t exceptions;             ///< a bit for each
  };

  static BOWHEAD_WARP_CODE float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
  static BOWHEAD_WARP_CODE uint32_t bits_of(float value) {
    return __builtin_bit_cast(uint32_t, value);
  }
  /// Half of the interval that these planes leave open.
  static BOWHEAD_WARP_CODE float half_of(uint32_t plane_count) {
    return kExact ? 0.5f : 0.5f * static_cast<float>(1u << (kPlanes - plane_count));
  }

  /// Four bytes, wherever they are.
  BOWHEAD_WARP_CODE uint32_t word_at(uint32_t offset) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(work_.bytes) + offset / 4;
    return shift_right(load_constant(words), load_constant(words + 1), offset % 4 * 8);
  }

  // ---- channels ----

  BOWHEAD_WARP_CODE uint32_t packed(uint32_t begin, uint32_t index, uint32_t width) const {
    const uint32_t bit = index * width;
    return word_at(begin + bit / 8) >> bit % 8 & ((1u << width) - 1);
  }
  BOWHEAD_WARP_CODE uint32_t exponent(uint32_t channel) const {
    return (tile_.exponent_base + packed(tile_.parameters, channel, tile_.exponent_width)) & 0xFF;
  }
  static BOWHEAD_WARP_CODE int32_t saturated(int32_t value) {
    return value < -32768 ? -32768 : value > 32767 ? 32767 : value;
  }
  /// A centre with its fraction.
  BOWHEAD_WARP_CODE int32_t state(uint32_t channel) const {
    const uint32_t width = tile_.centre_width;
    const uint32_t begin = tile_.parameters + (work_.channels * tile_.exponent_width + 7) / 8;
    const uint32_t sign = 1u << (width - 1);
    const auto amplitude = static_cast<int32_t>((packed(begin, channel, width) ^ sign) - sign);
    const int64_t scaled = int64_t{amplitude} * (1 << (tile_.centre_shift + kStateBits));
    return static_cast<int32_t>(scaled < -32768 ? -32768 : scaled > 32767 ? 32767 : scaled);
  }
  static constexpr uint32_t kStateBits = 13 - kMagnitude;

  /// How far the state of a channel is shifted whose pair has the exponent `other`.
  static BOWHEAD_WARP_CODE uint16_t right_of(uint32_t own, uint32_t other) {
    const uint32_t above = other > own ? other - own : 0;
    return static_cast<uint16_t>(above > kStateBits ? 15 : kStateBits - above);
  }

  BOWHEAD_WARP_CODE void take_parameters() {
    Warp::sync();  // those of the warp's last tile were read
    Warp::each([&](uint32_t lane) {
      for (uint32_t channel = lane; channel < row_bytes_ * 8; channel += kWarpLanes) {
        const bool is_one = channel < work_.channels;
        store(exponents_ + channel, static_cast<uint8_t>(is_one ? exponent(channel) : 0));
      }
      if (!tile_.centre_turns) return;
      for_pairs(lane, 0, work_.channels, [&](uint32_t pair, uint32_t, uint32_t channel) {
        const uint32_t other = channel + work_.turning_channels / 2;
        const uint32_t own_exponent = exponent(channel), other_exponent = exponent(other);
        const TurningPair turning = {
            static_cast<int16_t>(state(channel)), static_cast<int16_t>(state(other)),
            right_of(own_exponent, other_exponent), right_of(other_exponent, own_exponent)};
        store(pairs_ + pair, __builtin_bit_cast(uint64_t, turning));
      });
    });
    // They are read behind the syncs of make_centres(), which the first step of a tile always has.
  }

  /// f(pair, pair of its head, first channel) for each pair of these whole heads that is a lane's.
  template <class F>
  BOWHEAD_WARP_CODE void for_pairs(uint32_t lane, uint32_t first, uint32_t channels, F f) const {
    const uint32_t half = work_.turning_channels / 2;
    uint32_t in_head = lane, head = first;
    BOWHEAD_NO_UNROLL
    for (uint32_t pair = lane; pair < channels / 2; pair += kWarpLanes) {
      for (; in_head >= half; in_head -= half) head += 2 * half;
      f(first / 2 + pair, in_head, head + in_head);
      in_head += kWarpLanes;
    }
  }

  // ---- centres ----

  /// The centres of a step, by token and channel; those that do not turn, of one token.
  BOWHEAD_WARP_CODE void make_centres(const Step& step) {
    const bool is_part = row_bytes_ > kStepPlaneBytes;
    if (!tile_.centre_turns && !is_part && step.token != 0) return;
    Warp::sync();  // those of the last step were read
    const uint32_t first = step.column * 8;
    const uint32_t left = work_.channels - first;
    const uint32_t channels = left < kStepValues ? left : kStepValues;
    Warp::each([&](uint32_t lane) {
      if (tile_.centre_turns) {
        for_pairs(lane, first, channels, [&](uint32_t pair, uint32_t in_head, uint32_t channel) {
          turn_pair(step.tokens, pair, in_head, centres_ + channel - first);
        });
        return;
      }
      for (uint32_t i = lane; i < channels; i += kWarpLanes) {
        store_shared(centres_ + i, tile_.centre_width == 0
                                       ? 0.0f
                                       : static_cast<float>(state(first + i) >> kStateBits));
      }
    });
    Warp::sync();
  }

  BOWHEAD_WARP_CODE void turn_pair(uint32_t tokens, uint32_t pair, uint32_t in_head,
                                   float* centres) const {
    const auto turning = __builtin_bit_cast(TurningPair, load(pairs_ + pair));
    const auto turn = __builtin_bit_cast(
        compression::Turn, load_constant(reinterpret_cast<const uint32_t*>(work_.turns) + in_head));
    int32_t x = turning.x, y = turning.y;
    BOWHEAD_NO_UNROLL
    for (uint32_t i = 0; i < tokens; ++i, centres += row_bytes_ * 8) {
      store_shared(centres, static_cast<float>(x >> turning.right_x));
      store_shared(centres + work_.turning_channels / 2, static_cast<float>(y >> turning.right_y));
      const int32_t next = product(x, turn.cosine) - product(y, turn.sine);
      y = saturated(product(x, turn.sine) + product(y, turn.cosine));
      x = saturated(next);
    }
    const TurningPair then = {static_cast<int16_t>(x), static_cast<int16_t>(y), turning.right_x,
                              turning.right_y};
    store(pairs_ + pair, __builtin_bit_cast(uint64_t, then));
  }
  static BOWHEAD_WARP_CODE int32_t product(int32_t a, int32_t b) { return (a * b + 0x4000) >> 15; }

  // ---- values ----

  BOWHEAD_WARP_CODE void rebuild_step(const Step& step) {
    make_centres(step);
    if constexpr (kExact && kIsFloat) {
      Lanes<Cut> cuts;
      Lanes<uint32_t> used;  // bits of the remainder; exceptions above them
      Warp::each([&](uint32_t lane) {
        cut(lane, step, cuts[lane]);
        used[lane] = used_by(cuts[lane]);
      });
      const Lanes<uint32_t> sums = Warp::running_sum(used);
      Warp::each([&](uint32_t lane) {
        const uint32_t before = sums[lane] - used[lane];
        complete(lane, step, cuts[lane], remainder_bits_ + before % kExceptionUnit,
                 exceptions_ + before / kExceptionUnit);
      });
      const uint32_t all = Warp::of_lane(sums, kWarpLanes - 1);
      remainder_bits_ += all % kExceptionUnit;
      exceptions_ += all / kExceptionUnit;
    } else {
      Warp::each([&](uint32_t lane) {
        for_values(lane, step, [&](const Place& at, const float(&values)[8]) {
          uint32_t out[8];
          BOWHEAD_UNROLL
          for (uint32_t i = 0; i < 8; ++i) out[i] = middle(values[i], exponent_in(at, i));
          put(step, at, out);
        });
      });
    }
  }
  static constexpr uint32_t kExceptionUnit = 1 << 16;

  /// Where the eight values of a byte belong.
  struct Place {
    uint32_t byte;    ///< of the lane's four
    uint32_t row;     ///< token of the step
    uint32_t column;  ///< byte of the row
    uint32_t count;   ///< of values; 0: behind the end of the step
    uint64_t exponents;
  };

  static BOWHEAD_WARP_CODE uint32_t exponent_in(const Place& at, uint32_t i) {
    return static_cast<uint32_t>(at.exponents >> 8 * i) & 0xFF;
  }

  /// f(place, values less their sign's half) for each byte of the lane.
  template <class F>
  BOWHEAD_WARP_CODE void for_values(uint32_t lane, const Step& step, F f) const {
    uint32_t low[8], high[8];
    const uint32_t first = lane * kWordBytes;
    const bool is_in = first < step.bytes;
    const uint32_t begin = step.token * row_bytes_ + step.column + first;
    const uint32_t signs = plane_word(0, begin, is_in);
    BOWHEAD_UNROLL
    for (uint32_t bit = 0; bit < 8; ++bit) {
      low[bit] = bit < kMagnitude ? plane_word(kMagnitude - bit, begin, is_in) : 0;
      high[bit] = bit + 8 < kMagnitude ? plane_word(kMagnitude - bit - 8, begin, is_in) : 0;
    }
    transpose_bits(low);
    if constexpr (kMagnitude > 8) transpose_bits(high);
    uint32_t row = row_[lane], column = column_[lane];
    BOWHEAD_UNROLL
    for (uint32_t byte = 0; byte < kWordBytes; ++byte) {
      const Place at = place(step, byte, first + byte, row, column);
      const float* centres = centres_ + (tile_.centre_turns ? first + byte : column) * 8;
      float values[8];
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        uint32_t magnitude = 0;
        if constexpr (kMagnitude > 8) {
          magnitude = pick_bytes(low[i], high[i], byte | (byte + 4) << 4);
          magnitude = pick_bytes(magnitude, kIntegers, 0x7610);
        } else {
          magnitude = pick_bytes(low[i], kIntegers, 0x7650 | byte);
        }
        const float above = as_float(magnitude) + (half_ - as_float(kIntegers));
        const uint32_t sign = signs << (31 - 8 * byte - i) & kSign;
        values[i] = as_float(bits_of(above) ^ sign) + load_shared(centres + i);
      }
      f(at, values);
      if (++column == row_bytes_) {
        column = 0;
        ++row;
      }
    }
  }

  BOWHEAD_WARP_CODE uint32_t plane_word(uint32_t plane, uint32_t byte, bool is_in) const {
    if (!kExact && plane >= work_.plane_count) return 0;
    const uint32_t begin = tile_.planes[plane];
    return is_in && begin != RebuildTile::kAllZero ? word_at(begin + byte) : 0;
  }

  BOWHEAD_WARP_CODE Place place(const Step& step, uint32_t byte, uint32_t byte_of_step,
                                uint32_t row, uint32_t column) const {
    Place at = {byte, row, step.column + column, 0, 0};
    if (byte_of_step >= step.bytes) return at;
    const uint32_t left = work_.channels - at.column * 8;
    at.count = left < 8 ? left : 8;
    at.exponents = load(reinterpret_cast<const uint64_t*>(exponents_) + at.column);
    return at;
  }

  BOWHEAD_WARP_CODE void cut(uint32_t lane, const Step& step, Cut& out) const {
    out.exceptions = 0;
    for_values(lane, step, [&](const Place& at, const float(&values)[8]) {
      uint32_t counts = 0, exceptions = 0;
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t magnitude = bits_of(values[i]) & ~kSign;
        uint32_t cut = bits_of(as_float(magnitude) - 0.5f);
        exceptions |= uint32_t{cut == 0} << i;
        cut = cut < kOne << kFraction ? kOne << kFraction : cut;
        counts += (kOne + kMantissa - (cut >> kFraction)) << 4 * i;
        out.floats[at.byte][i] = cut | (bits_of(values[i]) & kSign);
      }
      const bool is_whole = at.count == 8;
      out.counts[at.byte] = is_whole ? counts : counts & ((1u << 4 * at.count) - 1);
      exceptions = is_whole ? exceptions : exceptions & ((1u << at.count) - 1);
      out.exceptions |= exceptions << 8 * at.byte;
    });
  }

  static BOWHEAD_WARP_CODE uint32_t sum_of(uint32_t counts) {
    const uint32_t pairs = (counts & 0x0F0F0F0F) + (counts >> 4 & 0x0F0F0F0F);
    return pairs * 0x01010101 >> 24;
  }
  static BOWHEAD_WARP_CODE uint32_t used_by(const Cut& cut) {
    uint32_t used = 0;
    BOWHEAD_UNROLL
    for (uint32_t byte = 0; byte < kWordBytes; ++byte) used += sum_of(cut.counts[byte]);
    return used + count_bits(cut.exceptions) * kExceptionUnit;
  }

  BOWHEAD_WARP_CODE void complete(uint32_t lane, const Step& step, const Cut& cut, uint32_t bit,
                                  uint32_t exception) const {
    uint32_t row = row_[lane], column = column_[lane];
    BOWHEAD_UNROLL
    for (uint32_t byte = 0; byte < kWordBytes; ++byte) {
      const Place at = place(step, byte, lane * kWordBytes + byte, row, column);
      uint32_t out[8];
      complete_byte(cut, at, bit, out);
      put(step, at, out);
      bit += sum_of(cut.counts[byte]);
      if (++column == row_bytes_) {
        column = 0;
        ++row;
      }
    }
    if (cut.exceptions != 0) keep_order();
    BOWHEAD_NO_UNROLL
    for (uint32_t left = cut.exceptions; left != 0; left &= left - 1, ++exception) {
      lower(lane, step, lowest_bit(left), exception);
    }
  }

  /// Takes the bits of eight values from the remainder.
  BOWHEAD_WARP_CODE void complete_byte(const Cut& cut, const Place& at, uint32_t bit,
                                       uint32_t (&out)[8]) const {
    constexpr uint32_t kAtOnce = kMantissa > 8 ? 4 : 8;  // within 64 bits
    const uint32_t counts = cut.counts[at.byte];
    uint32_t low = 0, high = 0;
    BOWHEAD_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if (i % kAtOnce == 0) take_window(bit, low, high);
      const uint32_t count = counts >> 4 * i & 15;
      const uint32_t rest = low & ((1u << count) - 1);
      low = shift_right(low, high, count);
      high >>= count;
      if constexpr (kAtOnce != 8) bit += count;
      out[i] = value_of(cut.floats[at.byte][i], exponent_in(at, i), rest);
    }
  }

  /// 64 bits of the remainder; behind its end, any bits.
  BOWHEAD_WARP_CODE void take_window(uint32_t bit, uint32_t& low, uint32_t& high) const {
    const uint32_t end = tile_.remainder_bytes * 8;
    bit = bit < end ? bit : end;
    const uint32_t offset = tile_.remainder + bit / 8;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(work_.bytes) + offset / 4;
    const uint32_t right = offset % 4 * 8 + bit % 8;
    const uint32_t middle = load_constant(words + 1);
    low = shift_right(load_constant(words), middle, right);
    high = shift_right(middle, load_constant(words + 2), right);
  }

  static BOWHEAD_WARP_CODE uint32_t value_of(uint32_t cut, uint32_t exponent, uint32_t rest) {
    // A cut value of 1 has the exponent of the channel less kMantissa.
    const uint32_t scaled = (exponent - kOne - kMantissa) << kMantissa;
    if constexpr (kNumber.exponent_bits == 8) {
      return (cut >> (kFraction - kMantissa)) + scaled + rest;
    } else {
      return ((cut & ~kSign) >> (kFraction - kMantissa)) + scaled + rest +
             (cut >> 31 << kSignShift);
    }
  }

  /// The middle of the interval of a value.
  static BOWHEAD_WARP_CODE uint32_t middle(float value, uint32_t exponent) {
    if constexpr (kIsFloat) {
      const uint32_t bits = bits_of(value) & ~kSign;
      const auto scale = static_cast<int32_t>(exponent - kOne - kMantissa);
      int32_t out =
          static_cast<int32_t>(bits >> (kFraction - kMantissa)) + scale * (1 << kMantissa);
      if (bits == 0 || out < 0) out = 0;
      if (out > kNumber.largest_finite) out = kNumber.largest_finite;
      return static_cast<uint32_t>(out) | bits_of(value) >> 31 << kSignShift;
    } else {
      value = value > -128 ? value : -128;  // also surplus values, beyond the last channel
      value = value < 127 ? value : 127;
      const int32_t out = static_cast<int32_t>(value + 128.0f) - 128;  // rounds down
      return static_cast<uint32_t>(out) & 0xFF;
    }
  }

  BOWHEAD_WARP_CODE void put(const Step& step, const Place& at, const uint32_t (&out)[8]) const {
    Element* to = values_ + (step.token + at.row) * work_.channels + at.column * 8;
    if (!is_wide_) {
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        if (i < at.count) store(to + i, static_cast<Element>(out[i]));
      }
    } else if (at.count != 0) {
      constexpr uint32_t kBits = sizeof(Element) * 8, kMask = (1u << kBits) - 1;
      uint32_t words[2 * sizeof(Element)] = {};
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < 8; ++i) words[i * kBits / 32] |= (out[i] & kMask) << i * kBits % 32;
      const auto pair = [&](uint32_t i) { return uint64_t{words[i + 1]} << 32 | words[i]; };
      if constexpr (sizeof(Element) == 2) {
        store(reinterpret_cast<Bytes16*>(to), Bytes16{pair(0), pair(2)});
      } else {
        store(reinterpret_cast<uint64_t*>(to), pair(0));
      }
    }
  }

  /// Value `index` of the lane is an exception, of which so far only the mantissa is right.
  BOWHEAD_WARP_CODE void lower(uint32_t lane, const Step& step, uint32_t index,
                               uint32_t exception) const {
    const bool is_there = exception < tile_.exception_bytes;
    const uint32_t offset = tile_.exceptions + exception;
    const uint32_t below = is_there ? load_constant(work_.bytes + offset) : 0;
    uint32_t row = row_[lane], column = column_[lane] + index / 8;
    for (; column >= row_bytes_; column -= row_bytes_) ++row;
    Element* value =
        values_ + (step.token + row) * work_.channels + (step.column + column) * 8 + index % 8;
    store(value, static_cast<Element>(load(value) - ((below + 1) << kMantissa)));
  }

  BOWHEAD_WARP_CODE bool is_consumed() const {
    if constexpr (!kExact) return true;
    return (remainder_bits_ + 7) / 8 == tile_.remainder_bytes &&
           exceptions_ == tile_.exception_bytes;
  }

  const RebuildTiles& work_;
  const RebuildTile tile_;
  uint32_t* const fault_;
  const uint32_t row_bytes_;
  uint8_t* const exponents_;
  uint64_t* const pairs_;
  float* const centres_;
  Element* const values_;
  const bool is_wide_;
  const float half_;
  Lanes<uint32_t> row_, column_;  ///< of the lane's first byte in a step
  uint32_t remainder_bits_ = 0, exceptions_ = 0;
};

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
