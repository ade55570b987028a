// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pci_function.h"

#include <bowhead/format/pci.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace bowhead::device {
namespace {

/// Of the configuration space: PCI Local Bus Specification 3.0, 6.1.
enum Config : size_t {
  VENDOR = 0x00,
  DEVICE = 0x02,
  COMMAND = 0x04,
  STATUS = 0x06,
  REVISION_AND_CLASS = 0x08,
  BAR_0 = 0x10,
  SUBSYSTEM_VENDOR = 0x2C,
  SUBSYSTEM = 0x2E,
  CAPABILITIES = 0x34,
  INTERRUPT_LINE = 0x3C,
  // The capability of MSI-X: 6.8.2.
  MSIX = 0x40,
  MSIX_CONTROL = 0x42,
  MSIX_TABLE = 0x44,
  MSIX_PENDING = 0x48
};
constexpr uint32_t kHasCapabilities = 0x10, kMsixId = 0x11;
constexpr uint32_t kRevision = 1;
constexpr std::byte kMemorySpace{2}, kBusMaster{4};  // of COMMAND

/// The bits of a byte that a write changes.
std::byte writable_bits(size_t at, bool has_interrupt) {
  if (at == COMMAND) return kMemorySpace | kBusMaster;
  // The address of BAR 0, 32 bits, in memory, is a multiple of its size.
  if (at >= BAR_0 && at < BAR_0 + 4)
    return static_cast<std::byte>(~(BH_PCI_BAR_BYTES - 1) >> (at - BAR_0) * 8);
  if (at == INTERRUPT_LINE) return std::byte{0xFF};
  if (at == MSIX_CONTROL + 1 && has_interrupt) return std::byte{0xC0};  // enabled, masked
  return std::byte{0};
}

void store(uint64_t& number, bool high, uint32_t half) {
  number =
      high ? (number & UINT32_MAX) | uint64_t{half} << 32 : (number & ~uint64_t{UINT32_MAX}) | half;
}

}  // namespace

PciFunction::PciFunction(const DmaMappings& mappings, WindowDevice& device, bool has_interrupt)
    : mappings_(mappings), device_(device), has_interrupt_(has_interrupt) {
  reset_config();
}

void PciFunction::reset_config() {
  config_.fill(std::byte{0});
  const auto put = [this](size_t at, uint32_t value, size_t bytes) {
    std::memcpy(&config_[at], &value, bytes);
  };
  put(VENDOR, BH_PCI_VENDOR, 2);
  put(DEVICE, BH_PCI_DEVICE, 2);
  put(REVISION_AND_CLASS, BH_PCI_CLASS << 8 | kRevision, 4);
  put(SUBSYSTEM_VENDOR, BH_PCI_VENDOR, 2);
  put(SUBSYSTEM, BH_PCI_DEVICE, 2);
  if (!has_interrupt_) return;
  put(STATUS, kHasCapabilities, 2);
  put(CAPABILITIES, MSIX, 1);
  put(MSIX, kMsixId, 1);  // the last one, and one vector
  put(MSIX_TABLE, BH_PCI_MSIX_TABLE, 4);
  put(MSIX_PENDING, BH_PCI_MSIX_PENDING, 4);
}

void PciFunction::reset() {
  disable();
  reset_config();
  window_ = bytes_ = 0;
}

uint64_t PciFunction::region_bytes(uint32_t region) const {
  return region == kBar0Region ? BH_PCI_BAR_BYTES : region == kConfigRegion ? kConfigBytes : 0;
}

WindowDevice::Standing PciFunction::standing() {
  if (refused_) return {BH_PCI_FAILED, *refused_};
  return is_started_ ? device_.standing() : WindowDevice::Standing{BH_PCI_DISABLED, {}};
}

void PciFunction::read(uint32_t region, uint64_t offset, std::span<std::byte> to) {
  if (region == kConfigRegion) {
    std::copy_n(config_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return;
  }
  std::array<std::byte, BH_PCI_BAR_BYTES> registers{};
  const auto put = [&](size_t at, auto value) {
    std::memcpy(&registers[at], &value, sizeof value);
  };
  const WindowDevice::Standing now = standing();
  put(BH_PCI_REG_MAGIC, BH_PCI_MAGIC);
  put(BH_PCI_REG_VERSION, BH_PCI_VERSION);
  put(BH_PCI_REG_STATE, now.state);
  put(BH_PCI_REG_WINDOW, window_);
  put(BH_PCI_REG_BYTES, bytes_);
  put(BH_PCI_REG_CONTROL, uint32_t{is_started_});
  if (now.state == BH_PCI_FAILED) {
    put(BH_PCI_REG_STATUS, static_cast<uint32_t>(now.why.status));
    const std::string text = now.why.message();
    std::memcpy(&registers[BH_PCI_REG_TEXT], text.data(),
                std::min<size_t>(text.size(), BH_PCI_TEXT_BYTES));
  }
  std::copy_n(registers.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
}

void PciFunction::write(uint32_t region, uint64_t offset, std::span<const std::byte> from) {
  if (region == kConfigRegion) {
    write_config(offset, from);
    return;
  }
  if (offset % 4 != 0 || from.size() % 4 != 0) return;
  for (size_t i = 0; i < from.size(); i += 4) {
    uint32_t value;
    std::memcpy(&value, &from[i], 4);
    write_register(offset + i, value);
  }
}

bool PciFunction::may_reach_memory() const {
  return (config_[COMMAND] & kBusMaster) != std::byte{0};
}

void PciFunction::write_config(uint64_t offset, std::span<const std::byte> from) {
  for (size_t i = 0; i < from.size(); ++i) {
    const std::byte mask = writable_bits(offset + i, has_interrupt_);
    config_[offset + i] = (config_[offset + i] & ~mask) | (from[i] & mask);
  }
  if (!is_started_ || may_reach_memory()) return;
  disable();
  refused_ = Error{Status::CLOSED, "this machine cleared Bus Master: it lets no memory be reached"};
}

void PciFunction::write_register(uint64_t offset, uint32_t value) {
  switch (offset) {
    case BH_PCI_REG_WINDOW:
    case BH_PCI_REG_WINDOW + 4:
      if (!is_started_) store(window_, offset != BH_PCI_REG_WINDOW, value);
      break;
    case BH_PCI_REG_BYTES:
    case BH_PCI_REG_BYTES + 4:
      if (!is_started_) store(bytes_, offset != BH_PCI_REG_BYTES, value);
      break;
    case BH_PCI_REG_CONTROL:
      if (value == 0) disable();
      if (value == 1 && !is_started_) enable();
      break;
    case BH_PCI_REG_DOORBELL:
      if (is_started_) device_.ring();
      break;
    case BH_PCI_REG_SIGNAL:
      if (is_started_) device_.signal_completion();
      break;
    default:
      break;
  }
}

void PciFunction::enable() {
  refused_.reset();
  if (!may_reach_memory()) {
    refused_ = Error{Status::INVALID_ARGUMENT,
                     "Bus Master of the command register is clear: the driver is to set it first"};
    return;
  }
  auto file = window_file();
  if (!file) {
    refused_ = file.error();
    return;
  }
  device_.start(std::move(*file), bytes_);
  is_started_ = true;
}

/// Of the mapping in which the window lies.
Result<UniqueFd> PciFunction::window_file() const {
  const auto mapping = mappings_.find(window_, bytes_);
  if (!mapping)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("this machine gave no memory that has {} bytes from address {:#x}",
                             bytes_, window_)};
  if (!mapping->writable || !mapping->file)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("the memory at address {:#x} cannot be shared, or not be written: have "
                    "QEMU back it with a file (share=on)",
                    window_)};
  const uint64_t at = mapping->offset + (window_ - mapping->address);
  if (at != 0)
    return Error{
        Status::NOT_SUPPORTED,
        fmt::format("address {:#x} is byte {} of the file behind it, and a pool must begin "
                    "with its file",
                    window_, at)};
  constexpr int kFirst = 3;
  UniqueFd file(fcntl(mapping->file->get(), F_DUPFD_CLOEXEC, kFirst));
  if (file.get() < 0) return Error{Status::SYSTEM, std::strerror(errno)};
  return file;
}

void PciFunction::disable() {
  refused_.reset();
  if (std::exchange(is_started_, false)) device_.stop();
}

void PciFunction::release(const DmaMapping& mapping) {
  // A window that is used has bytes, and does not wrap around: it was found.
  const bool is_used =
      is_started_ && window_ <= mapping.last() && mapping.address <= window_ + (bytes_ - 1);
  if (!is_used) return;
  disable();
  refused_ = Error{Status::CLOSED, "this machine took the memory of the window away"};
}

}  // namespace bowhead::device
