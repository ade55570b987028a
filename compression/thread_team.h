// SPDX-License-Identifier: Apache-2.0
// Codes many frames at once, on several cores.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compression/frame.h"

namespace bowhead::compression {

struct EncodeJob {
  Shape shape;
  ConstBytes values;
  Bytes frame;                                     ///< frame_bound(shape) bytes
  Result<size_t> size = Status::INVALID_ARGUMENT;  ///< out: as returned by Encoder::encode()
};

struct DecodeJob {
  ConstBytes frame;
  Bytes values;
  uint32_t planes = 0;  ///< 0: exact
  Status status =
      Status::INVALID_ARGUMENT;  ///< out: as returned by Decoder::decode(), decode_prefix()
};

/// A team of threads, the caller's included, with an encoder and a decoder each. A call starts the
/// other threads and waits for them: it pays from about ten blocks of 64 KiB on. For one caller at
/// a time.
class ThreadTeam {
 public:
  /// At least one thread; 0: as many as there are cores.
  explicit ThreadTeam(Profile profile, uint32_t threads = 0);

  void encode(std::span<EncodeJob> jobs);
  void decode(std::span<DecodeJob> jobs);
  uint32_t threads() const { return static_cast<uint32_t>(decoders_.size()); }

 private:
  /// Calls work(thread, job) once for each job, on the next free thread.
  void share(size_t jobs, const std::function<void(size_t thread, size_t job)>& work) const;

  std::vector<Encoder> encoders_;
  std::vector<Decoder> decoders_;
};

}  // namespace bowhead::compression
