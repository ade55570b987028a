// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <algorithm>
#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"
#include "base/coherence.h"
#include "base/vector_kernels.h"

namespace bowhead {
namespace {

// Sums go to the combiner in batches of this many, so that the combiner costs next to nothing.
constexpr size_t kBatch = 32;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sums are combined as they lie in memory");

void combine(XXH3_state_t& state, std::span<const uint64_t> words) {
  const XXH_errorcode result = XXH3_64bits_update(&state, words.data(), words.size_bytes());
  BOWHEAD_ASSERT(result == XXH_OK);
}

XXH3_state_t& combiner_of(std::byte* storage) {
  return *std::launder(reinterpret_cast<XXH3_state_t*>(storage));
}

}  // namespace

const VectorKernels& vector_kernels(IsaLevel level) {
  BOWHEAD_ASSERT(level <= cpu_features().isa || level == IsaLevel::SCALAR);
#if defined(__x86_64__)
  switch (level) {
    case IsaLevel::SCALAR:
      return kVectorKernelsScalar;
    case IsaLevel::AVX2:
      return kVectorKernelsAvx2;
    case IsaLevel::AVX512:
      return kVectorKernelsAvx512;
  }
#endif
  return kVectorKernelsScalar;
}

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = vector_kernels(cpu_features().isa);
  return chosen;
}

uint64_t hash64(const void* data, size_t size) { return hash64(data, size, 0); }

uint64_t hash64(const void* data, size_t size, uint64_t seed) {
  return vector_kernels().hash64(data, size, seed);
}

Hash128 hash128(const void* data, size_t size, uint64_t seed) {
  return vector_kernels().hash128(data, size, seed);
}

uint64_t payload_checksum(const void* data, size_t size) {
  const VectorKernels& kernels = vector_kernels();
  const auto* bytes = static_cast<const std::byte*>(data);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  uint64_t sums[kBatch];
  size_t used = 0;
  for (size_t at = 0; at < size; at += kChecksumPieceBytes) {
    sums[used++] = kernels.hash64(bytes + at, std::min(size - at, kChecksumPieceBytes), 0);
    if (used == kBatch) {
      combine(state, sums);
      used = 0;
    }
  }
  combine(state, std::span(sums, used));
  const uint64_t length = size;
  combine(state, {&length, 1});
  return XXH3_64bits_digest(&state);
}

uint64_t combine_pieces(std::span<const uint64_t> piece_sums, uint64_t size) {
  BOWHEAD_ASSERT(piece_sums.size() == (size + kChecksumPieceBytes - 1) / kChecksumPieceBytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  combine(state, piece_sums);
  combine(state, {&size, 1});
  return XXH3_64bits_digest(&state);
}

ChecksumCopy::ChecksumCopy(bool streaming) : kernels_(&vector_kernels()), streaming_(streaming) {
  static_assert(sizeof(combiner_) >= sizeof(XXH3_state_t) && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (combiner_) XXH3_state_t);
}

void ChecksumCopy::append(void* destination, const void* source, size_t size) {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  length_ += size;
  while (size > 0) {
    size_t bytes;
    if (piece_used_ == 0 && size >= kChecksumPieceBytes) {
      const size_t count = std::min(size / kChecksumPieceBytes, kBatch);
      uint64_t sums[kBatch];
      (streaming_ ? kernels_->copy_pieces_streaming : kernels_->copy_pieces)(to, from, count, sums);
      combine(combiner_of(combiner_), std::span(sums, count));
      bytes = count * kChecksumPieceBytes;
    } else {
      // By way of piece_: the sum is of bytes that nobody else can change.
      bytes = std::min(size, kChecksumPieceBytes - piece_used_);
      std::byte* staged = piece_ + piece_used_;
      kernels_->copy(staged, from, bytes);
      (streaming_ ? kernels_->copy_streaming : kernels_->copy)(to, staged, bytes);
      piece_used_ += bytes;
      if (piece_used_ == kChecksumPieceBytes) end_piece();
    }
    to += bytes;
    from += bytes;
    size -= bytes;
  }
}

void ChecksumCopy::end_piece() {
  const uint64_t sum = kernels_->hash64(piece_, piece_used_, 0);
  combine(combiner_of(combiner_), {&sum, 1});
  piece_used_ = 0;
}

uint64_t ChecksumCopy::finish() {
  if (piece_used_ > 0) end_piece();
  combine(combiner_of(combiner_), {&length_, 1});
  if (streaming_) streaming_fence();
  return XXH3_64bits_digest(&combiner_of(combiner_));
}

}  // namespace bowhead
