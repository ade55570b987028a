// SPDX-License-Identifier: Apache-2.0
// In its own file: if gcc sees both ends, it reports free() as a mismatch.
#include "tests/pool/allocations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

thread_local uint64_t allocations_left = UINT64_MAX;

namespace {
void count() {
  if (allocations_left == 0) throw std::bad_alloc();
  --allocations_left;
}
}  // namespace

void* operator new(size_t size) {
  count();
  if (void* memory = std::malloc(std::max<size_t>(size, 1))) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t align) {
  count();
  const auto unit = static_cast<size_t>(align);
  if (void* memory = std::aligned_alloc(unit, (size + unit) / unit * unit)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
