// SPDX-License-Identifier: Apache-2.0
// The methods of an open pool.
#include "pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pool/pool_impl.h"

namespace bowhead {

using core::Key;
using core::NativeAccess;

namespace {

constexpr size_t kBatch = core::Lookup<NativeAccess>::kBatch;  ///< keys that the core takes at once

Result<void> check_ttl(uint64_t ttl_ms) {
  if (ttl_ms >= 1 && ttl_ms <= 600'000) return {};
  return Error{Status::INVALID_ARGUMENT, "a lease lasts from 1 to 600,000 ms"};
}

}  // namespace

/// A forked child does not have the threads of a handle, but it has their locks and what they wait
/// on, in a state in which destroying them may wait for ever.
void Pool::Close::operator()(Impl* impl) const {
  if (impl->forked())
    impl->let_go();
  else
    delete impl;
}

Pool::Pool(Handle handle) : impl_(std::move(handle)) {}
Pool::Pool(Pool&&) noexcept = default;
Pool& Pool::operator=(Pool&&) noexcept = default;
Pool::~Pool() = default;

Result<void> Pool::leave() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->leave(); });
}

Result<void> Pool::fence(uint32_t host) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->core().membership.vouch_fenced(host); });
}

// ---- blocks ----

Result<NamespaceId> Pool::open_namespace(const NamespaceDescription& description) {
  if (impl_->forked()) return Status::FORKED;
  if (impl_->destroyed()) return impl_->closed();
  if (description.values.wipe && (impl_->superblock().ro_compat & BH_FEATURE_WIPING) == 0)
    return Error{Status::NOT_SUPPORTED,
                 "the pool was made by a Bowhead that does not overwrite freed blocks: make a new "
                 "pool for this namespace"};
  return impl_->run([&] { return impl_->coded().open_namespace(description); });
}

Result<void> Pool::remove_namespace(std::string_view name) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->core().namespaces.remove_namespace(name); });
}

Result<ValueFormat> Pool::value_format(NamespaceId ns) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  return *impl_->coded().format_of(ns);
}

Status Pool::put(NamespaceId ns, std::string_view key, std::span<const ConstSpan> value,
                 std::string_view user_metadata, const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.status();
  const Status status = impl_->run(
      [&] { return impl_->coded().put(Key(ns, key), value, user_metadata, attributes); });
  impl_->note_refusal(status);
  return impl_->stored(status);
}

Result<uint64_t> Pool::get(NamespaceId ns, std::string_view key, std::span<const Span> buffers,
                           std::string* user_metadata) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  // Of small gets the clock would be a part that counts.
  const bool timed = core::total_bytes(buffers) >= Impl::kSpeedBytes;
  const uint64_t begun_ns = timed ? impl_->now_ns() : 0;
  auto length =
      impl_->run([&] { return impl_->coded().get(Key(ns, key), buffers, user_metadata); });
  if (length && timed) impl_->note_copied(*length, impl_->now_ns() - begun_ns);
  return length;
}

Result<PrefixRead> Pool::get_prefix(NamespaceId ns, std::string_view key, uint32_t planes,
                                    std::span<const Span> buffers) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  if (planes == 0) return Error{Status::INVALID_ARGUMENT, "no planes show nothing: ask for 1"};
  return impl_->run([&] { return impl_->coded().get_prefix(Key(ns, key), planes, buffers); });
}

Result<StoredValue> Pool::get_stored(NamespaceId ns, std::string_view key, Span buffer) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&] { return impl_->coded().get_stored(Key(ns, key), buffer); });
}

Result<uint64_t> Pool::length(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&]() -> Result<uint64_t> {
    const auto located = impl_->core().lookup.locate(Key(ns, key));
    if (!located) return Status::NOT_FOUND;
    return uint64_t{located->header.length_bytes};
  });
}

Result<uint64_t> Pool::exists(NamespaceId ns, std::span<const std::string_view> keys,
                              std::span<uint8_t> present) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  if (present.size() != keys.size()) return Status::INVALID_ARGUMENT;
  return impl_->run([&]() -> Result<uint64_t> {
    uint64_t count = 0;
    for (size_t at = 0; at < keys.size();) {
      const size_t n = std::min(kBatch, keys.size() - at);
      count += impl_->core().lookup.exists(ns, keys.subspan(at, n), present.data() + at);
      at += n;
    }
    return count;
  });
}

Result<uint64_t> Pool::longest_prefix(NamespaceId ns, std::span<const std::string_view> keys) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  return impl_->run([&]() -> Result<uint64_t> {
    std::vector<uint64_t> slots;
    bool gap = false;
    while (!gap && slots.size() < keys.size()) {
      uint8_t present[kBatch];
      uint64_t batch[kBatch];
      const size_t n = std::min(kBatch, keys.size() - slots.size());
      impl_->core().lookup.exists(ns, keys.subspan(slots.size(), n), present, batch);
      for (size_t i = 0; i < n && !gap; ++i) {
        gap = present[i] == 0;
        if (!gap) slots.push_back(batch[i]);
      }
    }
    impl_->core().reading.touch_slots(slots);
    return uint64_t{slots.size()};
  });
}

Status Pool::touch(NamespaceId ns, std::span<const std::string_view> keys) {
  if (auto ok = impl_->may_store(ns); !ok) return ok.status();
  return impl_->run([&]() -> Status {
    std::vector<uint64_t> slots(keys.size());
    for (size_t at = 0; at < keys.size();) {
      uint8_t present[kBatch];
      const size_t n = std::min(kBatch, keys.size() - at);
      impl_->core().lookup.exists(ns, keys.subspan(at, n), present, slots.data() + at);
      at += n;
    }
    impl_->core().reading.touch_slots(slots);
    return Status::OK;
  });
}

Result<Reservation> Pool::reserve(NamespaceId ns, std::string_view key, uint64_t length_bytes,
                                  std::string_view user_metadata,
                                  const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.error();
  auto reserved = impl_->run([&] {
    const auto format = impl_->coded().format_of(ns);
    return impl_->core().writing.reserve(Key(ns, key), length_bytes, user_metadata, attributes,
                                         format && format->wipe);
  });
  impl_->note_refusal(reserved.status());
  return reserved;
}

Status Pool::commit(Reservation& reservation, const PayloadSum& sum) {
  if (const auto why = impl_->barred()) return why->status;
  const Status status = impl_->run([&] { return impl_->core().writing.commit(reservation, sum); });
  impl_->note_refusal(status);
  return impl_->stored(status);
}

Status Pool::abort(Reservation& reservation) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().writing.abort(reservation); });
}

Result<Lease> Pool::acquire(NamespaceId ns, std::string_view key, uint64_t ttl_ms, LeaseOf of) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.error();
  if (auto ok = check_ttl(ttl_ms); !ok) return ok.error();
  return impl_->run([&] { return impl_->coded().acquire(Key(ns, key), ttl_ms, of); });
}

Status Pool::copy_leased(const Lease& lease, Span to) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().reading.copy_leased(lease, to); });
}

Status Pool::check_lease(const Lease& lease) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().reading.check_lease(lease); });
}

Status Pool::release(Lease& lease) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().reading.release(lease); });
}

Status Pool::remove(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.status();
  return impl_->stored(impl_->run([&] { return impl_->core().writing.remove(Key(ns, key)); }));
}

namespace {

/// Calls part(items) for parts of a batch that the core takes at once. Items whose key no block can
/// have get KEY_TOO_LONG and are left out: they are few, so parts end at them.
template <class Item, class Part>
void for_each_part(std::span<Item> items, Part part) {
  for (size_t at = 0; at < items.size();) {
    size_t n = 0;
    while (n < kBatch && at + n < items.size() && Key::valid(items[at + n].key)) ++n;
    if (n > 0) part(items.subspan(at, n));
    at += n;
    if (n < kBatch && at < items.size()) items[at++].status = Status::KEY_TOO_LONG;
  }
}

template <class Item>
Status finish_batch(std::span<Item> items, Status status) {
  if (status == Status::OK) return status;
  for (Item& item : items) item.status = status;
  return status;
}

}  // namespace

Status Pool::put_batch(NamespaceId ns, std::span<PutItem> items) {
  if (auto ok = impl_->may_store(ns); !ok) return finish_batch(items, ok.status());
  return finish_batch(items, impl_->stored(impl_->run([&]() -> Status {
    for_each_part(items, [&](std::span<PutItem> part) { impl_->coded().put_all(ns, part); });
    for (const PutItem& item : items) impl_->note_refusal(item.status);
    return Status::OK;
  })));
}

Status Pool::get_batch(NamespaceId ns, std::span<GetItem> items) {
  for (GetItem& item : items) item.length_bytes = 0;
  if (auto ok = impl_->may_read(ns); !ok) return finish_batch(items, ok.status());
  const Status status = finish_batch(items, impl_->run([&]() -> Status {
    const uint64_t begun_ns = impl_->now_ns();
    for_each_part(items, [&](std::span<GetItem> part) { impl_->coded().get_all(ns, part); });
    uint64_t bytes = 0;
    for (const GetItem& item : items) bytes += item.length_bytes;
    impl_->note_copied(bytes, impl_->now_ns() - begun_ns);
    return Status::OK;
  }));
  if (status != Status::OK) {
    for (GetItem& item : items) item.length_bytes = 0;
  }
  return status;
}

Status Pool::remove_batch(NamespaceId ns, std::span<const std::string_view> keys,
                          std::span<Status> statuses) {
  if (keys.size() != statuses.size()) return Status::INVALID_ARGUMENT;
  const auto remove_all = [&]() -> Status {
    std::vector<Key> valid;
    std::vector<size_t> number;
    for (size_t at = 0; at < keys.size();) {
      valid.clear();
      number.clear();
      for (; at < keys.size() && valid.size() < kBatch; ++at) {
        statuses[at] = Status::KEY_TOO_LONG;
        if (!Key::valid(keys[at])) continue;
        valid.emplace_back(ns, keys[at]);
        number.push_back(at);
      }
      std::vector<Status> removed(valid.size());
      impl_->core().writing.remove_all(valid, removed);
      for (size_t i = 0; i < valid.size(); ++i) statuses[number[i]] = removed[i];
    }
    return Status::OK;
  };
  Status status = impl_->may_store(ns).status();
  if (status == Status::OK) status = impl_->stored(impl_->run(remove_all));
  if (status != Status::OK) std::ranges::fill(statuses, status);
  return status;
}

Result<Prefix> Pool::acquire_prefix(NamespaceId ns, std::span<const std::string_view> keys,
                                    uint64_t ttl_ms, uint64_t group) {
  if (group == 0 || keys.size() % group != 0)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} keys are no whole number of groups of {}", keys.size(), group)};
  if (auto ok = impl_->may_store(ns); !ok) return ok.error();
  if (auto ok = check_ttl(ttl_ms); !ok) return ok.error();
  const auto stored = longest_prefix(ns, keys);
  if (!stored) return stored.error();
  Prefix prefix;
  /// Leases that the caller does not get: memory ran out.
  struct Held {
    Pool& pool;
    std::vector<Lease>& leases;
    bool given = false;
    ~Held() {
      for (Lease& lease : leases) {
        if (!given) (void)pool.release(lease);
      }
    }
  } held{*this, prefix.leases};
  prefix.leases.reserve(*stored);
  Error stopped{Status::OK, {}};
  for (const std::string_view key : keys.first(*stored / group * group)) {
    auto lease = acquire(ns, key, ttl_ms, LeaseOf::STORED);
    if (!lease) {
      stopped = lease.error();
      break;
    }
    prefix.leases.push_back(std::move(*lease));
  }
  for (; prefix.leases.size() % group != 0; prefix.leases.pop_back())
    (void)release(prefix.leases.back());
  const bool lost = stopped.status == Status::NOT_FOUND || stopped.status == Status::COPY_ONLY ||
                    stopped.status == Status::UNSUPPORTED_CODEC;
  if (prefix.leases.empty() && stopped.status != Status::OK && !lost) return stopped;
  for (const Lease& lease : prefix.leases) {
    prefix.length_bytes += lease.length_bytes;
    prefix.stored_bytes += lease.stored_bytes;
  }
  // Each lease made its block the one used last.
  std::vector<uint64_t> slots;
  for (const Lease& lease : prefix.leases)
    slots.push_back(impl_->core().context().layout.slot_of(lease.offset));
  impl_->core().reading.touch_slots(slots);
  prefix.restore_ns = impl_->copy_time_ns(prefix.length_bytes);
  held.given = true;
  return prefix;
}

Result<std::shared_ptr<EventReader>> Pool::open_events(size_t capacity_bytes) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->events().open(capacity_bytes);
}

Result<Pressure> Pool::pressure() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&]() -> Result<Pressure> {
    if (const Status standing = impl_->core().membership.standing(); standing != Status::OK)
      return standing;
    const auto used = impl_->core().space.used();
    return Pressure{static_cast<uint32_t>(used.space_permille),
                    static_cast<uint32_t>(used.index_permille), impl_->refused_lately()};
  });
}

Result<BlockInfo> Pool::describe(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&] { return impl_->core().inspection.describe(Key(ns, key)); });
}

Result<void> Pool::set_attributes(NamespaceId ns, std::string_view key,
                                  const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok;
  return impl_->run([&]() -> Result<void> {
    const Key named(ns, key);
    const Status status = impl_->stored(impl_->core().attributes.set(named, attributes));
    const auto elsewhere =
        status == Status::NOT_FOUND ? impl_->core().inspection.writer_of(named) : std::nullopt;
    if (!elsewhere || elsewhere->host == impl_->core().context().host) return status;
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("host {} has the block: only its processes can set the attributes",
                             elsewhere->host)};
  });
}

Error Pool::explain(Status status, NamespaceId ns, std::string_view key) {
  return impl_->explain(status, Key(ns, key));
}

// ---- the whole pool ----

Result<RecompressReport> Pool::recompress(uint64_t cold_ms) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->coded().recompress(cold_ms); });
}

Status Pool::list(const std::function<bool(const BlockInfo&)>& visit) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Status {
    impl_->core().inspection.list(visit);
    return Status::OK;
  });
}

Result<uint64_t> Pool::scavenge() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&]() -> Result<uint64_t> { return impl_->core().recovery.scavenge_dead(); });
}

Result<std::vector<uint64_t>> Pool::heartbeats() const {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<std::vector<uint64_t>> {
    std::vector<uint64_t> of_hosts;
    for (uint32_t host = 0; host < impl_->superblock().geometry.host_count; ++host)
      of_hosts.push_back(impl_->core().inspection.heartbeat_of(host));
    return of_hosts;
  });
}

Result<PoolInfo> Pool::info() {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<PoolInfo> {
    const bh_superblock& sb = impl_->superblock();
    PoolInfo info{};
    info.locator = impl_->locator();
    info.media_kind = impl_->media().traits().kind;
    info.media_description = impl_->media().traits().description;
    info.pool_id = pool_id_text(sb);
    info.format_version = sb.version;
    info.created_unix_ns = sb.created_unix_ns;
    info.compat = sb.compat;
    info.incompat = sb.incompat;
    info.ro_compat = sb.ro_compat;
    info.second_superblock_used = impl_->second_used();
    impl_->core().inspection.fill_info(info);
    return info;
  });
}

Result<std::vector<NamespaceUsage>> Pool::usage() {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run(
      [&]() -> Result<std::vector<NamespaceUsage>> { return impl_->core().inspection.usage(); });
}

Result<CheckReport> Pool::check(bool payload, const Progress& progress) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<CheckReport> {
    CheckReport report = impl_->core().inspection.check(payload, progress);
    for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
      if (holds_superblock(impl_->media(), impl_->superblock(), copy)) continue;
      report.findings.push_back(
          {fmt::format(
               "the {} copy of the superblock is damaged; the other is in use; `bowhead pool "
               "repair` writes it anew",
               copy == 0 ? "first" : "second"),
           false, uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET});
    }
    return report;
  });
}

Error Pool::explain(Status status) const {
  if (status == Status::CLOSED && impl_->destroyed()) return impl_->closed();
  if (status == Status::MEDIA_ERROR) return media_failure().value_or(Error{status, {}});
  return {status, {}};
}

std::optional<Error> Pool::media_failure() const {
  auto failure = impl_->media().failure();
  if (failure) failure = with_locator(impl_->locator(), *failure);
  return failure;
}

Pool::Prefaulted Pool::prefaulted() const { return impl_->prefaulted(); }

ConstSpan Pool::mapping() const { return {impl_->media().base(), impl_->media().size_bytes()}; }

Result<Pool::MappedAgain> Pool::map_again() const {
  if (impl_->forked()) return Status::FORKED;
  Range range{0, impl_->media().size_bytes()};
  if (impl_->core().growth.possible()) {
    const bh_geometry& g = impl_->superblock().geometry;
    range = {g.payload_offset, g.extent_bytes * core::set_0(g).extent_count};
  }
  auto mapping = impl_->media().map_again(range);
  if (!mapping) return mapping.error();
  return MappedAgain{std::move(*mapping), range.offset};
}

}  // namespace bowhead
