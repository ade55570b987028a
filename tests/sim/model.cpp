// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "pool/core/core.h"
#include "tests/sim/world.h"

namespace bowhead::sim {
namespace {

/// The first word of every value.
uint64_t name_of(uint32_t key, uint32_t version) {
  return 0xB0B0000000000000u | uint64_t{key} << 32 | version;
}

}  // namespace

void Model::reset(const Plan& plan) {
  seed_ = plan.seed;
  larger_share_ = plan.larger_share;
  larger_from_ = plan.larger_from;
  late_ns_ = plan.weak ? kSettleNs : 0;
  keys_.clear();
  sets_.clear();
  for (uint32_t k = 0; k < plan.keys; ++k) {
    std::string name = fmt::format("key-{}", k);
    if (k % 4 == 3 || (plan.long_keys && k > 0)) name += std::string(BH_LINE_BYTES, 'x');
    const core::Key key(kNamespace, name);
    Key& added = keys_.emplace_back();
    added.name = name;
    added.hash_low = key.hash.low;
    added.hash_high = key.hash.high;
  }
  lineage_by_sum_.clear();
  holders_.clear();
  leases_.clear();
}

uint32_t Model::new_version(uint32_t key, uint32_t host) {
  return add(key, {.host = host, .lineage = static_cast<uint32_t>(keys_[key].puts.size())});
}

uint32_t Model::new_reserved(uint32_t key, uint32_t host) {
  const uint32_t version = static_cast<uint32_t>(keys_[key].puts.size());
  return add(key, {.host = host, .in_place = true, .lineage = version});
}

uint32_t Model::new_replacement(uint32_t key, uint32_t host, uint32_t of) {
  return add(key, {.host = host, .replaces = true, .lineage = keys_[key].puts[of].lineage});
}

uint32_t Model::add(uint32_t key, Put put) {
  keys_[key].puts.push_back(put);
  const auto version = static_cast<uint32_t>(keys_[key].puts.size() - 1);
  const std::vector<std::byte> bytes = stored(key, version).bytes;
  lineage_by_sum_[payload_checksum(bytes.data(), bytes.size())] = uint64_t{key} << 32 | put.lineage;
  return version;
}

Model::Stored Model::stored(uint32_t key, uint32_t version) const {
  Dice random(seed_ ^ name_of(key, version));
  const Put& put = keys_[key].puts[version];
  // Some values need a block of another size; their replacements do not.
  uint64_t bytes = 8 + random.below(160);
  if ((random.below(larger_share_) == 0 && !put.replaces) || key >= larger_from_)
    bytes += BH_PAYLOAD_ALIGN;
  const bool coded = random.below(4) < (put.replaces ? 3 : 1) && !put.in_place;
  Stored stored{std::vector<std::byte>(bytes), bytes, BH_CODEC_RAW};
  if (coded) {
    stored.codec = BH_CODEC_FRAME;
    stored.length = bytes + random.below(1000);
  }
  for (uint64_t at = 0; at < bytes; at += 8) {
    const uint64_t word = at == 0 ? name_of(key, version) : random.next();
    std::memcpy(stored.bytes.data() + at, &word, std::min<uint64_t>(8, bytes - at));
  }
  // Short enough to need no further line; half of the lineages have none.
  Dice user(seed_ ^ name_of(key, put.lineage) ^ 0x75736572);
  if (user.below(2) == 0) stored.user_metadata.resize(1 + user.below(40));
  for (char& one : stored.user_metadata) one = static_cast<char>(user.below(256));
  return stored;
}

std::optional<uint32_t> Model::key_of(uint64_t hash_low, uint64_t hash_high) const {
  for (uint32_t k = 0; k < keys_.size(); ++k) {
    if (keys_[k].hash_low == hash_low && keys_[k].hash_high == hash_high) return k;
  }
  return std::nullopt;
}

std::string Model::judge(uint32_t key, const Seen& seen, uint32_t* version) const {
  const std::vector<Put>& puts = keys_[key].puts;
  uint64_t first = 0;
  const std::vector<std::byte>& begin = seen.pieces[0].bytes;
  std::memcpy(&first, begin.data(), std::min<size_t>(8, begin.size()));
  *version = static_cast<uint32_t>(first);
  if (begin.size() < 8 || first != name_of(key, *version) || *version >= puts.size())
    return fmt::format("{} bytes that begin with {:#x} are no value of key {}", begin.size(), first,
                       key);
  const Stored right = stored(key, *version);
  if (seen.stored_bytes != right.bytes.size() || seen.length != right.length ||
      seen.codec != right.codec)
    return fmt::format("version {} of key {} is said to be {} bytes, coded in {} by {}", *version,
                       key, seen.length, seen.stored_bytes, seen.codec);
  for (const Piece& piece : seen.pieces) {
    const auto from = right.bytes.begin() + static_cast<std::ptrdiff_t>(piece.offset);
    if (!std::equal(piece.bytes.begin(), piece.bytes.end(), from))
      return fmt::format("{} bytes at {} of version {} of key {} are not what was put",
                         piece.bytes.size(), piece.offset, *version, key);
  }
  if (puts[*version].refused)
    return fmt::format("version {} of key {} was never put", *version, key);
  const uint64_t removed_ns = puts[puts[*version].lineage].removed_ns;
  if (removed_ns != 0 && seen.begun_ns > removed_ns + late_ns_)
    return fmt::format("version {} of key {} had been removed", *version, key);
  return {};
}

bool Model::gone(uint32_t key, uint64_t begun_ns) const {
  const std::vector<Put>& puts = keys_[key].puts;
  return std::all_of(puts.begin(), puts.end(), [&](const Put& put) {
    const uint64_t removed_ns = puts[put.lineage].removed_ns;
    return put.refused || (removed_ns != 0 && begun_ns > removed_ns + late_ns_);
  });
}

// ---- lineages ----

std::vector<Model::Lineage> Model::lineages_of(uint32_t key) const {
  std::vector<Lineage> lineages;
  const std::vector<Put>& puts = keys_[key].puts;
  for (uint32_t version = 0; version < puts.size(); ++version) {
    const Put& put = puts[version];
    if (put.accepted && put.removed_ns == 0) lineages.push_back({version, put.host, put.life});
  }
  return lineages;
}

// ---- blocks ----

bool Model::holds(const Holder& holder) {
  return holder.process->alive && holder.process->lives == holder.life;
}

void Model::hold(World& world, Process& process, uint64_t offset, uint64_t bytes) {
  if (world.cloned()) return;
  std::erase_if(holders_, [](const Holder& holder) { return !holds(holder); });
  std::erase_if(leases_, [&](const LeaseHolder& lease) {
    return !holds(lease.holder) || lease.until_ns <= world.now_ns();
  });
  const auto overlaps = [&](const Holder& holder) {
    return offset < holder.offset + BH_PAYLOAD_ALIGN && holder.offset < offset + bytes;
  };
  for (const Holder& other : holders_) {
    if (!overlaps(other)) continue;
    // A host that the others declared dead may still write where an adopter writes.
    const bool one_host = other.process->machine == process.machine;
    if (one_host || (other.process->machine->innocent && process.machine->innocent))
      world.fail("twice",
                 fmt::format("processes {} and {} both have the block at {}", other.process->index,
                             process.index, world.map().describe(offset)));
  }
  for (const LeaseHolder& lease : leases_) {
    if (overlaps(lease.holder) && lease.holder.process->machine->innocent)
      world.fail(
          "lease",
          fmt::format("process {} gets the block at {}, which process {} has leased", process.index,
                      world.map().describe(offset), lease.holder.process->index));
  }
}

void Model::end_hold(Process& process, uint64_t offset) {
  std::erase_if(holders_, [&](const Holder& holder) {
    return holder.process == &process && holder.offset == offset;
  });
}

void Model::add_lease(World& world, Process& process, uint64_t token, uint64_t offset,
                      uint64_t ttl_ns) {
  leases_.push_back({{&process, process.lives, offset}, token, world.now_ns() + ttl_ns});
}

void Model::end_lease(Process& process, uint64_t token) {
  std::erase_if(leases_, [&](const LeaseHolder& lease) {
    return lease.holder.process == &process && lease.token == token;
  });
}

}  // namespace bowhead::sim
