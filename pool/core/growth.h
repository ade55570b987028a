// SPDX-License-Identifier: Apache-2.0
// Growth: which sets of media a pool has (format/medium.h). Any host may add one while the pool is
// in use, and all processes of all hosts map it without opening the pool again.
//
// The table of sets is one register with one writer at a time. A host writes the next version in
// its own region; the others copy it to theirs, which keeps it if that host is lost, and shows that
// they heed it.
//
// Invariants
//   W1 At most one host is between reading the newest table and publishing the next one: it has
//      published its wish (bh_host_counts.growing), that has settled, and after that it saw no wish
//      of a life that is not over. Of two hosts, the one that looks later sees the other's wish and
//      gives up, or knows that its life is over.
//   W2 A table of a life that is over counts only for hosts that copied it before: after a host
//      reads a table, it looks afresh whether the life that wrote it is over. So a host that stood
//      still between its look (W1) and its table, and was given up meanwhile, changes nothing. Who
//      copied it may be slow too, and publish the copy late: so each table has a version above
//      those of all tables, also of lives that are over (tests/models/turns.cpp). The copy is
//      older than the table that was written without it, and no two that are heeded have one
//      version.
//   W3 A set is ADDED until every host that goes on heeds it, and every operation that begins
//      there looks in it. Only then is it USED and gets blocks. So no look-up that begins after a
//      put returned misses its block for want of a set.
//   W4 A process heeds a table before it says so (its word behind the tables), and the host says so
//      (bh_host_heartbeat.sets) when all of its processes have. An operation looks for a newer
//      table of its host when it begins, and again once it has the lock of its key: so of two
//      operations on one key in one host, the later one looks wherever the earlier one stored.
//   W5 A set goes when every extent of it is held by a life that goes on and that has said, after
//      all of its processes heeded that the set takes no new blocks, that it has none there. A host
//      unsays that, and waits until it has settled, before it adopts extents of another host.
//   W6 Media that left a set, or never became one, are removed only when every host heeds a table
//      without them and the life that wrote it stands: else some table that counts may have them.
//
// Owns: the table that this process heeds; the host's copies of the table, its wish, and which
// version it heeds. Calls: Holdings.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <string>

#include "base/checksum.h"
#include "pool/core/holdings.h"

namespace bowhead::core {

template <class A>
class Growth {
 public:
  explicit Growth(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        hosts_(rooms.hosts),
        settings_(rooms.settings),
        holdings_(rooms.holdings) {}
  Growth(const Growth&) = delete;
  Growth& operator=(const Growth&) = delete;

  /// The pool was made to grow.
  bool possible() const { return c_.layout.geometry().range_bytes != 0; }

  /// Heeds the table of this host, if it is another than before (W4). At the beginning of an
  /// operation, and once it has the lock of its key.
  void refresh() {
    if (!possible() || c_.observing()) return;
    if (c_.access.load(c_.private_word(offsetof(bh_host_private, sets))) > heeded()) heed_own();
  }
  /// What becomes of a set that this process cannot map. GIVEN_UP: if its media are gone, it is
  /// passed over, and take_part() removes it: for repair, while no other process or host has the
  /// pool open.
  enum class Missing { REFUSED, PASSED_OVER, GIVEN_UP };
  /// A set that is part of the pool, but not of what this process maps: zeros are in its place.
  struct PassedOver {
    bh_set set;
    Error why;
  };
  /// Heeds the newest table of any host: for a process that opens the pool, before it joins; an
  /// observer at any time. Returns what mapping a set returned, or DAMAGED.
  Result<void> heed_newest(Missing missing);
  static std::string describe(const bh_set& set) {
    return "set " + std::to_string(set.number) + " (" + locator_of(set) + ", " +
           std::to_string(set.bytes >> 20) + " MiB)";
  }
  /// Whether a host's copy of a table is neither whole nor one that is being written.
  bool copy_damaged(uint32_t host, uint64_t copy) const;
  /// Those of this host, so that they are written anew; how many. Before take_part().
  uint32_t drop_damaged_copies();
  std::vector<PassedOver> passed_over() const {
    const std::lock_guard guard(mutex_);
    return passed_over_;
  }
  /// Makes the newest table that of this host too. Under the host lock, when the region is this
  /// host's to write; in a new life before its slot shows it (W2).
  void take_part();
  /// At the beginning of a life, which heeds nothing yet.
  void forget_heeded() {
    if (!possible()) return;
    c_.access.store(heeds_at(c_.host), 0);
    c_.access.publish(heeds_at(c_.host), 8);
  }
  /// For a process that has its slot.
  void say_process_heeds() {
    if (possible()) c_.access.store(process_heeds_at(c_.process), heeded());
  }
  /// Whether this process could not map a set that is in use.
  std::optional<Error> missing() const {
    const std::lock_guard guard(mutex_);
    return missing_;
  }

  /// Of the host's duties: copies a newer table of another host, and says that this host heeds it.
  void work();

  /// Adds a set to the pool: its media are there, with labels. `set` says bytes, id and locator.
  /// The extents are this host's. `duties` is called while this waits for other hosts. `unused`: no
  /// table that counts has the media, nor will (W6). LIMIT_REACHED, TOO_SMALL, BUSY (another host
  /// changes the sets, or does not heed the new one: then it is taken back), and what mapping it
  /// here returned.
  template <class Duties>
  Result<Set> add(bh_set set, bool* unused, Duties duties);

  /// From now on the set takes no new blocks, on any host. NOT_FOUND, BUSY.
  template <class Duties>
  Result<void> begin_drain(uint32_t number, Duties duties);
  /// Takes blocks again. NOT_FOUND, BUSY.
  template <class Duties>
  Result<void> end_drain(uint32_t number, Duties duties);
  /// What this host says of a set that takes no new blocks once it has none there, and where.
  struct Drained {
    uint32_t place = 0;
    uint64_t says = 0;  ///< differs each time that the set is drained
  };
  /// Nothing until all processes of this host heed that it takes none (W5): look before the blocks
  /// are looked for.
  std::optional<Drained> may_say_drained(const Set& set) const;
  /// Before say_drained() says so.
  void clean_extents(const Set& set, const Drained& drained);
  /// Of the host's duties, under the host lock.
  void say_drained(const Drained& drained, bool has_none);
  void unsay_drained();
  /// The hosts, a bit each, that hold extents of a set that is drained and may have blocks there;
  /// also those whose life is over. None if the table has no such set.
  uint64_t hosts_on(const bh_set_table& table, uint32_t number) const;
  /// Removes a set on which no host has blocks. `gone`: no host uses its media any more (W6).
  /// NOT_FOUND, INVALID_ARGUMENT (it takes blocks), IN_USE (some host has blocks there), BUSY (also
  /// if it is removed, but some process or host has not let go of its media).
  template <class Duties>
  Result<void> remove(uint32_t number, bool* gone, Duties duties);

  /// The highest version that any table has, or had (W2).
  uint64_t versions_used() const;
  uint64_t next_version() const { return versions_used() + 1; }
  /// The newest table of any host, afresh. Of the lives that are not over, and of those that were
  /// never declared over (W2).
  bh_set_table newest_table() const;
  /// The table that this process heeds.
  bh_set_table table() const {
    const std::lock_guard guard(mutex_);
    return table_;
  }

 private:
  static constexpr uint64_t kWords = sizeof(bh_set_table) / 8;

  /// Those of a set that only this host stores to.
  std::vector<Range> own_ranges(const std::vector<Range>& ranges) const {
    if (c_.alone()) return ranges;
    const auto& g = c_.layout.geometry();
    const uint64_t begin = g.regions_offset + c_.host * g.region_bytes;
    std::vector<Range> own;
    std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(own),
                 [&](const Range& range) { return range.offset - begin < g.region_bytes; });
    return own;
  }
  /// No line of them stays in the caches of this host, which reads its own without acquiring them:
  /// the same media may have been, or may become, another set.
  void clean(const std::vector<Range>& ranges) const {
    for (const Range& range : ranges) {
      if (!c_.alone()) c_.access.acquire(range.offset, range.bytes);
    }
  }
  static std::string locator_of(const bh_set& set) {
    return {set.locator, strnlen(set.locator, sizeof set.locator)};
  }
  uint64_t heeded() const { return heeded_.load(std::memory_order_acquire); }
  uint64_t checksum_of(const bh_set_table& table) const {
    return hash64(&table, offsetof(bh_set_table, checksum), settings_.pool_id[0]);
  }
  uint64_t wish_at(uint32_t host) const {
    return c_.layout.part(host, BH_PART_COUNTS) + offsetof(bh_host_counts, growing);
  }
  uint64_t heeds_at(uint32_t host) const {
    return c_.layout.part(host, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, sets);
  }
  uint64_t process_heeds_at(uint32_t process) const {
    return c_.layout.part(c_.host, BH_PART_MEDIA) + 2 * sizeof(bh_set_table) + 8 * process;
  }
  uint64_t drained_at(uint32_t host, uint32_t place) const {
    return c_.layout.part(host, BH_PART_MEDIA) + 2 * sizeof(bh_set_table) +
           8 * (uint64_t{c_.layout.geometry().process_count} + place);
  }
  static uint64_t says_drained(const bh_set& set) { return set.id + set.since; }
  /// Null if there is none.
  static const bh_set* find_set(const bh_set_table& table, uint32_t number) {
    for (const bh_set& set : table.sets) {
      if (set.state != BH_SET_NONE && set.number == number) return &set;
    }
    return nullptr;
  }
  static bh_set* find_set(bh_set_table& table, uint32_t number) {
    return const_cast<bh_set*>(find_set(std::as_const(table), number));
  }
  uint64_t read_heeds(uint32_t host) const {
    c_.acquire_from(host, heeds_at(host), 8);
    return c_.access.load(heeds_at(host));
  }
  /// The life of a host that counts as the writer of its table.
  bool over(uint32_t host) const {
    const auto slot = hosts_.read_slot(host);
    return !slot || slot->incarnation == 0 || hosts_.decided({host, slot->incarnation});
  }
  bh_set_table read_copy(uint32_t host, uint64_t copy) const;
  bh_set_table read_table(uint32_t host) const;
  /// Copies of one table differ in what their hosts know of versions.
  static bool same(const bh_set_table& a, const bh_set_table& b) {
    return a.version == b.version && std::memcmp(a.sets, b.sets, sizeof a.sets) == 0;
  }
  void write_table(bh_set_table& table);
  void drop_copy(uint64_t copy);
  /// `own`: the table that this host had before.
  void publish(const bh_set_table& own, bh_set_table& table);
  void publish(bh_set_table& table) { publish(read_table(c_.host), table); }
  Result<void> heed(const bh_set_table& table, Missing missing);
  void heed_own();
  void remove_passed_over(bh_set_table& table);
  bool all_processes_heed(uint64_t version) const;
  /// This life, afresh.
  bool stands() const { return c_.alone() || hosts_.stands({c_.host, c_.incarnation}); }
  void say_heeded();
  Status begin_turn();
  void end_turn();
  std::vector<Set> sets_of(const bh_set_table& table) const;
  template <class Duties>
  Status wait_for_all(uint64_t version, Duties duties);
  void own_extents(const Set& set);
  void open_extents(const Set& set);
  void yield_extents(const bh_set_table& old, const bh_set_table& table);
  template <class Duties>
  Result<void> set_state(uint32_t number, uint32_t state, Duties duties);
  template <class Duties>
  Status wait_in_turn(bh_set_table& table, Duties duties);

  Context<A>& c_;
  Extents<A>& extents_;
  Hosts<A>& hosts_;
  const Settings& settings_;
  Holdings<A>& holdings_;

  mutable typename A::Mutex mutex_;  ///< guards what follows, and changes of the mapping
  bh_set_table table_{};
  std::map<uint64_t, std::vector<Range>> mapped_;  ///< by the ids of sets
  std::optional<Error> missing_;
  std::vector<PassedOver> passed_over_;
  bool gives_up_ = false;
  std::atomic<uint64_t> heeded_{0};  ///< version of table_
};

/// Version 0: it is not whole.
template <class A>
bh_set_table Growth<A>::read_copy(uint32_t host, uint64_t copy) const {
  const uint64_t at = c_.layout.set_table(host, copy);
  c_.acquire_from(host, at, BH_LINE_BYTES);
  if (c_.access.load(at) == 0) return {};
  c_.acquire_from(host, at, sizeof(bh_set_table));
  std::array<uint64_t, kWords> words;
  for (uint64_t i = 0; i < kWords; ++i) words[i] = c_.access.load(at + 8 * i);
  const auto table = std::bit_cast<bh_set_table>(words);
  return table.checksum == checksum_of(table) ? table : bh_set_table{};
}

/// The newer of the two good copies of a host; version 0 if there is none.
template <class A>
bh_set_table Growth<A>::read_table(uint32_t host) const {
  const bh_set_table first = read_copy(host, 0), second = read_copy(host, 1);
  return first.version > second.version ? first : second;
}

template <class A>
bool Growth<A>::copy_damaged(uint32_t host, uint64_t copy) const {
  const uint64_t at = c_.layout.set_table(host, copy);
  c_.acquire_from(host, at, 8);
  return c_.access.load(at) != 0 && read_copy(host, copy).version == 0;
}

template <class A>
uint32_t Growth<A>::drop_damaged_copies() {
  if (!possible()) return 0;
  uint32_t dropped = 0;
  for (const uint64_t copy : {0, 1}) {
    if (!copy_damaged(c_.host, copy)) continue;
    drop_copy(copy);
    ++dropped;
  }
  return dropped;
}

template <class A>
bh_set_table Growth<A>::newest_table() const {
  bh_set_table best{};
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    const bh_set_table table = read_table(host);
    if (table.version > best.version && (c_.alone() || !over(host))) best = table;
  }
  return best;
}

template <class A>
uint64_t Growth<A>::versions_used() const {
  uint64_t highest = 0;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    for (const uint64_t copy : {0, 1}) {
      const bh_set_table table = read_copy(host, copy);
      highest = std::max({highest, table.version, table.versions_used});
    }
  }
  return highest;
}

template <class A>
std::vector<Set> Growth<A>::sets_of(const bh_set_table& table) const {
  std::vector<Set> sets;
  for (const bh_set& stored : table.sets) {
    if (stored.state == BH_SET_NONE) continue;
    if (auto set = place_set(c_.layout.geometry(), stored)) sets.push_back(*set);
  }
  return sets;
}

/// Under the mutex. A set that is only ADDED and cannot be mapped keeps this process from heeding
/// the table, and does no other harm: the host that adds it takes it back.
template <class A>
Result<void> Growth<A>::heed(const bh_set_table& table, Missing missing) {
  const auto& g = c_.layout.geometry();
  std::vector<PassedOver> passed_over;
  std::vector<Set> sets, kept;
  std::map<uint64_t, Set> wanted;
  for (const bh_set& stored : table.sets) {
    if (stored.state == BH_SET_NONE) continue;
    const auto set = place_set(g, stored);
    if (!set)
      return Error{Status::DAMAGED,
                   "the table of sets is sealed but describes a set that cannot be: not written by "
                   "this program"};
    wanted[stored.id] = *set;
    if (mapped_.contains(stored.id)) kept.push_back(*set);
  }
  // Those that are gone first: others may have taken their places since.
  if (kept.size() < mapped_.size()) c_.layout.use_sets(std::move(kept));
  std::erase_if(mapped_, [&](const auto& mapped) {
    if (wanted.contains(mapped.first)) return false;
    clean(own_ranges(mapped.second));
    c_.access.unmap_set(mapped.first, mapped.second);
    return true;
  });
  for (const bh_set& stored : table.sets) {
    if (stored.state == BH_SET_NONE || mapped_.contains(stored.id)) continue;
    const std::vector<Range> ranges = ranges_of(g, wanted[stored.id]);
    const std::vector<Range> own = own_ranges(ranges);
    const SetName name{settings_.pool_id, stored.id};
    if (auto mapped = c_.access.map_set(name, locator_of(stored), ranges, own); !mapped) {
      const bool gone =
          mapped.status() == Status::NO_SUCH_POOL || mapped.status() == Status::NOT_A_POOL ||
          mapped.status() == Status::DAMAGED || mapped.status() == Status::MEDIA_ERROR;
      if (missing == Missing::REFUSED || (missing == Missing::GIVEN_UP && !gone))
        return Error{mapped.status(), describe(stored) + " of its media cannot be used: " +
                                          mapped.error().message()};
      passed_over.push_back({stored, mapped.error()});
      continue;
    }
    mapped_[stored.id] = ranges;
    clean(own);
  }
  for (const bh_set& stored : table.sets) {
    if (stored.state != BH_SET_NONE && mapped_.contains(stored.id))
      sets.push_back(wanted[stored.id]);
  }
  c_.layout.use_sets(std::move(sets));
  table_ = table;
  passed_over_ = std::move(passed_over);
  missing_.reset();
  heeded_.store(table.version, std::memory_order_release);
  return {};
}

template <class A>
void Growth<A>::heed_own() {
  const std::lock_guard guard(mutex_);
  const uint64_t version = c_.access.load(c_.private_word(offsetof(bh_host_private, sets)));
  if (version <= heeded()) return;
  const bh_set_table table = read_table(c_.host);
  // Another version by now, or a table that the next change writes: it comes with the next word.
  if (table.version < version) return;
  const auto heeds = heed(table, Missing::REFUSED);
  if (!heeds) missing_ = heeds.error();
  if (heeds) c_.access.store(process_heeds_at(c_.process), table.version);
}

template <class A>
Result<void> Growth<A>::heed_newest(Missing missing) {
  if (!possible()) return {};
  bh_set_table table = newest_table();
  const std::lock_guard guard(mutex_);
  gives_up_ = missing == Missing::GIVEN_UP;
  if (table.version == heeded() && same(table, table_)) return {};
  auto heeds = heed(table, missing);
  // A set may have been removed meanwhile, with its media: other hosts do not wait for a process
  // that has not joined yet.
  while (!heeds || !passed_over_.empty()) {
    const bh_set_table now = newest_table();
    if (same(now, table)) break;
    table = now;
    heeds = heed(table, missing);
  }
  if (heeds) return heeds;
  return Error{heeds.status(),
               heeds.error().message() +
                   "; bring it back, or give it up, with all blocks there (`bowhead pool repair "
                   "--give-up-missing`). Until then the other blocks can be read (`bowhead get`, "
                   "`bowhead pool info`)"};
}

template <class A>
void Growth<A>::remove_passed_over(bh_set_table& table) {
  bool changed = false;
  for (const PassedOver& lost : passed_over()) {
    bh_set* const set = find_set(table, lost.set.number);
    if (set == nullptr || set->id != lost.set.id) continue;
    *set = {};
    changed = true;
  }
  if (!changed) return;
  table.version = next_version();
}

template <class A>
void Growth<A>::take_part() {
  if (!possible()) return;
  bh_set_table table = newest_table();
  if (gives_up_) remove_passed_over(table);
  // A copy of a life that is over may say more than counts. Its version stays used (W2).
  const bh_set_table copies[] = {read_copy(c_.host, 0), read_copy(c_.host, 1)};
  bh_set_table own{};
  for (const bh_set_table& copy : copies) {
    if (copy.version <= table.version && copy.version > own.version) own = copy;
  }
  const bool more = std::max(copies[0].version, copies[1].version) > table.version;
  if (more || !same(own, table) ||
      c_.access.load(c_.private_word(offsetof(bh_host_private, sets))) != table.version)
    publish(own, table);
  for (const uint64_t copy : {0, 1}) {
    if (read_copy(c_.host, copy).version > table.version) drop_copy(copy);
  }
}

template <class A>
void Growth<A>::drop_copy(uint64_t copy) {
  const uint64_t at = c_.layout.set_table(c_.host, copy);
  c_.access.store(at, 0);
  c_.access.publish(at, 8);
}

/// Into this host's region, over the older of its copies, so that the newer one stays meanwhile:
/// all but the version first, so that no reader takes an older one's bytes for it.
template <class A>
void Growth<A>::write_table(bh_set_table& table) {
  if (table.version == 0) return;
  const bh_set_table copies[] = {read_copy(c_.host, 0), read_copy(c_.host, 1)};
  const uint64_t older = copies[0].version > copies[1].version ? 1 : 0;
  table.versions_used = std::max(versions_used(), table.version);
  table.checksum = checksum_of(table);
  if (copies[1 - older].checksum == table.checksum) return;
  const uint64_t at = c_.layout.set_table(c_.host, older);
  c_.access.store(at, 0);
  const auto words = std::bit_cast<std::array<uint64_t, kWords>>(table);
  for (uint64_t i = 1; i < kWords; ++i) c_.access.store(at + 8 * i, words[i]);
  c_.access.publish(at, sizeof(bh_set_table));
  c_.access.store(at, words[0]);
  c_.access.publish(at, 8);
}

/// The operations that begin on this host from here on heed it (W4).
template <class A>
void Growth<A>::publish(const bh_set_table& own, bh_set_table& table) {
  yield_extents(own, table);
  write_table(table);
  c_.access.store(c_.private_word(offsetof(bh_host_private, sets)), table.version);
}

template <class A>
bool Growth<A>::all_processes_heed(uint64_t version) const {
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(c_.host, p)));
    if (word.state == BH_PROCESS_FREE || !c_.alive(p)) continue;
    if (c_.access.load(process_heeds_at(p)) < version) return false;
  }
  return true;
}

/// Says that this host heeds its table, once all of its processes do.
template <class A>
void Growth<A>::say_heeded() {
  const uint64_t version = c_.access.load(c_.private_word(offsetof(bh_host_private, sets)));
  if (c_.access.load(heeds_at(c_.host)) == version || !all_processes_heed(version)) return;
  c_.access.store(heeds_at(c_.host), version);
  c_.access.publish(heeds_at(c_.host), 8);
}

template <class A>
void Growth<A>::work() {
  if (!possible()) return;
  refresh();
  const uint64_t own = c_.access.load(c_.private_word(offsetof(bh_host_private, sets)));
  bool newer = false;
  for (uint32_t host = 0; host < hosts_.count() && !newer; ++host) {
    if (host == c_.host) continue;
    const uint64_t at = c_.layout.set_table(host, 0);
    c_.access.invalidate(at, 8);
    c_.access.invalidate(at + sizeof(bh_set_table), 8);
    c_.access.coherence_fence();
    newer = std::max(c_.access.load(at), c_.access.load(at + sizeof(bh_set_table))) > own;
  }
  if (newer || c_.access.load(wish_at(c_.host)) != 0) {
    std::optional<HostLock<A>> lock(std::in_place, c_);
    if (lock->held()) {
      // Its process died: it would hold the lock.
      if (c_.access.load(wish_at(c_.host)) != 0) end_turn();
      bh_set_table table = newest_table();
      if (!c_.ended() && table.version > own) publish(table);
      lock.reset();
      refresh();
    }
  }
  say_heeded();
}

/// W1. Under the host lock, so this host has one wish at a time.
template <class A>
Status Growth<A>::begin_turn() {
  if (c_.alone()) return Status::OK;
  c_.access.store(wish_at(c_.host), c_.incarnation);
  c_.access.publish(wish_at(c_.host), 8);
  c_.settle();
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    if (host == c_.host) continue;
    c_.access.acquire(wish_at(host), 8);
    const uint64_t wish = c_.access.load(wish_at(host));
    if (wish == 0) continue;
    const auto slot = hosts_.read_slot(host);
    // A host that has left stores nothing more.
    if (!slot || slot->incarnation != wish || slot->state == BH_HOST_LEFT ||
        hosts_.decided({host, slot->incarnation}))
      continue;
    end_turn();
    return Status::BUSY;
  }
  // The tables that lives wrote before they were given up are in the memory by now.
  c_.settle();
  return c_.ended() ? c_.gone() : Status::OK;
}

template <class A>
void Growth<A>::end_turn() {
  if (c_.alone()) return;
  c_.access.store(wish_at(c_.host), 0);
  c_.access.publish(wish_at(c_.host), 8);
}

/// The words that other hosts wrote for a set that had these numbers before are of lower epochs. As
/// long as they stand, a life that wrote one may still store there, if it is the same medium.
template <class A>
void Growth<A>::own_extents(const Set& set) {
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    uint64_t epoch = 0;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      c_.acquire_from(host, c_.layout.word(host, BH_PART_OWN, e), 8);
      epoch = std::max<uint64_t>(epoch, holdings_.own_of(host, e).epoch);
    }
    c_.access.store(c_.own(BH_PART_RUNS, e), 0);
    for (uint64_t at = 0; at < sizeof(bh_extent_state); at += 8)
      c_.access.store(c_.layout.extent_state(c_.host, e) + at, 0);
    OwnWord word{.state = BH_OWN_OWN, .epoch = epoch + 1};
    if (!c_.alone()) {
      word.incarnation = c_.incarnation;
      word.custody = BH_CUSTODY_READ_ONLY;
    }
    holdings_.write_own(e, word);
  }
}

/// Once all hosts have yielded theirs (yield_extents()): what is left is of lives that are gone,
/// and Custody opens the extent when these have stopped.
template <class A>
void Growth<A>::open_extents(const Set& set) {
  if (c_.alone()) return;
  holdings_.refresh_own_words();
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    const auto before = holdings_.predecessors(e);
    if (!std::all_of(before.begin(), before.end(),
                     [&](const Life life) { return hosts_.fenced(life); }))
      continue;
    OwnWord word = holdings_.own_of(c_.host, e);
    word.custody = BH_CUSTODY_FULL;
    holdings_.write_own(e, word);
  }
}

/// A set that comes may have the numbers of one that went: then the host that adds it holds its
/// extents, by words of higher epochs, whatever this host's words still say.
template <class A>
void Growth<A>::yield_extents(const bh_set_table& old, const bh_set_table& table) {
  const auto known = [&](const bh_set& set) {
    return std::any_of(std::begin(old.sets), std::end(old.sets), [&](const bh_set& other) {
      return other.state != BH_SET_NONE && other.id == set.id;
    });
  };
  if (c_.alone()) return;
  const LivesOver over = holdings_.lives_over();
  for (const bh_set& set : table.sets) {
    if (set.state == BH_SET_NONE || known(set) || !place_set(c_.layout.geometry(), set)) continue;
    for (uint32_t host = 0; host < hosts_.count(); ++host)  // beyond extent_end(), as yet
      c_.acquire_from(host, c_.layout.word(host, BH_PART_OWN, set.first_extent),
                      8 * set.extent_count);
    for (uint64_t e = set.first_extent; e < set.first_extent + set.extent_count; ++e) {
      OwnWord own = holdings_.own_of(c_.host, e);
      if (own.state == BH_OWN_NONE || holdings_.holding_of(e, over).writer == c_.host) continue;
      own.state = BH_OWN_NONE;
      holdings_.write_own(e, own);
    }
  }
}

/// Until every host that goes on heeds this version (W3).
template <class A>
template <class Duties>
Status Growth<A>::wait_for_all(uint64_t version, Duties duties) {
  // A host that joins reads the tables once its slot shows the life: it finds this one, or this
  // host finds it.
  c_.settle();
  const uint64_t deadline_ns =
      c_.access.now_ns() +
      (uint64_t{4} * c_.times.dead_ms + 50 * c_.times.heartbeat_ms) * 1'000'000;
  for (;;) {
    say_heeded();
    bool all = c_.access.load(heeds_at(c_.host)) >= version;
    for (uint32_t host = 0; host < hosts_.count() && all; ++host)
      all = host == c_.host || !hosts_.shows_life(host) || read_heeds(host) >= version;
    if (all) return Status::OK;
    if (c_.ended()) return c_.gone();
    if (c_.access.now_ns() > deadline_ns) return Status::BUSY;
    duties();
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 250'000);
  }
}

template <class A>
template <class Duties>
Result<Set> Growth<A>::add(bh_set set, bool* unused, Duties duties) {
  *unused = true;
  if (Status turn = begin_turn(); turn != Status::OK) {
    if (turn != Status::BUSY) return turn;
    return Error{turn, "another host changes the media of this pool: try again"};
  }
  bh_set_table table = newest_table();
  auto* const place = std::find_if(std::begin(table.sets), std::end(table.sets),
                                   [](const bh_set& s) { return s.state == BH_SET_NONE; });
  std::vector<Set> sets = sets_of(table);
  sets.push_back(set_0(c_.layout.geometry()));
  const auto planned = plan_set(c_.layout.geometry(), sets, set.bytes);
  if (!planned || place == std::end(table.sets)) {
    end_turn();
    if (!planned) return planned.error();
    return Error{Status::LIMIT_REACHED,
                 "the pool has " + std::to_string(BH_SETS_MAX + 1) + " sets of media, the most"};
  }
  own_extents(*planned);
  c_.settle();  // who reads the table reads these words too (yield_extents())
  table.version = next_version();
  set.state = BH_SET_ADDED;
  set.since = table.version;
  set.number = ++table.highest_number;
  set.first_extent = planned->first_extent;
  set.extent_count = planned->extent_count;
  set.first_bucket = planned->first_bucket;
  set.first_word = planned->first_word;
  *place = set;
  *unused = false;
  publish(table);
  heed_own();
  Result<void> done;
  if (const auto error = missing())
    done = *error;
  else
    done = wait_for_all(table.version, duties);
  if (done) open_extents(*planned);
  table.version = next_version();
  place->state = done ? BH_SET_USED : BH_SET_NONE;
  place->since = table.version;
  if (!done) *place = {};
  publish(table);
  heed_own();
  say_heeded();
  const Status heeded_by_all = wait_for_all(table.version, duties);
  if (!done) *unused = heeded_by_all == Status::OK && stands();
  end_turn();
  if (c_.ended()) return c_.gone();
  if (done) return *planned;
  if (done.status() != Status::BUSY) return done.error();
  return Error{Status::BUSY,
               "some process or host did not map the new media in time, and they were not added: "
               "see that all hosts reach them under that name, and try again"};
}

/// Publishes a table, and waits until all hosts heed it.
template <class A>
template <class Duties>
Status Growth<A>::wait_in_turn(bh_set_table& table, Duties duties) {
  publish(table);
  heed_own();
  return wait_for_all(table.version, duties);
}

template <class A>
template <class Duties>
Result<void> Growth<A>::set_state(uint32_t number, uint32_t state, Duties duties) {
  if (Status turn = begin_turn(); turn != Status::OK) {
    if (turn != Status::BUSY) return turn;
    return Error{turn, "another host changes the media of this pool: try again"};
  }
  bh_set_table table = newest_table();
  bh_set* const set = find_set(table, number);
  Result<void> done;
  if (set == nullptr) {
    done = Error{Status::NOT_FOUND, "the pool has no set of media " + std::to_string(number) +
                                        "; `bowhead pool info` lists them"};
  } else if (set->state != state) {
    const uint32_t before = set->state;
    set->state = state;
    set->since = table.version = next_version();
    Status waited = wait_in_turn(table, duties);
    if (waited == Status::BUSY) {
      set->state = before;
      set->since = table.version = next_version();
      (void)wait_in_turn(table, duties);
      done = Error{Status::BUSY, "some host did not answer in time; nothing was changed"};
    } else {
      done = waited;
    }
  }
  end_turn();
  return done;
}

template <class A>
template <class Duties>
Result<void> Growth<A>::begin_drain(uint32_t number, Duties duties) {
  return set_state(number, BH_SET_DRAINING, duties);
}

template <class A>
template <class Duties>
Result<void> Growth<A>::end_drain(uint32_t number, Duties duties) {
  return set_state(number, BH_SET_USED, duties);
}

template <class A>
auto Growth<A>::may_say_drained(const Set& set) const -> std::optional<Drained> {
  const std::lock_guard guard(mutex_);
  for (uint32_t i = 0; i < BH_SETS_MAX; ++i) {
    const bh_set& stored = table_.sets[i];
    if (stored.state != BH_SET_DRAINING || stored.first_extent != set.first_extent) continue;
    // In a pool of one host each process says what it heeds; no word of the host states it for all.
    const bool heeded = c_.alone() ? all_processes_heed(stored.since)
                                   : c_.access.load(heeds_at(c_.host)) >= stored.since;
    if (heeded) return Drained{i, says_drained(stored)};
  }
  return std::nullopt;
}

template <class A>
void Growth<A>::say_drained(const Drained& drained, bool has_none) {
  const uint64_t at = drained_at(c_.host, drained.place);
  const uint64_t busy = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  const uint64_t says = has_none && busy == 0 ? drained.says : 0;
  if (c_.access.load(at) == says) return;
  c_.access.store(at, says);
  c_.access.publish(at, 8);
}

/// As of extents that are given away: no line of them stays dirty here.
template <class A>
void Growth<A>::clean_extents(const Set& set, const Drained& drained) {
  if (c_.access.load(drained_at(c_.host, drained.place)) == drained.says) return;
  const auto& g = c_.layout.geometry();
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    if (!extents_.holds(e)) continue;
    c_.access.flush(c_.layout.descriptor(e), g.table_bytes);
    c_.access.flush(c_.layout.extent_offset(e), g.extent_bytes);
  }
  c_.settle();
}

template <class A>
void Growth<A>::unsay_drained() {
  if (!possible()) return;
  bool said = false;
  for (uint32_t i = 0; i < BH_SETS_MAX; ++i) {
    const uint64_t at = drained_at(c_.host, i);
    if (c_.access.load(at) == 0) continue;
    c_.access.store(at, 0);
    c_.access.publish(at, 8);
    said = true;
  }
  if (said) c_.settle();
}

/// The words of extents first, then what their holders say (W5).
template <class A>
uint64_t Growth<A>::hosts_on(const bh_set_table& table, uint32_t number) const {
  const bh_set* const stored = find_set(table, number);
  const auto found = stored == nullptr ? std::nullopt : place_set(c_.layout.geometry(), *stored);
  if (!found) return 0;
  const Set& set = *found;
  const auto place = static_cast<uint32_t>(stored - table.sets);
  const LivesOver over = holdings_.refresh_own_words();
  uint64_t holders = 0, lost = 0;
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    const Life life = holdings_.holding_of(e, over).life;
    const uint64_t bit = uint64_t{1} << life.host;
    if ((holders & bit) != 0 || (lost & bit) != 0) continue;
    (c_.alone() || (hosts_.goes_on(life) && !hosts_.decided(life)) ? holders : lost) |= bit;
  }
  uint64_t on = lost;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    if ((holders >> host & 1) == 0) continue;
    c_.acquire_from(host, drained_at(host, place), 8);
    if (c_.access.load(drained_at(host, place)) != says_drained(*stored)) on |= uint64_t{1} << host;
  }
  return on;
}

template <class A>
template <class Duties>
Result<void> Growth<A>::remove(uint32_t number, bool* gone, Duties duties) {
  *gone = false;
  if (Status turn = begin_turn(); turn != Status::OK) {
    if (turn != Status::BUSY) return turn;
    return Error{turn, "another host changes the media of this pool: try again"};
  }
  bh_set_table table = newest_table();
  bh_set* const stored = find_set(table, number);
  Result<void> done;
  if (stored == nullptr) {
    done = Error{Status::NOT_FOUND, "the pool has no set of media " + std::to_string(number) +
                                        "; `bowhead pool info` lists them"};
  } else if (stored->state != BH_SET_DRAINING) {
    done = Error{Status::INVALID_ARGUMENT,
                 "set " + std::to_string(number) + " takes new blocks: drain it first"};
  } else if (hosts_on(table, number) != 0) {
    done = Status::IN_USE;
  }
  if (done.status() == Status::IN_USE)
    done = Error{Status::IN_USE, "blocks lie on set " + std::to_string(number) +
                                     ": drain it, and try again when it is empty"};
  if (done) {
    *stored = {};
    table.version = next_version();
    const Status waited = wait_in_turn(table, duties);
    *gone = waited == Status::OK && stands();
    if (c_.ended())
      done = c_.gone();
    else if (!*gone)
      done = Error{Status::BUSY, "set " + std::to_string(number) +
                                     " is no part of the pool any more, but some host has not let "
                                     "go of its media: they stay as they are, and must not be "
                                     "unplugged or removed before it has"};
  }
  end_turn();
  return done;
}

}  // namespace bowhead::core
