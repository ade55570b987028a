// SPDX-License-Identifier: Apache-2.0
// With the compiler's vectors, all kinds as floats.
//
// kernels_avx2.cpp and kernels_neon.cpp include it behind their headers and target, having defined
// BOWHEAD_VECTOR_BYTES. It includes nothing, so that no shared code is compiled for that target.
#pragma once

namespace bowhead::ndp {
namespace {

#define BOWHEAD_INLINE inline __attribute__((always_inline))
#define BOWHEAD_INLINE_LAMBDA __attribute__((always_inline))

constexpr uint32_t kLanes = BOWHEAD_VECTOR_BYTES / 4;

typedef float Floats __attribute__((vector_size(BOWHEAD_VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(BOWHEAD_VECTOR_BYTES)));
typedef int32_t Integers __attribute__((vector_size(BOWHEAD_VECTOR_BYTES)));
typedef uint16_t HalfWords __attribute__((vector_size(BOWHEAD_VECTOR_BYTES / 2)));
typedef uint8_t SomeBytes __attribute__((vector_size(BOWHEAD_VECTOR_BYTES / 4)));
typedef int8_t SignedBytes __attribute__((vector_size(BOWHEAD_VECTOR_BYTES / 4)));

template <class Lanes>
BOWHEAD_INLINE Lanes load(const void* from) {
  Lanes lanes;
  memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
template <class Lanes>
BOWHEAD_INLINE void store(void* to, Lanes lanes) {
  memcpy(to, &lanes, sizeof(lanes));
}
BOWHEAD_INLINE Floats all(float value) { return value - Floats{}; }
BOWHEAD_INLINE Floats choose(Integers which, Floats yes, Floats no) {
  return Floats((Integers(yes) & which) | (Integers(no) & ~which));
}

// ---- kinds ----

/// A float of fewer bits, its exponent in the place of a float's: its bias comes right by a
/// product, for denormals too. From `special` on it is infinite or NaN.
BOWHEAD_INLINE Floats widened(Words magnitude, Words sign, float factor, uint32_t special) {
  const Words value = Words(Floats(magnitude) * factor);
  const Words beyond = Words(magnitude >= special) & (magnitude | 0x7F800000);
  return Floats((Words(magnitude >= special) & beyond) | (~Words(magnitude >= special) & value) |
                sign);
}

template <NumberFormat kNumber>
BOWHEAD_INLINE Floats convert(const void* at) {
  if constexpr (kNumber == NumberFormat::BF16) {
    return Floats(__builtin_convertvector(load<HalfWords>(at), Words) << 16);
  } else if constexpr (kNumber == NumberFormat::FP16) {
    const Words bits = __builtin_convertvector(load<HalfWords>(at), Words);
    return widened((bits & 0x7FFF) << 13, (bits & 0x8000) << 16, 0x1p112f, 31u << 23);
  } else if constexpr (kNumber == NumberFormat::FP8_E4M3) {
    const Words bits = __builtin_convertvector(load<SomeBytes>(at), Words);
    return widened((bits & 0x7F) << 20, (bits & 0x80) << 24, 0x1p120f, 0x7Fu << 20);
  } else if constexpr (kNumber == NumberFormat::FP8_E5M2) {
    const Words bits = __builtin_convertvector(load<SomeBytes>(at), Words);
    return widened((bits & 0x7F) << 21, (bits & 0x80) << 24, 0x1p112f, 31u << 23);
  } else {
    return __builtin_convertvector(__builtin_convertvector(load<SignedBytes>(at), Integers),
                                   Floats);
  }
}

/// Channels of a row; missing ones are zero, and not read.
template <NumberFormat kNumber>
BOWHEAD_INLINE Floats load_channels(const uint8_t* row, uint32_t channel, uint32_t channels) {
  constexpr uint32_t kBytes =
      kNumber == NumberFormat::BF16 || kNumber == NumberFormat::FP16 ? 2 : 1;
  const uint8_t* at = row + size_t{channel} * kBytes;
  if (channels >= kLanes) return convert<kNumber>(at);
  uint8_t some[kLanes * kBytes] = {};
  memcpy(some, at, size_t{channels} * kBytes);
  return convert<kNumber>(some);
}

/// Calls each(channel, how many) for as many channels at a time as there are lanes.
template <class Each>
BOWHEAD_INLINE void for_channels(uint32_t channels, const Each& each) {
  uint32_t channel = 0;
  for (; channel + kLanes <= channels; channel += kLanes) each(channel, kLanes);
  if (channel < channels) each(channel, channels - channel);
}

/// Returns call.operator()<kind>().
template <class Call>
BOWHEAD_INLINE void with_kind(NumberFormat number, const Call& call) {
  switch (number) {
    case NumberFormat::BF16:
      return call.template operator()<NumberFormat::BF16>();
    case NumberFormat::FP16:
      return call.template operator()<NumberFormat::FP16>();
    case NumberFormat::FP8_E4M3:
      return call.template operator()<NumberFormat::FP8_E4M3>();
    case NumberFormat::FP8_E5M2:
      return call.template operator()<NumberFormat::FP8_E5M2>();
    default:
      return call.template operator()<NumberFormat::INT8>();
  }
}

// ---- scores ----

BOWHEAD_INLINE float sum_of(Floats lanes) {
  float sum = 0;
  for (uint32_t i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

/// The sums of as many vectors as there are lanes, each in its own lane.
BOWHEAD_INLINE Floats sums_of(const Floats* of) {
  // Each step adds two halves, quarters, ... of two vectors, so that half as many remain.
  Floats some[kLanes / 2];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kLanes / 2; ++i) {
    const Floats a = of[2 * i], b = of[2 * i + 1];
#if BOWHEAD_VECTOR_BYTES == 32
    some[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
              __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (uint32_t i = 0; i < 2; ++i) {
    const Floats a = some[2 * i], b = some[2 * i + 1];
    some[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return __builtin_shufflevector(some[0], some[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(some[0], some[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    some[i] = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
  return __builtin_shufflevector(some[0], some[1], 0, 1, 4, 5) +
         __builtin_shufflevector(some[0], some[1], 2, 3, 6, 7);
#endif
}

/// kQueries queries from `q` on, 8 / kQueries tokens at a time.
template <NumberFormat kNumber, uint32_t kQueries>
void score_some(const Queries& queries, uint32_t q, const Rows& keys, uint32_t first,
                uint32_t count, float* scores) {
  constexpr uint32_t kTokens = 8 / kQueries;
  for (uint32_t at = 0; at < count; at += kTokens) {
    // Behind the last token it stands in for others, whose scores mean nothing.
    const uint8_t* rows[kTokens];
    for (uint32_t t = 0; t < kTokens; ++t) rows[t] = keys.row(first + std::min(at + t, count - 1));
    Floats sums[8] = {};
    for_channels(keys.channels, [&](uint32_t channel, uint32_t channels) BOWHEAD_INLINE_LAMBDA {
#pragma GCC unroll 8
      for (uint32_t t = 0; t < kTokens; ++t) {
        const Floats key = load_channels<kNumber>(rows[t], channel, channels);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < kQueries; ++i)
          sums[t * kQueries + i] += key * load<Floats>(queries.floats(q + i) + channel);
      }
    });
    float all[8];
    for (uint32_t i = 0; i < 8; i += kLanes) store(all + i, sums_of(sums + i));
    for (uint32_t t = 0; t < kTokens; ++t) {
      const uint32_t token = first + std::min(at + t, count - 1);
      const float scale = queries.scale() * (keys.scales == nullptr ? 1 : keys.scales[token]);
      for (uint32_t i = 0; i < kQueries; ++i)
        scores[(q + i) * kTileTokens + at + t] = all[t * kQueries + i] * scale;
    }
  }
}

void score(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
           float* scores) {
  with_kind(keys.number, [&]<NumberFormat kNumber>() {
    uint32_t q = 0;
    for (; q + 4 <= queries.count(); q += 4)
      score_some<kNumber, 4>(queries, q, keys, first, count, scores);
    for (; q < queries.count(); ++q) score_some<kNumber, 1>(queries, q, keys, first, count, scores);
  });
}

// ---- weighted sums of values ----

template <NumberFormat kNumber, uint32_t kQueries>
void weigh_some(const float* weights, const Rows& values, uint32_t first, uint32_t count,
                float* sums, size_t stride) {
  for_channels(values.channels, [&](uint32_t channel, uint32_t channels) BOWHEAD_INLINE_LAMBDA {
    Floats lanes[kQueries] = {};
    for (uint32_t i = 0; i < count; ++i) {
      const Floats value = load_channels<kNumber>(values.row(first + i), channel, channels);
#pragma GCC unroll 8
      for (uint32_t q = 0; q < kQueries; ++q) lanes[q] += value * weights[q * kTileTokens + i];
    }
    for (uint32_t q = 0; q < kQueries; ++q) {
      float* to = sums + q * stride + channel;
      store(to, load<Floats>(to) + lanes[q]);
    }
  });
}

void weigh(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
           uint32_t count, float* sums, size_t stride) {
  with_kind(values.number, [&]<NumberFormat kNumber>() {
    uint32_t q = 0;
    for (; q + 8 <= queries; q += 8)
      weigh_some<kNumber, 8>(weights + q * kTileTokens, values, first, count, sums + q * stride,
                             stride);
    for (; q < queries; ++q)
      weigh_some<kNumber, 1>(weights + q * kTileTokens, values, first, count, sums + q * stride,
                             stride);
  });
}

// ---- softmax ----

float largest(const float* values) {
  Floats most = load<Floats>(values);
  for (uint32_t i = kLanes; i < kTileTokens; i += kLanes) {
    const Floats some = load<Floats>(values + i);
    most = choose(some > most, some, most);
  }
  float one = most[0];
  for (uint32_t i = 1; i < kLanes; ++i) one = std::max(one, most[i]);
  return one;
}

/// e^x as 2^n 2^f, |f| <= 1/2; 2^f by its series up to f^6 (error below 2^-22). NaN stays NaN;
/// below the least normal number it is zero.
BOWHEAD_INLINE Floats exponential(Floats x) {
  const Integers far = x < -87.3f;
  x = choose(far, all(-87.3f), x);
  const Floats rounder = all(0x1.8p23f);
  const Floats shifted = x * 1.44269504f + rounder;
  const Floats n = shifted - rounder;
  // In two steps: the product rounds where x is large.
  Floats f = x - n * 0.693359375f;
  f = f + n * 2.12194440e-4f;
  Floats sum = all(1.0f / 720);
  for (const float factor : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    sum = sum * f + factor;
  const Integers power = (Integers(shifted) - Integers(rounder)) << 23;
  const Floats scaled = Floats(Integers(sum) + power);
  return choose(far, all(0), choose(x == x, scaled, x));
}

float exponentials(float* values, float largest) {
  Floats sum = {};
  for (uint32_t i = 0; i < kTileTokens; i += kLanes) {
    const Floats x = exponential(load<Floats>(values + i) - largest);
    store(values + i, x);
    sum += x;
  }
  return sum_of(sum);
}

/// By the exponential; near zero, where its bits cancel, by the series up to x^7; and nearer, where
/// the quotient may be denormal, not at all.
void soft_cap(float* values, float cap) {
  for (uint32_t i = 0; i < kTileTokens; i += kLanes) {
    const Floats value = load<Floats>(values + i), x = value / cap;
    const Floats size = choose(x < 0, -x, x), square = x * x;
    const Floats power = exponential(size * -2.0f);
    const Floats series = ((square * (-17.0f / 315) + 2.0f / 15) * square - 1.0f / 3) * square;
    const Floats tanh = choose(size < 0.25f, size + size * series, (1.0f - power) / (1.0f + power));
    store(values + i, choose(size < 0x1p-12f, value, choose(x < 0, -tanh, tanh) * cap));
  }
}

// ---- selection ----

uint32_t select(const float* scores, uint32_t count, float least, uint32_t first_token, Hit* out) {
  const bool all = least != least;
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    out[taken] = {scores[i], first_token + i};
    taken += all | (scores[i] >= least);
  }
  return taken;
}

// ---- sums of rows ----

typedef int16_t Shorts __attribute__((vector_size(BOWHEAD_VECTOR_BYTES / 2)));

void dots(const float* query, const int16_t* rows, uint32_t count, uint32_t channels, float* sums) {
  for (uint32_t i = 0; i < count; ++i, rows += channels) {
    Floats sum = {};
    for (uint32_t c = 0; c < channels; c += kLanes)
      sum += load<Floats>(query + c) * __builtin_convertvector(load<Shorts>(rows + c), Floats);
    sums[i] = sum_of(sum);
  }
}

// ---- sums that reach cuts ----

/// Defined by the including file: whether a lane is not zero.
BOWHEAD_INLINE bool any_of(Integers lanes);

constexpr uint32_t kSumParts = kProductQueries / kLanes;

void count_reaching(const int32_t* sums, size_t rows, const int32_t* cuts, int32_t* counts) {
  Integers cut[kSumParts], all[kSumParts];
  memcpy(cut, cuts, sizeof cut);
  memcpy(all, counts, sizeof all);
  for (size_t i = 0; i < rows; ++i, sums += kProductQueries) {
#pragma GCC unroll 2
    for (uint32_t part = 0; part < kSumParts; ++part)
      all[part] -= load<Integers>(sums + part * kLanes) >= cut[part];
  }
  memcpy(counts, all, sizeof all);
}

uint32_t rows_reaching(const int32_t* sums, uint32_t rows, const int32_t* cuts,
                       uint32_t* reaching) {
  Integers cut[kSumParts];
  memcpy(cut, cuts, sizeof cut);
  uint32_t taken = 0;
  for (uint32_t i = 0; i < rows; ++i, sums += kProductQueries) {
    Integers over = {};
#pragma GCC unroll 2
    for (uint32_t part = 0; part < kSumParts; ++part)
      over |= load<Integers>(sums + part * kLanes) >= cut[part];
    reaching[taken] = i;
    taken += any_of(over);
  }
  return taken;
}

typedef int64_t LongIntegers __attribute__((vector_size(BOWHEAD_VECTOR_BYTES)));

size_t count_ranks(const uint64_t* ranks, size_t count, uint64_t cut) {
  constexpr uint32_t kRanks = BOWHEAD_VECTOR_BYTES / 8;
  // Signed ones have a comparison on every target.
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const LongIntegers sign = static_cast<int64_t>(kSign) - LongIntegers{};
  const LongIntegers bound = static_cast<int64_t>(cut ^ kSign) - LongIntegers{};
  LongIntegers below[2] = {};
  size_t i = 0;
  for (; i + 2 * kRanks <= count; i += 2 * kRanks) {
    below[0] -= (load<LongIntegers>(ranks + i) ^ sign) < bound;
    below[1] -= (load<LongIntegers>(ranks + i + kRanks) ^ sign) < bound;
  }
  below[0] += below[1];
  size_t reaching = i;
  for (uint32_t lane = 0; lane < kRanks; ++lane) reaching -= static_cast<size_t>(below[0][lane]);
  for (; i < count; ++i) reaching += ranks[i] >= cut ? 1 : 0;
  return reaching;
}

typedef double Doubles __attribute__((vector_size(BOWHEAD_VECTOR_BYTES)));

void exact(const double* queries, const double* rows, uint32_t channels, double* sums) {
  constexpr uint32_t kDoubles = BOWHEAD_VECTOR_BYTES / 8, kParts = kProductQueries / kDoubles;
  for (uint32_t i = 0; i < kExactRows; i += 2) {
    const double *a = rows + size_t{i} * channels, *b = a + channels;
    Doubles of_a[kParts] = {}, of_b[kParts] = {};
    for (uint32_t c = 0; c < channels; ++c) {
#pragma GCC unroll 4
      for (uint32_t part = 0; part < kParts; ++part) {
        const Doubles query =
            load<Doubles>(queries + size_t{c} * kProductQueries + part * kDoubles);
        of_a[part] += query * a[c];
        of_b[part] += query * b[c];
      }
    }
    memcpy(sums + size_t{i} * kProductQueries, of_a, sizeof of_a);
    memcpy(sums + (size_t{i} + 1) * kProductQueries, of_b, sizeof of_b);
  }
}

// ---- digests ----

void bounds(const Rows& keys, uint32_t first, uint32_t count, float* least, float* largest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  with_kind(keys.number, [&]<NumberFormat kNumber>() {
    for_channels(keys.channels, [&](uint32_t channel, uint32_t channels) BOWHEAD_INLINE_LAMBDA {
      Floats low = all(kInfinity), high = all(-kInfinity);
      for (uint32_t i = first; i < first + count; ++i) {
        const Floats x = load_channels<kNumber>(keys.row(i), channel, channels) *
                         (keys.scales == nullptr ? 1 : keys.scales[i]);
        const Floats at_least = choose(x == x, x, all(-kInfinity));
        const Floats at_most = choose(x == x, x, all(kInfinity));
        low = choose(at_least < low, at_least, low);
        high = choose(at_most > high, at_most, high);
      }
      memcpy(least + channel, &low, channels * sizeof(float));
      memcpy(largest + channel, &high, channels * sizeof(float));
    });
  });
}

}  // namespace
}  // namespace bowhead::ndp
