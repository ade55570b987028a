// SPDX-License-Identifier: Apache-2.0
// The limits of near-data operations on the calling core: the speed of reading, and the speed of
// multiplying with the instructions that ndp::kernels() use for a number format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compression/number.h"

namespace bowhead::bench {

/// Loads every byte once, from the first to the last, with vectors; `bytes` is a multiple of 1,024.
void read_memory(const void* data, size_t bytes);

struct Multiplication {
  const char* name;
  /// Multiplies and adds at least `count` times, bound only by the speed of the instruction: no
  /// memory, no sum that waits for another. Returns the number of multiply-adds.
  uint64_t (*run)(uint64_t count);
};
const Multiplication& multiplication(NumberFormat keys);

// ---- per instruction set ----

struct LimitKernels {
  uint64_t (*read)(const void* data, size_t bytes);  ///< all words or-ed together
  Multiplication bf16, int16, floats;
};
/// The limits for the instruction set of ndp::kernels().
const LimitKernels& limit_kernels();
extern const LimitKernels kLimitKernelsScalar;  ///< for every CPU of the architecture
extern const LimitKernels kLimitKernelsAvx2;
extern const LimitKernels kLimitKernelsAvx512;

}  // namespace bowhead::bench
