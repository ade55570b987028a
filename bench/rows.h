// SPDX-License-Identifier: Apache-2.0
// The rows of the table, and their shared parts. A function measures its rows and reports each
// figure.
#pragma once

#include <bowhead/format/superblock.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "bench/pool_bench.h"
#include "bench/report.h"
#include "bench/team.h"
#include "pool/media/media.h"
#include "pool/pool.h"
#include "tools/program/machine.h"

namespace bowhead::bench {

inline constexpr size_t kKeyBytes = 64;

/// Keys like those of engines: 64 hex digits of a hash. Different (series, number) give different
/// keys.
using Key = std::array<char, kKeyBytes>;
Key make_key(uint64_t series, uint64_t number);
inline std::string_view view(const Key& key) { return {key.data(), key.size()}; }

/// A pool that exists as long as the object, which does not open it.
class BenchPool {
 public:
  static Result<std::unique_ptr<BenchPool>> create(const std::string& locator, uint64_t size_bytes,
                                                   uint64_t min_block_bytes, uint32_t hosts = 1,
                                                   const SharingTimes& times = {},
                                                   uint32_t evict_high_permille = 0);
  ~BenchPool();
  BenchPool(const BenchPool&) = delete;
  BenchPool& operator=(const BenchPool&) = delete;

 private:
  explicit BenchPool(std::string locator) : locator_(std::move(locator)) {}
  const std::string locator_;
};

/// A measuring process's view of the pool: open, with one namespace.
struct OpenPool {
  Pool pool;
  NamespaceId ns;
};
Result<OpenPool> open_bench_pool(const std::string& locator);

/// A pool below its interface, for operations that the interface lacks. Joins no host.
struct RawPool {
  std::unique_ptr<Media> media;
  bh_superblock superblock;
};
Result<RawPool> open_raw_pool(const std::string& locator);
/// Simulates a reboot that the pool survives: removes the note that the allocator's words of host 0
/// belong to this boot. All else stays.
Result<void> forget_boot(const std::string& locator);

/// The locator, the medium and the flush primitive, as text.
std::string media_text(Pool& pool);

/// A million blocks, for the rows that need many: filled once, by a process that has ended.
struct LargePool {
  std::unique_ptr<BenchPool> pool;
  uint64_t pool_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t block_count = 0;
  std::string media;
  std::string note;  ///< why it is smaller than the table requires, if it is
};
inline constexpr uint64_t kLargePoolSeries = 1;  ///< of make_key()

struct Bench {
  const PoolBenchOptions& options;
  const std::string locator;
  const Machine machine;
  Report report;
  LargePool large;

  std::vector<int> one_cpu() const { return {machine.cpus.front()}; }

  /// Fills `large` unless it is already filled.
  Result<void> need_large_pool();
};

Result<void> run_copy_rows(Bench& bench);
Result<void> run_alloc_rows(Bench& bench);
Result<void> run_evict_rows(Bench& bench);
Result<void> run_exists_rows(Bench& bench);
Result<void> run_queue_rows(Bench& bench);
Result<void> run_space_rows(Bench& bench);
Result<void> run_open_rows(Bench& bench);
Result<void> run_rpc_rows(Bench& bench);
Result<void> run_share_rows(Bench& bench);
Result<void> run_lookup_rows(Bench& bench);
Result<void> run_joined_rows(Bench& bench);
/// The media of the joined pool: those of the locator, or a second one beside its only one.
std::string joined_locator(const std::string& locator);

/// A wrong byte or a wrong answer: no figure after it counts.
inline Error wrong(std::string what) { return Error{Status::DAMAGED, std::move(what)}; }

}  // namespace bowhead::bench
