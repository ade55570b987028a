// SPDX-License-Identifier: Apache-2.0
#include "python/src/arguments.h"

namespace bowhead::python {
namespace {

bool is_sequence(nb::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
}

}  // namespace

std::string type_of(nb::handle object) { return nb::str(object.type().attr("__name__")).c_str(); }

void raise_argument(PyObject* type, const char* name, size_t item, const std::string& problem) {
  std::string text = name;
  if (item != kAlone) text += "[" + std::to_string(item) + "]";
  text += " " + problem;
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

const char* c_string(const char* name, const std::string& text) {
  if (text.find('\0') != std::string::npos)
    raise_argument(PyExc_ValueError, name, kAlone, "has a zero byte; remove it");
  return text.c_str();
}

uint64_t number_up_to(uint64_t max, const char* name, nb::handle value) {
  const nb::object integer = nb::steal(PyNumber_Index(value.ptr()));
  if (!integer.is_valid()) {
    PyErr_Clear();
    raise_argument(PyExc_TypeError, name, kAlone, "is a " + type_of(value) + "; pass an int");
  }
  const unsigned long long result = PyLong_AsUnsignedLongLong(integer.ptr());
  const bool outside = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (outside || result > max)
    raise_argument(
        PyExc_ValueError, name, kAlone,
        std::string("is ") + nb::str(integer).c_str() + "; pass 0 to " + std::to_string(max));
  return result;
}

Items::Items(nb::handle items, const char* name) {
  if (is_sequence(items)) {
    items_ = nb::borrow(items);
  } else {
    const bool one = PyUnicode_Check(items.ptr()) || PyObject_CheckBuffer(items.ptr());
    const nb::object iterator = one ? nb::object() : nb::steal(PyObject_GetIter(items.ptr()));
    if (!iterator.is_valid()) {
      PyErr_Clear();
      raise_argument(PyExc_TypeError, name, kAlone, "is a " + type_of(items) + "; pass a list");
    }
    items_ = nb::steal(PySequence_List(iterator.ptr()));
    if (!items_.is_valid()) throw nb::python_error();  // of a generator
  }
  is_list_ = PyList_Check(items_.ptr());
  size_ = static_cast<size_t>(PyObject_Size(items_.ptr()));
}

nb::object Items::operator[](size_t i) const {
  const auto at = static_cast<Py_ssize_t>(i);
  PyObject* item = is_list_ ? PyList_GetItem(items_.ptr(), at) : PyTuple_GetItem(items_.ptr(), at);
  if (item == nullptr) throw nb::python_error();  // the list was shortened meanwhile
  return nb::borrow(item);
}

Keys::Keys(nb::handle keys, const char* name) {
  const Items items(keys, name);
  keys_.reserve(items.size());
  bytes_.reserve(items.size() * 40);
  for (size_t i = 0; i < items.size(); ++i) append(items[i], name, i);
  point();
}

Keys::Keys(nb::handle key) {
  append(key, "key", kAlone);
  point();
}

void Keys::append(nb::handle key, const char* name, size_t item) {
  if (PyBytes_Check(key.ptr())) {
    char* data;
    Py_ssize_t size;
    PyBytes_AsStringAndSize(key.ptr(), &data, &size);
    bytes_.insert(bytes_.end(), data, data + size);
    keys_.push_back({nullptr, static_cast<size_t>(size)});
    return;
  }
  Py_buffer view;
  if (PyUnicode_Check(key.ptr()))
    raise_argument(PyExc_TypeError, name, item, "is a str; pass bytes, such as key.encode()");
  if (PyObject_GetBuffer(key.ptr(), &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    raise_argument(PyExc_TypeError, name, item,
                   "is a " + type_of(key) + "; pass bytes or a C-contiguous buffer");
  }
  const char* data = static_cast<const char*>(view.buf);
  bytes_.insert(bytes_.end(), data, data + view.len);
  keys_.push_back({nullptr, static_cast<size_t>(view.len)});
  PyBuffer_Release(&view);
}

/// Sets the addresses, once the bytes have their place.
void Keys::point() {
  const char* next = bytes_.data();
  for (bh_key& key : keys_) {
    key.data = next;
    next += key.size_bytes;
  }
}

template <class Part>
Buffers<Part>::~Buffers() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

template <class Part>
const Part& Buffers<Part>::only_part(size_t i, size_t position) const {
  if (part_count(i) != 1)
    raise_argument(PyExc_TypeError, name_, position, "is a list; pass one buffer");
  return parts(i)[0];
}

template <class Part>
void Buffers<Part>::append(nb::handle item, size_t position) {
  if (is_sequence(item)) {
    const Items buffers(item, name_);
    for (size_t i = 0; i < buffers.size(); ++i) append_part(buffers[i], position);
  } else {
    append_part(item, position);
  }
  ends_.push_back(parts_.size());
}

template <class Part>
void Buffers<Part>::append_part(nb::handle buffer, size_t position) {
  Py_buffer view;
  const bool has_buffer = PyObject_CheckBuffer(buffer.ptr());
  if (has_buffer &&
      PyObject_GetBuffer(buffer.ptr(), &view, kWritten ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) {
    views_.push_front(view);
    parts_.push_back({view.buf, static_cast<size_t>(view.len)});
    return;
  }
  PyErr_Clear();
  if (append_tensor(buffer, position)) return;
  PyErr_Clear();
  const std::string type = type_of(buffer);
  if (has_buffer)
    raise_argument(
        PyExc_BufferError, name_, position,
        "is a " + type + (kWritten ? " that is read-only or" : " that is") + " not C-contiguous");
  raise_argument(PyExc_TypeError, name_, position,
                 "is a " + type + "; pass a buffer, a C-contiguous CPU tensor, or a list of them");
}

nb::object export_tensor(nb::handle tensor, const char* name, size_t position) {
  if (!nb::hasattr(tensor, "__dlpack__")) return nb::borrow(tensor);
  const nb::object method = tensor.attr("__dlpack__");
  try {
    try {
      return method();
    } catch (nb::python_error& error) {
      // Read-only memory has to say so, which needs a version.
      if (!error.matches(PyExc_BufferError)) throw;
      return method(nb::arg("max_version") = nb::make_tuple(1, 0));
    }
  } catch (nb::python_error& error) {
    const std::string reason = nb::str(error.value()).c_str();
    raise_argument(PyExc_BufferError, name, position,
                   "is a " + type_of(tensor) + " that cannot be exported: " + reason);
  }
}

template <class Part>
bool Buffers<Part>::append_tensor(nb::handle tensor, size_t position) {
  const nb::object exported = export_tensor(tensor, name_, position);
  Tensor imported;
  if (!nb::try_cast(exported, imported, false)) return false;
  parts_.push_back(
      {const_cast<void*>(static_cast<const void*>(imported.data())), imported.nbytes()});
  tensors_.push_back(std::move(imported));
  return true;
}

template class Buffers<bh_iovec>;
template class Buffers<bh_const_iovec>;

}  // namespace bowhead::python
