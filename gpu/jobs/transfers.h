// SPDX-License-Identifier: Apache-2.0
// KV blocks from an engine's paged cache to the pool, and back.
//
// A job is some blocks: all that a request of the engine spills or restores. Starting one queues
// its work on the GPU and does not wait for it, though the CPU decodes its part of compressed
// blocks, and copies blocks that are staged on a restore. The CPU's work after the GPU's - verify,
// commit, end leases - is done by poll() or wait().
//
// Bytes go by one kernel, which moves all blocks of a job and sums them on the way, or by batches
// of copies for the GPU's copy engines, after which the kernel sums them in the pages: whichever is
// expected to be faster (path_costs.h). Pool memory that is not registered yet or that the driver
// will not register, and blocks that give no lease (compressed ones, those in custody), are staged:
// they go through pinned memory, slower, and otherwise the same. Compressed ones are decoded on the
// way, by CPU and GPU together (frames.h). staging() names the reason for each block.
//
// A restored block is OK only if its sum is that of the block and its lease was whole until the
// last byte had been read. Until then the content of its pages is undefined, and results that were
// computed from them layer by layer are void if the block fails. A spilled block is visible only
// when all of it has been stored.
//
//   auto transfers = Transfers::open(pool, *registration, *device, cache);
//   auto job = transfers->restore(ns, blocks, {.urgent = true, .layers_at_once = 4});
//   for (uint32_t layer = 0; layer < cache.layers; ++layer) {
//     transfers->wait_layer(**job, layer, compute);  // the engine's stream
//     queue_layer(layer, compute);
//   }
//   transfers->wait(**job);  // or poll() it, and look at other things
//   for (Status status : transfers->results(**job)) ...
//
// Thread-safety: none; each thread has its own. All of them may use one Pool, Device and
// Registration.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/devices/device.h"
#include "gpu/devices/path_costs.h"
#include "gpu/jobs/cache.h"
#include "gpu/jobs/registration.h"
#include "pool/pool.h"

namespace bowhead::gpu {

/// A block: tokens of a sequence under a key.
struct BlockOfTokens {
  std::string key;
  PagedTokens range;                ///< its table may be gone when the job has been started
  std::string user_metadata = {};   ///< of a spill: stored with it, as by Pool::put()
  BlockAttributes attributes = {};  ///< of a spill
};

struct JobOptions {
  /// The job waits for the work queued here; null: CUDA's default stream. None: it does not wait.
  std::optional<Stream> after = std::nullopt;
  bool urgent = false;  ///< before jobs that are not
  Path path = Path::CHOOSE;
  uint64_t lease_ms = 30'000;  ///< of restored blocks: longer than the restore takes
  /// Not 0: a restore brings so many layers at a time, for wait_layer(); a spill waits until
  /// layer_ready() has named them.
  uint32_t layers_at_once = 0;
};

/// Why a block goes through pinned memory and not straight.
enum class Staging : uint8_t {
  NONE,         ///< it goes straight; or it does not go, as its key is stored or it failed
  NOT_YET,      ///< its memory in the pool is being registered; later blocks there go straight
  NOT_REACHED,  ///< its memory cannot be registered, or not as needed (TransfersInfo::refusal)
  NO_LEASE,     ///< it is in custody, or all leases are taken
  COMPRESSED    ///< its frame is decoded
};
inline constexpr size_t kStagings = 5;
const char* staging_name(Staging staging);

/// Sums over all jobs so far.
struct TransfersInfo {
  std::array<uint64_t, kStagings> blocks = {};  ///< that were moved, by Staging
  std::string refusal;  ///< the error of Registration::reach() for the last NOT_REACHED block
};

inline constexpr uint64_t kDefaultPinnedBytes = uint64_t{1} << 30;

class Transfers {
 public:
  class Job;

  /// The pool, its registration and the device must outlive it. Jobs have so much pinned memory at
  /// most, besides the memory for decoding. The first time on a machine it takes as long as
  /// path_costs() does. On a GPU whose memory is full path_costs() are assumed. Returns the
  /// statuses of check_cache(); INVALID_ARGUMENT: a part of the cache lies where the device does
  /// not reach it; NO_SPACE, GPU_LOST, SYSTEM.
  static Result<Transfers> open(Pool& pool, Registration& registration, Device& device,
                                KvCache cache, uint64_t most_pinned_bytes = kDefaultPinnedBytes);
  Transfers(Transfers&&) noexcept;
  Transfers& operator=(Transfers&&) noexcept;
  ~Transfers();  ///< cancels what runs, and waits until the device is through with it

  /// From here on `notify` is called when a job may be done: the device is through with its work,
  /// or lost. It may be called more often than that, from threads of the device's and from calls
  /// of this object; on a lost device also after this object is gone. It only wakes a thread, and
  /// neither calls this object nor waits. Set it before the first job.
  void notify_with(std::function<void()> notify);

  const KvCache& cache() const;
  /// The costs by which paths are chosen; `assumed_because` says if and why they were not measured.
  const PathCosts& path_costs() const;

  /// Starts to store blocks under their keys. Those whose keys are stored are done. Returns the
  /// statuses of check_stored_layout(); those of check_tokens(), with the number of the block;
  /// INVALID_ARGUMENT: a stream of another device or one from which a graph is being recorded, or
  /// blocks of more than 2^31 pieces together; NO_SPACE: no memory for the job (other jobs may have
  /// it); GPU_LOST, SYSTEM. On failure nothing is stored.
  Result<std::shared_ptr<Job>> spill(NamespaceId ns, std::span<const BlockOfTokens> blocks,
                                     const JobOptions& options);
  /// Starts to fetch blocks into their pages. The same statuses.
  Result<std::shared_ptr<Job>> restore(NamespaceId ns, std::span<const BlockOfTokens> blocks,
                                       const JobOptions& options);

  /// Work queued in `stream` from here on waits until a layer was restored; the pages of blocks
  /// that fail, which results() names, hold anything. INVALID_ARGUMENT: no such layer, a job that
  /// is done, a stream of another device, or one from which a graph is being recorded.
  Result<void> wait_layer(const Job& job, uint32_t layer, Stream stream);
  /// For a spill by layers: this layer and those before it are in the pages when the work queued in
  /// `stream` is done, and are stored then, as far as they make up layers_at_once or are the last.
  /// Layers that were ready already are not stored again. INVALID_ARGUMENT: no such layer, a stream
  /// of another device or one that is being recorded, or a job that does not wait for it: no spill
  /// by layers, or one that is done. NO_SPACE, GPU_LOST, SYSTEM: the job ends with that.
  Result<void> layer_ready(Job& job, uint32_t layer, Stream stream);

  /// Whether the job is done; if the device is through with it, ends it first. On a GPU that is
  /// lost it is done, and nothing of it is stored.
  bool poll(Job& job);
  /// Waits until the device is through with the queued work: then the job is done, unless it is a
  /// spill that waits for layers.
  void wait(Job& job);
  /// A job that is not done ends as CANCELLED, at the next poll() that finds the device through
  /// with it: pages are in use until then.
  void cancel(Job& job);
  /// By block, once the job is done: OK; CANCELLED; GPU_LOST; for a spill the statuses of
  /// Pool::reserve() and Pool::commit(); for a restore those of Pool::acquire() and Pool::get(),
  /// and BUFFER_TOO_SMALL or INVALID_ARGUMENT (the block is longer or shorter than its pages),
  /// DAMAGED, LAPSED; for both NO_SPACE, where pinned memory was needed and not there, or SYSTEM:
  /// the driver does not say whether the device is through with the job. After GPU_LOST and SYSTEM
  /// copies may still arrive: their destinations are not used again. In the pool these stay
  /// reserved until the pool is closed, and with that the process should end: a driver lets nothing
  /// arrive when the process has ended. Pinned memory is not freed.
  std::span<const Status> results(const Job& job) const;
  /// By block, as soon as the job has been started.
  std::span<const Staging> staging(const Job& job) const;
  const TransfersInfo& info() const;

 private:
  class Impl;
  explicit Transfers(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::gpu
