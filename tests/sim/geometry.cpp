// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/geometry.h"

#include <fmt/format.h>

#include <array>

#include "base/assert.h"

namespace bowhead::sim {
namespace {

constexpr uint64_t kPage = 4096;

constexpr std::array<const char*, BH_PART_COUNT> kPartNames = {
    "slot",  "heartbeat", "decide",    "ack",    "own",    "namespaces", "hazards",
    "touch", "mail",      "index",     "log",    "counts", "usage",      "media",
    "rings", "private",   "processes", "leases", "view",   "locks",      "extents",
    "runs",  "groups",    "blocks",    "recency"};

}  // namespace

bh_geometry small_geometry(const Shape& shape) {
  bh_geometry g{};
  g.region_align_bytes = kPage;
  g.extent_bytes = kExtentBytes;
  g.extent_count = shape.extents;
  g.extents_max = shape.extents;
  g.min_block_bytes = kMinBlockBytes;
  g.index_bucket_count = shape.buckets;
  g.host_count = shape.hosts;
  g.process_count = shape.processes;
  g.lease_count = shape.leases;
  g.namespace_count = shape.namespaces;
  g.lock_count = shape.locks;
  g.touch_count = 8;
  core::plan_words(g, shape.worded);
  g.words_per_group = 2;
  g.log_count = shape.hosts > 1 ? 16 : 0;  // so small that it often runs over
  if (shape.growth != 0) {
    constexpr uint64_t kBetween = 6;  // numbers that lie between two sets, and around them
    g.range_bytes = kPage;
    g.extents_max += kGrownSets * (shape.growth + kBetween);
  }
  g.regions_offset = kPage;  // the core gets the superblock directly
  g.total_bytes = core::place_parts(g, kPage);
  g.max_bytes = g.total_bytes + kGrownSets * grown_bytes(shape);
  return g;
}

uint64_t grown_bytes(const Shape& shape) {
  constexpr uint64_t kOfHost = 6 * kPage;  // index, groups, words, recency
  return shape.growth * (kExtentBytes + kPage) + shape.hosts * kOfHost + kPage;
}

Map::Map(const bh_geometry& g) : layout_(g), places_(core::offset_end(g) / BH_LINE_BYTES) {
  if (g.range_bytes != 0) {
    further_.assign(places_.size(), true);
    for (const Range& range : core::ranges_of(g, core::set_0(g))) {
      for (uint64_t at = range.offset; at < range.end(); at += BH_LINE_BYTES)
        further_[at / BH_LINE_BYTES] = false;
    }
  }
  for (uint32_t host = 0; host < g.host_count; ++host) {
    for (uint16_t part = 0; part < BH_PART_COUNT; ++part)
      mark(layout_.part(host, part), g.parts[part].bytes,
           {Kind::REGION, static_cast<uint8_t>(host), part});
  }
  for (uint64_t e = 0; e < layout_.extent_limit(); ++e) {
    const auto extent = static_cast<uint16_t>(e);
    mark(layout_.descriptor(e), BH_LINE_BYTES, {Kind::DESCRIPTOR, 0, extent});
    for (uint64_t slot = layout_.first_slot(e); slot < layout_.first_slot(e + 1); ++slot) {
      mark(layout_.header(slot), BH_LINE_BYTES, {Kind::HEADER, 0, extent});
      mark(layout_.header(slot) + BH_LINE_BYTES, BH_LINE_BYTES, {Kind::KEY, 0, extent});
    }
    mark(layout_.block_words(layout_.first_slot(e)),
         sizeof(bh_block_words) * layout_.slots_per_extent(), {Kind::WORDS, 0, extent});
    mark(layout_.extent_offset(e), g.extent_bytes, {Kind::PAYLOAD, 0, extent});
  }
}

void Map::mark(uint64_t offset, uint64_t bytes, Place place) {
  for (uint64_t at = offset; at < offset + bytes; at += BH_LINE_BYTES) {
    BOWHEAD_ASSERT(places_[at / BH_LINE_BYTES].kind == Kind::NOTHING);
    places_[at / BH_LINE_BYTES] = place;
  }
}

std::string Map::describe(uint64_t offset) const {
  const Place place = at(offset);
  const auto& g = layout_.geometry();
  const uint64_t word = offset % BH_LINE_BYTES / 8;
  const uint64_t in_table =
      place.kind == Kind::NOTHING || place.kind == Kind::REGION
          ? 0
          : (offset - layout_.descriptor(place.index)) / sizeof(bh_block_slot);
  switch (place.kind) {
    case Kind::NOTHING:
      return fmt::format("offset {:#x}", offset);
    case Kind::REGION:
      return fmt::format("host {} {}[{}]", place.host, kPartNames[place.index],
                         (offset - layout_.part(place.host, place.index)) / 8);
    case Kind::DESCRIPTOR:
      return fmt::format("extent {} descriptor word {}", place.index, word);
    case Kind::HEADER:
      return fmt::format("extent {} header {} word {}", place.index, in_table - 1, word);
    case Kind::KEY:
      return fmt::format("extent {} key {} word {}", place.index, in_table - 1, word);
    case Kind::WORDS: {
      const uint64_t first = layout_.block_words(layout_.first_slot(place.index));
      return fmt::format("extent {} words of block {}, {}", place.index,
                         (offset - first) / sizeof(bh_block_words), word % 4);
    }
    case Kind::PAYLOAD:
      return fmt::format("extent {} payload +{:#x}", place.index,
                         offset - g.payload_offset - place.index * g.extent_bytes);
  }
  return {};
}

}  // namespace bowhead::sim
