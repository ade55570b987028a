// SPDX-License-Identifier: Apache-2.0
// Model: the truth about a run, by which it is judged. Which bytes were ever put under which key,
// what replaced them, what was removed, who holds which block, and who reads where in place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/sim/plan.h"

namespace bowhead::sim {

class World;
struct Process;

class Model {
 public:
  static constexpr uint64_t kNamespace = 77;

  void reset(const Plan& plan);

  /// A process maps a set of media. True if it is the first one that does.
  bool note_set(uint64_t id) { return sets_.insert(id).second; }

  /// Some keys are so long that they need a larger block.
  const std::string& key(uint32_t index) const { return keys_[index].name; }
  /// A separate version for every put: no two puts have the same bytes.
  uint32_t new_version(uint32_t key, uint32_t host);
  /// As new_version(), to be written in place: never coded.
  uint32_t new_reserved(uint32_t key, uint32_t host);
  /// Different bytes that stand for the same value as another version: one lineage.
  uint32_t new_replacement(uint32_t key, uint32_t host, uint32_t of);
  /// The put is done, in `life` of its host.
  void accept(uint32_t key, uint32_t version, uint32_t life) {
    keys_[key].puts[version].accepted = true;
    keys_[key].puts[version].life = life;
  }
  void refuse(uint32_t key, uint32_t version) { keys_[key].puts[version].refused = true; }

  // ---- what must not be lost ----
  /// From a put that stored a block, and reported it while its life stood, until a removal of the
  /// key begins. A removal that does not end normally may take the key away at any time.
  bool must_be_found(uint32_t key) const { return keys_[key].kept && !keys_[key].uncertain; }
  /// For keep(), before a put begins: the number of removals so far; none if one is in progress.
  std::optional<uint64_t> removals(uint32_t key) const {
    const Key& of = keys_[key];
    return of.removals_begun == of.removals_ended ? std::optional(of.removals_begun) : std::nullopt;
  }
  void keep(uint32_t key, std::optional<uint64_t> removals_before, uint64_t now_ns) {
    if (!removals_before || removals_before != removals(key)) return;
    if (!keys_[key].kept) keys_[key].kept_ns = now_ns;
    keys_[key].kept = true;
  }
  /// It has to be found since then. Only if must_be_found().
  uint64_t kept_ns(uint32_t key) const { return keys_[key].kept_ns; }
  /// An entry of the key is stored or cleared: look-ups may pass over it until that has settled.
  void note_entry(uint32_t key, uint64_t now_ns) { keys_[key].entry_ns = now_ns; }
  uint64_t entry_ns(uint32_t key) const { return keys_[key].entry_ns; }
  void begin_removal(uint32_t key) {
    keys_[key].kept = false;
    ++keys_[key].removals_begun;
  }
  void end_removal(uint32_t key) { ++keys_[key].removals_ended; }
  /// A block of it has no checksum: no successor adopts it.
  void make_uncertain(uint32_t key) { keys_[key].uncertain = true; }

  /// The stored form of a version.
  struct Stored {
    std::vector<std::byte> bytes;
    uint64_t length = 0;  ///< of the value; equal to the stored bytes if it is not coded
    uint8_t codec = BH_CODEC_RAW;
    std::string user_metadata;  ///< of the lineage
  };
  Stored stored(uint32_t key, uint32_t version) const;
  /// The value for a reservation.
  std::vector<std::byte> value(uint32_t key, uint32_t version) const {
    return stored(key, version).bytes;
  }

  /// The bytes that a process read.
  struct Piece {
    uint64_t offset;
    std::vector<std::byte> bytes;
  };
  struct Seen {
    std::vector<Piece> pieces;  ///< the first piece begins at 0
    uint64_t stored_bytes = 0;  ///< of the whole block
    uint64_t length = 0;
    uint8_t codec = BH_CODEC_RAW;
    uint64_t begun_ns = 0;  ///< when the key was looked for; 0: not to be judged

    static Seen whole(std::vector<std::byte> bytes, uint64_t length, uint8_t codec,
                      uint64_t begun_ns) {
      const uint64_t size = bytes.size();
      return {{{0, std::move(bytes)}}, size, length, codec, begun_ns};
    }
  };
  /// The fault of bytes that were read under a key: none if they all belong to one version of it
  /// that did not fail and had not been removed before. `version`: that version.
  std::string judge(uint32_t key, const Seen& seen, uint32_t* version) const;
  /// No reader that began then may find the key.
  bool gone(uint32_t key, uint64_t begun_ns) const;
  uint32_t host_of(uint32_t key, uint32_t version) const { return keys_[key].puts[version].host; }
  /// The key of this hash, if users work on it.
  std::optional<uint32_t> key_of(uint64_t hash_low, uint64_t hash_high) const;

  // ---- lineages ----
  /// The content of a key now, unless it was evicted: a removal requested from its host removes it.
  struct Lineage {
    uint32_t version;
    uint32_t host, life;
  };
  std::vector<Lineage> lineages_of(uint32_t key) const;
  /// A reader that looks for the key from now on does not find this one.
  void note_removed(uint32_t key, uint32_t lineage, uint64_t now_ns) {
    keys_[key].puts[lineage].removed_ns = now_ns;
  }
  /// Key and lineage of the bytes with this checksum, as one number.
  std::optional<uint64_t> lineage_of_sum(uint64_t checksum) const {
    const auto found = lineage_by_sum_.find(checksum);
    return found == lineage_by_sum_.end() ? std::nullopt : std::optional(found->second);
  }

  // ---- blocks ----
  /// A process writes to a block, or has reserved it: no other may have it, or read it in place.
  void hold(World& world, Process& process, uint64_t offset, uint64_t bytes);
  void end_hold(Process& process, uint64_t offset);
  void add_lease(World& world, Process& process, uint64_t token, uint64_t offset, uint64_t ttl_ns);
  void end_lease(Process& process, uint64_t token);

 private:
  std::set<uint64_t> sets_;  ///< that were mapped, by their ids
  struct Put {
    uint32_t host;
    bool refused;   ///< it failed: its bytes must never be returned
    bool accepted;  ///< it reported success
    bool replaces, in_place;
    uint32_t lineage;     ///< the version that was put
    uint32_t life;        ///< if accepted: of the host
    uint64_t removed_ns;  ///< of a lineage; 0: not removed
  };
  struct Key {
    std::string name;
    uint64_t hash_low, hash_high;
    std::vector<Put> puts;
    bool kept = false, uncertain = false;
    uint64_t kept_ns = 0, entry_ns = 0;
    uint64_t removals_begun = 0, removals_ended = 0;
  };
  struct Holder {
    Process* process;
    uint32_t life;
    uint64_t offset;
  };
  struct LeaseHolder {
    Holder holder;
    uint64_t token, until_ns;
  };

  static bool holds(const Holder& holder);
  uint32_t add(uint32_t key, Put put);

  uint64_t seed_ = 0;
  uint64_t larger_share_ = 1;
  uint32_t larger_from_ = UINT32_MAX;
  uint64_t late_ns_ = 0;  ///< published lines may take this time to reach the memory
  std::vector<Key> keys_;
  std::vector<Holder> holders_;
  std::vector<LeaseHolder> leases_;
  std::unordered_map<uint64_t, uint64_t> lineage_by_sum_;
};

}  // namespace bowhead::sim
