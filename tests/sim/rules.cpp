// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rules.h"

#include <fmt/format.h>

namespace bowhead::sim {

using core::DecideWord;
using core::Life;
using core::OwnWord;
using core::ViewWord;

/// Stamps never repeat (rule R3).
void Rules::check_stamp(uint64_t at, uint64_t value) {
  if (core::stamp_state(value) == BH_STAMP_RETIRED) world_->note_store(Since::RETIRED);
  if (value == 0 || core::stamp_state(value) != BH_STAMP_COMMITTED) return;
  const auto [known, fresh] = stamps_.try_emplace(value, at);
  if (!fresh)
    world_->fail("stamp",
                 fmt::format("the stamp of {} goes to {} too",
                             world_->map().describe(known->second), world_->map().describe(at)));
}

void Rules::note_lock() {
  const uint32_t host = world_->machine().host;
  world_->current().locked = true;
  const uint64_t view = peek(host, world_->map().layout().word(host, BH_PART_VIEW, host));
  world_->current().knew_it_is_over =
      ViewWord::unpack(view).ended > world_->current().process->incarnation();
}

/// A life that is over, and knows it, publishes nothing (except entries of blocks that it adopts,
/// which are not read there). And a replacement replaces a present content: once the last entry of
/// a lineage is gone, removed, evicted or replaced by a put, none comes back.
void Rules::check_entry(uint64_t at, const core::Line& line) {
  if (world_->cloned()) return;
  const Machine& machine = world_->machine();
  const uint32_t incarnation = world_->current().process->incarnation();
  Segment& segment = segments_[machine.host];
  if (segment.boot != machine.boot || segment.incarnation != incarnation)
    segment = {.boot = machine.boot, .incarnation = incarnation, .lineages = {}, .standing = {}};
  if (const auto old = segment.lineages.find(at); old != segment.lineages.end()) {
    --segment.standing[old->second];
    model_->note_entry(static_cast<uint32_t>(old->second >> 32), world_->now_ns());
    segment.lineages.erase(old);
  }
  const auto entry = core::from_line<bh_index_entry>(line);
  if (entry.stamp == 0) return;
  const Thread& thread = world_->current();
  if (thread.knew_it_is_over && thread.operation != Operation::WORK)
    world_->fail("zombie", fmt::format("host {} publishes an entry and knows that life {} is over",
                                       machine.host, incarnation));
  if ((entry.flags & BH_ENTRY_COPY_ONLY) != 0 && entry.payload_checksum == 0)
    world_->fail("custody", fmt::format("host {} stores a block without a checksum where a stale "
                                        "writer may still store",
                                        machine.host));
  const auto lineage = model_->lineage_of_sum(entry.payload_checksum);
  if (!lineage || entry.payload_checksum == 0) return;
  model_->note_entry(static_cast<uint32_t>(*lineage >> 32), world_->now_ns());
  const auto [standing, fresh] = segment.standing.try_emplace(*lineage, 0);
  if (!fresh && standing->second == 0 && (entry.flags & BH_ENTRY_COPY_ONLY) == 0)
    world_->fail("resurrection",
                 fmt::format("host {} publishes version {} of key {} again, which was gone",
                             machine.host, *lineage & 0xFFFFFFFF, *lineage >> 32));
  ++standing->second;
  segment.lineages[at] = *lineage;
}

void Rules::note_slot(const core::Line& line) {
  world_->note_slot_written();
  const Machine& machine = world_->machine();
  boots_[{machine.host, core::from_line<bh_host_slot>(line).incarnation}] = machine.boot;
}

/// Where no zombie can have written, a block with other bytes than were put is the pool's fault.
void Rules::note_count(uint64_t at) {
  const core::Layout& layout = world_->map().layout();
  if (!world_->map().at(at).is_part(BH_PART_PROCESSES)) return;
  const uint64_t in_process =
      (at - layout.part(world_->machine().host, BH_PART_PROCESSES)) % sizeof(bh_process);
  const auto is = [&](uint32_t counter) {
    return in_process == offsetof(bh_process, counters) + counter * 8;
  };
  if (is(BH_COUNTER_PUTS_PRESENT)) world_->current().found_present = true;
  if (is(BH_COUNTER_DAMAGED) && !zombies_ && !world_->cloned())
    world_->fail("damaged", fmt::format("host {} drops a block as damaged, and no zombie can have "
                                        "written to it",
                                        world_->machine().host));
}

void Rules::note_mail(uint64_t at, const core::Line& line) {
  Thread& thread = world_->current();
  const uint64_t area = world_->map().layout().mail(world_->machine().host, 0, 0);
  const auto mail = core::from_line<bh_mail>(line);
  if (thread.operation == Operation::REMOVE && mail.kind == BH_MAIL_REMOVE)
    thread.asked.push_back(
        {static_cast<uint32_t>((at - area) / BH_MAIL_AREA_BYTES), mail.key_hash[0]});
}

/// Only one decision is ever made about each life of a host (I6).
void Rules::check_decision(uint64_t at, uint64_t value) {
  const auto word = DecideWord::unpack(value);
  const uint32_t self = world_->machine().host;
  const auto of =
      static_cast<uint32_t>((at - world_->map().layout().part(self, BH_PART_DECIDE)) / 8);
  if (word.bal != 0 && !word.done && of != self) world_->note_store(Since::ACCEPTED);
  if (!word.done) return;
  zombies_ |= may_still_write({of, word.inst});
  for (const auto& [host, other] : decisions_of(of)) {
    if (other.done && other.inst == word.inst && other.val != word.val)
      world_->fail("decision",
                   fmt::format("host {} decides {:#x} about life {} of host {}, host {} "
                               "decided {:#x}",
                               self, word.val, word.inst, of, host, other.val));
  }
}

/// About the lives of a host, by each machine's own words.
std::vector<std::pair<uint32_t, DecideWord>> Rules::decisions_of(uint32_t of) const {
  std::vector<std::pair<uint32_t, DecideWord>> words;
  for (uint32_t i = 0; i < world_->plan().machines(); ++i) {
    const Machine& machine = world_->machine_at(i);
    const uint64_t at = world_->map().layout().word(machine.host, BH_PART_DECIDE, of);
    words.emplace_back(machine.host, DecideWord::unpack(machine.cache.peek(at)));
  }
  return words;
}

bool Rules::is_decided(Life life) const {
  for (const auto& [host, word] : decisions_of(life.host)) {
    if (word.inst > life.incarnation || (word.done && word.inst == life.incarnation)) return true;
  }
  return false;
}

/// No host acts on a decision that is not done.
void Rules::check_view(uint64_t at, uint64_t value) {
  const uint32_t self = world_->machine().host;
  const auto of = static_cast<uint32_t>((at - world_->map().layout().part(self, BH_PART_VIEW)) / 8);
  const ViewWord view = ViewWord::unpack(value);
  if (view.ended == 0 || of >= hosts()) return;  // a new boot forgets
  const uint64_t before = ViewWord::unpack(world_->machine().cache.peek(at)).ended;
  if (view.ended < before)
    world_->fail("view", fmt::format("host {} takes {} lives of host {} for over, and {} before",
                                     self, view.ended, of, before));
  if (of == self) return;
  const auto last = static_cast<uint32_t>(view.ended - 1);
  if (!is_decided({of, last}))
    world_->fail("decision", fmt::format("host {} takes life {} of host {} for over, and that is "
                                         "not decided",
                                         self, last, of));
}

/// While a process lives, only that process changes an allocator word that names it (A3).
void Rules::check_holder(uint64_t at, Place place) {
  const bool blocks = place.index == BH_PART_BLOCKS;
  const uint64_t begin = world_->map().layout().part(place.host, place.index);
  if (!blocks && (at - begin) % sizeof(bh_extent_state) != 0) return;
  const auto word = core::StateWord::unpack(world_->machine().cache.peek(at));
  const bool held = blocks ? word.state == BH_BLOCK_RESERVED || word.state == BH_BLOCK_RETIRING ||
                                 word.state == BH_BLOCK_CLEANING
                           : word.state == BH_EXTENT_CARVING || word.state == BH_EXTENT_COALESCING;
  const auto& locks = world_->machine().process_locks;
  if (!held || word.process >= locks.size()) return;
  const Process* holder = locks[word.process];
  if (holder != nullptr && holder != world_->current().process)
    world_->fail("holder", fmt::format("process {} changes {}, which process {} holds",
                                       world_->current().process->index, world_->map().describe(at),
                                       holder->index));
}

void Rules::check_own(uint64_t at, uint64_t value) {
  const uint32_t self = world_->machine().host;
  const uint64_t extent = (at - world_->map().layout().part(self, BH_PART_OWN)) / 8;
  const auto before = OwnWord::unpack(peek(self, at)), after = OwnWord::unpack(value);
  if (after.state == BH_OWN_GIVEN) {
    world_->note_store(Since::GIVEN);
    check_given(extent);
  }
  if (after.state == BH_OWN_CLAIM) {
    world_->note_store(Since::CLAIM);
    check_claim(extent, after);
  }
  const bool held = before.state == BH_OWN_OWN && after.state == BH_OWN_OWN;
  if (held && before.custody != after.custody && after.custody != BH_CUSTODY_READ_ONLY)
    check_custody(extent, after.custody == BH_CUSTODY_FULL);
}

/// A host that claims an extent was given it in that epoch (S1), even if the grantor has continued
/// since; or an earlier life of the same host was, which it succeeded: then the grant, or the
/// claim, is its own.
void Rules::check_claim(uint64_t extent, const OwnWord& claim) {
  const core::Layout& layout = world_->map().layout();
  const uint32_t self = world_->machine().host;
  OwnWord given{};
  if (claim.slot < hosts() && claim.slot != self)
    given = OwnWord::unpack(peek(claim.slot, layout.word(claim.slot, BH_PART_OWN, extent)));
  if (given.epoch > claim.epoch) return;
  if (given.epoch == claim.epoch && given.state == BH_OWN_GIVEN && given.slot == self &&
      succeeded_itself(self, given.incarnation, claim.incarnation))
    return;
  world_->fail(
      "claim",
      fmt::format("life {} of host {} claims extent {} of host {} in epoch {}, which has "
                  "state {} and epoch {} there, to life {} of host {}",
                  claim.incarnation, self, extent, claim.slot, claim.epoch,
                  static_cast<uint32_t>(given.state), given.epoch, given.incarnation, given.slot));
}

/// No life of the host from `first` to before `last` was succeeded by another host, as far as the
/// words still show: they are reused only when nothing is left that the life before held, or when
/// the host succeeded itself.
bool Rules::succeeded_itself(uint32_t host, uint32_t first, uint32_t last) const {
  if (first > last) return false;
  for (const auto& [by, word] : decisions_of(host)) {
    if (word.done && word.inst >= first && word.inst < last && word.val >> 10 != host) return false;
  }
  return true;
}

/// A host that gives an extent away has no line of it that could still be written back (I1).
void Rules::check_given(uint64_t extent) {
  if (!world_->plan().flushes) return;
  const core::Layout& layout = world_->map().layout();
  const auto check = [&](uint64_t begin, uint64_t bytes) {
    for (uint64_t at = begin; at < begin + bytes; at += BH_LINE_BYTES) {
      if (world_->machine().cache.state(at / BH_LINE_BYTES) == Cache::State::DIRTY)
        world_->fail("dirty",
                     fmt::format("host {} gives extent {} away and has not written {} back",
                                 world_->machine().host, extent, world_->map().describe(at)));
    }
  };
  check(layout.descriptor(extent), layout.geometry().table_bytes);
  check(layout.extent_offset(extent), layout.geometry().extent_bytes);
}

/// Custody is opened when all hosts know that the lives before are over; fully, when those have
/// stopped.
void Rules::check_custody(uint64_t extent, bool full) {
  const core::Layout& layout = world_->map().layout();
  const uint32_t self = world_->machine().host;
  // If the host that opens it is itself over and does not know, its successor knows that it owns
  // the extent.
  if (is_decided({self, world_->current().process->incarnation()})) return;
  for (uint32_t host = 0; host < hosts(); ++host) {
    const auto word = OwnWord::unpack(peek(host, layout.word(host, BH_PART_OWN, extent)));
    // A host that only claims, or is not certain yet, does not write, and checks before it does.
    if (host == self || word.state != BH_OWN_OWN || word.slot == BH_OWN_UNCONFIRMED) continue;
    const Life life{host, word.incarnation};
    if (!was_live(life)) continue;  // it may have just written its word, and nothing else
    check_acks(extent, life);
    for (const Process* process : world_->processes()) {
      if (!full || process->machine->host != host || !process->alive || !process->joined ||
          process->incarnation() != life.incarnation || life.incarnation == 0)
        continue;
      if (!says_stopped(life))
        world_->fail("custody", fmt::format("host {} has full custody of extent {}, to which "
                                            "process {} may still write",
                                            self, extent, process->index));
    }
  }
}

bool Rules::was_live(Life life) const {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const uint64_t word = peek(life.host, world_->map().layout().slot_line(life.host, copy));
    const uint64_t incarnation = word >> 32 & 0xFFFF;
    const bool joining = (word & 0xFFFFFFFF) == BH_HOST_JOINING;
    if (incarnation > life.incarnation || (incarnation == life.incarnation && !joining))
      return life.incarnation != 0;
  }
  return false;
}

/// Ended cleanly, as a host that leaves does.
bool Rules::says_stopped(Life life) const {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const uint64_t word = peek(life.host, world_->map().layout().slot_line(life.host, copy));
    if (word >> 48 >= life.incarnation) return true;
  }
  return false;
}

/// It began on this boot of its machine and has not said that it stopped: its processes, or dirty
/// lines that they left, may still reach the memory.
bool Rules::may_still_write(Life life) const {
  const auto boot = boots_.find({life.host, life.incarnation});
  const Machine* machine = world_->machine_of(life.host);
  return boot != boots_.end() && machine != nullptr && boot->second == machine->boot &&
         !says_stopped(life);
}

void Rules::check_acks(uint64_t extent, Life life) {
  const core::Layout& layout = world_->map().layout();
  const uint32_t self = world_->machine().host;
  for (const Process* process : world_->processes()) {
    const uint32_t host = process->machine->host;
    if (host == self || host == life.host || !process->alive || !process->joined ||
        is_decided({host, process->incarnation()}))
      continue;
    const ViewWord view = ViewWord::unpack(peek(host, layout.word(host, BH_PART_VIEW, life.host)));
    if (view.ended <= life.incarnation)
      world_->fail("custody",
                   fmt::format("host {} opens extent {}, and process {} does not know that life {} "
                               "of host {} is over",
                               self, extent, process->index, life.incarnation, life.host));
  }
}

std::vector<uint64_t> Rules::known_over(uint32_t host) const {
  std::vector<uint64_t> over;
  for (uint32_t of = 0; of < hosts(); ++of)
    over.push_back(
        ViewWord::unpack(peek(host, world_->map().layout().word(host, BH_PART_VIEW, of))).ended);
  return over;
}

/// A block is leased only if the reader knows of no reason why its owner should be over.
void Rules::check_lease(uint64_t offset, const std::vector<uint64_t>& known_over) {
  const Machine& machine = world_->machine();
  if (hosts() == 1 || !machine.innocent || world_->cloned()) return;
  const core::Layout& layout = world_->map().layout();
  const uint64_t extent = layout.extent_of_slot(layout.slot_of(offset));
  for (uint32_t host = 0; host < hosts(); ++host) {
    const auto word = OwnWord::unpack(peek(host, layout.word(host, BH_PART_OWN, extent)));
    if (word.state == BH_OWN_OWN && word.custody == BH_CUSTODY_FULL &&
        known_over[host] <= word.incarnation)
      return;
  }
  world_->fail("custody", fmt::format("host {} leases {}, whose owner it knows to be over",
                                      machine.host, world_->map().describe(offset)));
}

}  // namespace bowhead::sim
