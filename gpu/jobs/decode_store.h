// SPDX-License-Identifier: Apache-2.0
// Stores the tokens that decode appends, a block at a time.
//
//   store.begin(sequence, restored_tokens);
//   each step:  store.append(sequence, tokens, block_table, keys of blocks that are full now);
//               store.start(compute_stream);     // one job for the full blocks of all sequences
//               for (const StoredBlock& block : store.poll()) ...  // its pages may be reused
//
// Tokens stay in the engine's pages until a block is full: one job moves all full blocks of a step,
// and no token is stored on its own. A tail that is not full is not stored: no other sequence could
// use it. Keys come from the engine, which hashes its tokens. A block that fails is reported and
// not tried again.
//
// Thread-safety: none, as with the Transfers that it goes by, which outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "gpu/jobs/transfers.h"

namespace bowhead::gpu {

struct StoredBlock {
  uint64_t sequence = 0;
  uint32_t block = 0;  ///< of the sequence: the one with its tokens from block * block_tokens on
  std::string key;
  Status status = Status::OK;  ///< CANCELLED; that of Transfers::results() for a spill
};

struct DecodeStoreOptions {
  uint32_t block_tokens = 0;
  uint64_t most_bytes = uint64_t{256} << 20;  ///< under way at once; one block always may be
};

class DecodeStore {
 public:
  /// INVALID_ARGUMENT: blocks of no tokens, or of more than kMostPayloadBytes.
  static Result<DecodeStore> open(Transfers& transfers, NamespaceId ns,
                                  const DecodeStoreOptions& options);
  DecodeStore(DecodeStore&&) = default;
  DecodeStore& operator=(DecodeStore&&) = delete;
  ~DecodeStore();  ///< waits for jobs that are under way; blocks that wait are not stored

  /// A sequence by a number of the caller's. So many of its tokens are stored already, as those of
  /// a prefix that was restored: whole blocks of them are skipped. INVALID_ARGUMENT: it exists, or
  /// blocks of an earlier sequence of this number are not done.
  Result<void> begin(uint64_t sequence, uint32_t stored_tokens = 0);

  /// The sequence has `tokens` tokens now, in the pages of its block table; `keys` are those of the
  /// blocks that became full with them, in order. Their pages are not written to any more, and not
  /// reused until poll() returns them. INVALID_ARGUMENT, and nothing changes: no such sequence,
  /// fewer tokens than before, another number of keys, and the statuses of check_tokens().
  Result<void> append(uint64_t sequence, uint32_t tokens, std::span<const uint32_t> pages,
                      std::span<const std::string> keys);

  /// Starts one job for the blocks that are full, the oldest first; those that would make more than
  /// most_bytes wait for a later call. `after`: as in JobOptions. Returns the statuses of
  /// Transfers::spill(); on failure all of them wait.
  Result<void> start(std::optional<Stream> after);

  /// Blocks that are done, whatever their status: each is returned once.
  std::vector<StoredBlock> poll();

  /// No more tokens come: its full blocks are still stored, tokens behind them are forgotten.
  /// INVALID_ARGUMENT: no such sequence.
  Result<void> end(uint64_t sequence);
  /// The same, but its blocks that wait are not stored: poll() returns them as CANCELLED. Those
  /// that are under way go on.
  Result<void> cancel(uint64_t sequence);

  uint64_t bytes_under_way() const { return under_way_ * block_bytes_; }
  size_t blocks_waiting() const { return waiting_.size(); }

 private:
  struct Sequence {
    uint32_t tokens = 0;
    uint32_t blocks = 0;   ///< stored before, or named since
    uint32_t pending = 0;  ///< of those, not returned by poll()
    bool is_ended = false;
  };
  struct Block {
    StoredBlock stored;
    std::vector<uint32_t> pages;
    uint32_t first_token = 0;  ///< in the first page
  };
  struct Running {
    std::shared_ptr<Transfers::Job> job;
    std::vector<StoredBlock> blocks;
  };

  DecodeStore(Transfers& transfers, NamespaceId ns, const DecodeStoreOptions& options);
  Result<Sequence*> find(uint64_t sequence);
  void forget(uint64_t sequence);

  Transfers& transfers_;
  NamespaceId ns_;
  uint32_t block_tokens_;
  uint64_t block_bytes_, most_bytes_;
  std::unordered_map<uint64_t, Sequence> sequences_;
  std::deque<Block> waiting_;
  std::vector<Running> running_;
  uint64_t under_way_ = 0;  ///< blocks
  std::vector<StoredBlock> done_;
};

}  // namespace bowhead::gpu
