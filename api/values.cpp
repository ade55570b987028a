// SPDX-License-Identifier: Apache-2.0
// The C ABI of values: copied, filled and read in place, compressed.
#include <atomic>

#include "api/support.h"
#include "base/checksum.h"
#include "base/kv_layout.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::LeaseOf;
using bowhead::PayloadSum;
using bowhead::Result;
using bowhead::Status;

namespace {

// Reservations are numbered across all pools, so that a handle that has ended, a copy of it, and a
// handle of another pool are all found to be closed.
std::atomic<uint64_t> last_reservation{0};

bh_status check_target(const bh_pool* pool, const bh_key& key) {
  return pool == nullptr ? null_argument("pool") : check_key(key);
}

/// The status of a failed read; if the buffers are too small, also the length of the value.
bh_status finish_read(bh_pool& pool, bh_namespace_id ns, bh_key key, const bowhead::Error& error,
                      uint64_t* length_bytes) {
  if (error.status != Status::BUFFER_TOO_SMALL) return fail(error);
  // The block may be gone by now; then the status says so.
  const Result<uint64_t> length = pool.pool.length(ns, view(key));
  if (!length) return fail(length.error());
  *length_bytes = *length;
  return fail(error);
}

/// Takes an open reservation out of the table, so that no other thread ends it too, and ends it by
/// `end`, whatever its status.
template <class End>
bh_status end_reservation(bh_pool* pool, bh_reservation* handle, End&& end) {
  if (pool == nullptr) return null_argument("pool");
  if (const bh_status bad = check_struct(handle, "reservation"); bad != BH_OK) return bad;
  if (pool->forks_at_open != forks()) return finish(Status::FORKED);
  auto open = [&] {
    const std::lock_guard lock(pool->mutex);
    return pool->reservations.extract(reinterpret_cast<uintptr_t>(handle->internal));
  }();
  if (open.empty()) {
    return fail(BH_CLOSED, "{}: not an open reservation: it was ended, or its key was present",
                current_function);
  }
  handle->data = nullptr;
  handle->internal = nullptr;
  return finish(*pool, end(open.mapped()));
}

bh_status put(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
              size_t value_count, const PutOptions& options) {
  if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
  if (const bh_status bad = check_pieces("value", value, value_count); bad != BH_OK) return bad;
  return finish(*pool,
                pool->pool.put(ns, view(key), spans(value, value_count), options.user_metadata,
                               options.attributes),
                ns, key);
}

bh_status reserve(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                  const PutOptions& options, bh_reservation* out) {
  if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
  if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
  if (pool->forks_at_open != forks()) return finish(Status::FORKED);
  // The entry is made first: after the pool has reserved, nothing may fail.
  const uint64_t id = ++last_reservation;
  {
    const std::lock_guard lock(pool->mutex);
    pool->reservations.emplace(id, bowhead::Reservation{});
  }
  Result<bowhead::Reservation> reserved =
      pool->pool.reserve(ns, view(key), length_bytes, options.user_metadata, options.attributes);
  bh_reservation handle{};
  std::unique_lock lock(pool->mutex);
  if (!reserved || reserved->present) pool->reservations.erase(id);
  if (!reserved) lock.unlock();  // to find the reason takes a while
  if (!reserved && reserved.error().detail.empty())
    return finish(*pool, reserved.status(), ns, key);
  if (!reserved) return fail(reserved.error());
  handle.data = reserved->data;
  handle.length_bytes = reserved->length_bytes;
  handle.offset = reserved->offset;
  handle.present = reserved->present ? 1 : 0;
  if (!reserved->present) {
    handle.internal = reinterpret_cast<void*>(static_cast<uintptr_t>(id));
    pool->reservations.find(id)->second = std::move(*reserved);
  }
  write_struct(handle, out);
  return BH_OK;
}

bh_status commit(bh_pool* pool, bh_reservation* reservation, const PayloadSum& sum) {
  return end_reservation(pool, reservation,
                         [&](bowhead::Reservation& open) { return pool->pool.commit(open, sum); });
}

bh_lease handle_of(const bowhead::Lease& lease) {
  bh_lease handle{};
  handle.codec = lease.codec;
  handle.data = lease.data;
  handle.stored_bytes = lease.stored_bytes;
  handle.length_bytes = lease.length_bytes;
  handle.offset = lease.offset;
  handle.stamp = lease.stamp;
  handle.layout = lease.layout;
  handle.checksum = lease.checksum.value_or(0);
  handle.has_checksum = lease.checksum ? 1 : 0;
  handle.internal = lease.token;
  return handle;
}

bh_status acquire(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms, LeaseOf of,
                  bh_lease* out) {
  if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
  if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
  const Result<bowhead::Lease> lease = pool->pool.acquire(ns, view(key), ttl_ms, of);
  if (!lease) return fail(lease.error());
  write_struct(handle_of(*lease), out);
  return BH_OK;
}

}  // namespace

extern "C" {

// ---- copied ----

bh_status bh_put(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                 size_t value_count) {
  return guarded(__func__, [&] { return put(pool, ns, key, value, value_count, {}); });
}

bh_status bh_put_with(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                      size_t value_count, const bh_put_options* options) {
  return guarded(__func__, [&]() -> bh_status {
    PutOptions known;
    if (const bh_status bad = read_options(options, known); bad != BH_OK) return bad;
    return put(pool, ns, key, value, value_count, known);
  });
}

bh_status bh_get(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_iovec* buffers,
                 size_t buffer_count, uint64_t* length_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
    if (const bh_status bad = check_pieces("buffers", buffers, buffer_count); bad != BH_OK)
      return bad;
    if (length_bytes == nullptr) return null_argument("length_bytes");
    const Result<uint64_t> got = pool->pool.get(ns, view(key), spans(buffers, buffer_count));
    if (!got) return finish_read(*pool, ns, key, got.error(), length_bytes);
    *length_bytes = *got;
    return BH_OK;
  });
}

bh_status bh_exists(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                    uint8_t* present) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (present == nullptr && key_count > 0) return null_argument("present");
    std::span<const std::string_view> views;
    if (const bh_status bad = convert_keys(keys, key_count, views); bad != BH_OK) return bad;
    const Result<uint64_t> count = pool->pool.exists(ns, views, {present, key_count});
    return count ? BH_OK : fail(count.error());
  });
}

bh_status bh_longest_prefix(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                            size_t* length) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (length == nullptr) return null_argument("length");
    std::span<const std::string_view> views;
    if (const bh_status bad = convert_keys(keys, key_count, views); bad != BH_OK) return bad;
    const Result<uint64_t> prefix = pool->pool.longest_prefix(ns, views);
    if (!prefix) return fail(prefix.error());
    *length = *prefix;
    return BH_OK;
  });
}

bh_status bh_touch(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    std::span<const std::string_view> views;
    if (const bh_status bad = convert_keys(keys, key_count, views); bad != BH_OK) return bad;
    return finish(*pool, pool->pool.touch(ns, views), ns);
  });
}

bh_status bh_remove(bh_pool* pool, bh_namespace_id ns, bh_key key) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
    return finish(*pool, pool->pool.remove(ns, view(key)), ns, key);
  });
}

// ---- in place ----

bh_status bh_reserve(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                     bh_reservation* out) {
  return guarded(__func__, [&] { return reserve(pool, ns, key, length_bytes, {}, out); });
}

bh_status bh_reserve_with(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                          const bh_put_options* options, bh_reservation* out) {
  return guarded(__func__, [&]() -> bh_status {
    PutOptions known;
    if (const bh_status bad = read_options(options, known); bad != BH_OK) return bad;
    return reserve(pool, ns, key, length_bytes, known, out);
  });
}

bh_status bh_commit(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&] { return commit(pool, reservation, {}); });
}

bh_status bh_commit_summed(bh_pool* pool, bh_reservation* reservation, uint64_t checksum) {
  return guarded(__func__, [&] {
    return commit(pool, reservation, {PayloadSum::By::WRITER, checksum});
  });
}

bh_status bh_commit_unverified(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&] { return commit(pool, reservation, {PayloadSum::By::NONE}); });
}

bh_status bh_abort(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&] {
    return end_reservation(pool, reservation,
                           [&](bowhead::Reservation& open) { return pool->pool.abort(open); });
  });
}

uint64_t bh_checksum(const void* data, size_t size_bytes) {
  return bowhead::payload_checksum(data, size_bytes);
}

uint64_t bh_layout_tokens(const bh_kv_layout* layout, uint64_t length_bytes) {
  if (layout == nullptr || !bowhead::check_layout(*layout)) return 0;
  return bowhead::tokens_in(*layout, length_bytes).value_or(0);
}

uint32_t bh_layout_row_bytes(const bh_kv_layout* layout, uint32_t part) {
  if (layout == nullptr || !bowhead::check_layout(*layout) || bowhead::is_opaque(*layout) ||
      part > 1)
    return 0;
  return bowhead::row_bytes(*layout, part);
}

bh_status bh_acquire(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms,
                     bh_lease* out) {
  return guarded(__func__, [&] { return acquire(pool, ns, key, ttl_ms, LeaseOf::PLAIN, out); });
}

bh_status bh_acquire_stored(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms,
                            bh_lease* out) {
  return guarded(__func__, [&] { return acquire(pool, ns, key, ttl_ms, LeaseOf::STORED, out); });
}

bh_status bh_acquire_prefix(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                            size_t group_keys, uint64_t ttl_ms, bh_lease* leases, bh_prefix* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (leases == nullptr && key_count > 0) return null_argument("leases");
    if (key_count > 0) {
      if (const bh_status bad = check_struct(leases, "leases"); bad != BH_OK) return bad;
    }
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    std::span<const std::string_view> views;
    if (const bh_status bad = convert_keys(keys, key_count, views); bad != BH_OK) return bad;
    auto taken = pool->pool.acquire_prefix(ns, views, ttl_ms, group_keys);
    if (!taken) return fail(taken.error());
    const uint32_t struct_bytes = key_count > 0 ? leases->struct_bytes : 0;
    for (size_t i = 0; i < taken->leases.size(); ++i) {
      auto* to = reinterpret_cast<bh_lease*>(reinterpret_cast<char*>(leases) + i * struct_bytes);
      to->struct_bytes = struct_bytes;
      write_struct(handle_of(taken->leases[i]), to);
    }
    bh_prefix answer{};
    answer.blocks = taken->leases.size();
    answer.length_bytes = taken->length_bytes;
    answer.stored_bytes = taken->stored_bytes;
    answer.restore_ns = taken->restore_ns;
    write_struct(answer, out);
    return BH_OK;
  });
}

bh_status bh_check_lease(bh_pool* pool, const bh_lease* lease) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(lease, "lease"); bad != BH_OK) return bad;
    return finish(*pool, pool->pool.check_lease(open_lease(*lease)));
  });
}

bh_status bh_release(bh_pool* pool, bh_lease* lease) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(lease, "lease"); bad != BH_OK) return bad;
    bowhead::Lease open = open_lease(*lease);
    const Status status = pool->pool.release(open);
    lease->internal = open.token;
    return finish(*pool, status);
  });
}

// ---- compressed ----

bh_status bh_get_planes(bh_pool* pool, bh_namespace_id ns, bh_key key, uint32_t planes,
                        const bh_iovec* buffers, size_t buffer_count, uint64_t* length_bytes,
                        uint64_t* read_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
    if (const bh_status bad = check_pieces("buffers", buffers, buffer_count); bad != BH_OK)
      return bad;
    if (length_bytes == nullptr) return null_argument("length_bytes");
    const auto got = pool->pool.get_prefix(ns, view(key), planes, spans(buffers, buffer_count));
    if (!got) return finish_read(*pool, ns, key, got.error(), length_bytes);
    *length_bytes = got->length_bytes;
    if (read_bytes != nullptr) *read_bytes = got->read_bytes;
    return BH_OK;
  });
}

bh_status bh_get_stored(bh_pool* pool, bh_namespace_id ns, bh_key key, void* buffer,
                        size_t buffer_bytes, uint64_t* stored_bytes, uint64_t* length_bytes,
                        uint32_t* codec) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_target(pool, key); bad != BH_OK) return bad;
    if (buffer == nullptr && buffer_bytes > 0) return null_argument("buffer");
    if (stored_bytes == nullptr) return null_argument("stored_bytes");
    if (length_bytes == nullptr) return null_argument("length_bytes");
    if (codec == nullptr) return null_argument("codec");
    const auto stored =
        pool->pool.get_stored(ns, view(key), {static_cast<std::byte*>(buffer), buffer_bytes});
    if (!stored) return finish_read(*pool, ns, key, stored.error(), length_bytes);
    *stored_bytes = stored->stored_bytes;
    *length_bytes = stored->length_bytes;
    *codec = stored->is_frame ? BH_CODEC_FRAME : BH_CODEC_RAW;
    return BH_OK;
  });
}

bh_status bh_pool_recompress(bh_pool* pool, uint64_t cold_ms, bh_recompress_report* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto report = pool->pool.recompress(cold_ms);
    if (!report) return fail(report.error());
    bh_recompress_report done{};
    done.cold_blocks = report->cold_blocks;
    done.recompressed = report->recompressed;
    done.before_bytes = report->before_bytes;
    done.after_bytes = report->after_bytes;
    write_struct(done, out);
    return BH_OK;
  });
}

}  // extern "C"
