// SPDX-License-Identifier: Apache-2.0
// Writing blocks: reserve -> payload -> publish -> header -> publish -> index entry -> publish
// (committed); and removal.
//
// Invariants
//   C1 An entry is written only after the header and payload it names are published.
//   S6 A block that a host says it has removed is removed for all only if its life stood after that
//      (Hosts::stands): then its successor reads an index that has no entry of the block.
//
// Owns: nothing. Calls: Attributes, KeyLocks, Lookup, Namespaces, Reading (notes of use),
// Retirement, Space (room for a block), Mail (removals of other hosts' blocks), Usage.
#pragma once

#include "pool/core/attributes.h"
#include "pool/core/namespaces.h"

namespace bowhead::core {

template <class A>
class Writing {
 public:
  explicit Writing(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        index_(rooms.index),
        hosts_(rooms.hosts),
        locks_(rooms.locks),
        lookup_(rooms.lookup),
        attributes_(rooms.attributes),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        reading_(rooms.reading),
        namespaces_(rooms.namespaces),
        space_(rooms.space),
        mail_(rooms.mail) {}
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  Status put(const Key& key, const Content& content);
  Status put(const Key& key, std::span<const ConstSpan> value) {
    return put(key, Content::raw(value));
  }
  /// The same for a value that takes work to encode: make() returns the content to store in place
  /// of `raw`, and is called only once the key is known not to be stored.
  template <class Make>
  Status put_made(const Key& key, const Content& raw, Make make);
  /// put_made() for up to Lookup::kBatch keys, pipelined: raw(i) returns the value of a key,
  /// make(i, raw) the content to store, and done(i, status) gets the result.
  template <class Raw, class Make, class Done>
  void put_all(uint64_t ns, std::span<const std::string_view> keys, Raw raw, Make make, Done done);
  /// The size of the block that a put would take.
  uint64_t room_for(const Content& content, uint64_t key_bytes) const {
    bh_block_header header = header_for(content);
    header.key_bytes = static_cast<uint16_t>(key_bytes);
    return core::room_for(c_.layout, header);
  }
  /// `wipe`: the block is not to be free before it was overwritten.
  Result<Reservation> reserve(const Key& key, uint64_t length_bytes,
                              std::string_view user_metadata = {},
                              const BlockAttributes& attributes = {}, bool wipe = false);
  Status commit(Reservation& reservation, const PayloadSum& sum);
  Status abort(Reservation& reservation);
  /// Removes up to Lookup::kBatch keys. OK only after all blocks of a key are gone and, after that,
  /// their hosts' lives stood (S6).
  void remove_all(std::span<const Key> keys, std::span<Status> statuses);
  Status remove(const Key& key) {
    Status status = Status::OK;
    remove_all({&key, 1}, {&status, 1});
    return status;
  }
  /// The fields that describe the content; the rest is filled in when the block is published.
  bh_block_header header_for(const Content& content) const;
  bh_index_entry entry_for(const Block& block, const bh_block_header& header) const;
  /// Writes the key lines of a block; user metadata with the check for its stamp (M1).
  void write_key_lines(uint64_t slot, std::string_view key, std::string_view user_metadata,
                       uint64_t stamp);

 private:
  Status check_value(const Key& key, uint64_t bytes, std::string_view user_metadata) const;
  /// A put that has a block.
  struct Begun {
    Key key;
    Block block;
    bh_block_header header;  ///< as header_for() describes the content
    std::string_view user_metadata;
    BlockAttributes attributes;
  };
  /// Puts that were stored and are not counted yet.
  struct Stored {
    uint64_t recency_ns;  ///< of their blocks
    uint64_t puts = 0, bytes = 0;
  };
  class Group;
  template <class Present, class Make, class Reserve, class GoOn>
  std::optional<Status> begin_put(const Key& key, const Content& raw, Present present, Make make,
                                  Reserve reserve, GoOn go_on);
  bool is_put(const Located& located) const;
  std::optional<Located> find_present(const Key& key) const;
  bool put_present(const Key& key);
  void note_present(uint64_t slot) {
    reading_.used_now(slot);
    c_.count(BH_COUNTER_PUTS_PRESENT);
  }
  std::optional<Block> reserve_free(const Content& content, const Key& key) {
    // Space where a host that was declared dead may still write comes last (Space::reserve_block).
    return allocator_.reserve(room_for(content, key.bytes.size()), kSafe);
  }
  std::optional<Block> make_room(const Content& content, const Key& key);
  Begun begun_with(const Key& key, const Content& content, const Block& block);
  void write_value(Begun& put, std::span<const ConstSpan> value);
  Status store(Begun put, std::span<const ConstSpan> value);
  Status finish_put(const Begun& put, Stored& stored);
  /// Of one put.
  Status finish_put(const Begun& put) {
    Stored stored{c_.access.recency_ns()};
    const Status status = finish_put(put, stored);
    count(stored);
    return status;
  }
  void count(const Stored& stored) {
    if (stored.puts == 0) return;
    c_.count(BH_COUNTER_PUTS, stored.puts);
    c_.count(BH_COUNTER_BYTES_IN, stored.bytes);
  }
  std::optional<Block> end_reservation(Reservation& reservation);

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Index<A>& index_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Lookup<A>& lookup_;
  Attributes<A>& attributes_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Reading<A>& reading_;
  Namespaces<A>& namespaces_;
  Space<A>& space_;
  Mail<A>& mail_;
};

template <class A>
Status Writing<A>::put(const Key& key, const Content& content) {
  if (Status status = check_value(key, content.length_bytes, content.user_metadata);
      status != Status::OK)
    return status;
  // Not even a payload may be written: where this host had space, its successor may have blocks.
  if (c_.ended()) return c_.gone();
  if (namespaces_.gone(key.namespace_id)) return Status::NAMESPACE_GONE;
  // A block is reserved while the first line of the look-up comes from memory.
  c_.access.prefetch(index_.first_line(c_.host, key.hash));
  auto block = reserve_free(content, key);
  if (put_present(key)) {
    if (block) allocator_.release(*block);
    return Status::OK;
  }
  if (!block) block = make_room(content, key);
  if (!block) return c_.ended() ? c_.gone() : Status::NO_SPACE;
  return store(begun_with(key, content, *block), content.stored);
}

template <class A>
template <class Make>
Status Writing<A>::put_made(const Key& key, const Content& raw, Make make) {
  return *begin_put(
      key, raw, [&] { return put_present(key); }, make,
      [&](const Content& content) { return reserve_free(content, key); },
      [&](const Begun& put, const Content& content) -> std::optional<Status> {
        return store(put, content.stored);
      });
}

/// Puts of a batch that are stored together: their payloads are copied one after the other, with
/// one fence behind them, while the lines that finish_put() needs come from memory. The destructor
/// gives the blocks of those back that were not stored.
template <class A>
class Writing<A>::Group {
 public:
  explicit Group(Writing& writing) : writing_(writing) { puts_.reserve(kMost); }
  ~Group() {
    for (size_t i = stored_; i < puts_.size(); ++i)
      writing_.retirement_.give_back(puts_[i].put.block);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  bool empty() const { return puts_.empty(); }
  bool full() const { return puts_.size() == kMost || bytes_ >= kMostBytes; }
  /// A value that the next put of the batch may overwrite is copied at once.
  void add(uint32_t i, const Begun& put, std::span<const ConstSpan> value, bool stays) {
    puts_.push_back({i, put, value});
    bytes_ += put.header.stored_bytes;
    if (!stays) write(puts_.back());
  }
  /// Stores them all, and calls done(i, status) for each.
  template <class Done>
  void store(Done done) {
    for (Item& item : puts_) write(item);
    if (puts_.empty()) return;
    writing_.c_.access.fence();
    Stored stored{writing_.c_.access.recency_ns()};
    while (stored_ < puts_.size()) {
      const Item& item = puts_[stored_++];
      done(item.number, writing_.finish_put(item.put, stored));
    }
    writing_.count(stored);
    puts_.clear();
    stored_ = bytes_ = 0;
  }

 private:
  static constexpr size_t kMost = 16;
  static constexpr uint64_t kMostBytes = 512 << 10;
  struct Item {
    uint32_t number;
    Begun put;
    std::span<const ConstSpan> value;  ///< empty: it was copied
  };
  void write(Item& item) {
    if (item.value.empty() || writing_.c_.ended()) return;  // finish_put() returns why
    writing_.write_value(item.put, item.value);
    item.value = {};
  }

  Writing& writing_;
  std::vector<Item> puts_;
  size_t stored_ = 0;
  uint64_t bytes_ = 0;
};

template <class A>
template <class Raw, class Make, class Done>
void Writing<A>::put_all(uint64_t ns, std::span<const std::string_view> keys, Raw raw, Make make,
                         Done done) {
  if (keys.size() == 1) {
    const Content value = raw(0);
    done(0, put_made(Key(ns, keys[0]), value, [&] { return make(0, value); }));
    return;
  }
  typename Lookup<A>::Blocks blocks(0);
  std::array<Hash128, Lookup<A>::kBatch> hashes;
  lookup_.locate_all(ns, keys, hashes, [&](uint32_t i, const Located& located) {
    if (is_put(located)) blocks.add(i, located);
  });
  Group group(*this);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const Key key(ns, keys[i], hashes[i]);
    // The puts before it may have evicted the block that was found.
    const auto present = [&] {
      const Located* block = blocks.of(i);
      if (block == nullptr) return false;
      if (!lookup_.stands(*block)) return put_present(key);
      // As in put_present(): what a host finds after it was declared dead, it alone finds.
      if (c_.ended()) return false;
      note_present(block->slot);
      return true;
    };
    const auto reserve = [&](const Content& content) {
      auto block = reserve_free(content, key);
      if (block || group.empty()) return block;
      group.store(done);  // now they can be evicted or moved for this one
      return reserve_free(content, key);
    };
    const Content value = raw(i);
    const auto go_on = [&](const Begun& put, const Content& content) -> std::optional<Status> {
      group.add(i, put, content.stored, content.stored.data() == value.stored.data());
      return std::nullopt;
    };
    const auto status = begin_put(
        key, value, present, [&] { return make(i, value); }, reserve, go_on);
    if (status) done(i, *status);
    if (group.full()) group.store(done);
  }
  group.store(done);
}

/// Begins a put, unless present() finds the key stored, and notes that use; go_on(put, content)
/// returns its status, if it has one yet.
template <class A>
template <class Present, class Make, class Reserve, class GoOn>
std::optional<Status> Writing<A>::begin_put(const Key& key, const Content& raw, Present present,
                                            Make make, Reserve reserve, GoOn go_on) {
  if (Status status = check_value(key, raw.length_bytes, raw.user_metadata); status != Status::OK)
    return status;
  if (c_.ended()) return c_.gone();
  if (namespaces_.gone(key.namespace_id)) return Status::NAMESPACE_GONE;
  if (present()) return Status::OK;
  const Content content = make();
  BOWHEAD_ASSERT(content.length_bytes == raw.length_bytes &&
                 content.user_metadata == raw.user_metadata);
  if (c_.ended()) return c_.gone();  // making it takes a while
  auto block = reserve(content);
  // A put of the same batch may have stored it.
  if (!block && put_present(key)) return Status::OK;
  if (!block) block = make_room(content, key);
  if (!block) return c_.ended() ? c_.gone() : Status::NO_SPACE;
  return go_on(begun_with(key, content, *block), content);
}

/// A block that Space makes room for; none if it cannot, or this life is over.
template <class A>
std::optional<Block> Writing<A>::make_room(const Content& content, const Key& key) {
  auto block = space_.reserve_block(room_for(content, key.bytes.size()));
  if (!block || !c_.ended()) return block;
  allocator_.release(*block);
  return std::nullopt;
}

/// Asks for the lines that finish_put() writes, which then come while payloads are copied.
template <class A>
auto Writing<A>::begun_with(const Key& key, const Content& content, const Block& block) -> Begun {
  index_.expect_insert(key.hash);
  const uint64_t header_at = c_.layout.header(block.slot);
  c_.access.prefetch_own(header_at);
  c_.access.prefetch_own(header_at + offsetof(bh_block_slot, key));
  if (const uint64_t word = c_.word_index(block.slot); word != Layout::kNoWord)
    c_.access.prefetch_own(c_.own(BH_PART_RECENCY, word));
  if (content.wipe) retirement_.promise_wipe(block);
  return {key, block, header_for(content), content.user_metadata, content.attributes};
}

/// Copies the value into the block of a put; into another block if its memory fails. Where there is
/// none, finish_put() says so.
template <class A>
void Writing<A>::write_value(Begun& put, std::span<const ConstSpan> value) {
  for (;;) {
    put.header.payload_checksum = c_.access.write_payload(put.block.offset, value);
    if (!c_.access.payload_lost(put.block.offset, put.header.stored_bytes)) return;
    const auto other = allocator_.reserve(put.block.block_bytes, kSafe);
    if (!other) return;
    retirement_.give_back(put.block);
    put.block = *other;
    if ((put.header.flags & BH_HEADER_WIPE) != 0) retirement_.promise_wipe(put.block);
  }
}

template <class A>
Status Writing<A>::store(Begun put, std::span<const ConstSpan> value) {
  write_value(put, value);
  c_.access.fence();
  return finish_put(put);
}

/// The put of a block has come to its end. Before that, a block of this host may not be in the
/// change log yet: another put of the key then takes the lock of the key, and finds what the first,
/// or the scavenger of its process, has finished.
template <class A>
bool Writing<A>::is_put(const Located& located) const {
  if (located.found.host != c_.host) return true;
  const uint32_t state = allocator_.word(located.slot).state;
  return state == BH_BLOCK_COMMITTED || state == BH_BLOCK_RETIRING;
}

/// The block of a key, if a put of the key need not do anything.
template <class A>
std::optional<Located> Writing<A>::find_present(const Key& key) const {
  auto located = lookup_.locate(key);
  return located && is_put(*located) ? located : std::nullopt;
}

/// If the key is stored already: notes and counts the use, which is all that a put of it does.
template <class A>
bool Writing<A>::put_present(const Key& key) {
  // A block that a host stored after it was declared dead is found by that host alone.
  if (c_.ended()) return false;
  const auto located = find_present(key);
  if (!located) return false;
  note_present(located->slot);
  return true;
}

template <class A>
Result<Reservation> Writing<A>::reserve(const Key& key, uint64_t length_bytes,
                                        std::string_view user_metadata,
                                        const BlockAttributes& attributes, bool wipe) {
  if (Status status = check_value(key, length_bytes, user_metadata); status != Status::OK)
    return status;
  Reservation reservation;
  reservation.length_bytes = length_bytes;
  reservation.namespace_id = key.namespace_id;
  reservation.key = std::string(key.bytes);
  reservation.user_metadata = std::string(user_metadata);
  reservation.attributes = attributes;
  if (c_.ended()) return c_.gone();
  if (namespaces_.gone(key.namespace_id)) return Status::NAMESPACE_GONE;
  if (find_present(key)) {
    reservation.present = true;
    return reservation;
  }
  // Not in custody: a zombie may write there with the caller, and the checksum would cover that.
  const uint64_t room = c_.layout.block_bytes(
      length_bytes, Layout::key_line_bytes(key.bytes.size(), user_metadata.size()));
  auto block = space_.reserve_block(room, kSafe);
  if (!block) block = allocator_.reserve(room);
  if (!block) return c_.ended() ? c_.gone() : Status::NO_SPACE;
  if (extents_.copy_only(c_.layout.extent_of_slot(block->slot))) {
    allocator_.release(*block);
    return Status::BUSY;
  }
  if (wipe) retirement_.promise_wipe(*block);
  reservation.data = c_.access.payload(block->offset);
  reservation.offset = block->offset;
  reservation.handle = c_.instance;
  reservation.token = c_.load_state(block->word_at).pack();
  reservation.word_offset = block->word_at;
  return reservation;
}

template <class A>
Status Writing<A>::commit(Reservation& reservation, const PayloadSum& sum) {
  if (reservation.present) return Status::OK;
  const auto block = end_reservation(reservation);
  if (!block) return c_.ended() ? c_.gone() : Status::CLOSED;
  if (namespaces_.gone(reservation.namespace_id)) {
    retirement_.give_back(*block);
    return Status::NAMESPACE_GONE;
  }
  bh_block_header header{};
  header.length_bytes = header.stored_bytes = static_cast<uint32_t>(reservation.length_bytes);
  if (retirement_.must_wipe(block->slot)) header.flags = BH_HEADER_WIPE;
  header.checksum_kind =
      sum.by == PayloadSum::By::NONE ? BH_CHECKSUM_NONE : BH_CHECKSUM_XXH3_TREE_4K;
  if (sum.by == PayloadSum::By::POOL)
    header.payload_checksum = c_.access.sum_payload(reservation.offset, reservation.length_bytes);
  else if (sum.by == PayloadSum::By::WRITER)
    header.payload_checksum = sum.checksum;
  // The pool sums the bytes that lie there: if this life was over before, they may be bytes that
  // the successor put there.
  if (!c_.alone() && hosts_.decided({c_.host, c_.incarnation})) {
    retirement_.give_back(*block);
    return c_.gone();
  }
  c_.access.publish(block->offset, reservation.length_bytes);
  if (c_.access.payload_lost(block->offset, reservation.length_bytes)) {
    retirement_.give_back(*block);
    return Status::DAMAGED;
  }
  return finish_put({Key(reservation.namespace_id, reservation.key), *block, header,
                     reservation.user_metadata, reservation.attributes});
}

template <class A>
Status Writing<A>::abort(Reservation& reservation) {
  if (reservation.present) return Status::OK;
  const auto block = end_reservation(reservation);
  if (!block) return c_.ended() ? c_.gone() : Status::CLOSED;
  retirement_.give_back(*block);
  return Status::OK;
}

template <class A>
void Writing<A>::remove_all(std::span<const Key> keys, std::span<Status> statuses) {
  BOWHEAD_ASSERT(keys.size() <= Lookup<A>::kBatch && keys.size() == statuses.size());
  if (c_.ended()) {
    std::ranges::fill(statuses, c_.gone());
    return;
  }
  const uint64_t others = lookup_.other_hosts();
  // Before the look: the answer of a later life is not about the blocks that are found.
  std::vector<Life> lives;
  for (uint64_t left = others; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    const auto slot = hosts_.read_slot(host);
    lives.push_back({host, slot ? slot->incarnation : 0u});
  }
  for (size_t i = 0; i < keys.size(); ++i)
    statuses[i] = retirement_.remove_own(keys[i].hash, kLockWaitNs, [] { return true; });
  const bool removed_own = std::ranges::find(statuses, Status::OK) != statuses.end();
  if (removed_own && !c_.alone() && !hosts_.stands({c_.host, c_.incarnation}))
    std::ranges::replace(statuses, Status::OK, Status::BUSY);
  for (const Life life : lives) {
    std::array<Hash128, Lookup<A>::kBatch> asked;
    std::array<uint32_t, Lookup<A>::kBatch> number;
    size_t count = 0;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      const bool failed = statuses[i] != Status::OK && statuses[i] != Status::NOT_FOUND;
      if (failed || !lookup_.locate_at(life.host, keys[i], Fresh::NOTHING)) continue;
      asked[count] = keys[i].hash;
      number[count++] = i;
    }
    mail_.ask_to_remove(life, std::span(asked).first(count),
                        [&](size_t i, Status status) { statuses[number[i]] = status; });
  }
}

template <class A>
Status Writing<A>::check_value(const Key& key, uint64_t bytes,
                               std::string_view user_metadata) const {
  if (user_metadata.size() > BH_USER_BYTES_MAX) return Status::INVALID_ARGUMENT;
  uint64_t extents = 0;  // of the largest set of media: no block lies in two
  for (const Set& set : c_.layout.sets().list) extents = std::max(extents, set.extent_count);
  const uint64_t largest =
      std::min<uint64_t>(BH_VALUE_BYTES_MAX, extents * c_.layout.geometry().extent_bytes);
  const uint64_t key_lines = Layout::key_line_bytes(key.bytes.size(), user_metadata.size());
  // The caller's size is rounded up only once it is known to be small.
  const bool fits =
      bytes > 0 && bytes <= largest && c_.layout.block_bytes(bytes, key_lines) <= largest;
  return fits ? Status::OK : Status::VALUE_TOO_LARGE;
}

template <class A>
bh_block_header Writing<A>::header_for(const Content& content) const {
  bh_block_header header{};
  header.length_bytes = static_cast<uint32_t>(content.length_bytes);
  header.stored_bytes = static_cast<uint32_t>(content.stored_bytes());
  header.codec = content.codec;
  header.profile = content.profile;
  header.checksum_kind = BH_CHECKSUM_XXH3_TREE_4K;
  header.user_bytes = static_cast<uint16_t>(content.user_metadata.size());
  if (content.wipe) header.flags = BH_HEADER_WIPE;
  return header;
}

template <class A>
bh_index_entry Writing<A>::entry_for(const Block& block, const bh_block_header& header) const {
  bh_index_entry entry{};
  entry.key_hash[0] = header.key_hash[0];
  entry.key_hash[1] = header.key_hash[1];
  entry.block_offset = block.offset;
  entry.stamp = header.stamp;
  entry.payload_checksum = header.payload_checksum;
  entry.namespace_id = header.namespace_id;
  entry.stored_bytes = header.stored_bytes;
  entry.incarnation = static_cast<uint16_t>(c_.incarnation);
  if (extents_.copy_only(c_.layout.extent_of_slot(block.slot))) entry.flags = BH_ENTRY_COPY_ONLY;
  return entry;
}

/// Writes key, header and entry, and commits: the payload of the RESERVED block is published (C1).
template <class A>
Status Writing<A>::finish_put(const Begun& put, Stored& stored) {
  const auto& [key, block, described, user_metadata, attributes] = put;
  if (c_.ended() || !retirement_.stamps_left()) {
    retirement_.give_back(block);
    return c_.ended() ? c_.gone() : Status::LIMIT_REACHED;
  }
  if (c_.access.payload_lost(block.offset, described.stored_bytes)) {
    retirement_.give_back(block);
    return Status::NO_SPACE;
  }
  const Publishing publishing(c_);
  bh_block_header header = described;
  header.key_hash[0] = key.hash.low;
  header.key_hash[1] = key.hash.high;
  header.namespace_id = key.namespace_id;
  header.key_bytes = static_cast<uint16_t>(key.bytes.size());
  header.user_bytes = static_cast<uint16_t>(user_metadata.size());
  bool gone = false;
  {
    const KeyLock lock(locks_, key.hash);
    // Other hosts may store the same key meanwhile; then there are two blocks, and either is right.
    const bool present = lock.held() && lookup_.locate_at(c_.host, key, Fresh::NOTHING).has_value();
    const auto place =
        lock.held() && !present && !c_.ended() ? index_.claim(key.hash, block.slot) : std::nullopt;
    if (!place) {
      retirement_.give_back(block);
      if (!lock.held()) return Status::BUSY;
      if (present) c_.count(BH_COUNTER_PUTS_PRESENT);
      return present ? Status::OK : c_.ended() ? c_.gone() : Status::INDEX_FULL;
    }
    header.stamp = retirement_.next_stamp();
    write_key_lines(block.slot, key.bytes, user_metadata, header.stamp);
    c_.write_sealed(c_.layout.header(block.slot), to_line(header));  // with the tag
    attributes_.set_new(block.slot, header.stamp, attributes);
    c_.store_recency(block.slot, stored.recency_ns);
    index_.fill(*place, entry_for(block, header));
    gone = namespaces_.gone_after_store(key.namespace_id);  // N4
    usage_.add(header);
    // Before another process can retire it: its end is published after this.
    if (c_.events != nullptr && c_.events->wanted())
      c_.events->publish({EventKind::STORED, key.namespace_id, key.bytes, user_metadata,
                          header.length_bytes, header.stamp});
    if (!allocator_.commit(block)) return c_.gone();
  }
  if (gone) {
    if (c_.alone()) namespaces_.sweep();  // else the duties retire the block
    return Status::NAMESPACE_GONE;
  }
  ++stored.puts;
  stored.bytes += header.length_bytes;
  space_.evict_by_watermark(block.block_bytes);
  return Status::OK;
}

template <class A>
void Writing<A>::write_key_lines(uint64_t slot, std::string_view key,
                                 std::string_view user_metadata, uint64_t stamp) {
  // Not on the heap: no put may fail between here and its end, or its block would stay reserved.
  std::array<char, BH_KEY_BYTES_MAX + BH_USER_BYTES_MAX + BH_USER_CHECK_BYTES> joined;
  std::string_view text = key;
  if (!user_metadata.empty()) {
    const uint64_t check = c_.sealer.user_check(user_metadata, stamp);
    char* end = std::ranges::copy(key, joined.begin()).out;
    end = std::ranges::copy(user_metadata, end).out;
    std::memcpy(end, &check, sizeof check);
    text = {joined.data(), key.size() + user_metadata.size() + sizeof check};
  }
  for (uint64_t at = 0; at < text.size(); at += BH_LINE_BYTES, ++slot) {
    Line line{};
    std::memcpy(line.data(), text.data() + at, std::min<size_t>(BH_LINE_BYTES, text.size() - at));
    const uint64_t offset = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    c_.access.store_line(offset, line);
    c_.access.flush(offset, BH_LINE_BYTES);
  }
}

/// Takes the block of an open reservation from the caller and from all copies. The token is the
/// allocator word as reserve() left it, a value that this word never has again (its sequence only
/// rises); the block may have another word by then. So of all copies one ends the reservation, and
/// none does once the block has been reused.
template <class A>
std::optional<Block> Writing<A>::end_reservation(Reservation& reservation) {
  const StateWord word = StateWord::unpack(std::exchange(reservation.token, 0));
  const uint64_t offset = reservation.offset;
  reservation.data = nullptr;
  if (reservation.handle != c_.instance || word.state != BH_BLOCK_RESERVED ||
      word.process != c_.process || !c_.layout.valid_block(offset, reservation.length_bytes))
    return std::nullopt;
  const uint64_t slot = c_.layout.slot_of(offset);
  if (!allocator_.hold_on(slot, {reservation.word_offset, word})) return std::nullopt;
  const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(slot));
  return Block{slot, offset, slab.block_bytes, reservation.word_offset};
}

}  // namespace bowhead::core
