// SPDX-License-Identifier: Apache-2.0
// With AVX-512 and its dot products of bf16 and of int16.
//
// A score is a sum along a row. 16 units of 32 bits are multiplied at once: of
// one query, or, where there are several, fewer units of a row beside
// themselves, once for each query. So a register holds sums of all queries of a
// group, and little is left to add up across its lanes.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

#include "ndp/kernels.h"
#include "ndp/numbers.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                   \
    __attribute__((target("avx2,f16c,fma,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
                          "avx512bf16,avx512vnni"))),                                           \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx2,f16c,fma,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx512vnni")
// gcc 12 warns of its own intrinsics' "undefined" operands (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace bowhead::ndp {
namespace {

#define BOWHEAD_INLINE inline __attribute__((always_inline))
#define BOWHEAD_INLINE_LAMBDA __attribute__((always_inline))

BOWHEAD_INLINE __mmask32 first_words(uint32_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}
BOWHEAD_INLINE __mmask64 first_bytes(uint32_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}

/// Where there is much to compute, loads wait for memory in vain: the CPU does
/// not look far enough ahead. So the rows of the next tile, if they lie behind
/// these, come to the second cache in time.
BOWHEAD_INLINE void fetch_ahead(const uint8_t* at, size_t stride_bytes) {
  _mm_prefetch(at + kTileTokens * stride_bytes, _MM_HINT_T1);
}

// ---- kinds of rows ----
//
// Where `channels` are fewer than a chunk, the rest is zero, and not read.

struct Bf16 {
  static constexpr uint32_t kChunk = 32;
  static BOWHEAD_INLINE __m512i load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    const uint8_t* at = row + size_t{channel} * 2;
    return channels >= kChunk ? _mm512_loadu_si512(at)
                              : _mm512_maskz_loadu_epi16(first_words(channels), at);
  }
};

/// By the bits below the sign: a bf16 number's low bytes, then its high bytes.
using ByteTable = std::array<uint8_t, 256>;
template <uint32_t kExponentBits, bool kHasInfinity>
constexpr ByteTable bf16_of_bytes() {
  ByteTable table{};
  for (uint32_t i = 0; i < 128; ++i) {
    const auto bits =
        std::bit_cast<uint32_t>(small_float(i, kExponentBits, 7 - kExponentBits, kHasInfinity));
    table[i] = static_cast<uint8_t>(bits >> 16);
    table[128 + i] = static_cast<uint8_t>(bits >> 24);
  }
  return table;
}

/// In the order in which bytes unpack: of each 16 channels the first 8, then
/// the others.
struct WordPair {
  __m512i a, b;
};

template <uint32_t kExponentBits, bool kHasInfinity>
struct Fp8 {
  static constexpr uint32_t kChunk = 64;
  static BOWHEAD_INLINE WordPair load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    alignas(64) static constexpr ByteTable kTable = bf16_of_bytes<kExponentBits, kHasInfinity>();
    const uint8_t* at = row + channel;
    const __m512i bytes = channels >= kChunk ? _mm512_loadu_si512(at)
                                             : _mm512_maskz_loadu_epi8(first_bytes(channels), at);
    const auto look_up = [&](size_t part) BOWHEAD_INLINE_LAMBDA {
      return _mm512_permutex2var_epi8(_mm512_load_si512(kTable.data() + part), bytes,
                                      _mm512_load_si512(kTable.data() + part + 64));
    };
    const __m512i low = look_up(0);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i high = _mm512_ternarylogic_epi32(look_up(128), bytes, sign, 0xF8);  // a | b & c
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }
};

struct FloatPair {
  __m512 a, b;
};

struct Fp16 {
  static BOWHEAD_INLINE FloatPair load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    const __m512i words = Bf16::load(row, channel, channels);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(words)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1))};
  }
};

BOWHEAD_INLINE __m256i load_bytes(const uint8_t* at, uint32_t channels) {
  return channels >= 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))
                        : _mm256_maskz_loadu_epi8(first_words(channels), at);
}

// ---- rows as units of 32 bits: how they are loaded and multiplied ----
//
// Products are added by asm: around some of these instructions' intrinsics gcc
// 12 copies every sum, which takes as long as the products.

BOWHEAD_INLINE __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Of both kinds that are multiplied as bf16.
struct Bf16Products {
  static constexpr uint32_t kRows = 8;  // that are scored at once
  static constexpr uint32_t kSums = 1;  // of a row and a line of queries, whatever their terms
  using Sum = __m512;
  static BOWHEAD_INLINE Sum add(Sum sum, __m512i row, __m512i line) {
    return add_products(sum, row, line);
  }
  static BOWHEAD_INLINE __m512 floats(const Sum (&sums)[kSums][kRows], uint32_t t) {
    return sums[0][t];
  }
};

struct Bf16Units : Bf16Products {
  static constexpr bool kAsTheyLie = true;  // the bytes of a row are units
  static constexpr uint32_t kBytes = 2;     // of a channel
  static constexpr uint32_t kChunk = 64;    // channels that are loaded at once, as kLines lines
  static constexpr uint32_t kLines = 2;
  static BOWHEAD_INLINE void load(const uint8_t* row, uint32_t channel, uint32_t channels,
                                  __m512i (&lines)[kLines]) {
    lines[0] = Bf16::load(row, channel, channels);
    lines[1] = Bf16::load(row, channel + 32, channels > 32 ? channels - 32 : 0);
  }
};

template <class Kind>
struct Fp8Units : Bf16Products {
  static constexpr bool kAsTheyLie = false;
  static constexpr uint32_t kBytes = 1, kChunk = 64, kLines = 2;
  static BOWHEAD_INLINE void load(const uint8_t* row, uint32_t channel, uint32_t channels,
                                  __m512i (&lines)[kLines]) {
    const WordPair words = Kind::load(row, channel, channels);
    lines[0] = words.a;
    lines[1] = words.b;
  }
};

struct Fp16Units {
  static constexpr bool kAsTheyLie = false;
  static constexpr uint32_t kBytes = 2, kChunk = 32, kLines = 2;
  static constexpr uint32_t kRows = 8, kSums = 1;
  using Sum = __m512;
  static BOWHEAD_INLINE void load(const uint8_t* row, uint32_t channel, uint32_t channels,
                                  __m512i (&lines)[kLines]) {
    const FloatPair floats = Fp16::load(row, channel, channels);
    lines[0] = _mm512_castps_si512(floats.a);
    lines[1] = _mm512_castps_si512(floats.b);
  }
  static BOWHEAD_INLINE Sum add(Sum sum, __m512i row, __m512i line) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(row), _mm512_castsi512_ps(line), sum);
  }
  static BOWHEAD_INLINE __m512 floats(const Sum (&sums)[kSums][kRows], uint32_t t) {
    return sums[0][t];
  }
};

/// Four channels a unit, 128 added to each: products are of bytes without and with a sign, and sums
/// begin at the negative of what the 128 add (Queries::starts). High and low bytes of queries have
/// sums of their own.
struct Int8Units {
  static constexpr bool kAsTheyLie = true;
  static constexpr uint32_t kBytes = 1, kChunk = 64, kLines = 1;
  static constexpr uint32_t kRows = 4, kSums = 2;
  using Sum = __m512i;
  static BOWHEAD_INLINE void load(const uint8_t* row, uint32_t channel, uint32_t channels,
                                  __m512i (&lines)[kLines]) {
    const uint8_t* at = row + channel;
    lines[0] = channels >= kChunk ? _mm512_loadu_si512(at)
                                  : _mm512_maskz_loadu_epi8(first_bytes(channels), at);
  }
  static BOWHEAD_INLINE Sum add(Sum sum, __m512i row, __m512i line) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(line));
    return sum;
  }
  static BOWHEAD_INLINE __m512 floats(const Sum (&sums)[kSums][kRows], uint32_t t) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums[0][t], 8), sums[1][t]));
  }
};

/// Makes a loaded row what add() takes.
template <class Units>
BOWHEAD_INLINE __m512i row_units(__m512i loaded) {
  if constexpr (std::is_same_v<Units, Int8Units>)
    return _mm512_xor_si512(loaded, _mm512_set1_epi8(static_cast<char>(0x80)));
  else
    return loaded;
}

template <class Units>
BOWHEAD_INLINE typename Units::Sum first_sum(const Queries& queries, uint32_t query,
                                             uint32_t term) {
  if constexpr (std::is_same_v<Units, Int8Units>)
    return _mm512_loadu_si512(queries.starts(query, term));
  else
    return _mm512_setzero_ps();
}

// ---- scores ----

/// 16 / kTimes units, so many times.
template <uint32_t kTimes>
BOWHEAD_INLINE __m512i repeat(const uint8_t* units) {
  if constexpr (kTimes == 4) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(units)));
  } else {
    static_assert(kTimes == 2);
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(units)));
  }
}

/// Quarter i has the sums of the quarters i of four.
BOWHEAD_INLINE __m512 fold_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(
      _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
}

constexpr uint32_t kRows = 8;  // whose scores are stored at once
static_assert(kTileTokens % kRows == 0);

template <class Units>
constexpr size_t kRoomBytes = size_t{kRows} * (kMaxChannels / Units::kChunk) * Units::kLines * 64;

/// Units of some rows, each so many bytes, one every `stride_bytes`.
struct UnitRows {
  const uint8_t* units;
  size_t stride_bytes, bytes;

  UnitRows from(uint32_t row) const { return {units + row * stride_bytes, stride_bytes, bytes}; }
};

/// Rows that are not units as they lie are made units, those that come next
/// while others are multiplied, which takes other parts of the CPU.
template <class Units>
class PreparedRows {
 public:
  explicit PreparedRows(uint8_t* room) : room_(room) {}

  /// Behind token `last` that one stands in for others, whose scores mean
  /// nothing.
  void begin(const Rows& keys, uint32_t first, uint32_t last) {
    row_ = keys.row(std::min(first, last));
    stride_bytes_ = keys.stride_bytes;
    channels_ = keys.channels;
    rows_left_ = first < last ? last - first : 0;
    const uint32_t chunks = (keys.channels + Units::kChunk - 1) / Units::kChunk;
    bytes_ = size_t{chunks} * Units::kLines * 64;
    to_ = room_;
    channel_ = 0;
    chunks_left_ = chunks * kRows;
  }
  /// A chunk more, in the order in which they lie; nothing if all are there.
  BOWHEAD_INLINE void step() {
    if (chunks_left_ == 0) return;
    --chunks_left_;
    __m512i lines[Units::kLines];
    Units::load(row_, channel_, channels_ - channel_, lines);
    fetch_ahead(row_ + channel_ * Units::kBytes, stride_bytes_);
#pragma GCC unroll 2
    for (uint32_t i = 0; i < Units::kLines; ++i) _mm512_store_si512(to_ + i * 64, lines[i]);
    to_ += Units::kLines * 64;
    channel_ += Units::kChunk;
    if (channel_ < channels_) return;
    channel_ = 0;
    if (rows_left_ == 0) return;
    --rows_left_;
    row_ += stride_bytes_;
  }
  void finish() {
    while (chunks_left_ != 0) step();
  }
  UnitRows rows() const { return {room_, bytes_, bytes_}; }

 private:
  uint8_t *room_, *to_ = nullptr;
  const uint8_t* row_ = nullptr;
  size_t stride_bytes_ = 0, bytes_ = 0;
  uint32_t channels_ = 0, channel_ = 0, rows_left_ = 0, chunks_left_ = 0;
};

/// Where rows are multiplied as they lie, several at once, a CPU does not foresee the next reads:
/// so the lines of later rows are fetched in their order, to the second cache a tile before they
/// are needed, to the first one some rows before.
template <class Units>
class RowsAhead {
 public:
  /// A step is 16 bytes of Units::kRows rows: so many lines.
  static constexpr uint32_t kLinesOfStep = Units::kRows * 16 / 64;

  explicit RowsAhead(const Rows& keys)
      : near_bytes_(kRows * keys.stride_bytes), far_bytes_(kTileTokens * keys.stride_bytes) {
    const size_t row_bytes = keys.row_bytes();
    size_t row = 0, at = 0;
    for (uint32_t i = 0; i < row_bytes / 16 * kLinesOfStep; ++i) {
      offsets_[i] = row + at;
      at += 64;
      if (at < row_bytes) continue;
      at = 0;
      row += keys.stride_bytes;
    }
  }
  BOWHEAD_INLINE void fetch(const uint8_t* rows, uint32_t step) const {
#pragma GCC unroll 2
    for (uint32_t i = 0; i < kLinesOfStep; ++i) {
      const uint8_t* line = rows + offsets_[step * kLinesOfStep + i];
      _mm_prefetch(line + far_bytes_, _MM_HINT_T1);
      _mm_prefetch(line + near_bytes_, _MM_HINT_T0);
    }
  }

 private:
  const size_t near_bytes_, far_bytes_;
  size_t offsets_[kMaxChannels * Units::kBytes / 16 * kLinesOfStep];
};

/// Of kRows rows, or as many as there are.
BOWHEAD_INLINE __m256 scales_of(const Rows& keys, uint32_t first, uint32_t count) {
  if (keys.scales == nullptr) return _mm256_set1_ps(1);
  return _mm256_maskz_loadu_ps(static_cast<__mmask8>(first_words(count)), keys.scales + first);
}

/// Scores of kRows rows and a line of queries, kOfLine of which it has: of the
/// first four rows, and of the others.
template <uint32_t kOfLine>
BOWHEAD_INLINE void store_scores(__m512 a, __m512 b, const float* factors, __m256 scales,
                                 float* scores) {
  if constexpr (kOfLine < 4) {
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0xB1));
    b = _mm512_add_ps(b, _mm512_shuffle_f32x4(b, b, 0xB1));
  }
  if constexpr (kOfLine == 1) {
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0x4E));
    b = _mm512_add_ps(b, _mm512_shuffle_f32x4(b, b, 0x4E));
  }
  constexpr int kNext = kOfLine == 4 ? 2 : 4;  // words of 64 bits between queries
  const __m512i pairs = _mm512_setr_epi64(0, 1, 8, 9, kNext, kNext + 1, kNext + 8, kNext + 9);
#pragma GCC unroll 2
  for (uint32_t q = 0; q < kOfLine; q += 2) {
    const __m512i which = _mm512_add_epi64(pairs, _mm512_set1_epi64(q * 2));
    const __m512 both =
        _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(a), which, _mm512_castps_pd(b)));
    float* to = scores + q * kTileTokens;
    const auto scaled = [&](__m256 sums, uint32_t query) BOWHEAD_INLINE_LAMBDA {
      return _mm256_mul_ps(sums, _mm256_mul_ps(scales, _mm256_set1_ps(factors[query])));
    };
    _mm256_storeu_ps(to, scaled(_mm512_castps512_ps256(both), q));
    if constexpr (kOfLine > 1)
      _mm256_storeu_ps(to + kTileTokens, scaled(_mm512_extractf32x8_ps(both, 1), q + 1));
  }
}

/// Of some lines of queries; kRows rows, folded four to one, in one term or
/// two.
template <uint32_t kOfLine, uint32_t kTerms, uint32_t kLines, uint32_t kFours>
BOWHEAD_INLINE void store_group(const Queries& queries, uint32_t first_query,
                                const __m512 (&folded)[kTerms][kLines][kFours], __m256 scales,
                                float* scores) {
  static_assert(kTerms * kFours == 2);
#pragma GCC unroll 2
  for (uint32_t l = 0; l < kLines; ++l) {
    const uint32_t query = first_query + l * kOfLine;
    store_scores<kOfLine>(folded[0][l][0], folded[kTerms - 1][l][kFours - 1],
                          queries.factors(query), scales, scores + size_t{query} * kTileTokens);
  }
}

template <class Units>
BOWHEAD_INLINE void fold_rows(const typename Units::Sum (&sums)[Units::kSums][Units::kRows],
                              __m512 (&folded)[Units::kRows / 4]) {
#pragma GCC unroll 2
  for (uint32_t t = 0; t < Units::kRows; t += 4)
    folded[t / 4] = fold_quarters(Units::floats(sums, t), Units::floats(sums, t + 1),
                                  Units::floats(sums, t + 2), Units::floats(sums, t + 3));
}

/// Sums of kTerms and some lines of queries, each of kOfLine, and Units::kRows
/// rows, folded four rows to one. For each 16 bytes of theirs `meanwhile` is
/// called, with the rows and the number of the step.
template <class Units, uint32_t kTerms, uint32_t kLines, uint32_t kOfLine, class Meanwhile>
BOWHEAD_INLINE void multiply(const Queries& queries, uint32_t first_query, const UnitRows& rows,
                             __m512 (&folded)[kLines][Units::kRows / 4],
                             const Meanwhile& meanwhile) {
  constexpr uint32_t kAtOnce = Units::kRows, kSums = Units::kSums;
  using Sum = typename Units::Sum;
  Sum sums[kLines][kSums][kAtOnce];
#pragma GCC unroll 2
  for (uint32_t l = 0; l < kLines; ++l) {
#pragma GCC unroll 2
    for (uint32_t s = 0; s < kSums; ++s) {
      const Sum start = first_sum<Units>(queries, first_query + l * kOfLine, s);
#pragma GCC unroll 8
      for (uint32_t t = 0; t < kAtOnce; ++t) sums[l][s][t] = start;
    }
  }
  const uint32_t* first = queries.group(first_query, 0);
  const uint32_t* second = queries.group(first_query, kTerms - 1);
  const uint8_t* units = rows.units;
  const size_t stride_bytes = rows.stride_bytes;
  uint32_t step = 0;
  for (const uint8_t* end = units + rows.bytes; units < end; units += 64 / kOfLine) {
    __m512i lines[kTerms][kLines];
#pragma GCC unroll 2
    for (uint32_t l = 0; l < kLines; ++l) {
      lines[0][l] = _mm512_loadu_si512(first + l * 16);
      if constexpr (kTerms == 2) lines[1][l] = _mm512_loadu_si512(second + l * 16);
    }
    first += kLines * 16;
    second += kLines * 16;
#pragma GCC unroll 8
    for (uint32_t t = 0; t < kAtOnce; ++t) {
      const __m512i row = row_units<Units>(repeat<kOfLine>(units + t * stride_bytes));
#pragma GCC unroll 2
      for (uint32_t p = 0; p < kTerms; ++p) {
#pragma GCC unroll 2
        for (uint32_t l = 0; l < kLines; ++l)
          sums[l][p % kSums][t] = Units::add(sums[l][p % kSums][t], row, lines[p][l]);
      }
    }
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 4 / kOfLine; ++i) meanwhile(rows.units, step++);
  }
#pragma GCC unroll 2
  for (uint32_t l = 0; l < kLines; ++l) fold_rows<Units>(sums[l], folded[l]);
}

/// A group of queries and kRows rows.
template <class Units, uint32_t kTerms, uint32_t kQueries, class Meanwhile>
BOWHEAD_INLINE void score_group(const Queries& queries, uint32_t first_query, const UnitRows& rows,
                                __m256 scales, float* scores, const Meanwhile& meanwhile) {
  constexpr uint32_t kOfLine = std::min(kQueries, 4u), kLines = kQueries / kOfLine;
  __m512 folded[kRows / Units::kRows][kLines][Units::kRows / 4];
#pragma GCC unroll 2
  for (uint32_t i = 0; i < kRows / Units::kRows; ++i)
    multiply<Units, kTerms, kLines, kOfLine>(queries, first_query, rows.from(i * Units::kRows),
                                             folded[i], meanwhile);
  store_group<kOfLine>(queries, first_query, folded, scales, scores);
}

template <class Units, uint32_t kTerms, class Meanwhile>
BOWHEAD_INLINE void score_rows(const Queries& queries, const UnitRows& rows, __m256 scales,
                               float* scores, const Meanwhile& meanwhile) {
  uint32_t q = 0;
  for (; q + 8 <= queries.count(); q += 8)
    score_group<Units, kTerms, 8>(queries, q, rows, scales, scores, meanwhile);
  if (queries.count() & 4)
    score_group<Units, kTerms, 4>(queries, q, rows, scales, scores, meanwhile);
  q += queries.count() & 4;
  if (queries.count() & 2)
    score_group<Units, kTerms, 2>(queries, q, rows, scales, scores, meanwhile);
}

template <class Units, uint32_t kTerms>
void score_as_they_lie(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                       float* scores) {
  const RowsAhead<Units> ahead(keys);
  const auto fetch = [&](const uint8_t* rows, uint32_t step)
                         BOWHEAD_INLINE_LAMBDA { ahead.fetch(rows, step); };
  uint32_t at = 0;
  for (; at + kRows <= count; at += kRows)
    score_rows<Units, kTerms>(queries, {keys.row(first + at), keys.stride_bytes, keys.row_bytes()},
                              scales_of(keys, first + at, kRows), scores + at, fetch);
  if (at == count) return;
  alignas(64) uint8_t room[kRoomBytes<Units>];
  PreparedRows<Units> rest(room);
  rest.begin(keys, first + at, first + count - 1);
  rest.finish();
  const auto nothing = [](const uint8_t*, uint32_t) {};
  score_rows<Units, kTerms>(queries, rest.rows(), scales_of(keys, first + at, count - at),
                            scores + at, nothing);
}

template <class Units, uint32_t kTerms>
void score_prepared(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                    float* scores) {
  alignas(64) uint8_t room[2][kRoomBytes<Units>];
  PreparedRows<Units> rows(room[0]), next(room[1]);
  const uint32_t last = first + count - 1;
  rows.begin(keys, first, last);
  rows.finish();
  for (uint32_t at = 0; at < count; at += kRows) {
    if (at + kRows < count) next.begin(keys, first + at + kRows, last);
    const auto prepare = [&](const uint8_t*, uint32_t) BOWHEAD_INLINE_LAMBDA { next.step(); };
    score_rows<Units, kTerms>(queries, rows.rows(), scales_of(keys, first + at, count - at),
                              scores + at, prepare);
    next.finish();
    std::swap(rows, next);
  }
}

/// One query alone and Units::kRows rows, which are made units as they are
/// read, one after the other. Behind row `last` that one stands in for others.
template <class Units, uint32_t kTerms>
BOWHEAD_INLINE void multiply_single(const Queries& queries, uint32_t q, const uint8_t* row,
                                    size_t stride_bytes, uint32_t last,
                                    __m512 (&folded)[Units::kRows / 4]) {
  constexpr uint32_t kAtOnce = Units::kRows, kSums = Units::kSums, kLines = Units::kLines;
  const uint32_t* terms[2] = {queries.group(q, 0), queries.group(q, kTerms - 1)};
  const uint32_t channels = queries.channels();
  typename Units::Sum sums[kSums][kAtOnce];
#pragma GCC unroll 8
  for (uint32_t t = 0; t < kAtOnce; ++t) {
#pragma GCC unroll 2
    for (uint32_t s = 0; s < kSums; ++s) sums[s][t] = first_sum<Units>(queries, q, s);
    const auto chunk = [&](uint32_t channel, uint32_t some) BOWHEAD_INLINE_LAMBDA {
      __m512i lines[kLines];
      Units::load(row, channel, some, lines);
#pragma GCC unroll 2
      for (uint32_t i = 0; i < kLines; ++i) {
        const uint32_t unit = (channel / Units::kChunk * kLines + i) * 16;
#pragma GCC unroll 2
        for (uint32_t p = 0; p < kTerms; ++p)
          sums[p % kSums][t] = Units::add(sums[p % kSums][t], row_units<Units>(lines[i]),
                                          _mm512_loadu_si512(terms[p] + unit));
      }
    };
    uint32_t channel = 0;
    for (; channel + Units::kChunk <= channels; channel += Units::kChunk)
      chunk(channel, Units::kChunk);
    if (channel < channels) chunk(channel, channels - channel);
    if (t < last) row += stride_bytes;
  }
  fold_rows<Units>(sums, folded);
}

template <class Units, uint32_t kTerms>
void score_single(const Queries& queries, uint32_t q, const Rows& keys, uint32_t first,
                  uint32_t count, float* scores) {
  for (uint32_t at = 0; at < count; at += kRows) {
    __m512 folded[kRows / Units::kRows][1][Units::kRows / 4];
#pragma GCC unroll 2
    for (uint32_t i = 0; i < kRows / Units::kRows; ++i) {
      const uint32_t from = std::min(at + i * Units::kRows, count - 1);
      multiply_single<Units, kTerms>(queries, q, keys.row(first + from), keys.stride_bytes,
                                     count - 1 - from, folded[i][0]);
    }
    store_group<1>(queries, q, folded, scales_of(keys, first + at, count - at), scores + at);
  }
}

template <class Units, uint32_t kTerms>
void score_as(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
              float* scores) {
  if (queries.count() % 2 == 1)
    score_single<Units, kTerms>(queries, queries.count() - 1, keys, first, count, scores);
  if (queries.count() == 1) return;
  // Two queries take 32 bytes of a row at once, more of them 16.
  const uint32_t step_bytes = (queries.count() & 2) != 0 ? 32 : 16;
  if (Units::kAsTheyLie && keys.row_bytes() % step_bytes == 0)
    score_as_they_lie<Units, kTerms>(queries, keys, first, count, scores);
  else
    score_prepared<Units, kTerms>(queries, keys, first, count, scores);
}

using E4m3 = Fp8<4, false>;
using E5m2 = Fp8<5, true>;

template <class Units>
void score_by_terms(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                    float* scores) {
  queries.terms() == 1 ? score_as<Units, 1>(queries, keys, first, count, scores)
                       : score_as<Units, 2>(queries, keys, first, count, scores);
}

void score(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
           float* scores) {
  switch (keys.number) {
    case NumberFormat::BF16:
      return score_by_terms<Bf16Units>(queries, keys, first, count, scores);
    case NumberFormat::FP8_E4M3:
      return score_by_terms<Fp8Units<E4m3>>(queries, keys, first, count, scores);
    case NumberFormat::FP8_E5M2:
      return score_by_terms<Fp8Units<E5m2>>(queries, keys, first, count, scores);
    case NumberFormat::FP16:
      return score_as<Fp16Units, 1>(queries, keys, first, count, scores);
    default:
      return score_as<Int8Units, 2>(queries, keys, first, count, scores);
  }
}

// ---- weighted sums of values ----

/// 16 channels.
BOWHEAD_INLINE void add_to(float* sums, __m512 more) {
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), more));
}

/// Values as bf16, two tokens at a time: a lane has a channel of both.
template <class Kind>
struct Pairs;

template <>
struct Pairs<Bf16> {
  static constexpr uint32_t kQueries = 8,
                            kSums = 2;  // for a chunk of 32 channels
  static BOWHEAD_INLINE void load(__m512i (&pairs)[kSums], const uint8_t* even, const uint8_t* odd,
                                  uint32_t channel, uint32_t channels) {
    const __m512i a = Bf16::load(even, channel, channels), b = Bf16::load(odd, channel, channels);
    pairs[0] = _mm512_unpacklo_epi16(a, b);
    pairs[1] = _mm512_unpackhi_epi16(a, b);
  }
  static BOWHEAD_INLINE void add_to_sums(float* sums, const __m512 (&lanes)[kSums]) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    add_to(sums, _mm512_permutex2var_ps(lanes[0], low, lanes[1]));
    add_to(sums + 16, _mm512_permutex2var_ps(lanes[0], high, lanes[1]));
  }
};

template <uint32_t kExponentBits, bool kHasInfinity>
struct Pairs<Fp8<kExponentBits, kHasInfinity>> {
  static constexpr uint32_t kQueries = 4,
                            kSums = 4;  // for a chunk of 64 channels
  static BOWHEAD_INLINE void load(__m512i (&pairs)[kSums], const uint8_t* even, const uint8_t* odd,
                                  uint32_t channel, uint32_t channels) {
    using Kind = Fp8<kExponentBits, kHasInfinity>;
    const WordPair x = Kind::load(even, channel, channels), y = Kind::load(odd, channel, channels);
    pairs[0] = _mm512_unpacklo_epi16(x.a, y.a);
    pairs[1] = _mm512_unpackhi_epi16(x.a, y.a);
    pairs[2] = _mm512_unpacklo_epi16(x.b, y.b);
    pairs[3] = _mm512_unpackhi_epi16(x.b, y.b);
  }
  /// Quarter i of lanes[j] has channels 16 i + 4 j and the three behind it.
  static BOWHEAD_INLINE void add_to_sums(float* sums, const __m512 (&lanes)[kSums]) {
    const __m512 a = _mm512_shuffle_f32x4(lanes[0], lanes[1], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(lanes[2], lanes[3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(lanes[0], lanes[1], 0xEE);
    const __m512 d = _mm512_shuffle_f32x4(lanes[2], lanes[3], 0xEE);
    add_to(sums, _mm512_shuffle_f32x4(a, b, 0x88));
    add_to(sums + 16, _mm512_shuffle_f32x4(a, b, 0xDD));
    add_to(sums + 32, _mm512_shuffle_f32x4(c, d, 0x88));
    add_to(sums + 48, _mm512_shuffle_f32x4(c, d, 0xDD));
  }
};

/// A tile is read once for each group of channels. The next one is fetched meanwhile, in the order
/// in which it lies: two lines at a time, as two tokens have.
class NextTile {
 public:
  NextTile(const Rows& rows, uint32_t first)
      : at_(rows.row(first) + kTileTokens * rows.stride_bytes),
        left_(static_cast<ptrdiff_t>(rows.row_bytes())),
        row_bytes_(left_),
        gap_bytes_(static_cast<ptrdiff_t>(rows.stride_bytes) - (left_ + 127) / 128 * 128) {}
  BOWHEAD_INLINE void fetch() {
    _mm_prefetch(at_, _MM_HINT_T1);
    _mm_prefetch(at_ + 64, _MM_HINT_T1);
    at_ += 128;
    left_ -= 128;
    const bool ends = left_ <= 0;
    at_ += ends ? gap_bytes_ : 0;
    left_ = ends ? row_bytes_ : left_;
  }

 private:
  const uint8_t* at_;
  ptrdiff_t left_, row_bytes_, gap_bytes_;
};

/// `weights` as bf16: [query][kTileTokens].
template <class Kind, uint32_t kQueries>
void weigh_pairs(const uint16_t* weights, const Rows& values, uint32_t first, uint32_t count,
                 float* sums, size_t stride) {
  using P = Pairs<Kind>;
  NextTile ahead(values, first);
  const auto chunk = [&](uint32_t channel, uint32_t channels) BOWHEAD_INLINE_LAMBDA {
    __m512 lanes[kQueries][P::kSums];
    for (auto& of_query : lanes) {
      for (__m512& lane : of_query) lane = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < count; i += 2) {
      // Zeros, and not a token of weight zero, which may be infinite.
      alignas(64) static constexpr uint8_t kNoToken[kMaxChannels * 2] = {};
      __m512i pairs[P::kSums];
      const uint8_t* even = values.row(first + i);
      const uint8_t* odd = i + 1 < count ? values.row(first + i + 1) : kNoToken;
      ahead.fetch();
      P::load(pairs, even, odd, channel, channels);
#pragma GCC unroll 8
      for (uint32_t q = 0; q < kQueries; ++q) {
        int both;
        memcpy(&both, weights + q * kTileTokens + i, 4);
        const __m512i weight = _mm512_set1_epi32(both);
#pragma GCC unroll 4
        for (uint32_t s = 0; s < P::kSums; ++s)
          lanes[q][s] = add_products(lanes[q][s], pairs[s], weight);
      }
    }
    for (uint32_t q = 0; q < kQueries; ++q) P::add_to_sums(sums + q * stride + channel, lanes[q]);
  };
  uint32_t channel = 0;
  for (; channel + Kind::kChunk <= values.channels; channel += Kind::kChunk)
    chunk(channel, Kind::kChunk);
  if (channel < values.channels) chunk(channel, values.channels - channel);
}

template <class Kind>
void weigh_as_pairs(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
                    uint32_t count, float* sums, size_t stride) {
  alignas(64) uint16_t small[8 * kTileTokens];
  for (uint32_t q = 0; q < queries;) {
    const uint32_t left = queries - q;
    const uint32_t some = left >= 8 ? Pairs<Kind>::kQueries : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (uint32_t i = 0; i < some * kTileTokens; i += 32) {
      const float* from = weights + q * kTileTokens + i;
      _mm512_store_si512(small + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16),
                                                                 _mm512_loadu_ps(from)));
    }
    float* to = sums + q * stride;
    if (some == 8)
      weigh_pairs<Kind, Pairs<Kind>::kQueries>(small, values, first, count, to, stride);
    else if (some == 4)
      weigh_pairs<Kind, 4>(small, values, first, count, to, stride);
    else if (some == 2)
      weigh_pairs<Kind, 2>(small, values, first, count, to, stride);
    else
      weigh_pairs<Kind, 1>(small, values, first, count, to, stride);
    q += some;
  }
}

/// 32 channels as floats.
struct Int8Floats {
  static BOWHEAD_INLINE FloatPair load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    const __m256i bytes = load_bytes(row + channel, channels);
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes))),
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)))};
  }
};

template <class Kind, uint32_t kQueries>
void weigh_floats(const float* weights, const Rows& values, uint32_t first, uint32_t count,
                  float* sums, size_t stride) {
  const auto chunk = [&](uint32_t channel, uint32_t channels) BOWHEAD_INLINE_LAMBDA {
    FloatPair lanes[kQueries];
    for (FloatPair& lane : lanes) lane = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t i = 0; i < count; ++i) {
      const uint8_t* row = values.row(first + i);
      fetch_ahead(row + channel * element_bytes(values.number), values.stride_bytes);
      const FloatPair value = Kind::load(row, channel, channels);
#pragma GCC unroll 8
      for (uint32_t q = 0; q < kQueries; ++q) {
        const __m512 weight = _mm512_set1_ps(weights[q * kTileTokens + i]);
        lanes[q].a = _mm512_fmadd_ps(value.a, weight, lanes[q].a);
        lanes[q].b = _mm512_fmadd_ps(value.b, weight, lanes[q].b);
      }
    }
    for (uint32_t q = 0; q < kQueries; ++q) {
      add_to(sums + q * stride + channel, lanes[q].a);
      add_to(sums + q * stride + channel + 16, lanes[q].b);
    }
  };
  uint32_t channel = 0;
  for (; channel + 32 <= values.channels; channel += 32) chunk(channel, 32);
  if (channel < values.channels) chunk(channel, values.channels - channel);
}

template <class Kind>
void weigh_as_floats(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
                     uint32_t count, float* sums, size_t stride) {
  uint32_t q = 0;
  for (; q + 8 <= queries; q += 8)
    weigh_floats<Kind, 8>(weights + q * kTileTokens, values, first, count, sums + q * stride,
                          stride);
  for (; q + 2 <= queries; q += 2)
    weigh_floats<Kind, 2>(weights + q * kTileTokens, values, first, count, sums + q * stride,
                          stride);
  if (q < queries)
    weigh_floats<Kind, 1>(weights + q * kTileTokens, values, first, count, sums + q * stride,
                          stride);
}

void weigh(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
           uint32_t count, float* sums, size_t stride) {
  switch (values.number) {
    case NumberFormat::BF16:
      return weigh_as_pairs<Bf16>(weights, queries, values, first, count, sums, stride);
    case NumberFormat::FP8_E4M3:
      return weigh_as_pairs<E4m3>(weights, queries, values, first, count, sums, stride);
    case NumberFormat::FP8_E5M2:
      return weigh_as_pairs<E5m2>(weights, queries, values, first, count, sums, stride);
    case NumberFormat::FP16:
      return weigh_as_floats<Fp16>(weights, queries, values, first, count, sums, stride);
    default:
      return weigh_as_floats<Int8Floats>(weights, queries, values, first, count, sums, stride);
  }
}

// ---- softmax ----

float largest(const float* values) {
  __m512 most = _mm512_loadu_ps(values);
  for (uint32_t i = 16; i < kTileTokens; i += 16)
    most = _mm512_max_ps(most, _mm512_loadu_ps(values + i));
  return _mm512_reduce_max_ps(most);
}

/// e^x as 2^n 2^f, |f| <= 1/2; 2^f by its series up to f^6 (error below 2^-22). NaN stays NaN.
BOWHEAD_INLINE __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-1000),
                    x);  // of two the second, if one is NaN
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // In two steps: the product rounds where x is large.
  __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
  __m512 sum = _mm512_set1_ps(1.0f / 720);
  for (const float factor : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, n);
}

float exponentials(float* values, float largest) {
  __m512 sum = _mm512_setzero_ps();
  for (uint32_t i = 0; i < kTileTokens; i += 16) {
    const __m512 x =
        exponential(_mm512_sub_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(largest)));
    _mm512_storeu_ps(values + i, x);
    sum = _mm512_add_ps(sum, x);
  }
  return _mm512_reduce_add_ps(sum);
}

/// By the exponential; near zero, where its bits cancel, by the series up to x^7.
void soft_cap(float* values, float cap) {
  const __m512 one = _mm512_set1_ps(1), sign = _mm512_set1_ps(-0.0f);
  for (uint32_t i = 0; i < kTileTokens; i += 16) {
    const __m512 value = _mm512_loadu_ps(values + i);
    const __m512 x = _mm512_div_ps(value, _mm512_set1_ps(cap));
    const __m512 size = _mm512_andnot_ps(sign, x), square = _mm512_mul_ps(x, x);
    const __m512 power = exponential(_mm512_mul_ps(size, _mm512_set1_ps(-2)));
    __m512 series = _mm512_set1_ps(-17.0f / 315);
    for (const float factor : {2.0f / 15, -1.0f / 3, 0.0f})
      series = _mm512_fmadd_ps(series, square, _mm512_set1_ps(factor));
    const __m512 far = _mm512_div_ps(_mm512_sub_ps(one, power), _mm512_add_ps(one, power));
    const __mmask16 near = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.25f), _CMP_LT_OQ);
    const __m512 tanh = _mm512_mask_blend_ps(near, far, _mm512_fmadd_ps(size, series, size));
    const __m512 with_sign = _mm512_or_ps(tanh, _mm512_and_ps(sign, x));
    const __mmask16 at_zero = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-12f), _CMP_LT_OQ);
    const __m512 capped = _mm512_mul_ps(with_sign, _mm512_set1_ps(cap));
    _mm512_storeu_ps(values + i, _mm512_mask_blend_ps(at_zero, capped, value));
  }
}

// ---- selection ----

uint32_t select(const float* scores, uint32_t count, float least, uint32_t first_token, Hit* out) {
  static_assert(kTileTokens == 64);
  uint64_t which = 0;
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kTileTokens; i += 16)
    which |=
        uint64_t{_mm512_cmp_ps_mask(_mm512_loadu_ps(scores + i), _mm512_set1_ps(least), _CMP_GE_OQ)}
        << i;
  if (least != least) which = ~uint64_t{0};
  which &= first_bytes(count);
  uint32_t taken = 0;
  for (uint32_t i = 0; which != 0; i += 16, which >>= 16) {  // in most tiles there is none
    const auto some = static_cast<__mmask16>(which);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i token = _mm512_maskz_compress_epi32(
        some, _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first_token + i))));
    const __m512i score = _mm512_maskz_compress_epi32(some, _mm512_loadu_si512(scores + i));
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_si512(out + taken, _mm512_permutex2var_epi32(score, low, token));
    _mm512_storeu_si512(out + taken + 8, _mm512_permutex2var_epi32(score, high, token));
    taken += static_cast<uint32_t>(_mm_popcnt_u32(some));
  }
  return taken;
}

// ---- digests ----

/// For 16 channels. NaN is left out of the others, and remembered.
struct Bounds {
  __m512 least, largest;
  __mmask16 odd;

  BOWHEAD_INLINE void clear() {
    least = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    largest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    odd = 0;
  }
  BOWHEAD_INLINE void take(__m512 x) {
    odd = static_cast<__mmask16>(odd | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
    least = _mm512_min_ps(x, least);  // of two the second, if one is NaN
    largest = _mm512_max_ps(x, largest);
  }
  BOWHEAD_INLINE void store(float* low, float* high, __mmask16 valid) const {
    const float infinity = std::numeric_limits<float>::infinity();
    _mm512_mask_storeu_ps(low, valid, _mm512_mask_mov_ps(least, odd, _mm512_set1_ps(-infinity)));
    _mm512_mask_storeu_ps(high, valid, _mm512_mask_mov_ps(largest, odd, _mm512_set1_ps(infinity)));
  }
};

template <class Kind>
void bounds_as(const Rows& keys, uint32_t first, uint32_t count, float* least, float* largest) {
  const uint32_t bytes = element_bytes(keys.number);
  for (uint32_t channel = 0; channel < keys.channels; channel += 32) {
    const uint32_t channels = std::min(keys.channels - channel, 32u);
    Bounds a, b;
    a.clear();
    b.clear();
    for (uint32_t i = first; i < first + count; ++i) {
      fetch_ahead(keys.row(i) + size_t{channel} * bytes, keys.stride_bytes);
      const FloatPair value = Kind::load(keys.row(i), channel, channels);
      const __m512 scale = _mm512_set1_ps(keys.scales == nullptr ? 1 : keys.scales[i]);
      a.take(_mm512_mul_ps(value.a, scale));
      b.take(_mm512_mul_ps(value.b, scale));
    }
    const __mmask32 valid = first_words(channels);
    a.store(least + channel, largest + channel, static_cast<__mmask16>(valid));
    b.store(least + channel + 16, largest + channel + 16, static_cast<__mmask16>(valid >> 16));
  }
}

BOWHEAD_INLINE __m512 dot(const float* query, const int16_t* row, uint32_t channels) {
  const auto add = [&](__m512 sum, uint32_t at) BOWHEAD_INLINE_LAMBDA {
    const __m512i values =
        _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + at)));
    return _mm512_fmadd_ps(_mm512_loadu_ps(query + at), _mm512_cvtepi32_ps(values), sum);
  };
  __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
  for (uint32_t at = 0; at < channels; at += 64) {
    a = add(a, at);
    b = add(b, at + 16);
    c = add(c, at + 32);
    d = add(d, at + 48);
  }
  return _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
}

BOWHEAD_INLINE __m512 sums_of_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

void dots(const float* query, const int16_t* rows, uint32_t count, uint32_t channels, float* sums) {
  for (; count >= 4; count -= 4, rows += size_t{4} * channels, sums += 4) {
    const __m512 a = dot(query, rows, channels), b = dot(query, rows + channels, channels),
                 c = dot(query, rows + 2 * channels, channels),
                 d = dot(query, rows + 3 * channels, channels);
    // Rows 0 and 2 in turn, and 1 and 3; then all four in each quarter.
    const __m512 quarters = sums_of_pairs(sums_of_pairs(a, c), sums_of_pairs(b, d));
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(sums,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  for (uint32_t i = 0; i < count; ++i)
    sums[i] = _mm512_reduce_add_ps(dot(query, rows + size_t{i} * channels, channels));
}

// ---- products ----

BOWHEAD_INLINE __m512i sums_of_pairs(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
/// In each quarter, of four registers the sums of their quarters.
BOWHEAD_INLINE __m512i sums_of_fours(const __m512i* lanes) {
  const __m512i a = sums_of_pairs(lanes[0], lanes[1]), b = sums_of_pairs(lanes[2], lanes[3]);
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
BOWHEAD_INLINE __m256i sum_of_halves(__m512i lanes) {
  return _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
}
BOWHEAD_INLINE __m256i sums_of_eights(const __m512i* lanes) {
  const __m256i a = sum_of_halves(sums_of_fours(lanes));
  const __m256i b = sum_of_halves(sums_of_fours(lanes + 4));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}

/// Queries of 64 channels stay in registers.
template <bool kOneBlock>
void products_of(const Products& in, int32_t* sums) {
  static_assert(kProductQueries == 8);
  const uint32_t channels = kOneBlock ? 64 : in.channels;
  const auto query = [&](uint32_t q, uint32_t at) BOWHEAD_INLINE_LAMBDA {
    return _mm512_loadu_si512(in.queries + size_t{q} * channels + at);
  };
  __m512i kept[16];
  for (uint32_t q = 0; q < 8; ++q) {
    kept[2 * q] = query(q, 0);
    kept[2 * q + 1] = query(q, 32);
  }
  for (uint32_t i = 0; i < in.count; ++i, sums += 8) {
    const int16_t* row = in.rows + size_t{i} * channels;
    __m512i lanes[8] = {};
    for (uint32_t at = 0; at < channels; at += 64) {
      const __m512i a = _mm512_loadu_si512(row + at), b = _mm512_loadu_si512(row + at + 32);
#pragma GCC unroll 8
      for (uint32_t q = 0; q < 8; ++q) {
        lanes[q] = _mm512_dpwssd_epi32(lanes[q], a, kOneBlock ? kept[2 * q] : query(q, at));
        lanes[q] =
            _mm512_dpwssd_epi32(lanes[q], b, kOneBlock ? kept[2 * q + 1] : query(q, at + 32));
      }
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), sums_of_eights(lanes));
  }
}

void products(const Products& in, int32_t* sums) {
  in.channels == 64 ? products_of<true>(in, sums) : products_of<false>(in, sums);
}

void exact(const double* queries, const double* rows, uint32_t channels, double* sums) {
  static_assert(kProductQueries == 8);
  __m512d all[kExactRows] = {};
  for (uint32_t c = 0; c < channels; ++c) {
    const __m512d query = _mm512_loadu_pd(queries + size_t{c} * 8);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kExactRows; ++i)
      all[i] = _mm512_fmadd_pd(query, _mm512_set1_pd(rows[size_t{i} * channels + c]), all[i]);
  }
  for (uint32_t i = 0; i < kExactRows; ++i) _mm512_storeu_pd(sums + size_t{i} * 8, all[i]);
}

void count_reaching(const int32_t* sums, size_t rows, const int32_t* cuts, int32_t* counts) {
  static_assert(kProductQueries == 8);
  const __m256i cut = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cuts));
  __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(counts));
  for (size_t i = 0; i < rows; ++i) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + i * 8));
    all = _mm256_sub_epi32(all, _mm256_movm_epi32(_mm256_cmpge_epi32_mask(row, cut)));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), all);
}

uint32_t rows_reaching(const int32_t* sums, uint32_t rows, const int32_t* cuts,
                       uint32_t* reaching) {
  const __m256i cut = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cuts));
  uint32_t taken = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + size_t{i} * 8));
    reaching[taken] = i;
    taken += _mm256_cmpge_epi32_mask(row, cut) != 0;
  }
  return taken;
}

size_t count_ranks(const uint64_t* ranks, size_t count, uint64_t cut) {
  const __m512i bound = _mm512_set1_epi64(static_cast<int64_t>(cut));
  size_t reaching = 0, i = 0;
  for (; i + 8 <= count; i += 8)
    reaching += static_cast<uint32_t>(
        __builtin_popcount(_mm512_cmpge_epu64_mask(_mm512_loadu_si512(ranks + i), bound)));
  const auto rest = static_cast<__mmask8>((1u << (count - i)) - 1);
  return reaching + static_cast<uint32_t>(__builtin_popcount(_mm512_mask_cmpge_epu64_mask(
                        rest, _mm512_maskz_loadu_epi64(rest, ranks + i), bound)));
}

BOWHEAD_INLINE __m512 floats_of_bf16(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

struct Bf16Floats {
  static BOWHEAD_INLINE FloatPair load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    const __m512i words = Bf16::load(row, channel, channels);
    return {floats_of_bf16(_mm512_castsi512_si256(words)),
            floats_of_bf16(_mm512_extracti64x4_epi64(words, 1))};
  }
};

template <uint32_t kExponentBits, bool kHasInfinity>
struct Fp8Floats {
  static BOWHEAD_INLINE FloatPair load(const uint8_t* row, uint32_t channel, uint32_t channels) {
    // 32 bytes: each quarter's words are 8 channels of `a`, then 8 of `b`, of
    // the first two.
    const WordPair w =
        Fp8<kExponentBits, kHasInfinity>::load(row, channel, std::min(channels, 32u));
    const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i words = _mm512_permutex2var_epi64(w.a, order, w.b);
    return {floats_of_bf16(_mm512_castsi512_si256(words)),
            floats_of_bf16(_mm512_extracti64x4_epi64(words, 1))};
  }
};

void bounds(const Rows& keys, uint32_t first, uint32_t count, float* least, float* largest) {
  switch (keys.number) {
    case NumberFormat::BF16:
      return bounds_as<Bf16Floats>(keys, first, count, least, largest);
    case NumberFormat::FP8_E4M3:
      return bounds_as<Fp8Floats<4, false>>(keys, first, count, least, largest);
    case NumberFormat::FP8_E5M2:
      return bounds_as<Fp8Floats<5, true>>(keys, first, count, least, largest);
    case NumberFormat::FP16:
      return bounds_as<Fp16>(keys, first, count, least, largest);
    default:
      return bounds_as<Int8Floats>(keys, first, count, least, largest);
  }
}

}  // namespace

const Kernels kKernelsAvx512 = {"avx512",      score,       weigh, largest,  exponentials,
                                soft_cap,      select,      dots,  products, count_reaching,
                                rows_reaching, count_ranks, exact, bounds};

}  // namespace bowhead::ndp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
