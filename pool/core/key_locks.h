// SPDX-License-Identifier: Apache-2.0
// Key locks. A process that changes the index entries of a key, or a line of mail, holds one. The
// locks lie in the private part of the host; each names the process that holds it.
//
// Owns: nothing in this process. Calls: Growth; Recovery, if a dead process holds one.
#pragma once

#include "pool/core/rooms.h"

namespace bowhead::core {

inline constexpr uint64_t kLockWaitNs = 2'000'000'000;
inline constexpr uint64_t kShortLockWaitNs = 1'000'000;  ///< if another block or later try will do

template <class A>
class KeyLocks {
 public:
  explicit KeyLocks(const Rooms<A>& rooms)
      : c_(rooms.context), index_(rooms.index), growth_(rooms.growth), recovery_(rooms.recovery) {}
  KeyLocks(const KeyLocks&) = delete;
  KeyLocks& operator=(const KeyLocks&) = delete;

  /// False if a live process kept the lock for all of `wait_ns`.
  bool lock(const Hash128& hash, uint64_t wait_ns) {
    const bool locked = take(hash, wait_ns);
    if (locked) growth_.refresh();  // W4
    return locked;
  }
  void unlock(const Hash128& hash) { index_.unlock(hash); }

 private:
  bool take(const Hash128& hash, uint64_t wait_ns);

  Context<A>& c_;
  Index<A>& index_;
  Growth<A>& growth_;
  Recovery<A>& recovery_;
};

/// The key's lock, held for the length of a scope.
template <class A>
class KeyLock {
 public:
  KeyLock(KeyLocks<A>& locks, const Hash128& hash, uint64_t wait_ns = kLockWaitNs)
      : locks_(locks), hash_(hash), held_(locks.lock(hash, wait_ns)) {}
  ~KeyLock() {
    if (held_) locks_.unlock(hash_);
  }
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;
  bool held() const { return held_; }

 private:
  KeyLocks<A>& locks_;
  const Hash128 hash_;
  bool held_;
};

template <class A>
bool KeyLocks<A>::take(const Hash128& hash, uint64_t wait_ns) {
  uint32_t holder = 0;
  if (index_.try_lock(hash, &holder)) return true;
  const uint64_t deadline_ns = c_.access.now_ns() + wait_ns;
  for (uint32_t round = 0;; ++round) {
    if (index_.try_lock(hash, &holder)) return true;
    if (round % 64 == 63) {
      // Look for a dead holder first: on a busy machine the deadline comes after few rounds.
      const bool scavenged = !c_.alive(holder) && recovery_.scavenge_process(holder);
      if (!scavenged && c_.access.now_ns() > deadline_ns) return false;
    }
    c_.access.relax(round);
  }
}

}  // namespace bowhead::core
