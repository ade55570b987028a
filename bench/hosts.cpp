// SPDX-License-Identifier: Apache-2.0
#include "bench/hosts.h"

#include <unistd.h>

#include "base/checksum.h"

namespace bowhead::bench {

Result<OpenPool> open_as(const std::string& locator, uint32_t host, uint64_t mirror_bytes) {
  OpenOptions options;
  options.host = host;
  options.mirror_bytes = mirror_bytes;
  auto pool = Pool::open(locator, options);
  if (!pool) return pool.error();
  auto ns = pool->open_namespace({"bench", "bytes"});
  if (!ns) return ns.error();
  return OpenPool{std::move(*pool), *ns};
}

Result<std::unique_ptr<BenchPool>> make_shared_pool(const std::string& locator,
                                                    uint64_t payload_bytes,
                                                    uint64_t min_block_bytes, uint32_t hosts,
                                                    const SharingTimes& times,
                                                    uint32_t evict_high_permille) {
  return BenchPool::create(locator, payload_bytes + payload_bytes / 4 + (uint64_t{256} << 20),
                           min_block_bytes, hosts, times, evict_high_permille);
}

Result<void> fill_one(OpenPool& open, const Key& key) {
  // The checksum of the zeros that are there: commit() would read them, and a sparse medium would
  // allocate them.
  static const uint64_t checksum = [] {
    const std::vector<std::byte> zeros(4096);
    return payload_checksum(zeros.data(), zeros.size());
  }();
  auto room = open.pool.reserve(open.ns, view(key), 4096);
  if (!room) return room.error();
  const Status status = open.pool.commit(*room, {PayloadSum::By::WRITER, checksum});
  return status == Status::OK ? Result<void>{} : status;
}

Result<void> fill(OpenPool& open, uint64_t first, uint64_t last, uint64_t step) {
  for (uint64_t i = first; i < last; i += step) {
    if (auto filled = fill_one(open, make_key(kHostsSeries, i)); !filled) return filled;
  }
  return {};
}

Result<void> await_block(OpenPool& open, const Key& key) {
  const std::string_view wanted = view(key);
  uint8_t found = 0;
  for (const uint64_t deadline_ns = now_ns() + 10'000'000'000; now_ns() < deadline_ns;) {
    const auto count = open.pool.exists(open.ns, {&wanted, 1}, {&found, 1});
    if (!count) return count.error();
    if (*count == 1) return {};
    usleep(5'000);
  }
  return wrong("a host did not find another host's block within 10 s");
}

}  // namespace bowhead::bench
