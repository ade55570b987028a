// SPDX-License-Identifier: Apache-2.0
// The accesses that a seeded bug falsifies.
#include "tests/sim/access.h"

#include <utility>

namespace bowhead::sim {

uint64_t SimAccess::lie_about(uint64_t at, uint64_t value) const {
  const Place place = world_.map().at(at);
  const bool foreign = place.host != process_.machine->host;
  if (const SeededBug* bug = world_.bug(Lie::LOAD_ZERO); bug && bug->concerns(place)) return 0;
  if (const SeededBug* bug = world_.bug(Lie::VIEW_OF_OTHERS_ZERO); bug && bug->concerns(place)) {
    const uint64_t self = world_.map().layout().word(place.host, place.index, place.host);
    return at == self ? value : 0;
  }
  if (world_.bug(Lie::CLAIM_UNSEEN) && place.is_part(BH_PART_OWN) && foreign)
    return core::own_state(value) == BH_OWN_CLAIM ? 0 : value;
  if (world_.bug(Lie::ALL_SETTLED) && place.is_part(BH_PART_HEARTBEAT) && foreign &&
      at % BH_LINE_BYTES == offsetof(bh_host_heartbeat, settled))
    return value | core::kStampSequenceMax;
  const bool own_heartbeat = place.is_part(BH_PART_HEARTBEAT) && !foreign &&
                             at % BH_LINE_BYTES == offsetof(bh_host_heartbeat, heartbeat);
  if (own_heartbeat &&
      (world_.bug(Lie::HEARTBEAT_NOT_WATCHED) && world_.current().operation == Operation::ATTACH)) {
    world_.note_bug();
    return 0;
  }
  if (own_heartbeat && world_.bug(Lie::HEARTBEAT_NOT_COMPARED) &&
      world_.current().operation == Operation::HEARTBEAT) {
    world_.note_bug();
    return 0;
  }
  if (world_.bug(Lie::GONE_IS_THERE) && place.is_part(BH_PART_BLOCKS)) return seems_there(value);
  if (world_.bug(Lie::RUN_NOT_READ_AGAIN) && place.is_part(BH_PART_RUNS) && !foreign) {
    Thread& thread = world_.current();
    const auto seen = thread.runs.find(at);
    if (std::exchange(thread.took_word, false) && seen != thread.runs.end()) return seen->second;
    if (core::RunWord::unpack(value).state == BH_RUN_READY) thread.runs[at] = value;
  }
  if (place.is_part(BH_PART_DECIDE) && foreign) {
    auto word = core::DecideWord::unpack(value);
    if (world_.bug(Lie::DONE_TOO_EARLY) && word.bal != 0) word.done = true;
    if (world_.bug(Lie::ACCEPTED_UNSEEN) && !word.done) word.bal = word.val = 0;
    return word.pack();
  }
  if (place.is_part(BH_PART_ACK) && foreign) {
    if (world_.bug(Lie::ALL_ACKED)) return value | 0xFFFFFFFFu;
    if (world_.bug(Lie::ALL_FENCED)) return value | uint64_t{0xFFFFFFFF} << BH_ACK_FENCED_SHIFT;
  }
  if (place.is_part(BH_PART_LOG) && foreign) return lie_about_log(at, value);
  if (place.is_part(BH_PART_LEASES) && at % sizeof(bh_lease_slot) == offsetof(bh_lease_slot, stamp))
    lease_stamp_ = value;
  if (world_.bug(Lie::EXPECTED_STAMP) && place.kind == Kind::HEADER &&
      at % sizeof(bh_block_header) == 0)
    return world_.current().operation == Operation::RELEASE ? lease_stamp_ : named_stamps_[at];
  if (world_.bug(Lie::WORDS_OF_ANY_BLOCK) && place.kind == Kind::WORDS && value != 0) {
    const core::Layout& layout = world_.map().layout();
    const uint64_t first = layout.first_slot(place.index);
    const uint64_t in_words = at - layout.block_words(first);
    if (in_words % sizeof(bh_block_words) == 0)
      return named_stamps_[layout.header(first + in_words / sizeof(bh_block_words))];
  }
  if (const SeededBug* bug = world_.bug(Lie::READS_DIRTY);
      bug && bug->concerns(place) && !world_.writable(at)) {
    world_.note_bug();
    world_.store_past_buffer(at, value);
  }
  return value;
}

uint64_t SimAccess::lie_about_log(uint64_t at, uint64_t value) const {
  world_.current().read_log = true;
  if (world_.bug(Lie::LAPS_OF_ONE_BIT) == nullptr) return value;
  const uint64_t lap = value >> BH_LOG_BUCKET_BITS;
  uint64_t& seen = laps_.try_emplace(at, lap).first->second;
  seen += (lap - seen) & 1;
  return seen << BH_LOG_BUCKET_BITS | (value & BH_LOG_ALL);
}

uint64_t SimAccess::lie_about_time(uint64_t now_ns) const {
  const bool after_log = std::exchange(world_.current().read_log, false);
  if (world_.bug(Lie::MARKS_SETTLE_AT_ONCE) != nullptr) {
    world_.note_bug();
    return now_ns + 2 * kSettleNs * ++settles_seen_;
  }
  if (world_.bug(Lie::WALK_SETTLES_AT_ONCE) != nullptr && after_log) {
    world_.note_bug();
    return now_ns - std::min(now_ns, 2 * kSettleNs);
  }
  return now_ns;
}

void SimAccess::lie_about_line(uint64_t at, core::Line& line) const {
  const Place place = world_.map().at(at);
  if (const SeededBug* bug = world_.bug(Lie::READS_DIRTY);
      bug && bug->concerns(place) && !world_.writable(at)) {
    world_.note_bug();
    world_.store_past_buffer(at, world_.load(at));
  }
  if (place.is_part(BH_PART_INDEX)) {
    const core::Layout& layout = world_.map().layout();
    const auto entry = core::from_line<bh_index_entry>(line);
    if (sealer_.check(line, at) && layout.valid_block(entry.block_offset, 1))
      named_stamps_[layout.header(layout.slot_of(entry.block_offset))] = entry.stamp;
  }
  if (world_.bug(Lie::RETIRED_IS_THERE) && place.kind == Kind::HEADER &&
      at % sizeof(bh_block_header) == 0 && core::stamp_state(line[0]) == BH_STAMP_RETIRED &&
      named_stamps_.contains(at)) {
    world_.note_bug();
    line[0] = named_stamps_[at];
    sealer_.seal(line, at);
  }
  if (world_.bug(Lie::GONE_IS_THERE) && place.is_part(BH_PART_INDEX) &&
      place.host == process_.machine->host)
    show_what_is_gone(at, line);
  if (world_.bug(Lie::ALL_ANSWERED) && place.is_part(BH_PART_MAIL) &&
      place.host != process_.machine->host)
    show_answer(at, place.host, line);
  const SeededBug* bug = world_.bug(Lie::SECOND_LOOK);
  if (bug == nullptr || !bug->concerns(place) || !sealer_.check(line, at)) return;
  // The seal was valid; the words used are those that the line has now.
  const core::Line checked = line;
  for (uint64_t i = 0; i < line.size(); ++i) {
    world_.step();
    line[i] = world_.load(at + i * 8);
  }
  if (line != checked) world_.note_bug();
  sealer_.seal(line, at);
}

/// As an answer to the own request in the line of the same number.
void SimAccess::show_answer(uint64_t at, uint32_t host, core::Line& line) const {
  const core::Layout& layout = world_.map().layout();
  const uint32_t self = process_.machine->host;
  const uint64_t own = layout.mail(self, host, (at - layout.mail(host, self, 0)) / BH_LINE_BYTES);
  const uint64_t sequence = world_.load(own + offsetof(bh_mail, sequence));
  if (line[offsetof(bh_mail, answered) / 8] != sequence) world_.note_bug();
  line[offsetof(bh_mail, answered) / 8] = sequence;
  sealer_.seal(line, at);
}

/// Restores words of a directory, or a whole entry, that are gone.
void SimAccess::show_what_is_gone(uint64_t at, core::Line& line) const {
  core::Line& seen = seen_lines_[at];
  const core::Line now = line;
  const core::Layout& layout = world_.map().layout();
  const uint64_t in_bucket =
      (at - layout.part(process_.machine->host, BH_PART_INDEX)) % sizeof(bh_index_bucket);
  const bool entry = in_bucket != 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == 0 && (!entry || now == core::Line{}) && (entry || i < BH_INDEX_ENTRIES))
      line[i] = seen[i];
  }
  if (line != now && world_.current().locked) world_.note_bug();
  seen = line;
}

}  // namespace bowhead::sim
