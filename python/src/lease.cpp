// SPDX-License-Identifier: Apache-2.0
// Leases: read-only memory of blocks, by the buffer protocol and DLPack.
#include <nanobind/stl/unique_ptr.h>

#include <vector>

#include "python/src/lease.h"
#include "python/src/memory.h"

namespace bowhead::python {
namespace {

std::unique_ptr<Lease> acquire(const Namespace& ns, nb::handle key, nb::handle ttl_ms,
                               bool stored) {
  const Keys keys = Keys::one(key);
  const auto ttl = number<uint64_t>("ttl_ms", ttl_ms);
  bh_lease lease = {.struct_bytes = sizeof lease};
  const auto take = stored ? bh_acquire_stored : bh_acquire;
  check(ns.pool->run([&](bh_pool* pool) { return take(pool, ns.id, keys[0], ttl, &lease); }));
  return std::make_unique<Lease>(ns, lease);
}

nb::object acquire_prefix(const Namespace& ns, nb::handle keys_object, nb::handle group_keys,
                          nb::handle ttl_ms) {
  const Keys keys(keys_object, "keys");
  const auto group = number<size_t>("group_keys", group_keys);
  const auto ttl = number<uint64_t>("ttl_ms", ttl_ms);
  std::vector<bh_lease> leases(keys.size(), bh_lease{.struct_bytes = sizeof(bh_lease)});
  bh_prefix prefix = {.struct_bytes = sizeof prefix};
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_acquire_prefix(pool, ns.id, keys.data(), keys.size(), group, ttl, leases.data(),
                             &prefix);
  }));
  nb::list list;
  for (size_t i = 0; i < prefix.blocks; ++i)
    list.append(nb::cast(std::make_unique<Lease>(ns, leases[i])));
  nb::dict fields;
  fields["leases"] = list;
  fields["length_bytes"] = prefix.length_bytes;
  fields["stored_bytes"] = prefix.stored_bytes;
  fields["restore_ns"] = prefix.restore_ns;
  return make("Prefix", fields);
}

nb::object leave(Lease& self, const nb::args& raised) {
  const bool was_open = self.is_open();
  const bool intact = self.release();
  if (was_open && !intact && nb::handle(raised[0]).is_none())
    raise_error(BH_LAPSED, bh_status_text(BH_LAPSED));
  return nb::none();
}

nb::object layout(const Lease& self) {
  self.check_pool();
  return layout_object(*self.lease().layout);
}

nb::object checksum(const Lease& self) {
  if (self.lease().has_checksum == 0) return nb::none();
  return nb::int_(self.lease().checksum);
}

}  // namespace

void bind_lease(nb::module_& module, nb::class_<Namespace>& ns) {
  nb::class_<Lease> type(module, "Lease", nb::is_weak_referenceable(),
                         nb::type_slots(Memory<Lease>::slots));
  Memory<Lease>::bind(type);
  type.def("release", &Lease::release)
      .def("check", &Lease::check_intact)
      .def_prop_ro("length_bytes", [](const Lease& self) { return self.lease().length_bytes; })
      .def_prop_ro("offset", [](const Lease& self) { return self.lease().offset; })
      .def_prop_ro("stamp", [](const Lease& self) { return self.lease().stamp; })
      .def_prop_ro("codec", [](const Lease& self) { return codec_object(self.lease().codec); })
      .def_prop_ro("layout", &layout)
      .def_prop_ro("checksum", &checksum)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &leave);
  ns.def("acquire", &acquire, any("key"), any("ttl_ms") = 10'000, nb::kw_only(),
         nb::arg("stored") = false)
      .def("acquire_prefix", &acquire_prefix, any("keys"), nb::kw_only(), any("group_keys") = 1,
           any("ttl_ms") = 10'000);
}

}  // namespace bowhead::python
