// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/vfio_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/vfio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace bowhead::driver {
namespace {

Error failed(const std::string& path) {
  return {errno == EBUSY ? Status::IN_USE : Status::SYSTEM,
          fmt::format("{}: {}", path,
                      errno == EBUSY ? "another process has it" : std::strerror(errno))};
}

}  // namespace

Result<void> let_reach_memory(int file, uint64_t at) {
  constexpr uint64_t kCommand = 4;
  constexpr uint16_t kMemorySpace = 2, kBusMaster = 4, kBits = kMemorySpace | kBusMaster;
  const auto place = static_cast<off_t>(at + kCommand);
  uint16_t command = 0;
  errno = EIO;  // if it is too short
  if (pread(file, &command, sizeof command, place) == sizeof command) {
    if ((command & kBits) == kBits) return {};
    command |= kBits;
    if (pwrite(file, &command, sizeof command, place) == sizeof command) return {};
  }
  return failed("the command register of the function");
}

Result<std::unique_ptr<VfioDevice>> VfioDevice::open(const std::string& name,
                                                     const std::string& group) {
  std::unique_ptr<VfioDevice> made(new VfioDevice);
  if (group.empty())
    return Error{Status::SYSTEM, "it has no IOMMU group: vfio needs a machine with an IOMMU"};
  const std::string path = "/dev/vfio/" + group;
  made->group_ = open_file(path, O_RDWR);
  if (made->group_.get() < 0) return failed(path);
  made->container_ = open_file("/dev/vfio/vfio", O_RDWR);
  const int container = made->container_.get();
  if (container < 0 || ioctl(made->group_.get(), VFIO_GROUP_SET_CONTAINER, &container) != 0 ||
      ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0)
    return failed(path);
  made->device_ = UniqueFd(ioctl(made->group_.get(), VFIO_GROUP_GET_DEVICE_FD, name.c_str()));
  if (made->device_.get() < 0) return failed(path);
  const auto registers = made->place_of(VFIO_PCI_BAR0_REGION_INDEX);
  const auto config = made->place_of(VFIO_PCI_CONFIG_REGION_INDEX);
  if (!registers || !config) return registers ? config.error() : registers.error();
  made->registers_ = *registers;
  made->config_ = *config;
  if (auto may = made->let_reach(); !may) return may.error();
  return made;
}

Result<uint64_t> VfioDevice::place_of(uint32_t region) const {
  vfio_region_info info{};
  info.argsz = sizeof info;
  info.index = region;
  if (ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, &info) != 0) return failed("vfio");
  return info.offset;
}

Result<void> VfioDevice::map(std::span<std::byte> memory, uint64_t address) {
  vfio_iommu_type1_dma_map map{};
  map.argsz = sizeof map;
  map.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
  map.vaddr = reinterpret_cast<uintptr_t>(memory.data());
  map.iova = address;
  map.size = memory.size();
  if (ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &map) != 0)
    return failed("the memory of the pool cannot be mapped for the function");
  return {};
}

Result<std::shared_ptr<const UniqueFd>> VfioDevice::interrupts() {
  auto event = std::make_shared<const UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // The number of the descriptor follows the struct.
  const int fd = event->get();
  alignas(vfio_irq_set) std::array<std::byte, sizeof(vfio_irq_set) + sizeof fd> bytes{};
  vfio_irq_set set{};
  set.argsz = bytes.size();
  set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  set.index = VFIO_PCI_MSIX_IRQ_INDEX;
  set.count = 1;
  std::memcpy(bytes.data(), &set, sizeof set);
  std::memcpy(&bytes[sizeof set], &fd, sizeof fd);
  if (fd < 0 || ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, bytes.data()) != 0)
    return failed("the function has no interrupts");
  return event;
}

uint32_t VfioDevice::read(uint32_t offset) const {
  uint32_t value = 0;
  const auto at = static_cast<off_t>(registers_ + offset);
  return pread(device_.get(), &value, sizeof value, at) == sizeof value ? value : UINT32_MAX;
}

void VfioDevice::write(uint32_t offset, uint32_t value) const {
  (void)!pwrite(device_.get(), &value, sizeof value, static_cast<off_t>(registers_ + offset));
}

}  // namespace bowhead::driver
