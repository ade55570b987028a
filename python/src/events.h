// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  void close() override;

 private:
  OfPool pool_;
  Guarded<bh_events> handle_;
};

}  // namespace bowhead::python
