// SPDX-License-Identifier: Apache-2.0
// FuzzAccess: the access policy of the pool's core over guarded memory.
//
// A World is the memory of one pool with the machine's state beside it: which processes live, and a
// clock. Every request of the core is checked: words must lie in the metadata, payload in the
// payload, stores in what the host owns (rule R1; the pages of other hosts are really read-only),
// and no operation may exceed a number of steps. Time passes only when it is read or waited for, so
// waits cost nothing and a run is repeatable.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "base/coherence.h"
#include "pool/core/context.h"
#include "pool/pool.h"

namespace bowhead::fuzz {

class World {
 public:
  explicit World(const bh_superblock& sb) : superblock(sb), layout(sb.geometry) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    BOWHEAD_ASSERT(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes())) == 0);
    // Between two pages without access.
    void* room = mmap(nullptr, bytes() + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOWHEAD_ASSERT(room != MAP_FAILED);
    base_ = static_cast<std::byte*>(mmap(static_cast<std::byte*>(room) + kPage, bytes(),
                                         PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0));
    raw_ =
        static_cast<std::byte*>(mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    BOWHEAD_ASSERT(base_ != MAP_FAILED && raw_ != MAP_FAILED);
    close(fd);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint64_t bytes() const { return superblock.geometry.total_bytes; }
  uint64_t payload_offset() const { return superblock.geometry.payload_offset; }

  /// Writable everywhere: for building, damaging and restoring.
  std::byte* raw() const { return raw_; }
  uint64_t raw_word(uint64_t offset) const {
    uint64_t word;
    std::memcpy(&word, raw_ + offset, sizeof word);
    return word;
  }

  /// From now on only memory of `host` can be written through FuzzAccess.
  void become(uint32_t host) {
    const auto& g = superblock.geometry;
    const uint64_t first = core::first_extent_of(layout, host),
                   last = core::first_extent_of(layout, host + 1);
    BOWHEAD_ASSERT(mprotect(base_, bytes(), PROT_READ) == 0);
    const std::pair<uint64_t, uint64_t> own[] = {
        {g.regions_offset + host * g.region_bytes, g.region_bytes},
        {layout.descriptor(first), (last - first) * g.table_bytes},
        {layout.extent_offset(first), (last - first) * g.extent_bytes}};
    for (const auto& [offset, size] : own)
      BOWHEAD_ASSERT(mprotect(base_ + offset, size, PROT_READ | PROT_WRITE) == 0);
  }

  /// Saves the present state; restore() restores it.
  void save() {
    saved_.assign(raw_, raw_ + bytes());
    changed_.clear();
  }
  void restore() {
    const auto& g = superblock.geometry;
    std::memcpy(raw_, saved_.data(), g.tables_offset + g.table_bytes * g.extent_count);
    for (const auto& [offset, size] : changed_)
      std::memcpy(raw_ + offset, saved_.data() + offset, size);
    changed_.clear();
    alive.clear();
    now_ns = kStartNs;
    randoms = 0;
  }
  const std::byte* saved() const { return saved_.data(); }
  void payload_changed(uint64_t offset, uint64_t size) { changed_.emplace_back(offset, size); }

  /// Starts counting the steps of an operation.
  void begin_operation() { steps_ = 0; }
  void step() const { BOWHEAD_ASSERT(++steps_ < kStepsMax && "the operation does not end"); }

  std::byte* metadata(uint64_t offset, uint64_t size) const {
    step();
    BOWHEAD_ASSERT(offset % size == 0 && offset < payload_offset() &&
                   size <= payload_offset() - offset);
    return base_ + offset;
  }
  std::byte* payload(uint64_t offset) const {
    BOWHEAD_ASSERT(offset >= payload_offset() && offset < bytes());
    return base_ + offset;
  }

  const bh_superblock superblock;
  const core::Layout layout;
  std::map<std::pair<uint32_t, uint32_t>, const void*> alive;  ///< (host, process) -> its handle
  uint64_t now_ns = kStartNs;
  uint64_t randoms = 0;

 private:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kStartNs = 1'000'000'000'000;
  static constexpr uint64_t kStepsMax = 50'000'000;

  std::byte* base_;
  std::byte* raw_;
  std::vector<std::byte> saved_;
  std::vector<std::pair<uint64_t, uint64_t>> changed_;
  mutable uint64_t steps_ = 0;
};

/// One process with the pool open. The object's end is the process's end, whether clean or not.
class FuzzAccess {
 public:
  using Mutex = std::mutex;

  struct Machine {
    uint64_t id = 1;
    uint64_t boot = 1;
  };

  FuzzAccess(World& world, Machine machine) : world_(world), machine_(machine) {}
  ~FuzzAccess() {
    std::erase_if(world_.alive, [&](const auto& entry) { return entry.second == this; });
  }
  FuzzAccess(const FuzzAccess&) = delete;
  FuzzAccess& operator=(const FuzzAccess&) = delete;

  uint64_t load(uint64_t at) const { return word(at).load(std::memory_order_acquire); }
  uint64_t load_relaxed(uint64_t at) const { return load(at); }
  void store(uint64_t at, uint64_t value) { word(at).store(value, std::memory_order_release); }
  void store_relaxed(uint64_t at, uint64_t value) { store(at, value); }
  bool cas(uint64_t at, uint64_t& expected, uint64_t desired) {
    return word(at).compare_exchange_strong(expected, desired);
  }
  uint64_t fetch_add(uint64_t at, uint64_t delta) { return word(at).fetch_add(delta); }

  core::Line load_line(uint64_t at) const {
    core::Line line;
    std::memcpy(line.data(), world_.metadata(at, sizeof line), sizeof line);
    return line;
  }
  void store_line(uint64_t at, const core::Line& line) {
    std::memcpy(world_.metadata(at, sizeof line), line.data(), sizeof line);
  }
  void prefetch(uint64_t) const {}
  void prefetch_own(uint64_t) const {}

  uint64_t write_payload(uint64_t to, std::span<const ConstSpan> value) {
    ChecksumCopy copy(/*streaming=*/false);
    uint64_t at = to;
    for (const ConstSpan& part : value) {
      copy.append(world_.payload(at), part.data, part.size);
      at += part.size;
    }
    publish(to, at - to);
    return copy.finish();
  }
  uint64_t read_payload(uint64_t from, uint64_t bytes, std::span<const Span> buffers,
                        bool /*used_soon*/ = false) const {
    ChecksumCopy copy(/*streaming=*/false);
    for (const Span& buffer : buffers) {
      const uint64_t part = std::min<uint64_t>(bytes, buffer.size);
      copy.append(buffer.data, world_.payload(from), part);
      from += part;
      bytes -= part;
    }
    return copy.finish();
  }
  void zero(uint64_t offset, uint64_t bytes) {
    std::memset(world_.payload(offset), 0, bytes);
    publish(offset, bytes);
  }
  uint64_t move_payload(uint64_t to, uint64_t from, uint64_t bytes) {
    const ConstSpan value[] = {{world_.payload(from), bytes}};
    return write_payload(to, value);
  }
  uint64_t sum_payload(uint64_t from, uint64_t bytes) const {
    return payload_checksum(world_.payload(from), bytes);
  }
  std::byte* payload(uint64_t at) const { return world_.payload(at); }

  Result<void> map_set(const SetName&, const std::string&, const std::vector<Range>&,
                       const std::vector<Range>&) {
    return {};
  }
  void unmap_set(uint64_t, const std::vector<Range>&) {}
  void set_writable(uint64_t, uint64_t, bool) {}

  void publish(uint64_t at, uint64_t size) {
    BOWHEAD_ASSERT(at <= world_.bytes() && size <= world_.bytes() - at);
    if (at >= world_.payload_offset()) world_.payload_changed(at, size);
  }
  void flush(uint64_t at, uint64_t size) { publish(at, size); }
  void acquire(uint64_t at, uint64_t size) const {
    BOWHEAD_ASSERT(at <= world_.bytes() && size <= world_.bytes() - at);
  }
  void invalidate(uint64_t at, uint64_t size) const { acquire(at, size); }
  void fence() const {}
  void coherence_fence() const {}
  FlushKind flush_kind() const { return FlushKind::NONE; }

  bool media_failed() const { return false; }
  bool payload_lost(uint64_t /*offset*/, uint64_t /*bytes*/) const { return false; }
  uint64_t now_ns() const { return world_.now_ns += 1000; }
  uint64_t recency_ns() const { return now_ns(); }
  uint64_t unix_ns() const { return now_ns(); }
  uint64_t random() const { return ++world_.randoms; }
  void relax(uint32_t) const {
    world_.step();
    world_.now_ns += 1'000'000;
  }

  void sleep_ns(uint64_t ns) const {
    world_.step();
    world_.now_ns += ns;
  }

  uint64_t machine_id() const { return machine_.id; }
  uint64_t hardware_id() const { return machine_.id; }
  uint64_t boot_id() const { return machine_.boot; }
  uint64_t pid() const { return 1; }
  uint64_t pid_namespace() const { return 1; }
  bool locks_by_node() const { return false; }
  core::LockResult lock_process(uint32_t host, uint32_t process) {
    return world_.alive.try_emplace({host, process}, this).second ? core::LockResult::TAKEN
                                                                  : core::LockResult::HELD;
  }
  void unlock_process(uint32_t host, uint32_t process) { world_.alive.erase({host, process}); }
  bool process_alive(uint32_t host, uint32_t process) const {
    BOWHEAD_ASSERT(process < world_.superblock.geometry.process_count);
    const auto it = world_.alive.find({host, process});
    return it != world_.alive.end() && it->second != this;
  }
  core::LockResult lock_host(uint32_t, uint64_t) { return core::LockResult::TAKEN; }
  void unlock_host(uint32_t) {}

 private:
  std::atomic_ref<uint64_t> word(uint64_t at) const {
    return std::atomic_ref<uint64_t>(
        *reinterpret_cast<uint64_t*>(world_.metadata(at, sizeof(uint64_t))));
  }

  World& world_;
  const Machine machine_;
};

}  // namespace bowhead::fuzz
