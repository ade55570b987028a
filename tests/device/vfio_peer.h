// SPDX-License-Identifier: Apache-2.0
// Messages of a machine that uses a PCI function by the vfio-user protocol, as QEMU sends them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "firmware-sim/vfio_user.h"

namespace bowhead::test::vfio {

enum Command : uint16_t {
  VERSION = 1,
  DMA_MAP = 2,
  DMA_UNMAP = 3,
  GET_INFO = 4,
  GET_REGION_INFO = 5,
  GET_IRQ_INFO = 7,
  SET_IRQS = 8,
  REGION_READ = 9,
  REGION_WRITE = 10,
  RESET = 13
};

using Bytes = std::vector<std::byte>;

/// The numbers one behind the other, each with its own size.
template <class... T>
Bytes bytes_of(const T&... numbers) {
  Bytes all;
  const auto append = [&](const auto& number) {
    const auto* from = reinterpret_cast<const std::byte*>(&number);
    all.insert(all.end(), from, from + sizeof number);
  };
  (append(numbers), ...);
  return all;
}

template <class T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T number{};
  if (at + sizeof number <= bytes.size()) std::memcpy(&number, &bytes[at], sizeof number);
  return number;
}

inline Bytes operator+(Bytes first, const Bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline Bytes message(uint16_t command, const Bytes& payload = {}, uint32_t flags = 0,
                     uint16_t id = 7) {
  return bytes_of(id, command, static_cast<uint32_t>(16 + payload.size()), flags, uint32_t{0}) +
         payload;
}

inline Bytes version() {
  constexpr char kText[] = R"({"capabilities":{"max_msg_fds":8}})";
  Bytes payload = bytes_of(uint16_t{0}, uint16_t{0});
  for (const char c : kText) payload.push_back(static_cast<std::byte>(c));
  return message(VERSION, payload);
}
inline Bytes map(uint64_t address, uint64_t bytes, uint64_t offset = 0, uint32_t flags = 3) {
  return message(DMA_MAP, bytes_of(uint32_t{32}, flags, offset, address, bytes));
}
inline Bytes unmap(uint64_t address, uint64_t bytes, uint32_t flags = 0) {
  return message(DMA_UNMAP, bytes_of(uint32_t{24}, flags, address, bytes));
}
inline Bytes read(uint32_t region, uint64_t offset, uint32_t count) {
  return message(REGION_READ, bytes_of(offset, region, count));
}
inline Bytes write(uint32_t region, uint64_t offset, const Bytes& data) {
  return message(REGION_WRITE, bytes_of(offset, region, static_cast<uint32_t>(data.size())) + data);
}
/// Sets Memory Space and Bus Master, or clears them.
inline Bytes let_reach_memory(bool may = true) {
  return write(device::kConfigRegion, 4, bytes_of(uint16_t{may ? uint16_t{6} : uint16_t{0}}));
}
inline Bytes write_register(uint64_t offset, uint32_t value) {
  return write(device::kBar0Region, offset, bytes_of(value));
}

/// Of a reply: 0, or its error number.
inline uint32_t error_of(const Bytes& reply) {
  return (number_at<uint32_t>(reply, 8) & 1 << 5) != 0 ? number_at<uint32_t>(reply, 12) : 0;
}

inline UniqueFd memory(uint64_t bytes) {
  UniqueFd fd(memfd_create("machine", MFD_CLOEXEC));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return UniqueFd();
  return fd;
}

/// Descriptors that this process has open.
inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

}  // namespace bowhead::test::vfio
