// SPDX-License-Identifier: Apache-2.0
// The work of a host's process in the chaos, and the memory in which it reports.
//
// The content of a block follows from its key and a version, which stand at its beginning: so a
// reader knows every byte without the pool, and can distinguish the bytes of two puts.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/support/hosts.h"

namespace bowhead::test {

inline constexpr uint32_t kHosts = 4;
inline constexpr uint64_t kKeys = 500;
inline constexpr uint64_t kSetBytes = 64 << 20;  ///< of media by which the pool grows
inline constexpr SharingTimes kChaosTimes{
    .heartbeat_ms = 20, .dead_ms = 400, .grace_ms = 150, .settle_ms = 5, .reclaim_ms = 600};

/// Channels of the values that are numbers, if they are compressed: the other values are bytes.
inline constexpr uint32_t kChaosChannels = 2;
inline constexpr uint64_t kChaosTokenBytes = 2 * kChaosChannels;

enum class Away : uint32_t { NO, ASKED, GONE };
enum class Fence : uint32_t { NO, ASKED, DOING, DONE };

/// Shared by all processes of the chaos.
struct Board {
  struct Progress {
    std::atomic<uint64_t> moves{0};
    std::atomic<const char*> doing{""};  ///< a literal: at the same place in all of them
  };
  static constexpr uint64_t kFaults = 8, kFaultBytes = 400;

  std::atomic<bool> stop{false};
  std::atomic<Away> away[kHosts] = {};
  std::atomic<Fence> fence[kHosts] = {};
  std::atomic<bool> used[kHosts] = {};  ///< a process has opened the pool as that host
  Progress progress[16];
  std::atomic<uint64_t> version{0};
  bool alone = true;  ///< no process with another board puts, so no version is higher
  /// Media by which processes grow the pool: this, and a number. Empty: they do not.
  char media[64] = {};
  std::atomic<uint64_t> media_made{0};
  std::atomic<uint64_t> stored{0}, read{0}, removed{0}, leased{0}, lapsed{0}, refused{0}, busy{0},
      copy_only{0}, fenced{0}, opened{0}, recompressed{0}, planes{0}, grown{0}, shrunk{0};
  std::atomic<uint64_t> faults{0};
  char fault[kFaults][kFaultBytes] = {};

  void report(const std::string& text) {
    if (const uint64_t n = faults++; n < kFaults)
      snprintf(fault[n], kFaultBytes, "%s", text.c_str());
  }
  std::string fault_text() const {
    std::string text;
    for (uint64_t n = 0; n < std::min(faults.load(), kFaults); ++n)
      text += std::string(fault[n]) + "\n";
    return text;
  }
};

inline std::string chaos_key(uint64_t n) {
  return fmt::format("chaos-{}{}", n, n % 11 == 0 ? std::string(n % 450, 'x') : "");
}

/// Number of the key, version, then bytes that follow from them, up to a length that also does.
/// Half of it is compressible.
inline constexpr size_t kChaosSizes[] = {700,    16'384,  20'000,  50'000,
                                         65'536, 100'000, 131'072, 300'000};
inline constexpr size_t kChaosLess = 7;
inline std::vector<std::byte> chaos_value(uint64_t n, uint64_t version) {
  const size_t size = kChaosSizes[(n + version) % std::size(kChaosSizes)] - version % kChaosLess;
  auto value = bytes(size, n << 32 ^ version);
  std::fill(value.begin() + static_cast<long>(value.size() / 2), value.end(), std::byte(version));
  std::memcpy(value.data(), &n, 8);
  std::memcpy(value.data() + 8, &version, 8);
  return value;
}

/// Whether a value has this size.
inline bool is_chaos_size(uint64_t bytes) {
  return std::any_of(std::begin(kChaosSizes), std::end(kChaosSizes),
                     [&](size_t size) { return bytes <= size && size - bytes < kChaosLess; });
}

/// Empty if the bytes are a value of this key; else the error.
inline std::string fault_of(uint64_t n, const std::byte* data, size_t size, const Board& board) {
  uint64_t stored_n = 0, version = 0;
  if (size < 16) return fmt::format("{} bytes only", size);
  std::memcpy(&stored_n, data, 8);
  std::memcpy(&version, data + 8, 8);
  if (stored_n != n || (board.alone && version > board.version))
    return fmt::format("begins like key {:#x} version {:#x}", stored_n, version);
  const auto value = chaos_value(n, version);
  if (value.size() != size)
    return fmt::format("{} bytes of version {}, which has {}", size, version, value.size());
  for (size_t i = 0; i < size; ++i) {
    if (value[i] != data[i]) return fmt::format("version {} up to byte {} of {}", version, i, size);
  }
  return "";
}

/// The number of blocks of some sizes for which this host has space. Removes nothing.
inline std::vector<uint64_t> measure_room(Host& host) {
  std::vector<uint64_t> room;
  for (const uint64_t size : {20'000, 200'000, 5'000'000}) {
    std::vector<Reservation> taken;
    for (int refusals = 0; refusals < 5;) {
      auto reserved = host.pool().reserve(host.ns(), fmt::format("fill-{}", taken.size()), size);
      if (reserved) {
        taken.push_back(std::move(reserved).value());
        refusals = 0;
      } else {
        EXPECT_EQ(reserved.status(), Status::NO_SPACE);
        ++refusals;
        sleep_ms(2 * kChaosTimes.heartbeat_ms);
      }
    }
    for (Reservation& reservation : taken) EXPECT_EQ(host.pool().abort(reservation), Status::OK);
    room.push_back(taken.size());
  }
  return room;
}

/// One process. Opens the pool, works in it, closes it, and repeats.
class ChaosWorker {
 public:
  ChaosWorker(std::string locator, Board& board, uint32_t host, uint32_t number, bool leads,
              uint64_t seed)
      : locator_(std::move(locator)),
        board_(board),
        host_(host),
        progress_(board.progress[number]),
        leads_(leads),
        random_(seed) {}

  int run() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!board_.stop) {
      doing("waiting");
      if (board_.away[host_] != Away::NO && !leads_) {
        sleep_ms(5);
        continue;
      }
      if (board_.away[host_] == Away::GONE) {
        sleep_ms(5);
        continue;
      }
      doing("open");
      auto opened = Host::open(locator_, host_);
      if (!opened) {
        // Processes of a life that is over still run, or the other hosts do not respond.
        const bool fenced = opened.status() == Status::HOST_FENCED;
        if (!fenced && opened.status() != Status::BUSY) return fail(opened.error().message());
        ++(fenced ? board_.fenced : board_.busy);
        sleep_ms(10);
        continue;
      }
      ++board_.opened;
      board_.used[host_] = true;
      work(*opened);
    }
    return 0;
  }

 private:
  struct Reserved {
    Reservation reservation;
    uint64_t n, version;
  };
  struct Leased {
    Lease lease;
    uint64_t n, version;
  };

  int fail(const std::string& text) {
    board_.report(fmt::format("host {}: {}", host_, text));
    return 1;
  }
  void doing(const char* what) {
    progress_.doing = what;
    ++progress_.moves;
  }

  void work(Host& host) {
    pool_ = &host.pool();
    ns_ = host.ns();
    over_ = false;
    // Some sessions last long enough to declare a host dead. Without one that does, none is.
    const auto end =
        std::chrono::steady_clock::now() +
        std::chrono::milliseconds(random_.below(4 * host.pool().info()->times.dead_ms));
    for (uint64_t i = 0; std::chrono::steady_clock::now() < end && !over_ && !board_.stop; ++i) {
      if (board_.away[host_] == Away::ASKED) break;
      if (i % 16 == 0) vouch();
      if (board_.media[0] != 0 && random_.below(200) == 0) change_media();
      step(random_.below(kKeys));
    }
    // Not always: closing undoes open operations.
    if (random_.below(2) == 0) {
      while (!reservations_.empty()) end_reservation();
      while (!leases_.empty()) end_lease();
    }
    if (board_.away[host_] == Away::ASKED && !over_ && leads_) leave();
    reservations_.clear();
    leases_.clear();
    doing("close");
  }

  void step(uint64_t n) {
    switch (random_.below(16)) {
      case 0:
      case 1:
        return remove(n);
      case 2:
        return reserve(n);
      case 3:
        return end_reservation();
      case 4:
        return lease(n);
      case 5:
        return end_lease();
      case 6:
        return random_.below(16) == 0 ? recompress() : prefix(n);
      case 7:
      case 8:
      case 9:
        return read(n);
      case 10:
        return random_.below(2) == 0 ? read(n) : read_planes(n);
      default:
        return put(n);
    }
  }

  /// True if the status is OK; counts expected refusals, reports others.
  bool accept(Status status, std::initializer_list<Status> refusals, const char* what, uint64_t n) {
    if (status == Status::OK) return true;
    if (status == Status::BUSY) ++board_.busy;
    if (status == Status::NO_SPACE) ++board_.refused;
    if (status == Status::COPY_ONLY) ++board_.copy_only;
    if (status == Status::HOST_FENCED) {
      over_ = true;
      ++board_.fenced;
    }
    for (const Status refusal : refusals) {
      if (status == refusal) return false;
    }
    fail(fmt::format("{} of key {}: {}", what, n, status_name(status)));
    return false;
  }
  void judge(uint64_t n, const std::byte* data, size_t size, const char* what) {
    if (const std::string fault = fault_of(n, data, size, board_); !fault.empty())
      fail(fmt::format("{} of key {}: {}", what, n, fault));
  }

  void put(uint64_t n) {
    doing("put");
    const auto value = chaos_value(n, ++board_.version);
    // In two parts, as engines do.
    const size_t half = value.size() / 2;
    const ConstSpan parts[] = {{value.data(), half}, {value.data() + half, value.size() - half}};
    if (accept(pool_->put(ns_, chaos_key(n), parts),
               {Status::NO_SPACE, Status::BUSY, Status::HOST_FENCED}, "put", n))
      ++board_.stored;
  }
  void read(uint64_t n) {
    doing("get");
    std::vector<std::byte> out(300'000);
    const Span to[] = {{out.data(), out.size()}};
    const auto length = pool_->get(ns_, chaos_key(n), to);
    if (!accept(length.status(), {Status::NOT_FOUND}, "get", n)) return;
    judge(n, out.data(), *length, "get");
    ++board_.read;
  }
  /// All planes, and values without planes, must be exact. With fewer planes only the length is
  /// known: they do not show the version.
  void read_planes(uint64_t n) {
    doing("get_prefix");
    const auto planes = static_cast<uint32_t>(1 + random_.below(16));
    const bool all = planes >= 12;  // no number has more
    std::vector<std::byte> out(300'000);
    const Span to[] = {{out.data(), out.size()}};
    const auto read = pool_->get_prefix(ns_, chaos_key(n), planes, to);
    if (!accept(read.status(), {Status::NOT_FOUND}, "get_prefix", n)) return;
    const bool in_planes = host_values.profile != CompressionProfile::NONE &&
                           !is_opaque(host_values.layout) &&
                           read->length_bytes % kChaosTokenBytes == 0;
    if (all || !in_planes)
      judge(n, out.data(), read->length_bytes, "get_prefix");
    else if (!is_chaos_size(read->length_bytes))
      fail(fmt::format("get_prefix of key {}: {} bytes", n, read->length_bytes));
    if (read->read_bytes == 0 || read->read_bytes > read->length_bytes)
      fail(fmt::format("get_prefix of key {}: read {} bytes for {}", n, read->read_bytes,
                       read->length_bytes));
    ++board_.planes;
  }
  void remove(uint64_t n) {
    doing("remove");
    if (accept(pool_->remove(ns_, chaos_key(n)),
               {Status::NOT_FOUND, Status::BUSY, Status::HOST_FENCED}, "remove", n))
      ++board_.removed;
  }

  void reserve(uint64_t n) {
    if (reservations_.size() > 2) return end_reservation();
    doing("reserve");
    const uint64_t version = ++board_.version;
    const auto value = chaos_value(n, version);
    auto reservation = pool_->reserve(ns_, chaos_key(n), value.size());
    if (!accept(reservation.status(), {Status::NO_SPACE, Status::BUSY, Status::HOST_FENCED},
                "reserve", n) ||
        reservation->present)
      return;
    std::memcpy(reservation->data, value.data(), value.size());
    reservations_.push_back({*reservation, n, version});
  }
  /// Whatever happened since, stops included: no other process may write to a reservation, unless
  /// this host was declared dead, and then commit reports that.
  void end_reservation() {
    if (reservations_.empty()) return;
    doing("commit");
    Reserved reserved = std::move(reservations_.back());
    reservations_.pop_back();
    const auto value = chaos_value(reserved.n, reserved.version);
    const bool whole = std::memcmp(reserved.reservation.data, value.data(), value.size()) == 0;
    if (random_.below(4) == 0) {
      accept(pool_->abort(reserved.reservation), {Status::HOST_FENCED}, "abort", reserved.n);
    } else if (accept(pool_->commit(reserved.reservation),
                      {Status::NO_SPACE, Status::BUSY, Status::HOST_FENCED}, "commit",
                      reserved.n) &&
               !whole) {
      fail(fmt::format("another process wrote to a reservation of key {}", reserved.n));
    }
  }

  void lease(uint64_t n) {
    if (leases_.size() > 2) return end_lease();
    doing("acquire");
    auto lease = pool_->acquire(ns_, chaos_key(n), 1 + random_.below(300));
    if (!accept(lease.status(),
                {Status::NOT_FOUND, Status::COPY_ONLY, Status::LIMIT_REACHED, Status::HOST_FENCED,
                 Status::CODED},
                "acquire", n))
      return;
    uint64_t version = 0;
    std::memcpy(&version, lease->data + 8, 8);
    leases_.push_back({*lease, n, version});
  }
  void end_lease() {
    if (leases_.empty()) return;
    doing("release");
    Leased leased = leases_.front();
    leases_.erase(leases_.begin());
    // A private copy first: the bytes that are judged are those before the release.
    const std::vector<std::byte> seen(leased.lease.data,
                                      leased.lease.data + leased.lease.length_bytes);
    const Status status = pool_->release(leased.lease);
    ++(status == Status::LAPSED ? board_.lapsed : board_.leased);
    if (!accept(status, {Status::LAPSED}, "release", leased.n)) return;
    judge(leased.n, seen.data(), seen.size(), "a valid lease");
    if (std::memcmp(&leased.version, seen.data() + 8, 8) != 0)
      fail(fmt::format("a valid lease of key {} changed its version", leased.n));
  }

  void prefix(uint64_t n) {
    doing("longest_prefix");
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < 16; ++i) keys.push_back(chaos_key((n + i) % kKeys));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    const auto found = pool_->longest_prefix(ns_, views);
    accept(found.status(), {}, "longest_prefix", n);
    if (found && *found > views.size()) fail("a prefix longer than requested");
  }

  void recompress() {
    doing("recompress");
    const auto done = pool_->recompress(/*cold_ms=*/random_.below(20));
    if (accept(done.status(), {Status::HOST_FENCED}, "recompress", 0))
      board_.recompressed += done->recompressed;
  }

  /// Adds a set of media, or drains one and removes it if that works soon.
  void change_media() {
    doing("change of media");
    const auto refused = {
        Status::BUSY,     Status::CANCELLED, Status::HOST_FENCED,     Status::IN_USE,
        Status::NO_SPACE, Status::NOT_FOUND, Status::INVALID_ARGUMENT};
    const auto info = pool_->info();
    if (!accept(info.status(), {}, "info", 0)) return;
    if (info->sets.size() < 3 && random_.below(2) == 0) {
      const std::string name = fmt::format("{}{}", board_.media, board_.media_made++);
      if (accept(pool_->grow(name, {.size_bytes = kSetBytes}).status(), refused, "grow by", 0))
        ++board_.grown;
      return;
    }
    if (info->sets.empty()) return;
    const uint32_t set = info->sets[random_.below(info->sets.size())].number;
    if (random_.below(4) == 0) {
      accept(pool_->drain(set, {.undo = true}).status(), refused, "undo drain of", set);
      return;
    }
    int left = 20;
    const auto drained = pool_->drain(set, {.cancelled = [&] {
                                        doing("drain");
                                        return --left == 0 || board_.stop;
                                      }});
    if (!accept(drained.status(), refused, "drain of", set)) return;
    if (accept(pool_->shrink(set).status(), refused, "shrink by", set)) ++board_.shrunk;
  }

  /// Acts for the operator.
  void vouch() {
    for (uint32_t h = 0; h < kHosts; ++h) {
      Fence asked = Fence::ASKED;
      if (h == host_ || !board_.fence[h].compare_exchange_strong(asked, Fence::DOING)) continue;
      doing("fence");
      const auto fenced = pool_->fence(h);
      const bool early = fenced.status() == Status::BUSY;  // it is not declared dead yet
      // A host that was killed before its first life has nothing to fence.
      const bool unused = fenced.status() == Status::INVALID_ARGUMENT && !board_.used[h];
      if (!fenced && !early && !unused) fail(fenced.error().message());
      board_.fence[h] = early ? Fence::ASKED : Fence::DONE;
    }
  }

  void leave() {
    while (board_.away[host_] == Away::ASKED && !board_.stop) {
      doing("leave");
      const auto left = pool_->leave();
      if (left) {
        Away asked = Away::ASKED;
        board_.away[host_].compare_exchange_strong(asked, Away::GONE);
        return;
      }
      if (left.status() != Status::IN_USE && left.status() != Status::BUSY) {
        fail("leave: " + left.error().message());
        return;
      }
      sleep_ms(5);
    }
  }

  const std::string locator_;
  Board& board_;
  const uint32_t host_;
  Board::Progress& progress_;
  const bool leads_;
  Random random_;
  Pool* pool_ = nullptr;
  NamespaceId ns_ = 0;
  bool over_ = false;  ///< this life of the host
  std::vector<Reserved> reservations_;
  std::vector<Leased> leases_;
};

}  // namespace bowhead::test
