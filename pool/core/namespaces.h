// SPDX-License-Identifier: Apache-2.0
// The table of namespaces: each host has one, and all are read.
//
// The id of a namespace is a hash of its texts, so that two hosts which register it at once
// register the same. How it is compressed is no part of that: if they disagree there, one of the
// two wins for whoever opens it later, and all read everything, since blocks describe themselves.
//
// Owns: nothing in this process; the host's table. Calls: KeyLocks.
#pragma once

#include <fmt/format.h>

#include "pool/core/key_locks.h"

namespace bowhead::core {

inline Compression compression_in(const bh_namespace& entry) {
  return {static_cast<CompressionProfile>(entry.profile),
          static_cast<compression::NumberKind>(entry.number),
          entry.channels,
          entry.outer,
          {entry.rotary_dim, entry.rotary_ratio}};
}

/// The entry of a description, but for who writes it. INVALID_ARGUMENT.
inline Result<bh_namespace> entry_of(const NamespaceDescription& d) {
  if (d.name.empty() || d.name.size() >= BH_NAMESPACE_NAME_BYTES ||
      d.name.find('\0') != std::string::npos || d.description.find('\0') != std::string::npos ||
      d.description.size() >= BH_NAMESPACE_TEXT_BYTES)
    return Error{Status::INVALID_ARGUMENT,
                 "a namespace has a name of 1 to 63 bytes and a description of up to 383"};
  bh_namespace entry{};
  std::memcpy(entry.name, d.name.data(), d.name.size());
  std::memcpy(entry.description, d.description.data(), d.description.size());
  constexpr size_t kTextBytes = BH_NAMESPACE_NAME_BYTES + BH_NAMESPACE_TEXT_BYTES;
  entry.content_checksum = hash64(entry.name, kTextBytes);
  entry.id = hash64(entry.name, kTextBytes, 1) | 1;
  if (d.compression.profile == CompressionProfile::NONE) return entry;
  entry.profile = static_cast<uint8_t>(d.compression.profile);
  entry.number = static_cast<uint8_t>(d.compression.number);
  entry.channels = static_cast<uint16_t>(d.compression.channels);
  entry.outer = d.compression.outer;
  entry.rotary_dim = d.compression.rotary.dim;
  entry.rotary_ratio = d.compression.rotary.ratio;
  return entry;
}

/// Whether a namespace that is there is the one that `d` wants: its id; NAMESPACE_MISMATCH; nothing
/// if it is another one.
inline std::optional<Result<uint64_t>> match(const bh_namespace& there, const bh_namespace& wanted,
                                             const NamespaceDescription& d) {
  const bool same_name = std::memcmp(there.name, wanted.name, BH_NAMESPACE_NAME_BYTES) == 0;
  if (!same_name && there.id != wanted.id) return std::nullopt;
  if (!same_name ||
      std::memcmp(there.description, wanted.description, BH_NAMESPACE_TEXT_BYTES) != 0)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' is registered with another description: '{}'", d.name,
                             there.description)};
  if (d.compression.profile != CompressionProfile::NONE && compression_in(there) != d.compression)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' has compression '{}', not '{}'; open it without "
                             "compression to take what it has, or give it another name",
                             d.name, to_text(compression_in(there)), to_text(d.compression))};
  return Result<uint64_t>(uint64_t{wanted.id});
}

template <class A>
class Namespaces {
 public:
  explicit Namespaces(const Rooms<A>& rooms) : c_(rooms.context), locks_(rooms.locks) {}
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  Result<uint64_t> open_namespace(const NamespaceDescription& description);
  /// How a namespace is compressed, if there is one of this id.
  std::optional<Compression> compression_of(uint64_t ns) const;
  std::optional<bh_namespace> read_namespace(uint32_t host, uint64_t index) const;
  bool namespace_damaged(uint32_t host, uint64_t index) const;

 private:
  template <class Visit>
  void for_each_namespace(Visit visit) const;
  void write_namespace(uint64_t index, const bh_namespace& entry);

  Context<A>& c_;
  KeyLocks<A>& locks_;
};

template <class A>
Result<uint64_t> Namespaces<A>::open_namespace(const NamespaceDescription& d) {
  auto wanted = entry_of(d);
  if (!wanted) return wanted.error();
  wanted->incarnation = c_.incarnation;
  const auto find = [&] {
    std::optional<Result<uint64_t>> found;
    for_each_namespace([&](const bh_namespace& there) {
      found = match(there, *wanted, d);
      return !found.has_value();
    });
    return found;
  };
  if (c_.observing())
    return find().value_or(
        Error{Status::NOT_FOUND, "the pool has no namespace of this name and description"});
  const Hash128 lock_hash{0, 0};  // any lock will do, so long as it is always the same
  const KeyLock lock(locks_, lock_hash);
  if (!lock.held()) return Status::BUSY;
  if (auto found = find()) return *found;
  if (c_.ended()) return c_.gone();
  for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
    if (read_namespace(c_.host, i)) continue;
    write_namespace(i, *wanted);
    return uint64_t{wanted->id};
  }
  return Error{Status::LIMIT_REACHED, "this host has registered " +
                                          std::to_string(c_.layout.geometry().namespace_count) +
                                          " namespaces, as many as a host can: use one of them, or "
                                          "register it as another host"};
}

template <class A>
std::optional<Compression> Namespaces<A>::compression_of(uint64_t ns) const {
  std::optional<Compression> found;
  for_each_namespace([&](const bh_namespace& entry) {
    if (entry.id == ns) found = compression_in(entry);
    return entry.id != ns;
  });
  return found;
}

template <class A>
std::optional<bh_namespace> Namespaces<A>::read_namespace(uint32_t host, uint64_t index) const {
  const uint64_t at = c_.layout.name_space(host, index);
  c_.access.acquire(at, sizeof(bh_namespace));
  std::array<Line, sizeof(bh_namespace) / sizeof(Line)> lines;
  for (size_t i = 0; i < lines.size(); ++i) lines[i] = c_.access.load_line(at + i * sizeof(Line));
  const auto entry = std::bit_cast<bh_namespace>(lines);
  const bool good = c_.sealer.check(lines[0], at) && entry.id != 0 &&
                    entry.name[BH_NAMESPACE_NAME_BYTES - 1] == 0 &&
                    entry.description[BH_NAMESPACE_TEXT_BYTES - 1] == 0 &&
                    entry.content_checksum ==
                        hash64(entry.name, BH_NAMESPACE_NAME_BYTES + BH_NAMESPACE_TEXT_BYTES);
  if (!good) return std::nullopt;
  return entry;
}

/// Calls visit(entry) for each namespace of each host, until it returns false.
template <class A>
template <class Visit>
void Namespaces<A>::for_each_namespace(Visit visit) const {
  for (uint32_t host = 0; host < c_.layout.geometry().host_count; ++host) {
    for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
      const auto entry = read_namespace(host, i);
      if (entry && !visit(*entry)) return;
    }
  }
}

/// The text first, then the sealed line that vouches for it.
template <class A>
void Namespaces<A>::write_namespace(uint64_t index, const bh_namespace& entry) {
  const uint64_t at = c_.layout.name_space(c_.host, index);
  const auto lines = std::bit_cast<std::array<Line, sizeof(bh_namespace) / sizeof(Line)>>(entry);
  for (size_t i = 1; i < lines.size(); ++i) c_.access.store_line(at + i * sizeof(Line), lines[i]);
  c_.access.publish(at, sizeof(bh_namespace));
  c_.write_sealed(at, lines[0]);
}

template <class A>
bool Namespaces<A>::namespace_damaged(uint32_t host, uint64_t index) const {
  return !read_namespace(host, index) &&
         c_.access.load_line(c_.layout.name_space(host, index)) != Line{};
}

}  // namespace bowhead::core
