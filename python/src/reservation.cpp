// SPDX-License-Identifier: Apache-2.0
// Reservations: writable memory of blocks that are not stored yet.
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "python/src/batches.h"
#include "python/src/memory.h"

namespace bowhead::python {
namespace {

class Reservation {
 public:
  static constexpr bool kReadOnly = false;

  Reservation(const Namespace& ns, const bh_reservation& reservation)
      : pool_(ns.pool), reservation_(reservation), open_(reservation.present == 0) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() {
    if (!open_ || pool_->is_closed() || pool_->was_forked()) return;
    pool_->run([this](bh_pool* pool) { return bh_abort(pool, &reservation_); });
  }

  bool present() const { return reservation_.present != 0; }
  bool is_open() const { return open_; }
  bool has_views() const { return views_ != 0; }
  uint64_t offset() const { return reservation_.offset; }
  size_t size_bytes() const { return present() ? 0 : reservation_.length_bytes; }

  /// The memory; raises Error if it is not reserved any more.
  void* data() const {
    check_open();
    return reservation_.data;
  }
  void add_view() {
    ++views_;
    pool_->add_view();
  }
  void drop_view() {
    --views_;
    pool_->drop_view();
  }

  /// Calls end(pool, reservation), one of the functions that end a reservation.
  template <class End>
  void end(End&& end) {
    check_open();
    if (has_views()) {
      PyErr_Format(PyExc_BufferError,
                   "the reservation cannot end while views of its memory exist (%zu): delete the "
                   "memoryviews, arrays and tensors that were made from it",
                   views_);
      throw nb::python_error();
    }
    if (!pool_->was_forked()) open_ = false;  // for other threads
    const bh_status status = pool_->run([&](bh_pool* pool) { return end(pool, &reservation_); });
    open_ = reservation_.data != nullptr;
    check(status);
  }

 private:
  void check_open() const {
    if (present())
      raise_error(BH_CLOSED, "the key is stored already, so nothing was reserved; look at present");
    if (!open_) raise_error(BH_CLOSED, "the reservation has ended; reserve the key again");
    if (pool_->is_closed())
      raise_error(BH_CLOSED, "the reservation ended when its pool was closed");
  }

  const OfPool pool_;
  bh_reservation reservation_;
  bool open_;
  size_t views_ = 0;
};

std::unique_ptr<Reservation> reserve(const Namespace& ns, nb::handle key, nb::handle length_bytes,
                                     nb::handle user_metadata, nb::handle attributes_object) {
  const Keys keys = Keys::one(key);
  const auto length = number<uint64_t>("length_bytes", length_bytes);
  Buffers<bh_const_iovec> metadata("user_metadata");
  metadata.append(user_metadata, kAlone);
  const std::optional<bh_attributes> attributes = attributes_argument(attributes_object);
  const bh_put_options options = put_options(metadata, 0, kAlone, attributes);
  bh_reservation reservation = {.struct_bytes = sizeof reservation};
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_reserve_with(pool, ns.id, keys[0], length, &options, &reservation);
  }));
  return std::make_unique<Reservation>(ns, reservation);
}

void commit(Reservation& self, nb::handle checksum) {
  if (checksum.is_none()) return self.end(bh_commit);
  const auto sum = number<uint64_t>("checksum", checksum);
  self.end([sum](bh_pool* pool, bh_reservation* reservation) {
    return bh_commit_summed(pool, reservation, sum);
  });
}

/// __exit__(): what the body raised must not be hidden by views that it keeps alive; the
/// reservation is then aborted with the last of them.
void leave(Reservation& self, const nb::args& raised) {
  if (!self.is_open()) return;
  if (nb::handle(raised[0]).is_none()) return self.end(bh_commit);
  if (!self.has_views()) self.end(bh_abort);
}

}  // namespace

void bind_reservation(nb::module_& module, nb::class_<Namespace>& ns) {
  nb::class_<Reservation> type(module, "Reservation", nb::is_weak_referenceable(),
                               nb::type_slots(Memory<Reservation>::slots));
  Memory<Reservation>::bind(type);
  type.def("commit", &commit, nb::arg("checksum") = nb::none())
      .def("commit_unverified", [](Reservation& self) { self.end(bh_commit_unverified); })
      .def("abort", [](Reservation& self) { self.end(bh_abort); })
      .def_prop_ro("present", &Reservation::present)
      .def_prop_ro("offset", &Reservation::offset)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &leave);
  ns.def("reserve", &reserve, any("key"), any("length_bytes"), nb::kw_only(),
         any("user_metadata") = nb::bytes("", 0), nb::arg("attributes") = nb::none());
}

}  // namespace bowhead::python
