// SPDX-License-Identifier: Apache-2.0
// Whether a set of kernels does what the definition does, on tensors of all contents. Each function
// returns what is wrong, or nothing. Needs no library: neon_check uses it as well.
#pragma once

#include <string>

#include "compression/planes.h"
#include "tests/support/tensors.h"

namespace bowhead::compression {

/// Planes, remainder and exceptions of the same values, and the values of them, by all planes and
/// by some.
std::string fault_in_agreement(const PlaneKernels& kernels, NumberFormat kind);

/// Of floats: a remainder, or exceptions, of another length than the planes say are refused.
std::string fault_in_lengths(const PlaneKernels& kernels, NumberFormat kind);

/// Streams of any bytes and lengths, which nobody split.
std::string fault_in_lies(const PlaneKernels& kernels, NumberFormat kind);

std::string fault_in_nibbles(const PlaneKernels& kernels);

}  // namespace bowhead::compression
