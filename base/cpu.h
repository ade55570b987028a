// SPDX-License-Identifier: Apache-2.0
// What this CPU can do, found once, by generations of instruction sets rather than single bits.
#pragma once

#include <string>

namespace bowhead {

/// Generations in order: each includes what stands before it. AVX2 has FMA with it. AVX512 is what
/// x86 servers have had since Ice Lake and Zen 4, older than any that speaks CXL: F, BW, CD, DQ,
/// VL, VBMI, VBMI2, GFNI.
enum class IsaLevel { SCALAR, AVX2, AVX512 };

struct CpuFeatures {
  IsaLevel isa = IsaLevel::SCALAR;  ///< BOWHEAD_ISA=scalar|avx2|avx512 lowers it (for tests)
  bool dot_products = false;        ///< AVX512, and of it BF16 and VNNI (Sapphire Rapids, Zen 4)
  bool clwb = false;
  bool clflushopt = false;
  bool clflush = false;
  std::string model;  ///< as the system names it, for reports
};

/// Thread-safe; the environment is read at the first call.
const CpuFeatures& cpu_features();

}  // namespace bowhead
