// SPDX-License-Identifier: Apache-2.0
// Sends any messages of the vfio-user protocol to a PCI function, well-formed ones among them. Each
// is answered or ends the connection, answers are consistent, the device only gets memory that was
// mapped, and no descriptor stays behind.
#include <bowhead/format/pci.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <cstdlib>

#include "firmware-sim/pci_function.h"
#include "tests/device/vfio_peer.h"
#include "tests/fuzz/input.h"

namespace bowhead {
namespace {

using namespace test::vfio;

constexpr uint64_t kFileBytes = 1 << 20;

void check(bool condition) {
  if (!condition) std::abort();
}

class Device final : public device::WindowDevice {
 public:
  void start(UniqueFd memory, uint64_t bytes) override {
    check(!is_started);
    struct stat info {};
    check(fstat(memory.get(), &info) == 0 && bytes > 0);
    check(bytes <= static_cast<uint64_t>(info.st_size));
    is_started = true;
    memory_ = std::move(memory);
  }
  void stop() override {
    check(is_started);
    is_started = false;
    memory_ = UniqueFd();
  }
  Standing standing() override {
    check(is_started);
    return {BH_PCI_READY, {}};
  }
  void ring() override { check(is_started); }
  void set_interrupt(UniqueFd event) override { event_ = std::move(event); }
  void interrupt() override {}
  void signal_completion() override { check(is_started); }

  bool is_started = false;

 private:
  UniqueFd memory_, event_;
};

class Run {
 public:
  explicit Run(fuzz::Input& input)
      : input_(input),
        file_(memory(kFileBytes)),
        function_(mappings_, device_, /*has_interrupt=*/true),
        user_(function_, mappings_) {}

  /// False: the connection ended.
  bool step() {
    switch (input_.take<uint8_t>() % 12) {
      case 0:
        return send(version());
      case 1: {
        const uint64_t address = small(), bytes = small();
        return send(map(address, bytes, small()), 1);
      }
      case 2: {
        const auto address = input_.take<uint64_t>(), bytes = input_.take<uint64_t>();
        const auto offset = input_.take<uint64_t>();
        const auto flags = input_.take<uint8_t>();
        return send(map(address, bytes, offset, flags), input_.take<uint8_t>() % 3);
      }
      case 3: {
        const uint64_t address = small(), bytes = small();
        return send(unmap(address, bytes, input_.take<uint8_t>()));
      }
      case 4: {
        const uint32_t region = input_.take<uint8_t>() % 10;
        const uint64_t offset = input_.take<uint16_t>() % 4200;
        return send(read(region, offset, input_.take<uint8_t>()));
      }
      case 5: {
        const uint32_t region = input_.take<uint8_t>() % 10;
        const uint64_t offset = input_.take<uint16_t>() % 4200;
        return send(write(region, offset, some(input_.take<uint8_t>())));
      }
      case 6: {
        const uint64_t address = small(), bytes = small();
        return send(write(device::kBar0Region, BH_PCI_REG_WINDOW, bytes_of(address, bytes)));
      }
      case 7: {
        const auto bits = input_.take<uint8_t>();
        return send(let_reach_memory((bits & 2) == 0)) &&
               send(write_register(BH_PCI_REG_CONTROL, bits & 1));
      }
      case 8:
        return send(write_register(BH_PCI_REG_DOORBELL, 1)) &&
               send(write_register(BH_PCI_REG_SIGNAL, 1));
      case 9:
        return send(message(RESET));
      case 10: {
        const uint16_t command = input_.take<uint8_t>() % 20;
        const Bytes payload = some(input_.take<uint8_t>() % 64);
        const auto flags = input_.take<uint8_t>();
        return send(message(command, payload, flags), input_.take<uint8_t>() % 2);
      }
      default:
        return send_raw();
    }
  }

 private:
  uint64_t small() { return uint64_t{input_.take<uint8_t>()} << 16; }
  Bytes some(size_t size) {
    const std::string_view bytes = input_.take_bytes(size);
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
    return {from, from + bytes.size()};
  }

  /// A header as it comes, and as much behind it as it says, if that can be.
  bool send_raw() {
    Bytes bytes = some(16);
    if (bytes.size() < 16) return false;
    const auto size =
        device::VfioUser::message_bytes(std::span(bytes).first<device::VfioUser::kHeaderBytes>());
    if (!size) return false;
    check(*size <= device::VfioUser::kMessageBytesMax);
    bytes = bytes + some(*size - 16);
    bytes.resize(*size);
    return send(bytes, input_.take<uint8_t>() % 3);
  }

  bool send(const Bytes& bytes, size_t count = 0) {
    std::vector<UniqueFd> descriptors;
    const bool event = number_at<uint16_t>(bytes, 2) == SET_IRQS && count == 1;
    for (size_t i = 0; i < count; ++i)
      descriptors.emplace_back(event ? eventfd(0, EFD_CLOEXEC) : dup(file_.get()));
    const std::vector<std::byte> exact(bytes);  // an overrun shows with the address sanitizer
    const auto outcome = user_.handle(exact, std::move(descriptors));
    const Bytes& reply = outcome.reply;
    if (!reply.empty()) {
      check(number_at<uint32_t>(reply, 0) == number_at<uint32_t>(bytes, 0));
      check(number_at<uint32_t>(reply, 4) == reply.size());
      check((number_at<uint32_t>(reply, 8) & 0xF) == 1);
      check(error_of(reply) == 0 || reply.size() == 16);
    }
    return !outcome.ends;
  }

  fuzz::Input& input_;
  const UniqueFd file_;
  Device device_;
  device::DmaMappings mappings_;
  device::PciFunction function_;
  device::VfioUser user_;
};

}  // namespace
}  // namespace bowhead

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const size_t descriptors = bowhead::test::vfio::open_descriptors();
  {
    bowhead::fuzz::Input input(data, size);
    bowhead::Run run(input);
    while (!input.empty() && run.step()) {
    }
  }
  if (bowhead::test::vfio::open_descriptors() != descriptors) std::abort();
  return 0;
}
