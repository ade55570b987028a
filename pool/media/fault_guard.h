// SPDX-License-Identifier: Apache-2.0
// FaultGuard: handles a load or a store of a mapped medium that fails. The kernel sends SIGBUS
// then: the file was truncated under its mapping, a sparse file grew on a full filesystem, or the
// medium returned an error. Unhandled, that ends the process, and with it an engine that serves
// many.
//
// A handler, installed once per process with the first guard, looks the address up among the
// guarded mappings. If it lies in one, the mapping is marked as failed, and then *all* of it is
// replaced by private zero pages; the access is tried again and completes. Why all of it, and not
// the page alone: code that read zeros where allocator words or ownership were would act on them,
// and its stores would reach the good part of the medium, over blocks of other processes and hosts.
// As it is, no store that follows a failed access reaches the medium, and none can be mistaken for
// a published one: failed() is true before the first zero can be read, and every operation checks
// it before it reports success (Pool). For other processes this process has died.
//
// Of a range that holds values alone (contain()), the pages that a memory error took are replaced
// by themselves: no code acts on what it reads there, and who reads or writes a value asks lost()
// afterwards. They are noted before the first zero can be read, and the mapping goes as a whole
// once there are more than kLossesMax.
//
// Why a handler, and not copies that cannot fault: leases and reservations hand out pointers, and
// every word of the metadata is a load.
//
// Other users of SIGBUS: addresses outside of guarded mappings, and signals that a process sent,
// go to the handler that was installed before, with its mask, or to the default action. The handler
// is never removed: one installed later may call it. A program that installs its own without
// calling the previous one ends as without a guard, and so does a thread that blocks SIGBUS.
//
// Lock-free, so that a child of a fork may open pools whatever other threads of the parent did.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace bowhead {

/// The first access that failed.
struct MediaFault {
  uint64_t offset = 0;        ///< in the mapping
  uint64_t bytes = 0;         ///< the least that is known to be lost
  bool memory_error = false;  ///< the hardware reported it; else the file has no such bytes
};

class FaultGuard {
 public:
  FaultGuard() = default;
  /// Guards [base, base + bytes), a shared mapping with pages of `page_bytes`, until it is
  /// destroyed, which must be before the mapping goes.
  FaultGuard(void* base, uint64_t bytes, uint64_t page_bytes);
  FaultGuard(FaultGuard&& other) noexcept
      : entry_(std::exchange(other.entry_, nullptr)),
        fault_(std::exchange(other.fault_, nullptr)),
        losses_(std::exchange(other.losses_, nullptr)) {}
  FaultGuard& operator=(FaultGuard&& other) noexcept {
    std::swap(entry_, other.entry_);
    std::swap(fault_, other.fault_);
    std::swap(losses_, other.losses_);
    return *this;
  }
  ~FaultGuard() { reset(); }

  void reset();

  /// From now on memory errors in [offset, offset + bytes) of the mapping cost their pages only.
  void contain(uint64_t offset, uint64_t bytes);
  static constexpr uint32_t kLossesMax = 512;
  /// Zeros that only this process has took the place of pages of the range, before this call or
  /// during it. One load while there are none in the whole mapping.
  bool lost(uint64_t offset, uint64_t bytes) const {
    return losses_ != nullptr && losses_->load(std::memory_order_acquire) != 0 &&
           find_loss(offset, bytes);
  }
  /// Other memory was mapped into the range.
  void forget_losses(uint64_t offset, uint64_t bytes);

  /// An access failed, and the mapping is no longer the medium's. One load.
  bool failed() const { return fault_ != nullptr && fault_->load(std::memory_order_acquire) != 0; }
  std::optional<MediaFault> fault() const;

  struct Entry;

 private:
  bool find_loss(uint64_t offset, uint64_t bytes) const;

  Entry* entry_ = nullptr;
  const std::atomic<uint64_t>* fault_ = nullptr;   ///< of the entry; 0: none
  const std::atomic<uint32_t>* losses_ = nullptr;  ///< of the entry: how many
};

}  // namespace bowhead
