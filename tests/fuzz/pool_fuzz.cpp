// SPDX-License-Identifier: Apache-2.0
// The whole core over a pool whose stored bytes are changed arbitrarily.
//
// The input damages a small pool, opens it, uses it and damages it further. Whatever the damage,
// the core must not crash, assert, touch memory outside the pool or run without end (access.h
// checks), and
//   - a get returns bytes that were put under that key, or no bytes;
//   - a block is found as long as no line on the way to it was changed, and is found again after a
//     repair or a reboot as long as no line from which a rebuild starts was changed;
//   - after a repair nothing is wrong any more and no space is lost.
// Changed bytes may be sealed again, so that the checks after the seals are reached too. Then the
// last two promises do not hold, since a sealed line can be a forgery. The first still holds,
// except for a payload that a forged header calls unchecked; such headers are not made.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "tests/fuzz/image.h"
#include "tests/fuzz/input.h"

namespace bowhead::fuzz {
namespace {

using core::Key;

/// A part of the pool that holds one kind of data.
struct Area {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool host_private = false;
  std::vector<uint64_t> words;  ///< offsets of the words that are not zero in the image
};

std::vector<Area> areas_of(const World& world) {
  const core::Layout& layout = world.layout;
  const auto& g = layout.geometry();
  std::vector<Area> areas;
  for (uint32_t host = 0; host < g.host_count; ++host) {
    for (uint32_t part = 0; part < BH_PART_COUNT; ++part)
      areas.push_back({layout.part(host, part), g.parts[part].bytes, part >= BH_PART_PRIVATE, {}});
  }
  areas.push_back({g.tables_offset, g.table_bytes * g.extent_count, false, {}});
  areas.push_back({g.payload_offset, g.extent_bytes * g.extent_count, false, {}});
  for (Area& area : areas) {
    for (uint64_t at = area.offset; at + 8 <= area.offset + area.bytes; at += 8) {
      if (world.raw_word(at) != 0) area.words.push_back(at);
    }
  }
  return areas;
}

const std::vector<Area>& areas_of(uint32_t hosts, bool died) {
  static std::array<std::vector<Area>, 4> all;
  auto& areas = all[(hosts - 1) * 2 + (died ? 1 : 0)];
  if (areas.empty()) areas = areas_of(image(hosts, died).world);
  return areas;
}

/// A process that has the pool open, or tries to open it.
struct Handle {
  Handle(World& world, FuzzAccess::Machine machine, bool evicting)
      : access(world, machine), core(access, settings(world.superblock, evicting), 0) {}

  static bh_superblock settings(bh_superblock superblock, bool evicting) {
    superblock.evict_high_permille = evicting ? 980 : 0;
    superblock.evict_low_permille = evicting ? 960 : 0;
    return superblock;
  }

  FuzzAccess access;
  FuzzCore core;
};

class Run {
 public:
  explicit Run(Input input) : in_(input) {}
  void go();

 private:
  void damage();
  void seal_again(uint64_t word);
  void open();
  void close(bool in_order);
  void repair();
  void operate();
  void operate_on(uint32_t key, uint32_t what);

  void put(uint32_t key, uint32_t version);
  void get(uint32_t key);
  void get_into(uint32_t key, size_t room);
  void reserve(uint32_t key, uint32_t version, uint32_t how);
  void lease(uint32_t key);
  void release();
  void look_at_many(bool prefix);
  void report(uint32_t what);
  void fill(uint32_t count);

  Key key_of(uint32_t key) {
    text_ = key_text(key);
    return Key(image_->namespace_id, text_);
  }
  void check_found(bool rebuilt);
  void check_bytes(uint32_t key, const std::byte* data, uint64_t length) const;
  void check_repaired();

  Input in_;
  Image* image_ = nullptr;
  const std::vector<Area>* areas_ = nullptr;
  FuzzAccess::Machine machine_;
  bool evicting_ = false;
  bool patient_ = false;  ///< also reads large blocks
  std::unique_ptr<Handle> handle_;
  std::vector<Lease> leases_;
  std::string text_;
  bool put_[kKeys][kVersions] = {};

  // The changes to the pool, from which follows what must still hold.
  std::set<uint64_t> damaged_lines_;
  bool damaged_private_ = false;
  bool forged_ = false;
  bool used_ = false;  ///< operations that can change the pool have run
};

// ---- damage ----

/// {area: u8, how: u8, where: u16, value: u64}. How: bits 0 and 1: width; bit 2: at any place, else
/// at a place in use; bit 3: seal the line again; bit 4: xor.
void Run::damage() {
  const Area& area = (*areas_)[in_.take<uint8_t>() % areas_->size()];
  const auto how = in_.take<uint8_t>();
  const auto where = in_.take<uint16_t>();
  auto value = in_.take<uint64_t>();
  if (area.bytes == 0) return;
  const bool anywhere = (how & 4) != 0 || area.words.empty();
  const uint64_t word = anywhere ? area.offset + uint64_t{where} * 8 % area.bytes
                                 : area.words[where % area.words.size()];
  const size_t width = size_t{1} << (how & 3);
  const uint64_t at = word + value % 8 / width * width;
  std::byte* target = image_->world.raw() + at;
  uint64_t before = 0;
  std::memcpy(&before, target, width);
  if ((how & 16) != 0) value ^= before;
  std::memcpy(target, &value, width);
  if (at >= image_->world.payload_offset()) image_->world.payload_changed(at, width);
  damaged_lines_.insert(at / BH_LINE_BYTES * BH_LINE_BYTES);
  damaged_private_ |= area.host_private;
  if ((how & 8) != 0) seal_again(word);
}

void Run::seal_again(uint64_t word) {
  World& world = image_->world;
  const core::Layout& layout = world.layout;
  if (word >= world.payload_offset()) return;
  forged_ = true;
  const uint64_t at = word / BH_LINE_BYTES * BH_LINE_BYTES;
  core::Line line;
  std::memcpy(line.data(), world.raw() + at, sizeof line);
  if (at >= layout.geometry().tables_offset) {
    // A header keeps its kind of checksum: NONE would make any payload valid.
    auto header = core::from_line<bh_block_header>(line);
    bh_block_header saved;
    std::memcpy(&saved, world.saved() + at, sizeof saved);
    if (header.checksum_kind == BH_CHECKSUM_NONE) header.checksum_kind = saved.checksum_kind;
    line = core::to_line(header);
  }
  for (uint32_t host = 0; host < layout.geometry().host_count; ++host) {
    const uint64_t first = layout.name_space(host, 0);
    if (at < first || at >= first + layout.geometry().parts[BH_PART_NAMESPACES].bytes) continue;
    bh_namespace entry;
    const uint64_t entry_at = first + (at - first) / sizeof entry * sizeof entry;
    std::memcpy(&entry, world.raw() + entry_at, sizeof entry);
    entry.content_checksum = hash64(&entry.layout, BH_NAMESPACE_CONTENT_BYTES);
    std::memcpy(line.data(), &entry, sizeof line);
    core::Sealer(world.superblock.pool_id).seal(line, entry_at);
    std::memcpy(world.raw() + entry_at, line.data(), sizeof line);
    return;
  }
  core::Sealer(world.superblock.pool_id).seal(line, at);
  std::memcpy(world.raw() + at, line.data(), sizeof line);
}

// ---- coming and going ----

void Run::open() {
  if (handle_) return;
  const uint64_t boot_before = image_->world.raw_word(
      image_->world.layout.part(0, BH_PART_PRIVATE) + offsetof(bh_host_private, recovered_boot_id));
  handle_ = std::make_unique<Handle>(image_->world, machine_, evicting_);
  const auto attached = handle_->core.joining.attach({});
  if (!attached) {
    const std::set<Status> possible = {Status::DAMAGED, Status::HOST_ID_IN_USE,
                                       Status::LIMIT_REACHED};
    BOWHEAD_ASSERT(possible.contains(attached.status()) && !attached.error().detail.empty());
    BOWHEAD_ASSERT(!damaged_lines_.empty() || attached.status() == Status::HOST_ID_IN_USE);
    handle_.reset();
    return;
  }
  check_found(/*rebuilt=*/boot_before != machine_.boot);
  used_ |= damaged_private_;  // the process believes the words of its own slot
}

void Run::close(bool in_order) {
  if (!handle_) return;
  if (in_order) handle_->core.joining.detach();
  used_ |= damaged_private_;
  handle_.reset();
  leases_.clear();
}

void Run::repair() {
  close(/*in_order=*/true);
  handle_ = std::make_unique<Handle>(image_->world, machine_, evicting_);
  const bool take_over = in_.take<uint8_t>() % 2 != 0;
  const auto repaired = handle_->core.joining.repair(take_over, {});
  handle_.reset();
  if (!repaired) {
    const std::set<Status> possible = {Status::HOST_ID_IN_USE, Status::LIMIT_REACHED};
    BOWHEAD_ASSERT(possible.contains(repaired.status()) && !repaired.error().detail.empty());
    BOWHEAD_ASSERT(!take_over || repaired.status() == Status::LIMIT_REACHED);
    return;
  }
  handle_ = std::make_unique<Handle>(image_->world, machine_, evicting_);
  const auto attached = handle_->core.joining.attach({});
  BOWHEAD_ASSERT(attached);
  check_repaired();
  check_found(/*rebuilt=*/true);
}

// ---- what must hold ----

/// Every stored block whose lines were not changed is found.
void Run::check_found(bool rebuilt) {
  if (forged_ || used_ || (damaged_private_ && !rebuilt)) return;
  for (uint32_t key = 0; key < image_->stored.size(); ++key) {
    const StoredKey& stored = image_->stored[key];
    const auto whole = [&](const std::set<uint64_t>& lines) {
      return std::none_of(damaged_lines_.begin(), damaged_lines_.end(),
                          [&](uint64_t line) { return lines.contains(line); });
    };
    if (stored.in_limbo || !whole(stored.read_lines) || !whole(stored.rebuild_lines)) continue;
    if (stored.payload_bytes > 100'000 && !patient_) {
      BOWHEAD_ASSERT(handle_->core.lookup.locate(key_of(key)) &&
                     "a block is lost that was not touched");
      continue;
    }
    static std::vector<std::byte> buffer;
    buffer.resize(std::max(buffer.size(), content(key, 0).size()));
    const Span to[] = {{buffer.data(), buffer.size()}};
    const auto got = handle_->core.reading.get(key_of(key), to);
    if (!got) fmt::print(stderr, "{} is lost\n", text_.substr(0, 20));
    BOWHEAD_ASSERT(got && "a block is lost that was not touched");
    check_bytes(key, buffer.data(), *got);
  }
}

/// The bytes are a version that was put under this key.
void Run::check_bytes(uint32_t key, const std::byte* data, uint64_t length) const {
  bool right = false;
  for (uint32_t version = 0; version < kVersions && !right; ++version) {
    const auto& value = content(key, version);
    right = put_[key][version] && value.size() == length &&
            std::memcmp(value.data(), data, length) == 0;
  }
  BOWHEAD_ASSERT(right && "bytes that were never put under this key");
}

/// Nothing is wrong, and every block of every slab is free or committed. Damage in memory of the
/// other host cannot be repaired.
void Run::check_repaired() {
  const auto& g = image_->world.layout.geometry();
  if (g.host_count > 1) return;
  const CheckReport report = handle_->core.inspection.check(/*payload=*/true, {});
  for (const auto& finding : report.findings) fmt::print(stderr, "{}\n", finding.what);
  BOWHEAD_ASSERT(report.findings.empty());
  uint64_t slab_extents = 0, free_extents = 0;
  const auto& extents = handle_->core.extents();
  const auto& allocator = handle_->core.allocator();
  extents.for_each_slab([&](const core::Slab& cut) {
    slab_extents += cut.extent_span;
    for (uint64_t i = 0; i < cut.block_count; ++i) {
      const uint32_t state = allocator.word(extents.slot_of(cut, i)).state;
      BOWHEAD_ASSERT(state == BH_BLOCK_FREE || state == BH_BLOCK_COMMITTED);
    }
  });
  for (uint64_t e = 0; e < g.extent_count; ++e) free_extents += extents.is_free(e);
  BOWHEAD_ASSERT(slab_extents + free_extents == g.extent_count && "an extent is lost");
}

// ---- operations ----

void Run::put(uint32_t key, uint32_t version) {
  const auto& value = content(key, version);
  // In two parts, as callers do.
  const size_t half = value.size() / 2;
  const ConstSpan from[] = {{value.data(), half}, {value.data() + half, value.size() - half}};
  put_[key][version] = true;  // also if it fails: it may still have been stored
  (void)handle_->core.writing.put(key_of(key), from);
}

void Run::get_into(uint32_t key, size_t room) {
  std::vector<std::byte> buffer(room);
  const Span to[] = {{buffer.data(), room / 3}, {buffer.data() + room / 3, room - room / 3}};
  const auto got = handle_->core.reading.get(key_of(key), to);
  if (!got) return;
  BOWHEAD_ASSERT(*got <= room);
  check_bytes(key, buffer.data(), *got);
}

void Run::get(uint32_t key) {
  const auto located = handle_->core.lookup.locate(key_of(key));
  // A larger buffer would take megabytes for every forged length.
  get_into(key, located ? std::min<size_t>(located->header.length_bytes, 4 << 20) : 100);
}

void Run::reserve(uint32_t key, uint32_t version, uint32_t how) {
  const auto& value = content(key, version);
  auto reservation = handle_->core.writing.reserve(key_of(key), value.size());
  if (!reservation || reservation->present) return;
  if (how % 4 == 0) {
    (void)handle_->core.writing.abort(*reservation);
    return;
  }
  std::memcpy(reservation->data, value.data(), value.size());
  put_[key][version] = true;
  (void)handle_->core.writing.commit(*reservation, {});
}

void Run::lease(uint32_t key) {
  auto lease = handle_->core.reading.acquire(key_of(key), 1000);
  if (!lease) return;
  const std::byte* payload = handle_->access.payload(lease->offset);
  BOWHEAD_ASSERT(lease->data == payload && lease->length_bytes > 0);
  (void)handle_->access.payload(lease->offset + lease->length_bytes - 1);
  leases_.push_back(*lease);
}

void Run::release() {
  if (leases_.empty()) return;
  const Status status = handle_->core.reading.release(leases_.back());
  BOWHEAD_ASSERT(status == Status::OK || status == Status::LAPSED ||
                 (status == Status::CLOSED && damaged_private_));
  leases_.pop_back();
}

void Run::look_at_many(bool touch) {
  std::vector<std::string> texts;
  for (uint32_t key = 0; key < kKeys; ++key) texts.push_back(key_text(key));
  const std::vector<std::string_view> keys(texts.begin(), texts.end());
  uint8_t present[kKeys];
  uint64_t slots[kKeys];
  const uint64_t count = handle_->core.lookup.exists(image_->namespace_id, keys, present, slots);
  BOWHEAD_ASSERT(count <= kKeys);
  if (touch) handle_->core.reading.touch_slots(slots);
}

void Run::report(uint32_t what) {
  FuzzCore& core = handle_->core;
  if (what == 0) {
    const CheckReport report = core.inspection.check(/*payload=*/true, {});
    for (const auto& finding : report.findings) BOWHEAD_ASSERT(!finding.what.empty());
    BOWHEAD_ASSERT(!damaged_lines_.empty() || report.findings.empty());
  } else if (what == 1) {
    PoolInfo info{};
    core.inspection.fill_info(info);
    BOWHEAD_ASSERT(info.hosts.size() == image_->world.layout.geometry().host_count);
  } else {
    uint64_t count = 0;
    core.inspection.list(
        [&](const BlockInfo& block) { return block.key.size() <= 65536 && ++count < 100; });
  }
}

/// Many blocks of the smallest size, to fill the pool.
void Run::fill(uint32_t count) {
  static const std::byte byte{1};
  for (uint32_t i = 0; i < count * 4; ++i) {
    const ConstSpan value[] = {{&byte, 1}};
    const std::string text = fmt::format("filler {}", i);
    image_->world.begin_operation();
    if (handle_->core.writing.put(Key(image_->namespace_id, text), value) == Status::NO_SPACE)
      return;
  }
}

/// {what: u8, key: u8}.
void Run::operate() {
  const auto what = in_.take<uint8_t>() % 16;
  const auto key = in_.take<uint8_t>();
  used_ |= what >= 4;
  switch (what) {
    case 0:
      return get(key % kKeys);
    case 1:
      return report(key % 3);
    case 2:
      return look_at_many(key % 2 != 0);
    case 3:
      return get_into(key % kKeys, in_.take<uint16_t>());
    case 4:
    case 5:
      return put(key % kKeys, key / kKeys % kVersions);
    case 6:
      return (void)handle_->core.writing.remove(key_of(key % kKeys));
    case 7:
      return lease(key % kKeys);
    case 8:
      return release();
    case 9:
      return reserve(key % kKeys, key / kKeys % kVersions, in_.take<uint8_t>());
    case 10:
      return fill(key);
    case 11:
      return (void)handle_->core.recovery.scavenge_dead();
    case 12:
      return (void)handle_->core.namespaces.open_namespace({fmt::format("n{}", key), "other"});
    case 13:
      image_->world.now_ns += uint64_t{key} * 100'000'000;
      return;
    default:
      return close(/*in_order=*/what == 14);
  }
}

void Run::go() {
  const auto flags = in_.take<uint8_t>();
  const uint32_t hosts = 1 + flags % 2;
  const bool died = (flags & 2) != 0;
  image_ = &image(hosts, died);
  areas_ = &areas_of(hosts, died);
  machine_ = {.id = (flags & 4) != 0 ? 2u : 1u, .boot = (flags & 8) != 0 ? 2u : 1u};
  evicting_ = (flags & 16) != 0;
  patient_ = (flags & 32) != 0;
  for (uint32_t key = 0; key < kStoredKeys; ++key) put_[key][0] = true;
  for (int records = 0; records < 64 && !in_.empty(); ++records) {
    image_->world.begin_operation();
    const auto record = in_.take<uint8_t>() % 8;
    if (record < 4) {
      damage();
    } else if (record == 4) {
      repair();
    } else {
      open();
      if (handle_) operate();
    }
  }
  image_->world.begin_operation();
  open();
  close(/*in_order=*/true);
  image_->world.restore();
}

}  // namespace
}  // namespace bowhead::fuzz

/// {flags: u8}, then records. Flags: bit 0: two hosts; 1: a process died; 2: opened on another
/// machine; 3: after a reboot; 4: eviction is on; 5: large blocks are read each time. Records: see
/// go(), damage(), operate().
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bowhead::fuzz::Run(bowhead::fuzz::Input(data, size)).go();
  return 0;
}
