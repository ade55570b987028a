// SPDX-License-Identifier: Apache-2.0
// The tables of namespaces: each host has one, and reads those of all hosts.
//
// Invariants
//   N1 Of the entries of one name that say CONFIRMED at most one counts: that of the highest epoch,
//      unless an entry of that epoch or a higher one says REMOVED. The others are removed.
//   N2 Two hosts do not confirm entries of one name and one epoch. Each wrote TENTATIVE, and let it
//      settle, before it looked; so one of the two looks saw the other's entry. The host of the
//      higher slot withdraws; that of the lower slot waits until it has (the one-bit algorithm of
//      Burns and Lamport). An entry of a life that is over does not count while it says TENTATIVE.
//      It may become CONFIRMED all the same, if its host does not know yet that it is dead. So a
//      host that passed it over registers a higher epoch (N1).
//   N3 An id is never used again: it covers the epoch, and that of a new entry is higher than that
//      of all removed entries of the name.
//   N4 No block of a removed namespace stays. A process that stores a block writes the entry (which
//      ends with a fence), and then looks at `namespaces_gone`; a process that hears of a removal
//      raises the word, fences, and then reads the index. So either the reader finds the entry, or
//      the writer finds the removal, and raises the word again before it commits the block. If it
//      dies before that, the scavenger does. The index is read until nothing was found, and nothing
//      left, since the word changed last.
//   N5 A removal is not forgotten with the description of its entry: the state word, which names
//      the id, says all. And a host that hears of a removal writes REMOVED into its own entry too.
//      A damaged state word says nothing: the entry may have been one that is registered anew.
//
// The profile is not part of the id. Blocks describe themselves, so all hosts can read all blocks.
//
// Owns: the ids of removed namespaces that this process knows, and how far it has read the index
// for their blocks; the host's table. Calls: KeyLocks, Retirement.
#pragma once

#include <fmt/format.h>

#include <set>

#include "pool/core/key_locks.h"
#include "pool/core/retirement.h"

namespace bowhead::core {

inline ValueFormat format_in(const bh_namespace& entry) {
  return {entry.layout, static_cast<CompressionProfile>(entry.profile),
          (entry.flags & BH_NAMESPACE_WIPE) != 0};
}

/// The entry for a description, without id, epoch, writer and state. INVALID_ARGUMENT.
inline Result<bh_namespace> entry_of(const NamespaceDescription& d) {
  if (d.name.empty() || d.name.size() >= BH_NAMESPACE_NAME_BYTES ||
      d.name.find('\0') != std::string::npos || d.description.find('\0') != std::string::npos ||
      d.description.size() >= BH_NAMESPACE_TEXT_BYTES)
    return Error{Status::INVALID_ARGUMENT,
                 "a namespace has a name of 1 to 63 bytes and a description of up to 383"};
  bh_namespace entry{};
  entry.layout = d.values.layout.number_format == 0 ? kOpaqueLayout : d.values.layout;
  std::memcpy(entry.name, d.name.data(), d.name.size());
  std::memcpy(entry.description, d.description.data(), d.description.size());
  entry.content_checksum = hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES);
  entry.profile = static_cast<uint8_t>(d.values.profile);
  if (d.values.wipe) entry.flags = BH_NAMESPACE_WIPE;
  return entry;
}

inline uint64_t namespace_id(const bh_namespace& entry, uint32_t epoch) {
  return hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES, uint64_t{epoch} + 1) | 1;
}

inline uint64_t namespace_state(uint64_t id, uint64_t state) { return id ^ state; }

/// BH_NAMESPACE_NONE if the word is not of this entry.
inline uint64_t state_of(const bh_namespace& entry) {
  for (const uint64_t state :
       {BH_NAMESPACE_TENTATIVE, BH_NAMESPACE_CONFIRMED, BH_NAMESPACE_REMOVED}) {
    if (entry.state == namespace_state(entry.id, state)) return state;
  }
  return BH_NAMESPACE_NONE;
}

inline bool same_name(const bh_namespace& a, const bh_namespace& b) {
  return std::memcmp(a.name, b.name, BH_NAMESPACE_NAME_BYTES) == 0;
}

/// Compares a registered namespace with the one of the same name that `d` describes. Returns its
/// id, NAMESPACE_MISMATCH or LAYOUT_MISMATCH.
inline Result<uint64_t> match(const bh_namespace& there, const bh_namespace& wanted,
                              const NamespaceDescription& d) {
  if (std::memcmp(there.description, wanted.description, BH_NAMESPACE_TEXT_BYTES) != 0)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' is registered with another description: '{}'; use "
                             "another name, or remove the namespace first",
                             d.name, there.description)};
  if (d.values.layout.number_format != 0) {
    if (const auto differs = difference(there.layout, wanted.layout))
      return Error{
          Status::LAYOUT_MISMATCH,
          fmt::format("namespace '{}' has another layout: {}; use another name", d.name, *differs)};
  }
  if (d.values.profile != CompressionProfile::NONE && there.profile != wanted.profile)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' has compression profile '{}', not '{}'; open it "
                             "without a profile to take the one it has, or use another name",
                             d.name, profile_name(format_in(there).profile),
                             profile_name(d.values.profile))};
  if (d.values.wipe && !format_in(there).wipe)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' was registered without overwriting freed blocks; use "
                             "another name, or remove it first",
                             d.name)};
  return uint64_t{there.id};
}

inline constexpr uint64_t kObserverLookNs = 1'000'000'000;

template <class A>
class Namespaces {
 public:
  explicit Namespaces(const Rooms<A>& rooms)
      : c_(rooms.context),
        index_(rooms.index),
        hosts_(rooms.hosts),
        locks_(rooms.locks),
        retirement_(rooms.retirement) {}
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  /// Registers the namespace, unless it is. NAMESPACE_MISMATCH, LAYOUT_MISMATCH, BUSY,
  /// LIMIT_REACHED, HOST_FENCED; as an observer NOT_FOUND.
  Result<uint64_t> open_namespace(const NamespaceDescription& description);
  /// When it returns, every host that looks at the tables sees the removal; the blocks go later,
  /// in a pool of one host at once. NOT_FOUND, BUSY, LIMIT_REACHED, HOST_FENCED.
  Result<void> remove_namespace(std::string_view name);
  /// The format of the values of a namespace, also of one that was removed; empty if no namespace
  /// has this id.
  std::optional<ValueFormat> format_of(uint64_t ns) const;
  /// This host knows that the namespace was removed. An observer, which no duty tells, looks for
  /// itself from time to time.
  bool gone(uint64_t ns) {
    const uint64_t changes =
        c_.observing() ? 1 + c_.access.now_ns() / kObserverLookNs : c_.access.load(gone_at());
    if (changes != seen_changes_.load(std::memory_order_acquire)) learn(changes);
    return listed(ns);
  }
  /// Called after an entry of the namespace was inserted, or found, before its block is COMMITTED
  /// (N4). True if the namespace was removed: the block will go.
  bool gone_after_store(uint64_t ns);
  /// A duty: ends what a dead process had begun, hears of removals by other hosts, and retires
  /// blocks of removed namespaces until it is time.
  void work(uint64_t until_ns);
  /// Retires all blocks of removed namespaces that can be retired now; how many.
  uint64_t sweep();
  /// Of a new life, with no other process running: withdraws what is TENTATIVE and counts anew.
  void restart();
  /// The namespaces that can be opened.
  std::vector<bh_namespace> live_namespaces() const;
  bool namespace_damaged(uint32_t host, uint64_t index) const;
  /// Of the own table, with no other process running: entries that say which namespace was removed
  /// are written anew, the others dropped; how many those are.
  uint64_t drop_damaged();

 private:
  /// An entry of a table, with a state other than NONE. Entries of removed namespaces stay: they
  /// say which blocks must go, and which epoch comes next.
  struct Entry {
    bh_namespace entry;
    uint32_t host;
    uint64_t index;
  };
  /// The statements of all tables about one name.
  struct Look {
    std::optional<Entry> live;
    uint32_t next_epoch = 0;  ///< of an entry to be registered
    uint64_t contenders = 0;  ///< hosts (a bit each) whose entry says TENTATIVE and counts
  };
  /// All entries that are CONFIRMED or REMOVED.
  struct Tables {
    struct Epochs {
      uint32_t removed_below = 0, confirmed = 0;
    };
    std::vector<bh_namespace> entries;
    std::map<std::string, Epochs> names;
    std::set<uint64_t> damaged;  ///< the ids that damaged entries may have removed (N5)

    bool removed(const bh_namespace& entry) const {
      const Epochs& of = names.at(entry.name);
      return entry.epoch < std::max(of.removed_below, of.confirmed) || damaged.contains(entry.id);
    }
  };
  /// An id, in lists that only grow, by a compare-and-swap of the head.
  struct Gone {
    uint64_t id;
    Gone* next;
  };
  /// A walk over the own index.
  struct Walk {
    uint64_t changes = 0;  ///< value of namespaces_gone before it began
    uint64_t bucket = 0, retired = 0;
    bool left = false;  ///< a block could not be retired
    uint64_t not_before_ns = 0;
  };

  uint64_t gone_at() const { return c_.private_word(offsetof(bh_host_private, namespaces_gone)); }
  uint64_t open_at() const { return c_.private_word(offsetof(bh_host_private, namespace_open)); }
  uint64_t swept_at() const { return c_.private_word(offsetof(bh_host_private, namespaces_swept)); }
  uint64_t state_at(uint64_t index) const {
    return c_.layout.name_space(c_.host, index) + offsetof(bh_namespace, state);
  }
  uint64_t heartbeat_word(uint32_t host, size_t member) const {
    return c_.layout.part(host, BH_PART_HEARTBEAT) + member;
  }
  /// Any hash, but always the same, and not that of the lines of mail.
  static Hash128 lock_hash() { return {~uint64_t{0}, ~uint64_t{0}}; }

  std::optional<bh_namespace> read_entry(uint32_t host, uint64_t index,
                                         uint64_t* removed = nullptr) const;
  template <class Visit>
  void for_each_entry(Visit visit, std::set<uint64_t>* damaged = nullptr) const;
  void mark_removed();
  Look look(const bh_namespace& wanted) const;
  Tables read_tables() const;
  std::optional<uint64_t> free_entry() const;
  void write_entry(uint64_t index, bh_namespace entry, uint64_t state);
  void set_state(uint64_t index, uint64_t word) {
    c_.access.store(state_at(index), word);
    c_.access.publish(state_at(index), 8);
  }
  void end_change();
  void end_change_of_the_dead();
  void announce_removal();
  Result<uint64_t> contend(const NamespaceDescription& d, bh_namespace wanted);
  Error table_full(const std::string& advice) const;
  void hear_of_removals();
  void learn(uint64_t changes);
  bool listed(uint64_t ns) const {
    const Gone* one = gone_[ns / 2 % gone_.size()].load(std::memory_order_acquire);
    while (one != nullptr && one->id != ns) one = one->next;
    return one != nullptr;
  }
  bool any_gone() const {
    return std::ranges::any_of(gone_, [](const auto& head) { return head.load() != nullptr; });
  }
  bool walk(Walk& walk, uint64_t until_ns);

  Context<A>& c_;
  Index<A>& index_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Retirement<A>& retirement_;

  std::array<std::atomic<Gone*>, 64> gone_{};  ///< by id; ids have the last bit set
  std::atomic<uint64_t> seen_changes_{0};      ///< namespaces_gone when the ids were read last
  Walk duty_walk_;                             ///< of the thread of the duties
};

template <class A>
Namespaces<A>::~Namespaces() {
  for (const std::atomic<Gone*>& head : gone_) {
    for (Gone* one = head.load(std::memory_order_acquire); one != nullptr;) {
      Gone* next = one->next;
      delete one;
      one = next;
    }
  }
}

// ---- tables ----

/// An entry with a state and a good description. The state is loaded first: an entry that is
/// withdrawn and used for another namespace meanwhile does not match it. Of an entry whose
/// description is damaged, `removed` is the id of the namespace that it removed, if it did (N5).
template <class A>
std::optional<bh_namespace> Namespaces<A>::read_entry(uint32_t host, uint64_t index,
                                                      uint64_t* removed) const {
  const uint64_t at = c_.layout.name_space(host, index);
  c_.acquire_from(host, at, sizeof(bh_namespace));
  const uint64_t state = c_.access.load(at + offsetof(bh_namespace, state));
  if (state == 0) return std::nullopt;
  std::array<Line, sizeof(bh_namespace) / sizeof(Line)> lines;
  for (size_t i = 0; i < lines.size(); ++i) lines[i] = c_.access.load_line(at + i * sizeof(Line));
  auto entry = std::bit_cast<bh_namespace>(lines);
  entry.state = state;
  const bool described =
      c_.sealer.check(lines[0], at) && entry.name[BH_NAMESPACE_NAME_BYTES - 1] == 0 &&
      entry.description[BH_NAMESPACE_TEXT_BYTES - 1] == 0 &&
      entry.content_checksum == hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES);
  if (described && state_of(entry) != BH_NAMESPACE_NONE) return entry;
  if (removed != nullptr) *removed = described ? 0 : namespace_state(state, BH_NAMESPACE_REMOVED);
  return std::nullopt;
}

/// Calls visit(Entry) for each entry of each host, until it returns false. `damaged`: gets the ids
/// that damaged entries may have removed.
template <class A>
template <class Visit>
void Namespaces<A>::for_each_entry(Visit visit, std::set<uint64_t>* damaged) const {
  const auto& g = c_.layout.geometry();
  const auto used_at = [&](uint32_t host) {
    return heartbeat_word(host, offsetof(bh_host_heartbeat, namespaces_used));
  };
  for (uint32_t h = 0; h < g.host_count; ++h) c_.invalidate_from(h, used_at(h), 8);
  c_.access.coherence_fence();
  for (uint32_t host = 0; host < g.host_count; ++host) {
    const uint64_t used = namespaces_used(c_.access.load(used_at(host)), g.namespace_count);
    for (uint64_t i = 0; i < used; ++i) {
      uint64_t removed = 0;
      const auto entry = read_entry(host, i, &removed);
      if (damaged != nullptr && removed != 0) damaged->insert(removed);
      if (entry && !visit(Entry{*entry, host, i})) return;
    }
  }
}

/// N1, and the contenders of N2 other than this host.
template <class A>
auto Namespaces<A>::look(const bh_namespace& wanted) const -> Look {
  Look found;
  uint32_t removed_below = 0;
  std::set<uint64_t> damaged;
  for_each_entry(
      [&](const Entry& there) {
        const bh_namespace& entry = there.entry;
        if (!same_name(entry, wanted)) return true;
        const uint64_t state = state_of(entry);
        if (state == BH_NAMESPACE_REMOVED) {
          removed_below = std::max(removed_below, entry.epoch + 1);
        } else if (state == BH_NAMESPACE_CONFIRMED) {
          if (!found.live || found.live->entry.epoch < entry.epoch) found.live = there;
        } else if (there.host != c_.host) {
          if (c_.ended({there.host, entry.incarnation}))
            found.next_epoch = std::max(found.next_epoch, entry.epoch + 1);
          else
            found.contenders |= uint64_t{1} << there.host;
        }
        return true;
      },
      &damaged);
  if (found.live && damaged.contains(found.live->entry.id))
    removed_below = std::max(removed_below, found.live->entry.epoch + 1);
  found.next_epoch = std::max(found.next_epoch, removed_below);
  if (found.live && found.live->entry.epoch < removed_below) found.live.reset();
  return found;
}

template <class A>
auto Namespaces<A>::read_tables() const -> Tables {
  Tables tables;
  for_each_entry(
      [&](const Entry& there) {
        const bh_namespace& entry = there.entry;
        const uint64_t state = state_of(entry);
        if (state == BH_NAMESPACE_TENTATIVE) return true;
        auto& of = tables.names[entry.name];
        if (state == BH_NAMESPACE_REMOVED)
          of.removed_below = std::max(of.removed_below, entry.epoch + 1);
        else
          of.confirmed = std::max(of.confirmed, entry.epoch);
        tables.entries.push_back(entry);
        return true;
      },
      &tables.damaged);
  return tables;
}

template <class A>
std::vector<bh_namespace> Namespaces<A>::live_namespaces() const {
  const Tables tables = read_tables();
  std::vector<bh_namespace> live;
  std::set<uint64_t> ids;  // a damaged entry may be good again after the namespace was written anew
  for (const bh_namespace& entry : tables.entries) {
    if (!tables.removed(entry) && ids.insert(entry.id).second) live.push_back(entry);
  }
  return live;
}

template <class A>
std::optional<ValueFormat> Namespaces<A>::format_of(uint64_t ns) const {
  std::optional<ValueFormat> found;
  for_each_entry([&](const Entry& there) {
    if (there.entry.id == ns && state_of(there.entry) != BH_NAMESPACE_TENTATIVE)
      found = format_in(there.entry);
    return !found;
  });
  return found;
}

template <class A>
bool Namespaces<A>::namespace_damaged(uint32_t host, uint64_t index) const {
  const uint64_t at = c_.layout.name_space(host, index);
  c_.acquire_from(host, at, sizeof(bh_namespace));
  return c_.access.load(at + offsetof(bh_namespace, state)) != 0 && !read_entry(host, index);
}

template <class A>
uint64_t Namespaces<A>::drop_damaged() {
  const Tables tables = read_tables();
  uint64_t dropped = 0;
  for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
    if (!namespace_damaged(c_.host, i)) continue;
    uint64_t removed = 0;
    (void)read_entry(c_.host, i, &removed);
    const auto other = std::ranges::find(tables.entries, removed, &bh_namespace::id);
    if (other != tables.entries.end()) {
      write_entry(i, *other, BH_NAMESPACE_REMOVED);
      continue;
    }
    set_state(i, 0);
    ++dropped;
  }
  return dropped;
}

// ---- the own table, under the lock of the namespaces ----

template <class A>
std::optional<uint64_t> Namespaces<A>::free_entry() const {
  for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
    if (!read_entry(c_.host, i)) return i;
  }
  return std::nullopt;
}

template <class A>
Error Namespaces<A>::table_full(const std::string& advice) const {
  return {Status::LIMIT_REACHED,
          fmt::format("all {} entries of this host's table of namespaces are in use, those of "
                      "removed namespaces included: {}",
                      c_.layout.geometry().namespace_count, advice)};
}

/// Description, sealed line, state: each published before the next is written.
template <class A>
void Namespaces<A>::write_entry(uint64_t index, bh_namespace entry, uint64_t state) {
  const uint64_t at = c_.layout.name_space(c_.host, index);
  constexpr size_t kLines = offsetof(bh_namespace, state) / sizeof(Line);
  set_state(index, 0);
  entry.incarnation = c_.incarnation;
  const auto lines = std::bit_cast<std::array<Line, sizeof(bh_namespace) / sizeof(Line)>>(entry);
  for (size_t i = 1; i < kLines; ++i) c_.access.store_line(at + i * sizeof(Line), lines[i]);
  c_.access.publish(at, kLines * sizeof(Line));
  c_.write_sealed(at, lines[0]);
  const uint64_t used_at = heartbeat_word(c_.host, offsetof(bh_host_heartbeat, namespaces_used));
  const uint64_t used = c_.access.load(used_at), count = c_.layout.geometry().namespace_count;
  if (namespaces_used(used, count) <= index) {
    c_.access.store(used_at, namespaces_used_word(index + 1));
    c_.access.publish(used_at, 8);
  }
  set_state(index, namespace_state(entry.id, state));
}

/// Ends the registration or removal that a dead process had begun.
template <class A>
void Namespaces<A>::end_change() {
  const uint64_t open = c_.access.load(open_at());
  if (open == 0) return;
  const auto entry =
      open <= c_.layout.geometry().namespace_count ? read_entry(c_.host, open - 1) : std::nullopt;
  if (entry && state_of(*entry) == BH_NAMESPACE_TENTATIVE) set_state(open - 1, 0);
  if (entry && state_of(*entry) == BH_NAMESPACE_REMOVED) announce_removal();
  c_.access.store(open_at(), 0);
}

template <class A>
void Namespaces<A>::restart() {
  const auto& g = c_.layout.geometry();
  uint64_t used = 0;
  for (uint64_t i = 0; i < g.namespace_count; ++i) {
    const auto entry = read_entry(c_.host, i);
    if (entry && state_of(*entry) == BH_NAMESPACE_TENTATIVE)
      set_state(i, 0);
    else if (c_.access.load(state_at(i)) != 0)
      used = i + 1;
  }
  const uint64_t used_at = heartbeat_word(c_.host, offsetof(bh_host_heartbeat, namespaces_used));
  c_.access.store(used_at, namespaces_used_word(used));
  c_.access.publish(used_at, 8);
  c_.access.store(open_at(), 0);
  c_.access.store(c_.private_word(offsetof(bh_host_private, namespaces_heard)), 0);
  c_.access.store(swept_at(), 0);
  c_.access.store(gone_at(), 1);
}

// ---- registration ----

template <class A>
Result<uint64_t> Namespaces<A>::open_namespace(const NamespaceDescription& d) {
  const auto wanted = entry_of(d);
  if (!wanted) return wanted.error();
  if (const auto found = look(*wanted); found.live) return match(found.live->entry, *wanted, d);
  if (c_.observing())
    return Error{Status::NOT_FOUND, "the pool has no namespace of this name and description"};
  const KeyLock lock(locks_, lock_hash());
  if (!lock.held()) return Status::BUSY;
  end_change();
  auto id = contend(d, *wanted);
  // If a decision has begun about this life, another host may have passed its entry over. If none
  // has by now, the entry is in memory before there is one.
  if (id && !c_.alone() && !hosts_.stands({c_.host, c_.incarnation})) return Status::HOST_FENCED;
  return id;
}

/// N2.
template <class A>
Result<uint64_t> Namespaces<A>::contend(const NamespaceDescription& d, bh_namespace wanted) {
  const uint64_t deadline_ns = c_.access.now_ns() + kLockWaitNs;
  const uint64_t lower = (uint64_t{1} << c_.host) - 1;
  uint64_t index = 0;
  bool tentative = false;  // the own entry is there
  for (;;) {
    const Look found = look(wanted);
    if (c_.ended()) return c_.gone();
    const bool outdated = found.next_epoch > wanted.epoch;
    if (tentative && (found.live || outdated || (found.contenders & lower) != 0)) {
      end_change();
      tentative = false;
    }
    if (found.live) return match(found.live->entry, wanted, d);
    if (found.contenders == 0) {
      if (tentative) {
        set_state(index, namespace_state(wanted.id, BH_NAMESPACE_CONFIRMED));
        c_.access.store(open_at(), 0);
        return uint64_t{wanted.id};
      }
      const auto free = free_entry();
      if (!free) return table_full("use another namespace, or register it as another host");
      index = *free;
      wanted.epoch = found.next_epoch;
      wanted.id = namespace_id(wanted, wanted.epoch);
      if (c_.alone()) {
        write_entry(index, wanted, BH_NAMESPACE_CONFIRMED);
        return uint64_t{wanted.id};
      }
      c_.access.store(open_at(), index + 1);
      write_entry(index, wanted, BH_NAMESPACE_TENTATIVE);
      tentative = true;
      c_.settle();
      continue;
    }
    if (c_.access.now_ns() > deadline_ns) {
      end_change();
      return Error{Status::BUSY, fmt::format("another host registers namespace '{}' and does not "
                                             "come to an end; try again",
                                             d.name)};
    }
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 50'000);
  }
}

// ---- removal ----

template <class A>
Result<void> Namespaces<A>::remove_namespace(std::string_view name) {
  const auto wanted = entry_of({std::string(name), {}, {}});
  if (!wanted) return wanted.error();
  {
    if (c_.ended()) return c_.gone();
    const KeyLock lock(locks_, lock_hash());
    if (!lock.held()) return Status::BUSY;
    end_change();
    const Look found = look(*wanted);
    if (!found.live)
      return Error{Status::NOT_FOUND, fmt::format("the pool has no namespace '{}'", name)};
    const bool own = found.live->host == c_.host;
    const auto index = own ? std::optional(found.live->index) : free_entry();
    if (!index)
      return table_full(fmt::format("remove it as host {}, which registered it", found.live->host));
    c_.access.store(open_at(), *index + 1);
    if (own)
      set_state(*index, namespace_state(found.live->entry.id, BH_NAMESPACE_REMOVED));
    else
      write_entry(*index, found.live->entry, BH_NAMESPACE_REMOVED);
    announce_removal();
    c_.access.store(open_at(), 0);
    if (!c_.alone() && !hosts_.stands({c_.host, c_.incarnation})) return Status::HOST_FENCED;
  }
  if (c_.alone()) sweep();
  return {};
}

/// The entry is in memory before the count is, so that a host that sees the count finds the entry.
template <class A>
void Namespaces<A>::announce_removal() {
  c_.settle();
  const uint64_t count_at =
      heartbeat_word(c_.host, offsetof(bh_host_heartbeat, namespaces_removed));
  c_.access.fetch_add(count_at, 1);
  c_.access.publish(count_at, 8);
  hear_of_removals();
}

/// N5, under the lock of the namespaces, or by a duty; a removal itself has set the state of its
/// entry. An entry that is marked twice is the same.
template <class A>
void Namespaces<A>::mark_removed() {
  const Tables tables = read_tables();
  const uint64_t used_at = heartbeat_word(c_.host, offsetof(bh_host_heartbeat, namespaces_used));
  const uint64_t used =
      namespaces_used(c_.access.load(used_at), c_.layout.geometry().namespace_count);
  for (uint64_t i = 0; i < used; ++i) {
    const auto entry = read_entry(c_.host, i);
    if (entry && state_of(*entry) == BH_NAMESPACE_CONFIRMED && tables.removed(*entry))
      set_state(i, namespace_state(entry->id, BH_NAMESPACE_REMOVED));
  }
}

/// Of two processes of this host that hear at once, both raise the word: that costs a walk.
template <class A>
void Namespaces<A>::hear_of_removals() {
  const auto count_at = [&](uint32_t host) {
    return heartbeat_word(host, offsetof(bh_host_heartbeat, namespaces_removed));
  };
  for (uint32_t h = 0; h < hosts_.count(); ++h) c_.invalidate_from(h, count_at(h), 8);
  c_.access.coherence_fence();
  uint64_t sum = 0;
  for (uint32_t h = 0; h < hosts_.count(); ++h) sum += c_.access.load(count_at(h));
  const uint64_t heard_at = c_.private_word(offsetof(bh_host_private, namespaces_heard));
  if (sum == c_.access.load(heard_at)) return;
  mark_removed();
  c_.access.fetch_add(gone_at(), 1);
  c_.access.store(heard_at, sum);
}

/// Reads the ids of all removed namespaces. `changes` was loaded before.
template <class A>
void Namespaces<A>::learn(uint64_t changes) {
  const Tables tables = read_tables();
  for (const bh_namespace& entry : tables.entries) {
    if (!tables.removed(entry) || listed(entry.id)) continue;
    // Two threads may both add an id: that does no harm.
    std::atomic<Gone*>& head = gone_[entry.id / 2 % gone_.size()];
    auto* one = new Gone{entry.id, head.load(std::memory_order_acquire)};
    while (!head.compare_exchange_weak(one->next, one, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
    }
  }
  // Release: who sees the number sees the ids.
  seen_changes_.store(changes, std::memory_order_release);
}

template <class A>
bool Namespaces<A>::gone_after_store(uint64_t ns) {
  if (!gone(ns)) return false;
  c_.access.fetch_add(gone_at(), 1);
  return true;
}

template <class A>
void Namespaces<A>::work(uint64_t until_ns) {
  end_change_of_the_dead();
  hear_of_removals();
  walk(duty_walk_, until_ns);
}

template <class A>
void Namespaces<A>::end_change_of_the_dead() {
  if (c_.access.load(open_at()) == 0) return;
  const KeyLock lock(locks_, lock_hash(), kShortLockWaitNs);
  if (lock.held()) end_change();
}

template <class A>
uint64_t Namespaces<A>::sweep() {
  end_change_of_the_dead();
  Walk all;
  walk(all, UINT64_MAX);
  return all.retired;
}

/// One slice of a walk over the own index, if there is one to do. A block that cannot be retired
/// now (another process is writing or moving it, or it is in READ_ONLY custody) is left for another
/// walk. False if the time is over.
template <class A>
bool Namespaces<A>::walk(Walk& walk, uint64_t until_ns) {
  const uint64_t changes = c_.access.load(gone_at());
  uint64_t swept = c_.access.load(swept_at());
  if (swept == changes || c_.access.now_ns() < walk.not_before_ns) return true;
  if (walk.changes != changes) walk = {.changes = changes};
  gone(0);  // learns of the removals up to here
  c_.access.fence();
  std::vector<bh_index_entry> found;
  const bool any = any_gone();
  for (;;) {
    const uint64_t bucket = c_.layout.next_bucket(walk.bucket);
    if (!any || bucket >= c_.layout.bucket_end()) break;
    walk.bucket = bucket + 1;
    index_.for_each_in(c_.host, bucket, [&](const Found& one) {
      if (listed(one.entry.namespace_id)) found.push_back(one.entry);
    });
    for (const bh_index_entry& entry : found) {
      if (c_.layout.valid_block(entry.block_offset, 1) &&
          retirement_.retire_entry(entry, BH_COUNTER_REMOVALS))
        ++walk.retired;
      else
        walk.left = true;
    }
    found.clear();
    if (walk.bucket % 16 == 0 && c_.access.now_ns() >= until_ns) return false;
  }
  if (!walk.left) {
    c_.access.cas(swept_at(), swept, walk.changes);
  } else {
    const uint64_t wait_ns = uint64_t{c_.times.dead_ms} * 1'000'000;
    walk = {.retired = walk.retired, .not_before_ns = c_.access.now_ns() + wait_ns};
  }
  return true;
}

}  // namespace bowhead::core
