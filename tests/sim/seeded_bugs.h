// SPDX-License-Identifier: Apache-2.0
// Seeded bugs: the behaviour of the pool's code if a step of the protocol had been left out. The
// pool's code does not change: SimAccess omits or falsifies accesses to one kind of line. A
// simulator that does not find them proves nothing.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "tests/sim/geometry.h"
#include "tests/sim/plan.h"

namespace bowhead::sim {

/// The operation of a user, for traces and for seeded bugs that concern one operation only.
enum class Operation : uint8_t {
  NONE,
  PUT,
  GET,
  REMOVE,
  EXISTS,
  LEASE,
  READ,
  RELEASE,
  RESERVE,
  COMMIT,
  ABORT,
  ATTACH,
  HEARTBEAT,
  WORK,
  DETACH,
  LEAVE,
  PARTS,
  REPLACE,
  MARK,
  MEDIA  ///< a change of the sets
};

enum class Lie : uint8_t {
  NO_FLUSH,              ///< of these lines
  NOT_STORED,            ///< stores and exchanges of these lines seem to succeed
  NO_INVALIDATE,         ///< of these lines
  NO_FENCE_AFTER_FLUSH,  ///< if only these lines depend on it
  NO_FENCE_AFTER_INVALIDATE,
  NO_PLAIN_FENCE,          ///< stores may stay in the store buffer
  NO_SETTLE,               ///< settling takes no time
  LOAD_ZERO,               ///< words of these lines are seen as 0
  VIEW_OF_OTHERS_ZERO,     ///< no other host seems to have ended
  CLAIM_UNSEEN,            ///< other hosts' CLAIM of an extent is not seen
  DONE_TOO_EARLY,          ///< a value accepted by another host counts as decided
  ACCEPTED_UNSEEN,         ///< a value accepted by another host is ignored
  ALL_ACKED,               ///< every host seems to know which lives are over
  ALL_FENCED,              ///< every host that ended seems to have stopped writing
  WORDS_OF_ANY_BLOCK,      ///< the words of a block that change seem to be those of its stamp
  EXPECTED_STAMP,          ///< a header shows the stamp that the entry named
  SECOND_LOOK,             ///< the words of a sealed line are read after its seal was checked
  SUM_OF_SHARED_BYTES,     ///< a copy's checksum is computed from the block, not from the copy
  READS_DIRTY,             ///< loads of other hosts' lines are stores, like a failing exchange
  SEQUENCE_IGNORED,        ///< a compare-and-swap of allocator words compares only their state
  STOPPED_IS_DEAD,         ///< a stopped process counts as dead
  STAMPS_REPEAT,           ///< four consecutive stamps are equal
  ALL_SETTLED,             ///< stores of other hosts count as settled
  GONE_IS_THERE,           ///< entries and blocks that are gone since they were seen seem present
  ALL_ANSWERED,            ///< requests to other hosts seem to be done
  INVALIDATE_KEEPS,        ///< acquiring uses the instruction of publishing
  EXCHANGE_IN_TWO,         ///< a compare-and-swap of these lines is a load and a store
  HEARTBEAT_AFTER_DUTIES,  ///< a process makes no heartbeat during its other duties
  HEARTBEAT_NOT_WATCHED,   ///< a joining host sees no change of the heartbeat
  RUN_NOT_READ_AGAIN,  ///< after a process took a word, the run seems to be the one that led to it
  HEARTBEAT_NOT_COMPARED,  ///< the heartbeat in the memory is the one that this machine stored
  ONLY_FIRST_STORED,       ///< of the words of a part, only the first one is stored
  ONE_LINE_FLUSHED,        ///< of words, only the line of the one that this thread exchanged last
  NOT_ACQUIRED,            ///< these lines: an invalidation whose fence comes later is made
  LAPS_OF_ONE_BIT,         ///< of the laps in other hosts' logs only the lowest bit is known
  MARKS_SETTLE_AT_ONCE,    ///< between two batches of look-ups more than settle_ms seem to pass
  WALK_SETTLES_AT_ONCE,    ///< an index seems to be read settle_ms after its log
  RETIRED_IS_THERE         ///< a retired header is that of the entry read last
};

struct SeededBug {
  const char* name;
  Lie lie;
  std::optional<Lie> also =
      std::nullopt;                    ///< omitted as well: the step that compensates for the first
  Kind kind = Kind::NOTHING;           ///< of lines; NOTHING: of any kind
  uint16_t part = 0;                   ///< if REGION
  uint16_t also_part = 0;              ///< fences: or if lines of this part depend on it as well
  uint64_t least_bytes = 0;            ///< only ranges of at least so many bytes
  uint64_t most_bytes = ~uint64_t{0};  ///< and at most so many
  Operation only_in = Operation::NONE;
  Focus focus = Focus::ANYTHING;  ///< of the plans in which it is searched for
  uint64_t first_seed = 0;        ///< first seed of the search, if it would take long from 0
  const char* harmless_because = nullptr;

  bool concerns(Place place) const {
    return place.kind == kind && (kind != Kind::REGION || place.index == part);
  }
};

std::span<const SeededBug> all_seeded_bugs();
const SeededBug* find_seeded_bug(std::string_view name);

}  // namespace bowhead::sim
