// SPDX-License-Identifier: Apache-2.0
// The C ABI of inspection: info, lists, check, and scavenging.
#include "api/support.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::BlockInfo;
using bowhead::Pool;
using bowhead::PoolInfo;

namespace {

/// Truncates a text that is too long; always zero-terminated.
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
  // A sum of counters that are read one after the other may be negative for a moment.
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
  info.heartbeat_ms = from.times.heartbeat_ms;
  info.dead_ms = from.times.dead_ms;
  info.grace_ms = from.times.grace_ms;
  info.settle_ms = from.times.settle_ms;
  info.reclaim_ms = from.times.reclaim_ms;
  info.max_bytes = from.max_bytes;
  info.compat = from.compat;
  info.incompat = from.incompat;
  info.ro_compat = from.ro_compat;
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
  info.heartbeat = from.heartbeat;
  info.features = from.features;
  info.format_version = from.format_version;
  return info;
}

bh_namespace_info info_of(const PoolInfo::Namespace& from,
                          const std::vector<bowhead::NamespaceUsage>& usage) {
  bh_namespace_info info{};
  info.struct_bytes = sizeof info;
  info.profile = static_cast<uint32_t>(from.values.profile);
  info.wipe = from.values.wipe;
  info.id = from.id;
  info.name = from.name.c_str();
  info.description = from.description.c_str();
  info.layout = from.values.layout;
  for (const auto& one : usage) {
    if (one.id != from.id) continue;
    const auto number = [](int64_t count) {
      return static_cast<uint64_t>(std::max<int64_t>(count, 0));
    };
    info.blocks = number(one.blocks);
    info.value_bytes = number(one.value_bytes);
    info.stored_bytes = number(one.stored_bytes);
    info.block_bytes = number(one.block_bytes);
    info.hits = one.hits;
    info.misses = one.misses;
    info.evictions = one.evictions;
  }
  return info;
}

bh_block_info info_of(const BlockInfo& from) {
  bh_block_info info{};
  info.struct_bytes = sizeof info;
  info.namespace_id = from.namespace_id;
  info.key = {from.key.data(), from.key.size()};
  info.length_bytes = from.length_bytes;
  info.stored_bytes = from.stored_bytes;
  info.offset = from.offset;
  info.stamp = from.stamp;
  info.user_metadata = from.user_metadata.data();
  info.user_bytes = from.user_metadata.size();
  const bowhead::BlockAttributes& attributes = from.attributes;
  info.attributes.struct_bytes = sizeof info.attributes;
  info.attributes.priority = attributes.priority;
  info.attributes.pins =
      uint32_t{attributes.soft_pin} * BH_PIN_SOFT | uint32_t{attributes.hard_pin} * BH_PIN_HARD;
  info.attributes.forks = attributes.forks;
  info.attributes.parity_group = attributes.parity_group;
  info.attributes.expires_unix_s = attributes.expires_unix_s;
  info.attributes.next_use_unix_s = attributes.next_use_unix_s;
  info.attributes.group = attributes.group;
  return info;
}

/// A list of the ABI. `walk(pool, show)` calls show(info) for each entry until that returns false,
/// which it does when `visit` asks to stop.
template <class Info, class Walk>
bh_status list(const char* function, bh_pool* pool, int (*visit)(void*, const Info*), void* context,
               const Walk& walk) {
  return guarded(function, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (visit == nullptr) return null_argument("visit");
    return walk(pool->pool, [&](const Info& info) { return visit(context, &info) == 0; });
  });
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
  return list(__func__, pool, visit, context, [](Pool& of, const auto& show) -> bh_status {
    const auto info = of.info();
    if (!info) return fail(info.error());
    for (const PoolInfo::Host& host : info->hosts) {
      if (!show(info_of(host))) break;
    }
    return BH_OK;
  });
}

bh_status bh_pool_list_namespaces(bh_pool* pool,
                                  int (*visit)(void* context, const bh_namespace_info* ns),
                                  void* context) {
  return list(__func__, pool, visit, context, [](Pool& of, const auto& show) -> bh_status {
    const auto info = of.info();
    if (!info) return fail(info.error());
    const auto usage = of.usage();
    if (!usage) return fail(usage.error());
    for (const PoolInfo::Namespace& ns : info->namespaces) {
      if (!show(info_of(ns, *usage))) break;
    }
    return BH_OK;
  });
}

bh_status bh_pool_list_blocks(bh_pool* pool,
                              int (*visit)(void* context, const bh_block_info* block),
                              void* context) {
  return list(__func__, pool, visit, context, [&](Pool& of, const auto& show) {
    return finish(*pool, of.list([&](const BlockInfo& block) { return show(info_of(block)); }));
  });
}

bh_status bh_describe(bh_pool* pool, bh_namespace_id ns, bh_key key, void* user_metadata,
                      bh_block_info* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto block = pool->pool.describe(ns, view(key));
    if (!block) return fail(block.error());
    bh_block_info info = info_of(*block);
    info.key = key;
    info.user_metadata = user_metadata;
    if (user_metadata != nullptr && info.user_bytes > 0)
      std::memcpy(user_metadata, block->user_metadata.data(), info.user_bytes);
    write_struct(info, out);
    return BH_OK;
  });
}

bh_status bh_set_attributes(bh_pool* pool, bh_namespace_id ns, bh_key key,
                            const bh_attributes* attributes) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    bowhead::BlockAttributes given;
    if (const bh_status bad = read_attributes(attributes, given); bad != BH_OK) return bad;
    return finish(pool->pool.set_attributes(ns, view(key), given));
  });
}

bh_status bh_pool_get_pressure(bh_pool* pool, bh_pressure* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto pressure = pool->pool.pressure();
    if (!pressure) return fail(pressure.error());
    bh_pressure answer{};
    answer.saturated = pressure->saturated ? 1 : 0;
    answer.used_permille = pressure->used_permille;
    answer.index_permille = pressure->index_permille;
    write_struct(answer, out);
    return BH_OK;
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
