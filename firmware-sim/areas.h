// SPDX-License-Identifier: Apache-2.0
// Memory of a pool for what a device and a process exchange: reserved blocks that are never
// committed, so that they are free again whatever becomes of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "pool/pool.h"

namespace bowhead::device {

/// One of them; free when it goes.
class Area {
 public:
  Area(Pool& pool, Reservation reservation) : pool_(&pool), reservation_(std::move(reservation)) {}
  Area(Area&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), reservation_(std::move(other.reservation_)) {}
  Area& operator=(Area&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(reservation_, other.reservation_);
    return *this;
  }
  ~Area() {
    if (pool_ != nullptr) (void)pool_->abort(reservation_);
  }

  std::byte* data() const { return reservation_.data; }
  uint64_t bytes() const { return reservation_.length_bytes; }
  uint64_t offset() const { return reservation_.offset; }  ///< in the pool

 private:
  Pool* pool_;
  Reservation reservation_;
};

class Areas {
 public:
  /// `use`: part of their keys, which nobody sees but those who look for reserved blocks.
  Areas(Pool& pool, std::string use) : pool_(pool), use_(std::move(use)) {}
  /// Statuses of Pool::open_namespace().
  Result<void> open();
  /// Statuses of Pool::reserve(). The pool must outlive it.
  Result<Area> reserve(uint64_t bytes);

 private:
  Pool& pool_;
  const std::string use_;
  NamespaceId namespace_ = 0;
};

}  // namespace bowhead::device
