// SPDX-License-Identifier: Apache-2.0
// What this CPU can do, found once, by generations of instruction sets rather than single bits.
#pragma once

#include <string>

namespace bowhead {

/// Generations in order: each includes what stands before it.
enum class IsaLevel { SCALAR, AVX2, AVX512 };  // AVX512: F, BW, DQ, VL

struct CpuFeatures {
  IsaLevel isa = IsaLevel::SCALAR;  ///< BOWHEAD_ISA=scalar|avx2|avx512 lowers it (for tests)
  bool clwb = false;
  bool clflushopt = false;
  bool clflush = false;
  std::string model;  ///< as the system names it, for reports
};

/// Thread-safe; the environment is read at the first call.
const CpuFeatures& cpu_features();

}  // namespace bowhead
