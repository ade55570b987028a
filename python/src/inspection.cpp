// SPDX-License-Identifier: Apache-2.0
// Descriptions of pools, hosts, namespaces and blocks, as dataclasses of bowhead_kv._types.
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "python/src/arguments.h"
#include "python/src/blocks.h"
#include "python/src/members.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

#define MEMBER(member) BOWHEAD_MEMBER(bh_pool_info, member)
const Member<bh_pool_info> pool_members[] = {
    MEMBER(format_version),
    MEMBER(created_unix_ns),
    MEMBER(size_bytes),
    MEMBER(payload_bytes),
    MEMBER(metadata_bytes),
    MEMBER(extent_bytes),
    MEMBER(extent_count),
    MEMBER(min_block_bytes),
    MEMBER(evict_high_permille),
    MEMBER(evict_low_permille),
    MEMBER(hosts),
    MEMBER(second_superblock),
    MEMBER(used_bytes),
    MEMBER(blocks),
    MEMBER(puts),
    MEMBER(puts_present),
    MEMBER(hits),
    MEMBER(hits_elsewhere),
    MEMBER(misses),
    MEMBER(bytes_in),
    MEMBER(bytes_out),
    MEMBER(evictions),
    MEMBER(removals),
    MEMBER(moves),
    MEMBER(recompressed),
    MEMBER(damaged),
    MEMBER(scavenged),
    MEMBER(no_space),
    MEMBER(heartbeat_ms),
    MEMBER(dead_ms),
    MEMBER(grace_ms),
    MEMBER(settle_ms),
    MEMBER(reclaim_ms),
    MEMBER(max_bytes),
    MEMBER(compat),
    MEMBER(incompat),
    MEMBER(ro_compat),
};
#undef MEMBER

#define MEMBER(member) BOWHEAD_MEMBER(bh_host_info, member)
const Member<bh_host_info> host_members[] = {
    MEMBER(slot),         MEMBER(incarnation),     MEMBER(processes_live), MEMBER(extents_owned),
    MEMBER(extents_free), MEMBER(extents_custody), MEMBER(leases_active),  MEMBER(duties_late_ms),
    MEMBER(heartbeat),    MEMBER(features),        MEMBER(format_version),
};
#undef MEMBER

#define MEMBER(member) BOWHEAD_MEMBER(bh_namespace_info, member)
const Member<bh_namespace_info> namespace_members[] = {
    MEMBER(profile),     MEMBER(id),   MEMBER(blocks), MEMBER(value_bytes), MEMBER(stored_bytes),
    MEMBER(block_bytes), MEMBER(hits), MEMBER(misses), MEMBER(evictions),
};
#undef MEMBER

#define MEMBER(member) BOWHEAD_MEMBER(bh_block_info, member)
const Member<bh_block_info> block_members[] = {
    MEMBER(namespace_id), MEMBER(length_bytes), MEMBER(stored_bytes), MEMBER(offset), MEMBER(stamp),
};
#undef MEMBER

nb::object info(Pool& self) {
  bh_pool_info from = {.struct_bytes = sizeof from};
  check(self.run([&](bh_pool* pool) { return bh_pool_get_info(pool, &from); }));
  nb::dict fields;
  fields["pool_id"] = nb::str(from.pool_id);
  add_members(pool_members, from, fields);
  return make("PoolInfo", fields);
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

nb::object pressure(Pool& self) {
  bh_pressure from = {.struct_bytes = sizeof from};
  check(self.run([&](bh_pool* pool) { return bh_pool_get_pressure(pool, &from); }));
  nb::dict fields;
  fields["saturated"] = from.saturated != 0;
  fields["used_permille"] = from.used_permille;
  fields["index_permille"] = from.index_permille;
  return make("Pressure", fields);
}

nb::object hosts(Pool& self) {
  nb::list list;
  for (const bh_host_info& from : collect<bh_host_info>(self, bh_pool_list_hosts)) {
    nb::dict fields;
    fields["state"] = nb::str(from.state);
    add_members(host_members, from, fields);
    list.append(make("HostInfo", fields));
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

/// Programs in C may have registered a text that is not UTF-8.
nb::object text(const std::string& from) {
  nb::object made =
      nb::steal(PyUnicode_DecodeUTF8(from.data(), static_cast<Py_ssize_t>(from.size()), "replace"));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

nb::object namespaces(Pool& self) {
  nb::list list;
  for (const NamespaceCopy& from : collect<NamespaceCopy>(self, bh_pool_list_namespaces)) {
    nb::dict fields;
    fields["name"] = text(from.name_text);
    fields["description"] = text(from.description_text);
    fields["layout"] = layout_object(from.layout);
    fields["wipe"] = from.wipe != 0;
    add_members<bh_namespace_info>(namespace_members, from, fields);
    list.append(make("NamespaceInfo", fields));
  }
  return list;
}

bh_block_info describe_block(const Namespace& ns, const Keys& keys, void* user_metadata) {
  bh_block_info block = {.struct_bytes = sizeof block};
  check(ns.pool->run(
      [&](bh_pool* pool) { return bh_describe(pool, ns.id, keys[0], user_metadata, &block); }));
  return block;
}

nb::object block_object(const bh_block_info& from, const void* key, const void* user_metadata) {
  nb::dict fields;
  fields["key"] = nb::bytes(key, from.key.size_bytes);
  fields["user_metadata"] = nb::bytes(user_metadata, from.user_bytes);
  fields["attributes"] = attributes_object(from.attributes);
  add_members(block_members, from, fields);
  return make("BlockInfo", fields);
}

nb::object describe(const Namespace& ns, nb::handle key_object) {
  const Keys keys = Keys::one(key_object);
  std::array<char, BH_USER_BYTES_MAX> metadata;
  return block_object(describe_block(ns, keys, metadata.data()), keys[0].data, metadata.data());
}

nb::object next_block(Blocks& blocks) {
  if (blocks.left() == 0) throw nb::stop_iteration();
  const bh_block_info& block = blocks.next();
  return block_object(block, block.key.data, block.user_metadata);
}

void set_attributes(const Namespace& ns, nb::handle key, nb::handle attributes) {
  const Keys keys = Keys::one(key);
  const bh_attributes from = attributes_struct(attributes);
  check(
      ns.pool->run([&](bh_pool* pool) { return bh_set_attributes(pool, ns.id, keys[0], &from); }));
}

uint64_t length(const Namespace& ns, nb::handle key) {
  return describe_block(ns, Keys::one(key), nullptr).length_bytes;
}

nb::object options(const Namespace& ns) {
  bh_namespace_options from = {.struct_bytes = sizeof from};
  check(ns.pool->run([&](bh_pool* pool) { return bh_namespace_get_options(pool, ns.id, &from); }));
  nb::dict fields;
  fields["profile"] = from.profile;
  fields["layout"] = layout_object(from.layout);
  fields["wipe"] = from.wipe != 0;
  return make("NamespaceOptions", fields);
}

}  // namespace

void bind_inspection(nb::module_& module, nb::class_<Pool>& pool, nb::class_<Namespace>& ns) {
  nb::class_<Blocks>(module, "Blocks")
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &next_block)
      .def("__length_hint__", &Blocks::left);
  pool.def("info", &info)
      .def("hosts", &hosts)
      .def("namespaces", &namespaces)
      .def("pressure", &pressure)
      .def("blocks", [](Pool& self) { return std::make_unique<Blocks>(self, std::nullopt); });
  ns.def("set_attributes", &set_attributes, any("key"), any("attributes"))
      .def("describe", &describe, any("key"))
      .def("blocks", [](Namespace& self) { return std::make_unique<Blocks>(*self.pool, self.id); })
      .def("options", &options)
      .def("length", &length, any("key"));
}

}  // namespace bowhead::python
