// SPDX-License-Identifier: Apache-2.0
// The operations compared with the oracle on 64-bit Arm, as a program that neon_check.sh builds and
// runs.
#include <cstdio>

#include "ndp/kernels.h"
#include "tests/ndp/check.h"

using namespace bowhead;

int main() {
  int faults = 0;
  const auto report = [&](const std::string& fault) {
    if (fault.empty()) return;
    std::printf("%s\n", fault.c_str());
    ++faults;
  };
  if (&ndp::kernels() != &ndp::kKernelsNeon) report("Neon is not chosen");
  for (const test::Shape& shape : test::shapes_to_check(1)) report(test::check_all(shape, 1));
  for (const uint32_t channels : {64u, 192u, 1024u}) {
    report(test::check_dots(channels, 1));
    report(test::check_products(channels, 1));
  }
  report(test::check_best(1));
  std::printf("%d faults\n", faults);
  return faults == 0 ? 0 : 1;
}
