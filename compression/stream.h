// SPDX-License-Identifier: Apache-2.0
// The bytes of one stream, coded or stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "compression/frame.h"

namespace bowhead::compression {

/// The numbers in frames (bowhead/format/frame.h).
enum class StreamCodec : uint8_t { STORED = 0, ZERO = 1, LZ4 = 2, ZSTD = 3, NIBBLES = 4 };
inline constexpr uint32_t kLastStreamCodec = 4;

/// The lowest level of ZSTD: it codes bytes by their frequencies and hardly searches for repeats.
inline constexpr int kZstdWithoutSearch = -131072;

/// Codes and decodes streams. Not thread-safe. Allocates in its constructor, and when it meets ZSTD
/// for the first time: contexts of ZSTD are large.
class StreamCoder {
 public:
  explicit StreamCoder(FrameBytes coded = FrameBytes::STAY);
  ~StreamCoder();
  StreamCoder(StreamCoder&&) noexcept;
  StreamCoder& operator=(StreamCoder&&) noexcept;

  /// Codes `in` to `out` and returns the coded bytes; 0 if that would take more than `most` bytes,
  /// which is at most out.size(). `level`: ZSTD's level; for LZ4 the acceleration.
  size_t encode(StreamCodec codec, int level, std::span<const uint8_t> in, std::span<uint8_t> out,
                size_t most);

  /// False unless `in` is a complete stream of exactly out.size() bytes. Never reads or writes out
  /// of bounds. Streams that may change are copied first: the libraries promise nothing for them.
  bool decode(StreamCodec codec, std::span<const uint8_t> in, std::span<uint8_t> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bowhead::compression
