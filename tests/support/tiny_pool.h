// SPDX-License-Identifier: Apache-2.0
// TinyPool: a pool of a few MiB with a geometry that users cannot request (few buckets, locks,
// leases, process slots), so that full and overflowing tables come soon and a copy of the whole
// pool is cheap.
//
// The core gets its superblock directly; the copies in the medium are not written.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pool/media/media.h"
#include "tests/support/native_core.h"
#include "tests/support/pools.h"

namespace bowhead::test {

struct TinyShape {
  uint64_t extent_bytes = 256 << 10;
  uint64_t extent_count = 12;
  uint64_t min_block_bytes = 8 << 10;
  uint64_t index_bucket_count = 13;
  uint32_t process_count = 8;
  uint32_t lease_count = 8;
  uint32_t namespace_count = 3;
  uint32_t lock_count = 8;
  uint64_t worded_extents = UINT64_MAX;  ///< for whose slots there are words; at most all
  uint32_t evict_high_permille = 0;
  uint32_t evict_low_permille = 0;
};

inline uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

inline bh_geometry tiny_geometry(const TinyShape& shape) {
  bh_geometry g{};
  g.region_align_bytes = 4096;
  g.extent_bytes = shape.extent_bytes;
  g.extent_count = shape.extent_count;
  g.extents_max = shape.extent_count;
  g.min_block_bytes = shape.min_block_bytes;
  g.index_bucket_count = shape.index_bucket_count;
  g.host_count = 1;
  g.process_count = shape.process_count;
  g.lease_count = shape.lease_count;
  g.namespace_count = shape.namespace_count;
  g.lock_count = shape.lock_count;
  g.touch_count = 8;
  core::plan_words(g, shape.worded_extents);
  g.regions_offset = BH_SUPERBLOCK_COPIES * BH_SUPERBLOCK_COPY_OFFSET;
  g.total_bytes = core::place_parts(g, BH_PAYLOAD_ALIGN);
  g.max_bytes = g.total_bytes;
  return g;
}

class TinyPool {
 public:
  using Image = std::vector<std::byte>;

  explicit TinyPool(const TinyShape& shape = {}) : owner_(getpid()) {
    static std::atomic<int> count{0};
    locator_ = "shm:tiny-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    superblock_.pool_id[0] = 0x1234;
    superblock_.pool_id[1] = 0x5678;
    superblock_.evict_high_permille = shape.evict_high_permille;
    superblock_.evict_low_permille = shape.evict_low_permille;
    superblock_.geometry = tiny_geometry(shape);
    auto media = create_media(
        locator_, {.size_bytes = round_up(superblock_.geometry.total_bytes, kMediaGrainBytes)});
    BOWHEAD_ASSERT(media);
    media_ = std::move(media).value();
    core::write_new_regions(layout(), core::Sealer(superblock_.pool_id),
                            [this](uint64_t at, uint64_t word) { store(at, word); });
  }
  ~TinyPool() {
    if (owner_ == getpid()) (void)remove_media(locator_);
  }
  TinyPool(const TinyPool&) = delete;
  TinyPool& operator=(const TinyPool&) = delete;

  const std::string& locator() const { return locator_; }
  const bh_superblock& superblock() const { return superblock_; }
  core::Layout layout() const { return core::Layout(superblock_.geometry); }
  std::byte* base() const { return media_->base(); }

  /// Behind the pool's back; no process may be working.
  void store(uint64_t offset, uint64_t value) {
    std::memcpy(media_->base() + offset, &value, sizeof value);
  }
  uint64_t load(uint64_t offset) const {
    uint64_t value = 0;
    std::memcpy(&value, media_->base() + offset, sizeof value);
    return value;
  }

  Image snapshot() const { return {base(), base() + superblock_.geometry.total_bytes}; }
  void restore(const Image& image) { std::memcpy(base(), image.data(), image.size()); }

  /// Simulates a reboot: the next process to open rebuilds all that is private to the host.
  void forget_boot() {
    store(layout().part(0, BH_PART_PRIVATE) + offsetof(bh_host_private, recovered_boot_id), 0);
  }

 private:
  std::string locator_;
  pid_t owner_;
  bh_superblock superblock_{};
  std::unique_ptr<Media> media_;
};

/// A separate core on a pool: its own mapping, locks and process slot. Destroying it without
/// detach() is a death to other processes.
template <class A>
class Handle {
 public:
  Handle(const std::string& locator, const bh_superblock& superblock) {
    auto media = open_media(locator);
    BOWHEAD_ASSERT(media);
    media_ = std::move(media).value();
    access_ = std::make_unique<A>(*media_, FlushKind::NONE);
    core_ = std::make_unique<core::Core<A>>(*access_, superblock, 0);
  }
  explicit Handle(const TinyPool& pool, bool eviction = true)
      : Handle(pool.locator(), with_eviction(pool.superblock(), eviction)) {}

  Result<void> attach() { return core_->joining.attach({}); }
  void detach() { core_->joining.detach(); }
  core::Core<A>& core() { return *core_; }
  A& access() { return *access_; }
  uint32_t process() { return core_->context().process; }

 private:
  static bh_superblock with_eviction(bh_superblock superblock, bool eviction) {
    if (!eviction) superblock.evict_high_permille = superblock.evict_low_permille = 0;
    return superblock;
  }

  std::unique_ptr<Media> media_;
  std::unique_ptr<A> access_;
  std::unique_ptr<core::Core<A>> core_;
};

using NativeHandle = Handle<core::NativeAccess>;

// ---- short forms of the core's operations ----

inline constexpr uint64_t kNamespace = 77;  ///< the core takes any number

/// Blocks of keys that begin with "secret" are put to be wiped.
inline bool is_secret(std::string_view key) { return key.starts_with("secret"); }

template <class A>
Status put(core::Core<A>& core, std::string_view key, const std::vector<std::byte>& value,
           std::string_view user_metadata = {}) {
  const ConstSpan in[] = {{value.data(), value.size()}};
  return core.writing.put(core::Key(kNamespace, key),
                          core::Content::raw(in, user_metadata, {}, is_secret(key)));
}

/// The core knows no codec, so one for its tests suffices: it stores the first half of a value
/// whose second half equals it.
class DoublingSink {
 public:
  Result<std::span<const Span>> room_for(const bh_block_header& header) {
    value_.resize(header.length_bytes);
    stored_ = {value_.data(), header.stored_bytes};
    return std::span<const Span>(&stored_, 1);
  }
  Status take(const bh_block_header& header) {
    if (header.codec == BH_CODEC_RAW) return Status::OK;
    if (header.length_bytes != 2 * header.stored_bytes) return Status::DAMAGED;
    std::memcpy(value_.data() + header.stored_bytes, value_.data(), header.stored_bytes);
    return Status::OK;
  }
  std::vector<std::byte> value() && { return std::move(value_); }

 private:
  std::vector<std::byte> value_;
  Span stored_;
};

/// The content of a value with two equal halves, in `half`.
inline core::Content doubled(const std::vector<std::byte>& value, ConstSpan& half,
                             std::string_view user_metadata = {}) {
  BOWHEAD_ASSERT(std::memcmp(value.data(), value.data() + value.size() / 2, value.size() / 2) == 0);
  half = {value.data(), value.size() / 2};
  return {{&half, 1}, value.size(), BH_CODEC_FRAME, BH_PROFILE_FAST, user_metadata};
}

/// Empty if the key is not stored.
template <class A>
std::vector<std::byte> get(core::Core<A>& core, std::string_view key,
                           std::string* user_metadata = nullptr) {
  DoublingSink sink;
  if (!core.reading.get_stored(core::Key(kNamespace, key), sink, user_metadata)) return {};
  return std::move(sink).value();
}

template <class A>
Status remove(core::Core<A>& core, std::string_view key) {
  return core.writing.remove(core::Key(kNamespace, key));
}

}  // namespace bowhead::test
