// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/pci_card.h"

#include <bowhead/format/pci.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace bowhead::driver {
namespace {

constexpr std::string_view kScheme = "dax:";

/// Processes change the registers one after the other. That takes microseconds; one that finds the
/// lock taken does not wait for long, since the other may be stopped.
class Lock {
 public:
  explicit Lock(int fd) : fd_(fd) {
    for (int tries = 0; tries < 20 && !is_held_; ++tries) {
      if (tries != 0) usleep(500);
      is_held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    }
  }
  ~Lock() {
    if (is_held_) (void)flock(fd_, LOCK_UN);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  const int fd_;
  bool is_held_ = false;
};

}  // namespace

Result<MemoryMap> MemoryMap::map(const UniqueFd& file, uint64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return Error{Status::SYSTEM, std::strerror(errno)};
  MemoryMap map;
  map.bytes_ = {static_cast<std::byte*>(mapped), bytes};
  return map;
}

MemoryMap::~MemoryMap() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

PciCard::PciCard(const shim::HostFiles& files, const PoolInfo& pool)
    : files_(files),
      window_(window_of(files, pool)),
      memory_(window_ ? pool.locator.substr(kScheme.size()) : "") {}

std::optional<PciCard::Window> PciCard::window_of(const shim::HostFiles& files,
                                                  const PoolInfo& pool) {
  if (!pool.locator.starts_with(kScheme) || pool.locator.find('+') != std::string::npos ||
      !pool.sets.empty())
    return std::nullopt;
  const std::string folder = "/sys/bus/dax/devices/" + shim::last_component(pool.locator);
  const auto address = files.number(folder + "/resource"), bytes = files.number(folder + "/size");
  if (!address || !bytes || *address == 0) return std::nullopt;  // 0: not for this user
  return Window{*address, *bytes};
}

void PciCard::seek(bool may_enable) {
  if (!window_) return;
  // Zeros, or ones where no function answers: it was unplugged, or its other side has gone.
  if (is_open() && read(BH_PCI_REG_MAGIC) != BH_PCI_MAGIC) let_go();
  Result<void> good;
  if (!is_open()) good = find();
  if (good && is_open() && may_enable) good = enable();
  if (good.status() == Status::IN_USE) let_go();  // another function may be free
  if (!good)
    trouble_ = good.error().message();
  else if (!is_open() || serves())
    trouble_.clear();
}

void PciCard::note_failure() {
  if (is_for_window() && read(BH_PCI_REG_STATE) == BH_PCI_FAILED) trouble_ = text();
}

Result<void> PciCard::find() {
  const auto fits = [this](bool free) {
    if (free ? is_free() : is_for_window() && !is_free()) return Result<void>{};
    return Result<void>(Error{Status::IN_USE, "it serves another pool"});
  };
  Result<void> good;
  for (const bool free : {false, true}) {
    for (const std::string& name : files_.names(shim::kPciDevices)) {
      const std::string folder = std::string(shim::kPciDevices) + "/" + name;
      if (files_.number(folder + "/vendor") != BH_PCI_VENDOR ||
          files_.number(folder + "/device") != BH_PCI_DEVICE)
        continue;
      // A function that vfio can still give to this process serves no pool yet.
      const bool by_vfio = files_.link_name(folder + "/driver") == "vfio-pci";
      if (by_vfio && !free) continue;
      good = by_vfio ? take(name) : map(folder);
      if (good) good = greet();
      if (good) good = fits(free);
      if (good) return good;
      let_go();
      good = Error{good.status(), fmt::format("{}: {}", name, good.error().message())};
    }
  }
  return good;
}

Result<void> PciCard::map(const std::string& folder) {
  // What is written there is counted.
  if (files_.number(folder + "/enable") == 0u) {
    if (auto enabled = files_.write(folder + "/enable", "1"); !enabled) return enabled;
  }
  folder_ = folder;
  file_ = open_file(files_.at(folder + "/resource0"), O_RDWR | O_SYNC);
  if (file_.get() < 0) return Error{Status::SYSTEM, std::strerror(errno)};
  auto registers = MemoryMap::map(file_, BH_PCI_BAR_BYTES);
  if (!registers) return registers.error();
  registers_ = std::move(*registers);
  guard_ = FaultGuard(registers_.bytes().data(), BH_PCI_BAR_BYTES, BH_PCI_BAR_BYTES);
  return {};
}

/// By vfio: with the memory of the pool, by the addresses that the machine has for it.
Result<void> PciCard::take(const std::string& name) {
  const std::string folder = std::string(shim::kPciDevices) + "/" + name;
  auto device = VfioDevice::open(name, files_.link_name(folder + "/iommu_group"));
  if (!device) return device.error();
  vfio_ = std::move(*device);
  const UniqueFd memory = open_file(memory_, O_RDWR);
  if (memory.get() < 0) return Error{Status::SYSTEM, std::strerror(errno)};
  auto mapped = MemoryMap::map(memory, window_->bytes);
  if (!mapped) return mapped.error();
  pool_memory_ = std::move(*mapped);
  if (auto good = vfio_->map(pool_memory_.bytes(), window_->address); !good) return good;
  auto event = vfio_->interrupts();
  if (!event) return event.error();
  event_ = std::move(*event);
  return {};
}

Result<void> PciCard::greet() const {
  if (read(BH_PCI_REG_MAGIC) != BH_PCI_MAGIC) return Error{Status::SYSTEM, "it does not answer"};
  if (const uint32_t version = read(BH_PCI_REG_VERSION); version != BH_PCI_VERSION)
    return Error{Status::NOT_SUPPORTED, fmt::format("its registers have version {}: {} is known",
                                                    version, BH_PCI_VERSION)};
  return {};
}

void PciCard::let_go() {
  guard_.reset();
  registers_ = {};
  file_ = UniqueFd();
  vfio_.reset();
  pool_memory_ = {};
  event_.reset();
}

uint32_t PciCard::read(uint32_t offset) const {
  if (vfio_) return vfio_->read(offset);
  auto* words = reinterpret_cast<uint32_t*>(registers_.bytes().data());
  return std::atomic_ref(words[offset / 4]).load(std::memory_order_acquire);
}

void PciCard::write(uint32_t offset, uint32_t value) const {
  if (vfio_) {
    vfio_->write(offset, value);
    return;
  }
  auto* words = reinterpret_cast<uint32_t*>(registers_.bytes().data());
  std::atomic_ref(words[offset / 4]).store(value, std::memory_order_release);
}

void PciCard::write_long(uint32_t offset, uint64_t value) const {
  write(offset, static_cast<uint32_t>(value));
  write(offset + 4, static_cast<uint32_t>(value >> 32));
}

bool PciCard::is_for_window() const {
  return window_ && is_open() &&
         (read(BH_PCI_REG_WINDOW) | uint64_t{read(BH_PCI_REG_WINDOW + 4)} << 32) ==
             window_->address &&
         (read(BH_PCI_REG_BYTES) | uint64_t{read(BH_PCI_REG_BYTES + 4)} << 32) == window_->bytes;
}

bool PciCard::is_free() const {
  const uint32_t state = read(BH_PCI_REG_STATE);
  return state != BH_PCI_STARTING && state != BH_PCI_READY;
}

bool PciCard::is_starting() const {
  return is_for_window() && read(BH_PCI_REG_STATE) == BH_PCI_STARTING;
}
bool PciCard::serves() const { return is_for_window() && read(BH_PCI_REG_STATE) == BH_PCI_READY; }

Result<void> PciCard::enable() {
  std::optional<Lock> lock;
  if (!vfio_) lock.emplace(file_.get());  // else there is one process
  if (lock && !lock->is_held())
    return Error{Status::BUSY, "another process enables it in this moment"};
  if (!is_free()) {
    if (is_for_window()) return {};
    return Error{Status::IN_USE, "it serves another pool"};
  }
  const bool failed = is_for_window() && read(BH_PCI_REG_STATE) == BH_PCI_FAILED;
  const std::string failure = failed ? text() : "";
  if (auto may = let_reach_memory(); !may) return may;
  write(BH_PCI_REG_CONTROL, 0);
  write_long(BH_PCI_REG_WINDOW, window_->address);
  write_long(BH_PCI_REG_BYTES, window_->bytes);
  write(BH_PCI_REG_CONTROL, 1);
  if (failure.empty()) return {};
  return Error{Status::SYSTEM, failure};  // of the time before: this one is only known later
}

Result<void> PciCard::let_reach_memory() const {
  if (vfio_) return vfio_->let_reach();
  const std::string path = files_.at(folder_ + "/config");
  const UniqueFd config = open_file(path, O_RDWR);
  if (config.get() < 0) return Error{Status::SYSTEM, path + ": " + std::strerror(errno)};
  return driver::let_reach_memory(config.get(), 0);
}

std::string PciCard::text() const {
  std::string text;
  for (uint32_t at = 0; at < BH_PCI_TEXT_BYTES; at += 4) {
    const uint32_t word = read(BH_PCI_REG_TEXT + at);
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  text.resize(std::min(text.size(), text.find('\0')));
  // What a terminal would obey is not passed on.
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void PciCard::ring() {
  if (is_open()) write(BH_PCI_REG_DOORBELL, 1);
}

void PciCard::signal_completion() {
  if (is_open()) write(BH_PCI_REG_SIGNAL, 1);
}

}  // namespace bowhead::driver
