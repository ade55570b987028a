// SPDX-License-Identifier: Apache-2.0
// Memory of the pool in Python: the buffer protocol and DLPack of Lease and Reservation.
#pragma once

#include <memory>

#include "python/src/arguments.h"
#include "python/src/pool.h"

namespace bowhead::python {

/// Owner has data(), which raises if there is no memory, size_bytes(), add_view() and drop_view(),
/// and kReadOnly.
template <class Owner>
class Memory {
 public:
  static PyType_Slot slots[];

  /// A tensor of bytes over the memory, which is a view like any other.
  static nb::object tensor(nb::handle self) {
    auto view = std::make_unique<Py_buffer>();
    const int flags = Owner::kReadOnly ? PyBUF_SIMPLE : PyBUF_WRITABLE;
    if (PyObject_GetBuffer(self.ptr(), view.get(), flags) != 0) throw nb::python_error();
    void* const data = view->buf;
    const auto size = static_cast<size_t>(view->len);
    const nb::capsule owner(view.release(), [](void* pointer) noexcept {
      const std::unique_ptr<Py_buffer> held(static_cast<Py_buffer*>(pointer));
      PyBuffer_Release(held.get());
    });
    using Tensor = std::conditional_t<Owner::kReadOnly,
                                      nb::ndarray<nb::array_api, nb::ro, uint8_t, nb::ndim<1>>,
                                      nb::ndarray<nb::array_api, uint8_t, nb::ndim<1>>>;
    return nb::cast(Tensor(data, {size}, owner));
  }

  /// DLPack, for the class of Owner.
  static void bind(nb::class_<Owner>& type) {
    type.def("__len__", &Owner::size_bytes)
        .def("__dlpack__",
             [](nb::handle self, const nb::kwargs& arguments) {
               return tensor(self).attr("__dlpack__")(**arguments);
             })
        .def("__dlpack_device__", [](const Owner&) { return nb::make_tuple(1, 0); });  // the CPU
  }

 private:
  /// Slots have C's calling convention: an exception becomes the Python error.
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    try {
      if (!nb::inst_ready(self)) raise_error(BH_CLOSED, "the object was not made by a pool");
      Owner& owner = *nb::inst_ptr<Owner>(self);
      void* const data = const_cast<void*>(static_cast<const void*>(owner.data()));
      const auto size = static_cast<Py_ssize_t>(owner.size_bytes());
      if (PyBuffer_FillInfo(view, self, data, size, Owner::kReadOnly, flags) != 0) return -1;
      owner.add_view();
      return 0;
    } catch (nb::python_error& error) {
      error.restore();
    }
    view->obj = nullptr;
    return -1;
  }

  static void release_buffer(PyObject* self, Py_buffer*) { nb::inst_ptr<Owner>(self)->drop_view(); }
};

template <class Owner>
PyType_Slot Memory<Owner>::slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
    {0, nullptr},
};

}  // namespace bowhead::python
