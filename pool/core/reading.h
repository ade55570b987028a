// SPDX-License-Identifier: Apache-2.0
// Reading blocks: copies of whole values and of parts, leases, and notes of when blocks were used.
//
// Owns: nothing; leases are in the pool (Leases). Calls: Lookup; Retirement, for damaged blocks;
// Recovery, when the lease table is full; Usage.
#pragma once

#include "pool/core/usage.h"

namespace bowhead::core {

/// Receives values that are stored as they are.
struct RawSink {
  std::span<const Span> buffers;

  Result<std::span<const Span>> room_for(const bh_block_header& header) const {
    if (header.length_bytes > total_bytes(buffers)) return Status::BUFFER_TOO_SMALL;
    if (header.codec != BH_CODEC_RAW) return Status::UNSUPPORTED_CODEC;
    return buffers;
  }
  Status take(const bh_block_header& /*header*/) const { return Status::OK; }
};

template <class A>
class Reading {
 public:
  explicit Reading(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        leases_(rooms.leases),
        hosts_(rooms.hosts),
        lookup_(rooms.lookup),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        recovery_(rooms.recovery) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  Result<uint64_t> get(const Key& key, std::span<const Span> buffers);
  /// Copies the stored bytes of a block, whatever their codec, to the buffers of `sink`, and
  /// returns the length of the value. A Sink has two methods:
  ///   Result<std::span<const Span>> room_for(const bh_block_header&)  returns buffers for the
  ///       stored bytes, or the error that get() is to return;
  ///   Status take(const bh_block_header&)  gets verified bytes. DAMAGED: they are not a value all
  ///       the same, and the block is dropped like any damaged block.
  /// Header and bytes are private to this call; each method may be called several times.
  /// `user_metadata`: unless null, also gets those of the block; undefined on failure.
  template <class Sink>
  Result<uint64_t> get_stored(const Key& key, Sink& sink, std::string* user_metadata = nullptr) {
    Hits hits;
    auto length = get_stored(key, sink, user_metadata, nullptr, hits);
    note(key.namespace_id, hits);
    return length;
  }
  /// get_stored() for up to Lookup::kBatch keys, pipelined: sink_of(i) returns the sink of a key,
  /// or a reference to it, and done(i, length) gets the result.
  template <class SinkOf, class Done>
  void get_all(uint64_t ns, std::span<const std::string_view> keys, SinkOf sink_of, Done done);
  /// Copies parts of a block: Status take(header, read) calls read(offset, buffer) as it likes, and
  /// verifies the bytes itself, since the checksum of the block covers all of it. The copies are
  /// good only if the length of the value is returned. Empty if the block is not found, has
  /// changed, or may hold bytes of another writer, or if take() is not OK.
  template <class Take>
  std::optional<uint64_t> get_parts(const Key& key, Take take);
  /// Copies the stored bytes of a block and its user metadata, verified. False if it changed or is
  /// damaged (then dropped).
  bool read_stored(const Located& located, std::span<const Span> buffers,
                   std::string& user_metadata);
  /// The lease does not state the layout: the caller knows its namespaces.
  Result<Lease> acquire(const Key& key, uint64_t ttl_ms, LeaseOf of = LeaseOf::PLAIN);
  /// Copies the bytes that a lease covers, and compares the checksum if there is one.
  Status copy_leased(const Lease& lease, Span to);
  /// Whether release() would return OK now, for what was read before the call.
  Status check_lease(const Lease& lease);
  Status release(Lease& lease);
  void touch_slots(std::span<const uint64_t> slots);
  void used_now(uint64_t slot) { used(slot, c_.access.recency_ns()); }
  /// Protocol 5.3: copy, then check that the block is still the same, then the checksum of the
  /// private copy. `damaged`: the block did not change, but its bytes are not those that were put.
  bool copy_out(const Located& located, std::span<const Span> buffers, bool* damaged);
  /// Copies the user metadata of a block, verified. Results as copy_out().
  bool copy_user(const Located& located, std::string& to, bool* damaged) const;

 private:
  /// Notes when a block was used, or leaves its owner a hint. Both may be lost.
  void used(uint64_t slot, uint64_t recency) {
    if (c_.observing()) return;
    if (c_.alone() || extents_.holds(c_.layout.extent_of_slot(slot)))
      c_.store_recency(slot, recency);
    else
      touch_elsewhere(slot);
  }
  Status status_of(const Lease& lease, const typename Leases<A>::Held& held) const;
  bool proves(const Lease& lease, const typename Leases<A>::Held& held);
  static constexpr uint32_t kBlocksAhead = 1;    ///< of a batch, whose copies are prepared
  static constexpr uint64_t kBytesAhead = 1024;  ///< of each; the hardware reads on from there
  void expect(const Located& block) const;
  void touch_elsewhere(uint64_t slot);
  /// Blocks that gets of a namespace have found.
  struct Hits {
    std::array<uint64_t, Lookup<A>::kBatch> slots;
    size_t count = 0;
    uint64_t bytes = 0, elsewhere = 0;  ///< of their values; in other hosts' memory

    void add(const Located& located, uint32_t host) {
      slots[count++] = located.slot;
      bytes += located.header.length_bytes;
      elsewhere += located.found.host != host;
    }
  };
  template <class Sink>
  Result<uint64_t> get_stored(const Key& key, Sink& sink, std::string* user_metadata,
                              const Located* first, Hits& hits);
  void note(uint64_t ns, const Hits& hits);
  void note_miss(uint64_t ns) {
    c_.count(BH_COUNTER_MISSES);
    usage_.missed(ns);
  }
  bool vouched(const Located& located) const;
  void drop_damaged(const Located& located);
  std::optional<uint64_t> take_lease(const bh_index_entry& entry, uint64_t ttl_ms);
  Error lease_table_full() const;
  Status confirm(const Located& located);
  bool settled(uint64_t stamp) const;

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Leases<A>& leases_;
  Hosts<A>& hosts_;
  Lookup<A>& lookup_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Recovery<A>& recovery_;
};

template <class A>
Result<uint64_t> Reading<A>::get(const Key& key, std::span<const Span> buffers) {
  RawSink sink{buffers};
  return get_stored(key, sink);
}

template <class A>
template <class SinkOf, class Done>
void Reading<A>::get_all(uint64_t ns, std::span<const std::string_view> keys, SinkOf sink_of,
                         Done done) {
  if (keys.size() == 1) {
    auto&& sink = sink_of(0);
    done(0, get_stored(Key(ns, keys[0]), sink));
    return;
  }
  typename Lookup<A>::Blocks blocks(keys.size());
  std::array<Hash128, Lookup<A>::kBatch> hashes;
  lookup_.locate_all(ns, keys, hashes,
                     [&](uint32_t i, const Located& block) { blocks.add(i, block); });
  // Counted together: each count is a locked instruction, which waits for the stores of a copy.
  Hits hits;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    for (uint32_t next = i == 0 ? 0 : i + kBlocksAhead; next <= i + kBlocksAhead; ++next) {
      if (next < keys.size() && blocks.of(next) != nullptr) expect(*blocks.of(next));
    }
    if (blocks.of(i) == nullptr) {
      note_miss(ns);
      done(i, Result<uint64_t>(Status::NOT_FOUND));
      continue;
    }
    auto&& sink = sink_of(i);
    const Key key(ns, keys[i], hashes[i]);
    done(i, get_stored(key, sink, nullptr, blocks.of(i), hits));
  }
  note(ns, hits);
}

/// Asks for the lines that copying a block begins with.
template <class A>
void Reading<A>::expect(const Located& block) const {
  for (uint64_t at = 0; at < std::min<uint64_t>(block.header.stored_bytes, kBytesAhead);
       at += BH_LINE_BYTES)
    c_.access.prefetch(block.found.entry.block_offset + at);
  if (const uint64_t word = c_.word_index(block.slot); word != Layout::kNoWord)
    c_.access.prefetch_own(c_.own(BH_PART_RECENCY, word));
}

/// `first`: the block, if it was looked up already.
template <class A>
template <class Sink>
Result<uint64_t> Reading<A>::get_stored(const Key& key, Sink& sink, std::string* user_metadata,
                                        const Located* first, Hits& hits) {
  std::optional<Located> damaged_block;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto located =
        attempt == 0 && first != nullptr ? std::optional(*first) : lookup_.locate(key);
    if (!located) break;
    const auto buffers = sink.room_for(located->header);
    if (!buffers) return buffers.error();
    bool damaged = false;
    if (copy_out(*located, *buffers, &damaged) &&
        (user_metadata == nullptr || copy_user(*located, *user_metadata, &damaged))) {
      const Status taken = sink.take(located->header);
      if (taken == Status::OK) {
        hits.add(*located, c_.host);
        return located->header.length_bytes;
      }
      damaged = taken == Status::DAMAGED;
      if (!damaged) return taken;
    }
    damaged_block = damaged ? located : std::nullopt;
  }
  if (damaged_block && c_.observing()) return Status::DAMAGED;
  if (damaged_block) drop_damaged(*damaged_block);
  note_miss(key.namespace_id);
  return Status::NOT_FOUND;
}

/// Treats the block like one without a checksum: its bytes are those of its stamp if its writer's
/// life was not over, they had reached the memory before they were acquired, and the stamp is still
/// there afterwards.
template <class A>
template <class Take>
std::optional<uint64_t> Reading<A>::get_parts(const Key& key, Take take) {
  const auto located = lookup_.locate(key);
  if (!located) return std::nullopt;
  const bh_index_entry& entry = located->found.entry;
  if ((entry.flags & BH_ENTRY_COPY_ONLY) != 0) return std::nullopt;
  if (located->found.host != c_.host && !settled(entry.stamp)) return std::nullopt;
  const auto read = [&](uint64_t offset, Span to) {
    BOWHEAD_ASSERT(offset + to.size <= entry.stored_bytes);
    c_.acquire_from(located->found.host, entry.block_offset + offset, to.size);
    c_.access.read_payload(entry.block_offset + offset, to.size, {&to, 1}, /*used_soon=*/true);
  };
  if (take(located->header, read) != Status::OK) return std::nullopt;
  // The load of the stamp may not overtake the copies: no checksum would show it.
  c_.access.fence();
  const uint64_t header_at = c_.layout.header(located->slot);
  c_.acquire_from(located->found.host, header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != entry.stamp || !vouched(*located)) return std::nullopt;
  if (c_.access.payload_lost(entry.block_offset, entry.stored_bytes)) return std::nullopt;
  Hits hits;
  hits.add(*located, c_.host);
  note(key.namespace_id, hits);
  return located->header.length_bytes;
}

template <class A>
bool Reading<A>::read_stored(const Located& located, std::span<const Span> buffers,
                             std::string& user_metadata) {
  bool damaged = false;
  const bool read =
      copy_out(located, buffers, &damaged) && copy_user(located, user_metadata, &damaged);
  if (damaged) drop_damaged(located);
  return read;
}

template <class A>
Result<Lease> Reading<A>::acquire(const Key& key, uint64_t ttl_ms, LeaseOf of) {
  Status refused = Status::NOT_FOUND;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto located = lookup_.locate(key);
    if (!located) break;
    const bh_index_entry& entry = located->found.entry;
    const bh_block_header& header = located->header;
    if (header.codec > BH_CODEC_FRAME) return Status::UNSUPPORTED_CODEC;
    if (header.codec != BH_CODEC_RAW && of == LeaseOf::PLAIN) return Status::CODED;
    const auto token = take_lease(entry, ttl_ms);
    if (!token) return lease_table_full();
    /// Ends it unless the caller gets it, also if memory runs out.
    struct Held {
      Leases<A>& of;
      uint64_t token;
      ~Held() {
        if (token != 0) of.end(token);
      }
    } held{leases_, *token};
    Status status = confirm(*located);
    std::string user_metadata;
    bool damaged = false;
    if (status == Status::OK && c_.access.payload_lost(entry.block_offset, entry.stored_bytes))
      damaged = true;
    if (status == Status::OK && (damaged || !copy_user(*located, user_metadata, &damaged)))
      status = Status::NOT_FOUND;
    if (status == Status::OK) {
      used_now(located->slot);
      c_.count(BH_COUNTER_HITS);
      usage_.hit(key.namespace_id);
      if (located->found.host != c_.host) c_.count(BH_COUNTER_HITS_ELSEWHERE);
      Lease lease{.data = c_.access.payload(entry.block_offset),
                  .stored_bytes = entry.stored_bytes,
                  .length_bytes = header.length_bytes,
                  .offset = entry.block_offset,
                  .stamp = entry.stamp,
                  .token = *token,
                  .codec = header.codec};
      if (header.checksum_kind != BH_CHECKSUM_NONE) lease.checksum = entry.payload_checksum;
      lease.user_metadata = std::move(user_metadata);
      held.token = 0;
      return lease;
    }
    leases_.end(std::exchange(held.token, 0));
    if (damaged) drop_damaged(*located);
    if (c_.ended()) return c_.gone();
    refused = status;
  }
  note_miss(key.namespace_id);
  return refused;
}

template <class A>
Status Reading<A>::copy_leased(const Lease& lease, Span to) {
  if (lease.token == 0 || lease.data != c_.access.payload(lease.offset)) return Status::CLOSED;
  if (to.size < lease.stored_bytes) return Status::BUFFER_TOO_SMALL;
  const bool used_soon = lease.codec != BH_CODEC_RAW;  // by a decoder
  const auto copied = [&] {
    const uint64_t sum =
        c_.access.read_payload(lease.offset, lease.stored_bytes, {&to, 1}, used_soon);
    c_.access.fence();
    return lease.checksum ? sum == *lease.checksum
                          : !c_.access.payload_lost(lease.offset, lease.stored_bytes);
  };
  if (copied()) return Status::OK;
  // acquire() invalidated its lines; a prefetch may have brought stale ones back since. The stamp
  // is not checked here: the lease keeps the block, and release() reports whether it did (L2, L4).
  c_.access.acquire(lease.offset, lease.stored_bytes);
  return copied() ? Status::OK : Status::DAMAGED;
}

/// Whether a lease that is held, and not revoked, proves that its bytes were the block's so far.
template <class A>
bool Reading<A>::proves(const Lease& lease, const typename Leases<A>::Held& held) {
  const uint64_t slot = c_.layout.slot_of(held.block_offset);
  // If holder and owner are zombies, the owner's old header may come back: the stamp is no proof.
  if (!c_.alone() && !extents_.holds(c_.layout.extent_of_slot(slot)))
    c_.access.invalidate(c_.layout.header(slot), BH_LINE_BYTES);
  const bool declared_dead = !c_.alone() && hosts_.decided({c_.host, c_.incarnation});
  const bool same = c_.access.load(c_.layout.header(slot)) == held.stamp;
  const bool lost = c_.access.payload_lost(lease.offset, lease.stored_bytes);
  return same && !declared_dead && !lost && !c_.ended();
}

/// CLOSED or LAPSED if it is not held.
template <class A>
Status Reading<A>::status_of(const Lease& lease, const typename Leases<A>::Held& held) const {
  // Handles of other pools give the same tokens, but map other addresses.
  if (lease.token == 0 || lease.data != c_.access.payload(lease.offset)) return Status::CLOSED;
  if (held.state == Leases<A>::State::HELD) return Status::OK;
  return held.state == Leases<A>::State::LAPSED ? Status::LAPSED : Status::CLOSED;
}

/// A lease that is active here was so at every read before the fence: no process reused the block
/// (L2), so the caller read its bytes. Loads acquire: the state is read again after the stamp, so
/// that no lease is revoked between them unseen.
template <class A>
Status Reading<A>::check_lease(const Lease& lease) {
  c_.access.fence();
  const auto held = leases_.held(lease.token);
  if (const Status status = status_of(lease, held); status != Status::OK) return status;
  const bool proven = proves(lease, held);
  return proven && leases_.held(lease.token).active ? Status::OK : Status::LAPSED;
}

template <class A>
Status Reading<A>::release(Lease& lease) {
  const auto held = leases_.held(lease.token);
  if (const Status status = status_of(lease, held); status != Status::OK) {
    if (lease.data == c_.access.payload(lease.offset)) lease.token = 0;
    return status;
  }
  const bool proven = proves(lease, held);
  const bool valid = leases_.end(lease.token) && proven;
  lease.token = 0;
  const uint64_t slot = c_.layout.slot_of(held.block_offset);
  const bool own = c_.alone() || extents_.holds(c_.layout.extent_of_slot(slot));
  // A process that retired the block meanwhile could not free it because of this lease.
  if (own && allocator_.word(slot).state == BH_BLOCK_RETIRED) retirement_.reclaim({&slot, 1});
  return valid ? Status::OK : Status::LAPSED;
}

template <class A>
void Reading<A>::touch_slots(std::span<const uint64_t> slots) {
  // The first slot gets the latest time: eviction then takes a prefix from its end.
  uint64_t recency = c_.access.recency_ns() + slots.size();
  for (const uint64_t slot : slots) {
    if (slot != UINT64_MAX) used(slot, recency);
    --recency;
  }
}

/// Leaves the owner a hint that a block was used. Many blocks share a word; the last one wins.
template <class A>
void Reading<A>::touch_elsewhere(uint64_t slot) {
  const uint64_t at =
      c_.own(BH_PART_TOUCH, slot * 0x9E3779B97F4A7C15u % c_.layout.geometry().touch_count);
  c_.access.store_relaxed(at, make_touch(slot, c_.access.recency_ns()));
  c_.access.flush(at, 8);
  const uint64_t touched_at = c_.private_word(offsetof(bh_host_private, touched));
  if (c_.access.load_relaxed(touched_at) == 0) c_.access.store_relaxed(touched_at, 1);
}

/// Counts them, and makes the copies visible to other threads.
template <class A>
void Reading<A>::note(uint64_t ns, const Hits& hits) {
  if (hits.count == 0) return;
  c_.access.fence();
  const uint64_t recency = c_.access.recency_ns();
  for (size_t i = 0; i < hits.count; ++i) used(hits.slots[i], recency);
  c_.count(BH_COUNTER_HITS, hits.count);
  usage_.hit(ns, hits.count);
  c_.count(BH_COUNTER_BYTES_OUT, hits.bytes);
  if (hits.elsewhere != 0) c_.count(BH_COUNTER_HITS_ELSEWHERE, hits.elsewhere);
}

template <class A>
bool Reading<A>::copy_out(const Located& located, std::span<const Span> buffers, bool* damaged) {
  const uint64_t offset = located.found.entry.block_offset;
  const uint64_t bytes = located.header.stored_bytes;
  const bool checked = located.header.checksum_kind != BH_CHECKSUM_NONE;
  // The header may be in the memory before the payload (I3), and no checksum would show it.
  if (!checked && located.found.host != c_.host && !settled(located.found.entry.stamp))
    return false;
  if (!checked) c_.access.acquire(offset, bytes);
  const bool used_soon = located.header.codec != BH_CODEC_RAW;  // by a decoder
  uint64_t checksum = c_.access.read_payload(offset, bytes, buffers, used_soon);
  if (checked && checksum != located.found.entry.payload_checksum && !c_.alone()) {
    // Stale lines of an earlier block are rare, and the checksum finds them: so acquire only now.
    c_.access.acquire(offset, bytes);
    checksum = c_.access.read_payload(offset, bytes, buffers, used_soon);
  }
  const uint64_t header_at = c_.layout.header(located.slot);
  // On weakly ordered machines this load may overtake the copy: the checksum decides then, and
  // where there is none, a fence keeps the order.
  if (!checked) c_.access.fence();
  c_.acquire_from(writer_of(located.found.host, located.found.entry), header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != located.header.stamp) return false;
  if (!checked && !vouched(located)) return false;
  *damaged = checked ? checksum != located.found.entry.payload_checksum
                     : c_.access.payload_lost(offset, bytes);
  return !*damaged;
}

template <class A>
bool Reading<A>::copy_user(const Located& located, std::string& to, bool* damaged) const {
  auto user = lookup_.read_user(located.slot, located.header);
  if (user) {
    to = std::move(*user);
    return true;
  }
  // Their lines are fresh: if the block still has its stamp, they are not what was put.
  const uint64_t header_at = c_.layout.header(located.slot);
  c_.access.fence();
  c_.acquire_from(writer_of(located.found.host, located.found.entry), header_at, BH_LINE_BYTES);
  *damaged = c_.access.load(header_at) == located.header.stamp;
  return false;
}

/// For blocks without a checksum: the life of the host that stored the block was not over when it
/// was copied, so no other host can have written there.
template <class A>
bool Reading<A>::vouched(const Located& located) const {
  if (c_.alone()) return true;
  // A zombie may have written to a block that was stored before custody was full.
  if ((located.found.entry.flags & BH_ENTRY_COPY_ONLY) != 0) return false;
  const uint32_t host = located.found.host;
  const uint64_t at = c_.layout.word(host, BH_PART_OWN, c_.layout.extent_of_slot(located.slot));
  c_.acquire_from(host, at, 8);
  const auto own = OwnWord::unpack(c_.access.load(at));
  return own.state == BH_OWN_OWN && own.custody == BH_CUSTODY_FULL &&
         !hosts_.decided({host, own.incarnation});
}

template <class A>
void Reading<A>::drop_damaged(const Located& located) {
  if (located.found.host != c_.host) return;
  const Hash128 hash = hash_of(located.header);
  retirement_.retire(located.slot, hash, located.header.stamp, BH_COUNTER_DAMAGED);
  retirement_.reclaim({&located.slot, 1});
}

/// Takes a lease. If the table is full, first frees leases that were never released: those that
/// have expired, and those of dead processes. So a pool of one host needs no periodic search. The
/// search is a walk over the hazards and one question to the kernel for each process; the walk over
/// the full table before it was longer.
template <class A>
std::optional<uint64_t> Reading<A>::take_lease(const bh_index_entry& entry, uint64_t ttl_ms) {
  const auto take = [&] {
    return leases_.take(entry.block_offset, entry.stamp, c_.access.now_ns() + ttl_ms * 1'000'000);
  };
  if (auto token = take()) return token;
  if (leases_.revoke_expired(c_.access.now_ns()) + recovery_.scavenge_dead() == 0)
    return std::nullopt;
  return take();
}

template <class A>
Error Reading<A>::lease_table_full() const {
  return Error{Status::LIMIT_REACHED, "the lease table of this host is full: all " +
                                          std::to_string(leases_.count()) +
                                          " leases are held and none has expired; release some"};
}

/// Checks, after the hazard is visible, that the block may be leased and is still the same
/// (protocol 5.4 (1), (3), (4), (5)). NOT_FOUND: it changed; COPY_ONLY: it is in custody.
template <class A>
Status Reading<A>::confirm(const Located& located) {
  const bh_index_entry& entry = located.found.entry;
  const uint64_t header_at = c_.layout.header(located.slot);
  // Check the owner before the header: this host acks the end of an owner's life only after `view`
  // states it, and that comes after this load or shows in it.
  const uint64_t extent = c_.layout.extent_of_slot(located.slot);
  const uint32_t host = located.found.host;
  const uint64_t own_at = c_.layout.word(host, BH_PART_OWN, extent);
  c_.acquire_from(host, own_at, 8);
  const auto own = OwnWord::unpack(c_.access.load(own_at));
  if (c_.ended()) return c_.gone();
  if (!c_.alone() && (own.state != BH_OWN_OWN || c_.ended({host, own.incarnation}) ||
                      own.custody != BH_CUSTODY_FULL))
    return Status::COPY_ONLY;
  // Only now (L2): a stamp read before the hazard was visible could be of a block already freed.
  const uint32_t writer = writer_of(host, entry);
  c_.acquire_from(writer, header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != entry.stamp) return Status::NOT_FOUND;
  c_.acquire_from(writer, entry.block_offset, entry.stored_bytes);
  // If the block was stored just now, or by a host that may have been writing when it died, its
  // header may be in the memory before its payload (I3).
  if (host == c_.host && (entry.flags & BH_ENTRY_COPY_ONLY) == 0) return Status::OK;
  if ((entry.flags & BH_ENTRY_COPY_ONLY) == 0 && settled(entry.stamp)) return Status::OK;
  return located.header.checksum_kind != BH_CHECKSUM_NONE &&
                 c_.access.sum_payload(entry.block_offset, entry.stored_bytes) ==
                     entry.payload_checksum
             ? Status::OK
             : Status::NOT_FOUND;
}

/// True if header and payload of this stamp have reached the memory.
template <class A>
bool Reading<A>::settled(uint64_t stamp) const {
  if (!c_.incoherent()) return true;
  const uint32_t writer = stamp_host(stamp);
  if (writer >= c_.layout.geometry().host_count) return false;
  const uint64_t at =
      c_.layout.part(writer, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, settled);
  c_.acquire_from(writer, at, 8);
  const uint64_t word = c_.access.load(at);
  return word >> BH_STAMP_SEQUENCE_BITS == stamp_incarnation(stamp) &&
         stamp_sequence(stamp) <= (word & kStampSequenceMax);
}

}  // namespace bowhead::core
