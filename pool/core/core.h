// SPDX-License-Identifier: Apache-2.0
// Core: the pool's operations as one process of one host runs them, over an access policy.
//
// The life of a block: reserve -> payload -> publish -> header -> publish -> index entry -> publish
// (committed) -> retire (entry cleared, stamp says retired) -> hazards looked at -> free.
//
// Invariants (docs/invariants.md has the argument for each)
//   C1 An entry is written only after the header and payload it names are published.
//   C2 A block is FREE only after its header shows no committed stamp (I2).
//   C3 A block goes RETIRED -> FREE only after a look at all hazards that began after its retired
//      stamp was published and fenced (I4).
//   C4 A move inserts the new entry before it clears the old one, so that a death in between leaves
//      two good entries and never none. Whoever scavenges or rebuilds keeps one of them.
//
// Blocks hold bytes and say by which codec they encode the value; what codecs do is none of the
// core's business.
//
// Parts: core.h (life of a block), core_evict.h (making room), core_attach.h (joining, leaving,
// deaths, rebuilding), core_check.h (reports), core_namespace.h (the table of namespaces). All
// methods may be called from any thread unless said.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/checksum.h"
#include "base/status.h"
#include "pool/core/allocator.h"
#include "pool/core/context.h"
#include "pool/core/hosts.h"
#include "pool/core/index.h"
#include "pool/core/leases.h"
#include "pool/pool.h"

namespace bowhead::core {

/// A key with its hash. The hash is seeded with the namespace: keys of two namespaces never meet.
struct Key {
  Key(uint64_t ns, std::string_view text) : Key(ns, text, hash128(text.data(), text.size(), ns)) {}
  Key(uint64_t ns, std::string_view text, const Hash128& known_hash)
      : bytes(text), namespace_id(ns), hash(known_hash) {}
  static bool valid(std::string_view text) {
    return !text.empty() && text.size() <= BH_KEY_BYTES_MAX;
  }

  std::string_view bytes;
  uint64_t namespace_id;
  Hash128 hash;
};

/// The host that may have written the lines that an entry leads to: that of the entry, or, of an
/// extent in custody, who knows.
inline uint32_t writer_of(uint32_t host, const bh_index_entry& entry) {
  return (entry.flags & BH_ENTRY_COPY_ONLY) != 0 ? UINT32_MAX : host;
}

/// The sum of the sizes of pieces; UINT64_MAX for all that is more.
template <class Piece>
uint64_t total_bytes(std::span<const Piece> pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (__builtin_add_overflow(bytes, piece.size, &bytes)) return UINT64_MAX;
  }
  return bytes;
}

/// What a put stores: a value as it is, or coded in fewer bytes.
struct Content {
  std::span<const ConstSpan> stored;  ///< what goes into the pool
  uint64_t length_bytes = 0;          ///< of the value
  uint8_t codec = BH_CODEC_RAW;
  uint8_t profile = BH_PROFILE_NONE;

  static Content raw(std::span<const ConstSpan> value) { return {value, total_bytes(value)}; }
  uint64_t stored_bytes() const { return total_bytes(stored); }
};

/// A block that is stored as it is has as many bytes as its value.
inline bool lengths_agree(const bh_block_header& header) {
  return header.codec != BH_CODEC_RAW || header.stored_bytes == header.length_bytes;
}

/// A committed block whose entry, header and key were all verified.
struct Located {
  Found found;
  bh_block_header header{};
  uint64_t slot = 0;
};

/// Runtime settings from the superblock.
struct Settings {
  uint32_t evict_high_permille = 0;  ///< 0: no eviction
  uint32_t evict_low_permille = 0;
};

template <class A>
class Core {
 public:
  Core(A& access, const bh_superblock& superblock, uint32_t host);

  // ---- core_attach.h; not thread-safe ----
  /// Called once, in the middle of attach() or repair(), if the pool has several hosts: from then
  /// on beat() must be called by another thread, though the rest is still under way.
  using StartBeating = std::function<void()>;
  /// BUSY, HOST_ID_IN_USE, HOST_FENCED, DAMAGED, LIMIT_REACHED: with a sentence.
  Result<void> attach(const Progress& progress, const StartBeating& start_beating = {});
  void detach();
  /// Exclusive: no process may have the pool open. Rebuilds as after a reboot.
  Result<std::vector<std::string>> repair(bool take_over, const Progress& progress,
                                          const StartBeating& start_beating = {});
  uint64_t scavenge_dead();
  bool anybody_alive();
  void forget_own_process();

  // ---- core_share.h: pools of several hosts ----
  /// Beats for the host: looks at the decisions of the others, and lets leases expire whose time is
  /// over. Every process calls it once per times.beat_ms, in a thread that does nothing else, so
  /// that no work makes a live host look dead: its cost does not grow with the pool. HOST_FENCED,
  /// HOST_ID_CONFLICT: this handle, and those of all other processes of the host, must be closed.
  Result<void> beat();
  /// What a host does for the others besides: frees what has settled, does what they ask for, takes
  /// part in deciding who succeeds a dead host, takes extents over. Every process calls it once per
  /// times.beat_ms, in a thread of its own; it may take several beats. Statuses as of beat().
  Result<void> work();
  /// Ends this life of the host in order, so that others may take over at once. Nobody else of the
  /// host may have the pool open (IN_USE).
  Result<void> leave();
  /// An operator vouches that a host has stopped writing to the memory for good.
  Result<void> vouch_fenced(uint32_t host);

  /// OK, or why nothing may be stored any more.
  Status standing() const { return ended() ? gone() : Status::OK; }

  // ---- blocks ----
  Status put(const Key& key, const Content& content);
  Status put(const Key& key, std::span<const ConstSpan> value) {
    return put(key, Content::raw(value));
  }
  /// Of the block that a put would take.
  uint64_t room_for(const Content& content, uint64_t key_bytes) const {
    bh_block_header header = header_for(content);
    header.key_bytes = static_cast<uint16_t>(key_bytes);
    return room_for(header);
  }
  uint64_t room_for(const bh_block_header& header) const;
  /// The key is stored already: what a put of it then does is done.
  bool put_present(const Key& key);
  Result<uint64_t> get(const Key& key, std::span<const Span> buffers);
  /// Copies the stored bytes of a block, whatever their codec, to where `sink` wants them, and
  /// returns the length of the value. Of a Sink:
  ///   Result<std::span<const Span>> room_for(const bh_block_header&)  buffers for the stored
  ///       bytes; an error is what get() returns;
  ///   Status take(const bh_block_header&)  what came was verified. DAMAGED: it is no value all the
  ///       same, and the block is dropped like any that is damaged.
  /// The header is private to this call, like the bytes; each may be called several times.
  template <class Sink>
  Result<uint64_t> get_stored(const Key& key, Sink& sink);
  std::optional<Located> locate(const Key& key);
  /// present[i] for up to 128 keys, pipelined: all lines of a step are fetched before the next
  /// step. `slots`: their block slots.
  uint64_t exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
                  uint64_t* slots = nullptr);
  void touch_slots(std::span<const uint64_t> slots);
  /// Copies parts of what a block holds: Status take(header, read) calls read(offset, buffer) as it
  /// likes, and verifies what came: the checksum of the block is of all of it. What was copied is
  /// good only if the length of the value comes back; nothing does where the block is not found,
  /// changed, might hold what somebody else wrote, or take() is not OK.
  template <class Take>
  std::optional<uint64_t> get_parts(const Key& key, Take take);
  /// Calls visit(located) for committed blocks of this host that nobody used for `unused_ns`.
  template <class Visit>
  void for_each_cold(uint64_t unused_ns, Visit visit);
  /// Copies what a block holds, verified. False if it changed, or is damaged (then it is dropped).
  bool read_stored(const Located& located, std::span<const Span> buffers);
  /// Another content that stands for the same value takes the place of a block of this host. BUSY:
  /// the block is leased or changed, or takes no smaller one; NO_SPACE: there is none to be had
  /// without evicting; HOST_FENCED.
  Status replace(const Located& old, const Content& content);
  Result<Reservation> reserve(const Key& key, uint64_t length_bytes);
  Status commit(Reservation& reservation, const PayloadSum& sum);
  Status abort(Reservation& reservation);
  Result<Lease> acquire(const Key& key, uint64_t ttl_ms);
  Status release(Lease& lease);
  Status remove(const Key& key);

  // ---- core_namespace.h ----
  Result<uint64_t> open_namespace(const NamespaceDescription& description);
  /// How a namespace is compressed, if there is one of this id.
  std::optional<Compression> compression_of(uint64_t ns) const;

  // ---- core_check.h ----
  void fill_info(PoolInfo& info);
  CheckReport check(bool payload, const Progress& progress);
  void list(const std::function<bool(const BlockInfo&)>& visit);
  std::vector<NamespaceUsage> usage();

  Context<A>& context() { return c_; }
  Allocator<A>& allocator() { return allocator_; }
  Index<A>& index() { return index_; }
  Leases<A>& leases() { return leases_; }

  static constexpr uint64_t kBatch = 128;  ///< keys that exists() takes at once

 private:
  struct Victim {
    uint64_t recency;
    uint64_t slot;
  };
  using FreeBlocks = std::map<uint64_t, uint64_t>;  ///< free blocks by block_bytes

  static constexpr uint64_t kLockWaitNs = 2'000'000'000;
  static constexpr uint64_t kShortLockWaitNs = 1'000'000;  ///< where there are others, or later

  /// The key's index lock, held for the length of a scope. A dead holder is scavenged; a live one
  /// that does not let go in time makes it fail.
  class KeyLock {
   public:
    KeyLock(Core& core, const Hash128& hash, uint64_t wait_ns = kLockWaitNs)
        : core_(core), hash_(hash), held_(core.lock(hash, wait_ns)) {}
    ~KeyLock() {
      if (held_) core_.index_.unlock(hash_);
    }
    KeyLock(const KeyLock&) = delete;
    KeyLock& operator=(const KeyLock&) = delete;
    bool held() const { return held_; }

   private:
    Core& core_;
    const Hash128 hash_;
    bool held_;
  };
  bool lock(const Hash128& hash, uint64_t wait_ns);
  bool ended() const { return c_.ended(); }
  /// Why it ended.
  Status gone() const {
    if (c_.access.media_failed()) return Status::MEDIA_ERROR;
    return c_.view(c_.host).conflict ? Status::HOST_ID_CONFLICT : Status::HOST_FENCED;
  }
  bool stamps_left() { return c_.access.load(sequence_at()) < kStampSequenceMax; }
  uint64_t sequence_at() const { return c_.layout.part(c_.host, BH_PART_PRIVATE); }
  /// The last sequence stands for "none left".
  uint64_t next_stamp() {
    const uint64_t sequence =
        stamps_left() ? c_.access.fetch_add(sequence_at(), 1) + 1 : kStampSequenceMax;
    return make_stamp(c_.host, c_.incarnation, std::min(sequence, kStampSequenceMax));
  }
  /// Notes when a block was used, or tells its owner so. Both may be lost.
  void used(uint64_t slot, uint64_t recency) {
    if (c_.observing()) return;
    if (c_.alone() || allocator_.holds(c_.layout.extent_of_slot(slot)))
      c_.access.store_relaxed(c_.own(BH_PART_RECENCY, slot), recency);
    else
      touch_elsewhere(slot);
  }
  void used_now(uint64_t slot) { used(slot, c_.access.recency_ns()); }
  void touch_elsewhere(uint64_t slot);

  /// A bit for each host whose index look-ups read.
  uint64_t probed_hosts() const {
    if (c_.observing()) return ~uint64_t{0} >> (64 - hosts_.count());
    if (c_.alone()) return 1;
    return c_.access.load(c_.private_word(offsetof(bh_host_private, probed_hosts))) | own_bit();
  }
  uint64_t own_bit() const { return c_.observing() ? 0 : uint64_t{1} << c_.host; }
  uint64_t other_hosts() const {
    return c_.alone() && !c_.observing() ? 0 : probed_hosts() & ~own_bit();
  }

  /// In the segment of one host.
  std::optional<Located> locate_at(uint32_t host, const Key& key, Fresh fresh) const;
  /// The block that an entry names, if it is the one of the key. `fresh`: header and first key line
  /// were acquired.
  std::optional<Located> verify(const Found& found, const Key& key, bool fresh = false) const;
  std::optional<Found> find_own(const Hash128& hash, uint64_t wait_ns, bool* unsure);
  template <class Wanted>
  Status remove_own(const Hash128& hash, uint64_t wait_ns, Wanted wanted);
  /// Step by step for a batch of keys, each step's lines invalidated and fetched together.
  struct Candidate {
    uint32_t key, host;
    uint32_t writer;  ///< of the line at `at`
    uint64_t at;      ///< of the entry, then of the header
    bh_index_entry entry;
  };
  uint64_t match_batch(std::span<const Hash128> hashes, std::vector<Candidate>& found) const;
  void fetch(std::vector<Candidate>& found, uint64_t bytes) const;
  bool key_matches(const Found& found, uint64_t slot, std::string_view key) const;
  bool read_header(uint64_t slot, bh_block_header& header) const;
  std::optional<Block> end_reservation(Reservation& reservation);
  void write_key(uint64_t slot, std::string_view key);
  void retire_header(uint64_t slot);
  Status check_value(const Key& key, uint64_t bytes) const;

  // core_namespace.h
  std::optional<bh_namespace> read_namespace(uint32_t host, uint64_t index) const;
  template <class Visit>
  void for_each_namespace(Visit visit) const;
  void write_namespace(uint64_t index, const bh_namespace& entry);

  std::optional<Block> reserve_block(uint64_t block_bytes);  // core_evict.h
  Status finish_put(const Key& key, const Block& block, bh_block_header header);
  bh_block_header header_for(const Content& content) const;
  bh_index_entry entry_for(const Block& block, const bh_block_header& header) const;
  void undo_put(const Block& block);
  uint64_t note_hit(const Located& located);
  bool copy_out(const Located& located, std::span<const Span> buffers, bool* damaged);
  void drop_damaged(const Located& located);

  /// What says that a block is the one that was meant.
  enum class Proof { HEADER, ENTRY };
  bool retire(uint64_t slot, const Hash128& hash, uint64_t stamp, uint32_t counter,
              uint64_t lock_wait_ns = kLockWaitNs, Proof proof = Proof::HEADER);
  /// The block of an own entry, whatever its header says: in custody somebody else may have written
  /// that.
  bool retire_entry(const bh_index_entry& entry, uint32_t counter) {
    const uint64_t slot = c_.layout.slot_of(entry.block_offset);
    const bool retired = retire(slot, {entry.key_hash[0], entry.key_hash[1]}, entry.stamp, counter,
                                kShortLockWaitNs, Proof::ENTRY);
    if (retired) reclaim({&slot, 1});
    return retired;
  }
  void retry_overwritten();
  /// RETIRING (ours) -> COMMITTED: it stays after all.
  void cancel_retire(uint64_t slot) {
    const uint64_t at = c_.block_word(slot);
    c_.store_state(at, c_.load_state(at).next(BH_BLOCK_COMMITTED));
  }
  /// A block that waits until no hazard names it.
  struct Retired {
    uint64_t slot, offset;
    StateWord word;
    uint64_t retired_at_ns;
  };
  uint64_t reclaim(std::span<const uint64_t> slots);
  uint64_t reap(bool wait);
  uint64_t free_unnamed(const std::vector<Retired>& retired);

  std::optional<uint64_t> take_lease(const bh_index_entry& entry, uint64_t ttl_ms);
  Error lease_table_full() const;
  Status confirm(const Located& located);
  bool vouched(const Located& located) const;
  bool settled(uint64_t stamp) const;

  // core_evict.h
  uint64_t used_permille() const;
  void evict_by_watermark(uint64_t bytes_put);
  uint64_t evict(uint64_t bytes);
  bool choose_victims();
  /// What may be done with blocks that are in the way.
  enum class Clear { BY_MOVES, BY_EVICTION };
  Clear clear_by() const {
    return settings_.evict_high_permille == 0 ? Clear::BY_MOVES : Clear::BY_EVICTION;
  }
  bool make_room(uint64_t block_bytes, Clear by);
  bool empty_window(uint64_t first, uint64_t span, Clear by);
  bool empty_slab(const Cut& cut, const std::vector<uint64_t>& named, Clear by);
  bool clear_slab(const Cut& cut, const std::vector<uint64_t>& named, Clear by,
                  std::vector<uint64_t>& retired);
  void compact(uint64_t count, uint64_t until_ns);
  FreeBlocks free_blocks() const;
  uint64_t used_blocks(const Cut& cut) const {
    return cut.block_count - std::min(cut.block_count, allocator_.free_blocks_hint(cut.head));
  }
  std::optional<uint64_t> window_cost(uint64_t first, uint64_t span, const FreeBlocks& free,
                                      Clear by) const;
  bool move(const Block& block);
  bool supersede(const Block& old, uint64_t old_stamp, const Block& target, bh_block_header header);
  std::optional<Block> reserve_in_passing(uint64_t block_bytes);
  bool evict_block(uint64_t slot);
  uint64_t reclaim_all();

  // core_attach.h
  bool scavenge_process(uint32_t dead);
  uint64_t undo_work_of(uint32_t dead);
  uint64_t scavenge_blocks(uint32_t dead);
  bool scavenge_block(uint64_t slot, const Cut& cut, StateWord word);
  bool clean_block(uint64_t slot, StateWord word, const std::optional<Found>& entry);
  Result<void> take_process_slot();
  Result<void> join_host(bool take_over, const Progress& progress);
  Result<void> check_nobody_runs_as_this_host(const bh_host_slot& slot, bool take_over);
  void go_live(const bh_host_slot& slot);
  Error declared_dead_while_joining() const;
  Error taken_in_this_moment() const;
  Result<bh_host_slot> read_slot_line();
  void rebuild(const Progress& progress);
  bool has_owner(uint64_t extent) const;
  void take_back_extents();
  template <class Ours>
  void restore_cuts(Ours ours);
  void restore_cut_privately(const Cut& cut);
  void hold_leased();
  bool restore_entry(const bh_index_entry& entry);
  bool restore_unnamed(uint64_t slot);
  bool restored_elsewhere(const bh_index_entry& entry) const;
  uint32_t highest_incarnation() const;
  uint64_t drop_all_damaged(const Progress& progress);
  uint64_t drop_damaged_namespaces();

  // core_share.h
  /// Whose an extent is, by the words of all hosts.
  struct Holding {
    OwnWord word;         ///< the one that counts
    uint32_t writer = 0;  ///< whose word it is
    Life life;            ///< the holder
  };
  static constexpr uint64_t kMailLines = BH_MAIL_AREA_BYTES / sizeof(bh_mail);
  static Hash128 mail_lock(uint32_t peer) { return {peer, 0}; }
  static bool asks(const bh_mail& mail) {
    return mail.kind == BH_MAIL_WANT || mail.kind == BH_MAIL_REMOVE;
  }
  Error fenced_error() const;
  Result<void> check_own_slot();
  uint64_t hazard_hosts() const;
  std::vector<uint64_t> named_blocks();
  void want_extents(uint64_t count);
  Error end_by_conflict();
  void succeed_the_dead(bool locked = false);
  OwnWord own_of(uint32_t host, uint64_t extent) const;
  void refresh_own_words() const;
  std::vector<uint32_t> writers_of_extents() const;
  void write_own(uint64_t extent, const OwnWord& word);
  Holding holding_of(uint64_t extent, std::optional<uint64_t> others_since = {}) const;
  void confirm_adopted();
  std::vector<Life> predecessors(uint64_t extent) const;
  bool has_rival(uint64_t extent, uint64_t epoch) const;
  bool doubted();
  bool settle_extents(uint64_t now_ns, bool locked);
  bool has_job() const { return !std::holds_alternative<std::monostate>(job_); }
  bool run_job(bool locked);
  bool may_take_extents(uint64_t now_ns) const;
  void note_extents_busy(bool busy);
  void survey(uint64_t now_ns);
  void give(uint64_t count, Life to);
  bool forget(uint64_t extent);
  void claim(const std::vector<std::pair<uint64_t, Holding>>& granted);
  /// A walk over the buckets of an index, in slices.
  struct Walk {
    uint32_t host = 0;
    uint64_t bucket = 0;
  };
  /// Extents whose holder this host succeeds, and how far their blocks have come.
  struct Adoption {
    std::vector<std::pair<uint64_t, Holding>> inherited;
    std::vector<bool> extents;
    std::vector<uint32_t> sources;  ///< hosts whose indexes are still to be read
    Walk walk;
    uint64_t walked_at_ns = 0;
    std::vector<bh_index_entry> waiting;  ///< somebody holds the locks of their keys
  };
  /// Extents in custody that come into use, or into fuller use.
  struct Opening {
    uint64_t began_ns = 0;
    Walk walk;
    std::vector<std::pair<uint64_t, uint32_t>> extents;  ///< and the custody that they shall have
    size_t acquired = 0, opened = 0;                     ///< how many of them
    std::vector<bool> swept;                             ///< the extents that the walk is about
    std::vector<bh_index_entry> overwritten;
  };
  uint64_t transfer_extents() const;
  void adopt(std::vector<std::pair<uint64_t, Holding>> inherited);
  bool continue_job(Adoption& job, uint64_t until_ns);
  bool continue_job(Opening& job, uint64_t until_ns);
  bool import_entry(bh_index_entry entry);
  bool is_overwritten(const bh_index_entry& entry, const std::vector<bool>& extents) const;
  void open_custody(uint64_t now_ns);
  bool may_open(Opening& job);
  void set_custody(uint64_t extent, uint32_t custody);
  void open_extent(uint64_t extent);
  template <class Visit>
  bool walk_index(Walk& walk, uint64_t until_ns, Visit visit);
  void take_touches(uint64_t now_ns);
  Status ask_to_remove(Life owner, const Hash128& hash);
  std::optional<uint64_t> post(uint32_t peer, bh_mail& mail);
  bh_mail read_mail_line(uint32_t host, uint32_t peer, uint64_t index) const;
  template <class Change>
  bool change_mail_line(uint32_t peer, uint64_t index, Change change);
  void withdraw(uint32_t peer, uint64_t index, uint64_t sequence);
  void read_mail();
  void do_request(uint32_t peer, uint64_t index, const bh_mail& request);
  void ask_for_extents();
  uint64_t free_extents() const;
  uint64_t spare_extents() const;
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t extents = 0;
    auto operator<=>(const Room&) const = default;
  };
  Room room_of(uint32_t host, uint32_t incarnation) const;
  bool decided(Life life) const { return hosts_.decided(life); }
  Result<void> begin_life(bh_host_slot slot, bool same_boot, const Progress& progress);
  void look_around();
  Result<void> succeed_myself(Life& old);
  Result<void> take_over_extents(Life old);
  void relabel_extents(uint64_t extents);
  void flush_own();

  // core_check.h
  /// Calls visit(entry, header, slot) for every committed block of every host until it returns
  /// false.
  template <class Visit>
  void for_each_block(Visit visit) const;
  struct PrivateView;
  std::unique_ptr<PrivateView> view_of(uint32_t host, std::string* why_not) const;
  void check_entries(const std::vector<std::unique_ptr<PrivateView>>& views, CheckReport& report,
                     bool payload, const Progress& progress);
  void check_blocks(const PrivateView& view, CheckReport& report);
  void check_slabs(const PrivateView& view, CheckReport& report);
  void check_slots_and_extents(CheckReport& report);
  void check_namespaces(CheckReport& report);
  const char* housekeeping_fault(const Found& found, const PrivateView* view) const;
  bool descriptor_says(const Cut& cut) const;
  bool namespace_damaged(uint32_t host, uint64_t index) const;
  std::optional<std::string> entry_fault(const Found& found, bool payload, CheckReport& report);
  PoolInfo::Host host_info(uint32_t host);
  std::string read_key(uint64_t slot, uint64_t key_bytes) const;
  Hash128 key_hash(uint64_t slot, const bh_block_header& header) const;

  Context<A> c_;
  Allocator<A> allocator_;
  Index<A> index_;
  Leases<A> leases_;
  Hosts<A> hosts_;
  const Settings settings_;

  // Of the thread that joins, then of the one that beats.
  StartBeating start_beating_;
  bool left_ = false;              ///< nothing may be stored any more
  bh_host_slot own_slot_{};        ///< as this process knows it
  std::atomic<bool> live_{false};  ///< joined: own_slot_ stands, the private part is rebuilt

  // Of the thread that joins, then of the one that works.
  std::vector<uint64_t> touches_;  ///< touch words as seen last
  uint64_t touches_at_ns_ = 0;
  uint64_t surveyed_at_ns_ = 0, surveyed_views_ = 0;
  uint64_t asked_at_ns_ = 0;
  uint32_t asked_ = 0;          ///< how often
  uint32_t asked_in_turn_ = 0;  ///< the host
  uint64_t doubted_since_ns_ = 0;
  uint64_t sweep_due_ns_ = 0;
  std::variant<std::monostate, Adoption, Opening> job_;  ///< takes more than one slice
  std::vector<bh_index_entry> unswept_;
  bool custody_pending_ = true;
  bool wanted_ = false;

  typename A::Mutex retired_mutex_;
  std::vector<Retired> retired_;  ///< by this process; their words are the truth

  typename A::Mutex victims_mutex_;
  std::vector<Victim> victims_;               ///< oldest last
  std::atomic<uint64_t> unwatched_bytes_{0};  ///< put since the watermarks were looked at
  std::atomic<bool> evicting_{false};  ///< above the high watermark, not yet below the low one
};

inline uint64_t next_instance() {
  static std::atomic<uint64_t> instances{0};
  return ++instances;
}

template <class A>
Core<A>::Core(A& access, const bh_superblock& superblock, uint32_t host)
    : c_{access,
         Layout(superblock.geometry),
         Sealer(superblock.pool_id),
         next_instance(),
         times_of(superblock),
         host,
         0,
         0},
      allocator_(c_),
      index_(c_),
      leases_(c_),
      hosts_(c_),
      settings_{superblock.evict_high_permille, superblock.evict_low_permille} {}

template <class A>
bool Core<A>::lock(const Hash128& hash, uint64_t wait_ns) {
  uint32_t holder = 0;
  if (index_.try_lock(hash, &holder)) return true;
  const uint64_t deadline_ns = c_.access.now_ns() + wait_ns;
  for (uint32_t round = 0;; ++round) {
    if (index_.try_lock(hash, &holder)) return true;
    if (round % 64 == 63) {
      // A dead holder is looked for first: on a busy machine the deadline comes after few rounds.
      const bool scavenged = !c_.alive(holder) && scavenge_process(holder);
      if (!scavenged && c_.access.now_ns() > deadline_ns) return false;
    }
    c_.access.relax(round);
  }
}

// ---- headers and keys ----

template <class A>
bool Core<A>::read_header(uint64_t slot, bh_block_header& header) const {
  Line line;
  if (!c_.read_sealed(c_.layout.header(slot), line)) return false;
  header = from_line<bh_block_header>(line);
  return true;
}

/// The first line of the key is fresh: it lies beside the header.
template <class A>
bool Core<A>::key_matches(const Found& found, uint64_t slot, std::string_view key) const {
  for (uint64_t at = 0; at < key.size(); at += BH_LINE_BYTES, ++slot) {
    if (slot >= c_.layout.slot_count()) return false;
    const uint64_t offset = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    if (at > 0) c_.acquire_from(writer_of(found.host, found.entry), offset, BH_LINE_BYTES);
    const Line line = c_.access.load_line(offset);
    const size_t part = std::min<size_t>(BH_LINE_BYTES, key.size() - at);
    if (std::memcmp(line.data(), key.data() + at, part) != 0) return false;
  }
  return true;
}

template <class A>
void Core<A>::write_key(uint64_t slot, std::string_view key) {
  for (uint64_t at = 0; at < key.size(); at += BH_LINE_BYTES, ++slot) {
    Line line{};
    std::memcpy(line.data(), key.data() + at, std::min<size_t>(BH_LINE_BYTES, key.size() - at));
    const uint64_t offset = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    c_.access.store_line(offset, line);
    c_.access.flush(offset, BH_LINE_BYTES);
  }
}

/// Stamp -> retired, sealed and published (C2). Of an unreadable header nothing is kept.
template <class A>
void Core<A>::retire_header(uint64_t slot) {
  allocator_.expose(c_.layout.extent_of_slot(slot), 1);
  bh_block_header header{};
  if (!read_header(slot, header)) {
    header = {};
    header.stamp = next_stamp();
  }
  if (stamp_state(header.stamp) == BH_STAMP_RETIRED) {
    // Whoever retired it may have died before this.
    c_.access.publish(c_.layout.header(slot), BH_LINE_BYTES);
    return;
  }
  header.stamp = stamp_retired(header.stamp);
  c_.write_sealed(c_.layout.header(slot), to_line(header));
}

template <class A>
std::optional<Located> Core<A>::verify(const Found& found, const Key& key, bool fresh) const {
  const bh_index_entry& entry = found.entry;
  if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return std::nullopt;
  Located located{found, {}, c_.layout.slot_of(entry.block_offset)};
  if (!fresh)
    c_.acquire_from(writer_of(found.host, entry), c_.layout.header(located.slot),
                    sizeof(bh_block_slot));
  bh_block_header& header = located.header;
  if (!read_header(located.slot, header) || header.stamp != entry.stamp ||
      stamp_state(header.stamp) != BH_STAMP_COMMITTED || header.namespace_id != key.namespace_id ||
      header.key_bytes != key.bytes.size() || header.stored_bytes != entry.stored_bytes ||
      !lengths_agree(header) || !key_matches(found, located.slot, key.bytes))
    return std::nullopt;
  return located;
}

template <class A>
std::optional<Located> Core<A>::locate_at(uint32_t host, const Key& key, Fresh fresh) const {
  std::optional<Located> located;
  const auto accept = [&](const bh_index_entry& entry) {
    if (entry.namespace_id != key.namespace_id) return false;
    located = verify(Found{entry, host, 0, 0, 0}, key);
    return located.has_value();
  };
  const auto found = index_.find_if(host, key.hash, accept, fresh);
  if (!found) return std::nullopt;
  located->found = *found;
  return located;
}

/// The own host first; then all others, their first lines invalidated under one fence (protocol
/// 5.2).
template <class A>
std::optional<Located> Core<A>::locate(const Key& key) {
  if (!c_.observing()) {
    if (auto located = locate_at(c_.host, key, Fresh::NOTHING)) return located;
  }
  const uint64_t others = other_hosts();
  if (others == 0) return std::nullopt;
  for (uint64_t left = others; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    c_.access.invalidate(index_.first_line(host, key.hash), BH_LINE_BYTES);
  }
  c_.access.coherence_fence();
  for (uint64_t left = others; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    if (auto located = locate_at(host, key, Fresh::FIRST_LINE)) return located;
  }
  return std::nullopt;
}

// ---- put ----

template <class A>
Status Core<A>::check_value(const Key& key, uint64_t bytes) const {
  const auto& g = c_.layout.geometry();
  const uint64_t largest = std::min<uint64_t>(BH_VALUE_BYTES_MAX, g.extent_count * g.extent_bytes);
  // A size of the caller's is rounded up only once it is known to be small.
  const bool fits =
      bytes > 0 && bytes <= largest && c_.layout.block_bytes(bytes, key.bytes.size()) <= largest;
  return fits ? Status::OK : Status::VALUE_TOO_LARGE;
}

template <class A>
bool Core<A>::put_present(const Key& key) {
  // What a host stored after it was declared dead, it alone finds.
  if (ended()) return false;
  const auto located = locate(key);
  if (!located) return false;
  used_now(located->slot);
  c_.count(BH_COUNTER_PUTS_PRESENT);
  return true;
}

template <class A>
Status Core<A>::put(const Key& key, const Content& content) {
  if (Status status = check_value(key, content.length_bytes); status != Status::OK) return status;
  // A block is reserved while the first line of the look-up comes from memory.
  c_.access.prefetch(index_.first_line(c_.host, key.hash));
  const uint64_t room = room_for(content, key.bytes.size());
  auto block = allocator_.reserve(room);
  if (put_present(key)) {
    if (block) allocator_.release(*block);
    return Status::OK;
  }
  if (!block) block = reserve_block(room);
  if (!block) return ended() ? gone() : Status::NO_SPACE;
  bh_block_header header = header_for(content);
  header.payload_checksum = c_.access.write_payload(block->offset, content.stored);
  return finish_put(key, *block, header);
}

template <class A>
uint64_t Core<A>::room_for(const bh_block_header& header) const {
  return header.codec == BH_CODEC_RAW
             ? c_.layout.block_bytes(header.stored_bytes, header.key_bytes)
             : c_.layout.coded_block_bytes(header.stored_bytes, header.length_bytes,
                                           header.key_bytes);
}

/// Of what is stored: the rest is filled in when it is published.
template <class A>
bh_block_header Core<A>::header_for(const Content& content) const {
  bh_block_header header{};
  header.length_bytes = static_cast<uint32_t>(content.length_bytes);
  header.stored_bytes = static_cast<uint32_t>(content.stored_bytes());
  header.codec = content.codec;
  header.profile = content.profile;
  header.checksum_kind = BH_CHECKSUM_XXH3_TREE_4K;
  return header;
}

template <class A>
bh_index_entry Core<A>::entry_for(const Block& block, const bh_block_header& header) const {
  bh_index_entry entry{};
  entry.key_hash[0] = header.key_hash[0];
  entry.key_hash[1] = header.key_hash[1];
  entry.block_offset = block.offset;
  entry.stamp = header.stamp;
  entry.payload_checksum = header.payload_checksum;
  entry.namespace_id = header.namespace_id;
  entry.stored_bytes = header.stored_bytes;
  entry.incarnation = static_cast<uint16_t>(c_.incarnation);
  if (allocator_.copy_only(c_.layout.extent_of_slot(block.slot))) entry.flags = BH_ENTRY_COPY_ONLY;
  return entry;
}

/// Key, header, entry, commit: the payload of the RESERVED block is published already (C1).
template <class A>
Status Core<A>::finish_put(const Key& key, const Block& block, bh_block_header header) {
  if (ended() || !stamps_left()) {
    allocator_.release(block);
    return ended() ? gone() : Status::LIMIT_REACHED;
  }
  const Publishing publishing(c_);
  header.stamp = next_stamp();
  header.key_hash[0] = key.hash.low;
  header.key_hash[1] = key.hash.high;
  header.namespace_id = key.namespace_id;
  header.key_bytes = static_cast<uint16_t>(key.bytes.size());
  write_key(block.slot, key.bytes);
  c_.write_sealed(c_.layout.header(block.slot), to_line(header));
  used_now(block.slot);
  {
    const KeyLock lock(*this, key.hash);
    // Other hosts may store the same key meanwhile; then there are two, and either is right.
    const bool present = lock.held() && locate_at(c_.host, key, Fresh::NOTHING).has_value();
    const bool ok =
        lock.held() && !present && !ended() && index_.insert(key.hash, entry_for(block, header));
    if (!ok) {
      undo_put(block);
      if (!lock.held()) return Status::BUSY;
      if (present) c_.count(BH_COUNTER_PUTS_PRESENT);
      return present ? Status::OK : ended() ? gone() : Status::INDEX_FULL;
    }
    if (!allocator_.commit(block)) return gone();
  }
  c_.count(BH_COUNTER_PUTS);
  c_.count(BH_COUNTER_BYTES_IN, header.length_bytes);
  evict_by_watermark(block.block_bytes);
  return Status::OK;
}

/// The header shows a committed stamp that no entry ever named: retire it, then the block is free
/// (C2).
template <class A>
void Core<A>::undo_put(const Block& block) {
  retire_header(block.slot);
  allocator_.release(block);
}

// ---- get ----

/// Of values that are stored as they are.
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
Result<uint64_t> Core<A>::get(const Key& key, std::span<const Span> buffers) {
  RawSink sink{buffers};
  return get_stored(key, sink);
}

template <class A>
template <class Sink>
Result<uint64_t> Core<A>::get_stored(const Key& key, Sink& sink) {
  std::optional<Located> damaged_block;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto located = locate(key);
    if (!located) break;
    const auto buffers = sink.room_for(located->header);
    if (!buffers) return buffers.error();
    bool damaged = false;
    if (copy_out(*located, *buffers, &damaged)) {
      const Status taken = sink.take(located->header);
      if (taken == Status::OK) return note_hit(*located);
      damaged = taken == Status::DAMAGED;
      if (!damaged) return taken;
    }
    damaged_block = damaged ? located : std::nullopt;
  }
  if (damaged_block && c_.observing()) return Status::DAMAGED;
  if (damaged_block) drop_damaged(*damaged_block);
  c_.count(BH_COUNTER_MISSES);
  return Status::NOT_FOUND;
}

/// Returns the length of the value.
template <class A>
uint64_t Core<A>::note_hit(const Located& located) {
  used_now(located.slot);
  c_.count(BH_COUNTER_HITS);
  c_.count(BH_COUNTER_BYTES_OUT, located.header.length_bytes);
  if (located.found.host != c_.host) c_.count(BH_COUNTER_HITS_ELSEWHERE);
  return located.header.length_bytes;
}

/// As of a block without a checksum: its bytes are those of its stamp if its writer's life was not
/// over, they had reached the memory before they were acquired, and the stamp is still there
/// afterwards.
template <class A>
template <class Take>
std::optional<uint64_t> Core<A>::get_parts(const Key& key, Take take) {
  const auto located = locate(key);
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
  // The look at the stamp may not overtake the copies: no checksum would tell.
  c_.access.fence();
  const uint64_t header_at = c_.layout.header(located->slot);
  c_.acquire_from(located->found.host, header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != entry.stamp || !vouched(*located)) return std::nullopt;
  return note_hit(*located);
}

/// Protocol 5.3: copy, then check that the block is still the same, then the sum of the private
/// copy. `damaged`: the block did not change, and yet its bytes are not what was put.
template <class A>
bool Core<A>::copy_out(const Located& located, std::span<const Span> buffers, bool* damaged) {
  const uint64_t offset = located.found.entry.block_offset;
  const uint64_t bytes = located.header.stored_bytes;
  const bool checked = located.header.checksum_kind != BH_CHECKSUM_NONE;
  if (!checked) c_.access.acquire(offset, bytes);
  const bool used_soon = located.header.codec != BH_CODEC_RAW;  // by a decoder
  uint64_t checksum = c_.access.read_payload(offset, bytes, buffers, used_soon);
  if (checked && checksum != located.found.entry.payload_checksum && !c_.alone()) {
    // Stale lines of the block's last life are rare, and the sum finds them: so only now.
    c_.access.acquire(offset, bytes);
    checksum = c_.access.read_payload(offset, bytes, buffers, used_soon);
  }
  const uint64_t header_at = c_.layout.header(located.slot);
  // On weakly ordered machines this look may overtake the copy: the checksum decides then, and
  // where there is none, a fence keeps the order.
  if (!checked) c_.access.fence();
  c_.acquire_from(writer_of(located.found.host, located.found.entry), header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != located.header.stamp) return false;
  if (!checked && !vouched(located)) return false;
  if (!checked) return true;
  *damaged = checksum != located.found.entry.payload_checksum;
  return !*damaged;
}

/// For blocks without a checksum: the life of whoever stored it was not over when it was copied, so
/// nobody else can have written there.
template <class A>
bool Core<A>::vouched(const Located& located) const {
  if (c_.alone()) return true;
  // What was stored in custody, a zombie may have written to before custody was full.
  if ((located.found.entry.flags & BH_ENTRY_COPY_ONLY) != 0) return false;
  const uint32_t host = located.found.host;
  const uint64_t at = c_.layout.word(host, BH_PART_OWN, c_.layout.extent_of_slot(located.slot));
  c_.acquire_from(host, at, 8);
  const auto own = OwnWord::unpack(c_.access.load(at));
  return own.state == BH_OWN_OWN && own.custody == BH_CUSTODY_FULL &&
         !hosts_.decided({host, own.incarnation});
}

template <class A>
void Core<A>::drop_damaged(const Located& located) {
  if (located.found.host != c_.host) return;
  const Hash128 hash{located.header.key_hash[0], located.header.key_hash[1]};
  retire(located.slot, hash, located.header.stamp, BH_COUNTER_DAMAGED);
  reclaim({&located.slot, 1});
}

// ---- exists, prefix, touch ----

/// Entries whose tag matches, of all hosts. Returns a bit for each host of which a bucket has
/// entries further on.
template <class A>
uint64_t Core<A>::match_batch(std::span<const Hash128> hashes,
                              std::vector<Candidate>& found) const {
  const uint64_t hosts = probed_hosts();
  for (uint64_t left = hosts & ~own_bit(); left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    for (const Hash128& hash : hashes)
      c_.access.invalidate(index_.first_line(host, hash), BH_LINE_BYTES);
  }
  if (!c_.alone()) c_.access.coherence_fence();
  uint64_t further = 0;
  constexpr size_t kAhead = 16;  // lines under way
  for (uint64_t left = hosts; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    for (size_t i = 0; i < hashes.size() + kAhead; ++i) {
      if (i < hashes.size()) c_.access.prefetch(index_.first_line(host, hashes[i]));
      if (i < kAhead) continue;
      const auto key = static_cast<uint32_t>(i - kAhead);
      const Line words = c_.access.load_line(index_.first_line(host, hashes[key]));
      const auto note = [&](uint64_t at) { found.push_back({key, host, host, at, {}}); };
      if (index_.for_each_match(host, hashes[key], words, note)) further |= uint64_t{1} << host;
    }
  }
  return further;
}

template <class A>
void Core<A>::fetch(std::vector<Candidate>& found, uint64_t bytes) const {
  if (!c_.alone()) {
    for (const Candidate& one : found) c_.invalidate_from(one.writer, one.at, bytes);
    c_.access.coherence_fence();
  }
  for (const Candidate& one : found) {
    for (uint64_t line = one.at; line < one.at + bytes; line += BH_LINE_BYTES)
      c_.access.prefetch(line);
  }
}

template <class A>
uint64_t Core<A>::exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
                         uint64_t* slots) {
  BOWHEAD_ASSERT(keys.size() <= kBatch);
  Hash128 hashes[kBatch];
  for (size_t i = 0; i < keys.size(); ++i) {
    hashes[i] = hash128(keys[i].data(), std::min<size_t>(keys[i].size(), BH_KEY_BYTES_MAX), ns);
    present[i] = 0;
    if (slots != nullptr) slots[i] = UINT64_MAX;
  }
  std::vector<Candidate> found;
  found.reserve(keys.size() + 16);
  const uint64_t further = match_batch({hashes, keys.size()}, found);
  fetch(found, BH_LINE_BYTES);
  std::erase_if(found, [&](Candidate& one) {
    const auto entry = index_.read_entry(one.at, hashes[one.key]);
    if (!entry || entry->namespace_id != ns || !c_.layout.valid_block(entry->block_offset, 1))
      return true;
    one.entry = *entry;
    one.at = c_.layout.header(c_.layout.slot_of(entry->block_offset));
    one.writer = writer_of(one.host, *entry);
    return false;
  });
  fetch(found, sizeof(bh_block_slot));
  uint64_t count = 0;
  const auto note = [&](uint32_t key, const Located& located) {
    if (present[key] != 0) return;
    present[key] = 1;
    ++count;
    if (slots != nullptr) slots[key] = located.slot;
  };
  for (const Candidate& one : found) {
    if (present[one.key] != 0 || !Key::valid(keys[one.key])) continue;
    const auto located = verify(Found{one.entry, one.host, 0, 0, 0},
                                Key(ns, keys[one.key], hashes[one.key]), /*fresh=*/true);
    if (located) note(one.key, *located);
  }
  if (further == 0) return count;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (present[i] != 0 || !Key::valid(keys[i])) continue;
    if (const auto located = locate(Key(ns, keys[i], hashes[i]))) note(i, *located);
  }
  return count;
}

template <class A>
void Core<A>::touch_slots(std::span<const uint64_t> slots) {
  // The first is the most recent: eviction then takes a prefix from its end.
  uint64_t recency = c_.access.recency_ns() + slots.size();
  for (const uint64_t slot : slots) {
    if (slot != UINT64_MAX) used(slot, recency);
    --recency;
  }
}

// ---- reserve, commit, abort ----

template <class A>
Result<Reservation> Core<A>::reserve(const Key& key, uint64_t length_bytes) {
  if (Status status = check_value(key, length_bytes); status != Status::OK) return status;
  Reservation reservation;
  reservation.length_bytes = length_bytes;
  reservation.namespace_id = key.namespace_id;
  reservation.key = std::string(key.bytes);
  if (ended()) return gone();
  if (locate(key)) {
    reservation.present = true;
    return reservation;
  }
  // Not in custody: a zombie may write there while the caller does, and the sum would be of that.
  const uint64_t room = c_.layout.block_bytes(length_bytes, key.bytes.size());
  auto block = allocator_.reserve(room, {.in_custody = false});
  if (!block) block = reserve_block(room);
  if (!block) return ended() ? gone() : Status::NO_SPACE;
  if (allocator_.copy_only(c_.layout.extent_of_slot(block->slot))) {
    allocator_.release(*block);
    return Status::BUSY;
  }
  reservation.data = c_.access.payload(block->offset);
  reservation.offset = block->offset;
  reservation.handle = c_.instance;
  reservation.token = allocator_.word(block->slot).pack();
  return reservation;
}

/// Takes the block of an open reservation from the caller and from all copies. The token is the
/// word of the block as reserve() left it, which no word ever is again (the sequence only rises):
/// of all who try to end it one succeeds, and none whose block has another life by now.
template <class A>
std::optional<Block> Core<A>::end_reservation(Reservation& reservation) {
  const StateWord word = StateWord::unpack(std::exchange(reservation.token, 0));
  const uint64_t offset = reservation.offset;
  reservation.data = nullptr;
  if (reservation.handle != c_.instance || word.state != BH_BLOCK_RESERVED ||
      word.process != c_.process || !c_.layout.valid_block(offset, reservation.length_bytes))
    return std::nullopt;
  const uint64_t slot = c_.layout.slot_of(offset);
  if (!allocator_.hold_on(slot, word)) return std::nullopt;
  return Block{slot, offset, allocator_.held_cut(c_.layout.extent_of_slot(slot)).block_bytes};
}

template <class A>
Status Core<A>::commit(Reservation& reservation, const PayloadSum& sum) {
  if (reservation.present) return Status::OK;
  const auto block = end_reservation(reservation);
  if (!block) return ended() ? gone() : Status::CLOSED;
  bh_block_header header{};
  header.length_bytes = header.stored_bytes = static_cast<uint32_t>(reservation.length_bytes);
  header.checksum_kind =
      sum.by == PayloadSum::By::NOBODY ? BH_CHECKSUM_NONE : BH_CHECKSUM_XXH3_TREE_4K;
  if (sum.by == PayloadSum::By::POOL)
    header.payload_checksum = c_.access.sum_payload(reservation.offset, reservation.length_bytes);
  else if (sum.by == PayloadSum::By::WRITER)
    header.payload_checksum = sum.checksum;
  // The pool's sum is of what lies there: had this life been over before, it could be of bytes that
  // the successor put there.
  if (!c_.alone() && decided({c_.host, c_.incarnation})) {
    allocator_.release(*block);
    return gone();
  }
  c_.access.publish(block->offset, reservation.length_bytes);
  return finish_put(Key(reservation.namespace_id, reservation.key), *block, header);
}

template <class A>
Status Core<A>::abort(Reservation& reservation) {
  if (reservation.present) return Status::OK;
  const auto block = end_reservation(reservation);
  if (!block) return ended() ? gone() : Status::CLOSED;
  allocator_.release(*block);
  return Status::OK;
}

// ---- leases ----

template <class A>
Result<Lease> Core<A>::acquire(const Key& key, uint64_t ttl_ms) {
  Status refused = Status::NOT_FOUND;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto located = locate(key);
    if (!located) break;
    const bh_index_entry& entry = located->found.entry;
    if (located->header.codec != BH_CODEC_RAW) return Status::CODED;
    const auto token = take_lease(entry, ttl_ms);
    if (!token) return lease_table_full();
    const Status status = confirm(*located);
    if (status == Status::OK) {
      used_now(located->slot);
      c_.count(BH_COUNTER_HITS);
      if (located->found.host != c_.host) c_.count(BH_COUNTER_HITS_ELSEWHERE);
      Lease lease{.data = c_.access.payload(entry.block_offset),
                  .length_bytes = entry.stored_bytes,
                  .offset = entry.block_offset,
                  .stamp = entry.stamp,
                  .token = *token};
      if (located->header.checksum_kind != BH_CHECKSUM_NONE)
        lease.checksum = entry.payload_checksum;
      return lease;
    }
    leases_.end(*token);
    if (ended()) return gone();
    refused = status;
  }
  c_.count(BH_COUNTER_MISSES);
  return refused;
}

/// Leases that nobody gave back are looked for when one is wanted: those whose time is over, and
/// those of processes that are gone. So a pool of one host needs nobody to do so now and then. The
/// look is a walk over the hazards and one question to the kernel for each process; the caller
/// comes from a walk over the table that was longer.
template <class A>
std::optional<uint64_t> Core<A>::take_lease(const bh_index_entry& entry, uint64_t ttl_ms) {
  const auto take = [&] {
    return leases_.take(entry.block_offset, entry.stamp, c_.access.now_ns() + ttl_ms * 1'000'000);
  };
  if (auto token = take()) return token;
  if (leases_.revoke_expired(c_.access.now_ns()) + scavenge_dead() == 0) return std::nullopt;
  return take();
}

template <class A>
Error Core<A>::lease_table_full() const {
  return Error{Status::LIMIT_REACHED, "the lease table of this host is full: all " +
                                          std::to_string(leases_.count()) +
                                          " leases are held and none has expired; release some"};
}

/// After the hazard is visible: may this block be leased, and is it still the same? (protocol 5.4
/// (1), (3), (4), (5)). NOT_FOUND: it changed; COPY_ONLY: it is in custody.
template <class A>
Status Core<A>::confirm(const Located& located) {
  const bh_index_entry& entry = located.found.entry;
  const uint64_t header_at = c_.layout.header(located.slot);
  // Whose it is, before the header: an owner that is gone is acked only after `view` says so, and
  // that comes after this load or shows in it.
  const uint64_t extent = c_.layout.extent_of_slot(located.slot);
  const uint32_t host = located.found.host;
  const uint64_t own_at = c_.layout.word(host, BH_PART_OWN, extent);
  c_.acquire_from(host, own_at, 8);
  const auto own = OwnWord::unpack(c_.access.load(own_at));
  if (ended()) return gone();
  if (!c_.alone() && (own.state != BH_OWN_OWN || c_.ended({host, own.incarnation}) ||
                      own.custody != BH_CUSTODY_FULL))
    return Status::COPY_ONLY;
  // Only now (L2): a stamp read before the hazard was visible could be of a block already freed.
  const uint32_t writer = writer_of(host, entry);
  c_.acquire_from(writer, header_at, BH_LINE_BYTES);
  if (c_.access.load(header_at) != entry.stamp) return Status::NOT_FOUND;
  c_.acquire_from(writer, entry.block_offset, entry.stored_bytes);
  // Of a block that came just now, or from a host that may have been writing when it died, the
  // header may be in the memory before the payload (I3).
  if (host == c_.host && (entry.flags & BH_ENTRY_COPY_ONLY) == 0) return Status::OK;
  if ((entry.flags & BH_ENTRY_COPY_ONLY) == 0 && settled(entry.stamp)) return Status::OK;
  return located.header.checksum_kind != BH_CHECKSUM_NONE &&
                 c_.access.sum_payload(entry.block_offset, entry.stored_bytes) ==
                     entry.payload_checksum
             ? Status::OK
             : Status::NOT_FOUND;
}

/// Header and payload of this stamp have reached the memory.
template <class A>
bool Core<A>::settled(uint64_t stamp) const {
  if (!c_.incoherent()) return true;
  const uint32_t writer = stamp_host(stamp);
  if (writer >= c_.layout.geometry().host_count) return false;
  const uint64_t at = c_.layout.part(writer, BH_PART_BEAT) + offsetof(bh_host_beat, settled);
  c_.acquire_from(writer, at, 8);
  const uint64_t word = c_.access.load(at);
  return word >> BH_STAMP_SEQUENCE_BITS == stamp_incarnation(stamp) &&
         stamp_sequence(stamp) <= (word & kStampSequenceMax);
}

template <class A>
Status Core<A>::release(Lease& lease) {
  // Handles of other pools give the same tokens; what they map lies elsewhere.
  if (lease.token == 0 || lease.data != c_.access.payload(lease.offset)) return Status::CLOSED;
  const auto held = leases_.held(lease.token);
  if (held.state != Leases<A>::State::HELD) {
    lease.token = 0;
    return held.state == Leases<A>::State::LAPSED ? Status::LAPSED : Status::CLOSED;
  }
  const uint64_t slot = c_.layout.slot_of(held.block_offset);
  const bool own = c_.alone() || allocator_.holds(c_.layout.extent_of_slot(slot));
  // The stamp alone would not do: of two zombies, the owner's old header may come back.
  if (!own) c_.access.invalidate(c_.layout.header(slot), BH_LINE_BYTES);
  const bool declared_dead = !c_.alone() && decided({c_.host, c_.incarnation});
  const bool same = c_.access.load(c_.layout.header(slot)) == held.stamp;
  const bool valid = leases_.end(lease.token) && same && !declared_dead && !ended();
  lease.token = 0;
  // Whoever retired it meanwhile could not free it because of this lease.
  if (own && allocator_.word(slot).state == BH_BLOCK_RETIRED) reclaim({&slot, 1});
  return valid ? Status::OK : Status::LAPSED;
}

// ---- retire and reuse ----

/// In the own segment; nothing that is there is missed, unless `unsure` says that it may be. A look
/// without the lock can pass over a key whose block is just being moved: before the new entry
/// stands where it looks first, and after the old one went where it looks last. Who moves a block
/// holds the lock from the one to the other.
template <class A>
std::optional<Found> Core<A>::find_own(const Hash128& hash, uint64_t wait_ns, bool* unsure) {
  const auto accept = [&](const bh_index_entry& entry) {
    if (!c_.layout.valid_block(entry.block_offset, 1)) return false;
    const uint64_t slot = c_.layout.slot_of(entry.block_offset);
    c_.acquire_from(writer_of(c_.host, entry), c_.layout.header(slot), BH_LINE_BYTES);
    bh_block_header header;
    return read_header(slot, header) && header.stamp == entry.stamp &&
           stamp_state(header.stamp) == BH_STAMP_COMMITTED;
  };
  if (auto found = index_.find_if(c_.host, hash, accept)) return found;
  const KeyLock lock(*this, hash, wait_ns);
  *unsure = !lock.held();
  return index_.find_if(c_.host, hash, accept);
}

/// Takes away what this host has of a key. NOT_FOUND: nothing. BUSY: somebody has its lock or
/// retires it this instant, the block is in READ_ONLY custody, or wanted(), which is asked when one
/// was found, says that it may not go.
template <class A>
template <class Wanted>
Status Core<A>::remove_own(const Hash128& hash, uint64_t wait_ns, Wanted wanted) {
  bool removed = false, unsure = false;
  const uint64_t deadline_ns = c_.access.now_ns() + wait_ns;
  // More than one entry: a process died while it moved the block.
  for (uint32_t round = 0; const auto found = find_own(hash, wait_ns, &unsure);) {
    const uint64_t slot = c_.layout.slot_of(found->entry.block_offset);
    if (!wanted()) return Status::BUSY;
    if (retire(slot, hash, found->entry.stamp, BH_COUNTER_REMOVALS, wait_ns)) {
      reclaim({&slot, 1});
      removed = true;
      continue;
    }
    if (ended()) return gone();
    if (!allocator_.writable(c_.layout.extent_of_slot(slot)) || c_.access.now_ns() > deadline_ns)
      return Status::BUSY;
    c_.access.relax(round++);
  }
  return unsure ? Status::BUSY : removed ? Status::OK : Status::NOT_FOUND;
}

/// OK only after all is gone, and after that the lives of those who had it stood (S6).
template <class A>
Status Core<A>::remove(const Key& key) {
  if (ended()) return gone();
  const uint64_t others = other_hosts();
  // Before the look: what a life that comes after it says is not about the blocks that are found.
  std::vector<Life> lives;
  for (uint64_t left = others; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    const auto slot = hosts_.read_slot(host);
    lives.push_back({host, slot ? slot->incarnation : 0u});
  }
  Status removed = remove_own(key.hash, kLockWaitNs, [] { return true; });
  if (removed != Status::OK && removed != Status::NOT_FOUND) return removed;
  if (removed == Status::OK && !c_.alone() && !hosts_.stands({c_.host, c_.incarnation}))
    return Status::BUSY;
  for (const Life life : lives) {
    if (!locate_at(life.host, key, Fresh::NOTHING)) continue;
    if (Status status = ask_to_remove(life, key.hash); status != Status::OK) return status;
    removed = Status::OK;
  }
  return removed;
}

/// COMMITTED -> RETIRED, entry cleared, stamp retired and published (protocol 5.5 (1) to (3)).
/// False if the block is not (any more) the one of `stamp`, or its key's lock cannot be had.
template <class A>
bool Core<A>::retire(uint64_t slot, const Hash128& hash, uint64_t stamp, uint32_t counter,
                     uint64_t lock_wait_ns, Proof proof) {
  {
    if (ended() || !allocator_.writable(c_.layout.extent_of_slot(slot))) return false;
    const KeyLock lock(*this, hash, lock_wait_ns);
    if (!lock.held() || !allocator_.begin_retire(slot)) return false;
    // The block is ours now and its cut stands still; is it the one that was meant? A damaged
    // header cannot say.
    bh_block_header header;
    if (proof == Proof::HEADER && read_header(slot, header) && header.stamp != stamp) {
      cancel_retire(slot);
      return false;
    }
    const auto found = index_.find_if(c_.host, hash, [&](const bh_index_entry& entry) {
      return entry.stamp == stamp && c_.layout.valid_block(entry.block_offset, 1) &&
             c_.layout.slot_of(entry.block_offset) == slot;
    });
    if (!found && proof == Proof::ENTRY) {
      cancel_retire(slot);
      return false;
    }
    if (found) index_.erase(*found);
  }
  retire_header(slot);
  allocator_.finish_retire(slot);
  c_.count(counter);
  return true;
}

/// RETIRED -> FREE for those that no hazard names (protocol 5.5 (5), (6)): at once where stores are
/// seen at once, else when they have settled (reap()). Returns how many were freed.
template <class A>
uint64_t Core<A>::reclaim(std::span<const uint64_t> slots) {
  std::vector<Retired> retired;
  const uint64_t now_ns = c_.incoherent() ? c_.access.now_ns() : 0;
  for (const uint64_t slot : slots) {
    const StateWord word = allocator_.word(slot);
    const Cut cut = allocator_.held_cut(c_.layout.extent_of_slot(slot));
    if (word.state == BH_BLOCK_RETIRED && cut.block_bytes != 0)
      retired.push_back({slot, allocator_.block_of(slot, cut).offset, word, now_ns});
  }
  if (!c_.incoherent()) return free_unnamed(retired);
  const std::lock_guard guard(retired_mutex_);
  retired_.insert(retired_.end(), retired.begin(), retired.end());
  return 0;
}

/// Frees what reclaim() put off and what has settled since; `wait`: until all of it has.
template <class A>
uint64_t Core<A>::reap(bool wait) {
  // Twice: when the retired stamp has reached the memory, a reader may just have seen the old one,
  // and its hazard, published before, takes as long again.
  const uint64_t settle_ns = 2 * uint64_t{c_.times.settle_ms} * 1'000'000;
  std::vector<Retired> ripe;
  uint64_t last_ns = 0;
  {
    const uint64_t now_ns = c_.access.now_ns();
    const std::lock_guard guard(retired_mutex_);
    const auto unripe = std::partition(retired_.begin(), retired_.end(), [&](const Retired& block) {
      return wait || block.retired_at_ns + settle_ns <= now_ns;
    });
    ripe.assign(retired_.begin(), unripe);
    retired_.erase(retired_.begin(), unripe);
    for (const Retired& block : ripe) last_ns = std::max(last_ns, block.retired_at_ns);
  }
  const uint64_t settled_at_ns = last_ns + settle_ns;
  if (const uint64_t now_ns = c_.access.now_ns(); !ripe.empty() && settled_at_ns > now_ns)
    c_.access.sleep_ns(settled_at_ns - now_ns);
  return free_unnamed(ripe);
}

/// Own leases whose time is over are revoked first. What a lease still names is freed later: by
/// whoever looks at all words (reclaim_all), or by its release.
template <class A>
uint64_t Core<A>::free_unnamed(const std::vector<Retired>& retired) {
  if (retired.empty() || ended()) return 0;
  c_.access.fence();  // retired stamps before the look at the hazards (C3, L2)
  std::vector<uint64_t> named = named_blocks();
  if (!named.empty() && leases_.revoke_expired(c_.access.now_ns()) > 0) named = named_blocks();
  uint64_t freed = 0;
  std::vector<Retired> waiting;
  for (const Retired& block : retired) {
    // The word from before the look: if the block had another life since, the CAS fails.
    if (!std::binary_search(named.begin(), named.end(), block.offset))
      freed += allocator_.free_retired(block.slot, block.word);
    else if (!c_.alone())
      waiting.push_back(block);
  }
  if (!waiting.empty()) {
    const std::lock_guard guard(retired_mutex_);
    retired_.insert(retired_.end(), waiting.begin(), waiting.end());
  }
  return freed;
}

}  // namespace bowhead::core

#include "pool/core/core_attach.h"     // IWYU pragma: export
#include "pool/core/core_check.h"      // IWYU pragma: export
#include "pool/core/core_evict.h"      // IWYU pragma: export
#include "pool/core/core_namespace.h"  // IWYU pragma: export
#include "pool/core/core_share.h"      // IWYU pragma: export
