// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/direct_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "gpu/devices/pinned_arena.h"
#include "gpu/jobs/cache.h"
#include "gpu/jobs/device_job.h"
#include "gpu/jobs/lease_reached.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/check.h"

namespace bowhead::gpu {
namespace {

constexpr uint64_t kMostTableBytes = uint64_t{1} << 30;

/// A link of 450 GB/s and an assumed 2 us is full with 900 KB under way. A warp of attend.h has one
/// tile or two of 1 KiB to 4 KiB under way, so that this many fill it, and a GPU has room for about
/// as many at once; more of them only make more to merge. Shorter splits take longer to begin than
/// to read.
constexpr uint64_t kWantedUnits = 1024;
constexpr uint32_t kLeastSplitTokens = 64;

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Status::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

/// Memory of the caller, with its name for errors.
struct NamedRange {
  const char* name;
  const void* memory;
  size_t size_bytes;
};

/// A block that is read.
struct Reading {
  size_t number = 0;  ///< in the job
  Lease lease;
};

}  // namespace

class DirectReads::Job {
 public:
  DeviceJob on_device;
  Stream stream = nullptr;
  uint32_t sequences = 0;
  std::vector<Status> results;
  std::vector<Reading> readings;
  std::vector<AttendSpan> spans;
  std::vector<AttendSplit> splits;
  std::vector<uint32_t> first_splits;  ///< by sequence, and one more
  PinnedRoom room;                     ///< of these three, in this order
  void* partials = nullptr;            ///< outputs, then log-sum-exps, of splits
  size_t partials_bytes = 0;

  size_t splits_at() const { return memory_aligned(spans.size() * sizeof(AttendSpan)); }
  size_t first_splits_at() const {
    return splits_at() + memory_aligned(splits.size() * sizeof(AttendSplit));
  }
  size_t table_bytes() const { return first_splits_at() + first_splits.size() * sizeof(uint32_t); }
};

class DirectReads::Impl {
 public:
  Impl(Pool& pool, Registration& registration, Device& device, const AttentionModel& model)
      : pool_(pool),
        registration_(registration),
        device_(device),
        model_(model),
        arena_(device, kMostTableBytes),
        jobs_(device, [this](Job& job) { finish(job); }) {}
  ~Impl();

  Result<std::shared_ptr<Job>> start(NamespaceId ns, std::span<const SequenceToRead> sequences,
                                     const DirectReadOptions& options);
  Result<void> attend(Job& job, uint32_t layer, const DecodeQueries& queries,
                      std::span<const MergeSource> others, const DecodeAnswers& answers);
  RunningJobs<Job>& jobs() { return jobs_; }
  Attend descriptor() const;

 private:
  Result<void> check_block(size_t number, const BlockToRead& block) const;
  Result<void> check_span(const AttendSpan& span);
  Result<void> check_sequences(std::span<const SequenceToRead> sequences);
  Status read(NamespaceId ns, const BlockToRead& block, const DirectReadOptions& options,
              size_t number, Job& job);
  AttendSpan span_of(const BlockToRead& block, const uint8_t* payload) const;
  void split(Job& job, const std::vector<uint32_t>& first_spans) const;
  Result<void> queue_tables(Job& job);
  Result<void> take_partials(Job& job);
  Result<void> check_reached(const std::vector<NamedRange>& ranges);
  Result<void> check_all_reached(const Job& job, const DecodeQueries& queries,
                                 std::span<const MergeSource> others, const DecodeAnswers& answers);
  void finish(Job& job);

  Pool& pool_;
  Registration& registration_;
  Device& device_;
  const AttentionModel model_;
  PinnedArena arena_;
  void* idle_partials_ = nullptr;  ///< of the last job that ended
  size_t idle_partials_bytes_ = 0;
  RunningJobs<Job> jobs_;
};

DirectReads::Impl::~Impl() {
  for (const auto& job : jobs_.all()) jobs_.wait(*job);
  device_.free(idle_partials_);
}

/// The descriptor, without the members that a job and a layer add.
Attend DirectReads::Impl::descriptor() const {
  Attend work;
  work.heads = model_.layout.heads;
  work.queries_per_head = model_.queries_per_head;
  work.key_channels = model_.layout.key_channels;
  work.value_channels = model_.layout.value_channels;
  work.number = number_format(model_.layout);
  work.scale = model_.scale;
  return work;
}

// ---- start ----

Result<void> DirectReads::Impl::check_block(size_t number, const BlockToRead& block) const {
  if (block.tokens == 0) return wrong("block {}: no tokens", number);
  if (block.begin > std::min(block.tokens, block.end))
    return wrong("block {}: tokens from {} to {} of {}", number, block.begin, block.end,
                 block.tokens);
  // A token is below 2^31 bytes: open() has seen to that.
  if (payload_bytes(model_.layout, 1) > kMostPayloadBytes / block.tokens)
    return wrong("block {}: {} tokens of {} bytes, which are more than {}", number, block.tokens,
                 payload_bytes(model_.layout, 1), kMostPayloadBytes);
  return {};
}

Result<void> DirectReads::Impl::check_span(const AttendSpan& span) {
  if (span.tokens == 0) return wrong("a span of no tokens");
  const size_t last_row = (model_.layout.layers - 1u) * span.layer_stride_bytes +
                          (model_.layout.heads - 1u) * span.head_stride_bytes +
                          (span.tokens - 1) * span.token_stride_bytes;
  return check_reached(
      {{"keys of a span", span.keys, last_row + model_.layout.key_channels * 2},
       {"values of a span", span.values, last_row + model_.layout.value_channels * 2}});
}

Result<void> DirectReads::Impl::check_sequences(std::span<const SequenceToRead> sequences) {
  size_t blocks = 0;
  for (const SequenceToRead& sequence : sequences) {
    for (const BlockToRead& block : sequence.blocks) {
      if (auto good = check_block(blocks++, block); !good) return good;
    }
    for (const AttendSpan& span : sequence.spans) {
      if (auto good = check_span(span); !good) return good;
    }
  }
  return {};
}

/// The span of a block in layer 0, from its first token that is read.
AttendSpan DirectReads::Impl::span_of(const BlockToRead& block, const uint8_t* payload) const {
  const auto rows = [&](uint32_t layer, uint32_t part, uint32_t head) {
    return rows_of(model_.layout, block.tokens, layer, part, head);
  };
  const KvRows keys = rows(0, 0, 0);
  AttendSpan span;
  // Only a layout with several layers has a second one.
  span.layer_stride_bytes = model_.layout.layers > 1 ? rows(1, 0, 0).offset_bytes : 0;
  span.head_stride_bytes = model_.layout.heads > 1 ? rows(0, 0, 1).offset_bytes : 0;
  span.token_stride_bytes = keys.stride_bytes;
  span.keys = payload + block.begin * keys.stride_bytes;
  span.values = span.keys + (model_.layout.parts == 2 ? rows(0, 1, 0).offset_bytes : 0);
  span.tokens = std::min(block.tokens, block.end) - block.begin;
  return span;
}

Status DirectReads::Impl::read(NamespaceId ns, const BlockToRead& block,
                               const DirectReadOptions& options, size_t number, Job& job) {
  if (block.begin == std::min(block.tokens, block.end)) return Status::OK;
  auto reached = lease_reached(pool_, registration_, ns, block.key,
                               payload_bytes(model_.layout, block.tokens), options.lease_ms);
  if (!reached) return reached.status();
  job.spans.push_back(span_of(block, reached->payload));
  job.readings.push_back({number, std::move(reached->lease)});
  return Status::OK;
}

/// Divides a sequence into splits of equal length, to within a token: together as many as wanted.
void DirectReads::Impl::split(Job& job, const std::vector<uint32_t>& first_spans) const {
  uint64_t all = 0;
  for (const AttendSpan& span : job.spans) all += span.tokens;
  Attend one = descriptor();
  one.split_count = 1;
  const uint64_t wanted_splits = std::max<uint64_t>(1, kWantedUnits / attend_units(one));
  const uint64_t most =
      std::max<uint64_t>(kLeastSplitTokens, (all + wanted_splits - 1) / wanted_splits);
  job.first_splits = {0};
  for (uint32_t sequence = 0; sequence < job.sequences; ++sequence) {
    uint64_t tokens = 0;
    for (uint32_t i = first_spans[sequence]; i < first_spans[sequence + 1]; ++i)
      tokens += job.spans[i].tokens;
    const uint64_t count = (tokens + most - 1) / most;
    uint32_t span = first_spans[sequence];
    uint64_t before = 0;  // tokens of the sequence in earlier spans
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t begin = tokens * i / count, end = tokens * (i + 1) / count;
      while (begin - before >= job.spans[span].tokens) before += job.spans[span++].tokens;
      job.splits.push_back({sequence, span, static_cast<uint32_t>(begin - before),
                            static_cast<uint32_t>(end - begin)});
    }
    job.first_splits.push_back(static_cast<uint32_t>(job.splits.size()));
  }
}

Result<void> DirectReads::Impl::take_partials(Job& job) {
  const size_t heads = job.splits.size() * model_.query_heads();
  const size_t needed =
      memory_aligned(heads * (size_t{model_.layout.value_channels} + 1) * sizeof(float));
  if (needed == 0) return {};
  if (idle_partials_bytes_ < needed) {
    auto partials = device_.allocate(needed);
    if (!partials) return partials.error();
    job.partials = *partials;
    job.partials_bytes = needed;
    return {};
  }
  job.partials = std::exchange(idle_partials_, nullptr);
  job.partials_bytes = std::exchange(idle_partials_bytes_, 0);
  return {};
}

Result<void> DirectReads::Impl::queue_tables(Job& job) {
  if (auto taken = take_partials(job); !taken) return taken;
  auto room = arena_.take(job.table_bytes(), true);
  if (!room) return room.error();
  job.room = *room;
  const auto put = [&](size_t at, const auto& all) {
    if (!all.empty()) std::memcpy(room->pinned + at, all.data(), all.size() * sizeof(all[0]));
  };
  put(0, job.spans);
  put(job.splits_at(), job.splits);
  put(job.first_splits_at(), job.first_splits);
  auto event = device_.make_event();
  if (!event) return event.error();
  job.on_device.begin(*event);
  auto copied = device_.copy(room->device, room->pinned, job.table_bytes(), job.stream);
  return copied ? job.on_device.mark(device_, job.stream) : copied;
}

Result<std::shared_ptr<DirectReads::Job>> DirectReads::Impl::start(
    NamespaceId ns, std::span<const SequenceToRead> sequences, const DirectReadOptions& options) {
  if (auto good = check_stored_layout(pool_, ns, model_.layout); !good) return good.error();
  if (auto good = check_sequences(sequences); !good) return good.error();
  if (auto good = device_.check_stream(options.stream); !good) return good.error();
  auto job = std::make_shared<Job>();
  job->stream = options.stream;
  job->sequences = static_cast<uint32_t>(sequences.size());
  std::vector<uint32_t> first_spans = {0};
  for (const SequenceToRead& sequence : sequences) {
    for (const BlockToRead& block : sequence.blocks)
      job->results.push_back(read(ns, block, options, job->results.size(), *job));
    job->spans.insert(job->spans.end(), sequence.spans.begin(), sequence.spans.end());
    first_spans.push_back(static_cast<uint32_t>(job->spans.size()));
  }
  split(*job, first_spans);
  jobs_.add(job);
  if (auto queued = queue_tables(*job); !queued) {
    jobs_.abandon(*job, job->stream);
    return queued.error();
  }
  return job;
}

// ---- attend ----

Result<void> DirectReads::Impl::check_reached(const std::vector<NamedRange>& ranges) {
  for (const NamedRange& range : ranges) {
    const auto kind = device_.check_reached(range.name, range.memory, range.size_bytes);
    if (!kind) return kind.error();
  }
  return {};
}

Result<void> DirectReads::Impl::check_all_reached(const Job& job, const DecodeQueries& queries,
                                                  std::span<const MergeSource> others,
                                                  const DecodeAnswers& answers) {
  const size_t heads = size_t{job.sequences} * model_.query_heads();
  const size_t numbers = heads * model_.layout.value_channels;
  const size_t queries_bytes = (job.sequences - 1) * queries.sequence_stride_bytes +
                               (model_.query_heads() - 1) * queries.head_stride_bytes +
                               size_t{model_.layout.key_channels} * 2;
  std::vector<NamedRange> ranges = {{"queries", queries.data, queries_bytes}};
  const size_t outputs_bytes = numbers * (answers.number == NumberFormat::FP32 ? 4 : 2);
  ranges.push_back({"outputs", answers.outputs, outputs_bytes});
  if (answers.log_sum_exps != nullptr)
    ranges.push_back({"log-sum-exps", answers.log_sum_exps, heads * 4});
  for (const MergeSource& other : others) {
    if (other.first_partials != nullptr)
      return wrong("of another partial there is one of each sequence");
    ranges.push_back({"outputs of another partial", other.outputs, numbers * 4});
    ranges.push_back({"log-sum-exps of another partial", other.log_sum_exps, heads * 4});
  }
  return check_reached(ranges);
}

Result<void> DirectReads::Impl::attend(Job& job, uint32_t layer, const DecodeQueries& queries,
                                       std::span<const MergeSource> others,
                                       const DecodeAnswers& answers) {
  if (job.on_device.is_done() || layer >= model_.layout.layers)
    return wrong("layer {} of {}{}", layer, model_.layout.layers,
                 job.on_device.is_done() ? ", of a job that is done" : "");
  if (others.size() >= MergePartials::kMostSources)
    return wrong("{} other partials: at most {}", others.size(), MergePartials::kMostSources - 1);
  if (job.sequences == 0) return {};
  if (auto good = device_.check_stream(job.stream); !good) return good;
  if (auto good = check_all_reached(job, queries, others, answers); !good) return good;

  Attend work = descriptor();
  work.layer = layer;
  work.queries = static_cast<const uint8_t*>(queries.data);
  work.query_stride_bytes = queries.sequence_stride_bytes;
  work.query_head_stride_bytes = queries.head_stride_bytes;
  work.sequences = job.sequences;
  work.span_count = static_cast<uint32_t>(job.spans.size());
  work.split_count = static_cast<uint32_t>(job.splits.size());
  work.outputs = static_cast<float*>(job.partials);
  work.log_sum_exps =
      work.outputs + job.splits.size() * model_.query_heads() * model_.layout.value_channels;
  work.spans = job.spans.data();
  work.splits = job.splits.data();
  MergePartials merge;
  merge.sources[0] = {work.outputs, work.log_sum_exps, job.first_splits.data()};
  merge.source_count = work.split_count == 0 ? 0 : 1;
  for (const MergeSource& other : others) merge.sources[merge.source_count++] = other;
  merge.sequences = job.sequences;
  merge.heads = model_.query_heads();
  merge.channels = model_.layout.value_channels;
  merge.number = answers.number;
  merge.outputs = answers.outputs;
  merge.log_sum_exps = answers.log_sum_exps;
  if (auto good = check(work); !good) return good;
  if (auto good = check(merge); !good) return good;

  const std::byte* tables = job.room.device;
  work.spans = reinterpret_cast<const AttendSpan*>(tables);
  work.splits = reinterpret_cast<const AttendSplit*>(tables + job.splits_at());
  if (work.split_count != 0) {
    merge.sources[0].first_partials =
        reinterpret_cast<const uint32_t*>(tables + job.first_splits_at());
    if (auto queued = device_.launch(work, job.stream); !queued) return queued;
  }
  auto queued = device_.launch(merge, job.stream);
  // Also behind an attention whose merging failed to start.
  const auto marked = job.on_device.mark(device_, job.stream);
  return queued ? marked : queued;
}

// ---- end ----

/// For a job that the device is through with, all its reads are done: the state of a lease here
/// covers all of them. Any other job may still read tables and write partials.
void DirectReads::Impl::finish(Job& job) {
  const bool is_through = job.on_device.is_through();
  for (Reading& reading : job.readings) {
    const Status released = pool_.release(reading.lease);
    job.results[reading.number] = is_through ? released : job.on_device.outcome();
  }
  job.readings.clear();
  if (is_through) {
    arena_.give_back(job.room);
    if (job.partials_bytes > idle_partials_bytes_) {
      std::swap(job.partials, idle_partials_);
      std::swap(job.partials_bytes, idle_partials_bytes_);
    }
    device_.free(job.partials);
  }
  job.partials = nullptr;
  if (Event mark = job.on_device.end(); mark != nullptr) device_.destroy_event(mark);
}

// ---- DirectReads ----

DirectReads::DirectReads(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DirectReads::DirectReads(DirectReads&&) noexcept = default;
DirectReads& DirectReads::operator=(DirectReads&&) noexcept = default;
DirectReads::~DirectReads() = default;

Result<DirectReads> DirectReads::open(Pool& pool, Registration& registration, Device& device,
                                      const AttentionModel& model) {
  const KvLayout& layout = model.layout;
  if (auto good = check_rows(layout); !good) return good.error();
  const NumberFormat number = number_format(layout);
  if (number != NumberFormat::BF16 && number != NumberFormat::FP16)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("keys of {}; direct reads want bf16 or fp16", number_name(number))};
  if (layout.scales != BH_SCALES_NONE)
    return Error{Status::NOT_SUPPORTED, "keys with scales: direct reads know none"};
  auto impl = std::make_unique<Impl>(pool, registration, device, model);
  if (auto good = check(impl->descriptor()); !good) return good.error();
  return DirectReads(std::move(impl));
}

Result<std::shared_ptr<DirectReads::Job>> DirectReads::start(
    NamespaceId ns, std::span<const SequenceToRead> sequences, const DirectReadOptions& options) {
  return impl_->start(ns, sequences, options);
}
Result<void> DirectReads::attend(Job& job, uint32_t layer, const DecodeQueries& queries,
                                 std::span<const MergeSource> others,
                                 const DecodeAnswers& answers) {
  return impl_->attend(job, layer, queries, others, answers);
}
bool DirectReads::poll(Job& job) { return impl_->jobs().poll(job); }
void DirectReads::wait(Job& job) { impl_->jobs().wait(job); }
std::span<const Status> DirectReads::results(const Job& job) const { return job.results; }

}  // namespace bowhead::gpu
