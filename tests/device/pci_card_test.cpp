// SPDX-License-Identifier: Apache-2.0
// The PCI function as its driver finds it: files of sysfs in a folder, whose registers are memory.
#include <bowhead/format/pci.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "driver-shim/pci_card.h"

namespace bowhead::test {
namespace {

namespace fs = std::filesystem;
using driver::PciCard;

constexpr uint64_t kAddress = 0x3d0000000, kBytes = 512 << 20;

class PciCardTest : public testing::Test {
 protected:
  PciCardTest() {
    fs::remove_all(root_);
    pool_.locator = "dax:/dev/dax0.0";
    put("/sys/bus/dax/devices/dax0.0/resource", "0x3d0000000\n");
    put("/sys/bus/dax/devices/dax0.0/size", "536870912\n");
    put("/sys/bus/pci/devices/0000:00:01.0/vendor", "0x1af4\n");  // another one
    put("/sys/bus/pci/devices/0000:00:01.0/device", "0x1003\n");
  }
  ~PciCardTest() override {
    unplug();
    fs::remove_all(root_);
  }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string content(const std::string& path) {
    std::string text;
    std::getline(std::ifstream(root_ + path), text);
    return text;
  }
  void plug(const std::string& name = "0000:01:00.0") {
    folder_ = "/sys/bus/pci/devices/" + name;
    put(folder_ + "/vendor", "0x1af4\n");
    put(folder_ + "/device", "0x10f8\n");
    put(folder_ + "/enable", "0\n");
    put(folder_ + "/config", std::string(256, '\0'));
    put(folder_ + "/resource0", std::string(BH_PCI_BAR_BYTES, '\0'));
    const int fd = open((root_ + folder_ + "/resource0").c_str(), O_RDWR | O_CLOEXEC);
    registers_ = static_cast<uint32_t*>(
        mmap(nullptr, BH_PCI_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    ASSERT_NE(registers_, MAP_FAILED);
    at(BH_PCI_REG_MAGIC) = BH_PCI_MAGIC;
    at(BH_PCI_REG_VERSION) = BH_PCI_VERSION;
  }
  /// As the kernel does it: the mapping of the driver faults from then on.
  void unplug() {
    if (registers_ == nullptr) return;
    EXPECT_EQ(truncate((root_ + folder_ + "/resource0").c_str(), 0), 0);
    munmap(registers_, BH_PCI_BAR_BYTES);
    registers_ = nullptr;
    fs::remove_all(root_ + folder_);
  }
  uint32_t& at(uint32_t offset) { return registers_[offset / 4]; }
  uint64_t long_at(uint32_t offset) { return at(offset) | uint64_t{at(offset + 4)} << 32; }

  shim::HostFiles files() const { return shim::HostFiles(root_); }

  const std::string root_ = "/tmp/bowhead-card-" + std::to_string(getpid());
  std::string folder_;
  PoolInfo pool_{};
  uint32_t* registers_ = nullptr;
};

TEST_F(PciCardTest, NoneIsThere) {
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_FALSE(card.serves() || card.is_starting());
  EXPECT_EQ(card.trouble(), "");
  card.ring();
}

TEST_F(PciCardTest, IsEnabledForTheMemoryOfThePool) {
  plug();
  PciCard card(files(), pool_);
  card.seek(false);
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 0u);
  EXPECT_EQ(content(folder_ + "/enable"), "1");
  EXPECT_EQ(content(folder_ + "/config"), std::string(256, '\0'));
  card.seek(true);
  EXPECT_EQ(content(folder_ + "/config"), std::string(4, '\0') + '\6' + std::string(251, '\0'));
  EXPECT_EQ(long_at(BH_PCI_REG_WINDOW), kAddress);
  EXPECT_EQ(long_at(BH_PCI_REG_BYTES), kBytes);
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 1u);
  at(BH_PCI_REG_STATE) = BH_PCI_STARTING;
  EXPECT_TRUE(card.is_starting() && !card.serves());
  at(BH_PCI_REG_STATE) = BH_PCI_READY;
  EXPECT_TRUE(!card.is_starting() && card.serves());
  at(BH_PCI_REG_CONTROL) = 7;
  PciCard another(files(), pool_);
  another.seek(true);  // of another process
  EXPECT_TRUE(another.serves());
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 7u);  // nothing was to be done
  another.ring();
  EXPECT_EQ(at(BH_PCI_REG_DOORBELL), 1u);
  another.signal_completion();
  EXPECT_EQ(at(BH_PCI_REG_SIGNAL), 1u);
  EXPECT_EQ(another.event(), nullptr);  // without vfio there are no interrupts
  EXPECT_EQ(another.trouble(), "");
}

TEST_F(PciCardTest, ServesOnePool) {
  plug();
  at(BH_PCI_REG_STATE) = BH_PCI_READY;
  at(BH_PCI_REG_WINDOW) = 4096;
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_FALSE(card.serves());
  EXPECT_EQ(card.trouble(), "0000:01:00.0: it serves another pool");
  EXPECT_EQ(long_at(BH_PCI_REG_WINDOW), 4096u);
  card.ring();
  EXPECT_EQ(at(BH_PCI_REG_DOORBELL), 0u);
}

/// The one of this pool, else the first that is free, in any order; also when one comes later, or
/// another process was faster.
TEST_F(PciCardTest, OfSeveralFunctionsOneIsTaken) {
  plug("0000:01:00.0");
  uint32_t* const first = registers_;
  plug("0000:02:00.0");
  uint32_t* const second = std::exchange(registers_, first);
  const auto set = [](uint32_t* registers, uint32_t offset, uint32_t value) {
    registers[offset / 4] = value;
  };
  const auto serve = [&](uint32_t* registers, uint64_t address) {
    set(registers, BH_PCI_REG_STATE, BH_PCI_READY);
    set(registers, BH_PCI_REG_WINDOW, static_cast<uint32_t>(address));
    set(registers, BH_PCI_REG_WINDOW + 4, static_cast<uint32_t>(address >> 32));
    set(registers, BH_PCI_REG_BYTES, kBytes);
  };
  serve(first, 4096);
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_EQ(card.trouble(), "");
  EXPECT_EQ(second[BH_PCI_REG_CONTROL / 4], 1u);
  serve(second, kAddress);
  EXPECT_TRUE(card.serves());
  set(first, BH_PCI_REG_STATE, BH_PCI_DISABLED);
  PciCard another(files(), pool_);
  another.seek(true);
  EXPECT_TRUE(another.serves());
  EXPECT_EQ(first[BH_PCI_REG_CONTROL / 4], 0u);
  serve(second, 4096);  // another process took it for its pool
  card.seek(true);
  card.seek(true);
  EXPECT_EQ(first[BH_PCI_REG_CONTROL / 4], 1u);
  munmap(second, BH_PCI_BAR_BYTES);
}

TEST_F(PciCardTest, LockOfAStoppedProcessIsNotWaitedFor) {
  plug();
  const UniqueFd other(open((root_ + folder_ + "/resource0").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_NE(card.trouble().find("another process enables it"), std::string::npos);
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 0u);
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);
  card.seek(true);
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 1u);
}

TEST_F(PciCardTest, FailureIsToldAndTriedAgain) {
  plug();
  at(BH_PCI_REG_STATE) = BH_PCI_FAILED;
  std::memcpy(&at(BH_PCI_REG_TEXT), "no pool", 8);
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_EQ(card.trouble(), "");  // it was another pool's
  card.note_failure();            // for this one now
  EXPECT_EQ(card.trouble(), "no pool");
  card.seek(true);
  EXPECT_EQ(card.trouble(), "no pool");
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 1u);
  std::memset(&at(BH_PCI_REG_TEXT), 'x', BH_PCI_TEXT_BYTES);
  card.seek(true);
  EXPECT_EQ(card.trouble(), std::string(BH_PCI_TEXT_BYTES, 'x'));
  std::memcpy(&at(BH_PCI_REG_TEXT), "\033[2J\n\377", 7);
  card.seek(true);
  EXPECT_EQ(card.trouble(), "?[2J??");
  at(BH_PCI_REG_STATE) = BH_PCI_READY;
  card.seek(true);
  EXPECT_TRUE(card.serves());
  EXPECT_EQ(card.trouble(), "");
}

TEST_F(PciCardTest, IsUnpluggedAndComesBack) {
  plug();
  PciCard card(files(), pool_);
  card.seek(true);
  at(BH_PCI_REG_STATE) = BH_PCI_READY;
  EXPECT_TRUE(card.serves());
  unplug();
  card.ring();  // faults, and nothing happens
  EXPECT_FALSE(card.serves() || card.is_starting());
  card.seek(true);
  EXPECT_FALSE(card.serves());
  plug("0000:02:00.0");
  card.seek(true);
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 1u);
  at(BH_PCI_REG_MAGIC) = UINT32_MAX;  // its other side has gone
  at(BH_PCI_REG_STATE) = UINT32_MAX;
  EXPECT_FALSE(card.serves());
  card.seek(true);
  EXPECT_NE(card.trouble().find("does not answer"), std::string::npos) << card.trouble();
}

TEST_F(PciCardTest, IsNotEnabledWithoutItsCommandRegister) {
  plug();
  fs::remove(root_ + folder_ + "/config");
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_NE(card.trouble().find("/config"), std::string::npos) << card.trouble();
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 0u);
}

TEST_F(PciCardTest, FunctionThatVfioDoesNotGiveIsNotMapped) {
  plug();
  fs::create_directories(root_ + "/sys/bus/pci/drivers/vfio-pci");
  fs::create_symlink(root_ + "/sys/bus/pci/drivers/vfio-pci", root_ + folder_ + "/driver");
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_NE(card.trouble().find("no IOMMU group"), std::string::npos) << card.trouble();
  fs::create_symlink("/sys/kernel/iommu_groups/4095", root_ + folder_ + "/iommu_group");
  card.seek(true);
  EXPECT_NE(card.trouble().find("/dev/vfio/4095"), std::string::npos) << card.trouble();
  EXPECT_EQ(content(folder_ + "/enable"), "0");
  EXPECT_FALSE(card.serves() || card.is_starting());
}

TEST_F(PciCardTest, OtherPoolsAndVersionsAreLeftAlone) {
  plug();
  for (const char* locator : {"shm:x", "dax:/dev/dax7.0", "dax:/dev/dax0.0+dax:/dev/dax1.0", ""}) {
    pool_.locator = locator;
    PciCard card(files(), pool_);
    card.seek(true);
    EXPECT_EQ(content(folder_ + "/enable"), "0") << locator;
    EXPECT_EQ(card.trouble(), "");
  }
  pool_.locator = "dax:/dev/dax0.0";
  at(BH_PCI_REG_VERSION) = 2;
  PciCard card(files(), pool_);
  card.seek(true);
  EXPECT_NE(card.trouble().find("version 2"), std::string::npos) << card.trouble();
  EXPECT_EQ(at(BH_PCI_REG_CONTROL), 0u);
  put("/sys/bus/dax/devices/dax0.0/resource", "0x0\n");  // as users who are not root see it
  PciCard blind(files(), pool_);
  blind.seek(true);
  EXPECT_EQ(blind.trouble(), "");
}

}  // namespace
}  // namespace bowhead::test
