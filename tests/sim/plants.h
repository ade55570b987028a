// SPDX-License-Identifier: Apache-2.0
// Planted bugs: what the pool's code would do if somebody had left out a step of the protocol. The
// pool's code is not touched: SimAccess omits or lies, for one kind of line. A simulator that does
// not find them proves nothing.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "tests/sim/geometry.h"
#include "tests/sim/plan.h"

namespace bowhead::sim {

/// What a user does, for traces and for plants that concern one operation only.
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
  BEAT,
  WORK,
  DETACH,
  LEAVE,
  PARTS,
  REPLACE
};

enum class Lie : uint8_t {
  NO_FLUSH,              ///< of these lines
  NO_INVALIDATE,         ///< of these lines
  NO_FENCE_AFTER_FLUSH,  ///< if only these lines wait for it
  NO_FENCE_AFTER_INVALIDATE,
  NO_PLAIN_FENCE,       ///< stores may stay in the store buffer
  NO_SETTLE,            ///< settling takes no time
  LOAD_ZERO,            ///< words of these lines are seen as 0
  VIEW_OF_OTHERS_ZERO,  ///< nobody else seems to have ended
  CLAIM_UNSEEN,         ///< other hosts' CLAIM of an extent is seen as nothing
  DONE_TOO_EARLY,       ///< what another host accepted is taken for decided
  ACCEPTED_UNSEEN,      ///< what another host accepted is not taken over
  ALL_ACKED,            ///< every host seems to know who has ended
  ALL_FENCED,           ///< every host that ended seems to have stopped writing
  EXPECTED_STAMP,       ///< a header shows the stamp that the entry named
  SECOND_LOOK,          ///< the words of a sealed line come from after its seal was checked
  SUM_OF_SHARED_BYTES,  ///< a copy's checksum is taken of the block, not of the copy
  READS_DIRTY,          ///< loads of other hosts' lines are stores, as a failing exchange is
  SEQUENCE_IGNORED,     ///< a compare-and-swap of allocator words looks at their state only
  STOPPED_IS_DEAD,      ///< a stopped process is taken for dead
  STAMPS_REPEAT,        ///< four stamps in a row are one
  ALL_SETTLED,          ///< what other hosts stored is taken for settled
  GONE_IS_THERE,        ///< entries and blocks that went after they were seen seem to be there
  ALL_ANSWERED,         ///< what others are asked for they seem to have done
  INVALIDATE_KEEPS,     ///< acquiring uses the instruction that publishing uses
  EXCHANGE_IN_TWO,      ///< a compare-and-swap of these lines is a load and a store
  BEAT_AFTER_DUTIES,    ///< a process does not beat while it does its other duties
  BEAT_NOT_WATCHED,     ///< who joins sees a beat that stands still
  BEAT_NOT_COMPARED     ///< the beat in the memory is the one that this machine stored
};

struct Plant {
  const char* name;
  Lie lie;
  std::optional<Lie> also = std::nullopt;  ///< left out as well: what makes up for the first
  Kind kind = Kind::NOTHING;               ///< of lines; NOTHING: whatever they are
  uint16_t part = 0;                       ///< if REGION
  uint16_t also_part = 0;                  ///< fences: or if also lines of this part wait
  uint64_t least_bytes = 0;                ///< only ranges of so many
  Operation only_in = Operation::NONE;
  Focus focus = Focus::ANYTHING;  ///< of the plans in which it is looked for
  uint64_t first_seed = 0;        ///< of the search, where it would take long from 0
  const char* harmless_because = nullptr;

  bool concerns(Place place) const {
    return place.kind == kind && (kind != Kind::REGION || place.index == part);
  }
};

std::span<const Plant> all_plants();
const Plant* find_plant(std::string_view name);

}  // namespace bowhead::sim
