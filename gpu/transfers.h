// SPDX-License-Identifier: Apache-2.0
// KV blocks from an engine's paged cache to the pool, and back.
//
// A job is some blocks: all that a request of the engine's spills, or wants back. Starting one
// queues its work on the GPU and does not wait for it, though it may have to register a chunk of
// the pool first; what the CPU has to do when the GPU is through - verify, commit, end leases - is
// done by poll() or wait().
//
// Bytes go by one kernel, which moves all blocks of a job and sums them on the way, or by batches
// of copies for the GPU's copy engines, whose bytes the CPU sums: short runs by the kernel, long
// ones by copies. Pool memory that the driver will not register, and blocks that give no lease
// (compressed ones, those in custody), go by way of pinned memory: slower, and otherwise the same.
//
// A restored block is OK only if its sum is that of the block and its lease was whole until the
// last byte had been read. Until then its pages hold anything, and what was computed from them
// layer by layer is void if the block fails. A spilled block is visible only when all of it has
// been stored.
//
// Thread-safety: none; each thread has its own. All of them may use one Pool, Device and
// Registration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/cache.h"
#include "gpu/device.h"
#include "gpu/registration.h"
#include "pool/pool.h"

namespace bowhead::gpu {

/// A block: tokens of a sequence under a key.
struct BlockOfTokens {
  std::string key;
  TokenRange range;  ///< its table may be gone when the job has been started
};

enum class Path {
  CHOOSE,  ///< by how long runs are
  KERNEL,
  COPIES
};

struct JobOptions {
  /// What is queued here comes first: null is CUDA's default stream. None: nothing does.
  std::optional<Stream> after = std::nullopt;
  bool urgent = false;  ///< before what is not
  Path path = Path::CHOOSE;
  uint64_t lease_ms = 30'000;   ///< of what is restored: longer than that takes
  uint32_t layers_at_once = 0;  ///< of a restore, for wait_layer(); 0: all
};

class Transfers {
 public:
  class Job;

  /// The pool, its registration and the device outlive it. Returns what check_cache() does;
  /// INVALID_ARGUMENT: a part of the cache lies where the device does not reach it; GPU_LOST,
  /// SYSTEM.
  static Result<Transfers> open(Pool& pool, Registration& registration, Device& device,
                                KvCache cache);
  Transfers(Transfers&&) noexcept;
  Transfers& operator=(Transfers&&) noexcept;
  ~Transfers();  ///< cancels what runs, and waits until the device is through with it

  /// Starts to store blocks under their keys. Those whose keys are stored are done. Returns what
  /// check_tokens() does, with the number of the block; INVALID_ARGUMENT: a stream of another
  /// device, or blocks of more than 2^31 pieces together; NO_SPACE: no memory for the job;
  /// GPU_LOST, SYSTEM. Then nothing is stored.
  Result<std::shared_ptr<Job>> spill(NamespaceId ns, std::span<const BlockOfTokens> blocks,
                                     const JobOptions& options);
  /// Starts to fetch blocks into their pages. The same statuses.
  Result<std::shared_ptr<Job>> restore(NamespaceId ns, std::span<const BlockOfTokens> blocks,
                                       const JobOptions& options);

  /// What is queued in `stream` from here on waits until a layer was restored: of blocks that fail,
  /// which results() tells, anything. INVALID_ARGUMENT: no such layer, or a job that is done.
  Result<void> wait_layer(const Job& job, uint32_t layer, Stream stream);

  /// Whether the job is done; if the device is through with it, ends it first. A GPU that is lost
  /// is through with it, and the pool is as if the job had never been started.
  bool poll(Job& job);
  void wait(Job& job);
  /// A job that is not done ends as CANCELLED, at the next poll() that finds the device through
  /// with it: pages are in use until then.
  void cancel(Job& job);
  /// By block, once the job is done: OK; CANCELLED; GPU_LOST; of a spill what Pool::reserve() and
  /// Pool::commit() return; of a restore what Pool::acquire() and Pool::get() return, and
  /// BUFFER_TOO_SMALL or INVALID_ARGUMENT (the block is longer or shorter than its pages), DAMAGED,
  /// LAPSED; of both NO_SPACE or SYSTEM, where pinned memory was needed and not there.
  std::span<const Status> results(const Job& job) const;

 private:
  class Impl;
  explicit Transfers(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::gpu
