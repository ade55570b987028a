// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/user.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace bowhead::core {

template <>
Allocator<sim::SimAccess>::Magazine& Allocator<sim::SimAccess>::magazine_of(uint64_t block_bytes) {
  static std::deque<std::array<Magazine, 8>> magazines;
  const uint32_t thread = c_.access.world().current().index;
  while (magazines.size() <= thread) magazines.emplace_back();
  auto& of_thread = magazines[thread];
  Magazine& magazine = of_thread[block_bytes / BH_PAYLOAD_ALIGN % of_thread.size()];
  if (magazine.instance != c_.instance || magazine.block_bytes != block_bytes)
    magazine = Magazine{.instance = c_.instance, .block_bytes = block_bytes};
  return magazine;
}

}  // namespace bowhead::core

namespace bowhead::sim {
namespace {

constexpr uint64_t kFillPatienceNs = 100 * kHeartbeatNs;
constexpr uint32_t kTries = 6;  ///< to join as a host that another machine runs as
constexpr size_t kHeldMax = 3;  ///< leases, and reservations, of one worker

/// Accepts the stored bytes, whatever their codec.
struct StoredSink {
  std::vector<std::byte> bytes;
  Span room;
  uint8_t codec = BH_CODEC_RAW;

  Result<std::span<const Span>> room_for(const bh_block_header& header) {
    bytes.assign(header.stored_bytes, std::byte{0});
    room = {bytes.data(), bytes.size()};
    return std::span<const Span>(&room, 1);
  }
  Status take(const bh_block_header& header) {
    codec = header.codec;
    return Status::OK;
  }
};

core::Content content(const Model::Stored& stored, std::span<const ConstSpan> bytes) {
  return {bytes, stored.length, stored.codec, BH_PROFILE_NONE, stored.user_metadata, {}};
}

}  // namespace

void Counts::add(const Counts& other) {
  static_assert(sizeof(Counts) % sizeof(uint64_t) == 0);
  auto* to = reinterpret_cast<uint64_t*>(this);
  const auto* from = reinterpret_cast<const uint64_t*>(&other);
  for (size_t i = 0; i < sizeof(Counts) / sizeof(uint64_t); ++i) to[i] += from[i];
}

std::string Counts::text() const {
  return fmt::format(
      "{} runs, {} steps; {} lives of processes, {} ended as fenced, {} left; {} puts, {} without "
      "room, {} "
      "busy; {} hits, {} of them on other hosts, {} misses, {} removals; {} leases: {} valid, {} "
      "lapsed; {} reservations; {} reads in pieces, {} refused; {} replacements, {} refused; "
      "{} namespaces, {} refused, {} removed, {} puts into removed ones; {} sets of media added, "
      "{} "
      "drained, {} removed, {} times refused",
      runs, steps, lives, fenced, left, puts, no_space, busy, hits, remote_hits, misses, removals,
      leases, leases_valid, leases_lapsed, reservations, parts, parts_refused, replacements,
      not_replaced, spaces, spaces_refused, spaces_removed, spaces_gone, grown, drained, shrunk,
      not_changed);
}

// ---- lives ----

void User::begin() {
  ++stage_.counts.lives;
  phase_done_ = 0;
  silent_ = in_heartbeat_ = serving_ = parking_ = changing_ = keeps_heartbeat = false;
  mapped_sets.clear();
  second_thread_ = nullptr;
  for (Worker& worker : workers_) {
    worker.leases.clear();
    worker.reservations.clear();
    worker.rests = false;
  }
  taken_.clear();
  spaces_ = {};
  core_.reset();
  access_ = std::make_unique<SimAccess>(stage_.world, stage_.model, stage_.rules, *this,
                                        stage_.superblock);
  // In a pool of several hosts no memory can be written unless it is mapped writable (rule R1).
  mapped_writable.assign(stage_.world.plan().shape.hosts > 1 ? stage_.world.map().lines() : 0, 0);
  stage_.world.start_thread(
      this, [](void* self) { static_cast<User*>(self)->work(); }, this);
}

void User::attach() {
  stage_.world.begin_operation(Operation::ATTACH);
  core_ = std::make_unique<core::Core<SimAccess>>(*access_, stage_.superblock, machine->host);
  const auto attached = core_->joining.attach({}, [this] {
    stage_.world.note_heartbeat();
    stage_.world.start_thread(
        this, [](void* self) { static_cast<User*>(self)->heartbeat(); }, this);
  });
  stage_.world.end_operation(static_cast<uint64_t>(attached.status()));
  if (!attached) {
    expect("attach", attached.error(), {Status::BUSY, Status::HOST_ID_IN_USE});
    // If two machines are to run as one host, one of them gives up in the end.
    const bool in_use = attached.status() == Status::HOST_ID_IN_USE;
    const bool for_good = in_use && stage_.world.plan().twin != Twin::NONE && ++refused_ == kTries;
    stage_.world.end_process(for_good ? kForever : 4 * kHeartbeatNs);
  }
  joined = true;
}

void User::work() {
  attach();
  stage_.world.start_thread(
      this, [](void* self) { static_cast<User*>(self)->serve(); }, this);
  if (stage_.world.plan().workers > 1)
    second_thread_ = &stage_.world.start_thread(
        this, [](void* self) { static_cast<User*>(self)->work_beside(); }, this);
  operate_all();
  while (second_thread_ != nullptr && !workers_[1].rests) stage_.world.sleep(kHeartbeatNs);
  for (;;) {
    phase_done_ = stage_.phase_number;
    while (ready()) stage_.world.sleep(kHeartbeatNs);
    do_phase(stage_.phase);
  }
}

void User::work_beside() {
  operate_all();
  worker().rests = true;
  stage_.world.end_thread();
}

void User::operate_all() {
  while (worker().operations_left > 0) {
    if (&worker() == &workers_[1] && parking_) {
      worker().rests = true;
      stage_.world.sleep(kHeartbeatNs / 4);
      continue;
    }
    worker().rests = false;
    // Faults of Work::CUSTODY count from the crash.
    const Plan& plan = stage_.world.plan();
    if (plan.work != Work::CUSTODY || !stage_.world.faults_left()) --worker().operations_left;
    operate();
    if (leaves_for_ns != 0 && &worker() == &workers_[0]) leave_for(leaves_for_ns);
    const uint64_t think_ns = stage_.world.plan().think_ns;
    if (think_ns != 0 && below(2) == 0) stage_.world.sleep(below(4 * think_ns));
  }
  while (!worker().leases.empty()) release();
  while (!worker().reservations.empty()) finish_reservation();
}

void User::heartbeat() {
  for (;;) {
    stage_.world.sleep(kHeartbeatNs);
    if (silent_) continue;
    if (serving_ && stage_.world.bug(Lie::HEARTBEAT_AFTER_DUTIES) != nullptr) {
      stage_.world.note_bug();
      continue;
    }
    in_heartbeat_ = true;
    const uint64_t begun_ns = stage_.world.now_ns();
    stage_.world.begin_operation(Operation::HEARTBEAT);
    const auto done = core_->membership.heartbeat();
    stage_.world.end_operation(static_cast<uint64_t>(done.status()));
    in_heartbeat_ = false;
    looked_at_ns = begun_ns;
    if (!done) end_soon("heartbeat", done.error());
  }
}

void User::serve() {
  for (;;) {
    stage_.world.sleep(kHeartbeatNs);
    if (silent_ || changing_) continue;
    serving_ = true;
    stage_.world.begin_operation(Operation::WORK);
    const auto worked = core_->membership.work();
    stage_.world.end_operation(static_cast<uint64_t>(worked.status()));
    serving_ = false;
    if (!worked) end_soon("work", worked.error());
  }
}

/// The other threads continue until one of them ends too, or this one ends the process.
void User::end_soon(const char* name, const Error& error) {
  if (!machine->innocent) stage_.world.sleep(1 + below(8 * kHeartbeatNs));
  if (!silent_) expect(name, error, {});
}

/// Neither thread runs while a handle is closed.
void User::stop_threads() {
  silent_ = true;
  while (in_heartbeat_ || serving_) stage_.world.sleep(kHeartbeatNs / 8);
}

void User::expect(const char* name, Status status, std::initializer_list<Status> allowed) {
  expect(name, Error{status, {}}, allowed);
}

void User::expect(const char* name, const Error& error, std::initializer_list<Status> allowed) {
  if (error.status == Status::OK || std::count(allowed.begin(), allowed.end(), error.status) != 0)
    return;
  // State that two machines share as one host counts as damaged: it may give any status until it
  // ends.
  const bool cloned = stage_.world.cloned();
  const bool ended =
      error.status == Status::HOST_FENCED || error.status == Status::HOST_ID_CONFLICT;
  if (cloned && !ended) return;
  if ((cloned && ended) ||
      (error.status == Status::HOST_FENCED && (!machine->innocent || ended_itself()))) {
    ++stage_.counts.fenced;
    stage_.world.end_process(below(2 * kHeartbeatNs));
  }
  stage_.world.fail("status", fmt::format("process {}: {} says {}: {}", index, name,
                                          status_name(error.status), error.message()));
}

/// An adopter whose evidence was overwritten while it looked (S5). With a seeded bug that is no
/// excuse.
bool User::ended_itself() const {
  const core::Context<SimAccess>& context = core_->context();
  const auto own = core::DecideWord::unpack(
      machine->cache.peek(context.layout.word(context.host, BH_PART_DECIDE, context.host)));
  const core::Life next{context.host, context.incarnation + 1};
  return !stage_.world.bug_does_harm() && own.done && own.inst == context.incarnation &&
         own.val == next.value();
}

// ---- operations ----

void User::operate() {
  core_->growth.refresh();
  if (stage_.world.plan().batch > 1 && below(2) == 0) {
    const uint64_t which = below(8);
    return which < 4 ? put_batch() : which < 6 ? get_batch() : remove_batch();
  }
  const uint64_t roll = below(100);
  switch (stage_.world.plan().work) {
    case Work::ANYTHING:
      break;
    case Work::LEASES:
      if (below(2) == 0) break;
      if (roll < 35) return lease();
      if (roll >= 65) return roll < 82 ? remove() : put();
      read_in_place();
      return roll < 50 ? release() : void();
    case Work::KEEP:
      if (roll < 50) return put();
      if (roll < 65) return get();
      return roll < 75 ? get_parts() : roll < 95 ? replace() : exists();
    case Work::CONTENTS:
      if (below(4) == 0) break;
      if (roll < 25) return put();
      return roll < 50 ? get_parts() : roll < 80 ? replace() : remove();
    case Work::CUSTODY:
      if (machine->host != 0) return roll < 60 ? put() : roll < 95 ? remove() : get();
      if (stage_.world.faults_left()) return roll < 80 ? get() : put();
      if (stage_.world.plan().some_without_sum && roll < 30)
        return roll < 15 ? reserve() : finish_reservation();
      return roll < 60 ? put() : remove();
    case Work::SPACES:
      if (roll < 70) return use_space();
      break;
    case Work::BATCHES:
      if (machine->host != 0) return roll < 80 ? exists() : roll < 90 ? put() : remove();
      return roll < 50 ? put() : roll < 65 ? replace() : roll < 95 ? remove() : exists();
    case Work::GROWTH:
      if (roll < 8) return change_media();
      if (roll < 30) return put();
      return roll < 40 ? remove() : get();
    case Work::GREEDY:
      if (machine->host + 1 == stage_.world.plan().shape.hosts ||
          worker().operations_left % 16 == 8)
        return put();
      return roll < 50 ? reserve() : finish_reservation();
  }
  if (roll < 28) return put();
  if (roll < 38) return get();
  if (roll < 46) return get_parts();
  if (roll < 54) return replace();
  if (roll < 66) return remove();
  if (roll < 69) return exists();
  if (roll < 80) return lease();
  if (roll < 86) return read_in_place();
  if (roll < 91) return release();
  if (roll < 95) return reserve();
  finish_reservation();
}

/// Adds a set, begins or ends to drain one, or removes one. As Pool does it: under the host lock,
/// while the thread with duties stands still.
void User::change_media() {
  core::Growth<SimAccess>& growth = core_->growth;
  const Plan& plan = stage_.world.plan();
  std::vector<bh_set> sets;
  for (const bh_set& set : growth.newest_table().sets) {
    if (set.state != BH_SET_NONE) sets.push_back(set);
  }
  const bool grows = sets.empty() || (sets.size() < kGrownSets - 1 && below(3) == 0);
  const bh_set chosen = grows ? bh_set{} : sets[below(sets.size())];
  while (changing_) stage_.world.sleep(kHeartbeatNs);  // the other worker
  changing_ = true;
  while (serving_) stage_.world.sleep(kHeartbeatNs / 8);
  stage_.world.begin_operation(Operation::MEDIA, chosen.number, chosen.state);
  Status status = Status::BUSY;
  uint64_t* count = &stage_.counts.not_changed;
  if (access_->lock_host(machine->host, 100) == core::LockResult::TAKEN) {
    const auto duties = [&] { core_->membership.succeed_the_dead(/*locked=*/true); };
    if (grows) {
      bh_set set{};
      set.id = stage_.world.random().next() | 1;
      set.bytes = grown_bytes(plan.shape);
      bool unused = false;
      status = growth.add(set, &unused, duties).status();
      count = &stage_.counts.grown;
    } else if (chosen.state != BH_SET_DRAINING) {
      status = growth.begin_drain(chosen.number, duties).status();
      count = &stage_.counts.drained;
    } else if (below(6) == 0) {
      status = growth.end_drain(chosen.number, duties).status();
    } else {
      bool gone = false;
      status = growth.remove(chosen.number, &gone, duties).status();
      if (gone) count = &stage_.counts.shrunk;
    }
    access_->unlock_host(machine->host);
  }
  stage_.world.end_operation(static_cast<uint64_t>(status));
  changing_ = false;
  ++*count;
  if (status != Status::OK && count != &stage_.counts.shrunk) {
    --*count;
    ++stage_.counts.not_changed;
  }
  expect("change of the media", status,
         {Status::BUSY, Status::LIMIT_REACHED, Status::IN_USE, Status::NOT_FOUND,
          Status::INVALID_ARGUMENT});
}

bool User::drains() const {
  if (!alive || !joined || !core_) return false;
  const auto& sets = core_->context().layout.sets().list;
  return std::any_of(sets.begin(), sets.end(), [](const core::Set& set) { return set.drains; });
}

void User::put() {
  const uint32_t k = any_key();
  const uint32_t version = stage_.model.new_version(k, machine->host);
  const Model::Stored stored = stage_.model.stored(k, version);
  const ConstSpan in[] = {{stored.bytes.data(), stored.bytes.size()}};
  const auto removals = stage_.model.removals(k);
  stage_.world.begin_operation(Operation::PUT, k, version);
  const Status status = core_->writing.put(key(k), content(stored, in));
  stage_.world.end_operation(static_cast<uint64_t>(status));
  note_put(k, version, status, removals);
}

void User::note_put(uint32_t k, uint32_t version, Status status, std::optional<uint64_t> removals) {
  expect("put", status, {Status::NO_SPACE, Status::INDEX_FULL, Status::BUSY});
  if (status == Status::OK) {
    stage_.model.accept(k, version, incarnation());
    note_stored(k, removals);
  } else {
    stage_.model.refuse(k, version);
  }
  stage_.counts.puts += status == Status::OK;
  stage_.counts.no_space += status == Status::NO_SPACE;
  stage_.counts.busy += status == Status::BUSY;
}

std::vector<uint32_t> User::any_keys() {
  std::vector<uint32_t> keys(1 + below(stage_.world.plan().batch));
  for (uint32_t& k : keys) k = any_key();
  return keys;
}

/// A put of several keys, some of them twice. If the process ends after some, the others count as
/// puts that may yet be found.
void User::put_batch() {
  struct Item {
    uint32_t version;
    Model::Stored stored;
    ConstSpan bytes;
    std::optional<uint64_t> removals;
    Status status;
    bool present;
  };
  const std::vector<uint32_t> numbers = any_keys();
  std::vector<std::string_view> names;
  std::vector<Item> items(numbers.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    names.push_back(stage_.model.key(numbers[i]));
    item.version = stage_.model.new_version(numbers[i], machine->host);
    item.stored = stage_.model.stored(numbers[i], item.version);
    item.bytes = {item.stored.bytes.data(), item.stored.bytes.size()};
    item.removals = stage_.model.removals(numbers[i]);
  }
  stage_.world.begin_operation(Operation::PUT, numbers[0], items[0].version);
  core_->writing.put_all(
      Model::kNamespace, names,
      [&](uint32_t i) {
        return content(items[i].stored, {&items[i].bytes, 1});
      },
      [](uint32_t, const core::Content& raw) { return raw; },
      [&](uint32_t i, Status status) {
        items[i].status = status;
        items[i].present = std::exchange(stage_.world.current().found_present, false);
      });
  stage_.world.end_operation(0);
  for (size_t i = 0; i < items.size(); ++i) {
    stage_.world.current().found_present = items[i].present;
    note_put(numbers[i], items[i].version, items[i].status, items[i].removals);
  }
}

void User::get_batch() {
  const std::vector<uint32_t> numbers = any_keys();
  std::vector<std::string_view> names;
  for (const uint32_t k : numbers) names.push_back(stage_.model.key(k));
  std::vector<StoredSink> sinks(numbers.size());
  std::vector<Result<uint64_t>> lengths(numbers.size(), Status::NOT_FOUND);
  const uint64_t begun_ns = stage_.world.now_ns();
  stage_.world.begin_operation(Operation::GET, numbers[0]);
  core_->reading.get_all(
      Model::kNamespace, names, [&](uint32_t i) -> StoredSink& { return sinks[i]; },
      [&](uint32_t i, Result<uint64_t> length) { lengths[i] = std::move(length); });
  stage_.world.end_operation(0);
  for (size_t i = 0; i < numbers.size(); ++i) {
    expect("get", lengths[i].status(), {Status::NOT_FOUND});
    if (lengths[i])
      judge("get of a batch", numbers[i],
            Model::Seen::whole(std::move(sinks[i].bytes), *lengths[i], sinks[i].codec, begun_ns));
    ++(lengths[i] ? stage_.counts.hits : stage_.counts.misses);
  }
}

void User::remove_batch() {
  const std::vector<uint32_t> numbers = any_keys();
  std::vector<core::Key> keys;
  std::vector<std::vector<Model::Lineage>> lineages;
  for (const uint32_t k : numbers) {
    keys.push_back(key(k));
    lineages.push_back(begin_removal(k));
  }
  std::vector<Status> statuses(keys.size());
  stage_.world.begin_operation(Operation::REMOVE, numbers[0]);
  core_->writing.remove_all(keys, statuses);
  stage_.world.end_operation(0);
  for (size_t i = 0; i < keys.size(); ++i) note_removal(numbers[i], statuses[i], lineages[i]);
}

/// For the operation that has just ended.
void User::note_stored(uint32_t k, std::optional<uint64_t> removals_before) {
  if (!stage_.world.current().found_present && stage_.rules.stands({machine->host, incarnation()}))
    stage_.model.keep(k, removals_before, stage_.world.now_ns());
}

void User::get() { get(any_key()); }

void User::get(uint32_t k) {
  StoredSink sink;
  const uint64_t begun_ns = stage_.world.now_ns();
  stage_.world.begin_operation(Operation::GET, k);
  std::string user_metadata;
  const auto length = core_->reading.get_stored(key(k), sink, &user_metadata);
  stage_.world.end_operation(static_cast<uint64_t>(length.status()));
  expect("get", length.status(), {Status::NOT_FOUND});
  if (!length) {
    ++stage_.counts.misses;
    return;
  }
  ++stage_.counts.hits;
  const uint32_t version =
      judge("get", k, Model::Seen::whole(std::move(sink.bytes), *length, sink.codec, begun_ns));
  judge_user("get", k, version, user_metadata);
  if (below(4) == 0) mark(k);
  stage_.counts.remote_hits += stage_.model.host_of(k, version) != machine->host;
}

/// A block that replaces another one has its user metadata. Two machines that run as one host give
/// stamps twice, and only the stamp says which block user metadata belong to.
void User::judge_user(const char* what, uint32_t k, uint32_t version, const std::string& user) {
  if (stage_.world.cloned() || stage_.model.stored(k, version).user_metadata == user) return;
  stage_.world.fail("bytes", fmt::format("process {}: {}: key {} has the user metadata of another "
                                         "put than version {}",
                                         index, what, k, version));
}

namespace {

/// Each word names the key.
BlockAttributes attributes_of(uint32_t k, uint64_t choice) {
  return {.priority = static_cast<uint8_t>(choice),
          .forks = static_cast<uint16_t>(k + 1),
          .expires_unix_s = UINT32_MAX - k,  // never, here
          .next_use_unix_s = static_cast<uint32_t>(choice),
          .group = uint64_t{k + 1} << 32 | choice};
}

bool name_key(const BlockAttributes& seen, uint32_t k) {
  return seen == BlockAttributes{} ||
         (seen.forks == k + 1 && seen.expires_unix_s == UINT32_MAX - k &&
          seen.group >> 32 == k + 1);
}

}  // namespace

/// Reads and sets the attributes of a block. Those that are read were set for its key, one by one.
void User::mark(uint32_t k) {
  stage_.world.begin_operation(Operation::MARK, k);
  const auto block = core_->inspection.describe(key(k));
  const Status status = core_->attributes.set(key(k), attributes_of(k, 1 + below(255)));
  stage_.world.end_operation(static_cast<uint64_t>(status));
  expect("set attributes", status, {Status::NOT_FOUND, Status::BUSY});
  if (block && !stage_.world.cloned() && !name_key(block->attributes, k))
    stage_.world.fail("attributes",
                      fmt::format("process {}: key {} has attributes of another key", index, k));
}

uint32_t User::judge(const char* what, uint32_t k, const Model::Seen& seen) {
  uint32_t version = 0;
  const std::string fault = stage_.model.judge(k, seen, &version);
  if (!fault.empty()) stage_.world.fail("bytes", fmt::format("{}: {}", what, fault));
  return version;
}

/// Acts as a reader of the first planes: the beginning gives the places of the rest, of which it
/// reads some, in any order. If that is not possible, it reads the whole block.
void User::get_parts() {
  const uint32_t k = any_key();
  Model::Seen seen;
  seen.begun_ns = stage_.world.now_ns();
  stage_.world.begin_operation(Operation::PARTS, k);
  const auto length = core_->reading.get_parts(key(k), [&](const bh_block_header& header,
                                                           const auto& read) {
    seen.codec = header.codec;
    seen.stored_bytes = header.stored_bytes;
    const auto take = [&](uint64_t from, uint64_t most) {
      Model::Piece piece{from, std::vector<std::byte>(std::min(most, seen.stored_bytes - from))};
      read(from, Span{piece.bytes.data(), piece.bytes.size()});
      seen.pieces.push_back(std::move(piece));
    };
    take(0, 8);
    const bool all = below(2) == 0;
    for (uint64_t n = all ? 0 : 1 + below(4); n > 0; --n)
      take(8 * below((seen.stored_bytes + 7) / 8), 8 * (1 + below(8)));
    if (all) take(0, seen.stored_bytes);
    return below(16) == 0 ? Status::DAMAGED : Status::OK;  // no decoder can use it
  });
  stage_.world.end_operation(length.has_value());
  if (!length) {
    ++stage_.counts.parts_refused;
    return get(k);
  }
  ++stage_.counts.parts;
  seen.length = *length;
  if (!stage_.world.cloned()) judge("get in pieces", k, seen);
}

/// Acts like recompression, on a block that was not used for a while.
void User::replace() {
  const uint64_t unused_ns = below(2) == 0 ? 0 : below(kHeartbeatNs);
  bool done = false;
  stage_.world.begin_operation(Operation::REPLACE);
  core_->space.for_each_cold(unused_ns, [&](const core::Located& located) {
    if (done || located.header.checksum_kind == BH_CHECKSUM_NONE || below(3) == 0) return;
    const Status status = replace(located);
    done = status != Status::VALUE_TOO_LARGE;
  });
  stage_.world.end_operation(done);
  if (core_->membership.standing() != Status::OK)
    expect("replace", core_->membership.standing(), {});
}

/// VALUE_TOO_LARGE: the replacement is not smaller.
Status User::replace(const core::Located& old) {
  const auto k = stage_.model.key_of(old.header.key_hash[0], old.header.key_hash[1]);
  if (!k) stage_.world.fail("bytes", "a cold block has a key that was never put");
  std::vector<std::byte> bytes(old.header.stored_bytes);
  const Span to{bytes.data(), bytes.size()};
  std::string user_metadata;
  if (!core_->reading.read_stored(old, {&to, 1}, user_metadata)) return Status::BUSY;
  const uint32_t version = judge("read to be replaced", *k,
                                 Model::Seen::whole(std::move(bytes), old.header.length_bytes,
                                                    old.header.codec, /*begun_ns=*/0));
  judge_user("read to be replaced", *k, version, user_metadata);
  const uint32_t next = stage_.model.new_replacement(*k, machine->host, version);
  const Model::Stored stored = stage_.model.stored(*k, next);
  const ConstSpan in[] = {{stored.bytes.data(), stored.bytes.size()}};
  const core::Content replacement = content(stored, in);
  // A request nevertheless is refused.
  if (core_->writing.room_for(replacement, old.header.key_bytes) >=
          core::room_for(core_->context().layout, old.header) &&
      below(8) != 0)
    return Status::VALUE_TOO_LARGE;
  stage_.world.note_store(Since::REPLACES);
  const Status status = core_->space.replace(old, replacement);
  if (status != Status::OK) stage_.model.refuse(*k, next);
  expect("replace", status, {Status::NO_SPACE, Status::BUSY});
  ++(status == Status::OK ? stage_.counts.replacements : stage_.counts.not_replaced);
  return status;
}

void User::remove() {
  const uint32_t k = any_key();
  const auto lineages = begin_removal(k);
  stage_.world.begin_operation(Operation::REMOVE, k);
  const Status status = core_->writing.remove(key(k));
  stage_.world.end_operation(static_cast<uint64_t>(status));
  note_removal(k, status, lineages);
}

/// Returns the contents that it is to remove. A block stored in a life that is over now belongs to
/// another host.
std::vector<Model::Lineage> User::begin_removal(uint32_t k) {
  std::vector<Model::Lineage> lineages = stage_.model.lineages_of(k);
  std::erase_if(lineages, [&](const Model::Lineage& lineage) {
    return !stage_.rules.stands({lineage.host, lineage.life});
  });
  stage_.model.begin_removal(k);
  return lineages;
}

/// For a removal in the operation that has just ended.
void User::note_removal(uint32_t k, Status status, const std::vector<Model::Lineage>& lineages) {
  uint64_t asked = uint64_t{1} << machine->host;
  for (const Thread::Asked& one : stage_.world.current().asked) {
    if (one.key_hash == key(k).hash.low) asked |= uint64_t{1} << one.host;
  }
  for (const auto& [version, host, life] : lineages) {
    if (status == Status::OK && (asked >> host & 1) != 0 && !stage_.world.cloned())
      stage_.model.note_removed(k, version, stage_.world.now_ns());
  }
  if (status == Status::OK || status == Status::NOT_FOUND) stage_.model.end_removal(k);
  expect("remove", status, {Status::NOT_FOUND, Status::BUSY});
  stage_.counts.removals += status == Status::OK;
}

void User::exists() {
  std::vector<std::string_view> keys;
  for (uint32_t k = 0; k < stage_.world.plan().keys; ++k) keys.push_back(stage_.model.key(k));
  std::vector<uint8_t> present(keys.size());
  // Put, and moved or replaced, so long ago that entries, directory lines and words of the log have
  // settled: on strong memory, before the batch began.
  std::vector<bool> must(keys.size());
  const uint64_t now_ns = stage_.world.now_ns();
  const uint64_t margin_ns = stage_.world.plan().weak ? 2 * kSettleNs : 0;
  const auto kept = [&](uint32_t k) {
    return !stage_.world.plan().eviction && stage_.model.must_be_found(k) &&
           std::max(stage_.model.kept_ns(k), stage_.model.entry_ns(k)) + margin_ns < now_ns;
  };
  for (uint32_t k = 0; k < keys.size(); ++k) must[k] = kept(k);
  // A batch reads the indexes of the hosts that are known when it begins, a look-up of those known
  // then.
  const uint64_t known_at = core_->context().private_word(offsetof(bh_host_private, probed_hosts));
  const uint64_t known = stage_.world.machine().cache.peek(known_at);
  std::vector<bool> gone(keys.size());
  const auto ask = [&] {
    const uint64_t begun_ns = stage_.world.now_ns();
    for (uint32_t k = 0; k < keys.size(); ++k) gone[k] = stage_.model.gone(k, begun_ns);
    stage_.world.begin_operation(Operation::EXISTS);
    const uint64_t count = core_->lookup.exists(Model::kNamespace, keys, present.data());
    stage_.world.end_operation(count);
    for (uint32_t k = 0; k < keys.size() && !stage_.world.cloned(); ++k) {
      if (gone[k] && present[k] != 0 && stage_.model.gone(k, begun_ns))
        stage_.world.fail("mirror", fmt::format("a batch finds key {}, which was removed", k));
    }
    for (uint32_t k = 0; k < keys.size(); ++k) must[k] = must[k] && kept(k) && present[k] == 0;
    return std::find(must.begin(), must.end(), true) != must.end();
  };
  if (!ask()) return;
  for (uint32_t k = 0; k < keys.size(); ++k) {
    if (!must[k]) continue;
    stage_.world.begin_operation(Operation::GET, k);
    const bool found = core_->lookup.locate(key(k)).has_value();
    stage_.world.end_operation(found);
    if (found && kept(k) && stage_.world.machine().cache.peek(known_at) == known)
      stage_.world.fail("mirror", fmt::format("a batch does not find key {}, one look-up does", k));
  }
}

// ---- leases ----

void User::lease() {
  if (worker().leases.size() == kHeldMax) return release();
  const uint32_t k = any_key();
  // Some expire while they are in use.
  const uint64_t ttl_ms = below(3) == 0 ? 1 + below(3 * kTimes.heartbeat_ms) : 600'000;
  stage_.world.begin_operation(Operation::LEASE, k, ttl_ms);
  stage_.world.note_store(Since::LEASE);
  const uint64_t called_ns = stage_.world.now_ns();
  const auto known_over = stage_.rules.known_over(machine->host);
  auto lease = core_->reading.acquire(key(k), ttl_ms);
  stage_.world.end_operation(static_cast<uint64_t>(lease.status()));
  expect("acquire", lease.status(),
         {Status::NOT_FOUND, Status::LIMIT_REACHED, Status::COPY_ONLY, Status::CODED});
  if (!lease) return;
  ++stage_.counts.leases;
  // The time limit counts from an instant in acquire().
  const uint64_t taken_ns = stage_.world.now_ns() - called_ns;
  const uint64_t ttl_ns = ttl_ms * 1'000'000;
  if (taken_ns < ttl_ns) stage_.rules.check_lease(lease->offset, known_over);
  stage_.model.add_lease(stage_.world, *this, lease->token, lease->offset,
                         ttl_ns - std::min(ttl_ns, taken_ns));
  worker().leases.push_back({*lease, k, {}});
}

/// Sometimes twice: the bytes must not change.
void User::read_in_place() {
  if (worker().leases.empty()) return;
  Leased& leased = worker().leases[below(worker().leases.size())];
  stage_.world.begin_operation(Operation::READ, leased.key);
  std::vector<std::byte> bytes =
      access_->read_bytes(leased.lease.offset, leased.lease.length_bytes);
  // Whether they are right counts only if a check, or the release, reports OK.
  if (leased.bytes.empty() || leased.bytes == bytes)
    leased.bytes = std::move(bytes);
  else
    leased.bytes.assign(1, std::byte{0});
  const bool checks = below(2) == 0;
  const Status status = checks ? core_->reading.check_lease(leased.lease) : Status::LAPSED;
  stage_.world.end_operation(static_cast<uint64_t>(status));
  expect("check_lease", status, {Status::LAPSED});
  if (status == Status::OK) judge_leased("read in place, and checked as valid", leased);
}

void User::judge_leased(const char* how, const Leased& leased) {
  if (leased.bytes.empty() || stage_.world.cloned()) return;
  judge(how, leased.key,
        Model::Seen::whole(std::vector(leased.bytes), leased.bytes.size(), BH_CODEC_RAW,
                           /*begun_ns=*/0));
}

void User::release() {
  if (worker().leases.empty()) return;
  const size_t n = below(worker().leases.size());
  Leased leased = std::move(worker().leases[n]);
  worker().leases.erase(worker().leases.begin() + static_cast<std::ptrdiff_t>(n));
  const uint64_t token = leased.lease.token;
  stage_.world.begin_operation(Operation::RELEASE, leased.key);
  stage_.model.end_lease(*this, token);  // no reads in place from here on
  const Status status = core_->reading.release(leased.lease);
  stage_.world.end_operation(static_cast<uint64_t>(status));
  expect("release", status, {Status::LAPSED});
  ++(status == Status::OK ? stage_.counts.leases_valid : stage_.counts.leases_lapsed);
  if (status == Status::OK) judge_leased("read in place, and released as valid", leased);
}

// ---- reservations ----

void User::reserve() {
  if (worker().reservations.size() == kHeldMax) return finish_reservation();
  const uint32_t k = any_key();
  const uint32_t version = stage_.model.new_reserved(k, machine->host);
  const std::vector<std::byte> value = stage_.model.value(k, version);
  stage_.world.begin_operation(Operation::RESERVE, k, version);
  auto reservation =
      core_->writing.reserve(key(k), value.size(), stage_.model.stored(k, version).user_metadata);
  stage_.world.end_operation(static_cast<uint64_t>(reservation.status()));
  expect("reserve", reservation.status(), {Status::NO_SPACE, Status::BUSY});
  if (!reservation || reservation->present) return;
  ++stage_.counts.reservations;
  stage_.model.hold(stage_.world, *this, reservation->offset, reservation->length_bytes);
  access_->store_bytes(reservation->offset, value);
  worker().reservations.push_back({*reservation, k, version});
}

void User::finish_reservation() {
  if (worker().reservations.empty()) return;
  const size_t n = below(worker().reservations.size());
  Reserved reserved = std::move(worker().reservations[n]);
  worker().reservations.erase(worker().reservations.begin() + static_cast<std::ptrdiff_t>(n));
  const bool commits = below(3) != 0;
  stage_.world.begin_operation(commits ? Operation::COMMIT : Operation::ABORT, reserved.key,
                               reserved.version);
  PayloadSum sum;
  if (stage_.world.plan().some_without_sum && below(2) != 0) {
    sum.by = PayloadSum::By::NONE;
    stage_.model.make_uncertain(reserved.key);
  } else if (reserved.version % 2 == 0) {
    const auto value = stage_.model.value(reserved.key, reserved.version);
    sum = {PayloadSum::By::WRITER, payload_checksum(value.data(), value.size())};
  }
  const auto removals = stage_.model.removals(reserved.key);
  const Status status = commits ? core_->writing.commit(reserved.reservation, sum)
                                : core_->writing.abort(reserved.reservation);
  stage_.world.end_operation(static_cast<uint64_t>(status));
  expect(commits ? "commit" : "abort", status,
         {Status::NO_SPACE, Status::INDEX_FULL, Status::BUSY});
  if (!commits || status != Status::OK)
    stage_.model.refuse(reserved.key, reserved.version);
  else
    note_stored(reserved.key, removals);
}

// ---- namespaces ----

void User::use_space() {
  const auto n = static_cast<uint32_t>(below(kSpaces));
  const uint64_t roll = below(10);
  if (spaces_[n] == 0 || roll < 2) return open_space(n);
  return roll < 8 ? put_into_space(n) : remove_space(n);
}

/// With one of two layouts. Two that succeed while no removal begins or ends have the same id.
void User::open_space(uint32_t n) {
  Space& space = stage_.spaces[n];
  const uint64_t removals = space.removals_begun;
  const bool none_under_way = removals == space.removals_ended;
  KvLayout layout{};
  layout.number_format = BH_NUMBER_BF16;
  layout.key_channels = static_cast<uint16_t>(1 + below(2));
  stage_.world.begin_operation(Operation::NONE);
  const auto opened =
      core_->namespaces.open_namespace({fmt::format("space {}", n), "", {layout, {}}});
  stage_.world.end_operation(static_cast<uint64_t>(opened.status()));
  expect("open a namespace", opened.status(), {Status::LAYOUT_MISMATCH, Status::BUSY});
  stage_.counts.spaces += opened.status() == Status::OK;
  stage_.counts.spaces_refused += opened.status() == Status::LAYOUT_MISMATCH;
  if (!opened) return;
  spaces_[n] = *opened;
  if (!none_under_way || removals != space.removals_begun) return;
  if (space.id != 0 && space.id != *opened)
    stage_.world.fail("namespace",
                      fmt::format("process {} registers '{}' as {:#x}, but it is {:#x}", index, n,
                                  *opened, space.id));
  space.id = *opened;
}

void User::put_into_space(uint32_t n) {
  const std::vector<std::byte> bytes(100, std::byte{1});
  const ConstSpan in[] = {{bytes.data(), bytes.size()}};
  const std::string name = fmt::format("in space {}", below(4));
  stage_.world.begin_operation(Operation::PUT, 254, n);
  const Status status = core_->writing.put(core::Key(spaces_[n], name), in);
  stage_.world.end_operation(static_cast<uint64_t>(status));
  expect("put into a namespace", status,
         {Status::NO_SPACE, Status::INDEX_FULL, Status::BUSY, Status::NAMESPACE_GONE});
  stage_.counts.spaces_gone += status == Status::NAMESPACE_GONE;
  if (status == Status::NAMESPACE_GONE) spaces_[n] = 0;
}

/// If the process dies in the middle, the removal counts as under way for ever.
void User::remove_space(uint32_t n) {
  Space& space = stage_.spaces[n];
  ++space.removals_begun;
  space.id = 0;
  stage_.world.begin_operation(Operation::NONE);
  const auto removed = core_->namespaces.remove_namespace(fmt::format("space {}", n));
  stage_.world.end_operation(static_cast<uint64_t>(removed.status()));
  ++space.removals_ended;
  expect("remove a namespace", removed.status(), {Status::NOT_FOUND, Status::BUSY});
  stage_.counts.spaces_removed += removed.status() == Status::OK;
}

// ---- phases ----

void User::do_phase(Phase phase) {
  core_->growth.refresh();
  if (phase == Phase::LEAVE) return leave();
  if (phase == Phase::LOOK) return look();
  if (phase == Phase::CHECK) return check();
  if (!leads()) return;
  if (phase == Phase::REMOVE) return remove_all();
  if (phase == Phase::FILL) return fill();
  for (Reserved& reserved : worker().reservations) {
    expect("abort", core_->writing.abort(reserved.reservation), {});
  }
  worker().reservations.clear();
  for (const core::Block& block : taken_) core_->allocator().release(block);
  taken_.clear();
}

/// One process does it for all hosts: blocks of other hosts by request.
void User::remove_all() {
  if (index != 0) return;
  for (uint32_t k = 0; k < stage_.world.plan().keys; ++k) {
    stage_.world.begin_operation(Operation::REMOVE, k);
    const Status status = core_->writing.remove(key(k));
    stage_.world.end_operation(static_cast<uint64_t>(status));
    expect("remove, at rest", status, {Status::NOT_FOUND, Status::BUSY});
  }
  if (stage_.world.plan().work != Work::SPACES) return;
  for (uint32_t n = 0; n < kSpaces; ++n) remove_space(n);
}

/// One process does it for all hosts.
void User::check() {
  if (index != 0) return;
  const CheckReport report = core_->inspection.check(/*payload=*/true, {});
  for (const CheckFinding& finding : report.findings) {
    // A zombie may have written over blocks that its successor stored: their copies are refused.
    if (finding.data_lost && stage_.rules.zombies()) continue;
    stage_.world.fail(
        "check", fmt::format("{} ({})", finding.what, stage_.world.map().describe(finding.offset)));
  }
}

void User::look() {
  for (uint32_t k = 0; k < stage_.world.plan().keys; ++k) {
    const auto get = [&] {
      StoredSink sink;
      stage_.world.begin_operation(Operation::GET, k);
      auto length = core_->reading.get_stored(key(k), sink);
      stage_.world.end_operation(static_cast<uint64_t>(length.status()));
      expect("get, at rest", length.status(), {Status::NOT_FOUND});
      return length;
    };
    auto length = get();
    // Users are at rest, the duties of their hosts go on: a look-up that stands still within one
    // directory line passes over a block that is moved meanwhile.
    if (!length) length = get();
    stage_.keys_found += length.status() == Status::OK;
    if (stage_.must_find && !length && stage_.model.must_be_found(k))
      stage_.world.fail("lost", fmt::format("process {} does not find key {}", index, k));
  }
  check_usage();
}

/// The counters of the host are those of its blocks, once its duties stand still, unless a death
/// left a doubt. A zombie may have overwritten headers of blocks that were counted.
void User::check_usage() {
  core::Context<SimAccess>& c = core_->context();
  for (int tries = 0; !core_->usage.doubted() && !c.ended() && !stage_.rules.zombies(); ++tries) {
    uint64_t counted = 0, counted_bytes = 0, present = 0, present_bytes = 0;
    core_->usage.for_each(c.host, [&](const bh_usage& line) {
      counted += line.blocks;
      counted_bytes += line.stored_bytes;
    });
    core_->extents().for_each_slab([&](const core::Slab& slab) {
      for (uint64_t i = 0; i < slab.block_count; ++i) {
        const uint64_t slot = core_->extents().slot_of(slab, i);
        bh_block_header header;
        if (core_->allocator().word(slot).state != BH_BLOCK_COMMITTED ||
            !core_->lookup.read_header(slot, header))
          continue;
        present += 1;
        present_bytes += header.stored_bytes;
      }
    });
    if (counted == present && counted_bytes == present_bytes) return;
    if (tries == 100)
      stage_.world.fail("usage",
                        fmt::format("host {} counts {} blocks, {} bytes, and has {}, {}", c.host,
                                    counted, counted_bytes, present, present_bytes));
    stage_.world.sleep(kHeartbeatNs / 2);
  }
}

/// All hosts take all free space; extents move to the hosts that request them. The model detects a
/// block that is given out twice.
void User::fill() {
  // With many slots, hosts wait long for each, and inherit those that were never used one after
  // another.
  const uint64_t patience_ns = kFillPatienceNs * (stage_.world.plan().shape.hosts > 8 ? 8 : 1);
  uint64_t last_ns = stage_.world.now_ns(), seen = 0;
  for (uint32_t n = 0; stage_.blocks_reserved < stage_.blocks_wanted;) {
    const std::string name = fmt::format("fill-{}-{}", index, n);
    stage_.world.begin_operation(Operation::RESERVE, 255, n);
    auto reservation = core_->writing.reserve(core::Key(Model::kNamespace, name), 100);
    stage_.world.end_operation(static_cast<uint64_t>(reservation.status()));
    expect("reserve, at rest", reservation.status(), {Status::NO_SPACE, Status::BUSY});
    // In custody, where nothing is reserved to be filled in place.
    const auto block = reservation.status() == Status::BUSY
                           ? core_->allocator().reserve(kMinBlockBytes)
                           : std::nullopt;
    if (reservation) {
      stage_.model.hold(stage_.world, *this, reservation->offset, reservation->length_bytes);
      worker().reservations.push_back({*reservation, 0, 0});
    } else if (block) {
      stage_.model.hold(stage_.world, *this, block->offset, block->block_bytes);
      taken_.push_back(*block);
    }
    const bool got = reservation || block;
    stage_.blocks_reserved += got;
    n += got;
    if (stage_.blocks_reserved != seen) last_ns = stage_.world.now_ns();
    seen = stage_.blocks_reserved;
    if (stage_.world.now_ns() > last_ns + patience_ns) return;
    if (!got) stage_.world.sleep(4 * kHeartbeatNs);
  }
}

/// False if other processes of the host have the pool open.
bool User::leave_host() {
  stop_threads();
  stage_.world.begin_operation(Operation::LEAVE);
  const auto left = core_->joining.leave();
  stage_.world.end_operation(static_cast<uint64_t>(left.status()));
  silent_ = left.status() == Status::OK;
  if (!left) expect("leave", left.error(), {Status::IN_USE, Status::BUSY});
  stage_.counts.left += left.status() == Status::OK;
  return left.status() == Status::OK;
}

void User::detach() {
  stop_threads();
  stage_.world.begin_operation(Operation::DETACH);
  core_->joining.detach();
  stage_.world.end_operation(0);
}

/// The last process of a host leaves for it.
void User::leave() {
  while (leads() && !leave_host()) stage_.world.sleep(kHeartbeatNs);
  detach();
  phase_done_ = stage_.phase_number;
  stage_.world.end_process(kForever);
}

void User::leave_for(uint64_t duration_ns) {
  leaves_for_ns = 0;
  parking_ = true;
  while (second_thread_ != nullptr && !workers_[1].rests) stage_.world.sleep(kHeartbeatNs / 4);
  if (!leave_host()) {
    parking_ = false;
    return;
  }
  detach();
  stage_.world.end_process(duration_ns);
}

}  // namespace bowhead::sim
