// SPDX-License-Identifier: Apache-2.0
// A device for tests of its mailbox: memory that a test sees, a clock that it sets, media that fail
// where it says.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "firmware-sim/mailbox.h"

namespace bowhead::test {

class FakeDevice final : public device::MailboxDevice {
 public:
  explicit FakeDevice(uint64_t memory_bytes) : memory(memory_bytes) {}

  uint64_t now_ns() override { return clock_ns; }
  device::WorkCounters counters() override { return work; }
  bool write_line(uint64_t offset, std::span<const std::byte, cxl::kLineBytes> data) override {
    if (!can_write || offset + data.size() > memory.size()) return false;
    std::memcpy(memory.data() + offset, data.data(), data.size());
    return true;
  }
  bool is_lost(uint64_t offset, uint64_t bytes) override {
    clock_ns += look_ns;
    return std::any_of(lost.begin(), lost.end(), [&](const auto& range) {
      return range.first < offset + bytes && offset < range.first + range.second;
    });
  }
  bool media_failed() override { return failed; }

  std::vector<std::byte> memory;  ///< may be less than the capacity that the facts say
  uint64_t clock_ns = 1'000'000;
  uint64_t look_ns = 0;  ///< that a look for lost memory takes
  device::WorkCounters work;
  bool can_write = true, failed = false;
  std::vector<std::pair<uint64_t, uint64_t>> lost;  ///< offset, bytes
};

/// A mailbox with its device.
struct MailboxUnderTest {
  static constexpr uint64_t kCapacity = uint64_t{1} << 30;

  explicit MailboxUnderTest(bool persistent = false)
      : facts{.capacity_bytes = kCapacity,
              .persistent = persistent,
              .serial_number = 0x1234'5678'9abc'def0,
              .firmware_revision = "bowhead test",
              .dirty_shutdowns = 3,
              .operations = 0x3e,
              .request_bytes_max = 64 << 20},
        device(1 << 20),
        hotness(kCapacity),
        mailbox(facts, device, hotness) {}

  /// Steps until no operation runs in the background.
  void finish() {
    while (mailbox.step()) {
    }
  }

  device::DeviceFacts facts;
  FakeDevice device;
  device::HotnessMonitor hotness;
  device::Mailbox mailbox;
};

}  // namespace bowhead::test
