// SPDX-License-Identifier: Apache-2.0
#include "base/copy.h"

#include <cstring>

#include "base/assert.h"
#include "base/coherence.h"
#include "base/vector_kernels.h"

namespace bowhead {
namespace {

constexpr CopyKind kKinds[] = {CopyKind::MEMCPY, CopyKind::VECTOR, CopyKind::NONTEMPORAL};

}  // namespace

std::span<const CopyKind> copy_kinds() { return kKinds; }

const char* copy_kind_name(CopyKind kind) {
  switch (kind) {
    case CopyKind::MEMCPY:
      return "memcpy";
    case CopyKind::VECTOR:
      return "vector";
    case CopyKind::NONTEMPORAL:
      return "nontemporal";
  }
  BOWHEAD_ASSERT(false && "a copy kind without a name");
}

void copy_with(CopyKind kind, void* destination, const void* source, size_t size) {
  switch (kind) {
    case CopyKind::MEMCPY:
      std::memcpy(destination, source, size);
      return;
    case CopyKind::VECTOR:
      vector_kernels().copy(destination, source, size);
      return;
    case CopyKind::NONTEMPORAL:
      vector_kernels().copy_streaming(destination, source, size);
      streaming_fence();
      return;
  }
}

}  // namespace bowhead
