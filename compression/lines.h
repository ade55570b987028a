// SPDX-License-Identifier: Apache-2.0
// Arrays that begin at a cache line: a vector load across two lines costs two loads, and cannot
// take recent stores from the store buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace bowhead::compression {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlign{64};

  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlign)); }
  void deallocate(T* p, size_t /*n*/) { ::operator delete(p, kAlign); }
  bool operator==(const LineAllocator&) const { return true; }
};

template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

/// The same without initial values, for buffers that are written before they are read.
template <class T>
struct LineDeleter {
  void operator()(T* p) const { LineAllocator<T>().deallocate(p, 0); }
};
template <class T>
using UnsetLines = std::unique_ptr<T[], LineDeleter<T>>;
template <class T>
UnsetLines<T> unset_lines(size_t n) {
  static_assert(std::is_trivial_v<T>);
  return UnsetLines<T>(LineAllocator<T>().allocate(n));
}

}  // namespace bowhead::compression
