// SPDX-License-Identifier: Apache-2.0
// The features of this CPU, detected once, as generations of instruction sets, not single bits.
#pragma once

#include <string>

namespace bowhead {

/// Generations in order: each includes those before it. AVX2 includes FMA and BMI. AVX512 is the
/// set of x86 servers since Ice Lake and Zen 4, older than any CPU with CXL: F, BW, CD, DQ, VL,
/// VBMI, VBMI2, GFNI.
enum class IsaLevel { SCALAR, AVX2, AVX512 };

struct CpuFeatures {
  IsaLevel isa = IsaLevel::SCALAR;  ///< BOWHEAD_ISA=scalar|avx2|avx512 lowers it (for tests)
  bool dot_products = false;        ///< AVX512 with BF16 and VNNI (Sapphire Rapids, Zen 4)
  bool clwb = false;
  bool clflushopt = false;
  bool clflush = false;
  std::string model;  ///< as named by the system, for reports
};

/// Thread-safe; the environment is read at the first call.
const CpuFeatures& cpu_features();

}  // namespace bowhead
