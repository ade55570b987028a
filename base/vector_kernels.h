// SPDX-License-Identifier: Apache-2.0
// The functions of base/ that exist once per instruction set, and the choice among them.
//
// Each set is compiled in its own file from base/vector_kernels.inc. In those files only the table
// has external linkage, so that no instruction of a set leaks into code that runs on every CPU (as
// an inline function of a shared header would).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checksum.h"
#include "base/cpu.h"

namespace bowhead {

struct VectorKernels {
  uint64_t (*hash64)(const void* data, size_t size, uint64_t seed);
  Hash128 (*hash128)(const void* data, size_t size, uint64_t seed);

  /// Copies with vector loads and ordinary / non-temporal stores; any alignment and size. Bytes may
  /// change meanwhile. No sfence.
  void (*copy)(void* destination, const void* source, size_t size);
  void (*copy_streaming)(void* destination, const void* source, size_t size);

  /// Copies `count` pieces of kChecksumPieceBytes and sums the bytes that were stored. No sfence.
  void (*copy_pieces)(void* destination, const void* source, size_t count, uint64_t* sums);
  void (*copy_pieces_streaming)(void* destination, const void* source, size_t count,
                                uint64_t* sums);
};

/// The kernel set of a level that this CPU has (asserted).
const VectorKernels& vector_kernels(IsaLevel level);

/// The kernel set of cpu_features().isa.
const VectorKernels& vector_kernels();

extern const VectorKernels kVectorKernelsScalar;
extern const VectorKernels kVectorKernelsAvx2;
extern const VectorKernels kVectorKernelsAvx512;

}  // namespace bowhead
