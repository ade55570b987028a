// SPDX-License-Identifier: Apache-2.0
// Measures the compression of a tensor: bytes, speed, and the error of its first planes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "compression/frame.h"
#include "tools/bowhead/codec/tensor_file.h"

namespace bowhead::cli {

struct CodecOptions {
  uint64_t block_bytes = 64 << 10;
  double rope_base = 0;  ///< 0: no rotary embedding
  bool rope_interleaved = false;
  uint64_t rotary_dim = 0;  ///< 0: all channels
  uint32_t rounds = 5;
  bool quick = false;  ///< few, short rounds: speeds mean nothing
};

/// Median, minimum and maximum of the rounds, in GB/s of uncompressed bytes.
struct Speed {
  double median = 0, least = 0, most = 0;
};

struct ProfileReport {
  compression::Profile profile;
  uint64_t values_bytes = 0, frames_bytes = 0;  ///< of all blocks
  std::array<uint64_t, compression::kMaxPlanes + 3> stream_bytes{};
  uint32_t planes = 0;
  Speed encode, decode, copy;

  double ratio() const {
    return static_cast<double>(values_bytes) / static_cast<double>(frames_bytes);
  }
};

/// The result of reading only the first planes.
struct PrecisionReport {
  uint32_t planes = 0;
  double bits_per_value = 0;  ///< bits read, all headers included
  double error = 0;           ///< root mean square, relative to that of the values
  Speed decode;
};

struct TensorReport {
  uint64_t blocks = 0;
  compression::Shape block;
  std::vector<ProfileReport> profiles;
  std::vector<PrecisionReport> precisions;  ///< of the last profile; none for bytes
};

/// Divides the tensor into blocks of whole tokens, compresses each on its own, and verifies it.
/// Works on so many copies that caches do not help. DAMAGED if a block was not restored exactly
/// (our bug); INVALID_ARGUMENT.
Result<TensorReport> measure_tensor(const Tensor& tensor, const CodecOptions& options,
                                    const std::vector<compression::Profile>& profiles);

}  // namespace bowhead::cli
