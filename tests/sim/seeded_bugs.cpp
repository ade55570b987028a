// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/seeded_bugs.h"

namespace bowhead::sim {
namespace {

constexpr SeededBug of_part(const char* name, Lie lie, uint16_t part, Focus focus = Focus::ANYTHING,
                            const char* harmless_because = nullptr) {
  return {.name = name,
          .lie = lie,
          .kind = Kind::REGION,
          .part = part,
          .focus = focus,
          .harmless_because = harmless_because};
}
constexpr SeededBug of_lines(const char* name, Lie lie, Kind kind, Focus focus = Focus::ANYTHING,
                             const char* harmless_because = nullptr) {
  return {
      .name = name, .lie = lie, .kind = kind, .focus = focus, .harmless_because = harmless_because};
}

constexpr SeededBug kSeededBugs[] = {
    // Publishing omitted.
    of_part("hazard-not-published", Lie::NO_FLUSH, BH_PART_HAZARDS, Focus::LEASES),
    of_part("index-not-published", Lie::NO_FLUSH, BH_PART_INDEX),
    of_part("log-not-published", Lie::NO_FLUSH, BH_PART_LOG, Focus::KEEP),
    of_part("decision-not-published", Lie::NO_FLUSH, BH_PART_DECIDE),
    of_part("owner-not-published", Lie::NO_FLUSH, BH_PART_OWN),
    of_part("ack-not-published", Lie::NO_FLUSH, BH_PART_ACK),
    of_part("heartbeat-not-published", Lie::NO_FLUSH, BH_PART_HEARTBEAT, Focus::LEASES),
    of_part(
        "slot-not-published", Lie::NO_FLUSH, BH_PART_SLOT, Focus::LEASES,
        "to join and at each heartbeat a host reads its slot line back from the memory; dropping "
        "the cached copy for that writes it back, before decisions are read. Only a leave goes "
        "unnoticed, as if the host had died"),
    of_part("mail-not-published", Lie::NO_FLUSH, BH_PART_MAIL),
    of_lines("header-not-published", Lie::NO_FLUSH, Kind::HEADER),
    of_lines("key-not-published", Lie::NO_FLUSH, Kind::KEY),
    of_lines("payload-not-published", Lie::NO_FLUSH, Kind::PAYLOAD, Focus::LEASES),
    of_lines("cut-not-published", Lie::NO_FLUSH, Kind::DESCRIPTOR, Focus::KEEP),
    {.name = "given-tables-not-flushed",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::DESCRIPTOR,
     .least_bytes = 2 * BH_LINE_BYTES,
     .focus = Focus::GRANTS},
    {.name = "given-payload-not-flushed",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::PAYLOAD,
     .least_bytes = kExtentBytes,
     .focus = Focus::GRANTS},
    {.name = "slot-neither-published-nor-acquired",
     .lie = Lie::NO_FLUSH,
     .also = Lie::NO_INVALIDATE,
     .kind = Kind::REGION,
     .part = BH_PART_SLOT,
     .focus = Focus::LEASES},
    // Acquiring omitted.
    of_part("hazard-not-acquired", Lie::NO_INVALIDATE, BH_PART_HAZARDS, Focus::LEASES),
    of_part("index-not-acquired", Lie::NO_INVALIDATE, BH_PART_INDEX),
    of_part("log-not-acquired", Lie::NO_INVALIDATE, BH_PART_LOG, Focus::KEEP),
    of_part("decision-not-acquired", Lie::NO_INVALIDATE, BH_PART_DECIDE),
    of_part("owner-not-acquired", Lie::NO_INVALIDATE, BH_PART_OWN),
    of_part("ack-not-acquired", Lie::NO_INVALIDATE, BH_PART_ACK),
    of_part("heartbeat-not-acquired", Lie::NO_INVALIDATE, BH_PART_HEARTBEAT),
    of_part("slot-not-acquired", Lie::NO_INVALIDATE, BH_PART_SLOT, Focus::LEASES),
    of_part("mail-not-acquired", Lie::NO_INVALIDATE, BH_PART_MAIL),
    of_lines("header-not-acquired", Lie::NO_INVALIDATE, Kind::HEADER, Focus::LEASES),
    of_lines("key-not-acquired", Lie::NO_INVALIDATE, Kind::KEY, Focus::LONG_KEYS),
    of_lines("payload-not-acquired", Lie::NO_INVALIDATE, Kind::PAYLOAD, Focus::SLOW),
    {.name = "acquired-by-write-back", .lie = Lie::INVALIDATE_KEEPS},
    of_lines("cut-not-acquired", Lie::NO_INVALIDATE, Kind::DESCRIPTOR, Focus::KEEP),
    {.name = "taken-tables-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::DESCRIPTOR,
     .least_bytes = 2 * BH_LINE_BYTES,
     .focus = Focus::GRANTS,
     .harmless_because =
         "a host that takes an extent reads only those of these lines that it wrote whole "
         "or acquires separately, and a clean line is never written back"},
    {.name = "taken-payload-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::PAYLOAD,
     .least_bytes = kExtentBytes,
     .focus = Focus::GRANTS,
     .harmless_because = "a host that takes an extent reads only what it wrote there; stale bytes "
                         "in the last line of a value lie after its end"},
    // Fences omitted.
    {.name = "no-fence-after-hazard",
     .lie = Lie::NO_FENCE_AFTER_FLUSH,
     .kind = Kind::REGION,
     .part = BH_PART_HAZARDS,
     .also_part = BH_PART_HEARTBEAT,  // the limit of the hazards, flushed with them
     .focus = Focus::PAIRS},
    of_part("no-fence-before-hazards-are-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_HAZARDS,
            Focus::LEASES),
    {.name = "no-fence-after-header",
     .lie = Lie::NO_FENCE_AFTER_FLUSH,
     .kind = Kind::HEADER,
     .focus = Focus::RETIRES,
     .first_seed = 7424},
    {.name = "no-fence-before-header-is-read",
     .lie = Lie::NO_FENCE_AFTER_INVALIDATE,
     .kind = Kind::HEADER,
     .focus = Focus::LEASES,
     .first_seed = 1200},
    of_part("no-fence-after-decision", Lie::NO_FENCE_AFTER_FLUSH, BH_PART_DECIDE, Focus::DECISIONS),
    of_part("no-fence-before-decision-is-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_DECIDE,
            Focus::DECISIONS,
            "each read follows a publish of the own word, whose fence completes the invalidation "
            "of the read before: the values are no older than that publish. Where a fence does not "
            "wait for the memory, the caches of both deciders would have to fetch the other's line "
            "early within one settle (decision-not-acquired is found)"),
    of_part("no-fence-after-owner", Lie::NO_FENCE_AFTER_FLUSH, BH_PART_OWN, Focus::GRANTS,
            "the later read of decisions reads slot lines first, and the fence of that read "
            "waits for the word too (owner-not-published is found)"),
    of_part("no-fence-before-owner-is-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_OWN,
            Focus::GRANTS),
    {.name = "no-fence-between-store-and-load", .lie = Lie::NO_PLAIN_FENCE, .focus = Focus::ALONE},
    // Checks omitted.
    of_part("reuse-without-hazards", Lie::LOAD_ZERO, BH_PART_HAZARDS, Focus::LEASES),
    {.name = "lease-without-view",
     .lie = Lie::VIEW_OF_OTHERS_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_VIEW,
     .only_in = Operation::LEASE,
     .focus = Focus::ZOMBIES},
    {.name = "release-without-decisions",
     .lie = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_DECIDE,
     .only_in = Operation::RELEASE,
     .focus = Focus::ZOMBIES,
     .harmless_because = "no block is written again under the same stamp and no published header "
                         "is stored a second time, so the stamp shows each reuse "
                         "(release-trusts-entry-without-decisions is found)"},
    of_part("zombie-does-not-look", Lie::LOAD_ZERO, BH_PART_VIEW, Focus::ZOMBIES),
    {.name = "claim-unseen", .lie = Lie::CLAIM_UNSEEN, .focus = Focus::GRANTS},
    {.name = "lease-trusts-entry",
     .lie = Lie::EXPECTED_STAMP,
     .only_in = Operation::LEASE,
     .focus = Focus::LEASES},
    {.name = "release-trusts-entry",
     .lie = Lie::EXPECTED_STAMP,
     .only_in = Operation::RELEASE,
     .focus = Focus::LEASES,
     .harmless_because = "the block stays until the hazard goes; a revoked lease reports that, "
                         "and a host that was declared dead sees that in the decisions"},
    {.name = "release-trusts-entry-without-decisions",
     .lie = Lie::EXPECTED_STAMP,
     .also = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_DECIDE,
     .only_in = Operation::RELEASE,
     .focus = Focus::LAPSED,
     .first_seed = 22200},
    // Deciding wrongly.
    {.name = "done-too-early", .lie = Lie::DONE_TOO_EARLY, .focus = Focus::DECISIONS},
    {.name = "accepted-value-ignored",
     .lie = Lie::ACCEPTED_UNSEEN,
     .focus = Focus::DECISIONS,
     .first_seed = 10464},
    {.name = "adopts-without-acks", .lie = Lie::ALL_ACKED, .focus = Focus::ZOMBIES},
    {.name = "full-custody-without-evidence", .lie = Lie::ALL_FENCED, .focus = Focus::ZOMBIES},
    // Too early, too late, the wrong bytes.
    {.name = "no-settling", .lie = Lie::NO_SETTLE, .focus = Focus::WEAK},
    of_lines("second-look-at-header", Lie::SECOND_LOOK, Kind::HEADER, Focus::LEASES,
             "fields of a header must agree with the sealed entry, and its stamp, one word, is "
             "read again last"),
    of_part("second-look-at-entry", Lie::SECOND_LOOK, BH_PART_INDEX, Focus::LEASES,
            "offset, stamp and length must agree with the sealed header, the sum with the bytes; "
            "torn, it is a miss"),
    of_part("second-look-at-slot", Lie::SECOND_LOOK, BH_PART_SLOT, Focus::ZOMBIES,
            "other hosts use only its first word, and an older copy was true a moment ago"),
    {.name = "sum-of-shared-bytes", .lie = Lie::SUM_OF_SHARED_BYTES, .focus = Focus::LEASES},
    of_lines("reads-dirty-headers", Lie::READS_DIRTY, Kind::HEADER),
    of_part("reads-dirty-hazards", Lie::READS_DIRTY, BH_PART_HAZARDS),
    of_part("reads-dirty-index", Lie::READS_DIRTY, BH_PART_INDEX),
    {.name = "sequence-ignored",
     .lie = Lie::SEQUENCE_IGNORED,
     .focus = Focus::ALONE,
     .first_seed = 2000},
    {.name = "stopped-is-dead", .lie = Lie::STOPPED_IS_DEAD, .focus = Focus::STOPPED},
    {.name = "stamps-repeat", .lie = Lie::STAMPS_REPEAT, .focus = Focus::LEASES},
    // Reads in pieces, which no checksum of the pool covers.
    {.name = "parts-trust-entry",
     .lie = Lie::EXPECTED_STAMP,
     .only_in = Operation::PARTS,
     .focus = Focus::CONTENTS,
     .first_seed = 3600},
    {.name = "parts-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::PAYLOAD,
     .only_in = Operation::PARTS,
     .focus = Focus::CONTENTS},
    {.name = "parts-not-settled",
     .lie = Lie::ALL_SETTLED,
     .only_in = Operation::PARTS,
     .focus = Focus::WEAK},
    {.name = "parts-without-decisions",
     .lie = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_DECIDE,
     .only_in = Operation::PARTS,
     .focus = Focus::ZOMBIES,
     .first_seed = 1600},
    // A content that replaces another.
    {.name = "replacement-not-published",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::PAYLOAD,
     .only_in = Operation::REPLACE,
     .focus = Focus::CONTENTS},
    {.name = "replaced-before-entry-is-published",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::REGION,
     .part = BH_PART_INDEX,
     .only_in = Operation::REPLACE,
     .focus = Focus::KEEP},
    {.name = "replaced-without-hazards",
     .lie = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_HAZARDS,
     .only_in = Operation::REPLACE,
     .focus = Focus::ALONE},
    {.name = "replace-ignores-removal",
     .lie = Lie::GONE_IS_THERE,
     .only_in = Operation::REPLACE,
     .focus = Focus::CONTENTS},
    {.name = "zombie-replaces",
     .lie = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_VIEW,
     .only_in = Operation::REPLACE,
     .focus = Focus::CONTENTS,
     .first_seed = 900},
    // Blocks of a dead host.
    {.name = "moved-payload-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::PAYLOAD,
     .only_in = Operation::PUT,
     .focus = Focus::CUSTODY},
    {.name = "adopted-header-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::HEADER,
     .only_in = Operation::WORK,
     .focus = Focus::KEEP},
    {.name = "stored-entry-not-published",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::REGION,
     .part = BH_PART_INDEX,
     .only_in = Operation::PUT,
     .focus = Focus::KEEP},
    // Heartbeats, and the process that makes them.
    {.name = "heartbeat-after-duties", .lie = Lie::HEARTBEAT_AFTER_DUTIES, .focus = Focus::LATE},
    {.name = "heartbeat-not-watched", .lie = Lie::HEARTBEAT_NOT_WATCHED, .focus = Focus::TWINS},
    {.name = "heartbeat-not-compared", .lie = Lie::HEARTBEAT_NOT_COMPARED, .focus = Focus::TWINS},
    {.name = "view-set-in-two-steps",
     .lie = Lie::EXCHANGE_IN_TWO,
     .kind = Kind::REGION,
     .part = BH_PART_VIEW,
     .focus = Focus::RETURNS},
    // A removal requested from another host.
    {.name = "removal-not-awaited",
     .lie = Lie::ALL_ANSWERED,
     .only_in = Operation::REMOVE,
     .focus = Focus::CONTENTS},
};

}  // namespace

std::span<const SeededBug> all_seeded_bugs() { return kSeededBugs; }

const SeededBug* find_seeded_bug(std::string_view name) {
  for (const SeededBug& bug : kSeededBugs) {
    if (bug.name == name) return &bug;
  }
  return nullptr;
}

}  // namespace bowhead::sim
