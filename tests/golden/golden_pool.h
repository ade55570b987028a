// SPDX-License-Identifier: Apache-2.0
// A golden pool, loaded into shared memory for one test, and the places of everything in it, so
// that a test can damage it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pool/core/access.h"
#include "pool/core/layout.h"
#include "pool/core/words.h"
#include "pool/media/media.h"
#include "tests/golden/content.h"
#include "tests/golden/sparse_file.h"
#include "tests/support/words.h"

namespace bowhead::golden {

class GoldenPool {
 public:
  /// `locator_prefix`: "shm:" or "file:/folder/"; the pool's own name follows.
  explicit GoldenPool(const std::string& name, const std::string& locator_prefix = "shm:")
      : locator_(fmt::format("{}golden-{}-{}", locator_prefix, getpid(), count_++)) {
    const auto bytes = read_sparse(fmt::format("{}/{}.sparse", BOWHEAD_GOLDEN_POOLS, name));
    EXPECT_GT(bytes.size(), 0u) << name;
    auto made = create_media(locator_, {.size_bytes = bytes.size()});
    EXPECT_TRUE(made) << made.error().message();
    media_ = std::move(made).value();
    std::memcpy(media_->base(), bytes.data(), bytes.size());
    std::memcpy(&superblock_, bytes.data(), sizeof superblock_);
    layout_.emplace(superblock_.geometry);
    for (uint32_t host = 0; host < superblock_.geometry.host_count; ++host) move_here(host);
    blocks_ = superblock_.geometry.host_count == 1 ? blocks_of_one_host() : blocks_of_two_hosts();
  }
  ~GoldenPool() { (void)remove_media(locator_); }
  GoldenPool(const GoldenPool&) = delete;
  GoldenPool& operator=(const GoldenPool&) = delete;

  const std::string& locator() const { return locator_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const core::Layout& layout() const { return *layout_; }
  bh_superblock& superblock() { return superblock_; }
  std::byte* at(uint64_t offset) { return media_->base() + offset; }

  // ---- damage ----

  void flip(uint64_t offset) { *at(offset) ^= std::byte{0x40}; }
  /// Writes superblock() over both copies, sealed.
  void store_superblock() {
    for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
      core::seal_superblock(superblock_, copy);
      std::memcpy(at(uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET), &superblock_, sizeof superblock_);
    }
  }
  template <class T>
  T read(uint64_t offset) {
    T value;
    std::memcpy(&value, at(offset), sizeof value);
    return value;
  }
  /// Writes a line and its seal.
  template <class T>
  void write_sealed(uint64_t offset, const T& value) {
    auto line = core::to_line(value);
    sealer().seal(line, offset);
    std::memcpy(at(offset), line.data(), sizeof line);
  }

  // ---- where things are; the block must be whole ----

  uint64_t slot_of(size_t block) {
    for (uint64_t slot = 0; slot < layout_->slot_limit(); ++slot) {
      const auto header = read<bh_block_header>(layout_->header(slot));
      if (header.stamp == 0 || core::stamp_state(header.stamp) != BH_STAMP_COMMITTED) continue;
      const auto hash =
          hash128(blocks_[block].key.data(), blocks_[block].key.size(), header.namespace_id);
      if (header.key_hash[0] == hash.low && header.key_hash[1] == hash.high &&
          header.length_bytes == blocks_[block].bytes)
        return slot;
    }
    ADD_FAILURE() << "no header of block " << block;
    return 0;
  }
  /// Offset of the allocator word of a slot of host 0.
  uint64_t word_of(uint64_t slot) {
    return test::block_word(*layout_, 0, slot,
                            [&](uint64_t offset) { return read<uint64_t>(offset); });
  }
  uint64_t header_of(size_t block) { return layout_->header(slot_of(block)); }
  uint64_t extent_of(size_t block) { return layout_->extent_of_slot(slot_of(block)); }
  /// Offset of the entry line; sets `directory` to the offset of its directory word.
  uint64_t entry_of(size_t block, uint64_t* directory = nullptr) {
    const auto header = read<bh_block_header>(header_of(block));
    for (uint64_t bucket = 0; bucket < layout_->geometry().index_bucket_count; ++bucket) {
      for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
        const uint64_t start = layout_->bucket(blocks_[block].host, bucket);
        const uint64_t offset =
            start + offsetof(bh_index_bucket, entries) + i * sizeof(bh_index_entry);
        if (read<bh_index_entry>(offset).stamp != header.stamp) continue;
        if (directory != nullptr) *directory = start + i * 8;
        return offset;
      }
    }
    ADD_FAILURE() << "no entry of block " << block;
    return 0;
  }
  uint64_t payload_of(size_t block) { return read<bh_index_entry>(entry_of(block)).block_offset; }

  // ---- use ----

  Result<Pool> open(uint32_t host = 0) { return Pool::open(locator_, {.host = host}); }
  void open_and_close() {
    auto pool = open();
    EXPECT_TRUE(pool) << pool.error().message();
  }

  NamespaceId namespace_of(size_t block) {
    const auto& description = kNamespaces[blocks_[block].name_space];
    bh_namespace entry{};
    entry.layout = description.values.layout;
    if (entry.layout.number_format == 0) entry.layout.number_format = BH_NUMBER_BYTES;
    std::memcpy(entry.name, description.name.data(), description.name.size());
    std::memcpy(entry.description, description.description.data(), description.description.size());
    return hash64(&entry.layout, 64 + sizeof entry.name + sizeof entry.description, 1) | 1;
  }

  /// The blocks that are a miss for a process that first opens their namespaces, as engines do: a
  /// namespace with a damaged description is then registered again. Wrong bytes fail the test.
  std::set<size_t> lost_in(Pool& pool) {
    std::set<size_t> lost;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto ns = pool.open_namespace(kNamespaces[blocks_[i].name_space]);
      EXPECT_EQ(ns.status(), Status::OK) << i;
      EXPECT_EQ(*ns, namespace_of(i)) << i;
      std::vector<std::byte> value(blocks_[i].bytes);
      const Span to[] = {{value.data(), value.size()}};
      const auto got = pool.get(*ns, blocks_[i].key, to);
      if (!got) {
        EXPECT_EQ(got.status(), Status::NOT_FOUND) << i;
        lost.insert(i);
        continue;
      }
      EXPECT_EQ(*got, blocks_[i].bytes) << i;
      EXPECT_EQ(value, value_of(blocks_[i], i)) << i;
    }
    return lost;
  }

 private:
  /// Makes the pool look as if this machine had made it, in this boot, and had since lost the
  /// host's private part. Other tests cover who may open a pool that another machine did not leave.
  void move_here(uint32_t host) {
    const core::NativeAccess access(*media_, FlushKind::NONE);
    for (const uint32_t copy : {0u, 1u}) {
      auto slot = read<bh_host_slot>(layout_->slot_line(host, copy));
      if (slot.incarnation == 0) continue;
      slot.machine_id = access.machine_id();
      slot.boot_id = access.boot_id();
      write_sealed(layout_->slot_line(host, copy), slot);
    }
    const uint64_t part = layout_->part(host, BH_PART_PRIVATE);
    std::memset(at(part + offsetof(bh_host_private, recovered_boot_id)), 0, 8);
  }

  core::Sealer sealer() const { return core::Sealer(superblock_.pool_id); }

  static inline int count_ = 0;
  std::string locator_;
  std::unique_ptr<Media> media_;
  bh_superblock superblock_{};
  std::optional<core::Layout> layout_;
  std::vector<Block> blocks_;
};

/// The findings of a check, one per line.
inline std::string findings_of(Pool& pool) {
  const auto report = pool.check(/*payload=*/true);
  if (!report) return report.error().message();
  std::string text;
  for (const auto& finding : report->findings)
    text += fmt::format("{}{}\n", finding.data_lost ? "lost: " : "", finding.what);
  return text;
}

}  // namespace bowhead::golden
