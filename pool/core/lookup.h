// SPDX-License-Identifier: Apache-2.0
// Look-ups of blocks: index entries, the headers that they name, and the keys beside the headers,
// in the index of this host and of all others that it knows of. Stores nothing.
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

  static constexpr uint64_t kBatch = 128;  ///< keys that exists() takes at once
  bool read_header(uint64_t slot, bh_block_header& header) const;
  /// The block that an entry names, if it is stored under the key. `fresh`: header and first key
  /// line were acquired.
  std::optional<Located> verify(const Found& found, const Key& key, bool fresh = false) const;
  /// Looks in the index of one host.
  std::optional<Located> locate_at(uint32_t host, const Key& key, Fresh fresh) const;
  /// Looks in the own index first, then in all others, whose first lines are invalidated under one
  /// fence (protocol 5.2).
  std::optional<Located> locate(const Key& key);
  /// present[i] for up to 128 keys, pipelined: all lines of a step are fetched before the next
  /// step. `slots`: their block slots.
  uint64_t exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
                  uint64_t* slots = nullptr);
  std::string read_key(uint64_t slot, uint64_t key_bytes) const;
  /// The hash of the stored key, whatever hash the header states.
  Hash128 key_hash(uint64_t slot, const bh_block_header& header) const;
  uint64_t own_bit() const { return c_.observing() ? 0 : uint64_t{1} << c_.host; }
  uint64_t other_hosts() const {
    return c_.alone() && !c_.observing() ? 0 : probed_hosts() & ~own_bit();
  }

 private:
  /// A possible match for a key. All keys of a batch go through a step before the next step.
  struct Candidate {
    uint32_t key, host;
    uint32_t writer;  ///< of the line at `at`
    uint64_t at;      ///< of the entry, then of the header
    bh_index_entry entry;
  };
  bool key_matches(const Found& found, uint64_t slot, std::string_view key) const;
  void match_batch(std::span<const Hash128> hashes, std::vector<Candidate>& found,
                   std::span<uint64_t> further) const;
  void match_mirrored(std::span<const Hash128> hashes, uint64_t hosts,
                      std::vector<Candidate>& found, std::span<uint64_t> further,
                      std::vector<std::pair<uint32_t, uint32_t>>& marked) const;
  void fetch(std::vector<Candidate>& found, uint64_t bytes) const;
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
    c_.access.prefetch_own(c_.own(BH_PART_RECENCY, located.slot));
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
uint64_t Lookup<A>::exists(uint64_t ns, std::span<const std::string_view> keys, uint8_t* present,
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
  // Looked up one by one in the end, at these hosts (a bit each), unless they were found: keys that
  // may lie further on, and those whose tag matched but whose block did not. It may have been moved
  // or recompressed after the first lines were read; a batch takes so long that this would happen
  // often.
  uint64_t unsure[kBatch] = {};
  match_batch({hashes, keys.size()}, found, unsure);
  for (const Candidate& one : found) unsure[one.key] |= uint64_t{1} << one.host;
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
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (present[i] != 0 || unsure[i] == 0 || !Key::valid(keys[i])) continue;
    const Key key(ns, keys[i], hashes[i]);
    for (uint64_t left = unsure[i]; left != 0 && present[i] == 0; left &= left - 1) {
      const auto host = static_cast<uint32_t>(std::countr_zero(left));
      if (const auto located = locate_at(host, key, Fresh::NOTHING)) note(i, *located);
    }
  }
  return count;
}

/// Collects the entries of all hosts whose tag matches. further[i]: the hosts, a bit each, where
/// key i has a bucket with entries further on.
template <class A>
void Lookup<A>::match_batch(std::span<const Hash128> hashes, std::vector<Candidate>& found,
                            std::span<uint64_t> further) const {
  const uint64_t hosts = probed_hosts();
  const uint64_t mirrored = c_.alone() ? 0 : mirror_.catch_up(hosts & ~own_bit());
  const uint64_t direct = hosts & ~mirrored;
  for (uint64_t left = direct & ~own_bit(); left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    for (const Hash128& hash : hashes)
      c_.access.invalidate(index_.first_line(host, hash), BH_LINE_BYTES);
  }
  std::vector<std::pair<uint32_t, uint32_t>> marked;  // key, host
  if (mirrored != 0) match_mirrored(hashes, mirrored, found, further, marked);
  for (const auto& [key, host] : marked)
    c_.access.invalidate(index_.first_line(host, hashes[key]), BH_LINE_BYTES);
  if (!c_.alone()) c_.access.coherence_fence();
  const auto match = [&](uint32_t key, uint32_t host) {
    const Line words = c_.access.load_line(index_.first_line(host, hashes[key]));
    const auto note = [&](uint64_t at) { found.push_back({key, host, host, at, {}}); };
    if (index_.for_each_match(host, hashes[key], words, note)) further[key] |= uint64_t{1} << host;
  };
  constexpr size_t kAhead = 16;  // lines being fetched
  for (uint64_t left = direct; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    for (size_t i = 0; i < hashes.size() + kAhead; ++i) {
      if (i < hashes.size()) c_.access.prefetch(index_.first_line(host, hashes[i]));
      if (i >= kAhead) match(static_cast<uint32_t>(i - kAhead), host);
    }
  }
  for (const auto& [key, host] : marked) match(key, host);
}

template <class A>
void Lookup<A>::match_mirrored(std::span<const Hash128> hashes, uint64_t hosts,
                               std::vector<Candidate>& found, std::span<uint64_t> further,
                               std::vector<std::pair<uint32_t, uint32_t>>& marked) const {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < hashes.size() + kAhead; ++i) {
    if (i < hashes.size()) mirror_.prefetch(index_.primary_bucket(hashes[i]));
    if (i < kAhead) continue;
    const auto key = static_cast<uint32_t>(i - kAhead);
    const uint64_t bucket = index_.primary_bucket(hashes[key]);
    const uint64_t tag = Mirror<A>::tag_of(hashes[key]);
    for (uint64_t left = hosts; left != 0; left &= left - 1) {
      const auto host = static_cast<uint32_t>(std::countr_zero(left));
      const auto tags = mirror_.tags(host, bucket);
      if (tags.marked()) {
        marked.emplace_back(key, host);
        continue;
      }
      if (tags.further()) further[key] |= uint64_t{1} << host;
      tags.for_each_match(tag, [&](uint32_t entry) {
        found.push_back({key, host, host, index_.entry_at(host, bucket, entry), {}});
      });
    }
  }
}

template <class A>
void Lookup<A>::fetch(std::vector<Candidate>& found, uint64_t bytes) const {
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
std::string Lookup<A>::read_key(uint64_t slot, uint64_t key_bytes) const {
  std::string key;
  for (; key.size() < key_bytes && slot < c_.layout.slot_count(); ++slot) {
    const uint64_t at = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    c_.access.acquire(at, BH_LINE_BYTES);
    const Line line = c_.access.load_line(at);
    key.append(reinterpret_cast<const char*>(line.data()),
               std::min<size_t>(sizeof line, key_bytes - key.size()));
  }
  return key;
}

template <class A>
Hash128 Lookup<A>::key_hash(uint64_t slot, const bh_block_header& header) const {
  const std::string key = read_key(slot, header.key_bytes);
  return hash128(key.data(), key.size(), header.namespace_id);
}

}  // namespace bowhead::core
