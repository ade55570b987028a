// SPDX-License-Identifier: Apache-2.0
// The classes of bowhead_kv._types: statuses, errors, and the descriptions made from C structs.
#pragma once

#include <bowhead/bowhead.h>
#include <nanobind/nanobind.h>

#include <cstdint>

namespace bowhead::python {

namespace nb = nanobind;

/// Imports the classes; called once, when the module is loaded.
void import_types();

/// Raises bowhead_kv.Error.
[[noreturn]] void raise_error(bh_status status, const char* text);

/// Raises bowhead_kv.Error for the last call of this thread, unless it succeeded. The call comes
/// first after the failed one: any other would replace its text.
inline void check(bh_status status) {
  if (status != BH_OK) raise_error(status, bh_last_error());
}

/// The member of bowhead_kv.Status, borrowed.
PyObject* status_object(bh_status status);

/// A list of members of bowhead_kv.Status.
template <class Get>
nb::object status_list(size_t count, Get&& get) {
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i) {
    PyObject* status = status_object(get(i));
    Py_INCREF(status);
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), status);
  }
  return list;
}

/// A list of bool.
nb::object bool_list(const uint8_t* values, size_t count);

/// A bowhead_kv.GetResult.
nb::object get_result(bh_status status, uint64_t length_bytes);

/// A bowhead_kv.Completion; takes the lists.
nb::object completion(const bh_completion& from, nb::object statuses, nb::object lengths,
                      nb::object present);

/// An instance of a dataclass of bowhead_kv._types.
nb::object make(const char* type, const nb::dict& fields);

/// A bowhead_kv.Event.
nb::object event_object(uint32_t kind, bh_namespace_id ns, const nb::bytes& key,
                        const nb::bytes& user_metadata, uint64_t length_bytes, uint64_t stamp);

/// A bowhead_kv.Attributes, and back.
nb::object attributes_object(const bh_attributes& attributes);
bh_attributes attributes_struct(nb::handle attributes);

/// A bowhead_kv.Codec.
nb::object codec_object(uint32_t codec);

/// A bowhead_kv.Layout, and back.
nb::object layout_object(const bh_kv_layout& layout);
bh_kv_layout layout_struct(nb::handle layout);

}  // namespace bowhead::python
