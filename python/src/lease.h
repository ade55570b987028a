// SPDX-License-Identifier: Apache-2.0
// Lease of bowhead_kv: read-only memory of a block.
#pragma once

#include "python/src/pool.h"

namespace bowhead::python {

class Lease {
 public:
  static constexpr bool kReadOnly = true;

  Lease(const Namespace& ns, const bh_lease& lease) : pool_(ns.pool), lease_(lease) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (!open_ || pool_->is_closed() || pool_->was_forked()) return;
    pool_->run([this](bh_pool* pool) { return bh_release(pool, &lease_); });
  }

  const bh_lease& lease() const { return lease_; }
  size_t size_bytes() const { return lease_.stored_bytes; }
  void add_view() { pool_->add_view(); }
  void drop_view() { pool_->drop_view(); }
  bool is_open() const { return open_; }

  /// The memory; raises Error if it is not leased any more.
  const void* data() const {
    if (!open_) raise_error(BH_CLOSED, "the lease was released; acquire the block again");
    check_pool();
    return lease_.data;
  }
  void check_pool() const {
    if (pool_->is_closed()) raise_error(BH_CLOSED, "the lease ended when its pool was closed");
  }

  /// Whether the block is known to have been intact for the whole lease. Ends it the first time.
  bool release() {
    if (!open_) return intact_;
    if (pool_->is_closed()) return open_ = false;
    if (!pool_->was_forked()) open_ = false;  // another thread may release it, too
    const bh_status status =
        pool_->run([this](bh_pool* pool) { return bh_release(pool, &lease_); });
    if (status != BH_LAPSED && status != BH_HOST_FENCED) check(status);
    return intact_ = status == BH_OK;
  }

  /// Whether it is known to have been intact so far.
  bool check_intact() {
    if (!open_) return intact_;
    if (pool_->is_closed()) return false;
    const bh_status status =
        pool_->run([this](bh_pool* pool) { return bh_check_lease(pool, &lease_); });
    if (status != BH_LAPSED && status != BH_HOST_FENCED) check(status);
    return status == BH_OK;
  }
  const OfPool& pool() const { return pool_; }

 private:
  const OfPool pool_;
  bh_lease lease_;
  bool open_ = true;
  bool intact_ = false;
};

}  // namespace bowhead::python
