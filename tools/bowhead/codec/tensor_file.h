// SPDX-License-Identifier: Apache-2.0
// Tensors in files: raw numbers, .npy, .safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "compression/number.h"

namespace bowhead::cli {

struct Tensor {
  std::string name;  ///< the file's name, with the tensor's if it has several
  NumberFormat number = NumberFormat::BYTES;
  std::vector<uint64_t> shape;  ///< channels last
  std::vector<uint8_t> values;
};

/// Describes raw files; .npy and .safetensors files describe themselves.
struct RawDescription {
  std::optional<NumberFormat> number;
  std::vector<uint64_t> shape;
};

/// All tensors of a file that have values to compress. `skipped` gets a sentence about each other
/// one: of an unsupported number format (float32, ...), a scalar, or empty. INVALID_ARGUMENT, with
/// the file and the reason; SYSTEM.
Result<std::vector<Tensor>> read_tensors(const std::string& path, const RawDescription& raw,
                                         std::vector<std::string>& skipped);

}  // namespace bowhead::cli
