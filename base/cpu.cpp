// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace bowhead {
namespace {

std::string model_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

#if defined(__x86_64__)

CpuFeatures detect() {
  CpuFeatures features;
  // The builtin also checks that the system saves the registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("popcnt"))
    features.isa = IsaLevel::AVX2;
  if (features.isa == IsaLevel::AVX2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("gfni")) {
    features.isa = IsaLevel::AVX512;
    features.dot_products =
        __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  }
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kClflushBit = 1u << 19;  // has no name in gcc 12's header
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) features.clflush = (edx & kClflushBit) != 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    features.clflushopt = (ebx & bit_CLFLUSHOPT) != 0;
    features.clwb = (ebx & bit_CLWB) != 0;
  }
  return features;
}

#elif defined(__aarch64__)

// Linux lets user code write back (dc cvac) and invalidate (dc civac) lines on every 64-bit Arm
// CPU.
CpuFeatures detect() {
  CpuFeatures features;
  features.clwb = true;
  features.clflushopt = true;
  return features;
}

#else
#error "Bowhead supports x86-64 and 64-bit Arm only"
#endif

void apply_environment(CpuFeatures& features) {
  const char* forced = std::getenv("BOWHEAD_ISA");
  if (forced == nullptr) return;
  const std::string_view name = forced;
  IsaLevel level;
  if (name == "scalar") {
    level = IsaLevel::SCALAR;
  } else if (name == "avx2") {
    level = IsaLevel::AVX2;
  } else if (name == "avx512") {
    level = IsaLevel::AVX512;
  } else {
    std::fprintf(stderr, "bowhead: BOWHEAD_ISA=%s ignored: must be scalar, avx2 or avx512\n",
                 forced);
    return;
  }
  if (level > features.isa) {
    std::fprintf(stderr, "bowhead: BOWHEAD_ISA=%s ignored: this CPU lacks it\n", forced);
    return;
  }
  features.isa = level;
  features.dot_products &= level == IsaLevel::AVX512;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    CpuFeatures found = detect();
    found.model = model_name();
    apply_environment(found);
    return found;
  }();
  return features;
}

}  // namespace bowhead
