// SPDX-License-Identifier: Apache-2.0
#include "python/src/events.h"

#include <nanobind/stl/unique_ptr.h>

#include <vector>

#include "python/src/arguments.h"

namespace bowhead::python {
namespace {

/// An event with its own copy of the key and the metadata: objects are made later, with the GIL.
struct EventCopy {
  explicit EventCopy(const bh_event& from)
      : kind(from.kind),
        namespace_id(from.namespace_id),
        key(static_cast<const char*>(from.key.data), from.key.size_bytes),
        user_metadata(static_cast<const char*>(from.user_metadata), from.user_bytes),
        length_bytes(from.length_bytes),
        stamp(from.stamp) {}

  uint32_t kind;
  bh_namespace_id namespace_id;
  std::string key;
  std::string user_metadata;
  uint64_t length_bytes;
  uint64_t stamp;
};

nb::bytes bytes(const std::string& from) { return nb::bytes(from.data(), from.size()); }

}  // namespace

Events::Events(nb::object pool, uint64_t capacity_bytes)
    : pool_(std::move(pool)), handle_("reader of events of pool " + pool_->locator()) {
  const bh_events_options options = {.struct_bytes = sizeof options,
                                     .capacity_bytes = capacity_bytes};
  bh_events* opened = nullptr;
  check(pool_->run([&](bh_pool* handle) { return bh_events_open(handle, &options, &opened); }));
  handle_.set(opened);
  pool_->add_part(this);
}

Events::~Events() { close(); }

nb::object Events::read(size_t limit) {
  std::vector<EventCopy> found;
  const uint64_t lost = visit(limit, [&](const bh_event& event) { found.emplace_back(event); });
  nb::list list;
  for (const EventCopy& event : found)
    list.append(event_object(event.kind, event.namespace_id, bytes(event.key),
                             bytes(event.user_metadata), event.length_bytes, event.stamp));
  return nb::make_tuple(list, lost);
}

void Events::close() {
  const Guarded<bh_events>::Closing closing(handle_);
  if (!handle_.is_open()) return;
  pool_->drop_part(this);
  const auto use = pool_->use();  // another thread may close the pool now, and must wait
  bh_events* handle = handle_.take();
  without_gil([&] { bh_events_close(handle); });
}

void bind_events(nb::module_& module, nb::class_<Pool>& pool) {
  nb::class_<Events>(module, "Events", nb::is_weak_referenceable())
      .def(
          "read",
          [](Events& self, nb::handle limit) { return self.read(number<size_t>("limit", limit)); },
          any("limit") = 1024)
      .def("fileno", &Events::fileno)
      .def("close", &Events::close)
      .def_prop_ro("closed", &Events::is_closed)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Events& self, const nb::args&) { self.close(); });
  pool.def(
      "events",
      [](nb::handle self, nb::handle capacity_bytes) {
        return std::make_unique<Events>(nb::borrow(self),
                                        number<uint64_t>("capacity_bytes", capacity_bytes));
      },
      nb::kw_only(), any("capacity_bytes") = 0);
}

}  // namespace bowhead::python
