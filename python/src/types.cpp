// SPDX-License-Identifier: Apache-2.0
#include "python/src/types.h"

#include <array>

#include "python/src/arguments.h"
#include "python/src/members.h"

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
PyObject* event_type;
std::array<PyObject*, kStatusCount> statuses;
std::array<PyObject*, BH_JOB_EXISTS + 1> operations;
std::array<PyObject*, BH_EVENT_DAMAGED + 1> event_kinds;
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

#define LAYOUT(member) BOWHEAD_MEMBER(bh_kv_layout, member)
const Member<bh_kv_layout> layout_members[] = {
    LAYOUT(number_format), LAYOUT(order),           LAYOUT(parts),
    LAYOUT(scales),        LAYOUT(scale_format),    LAYOUT(scale_place),
    LAYOUT(rotary),        LAYOUT(layers),          LAYOUT(heads),
    LAYOUT(key_channels),  LAYOUT(value_channels),  LAYOUT(block_tokens),
    LAYOUT(rotary_first),  LAYOUT(rotary_channels), LAYOUT(rotary_base_thousandths),
    LAYOUT(first_layer),   LAYOUT(model_layers),    LAYOUT(first_head),
    LAYOUT(model_heads),
};
#undef LAYOUT

#define ATTRIBUTE(member) BOWHEAD_MEMBER(bh_attributes, member)
const Member<bh_attributes> attribute_members[] = {
    ATTRIBUTE(priority),     ATTRIBUTE(pins),           ATTRIBUTE(forks),
    ATTRIBUTE(parity_group), ATTRIBUTE(expires_unix_s), ATTRIBUTE(next_use_unix_s),
    ATTRIBUTE(group),
};
#undef ATTRIBUTE

/// The integer members of a dataclass as a C struct.
template <class Struct, size_t count>
Struct struct_of(const char* name, const char* type_name, const Member<Struct> (&members)[count],
                 nb::handle object) {
  const nb::object type = nb::steal(attribute(type_name));
  if (!nb::isinstance(object, type))
    raise_argument(PyExc_TypeError, name, kAlone,
                   "is a " + type_of(object) + "; pass a bowhead_kv." + type_name);
  Struct made = {};
  for (const auto& member : members) member.set(made, object.attr(member.name));
  return made;
}

}  // namespace

void import_types() {
  types_module = nb::module_::import_("bowhead_kv._types").release().ptr();
  error_type = attribute("Error");
  get_result_type = attribute("GetResult");
  completion_type = attribute("Completion");
  event_type = attribute("Event");
  const nb::object status_type = nb::steal(attribute("Status"));
  for (size_t i = 0; i < kStatusCount; ++i) statuses[i] = status_type(i).release().ptr();
  constexpr std::array names = {"", "put", "get", "remove", "exists"};
  for (size_t i = 0; i < names.size(); ++i) operations[i] = PyUnicode_InternFromString(names[i]);
  const nb::object kind_type = nb::steal(attribute("EventKind"));
  for (uint32_t i = BH_EVENT_STORED; i <= BH_EVENT_DAMAGED; ++i)
    event_kinds[i] = kind_type(i).release().ptr();
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

nb::object codec_object(uint32_t codec) { return nb::steal(attribute("Codec"))(codec); }

nb::object layout_object(const bh_kv_layout& layout) {
  nb::dict fields;
  add_members(layout_members, layout, fields);
  return make("Layout", fields);
}

bh_kv_layout layout_struct(nb::handle layout) {
  return struct_of("layout", "Layout", layout_members, layout);
}

nb::object attributes_object(const bh_attributes& attributes) {
  nb::dict fields;
  add_members(attribute_members, attributes, fields);
  return make("Attributes", fields);
}

bh_attributes attributes_struct(nb::handle attributes) {
  bh_attributes made = struct_of("attributes", "Attributes", attribute_members, attributes);
  made.struct_bytes = sizeof made;
  return made;
}

nb::object event_object(uint32_t kind, bh_namespace_id ns, const nb::bytes& key,
                        const nb::bytes& user_metadata, uint64_t length_bytes, uint64_t stamp) {
  const nb::object items =
      nb::make_tuple(nb::handle(event_kinds.at(kind)), ns, key, user_metadata, length_bytes, stamp);
  return named_tuple(event_type, items);
}

}  // namespace bowhead::python
