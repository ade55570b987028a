// SPDX-License-Identifier: Apache-2.0
// Checksums, and the copy that computes one while it copies.
//
// Payload checksum (BH_CHECKSUM_XXH3_TREE_4K): the value is divided into pieces of 4 KiB (the last
// may be shorter); each piece is summed with XXH3-64 (seed 0); the checksum is XXH3-64 (seed 0) of
// the pieces' sums as little-endian words, followed by the value's length in bytes as one more
// word. Pieces can be summed anywhere, in any order, by CPU, device or GPU; combining them costs 8
// bytes per 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bowhead {

struct VectorKernels;  // base/vector_kernels.h

inline constexpr size_t kChecksumPieceBytes = 4096;

/// XXH3-64 with seed 0, and with another seed.
uint64_t hash64(const void* data, size_t size);
uint64_t hash64(const void* data, size_t size, uint64_t seed);

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

/// XXH3-128 with a seed.
Hash128 hash128(const void* data, size_t size, uint64_t seed);

/// Payload checksum of contiguous bytes.
uint64_t payload_checksum(const void* data, size_t size);

/// Combines the sums of all pieces of a value of `size` bytes.
uint64_t combine_pieces(std::span<const uint64_t> piece_sums, uint64_t size);

/// Takes the sums of a value's pieces in order and combines them.
class SumCombiner {
 public:
  SumCombiner() = default;
  SumCombiner(const SumCombiner&) = delete;
  SumCombiner& operator=(const SumCombiner&) = delete;

  /// Space for the next sums, at least one; call add() with the number written there.
  std::span<uint64_t> room();
  void add(size_t count) { used_ += count; }

  /// The checksum of a value of `size` bytes. Call once.
  uint64_t finish(uint64_t size);

 private:
  void spill();

  size_t used_ = 0;
  bool spilled_ = false;
  uint64_t sums_[128];                // enough for most blocks, which need no state
  alignas(64) std::byte state_[576];  // XXH3_state_t over the earlier sums; valid if spilled_
};

/// Copies a value piecewise and sums the copied bytes, reading each source byte from memory once.
///
/// The sum is that of the bytes stored to the destination, even if the source changes meanwhile:
/// this makes an optimistic read safe (a wrong copy has a wrong sum). Source and destination of one
/// append must not overlap. Not thread-safe; no allocation. Data races on the source with writers
/// in other threads are expected and harmless: the functions are exempt from ThreadSanitizer.
class ChecksumCopy {
 public:
  /// `streaming`: store past the caches (for destinations that will not be read soon).
  explicit ChecksumCopy(bool streaming);
  ChecksumCopy(const ChecksumCopy&) = delete;
  ChecksumCopy& operator=(const ChecksumCopy&) = delete;

  void append(void* destination, const void* source, size_t size);

  /// The checksum of all bytes appended, in order. Streaming stores are globally visible after it
  /// (sfence). Call once.
  uint64_t finish();
  /// The same, but streaming stores are visible only after a fence of the caller.
  uint64_t finish_unfenced();

 private:
  void end_piece();

  const VectorKernels* kernels_;
  const bool streaming_;
  uint64_t length_ = 0;
  size_t piece_used_ = 0;  // bytes of an incomplete piece
  alignas(64) std::byte piece_[kChecksumPieceBytes];
  SumCombiner combiner_;
};

}  // namespace bowhead
