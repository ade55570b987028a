// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/token_source.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/jobs/device_job.h"
#include "gpu/jobs/lease_reached.h"
#include "gpu/kernels/check.h"

namespace bowhead::gpu {
namespace {

Error refuse(std::string why) { return {Status::INVALID_ARGUMENT, std::move(why)}; }

/// The clock of leases.
uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// A block that is in the source.
struct Held {
  std::string key;
  Lease lease;
};

}  // namespace

class TokenSource::Fetch {
 public:
  DeviceJob on_device;
  uint32_t* count = nullptr;  ///< of absent tokens, in pinned memory
  Status result = Status::OK;
  uint32_t absent = 0;
};

class TokenSource::Impl {
 public:
  Impl(Pool& pool, Registration& registration, Device& device, KvCache cache, uint64_t lease_ms)
      : pool_(pool),
        registration_(registration),
        device_(device),
        cache_(std::move(cache)),
        lease_ms_(lease_ms),
        fetches_(device, [this](Fetch& fetch) { finish(fetch); }) {}
  ~Impl();

  Result<void> open(const SequenceBlocks& blocks, std::span<const uint32_t> pages);
  Result<std::shared_ptr<Fetch>> fetch(const TokenLists& lists, uint32_t first_layer,
                                       uint32_t some_layers, Stream stream);
  RunningJobs<Fetch>& fetches() { return fetches_; }

  std::vector<Status> results;  ///< by block

 private:
  Result<void> check_target(std::span<const uint32_t> pages) const;
  Status hold(NamespaceId ns, const std::string& key, uint64_t size_bytes, const uint8_t*& payload);
  Result<void> queue_tables(std::span<const uint8_t* const> payloads,
                            std::span<const uint32_t> pages);
  Result<void> upload(size_t size_bytes);
  Result<const void*> reached(const void* memory, size_t size_bytes, const char* what) const;
  Result<TokenLists> reached(TokenLists lists, uint32_t some_layers) const;
  Status renew();
  Status renew(Held& held);
  void finish(Fetch& fetch);

  Pool& pool_;
  Registration& registration_;
  Device& device_;
  const KvCache cache_;
  const uint64_t lease_ms_;
  NamespaceId ns_ = 0;

  std::vector<Held> held_;
  size_t oldest_ = 0;        ///< of the leases; the next ones are renewed in turn
  uint64_t renewed_ns_ = 0;  ///< when the last ones were; at first, before all were taken
  bool is_lost_ = false;     ///< a lease was lost

  FetchTokens work_;  ///< without lists and layers
  uint64_t room_rows_ = 0;
  std::byte *pinned_ = nullptr, *tables_ = nullptr;        ///< tables_: their copy on the device
  uint32_t *counts_ = nullptr, *device_counts_ = nullptr;  ///< in pinned_
  std::vector<uint32_t> free_counts_;
  std::vector<Event> events_;
  RunningJobs<Fetch> fetches_;
};

// ---- open and close ----

Result<void> TokenSource::Impl::check_target(std::span<const uint32_t> pages) const {
  if (auto good = check_cache(cache_); !good) return good;
  if (auto good = check_memory(device_, cache_); !good) return good;
  if (pages.empty()) return refuse("a target of no pages");
  for (size_t i = 0; i < pages.size(); ++i) {
    if (pages[i] >= cache_.pages)
      return refuse(fmt::format("entry {} of the block table is page {}, while the cache has {}", i,
                                pages[i], cache_.pages));
  }
  return {};
}

Result<void> TokenSource::Impl::open(const SequenceBlocks& blocks,
                                     std::span<const uint32_t> pages) {
  if (auto good = check_target(pages); !good) return good;
  if (lease_ms_ == 0) return refuse("leases of 0 ms");
  if (blocks.tokens == 0 || blocks.block_tokens == 0)
    return refuse(fmt::format("{} tokens in blocks of {}: neither may be 0", blocks.tokens,
                              blocks.block_tokens));
  const size_t count = (blocks.tokens - 1) / blocks.block_tokens + 1;
  if (blocks.keys.size() != count)
    return refuse(fmt::format("{} keys, while {} tokens are {} blocks of {}", blocks.keys.size(),
                              blocks.tokens, count, blocks.block_tokens));
  if (auto good = check_stored_layout(pool_, blocks.ns, cache_.layout); !good) return good;
  ns_ = blocks.ns;
  room_rows_ = uint64_t{pages.size()} * cache_.page_tokens;
  work_.tokens = blocks.tokens;
  work_.block_tokens = blocks.block_tokens;
  renewed_ns_ = now_ns();
  std::vector<const uint8_t*> payloads(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t first = i * blocks.block_tokens;
    const auto tokens =
        static_cast<uint32_t>(std::min<uint64_t>(blocks.block_tokens, blocks.tokens - first));
    results.push_back(hold(ns_, blocks.keys[i], cache_.payload_bytes(tokens), payloads[i]));
  }
  return queue_tables(payloads, pages);
}

Status TokenSource::Impl::hold(NamespaceId ns, const std::string& key, uint64_t size_bytes,
                               const uint8_t*& payload) {
  auto reached = lease_reached(pool_, registration_, ns, key, size_bytes, lease_ms_);
  if (!reached) return reached.status();
  payload = reached->payload;
  held_.push_back({key, std::move(reached->lease)});
  return Status::OK;
}

/// Tables do not change: a renewed lease has the block where it was.
Result<void> TokenSource::Impl::queue_tables(std::span<const uint8_t* const> payloads,
                                             std::span<const uint32_t> pages) {
  static_cast<PagedLayers&>(work_) = cache_.paged_layers();
  const size_t parts_at = memory_aligned(payloads.size_bytes());
  const size_t pages_at = parts_at + memory_aligned(cache_.parts.size() * sizeof(PagedPart));
  const size_t counts_at = pages_at + memory_aligned(pages.size_bytes());
  auto pinned = device_.allocate_pinned(counts_at + kMostFetches * sizeof(uint32_t));
  if (!pinned) return pinned.error();
  pinned_ = static_cast<std::byte*>(*pinned);
  auto tables = device_.allocate(counts_at);
  if (!tables) return tables.error();
  tables_ = static_cast<std::byte*>(*tables);
  const auto address = device_.device_address(pinned_);
  if (!address) return address.error();
  counts_ = reinterpret_cast<uint32_t*>(pinned_ + counts_at);
  device_counts_ = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(*address) + counts_at);
  for (uint32_t i = kMostFetches; i > 0; --i) free_counts_.push_back(i - 1);

  std::memcpy(pinned_, payloads.data(), payloads.size_bytes());
  std::memcpy(pinned_ + parts_at, cache_.parts.data(), cache_.parts.size() * sizeof(PagedPart));
  std::memcpy(pinned_ + pages_at, pages.data(), pages.size_bytes());
  FetchTokens on_host = work_;
  on_host.payloads = payloads.data();
  on_host.parts = cache_.parts.data();
  on_host.pages = pages.data();
  on_host.absent = counts_;
  if (auto good = check_source(on_host); !good) return good;
  work_.payloads = reinterpret_cast<const uint8_t* const*>(tables_);
  work_.parts = reinterpret_cast<const PagedPart*>(tables_ + parts_at);
  work_.pages = reinterpret_cast<const uint32_t*>(tables_ + pages_at);
  return upload(counts_at);
}

/// Copies the tables, and waits for it, so that streams need not.
Result<void> TokenSource::Impl::upload(size_t size_bytes) {
  auto event = device_.make_event();
  if (!event) return event.error();
  events_.push_back(*event);
  auto stream = device_.make_stream(0);
  if (!stream) return stream.error();
  auto done = device_.copy(tables_, pinned_, size_bytes, *stream);
  if (done) done = device_.record(*event, *stream);
  if (done) done = device_.synchronize(*event);
  device_.destroy_stream(*stream);
  return done;
}

TokenSource::Impl::~Impl() {
  for (const auto& fetch : fetches_.all()) fetches_.wait(*fetch);
  for (Held& held : held_) (void)pool_.release(held.lease);
  for (Event event : events_) device_.destroy_event(event);
  if (fetches_.may_run()) return;
  device_.free(tables_);
  device_.free(pinned_);
}

// ---- start ----

/// Where kernels find it.
Result<const void*> TokenSource::Impl::reached(const void* memory, size_t size_bytes,
                                               const char* what) const {
  const auto kind = device_.check_reached(what, memory, size_bytes);
  if (!kind) return kind.error();
  if (*kind != PointerKind::REGISTERED) return memory;
  const auto address = device_.device_address(const_cast<void*>(memory));  // kernels only read it
  if (!address) return address.error();
  return *address;
}

Result<TokenLists> TokenSource::Impl::reached(TokenLists lists, uint32_t some_layers) const {
  if (some_layers == 0 || lists.most_tokens == 0) return lists;
  const size_t last_list = size_t{some_layers - 1} * lists.layer_lists +
                           size_t{cache_.layout.heads - 1u} * lists.head_lists;
  const size_t last_token = size_t{lists.most_tokens - 1} * lists.token_stride_bytes;
  const auto tokens =
      reached(lists.tokens, last_list * lists.list_stride_bytes + last_token + sizeof(uint32_t),
              "tokens of lists");
  if (!tokens) return tokens.error();
  lists.tokens = static_cast<const uint8_t*>(*tokens);
  if (lists.counts == nullptr) return lists;
  const auto counts = reached(lists.counts, (last_list + 1) * sizeof(uint32_t), "counts of lists");
  if (!counts) return counts.error();
  lists.counts = static_cast<const uint32_t*>(*counts);
  return lists;
}

Result<std::shared_ptr<TokenSource::Fetch>> TokenSource::Impl::fetch(const TokenLists& lists,
                                                                     uint32_t first_layer,
                                                                     uint32_t some_layers,
                                                                     Stream stream) {
  if (is_lost_) return Error{Status::LAPSED, "a lease was lost: open another source"};
  FetchTokens work = work_;
  work.lists = lists;
  work.first_layer = first_layer;
  work.some_layers = some_layers;
  if (auto good = check_lists(work); !good) return good.error();
  if (lists.most_tokens > room_rows_)
    return refuse(fmt::format("lists of {} tokens, while the target has room for {}",
                              lists.most_tokens, room_rows_));
  const auto reached_lists = reached(lists, some_layers);
  if (!reached_lists) return reached_lists.error();
  work.lists = *reached_lists;
  if (auto good = device_.check_stream(stream); !good) return good.error();
  if (free_counts_.empty())
    return Error{Status::LIMIT_REACHED,
                 fmt::format("{} fetches are not done: poll them", kMostFetches)};
  if (events_.empty()) {
    auto event = device_.make_event();
    if (!event) return event.error();
    events_.push_back(*event);
  }
  const uint32_t number = free_counts_.back();
  counts_[number] = 0;
  work.absent = device_counts_ + number;
  if (auto launched = device_.launch(work, stream); !launched) return launched.error();
  // From here on the event and the count are in use, whatever happens: only a lost device refuses
  // an event that exists.
  free_counts_.pop_back();
  auto fetch = std::make_shared<Fetch>();
  fetch->count = counts_ + number;
  fetch->on_device.begin(events_.back());
  events_.pop_back();
  fetches_.add(fetch);
  if (auto marked = fetch->on_device.mark(device_, stream); !marked) {
    fetches_.wait(*fetch);  // it is over
    return marked.error();
  }
  return fetch;
}

// ---- end ----

/// For a fetch that the device is through with: all reads of the kernel are done, and its count is
/// visible to this CPU. So the state of the leases here covers all reads. Any other fetch may still
/// read tables and count.
void TokenSource::Impl::finish(Fetch& fetch) {
  const bool is_through = fetch.on_device.is_through();
  fetch.absent = *fetch.count;
  fetch.result = is_through ? renew() : fetch.on_device.outcome();
  if (fetch.result == Status::OK && fetch.absent != 0) fetch.result = Status::NOT_FOUND;
  if (is_through) free_counts_.push_back(static_cast<uint32_t>(fetch.count - counts_));
  events_.push_back(fetch.on_device.end());
}

/// Whether all leases are whole now. Renews some of them, whose releases report it: of n leases
/// one, which shows whether this host was declared dead, and n for each half of their time that has
/// passed since the last renewals. So none is older than half of its time after this, and no
/// process has revoked the others; and no fetch has to renew them all, unless it was a long time.
Status TokenSource::Impl::renew() {
  if (is_lost_) return Status::LAPSED;
  const uint64_t now = now_ns(), half_ns = lease_ms_ * 500'000;
  const size_t due = std::min(now - renewed_ns_, half_ns) * held_.size() / half_ns + 1;
  renewed_ns_ = now;
  for (size_t i = 0; i < std::min(due, held_.size()); ++i) {
    if (const Status status = renew(held_[oldest_]); status != Status::OK) return status;
    oldest_ = (oldest_ + 1) % held_.size();
  }
  return Status::OK;
}

/// Reads before the release were done under the lease; if the next lease is refused, that only
/// affects later reads.
Status TokenSource::Impl::renew(Held& held) {
  auto next = pool_.acquire(ns_, held.key, lease_ms_);
  const Lease before = held.lease;
  const Status whole = pool_.release(held.lease);
  const bool is_same = next && next->offset == before.offset && next->stamp == before.stamp;
  if (next) held.lease = *next;
  is_lost_ = is_lost_ || whole != Status::OK || !is_same;
  return whole == Status::OK ? Status::OK : Status::LAPSED;
}

// ---- TokenSource ----

KvCache dense_cache(KvCache shape, uint8_t* area, uint32_t rows) {
  const size_t row = shape.row_bytes(), head = rows * row, part = head * shape.layout.heads;
  shape.page_tokens = rows;
  shape.pages = 1;
  shape.parts.clear();
  for (size_t i = 0; i < size_t{shape.layout.layers} * shape.layout.parts; ++i)
    shape.parts.push_back({area + i * part, part, row, head});
  return shape;
}

TokenSource::TokenSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenSource::TokenSource(TokenSource&&) noexcept = default;
TokenSource& TokenSource::operator=(TokenSource&&) noexcept = default;
TokenSource::~TokenSource() = default;

Result<TokenSource> TokenSource::open(Pool& pool, Registration& registration, Device& device,
                                      const SequenceBlocks& blocks, const FetchTarget& target,
                                      uint64_t lease_ms) {
  auto impl = std::make_unique<Impl>(pool, registration, device, target.cache, lease_ms);
  if (auto opened = impl->open(blocks, target.pages); !opened) return opened.error();
  return TokenSource(std::move(impl));
}

std::span<const Status> TokenSource::results() const { return impl_->results; }

Result<std::shared_ptr<TokenSource::Fetch>> TokenSource::fetch(const TokenLists& lists,
                                                               uint32_t first_layer,
                                                               uint32_t some_layers,
                                                               Stream stream) {
  return impl_->fetch(lists, first_layer, some_layers, stream);
}
bool TokenSource::poll(Fetch& fetch) { return impl_->fetches().poll(fetch); }
void TokenSource::wait(Fetch& fetch) { impl_->fetches().wait(fetch); }
Status TokenSource::result(const Fetch& fetch) const { return fetch.result; }
uint32_t TokenSource::absent(const Fetch& fetch) const { return fetch.absent; }

}  // namespace bowhead::gpu
