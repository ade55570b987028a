// SPDX-License-Identifier: Apache-2.0
// Shared by tests of several hosts on one machine: a pool for some hosts, handles that act as one
// of them, processes that do so, and a view of the pool behind its back.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "pool/core/access.h"
#include "pool/core/hosts.h"
#include "pool/core/layout.h"
#include "pool/media/media.h"
#include "tests/support/pools.h"

namespace bowhead {
/// For GoogleTest.
inline void PrintTo(Status status, std::ostream* out) { *out << status_name(status); }
}  // namespace bowhead

namespace bowhead::test {

/// Short, so that a test sees the whole succession of a host.
inline constexpr SharingTimes kShortTimes{
    .heartbeat_ms = 20, .dead_ms = 300, .grace_ms = 100, .settle_ms = 5, .reclaim_ms = 500};

inline void sleep_ms(uint64_t ms) {
  const timespec pause{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1'000'000)};
  nanosleep(&pause, nullptr);
}

/// True as soon as `condition` is; false if that takes more than 20 s.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 4000; ++i) {
    if (condition()) return true;
    sleep_ms(5);
  }
  return false;
}

/// The content follows from the key only.
inline std::vector<std::byte> value_of(std::string_view key, size_t size) {
  return bytes(size, hash64(key.data(), key.size()));
}

/// For the namespace that Host opens; set before the first Host is opened.
inline ValueFormat host_values;

/// An open pool, as one host.
class Host {
 public:
  static Result<Host> open(const std::string& locator, uint32_t host) {
    OpenOptions options;
    options.host = host;
    return open(locator, options);
  }
  /// An observer.
  static Result<Host> observe(const std::string& locator) {
    OpenOptions options;
    options.observe = true;
    return open(locator, options);
  }
  static Result<Host> open(const std::string& locator, const OpenOptions& options) {
    auto pool = Pool::open(locator, options);
    if (!pool) return pool.error();
    auto ns = pool->open_namespace({"hosts", "any bytes", host_values});
    if (!ns) return ns.error();
    return Host(std::move(pool).value(), *ns);
  }

  Pool& pool() { return pool_; }
  NamespaceId ns() const { return ns_; }
  PoolInfo::Host info_of(uint32_t host) { return pool_.info()->hosts[host]; }

  Status put(std::string_view key, size_t size = kSize) {
    const auto value = value_of(key, size);
    const ConstSpan in[] = {{value.data(), value.size()}};
    return pool_.put(ns_, key, in);
  }
  /// OK only if the bytes are those that put() stored.
  Status get(std::string_view key, size_t size = kSize) {
    std::vector<std::byte> out(size + 1);
    const Span to[] = {{out.data(), out.size()}};
    const auto length = pool_.get(ns_, key, to);
    if (!length) return length.status();
    out.resize(*length);
    return out == value_of(key, size) ? Status::OK : Status::DAMAGED;
  }
  Status remove(std::string_view key) { return pool_.remove(ns_, key); }
  Result<Lease> acquire(std::string_view key) { return pool_.acquire(ns_, key, 60'000); }
  bool holds(std::string_view key) { return static_cast<bool>(pool_.length(ns_, key)); }

  static constexpr size_t kSize = 100'000;

 private:
  Host(Pool pool, NamespaceId ns) : pool_(std::move(pool)), ns_(ns) {}

  Pool pool_;
  NamespaceId ns_;
};

/// A pool that several hosts share, with all that is needed to inspect and damage it.
class SharedPool {
 public:
  explicit SharedPool(uint32_t hosts, CreateOptions options = {.evict_high_permille = 0},
                      const SharingTimes& times = kShortTimes)
      : locator_(unique_locator()) {
    options.times = times;
    if (options.size_bytes == 0) options.size_bytes = kPoolBytes;
    options.hosts = hosts;
    const auto created = Pool::create(locator_, options);
    EXPECT_TRUE(created) << created.error().message();
    auto media = open_media(locator_);
    EXPECT_TRUE(media) << media.error().message();
    media_ = std::move(media).value();
    std::memcpy(&superblock_, media_->base(), sizeof superblock_);
    layout_.emplace(superblock_.geometry);
    const bh_geometry& g = superblock_.geometry;
    if (g.range_bytes != 0) {
      EXPECT_TRUE(media_->spread(core::ranges_of(g, core::set_0(g)), core::offset_end(g)));
    }
  }
  ~SharedPool() { (void)Pool::destroy(locator_, /*force=*/true); }
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  const std::string& locator() const { return locator_; }
  const core::Layout& layout() const { return *layout_; }
  const bh_superblock& superblock() const { return superblock_; }
  std::byte* at(uint64_t offset) const { return media_->base() + offset; }

  /// Opens as a host; fails the test if it cannot.
  Host open(uint32_t host) const {
    auto opened = Host::open(locator_, host);
    EXPECT_TRUE(opened) << opened.error().message();
    return std::move(opened).value();
  }

  /// The newer copy of a host's slot line, if it is valid.
  std::optional<bh_host_slot> slot(uint32_t host) const {
    std::optional<bh_host_slot> best;
    for (const uint32_t copy : {0u, 1u}) {
      const auto line = read<core::Line>(layout_->slot_line(host, copy));
      if (!sealer().check(line, layout_->slot_line(host, copy))) continue;
      const auto slot = core::from_line<bh_host_slot>(line);
      if (!best || slot.turn > best->turn) best = slot;
    }
    return best;
  }
  /// Writes both copies, sealed.
  void write_slot(uint32_t host, const bh_host_slot& slot) const {
    for (const uint32_t copy : {0u, 1u}) {
      core::Line line = core::to_line(slot);
      sealer().seal(line, layout_->slot_line(host, copy));
      std::memcpy(at(layout_->slot_line(host, copy)), line.data(), sizeof line);
    }
  }
  /// Describes an extent, sealed, as if one block filled it.
  void describe_as_one_block(uint64_t extent) const {
    bh_extent_descriptor descriptor{};
    descriptor.block_bytes = superblock_.geometry.extent_bytes;
    descriptor.block_count = descriptor.extent_span = 1;
    core::Line line = core::to_line(descriptor);
    sealer().seal(line, layout_->descriptor(extent));
    std::memcpy(at(layout_->descriptor(extent)), line.data(), sizeof line);
  }
  /// A copy of shared bytes.
  template <class T>
  T read(uint64_t offset) const {
    T value;
    std::memcpy(&value, at(offset), sizeof value);
    return value;
  }
  uint64_t extents() const { return superblock_.geometry.extent_count; }

  static constexpr uint64_t kPoolBytes = 48 << 20;

 private:
  core::Sealer sealer() const { return core::Sealer(superblock_.pool_id); }

  std::string locator_;
  std::unique_ptr<Media> media_;
  bh_superblock superblock_{};
  std::optional<core::Layout> layout_;
};

/// A process that opens the pool as a host and runs one step for each next(). Killed at the end if
/// it still runs.
class HostProcess {
 public:
  using Step = std::function<Status(Host&)>;

  HostProcess(const SharedPool& pool, uint32_t host, std::vector<Step> steps) {
    int down[2], up[2];
    BOWHEAD_ASSERT(pipe(down) == 0 && pipe(up) == 0);
    pid_ = fork();
    if (pid_ == 0) _exit(work(pool.locator(), host, steps, down[0], up[1]));
    close(down[0]);
    close(up[1]);
    down_ = down[1];
    up_ = up[0];
    EXPECT_EQ(hear(), Status::OK) << "host " << host << " does not open the pool";
  }
  ~HostProcess() {
    kill_now();
    close(down_);
    close(up_);
  }
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;

  /// Does the next step and returns its status; CLOSED if the process does not answer.
  Status next() {
    const char go = 0;
    return write(down_, &go, 1) == 1 ? hear() : Status::CLOSED;
  }
  void stop() const { kill(pid_, SIGSTOP); }
  void go_on() const { kill(pid_, SIGCONT); }
  void kill_now() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  static int work(const std::string& locator, uint32_t host, const std::vector<Step>& steps,
                  int from, int to) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto opened = Host::open(locator, host);
    const auto say = [&](Status status) {
      const auto byte = static_cast<unsigned char>(status);
      return write(to, &byte, 1) == 1;
    };
    if (!opened) fmt::print(stderr, "{}\n", opened.error().message());
    if (!say(opened.status()) || !opened) return 1;
    char go = 0;
    for (const Step& step : steps) {
      if (read(from, &go, 1) != 1 || !say(step(*opened))) return 1;
    }
    (void)!read(from, &go, 1);  // stays until it is killed
    return 0;
  }
  Status hear() const {
    pollfd wait{up_, POLLIN, 0};
    unsigned char byte = 0;
    if (poll(&wait, 1, 30'000) != 1 || read(up_, &byte, 1) != 1) return Status::CLOSED;
    return static_cast<Status>(byte);
  }

  pid_t pid_ = -1;
  int down_ = -1, up_ = -1;
};

}  // namespace bowhead::test
