// SPDX-License-Identifier: Apache-2.0
// The number formats of keys, values, scales and answers: one enumeration for all of Bowhead.
#pragma once

#include <bowhead/format/tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace bowhead {

enum class NumberFormat : uint8_t {
  BF16 = BH_NUMBER_BF16,
  FP16 = BH_NUMBER_FP16,
  FP8_E4M3 = BH_NUMBER_FP8_E4M3,
  FP8_E5M2 = BH_NUMBER_FP8_E5M2,
  INT8 = BH_NUMBER_INT8,
  BYTES = BH_NUMBER_BYTES,
  FP32 = BH_NUMBER_FP32
};

/// "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes", "fp32"; "unknown".
const char* number_name(NumberFormat format);
std::optional<NumberFormat> number_named(std::string_view name);

/// Bytes of one number; 1 for BYTES and for formats that do not exist.
constexpr uint32_t element_bytes(NumberFormat format) {
  switch (format) {
    case NumberFormat::BF16:
    case NumberFormat::FP16:
      return 2;
    case NumberFormat::FP32:
      return 4;
    default:
      return 1;
  }
}

}  // namespace bowhead
