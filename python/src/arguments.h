// SPDX-License-Identifier: Apache-2.0
// Keys, values and numbers of Python as arguments of the C ABI. Errors name the argument and the
// item. All of it needs the GIL; what was converted may be used without it.
#pragma once

#include <bowhead/bowhead.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <forward_list>
#include <limits>
#include <memory_resource>
#include <string>
#include <type_traits>
#include <vector>

namespace bowhead::python {

namespace nb = nanobind;

/// The position of an argument that is not an item of a list.
inline constexpr size_t kAlone = std::numeric_limits<size_t>::max();

/// Raises TypeError, ValueError or BufferError about an argument: "keys[3] is ...".
[[noreturn]] void raise_argument(PyObject* type, const char* name, size_t item,
                                 const std::string& problem);

/// The name of an object's type, for errors.
std::string type_of(nb::handle object);

/// An argument that may be None as far as nanobind is concerned: its own error would not name it.
inline auto any(const char* name) { return nb::arg(name).none(); }

/// A text for the C ABI, which a zero byte would cut short.
const char* c_string(const char* name, const std::string& text);

uint64_t number_up_to(uint64_t max, const char* name, nb::handle value);

/// An integer argument, within the range of its type.
template <class T>
T number(const char* name, nb::handle value) {
  return static_cast<T>(number_up_to(std::numeric_limits<T>::max(), name, value));
}

/// The items of a list or a tuple; of any other iterable, a list of them.
class Items {
 public:
  Items(nb::handle items, const char* name);

  size_t size() const { return size_; }
  nb::object operator[](size_t i) const;

 private:
  nb::object items_;
  bool is_list_;
  size_t size_;
};

/// Memory for arguments. Few of them need no allocation; the memory of all is freed together.
template <size_t size_bytes>
class Arena {
 public:
  std::pmr::memory_resource* get() { return &memory_; }

 private:
  std::array<std::byte, size_bytes> first_;
  std::pmr::monotonic_buffer_resource memory_{first_.data(), first_.size()};
};

/// Keys, copied: the caller may change its list and its buffers meanwhile.
class Keys {
 public:
  Keys(nb::handle keys, const char* name);
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  static Keys one(nb::handle key) { return Keys(key); }

  const bh_key* data() const { return keys_.data(); }
  size_t size() const { return keys_.size(); }
  const bh_key& operator[](size_t i) const { return keys_[i]; }

 private:
  explicit Keys(nb::handle key);
  void append(nb::handle key, const char* name, size_t item);
  void point();

  Arena<128> arena_;
  std::pmr::vector<char> bytes_{arena_.get()};
  std::pmr::vector<bh_key> keys_{arena_.get()};
};

/// What a tensor's `__dlpack__` returns; the object itself if it has none. Raises BufferError,
/// which names the argument, if the tensor refuses: its memory is not its values then, as with a
/// lazy negation. nanobind's own conversion goes on to an older function, which ignores that.
nb::object export_tensor(nb::handle tensor, const char* name, size_t position);

/// Buffers of Python objects, held until this is destroyed, as parts of values: bh_const_iovec for
/// memory that is read, bh_iovec for memory that is written. An item is a buffer or a sequence of
/// buffers; a buffer is an object with the buffer protocol or, failing that, DLPack on the CPU.
template <class Part>
class Buffers {
 public:
  explicit Buffers(const char* name) : name_(name) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers();

  void append(nb::handle item, size_t position);

  size_t size() const { return ends_.size(); }
  const Part* parts(size_t i) const { return parts_.data() + (i == 0 ? 0 : ends_[i - 1]); }
  size_t part_count(size_t i) const { return ends_[i] - (i == 0 ? 0 : ends_[i - 1]); }
  /// The part of an item that must be one buffer; `position` is that of the argument, for errors.
  const Part& only_part(size_t i, size_t position) const;

 private:
  static constexpr bool kWritten = std::is_same_v<Part, bh_iovec>;
  using Tensor = std::conditional_t<kWritten, nb::ndarray<nb::c_contig, nb::device::cpu>,
                                    nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;

  void append_part(nb::handle buffer, size_t position);
  bool append_tensor(nb::handle tensor, size_t position);

  const char* name_;
  Arena<192> arena_;
  std::pmr::vector<Part> parts_{arena_.get()};
  std::pmr::vector<size_t> ends_{arena_.get()};            // by item: the end of its parts
  std::pmr::forward_list<Py_buffer> views_{arena_.get()};  // their addresses must not change
  std::vector<Tensor> tensors_;
};

extern template class Buffers<bh_iovec>;
extern template class Buffers<bh_const_iovec>;

}  // namespace bowhead::python
