// SPDX-License-Identifier: Apache-2.0
// The C ABI of looking at a pool: info, lists, check, and scavenging.
#include "api/support.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::PoolInfo;

namespace {

/// Cut where it is too long; ends with a zero.
template <size_t kSize>
void copy_text(const std::string& text, char (&to)[kSize]) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::memcpy(to, text.data(), size);
  std::memset(to + size, 0, kSize - size);
}

bh_pool_info info_of(const PoolInfo& from) {
  bh_pool_info info{};
  info.format_version = from.format_version;
  copy_text(from.pool_id, info.pool_id);
  info.created_unix_ns = from.created_unix_ns;
  info.size_bytes = from.size_bytes;
  info.payload_bytes = from.payload_bytes;
  info.metadata_bytes = from.metadata_bytes;
  info.extent_bytes = from.extent_bytes;
  info.extent_count = from.extent_count;
  info.min_block_bytes = from.min_block_bytes;
  info.evict_high_permille = from.evict_high_permille;
  info.evict_low_permille = from.evict_low_permille;
  info.hosts = static_cast<uint32_t>(from.hosts.size());
  info.second_superblock = from.second_superblock_used ? 1 : 0;
  // Sums of counters that are read one after the other may be below zero for a moment.
  info.used_bytes = static_cast<uint64_t>(std::max<int64_t>(from.used_bytes, 0));
  info.blocks = static_cast<uint64_t>(std::max<int64_t>(from.blocks, 0));
  info.puts = from.puts;
  info.puts_present = from.puts_present;
  info.hits = from.hits;
  info.hits_elsewhere = from.hits_elsewhere;
  info.misses = from.misses;
  info.bytes_in = from.bytes_in;
  info.bytes_out = from.bytes_out;
  info.evictions = from.evictions;
  info.removals = from.removals;
  info.moves = from.moves;
  info.recompressed = from.recompressed;
  info.damaged = from.damaged;
  info.scavenged = from.scavenged;
  info.no_space = from.no_space;
  return info;
}

bh_host_info info_of(const PoolInfo::Host& from) {
  bh_host_info info{};
  info.struct_bytes = sizeof info;
  info.slot = from.slot;
  copy_text(from.state, info.state);
  info.incarnation = from.incarnation;
  info.processes_live = static_cast<uint32_t>(from.processes_live);
  info.extents_owned = from.extents_owned;
  info.extents_free = from.extents_free;
  info.extents_custody = from.extents_custody;
  info.leases_active = from.leases_active;
  info.duties_late_ms = from.duties_late_ms;
  return info;
}

bh_namespace_info info_of(const PoolInfo::Namespace& from,
                          const std::vector<bowhead::NamespaceUsage>& usage) {
  bh_namespace_info info{};
  info.struct_bytes = sizeof info;
  info.profile = static_cast<uint32_t>(from.values.profile);
  info.id = from.id;
  info.name = from.name.c_str();
  info.description = from.description.c_str();
  info.layout = from.values.layout;
  for (const auto& one : usage) {
    if (one.id != from.id) continue;
    info.blocks = one.blocks;
    info.value_bytes = one.value_bytes;
    info.stored_bytes = one.stored_bytes;
    info.block_bytes = one.block_bytes;
  }
  return info;
}

}  // namespace

extern "C" {

bh_status bh_pool_get_info(bh_pool* pool, bh_pool_info* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto info = pool->pool.info();
    if (!info) return fail(info.error());
    write_struct(info_of(*info), out);
    return BH_OK;
  });
}

bh_status bh_pool_list_hosts(bh_pool* pool, int (*visit)(void* context, const bh_host_info* host),
                             void* context) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (visit == nullptr) return null_argument("visit");
    const auto info = pool->pool.info();
    if (!info) return fail(info.error());
    for (const PoolInfo::Host& host : info->hosts) {
      const bh_host_info shown = info_of(host);
      if (visit(context, &shown) != 0) break;
    }
    return BH_OK;
  });
}

bh_status bh_pool_list_namespaces(bh_pool* pool,
                                  int (*visit)(void* context, const bh_namespace_info* ns),
                                  void* context) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (visit == nullptr) return null_argument("visit");
    const auto info = pool->pool.info();
    if (!info) return fail(info.error());
    const auto usage = pool->pool.usage();
    if (!usage) return fail(usage.error());
    for (const PoolInfo::Namespace& one : info->namespaces) {
      const bh_namespace_info shown = info_of(one, *usage);
      if (visit(context, &shown) != 0) break;
    }
    return BH_OK;
  });
}

bh_status bh_pool_list_blocks(bh_pool* pool,
                              int (*visit)(void* context, const bh_block_info* block),
                              void* context) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (visit == nullptr) return null_argument("visit");
    return finish(*pool, pool->pool.list([&](const bowhead::BlockInfo& block) {
      bh_block_info shown{};
      shown.struct_bytes = sizeof shown;
      shown.namespace_id = block.namespace_id;
      shown.key = {block.key.data(), block.key.size()};
      shown.length_bytes = block.length_bytes;
      shown.stored_bytes = block.stored_bytes;
      shown.offset = block.offset;
      shown.stamp = block.stamp;
      return visit(context, &shown) == 0;
    }));
  });
}

bh_status bh_pool_check(bh_pool* pool, int payloads,
                        void (*visit)(void* context, int is_finding, const char* sentence),
                        void* context, bh_check_report* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto report = pool->pool.check(payloads != 0);
    if (!report) return fail(report.error());
    bh_check_report counts{};
    counts.findings = report->findings.size();
    counts.not_checked = report->not_checked.size();
    counts.blocks_checked = report->blocks_checked;
    counts.bytes_checked = report->bytes_checked;
    counts.blocks_unverified = report->blocks_unverified;
    for (const auto& finding : report->findings) {
      counts.data_lost += finding.data_lost ? 1 : 0;
      if (visit != nullptr) visit(context, 1, finding.what.c_str());
    }
    for (const std::string& part : report->not_checked) {
      if (visit != nullptr) visit(context, 0, part.c_str());
    }
    write_struct(counts, out);
    return BH_OK;
  });
}

bh_status bh_pool_scavenge(bh_pool* pool, uint64_t* found) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    const auto count = pool->pool.scavenge();
    if (!count) return fail(count.error());
    if (found != nullptr) *found = *count;
    return BH_OK;
  });
}

}  // extern "C"
