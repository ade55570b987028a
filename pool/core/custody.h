// SPDX-License-Identifier: Apache-2.0
// Extents of lives that are over: their successor takes them into custody, serves their blocks, and
// opens them when that is safe (protocol 5.11).
//
// Invariants
//   S3 An extent that a word of this host makes its own comes into use only after the word has
//      settled and, after that, no decision about this life had begun. So the successor of this
//      life, which looks after its decision has settled, finds the word among the predecessors'.
//   S4 Nothing is written into an extent in READ_ONLY custody. It ends only when every live host
//      has acked that the lives before it are over and no hazard names a block of it; it ends in
//      FULL only if all those lives are known to have stopped writing.
//   S5 An extent that was inherited, or taken back from a recipient, comes into use only if, after
//      its word had settled, the words and decisions of the others still led to this life: words of
//      a decision that was a link may have been used again while the chain was followed, and a late
//      recipient may have written. A host that looks later finds the word of a live host.
//   S7 An extent in FULL custody is described as its owner has cut it: the description is written
//      when the last life that could write there is known to have stopped, and before the word says
//      FULL. So a rebuild cuts no extent as a zombie did.
//
// Owns: the job under way, and the work that is left. Calls: Holdings, Grants, KeyLocks, Lookup,
// Membership (suspicion), Namespaces, Recovery (slabs), Retirement, Usage.
#pragma once

#include "pool/core/holdings.h"
#include "pool/core/key_locks.h"
#include "pool/core/usage.h"

namespace bowhead::core {

inline constexpr uint64_t kSweepHeartbeats = 50;
/// A survey reads the words of all hosts so often in any case: a count may have been lost.
inline constexpr uint64_t kSurveyHeartbeats = 50;

template <class A>
class Custody {
 public:
  explicit Custody(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        index_(rooms.index),
        hosts_(rooms.hosts),
        locks_(rooms.locks),
        lookup_(rooms.lookup),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        namespaces_(rooms.namespaces),
        holdings_(rooms.holdings),
        growth_(rooms.growth),
        grants_(rooms.grants),
        membership_(rooms.membership),
        recovery_(rooms.recovery) {}
  Custody(const Custody&) = delete;
  Custody& operator=(const Custody&) = delete;

  /// A host's work on extents: it claims those given to it, takes back those not claimed, adopts
  /// those inherited, and opens those in custody. Work that grows with the pool is a job, done in
  /// slices. False if there was work and another process is doing it, or should be.
  bool settle_extents(uint64_t now_ns, bool locked);

 private:
  /// A walk over the buckets of an index, in slices.
  struct Walk {
    uint32_t host = 0;
    uint64_t bucket = 0;
  };
  /// Extents whose holder this host succeeds, and how far the import of their blocks has got.
  struct Adoption {
    std::vector<std::pair<uint64_t, Holding>> inherited;
    std::vector<bool> extents;
    std::vector<uint32_t> sources;  ///< hosts whose indexes are still to be read
    Walk walk;
    uint64_t walked_at_ns = 0;
    std::vector<bh_index_entry> waiting;  ///< a process holds the locks of their keys
  };
  /// Extents in custody that come into use, or into fuller use.
  struct Opening {
    uint64_t began_ns = 0;
    Walk walk;
    std::vector<std::pair<uint64_t, uint32_t>> extents;  ///< and the custody that each gets
    size_t acquired = 0, opened = 0;                     ///< how many of them
    std::vector<bool> swept;                             ///< the extents that the walk checks
  };
  bool may_take_extents(uint64_t now_ns) const;
  void note_extents_busy(bool busy);
  bool has_job() const { return !std::holds_alternative<std::monostate>(job_); }
  bool run_job(bool locked);
  template <class Visit>
  bool walk_index(Walk& walk, uint64_t until_ns, Visit visit);
  void survey(uint64_t now_ns, uint64_t hosts, const LivesOver& over);
  void adopt(std::vector<std::pair<uint64_t, Holding>> inherited);
  void uncount_imports(uint64_t extent);
  bool continue_job(Adoption& job, uint64_t until_ns);
  bool continue_job(Opening& job, uint64_t until_ns);
  void confirm_adopted();
  bool stopped_before(uint64_t extent) const;
  bool import_entry(bh_index_entry entry);
  void open_custody(uint64_t now_ns);
  bool may_open(Opening& job);
  void set_custody(uint64_t extent, uint32_t custody);
  bool is_overwritten(const bh_index_entry& entry, const std::vector<bool>& extents) const;
  void retire_overwritten(size_t first);
  bool retire_overwritten(const bh_index_entry& entry);
  std::vector<bool> unswept_extents() const;
  bool describe_anew(uint64_t extent);
  void open_extent(uint64_t extent);

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Index<A>& index_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Lookup<A>& lookup_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Namespaces<A>& namespaces_;
  Holdings<A>& holdings_;
  Growth<A>& growth_;
  Grants<A>& grants_;
  Membership<A>& membership_;
  Recovery<A>& recovery_;

  uint64_t surveyed_all_at_ns_ = 0;         ///< the last survey that read the words of all hosts
  std::optional<LivesOver> surveyed_over_;  ///< as known before that
  uint64_t unread_ = 0;                     ///< hosts that wrote words since the last survey
  uint64_t sweep_due_ns_ = 0;
  std::variant<std::monostate, Adoption, Opening> job_;  ///< the job under way, if any
  /// Overwritten, and not retired yet. Their extents stay closed or COPY_ONLY: if this process
  /// ends, another one finds the entries.
  std::vector<bh_index_entry> unswept_;
  bool custody_pending_ = true;
};

template <class A>
bool Custody<A>::settle_extents(uint64_t now_ns, bool locked) {
  // Counted from here, so that a slice runs however long the other duties took.
  const uint64_t until_ns = c_.access.now_ns() + uint64_t{c_.times.heartbeat_ms} * 1'000'000;
  for (;;) {
    while (has_job()) {
      if (!run_job(locked)) return false;
      if (c_.access.now_ns() >= until_ns || c_.ended()) return true;
    }
    // The words of a life that is over must have been read after that was decided (S3): a survey
    // knows of no life that ended later.
    const LivesOver over = holdings_.lives_over();
    unread_ |= holdings_.moved();
    const bool all =
        over != surveyed_over_ ||
        now_ns - surveyed_all_at_ns_ >= kSurveyHeartbeats * c_.times.heartbeat_ms * 1'000'000;
    if (!all && unread_ == 0 && !custody_pending_ && !grants_.wanted()) return true;
    // One process of the host at a time, also if it takes longer than a heartbeat: no process may
    // close an extent that another has opened.
    const HostLock lock(c_, locked);
    if (!lock.held()) return false;
    if (!may_take_extents(now_ns)) return false;
    if (all) {
      surveyed_all_at_ns_ = now_ns;
      surveyed_over_ = over;
    }
    const uint64_t hosts = std::exchange(unread_, 0);
    survey(now_ns, all ? ~uint64_t{0} : hosts, over);
    if (!has_job()) return true;
  }
}

/// Under the host lock. While another process has a job under way, lives and goes on with it, this
/// one leaves the extents alone. A process that stood still for too long is passed over and notices
/// when it resumes: the work is done under the lock, only by the process that the word names.
template <class A>
bool Custody<A>::may_take_extents(uint64_t now_ns) const {
  const uint64_t word = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  const auto process = static_cast<uint32_t>(word >> 48);
  if (word == 0 || process == c_.process + 1 || !c_.alive(process - 1)) return true;
  const uint64_t since_ms = word & ((uint64_t{1} << 48) - 1);
  return now_ns / 1'000'000 - since_ms >
         std::max<uint64_t>(10 * c_.times.heartbeat_ms, c_.times.dead_ms);
}

/// Under the host lock.
template <class A>
void Custody<A>::note_extents_busy(bool busy) {
  const uint64_t now_ms = c_.access.now_ns() / 1'000'000;
  c_.access.store(c_.private_word(offsetof(bh_host_private, extents_busy)),
                  busy ? uint64_t{c_.process + 1} << 48 | now_ms : 0);
}

/// Runs one slice of the job. It is short, since processes that open the pool wait for the host
/// lock. False if the lock is held.
template <class A>
bool Custody<A>::run_job(bool locked) {
  const HostLock lock(c_, locked);
  if (!lock.held()) return false;
  const uint64_t busy = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  bool done = busy >> 48 != c_.process + 1;  // another process has begun anew
  if (!done) {
    const uint64_t until_ns = c_.access.now_ns() + uint64_t{c_.times.heartbeat_ms} * 1'000'000 / 16;
    if (auto* adoption = std::get_if<Adoption>(&job_)) done = continue_job(*adoption, until_ns);
    if (auto* opening = std::get_if<Opening>(&job_)) done = continue_job(*opening, until_ns);
    note_extents_busy(!done);
  }
  if (done) {
    job_ = std::monostate{};
    custody_pending_ = true;  // the next survey finds the work left
  }
  return true;
}

/// Calls visit(Found) for the entries of an index from where the walk is; true at its end.
template <class A>
template <class Visit>
bool Custody<A>::walk_index(Walk& walk, uint64_t until_ns, Visit visit) {
  for (;;) {
    const uint64_t bucket = c_.layout.next_bucket(walk.bucket);
    if (bucket >= c_.layout.bucket_end()) return true;
    if (bucket % 16 == 0 && walk.bucket != 0 && c_.access.now_ns() >= until_ns) return false;
    index_.for_each_in(walk.host, bucket, visit);
    walk.bucket = bucket + 1;
  }
}

/// Reads the words of these hosts anew. Those of the others are as they were when they were last
/// read, or newer.
template <class A>
void Custody<A>::survey(uint64_t now_ns, uint64_t hosts, const LivesOver& over) {
  const Life self{c_.host, c_.incarnation};
  std::vector<std::pair<uint64_t, Holding>> claims, inherited;
  std::map<Life, bool> mine;  // whether this host succeeds the life
  uint64_t holders = lookup_.own_bit();
  holdings_.reread_own_words(hosts);
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    if (!c_.layout.has_extent(e)) continue;
    const Holding now = holdings_.holding_of(e, over);
    // Of a further set, before the words of the host that adds it were seen.
    if (now.word.state == BH_OWN_NONE && e >= c_.layout.geometry().extent_count) continue;
    if (now.life.incarnation != 0) holders |= uint64_t{1} << now.life.host;
    if (now.life == self) {
      const bool to_ended =
          now.word.state == BH_OWN_GIVEN && over.has({now.word.slot, now.word.incarnation});
      if (now.word.state == BH_OWN_CLAIM) claims.emplace_back(e, now);
      if (now.word.state == BH_OWN_ABANDONED || to_ended) {
        holdings_.write_own(e, {BH_OWN_OWN, now.word.epoch + 1, BH_OWN_UNCONFIRMED, c_.incarnation,
                                BH_CUSTODY_READ_ONLY});
        custody_pending_ = true;
      } else if (now.word.state == BH_OWN_OWN && holdings_.has_rival(e, now.word.epoch)) {
        OwnWord word = now.word;
        word.epoch += 1;
        holdings_.write_own(e, word);
      }
    } else if (now.word.state == BH_OWN_GIVEN && now.word.slot == c_.host &&
               now.word.incarnation == c_.incarnation && !over.has(now.life)) {
      claims.emplace_back(e, now);
    } else if (over.has(now.life)) {
      const auto [at, fresh] = mine.try_emplace(now.life, false);
      if (fresh) at->second = hosts_.successor(now.life) == self;
      if (!at->second) continue;
      OwnWord own = extents_.own_word(e);
      if (own.state != BH_OWN_OWN || own.incarnation != c_.incarnation) {
        inherited.emplace_back(e, now);
        continue;
      }
      // Held already: a life in between wrote late that it had inherited the extent.
      own.epoch = now.word.epoch + 1;
      holdings_.write_own(e, own);
    }
  }
  hosts_.forget_hosts_but(holders);
  if (grants_.wanted() && claims.empty() && inherited.empty()) grants_.ask_for_extents();
  if (!claims.empty()) grants_.claim(claims);
  if (!has_job() && !inherited.empty()) adopt(std::move(inherited));
  confirm_adopted();
  if (c_.ended()) return;
  if (!has_job()) open_custody(now_ns);
  custody_pending_ |= has_job() || claims.size() > grants_.transfer_extents();
}

/// Protocol 5.11 (1): the blocks of a life that is over are served at once. They enter this host's
/// index before its `own` words say OWN, so that a host that rejoins does not clear its own index
/// before that. Until then look-ups find them in the index of the dead host.
template <class A>
void Custody<A>::adopt(std::vector<std::pair<uint64_t, Holding>> inherited) {
  Adoption job;
  job.inherited = std::move(inherited);
  growth_.unsay_drained();  // W5
  // It may have died while it counted a block that it imported, whose word names no process.
  const uint64_t busy = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  if (busy != 0 && busy >> 48 != c_.process + 1) usage_.doubt();
  job.extents.resize(c_.layout.extent_limit());
  for (const auto& [e, was] : job.inherited) {
    uncount_imports(e);
    if (!grants_.forget(e)) {
      custody_pending_ = true;
      return;
    }
    job.extents[e] = true;
    extents_.close(e);
    if (was.life.incarnation != 0) job.sources.push_back(was.life.host);
  }
  recovery_.restore_slabs([&](uint64_t e) { return job.extents[e]; });
  std::sort(job.sources.begin(), job.sources.end());
  job.sources.erase(std::unique(job.sources.begin(), job.sources.end()), job.sources.end());
  if (!job.sources.empty()) job.walk.host = job.sources.back();
  job_ = std::move(job);
  note_extents_busy(true);
}

/// The blocks that an adoption imported, which was begun and not finished: they are imported anew.
template <class A>
void Custody<A>::uncount_imports(uint64_t extent) {
  const Slab slab = extents_.held_slab(extent);
  if (slab.block_bytes == 0 || slab.head != extent) return;
  for (uint64_t i = 0; i < slab.block_count; ++i) {
    const uint64_t slot = extents_.slot_of(slab, i);
    const SeenWord seen = c_.see(slot);
    bh_block_header header;
    if (seen.word.state != BH_BLOCK_COMMITTED || !c_.change(seen, seen.word.next(BH_BLOCK_NONE)))
      continue;
    if (lookup_.read_header(slot, header))
      usage_.subtract(header);
    else
      usage_.doubt();  // U2
  }
}

template <class A>
bool Custody<A>::continue_job(Adoption& job, uint64_t until_ns) {
  while (!job.sources.empty()) {
    const bool all = walk_index(job.walk, until_ns, [&](const Found& found) {
      const bh_index_entry& entry = found.entry;
      if (c_.layout.valid_block(entry.block_offset, entry.stored_bytes) &&
          job.extents[c_.layout.extent_of_slot(c_.layout.slot_of(entry.block_offset))] &&
          !import_entry(entry))
        job.waiting.push_back(entry);
    });
    if (!all) return false;
    job.sources.pop_back();
    if (!job.sources.empty()) job.walk = {.host = job.sources.back()};
    job.walked_at_ns = c_.access.now_ns();
  }
  // The job does not wait for a process that hangs with the lock of a key: the block is lost.
  std::erase_if(job.waiting, [&](const bh_index_entry& entry) { return import_entry(entry); });
  if (!job.waiting.empty() && c_.access.now_ns() < job.walked_at_ns + kLockWaitNs) return false;
  // Only extents with the holder and epoch of the survey. The next survey finds the others.
  const LivesOver over = holdings_.refresh_own_words();
  for (const auto& [e, was] : job.inherited) {
    const Holding now = holdings_.holding_of(e, over);
    if (now.life == was.life && now.word.epoch == was.word.epoch)
      holdings_.write_own(e, {BH_OWN_OWN, now.word.epoch + 1, BH_OWN_UNCONFIRMED, c_.incarnation,
                              BH_CUSTODY_READ_ONLY});
  }
  return true;
}

/// First extents that were READ_ONLY become writable; then blocks that their old owner overwrote
/// are dropped; then free blocks come into use. An extent stays `closed`, or COPY_ONLY, to the end,
/// so that another process starts over if this one dies; and until no such block is left there.
template <class A>
bool Custody<A>::continue_job(Opening& job, uint64_t until_ns) {
  const auto late = [&] { return c_.access.now_ns() >= until_ns; };
  for (; job.acquired < job.extents.size(); ++job.acquired) {
    if (late()) return false;
    const auto [e, custody] = job.extents[job.acquired];
    const uint32_t before = extents_.own_word(e).custody;
    if (custody == BH_CUSTODY_FULL && before != BH_CUSTODY_FULL) {
      c_.access.acquire(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
      c_.access.acquire(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    }
    if (before == BH_CUSTODY_READ_ONLY) set_custody(e, custody);
  }
  const size_t first = unswept_.size();
  const bool walked = walk_index(job.walk, until_ns, [&](const Found& found) {
    if (is_overwritten(found.entry, job.swept)) unswept_.push_back(found.entry);
  });
  retire_overwritten(first);  // once: waiting for held locks again would take up each slice
  if (!walked) return false;
  const std::vector<bool> unswept = unswept_extents();
  for (; job.opened < job.extents.size(); ++job.opened) {
    if (late()) return false;
    const auto [e, custody] = job.extents[job.opened];
    if (unswept[e]) continue;
    if (extents_.own_word(e).custody != custody) {
      // Up to now a zombie could describe it, and a rebuild would cut it by that.
      if (custody == BH_CUSTODY_FULL && !describe_anew(e)) {
        custody_pending_ = true;
        continue;
      }
      set_custody(e, custody);
    }
    open_extent(e);
  }
  const uint64_t now_ns = c_.access.now_ns();
  sweep_due_ns_ =
      now_ns + kSweepHeartbeats * c_.times.heartbeat_ms * 1'000'000 + 4 * (now_ns - job.began_ns);
  return true;
}

/// S5. A life that the decisions contradict gives up all its extents: its successor knows more.
template <class A>
void Custody<A>::confirm_adopted() {
  std::vector<uint64_t> adopted;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    const OwnWord word = extents_.own_word(e);
    if (word.state == BH_OWN_OWN && word.slot == BH_OWN_UNCONFIRMED &&
        word.incarnation == c_.incarnation)
      adopted.push_back(e);
  }
  if (adopted.empty()) return;
  c_.settle();
  const LivesOver over = holdings_.refresh_own_words();
  const Life self{c_.host, c_.incarnation};
  std::map<Life, bool> successor;
  for (const uint64_t e : adopted) {
    OwnWord word = extents_.own_word(e);
    const Holding other = holdings_.holding_of(e, over, word.epoch - 1);
    // This life, if the recipient of a grant abandoned it, or no other host has a word about it.
    const Life life = other.word.state == BH_OWN_NONE ? self : other.life;
    const auto [at, fresh] = successor.try_emplace(life, life == self);
    if (fresh && life != self) at->second = over.has(life) && hosts_.successor(life) == self;
    if (at->second) {
      word.slot = 0;
      holdings_.write_own(e, word);
      continue;
    }
    hosts_.decide(self, Life{c_.host, c_.incarnation + 1}.value());
    hosts_.observe(c_.access.now_ns());
    return;
  }
}

/// All lives that may have written to the extent are known to have stopped.
template <class A>
bool Custody<A>::stopped_before(uint64_t extent) const {
  return std::ranges::all_of(holdings_.predecessors(extent),
                             [&](const Life life) { return hosts_.fenced(life); });
}

/// False if the key's lock is held: try again. A block for which there are no words, or no entries,
/// is lost, and counts as evicted.
template <class A>
bool Custody<A>::import_entry(bh_index_entry entry) {
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  c_.access.acquire(c_.layout.header(slot), BH_LINE_BYTES);
  const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(slot));
  bh_block_header header;
  if (!lookup_.read_header(slot, header) || header.stamp != entry.stamp ||
      stamp_state(header.stamp) != BH_STAMP_COMMITTED || hash_of(header) != hash_of(entry))
    return true;
  // Without a checksum no reader could detect the stores of a zombie to it: it is taken only from
  // lives that are known to have stopped, and is read as any block of this host.
  const bool summed = header.checksum_kind != BH_CHECKSUM_NONE;
  if (!summed && !stopped_before(c_.layout.extent_of_slot(slot))) return true;
  if (slab.block_bytes == 0) {  // no words for its blocks
    c_.count(BH_COUNTER_EVICTIONS);
    usage_.evicted(entry.namespace_id);
    return true;
  }
  if (extents_.block_of(slot, slab).offset != entry.block_offset ||
      entry.stored_bytes > slab.block_bytes)
    return true;
  if (namespaces_.gone(entry.namespace_id)) return true;  // the space of the block comes free
  const Hash128 hash = hash_of(entry);
  const KeyLock lock(locks_, hash, kShortLockWaitNs);
  if (!lock.held()) return false;
  // It may be there by an adoption whose process died before it logged, or published, the entry.
  const auto there = index_.find_block(c_.host, hash, entry.block_offset, entry.stamp);
  if (there) index_.publish(*there);
  entry.incarnation = static_cast<uint16_t>(c_.incarnation);
  entry.flags = summed ? BH_ENTRY_COPY_ONLY : 0;
  if (!there && !index_.insert(entry)) {
    c_.count(BH_COUNTER_EVICTIONS);
    usage_.evicted(entry.namespace_id);
    return true;
  }
  namespaces_.gone_after_store(entry.namespace_id);  // N4
  if (allocator_.word(slot).state == BH_BLOCK_NONE) {
    usage_.add(header);
    allocator_.restore_committed(slot);
  }
  return true;
}

/// Protocol 5.11 (2) to (4). Begins a job if there is something to open or to sweep.
template <class A>
void Custody<A>::open_custody(uint64_t now_ns) {
  custody_pending_ = false;
  retire_overwritten(0);
  custody_pending_ |= !unswept_.empty();
  const std::vector<bool> unswept = unswept_extents();
  Opening job{.began_ns = now_ns, .walk = {.host = c_.host}};
  job.swept.resize(c_.layout.extent_limit());
  bool sweeps = false;
  std::map<Life, std::pair<bool, bool>> known;  // acked, fenced
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    if (!extents_.holds(e)) continue;
    const OwnWord word = extents_.own_word(e);
    if (word.slot == BH_OWN_UNCONFIRMED) continue;  // S5
    if (word.custody == BH_CUSTODY_FULL && !extents_.closed(e)) continue;
    if (unswept[e]) continue;
    bool acked = true, fenced = true;
    uint64_t since_ms = 0;
    for (const Life life : holdings_.predecessors(e)) {
      const auto [at, fresh] = known.try_emplace(life);
      if (fresh) at->second = {hosts_.acked(life), hosts_.fenced(life)};
      acked &= at->second.first;
      fenced &= at->second.second;
      since_ms = std::max(since_ms, c_.view(life.host).since_ms);
    }
    const bool timed_out =
        c_.times.reclaim_ms != 0 && now_ns / 1'000'000 >= since_ms + c_.times.reclaim_ms;
    const uint32_t custody = fenced ? BH_CUSTODY_FULL
                             : timed_out || word.custody == BH_CUSTODY_COPY_ONLY
                                 ? BH_CUSTODY_COPY_ONLY
                                 : BH_CUSTODY_READ_ONLY;
    custody_pending_ |= custody != BH_CUSTODY_FULL || !acked;
    const bool opens = (word.custody != BH_CUSTODY_READ_ONLY || acked) &&
                       (custody != word.custody || extents_.closed(e)) &&
                       custody != BH_CUSTODY_READ_ONLY;
    if (opens) job.extents.emplace_back(e, custody);
    // As long as the old owner may write, it may retire imported blocks.
    const bool swept = word.custody == BH_CUSTODY_COPY_ONLY && now_ns >= sweep_due_ns_;
    job.swept[e] = opens || swept;
    sweeps |= swept;
  }
  if (!job.extents.empty() && !may_open(job)) job.extents.clear();
  if (job.extents.empty() && !sweeps) return;
  job_ = std::move(job);
  note_extents_busy(true);
}

/// After a settle: false if a host suspects this life (S3). Drops extents in READ_ONLY custody from
/// the job if a hazard names a block of them (S4).
template <class A>
bool Custody<A>::may_open(Opening& job) {
  c_.settle();
  if (membership_.suspected()) {
    custody_pending_ = true;
    return false;
  }
  const std::vector<uint64_t> named = retirement_.named_blocks();
  std::erase_if(job.extents, [&](const auto& extent) {
    const uint64_t begin = c_.layout.extent_offset(extent.first);
    const auto first = std::lower_bound(named.begin(), named.end(), begin);
    const bool leased = first != named.end() && *first < begin + c_.layout.geometry().extent_bytes;
    const bool waits = leased && extents_.own_word(extent.first).custody == BH_CUSTODY_READ_ONLY;
    job.swept[extent.first] = !waits;
    custody_pending_ |= waits;
    return waits;
  });
  return true;
}

template <class A>
void Custody<A>::set_custody(uint64_t extent, uint32_t custody) {
  OwnWord word = extents_.own_word(extent);
  word.custody = custody;
  holdings_.write_own(extent, word);
}

/// The block was imported when the extents were adopted, or was stored there since, and their old
/// owner, only slow, has retired or overwritten its header or key: no look-up finds it under its
/// key, so no caller could remove it. Or an adoption whose process died imported it, and the one
/// that began anew did not: the extent was cut otherwise by then, or there was no room.
template <class A>
bool Custody<A>::is_overwritten(const bh_index_entry& entry,
                                const std::vector<bool>& extents) const {
  if (!c_.layout.valid_block(entry.block_offset, 1)) return false;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  const uint64_t extent = c_.layout.extent_of_slot(slot);
  if (!extents[extent]) return false;
  if (extents_.closed(extent) && allocator_.word(slot).state == BH_BLOCK_NONE) return true;
  if ((entry.flags & BH_ENTRY_COPY_ONLY) == 0) return false;
  c_.access.acquire(c_.layout.header(slot), BH_LINE_BYTES);
  bh_block_header header;
  return !lookup_.read_header(slot, header) || header.stamp != entry.stamp ||
         lookup_.key_hash(slot, header) != hash_of(entry);
}

/// From the `first` of them on. Keeps the entries whose key is locked, or whose block another
/// process holds.
template <class A>
void Custody<A>::retire_overwritten(size_t first) {
  const auto begin = unswept_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto kept = std::remove_if(begin, unswept_.end(), [&](const bh_index_entry& entry) {
    return retire_overwritten(entry);
  });
  unswept_.erase(kept, unswept_.end());
}

/// False: try again. If a process died while it imported or retired the block, the entry can be
/// left without a block, or its slot can hold a newer block: scavenging finds entries by headers,
/// and this header was overwritten. Then only the entry is erased, under the lock of its key.
template <class A>
bool Custody<A>::retire_overwritten(const bh_index_entry& entry) {
  if (retirement_.retire_entry(entry, BH_COUNTER_REMOVALS)) return true;
  const Hash128 hash = hash_of(entry);
  const KeyLock lock(locks_, hash, /*wait_ns=*/0);  // it has waited already
  const auto found = index_.find_block(c_.host, hash, entry.block_offset, entry.stamp);
  if (!found) return true;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  const uint32_t state = allocator_.word(slot).state;
  bh_block_header header;
  const bool another = state == BH_BLOCK_COMMITTED && lookup_.read_header(slot, header) &&
                       header.stamp != entry.stamp && retirement_.is_of_this_life(header.stamp);
  const bool none = state == BH_BLOCK_NONE || state == BH_BLOCK_FREE || state == BH_BLOCK_RETIRED;
  if (!(none || another) || !lock.held() || c_.ended()) return false;
  index_.erase(*found);
  return true;
}

/// With all that come into use together with them.
template <class A>
std::vector<bool> Custody<A>::unswept_extents() const {
  std::vector<bool> unswept(c_.layout.extent_limit());
  for (const bh_index_entry& entry : unswept_) {
    const uint64_t extent = c_.layout.extent_of_slot(c_.layout.slot_of(entry.block_offset));
    const Slab slab = extents_.held_slab(extent);
    for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) unswept[e] = true;
    unswept[extent] = true;
  }
  return unswept;
}

/// As this host has cut it. False if a process carves or empties it: try again.
template <class A>
bool Custody<A>::describe_anew(uint64_t extent) {
  const Slab none{extent, 0, 0, 0};
  if (!extents_.carved(extent)) {
    // No process carves an extent that is closed, or where a set of media takes no blocks.
    const bool carvable = !extents_.closed(extent) && c_.layout.takes_blocks(extent);
    const bool claimed = extents_.claim(extent);
    if (!claimed && carvable) return false;
    extents_.write_descriptor(extent, none);
    if (claimed) extents_.unclaim(extent);
    return true;
  }
  const auto of = extents_.slab_of(extent);
  const auto slab = of ? extents_.begin_coalescing(of->head) : std::nullopt;
  if (!slab) return false;
  const bool is_in = extent - slab->head < slab->extent_span;  // it may have changed in between
  if (is_in) extents_.write_descriptor(extent, extent == slab->head ? *slab : none);
  extents_.undo_coalescing(*slab);
  return is_in;
}

/// Brings the free blocks of a writable extent into use, once all extents of its slab are writable.
/// Headers of blocks that were not imported must not show a committed stamp (C2).
template <class A>
void Custody<A>::open_extent(uint64_t extent) {
  if (!extents_.closed(extent)) return;
  const auto slab = extents_.slab_of(extent);
  const uint64_t first = slab ? slab->head : extent;
  const uint64_t span = slab ? slab->extent_span : 1;
  for (uint64_t e = first; e < first + span; ++e) {
    if (!extents_.writable(e)) {
      custody_pending_ = true;
      return;
    }
  }
  std::vector<uint64_t> retired;
  for (uint64_t slot = c_.layout.first_slot(first); slot < c_.layout.first_slot(first + span);
       ++slot) {
    if (slab && allocator_.word(slot).state != BH_BLOCK_NONE && extents_.begins_at(slot, *slab))
      continue;
    const uint64_t stamp = c_.access.load(c_.layout.header(slot));
    if (stamp != 0 && stamp_state(stamp) == BH_STAMP_COMMITTED) retirement_.retire_header(slot);
    if (!slab || !extents_.begins_at(slot, *slab) || !retirement_.must_wipe(slot)) continue;
    allocator_.restore_retired(slot);  // C5
    retired.push_back(slot);
  }
  // It may describe a slab that could not be restored, or, by a zombie, another one than was.
  for (uint64_t e = first; e < first + span; ++e)
    extents_.write_descriptor(e, slab && e == first ? *slab : Slab{e, 0, 0, 0});
  extents_.open(first, span);
  retirement_.reclaim(retired);
}

}  // namespace bowhead::core
