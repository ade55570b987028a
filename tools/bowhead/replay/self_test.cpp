// SPDX-License-Identifier: Apache-2.0
// Proves that a replay can fail: the pool must find damage behind its back, and the engine must
// find wrong content that the pool stored correctly.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "pool/media/media.h"
#include "tools/bowhead/replay/replay.h"

namespace bowhead::replay {
namespace {

constexpr size_t kInjected = 32;

struct Target {
  uint64_t id;
  uint64_t offset;
  uint64_t stored_bytes;
};

// `count` blocks of the replay, chosen at random. A key that two hosts stored at once is not
// chosen: a reader may get either block.
Result<std::vector<Target>> choose(Pool& pool, NamespaceId namespace_id, uint64_t block_bytes,
                                   std::mt19937_64& random, size_t count) {
  std::vector<Target> targets;
  const Status listed = pool.list([&](const BlockInfo& block) {
    Target target{0, block.offset, block.stored_bytes};
    if (block.namespace_id == namespace_id && block.length_bytes == block_bytes &&
        parse_block_key(block.key, target.id)) {
      targets.push_back(target);
    }
    return true;
  });
  if (listed != Status::OK) return listed;
  if (targets.size() < 4) {
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("the self-test needs 4 blocks of the replay in the pool, but it holds "
                             "{}; give it a larger pool or smaller blocks",
                             targets.size())};
  }
  // Listed in no order: sorted, so that the seed alone decides.
  std::sort(targets.begin(), targets.end(), [](auto& a, auto& b) { return a.id < b.id; });
  for (size_t i = 0; i < targets.size();) {
    const size_t begin = i;
    while (i < targets.size() && targets[i].id == targets[begin].id) ++i;
    if (i - begin == 1) continue;
    targets.erase(targets.begin() + begin, targets.begin() + i);
    i = begin;
  }
  std::shuffle(targets.begin(), targets.end(), random);
  targets.resize(std::min(count, targets.size() / 4));
  // Made most recent, so that none is evicted before it is checked.
  std::vector<std::string> texts;
  for (const Target& target : targets) texts.push_back(block_key_text(target.id));
  const std::vector<std::string_view> keys(texts.begin(), texts.end());
  const Status touched = pool.touch(namespace_id, keys);
  if (touched != Status::OK) return touched;
  return targets;
}

Result<void> flip(Pool& pool, NamespaceId namespace_id, Engine& engine, const EngineStats& stats,
                  const std::vector<Target>& targets, std::mt19937_64& random,
                  SelfTestReport& report) {
  // Through a separate mapping: the pool's own is read-only where other hosts write.
  const auto before = pool.info();
  if (!before) return before.error();
  const auto media = open_media(before->locator);
  if (!media) return media.error();
  for (const Target& target : targets) {
    const uint64_t at = target.offset + random() % target.stored_bytes;
    BOWHEAD_ASSERT(at < (*media)->size_bytes());
    (*media)->base()[at] ^= std::byte(1u << (random() % 8));
    ++report.flipped_injected;
  }
  for (const Target& target : targets) {
    const uint64_t lost = stats.blocks_lost;
    const uint64_t hit = stats.blocks_hit;
    const auto served = engine.serve(std::span(&target.id, 1), kBlockTokens);
    if (!served) return served;
    report.flipped_found += stats.blocks_lost - lost;
    report.delivered_wrong += stats.blocks_hit - hit;
    // A reader of another host's block only sees that it is not the block that was put.
    const Status gone = pool.remove(namespace_id, block_key_text(target.id));
    if (gone != Status::OK && gone != Status::NOT_FOUND) return gone;
  }
  const auto after = pool.info();
  if (!after) return after.error();
  if (after->hosts.size() == 1)
    report.flipped_found = std::min(report.flipped_found, after->damaged - before->damaged);
  return {};
}

Result<void> inject_foreign(Pool& pool, NamespaceId namespace_id, Engine& engine,
                            const EngineStats& stats, const Content& content,
                            const std::vector<Target>& targets, uint64_t block_bytes,
                            SelfTestReport& report) {
  std::vector<std::byte> bytes(block_bytes);
  const ConstSpan value{bytes.data(), bytes.size()};
  for (size_t i = 0; i < targets.size(); ++i) {
    // Another block's content and one wrong byte, in turn: the coarsest error and the finest.
    content.fill(i % 2 == 0 ? targets[i].id + 1 : targets[i].id, bytes.data(), block_bytes);
    if (i % 2 != 0) bytes[(i * 7919) % block_bytes] ^= std::byte{1};
    const std::string key = block_key_text(targets[i].id);
    const Status removed = pool.remove(namespace_id, key);
    if (removed != Status::OK) return removed;
    const Status put = pool.put(namespace_id, key, std::span(&value, 1));
    if (put != Status::OK) return put;
    ++report.foreign_injected;
    const uint64_t wrong = stats.wrong_blocks;
    const auto served = engine.serve(std::span(&targets[i].id, 1), kBlockTokens);
    if (!served) return served;
    report.foreign_found += stats.wrong_blocks - wrong;
    const Status cleaned = pool.remove(namespace_id, key);
    if (cleaned != Status::OK) return cleaned;
  }
  return {};
}

}  // namespace

Result<SelfTestReport> run_self_test(Pool& pool, NamespaceId namespace_id, const Content& content,
                                     uint64_t block_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto stats = std::make_unique<EngineStats>();
  Engine engine(pool, namespace_id, content, block_bytes, block_bytes, *stats);
  SelfTestReport report;
  const auto flipped = choose(pool, namespace_id, block_bytes, random, kInjected);
  if (!flipped) return flipped.error();
  const auto flips = flip(pool, namespace_id, engine, *stats, *flipped, random, report);
  if (!flips) return flips.error();
  const auto foreign = choose(pool, namespace_id, block_bytes, random, kInjected);
  if (!foreign) return foreign.error();
  const auto injected =
      inject_foreign(pool, namespace_id, engine, *stats, content, *foreign, block_bytes, report);
  if (!injected) return injected.error();
  return report;
}

}  // namespace bowhead::replay
