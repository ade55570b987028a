// SPDX-License-Identifier: Apache-2.0
#include "compression/stream.h"

#include <lz4.h>
#define ZSTD_STATIC_LINKING_ONLY  // for the name of a parameter
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>

#include "compression/lines.h"
#include "compression/planes.h"

namespace bowhead::compression {

namespace {

/// The library would also accept several frames, empty frames, and frames of its older versions.
bool one_zstd_frame(std::span<const uint8_t> in) {
  constexpr uint32_t kMagic = ZSTD_MAGICNUMBER;
  return in.size() >= sizeof kMagic && std::memcmp(in.data(), &kMagic, sizeof kMagic) == 0 &&
         ZSTD_findFrameCompressedSize(in.data(), in.size()) == in.size();
}

}  // namespace

struct StreamCoder::State {
  const FrameBytes coded;
  Lines<uint8_t> copy;  ///< of a coded stream that may change
  LZ4_stream_t lz4;

  explicit State(FrameBytes bytes) : coded(bytes) {}
  ~State() {
    ZSTD_freeCCtx(compressor_);
    ZSTD_freeDCtx(decompressor_);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ZSTD_CCtx* compressor() {
    if (compressor_ != nullptr) return compressor_;
    compressor_ = ZSTD_createCCtx();
    if (compressor_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(compressor_, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(compressor_, ZSTD_c_checksumFlag, 0);
    // Also where the level asks for speed: a library that ignored this would leave such streams
    // uncompressed.
    ZSTD_CCtx_setParameter(compressor_, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    return compressor_;
  }
  ZSTD_DCtx* decompressor() {
    if (decompressor_ == nullptr) decompressor_ = ZSTD_createDCtx();
    if (decompressor_ == nullptr) throw std::bad_alloc();
    return decompressor_;
  }

 private:
  ZSTD_CCtx* compressor_ = nullptr;
  ZSTD_DCtx* decompressor_ = nullptr;
};

static_assert(kZstdWithoutSearch == -ZSTD_TARGETLENGTH_MAX);

StreamCoder::StreamCoder(FrameBytes coded) : state_(std::make_unique<State>(coded)) {}
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
        static_cast<int>(in.size()), static_cast<int>(most), level));
  }
  if (codec == StreamCodec::ZSTD) {
    ZSTD_CCtx_setParameter(state_->compressor(), ZSTD_c_compressionLevel, level);
    const size_t size =
        ZSTD_compress2(state_->compressor(), out.data(), most, in.data(), in.size());
    return ZSTD_isError(size) ? 0 : size;
  }
  if (codec == StreamCodec::NIBBLES) {
    const size_t size = plane_kernels().nibbles_size(in);
    if (size > most || size + 8 > out.size()) return 0;
    plane_kernels().pack_nibbles(in, out.data());
    return size;
  }
  if (codec == StreamCodec::STORED && in.size() <= most) {
    std::memcpy(out.data(), in.data(), in.size());
    return in.size();
  }
  return 0;
}

bool StreamCoder::decode(StreamCodec codec, std::span<const uint8_t> in, std::span<uint8_t> out) {
  if (state_->coded == FrameBytes::MAY_CHANGE && codec != StreamCodec::STORED && !in.empty()) {
    Lines<uint8_t>& copy = state_->copy;
    copy.resize(std::max(copy.size(), in.size()));
    std::memcpy(copy.data(), in.data(), in.size());
    in = {copy.data(), in.size()};
  }
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
      return plane_kernels().unpack_nibbles(in, out);
    case StreamCodec::ZSTD:
      return one_zstd_frame(in) &&
             ZSTD_decompressDCtx(state_->decompressor(), out.data(), out.size(), in.data(),
                                 in.size()) == out.size();
  }
  return false;
}

}  // namespace bowhead::compression
