// SPDX-License-Identifier: Apache-2.0
// The mailbox of a device: CXL's commands for memory devices and Bowhead's own, carried out on the
// state of the device. docs/device-mailbox.md has the commands, cxl_mailbox.h their payloads.
//
// One table says of each command its lengths, its effects and its handler. The checks that all
// commands share are made once, and the Command Effects Log is made from the table.
//
// The mailbox owns the poison of the device's memory, its event logs, its label storage area and
// its timestamp. They begin empty and are lost with the mailbox. It has no thread, and reaches the
// memory of its device only through MailboxDevice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "firmware-sim/cxl_mailbox.h"
#include "firmware-sim/hotness.h"

namespace bowhead::device {

/// What does not change while a device runs.
struct DeviceFacts {
  uint64_t capacity_bytes = 0;  ///< of its memory: a multiple of 64, above 0
  bool persistent = false;      ///< all of it, or none
  uint64_t serial_number = 0;
  std::string firmware_revision;  ///< the first 16 bytes are reported
  uint32_t dirty_shutdowns = 0;   ///< how often it ended without having stored everything
  uint64_t operations = 0;        ///< bit n: opcode n of bowhead/format/device.h
  uint64_t request_bytes_max = 0;
};

/// Of the commands of queue pairs, since the device began.
struct WorkCounters {
  uint64_t commands = 0;    ///< taken
  uint64_t refused = 0;     ///< of them, answered with another status than OK
  uint64_t read_bytes = 0;  ///< of blocks
  uint64_t pairs = 0;       ///< that have an area for answers now
};

/// What a mailbox asks of its device, in the thread that called the mailbox and with its lock held:
/// none of these may call the mailbox. Offsets count from the beginning of the device's memory.
class MailboxDevice {
 public:
  virtual ~MailboxDevice() = default;
  virtual uint64_t now_ns() = 0;  ///< of a clock that never goes back
  virtual WorkCounters counters() = 0;
  /// Stores a line, for Clear Poison. False: it cannot, and the line stays poisoned.
  virtual bool write_line(uint64_t offset, std::span<const std::byte, cxl::kLineBytes> data) = 0;
  /// Whether the medium has failed anywhere in a range.
  virtual bool is_lost(uint64_t offset, uint64_t bytes) = 0;
  /// Whether the medium has failed as a whole.
  virtual bool media_failed() = 0;
};

/// Thread-safe: a lock around everything, but is_poisoned() takes it only if there is poison.
class Mailbox {
 public:
  static constexpr uint16_t kInjectedLinesMax = 256;
  static constexpr uint32_t kLsaBytes = 64 << 10;

  /// `device` and `hotness` must outlive it.
  Mailbox(DeviceFacts facts, MailboxDevice& device, HotnessMonitor& hotness);
  ~Mailbox();

  /// Carries out a command. It never fails otherwise than by the return code of the reply.
  cxl::Reply carry_out(uint16_t opcode, std::span<const std::byte> input);
  /// Carries on with the background operation; returns whether one is running still. The device
  /// calls it again and again while it has nothing better to do. A step looks at 4 MiB.
  bool step();

  /// Whether a line of the range is poisoned. To be asked before memory is read.
  bool is_poisoned(uint64_t offset, uint64_t bytes) const;
  /// A read met poison: it is counted, and becomes an event. Nothing happens if there is none.
  void report_met(uint64_t offset, uint64_t bytes);
  /// The medium failed there: the lines become poisoned, from an internal source. Bytes beyond the
  /// capacity are ignored.
  void report_lost(uint64_t offset, uint64_t bytes);
  /// The medium corrected an error of a line.
  void report_corrected(uint64_t offset);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::device
