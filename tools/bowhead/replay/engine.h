// SPDX-License-Identifier: Apache-2.0
// Engine: does with a pool what an inference engine does for one request, without the inference.
//
// It finds the longest cached prefix, restores those blocks into private memory, compares every
// byte with the content regenerated from the block's id, makes the other blocks (as prefill would),
// and puts them. Content is made and compared between the pool's calls, never within a timed
// section.
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
  uint64_t first_offset;  ///< of the first wrong byte in the block
};

/// Counters of an engine. Plain data, zero means empty: it lies in memory shared by processes.
struct EngineStats {
  static constexpr size_t kWrongKept = 64;

  uint64_t requests;
  uint64_t blocks_asked;
  uint64_t blocks_hit;   ///< restored, with all blocks before them in their request
  uint64_t blocks_lost;  ///< found by the lookup, but evicted or damaged before the restore
  uint64_t blocks_put;
  uint64_t blocks_no_space;  ///< not stored: NO_SPACE
  uint64_t blocks_busy;      ///< not stored: BUSY
  uint64_t tokens_asked;
  uint64_t tokens_saved;  ///< tokens whose prefill the hits saved
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

/// Parses such a key; false if it is not one.
bool parse_block_key(std::string_view key, uint64_t& id);

/// Not thread-safe; made in the process that uses it.
class Engine {
 public:
  /// `staging_bytes`: private memory for blocks in transit, used as a ring, as in an engine; at
  /// least one block. All references must outlive the engine.
  Engine(Pool& pool, NamespaceId namespace_id, const Content& content, uint64_t block_bytes,
         uint64_t staging_bytes, EngineStats& stats);

  /// Serves a request for the blocks `ids`. Wrong bytes, lost blocks and a full pool are counted,
  /// they are not errors. Returns any other status of the pool's calls.
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
