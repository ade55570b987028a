// SPDX-License-Identifier: Apache-2.0
// The memory that a search takes does not grow with what it decodes. The allocator counts.
#include <gtest/gtest.h>

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/random.h"
#include "ndp/numbers.h"
#include "ndp/plane_keys.h"

namespace {

std::atomic<size_t> held = 0, most_held = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const size_t now = held += malloc_usable_size(memory);
  if (now > most_held) most_held = now;
  return memory;
}
void uncounted(void* memory) noexcept {
  held -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return counted(std::malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { uncounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { uncounted(memory); }

namespace bowhead::test {
namespace {

using ndp::PlaneKeys;

constexpr uint32_t kChannels = 64, kTokens = 512;

/// Keys of few numbers, most planes of which are coded.
std::vector<uint8_t> frame_of(int largest, uint64_t seed, bool with_nan) {
  const compression::Shape shape{NumberFormat::BF16, 1, kTokens, kChannels, {}};
  Random random(seed);
  std::vector<uint16_t> values;
  for (uint32_t i = 0; i < kTokens * kChannels; ++i)
    values.push_back(ndp::to_bf16(static_cast<float>(
        static_cast<int>(random.below(2u * static_cast<uint32_t>(largest) + 1)) - largest)));
  if (with_nan) values[7 * kChannels] = 0x7FC0;
  std::vector<uint8_t> bytes(shape.size_bytes()), frame(frame_bound(shape));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  frame.resize(
      compression::Encoder(compression::Profile::DENSE).encode(shape, bytes, frame).value());
  return frame;
}

/// Tiles that are scanned in planes, and others.
TEST(MemoryOfASearch, DoesNotGrowWithWhatItDecodes) {
  for (const bool with_nan : {false, true}) {
    constexpr uint32_t kBlocks = 2048;  // 128 MiB of values
    const auto same = frame_of(1, 1, with_nan), best = frame_of(3, 2, with_nan);
    std::vector<PlaneKeys> opened;
    std::vector<const PlaneKeys*> blocks;
    for (uint32_t b = 0; b < kBlocks; ++b)
      opened.push_back(PlaneKeys::open(b + 1 < kBlocks ? same : best, 0, b * kTokens).value());
    for (const PlaneKeys& keys : opened) blocks.push_back(&keys);
    EXPECT_EQ(opened[0].tiles()[0].planes.has_value(), !with_nan);
    const std::vector<float> values(kChannels, 1);
    const auto queries = ndp::Queries::of(values, 1, kChannels, 1, NumberFormat::BF16).value();
    const size_t before = most_held = held.load();
    const auto answer = exact_top_k(queries, blocks, {}, 4).value();
    EXPECT_LT(most_held - before, size_t{48} << 20);
    const PlaneKeys* last = blocks.back();
    EXPECT_EQ(answer.hits, exact_top_k(queries, {&last, 1}, {}, 4)->hits);
  }
}

}  // namespace
}  // namespace bowhead::test
