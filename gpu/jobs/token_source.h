// SPDX-License-Identifier: Apache-2.0
// Copies the rows of chosen tokens of a sequence from its blocks in the pool to GPU memory.
//
//   auto source = TokenSource::open(pool, registration, device, blocks, target);  // a sequence
//   auto fetch = source->fetch(lists, layer, 1, stream);                // a layer of a step
//   attend(..., stream);                    // behind it in the stream: its rows are there
//   ... if (source->poll(**fetch) && source->result(**fetch) != Status::OK) compute it again;
//
// A source holds a lease of each block for as long as it exists, and renews them on the way. So a
// fetch is one kernel in the caller's stream: only the device knows which tokens it takes, and the
// CPU waits for nothing. Blocks that give no lease (compressed ones, those in custody) are not in
// it: results() reports them, and their tokens are absent; restore those by Transfers.
//
// The rows of a fetch are void unless its result is OK, which the CPU finds out afterwards: all
// leases were whole until the last row had been read. Checksums are of whole blocks, so rows are
// not verified: damage is found by readers of whole blocks (Pool::get(), Transfers::restore(),
// Pool::check()).
//
// Thread-safety: none; each thread has its own. All of them may use one Pool, Device and
// Registration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "gpu/devices/device.h"
#include "gpu/jobs/cache.h"
#include "gpu/jobs/registration.h"
#include "pool/pool.h"

namespace bowhead::gpu {

/// A sequence in the pool: block i has its tokens from i * block_tokens on. All have as many, but
/// the last, which has the rest of `tokens`.
struct SequenceBlocks {
  NamespaceId ns = 0;
  std::span<const std::string> keys;
  uint32_t tokens = 0, block_tokens = 0;
};

/// The destination of rows: the i-th of a list goes to where a sequence with this block table has
/// token i. The layout is that of the blocks, too.
struct FetchTarget {
  KvCache cache;
  std::span<const uint32_t> pages;
};

/// An area [layer][part][head][row] with so many rows of `shape` (but for its parts and pages), as
/// a cache of one page, whose table is {0}.
KvCache dense_cache(KvCache shape, uint8_t* area, uint32_t rows);

class TokenSource {
 public:
  class Fetch;
  static constexpr uint32_t kMostFetches = 1024;  ///< that are not done

  /// Leases the blocks; its arguments may be gone when it returns. poll() renews leases when half
  /// of their time is over: a fetch that waits or takes longer than the rest may lapse. The pool,
  /// its registration and the device must outlive it. Returns the statuses of check_cache(),
  /// check_memory() and check_stored_layout(); INVALID_ARGUMENT: not as many keys as blocks, no
  /// tokens, no time, payloads of more than 2 GiB, a page that the cache does not have; NO_SPACE:
  /// no memory for its tables; GPU_LOST, SYSTEM.
  static Result<TokenSource> open(Pool& pool, Registration& registration, Device& device,
                                  const SequenceBlocks& blocks, const FetchTarget& target,
                                  uint64_t lease_ms = 30'000);
  TokenSource(TokenSource&&) noexcept;
  TokenSource& operator=(TokenSource&&) noexcept;
  ~TokenSource();  ///< waits until the device is through with all fetches

  /// By block, since open(): OK; the statuses of Pool::acquire(); BUFFER_TOO_SMALL or
  /// INVALID_ARGUMENT (longer or shorter than its tokens); those of Registration::reach(). BUSY:
  /// its memory is being registered: a source opened later, or after Registration::ensure(), has
  /// it.
  std::span<const Status> results() const;

  /// Queues the rows of some layers in `stream`. Lists begin with `first_layer`, lie where the
  /// device reaches them, and stay until the fetch is done. INVALID_ARGUMENT, with a sentence: a
  /// fetch that the kernel cannot do (check_lists()), more tokens in a list than the target has
  /// room for, lists that begin or end in memory that this device does not reach, a stream of
  /// another device or one from which a graph is being recorded; LIMIT_REACHED: kMostFetches are
  /// not done; LAPSED: a lease was lost, open another source; GPU_LOST, SYSTEM.
  Result<std::shared_ptr<Fetch>> fetch(const TokenLists& lists, uint32_t first_layer,
                                       uint32_t some_layers, Stream stream);

  /// Whether a fetch is done; if the device is through with it, ends it first.
  bool poll(Fetch& fetch);
  void wait(Fetch& fetch);
  /// Once it is done: OK; NOT_FOUND: some tokens are absent, and their rows zeros; LAPSED: a block
  /// was removed, or the host declared dead: all is void, and so are later fetches; GPU_LOST;
  /// SYSTEM: the driver does not say whether the device is through; after both it may still write
  /// there.
  Status result(const Fetch& fetch) const;
  /// Once it is done: the number of tokens, by layer and head, that no block of the source has.
  uint32_t absent(const Fetch& fetch) const;

 private:
  class Impl;
  explicit TokenSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::gpu
