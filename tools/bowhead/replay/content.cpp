// SPDX-License-Identifier: Apache-2.0
// The stream is a hash of a counter: adds, shifts and exclusive ors, which every instruction set
// has for vectors of 64-bit words. It uses the compiler's vector types and needs no dispatch.
#include "tools/bowhead/replay/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/assert.h"
#include "base/checksum.h"
#include "tools/program/input.h"

namespace bowhead::replay {
namespace {

constexpr size_t kLineBytes = 64;
constexpr uint64_t kWeyl = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kLowBitOfEachBf16 = 0x0001000100010001ull;

typedef uint64_t Words __attribute__((vector_size(kLineBytes)));

constexpr Words kLanes = {0,         kWeyl,     2 * kWeyl, 3 * kWeyl,
                          4 * kWeyl, 5 * kWeyl, 6 * kWeyl, 7 * kWeyl};

// Bijective in the counter, so no two words of a block are equal by construction.
inline void mix(Words& x) {
  x ^= x >> 32;
  x += x << 21;
  x ^= x >> 29;
  x += x << 13;
  x ^= x >> 31;
}

uint64_t block_key(uint64_t id, uint64_t seed) { return hash64(&id, sizeof id, seed); }

// Appends a file, if there is one.
Result<void> read_tensors(const std::string& path, std::vector<std::byte>& out) {
  const auto exists = cli::input_exists(path);
  if (!exists) return exists.error();
  if (!*exists) return {};
  const auto file = cli::read_input(path);
  if (!file) return file.error();
  const auto bytes = std::as_bytes(std::span(*file));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return {};
}

}  // namespace

Content Content::generated(uint64_t seed) {
  Content content;
  content.seed_ = seed;
  content.description_ = fmt::format("stream-1 seed {}", seed);
  return content;
}

Result<Content> Content::from_tensors(const std::string& directory, uint64_t seed) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> folders = {directory};
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;  // of a loop of links, which is not a folder
    if (it->is_directory(unknown)) folders.push_back(it->path());
  }
  if (error) {
    return Error{Status::SYSTEM,
                 fmt::format("cannot read directory {}: {}", directory, error.message())};
  }
  std::sort(folders.begin(), folders.end());  // so that the order of the listing does not matter
  Content content;
  content.seed_ = seed;
  for (const fs::path& folder : folders) {
    for (const char* name : {"k.bf16.bin", "v.bf16.bin"}) {
      const auto read = read_tensors((folder / name).string(), content.tensors_);
      if (!read) return read.error();
    }
  }
  content.tensor_lines_ = content.tensors_.size() / kLineBytes;
  if (content.tensor_lines_ == 0) {
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} has no tensors: no k.bf16.bin or v.bf16.bin of at least 64 bytes "
                             "in it or in its folders",
                             directory)};
  }
  content.description_ = fmt::format(
      "tensors-1 {:016x} seed {}", hash64(content.tensors_.data(), content.tensors_.size()), seed);
  return content;
}

Content Content::from_blocks(std::vector<std::byte> blocks, uint64_t block_bytes, uint64_t seed,
                             const std::string& name) {
  BOWHEAD_ASSERT(!blocks.empty() && block_bytes % kLineBytes == 0 &&
                 blocks.size() % block_bytes == 0);
  Content content;
  content.seed_ = seed;
  content.description_ =
      fmt::format("{} {:016x} seed {}", name, hash64(blocks.data(), blocks.size()), seed);
  content.tensors_ = std::move(blocks);
  content.tensor_lines_ = content.tensors_.size() / kLineBytes;
  content.start_lines_ = block_bytes / kLineBytes;
  return content;
}

// Calls visit(offset, bytes, line) for every line from offset `first` of the block on, where visit
// counts from; only the last may have fewer than 64 bytes.
template <class Visit>
void Content::for_each_line(uint64_t id, uint64_t first, size_t size, Visit visit) const {
  const uint64_t key = block_key(id, seed_), first_line = first / kLineBytes;
  Words counter = key + first_line * 8 * kWeyl + kLanes;
  uint64_t tensor_line = 0;
  if (tensor_lines_ != 0) {
    const uint64_t start = block_key(id, ~seed_) % (tensor_lines_ / start_lines_) * start_lines_;
    tensor_line = (start + first_line) % tensor_lines_;
  }
  for (size_t offset = 0; offset < size; offset += kLineBytes) {
    Words line = counter;
    mix(line);
    counter += 8 * kWeyl;
    if (tensor_lines_ != 0) {
      Words tensor;
      std::memcpy(&tensor, tensors_.data() + tensor_line * kLineBytes, kLineBytes);
      line = tensor ^ (line & kLowBitOfEachBf16);
      if (++tensor_line == tensor_lines_) tensor_line = 0;
    }
    visit(offset, std::min(kLineBytes, size - offset), line);
  }
}

void Content::fill(uint64_t id, std::byte* out, size_t size, uint64_t first) const {
  BOWHEAD_ASSERT(first % kLineBytes == 0);
  for_each_line(id, first, size, [out](size_t offset, size_t bytes, const Words& line) {
    if (bytes == kLineBytes) {
      std::memcpy(out + offset, &line, kLineBytes);
    } else {
      std::memcpy(out + offset, &line, bytes);
    }
  });
}

Difference Content::compare(uint64_t id, const std::byte* data, size_t size) const {
  // Nearly always all is right: or-ing the differences is several times faster than testing each.
  Words differences = {};
  for_each_line(id, 0, size, [&](size_t offset, size_t bytes, const Words& line) {
    Words stored = line;
    if (bytes == kLineBytes) {
      std::memcpy(&stored, data + offset, kLineBytes);
    } else {
      std::memcpy(&stored, data + offset, bytes);
    }
    differences |= stored ^ line;
  });
  uint64_t any = 0;
  for (size_t i = 0; i < 8; ++i) any |= differences[i];
  Difference result;
  if (any == 0) return result;
  for_each_line(id, 0, size, [&](size_t offset, size_t bytes, const Words& line) {
    std::byte expected[kLineBytes];
    std::memcpy(expected, &line, kLineBytes);
    for (size_t i = 0; i < bytes; ++i) {
      if (data[offset + i] == expected[i]) continue;
      if (result.wrong_bytes++ == 0) result.first_offset = offset + i;
    }
  });
  return result;
}

}  // namespace bowhead::replay
