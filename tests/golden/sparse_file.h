// SPDX-License-Identifier: Apache-2.0
// The format of stored golden pools: only the bytes that are not zero.
//
//   total bytes: u64, then records {offset: u64, bytes: u64, data}, ascending, to the end
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace bowhead::golden {

inline constexpr uint64_t kGrain = 64;

inline void write_sparse(const std::string& path, std::span<const std::byte> pool) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const auto put = [&](uint64_t number) {
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto zero = [&](uint64_t at) {
    const auto grain = pool.subspan(at, kGrain);
    return std::all_of(grain.begin(), grain.end(), [](std::byte b) { return b == std::byte{}; });
  };
  put(pool.size());
  for (uint64_t at = 0; at < pool.size();) {
    uint64_t end = at;
    while (end < pool.size() && !zero(end)) end += kGrain;
    if (end > at) {
      put(at);
      put(end - at);
      out.write(reinterpret_cast<const char*>(pool.data() + at),
                static_cast<std::streamsize>(end - at));
    }
    at = end + kGrain;
  }
}

/// Empty if there is no such file, or it has another format.
inline std::vector<std::byte> read_sparse(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  size_t at = 0;
  const auto take = [&](void* to, size_t bytes) {
    if (bytes > text.size() - at) return false;
    std::memcpy(to, text.data() + at, bytes);
    at += bytes;
    return true;
  };
  uint64_t total = 0;
  if (!take(&total, sizeof total) || total > (uint64_t{1} << 30)) return {};
  std::vector<std::byte> pool(total);
  while (at < text.size()) {
    uint64_t offset = 0, bytes = 0;
    if (!take(&offset, sizeof offset) || !take(&bytes, sizeof bytes) || offset > total ||
        bytes > total - offset || !take(pool.data() + offset, bytes))
      return {};
  }
  return pool;
}

}  // namespace bowhead::golden
