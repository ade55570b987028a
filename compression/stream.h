// SPDX-License-Identifier: Apache-2.0
// The bytes of one stream, coded or as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace bowhead::compression {

/// Numbers of frames (bowhead/format/frame.h).
enum class StreamCodec : uint8_t { STORED = 0, ZERO = 1, LZ4 = 2, ZSTD = 3, NIBBLES = 4 };
inline constexpr uint32_t kLastStreamCodec = 4;

/// A level at which ZSTD codes bytes by how frequent they are and hardly looks for what repeats:
/// the lowest that it has.
inline constexpr int kZstdWithoutSearch = -131072;

/// Codes and decodes streams. Not thread-safe. Allocates when made, not later.
class StreamCoder {
 public:
  StreamCoder();
  ~StreamCoder();
  StreamCoder(StreamCoder&&) noexcept;
  StreamCoder& operator=(StreamCoder&&) noexcept;

  /// Codes `in` to `out` and returns the coded bytes; 0 if that would take more than `most` bytes,
  /// which is at most out.size(). `level`: of ZSTD; of LZ4 the acceleration.
  size_t encode(StreamCodec codec, int level, std::span<const uint8_t> in, std::span<uint8_t> out,
                size_t most);

  /// False unless `in` is a whole stream of exactly out.size() bytes. Never reads or writes beyond
  /// either.
  bool decode(StreamCodec codec, std::span<const uint8_t> in, std::span<uint8_t> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bowhead::compression
