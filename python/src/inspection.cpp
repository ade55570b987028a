// SPDX-License-Identifier: Apache-2.0
// Descriptions of pools, hosts, namespaces and blocks, as dataclasses of bowhead_kv._types.
#include <nanobind/stl/string.h>

#include <array>
#include <vector>

#include "python/src/arguments.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

#define SET(name) fields[#name] = from.name;

nb::object info(Pool& self) {
  bh_pool_info from = {.struct_bytes = sizeof from};
  check(self.run([&](bh_pool* pool) { return bh_pool_get_info(pool, &from); }));
  nb::dict fields;
  fields["pool_id"] = nb::str(from.pool_id);
  SET(format_version)
  SET(created_unix_ns)
  SET(size_bytes)
  SET(payload_bytes) SET(metadata_bytes) SET(extent_bytes) SET(extent_count) SET(min_block_bytes)
      SET(evict_high_permille) SET(evict_low_permille) SET(hosts) SET(second_superblock)
          SET(used_bytes) SET(blocks) SET(puts) SET(puts_present) SET(hits) SET(hits_elsewhere)
              SET(misses) SET(bytes_in) SET(bytes_out) SET(evictions) SET(removals) SET(moves)
                  SET(recompressed) SET(damaged) SET(scavenged) SET(no_space) SET(heartbeat_ms)
                      SET(dead_ms) SET(grace_ms) SET(settle_ms) SET(reclaim_ms) SET(max_bytes)
                          SET(compat) SET(incompat) SET(ro_compat) return make("PoolInfo", fields);
}

/// Copies what a list of the C ABI reports; objects are made later, with the GIL.
template <class Info, class List>
std::vector<Info> collect(Pool& self, List&& list) {
  std::vector<Info> found;
  check(self.run([&](bh_pool* pool) {
    return list(
        pool,
        [](void* context, const auto* from) {
          static_cast<std::vector<Info>*>(context)->push_back(Info(*from));
          return 0;
        },
        &found);
  }));
  return found;
}

nb::object hosts(Pool& self) {
  nb::list list;
  for (const bh_host_info& from : collect<bh_host_info>(self, bh_pool_list_hosts)) {
    nb::dict fields;
    fields["state"] = nb::str(from.state);
    SET(slot)
    SET(incarnation)
    SET(processes_live)
    SET(extents_owned) SET(extents_free) SET(extents_custody) SET(leases_active) SET(duties_late_ms)
        SET(heartbeat) SET(features) SET(format_version) list.append(make("HostInfo", fields));
  }
  return list;
}

/// A namespace, with its own copy of the texts.
struct NamespaceCopy : bh_namespace_info {
  explicit NamespaceCopy(const bh_namespace_info& from)
      : bh_namespace_info(from), name_text(from.name), description_text(from.description) {}

  std::string name_text;
  std::string description_text;
};

nb::object namespaces(Pool& self) {
  nb::list list;
  for (const NamespaceCopy& from : collect<NamespaceCopy>(self, bh_pool_list_namespaces)) {
    nb::dict fields;
    fields["name"] = from.name_text;
    fields["description"] = from.description_text;
    fields["layout"] = layout_object(from.layout);
    SET(profile)
    SET(id)
    SET(blocks)
    SET(value_bytes) SET(stored_bytes) SET(block_bytes) SET(hits) SET(misses) SET(evictions)
        list.append(make("NamespaceInfo", fields));
  }
  return list;
}

nb::object attributes(const bh_attributes& from) {
  nb::dict fields;
  SET(priority)
  SET(pins)
  SET(forks)
  SET(parity_group) SET(expires_unix_s) SET(next_use_unix_s)
      SET(group) return make("Attributes", fields);
}

bh_block_info describe_block(const Namespace& ns, nb::handle key, void* user_metadata) {
  const Keys keys = Keys::one(key);
  bh_block_info block = {.struct_bytes = sizeof block};
  check(ns.pool->run(
      [&](bh_pool* pool) { return bh_describe(pool, ns.id, keys[0], user_metadata, &block); }));
  return block;
}

nb::object describe(const Namespace& ns, nb::handle key) {
  std::array<char, BH_USER_BYTES_MAX> metadata;
  const bh_block_info from = describe_block(ns, key, metadata.data());
  nb::dict fields;
  fields["user_metadata"] = nb::bytes(metadata.data(), from.user_bytes);
  fields["attributes"] = attributes(from.attributes);
  SET(length_bytes) SET(stored_bytes) SET(offset) SET(stamp) return make("BlockInfo", fields);
}

uint64_t length(const Namespace& ns, nb::handle key) {
  return describe_block(ns, key, nullptr).length_bytes;
}

}  // namespace

void bind_inspection(nb::class_<Pool>& pool, nb::class_<Namespace>& ns) {
  pool.def("info", &info).def("hosts", &hosts).def("namespaces", &namespaces);
  ns.def("describe", &describe, nb::arg("key")).def("length", &length, nb::arg("key"));
}

}  // namespace bowhead::python
