// SPDX-License-Identifier: Apache-2.0
// The PCI function of a device, as a virtual machine sees it: messages, registers, and the socket.
#include <bowhead/format/pci.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "driver-shim/queue_pair.h"
#include "firmware-sim/pci_function.h"
#include "firmware-sim/pci_server.h"
#include "firmware-sim/pool_device.h"
#include "tests/device/sequence.h"
#include "tests/device/vfio_peer.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

using namespace vfio;
using device::kBar0Region;
using device::kConfigRegion;

constexpr uint64_t kMiB = 1 << 20;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

/// Notes what is asked of it.
class FakeDevice final : public device::WindowDevice {
 public:
  void start(UniqueFd memory, uint64_t bytes) override {
    file = std::move(memory);
    window_bytes = bytes;
    now = {BH_PCI_READY, {}};
  }
  void stop() override {
    file = UniqueFd();
    now = {BH_PCI_DISABLED, {}};
    ++stops;
  }
  Standing standing() override { return now; }
  void ring() override { ++rings; }
  void set_interrupt(UniqueFd given) override { event = std::move(given); }
  void interrupt() override { ++interrupts; }
  void signal_completion() override { ++signals; }

  UniqueFd file, event;
  uint64_t window_bytes = 0;
  Standing now;
  int stops = 0, rings = 0, interrupts = 0, signals = 0;
};

class PciFunctionTest : public testing::Test {
 protected:
  PciFunctionTest() : user_(std::in_place, function_, mappings_) {}

  void SetUp() override {
    const auto outcome = user_->handle(version(), {});
    ASSERT_EQ(error_of(outcome.reply), 0u);
    ASSERT_FALSE(outcome.ends);
    EXPECT_EQ(number_at<uint32_t>(outcome.reply, 16), 0u);  // version 0.0
    EXPECT_EQ(outcome.reply.back(), std::byte{0});
  }

  Bytes send(const Bytes& bytes, std::vector<UniqueFd> descriptors = {}) {
    auto outcome = user_->handle(bytes, std::move(descriptors));
    EXPECT_FALSE(outcome.ends);
    EXPECT_EQ(number_at<uint32_t>(outcome.reply, 4), outcome.reply.size());
    EXPECT_EQ(number_at<uint32_t>(outcome.reply, 0), number_at<uint32_t>(bytes, 0));
    EXPECT_TRUE(error_of(outcome.reply) == 0 || outcome.reply.size() == 16);
    return outcome.reply;
  }
  Bytes send(const Bytes& bytes, UniqueFd descriptor) {
    std::vector<UniqueFd> one;
    one.push_back(std::move(descriptor));
    return send(bytes, std::move(one));
  }
  uint32_t error(const Bytes& bytes) { return error_of(send(bytes)); }
  uint32_t error(const Bytes& bytes, UniqueFd descriptor) {
    return error_of(send(bytes, std::move(descriptor)));
  }
  uint32_t value(uint64_t offset, uint32_t region = kBar0Region) {
    return number_at<uint32_t>(send(read(region, offset, 4)), 32);
  }
  std::string text() {
    const Bytes reply = send(read(kBar0Region, BH_PCI_REG_TEXT, BH_PCI_TEXT_BYTES));
    return {reinterpret_cast<const char*>(&reply[32]),
            strnlen(reinterpret_cast<const char*>(&reply[32]), BH_PCI_TEXT_BYTES)};
  }
  void put(uint64_t offset, uint32_t number) {
    EXPECT_EQ(error(write_register(offset, number)), 0u);
  }
  void enable(uint64_t address, uint64_t bytes) {
    EXPECT_EQ(error(let_reach_memory()), 0u);
    EXPECT_EQ(error(write(kBar0Region, BH_PCI_REG_WINDOW, bytes_of(address, bytes))), 0u);
    put(BH_PCI_REG_CONTROL, 1);
  }

  device::DmaMappings mappings_;
  FakeDevice device_;
  device::PciFunction function_{mappings_, device_, /*has_interrupt=*/true};
  std::optional<device::VfioUser> user_;
};

TEST_F(PciFunctionTest, IsDescribed) {
  const Bytes info = send(message(GET_INFO, bytes_of(uint32_t{16}, 0u, 0u, 0u)));
  EXPECT_EQ(number_at<uint32_t>(info, 20), 3u);  // a PCI function that can be reset
  EXPECT_EQ(number_at<uint32_t>(info, 24), 9u);
  EXPECT_EQ(number_at<uint32_t>(info, 28), 5u);
  for (uint32_t region = 0; region < 9; ++region) {
    const Bytes reply = send(
        message(GET_REGION_INFO, bytes_of(uint32_t{32}, 0u, region, 0u, uint64_t{0}, uint64_t{0})));
    const uint64_t bytes = region == 0 ? 4096 : region == 7 ? 256 : 0;
    EXPECT_EQ(number_at<uint64_t>(reply, 32), bytes);
    EXPECT_EQ(number_at<uint32_t>(reply, 20), bytes == 0 ? 0u : 3u);
    EXPECT_EQ(number_at<uint32_t>(reply, 24), region);
  }
  for (uint32_t index = 0; index < 5; ++index) {
    const Bytes reply = send(message(GET_IRQ_INFO, bytes_of(uint32_t{16}, 0u, index, 0u)));
    EXPECT_EQ(number_at<uint32_t>(reply, 20), index == 2 ? 1u : 0u);  // MSI-X, by an eventfd
    EXPECT_EQ(number_at<uint32_t>(reply, 28), index == 2 ? 1u : 0u);
  }
}

TEST_F(PciFunctionTest, HasAConfigurationSpace) {
  EXPECT_EQ(value(0, kConfigRegion), uint32_t{BH_PCI_DEVICE} << 16 | BH_PCI_VENDOR);
  EXPECT_EQ(value(8, kConfigRegion) >> 8, BH_PCI_CLASS);
  send(write(kConfigRegion, 0x10, bytes_of(UINT32_MAX)));  // its size
  EXPECT_EQ(value(0x10, kConfigRegion), ~(BH_PCI_BAR_BYTES - 1));
  send(write(kConfigRegion, 4, bytes_of(uint16_t{0xFFFF})));
  EXPECT_EQ(value(4, kConfigRegion), 0x100006u);
  EXPECT_EQ(value(0x34, kConfigRegion), 0x40u);
  EXPECT_EQ(value(0x40, kConfigRegion), 0x11u);  // one vector
  EXPECT_EQ(value(0x44, kConfigRegion), BH_PCI_MSIX_TABLE);
  EXPECT_EQ(value(0x48, kConfigRegion), BH_PCI_MSIX_PENDING);
  send(write(kConfigRegion, 0, Bytes(256, std::byte{0xFF})));
  EXPECT_EQ(value(0, kConfigRegion), uint32_t{BH_PCI_DEVICE} << 16 | BH_PCI_VENDOR);
  EXPECT_EQ(value(0x40, kConfigRegion), 0xC0000011u);  // enabled
  EXPECT_EQ(error(message(RESET)), 0u);
  EXPECT_EQ(value(0x10, kConfigRegion), 0u);
}

TEST_F(PciFunctionTest, IsEnabledForTheMemoryOfAWindow) {
  EXPECT_EQ(value(BH_PCI_REG_MAGIC), BH_PCI_MAGIC);
  EXPECT_EQ(value(BH_PCI_REG_VERSION), BH_PCI_VERSION);
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_DISABLED});
  put(BH_PCI_REG_DOORBELL, 1);
  put(BH_PCI_REG_SIGNAL, 1);
  EXPECT_EQ(device_.rings + device_.signals, 0);
  const UniqueFd file = memory(4 * kMiB);
  struct stat wanted {
  }, given{};
  fstat(file.get(), &wanted);
  constexpr uint64_t kAddress = 0x3d0000000;
  EXPECT_EQ(error(map(kAddress, 4 * kMiB), UniqueFd(dup(file.get()))), 0u);
  enable(kAddress, 2 * kMiB);
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
  EXPECT_EQ(value(BH_PCI_REG_CONTROL), 1u);
  fstat(device_.file.get(), &given);
  EXPECT_EQ(given.st_ino, wanted.st_ino);
  EXPECT_EQ(device_.window_bytes, 2 * kMiB);
  put(BH_PCI_REG_WINDOW, 5);  // ignored now
  EXPECT_EQ(value(BH_PCI_REG_WINDOW), uint32_t{kAddress & UINT32_MAX});
  EXPECT_EQ(value(BH_PCI_REG_WINDOW + 4), uint32_t{kAddress >> 32});
  put(BH_PCI_REG_CONTROL, 1);
  put(BH_PCI_REG_DOORBELL, 0);
  EXPECT_EQ(device_.rings, 1);
  put(BH_PCI_REG_SIGNAL, 0);
  EXPECT_EQ(device_.signals, 1);
  EXPECT_EQ(device_.stops, 0);
  send(write(kBar0Region, BH_PCI_REG_CONTROL, bytes_of(uint16_t{0})));  // half a register
  send(write(kBar0Region, BH_PCI_REG_CONTROL + 2, bytes_of(0u)));       // and two halves
  EXPECT_EQ(device_.stops, 0);
  put(BH_PCI_REG_CONTROL, 0);
  EXPECT_EQ(device_.stops, 1);
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_DISABLED});
}

TEST_F(PciFunctionTest, SaysWhyItCannotServeAWindow) {
  const auto refused = [&](uint64_t address, uint64_t bytes, Status status, const char* why) {
    enable(address, bytes);
    EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_FAILED});
    EXPECT_EQ(value(BH_PCI_REG_STATUS), static_cast<uint32_t>(status));
    EXPECT_NE(text().find(why), std::string::npos) << text();
    EXPECT_LT(device_.file.get(), 0);
  };
  EXPECT_EQ(error(map(8 * kMiB, 4 * kMiB), memory(4 * kMiB)), 0u);
  EXPECT_EQ(error(map(16 * kMiB, 4 * kMiB)), 0u);                              // no descriptor
  EXPECT_EQ(error(map(24 * kMiB, 4 * kMiB, 0, 1), memory(4 * kMiB)), 0u);      // read alone
  EXPECT_EQ(error(map(32 * kMiB, 2 * kMiB, 2 * kMiB), memory(4 * kMiB)), 0u);  // behind its begin
  refused(0, kMiB, Status::INVALID_ARGUMENT, "gave no memory");
  refused(8 * kMiB, 0, Status::INVALID_ARGUMENT, "gave no memory");
  refused(8 * kMiB, 5 * kMiB, Status::INVALID_ARGUMENT, "gave no memory");
  refused(8 * kMiB, UINT64_MAX, Status::INVALID_ARGUMENT, "gave no memory");
  refused(16 * kMiB, kMiB, Status::INVALID_ARGUMENT, "cannot be shared");
  refused(24 * kMiB, kMiB, Status::INVALID_ARGUMENT, "cannot be shared");
  refused(32 * kMiB, kMiB, Status::NOT_SUPPORTED, "byte 2097152 of the file");
  refused(9 * kMiB, kMiB, Status::NOT_SUPPORTED, "byte 1048576 of the file");
  device_.now = {BH_PCI_FAILED, {Status::NOT_A_POOL, std::string(1000, 'x')}};
  enable(8 * kMiB, kMiB);
  device_.now = {BH_PCI_FAILED, {Status::NOT_A_POOL, std::string(1000, 'x')}};
  EXPECT_EQ(value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::NOT_A_POOL));
  EXPECT_EQ(text(), std::string(BH_PCI_TEXT_BYTES, 'x'));
}

TEST_F(PciFunctionTest, ReachesMemoryAsBusMasterOnly) {
  EXPECT_EQ(error(map(8 * kMiB, 4 * kMiB), memory(4 * kMiB)), 0u);
  for (int round = 0; round < 2; ++round) {
    enable(8 * kMiB, 4 * kMiB);
    EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
    EXPECT_EQ(error(write(kConfigRegion, 4, {std::byte{4}})), 0u);
    EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
    EXPECT_EQ(error(let_reach_memory(false)), 0u);
    EXPECT_EQ(device_.stops, 2 * round + 1);
    EXPECT_EQ(value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::CLOSED));
    EXPECT_NE(text().find("cleared Bus Master"), std::string::npos) << text();
    put(BH_PCI_REG_CONTROL, 1);
    EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_FAILED});
    EXPECT_NE(text().find("is to set it first"), std::string::npos) << text();
    enable(8 * kMiB, 4 * kMiB);
    EXPECT_EQ(error(message(RESET)), 0u);
    EXPECT_EQ(device_.stops, 2 * round + 2);
  }
}

TEST_F(PciFunctionTest, LosesItsMemoryWithTheMapping) {
  const auto begin = [&] {
    EXPECT_EQ(error(map(8 * kMiB, 4 * kMiB), memory(4 * kMiB)), 0u);
    enable(8 * kMiB, 4 * kMiB);
    EXPECT_GE(device_.file.get(), 0);
  };
  EXPECT_EQ(error(map(0, kMiB), memory(kMiB)), 0u);
  begin();
  EXPECT_EQ(error(unmap(0, kMiB)), 0u);  // another
  EXPECT_GE(device_.file.get(), 0);
  EXPECT_EQ(error(unmap(8 * kMiB, 4 * kMiB)), 0u);
  EXPECT_LT(device_.file.get(), 0);
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_FAILED});
  EXPECT_NE(text().find("took the memory"), std::string::npos);
  begin();
  EXPECT_EQ(error(unmap(0, 0, 2)), 0u);  // all
  EXPECT_LT(device_.file.get(), 0);
  EXPECT_TRUE(mappings_.all().empty());
  begin();
  EXPECT_EQ(error(message(RESET)), 0u);
  EXPECT_LT(device_.file.get(), 0);
  EXPECT_EQ(value(BH_PCI_REG_WINDOW), 0u);
  EXPECT_EQ(error(unmap(8 * kMiB, 4 * kMiB)), 0u);
  begin();
  user_.reset();
  EXPECT_LT(device_.file.get(), 0);
  EXPECT_TRUE(mappings_.all().empty());
}

TEST_F(PciFunctionTest, RefusesWhatIsWrong) {
  const size_t descriptors = open_descriptors();
  const auto refuses = [&](const Bytes& bytes, uint32_t why) {
    EXPECT_EQ(error(bytes), why) << "command " << number_at<uint16_t>(bytes, 2);
    EXPECT_TRUE(mappings_.all().empty());
  };
  for (const int command : {0, 6, 11, 12, 14, 15, 16, 17, 18, 999})
    refuses(message(static_cast<uint16_t>(command), Bytes(64)), ENOTSUP);
  for (const uint16_t command : {DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, GET_IRQ_INFO,
                                 SET_IRQS, REGION_READ, REGION_WRITE}) {
    for (const size_t size : {0, 3, 15, 17, 23, 25, 31, 33, 65})
      refuses(message(command, Bytes(size)), EINVAL);
  }
  refuses(version(), EINVAL);  // once
  refuses(message(RESET, Bytes(4)), EINVAL);
  refuses(message(GET_INFO, bytes_of(uint32_t{15}, 0u, 0u, 0u)), EINVAL);
  refuses(message(GET_REGION_INFO, bytes_of(uint32_t{32}, 0u, 9u, 0u, uint64_t{0}, uint64_t{0})),
          EINVAL);
  refuses(message(GET_IRQ_INFO, bytes_of(uint32_t{16}, 0u, 5u, 0u)), EINVAL);
  refuses(read(kBar0Region, 4096, 4), EINVAL);
  refuses(read(kBar0Region, 4090, 8), EINVAL);
  refuses(read(kBar0Region, UINT64_MAX, 8), EINVAL);
  refuses(read(kBar0Region, 0, UINT32_MAX), EINVAL);
  refuses(read(kConfigRegion, 256, 1), EINVAL);
  refuses(read(1, 0, 4), EINVAL);
  refuses(read(9, 0, 4), EINVAL);
  refuses(write(kConfigRegion, 255, Bytes(2)), EINVAL);
  refuses(message(REGION_WRITE, bytes_of(uint64_t{0}, 0u, 8u) + Bytes(4)), EINVAL);
  refuses(map(0, 0), EINVAL);
  refuses(map(UINT64_MAX, 2), EINVAL);
  refuses(map(0, 1, 0, 4), EINVAL);
  refuses(unmap(0, 0), EINVAL);
  refuses(unmap(UINT64_MAX, 2), EINVAL);
  refuses(unmap(1, 1, 2), EINVAL);
  refuses(unmap(0, 1, 1), EINVAL);
  EXPECT_EQ(error(map(0, 2 * kMiB), memory(kMiB)), uint32_t{EINVAL});
  EXPECT_EQ(error(map(0, kMiB, 1), memory(kMiB)), uint32_t{EINVAL});
  EXPECT_EQ(error(map(0, kMiB, UINT64_MAX), memory(kMiB)), uint32_t{EINVAL});
  std::vector<UniqueFd> two(2);
  for (UniqueFd& one : two) one = memory(kMiB);
  EXPECT_EQ(error_of(send(map(0, kMiB), std::move(two))), uint32_t{EINVAL});
  EXPECT_EQ(error_of(send(message(RESET), memory(kMiB))), 0u);  // closed, as it is for nothing
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(PciFunctionTest, HasOneInterrupt) {
  constexpr uint32_t kNone = 0x21, kEvent = 0x24;
  const auto set = [](uint32_t flags, uint32_t index, uint32_t start, uint32_t count) {
    return message(SET_IRQS, bytes_of(uint32_t{20}, flags, index, start, count));
  };
  const auto event = [] { return UniqueFd(eventfd(0, EFD_CLOEXEC)); };
  EXPECT_EQ(error(set(kEvent, 2, 0, 1), event()), 0u);
  EXPECT_GE(device_.event.get(), 0);
  EXPECT_NE(fcntl(device_.event.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(error(set(kNone, 2, 0, 1)), 0u);
  EXPECT_EQ(device_.interrupts, 1);
  EXPECT_EQ(error(set(kEvent, 2, 0, 1)), 0u);  // without one
  EXPECT_LT(device_.event.get(), 0);
  EXPECT_EQ(error(set(kEvent, 2, 0, 1), event()), 0u);
  EXPECT_EQ(error(set(kNone, 2, 0, 0)), 0u);
  EXPECT_LT(device_.event.get(), 0);
  EXPECT_EQ(error(set(kNone, 0, 0, 0)), 0u);  // of a kind of which there is none
  for (const Bytes& wrong :
       {set(kEvent, 2, 0, 2), set(kEvent, 2, 1, 1), set(kEvent, 2, 0, 0), set(kEvent, 0, 0, 1),
        set(kEvent, 5, 0, 1), set(kNone, 1, 0, 1), set(0x2C, 2, 0, 1), set(0x14, 2, 0, 1),
        set(0, 2, 0, 1), set(kEvent, 2, UINT32_MAX, 2), set(kEvent, 2, 0, UINT32_MAX)})
    EXPECT_EQ(error(wrong, event()), uint32_t{EINVAL});
  EXPECT_EQ(error(set(kEvent, 2, 0, 1), memory(kMiB)), uint32_t{EINVAL});  // no eventfd
  EXPECT_LT(device_.event.get(), 0);
  EXPECT_EQ(error(set(kEvent, 2, 0, 1), event()), 0u);
  user_.reset();
  EXPECT_LT(device_.event.get(), 0);
}

TEST_F(PciFunctionTest, WindowMayLieInSeveralMappingsOfOneFile) {
  const size_t descriptors = open_descriptors();
  const UniqueFd file = memory(8 * kMiB), other = memory(8 * kMiB);
  const auto give = [&](const UniqueFd& memory, uint64_t address, uint64_t offset,
                        uint32_t flags = 3) {
    EXPECT_EQ(error(map(address * kMiB, kMiB, offset * kMiB, flags), UniqueFd(dup(memory.get()))),
              0u);
  };
  const auto state = [&](uint64_t address, uint64_t bytes) {
    enable(address * kMiB, bytes * kMiB);
    const uint32_t now = value(BH_PCI_REG_STATE);
    put(BH_PCI_REG_CONTROL, 0);
    return now;
  };
  for (const uint64_t i : {2, 0, 1, 3}) give(file, 10 + i, i);
  EXPECT_EQ(open_descriptors(), descriptors + 3);  // one for all
  EXPECT_EQ(state(10, 4), uint32_t{BH_PCI_READY});
  EXPECT_EQ(state(10, 3), uint32_t{BH_PCI_READY});
  EXPECT_EQ(state(10, 5), uint32_t{BH_PCI_FAILED});
  give(other, 14, 4);
  EXPECT_EQ(state(10, 5), uint32_t{BH_PCI_FAILED});
  EXPECT_EQ(error(unmap(14 * kMiB, kMiB)), 0u);
  give(file, 14, 5);
  EXPECT_EQ(state(10, 5), uint32_t{BH_PCI_FAILED});
  EXPECT_EQ(error(unmap(14 * kMiB, kMiB)), 0u);
  give(file, 14, 4, 1);  // to be read
  EXPECT_EQ(state(10, 5), uint32_t{BH_PCI_FAILED});
  EXPECT_EQ(state(10, 4), uint32_t{BH_PCI_READY});
  enable(10 * kMiB, 4 * kMiB);
  EXPECT_EQ(error(unmap(13 * kMiB + 1, kMiB)), uint32_t{EINVAL});  // in part
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
  EXPECT_EQ(error(unmap(14 * kMiB, kMiB)), 0u);
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
  EXPECT_EQ(error(unmap(12 * kMiB, 8 * kMiB)), 0u);  // the last two
  EXPECT_EQ(value(BH_PCI_REG_STATE), uint32_t{BH_PCI_FAILED});
  EXPECT_EQ(mappings_.all().size(), 2u);
}

TEST_F(PciFunctionTest, MappingsDoNotOverlap) {
  EXPECT_EQ(error(map(UINT64_MAX - kMiB + 1, kMiB), memory(kMiB)), 0u);  // the last address
  EXPECT_EQ(error(map(4 * kMiB, 2 * kMiB)), 0u);
  for (const auto& [address, bytes] : {std::pair{4 * kMiB, kMiB},
                                       {5 * kMiB, kMiB},
                                       {3 * kMiB, 2 * kMiB},
                                       {0 * kMiB, 8 * kMiB},
                                       {4 * kMiB, 2 * kMiB},
                                       {UINT64_MAX, uint64_t{1}}})
    EXPECT_EQ(error(map(address, bytes)), uint32_t{EEXIST});
  EXPECT_EQ(error(map(3 * kMiB, kMiB)), 0u);
  EXPECT_EQ(error(map(6 * kMiB, kMiB)), 0u);
  EXPECT_EQ(error(unmap(4 * kMiB, kMiB)), uint32_t{EINVAL});
  EXPECT_EQ(error(unmap(4 * kMiB, 2 * kMiB)), 0u);
  EXPECT_EQ(error(unmap(4 * kMiB, 2 * kMiB)), 0u);  // nothing is left to do
  EXPECT_EQ(error(map(4 * kMiB, kMiB)), 0u);
  for (uint64_t i = mappings_.all().size(); i < device::DmaMappings::kMost; ++i)
    ASSERT_EQ(error(map((100 + i) * kMiB, kMiB)), 0u);
  EXPECT_EQ(error(map(8 * kMiB, kMiB)), uint32_t{ENOSPC});
}

TEST_F(PciFunctionTest, ReplyIsLeftOutIfNoneIsWanted) {
  Bytes quiet = map(0, kMiB);
  quiet[8] = std::byte{1 << 4};
  EXPECT_TRUE(user_->handle(quiet, {}).reply.empty());
  EXPECT_EQ(mappings_.all().size(), 1u);
  EXPECT_TRUE(user_->handle(quiet, {}).reply.empty());  // EEXIST
}

TEST(VfioUser, FunctionMayHaveNoInterrupt) {
  device::DmaMappings mappings;
  FakeDevice device;
  device::PciFunction function(mappings, device, /*has_interrupt=*/false);
  device::VfioUser user(function, mappings);
  (void)user.handle(version(), {});
  const auto ask = [&](const Bytes& bytes) { return user.handle(bytes, {}).reply; };
  EXPECT_EQ(number_at<uint32_t>(ask(read(kConfigRegion, 4, 4)), 32), 0u);
  EXPECT_EQ(number_at<uint32_t>(ask(read(kConfigRegion, 0x34, 4)), 32), 0u);
  const Bytes info = ask(message(GET_IRQ_INFO, bytes_of(uint32_t{16}, 0u, 2u, 0u)));
  EXPECT_EQ(number_at<uint32_t>(info, 28), 0u);
  const auto set = [&](uint32_t flags, uint32_t count) {
    return error_of(ask(message(SET_IRQS, bytes_of(uint32_t{20}, flags, 2u, 0u, count))));
  };
  EXPECT_EQ(set(0x24, 1), uint32_t{EINVAL});
  EXPECT_EQ(set(0x21, 1), uint32_t{EINVAL});
  EXPECT_EQ(set(0x21, 0), 0u);
}

TEST(VfioUser, BeginsWithAVersion) {
  device::DmaMappings mappings;
  FakeDevice device;
  device::PciFunction function(mappings, device, true);
  const auto first = [&](const Bytes& bytes) {
    device::VfioUser user(function, mappings);
    auto outcome = user.handle(bytes, {});
    EXPECT_TRUE(outcome.ends);
    return error_of(outcome.reply);
  };
  EXPECT_EQ(first(message(RESET)), uint32_t{EPROTO});
  EXPECT_EQ(first(map(0, kMiB)), uint32_t{EPROTO});
  EXPECT_EQ(first(message(VERSION)), uint32_t{EINVAL});
  EXPECT_EQ(first(message(VERSION, bytes_of(uint16_t{1}, uint16_t{0}))), uint32_t{EINVAL});
  EXPECT_EQ(first(message(VERSION, bytes_of(uint16_t{0}, uint16_t{0}, 'x'))), uint32_t{EINVAL});
  EXPECT_EQ(first(message(VERSION, bytes_of(uint16_t{0}, uint16_t{0}), 1)), 0u);  // a reply
  const auto bytes_for = [](uint32_t size) {
    const Bytes header = bytes_of(uint16_t{0}, uint16_t{1}, size, 0u, 0u);
    return device::VfioUser::message_bytes(
        std::span(header).first<device::VfioUser::kHeaderBytes>());
  };
  EXPECT_EQ(bytes_for(15), std::nullopt);
  EXPECT_EQ(bytes_for(16), 16u);
  EXPECT_EQ(bytes_for(device::VfioUser::kMessageBytesMax), device::VfioUser::kMessageBytesMax);
  EXPECT_EQ(bytes_for(device::VfioUser::kMessageBytesMax + 1), std::nullopt);
  EXPECT_EQ(bytes_for(UINT32_MAX), std::nullopt);
}

/// A machine at the other end of a socket.
class Machine {
 public:
  explicit Machine(UniqueFd socket) : socket_(std::move(socket)) {}
  static Machine connected_to(const std::string& path) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      socket = UniqueFd();
    return Machine(std::move(socket));
  }

  bool send(const Bytes& bytes, const std::vector<int>& descriptors = {}) const {
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(64 * sizeof(int))> control{};
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    if (!descriptors.empty()) {
      head.msg_control = control.data();
      head.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* one = CMSG_FIRSTHDR(&head);
      one->cmsg_level = SOL_SOCKET;
      one->cmsg_type = SCM_RIGHTS;
      one->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(one), descriptors.data(), descriptors.size() * sizeof(int));
    }
    return sendmsg(socket_.get(), &head, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  /// Empty: the server left.
  Bytes receive() const {
    Bytes reply(16);
    if (recv(socket_.get(), reply.data(), 16, MSG_WAITALL) != 16) return {};
    reply.resize(number_at<uint32_t>(reply, 4));
    const size_t left = reply.size() - 16;
    if (left > 0 && recv(socket_.get(), &reply[16], left, MSG_WAITALL) != ssize_t(left)) return {};
    return reply;
  }
  Bytes ask(const Bytes& bytes, const std::vector<int>& descriptors = {}) const {
    return send(bytes, descriptors) ? receive() : Bytes{};
  }
  uint32_t value(uint64_t offset) const {
    return number_at<uint32_t>(ask(read(kBar0Region, offset, 4)), 32);
  }
  void leave() { socket_ = UniqueFd(); }

 private:
  UniqueFd socket_;
};

/// A server in a thread.
template <class Device>
class Served {
 public:
  template <class... Arguments>
  explicit Served(Arguments&&... arguments)
      : device(std::forward<Arguments>(arguments)...), function_(mappings_, device, true) {
    auto listening = device::PciServer::listen(path);
    EXPECT_TRUE(listening) << listening.error().message();
    thread_ = std::thread([this, server = std::move(*listening)]() mutable {
      EXPECT_TRUE(server.serve(function_, mappings_, [this] { return stops_.load(); }));
    });
  }
  ~Served() {
    stops_ = true;
    thread_.join();
  }

  const std::string path = "/tmp/bowhead-pci-" + std::to_string(getpid());
  Device device;

 private:
  device::DmaMappings mappings_;
  device::PciFunction function_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

TEST(PciServer, ServesOneMachineAfterTheOther) {
  Served<FakeDevice> served;
  const size_t descriptors = open_descriptors();
  EXPECT_EQ(device::PciServer::listen(served.path).status(), Status::IN_USE);
  const UniqueFd file = memory(4 * kMiB);
  for (int round = 0; round < 3; ++round) {
    Machine machine = Machine::connected_to(served.path);
    EXPECT_EQ(error_of(machine.ask(version())), 0u);
    EXPECT_TRUE(Machine::connected_to(served.path).ask(version()).empty());  // turned away
    EXPECT_EQ(error_of(machine.ask(map(0, 4 * kMiB), {file.get()})), 0u);
    machine.ask(write(kBar0Region, BH_PCI_REG_WINDOW, bytes_of(uint64_t{0}, 4 * kMiB)));
    machine.ask(let_reach_memory());
    machine.ask(write_register(BH_PCI_REG_CONTROL, 1));
    EXPECT_EQ(machine.value(BH_PCI_REG_STATE), uint32_t{BH_PCI_READY});
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors + 1; }));
}

TEST(PciServer, LeavesThoseWhoBreakTheProtocol) {
  Served<FakeDevice> served;
  const size_t descriptors = open_descriptors();
  const UniqueFd file = memory(kMiB);
  const Bytes long_one = bytes_of(uint16_t{0}, uint16_t{1}, UINT32_MAX, 0u, 0u);
  const Bytes short_one = bytes_of(uint16_t{0}, uint16_t{1}, 3u, 0u, 0u);
  for (const Bytes& bytes : {long_one, short_one, message(RESET), message(VERSION, {}, 1)}) {
    Machine machine = Machine::connected_to(served.path);
    EXPECT_TRUE(machine.send(bytes));
    while (!machine.receive().empty()) {
    }
  }
  for (size_t part : {1, 15, 16, 17, 40}) {  // it leaves in the middle
    Machine machine = Machine::connected_to(served.path);
    EXPECT_EQ(error_of(machine.ask(version())), 0u);
    Bytes some = map(0, kMiB);
    some.resize(part);
    EXPECT_TRUE(machine.send(some, {file.get()}));
  }
  for (size_t count : {9, 40}) {  // more descriptors than a message can have
    Machine machine = Machine::connected_to(served.path);
    EXPECT_EQ(error_of(machine.ask(version())), 0u);
    EXPECT_TRUE(machine.ask(map(0, kMiB), std::vector<int>(count, file.get())).empty());
  }
  Machine slow = Machine::connected_to(served.path);
  for (const std::byte one : version()) EXPECT_TRUE(slow.send({one}));
  EXPECT_EQ(error_of(slow.receive()), 0u);
  slow.leave();
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors + 1; }));
}

/// Those who come meanwhile wait, and cost nothing.
TEST(PciServer, GoesOnWhenItHasNoDescriptorLeft) {
  Served<FakeDevice> served;
  Machine machine = Machine::connected_to(served.path);
  EXPECT_EQ(error_of(machine.ask(version())), 0u);
  Machine other = Machine::connected_to(served.path);
  EXPECT_TRUE(other.ask(version()).empty());
  other.leave();
  const UniqueFd waiting(socket(AF_UNIX, SOCK_STREAM, 0));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{open_descriptors() + 20, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> all;
  while (all.empty() || all.back().get() >= 0) all.emplace_back(dup(waiting.get()));
  ASSERT_EQ(errno, EMFILE);
  const sockaddr_un address = address_of(served.path);
  ASSERT_EQ(connect(waiting.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto cpu_ns = [] {
    timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1'000'000'000 + used.tv_nsec;
  };
  const auto begin_ns = cpu_ns();
  sleep_ms(500);
  EXPECT_LT(cpu_ns() - begin_ns, 250'000'000);
  EXPECT_EQ(machine.value(BH_PCI_REG_MAGIC), BH_PCI_MAGIC);
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  char byte;
  EXPECT_EQ(::read(waiting.get(), &byte, 1), 0);  // turned away now
}

/// The process is stopped, and its backlog is full.
TEST(PciServer, LeavesTheSocketOfAStoppedProcessAlone) {
  const std::string path = "/tmp/bowhead-pci-stopped-" + std::to_string(getpid());
  const UniqueFd stopped(socket(AF_UNIX, SOCK_STREAM, 0));
  const sockaddr_un address = address_of(path);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(bind(stopped.get(), name, sizeof address), 0);
  ASSERT_EQ(listen(stopped.get(), 0), 0);
  std::vector<UniqueFd> waiting;
  do {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), name, sizeof address) == 0);
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_EQ(device::PciServer::listen(path).status(), Status::IN_USE);
  unlink(path.c_str());
}

TEST(PciServer, TakesThePathOfASocketWithoutAProcess) {
  const std::string path = "/tmp/bowhead-pci-old-" + std::to_string(getpid());
  {
    const UniqueFd old(socket(AF_UNIX, SOCK_STREAM, 0));
    const sockaddr_un address = address_of(path);
    ASSERT_EQ(bind(old.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  struct stat info {};
  {
    EXPECT_TRUE(device::PciServer::listen(path));
    const auto server = device::PciServer::listen(path);
    ASSERT_TRUE(server) << server.error().message();
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_NE(stat(path.c_str(), &info), 0);
  std::ofstream(path) << "kept";
  EXPECT_EQ(device::PciServer::listen(path).status(), Status::IN_USE);
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  unlink(path.c_str());
  {  // another one took the place of the first, whose end it survives
    std::optional<Result<device::PciServer>> first(device::PciServer::listen(path));
    ASSERT_TRUE(*first);
    unlink(path.c_str());
    const auto second = device::PciServer::listen(path);
    ASSERT_TRUE(second);
    first.reset();
    EXPECT_EQ(stat(path.c_str(), &info), 0);
  }
  EXPECT_EQ(device::PciServer::listen("").status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device::PciServer::listen(std::string(200, 'x')).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device::PciServer::listen("/nowhere/at/all").status(), Status::SYSTEM);
}

/// A pool for two hosts: this process is host 0, and has the pool's file as a machine has memory.
class PciPool : public testing::Test {
 protected:
  PciPool() {
    served_.emplace(1u, device::Options{});
    machine_.emplace(Machine::connected_to(served_->path));
    EXPECT_EQ(error_of(machine_->ask(version())), 0u);
  }

  UniqueFd file() const {
    const std::string name = pool_.locator().substr(std::string("shm:").size());
    return open_file("/dev/shm/bowhead-" + name, O_RDWR);
  }
  /// Gives the memory, and has the device serve a window at its begin.
  void enable(const UniqueFd& memory, uint64_t window_bytes) {
    struct stat info {};
    fstat(memory.get(), &info);
    bytes_ = static_cast<uint64_t>(info.st_size);
    EXPECT_EQ(error_of(machine_->ask(map(kAddress, bytes_), {memory.get()})), 0u);
    machine_->ask(write(kBar0Region, BH_PCI_REG_WINDOW, bytes_of(kAddress, window_bytes)));
    machine_->ask(let_reach_memory());
    machine_->ask(write_register(BH_PCI_REG_CONTROL, 1));
    EXPECT_TRUE(eventually([&] { return state() != BH_PCI_STARTING; }));
  }
  uint32_t state() const { return machine_->value(BH_PCI_REG_STATE); }
  std::string text() const {
    const Bytes reply = machine_->ask(read(kBar0Region, BH_PCI_REG_TEXT, BH_PCI_TEXT_BYTES));
    return reply.size() < 33 ? "" : reinterpret_cast<const char*>(&reply[32]);
  }

  static constexpr uint64_t kAddress = 0x3d0000000;
  // A test may stand still for some time on a busy machine, and is up all the same.
  static constexpr SharingTimes kTimes{
      .heartbeat_ms = 20, .dead_ms = 4000, .grace_ms = 100, .settle_ms = 5, .reclaim_ms = 500};
  SharedPool pool_{2, {.evict_high_permille = 0}, kTimes};
  std::optional<Served<device::PoolDevice>> served_;
  std::optional<Machine> machine_;
  uint64_t bytes_ = 0;
};

TEST_F(PciPool, IsServedUntilTheMachineTakesItsMemoryAway) {
  auto pool = Pool::open(pool_.locator(), {.host = 0}).value();
  LeasedSequence sequence(pool, "kv", CompressionProfile::FAST, {100, 20});
  const auto pair = driver::QueuePair::open(pool, {.timeout_ms = 2000}).value();
  const UniqueFd memory = file(), event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto ask = [&](ndp::Operation operation) {
    ndp::Request request = sequence.request(operation);
    const std::vector<float> queries(size_t{2} * kChannels, 0.5f);
    request.queries.values = queries;
    request.queries.count = 1;
    request.queries.scale = 1;
    request.k = 5;
    Answer here(request), there(request);
    EXPECT_TRUE(ndp::run(request, here.room()));
    const auto answered = pair->run(request, there.room());
    EXPECT_TRUE(!answered || there == here);
    return answered.status();
  };
  EXPECT_EQ(ask(ndp::Operation::TOP_K), Status::DEVICE_LOST);
  for (int round = 0; round < 2; ++round) {
    enable(memory, SharedPool::kPoolBytes);
    EXPECT_EQ(state(), uint32_t{BH_PCI_READY}) << text();
    EXPECT_EQ(ask(ndp::Operation::TOP_K), Status::OK);
    machine_->ask(write_register(BH_PCI_REG_DOORBELL, 1));
    EXPECT_EQ(error_of(machine_->ask(message(SET_IRQS, bytes_of(uint32_t{20}, 0x24u, 2u, 0u, 1u)),
                                     {event.get()})),
              0u);
    uint64_t signalled = 0;
    const auto is_signalled = [&] {
      return ::read(event.get(), &signalled, sizeof signalled) == sizeof signalled;
    };
    EXPECT_EQ(ask(ndp::Operation::ATTEND), Status::OK);
    EXPECT_FALSE(is_signalled());  // no signal was requested
    machine_->ask(write_register(BH_PCI_REG_SIGNAL, 1));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(ndp::Operation::ATTEND), Status::OK);
    EXPECT_TRUE(eventually(is_signalled));
    EXPECT_EQ(signalled, 1u);
    EXPECT_EQ(error_of(machine_->ask(message(SET_IRQS, bytes_of(uint32_t{20}, 0x21u, 2u, 0u, 0u)))),
              0u);
    EXPECT_EQ(error_of(machine_->ask(unmap(kAddress, bytes_))), 0u);
    EXPECT_EQ(state(), uint32_t{BH_PCI_FAILED});
    EXPECT_EQ(ask(ndp::Operation::TOP_K), Status::DEVICE_LOST);
  }
}

/// Nothing is written behind the back of a machine that has closed the pool.
TEST_F(PciPool, LetsGoOfThePoolWhenNoProcessHasItOpen) {
  const UniqueFd memory = file();
  enable(memory, SharedPool::kPoolBytes);
  for (int round = 0; round < 2; ++round) {
    {
      auto pool = Pool::open(pool_.locator(), {.host = 0}).value();
      if (round != 0) machine_->ask(write_register(BH_PCI_REG_CONTROL, 0));
      machine_->ask(write_register(BH_PCI_REG_CONTROL, 1));
      EXPECT_TRUE(eventually([&] { return state() == BH_PCI_READY; })) << text();
      const auto pair = driver::QueuePair::open(pool, {.timeout_ms = 2000}).value();
      EXPECT_TRUE(pair->ping(10, 1));
      if (round == 0) sleep_ms(kTimes.dead_ms);
      EXPECT_EQ(state(), uint32_t{BH_PCI_READY}) << "while a host is up";
    }
    EXPECT_TRUE(eventually([&] { return state() == BH_PCI_FAILED; }));
    EXPECT_EQ(machine_->value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::CLOSED));
    EXPECT_NE(text().find("let go of its memory"), std::string::npos) << text();
    std::vector<std::byte> before(SharedPool::kPoolBytes), after(before.size());
    EXPECT_EQ(pread(memory.get(), before.data(), before.size(), 0), ssize_t(before.size()));
    sleep_ms(20 * kTimes.heartbeat_ms);
    EXPECT_EQ(pread(memory.get(), after.data(), after.size(), 0), ssize_t(after.size()));
    EXPECT_EQ(before, after);
    auto observer = Pool::open(pool_.locator(), {.observe = true}).value();
    EXPECT_EQ(observer.info()->hosts[1].state, "left");
  }
}

/// A machine that takes its memory away waits for no other process.
TEST_F(PciPool, StopsWhileItStarts) {
  const UniqueFd memory = file();
  auto media = open_media(pool_.locator()).value();
  core::NativeAccess opener(*media, choose_flush_kind(/*needed=*/false));
  ASSERT_EQ(opener.lock_host(1, 10'000), core::LockResult::TAKEN);
  for (const bool unmaps : {false, true}) {
    EXPECT_EQ(error_of(machine_->ask(map(kAddress, SharedPool::kPoolBytes), {memory.get()})), 0u);
    machine_->ask(let_reach_memory());
    machine_->ask(
        write(kBar0Region, BH_PCI_REG_WINDOW, bytes_of(kAddress, SharedPool::kPoolBytes)));
    machine_->ask(write_register(BH_PCI_REG_CONTROL, 1));
    EXPECT_EQ(state(), uint32_t{BH_PCI_STARTING});
    const uint64_t begin_ns = now_ns();
    machine_->ask(unmaps ? unmap(kAddress, SharedPool::kPoolBytes) : message(RESET));
    EXPECT_LT(now_ns() - begin_ns, 5'000'000'000u);  // of the ten that the lock is waited for
    machine_->ask(unmap(kAddress, SharedPool::kPoolBytes));
  }
}

TEST_F(PciPool, PoolOfOneHostIsRefused) {
  const SharedPool one(1);
  const UniqueFd memory =
      open_file("/dev/shm/bowhead-" + one.locator().substr(std::string("shm:").size()), O_RDWR);
  served_.reset();
  served_.emplace(0u, device::Options{});
  machine_.emplace(Machine::connected_to(served_->path));
  EXPECT_EQ(error_of(machine_->ask(version())), 0u);
  enable(memory, SharedPool::kPoolBytes);
  EXPECT_EQ(machine_->value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::NOT_SUPPORTED));
  EXPECT_NE(text().find("--hosts 2"), std::string::npos) << text();
}

TEST_F(PciPool, WhatIsNoPoolIsRefused) {
  enable(memory(4 * kMiB), 4 * kMiB);
  EXPECT_EQ(state(), uint32_t{BH_PCI_FAILED});
  EXPECT_EQ(machine_->value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::NOT_A_POOL));
  EXPECT_EQ(error_of(machine_->ask(unmap(kAddress, bytes_))), 0u);
  const UniqueFd memory = file();
  machine_->ask(write_register(BH_PCI_REG_CONTROL, 0));
  enable(memory, 4 * kMiB);
  EXPECT_EQ(machine_->value(BH_PCI_REG_STATUS), static_cast<uint32_t>(Status::INVALID_ARGUMENT));
  EXPECT_NE(text().find("and the window 4194304"), std::string::npos) << text();
}

}  // namespace
}  // namespace bowhead::test
