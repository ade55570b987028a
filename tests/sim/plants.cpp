// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/plants.h"

namespace bowhead::sim {
namespace {

constexpr Plant of_part(const char* name, Lie lie, uint16_t part,
                        const char* harmless_because = nullptr) {
  return {.name = name,
          .lie = lie,
          .kind = Kind::REGION,
          .part = part,
          .harmless_because = harmless_because};
}
constexpr Plant of_lines(const char* name, Lie lie, Kind kind,
                         const char* harmless_because = nullptr) {
  return {.name = name, .lie = lie, .kind = kind, .harmless_because = harmless_because};
}

constexpr Plant kPlants[] = {
    // Publishing left out.
    of_part("hazard-not-published", Lie::NO_FLUSH, BH_PART_HAZARDS),
    of_part("index-not-published", Lie::NO_FLUSH, BH_PART_INDEX),
    of_part("decision-not-published", Lie::NO_FLUSH, BH_PART_DECIDE),
    of_part("owner-not-published", Lie::NO_FLUSH, BH_PART_OWN),
    of_part("ack-not-published", Lie::NO_FLUSH, BH_PART_ACK),
    of_part("beat-not-published", Lie::NO_FLUSH, BH_PART_BEAT),
    of_part("slot-not-published", Lie::NO_FLUSH, BH_PART_SLOT),
    of_part("mail-not-published", Lie::NO_FLUSH, BH_PART_MAIL),
    of_lines("header-not-published", Lie::NO_FLUSH, Kind::HEADER),
    of_lines("key-not-published", Lie::NO_FLUSH, Kind::KEY),
    of_lines("payload-not-published", Lie::NO_FLUSH, Kind::PAYLOAD),
    of_lines("cut-not-published", Lie::NO_FLUSH, Kind::DESCRIPTOR),
    {.name = "given-tables-not-flushed",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::DESCRIPTOR,
     .least_bytes = 2 * BH_LINE_BYTES},
    {.name = "given-payload-not-flushed",
     .lie = Lie::NO_FLUSH,
     .kind = Kind::PAYLOAD,
     .least_bytes = kExtentBytes},
    // Acquiring left out.
    of_part("hazard-not-acquired", Lie::NO_INVALIDATE, BH_PART_HAZARDS),
    of_part("index-not-acquired", Lie::NO_INVALIDATE, BH_PART_INDEX),
    of_part("decision-not-acquired", Lie::NO_INVALIDATE, BH_PART_DECIDE),
    of_part("owner-not-acquired", Lie::NO_INVALIDATE, BH_PART_OWN),
    of_part("ack-not-acquired", Lie::NO_INVALIDATE, BH_PART_ACK),
    of_part("beat-not-acquired", Lie::NO_INVALIDATE, BH_PART_BEAT),
    of_part("slot-not-acquired", Lie::NO_INVALIDATE, BH_PART_SLOT),
    of_part("mail-not-acquired", Lie::NO_INVALIDATE, BH_PART_MAIL),
    of_lines("header-not-acquired", Lie::NO_INVALIDATE, Kind::HEADER),
    of_lines("key-not-acquired", Lie::NO_INVALIDATE, Kind::KEY),
    of_lines("payload-not-acquired", Lie::NO_INVALIDATE, Kind::PAYLOAD),
    of_lines("cut-not-acquired", Lie::NO_INVALIDATE, Kind::DESCRIPTOR),
    {.name = "taken-tables-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::DESCRIPTOR,
     .least_bytes = 2 * BH_LINE_BYTES},
    {.name = "taken-payload-not-acquired",
     .lie = Lie::NO_INVALIDATE,
     .kind = Kind::PAYLOAD,
     .least_bytes = kExtentBytes},
    // Fences left out.
    of_part("no-fence-after-hazard", Lie::NO_FENCE_AFTER_FLUSH, BH_PART_HAZARDS),
    of_part("no-fence-before-hazards-are-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_HAZARDS),
    of_lines("no-fence-after-header", Lie::NO_FENCE_AFTER_FLUSH, Kind::HEADER),
    of_lines("no-fence-before-header-is-read", Lie::NO_FENCE_AFTER_INVALIDATE, Kind::HEADER),
    of_part("no-fence-after-decision", Lie::NO_FENCE_AFTER_FLUSH, BH_PART_DECIDE),
    of_part("no-fence-before-decision-is-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_DECIDE),
    of_part("no-fence-after-owner", Lie::NO_FENCE_AFTER_FLUSH, BH_PART_OWN),
    of_part("no-fence-before-owner-is-read", Lie::NO_FENCE_AFTER_INVALIDATE, BH_PART_OWN),
    {.name = "no-fence-between-store-and-load", .lie = Lie::NO_PLAIN_FENCE},
    // Looking left out.
    of_part("reuse-without-hazards", Lie::LOAD_ZERO, BH_PART_HAZARDS),
    {.name = "lease-without-view",
     .lie = Lie::VIEW_OF_OTHERS_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_VIEW,
     .only_in = Operation::LEASE},
    {.name = "release-without-decisions",
     .lie = Lie::LOAD_ZERO,
     .kind = Kind::REGION,
     .part = BH_PART_DECIDE,
     .only_in = Operation::RELEASE},
    of_part("zombie-does-not-look", Lie::LOAD_ZERO, BH_PART_VIEW),
    {.name = "claim-unseen", .lie = Lie::CLAIM_UNSEEN},
    {.name = "lease-trusts-entry", .lie = Lie::EXPECTED_STAMP, .only_in = Operation::LEASE},
    {.name = "release-trusts-entry", .lie = Lie::EXPECTED_STAMP, .only_in = Operation::RELEASE},
    // Deciding wrongly.
    {.name = "done-too-early", .lie = Lie::DONE_TOO_EARLY},
    {.name = "accepted-value-ignored", .lie = Lie::ACCEPTED_UNSEEN},
    {.name = "adopts-without-acks", .lie = Lie::ALL_ACKED},
    {.name = "full-custody-without-evidence", .lie = Lie::ALL_FENCED},
    // Too early, too late, the wrong bytes.
    {.name = "no-settling", .lie = Lie::NO_SETTLE},
    of_lines("second-look-at-header", Lie::SECOND_LOOK, Kind::HEADER),
    of_part("second-look-at-entry", Lie::SECOND_LOOK, BH_PART_INDEX),
    of_part("second-look-at-slot", Lie::SECOND_LOOK, BH_PART_SLOT),
    {.name = "sum-of-shared-bytes", .lie = Lie::SUM_OF_SHARED_BYTES},
    of_lines("reads-dirty-headers", Lie::READS_DIRTY, Kind::HEADER),
    of_part("reads-dirty-hazards", Lie::READS_DIRTY, BH_PART_HAZARDS),
    of_part("reads-dirty-index", Lie::READS_DIRTY, BH_PART_INDEX),
    {.name = "sequence-ignored", .lie = Lie::SEQUENCE_IGNORED},
    {.name = "stopped-is-dead", .lie = Lie::STOPPED_IS_DEAD},
    {.name = "stamps-repeat", .lie = Lie::STAMPS_REPEAT},
};

}  // namespace

std::span<const Plant> all_plants() { return kPlants; }

const Plant* find_plant(std::string_view name) {
  for (const Plant& plant : kPlants) {
    if (plant.name == name) return &plant;
  }
  return nullptr;
}

}  // namespace bowhead::sim
