// SPDX-License-Identifier: Apache-2.0
// Sends any commands to a mailbox, one after the other, while its device has faults of all kinds.
// What it answers is bounded and consistent.
#include <cstdlib>
#include <iterator>
#include <vector>

#include "tests/device/mailbox_device.h"
#include "tests/fuzz/input.h"

namespace bowhead {
namespace {

using cxl::Opcode;
using cxl::ReturnCode;

constexpr uint64_t kCapacity = 16 << 20;
constexpr Opcode kOpcodes[] = {Opcode::IDENTIFY,
                               Opcode::BACKGROUND_STATUS,
                               Opcode::ABORT_BACKGROUND,
                               Opcode::GET_EVENTS,
                               Opcode::CLEAR_EVENTS,
                               Opcode::GET_TIMESTAMP,
                               Opcode::SET_TIMESTAMP,
                               Opcode::GET_SUPPORTED_LOGS,
                               Opcode::GET_LOG,
                               Opcode::IDENTIFY_MEMORY_DEVICE,
                               Opcode::GET_PARTITION_INFO,
                               Opcode::GET_LSA,
                               Opcode::SET_LSA,
                               Opcode::GET_HEALTH_INFO,
                               Opcode::GET_ALERT_CONFIG,
                               Opcode::SET_ALERT_CONFIG,
                               Opcode::GET_POISON_LIST,
                               Opcode::INJECT_POISON,
                               Opcode::CLEAR_POISON,
                               Opcode::GET_SCAN_MEDIA_CAPS,
                               Opcode::SCAN_MEDIA,
                               Opcode::GET_SCAN_MEDIA_RESULTS,
                               Opcode::GET_NDP_CAPABILITIES,
                               Opcode::GET_COUNTERS,
                               Opcode::GET_HOTNESS,
                               Opcode::CONFIGURE_HOTNESS,
                               Opcode::READ_HOT_LIST};

void check(bool condition) {
  if (!condition) std::abort();
}

class Run {
 public:
  explicit Run(fuzz::Input& input)
      : input_(input),
        device_(64 << 10),
        hotness_(kCapacity),
        mailbox_({.capacity_bytes = kCapacity}, device_, hotness_) {}

  void step() {
    const auto action = input_.take<uint8_t>() % (std::size(kOpcodes) + 11);
    if (action < std::size(kOpcodes)) {
      send(static_cast<uint16_t>(kOpcodes[action]), input_.take_bytes(input_.take<uint8_t>()));
      return;
    }
    switch (action - std::size(kOpcodes)) {
      case 0: {
        const auto opcode = input_.take<uint16_t>();
        send(opcode, input_.take_bytes(input_.take<uint16_t>()));
        break;
      }
      case 1:
        (void)mailbox_.step();
        break;
      case 2: {
        const auto offset = input_.take<uint64_t>();
        mailbox_.report_met(offset, input_.take<uint64_t>());
        break;
      }
      case 3: {
        const auto offset = input_.take<uint64_t>();
        mailbox_.report_lost(offset, input_.take<uint64_t>());
        break;
      }
      case 4:
        mailbox_.report_corrected(input_.take<uint64_t>());
        break;
      case 5: {
        const auto offset = input_.take<uint64_t>();
        hotness_.note(offset, input_.take<uint64_t>());
        break;
      }
      case 6:
        hotness_.end_epoch();
        break;
      case 7:
        device_.clock_ns += input_.take<uint32_t>();
        hotness_.advance(device_.clock_ns);
        break;
      case 8:
        device_.failed = !device_.failed;
        break;
      case 9:
        if (device_.lost.size() > 8) device_.lost.clear();
        device_.lost.emplace_back(input_.take<uint32_t>(), input_.take<uint16_t>());
        break;
      default: {
        const auto offset = input_.take<uint64_t>();
        (void)mailbox_.is_poisoned(offset, input_.take<uint64_t>());
      }
    }
  }

  /// The poison list has all poison unless it has overflowed.
  void check_poison() {
    device_.failed = false;
    const auto counters =
        cxl::copy_from<cxl::Counters>(send(static_cast<uint16_t>(Opcode::GET_COUNTERS), {}));
    uint64_t listed = 0;
    cxl::PoisonListHead head{};
    cxl::MemoryRange range{cxl::kRestartPoisonList, kCapacity / cxl::kLineBytes};
    do {
      const std::string_view in(reinterpret_cast<const char*>(&range), sizeof range);
      const auto list = send(static_cast<uint16_t>(Opcode::GET_POISON_LIST), in);
      head = cxl::copy_from<cxl::PoisonListHead>(list);
      check(list.size() == sizeof head + head.count * sizeof(cxl::MediaError));
      for (size_t i = 0; i < head.count; ++i) {
        const auto error = cxl::copy_from<cxl::MediaError>(
            std::span(list).subspan(sizeof head + i * sizeof(cxl::MediaError)));
        check(error.lines > 0 && mailbox_.is_poisoned(error.address & ~uint64_t{63}, 1));
        listed += error.lines;
      }
      range.address = 0;
    } while ((head.flags & cxl::POISON_MORE) != 0);
    const bool complete = (head.flags & cxl::POISON_OVERFLOWED) == 0;
    check(complete ? listed == counters.poisoned_lines : listed <= counters.poisoned_lines);
    check(mailbox_.is_poisoned(0, kCapacity) == (counters.poisoned_lines > 0));
  }

 private:
  std::vector<std::byte> send(uint16_t opcode, std::string_view bytes) {
    const std::vector<std::byte> exact(
        reinterpret_cast<const std::byte*>(bytes.data()),
        reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
    const cxl::Reply reply = mailbox_.carry_out(opcode, exact);
    check(reply.output.size() <= cxl::kPayloadBytesMax);
    check(reply.code == ReturnCode::SUCCESS || reply.output.empty());
    return reply.output;
  }

  fuzz::Input& input_;
  test::FakeDevice device_;
  device::HotnessMonitor hotness_;
  device::Mailbox mailbox_;
};

}  // namespace
}  // namespace bowhead

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bowhead::fuzz::Input input(data, size);
  bowhead::Run run(input);
  while (!input.empty()) run.step();
  run.check_poison();
  return 0;
}
