// SPDX-License-Identifier: Apache-2.0
#include "compression/stream.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>

namespace bowhead::compression {

namespace {

constexpr uint64_t kLowBits = 0x1111111111111111;

uint64_t load_word(std::span<const uint8_t> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, std::min<size_t>(bytes.size() - at, 8));
  return word;
}

/// The lowest bit of each nibble that is not zero.
uint64_t some_of(uint64_t word) { return (word | word >> 1 | word >> 2 | word >> 3) & kLowBits; }

}  // namespace

size_t nibbles_size(std::span<const uint8_t> in) {
  size_t count = 0;
  for (size_t at = 0; at < in.size(); at += 8)
    count += static_cast<size_t>(std::popcount(some_of(load_word(in, at))));
  return (in.size() * 2 + 7) / 8 + (count + 1) / 2;
}

void pack_nibbles(std::span<const uint8_t> in, uint8_t* out) {
  uint8_t* map = out;
  uint8_t* to = out + (in.size() * 2 + 7) / 8;
  std::memset(map, 0, static_cast<size_t>(to - map));
  bool high = false;
  for (size_t at = 0; at < in.size(); at += 8) {
    const uint64_t word = load_word(in, at);
    for (uint64_t some = some_of(word); some != 0; some &= some - 1) {
      const auto bit = static_cast<uint32_t>(std::countr_zero(some));
      const size_t nibble = at * 2 + bit / 4;
      map[nibble / 8] = static_cast<uint8_t>(map[nibble / 8] | 1u << nibble % 8);
      const auto value = static_cast<uint8_t>(word >> bit & 0xF);
      if (high)
        *to++ |= static_cast<uint8_t>(value << 4);
      else
        *to = value;
      high = !high;
    }
  }
}

bool unpack_nibbles(std::span<const uint8_t> in, std::span<uint8_t> out) {
  const size_t map_bytes = (out.size() * 2 + 7) / 8;
  if (in.size() < map_bytes) return false;
  const std::span<const uint8_t> map = in.first(map_bytes), nibbles = in.subspan(map_bytes);
  size_t count = 0;
  for (size_t at = 0; at < map.size(); at += 8)
    count += static_cast<size_t>(std::popcount(load_word(map, at)));
  if (nibbles.size() != (count + 1) / 2) return false;
  std::fill(out.begin(), out.end(), uint8_t{0});
  size_t taken = 0;
  for (size_t at = 0; at < map.size(); at += 8) {
    for (uint64_t some = load_word(map, at); some != 0; some &= some - 1, ++taken) {
      const size_t nibble = at * 8 + static_cast<size_t>(std::countr_zero(some));
      if (nibble >= out.size() * 2) return false;
      const uint32_t value = nibbles[taken / 2] >> taken % 2 * 4 & 0xFu;
      out[nibble / 2] = static_cast<uint8_t>(out[nibble / 2] | value << nibble % 2 * 4);
    }
  }
  return true;
}

struct StreamCoder::State {
  ZSTD_CCtx* compressor = ZSTD_createCCtx();
  ZSTD_DCtx* decompressor = ZSTD_createDCtx();
  LZ4_stream_t lz4;

  State() {
    if (compressor == nullptr || decompressor == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(compressor, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(compressor, ZSTD_c_checksumFlag, 0);
  }
  ~State() {
    ZSTD_freeCCtx(compressor);
    ZSTD_freeDCtx(decompressor);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

StreamCoder::StreamCoder() : state_(std::make_unique<State>()) {}
StreamCoder::~StreamCoder() = default;
StreamCoder::StreamCoder(StreamCoder&&) noexcept = default;
StreamCoder& StreamCoder::operator=(StreamCoder&&) noexcept = default;

size_t StreamCoder::encode(StreamCodec codec, int level, std::span<const uint8_t> in,
                           std::span<uint8_t> out, size_t most) {
  most = std::min(most, out.size());
  if (codec == StreamCodec::LZ4) {
    constexpr size_t kLimit = std::numeric_limits<int>::max();
    if (in.size() > LZ4_MAX_INPUT_SIZE || most > kLimit) return 0;
    return static_cast<size_t>(LZ4_compress_fast_extState(
        &state_->lz4, reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
        static_cast<int>(in.size()), static_cast<int>(most), 1));
  }
  if (codec == StreamCodec::ZSTD) {
    ZSTD_CCtx_setParameter(state_->compressor, ZSTD_c_compressionLevel, level);
    const size_t size = ZSTD_compress2(state_->compressor, out.data(), most, in.data(), in.size());
    return ZSTD_isError(size) ? 0 : size;
  }
  if (codec == StreamCodec::NIBBLES) {
    const size_t size = nibbles_size(in);
    if (size > most) return 0;
    pack_nibbles(in, out.data());
    return size;
  }
  if (codec == StreamCodec::STORED && in.size() <= most) {
    std::memcpy(out.data(), in.data(), in.size());
    return in.size();
  }
  return 0;
}

bool StreamCoder::decode(StreamCodec codec, std::span<const uint8_t> in, std::span<uint8_t> out) {
  switch (codec) {
    case StreamCodec::STORED:
      if (in.size() != out.size()) return false;
      if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
      return true;
    case StreamCodec::ZERO:
      std::fill(out.begin(), out.end(), uint8_t{0});
      return in.empty();
    case StreamCodec::LZ4: {
      constexpr size_t kLimit = std::numeric_limits<int>::max();
      if (in.size() > kLimit || out.size() > kLimit) return false;
      const int size = LZ4_decompress_safe(
          reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
          static_cast<int>(in.size()), static_cast<int>(out.size()));
      return size >= 0 && static_cast<size_t>(size) == out.size();
    }
    case StreamCodec::NIBBLES:
      return unpack_nibbles(in, out);
    case StreamCodec::ZSTD:
      return ZSTD_decompressDCtx(state_->decompressor, out.data(), out.size(), in.data(),
                                 in.size()) == out.size();
  }
  return false;
}

}  // namespace bowhead::compression
