// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  keys_.clear();
  for (uint32_t k = 0; k < plan.keys; ++k) {
    std::string name = fmt::format("key-{}", k);
    if (k % 4 == 3 || (plan.long_keys && k > 0)) name += std::string(BH_LINE_BYTES, 'x');
    keys_.push_back({std::move(name), {}});
  }
  holders_.clear();
  leases_.clear();
}

uint32_t Model::new_version(uint32_t key, uint32_t host) {
  keys_[key].puts.push_back({host, /*refused=*/false, /*accepted=*/false});
  return static_cast<uint32_t>(keys_[key].puts.size() - 1);
}

std::vector<std::byte> Model::value(uint32_t key, uint32_t version) const {
  Dice random(seed_ ^ name_of(key, version));
  // Seldom a value that needs a block of another size.
  const uint64_t bytes = 8 + random.below(160) + (random.below(24) == 0 ? 4096 : 0);
  std::vector<std::byte> value(bytes);
  for (uint64_t at = 0; at < bytes; at += 8) {
    const uint64_t word = at == 0 ? name_of(key, version) : random.next();
    std::memcpy(value.data() + at, &word, std::min<uint64_t>(8, bytes - at));
  }
  return value;
}

std::string Model::judge(uint32_t key, std::span<const std::byte> bytes, uint32_t* host) const {
  uint64_t first = 0;
  std::memcpy(&first, bytes.data(), std::min<size_t>(8, bytes.size()));
  const auto version = static_cast<uint32_t>(first);
  if (bytes.size() < 8 || first != name_of(key, version) || version >= keys_[key].puts.size())
    return fmt::format("{} bytes that begin with {:#x} are no value of key {}", bytes.size(), first,
                       key);
  const std::vector<std::byte> right = value(key, version);
  if (!std::equal(bytes.begin(), bytes.end(), right.begin(), right.end()))
    return fmt::format("{} bytes of version {} of key {} are not what was put", bytes.size(),
                       version, key);
  if (keys_[key].puts[version].refused)
    return fmt::format("version {} of key {} was never put", version, key);
  *host = keys_[key].puts[version].host;
  return {};
}

// ---- blocks ----

bool Model::holds(const Holder& holder) {
  return holder.process->alive && holder.process->lives == holder.life;
}

void Model::hold(World& world, Process& process, uint64_t offset, uint64_t bytes) {
  std::erase_if(holders_, [](const Holder& holder) { return !holds(holder); });
  std::erase_if(leases_, [&](const LeaseHolder& lease) {
    return !holds(lease.holder) || lease.until_ns <= world.now_ns();
  });
  const auto overlaps = [&](const Holder& holder) {
    return offset < holder.offset + BH_PAYLOAD_ALIGN && holder.offset < offset + bytes;
  };
  for (const Holder& other : holders_) {
    if (!overlaps(other)) continue;
    // A host that the others ended may still write where an adopter writes.
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
