// SPDX-License-Identifier: Apache-2.0
// Hosts of one pool in one process, whose duties are done when the test says so, and whose loads of
// lines and words from some part of the pool are counted.
#pragma once

#include <optional>
#include <utility>

#include "tests/support/hosts.h"
#include "tests/support/native_core.h"

namespace bowhead::test {

class CountingAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
  core::Line load_line(uint64_t offset) const {
    loads_ += offset - first_ < bytes_;
    return NativeAccess::load_line(offset);
  }
  void watch(uint64_t offset, uint64_t bytes) { first_ = offset, bytes_ = bytes; }
  uint64_t take_loads() { return std::exchange(loads_, 0); }

  uint64_t load(uint64_t offset) const {
    count_word(offset);
    return NativeAccess::load(offset);
  }
  uint64_t load_relaxed(uint64_t offset) const {
    count_word(offset);
    return NativeAccess::load_relaxed(offset);
  }
  /// Words of a part of all regions but that of `host`.
  void watch_words(const core::Layout& layout, uint32_t part, uint32_t host) {
    layout_.emplace(layout), part_ = part, host_ = host;
    take_words();
  }
  uint64_t take_words() { return std::exchange(words_, 0); }

 private:
  void count_word(uint64_t offset) const {
    if (!layout_ || offset < layout_->part(0, part_)) return;
    const auto& g = layout_->geometry();
    const uint64_t in_parts = offset - layout_->part(0, part_), region = in_parts / g.region_bytes;
    words_ += region < g.host_count && region != host_ &&
              in_parts % g.region_bytes < g.parts[part_].bytes;
  }

  uint64_t first_ = 0, bytes_ = 0;
  mutable uint64_t loads_ = 0;
  std::optional<core::Layout> layout_;
  uint32_t part_ = 0, host_ = 0;
  mutable uint64_t words_ = 0;
};

/// No host is declared dead, however loaded the machine is.
inline constexpr SharingTimes kPatient{.heartbeat_ms = 10, .dead_ms = 600'000, .settle_ms = 1};

class CountedHost {
 public:
  CountedHost(const SharedPool& pool, uint32_t host, uint64_t mirror_bytes = kMirrorBytes) {
    auto media = open_media(pool.locator());
    EXPECT_TRUE(media);
    media_ = std::move(media).value();
    access_.emplace(*media_, FlushKind::NONE);
    core_.emplace(*access_, pool.superblock(), host, mirror_bytes);
    EXPECT_TRUE(core_->joining.attach({}));
  }
  ~CountedHost() { core_->joining.detach(); }
  CountedHost(const CountedHost&) = delete;
  CountedHost& operator=(const CountedHost&) = delete;

  core::Core<CountingAccess>& core() { return *core_; }
  CountingAccess& access() { return *access_; }
  /// One round of duties, as the pool's worker does it; the hosts seen so far are searched from
  /// then on.
  void work() {
    sleep_ms(kPatient.heartbeat_ms + 2);  // else it is not yet due
    EXPECT_TRUE(core_->membership.heartbeat());
    EXPECT_TRUE(core_->membership.work());
  }

 private:
  std::unique_ptr<Media> media_;
  std::optional<CountingAccess> access_;
  std::optional<core::Core<CountingAccess>> core_;
};

}  // namespace bowhead::test
