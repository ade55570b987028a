// SPDX-License-Identifier: Apache-2.0
#include "base/number_format.h"

#include <iterator>

namespace bowhead {
namespace {

constexpr const char* kNames[] = {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes", "fp32"};

}  // namespace

const char* number_name(NumberFormat format) {
  const size_t at = static_cast<size_t>(format) - 1;
  return at < std::size(kNames) ? kNames[at] : "unknown";
}

std::optional<NumberFormat> number_named(std::string_view name) {
  for (size_t at = 0; at < std::size(kNames); ++at) {
    if (name == kNames[at]) return static_cast<NumberFormat>(at + 1);
  }
  return std::nullopt;
}

}  // namespace bowhead
