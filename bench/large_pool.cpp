// SPDX-License-Identifier: Apache-2.0
// The pools on which the rows measure.
#include <fmt/format.h>

#include <utility>

#include "bench/rows.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"

namespace bowhead::bench {

Key make_key(uint64_t series, uint64_t number) {
  // The first 32 digits identify the key; the others only make it as long as a real one.
  Key key;
  uint64_t words[4] = {series, number, 0, 0};
  words[2] = (series * 0x9E3779B97F4A7C15u ^ number) * 0xD6E8FEB86659FD93u;
  words[3] = (words[2] >> 32 ^ words[2]) * 0xD6E8FEB86659FD93u;
  size_t at = 0;
  for (const uint64_t word : words) {
    for (int shift = 60; shift >= 0; shift -= 4) key[at++] = "0123456789abcdef"[word >> shift & 15];
  }
  return key;
}

Result<std::unique_ptr<BenchPool>> BenchPool::create(const std::string& locator,
                                                     uint64_t size_bytes, uint64_t min_block_bytes,
                                                     uint32_t hosts, const SharingTimes& times,
                                                     uint32_t evict_high_permille) {
  CreateOptions options;
  options.hosts = hosts;
  options.times = times;
  options.size_bytes = size_bytes;
  options.min_block_bytes = min_block_bytes;
  options.evict_high_permille = evict_high_permille;
  options.evict_low_permille = evict_high_permille * 19 / 20;
  if (auto created = Pool::create(locator, options); !created) return created.error();
  return std::unique_ptr<BenchPool>(new BenchPool(locator));
}

BenchPool::~BenchPool() { (void)Pool::destroy(locator_, true).status(); }

Result<OpenPool> open_bench_pool(const std::string& locator) {
  auto pool = Pool::open(locator);
  if (!pool) return pool.error();
  auto ns = pool->open_namespace({"bench", "bytes"});
  if (!ns) return ns.error();
  return OpenPool{std::move(*pool), *ns};
}

Result<RawPool> open_raw_pool(const std::string& locator) {
  auto media = open_media(locator);
  if (!media) return media.error();
  const std::byte* base = (*media)->base();
  bool second_used = false;
  const auto superblock = core::read_superblock(
      {base, sizeof(bh_superblock)}, {base + BH_SUPERBLOCK_COPY_OFFSET, sizeof(bh_superblock)},
      {(*media)->size_bytes(), (*media)->media_count(), (*media)->pool_id()}, &second_used);
  if (!superblock) return superblock.error();
  return RawPool{std::move(*media), *superblock};
}

Result<void> forget_boot(const std::string& locator) {
  auto raw = open_raw_pool(locator);
  if (!raw) return raw.error();
  core::NativeAccess access(*raw->media, FlushKind::NONE);
  access.store(core::Layout(raw->superblock.geometry).part(0, BH_PART_PRIVATE) +
                   offsetof(bh_host_private, recovered_boot_id),
               0);
  return {};
}

std::string media_text(Pool& pool) {
  const auto info = pool.info();
  if (!info) return "unknown";
  return fmt::format("{}: {}; publish: {}", info->locator, info->media_description, info->flush);
}

namespace {

/// Stores all blocks without writing their bytes, since no row reads them.
Result<void> fill(Member& me, const std::string& locator, const LargePool& large) {
  auto open = open_bench_pool(locator);
  if (!open) return open.error();
  me.leave_text(media_text(open->pool));
  for (uint64_t i = 0; i < large.block_count; ++i) {
    auto room =
        open->pool.reserve(open->ns, view(make_key(kLargePoolSeries, i)), large.block_bytes);
    if (!room) return room.error();
    if (const Status status = open->pool.commit(*room, {PayloadSum::By::NONE});
        status != Status::OK)
      return status;
  }
  return {};
}

}  // namespace

Result<void> Bench::need_large_pool() {
  if (large.pool) return {};
  large.pool_bytes = uint64_t{16} << 30;
  large.block_bytes = 16384;
  large.block_count = 1'000'000;
  const uint64_t spare = uint64_t{2} << 30;
  if (options.quick) {
    large.pool_bytes = uint64_t{512} << 20;
    large.block_bytes = 4096;
    large.block_count = 100'000;
    large.note = "quick run: 100,000 blocks of 4 KiB in 512 MiB";
  } else if (available_memory_bytes() < large.pool_bytes + spare) {
    large.pool_bytes = uint64_t{4608} << 20;
    large.block_bytes = 4096;
    large.note = fmt::format("memory is short ({} MiB available): 4 KiB blocks in 4.5 GiB",
                             available_memory_bytes() >> 20);
  }
  report.progress(fmt::format("filling a pool with {} blocks", large.block_count));
  auto pool = BenchPool::create(locator, large.pool_bytes, large.block_bytes);
  if (!pool) return pool.error();
  large.pool = std::move(*pool);
  Team team(one_cpu(), 0, 0);
  if (auto result = team.run([&](Member& me) { return fill(me, locator, large); }); !result) {
    return result;
  }
  large.media = team.text(0);
  report.set_media(large.media);
  return {};
}

}  // namespace bowhead::bench
