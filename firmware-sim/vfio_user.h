// SPDX-License-Identifier: Apache-2.0
// VfioUser: the server's side of the vfio-user protocol, by which a virtual machine uses a PCI
// function of another process (QEMU: docs/interop/vfio-user.rst). Messages as bytes: the socket is
// pci_server.h's, the function itself pci_function.h's.
//
// It believes nothing: a message is checked as a whole before anything is done, and one that is
// wrong is answered with an error number and changes nothing. A descriptor that comes is kept by
// the DMA mapping that it is for, or closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "base/unique_fd.h"

namespace bowhead::device {

/// Memory of the machine that the function may use.
struct DmaMapping {
  uint64_t address = 0;  ///< by which the machine names it
  uint64_t bytes = 0;
  uint64_t offset = 0;  ///< in the file
  bool writable = false;
  std::shared_ptr<const UniqueFd> file = {};  ///< null: it cannot be mapped

  uint64_t last() const { return address + (bytes - 1); }
};

/// Mappings that do not overlap. Those of one file share a descriptor: where the machine has an
/// IOMMU, they come page by page.
class DmaMappings {
 public:
  /// 0, or EEXIST (it overlaps one), EINVAL (it has no bytes, ends behind the last address, or lies
  /// outside of its file), ENOSPC (there are kMost). `file` may be negative.
  int add(DmaMapping mapping, UniqueFd file);
  /// All of a range, of one file: as one mapping. Nullopt: some of it is not mapped, or the file
  /// has it in another order, or there are several.
  std::optional<DmaMapping> find(uint64_t address, uint64_t bytes) const;
  /// Those that lie in a range, in their order. Nullopt: one lies there in part, or it is no range.
  std::optional<std::vector<DmaMapping>> within(uint64_t address, uint64_t bytes) const;
  std::vector<DmaMapping> all() const;
  void remove(const DmaMapping& mapping) { all_.erase(mapping.address); }
  void clear() { all_.clear(); }

  static constexpr size_t kMost = 16384;

 private:
  /// The first one that ends at the address or behind it.
  std::map<uint64_t, DmaMapping>::const_iterator from(uint64_t address) const;
  std::shared_ptr<const UniqueFd> shared(UniqueFd file, uint64_t device, uint64_t inode);

  std::map<uint64_t, DmaMapping> all_;                 // by address
  using FileId = std::tuple<uint64_t, uint64_t, int>;  // device, inode, and what it is open for
  std::map<FileId, std::weak_ptr<const UniqueFd>> files_;
};

/// The function that messages are for. Regions are those of the protocol; a caller stays within
/// their bytes.
class VfioFunction {
 public:
  virtual ~VfioFunction() = default;
  virtual uint64_t region_bytes(uint32_t region) const = 0;
  virtual void read(uint32_t region, uint64_t offset, std::span<std::byte> to) = 0;
  virtual void write(uint32_t region, uint64_t offset, std::span<const std::byte> from) = 0;
  virtual void reset() = 0;
  /// The mapping goes when this returns.
  virtual void release(const DmaMapping& mapping) = 0;
  /// Whether it has one interrupt (MSI-X, vector 0), or none.
  virtual bool has_interrupt() const = 0;
  /// What that is signalled by, an eventfd; negative: nothing.
  virtual void set_interrupt(UniqueFd event) = 0;
  virtual void interrupt() = 0;
};

/// Regions of a PCI function, by the numbers of the protocol.
inline constexpr uint32_t kBar0Region = 0, kConfigRegion = 7, kRegions = 9;

/// One connection. Not thread-safe.
class VfioUser {
 public:
  /// Both must outlive it. `mappings` has those that the peer made, which go with it.
  VfioUser(VfioFunction& function, DmaMappings& mappings)
      : function_(function), mappings_(mappings) {}
  VfioUser(const VfioUser&) = delete;
  VfioUser& operator=(const VfioUser&) = delete;
  ~VfioUser();  ///< the function is reset

  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kTransferBytesMax = 64 << 10;  ///< that one access can have
  static constexpr size_t kMessageBytesMax = kTransferBytesMax + 64;
  static constexpr size_t kDescriptorsMax = 8;  ///< of a message

  /// How long the message is that begins like this, with its header; nullopt: there is none as
  /// long, and the connection is of no use any more.
  static std::optional<size_t> message_bytes(std::span<const std::byte, kHeaderBytes> header);

  struct Outcome {
    std::vector<std::byte> reply = {};  ///< empty: none is wanted
    bool ends = false;                  ///< the connection, once the reply is sent
  };
  /// Does what a message asks for: message_bytes() of it, and the descriptors that came with it.
  Outcome handle(std::span<const std::byte> message, std::vector<UniqueFd> descriptors);

 private:
  struct Request;
  int carry_out(Request& request, std::vector<std::byte>& reply);
  int version(const Request& request, std::vector<std::byte>& reply);
  int map(Request& request);
  int unmap(const Request& request, std::vector<std::byte>& reply);
  int set_interrupts(Request& request);
  int access(const Request& request, bool writes, std::vector<std::byte>& reply);

  VfioFunction& function_;
  DmaMappings& mappings_;
  bool has_version_ = false;
};

}  // namespace bowhead::device
