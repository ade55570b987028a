// SPDX-License-Identifier: Apache-2.0
// Compares a kernel set with the definition, on tensors of all contents. Each function returns the
// fault, or an empty string. Needs no library: neon_check uses it as well.
#pragma once

#include <string>

#include "compression/planes.h"
#include "tests/support/tensors.h"

namespace bowhead::compression {

/// The planes, remainder and exceptions of a tensor, and the values decoded from all planes and
/// from some of them.
std::string fault_in_agreement(const PlaneKernels& kernels, NumberFormat kind);

/// For floats: a remainder, or exceptions, of a length that does not match the planes is refused.
std::string fault_in_lengths(const PlaneKernels& kernels, NumberFormat kind);

/// Streams of random bytes and lengths that no encoder made.
std::string fault_in_lies(const PlaneKernels& kernels, NumberFormat kind);

std::string fault_in_nibbles(const PlaneKernels& kernels);

}  // namespace bowhead::compression
