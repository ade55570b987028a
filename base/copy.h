// SPDX-License-Identifier: Apache-2.0
// Plain copies by each method of the CPU: the reference for a copy that also computes a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bowhead {

enum class CopyKind : uint8_t {
  MEMCPY,
  VECTOR,       ///< a loop of vector loads and stores of cpu_features().isa
  NONTEMPORAL,  ///< as VECTOR, with stores past the caches
};

/// All kinds, and their names "memcpy", "vector", "nontemporal".
std::span<const CopyKind> copy_kinds();
const char* copy_kind_name(CopyKind kind);

/// Copies; the bytes are globally visible when it returns. The ranges must not overlap.
void copy_with(CopyKind kind, void* destination, const void* source, size_t size);

}  // namespace bowhead
