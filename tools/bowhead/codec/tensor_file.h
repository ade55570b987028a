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
  std::string name;  ///< of the file, and of the tensor if the file has several
  NumberFormat number = NumberFormat::BYTES;
  std::vector<uint64_t> shape;  ///< the channels last
  std::vector<uint8_t> values;
};

/// What raw files are; .npy and .safetensors say it themselves.
struct RawDescription {
  std::optional<NumberFormat> number;
  std::vector<uint64_t> shape;
};

/// All tensors of a file; those of a kind that is no number of ours (float32, ...) are named in
/// `skipped`. INVALID_ARGUMENT, with what is wrong with which file; SYSTEM.
Result<std::vector<Tensor>> read_tensors(const std::string& path, const RawDescription& raw,
                                         std::vector<std::string>& skipped);

}  // namespace bowhead::cli
