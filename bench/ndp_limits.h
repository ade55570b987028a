// SPDX-License-Identifier: Apache-2.0
// What bounds operations next to the memory, on the core that calls: how fast it reads, and how
// fast it multiplies with the instructions that ndp::kernels() use for keys of a kind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compression/number.h"

namespace bowhead::bench {

/// Loads every byte once, from the first to the last, with vectors; `bytes` is a multiple of 1,024.
void read_memory(const void* data, size_t bytes);

struct Multiplication {
  const char* name;
  /// Multiplies and adds at least `count` times, which nothing but that instruction's speed bounds:
  /// no memory, no sum that waits for another. Returns how many times.
  uint64_t (*run)(uint64_t count);
};
const Multiplication& multiplication(NumberFormat keys);

// ---- per instruction set ----

struct LimitKernels {
  uint64_t (*read)(const void* data, size_t bytes);  ///< all words or-ed together
  Multiplication bf16, int16, floats;
};
/// Of the set that ndp::kernels() are of.
const LimitKernels& limit_kernels();
extern const LimitKernels kLimitKernelsScalar;  ///< what every CPU of the architecture has
extern const LimitKernels kLimitKernelsAvx2;
extern const LimitKernels kLimitKernelsAvx512;

}  // namespace bowhead::bench
