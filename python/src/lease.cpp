// SPDX-License-Identifier: Apache-2.0
// Leases: read-only memory of blocks, by the buffer protocol and DLPack.
#include <nanobind/stl/unique_ptr.h>

#include <vector>

#include "python/src/arguments.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

class Lease {
 public:
  Lease(const Namespace& ns, const bh_lease& lease) : pool_(ns.pool), lease_(lease) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (!open_ || pool_->is_closed() || pool_->was_forked()) return;
    pool_->run([this](bh_pool* pool) { return bh_release(pool, &lease_); });
  }

  Pool& pool() const { return *pool_; }
  const bh_lease& lease() const { return lease_; }
  bool is_open() const { return open_; }

  /// The memory; raises Error if it is not leased any more.
  const void* data() const {
    if (!open_) raise_error(BH_CLOSED, "the lease was released; acquire the block again");
    if (pool_->is_closed()) raise_error(BH_CLOSED, "the lease ended when its pool was closed");
    return lease_.data;
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

std::unique_ptr<Lease> acquire(const Namespace& ns, nb::handle key, nb::handle ttl_ms) {
  const Keys keys = Keys::one(key);
  const auto ttl = number<uint64_t>("ttl_ms", ttl_ms);
  bh_lease lease = {.struct_bytes = sizeof lease};
  check(ns.pool->run([&](bh_pool* pool) { return bh_acquire(pool, ns.id, keys[0], ttl, &lease); }));
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

/// Slots have C's calling convention: an exception becomes the Python error.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  try {
    const Lease& lease = *nb::inst_ptr<Lease>(self);
    void* data = const_cast<void*>(lease.data());
    const auto size = static_cast<Py_ssize_t>(lease.lease().stored_bytes);
    if (PyBuffer_FillInfo(view, self, data, size, /*readonly=*/1, flags) != 0) return -1;
    lease.pool().add_view();
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
  }
  view->obj = nullptr;
  return -1;
}

void release_buffer(PyObject* self, Py_buffer*) { nb::inst_ptr<Lease>(self)->pool().drop_view(); }

PyType_Slot slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
    {0, nullptr},
};

/// A tensor of bytes over the memory, which keeps the lease's pool open.
nb::object tensor(nb::handle self) {
  const Lease& lease = *nb::inst_ptr<Lease>(self);
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(self.ptr(), view.get(), PyBUF_SIMPLE) != 0) throw nb::python_error();
  const nb::capsule owner(view.release(), [](void* pointer) noexcept {
    const std::unique_ptr<Py_buffer> held(static_cast<Py_buffer*>(pointer));
    PyBuffer_Release(held.get());
  });
  const size_t size = lease.lease().stored_bytes;
  return nb::cast(nb::ndarray<nb::array_api, nb::ro, const uint8_t, nb::ndim<1>>(lease.lease().data,
                                                                                 {size}, owner));
}

nb::object leave(Lease& self, const nb::args& raised) {
  const bool was_open = self.is_open();
  const bool intact = self.release();
  if (was_open && !intact && nb::handle(raised[0]).is_none())
    raise_error(BH_LAPSED, bh_status_text(BH_LAPSED));
  return nb::none();
}

}  // namespace

void bind_lease(nb::module_& module, nb::class_<Namespace>& ns) {
  nb::class_<Lease>(module, "Lease", nb::is_weak_referenceable(), nb::type_slots(slots))
      .def("release", &Lease::release)
      .def_prop_ro("length_bytes", [](const Lease& self) { return self.lease().length_bytes; })
      .def_prop_ro("offset", [](const Lease& self) { return self.lease().offset; })
      .def_prop_ro("stamp", [](const Lease& self) { return self.lease().stamp; })
      .def_prop_ro("coded", [](const Lease& self) { return self.lease().codec != BH_CODEC_RAW; })
      .def("__len__", [](const Lease& self) { return self.lease().stored_bytes; })
      .def("__dlpack__",
           [](nb::handle self, const nb::kwargs& arguments) {
             return tensor(self).attr("__dlpack__")(**arguments);
           })
      .def("__dlpack_device__", [](const Lease&) { return nb::make_tuple(1, 0); })  // the CPU
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &leave);
  ns.def("acquire", &acquire, any("key"), any("ttl_ms") = 10'000)
      .def("acquire_prefix", &acquire_prefix, any("keys"), nb::kw_only(), any("group_keys") = 1,
           any("ttl_ms") = 10'000);
}

}  // namespace bowhead::python
