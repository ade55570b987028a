// SPDX-License-Identifier: Apache-2.0
// The allocator against a simple model of ranges: nothing is allocated twice, headers do not
// overlap, and all freed space is allocated again, also in other sizes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "base/random.h"
#include "tests/support/audit.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::Block;
using core::Slab;
using NativeExtents = core::Extents<core::NativeAccess>;
using NativeAllocator = core::Allocator<core::NativeAccess>;

constexpr uint64_t kKiB = 1024;
constexpr TinyShape kShape = {
    .extent_bytes = 256 * kKiB, .extent_count = 48, .min_block_bytes = 8 * kKiB};

/// Sizes of a run: odd multiples of 4 KiB, the smallest, the largest of one extent, and larger
/// ones.
std::vector<uint64_t> choose_sizes(Random& random) {
  std::vector<uint64_t> sizes = {8 * kKiB, 256 * kKiB, 260 * kKiB, 700 * kKiB, 128 * kKiB};
  while (sizes.size() < 10) sizes.push_back((2 + random.below(62)) * 4 * kKiB);
  sizes.push_back((65 + random.below(200)) * 4 * kKiB);
  return sizes;
}

/// The blocks that are held.
class Model {
 public:
  explicit Model(const core::Layout& layout) : layout_(layout), g_(layout.geometry()) {}

  /// "", or why the block is impossible.
  std::string add(const Block& block) {
    const uint64_t end = g_.payload_offset + g_.extent_count * g_.extent_bytes;
    if (block.offset < g_.payload_offset || block.offset + block.block_bytes > end)
      return "outside the payload";
    if (block.offset % BH_PAYLOAD_ALIGN != 0) return "misaligned";
    const auto after = ranges_.lower_bound(block.offset);
    if (after != ranges_.end() && after->first < block.offset + block.block_bytes)
      return "overlaps the block after it";
    if (after != ranges_.begin() &&
        std::prev(after)->first + std::prev(after)->second > block.offset)
      return "overlaps the block before it";
    if (block.slot != (block.offset - g_.payload_offset) / g_.min_block_bytes)
      return "has a slot that is not its own";
    for (uint64_t slot : slots_of(block)) {
      if (!slots_.insert(slot).second) return "shares a header slot";
    }
    // The slots for the keys of its size (block.h).
    if (slots_of(block).size() < block.block_bytes / g_.min_block_bytes) return "has too few slots";
    ranges_[block.offset] = block.block_bytes;
    return {};
  }
  void remove(const Block& block) {
    ranges_.erase(block.offset);
    for (uint64_t slot : slots_of(block)) slots_.erase(slot);
  }
  uint64_t held_in(const Slab& cut) const {
    const uint64_t first = layout_.extent_offset(cut.head);
    return static_cast<uint64_t>(
        std::distance(ranges_.lower_bound(first),
                      ranges_.lower_bound(first + cut.extent_span * g_.extent_bytes)));
  }

 private:
  /// All slots up to where the next block's may begin.
  std::vector<uint64_t> slots_of(const Block& block) const {
    const uint64_t end = block.offset - g_.payload_offset + block.block_bytes;
    std::vector<uint64_t> slots;
    for (uint64_t slot = block.slot; slot < end / g_.min_block_bytes; ++slot) slots.push_back(slot);
    return slots;
  }

  core::Layout layout_;
  const bh_geometry g_;
  std::map<uint64_t, uint64_t> ranges_;
  std::set<uint64_t> slots_;
};

/// A random user of the allocator only.
class Single {
 public:
  Single(NativeHandle& handle, uint64_t seed)
      : c_(handle.core().context()),
        extents_(handle.core().extents()),
        allocator_(handle.core().allocator()),
        random_(seed),
        sizes_(choose_sizes(random_)),
        model_(c_.layout) {}

  void step() {
    // Waves: first most steps allocate, then most free, so that extents are coalesced and carved
    // for other sizes.
    const bool growing = (steps_++ / 400) % 2 == 0;
    const uint64_t dice = random_.below(10);
    if (dice == 0) {
      join_any();
    } else if (dice <= (growing ? 7u : 3u)) {
      take(sizes_[random_.below(sizes_.size())]);
    } else if (!held_.empty()) {
      give_back(random_.below(held_.size()));
    }
  }
  void check_counts() {
    extents_.for_each_slab([&](const Slab& cut) {
      const uint64_t free = cut.block_count - model_.held_in(cut);
      EXPECT_EQ(extents_.free_blocks_hint(cut.head), free);
      uint64_t words = 0;
      for (uint64_t i = 0; i < cut.block_count; ++i)
        words += allocator_.word(extents_.slot_of(cut, i)).state == BH_BLOCK_FREE;
      EXPECT_EQ(words, free);
    });
  }
  void end() {
    while (!held_.empty()) give_back(held_.size() - 1);
    std::vector<uint64_t> heads;
    extents_.for_each_slab([&](const Slab& cut) { heads.push_back(cut.head); });
    for (const uint64_t head : heads) EXPECT_TRUE(extents_.coalesce(head));
    for (uint64_t e = 0; e < kShape.extent_count; ++e) EXPECT_TRUE(extents_.is_free(e)) << e;
  }
  uint64_t refused() const { return refused_; }
  uint64_t joined() const { return joined_; }

 private:
  struct Held {
    Block block;
    bool committed;
  };

  void take(uint64_t size) {
    const auto block = allocator_.reserve(size);
    if (!block) {
      ++refused_;
      expect_none_free(size);
      return;
    }
    EXPECT_EQ(block->block_bytes, size);
    ASSERT_EQ(model_.add(*block), "") << fmt::format("{:#x}", block->offset);
    const Block again =
        extents_.block_of(block->slot, extents_.held_slab(c_.layout.extent_of_slot(block->slot)));
    EXPECT_EQ(again.offset, block->offset);
    const bool commit = random_.below(2) == 0;
    if (commit) allocator_.commit(*block);
    held_.push_back({*block, commit});
  }

  void give_back(size_t index) {
    const Held held = held_[index];
    held_[index] = held_.back();
    held_.pop_back();
    model_.remove(held.block);
    const uint64_t slot = held.block.slot;
    if (!held.committed) {
      allocator_.release(held.block);
      EXPECT_EQ(allocator_.word(slot).state, uint32_t{BH_BLOCK_FREE});
      return;
    }
    const core::SeenWord before = c_.see(slot);
    ASSERT_TRUE(allocator_.begin_retire(slot));
    EXPECT_FALSE(allocator_.begin_retire(slot));
    allocator_.finish_retire(slot);
    const core::SeenWord seen = c_.see(slot);
    core::SeenWord stale = seen;
    stale.word.sequence = before.word.sequence;
    EXPECT_FALSE(allocator_.free_retired(slot, stale));
    EXPECT_TRUE(allocator_.free_retired(slot, seen));
    EXPECT_FALSE(allocator_.free_retired(slot, seen));
  }

  void join_any() {
    std::vector<Slab> slabs;
    extents_.for_each_slab([&](const Slab& cut) { slabs.push_back(cut); });
    if (slabs.empty()) return;
    const Slab cut = slabs[random_.below(slabs.size())];
    const bool empty = model_.held_in(cut) == 0;
    EXPECT_EQ(extents_.coalesce(cut.head), empty);
    joined_ += empty;
    for (uint64_t e = cut.head; e < cut.head + cut.extent_span; ++e)
      EXPECT_EQ(extents_.is_free(e), empty);
  }

  /// No block of that size is free, and no run of extents could hold one, even after slabs without
  /// a block in use are coalesced.
  void expect_none_free(uint64_t size) {
    std::vector<bool> usable(kShape.extent_count);
    for (uint64_t e = 0; e < kShape.extent_count; ++e) usable[e] = extents_.is_free(e);
    extents_.for_each_slab([&](const Slab& cut) {
      const uint64_t held = model_.held_in(cut);
      if (cut.block_bytes == size) {
        EXPECT_EQ(held, cut.block_count) << size;
      } else if (held == 0) {
        for (uint64_t e = 0; e < cut.extent_span; ++e) usable[cut.head + e] = true;
      }
    });
    const uint64_t span = (size + kShape.extent_bytes - 1) / kShape.extent_bytes;
    uint64_t run = 0;
    for (uint64_t e = 0; e < kShape.extent_count; ++e) {
      run = usable[e] ? run + 1 : 0;
      EXPECT_LT(run, span) << size << " bytes would fit at extent " << e;
    }
  }

  core::Context<core::NativeAccess>& c_;
  NativeExtents& extents_;
  NativeAllocator& allocator_;
  Random random_;
  const std::vector<uint64_t> sizes_;
  Model model_;
  std::vector<Held> held_;
  uint64_t steps_ = 0, refused_ = 0, joined_ = 0;
};

TEST(Allocator, AgreesWithAModel) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const TinyPool pool(kShape);
    NativeHandle handle(pool);
    ASSERT_TRUE(handle.attach());
    Single user(handle, seed);
    for (int i = 0; i < 8000; ++i) {
      user.step();
      if (i % 50 == 49) user.check_counts();
      if (HasFailure()) return;
    }
    user.end();
    EXPECT_GT(user.refused(), 0u);
    EXPECT_GT(user.joined(), 0u);
    for (const std::string& text : audit(handle.core(), {.deaths = false}).faults)
      ADD_FAILURE() << text;
    handle.detach();
  }
}

// ---- many at once ----

/// The holder of each page, visible to all processes: the pages of a new block must have no holder.
class Owners {
 public:
  Owners() {
    const size_t size = kPages * sizeof(std::atomic<uint32_t>);
    pages_ = static_cast<std::atomic<uint32_t>*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    BOWHEAD_ASSERT(pages_ != MAP_FAILED);
  }
  ~Owners() { munmap(pages_, kPages * sizeof(std::atomic<uint32_t>)); }
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  bool take(const core::Layout& layout, const Block& block, uint32_t who) {
    return exchange(layout, block, 0, who);
  }
  bool give_back(const core::Layout& layout, const Block& block, uint32_t who) {
    return exchange(layout, block, who, 0);
  }

 private:
  static constexpr size_t kPages = 48 * 256 / 4;
  bool exchange(const core::Layout& layout, const Block& block, uint32_t from, uint32_t to) {
    const uint64_t first = (block.offset - layout.geometry().payload_offset) / BH_PAYLOAD_ALIGN;
    for (uint64_t i = 0; i < block.block_bytes / BH_PAYLOAD_ALIGN; ++i) {
      if (pages_[first + i].exchange(to) != from) return false;
    }
    return true;
  }
  std::atomic<uint32_t>* pages_;
};

/// "" or the fault.
std::string use(NativeHandle& handle, Owners& owners, uint32_t who, int steps) {
  NativeExtents& extents = handle.core().extents();
  NativeAllocator& allocator = handle.core().allocator();
  const core::Layout& layout = handle.core().context().layout;
  Random random(who);
  Random common(5);
  const std::vector<uint64_t> sizes = choose_sizes(common);
  std::vector<Block> held;
  uint64_t got = 0;
  for (int i = 0; i < steps; ++i) {
    const bool growing = (i / 300) % 2 == 0;
    const uint64_t dice = random.below(16);
    if (dice == 0) {
      (void)extents.coalesce(random.below(kShape.extent_count));
    } else if (dice < (growing ? 11u : 5u)) {
      const auto block = allocator.reserve(sizes[random.below(sizes.size())]);
      if (!block) continue;
      ++got;
      if (!owners.take(layout, *block, who)) return "a block was handed out twice";
      held.push_back(*block);
    } else if (!held.empty()) {
      const size_t at = random.below(held.size());
      if (!owners.give_back(layout, held[at], who)) return "another process had the block too";
      allocator.release(held[at]);
      held[at] = held.back();
      held.pop_back();
    }
  }
  for (const Block& block : held) {
    if (!owners.give_back(layout, block, who)) return "another process had the block too";
    allocator.release(block);
  }
  return got > 100 ? "" : "hardly any block could be allocated";
}

TEST(Allocator, ThreadsShareIt) {
  const TinyPool pool(kShape);
  NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  Owners owners;
  std::vector<std::string> faults(4);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { faults[i] = use(handle, owners, i + 1, 150'000); });
  for (auto& thread : threads) thread.join();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
  handle.core().extents().recount();
  for (const std::string& text : audit(handle.core(), {.deaths = false}).faults)
    ADD_FAILURE() << text;
  handle.detach();
}

TEST(Allocator, ProcessesShareIt) {
  const TinyPool pool(kShape);
  NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  Owners owners;
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      NativeHandle own(pool);
      if (!own.attach()) _exit(2);
      const std::string fault = use(own, owners, i + 1, 150'000);
      if (!fault.empty()) fmt::print(stderr, "{}\n", fault);
      if (!fault.empty()) _exit(1);
      own.detach();
      _exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  handle.core().extents().recount();
  for (const std::string& text : audit(handle.core(), {.deaths = false}).faults)
    ADD_FAILURE() << text;
  handle.detach();
}

}  // namespace
}  // namespace bowhead::test
