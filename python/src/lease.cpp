// SPDX-License-Identifier: Apache-2.0
// Leases: read-only memory of blocks, by the buffer protocol and DLPack.
#include <nanobind/stl/unique_ptr.h>

#include <vector>

#include "python/src/memory.h"

namespace bowhead::python {
namespace {

class Lease {
 public:
  static constexpr bool kReadOnly = true;

  Lease(const Namespace& ns, const bh_lease& lease) : pool_(ns.pool), lease_(lease) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (!open_ || pool_->is_closed() || pool_->was_forked()) return;
    pool_->run([this](bh_pool* pool) { return bh_release(pool, &lease_); });
  }

  const bh_lease& lease() const { return lease_; }
  size_t size_bytes() const { return lease_.stored_bytes; }
  void add_view() { pool_->add_view(); }
  void drop_view() { pool_->drop_view(); }
  bool is_open() const { return open_; }

  /// The memory; raises Error if it is not leased any more.
  const void* data() const {
    if (!open_) raise_error(BH_CLOSED, "the lease was released; acquire the block again");
    check_pool();
    return lease_.data;
  }
  void check_pool() const {
    if (pool_->is_closed()) raise_error(BH_CLOSED, "the lease ended when its pool was closed");
  }

  /// Whether the block is known to have been intact for the whole lease. Ends it the first time.
  bool release() {
    if (!open_) return intact_;
    if (pool_->is_closed()) return open_ = false;
    if (!pool_->was_forked()) open_ = false;  // another thread may release it, too
    const bh_status status =
        pool_->run([this](bh_pool* pool) { return bh_release(pool, &lease_); });
    if (status != BH_LAPSED && status != BH_HOST_FENCED) check(status);
    return intact_ = status == BH_OK;
  }

 private:
  const OfPool pool_;
  bh_lease lease_;
  bool open_ = true;
  bool intact_ = false;
};

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
