// SPDX-License-Identifier: Apache-2.0
// The tables of namespaces: each host has one, and reads those of all hosts.
//
// The id of a namespace is a hash of its texts and its layout. So two hosts that register it at
// once register the same one, or, with two layouts, two whose blocks never meet. The profile is not
// part of the hash: if two hosts disagree about it, one profile wins for all that open the
// namespace later, and all hosts can read all blocks, since blocks describe themselves.
//
// Owns: nothing in this process; the host's table. Calls: KeyLocks.
#pragma once

#include <fmt/format.h>

#include "pool/core/key_locks.h"

namespace bowhead::core {

inline ValueFormat format_in(const bh_namespace& entry) {
  return {entry.layout, static_cast<CompressionProfile>(entry.profile)};
}

/// The entry for a description, without its writer. INVALID_ARGUMENT.
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
  entry.id = hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES, 1) | 1;
  entry.profile = static_cast<uint8_t>(d.values.profile);
  return entry;
}

/// Compares a registered namespace with the one that `d` describes. Returns its id,
/// NAMESPACE_MISMATCH or LAYOUT_MISMATCH; nothing if it is a different namespace.
inline std::optional<Result<uint64_t>> match(const bh_namespace& there, const bh_namespace& wanted,
                                             const NamespaceDescription& d) {
  const bool same_name = std::memcmp(there.name, wanted.name, BH_NAMESPACE_NAME_BYTES) == 0;
  if (!same_name && there.id != wanted.id) return std::nullopt;
  if (!same_name ||
      std::memcmp(there.description, wanted.description, BH_NAMESPACE_TEXT_BYTES) != 0)
    return Error{Status::NAMESPACE_MISMATCH,
                 fmt::format("namespace '{}' is registered with another description: '{}'", d.name,
                             there.description)};
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
  return Result<uint64_t>(uint64_t{there.id});
}

template <class A>
class Namespaces {
 public:
  explicit Namespaces(const Rooms<A>& rooms) : c_(rooms.context), locks_(rooms.locks) {}
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  Result<uint64_t> open_namespace(const NamespaceDescription& description);
  /// The format of the values of a namespace; empty if no namespace has this id.
  std::optional<ValueFormat> format_of(uint64_t ns) const;
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
    // Of two that were registered at once with one name and two layouts, take the wanted one.
    std::optional<Result<uint64_t>> found;
    for_each_namespace([&](const bh_namespace& there) {
      auto one = match(there, *wanted, d);
      if (one && (!found || *one)) found = std::move(one);
      return !found || !*found;
    });
    return found;
  };
  if (c_.observing())
    return find().value_or(
        Error{Status::NOT_FOUND, "the pool has no namespace of this name and description"});
  const Hash128 lock_hash{0, 0};  // any hash, but always the same
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
std::optional<ValueFormat> Namespaces<A>::format_of(uint64_t ns) const {
  std::optional<ValueFormat> found;
  for_each_namespace([&](const bh_namespace& entry) {
    if (entry.id == ns) found = format_in(entry);
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
                    entry.content_checksum == hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES);
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

/// Writes layout and texts first, then the sealed line with their checksum.
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
