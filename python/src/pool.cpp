// SPDX-License-Identifier: Apache-2.0
#include "python/src/pool.h"

#include <bowhead/bowhead_ndp.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <pthread.h>

#include <atomic>

#include "python/src/arguments.h"

namespace bowhead::python {
namespace {

std::atomic<unsigned> fork_count{0};
[[maybe_unused]] const int counts_forks =
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });

std::optional<uint32_t> host_argument(nb::handle host) {
  if (host.is_none()) return std::nullopt;
  return number<uint32_t>("host", host);
}

Namespace open_namespace(nb::handle self, const std::string& name, const std::string& description,
                         nb::handle layout, nb::handle profile, bool wipe) {
  OfPool pool(nb::borrow(self));
  bh_namespace_options options = {.struct_bytes = sizeof options, .wipe = wipe};
  if (!layout.is_none()) options.layout = layout_struct(layout);
  if (!profile.is_none()) options.profile = number<uint32_t>("profile", profile);
  bh_namespace_id id = 0;
  const char* c_name = c_string("name", name);
  const char* c_description = c_string("description", description);
  check(pool->run([&](bh_pool* handle) {
    return bh_namespace_open_with(handle, c_name, c_description, &options, &id);
  }));
  return {std::move(pool), id, name};
}

uint64_t number_or_0(const char* name, nb::handle object) {
  return object.is_none() ? 0 : number<uint64_t>(name, object);
}

void use_engine(Pool& self, const std::string& name, nb::handle request_bytes,
                nb::handle answer_bytes, nb::handle timeout_ms) {
  bh_ndp_engine_options options = {.struct_bytes = sizeof options};
  if (name == "device")
    options.engine = BH_NDP_DEVICE;
  else if (name == "device or process")
    options.engine = BH_NDP_DEVICE_OR_PROCESS;
  else if (name != "process")
    raise_argument(PyExc_ValueError, "name", kAlone,
                   "is '" + name + "': give 'process', 'device' or 'device or process'");
  options.request_bytes = number_or_0("request_bytes", request_bytes);
  options.answer_bytes = number_or_0("answer_bytes", answer_bytes);
  options.timeout_ms = number_or_0("timeout_ms", timeout_ms);
  check(self.run([&](bh_pool* pool) { return bh_ndp_use_engine(pool, &options); }));
}

/// __exit__(): what the body raised must not be hidden by views that it keeps alive.
void end_with(Pool& self, const nb::args& raised) {
  if (self.has_views() && !nb::handle(raised[0]).is_none()) return;
  self.close();
}

}  // namespace

unsigned forks() { return fork_count.load(std::memory_order_relaxed); }

Pool::Pool(const std::string& locator, std::optional<uint32_t> host, bool observe,
           std::optional<uint64_t> mirror_bytes)
    : locator_(locator), handle_("pool " + locator) {
  if (observe && host)
    raise_argument(PyExc_ValueError, "host", kAlone, "is set, but an observer has no host slot");
  bh_open_options options = {.struct_bytes = sizeof options};
  options.no_mirror = mirror_bytes == 0u;
  options.mirror_bytes = mirror_bytes.value_or(0);
  bh_pool* opened = nullptr;
  const char* text = c_string("locator", locator);
  check(without_gil([&] {
    return observe ? bh_pool_observe(text, &opened)
                   : bh_pool_open_with(text, host.value_or(BH_ANY_HOST), &options, &opened);
  }));
  handle_.set(opened);
}

Pool::~Pool() {
  // Nothing refers to this pool: no queue of it is open, no view of a lease exists.
  bh_pool* handle = handle_.take();
  without_gil([&] { bh_pool_close(handle); });
}

void Pool::check_views(const char* what) const {
  if (views_ == 0 || !handle_.is_open()) return;
  PyErr_Format(PyExc_BufferError,
               "pool %s cannot be %s while views of its memory exist (%zu): delete the "
               "memoryviews, arrays and tensors that were made from leases and reservations",
               locator_.c_str(), what, views_);
  throw nb::python_error();
}

void Pool::close() {
  const Guarded<bh_pool>::Closing closing(handle_);
  check_views("closed");
  // First no call is left that could add a part; then no part, nor one that another thread closes.
  bh_pool* handle = handle_.take();
  while (!parts_.empty()) (*parts_.begin())->close();
  handle_.wait_for_users();
  without_gil([&] { bh_pool_close(handle); });
}

void Pool::leave() {
  const Guarded<bh_pool>::Closing closing(handle_);
  check_views("left");
  if (!parts_.empty())
    raise_error(BH_IN_USE, ("pool " + locator_ + " has open queues or readers of events; close " +
                            "them to leave")
                               .c_str());
  check(handle_.run_alone([](bh_pool* pool) { return bh_pool_leave(pool); }));
}

void bind_pool(nb::module_& module) {
  nb::class_<Pool> pool(module, "Pool", nb::is_weak_referenceable());
  nb::class_<Namespace> ns(module, "Namespace", nb::is_weak_referenceable());
  pool.def(
          "__init__",
          [](Pool* self, const std::string& locator, nb::handle host, bool observe,
             nb::handle mirror_bytes) {
            std::optional<uint64_t> bytes;
            if (!mirror_bytes.is_none()) bytes = number<uint64_t>("mirror_bytes", mirror_bytes);
            new (self) Pool(locator, host_argument(host), observe, bytes);
          },
          nb::arg("locator"), nb::kw_only(), nb::arg("host") = nb::none(),
          nb::arg("observe") = false, nb::arg("mirror_bytes") = nb::none())
      .def("namespace", &open_namespace, nb::arg("name"), nb::arg("description") = "",
           nb::kw_only(), nb::arg("layout") = nb::none(), nb::arg("profile") = nb::none(),
           nb::arg("wipe") = false)
      .def(
          "remove_namespace",
          [](Pool& self, const std::string& name) {
            const char* c_name = c_string("name", name);
            check(self.run([&](bh_pool* p) { return bh_namespace_remove(p, c_name); }));
          },
          nb::arg("name"))
      .def("use_engine", &use_engine, nb::arg("name"), nb::kw_only(),
           nb::arg("request_bytes") = nb::none(), nb::arg("answer_bytes") = nb::none(),
           nb::arg("timeout_ms") = nb::none())
      .def("leave", &Pool::leave)
      .def("close", &Pool::close)
      .def_prop_ro("closed", &Pool::is_closed)
      .def_prop_ro("locator", &Pool::locator)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &end_with)
      .def("__repr__", [](const Pool& self) {
        return "<bowhead_kv.Pool " + self.locator() + (self.is_closed() ? ", closed>" : ">");
      });
  ns.def_prop_ro("id", [](const Namespace& self) { return self.id; })
      .def_prop_ro("name", [](const Namespace& self) { return self.name; })
      .def_prop_ro("pool", [](const Namespace& self) { return self.pool.object(); })
      .def("__repr__", [](const Namespace& self) {
        return "<bowhead_kv.Namespace " + self.name + " of " + self.pool->locator() + ">";
      });
  bind_inspection(module, pool, ns);
  bind_care(pool);
  bind_values(ns);
  bind_lease(module, ns);
  bind_reservation(module, ns);
  bind_queue(module, pool);
  bind_events(module, pool);
  bind_encoder(module);
}

}  // namespace bowhead::python
