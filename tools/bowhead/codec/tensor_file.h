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
  compression::NumberKind number = compression::NumberKind::BYTES;
  std::vector<uint64_t> shape;  ///< the channels last
  std::vector<uint8_t> values;
};

/// What raw files are; .npy and .safetensors say it themselves.
struct RawDescription {
  std::optional<compression::NumberKind> number;
  std::vector<uint64_t> shape;
};

/// All tensors of a file; those of a kind that is no number of ours (float32, ...) are named in
/// `skipped`. INVALID_ARGUMENT, with what is wrong with which file; SYSTEM.
Result<std::vector<Tensor>> read_tensors(const std::string& path, const RawDescription& raw,
                                         std::vector<std::string>& skipped);

/// "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes".
std::optional<compression::NumberKind> number_kind_of(const std::string& name);
const char* number_kind_name(compression::NumberKind kind);

}  // namespace bowhead::cli
