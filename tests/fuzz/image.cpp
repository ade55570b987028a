// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/image.h"

#include <array>

#include "base/random.h"

namespace bowhead::fuzz {
namespace {

constexpr std::array<size_t, 7> kSizes = {1, 100, 4096, 16384, 12345, 20000, 70000};
constexpr size_t kLargeBytes = (2 << 20) + 100;  // more than an extent
constexpr uint32_t kLargeKey = 5;

bh_superblock superblock(uint32_t hosts) {
  bh_superblock sb{};
  sb.magic = sb.magic_end = BH_SUPERBLOCK_MAGIC;
  sb.version = BH_FORMAT_VERSION;
  sb.pool_id[0] = hosts;
  sb.pool_id[1] = 7;
  sb.checksum_kind = BH_CHECKSUM_XXH3_TREE_4K;
  sb.seal_kind = 1;
  const core::GeometryChoice choice{.total_bytes = core::kPoolBytesMin * hosts, .hosts = hosts};
  sb.geometry = core::plan_geometry(choice).value();
  return sb;
}

ConstSpan span_of(const std::vector<std::byte>& value) { return {value.data(), value.size()}; }

void add_lines(std::set<uint64_t>& lines, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset / BH_LINE_BYTES * BH_LINE_BYTES; at < offset + bytes;
       at += BH_LINE_BYTES)
    lines.insert(at);
}

/// Records the place of a key's block, as the open `core` finds it.
StoredKey describe(FuzzCore& core, uint64_t ns, uint32_t key) {
  const core::Layout& layout = core.context().layout;
  const std::string text = key_text(key);
  const auto located = core.lookup.locate(core::Key(ns, text));
  BOWHEAD_ASSERT(located);
  StoredKey stored;
  stored.payload_offset = located->found.entry.block_offset;
  stored.payload_bytes = located->header.stored_bytes;
  auto& lines = stored.read_lines;
  add_lines(lines, layout.header(located->slot),
            sizeof(bh_block_slot) * ((text.size() + BH_LINE_BYTES - 1) / BH_LINE_BYTES));
  add_lines(lines, stored.payload_offset, stored.payload_bytes);
  const uint64_t bucket = layout.bucket(located->found.host, located->found.bucket);
  add_lines(
      lines,
      bucket + offsetof(bh_index_bucket, entries) + located->found.index * sizeof(bh_index_entry),
      BH_LINE_BYTES);
  stored.rebuild_lines = lines;
  BOWHEAD_ASSERT(located->found.probe == 0);  // the image is far from full
  add_lines(lines, bucket, BH_LINE_BYTES);
  const auto cut = core.extents().held_slab(layout.extent_of_slot(located->slot));
  add_lines(stored.rebuild_lines, layout.descriptor(cut.head), BH_LINE_BYTES);
  add_lines(stored.rebuild_lines, layout.word(located->found.host, BH_PART_OWN, cut.head),
            8 * cut.extent_span);
  return stored;
}

/// Host `host` joins, stores its share of the keys, and leaves.
void fill(Image& image, uint32_t host, uint32_t hosts) {
  World& world = image.world;
  world.become(host);
  FuzzAccess access(world, {.id = 1 + host});
  FuzzCore core(access, world.superblock, host);
  BOWHEAD_ASSERT(core.joining.attach({}));
  image.namespace_id = core.namespaces.open_namespace({"fuzz", "bytes"}).value();
  const uint32_t first = kStoredKeys * host / hosts, last = kStoredKeys * (host + 1) / hosts;
  for (uint32_t key = first; key < last; ++key) {
    const ConstSpan value[] = {span_of(content(key, 0))};
    const std::string text = key_text(key);
    BOWHEAD_ASSERT(core.writing.put(core::Key(image.namespace_id, text), value) == Status::OK);
    image.stored.push_back(describe(core, image.namespace_id, key));
  }
  core.joining.detach();
}

/// A process of host 0 that reserves, leases, retires, locks and carves, and then dies.
void die(Image& image) {
  World& world = image.world;
  world.become(0);
  FuzzAccess access(world, {});
  FuzzCore core(access, world.superblock, 0);
  BOWHEAD_ASSERT(core.joining.attach({}));
  const core::Layout& layout = world.layout;
  const uint64_t ns = image.namespace_id;
  BOWHEAD_ASSERT(core.writing.reserve(core::Key(ns, "reserved by the dead"), 5000));
  BOWHEAD_ASSERT(core.reading.acquire(core::Key(ns, key_text(1)), 1000));
  const auto located = core.lookup.locate(core::Key(ns, key_text(2)));
  BOWHEAD_ASSERT(core.allocator().begin_retire(located->slot));
  image.stored[2].in_limbo = true;
  uint32_t holder = 0;
  BOWHEAD_ASSERT(core.index().try_lock(core::Key(ns, key_text(3)).hash, &holder));
  // An entry that it was writing: claimed, but not yet sealed.
  const uint64_t word = layout.bucket(0, 0);
  BOWHEAD_ASSERT(access.load(word) == 0);
  access.store(word, core::directory_word(0x1234, core.context().process + 1));
  for (uint64_t extent = 0; extent < layout.geometry().extent_count; ++extent) {
    const uint64_t at = layout.extent_state(0, extent);
    const auto state = core::StateWord::unpack(access.load(at));
    if (!core.extents().is_free(extent)) continue;
    access.store(at, state.next(BH_EXTENT_CARVING, core.context().process).pack());
    break;
  }
}

std::unique_ptr<Image> make_image(uint32_t hosts, bool died) {
  auto image = std::make_unique<Image>(superblock(hosts));
  World& world = image->world;
  const core::Layout& layout = world.layout;
  core::write_new_regions(
      layout, core::Sealer(world.superblock.pool_id),
      [&](uint64_t at, uint64_t word) { std::memcpy(world.raw() + at, &word, sizeof word); });
  for (uint32_t host = 0; host < hosts; ++host) fill(*image, host, hosts);
  if (died) die(*image);
  world.become(0);
  world.save();
  world.restore();
  return image;
}

}  // namespace

std::string key_text(uint32_t key) {
  constexpr std::array<size_t, 6> kLengths = {3, 63, 64, 65, 100, 512};
  std::string text = "k" + std::to_string(key);
  text.resize(std::max(text.size(), kLengths[key % kLengths.size()]), '.');
  return text;
}

const std::vector<std::byte>& content(uint32_t key, uint32_t version) {
  static std::array<std::vector<std::byte>, kKeys * kVersions> all;
  BOWHEAD_ASSERT(key < kKeys && version < kVersions);
  auto& value = all[key * kVersions + version];
  if (!value.empty()) return value;
  value.resize(key == kLargeKey && version == 0 ? kLargeBytes
                                                : kSizes[(key + version) % kSizes.size()]);
  Random random(key * kVersions + version + 1);
  for (std::byte& byte : value) byte = static_cast<std::byte>(random.next());
  return value;
}

Image& image(uint32_t hosts, bool died) {
  static std::array<std::unique_ptr<Image>, 4> all;
  auto& image = all[(hosts - 1) * 2 + (died ? 1 : 0)];
  if (!image) image = make_image(hosts, died);
  return *image;
}

}  // namespace bowhead::fuzz
