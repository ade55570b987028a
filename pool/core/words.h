// SPDX-License-Identifier: Apache-2.0
// The words and sealed lines of the format, packed and unpacked. No shared memory is touched here.
#pragma once

#include <bowhead/format/block.h>
#include <bowhead/format/host.h>
#include <bowhead/format/index.h>
#include <bowhead/format/superblock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "pool/types.h"

namespace bowhead::core {

static_assert(std::endian::native == std::endian::little, "the stored format is little-endian");

/// One line of shared memory, copied to private memory.
using Line = std::array<uint64_t, 8>;

/// state:4 | process slot:12 | sequence:48 (allocator, extent and lease words).
struct StateWord {
  uint32_t state = 0;
  uint32_t process = 0;
  uint64_t sequence = 0;

  static StateWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> BH_WORD_STATE_SHIFT),
            static_cast<uint32_t>(word >> BH_WORD_PROCESS_SHIFT) & 0xFFFu, word & kSequenceMask};
  }
  uint64_t pack() const {
    return uint64_t{state} << BH_WORD_STATE_SHIFT | uint64_t{process} << BH_WORD_PROCESS_SHIFT |
           (sequence & kSequenceMask);
  }
  /// The word after a change of state: the sequence goes up, so that no late CAS can succeed.
  StateWord next(uint32_t new_state, uint32_t new_process = 0) const {
    return {new_state, new_process, (sequence + 1) & kSequenceMask};
  }

  static constexpr uint64_t kSequenceMask = (uint64_t{1} << BH_WORD_PROCESS_SHIFT) - 1;
};

/// What the software of a host knows (bh_host_heartbeat.known).
struct KnownWord {
  uint32_t version = 0;  ///< 0: not stated
  uint64_t features = 0;

  static KnownWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> BH_KNOWN_VERSION_SHIFT), word & kFeaturesMask};
  }
  uint64_t pack() const { return uint64_t{version} << BH_KNOWN_VERSION_SHIFT | features; }
  /// What both know.
  KnownWord common(const KnownWord& other) const {
    return {std::min(version, other.version), features & other.features};
  }

  static constexpr uint64_t kFeaturesMask = (uint64_t{1} << BH_KNOWN_VERSION_SHIFT) - 1;
};
/// What this version of Bowhead knows.
inline constexpr KnownWord kKnown = {
    BH_FORMAT_VERSION, BH_FEATURES_COMPAT | BH_FEATURES_INCOMPAT | BH_FEATURES_RO_COMPAT};

/// Where the words of an extent's blocks are (host.h).
struct RunWord {
  uint32_t state = BH_RUN_NONE;
  uint32_t shift = 0;
  uint64_t first = 0;

  static RunWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> BH_RUN_STATE_SHIFT),
            static_cast<uint32_t>(word >> BH_RUN_SHIFT_SHIFT) & 0xFFu, word & kFirstMask};
  }
  uint64_t pack() const {
    return uint64_t{state} << BH_RUN_STATE_SHIFT | uint64_t{shift} << BH_RUN_SHIFT_SHIFT |
           (first & kFirstMask);
  }

  static constexpr uint64_t kFirstMask = (uint64_t{1} << BH_RUN_SHIFT_SHIFT) - 1;
};

/// state:8 | scavenger's process slot + 1:16 | sequence:40 (process words).
struct ProcessWord {
  uint32_t state = 0;
  uint32_t scavenger = 0;  ///< slot + 1
  uint64_t sequence = 0;

  static ProcessWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> 56), static_cast<uint32_t>(word >> 40) & 0xFFFFu,
            word & kSequenceMask};
  }
  uint64_t pack() const {
    return uint64_t{state} << 56 | uint64_t{scavenger} << 40 | (sequence & kSequenceMask);
  }
  ProcessWord next(uint32_t new_state, uint32_t new_scavenger = 0) const {
    return {new_state, new_scavenger, (sequence + 1) & kSequenceMask};
  }

  static constexpr uint64_t kSequenceMask = (uint64_t{1} << 40) - 1;
};

/// Some processes of this host, by the numbers of their slots.
class Processes {
 public:
  explicit Processes(uint32_t process_count) : in_(process_count) {}
  Processes(uint32_t process_count, uint32_t one) : in_(process_count) { add(one); }
  void add(uint32_t process) { in_[process] = true; }
  void remove(uint32_t process) { in_[process] = false; }
  /// False for a number that no process has.
  bool has(uint64_t process) const { return process < in_.size() && in_[process]; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (uint32_t p = 0; p < in_.size(); ++p) {
      if (in_[p]) visit(p);
    }
  }

 private:
  std::vector<bool> in_;
};

/// Stamp: slot:6 | incarnation:16 | sequence:40 | state:2. Never used twice in the life of a pool.
inline constexpr uint64_t kStampSequenceMax = (uint64_t{1} << BH_STAMP_SEQUENCE_BITS) - 1;

inline uint64_t make_stamp(uint32_t host, uint32_t incarnation, uint64_t sequence) {
  BOWHEAD_ASSERT(host < BH_HOSTS_MAX && sequence <= kStampSequenceMax);
  return uint64_t{host} << 58 | uint64_t{incarnation & 0xFFFFu} << 42 | sequence << 2;
}
inline uint32_t stamp_state(uint64_t stamp) { return stamp & 3u; }
inline uint32_t stamp_host(uint64_t stamp) { return static_cast<uint32_t>(stamp >> 58); }
inline uint32_t stamp_incarnation(uint64_t stamp) {
  return static_cast<uint32_t>(stamp >> 42) & 0xFFFFu;
}
inline uint64_t stamp_sequence(uint64_t stamp) { return stamp >> 2 & kStampSequenceMax; }
inline uint64_t stamp_retired(uint64_t stamp) { return (stamp & ~uint64_t{3}) | BH_STAMP_RETIRED; }

/// Touch: slot + 1:40 | a time, so that each use gives a new word:24.
inline uint64_t make_touch(uint64_t slot, uint64_t time_ns) {
  return (slot + 1) << 24 | (time_ns >> 20 & 0xFFFFFFu);
}
inline uint64_t touch_slot(uint64_t word) { return (word >> 24) - 1; }

/// Hazard: lease sequence:28 | block offset / 4096:36; 0 is "none".
inline uint64_t make_hazard(uint64_t sequence, uint64_t block_offset) {
  return sequence << BH_HAZARD_PAGE_BITS | block_offset / BH_PAYLOAD_ALIGN;
}
inline uint64_t hazard_block(uint64_t hazard) {
  return (hazard & ((uint64_t{1} << BH_HAZARD_PAGE_BITS) - 1)) * BH_PAYLOAD_ALIGN;
}

/// Ownership word of an extent (host.h).
struct OwnWord {
  uint32_t state = BH_OWN_NONE;
  uint64_t epoch = 0;
  uint32_t slot = 0;
  uint32_t incarnation = 0;
  uint32_t custody = BH_CUSTODY_FULL;

  static OwnWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> BH_OWN_STATE_SHIFT),
            word >> BH_OWN_EPOCH_SHIFT & kEpochMask,
            static_cast<uint32_t>(word >> BH_OWN_SLOT_SHIFT) & 0xFFu,
            static_cast<uint32_t>(word >> BH_OWN_INCARNATION_SHIFT) & 0xFFFFu,
            static_cast<uint32_t>(word) & 0xFFu};
  }
  uint64_t pack() const {
    return uint64_t{state} << BH_OWN_STATE_SHIFT | (epoch & kEpochMask) << BH_OWN_EPOCH_SHIFT |
           uint64_t{slot} << BH_OWN_SLOT_SHIFT |
           uint64_t{incarnation & 0xFFFFu} << BH_OWN_INCARNATION_SHIFT | (custody & 0xFFu);
  }

  static constexpr uint64_t kEpochMask = (uint64_t{1} << 28) - 1;
};
inline uint64_t make_own(uint32_t state, uint64_t epoch) {
  return OwnWord{.state = state, .epoch = epoch}.pack();
}
inline uint32_t own_state(uint64_t word) { return OwnWord::unpack(word).state; }

/// Decision word (host.h).
struct DecideWord {
  uint32_t inst = 0;
  uint32_t mbal = 0;
  uint32_t bal = 0;
  uint32_t val = 0;
  bool done = false;

  static DecideWord unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> BH_DECIDE_INST_SHIFT) & 0xFFFFu,
            static_cast<uint32_t>(word >> BH_DECIDE_MBAL_SHIFT) & 0x7FFFu,
            static_cast<uint32_t>(word >> BH_DECIDE_BAL_SHIFT) & 0x7FFFu,
            static_cast<uint32_t>(word >> BH_DECIDE_VAL_SHIFT) & 0xFFFFu, (word & 1) != 0};
  }
  uint64_t pack() const {
    return uint64_t{inst} << BH_DECIDE_INST_SHIFT | uint64_t{mbal} << BH_DECIDE_MBAL_SHIFT |
           uint64_t{bal} << BH_DECIDE_BAL_SHIFT | uint64_t{val} << BH_DECIDE_VAL_SHIFT |
           uint64_t{done};
  }
};

/// The words of a block that change, without their stamp (block.h).
inline bh_block_words words_of(const BlockAttributes& a) {
  const uint64_t pins = uint64_t{a.soft_pin} * BH_PIN_SOFT | uint64_t{a.hard_pin} * BH_PIN_HARD;
  return {.stamp = 0,
          .pins = uint64_t{a.priority} << BH_PRIORITY_SHIFT | pins << BH_PIN_SHIFT |
                  uint64_t{a.forks} << BH_FORKS_SHIFT | a.parity_group,
          .times = uint64_t{a.expires_unix_s} << BH_EXPIRES_SHIFT | a.next_use_unix_s,
          .group = a.group};
}
inline BlockAttributes attributes_in(const bh_block_words& words) {
  return {.priority = static_cast<uint8_t>(words.pins >> BH_PRIORITY_SHIFT),
          .soft_pin = (words.pins >> BH_PIN_SHIFT & BH_PIN_SOFT) != 0,
          .hard_pin = (words.pins >> BH_PIN_SHIFT & BH_PIN_HARD) != 0,
          .forks = static_cast<uint16_t>(words.pins >> BH_FORKS_SHIFT),
          .parity_group = static_cast<uint32_t>(words.pins),
          .expires_unix_s = static_cast<uint32_t>(words.times >> BH_EXPIRES_SHIFT),
          .next_use_unix_s = static_cast<uint32_t>(words.times),
          .group = words.group};
}

/// View word (private): which lives of a host are over, and since when this host knows.
/// time in ms:44 | conflict:1 | highest ended incarnation, plus 1:19.
struct ViewWord {
  uint64_t ended = 0;     ///< highest ended incarnation plus 1; 0: none
  bool conflict = false;  ///< of the own slot: ended because another machine runs as this host
  uint64_t since_ms = 0;

  static ViewWord unpack(uint64_t word) {
    return {word & 0x7FFFFu, (word >> 19 & 1) != 0, word >> 20};
  }
  uint64_t pack() const { return since_ms << 20 | uint64_t{conflict} << 19 | ended; }
};

/// A life of a host slot.
struct Life {
  uint32_t host = 0;
  uint32_t incarnation = 0;
  auto operator<=>(const Life&) const = default;

  /// The life as the value of a decision.
  uint32_t value() const { return host << 10 | (incarnation & 1023u); }
};

/// The hash of the key in an entry, a header or a mail.
template <class Stored>
Hash128 hash_of(const Stored& stored) {
  return {stored.key_hash[0], stored.key_hash[1]};
}

/// Directory words of the index.
inline uint64_t directory_tag(const Hash128& hash) {
  const uint64_t tag = hash.high & 0xFFFFFFFFu;
  return tag == 0 ? 1 : tag;
}
inline uint64_t directory_tag_of(uint64_t word) { return word & 0xFFFFFFFFu; }
inline uint32_t directory_claimant(uint64_t word) { return (word >> 32) & 0xFFFFu; }
inline uint64_t directory_word(uint64_t tag, uint32_t claimant) {
  return tag | uint64_t{claimant} << 32;
}

/// Seals: XXH3-64 over the line's first seven words, seeded with its offset and the pool's id (the
/// writer's incarnation stands in the words). A line of zeros never has a right seal.
class Sealer {
 public:
  explicit Sealer(const uint64_t pool_id[2]) : seed_(hash64(pool_id, 16)) {}

  uint64_t seal_of(const Line& line, uint64_t offset) const {
    return hash64(line.data(), 56, seed_ ^ offset);
  }
  void seal(Line& line, uint64_t offset) const { line[7] = seal_of(line, offset); }
  bool check(const Line& line, uint64_t offset) const { return line[7] == seal_of(line, offset); }
  /// The check of the user metadata of the block that has this stamp.
  uint64_t user_check(std::string_view user, uint64_t stamp) const {
    return hash64(user.data(), user.size(), seed_ ^ stamp);
  }

 private:
  uint64_t seed_;
};

/// Convert a format struct of one line to a Line, and back.
template <class T>
Line to_line(const T& value) {
  static_assert(sizeof(T) == sizeof(Line));
  return std::bit_cast<Line>(value);
}
template <class T>
T from_line(const Line& line) {
  static_assert(sizeof(T) == sizeof(Line));
  return std::bit_cast<T>(line);
}

}  // namespace bowhead::core
