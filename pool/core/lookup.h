// SPDX-License-Identifier: Apache-2.0
// Look-ups of blocks: index entries, the headers that they name, and the keys beside the headers,
// in the index of this host and of all others that it knows of. Stores nothing but, for `pool
// info`, what its mirror has.
//
// Invariant
//   M1 User metadata are returned only if their check agrees with them and with the stamp of the
//      block. No other block has that stamp, so lines of an earlier block of the slot, still in a
//      cache or not yet overwritten, are never taken for them.
//
// Owns: nothing. Calls: Mirror.
#pragma once

#include "pool/core/mirror.h"

namespace bowhead::core {

template <class A>
class Lookup {
 public:
  explicit Lookup(const Rooms<A>& rooms)
      : c_(rooms.context), index_(rooms.index), hosts_(rooms.hosts), mirror_(rooms.mirror) {}
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  static constexpr uint64_t kBatch = 128;  ///< keys that locate_all() takes at once
  /// Blocks of a batch of keys.
  class Blocks {
   public:
    explicit Blocks(size_t keys) { blocks_.reserve(keys); }
    void add(uint32_t key, const Located& block) {
      blocks_.push_back(block);
      numbers_[key] = static_cast<uint8_t>(blocks_.size());
    }
    /// Null: none was added for the key.
    const Located* of(uint32_t key) const {
      return numbers_[key] == 0 ? nullptr : &blocks_[numbers_[key] - 1];
    }

   private:
    static_assert(kBatch <= UINT8_MAX);
    std::vector<Located> blocks_;
    std::array<uint8_t, kBatch> numbers_{};  ///< by key, plus 1; 0: none
  };
  bool read_header(uint64_t slot, bh_block_header& header) const;
  /// The block that an entry names, if it is stored under the key. `fresh`: header and first key
  /// line were acquired.
  std::optional<Located> verify(const Found& found, const Key& key, bool fresh = false) const;
  /// Whether a block that was found still has its stamp.
  bool stands(const Located& located) const {
    const uint64_t header_at = c_.layout.header(located.slot);
    c_.acquire_from(writer_of(located.found.host, located.found.entry), header_at, BH_LINE_BYTES);
    return c_.access.load(header_at) == located.header.stamp;
  }
  /// Looks in the index of one host.
  std::optional<Located> locate_at(uint32_t host, const Key& key, Fresh fresh) const;
  /// Looks in the own index first, then in all others, whose first lines are invalidated under one
  /// fence (protocol 5.2).
  std::optional<Located> locate(const Key& key);
  /// Looks up to kBatch keys up, pipelined: all lines of a step are fetched before the next step.
  /// Calls found(i, located) once for each key that is stored. `hashes` gets those of the keys.
  template <class Note>
  void locate_all(uint64_t ns, std::span<const std::string_view> keys, std::span<Hash128> hashes,
                  Note note);
  /// present[i] for up to kBatch keys, and how many are. `slots`: their block slots.
  uint64_t exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
                  uint64_t* slots = nullptr);
  std::string read_key(uint64_t slot, uint64_t key_bytes) const {
    return read_key_lines(slot, key_bytes);
  }
  /// The user metadata of the block of a header, verified (M1); empty if it has none. Nothing: they
  /// are damaged, or the slot has another block by now.
  std::optional<std::string> read_user(uint64_t slot, const bh_block_header& header) const;
  /// Calls visit(key, user metadata) for the block of a header, both verified, with an empty text
  /// for metadata that are damaged. Returns false, and does not call it, if the key is damaged, or
  /// the slot has another block by now.
  template <class Visit>
  bool with_key_lines(uint64_t slot, const bh_block_header& header, Visit visit) const;
  /// The hash of the stored key, whatever hash the header states.
  Hash128 key_hash(uint64_t slot, const bh_block_header& header) const;
  uint64_t own_bit() const { return c_.observing() ? 0 : uint64_t{1} << c_.host; }
  uint64_t other_hosts() const {
    return c_.alone() && !c_.observing() ? 0 : probed_hosts() & ~own_bit();
  }

 private:
  static constexpr size_t kLinesAhead = 16;

  /// A possible match for a key of a batch. All keys go through a step before the next step.
  struct Candidate {
    Candidate(uint32_t of_key, uint32_t of_host, uint64_t entry_at, uint64_t tag_mask)
        : key(of_key), host(of_host), at(entry_at), known_tag(tag_mask) {}
    uint32_t key, host;
    uint64_t at;           ///< of the entry, then of the header
    uint64_t known_tag;    ///< the bits of the tag that the key and the entry share
    bh_index_entry entry;  ///< once it is read
  };
  /// A directory line of a key's probe set.
  struct Step {
    uint32_t key, host;
    typename Index<A>::Search search;
  };
  struct Batch {
    uint64_t ns;
    std::span<const std::string_view> keys;
    std::span<const Set> sets;  ///< in whose segments it searches
    uint64_t hosts, mirrored;   ///< other ones that are searched; those that the mirror knows
    std::span<Hash128> hashes;
    uint64_t direct[kBatch];  ///< by key: those whose first directory line must be read
    uint64_t all_direct = 0;
    std::vector<Step> further;  ///< directory lines that must be read after the first
    /// Looked up one by one in the end, at these hosts, unless they were found: keys whose tag
    /// matched, but whose block did not. It may have been moved or recompressed after the first
    /// lines were read; a batch takes so long that this would happen often.
    uint64_t unsure[kBatch];
    std::vector<Candidate> found, other;  ///< of `other` the entry is another key's, or was one

    void add_unsure(uint32_t key, uint32_t host) { unsure[key] |= uint64_t{1} << host; }
  };
  bool key_matches(const Found& found, uint64_t slot, std::string_view key) const;
  std::optional<std::string_view> user_in(std::string_view lines,
                                          const bh_block_header& header) const;
  /// The first bytes of the key lines from a slot on, acquired.
  std::string read_key_lines(uint64_t slot, uint64_t bytes) const;
  void match_near(Batch& batch) const;
  void match_line(Batch& batch, uint32_t key, uint32_t host,
                  const typename Index<A>::Search& search) const {
    const Line words = c_.access.load_line(index_.line_at(host, search.bucket()));
    const auto note = [&](uint32_t entry) {
      const uint64_t at = index_.entry_at(host, search.bucket(), entry);
      batch.found.emplace_back(key, host, at, ~uint64_t{0});
    };
    const bool further = index_.for_each_match(directory_tag(batch.hashes[key]), words, note);
    if (!further && batch.sets.size() == 1) return;
    typename Index<A>::Search rest = search;
    if (further)
      rest.next();
    else
      rest.leave_segment();
    if (rest.more()) batch.further.push_back({key, host, rest});
  }
  void match_mirrored(Batch& batch, uint32_t key, typename Index<A>::Search search) const;
  void match_first_lines(Batch& batch) const;
  void match_further_lines(Batch& batch) const;
  void read_entries(Batch& batch) const;
  void look_at_others(Batch& batch) const;
  /// Calls fetch(i), which fetches `lines` lines, for each i < count some time before use(i). All
  /// at once would be slower: a core waits for some twenty lines at a time.
  template <class Fetch, class Use>
  static void pipeline(size_t count, size_t lines, Fetch fetch, Use use) {
    const size_t ahead = std::max<size_t>(1, kLinesAhead / std::max<size_t>(1, lines));
    for (size_t i = 0; i < count + ahead; ++i) {
      if (i < count) fetch(static_cast<uint32_t>(i));
      if (i >= ahead) use(static_cast<uint32_t>(i - ahead));
    }
  }
  /// A bit for each host whose index look-ups read.
  uint64_t probed_hosts() const {
    if (c_.observing()) return ~uint64_t{0} >> (64 - hosts_.count());
    if (c_.alone()) return 1;
    return c_.access.load(c_.private_word(offsetof(bh_host_private, probed_hosts))) | own_bit();
  }

  Context<A>& c_;
  Index<A>& index_;
  Hosts<A>& hosts_;
  Mirror<A>& mirror_;
};

template <class A>
bool Lookup<A>::read_header(uint64_t slot, bh_block_header& header) const {
  Line line;
  if (!c_.read_sealed(c_.layout.header(slot), line)) return false;
  header = from_line<bh_block_header>(line);
  return true;
}

/// The first line of the key lies beside the header and was acquired with it.
template <class A>
bool Lookup<A>::key_matches(const Found& found, uint64_t slot, std::string_view key) const {
  for (uint64_t at = 0; at < key.size(); at += BH_LINE_BYTES, ++slot) {
    if (slot >= c_.layout.slot_limit()) return false;
    const uint64_t offset = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    if (at > 0) c_.acquire_from(writer_of(found.host, found.entry), offset, BH_LINE_BYTES);
    const Line line = c_.access.load_line(offset);
    const size_t part = std::min<size_t>(BH_LINE_BYTES, key.size() - at);
    if (std::memcmp(line.data(), key.data() + at, part) != 0) return false;
  }
  return true;
}

template <class A>
std::optional<Located> Lookup<A>::verify(const Found& found, const Key& key, bool fresh) const {
  const bh_index_entry& entry = found.entry;
  if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return std::nullopt;
  Located located{found, {}, c_.layout.slot_of(entry.block_offset)};
  const uint32_t writer = writer_of(found.host, entry);
  if (!fresh) c_.acquire_from(writer, c_.layout.header(located.slot), sizeof(bh_block_slot));
  if (!fresh && writer == c_.host) {
    // All at once: otherwise each line would come from memory when its turn is.
    c_.access.prefetch_own(c_.layout.header(located.slot));
    c_.access.prefetch_own(c_.layout.header(located.slot) + offsetof(bh_block_slot, key));
    c_.access.prefetch_own(entry.block_offset);
    if (const uint64_t word = c_.word_index(located.slot); word != Layout::kNoWord)
      c_.access.prefetch_own(c_.own(BH_PART_RECENCY, word));
  }
  bh_block_header& header = located.header;
  if (!read_header(located.slot, header) || header.stamp != entry.stamp ||
      stamp_state(header.stamp) != BH_STAMP_COMMITTED || header.namespace_id != key.namespace_id ||
      header.key_bytes != key.bytes.size() || header.stored_bytes != entry.stored_bytes ||
      !lengths_agree(header) || !key_matches(found, located.slot, key.bytes))
    return std::nullopt;
  return located;
}

template <class A>
std::optional<Located> Lookup<A>::locate_at(uint32_t host, const Key& key, Fresh fresh) const {
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

template <class A>
std::optional<Located> Lookup<A>::locate(const Key& key) {
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

template <class A>
template <class Note>
void Lookup<A>::locate_all(uint64_t ns, std::span<const std::string_view> keys,
                           std::span<Hash128> hashes, Note note) {
  BOWHEAD_ASSERT(keys.size() <= kBatch && keys.size() <= hashes.size());
  Batch batch;
  batch.hashes = hashes;
  batch.ns = ns;
  batch.keys = keys;
  batch.sets = c_.layout.sets().list;
  batch.hosts = other_hosts();
  batch.mirrored = c_.alone() ? 0 : mirror_.catch_up(batch.hosts);
  batch.found.reserve(keys.size() + 16);
  match_near(batch);
  if (batch.all_direct != 0) match_first_lines(batch);
  match_further_lines(batch);
  read_entries(batch);
  if (!c_.alone()) c_.access.coherence_fence();
  std::array<bool, kBatch> stored{};
  const auto found = [&](uint32_t key, const Located& located) {
    if (std::exchange(stored[key], true)) return;
    note(key, located);
  };
  const auto fetch = [&](uint32_t i) {
    c_.access.prefetch(batch.found[i].at);
    c_.access.prefetch(batch.found[i].at + BH_LINE_BYTES);
  };
  pipeline(batch.found.size(), 2, fetch, [&](uint32_t i) {
    const Candidate& one = batch.found[i];
    if (stored[one.key] || !Key::valid(keys[one.key])) return;
    const auto located = verify(Found{one.entry, one.host, 0, 0, 0},
                                Key(ns, keys[one.key], batch.hashes[one.key]), /*fresh=*/true);
    if (located) found(one.key, *located);
  });
  look_at_others(batch);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (stored[i] || batch.unsure[i] == 0 || !Key::valid(keys[i])) continue;
    const Key key(ns, keys[i], batch.hashes[i]);
    for (uint64_t left = batch.unsure[i]; left != 0 && !stored[i]; left &= left - 1) {
      const auto host = static_cast<uint32_t>(std::countr_zero(left));
      if (const auto located = locate_at(host, key, Fresh::NOTHING)) found(i, *located);
    }
  }
}

template <class A>
uint64_t Lookup<A>::exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
                           uint64_t* slots) {
  uint64_t count = 0;
  std::fill_n(present, keys.size(), uint8_t{0});
  if (slots != nullptr) std::fill_n(slots, keys.size(), UINT64_MAX);
  std::array<Hash128, kBatch> hashes;
  locate_all(ns, keys, hashes, [&](uint32_t key, const Located& located) {
    present[key] = 1;
    ++count;
    if (slots != nullptr) slots[key] = located.slot;
  });
  return count;
}

/// Hashes the keys, and finds entries of this host, and those that the mirror knows.
template <class A>
void Lookup<A>::match_near(Batch& batch) const {
  const auto fetch = [&](uint32_t key) {
    const std::string_view text = batch.keys[key];
    Hash128& hash = batch.hashes[key];
    hash = hash128(text.data(), std::min<size_t>(text.size(), BH_KEY_BYTES_MAX), batch.ns);
    if (own_bit() != 0) c_.access.prefetch_own(index_.first_line(c_.host, hash));
    if (batch.mirrored != 0) mirror_.prefetch(index_.primary_bucket(hash), directory_tag(hash));
  };
  pipeline(batch.keys.size(), batch.mirrored != 0 ? 2 : 1, fetch, [&](uint32_t key) {
    batch.unsure[key] = 0;
    batch.direct[key] = batch.hosts & ~batch.mirrored;
    const typename Index<A>::Search search(batch.hashes[key], batch.sets);
    if (own_bit() != 0) match_line(batch, key, c_.host, search);
    if (batch.mirrored != 0) match_mirrored(batch, key, search);
    batch.all_direct |= batch.direct[key];
    for (uint64_t left = batch.direct[key]; left != 0; left &= left - 1) {
      const auto host = static_cast<uint32_t>(std::countr_zero(left));
      c_.access.invalidate(index_.first_line(host, batch.hashes[key]), BH_LINE_BYTES);
    }
  });
}

template <class A>
void Lookup<A>::match_mirrored(Batch& batch, uint32_t key, typename Index<A>::Search search) const {
  uint64_t hosts = batch.mirrored;  // those that the mirror is enough for
  uint64_t open = hosts;            // whose entry for the key may be in this bucket
  bool first = true;                // of all segments
  while (search.more() && hosts != 0) {
    const auto except = mirror_.match(
        search.bucket(), directory_tag(batch.hashes[key]), [&](uint32_t host, uint32_t entry) {
          if ((open >> host & 1) == 0) return;
          const uint64_t at = index_.entry_at(host, search.bucket(), entry);
          batch.found.emplace_back(key, host, at, mirror_.known_tag());
        });
    const uint64_t unread = except.unread & open;
    if (first) batch.direct[key] |= unread;
    for (uint64_t left = first ? 0 : unread; left != 0; left &= left - 1)
      batch.further.push_back({key, static_cast<uint32_t>(std::countr_zero(left)), search});
    hosts &= ~unread;  // their own lines are read from here on
    open &= except.further & ~unread;
    first = false;
    if (open == 0 && batch.sets.size() == 1) return;
    if (open != 0)
      search.next();
    else
      search.leave_segment();
    if (search.number() == 0) open = hosts;
  }
}

/// Finds entries by the first directory lines of other hosts.
template <class A>
void Lookup<A>::match_first_lines(Batch& batch) const {
  c_.access.coherence_fence();
  const auto for_each_host = [&](uint32_t key, auto visit) {
    for (uint64_t left = batch.direct[key]; left != 0; left &= left - 1)
      visit(static_cast<uint32_t>(std::countr_zero(left)));
  };
  const auto fetch = [&](uint32_t key) {
    for_each_host(key, [&](uint32_t host) {
      c_.access.prefetch(index_.first_line(host, batch.hashes[key]));
    });
  };
  const auto lines = static_cast<size_t>(std::popcount(batch.hosts & ~batch.mirrored));
  pipeline(batch.keys.size(), lines, fetch, [&](uint32_t key) {
    const auto search = typename Index<A>::Search(batch.hashes[key], batch.sets);
    for_each_host(key, [&](uint32_t host) { match_line(batch, key, host, search); });
  });
}

/// Finds entries that lie further on in their probe sets.
template <class A>
void Lookup<A>::match_further_lines(Batch& batch) const {
  while (!batch.further.empty()) {
    const std::vector<Step> steps = std::exchange(batch.further, {});
    const auto line_of = [&](const Step& step) {
      return index_.line_at(step.host, step.search.bucket());
    };
    for (const Step& step : steps) c_.invalidate_from(step.host, line_of(step), BH_LINE_BYTES);
    c_.access.coherence_fence();
    const auto fetch = [&](uint32_t i) { c_.access.prefetch(line_of(steps[i])); };
    pipeline(steps.size(), 1, fetch, [&](uint32_t i) {
      const Step& step = steps[i];
      match_line(batch, step.key, step.host, step.search);
    });
  }
}

/// Keeps the candidates whose entry is the key's. The entry may come from the cache, however old:
/// the header decides, and if it does not agree, the key is looked up once more.
template <class A>
void Lookup<A>::read_entries(Batch& batch) const {
  size_t kept = 0;
  const auto fetch = [&](uint32_t i) { c_.access.prefetch(batch.found[i].at); };
  pipeline(batch.found.size(), 1, fetch, [&](uint32_t i) {
    Candidate& one = batch.found[i];
    Line line;
    const bool sealed = c_.read_sealed(one.at, line);
    one.entry = from_line<bh_index_entry>(line);
    if (!sealed || hash_of(one.entry) != batch.hashes[one.key]) {
      c_.invalidate_from(one.host, one.at, BH_LINE_BYTES);
      batch.other.push_back(one);
      return;
    }
    batch.add_unsure(one.key, one.host);
    if (one.entry.namespace_id != batch.ns || !c_.layout.valid_block(one.entry.block_offset, 1))
      return;
    one.at = c_.layout.header(c_.layout.slot_of(one.entry.block_offset));
    c_.invalidate_from(writer_of(one.host, one.entry), one.at, sizeof(bh_block_slot));
    batch.found[kept++] = one;
  });
  batch.found.erase(batch.found.begin() + static_cast<ptrdiff_t>(kept), batch.found.end());
}

/// An entry that is another key's in the memory too, with a tag that matches, was no match. With
/// another tag it has taken the place of the entry that matched, which may have been moved.
template <class A>
void Lookup<A>::look_at_others(Batch& batch) const {
  const auto fetch = [&](uint32_t i) { c_.access.prefetch(batch.other[i].at); };
  pipeline(batch.other.size(), 1, fetch, [&](uint32_t i) {
    const Candidate& one = batch.other[i];
    Line line;
    const bool sealed = c_.read_sealed(one.at, line);
    const Hash128 hash = hash_of(from_line<bh_index_entry>(line)), &wanted = batch.hashes[one.key];
    const uint64_t difference = directory_tag(hash) ^ directory_tag(wanted);
    if (!sealed || hash == wanted || (difference & one.known_tag) != 0)
      batch.add_unsure(one.key, one.host);
  });
}

template <class A>
std::string Lookup<A>::read_key_lines(uint64_t slot, uint64_t bytes) const {
  std::string text;
  text.reserve(bytes);
  for (; text.size() < bytes && slot < c_.layout.slot_limit(); ++slot) {
    const uint64_t at = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    c_.access.acquire(at, BH_LINE_BYTES);
    const Line line = c_.access.load_line(at);
    text.append(reinterpret_cast<const char*>(line.data()),
                std::min<size_t>(sizeof line, bytes - text.size()));
  }
  return text;
}

template <class A>
std::optional<std::string> Lookup<A>::read_user(uint64_t slot,
                                                const bh_block_header& header) const {
  if (header.user_bytes == 0) return std::string();
  const std::string lines = read_key_lines(slot, Layout::key_line_bytes(header));
  const auto user = user_in(lines, header);
  return user ? std::optional<std::string>(*user) : std::nullopt;
}

/// The user metadata in the key lines of the block of a header, if they are whole.
template <class A>
std::optional<std::string_view> Lookup<A>::user_in(std::string_view lines,
                                                   const bh_block_header& header) const {
  if (header.user_bytes == 0) return std::string_view();
  const size_t end = size_t{header.key_bytes} + header.user_bytes;
  if (header.user_bytes > BH_USER_BYTES_MAX || lines.size() != end + BH_USER_CHECK_BYTES)
    return std::nullopt;
  uint64_t check = 0;
  std::memcpy(&check, lines.data() + end, sizeof check);
  const std::string_view user = lines.substr(header.key_bytes, header.user_bytes);
  if (check != c_.sealer.user_check(user, header.stamp)) return std::nullopt;
  return user;
}

template <class A>
template <class Visit>
bool Lookup<A>::with_key_lines(uint64_t slot, const bh_block_header& header, Visit visit) const {
  const std::string lines = read_key_lines(slot, Layout::key_line_bytes(header));
  const std::string_view key = std::string_view(lines).substr(0, header.key_bytes);
  if (hash128(key.data(), key.size(), header.namespace_id) != hash_of(header)) return false;
  visit(key, user_in(lines, header).value_or(std::string_view()));
  return true;
}

template <class A>
Hash128 Lookup<A>::key_hash(uint64_t slot, const bh_block_header& header) const {
  const std::string key = read_key(slot, header.key_bytes);
  return hash128(key.data(), key.size(), header.namespace_id);
}

}  // namespace bowhead::core
