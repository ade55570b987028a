// SPDX-License-Identifier: Apache-2.0
#include "python/src/types.h"

#include <array>

#include "python/src/arguments.h"

namespace bowhead::python {
namespace {

constexpr size_t kStatusCount = [] {
  size_t count = 0;
#define COUNT(number, name, text) ++count;
  BH_STATUS_LIST(COUNT)
#undef COUNT
  return count;
}();

// References that the module keeps until the process ends.
PyObject* types_module;
PyObject* error_type;
PyObject* get_result_type;
PyObject* completion_type;
std::array<PyObject*, kStatusCount> statuses;
std::array<PyObject*, BH_JOB_EXISTS + 1> operations;
newfunc new_tuple;

PyObject* attribute(const char* name) {
  PyObject* found = PyObject_GetAttrString(types_module, name);
  if (found == nullptr) throw nb::python_error();
  return found;
}

/// An instance of a NamedTuple, without its constructor, which is slower than a lookup in a pool.
nb::object named_tuple(PyObject* type, const nb::object& items) {
  const nb::object arguments = nb::steal(PyTuple_Pack(1, items.ptr()));
  if (!arguments.is_valid()) throw nb::python_error();
  nb::object made =
      nb::steal(new_tuple(reinterpret_cast<PyTypeObject*>(type), arguments.ptr(), nullptr));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

#define LAYOUT_FIELDS(X)                                                                \
  X(number_format)                                                                      \
  X(order)                                                                              \
  X(parts)                                                                              \
  X(scales) X(scale_format) X(scale_place) X(rotary) X(layers) X(heads) X(key_channels) \
      X(value_channels) X(block_tokens) X(rotary_first) X(rotary_channels)              \
          X(rotary_base_thousandths) X(first_layer) X(model_layers) X(first_head) X(model_heads)

}  // namespace

void import_types() {
  types_module = nb::module_::import_("bowhead_kv._types").release().ptr();
  error_type = attribute("Error");
  get_result_type = attribute("GetResult");
  completion_type = attribute("Completion");
  const nb::object status_type = nb::steal(attribute("Status"));
  for (size_t i = 0; i < kStatusCount; ++i) statuses[i] = status_type(i).release().ptr();
  constexpr std::array names = {"", "put", "get", "remove", "exists"};
  for (size_t i = 0; i < names.size(); ++i) operations[i] = PyUnicode_InternFromString(names[i]);
  new_tuple = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
}

void raise_error(bh_status status, const char* text) {
  const nb::object error = nb::handle(error_type)(static_cast<int>(status), text);
  PyErr_SetObject(error_type, error.ptr());
  throw nb::python_error();
}

PyObject* status_object(bh_status status) { return statuses.at(status); }

nb::object bool_list(const uint8_t* values, size_t count) {
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i)
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), PyBool_FromLong(values[i]));
  return list;
}

nb::object get_result(bh_status status, uint64_t length_bytes) {
  const nb::object length = nb::steal(PyLong_FromUnsignedLongLong(length_bytes));
  if (!length.is_valid()) throw nb::python_error();
  const nb::object items = nb::steal(PyTuple_Pack(2, status_object(status), length.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  return named_tuple(get_result_type, items);
}

nb::object completion(const bh_completion& from, nb::object item_statuses, nb::object lengths,
                      nb::object present) {
  const nb::object job = nb::steal(PyLong_FromUnsignedLongLong(from.job));
  const nb::object failed = nb::steal(PyLong_FromSize_t(from.failed));
  if (!job.is_valid() || !failed.is_valid()) throw nb::python_error();
  const nb::object items = nb::steal(
      PyTuple_Pack(7, job.ptr(), operations.at(from.operation), status_object(from.status),
                   failed.ptr(), item_statuses.ptr(), lengths.ptr(), present.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  return named_tuple(completion_type, items);
}

nb::object make(const char* type, const nb::dict& fields) {
  return nb::steal(attribute(type))(**fields);
}

nb::object layout_object(const bh_kv_layout& layout) {
  nb::dict fields;
#define SET(name) fields[#name] = layout.name;
  LAYOUT_FIELDS(SET)
#undef SET
  return make("Layout", fields);
}

bh_kv_layout layout_struct(nb::handle layout) {
  const nb::object type = nb::steal(attribute("Layout"));
  if (!nb::isinstance(layout, type)) {
    PyErr_Format(PyExc_TypeError, "layout is a %s; pass a bowhead_kv.Layout",
                 nb::type_name(layout.type()).c_str());
    throw nb::python_error();
  }
  bh_kv_layout made = {};
#define GET(name) made.name = number<decltype(made.name)>("Layout." #name, layout.attr(#name));
  LAYOUT_FIELDS(GET)
#undef GET
  return made;
}

}  // namespace bowhead::python
