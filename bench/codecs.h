// SPDX-License-Identifier: Apache-2.0
// The codecs that `bowhead-bench codec` compares, behind one interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compression/frame.h"

namespace bowhead::bench {

/// One way to code blocks, each on its own. Nothing is allocated per block.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string name() const = 0;
  /// Whether it codes such numbers.
  virtual bool takes(NumberFormat) const { return true; }

  /// Returns the bytes written to `out`, which has coded_room() bytes; 0: it failed.
  virtual size_t encode(const compression::Shape& shape, compression::ConstBytes values,
                        compression::Bytes out) = 0;
  virtual bool decode(const compression::Shape& shape, compression::ConstBytes coded,
                      compression::Bytes out) = 0;

  /// Whether `out` is the correct result of decode() for these values.
  virtual bool right(const compression::Shape& shape, compression::ConstBytes values,
                     compression::ConstBytes out) const;

  /// Whether its output can be stored, and so has a ratio.
  virtual bool is_format() const { return true; }
  /// Whether its encode() is a figure of its own.
  virtual bool encodes() const { return true; }
};

using Codecs = std::vector<std::unique_ptr<Codec>>;

/// Space for the output of any codec for this many bytes.
inline size_t coded_room(size_t block_bytes) { return 2 * block_bytes + 4096; }

/// The profiles of frames; LZ4 and ZSTD on the plain values, and ZSTD on shuffled bytes.
void add_frame_codecs(Codecs& codecs);
void add_general_codecs(Codecs& codecs);
/// Only the kernels between values and planes: no centre, no checksums, no coding of planes.
void add_plane_codecs(Codecs& codecs);

}  // namespace bowhead::bench
