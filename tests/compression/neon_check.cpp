// SPDX-License-Identifier: Apache-2.0
// The checks of planes_test.cpp for Neon, as a program for 64-bit Arm that needs no library
// (neon_check.sh builds and runs it).
#include <cstdio>

#include "tests/compression/planes_check.h"

using bowhead::NumberFormat;
using namespace bowhead::compression;

int main() {
  int faults = 0;
  const auto report = [&](const std::string& fault) {
    if (fault.empty()) return;
    std::printf("%s\n", fault.c_str());
    ++faults;
  };
  for (uint8_t kind = 1; number_of(NumberFormat{kind}) != nullptr; ++kind) {
    report(fault_in_agreement(kPlaneKernelsNeon, NumberFormat{kind}));
    report(fault_in_lies(kPlaneKernelsNeon, NumberFormat{kind}));
    if (number_of(NumberFormat{kind})->is_float())
      report(fault_in_lengths(kPlaneKernelsNeon, NumberFormat{kind}));
  }
  report(fault_in_nibbles(kPlaneKernelsNeon));
  if (&plane_kernels() != &kPlaneKernelsNeon) report("Neon is not chosen");
  std::printf("%d faults\n", faults);
  return faults == 0 ? 0 : 1;
}
