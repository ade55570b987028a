// SPDX-License-Identifier: Apache-2.0
// DevicePlace: of the hosts of a pool one has the device (bh_host_counts.device). Within a machine
// a lock says so; this is for hosts of several machines, which have no lock in common.
//
// The word of a host is its device's alone: heartbeats << 2 | state. A device that serves stores it
// anew at least each kHeartbeatNs. A word that another host has not seen change for kSilentNs is
// that of a device that ended.
//
// Claim: (1) No word of another host is alive. (2) The own word says CLAIMS, and is published and
// settled. (3) Words of other hosts that are alive: SERVES: it has the place. CLAIMS: the lower
// host waits for the higher one, which gives up. (4) The own word says SERVES.
//
// Invariant: two hosts do not serve at once, as long as no device stops for kSilentNs between two
// heartbeats. Of two that have come as far as (3), one looked when the word of the other was
// settled: it saw CLAIMS or SERVES there, and went on only if that word became 0. A device that
// stopped for long and goes on may be the second: at its next heartbeat the higher one of both
// ends.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "pool/core/context.h"

namespace bowhead::core {

/// One thread at a time.
template <class A>
class DevicePlace {
 public:
  static constexpr uint64_t kHeartbeatNs = 100'000'000, kSilentNs = 10 * kHeartbeatNs;

  explicit DevicePlace(Context<A>& context) : c_(context) {}
  DevicePlace(const DevicePlace&) = delete;
  DevicePlace& operator=(const DevicePlace&) = delete;

  /// For this host, for which no other process claims it. Waits for kSilentNs if the device of
  /// another host ended without leaving. Returns the host that has it; none: it is claimed.
  std::optional<uint32_t> claim() {
    for (;;) {
      look();
      if (const auto host = other([](const Seen& seen) { return seen.alive && seen.moved; }))
        return host;
      if (!other([](const Seen& seen) { return seen.alive; })) break;
      c_.access.sleep_ns(kLookNs);
    }
    store(CLAIMS);
    c_.settle();
    for (;;) {
      look();
      const auto serves =
          other([](const Seen& seen) { return seen.alive && (seen.word & kStateMask) == SERVES; });
      const auto claims = other([](const Seen& seen) { return seen.alive; });
      if (serves || (claims && *claims < c_.host)) {
        leave();
        return serves ? serves : claims;
      }
      if (!claims) break;
      c_.access.sleep_ns(kLookNs);
    }
    store(SERVES);
    return std::nullopt;
  }

  /// Each kHeartbeatNs, of the host that has it. Returns a host that has it too, and keeps it.
  std::optional<uint32_t> heartbeat() {
    store(SERVES);
    look();
    const auto host =
        other([](const Seen& seen) { return seen.alive && (seen.word & kStateMask) == SERVES; });
    return host && *host < c_.host ? host : std::nullopt;
  }
  void leave() { store(NONE); }

  /// Another host has the device; one whose word is seen for the first time counts as having it.
  bool is_elsewhere() {
    look();
    return other([](const Seen& seen) { return seen.alive; }).has_value();
  }

  /// The word of a host.
  static uint64_t word_at(const Layout& layout, uint32_t host) {
    return layout.part(host, BH_PART_COUNTS) + offsetof(bh_host_counts, device);
  }

 private:
  enum State : uint64_t { NONE = 0, CLAIMS = 1, SERVES = 2 };
  static constexpr uint64_t kStateMask = 3;
  static constexpr uint64_t kLookNs = kHeartbeatNs / 4;

  /// The word of another host.
  struct Seen {
    uint64_t word = 0;
    uint64_t since_ns = 0;  ///< when it was seen first
    bool alive = false;     ///< and that is not long ago
    bool moved = false;     ///< it was another word before, which was not 0
  };

  uint64_t at(uint32_t host) const { return word_at(c_.layout, host); }
  void store(State state) {
    const uint64_t heartbeats = c_.access.load(at(c_.host)) / (kStateMask + 1) + 1;
    c_.access.store(at(c_.host), state == NONE ? 0 : heartbeats * (kStateMask + 1) + state);
    c_.access.publish(at(c_.host), 8);
  }

  void look() {
    const uint32_t hosts = c_.layout.geometry().host_count;
    for (uint32_t h = 0; h < hosts; ++h) c_.invalidate_from(h, at(h), 8);
    c_.access.coherence_fence();
    const uint64_t now_ns = c_.access.now_ns();
    for (uint32_t h = 0; h < hosts; ++h) {
      Seen& seen = seen_[h];
      const uint64_t word = c_.access.load(at(h));
      if (word != seen.word) {
        seen.moved = seen.word != 0 && word != 0;
        seen.word = word;
        seen.since_ns = now_ns;
      }
      seen.alive = word != 0 && now_ns - seen.since_ns < kSilentNs;
    }
  }

  /// The first one of which this is true.
  template <class Is>
  std::optional<uint32_t> other(const Is& is) const {
    const uint32_t hosts = c_.layout.geometry().host_count;
    for (uint32_t h = 0; h < hosts; ++h) {
      if (h != c_.host && is(seen_[h])) return h;
    }
    return std::nullopt;
  }

  Context<A>& c_;
  std::array<Seen, BH_HOSTS_MAX> seen_{};
};

}  // namespace bowhead::core
