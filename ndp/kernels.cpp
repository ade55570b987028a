// SPDX-License-Identifier: Apache-2.0
#include "ndp/kernels.h"

#include "base/cpu.h"

namespace bowhead::ndp {
namespace {

struct Sets {
  const Kernels* set[3];
  size_t count = 0;
};

Sets sets_here() {
  Sets sets;
  sets.set[sets.count++] = &kKernelsScalar;
#if defined(__aarch64__)
  sets.set[sets.count++] = &kKernelsNeon;
#else
  const CpuFeatures& cpu = cpu_features();
  if (cpu.isa >= IsaLevel::AVX2) sets.set[sets.count++] = &kKernelsAvx2;
  if (cpu.dot_products) sets.set[sets.count++] = &kKernelsAvx512;
#endif
  return sets;
}

}  // namespace

std::span<const Kernels* const> kernels_here() {
  static const Sets sets = sets_here();
  return {sets.set, sets.count};
}

const Kernels& kernels() { return *kernels_here().back(); }

}  // namespace bowhead::ndp
