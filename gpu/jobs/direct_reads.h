// SPDX-License-Identifier: Apache-2.0
// Decode attention to blocks where they lie in the pool, for blocks that are read too seldom to be
// worth their place in GPU memory.
//
//   auto job = reads->start(ns, sequences, {.stream = stream});
//   reads->results(**job);       // blocks that are not OK are not read: restore those
//   for each layer: reads->attend(**job, layer, queries, others, out);
//   reads->wait(**job);
//   reads->results(**job);       // a block that is OK no more makes its sequence's outputs void
//
// A job holds leases, and may serve any number of decode steps within their time. The same call
// merges its attention with that to other tokens, by an engine's own kernel, an NDP device (ndp/)
// or another job.
//
// A kernel of the GPU reads each key and value once over the link, for all queries that share them
// (attend.h says how many can). Checksums of payloads are not compared: the bytes read are the
// block's as long as its lease holds, and damage to the memory itself is not noticed.
//
// Thread-safety: none; each thread has its own. All of them may use one Pool, Device and
// Registration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/status.h"
#include "gpu/devices/device.h"
#include "gpu/jobs/registration.h"
#include "gpu/kernels/kernels.h"
#include "pool/pool.h"

namespace bowhead::gpu {

/// A model's attention to blocks of a namespace.
struct AttentionModel {
  KvLayout layout = {};           ///< of the blocks; BF16 or FP16, as are queries
  uint32_t queries_per_head = 0;  ///< query heads that share a head of keys and values
  float scale = 0;                ///< of scores, in general 1 / sqrt(key_channels)

  uint32_t query_heads() const { return layout.heads * queries_per_head; }
};

/// A block, and its tokens that are read: from `begin` to before `end`.
struct BlockToRead {
  std::string key;
  uint32_t tokens = 0;  ///< of the block
  uint32_t begin = 0, end = UINT32_MAX;
};

/// The tokens of a sequence that are read, in any order: the keys contain their positions.
struct SequenceToRead {
  std::vector<BlockToRead> blocks;
  /// Tokens that need no lease, as in pages of an engine's cache: they stay until the job is done.
  std::vector<AttendSpan> spans = {};
};

struct DirectReadOptions {
  Stream stream = nullptr;     ///< of all work of the job; null: CUDA's default one
  uint64_t lease_ms = 30'000;  ///< longer than the time until wait()
};

/// One query in each head of each sequence: [sequence][query head][key channel].
struct DecodeQueries {
  const void* data = nullptr;  ///< 16-byte-aligned; strides, too
  size_t sequence_stride_bytes = 0, head_stride_bytes = 0;
};

/// The destination of the answers, one behind the other.
struct DecodeAnswers {
  void* outputs = nullptr;  ///< [sequence][query head][value channel]
  NumberFormat number = NumberFormat::FP32;
  float* log_sum_exps = nullptr;  ///< [sequence][query head], base e, apart from every source's;
                                  ///< null: not wanted
};

class DirectReads {
 public:
  class Job;

  /// The pool, its registration and the device must outlive it. INVALID_ARGUMENT: a model that no
  /// kernel supports (check.h), or that has no layers.
  static Result<DirectReads> open(Pool& pool, Registration& registration, Device& device,
                                  const AttentionModel& model);
  DirectReads(DirectReads&&) noexcept;
  DirectReads& operator=(DirectReads&&) noexcept;
  ~DirectReads();  ///< waits for what runs

  /// Leases the blocks, and queues tables of their addresses. Blocks that cannot be read by address
  /// have a status at once, and no part in the answers of attend(). INVALID_ARGUMENT: a block of no
  /// tokens, of more than 2 GiB, or which begins behind its end; a span of no tokens, or which the
  /// device does not reach; a stream of another device or one that is being recorded; NO_SPACE: no
  /// memory for tables or partials; GPU_LOST, SYSTEM. On failure nothing is leased.
  Result<std::shared_ptr<Job>> start(NamespaceId ns, std::span<const SequenceToRead> sequences,
                                     const DirectReadOptions& options);

  /// Queues attention of one layer, in the job's stream: to the blocks that are read, merged with
  /// `others`, each of one partial of each sequence (`first_partials` is null) and ready when the
  /// stream comes to it; at most three. The device must reach all addresses, which must stay valid
  /// until the stream is past the work. INVALID_ARGUMENT: no such layer, a job that is done, an
  /// address that the device does not reach or that check() (check.h) refuses, a stream that is
  /// being recorded as a graph; GPU_LOST, SYSTEM.
  Result<void> attend(Job& job, uint32_t layer, const DecodeQueries& queries,
                      std::span<const MergeSource> others, const DecodeAnswers& answers);

  /// Whether the job is done; if the device is through with its queued work, ends it first.
  bool poll(Job& job);
  void wait(Job& job);
  /// By block, counted through the sequences. OK: it is read, and, once the job is done, all bytes
  /// read were the block's. Before the job is done, any other status: it is not read. It is the
  /// status of Pool::acquire() or Registration::reach() (BUSY: its memory is being registered; a
  /// later job reads it, or one after Registration::ensure()), or BUFFER_TOO_SMALL or
  /// INVALID_ARGUMENT (the block is longer or shorter than its tokens). Only once the job is done:
  /// LAPSED, GPU_LOST, SYSTEM (the driver does not say whether the device is through): outputs of
  /// its sequence are void. After the last two the device may still write to its buffers, outputs
  /// included: they must not be used for anything else.
  std::span<const Status> results(const Job& job) const;

 private:
  class Impl;
  explicit DirectReads(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::gpu
