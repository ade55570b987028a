// SPDX-License-Identifier: Apache-2.0
#include "api/gpu_transfers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::Result;
using bowhead::Status;
using bowhead::gpu::BlockOfTokens;
using bowhead::gpu::JobOptions;
using bowhead::gpu::KvCache;
using bowhead::gpu::PagedPart;
using bowhead::gpu::Staging;
using bowhead::gpu::Transfers;

namespace bowhead::api {
namespace {

/// A thread that waits looks by itself so often: a driver that was lost may ring no bell.
constexpr auto kLookAfter = std::chrono::milliseconds(100);

}  // namespace

// ---- bell ----

Result<std::shared_ptr<Bell>> Bell::make() {
  auto bell = std::make_shared<Bell>();
  bell->fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell->fd() < 0)
    return Error{Status::SYSTEM,
                 fmt::format("eventfd: {}", std::generic_category().message(errno))};
  return bell;
}

void Bell::ring() {
  {
    const std::lock_guard lock(mutex_);
    ++rings_;
  }
  rung_.notify_all();
  (void)eventfd_write(fd(), 1);
}

void Bell::clear() {
  eventfd_t count = 0;
  (void)eventfd_read(fd(), &count);  // EAGAIN: it was not readable
}

uint64_t Bell::rings() {
  const std::lock_guard lock(mutex_);
  return rings_;
}

void Bell::wait(uint64_t rings, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  rung_.wait_until(lock, until, [&] { return rings_ != rings; });
}

// ---- transfers ----

SharedTransfers::SharedTransfers(bh_pool& pool, Parts parts)
    : device_(std::move(parts.device)),
      memory_(std::move(parts.memory)),
      bell_(std::move(parts.bell)),
      layers_(parts.transfers.cache().layout.layers),
      pool_(&pool),
      transfers_(std::move(parts.transfers)) {
  transfers_->notify_with([bell = bell_] { bell->ring(); });
}

bh_status SharedTransfers::start(bool spills, bh_namespace_id ns,
                                 std::span<const BlockOfTokens> blocks, const JobOptions& options,
                                 std::unique_ptr<bh_gpu_job>& job) {
  const std::lock_guard lock(mutex_);
  if (!transfers_) return fail(BH_CLOSED, "{}: the pool was closed", current_function);
  if (const auto format = pool_->pool.value_format(ns); !format)
    return finish(*pool_, format.status(), ns);
  // A job that has started is remembered without memory from anywhere.
  const size_t jobs = running_.size() + unreported_.size() + 1;
  if (running_.capacity() < jobs || unreported_.capacity() < jobs) {
    running_.reserve(2 * jobs);
    unreported_.reserve(2 * jobs);
  }
  job->spills = spills;
  job->by_layers = options.layers_at_once != 0;
  job->results.resize(blocks.size());
  auto started =
      spills ? transfers_->spill(ns, blocks, options) : transfers_->restore(ns, blocks, options);
  if (!started) return fail(started.error());
  job->job = std::move(*started);
  running_.push_back(job.get());
  return BH_OK;
}

bh_status SharedTransfers::check_layer(const bh_gpu_job& job, uint32_t layer, bool of_spill) const {
  if (layer >= layers_)
    return fail(BH_INVALID_ARGUMENT, "{}: layer {} of a cache of {} layers", current_function,
                layer, layers_);
  if (job.spills != of_spill || (of_spill && !job.by_layers))
    return fail(BH_INVALID_ARGUMENT, "{}: the job is {}; use one that is {}", current_function,
                job.spills ? "a spill of all layers at once" : "a restore",
                of_spill ? "a spill with layers_at_once" : "a restore");
  return BH_OK;
}

bh_status SharedTransfers::wait_layer(const bh_gpu_job& job, uint32_t layer, gpu::Stream stream) {
  const std::lock_guard lock(mutex_);
  if (const bh_status bad = check_layer(job, layer, false); bad != BH_OK) return bad;
  return job.is_done ? BH_OK : finish(transfers_->wait_layer(*job.job, layer, stream));
}

bh_status SharedTransfers::layer_ready(bh_gpu_job& job, uint32_t layer, gpu::Stream stream) {
  const std::lock_guard lock(mutex_);
  if (const bh_status bad = check_layer(job, layer, true); bad != BH_OK) return bad;
  return job.is_done ? BH_OK : finish(transfers_->layer_ready(*job.job, layer, stream));
}

void SharedTransfers::settle(bh_gpu_job& job) {
  const auto statuses = transfers_->results(*job.job);
  const auto staging = transfers_->staging(*job.job);
  for (size_t i = 0; i < statuses.size(); ++i) {
    job.results[i] = {static_cast<bh_status>(statuses[i]), static_cast<uint32_t>(staging[i])};
    if (statuses[i] != Status::OK) ++job.failed;
  }
  job.is_done = true;
  std::erase(running_, &job);
  unreported_.push_back(&job);
}

/// Whether the job is done; ends it if the device is through with it.
bool SharedTransfers::look(bh_gpu_job& job) {
  if (job.is_done) return true;
  if (!transfers_->poll(*job.job)) return false;
  settle(job);
  return true;
}

bh_status SharedTransfers::poll(bh_gpu_completion* out, size_t room, size_t& count) {
  const std::lock_guard lock(mutex_);
  if (!transfers_) return fail(BH_CLOSED, "{}: the pool was closed", current_function);
  bell_->clear();  // before looking: who rings from here on is heard
  const std::vector<bh_gpu_job*> jobs = running_;
  for (bh_gpu_job* job : jobs) (void)look(*job);
  count = std::min(room, unreported_.size());
  for (size_t i = 0; i < count; ++i) {
    const bh_gpu_job& job = *unreported_[i];
    out[i] = {unreported_[i], job.context, job.failed};
  }
  unreported_.erase(unreported_.begin(), unreported_.begin() + static_cast<ptrdiff_t>(count));
  if (!unreported_.empty()) bell_->ring();
  return BH_OK;
}

/// Whether it was done by then.
bool SharedTransfers::wait(bh_gpu_job& job, Clock::time_point until) {
  for (;;) {
    const uint64_t rings = bell_->rings();
    {
      const std::lock_guard lock(mutex_);
      const bool was_done = job.is_done;
      if (look(job)) {
        if (!was_done) bell_->ring();  // for who reports it
        return true;
      }
    }
    const auto now = Clock::now();
    if (now >= until) return false;
    bell_->wait(rings, std::min(until, now + kLookAfter));
  }
}

void SharedTransfers::cancel(bh_gpu_job& job) {
  const std::lock_guard lock(mutex_);
  if (!job.is_done) transfers_->cancel(*job.job);
}

bh_status SharedTransfers::results(const bh_gpu_job& job, bh_gpu_result* out, size_t count) {
  const std::lock_guard lock(mutex_);
  if (count != job.results.size())
    return fail(BH_INVALID_ARGUMENT, "{}: the job has {} blocks, not {}", current_function,
                job.results.size(), count);
  if (!job.is_done)
    return fail(BH_BUSY, "{}: the job is not done; poll the transfers, or wait for the job",
                current_function);
  std::copy(job.results.begin(), job.results.end(), out);
  return BH_OK;
}

bh_status SharedTransfers::get_info(bh_gpu_transfers_info& out) {
  const std::lock_guard lock(mutex_);
  if (!transfers_) return fail(BH_CLOSED, "{}: the pool was closed", current_function);
  const gpu::TransfersInfo& info = transfers_->info();
  const auto blocks = [&](Staging staging) { return info.blocks[static_cast<size_t>(staging)]; };
  out.straight_blocks = blocks(Staging::NONE);
  out.not_yet_blocks = blocks(Staging::NOT_YET);
  out.not_reached_blocks = blocks(Staging::NOT_REACHED);
  out.no_lease_blocks = blocks(Staging::NO_LEASE);
  out.compressed_blocks = blocks(Staging::COMPRESSED);
  copy_text(info.refusal, out.refusal);
  copy_text(transfers_->path_costs().assumed_because, out.costs_assumed);
  return BH_OK;
}

void SharedTransfers::forget(bh_gpu_job& job) {
  const std::lock_guard lock(mutex_);
  std::erase(unreported_, &job);
}

void SharedTransfers::close() {
  const std::lock_guard lock(mutex_);
  if (!transfers_) return;
  for (bh_gpu_job* job : running_) transfers_->cancel(*job->job);
  while (!running_.empty()) {
    bh_gpu_job& job = *running_.back();
    transfers_->wait(*job.job);
    settle(job);
  }
  transfers_.reset();
  const std::lock_guard of_pool(pool_->mutex);
  pool_->ended_first.erase(this);
  pool_ = nullptr;
}

// ---- arguments ----

namespace {

bh_status read_cache(const bh_gpu_cache* cache, KvCache& out) {
  bh_gpu_cache known;
  if (const bh_status bad = read_struct(cache, "cache", known); bad != BH_OK) return bad;
  if (const bh_status bad = check_reserved("cache", known.reserved); bad != BH_OK) return bad;
  if (known.parts == nullptr) return null_argument("cache->parts");
  // Before they are read: the layout says how many there can be.
  const size_t parts = size_t{known.layout.layers} * known.layout.parts;
  if (known.part_count != parts)
    return fail(BH_INVALID_ARGUMENT,
                "{}: cache->part_count is {}, and the layout has {} layers of {} parts",
                current_function, known.part_count, known.layout.layers, known.layout.parts);
  out = {.layout = known.layout, .page_tokens = known.page_tokens, .pages = known.pages};
  out.parts.reserve(parts);
  for (size_t i = 0; i < parts; ++i) {
    const bh_gpu_part& part = known.parts[i];
    out.parts.push_back({static_cast<uint8_t*>(part.base), part.page_stride_bytes,
                         part.token_stride_bytes, part.head_stride_bytes});
  }
  return BH_OK;
}

bh_status read_transfers_options(const bh_gpu_transfers_options* options,
                                 uint64_t& pinned_bytes_max) {
  pinned_bytes_max = gpu::kDefaultPinnedBytes;
  if (options == nullptr) return BH_OK;
  bh_gpu_transfers_options known;
  if (const bh_status bad = read_struct(options, "options", known); bad != BH_OK) return bad;
  if (const bh_status bad = check_reserved("options", known.reserved); bad != BH_OK) return bad;
  if (known.pinned_bytes_max != 0) pinned_bytes_max = known.pinned_bytes_max;
  return BH_OK;
}

bh_status read_job_options(const bh_gpu_job_options* options, JobOptions& out, void*& context) {
  if (options == nullptr) return BH_OK;
  constexpr uint64_t kMostLeaseMs = 600'000;
  bh_gpu_job_options known;
  if (const bh_status bad = read_struct(options, "options", known); bad != BH_OK) return bad;
  if (const bh_status bad = check_reserved("options", known.reserved); bad != BH_OK) return bad;
  if (const bh_status bad = check_bounds("options", {{"path", known.path, BH_GPU_PATH_COPIES},
                                                     {"urgent", known.urgent, 1},
                                                     {"after_stream", known.after_stream, 1},
                                                     {"lease_ms", known.lease_ms, kMostLeaseMs}});
      bad != BH_OK)
    return bad;
  if (known.after_stream == 0 && known.stream != nullptr)
    return fail(BH_INVALID_ARGUMENT,
                "{}: options->stream is set, and options->after_stream is 0: set it to 1",
                current_function);
  if (known.after_stream != 0) out.after = known.stream;
  constexpr gpu::Path kPaths[] = {gpu::Path::CHOOSE, gpu::Path::KERNEL, gpu::Path::COPIES};
  out.path = kPaths[known.path];
  out.urgent = known.urgent != 0;
  if (known.lease_ms != 0) out.lease_ms = known.lease_ms;
  out.layers_at_once = known.layers_at_once;
  context = known.context;
  return BH_OK;
}

bh_status read_block(const bh_gpu_block& block, size_t i, bool spills, BlockOfTokens& out) {
  if (block.key.data == nullptr && block.key.size_bytes > 0)
    return fail(BH_INVALID_ARGUMENT, "{}: blocks[{}].key.data is NULL but its size is {} bytes",
                current_function, i, block.key.size_bytes);
  if (block.pages == nullptr || !countable<uint32_t>(block.page_count))
    return fail(BH_INVALID_ARGUMENT, "{}: blocks[{}].pages is {}, of {} entries", current_function,
                i, static_cast<const void*>(block.pages), block.page_count);
  // A longer key is refused by the pool, whatever its bytes.
  const size_t key_bytes = std::min<size_t>(block.key.size_bytes, BH_KEY_BYTES_MAX + 1);
  out.key = view({block.key.data, key_bytes});
  out.range = {{block.pages, block.page_count}, block.first_token, block.tokens};
  if (block.options == nullptr) return BH_OK;
  if (!spills)
    return fail(BH_INVALID_ARGUMENT,
                "{}: a restore does not use blocks[{}].options: set it to NULL", current_function,
                i);
  PutOptions options;
  if (const bh_status bad = read_options(block.options, options); bad != BH_OK) return bad;
  out.user_metadata = options.user_metadata;
  out.attributes = options.attributes;
  return BH_OK;
}

bh_status read_blocks(const bh_gpu_block* blocks, size_t count, bool spills,
                      std::vector<BlockOfTokens>& out) {
  if (blocks == nullptr && count > 0) return null_argument("blocks");
  if (!countable<bh_gpu_block>(count)) return bad_count("blocks", count);
  for (size_t i = 0; i < count; ++i) {
    if (const bh_status bad = read_block(blocks[i], i, spills, out.emplace_back()); bad != BH_OK)
      return bad;
  }
  return BH_OK;
}

bh_status start_job(bh_gpu_transfers* transfers, bool spills, bh_namespace_id ns,
                    const bh_gpu_block* blocks, size_t count, const bh_gpu_job_options* options,
                    bh_gpu_job** out) {
  if (const bh_status bad = check_handle(transfers, "transfers"); bad != BH_OK) return bad;
  if (out == nullptr) return null_argument("out");
  auto job = std::make_unique<bh_gpu_job>(bh_gpu_job{transfers->shared});
  JobOptions settings;
  std::vector<BlockOfTokens> known;
  if (const bh_status bad = read_job_options(options, settings, job->context); bad != BH_OK)
    return bad;
  if (const bh_status bad = read_blocks(blocks, count, spills, known); bad != BH_OK) return bad;
  if (const bh_status bad = transfers->shared->start(spills, ns, known, settings, job);
      bad != BH_OK)
    return bad;
  *out = job.release();
  return BH_OK;
}

}  // namespace
}  // namespace bowhead::api

extern "C" {

// ---- transfers ----

bh_status bh_gpu_transfers_open(bh_pool* pool, bh_gpu* gpu, bh_gpu_memory* memory,
                                const bh_gpu_cache* cache, const bh_gpu_transfers_options* options,
                                bh_gpu_transfers** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(pool, "pool"); bad != BH_OK) return bad;
    if (const bh_status bad = check_handle(gpu, "gpu"); bad != BH_OK) return bad;
    if (const bh_status bad = check_handle(memory, "memory"); bad != BH_OK) return bad;
    KvCache known;
    if (const bh_status bad = read_cache(cache, known); bad != BH_OK) return bad;
    uint64_t pinned_bytes_max = 0;
    if (const bh_status bad = read_transfers_options(options, pinned_bytes_max); bad != BH_OK)
      return bad;
    if (out == nullptr) return null_argument("out");
    const auto info = pool->pool.info();
    if (!info) return finish(*pool, info.status());
    if (info->pool_id != memory->memory->pool_id)
      return fail(BH_INVALID_ARGUMENT,
                  "{}: 'memory' is not that of the pool: use what bh_gpu_register_pool gave for it",
                  current_function);
    auto bell = Bell::make();
    if (!bell) return fail(bell.error());
    auto opened = Transfers::open(pool->pool, *memory->memory->registration, *gpu->device,
                                  std::move(known), pinned_bytes_max);
    if (!opened) return fail(opened.error());
    auto handle = std::make_unique<bh_gpu_transfers>();
    handle->shared = std::make_shared<SharedTransfers>(
        *pool, SharedTransfers::Parts{gpu->device, memory->memory, std::move(*opened), *bell});
    const std::lock_guard lock(pool->mutex);
    pool->ended_first[handle->shared.get()] = [shared = handle->shared] { shared->close(); };
    *out = handle.release();
    return BH_OK;
  });
}

bh_status bh_gpu_transfers_get_info(bh_gpu_transfers* transfers, bh_gpu_transfers_info* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(transfers, "transfers"); bad != BH_OK) return bad;
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    bh_gpu_transfers_info info{};
    if (const bh_status bad = transfers->shared->get_info(info); bad != BH_OK) return bad;
    write_struct(info, out);
    return BH_OK;
  });
}

int bh_gpu_transfers_fd(const bh_gpu_transfers* transfers) {
  return transfers == nullptr ? -1 : transfers->shared->fd();
}

void bh_gpu_transfers_close(bh_gpu_transfers* transfers) {
  if (transfers == nullptr || transfers->forks_at_open != forks()) return;
  (void)guarded(__func__, [&]() -> bh_status {
    transfers->shared->close();
    delete transfers;
    return BH_OK;
  });
}

// ---- jobs ----

bh_status bh_gpu_spill(bh_gpu_transfers* transfers, bh_namespace_id ns, const bh_gpu_block* blocks,
                       size_t block_count, const bh_gpu_job_options* options, bh_gpu_job** out) {
  return guarded(__func__,
                 [&] { return start_job(transfers, true, ns, blocks, block_count, options, out); });
}

bh_status bh_gpu_restore(bh_gpu_transfers* transfers, bh_namespace_id ns,
                         const bh_gpu_block* blocks, size_t block_count,
                         const bh_gpu_job_options* options, bh_gpu_job** out) {
  return guarded(
      __func__, [&] { return start_job(transfers, false, ns, blocks, block_count, options, out); });
}

bh_status bh_gpu_job_wait_layer(bh_gpu_job* job, uint32_t layer, void* stream) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(job, "job"); bad != BH_OK) return bad;
    return job->shared->wait_layer(*job, layer, stream);
  });
}

bh_status bh_gpu_job_layer_ready(bh_gpu_job* job, uint32_t layer, void* stream) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(job, "job"); bad != BH_OK) return bad;
    return job->shared->layer_ready(*job, layer, stream);
  });
}

bh_status bh_gpu_poll(bh_gpu_transfers* transfers, bh_gpu_completion* out, size_t room,
                      size_t* count) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(transfers, "transfers"); bad != BH_OK) return bad;
    if (out == nullptr && room > 0) return null_argument("out");
    if (count == nullptr) return null_argument("count");
    return transfers->shared->poll(out, room, *count);
  });
}

bh_status bh_gpu_job_wait(bh_gpu_job* job, uint64_t timeout_ms) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(job, "job"); bad != BH_OK) return bad;
    const auto timeout = std::chrono::milliseconds(std::min<uint64_t>(timeout_ms, 1ull << 40));
    if (job->shared->wait(*job, Clock::now() + timeout)) return BH_OK;
    return fail(BH_BUSY, "{}: the job was not done after {} ms; it continues", current_function,
                timeout_ms);
  });
}

bh_status bh_gpu_job_cancel(bh_gpu_job* job) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(job, "job"); bad != BH_OK) return bad;
    job->shared->cancel(*job);
    return BH_OK;
  });
}

bh_status bh_gpu_job_results(bh_gpu_job* job, bh_gpu_result* out, size_t count) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(job, "job"); bad != BH_OK) return bad;
    if (out == nullptr && count > 0) return null_argument("out");
    return job->shared->results(*job, out, count);
  });
}

void bh_gpu_job_free(bh_gpu_job* job) {
  if (job == nullptr || job->forks_at_open != forks()) return;
  (void)guarded(__func__, [&]() -> bh_status {
    job->shared->cancel(*job);
    (void)job->shared->wait(*job, Clock::time_point::max());
    job->shared->forget(*job);
    delete job;
    return BH_OK;
  });
}

}  // extern "C"
