// SPDX-License-Identifier: Apache-2.0
// Checksums and copies of base/, compared with the library's plain functions and with each other.
#include "base/checksum.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/copy.h"
#include "base/cpu.h"
#include "base/random.h"
#include "base/vector_kernels.h"

namespace bowhead {
namespace {

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// The definition in checksum.h, word for word, with the library's functions.
uint64_t reference_checksum(const std::byte* data, size_t size) {
  std::vector<uint64_t> words;
  for (size_t at = 0; at < size; at += 4096) {
    words.push_back(XXH3_64bits(data + at, std::min<size_t>(4096, size - at)));
  }
  words.push_back(size);
  return XXH3_64bits(words.data(), words.size() * 8);
}

std::vector<size_t> sizes_around_pieces() {
  std::vector<size_t> sizes = {0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 240, 241, 1023, 1024, 1025};
  for (const size_t pieces : {1, 2, 3, 63, 64, 126, 127, 128, 129, 255, 256, 257}) {
    for (const int off : {-65, -64, -63, -1, 0, 1, 63, 64, 65}) {
      sizes.push_back(pieces * kChecksumPieceBytes + off);
    }
  }
  return sizes;
}

std::vector<IsaLevel> levels_here() {
  std::vector<IsaLevel> levels;
  for (const IsaLevel level : {IsaLevel::SCALAR, IsaLevel::AVX2, IsaLevel::AVX512}) {
    if (level <= cpu_features().isa) levels.push_back(level);
  }
  return levels;
}

TEST(Checksum, FrozenValues) {
  // Stored in pools: these numbers must never change.
  std::vector<std::byte> bytes(10000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  EXPECT_EQ(hash64(bytes.data(), 100), XXH3_64bits(bytes.data(), 100));
  EXPECT_EQ(payload_checksum(bytes.data(), 0), 0xC77B3ABB6F87ACD9u);
  EXPECT_EQ(payload_checksum(bytes.data(), 4096), 0x59FB61D635147355u);
  EXPECT_EQ(payload_checksum(bytes.data(), 10000), 0x4208D2D457288083u);
}

TEST(Checksum, EveryVariantAgreesWithTheLibrary) {
  const std::vector<std::byte> bytes = random_bytes(1'100'000, 1);
  for (const IsaLevel level : levels_here()) {
    const VectorKernels& kernels = vector_kernels(level);
    for (const size_t size : sizes_around_pieces()) {
      for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0x123456789ABCDEF0}}) {
        const std::byte* data = bytes.data() + size % 61;
        EXPECT_EQ(kernels.hash64(data, size, seed), XXH3_64bits_withSeed(data, size, seed));
        const XXH128_hash_t expected = XXH3_128bits_withSeed(data, size, seed);
        EXPECT_EQ(kernels.hash128(data, size, seed), (Hash128{expected.low64, expected.high64}));
      }
    }
  }
}

TEST(Checksum, PayloadAgreesWithItsDefinition) {
  const std::vector<std::byte> bytes = random_bytes(1'100'000, 2);
  for (const size_t size : sizes_around_pieces()) {
    EXPECT_EQ(payload_checksum(bytes.data() + 3, size), reference_checksum(bytes.data() + 3, size))
        << size;
  }
}

TEST(Checksum, PiecesInAnyOrderCombine) {
  const std::vector<std::byte> bytes = random_bytes(40'000, 3);
  std::vector<uint64_t> sums((bytes.size() + kChecksumPieceBytes - 1) / kChecksumPieceBytes);
  for (size_t i = sums.size(); i-- > 0;) {
    const size_t at = i * kChecksumPieceBytes;
    sums[i] = hash64(bytes.data() + at, std::min(kChecksumPieceBytes, bytes.size() - at));
  }
  EXPECT_EQ(combine_pieces(sums, bytes.size()), payload_checksum(bytes.data(), bytes.size()));
}

TEST(Checksum, EveryBitCounts) {
  std::vector<std::byte> bytes = random_bytes(2 * kChecksumPieceBytes + 100, 4);
  const uint64_t sum = payload_checksum(bytes.data(), bytes.size());
  for (size_t at = 0; at < bytes.size(); at += 37) {
    bytes[at] ^= std::byte{1};
    EXPECT_NE(payload_checksum(bytes.data(), bytes.size()), sum) << at;
    bytes[at] ^= std::byte{1};
  }
  EXPECT_NE(payload_checksum(bytes.data(), bytes.size() - 1), sum);
}

// A destination between canaries, with its own misalignment.
struct Canaried {
  Canaried(size_t size_bytes, size_t misalignment)
      : bytes(size_bytes + 256, std::byte{0xA5}), size(size_bytes) {
    const size_t gap = -reinterpret_cast<uintptr_t>(bytes.data()) % 64;
    data = bytes.data() + gap + misalignment;
  }
  bool canaries_alive() const {
    const auto dead = [](std::byte byte) { return byte != std::byte{0xA5}; };
    return std::none_of(bytes.data(), static_cast<const std::byte*>(data), dead) &&
           std::none_of(static_cast<const std::byte*>(data) + size, bytes.data() + bytes.size(),
                        dead);
  }
  std::vector<std::byte> bytes;
  size_t size;
  std::byte* data;
};

class ChecksumCopyTest : public testing::TestWithParam<bool> {
 protected:
  bool streaming() const { return GetParam(); }
};

TEST_P(ChecksumCopyTest, OneAppendOfAnySizeAndAlignment) {
  const std::vector<std::byte> bytes = random_bytes(1'100'000, 5);
  for (const size_t size : sizes_around_pieces()) {
    for (const auto& [from, to] : {std::pair{0, 0}, {1, 0}, {0, 1}, {13, 33}, {32, 63}}) {
      Canaried destination(size, to);
      ChecksumCopy copy(streaming());
      copy.append(destination.data, bytes.data() + from, size);
      EXPECT_EQ(copy.finish(), reference_checksum(bytes.data() + from, size));
      EXPECT_TRUE(std::equal(destination.data, destination.data + size, bytes.data() + from));
      EXPECT_TRUE(destination.canaries_alive()) << size << " to " << to;
    }
  }
}

TEST_P(ChecksumCopyTest, ScatteredAppends) {
  Random random(6);
  for (int round = 0; round < 300; ++round) {
    const size_t size = random.below(100'000);
    const std::vector<std::byte> bytes = random_bytes(size, 100 + round);
    Canaried destination(size, random.below(64));
    ChecksumCopy copy(streaming());
    // Mostly small steps, sometimes none, and whole pieces.
    const uint64_t step_max = 1 + random.below(random.below(4) == 0 ? 20'000 : 3'000);
    for (size_t at = 0; at < size;) {
      const size_t step = std::min<size_t>(
          size - at, random.below(8) == 0 ? kChecksumPieceBytes : random.below(step_max + 1));
      copy.append(destination.data + at, bytes.data() + at, step);
      at += step;
    }
    ASSERT_EQ(copy.finish(), reference_checksum(bytes.data(), size)) << "round " << round;
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), destination.data)) << "round " << round;
    ASSERT_TRUE(destination.canaries_alive()) << "round " << round;
  }
}

// The property that makes an optimistic read safe. A version that sums the source and then copies
// it would soon fail here.
TEST_P(ChecksumCopyTest, SumIsOfTheBytesStoredWhileTheSourceChanges) {
  constexpr size_t kSize = 1'000'003;
  std::vector<uint64_t> source(kSize / 8 + 9);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint64_t value = 1; !stop.load(std::memory_order_relaxed); ++value) {
      for (uint64_t& word : source) *const_cast<volatile uint64_t*>(&word) = value;
    }
  });
  int mixed = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < 200 || (mixed < 20 && std::chrono::steady_clock::now() < deadline);
       ++round) {
    Canaried destination(kSize, round % 2 == 0 ? 0 : 17);
    const auto* from = reinterpret_cast<const std::byte*>(source.data()) + round % 3;
    ChecksumCopy copy(streaming());
    copy.append(destination.data, from, 600'001);
    copy.append(destination.data + 600'001, from + 600'001, kSize - 600'001);
    EXPECT_EQ(copy.finish(), reference_checksum(destination.data, kSize));
    uint64_t first, last;
    std::memcpy(&first, destination.data + 8 - round % 3, 8);
    std::memcpy(&last, destination.data + kSize / 8 * 8 - 8 - round % 3, 8);
    mixed += first != last;
  }
  stop = true;
  writer.join();
  EXPECT_GE(mixed, 20) << "the source hardly changed during a copy: nothing was tested";
}

INSTANTIATE_TEST_SUITE_P(, ChecksumCopyTest, testing::Bool(), [](const auto& streaming) {
  return streaming.param ? "Streaming" : "Ordinary";
});

TEST(VectorKernels, EveryVariantCopiesAndSums) {
  const std::vector<std::byte> bytes = random_bytes(20 * kChecksumPieceBytes + 64, 7);
  for (const IsaLevel level : levels_here()) {
    const VectorKernels& kernels = vector_kernels(level);
    for (const auto copy : {kernels.copy, kernels.copy_streaming}) {
      for (size_t size = 0; size < 400; ++size) {
        Canaried destination(size, size % 64);
        copy(destination.data, bytes.data() + size % 7, size);
        EXPECT_TRUE(std::equal(destination.data, destination.data + size, bytes.data() + size % 7));
        EXPECT_TRUE(destination.canaries_alive());
      }
    }
    for (const auto copy : {kernels.copy_pieces, kernels.copy_pieces_streaming}) {
      for (const size_t misalignment : {0, 16, 1}) {
        constexpr size_t kPieces = 19;
        Canaried destination(kPieces * kChecksumPieceBytes, misalignment);
        uint64_t sums[kPieces];
        copy(destination.data, bytes.data() + 5, kPieces, sums);
        EXPECT_TRUE(
            std::equal(destination.data, destination.data + destination.size, bytes.data() + 5));
        EXPECT_TRUE(destination.canaries_alive());
        for (size_t i = 0; i < kPieces; ++i) {
          EXPECT_EQ(sums[i], XXH3_64bits(bytes.data() + 5 + i * 4096, 4096));
        }
      }
    }
  }
}

TEST(Copy, EveryKindCopies) {
  const std::vector<std::byte> bytes = random_bytes(10'000, 8);
  for (const CopyKind kind : copy_kinds()) {
    Canaried destination(9'999, 3);
    copy_with(kind, destination.data, bytes.data() + 1, 9'999);
    EXPECT_TRUE(std::equal(destination.data, destination.data + 9'999, bytes.data() + 1))
        << copy_kind_name(kind);
    EXPECT_TRUE(destination.canaries_alive()) << copy_kind_name(kind);
  }
}

}  // namespace
}  // namespace bowhead
