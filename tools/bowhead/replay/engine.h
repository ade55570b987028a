// SPDX-License-Identifier: Apache-2.0
// Engine: what an inference engine does with a pool for one request, without the inference.
//
// It finds the longest cached prefix, restores those blocks into memory of its own, compares every
// byte with the content made anew from the block's id, makes the other blocks (as prefill would),
// and puts them. Content is made and compared between the pool's calls, never inside what is timed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "pool/pool.h"
#include "tools/bowhead/replay/content.h"
#include "tools/bowhead/replay/histogram.h"
#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

/// A block that came back wrong.
struct WrongBlock {
  uint64_t id;
  uint64_t wrong_bytes;
  uint64_t first_offset;  ///< of a wrong byte in the block
};

/// What an engine has seen. Plain data, zero means nothing: it lies in memory shared by processes.
struct EngineStats {
  static constexpr size_t kWrongKept = 64;

  uint64_t requests;
  uint64_t blocks_asked;
  uint64_t blocks_hit;   ///< restored, with all blocks before them in their request
  uint64_t blocks_lost;  ///< found by the lookup, gone (evicted, damaged) when restored
  uint64_t blocks_put;
  uint64_t blocks_no_space;  ///< not stored: NO_SPACE
  uint64_t blocks_busy;      ///< not stored: BUSY
  uint64_t tokens_asked;
  uint64_t tokens_saved;  ///< whose prefill the hits make unnecessary
  uint64_t bytes_out;     ///< got from the pool
  uint64_t bytes_in;      ///< put into it
  uint64_t bytes_verified;
  uint64_t wrong_blocks;
  uint64_t wrong_bytes;
  uint64_t content_ns;      ///< spent making and comparing content
  LatencyHistogram lookup;  ///< of longest_prefix, a call per request
  LatencyHistogram get;     ///< a call per block
  LatencyHistogram put;
  LatencyHistogram touch;                    ///< a call per request
  std::array<WrongBlock, kWrongKept> wrong;  ///< the first of wrong_blocks

  void merge(const EngineStats& other);
};

/// The key under which a block of a trace is stored.
std::string block_key_text(uint64_t id);

/// The id in such a key, if it is one.
bool parse_block_key(std::string_view key, uint64_t& id);

/// Not thread-safe; made in the process that uses it.
class Engine {
 public:
  /// `staging_bytes` of private memory for blocks under way, used from end to end and around, as an
  /// engine's would be; at least one block. All references must outlive the engine.
  Engine(Pool& pool, NamespaceId namespace_id, const Content& content, uint64_t block_bytes,
         uint64_t staging_bytes, EngineStats& stats);

  /// Serves a request for the blocks `ids`. Wrong bytes, lost blocks and a full pool are counted,
  /// not errors. Returns any other status of the pool's calls.
  Result<void> serve(std::span<const uint64_t> ids, uint64_t input_tokens);

 private:
  Result<uint64_t> restore(std::span<const uint64_t> ids);
  Result<void> store(std::span<const uint64_t> ids, size_t first);
  void verify(uint64_t id, const std::byte* data, uint64_t length);
  std::byte* next_buffer();

  Pool& pool_;
  const NamespaceId namespace_id_;
  const Content& content_;
  const uint64_t block_bytes_;
  EngineStats& stats_;
  std::vector<std::byte> staging_;
  size_t staging_blocks_;
  size_t staging_next_ = 0;
  std::vector<std::string> key_texts_;  // of the request being served
  std::vector<std::string_view> keys_;
};

}  // namespace bowhead::replay
