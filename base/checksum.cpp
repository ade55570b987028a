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

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sums are combined as stored in memory");

XXH3_state_t& state_in(std::byte* storage) {
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
  SumCombiner combiner;
  for (size_t at = 0; at < size; at += kChecksumPieceBytes) {
    combiner.room()[0] = kernels.hash64(bytes + at, std::min(size - at, kChecksumPieceBytes), 0);
    combiner.add(1);
  }
  return combiner.finish(size);
}

uint64_t combine_pieces(std::span<const uint64_t> piece_sums, uint64_t size) {
  BOWHEAD_ASSERT(piece_sums.size() == (size + kChecksumPieceBytes - 1) / kChecksumPieceBytes);
  SumCombiner combiner;
  for (const uint64_t sum : piece_sums) {
    combiner.room()[0] = sum;
    combiner.add(1);
  }
  return combiner.finish(size);
}

std::span<uint64_t> SumCombiner::room() {
  if (used_ == std::size(sums_)) spill();
  return std::span(sums_).subspan(used_);
}

void SumCombiner::spill() {
  static_assert(sizeof(state_) >= sizeof(XXH3_state_t) && alignof(XXH3_state_t) <= 64);
  if (!spilled_) XXH3_64bits_reset(new (state_) XXH3_state_t);
  spilled_ = true;
  const XXH_errorcode result =
      XXH3_64bits_update(&state_in(state_), sums_, used_ * sizeof(sums_[0]));
  BOWHEAD_ASSERT(result == XXH_OK);
  used_ = 0;
}

uint64_t SumCombiner::finish(uint64_t size) {
  room()[0] = size;
  add(1);
  if (!spilled_) return hash64(sums_, used_ * sizeof(sums_[0]));
  spill();
  return XXH3_64bits_digest(&state_in(state_));
}

ChecksumCopy::ChecksumCopy(bool streaming) : kernels_(&vector_kernels()), streaming_(streaming) {}

void ChecksumCopy::append(void* destination, const void* source, size_t size) {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  length_ += size;
  while (size > 0) {
    size_t bytes;
    if (piece_used_ == 0 && size >= kChecksumPieceBytes) {
      const std::span<uint64_t> sums = combiner_.room();
      const size_t count = std::min(size / kChecksumPieceBytes, sums.size());
      const auto copy = streaming_ ? kernels_->copy_pieces_streaming : kernels_->copy_pieces;
      copy(to, from, count, sums.data());
      combiner_.add(count);
      bytes = count * kChecksumPieceBytes;
    } else {
      // Through piece_: the checksum covers bytes that no other process can change.
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
  combiner_.room()[0] = kernels_->hash64(piece_, piece_used_, 0);
  combiner_.add(1);
  piece_used_ = 0;
}

uint64_t ChecksumCopy::finish() {
  if (streaming_) streaming_fence();
  return finish_unfenced();
}

uint64_t ChecksumCopy::finish_unfenced() {
  if (piece_used_ > 0) end_piece();
  return combiner_.finish(length_);
}

}  // namespace bowhead
