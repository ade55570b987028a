// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "gpu/devices/pinned_arena.h"
#include "gpu/jobs/device_job.h"
#include "gpu/jobs/frames.h"
#include "gpu/kernels/check.h"

namespace bowhead::gpu {
namespace {

static_assert(kPieceBytes == kChecksumPieceBytes);

size_t whole_pieces(uint64_t bytes) { return bytes / kPieceBytes; }
/// The checksum of a payload; `sums` are those of its whole pieces.
uint64_t checksum_of(std::span<const uint64_t> sums, const std::byte* payload, uint64_t bytes) {
  std::vector<uint64_t> all(sums.begin(), sums.end());
  const uint64_t rest = bytes % kPieceBytes;
  if (rest != 0) all.push_back(hash64(payload + bytes - rest, rest));
  return combine_pieces(all, bytes);
}

}  // namespace

const char* staging_name(Staging staging) {
  switch (staging) {
    case Staging::NONE:
      return "none";
    case Staging::NOT_YET:
      return "not yet registered";
    case Staging::NOT_REACHED:
      return "not reached";
    case Staging::NO_LEASE:
      return "no lease";
    case Staging::COMPRESSED:
      return "compressed";
  }
  return "unknown";
}

/// One block of a job that goes through the device.
struct Moving {
  size_t number = 0;  ///< in the job
  PagedTokens range;
  uint64_t size_bytes = 0;
  std::byte* payload = nullptr;       ///< in the pool or in `staging`; of a frame the device's half
  uint8_t* device_payload = nullptr;  ///< the same for kernels
  uint64_t frame_bytes = 0;           ///< in staging.pinned, for staging.device; 0: not compressed
  const uint64_t* sums = nullptr;     ///< of the kernel
  std::vector<uint32_t> pages;
  Staging staged = Staging::NONE;
  PinnedRoom staging;
  std::optional<Reservation> reservation;
  std::optional<Lease> lease;
};

class Transfers::Job {
 public:
  bool spills = false;
  bool by_layers = false;
  bool is_cancelled = false;
  Path path = Path::KERNEL;
  uint32_t layers_at_once = 0;
  std::vector<Status> results;
  std::vector<Staging> staging;
  std::vector<Moving> moving;
  PinnedRoom room;
  Stream stream = nullptr;
  MovePieces work,
      on_host;  ///< the descriptor for the kernel, and one with host addresses to check
  /// The same where blocks and pages go with the kernel's arguments; null: they lie in `room`.
  std::unique_ptr<MoveFewPieces> few;
  uint32_t layers_queued = 0;
  std::unique_ptr<FrameDecoder> decoder;  ///< null: no block is a frame
  std::vector<Event> events;              ///< by group of layers that is queued
  DeviceJob on_device;                    ///< the queued work; nothing, if no block moves
  Status queue_status = Status::OK;

  bool waits_for_layers(uint32_t layers) const {
    return !is_cancelled && queue_status == Status::OK && !moving.empty() && layers_queued < layers;
  }
};

class Transfers::Impl {
 public:
  Impl(Pool& pool, Registration& registration, Device& device, KvCache cache,
       uint64_t most_pinned_bytes)
      : pool_(pool),
        registration_(registration),
        device_(device),
        cache_(std::move(cache)),
        layers_(cache_.layout.layers),
        arena_(device, most_pinned_bytes),
        jobs_(device, [this](Job& job) { finish(job); }) {}
  ~Impl();

  Result<void> open();
  Result<std::shared_ptr<Job>> start(NamespaceId ns, std::span<const BlockOfTokens> blocks,
                                     const JobOptions& options, bool spills);
  Result<void> wait_layer(const Job& job, uint32_t layer, Stream stream);
  Result<void> layer_ready(Job& job, uint32_t layer, Stream stream);
  bool poll(Job& job);
  void wait(Job& job);
  void cancel(Job& job);
  void notify_with(std::function<void()> notify) { notify_ = std::move(notify); }
  const KvCache& cache() const { return cache_; }
  const PathCosts& costs() const { return costs_; }
  const TransfersInfo& info() const { return info_; }

 private:
  Result<Event> take_event();
  bool reach(Moving& block, DeviceAccess access);
  Status stage(Moving& block, bool on_device);
  Status copy_leased(Moving& block);
  Status copy_unleased(NamespaceId ns, const std::string& key, bool is_frame, Moving& block);
  static Status check_length(uint64_t length_bytes, const Moving& block);
  static void decode_staged(Moving& block, uint64_t frame_bytes);
  Status prepare_spill(NamespaceId ns, const BlockOfTokens& given, Moving& block);
  Status prepare_restore(NamespaceId ns, const std::string& key, const JobOptions& options,
                         Moving& block);
  Result<void> tell_parts();
  Result<void> write_descriptors(Job& job);
  Path choose(const Job& job) const;
  Result<void> queue(Job& job, const JobOptions& options);
  Result<void> decode(Job& job);
  void end_decoding(Job& job);
  Result<void> follow(Job& job, Stream stream);
  MovePieces descriptor(const Job& job, uint32_t most_tokens) const;
  std::vector<CopyRun> copy_runs(const Job& job, uint32_t first_layer, uint32_t some_layers) const;
  Result<void> queue_layers(Job& job);
  Result<void> announce(const Job& job);
  void finish(Job& job);
  Status end(Moving& block, bool spills, Status status);
  Status end_spill(Moving& block, Status status);
  Status end_restore(Moving& block, Status status);

  Pool& pool_;
  Registration& registration_;
  Device& device_;
  const KvCache cache_;
  const uint32_t layers_;
  PathCosts costs_;
  Stream streams_[2] = {};  ///< for jobs that are not urgent, and for those that are
  PinnedArena arena_;
  PinnedRoom parts_;  ///< of the cache, for kernels
  std::vector<Event> events_;
  std::vector<std::unique_ptr<FrameDecoder>> decoders_;  ///< not in use by a job
  RunningJobs<Job> jobs_;
  TransfersInfo info_;
  std::function<void()> notify_;  ///< may be empty
};

// ---- open and close ----

Result<void> Transfers::Impl::open() {
  if (auto good = check_cache(cache_); !good) return good;
  if (auto good = check_memory(device_, cache_); !good) return good;
  for (int urgent = 0; urgent < 2; ++urgent) {
    auto stream = device_.make_stream(-urgent);
    if (!stream) return stream.error();
    streams_[urgent] = *stream;
  }
  auto costs = gpu::path_costs(device_);
  if (!costs) return costs.error();
  costs_ = *costs;
  return tell_parts();
}

/// Puts the parts of the cache, which do not change, where all jobs find them.
Result<void> Transfers::Impl::tell_parts() {
  const size_t bytes = cache_.parts.size() * sizeof(PagedPart);
  auto room = arena_.take(bytes, true);
  if (!room) return room.error();
  parts_ = *room;
  std::memcpy(parts_.pinned, cache_.parts.data(), bytes);
  auto event = take_event();
  if (!event) return event.error();
  events_.push_back(*event);
  auto done = device_.copy(parts_.device, parts_.pinned, bytes, streams_[0]);
  if (done) done = device_.record(*event, streams_[0]);
  if (done) done = device_.synchronize(*event);
  if (!done) parts_ = {};  // the copy may still read it: in quarantine
  return done;
}

Transfers::Impl::~Impl() {
  for (const auto& job : jobs_.all()) {
    job->is_cancelled = true;
    wait(*job);
  }
  for (Stream stream : streams_) {
    if (stream != nullptr) device_.destroy_stream(stream);
  }
  for (Event event : events_) device_.destroy_event(event);
  if (!jobs_.may_run()) arena_.give_back(parts_);
}

Result<Event> Transfers::Impl::take_event() {
  if (events_.empty()) return device_.make_event();
  Event event = events_.back();
  events_.pop_back();
  return event;
}

// ---- start ----

/// Whether kernels and copies reach the payload where it lies in the pool; else why not.
bool Transfers::Impl::reach(Moving& block, DeviceAccess access) {
  const auto offset = static_cast<uint64_t>(block.payload - pool_.mapping().data);
  const auto reached = registration_.reach(offset, block.size_bytes, access);
  if (reached) {
    block.device_payload = static_cast<uint8_t*>(*reached);
    return true;
  }
  block.staged = reached.status() == Status::BUSY ? Staging::NOT_YET : Staging::NOT_REACHED;
  if (block.staged == Staging::NOT_REACHED) info_.refusal = reached.error().message();
  return false;
}

Status Transfers::Impl::stage(Moving& block, bool on_device) {
  auto room = arena_.take(block.size_bytes, on_device);
  if (!room) return room.status();
  block.staging = *room;
  block.payload = room->pinned;
  block.device_payload = room->address;
  return Status::OK;
}

/// OK without a payload: the key is stored, and there is nothing to do.
Status Transfers::Impl::prepare_spill(NamespaceId ns, const BlockOfTokens& given, Moving& block) {
  auto reservation =
      pool_.reserve(ns, given.key, block.size_bytes, given.user_metadata, given.attributes);
  if (!reservation) return reservation.status();
  if (reservation->present) return Status::OK;
  block.reservation = std::move(*reservation);
  block.payload = block.reservation->data;
  return reach(block, DeviceAccess::READ_AND_WRITE) ? Status::OK : stage(block, false);
}

/// acquire() drops the stored bytes from this CPU's caches before it gives the lease: a device's
/// reads look into them.
Status Transfers::Impl::prepare_restore(NamespaceId ns, const std::string& key,
                                        const JobOptions& options, Moving& block) {
  auto lease = pool_.acquire(ns, key, options.lease_ms, LeaseOf::STORED);
  if (lease.status() == Status::COPY_ONLY || lease.status() == Status::LIMIT_REACHED)
    return copy_unleased(ns, key, /*is_frame=*/false, block);
  if (!lease) return lease.status();
  block.lease = *lease;
  if (const Status fits = check_length(lease->length_bytes, block); fits != Status::OK) return fits;
  if (lease->codec == BH_CODEC_RAW) {
    block.payload = const_cast<std::byte*>(lease->data);  // kernels read it
    if (reach(block, DeviceAccess::READ)) return Status::OK;
  }
  return copy_leased(block);
}

Status Transfers::Impl::check_length(uint64_t length_bytes, const Moving& block) {
  return length_bytes > block.size_bytes   ? Status::BUFFER_TOO_SMALL
         : length_bytes < block.size_bytes ? Status::INVALID_ARGUMENT
                                           : Status::OK;
}

/// Copies the stored bytes to pinned memory, and ends the lease: a frame, which the device then
/// decodes, or a payload that the device does not reach.
Status Transfers::Impl::copy_leased(Moving& block) {
  const bool is_frame = block.lease->codec == BH_CODEC_FRAME;
  if (is_frame) block.staged = Staging::COMPRESSED;
  Status status = stage(block, is_frame);
  if (status == Status::OK)
    status = pool_.copy_leased(*block.lease, {block.payload, block.size_bytes});
  const Status released = pool_.release(*block.lease);
  const uint64_t stored_bytes = block.lease->stored_bytes;
  block.lease.reset();
  // A lapsed lease explains any bytes.
  if (released != Status::OK && (status == Status::OK || status == Status::DAMAGED))
    return released;
  if (status == Status::OK && is_frame) decode_staged(block, stored_bytes);
  return status;
}

/// The same for a block that gives no lease. Memory of the device is taken only for a frame.
Status Transfers::Impl::copy_unleased(NamespaceId ns, const std::string& key, bool is_frame,
                                      Moving& block) {
  block.staged = Staging::NO_LEASE;
  if (const Status status = stage(block, is_frame); status != Status::OK) return status;
  const auto stored = pool_.get_stored(ns, key, {block.payload, block.size_bytes});
  if (!stored) return stored.status();
  if (const Status fits = check_length(stored->length_bytes, block); fits != Status::OK)
    return fits;
  if (stored->is_frame && !is_frame) {
    arena_.give_back(block.staging);
    return copy_unleased(ns, key, /*is_frame=*/true, block);
  }
  if (stored->is_frame) decode_staged(block, stored->stored_bytes);
  return Status::OK;
}

/// The pinned half holds a frame, of which the device makes the payload in its half.
void Transfers::Impl::decode_staged(Moving& block, uint64_t frame_bytes) {
  block.staged = Staging::COMPRESSED;
  block.frame_bytes = frame_bytes;
  block.payload = block.staging.device;
  block.device_payload = reinterpret_cast<uint8_t*>(block.staging.device);
}

Result<std::shared_ptr<Transfers::Job>> Transfers::Impl::start(
    NamespaceId ns, std::span<const BlockOfTokens> blocks, const JobOptions& options, bool spills) {
  if (auto good = check_stored_layout(pool_, ns, cache_.layout); !good) return good.error();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (auto good = check_tokens(cache_, blocks[i].range); !good)
      return Error{good.status(), fmt::format("block {}: {}", i, good.error().message())};
  }
  if (options.after) {
    if (auto good = device_.check_stream(*options.after); !good) return good.error();
  }
  auto job = std::make_shared<Job>();
  job->spills = spills;
  job->results.assign(blocks.size(), Status::OK);
  job->staging.assign(blocks.size(), Staging::NONE);
  job->by_layers = options.layers_at_once != 0;
  job->layers_at_once = job->by_layers ? std::min(options.layers_at_once, layers_) : layers_;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const PagedTokens& range = blocks[i].range;
    Moving block;
    block.number = i;
    // Only the part of the table that it takes, and tokens counted from there.
    const uint32_t first_page = range.first_token / cache_.page_tokens;
    const uint32_t last_page = (range.first_token + range.tokens - 1) / cache_.page_tokens;
    block.pages.assign(range.pages.begin() + first_page, range.pages.begin() + last_page + 1);
    block.range = {{}, range.first_token % cache_.page_tokens, range.tokens};
    block.size_bytes = cache_.payload_bytes(range.tokens);
    const Status status = spills ? prepare_spill(ns, blocks[i], block)
                                 : prepare_restore(ns, blocks[i].key, options, block);
    if (status == Status::OK && block.payload != nullptr) {
      job->staging[i] = block.staged;
      ++info_.blocks[static_cast<size_t>(block.staged)];
      job->moving.push_back(std::move(block));
      continue;
    }
    job->results[i] = status;
    // Gives back what the block took before it failed.
    (void)end(block, spills, status);
  }
  for (Moving& block : job->moving) block.range.pages = block.pages;
  jobs_.add(job);
  auto queued = queue(*job, options);
  if (queued) queued = announce(*job);
  if (!queued) {
    job->queue_status = queued.status();
    jobs_.abandon(*job, job->stream);
    return queued.error();
  }
  return job;
}

/// The descriptor, except where parts and blocks lie.
MovePieces Transfers::Impl::descriptor(const Job& job, uint32_t most_tokens) const {
  MovePieces work{cache_.paged_layers()};
  work.kind = job.path == Path::COPIES ? MoveKind::SUM_ONLY
              : job.spills             ? MoveKind::TO_PAYLOAD
                                       : MoveKind::FROM_PAYLOAD;
  work.block_count = static_cast<uint32_t>(job.moving.size());
  work.most_tokens = most_tokens;
  return work;
}

Path Transfers::Impl::choose(const Job& job) const {
  uint64_t bytes = 0, run = 0;
  for (const Moving& block : job.moving) {
    bytes += block.size_bytes;
    run = std::max(run, run_bytes(cache_, block.range.tokens));
  }
  return costs_.faster(job.spills, cache_.unit_bytes(), run, bytes / layers_ * job.layers_at_once);
}

/// Blocks and their pages go with the kernel's arguments if they are few. Else they lie in one room
/// of the arena and are copied to the device first. Behind them lie the sums that the kernel
/// writes, which go to the pinned half.
Result<void> Transfers::Impl::write_descriptors(Job& job) {
  uint32_t most_tokens = 0;
  size_t pages = 0, pieces = 0;
  for (const Moving& block : job.moving) {
    most_tokens = std::max(most_tokens, block.range.tokens);
    pages += block.pages.size();
    pieces += whole_pieces(block.size_bytes);
  }
  const bool is_few =
      job.moving.size() <= MoveFewPieces::kMostBlocks && pages <= MoveFewPieces::kMostPages;
  const size_t pages_at = is_few ? 0 : memory_aligned(job.moving.size() * sizeof(MoveBlock));
  const size_t sums_at = is_few ? 0 : pages_at + memory_aligned(pages * sizeof(uint32_t));
  auto room = arena_.take(sums_at + std::max<size_t>(pieces, 1) * sizeof(uint64_t), !is_few);
  if (!room) return room.error();
  job.room = *room;
  if (is_few) job.few = std::make_unique<MoveFewPieces>();

  auto* blocks = is_few ? job.few->blocks : reinterpret_cast<MoveBlock*>(room->pinned);
  auto* table = is_few ? job.few->pages : reinterpret_cast<uint32_t*>(room->pinned + pages_at);
  // Few blocks are read here only by check(), on this CPU.
  const auto* kernel_table =
      is_few ? table : reinterpret_cast<const uint32_t*>(room->device + pages_at);
  auto* sums = reinterpret_cast<uint64_t*>(room->pinned + sums_at);
  auto* device_sums = reinterpret_cast<uint64_t*>(room->address + sums_at);
  uint32_t page = 0;
  size_t piece = 0;
  for (size_t i = 0; i < job.moving.size(); ++i) {
    Moving& block = job.moving[i];
    std::copy(block.pages.begin(), block.pages.end(), table + page);
    blocks[i] = {block.device_payload, device_sums + piece, kernel_table + page,
                 block.range.first_token, block.range.tokens};
    if (is_few) job.few->first_pages[i] = page;
    block.sums = sums + piece;
    page += static_cast<uint32_t>(block.pages.size());
    piece += whole_pieces(block.size_bytes);
  }
  job.work = job.on_host = descriptor(job, most_tokens);
  job.work.parts = reinterpret_cast<const PagedPart*>(parts_.device);
  job.work.blocks = reinterpret_cast<const MoveBlock*>(room->device);
  job.on_host.parts = cache_.parts.data();
  job.on_host.blocks = blocks;
  auto mark = take_event();
  if (!mark) return mark.error();
  job.on_device.begin(*mark);
  if (is_few) return {};
  return device_.copy(room->device, room->pinned, sums_at, job.stream);
}

/// The next work of the job waits for the work queued in `stream`.
Result<void> Transfers::Impl::follow(Job& job, Stream stream) {
  auto event = take_event();
  if (!event) return event.error();
  auto ordered = device_.record(*event, stream);
  if (ordered) ordered = device_.wait(job.stream, *event);
  events_.push_back(*event);
  return ordered;
}

Result<void> Transfers::Impl::queue(Job& job, const JobOptions& options) {
  if (job.moving.empty()) return {};
  job.path = options.path == Path::CHOOSE ? choose(job) : options.path;
  job.stream = streams_[options.urgent ? 1 : 0];
  if (auto good = write_descriptors(job); !good) return good;
  if (options.after) {
    if (auto ordered = follow(job, *options.after); !ordered) return ordered;
  }
  if (auto decoded = decode(job); !decoded) return decoded;
  const bool waits = job.by_layers && job.spills;
  while (!waits && job.layers_queued < layers_) {
    if (auto queued = queue_layers(job); !queued) return queued;
  }
  return job.on_device.mark(device_, job.stream);
}

/// Queues the kernels that make payloads of frames.
Result<void> Transfers::Impl::decode(Job& job) {
  std::vector<FrameJob> frames;
  for (const Moving& block : job.moving) {
    if (block.frame_bytes == 0) continue;
    const auto* frame = reinterpret_cast<const uint8_t*>(block.staging.pinned);
    frames.push_back({{frame, block.frame_bytes}, block.device_payload, block.size_bytes});
  }
  if (frames.empty()) return {};
  if (decoders_.empty()) decoders_.push_back(std::make_unique<FrameDecoder>(device_));
  auto started = decoders_.back()->start(frames, job.stream);
  if (!started) return started;
  job.decoder = std::move(decoders_.back());
  decoders_.pop_back();
  return {};
}

/// Sets the results of blocks whose frames could not be decoded.
void Transfers::Impl::end_decoding(Job& job) {
  if (!job.decoder) return;
  if (const auto statuses = job.decoder->finish()) {
    size_t frame = 0;
    for (const Moving& block : job.moving) {
      if (block.frame_bytes == 0) continue;
      const Status status = (*statuses)[frame++];
      if (job.results[block.number] == Status::OK) job.results[block.number] = status;
    }
  }
  decoders_.push_back(std::move(job.decoder));
}

/// No run leaves the chunk of the registration in which it begins.
std::vector<CopyRun> Transfers::Impl::copy_runs(const Job& job, uint32_t first_layer,
                                                uint32_t some_layers) const {
  std::vector<CopyRun> runs;
  for (const Moving& block : job.moving) {
    // The device's address: not every driver takes the host's address of registered memory.
    const auto add = [&](uint64_t offset, uint8_t* address, uint64_t bytes) {
      uint8_t* const payload = block.device_payload + offset;
      runs.push_back(job.spills ? CopyRun{payload, address, bytes}
                                : CopyRun{address, payload, bytes});
    };
    for_runs(cache_, block.range, first_layer, some_layers,
             [&](uint64_t offset, uint8_t* address, uint64_t bytes) {
               if (block.staging.pinned != nullptr) return add(offset, address, bytes);
               const auto in_pool =
                   static_cast<uint64_t>(block.payload + offset - pool_.mapping().data);
               registration_.for_chunks(in_pool, bytes, [&](uint64_t at, uint64_t part) {
                 add(offset + (at - in_pool), address + (at - in_pool), part);
               });
             });
  }
  return runs;
}

/// The next layers, with an event behind them.
Result<void> Transfers::Impl::queue_layers(Job& job) {
  const uint32_t first = job.layers_queued;
  const uint32_t some = std::min(job.layers_at_once, layers_ - first);
  job.work.first_layer = job.on_host.first_layer = first;
  job.work.some_layers = job.on_host.some_layers = some;
  if (auto good = check(job.on_host); !good) return good;
  if (job.path == Path::COPIES) {
    const std::vector<CopyRun> runs = copy_runs(job, first, some);
    if (auto copied = device_.copy_batch(runs, job.stream); !copied) return copied;
  }
  if (job.few) job.few->pieces = job.work;
  if (auto launched = device_.launch(job.few ? Work(*job.few) : Work(job.work), job.stream);
      !launched)
    return launched;
  auto event = take_event();
  if (!event) return event.error();
  job.events.push_back(*event);
  job.layers_queued += some;
  return device_.record(*event, job.stream);
}

Result<void> Transfers::Impl::wait_layer(const Job& job, uint32_t layer, Stream stream) {
  if (job.on_device.is_done() || job.spills || layer >= layers_)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("layer {} of {}, of {}", layer, layers_,
                             job.on_device.is_done() ? "a job that is done"
                             : job.spills            ? "a spill"
                                                     : "a restore")};
  if (auto good = device_.check_stream(stream); !good) return good;
  if (job.events.empty()) return {};  // no block moves
  return device_.wait(stream, job.events[layer / job.layers_at_once]);
}

Result<void> Transfers::Impl::layer_ready(Job& job, uint32_t layer, Stream stream) {
  if (job.on_device.is_done() || layer >= layers_ || !job.spills || !job.by_layers)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("layer {} of {}, of {}", layer, layers_,
                    job.on_device.is_done()       ? "a job that is done"
                    : job.spills && job.by_layers ? "a spill"
                                                  : "a job that does not wait for layers")};
  if (auto good = device_.check_stream(stream); !good) return good;
  const auto is_ready = [&] {
    return std::min(job.layers_queued + job.layers_at_once, layers_) <= layer + 1;
  };
  if (!job.waits_for_layers(layers_) || !is_ready()) return {};
  auto queued = follow(job, stream);
  while (queued && job.layers_queued < layers_ && is_ready()) queued = queue_layers(job);
  // Also behind work that was queued before a failure.
  const auto marked = job.on_device.mark(device_, job.stream);
  if (queued) queued = marked;
  job.queue_status = queued.status();
  if (const auto announced = announce(job); !announced) {
    if (queued) queued = announced;
    job.queue_status = queued.status();
    notify_();
  }
  return queued;
}

/// Notifies when the device is through with all of the job, unless more is to come.
Result<void> Transfers::Impl::announce(const Job& job) {
  if (!notify_ || job.waits_for_layers(layers_)) return {};
  if (!job.moving.empty()) return device_.notify(job.stream, notify_);
  notify_();
  return {};
}

// ---- end ----

bool Transfers::Impl::poll(Job& job) { return !job.waits_for_layers(layers_) && jobs_.poll(job); }

void Transfers::Impl::wait(Job& job) {
  if (job.waits_for_layers(layers_)) {
    job.on_device.wait(device_);
    if (job.on_device.is_through()) return;  // and goes on when layers are ready
  }
  jobs_.wait(job);
}

void Transfers::Impl::cancel(Job& job) {
  const bool waited = job.waits_for_layers(layers_);
  job.is_cancelled = true;
  // Another job has announced itself.
  if (waited && !announce(job)) notify_();
}

/// For a job that the device is through with: its stores, in the pool or as sums, are visible to
/// this CPU, and all its reads are done. So a commit publishes bytes that are there, and the state
/// of a lease here covers all reads.
void Transfers::Impl::finish(Job& job) {
  const bool is_through = job.on_device.is_through();
  const Status status = !is_through                      ? job.on_device.outcome()
                        : job.queue_status != Status::OK ? job.queue_status
                        : job.is_cancelled               ? Status::CANCELLED
                                                         : Status::OK;
  for (Moving& block : job.moving) {
    if (is_through) {
      job.results[block.number] = end(block, job.spills, status);
    } else {
      job.results[block.number] = status;
      if (block.lease) (void)pool_.release(*block.lease);  // it is only read
    }
  }
  if (is_through) {
    end_decoding(job);
    arena_.give_back(job.room);
  }
  (void)job.decoder.release();  // has memory as well
  // Events may be recorded anew whatever they meant.
  events_.insert(events_.end(), job.events.begin(), job.events.end());
  if (Event mark = job.on_device.end(); mark != nullptr) events_.push_back(mark);
  job.moving.clear();
  job.events.clear();
}

Status Transfers::Impl::end(Moving& block, bool spills, Status status) {
  const Status result = spills ? end_spill(block, status) : end_restore(block, status);
  arena_.give_back(block.staging);
  return result;
}

/// Commits, or gives the space back where `status` is not OK.
Status Transfers::Impl::end_spill(Moving& block, Status status) {
  if (!block.reservation) return status;
  if (status != Status::OK) {
    (void)pool_.abort(*block.reservation);
    return status;
  }
  if (block.payload != block.reservation->data)
    std::memcpy(block.reservation->data, block.payload, block.size_bytes);
  return pool_.commit(*block.reservation, {PayloadSum::By::WRITER,
                                           checksum_of({block.sums, whole_pieces(block.size_bytes)},
                                                       block.payload, block.size_bytes)});
}

/// get() verified the bytes it copied; bytes that were read under a lease are verified now.
Status Transfers::Impl::end_restore(Moving& block, Status status) {
  if (!block.lease) return status;
  if (status == Status::OK && block.lease->checksum &&
      *block.lease->checksum != checksum_of({block.sums, whole_pieces(block.size_bytes)},
                                            block.payload, block.size_bytes))
    status = Status::DAMAGED;
  // A lapsed lease explains any sum.
  const Status released = pool_.release(*block.lease);
  return status == Status::OK || (status == Status::DAMAGED && released == Status::LAPSED)
             ? released
             : status;
}

// ---- Transfers ----

Transfers::Transfers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transfers::Transfers(Transfers&&) noexcept = default;
Transfers& Transfers::operator=(Transfers&&) noexcept = default;
Transfers::~Transfers() = default;

Result<Transfers> Transfers::open(Pool& pool, Registration& registration, Device& device,
                                  KvCache cache, uint64_t most_pinned_bytes) {
  auto impl =
      std::make_unique<Impl>(pool, registration, device, std::move(cache), most_pinned_bytes);
  if (auto opened = impl->open(); !opened) return opened.error();
  return Transfers(std::move(impl));
}

const KvCache& Transfers::cache() const { return impl_->cache(); }
const PathCosts& Transfers::path_costs() const { return impl_->costs(); }

Result<std::shared_ptr<Transfers::Job>> Transfers::spill(NamespaceId ns,
                                                         std::span<const BlockOfTokens> blocks,
                                                         const JobOptions& options) {
  return impl_->start(ns, blocks, options, true);
}

Result<std::shared_ptr<Transfers::Job>> Transfers::restore(NamespaceId ns,
                                                           std::span<const BlockOfTokens> blocks,
                                                           const JobOptions& options) {
  return impl_->start(ns, blocks, options, false);
}

Result<void> Transfers::wait_layer(const Job& job, uint32_t layer, Stream stream) {
  return impl_->wait_layer(job, layer, stream);
}
Result<void> Transfers::layer_ready(Job& job, uint32_t layer, Stream stream) {
  return impl_->layer_ready(job, layer, stream);
}
bool Transfers::poll(Job& job) { return impl_->poll(job); }
void Transfers::wait(Job& job) { impl_->wait(job); }
void Transfers::cancel(Job& job) { impl_->cancel(job); }
void Transfers::notify_with(std::function<void()> notify) { impl_->notify_with(std::move(notify)); }
std::span<const Status> Transfers::results(const Job& job) const { return job.results; }
std::span<const Staging> Transfers::staging(const Job& job) const { return job.staging; }
const TransfersInfo& Transfers::info() const { return impl_->info(); }

}  // namespace bowhead::gpu
