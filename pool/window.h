// SPDX-License-Identifier: Apache-2.0
// Window: what a device, and the driver that talks to it, see of an open pool: its memory by
// offsets, the queue pairs of its hosts, and the headers that say which block lies where.
//
// Who writes what (one writer per line): commands the process that holds the pair, completions the
// device, requests the process that asks, answers the device, in memory that each has reserved in
// the pool for itself. So a process that dies leaves no memory that another still writes to.
#pragma once

#include <bowhead/format/device.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "pool/core/access.h"
#include "pool/core/channel.h"
#include "pool/pool.h"

namespace bowhead {

/// Not thread-safe but for access(), standing(), is_block() and is_payload().
class Window {
 public:
  using Access = core::NativeAccess;
  using Channel = core::Channel<Access>;

  /// The pool must outlive it. Returns NOT_SUPPORTED (an earlier version made the pool), READ_ONLY,
  /// FORKED.
  static Result<Window> open(Pool& pool);
  Window(Window&&) noexcept;
  ~Window();  ///< gives back pairs and the place of the device

  Access& access();
  uint32_t host() const;
  uint32_t hosts() const;
  uint64_t pool_id() const;     ///< its first half
  uint64_t pool_bytes() const;  ///< behind all offsets, also of memory to which it can grow
  /// The commands of a pair, BH_DEVICE_QUEUE_BYTES; its completions.
  uint64_t commands(uint32_t host, uint32_t pair) const;
  uint64_t completions(uint32_t host, uint32_t pair) const;

  /// The word of a host that says whether it has the device.
  uint64_t device_word(uint32_t host) const;

  /// A queue pair of this host for this process alone, until give_back(). LIMIT_REACHED: all are
  /// taken.
  Result<uint32_t> take_pair();
  void give_back(uint32_t pair);
  bool is_taken(uint32_t pair) const;  ///< a pair of this host, by any process

  /// Makes this process the device, as long as the object lives; completions can be stored to. One
  /// process of all hosts is: IN_USE. Waits for a second where that of another machine has died.
  Result<void> become_device();
  /// For the device, each 100 ms or more often. IN_USE: it was stopped for long, and another host
  /// has the device by now.
  Result<void> heartbeat();
  /// Whether some process is the device. One of another machine is known to have ended a second
  /// later; it is looked for each 20 ms.
  bool has_device();

  /// OK, or why this process must store nothing any more: its host was declared dead (HOST_FENCED,
  /// HOST_ID_CONFLICT), or the medium failed. Cheap.
  Status standing() const;

  /// A block of the pool whose first bytes lie in that slot of its extent, committed. The answer is
  /// good at the moment of the call: who reads the block asks again afterwards. False for all that
  /// it is not, whatever the arguments are.
  bool is_block(const bh_device_block& block) const;
  /// The bytes lie in the payload of the pool, on media that are mapped.
  bool is_payload(uint64_t offset, uint64_t bytes) const;

 private:
  class State;
  explicit Window(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace bowhead
