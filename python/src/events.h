// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "python/src/pool.h"

namespace bowhead::python {

/// A reader of events.
class Events : public PartOfPool {
 public:
  Events(nb::object pool, uint64_t capacity_bytes);
  ~Events();

  bool is_closed() const { return !handle_.is_open(); }
  int fileno() const { return bh_events_fd(handle_.get()); }
  nb::object read(size_t limit);

  /// Calls visit(event) for at most `limit` events, without the GIL; it must throw nothing. Returns
  /// how many were lost after them.
  template <class Visit>
  uint64_t visit(size_t limit, Visit&& visit) {
    uint64_t lost = 0;
    check(handle_.run([&](bh_events* events) {
      const auto call = [](void* context, const bh_event* event) {
        (*static_cast<std::remove_reference_t<Visit>*>(context))(*event);
        return 0;
      };
      return bh_events_read(events, limit, call, &visit, nullptr, &lost);
    }));
    return lost;
  }

  void close() override;

 private:
  OfPool pool_;
  Guarded<bh_events> handle_;
};

}  // namespace bowhead::python
