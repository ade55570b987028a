// SPDX-License-Identifier: Apache-2.0
// Content is the reference for the pool: any byte that is not the block's own must count as wrong.
#include "tools/bowhead/replay/content.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

namespace bowhead::replay {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> block(const Content& content, uint64_t id, size_t size) {
  std::vector<std::byte> bytes(size);
  content.fill(id, bytes.data(), size);
  return bytes;
}

// A folder with tensors of zeros, whose blocks differ only by the stream mixed into them.
class Tensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("content_test." + std::to_string(getpid()));
    fs::create_directories(folder_ / "model");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, size_t size, char fill) {
    std::ofstream(folder_ / name, std::ios::binary) << std::string(size, fill);
  }
  fs::path folder_;
};

void expect_every_wrong_byte_found(const Content& content) {
  for (const size_t size : {1, 7, 63, 64, 65, 4096, 5000}) {
    auto bytes = block(content, 42, size);
    EXPECT_EQ(content.compare(42, bytes.data(), size).wrong_bytes, 0u);
    for (size_t at = 0; at < size; ++at) {
      bytes[at] ^= std::byte{0x10};
      const Difference difference = content.compare(42, bytes.data(), size);
      ASSERT_EQ(difference.wrong_bytes, 1u) << size << " " << at;
      ASSERT_EQ(difference.first_offset, at);
      bytes[at] ^= std::byte{0x10};
    }
    bytes[0] ^= std::byte{1};
    bytes[size - 1] ^= std::byte{2};
    EXPECT_EQ(content.compare(42, bytes.data(), size).wrong_bytes, size == 1 ? 1u : 2u);
  }
}

// No 64-byte line of a block equals a line of another block, or another line of the same block.
void expect_all_lines_differ(const Content& content) {
  std::set<std::string> lines;
  constexpr size_t kSize = 16384;
  constexpr uint64_t kIds = 50;
  for (uint64_t id = 0; id < kIds; ++id) {
    const auto bytes = block(content, id, kSize);
    for (size_t at = 0; at < kSize; at += 64) {
      lines.emplace(reinterpret_cast<const char*>(bytes.data()) + at, 64);
    }
  }
  // 32 bits differ by chance in a line of tensors: a collision in 12,800 lines is expected in one
  // of 50 seeds, and the seed is fixed.
  EXPECT_EQ(lines.size(), kIds * kSize / 64);
}

TEST(Content, GeneratedContentCanBeMadeAgain) {
  const Content a = Content::generated(1);
  EXPECT_EQ(block(a, 5, 1000), block(Content::generated(1), 5, 1000));
  EXPECT_NE(block(a, 5, 1000), block(a, 6, 1000));
  EXPECT_NE(block(a, 5, 1000), block(Content::generated(2), 5, 1000));
  EXPECT_NE(a.description(), Content::generated(2).description());
  // A block is a prefix of the longer block of the same id.
  const auto longer = block(a, 5, 2000);
  EXPECT_TRUE(std::equal(longer.begin(), longer.begin() + 1000, block(a, 5, 1000).begin()));
}

TEST(Content, GeneratedContentFindsEveryWrongByte) {
  expect_every_wrong_byte_found(Content::generated(1));
}

TEST(Content, GeneratedLinesAllDiffer) { expect_all_lines_differ(Content::generated(1)); }

TEST(Content, GeneratedBitsAreEven) {
  const auto bytes = block(Content::generated(1), 9, 1 << 20);
  for (int bit = 0; bit < 64; ++bit) {
    size_t ones = 0;
    for (size_t at = static_cast<size_t>(bit) / 8; at < bytes.size(); at += 8) {
      ones += std::to_integer<unsigned>(bytes[at] >> (bit % 8)) & 1;
    }
    // 131,072 coin throws: 181 is one standard deviation.
    EXPECT_NEAR(static_cast<double>(ones), 65536, 1100) << "bit " << bit;
  }
}

TEST_F(Tensors, ContentFollowsFromFilesIdAndSeed) {
  write("model/k.bf16.bin", 10000, 'k');
  write("model/v.bf16.bin", 3000, 'v');
  write("model/q.bf16.bin", 3000, 'q');  // not of a cache
  const auto a = Content::from_tensors(folder_.string(), 1);
  ASSERT_TRUE(a) << a.error().message();
  const auto b = Content::from_tensors(folder_.string(), 1);
  EXPECT_EQ(block(*a, 1, 20000), block(*b, 1, 20000));
  EXPECT_NE(block(*a, 1, 20000), block(*a, 2, 20000));
  expect_every_wrong_byte_found(*a);
  expect_all_lines_differ(*a);
  // All but the lowest bit of each number come from the tensors: 'k' or 'v', and nothing of q.
  for (const std::byte byte : block(*a, 3, 20000)) {
    const char c = static_cast<char>(byte);
    ASSERT_TRUE(c == 'k' || c == 'j' || c == 'v' || c == 'w') << c;
  }
}

TEST_F(Tensors, OtherTensorsAreOtherContent) {
  write("k.bf16.bin", 64, 'a');
  const auto a = Content::from_tensors(folder_.string(), 1);
  write("k.bf16.bin", 64, 'b');
  const auto b = Content::from_tensors(folder_.string(), 1);
  ASSERT_TRUE(a && b);
  EXPECT_NE(a->description(), b->description());
}

TEST_F(Tensors, NamesTheMissingOption) {
  auto content = Content::from_tensors(folder_.string(), 1);
  EXPECT_EQ(content.status(), Status::INVALID_ARGUMENT);
  EXPECT_NE(content.error().message().find("k.bf16.bin"), std::string::npos);
  write("k.bf16.bin", 63, 'a');  // less than a line
  EXPECT_EQ(Content::from_tensors(folder_.string(), 1).status(), Status::INVALID_ARGUMENT);
  content = Content::from_tensors((folder_ / "none").string(), 1);
  EXPECT_EQ(content.status(), Status::SYSTEM);
  EXPECT_NE(content.error().message().find("none"), std::string::npos);
}

TEST(Content, PartOfABlockIsThatPart) {
  const Content generated = Content::generated(7);
  const Content blocks =
      Content::from_blocks(std::vector<std::byte>(3 * 8192, std::byte{0x3f}), 8192, 7, "blocks");
  for (const Content* content : {&generated, &blocks}) {
    const auto whole = block(*content, 42, 8192);
    for (const uint64_t first : {0, 64, 4096, 8128}) {
      for (const size_t size : {1, 64, 100}) {
        std::vector<std::byte> part(std::min<size_t>(size, 8192 - first));
        content->fill(42, part.data(), part.size(), first);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
      }
    }
  }
}

TEST(Content, ABlockIsOneOfTheGivenBlocksButForLowBits) {
  constexpr uint64_t kBytes = 4096;
  std::vector<std::byte> given;
  for (const int fill : {2, 4, 6}) given.insert(given.end(), kBytes, std::byte(fill));
  const Content content = Content::from_blocks(given, kBytes, 1, "blocks");
  std::set<std::byte> chosen;
  for (uint64_t id = 0; id < 50; ++id) {
    const auto bytes = block(content, id, kBytes);
    const std::byte high = bytes[1];
    chosen.insert(high);
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i] & ~std::byte(i % 2 == 0), high) << id << " " << i;
    EXPECT_EQ(content.compare(id, bytes.data(), bytes.size()).wrong_bytes, 0u);
  }
  EXPECT_EQ(chosen.size(), 3u);
  EXPECT_NE(block(content, 1, kBytes), block(content, 2, kBytes));
}

}  // namespace
}  // namespace bowhead::replay
