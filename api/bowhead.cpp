// SPDX-License-Identifier: Apache-2.0
// The C ABI over bowhead::Pool: checks arguments, converts, and keeps the sentence of the last
// failure per thread.
//
// No exception leaves a function here, and nothing here holds a lock while the pool works, but for
// the table of open reservations, which is held only to look one up.
#pragma GCC visibility push(default)
#include <bowhead/bowhead.h>
#pragma GCC visibility pop

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "pool/pool.h"

using bowhead::Error;
using bowhead::Pool;
using bowhead::Result;
using bowhead::Status;

// A reservation's key must live until its commit, so the C handle is a number in this table.
using OpenReservations = std::unordered_map<uint64_t, bowhead::Reservation>;

struct bh_pool {
  bh_pool(Pool opened, unsigned forks) : pool(std::move(opened)), forks_at_open(forks) {}

  Pool pool;
  const unsigned forks_at_open;
  std::mutex mutex;
  OpenReservations reservations;
};

namespace {

// Of fixed size, so that reporting a failure cannot fail.
thread_local char last_error[512] = "";
thread_local const char* current_function = "";

// Reservations are numbered through all pools, so that a handle that was ended, a copy of it and
// one of another pool are found to be closed.
std::atomic<uint64_t> last_reservation{0};

// How many forks lie between this process and the one that loaded the library. The child of a fork
// may not lock a pool's mutex: a thread that is not there any more may have held it.
std::atomic<unsigned> forks{0};
const int fork_hook_installed = pthread_atfork(nullptr, nullptr, [] { ++forks; });

template <class... Args>
bh_status fail(bh_status status, fmt::format_string<Args...> format, Args&&... args) {
  const auto end =
      fmt::format_to_n(last_error, sizeof last_error - 1, format, std::forward<Args>(args)...);
  *end.out = '\0';
  return status;
}

bh_status fail(const Error& error) {
  return fail(static_cast<bh_status>(error.status), "{}", error.message());
}

bh_status finish(Status status) {
  if (status == Status::OK) return BH_OK;
  return fail(static_cast<bh_status>(status), "{}", bowhead::status_text(status));
}

/// Of a call whose other arguments were checked.
bh_status finish(Status status, bh_namespace_id ns) {
  if (status != Status::INVALID_ARGUMENT) return finish(status);
  return fail(BH_INVALID_ARGUMENT,
              "{}: no namespace of this pool has id {:#018x}: use the id that bh_namespace_open "
              "gave",
              current_function, ns);
}

bh_status finish(const Result<void>& result) { return result ? BH_OK : fail(result.error()); }

/// Runs the body of an ABI function; what it throws becomes a status.
template <class Body>
bh_status guarded(const char* function, Body&& body) noexcept {
  current_function = function;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(BH_SYSTEM, "{}: out of memory", function);
  } catch (const std::exception& exception) {
    return fail(BH_SYSTEM, "{}: {}", function, exception.what());
  } catch (...) {
    return fail(BH_SYSTEM, "{}: unknown exception", function);
  }
}

bh_status null_argument(const char* argument) {
  return fail(BH_INVALID_ARGUMENT, "{}: argument '{}' is NULL", current_function, argument);
}

/// No array is that long: most likely a negative number.
template <class T>
bool countable(size_t count) {
  return count <= PTRDIFF_MAX / sizeof(T);
}

bh_status bad_count(const char* argument, size_t count) {
  return fail(BH_INVALID_ARGUMENT, "{}: '{}' cannot have {} elements", current_function, argument,
              count);
}

bool readable(const bh_key& key) { return key.data != nullptr || key.size_bytes == 0; }

std::string_view view(const bh_key& key) {
  return {static_cast<const char*>(key.data), key.size_bytes};
}

/// Converts keys into a buffer that the thread keeps: batches come thousands of times a second.
/// `out` is good until the thread's next call.
bh_status convert_keys(const bh_key* keys, size_t count, std::span<const std::string_view>& out) {
  thread_local std::vector<std::string_view> converted;
  if (keys == nullptr && count > 0) return null_argument("keys");
  if (!countable<bh_key>(count)) return bad_count("keys", count);
  converted.clear();
  converted.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!readable(keys[i])) {
      return fail(BH_INVALID_ARGUMENT, "{}: keys[{}].data is NULL but its size is {} bytes",
                  current_function, i, keys[i].size_bytes);
    }
    converted.push_back(view(keys[i]));
  }
  out = converted;
  return BH_OK;
}

// The pieces of a value have the same layout in C and C++ and are passed through as they are.
static_assert(sizeof(bh_iovec) == sizeof(bowhead::Span) &&
              offsetof(bh_iovec, data) == offsetof(bowhead::Span, data) &&
              offsetof(bh_iovec, size_bytes) == offsetof(bowhead::Span, size));
static_assert(sizeof(bh_const_iovec) == sizeof(bowhead::ConstSpan) &&
              offsetof(bh_const_iovec, data) == offsetof(bowhead::ConstSpan, data) &&
              offsetof(bh_const_iovec, size_bytes) == offsetof(bowhead::ConstSpan, size));

std::span<const bowhead::Span> spans(const bh_iovec* pieces, size_t count) {
  return {reinterpret_cast<const bowhead::Span*>(pieces), count};
}
std::span<const bowhead::ConstSpan> spans(const bh_const_iovec* pieces, size_t count) {
  return {reinterpret_cast<const bowhead::ConstSpan*>(pieces), count};
}

template <class Iovec>
bh_status check_pieces(const char* name, const Iovec* pieces, size_t count) {
  if (pieces == nullptr && count > 0) return null_argument(name);
  if (!countable<Iovec>(count)) return bad_count(name, count);
  for (size_t i = 0; i < count; ++i) {
    if (pieces[i].data == nullptr && pieces[i].size_bytes > 0) {
      return fail(BH_INVALID_ARGUMENT, "{}: {}[{}].data is NULL but its size is {} bytes",
                  current_function, name, i, pieces[i].size_bytes);
    }
  }
  return BH_OK;
}

bh_status check_key(const bh_key& key) {
  if (readable(key)) return BH_OK;
  return fail(BH_INVALID_ARGUMENT, "{}: key.data is NULL but its size is {} bytes",
              current_function, key.size_bytes);
}

// Structs that grow: the bytes of the first version, than which no caller's is shorter, and those
// that this version knows.
template <class T>
constexpr uint32_t kBytesV1 = 0;
template <>
constexpr uint32_t kBytesV1<bh_create_options> = 48;
template <>
constexpr uint32_t kBytesV1<bh_compression> = 32;
template <class T>
constexpr uint32_t kBytesKnown = sizeof(T);
template <>
constexpr uint32_t kBytesKnown<bh_create_options> = offsetof(bh_create_options, reserved);
static_assert(sizeof(bh_create_options) == 56);
static_assert(sizeof(bh_compression) == 32);

/// Copies what this library knows of a caller's struct. Members that it does not know must be
/// zero: a caller that asks for more than we can do must not believe that it got it.
template <class T>
bh_status read_struct(const T* given, const char* name, T& known) {
  if (given->struct_bytes < kBytesV1<T>) {
    return fail(BH_INVALID_ARGUMENT, "{}: {}->struct_bytes is {}; set it to sizeof *{}",
                current_function, name, given->struct_bytes, name);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = kBytesKnown<T>; i < given->struct_bytes; ++i) {
    if (bytes[i] == 0) continue;
    return fail(BH_NOT_SUPPORTED,
                "{}: {} has a member set at byte {} that this library (ABI {}) does not know",
                current_function, name, i, BH_ABI_VERSION);
  }
  known = {};
  std::memcpy(&known, given, std::min<size_t>(given->struct_bytes, sizeof known));
  return BH_OK;
}

template <class T>
T value_or(T value, T otherwise) {
  return value != 0 ? value : otherwise;
}

/// Takes an open reservation out of the table, so that no other thread ends it too.
OpenReservations::node_type take_reservation(bh_pool* pool, const bh_reservation* handle) {
  const std::lock_guard lock(pool->mutex);
  return pool->reservations.extract(reinterpret_cast<uintptr_t>(handle->internal));
}

/// A failed medium is described by the handle: the range, and why.
bh_status finish(const bh_pool& pool, Status status) {
  const auto failure = status == Status::MEDIA_ERROR ? pool.pool.media_failure() : std::nullopt;
  return failure ? fail(*failure) : finish(status);
}
bh_status finish(const bh_pool& pool, Status status, bh_namespace_id ns) {
  return status == Status::MEDIA_ERROR ? finish(pool, status) : finish(status, ns);
}

/// Ends a reservation by `end`, whatever that answers.
template <class End>
bh_status end_reservation(bh_pool* pool, bh_reservation* handle, End&& end) {
  if (pool == nullptr) return null_argument("pool");
  if (handle == nullptr) return null_argument("reservation");
  if (pool->forks_at_open != forks) return finish(Status::FORKED);
  OpenReservations::node_type open = take_reservation(pool, handle);
  if (open.empty()) {
    return fail(BH_CLOSED, "{}: not an open reservation: it was ended, or its key was present",
                current_function);
  }
  handle->data = nullptr;
  handle->internal = nullptr;
  return finish(*pool, end(open.mapped()));
}

bh_status open_namespace(bh_pool* pool, const char* name, const char* description,
                         const bowhead::Compression& compression, bh_namespace_id* out) {
  if (pool == nullptr) return null_argument("pool");
  if (name == nullptr) return null_argument("name");
  if (description == nullptr) return null_argument("description");
  if (out == nullptr) return null_argument("out");
  const Result<bowhead::NamespaceId> id =
      pool->pool.open_namespace({name, description, compression});
  if (!id) return fail(id.error());
  *out = *id;
  return BH_OK;
}

}  // namespace

extern "C" {

uint32_t bh_abi_version(void) { return BH_ABI_VERSION; }

const char* bh_status_name(bh_status status) {
  return bowhead::status_name(static_cast<Status>(status));
}

const char* bh_status_text(bh_status status) {
  return bowhead::status_text(static_cast<Status>(status));
}

const char* bh_last_error(void) { return last_error; }

bh_status bh_pool_create(const char* locator, const bh_create_options* options) {
  return guarded(__func__, [&]() -> bh_status {
    if (locator == nullptr) return null_argument("locator");
    if (options == nullptr) return null_argument("options");
    bh_create_options given;
    if (const bh_status status = read_struct(options, "options", given); status != BH_OK)
      return status;
    bowhead::CreateOptions create;
    create.size_bytes = given.size_bytes;
    create.hosts = value_or(given.hosts, create.hosts);
    create.extent_bytes = given.extent_bytes;
    create.min_block_bytes = value_or(given.min_block_bytes, create.min_block_bytes);
    create.evict_high_permille = value_or(given.evict_high_permille, create.evict_high_permille);
    create.evict_low_permille = value_or(given.evict_low_permille, create.evict_low_permille);
    if (given.no_eviction != 0) create.evict_high_permille = create.evict_low_permille = 0;
    create.replace = given.replace != 0;
    create.mode = value_or(given.mode, create.mode);
    const auto created = Pool::create(locator, create);
    return created ? BH_OK : fail(created.error());
  });
}

bh_status bh_pool_open(const char* locator, uint32_t host, bh_pool** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (locator == nullptr) return null_argument("locator");
    if (out == nullptr) return null_argument("out");
    if (fork_hook_installed != 0) return fail(BH_SYSTEM, "bh_pool_open: pthread_atfork() failed");
    bowhead::OpenOptions options;
    options.host = host;
    Result<Pool> pool = Pool::open(locator, options);
    if (!pool) return fail(pool.error());
    *out = new bh_pool(std::move(*pool), forks);
    return BH_OK;
  });
}

void bh_pool_close(bh_pool* pool) {
  if (pool == nullptr || pool->forks_at_open == forks) {
    delete pool;
  } else {
    // The table of reservations is as another thread of the parent was just changing it.
    const Pool closed = std::move(pool->pool);
  }
}

bh_status bh_pool_leave(bh_pool* pool) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    return finish(pool->pool.leave());
  });
}

bh_status bh_pool_fence(bh_pool* pool, uint32_t host) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    return finish(pool->pool.fence(host));
  });
}

bh_status bh_pool_destroy(const char* locator, int force) {
  return guarded(__func__, [&]() -> bh_status {
    if (locator == nullptr) return null_argument("locator");
    return finish(Pool::destroy(locator, force != 0));
  });
}

bh_status bh_pool_mapping(bh_pool* pool, const void** base, uint64_t* size_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (base == nullptr) return null_argument("base");
    if (size_bytes == nullptr) return null_argument("size_bytes");
    if (pool->forks_at_open != forks) return finish(Status::FORKED);
    const bowhead::ConstSpan mapping = pool->pool.mapping();
    *base = mapping.data;
    *size_bytes = mapping.size;
    return BH_OK;
  });
}

bh_status bh_namespace_open(bh_pool* pool, const char* name, const char* description,
                            bh_namespace_id* out) {
  return guarded(__func__, [&] { return open_namespace(pool, name, description, {}, out); });
}

bh_status bh_namespace_open_compressed(bh_pool* pool, const char* name, const char* description,
                                       const bh_compression* compression, bh_namespace_id* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (compression == nullptr) return null_argument("compression");
    bh_compression given;
    if (const bh_status status = read_struct(compression, "compression", given); status != BH_OK)
      return status;
    const auto rotary = bowhead::checked_rotary(given.rotary_base, given.rotary_dim);
    if (!rotary) return fail(rotary.error());
    // What is too large for its type is no number that is known.
    const auto small = [](uint32_t number) {
      return static_cast<uint8_t>(std::min<uint32_t>(number, UINT8_MAX));
    };
    const bowhead::Compression wanted{.profile = bowhead::CompressionProfile{small(given.profile)},
                                      .number = bowhead::compression::NumberKind{small(
                                          value_or<uint32_t>(given.number, BH_NUMBER_BYTES))},
                                      .channels = value_or(given.channels, 1u),
                                      .outer = value_or(given.outer, 1u),
                                      .rotary = *rotary};
    return open_namespace(pool, name, description, wanted, out);
  });
}

bh_status bh_put(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                 size_t value_count) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    if (const bh_status bad = check_pieces("value", value, value_count); bad != BH_OK) {
      return bad;
    }
    return finish(*pool, pool->pool.put(ns, view(key), spans(value, value_count)), ns);
  });
}

bh_status bh_get(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_iovec* buffers,
                 size_t buffer_count, uint64_t* length_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    if (const bh_status bad = check_pieces("buffers", buffers, buffer_count); bad != BH_OK) {
      return bad;
    }
    if (length_bytes == nullptr) return null_argument("length_bytes");
    const Result<uint64_t> got = pool->pool.get(ns, view(key), spans(buffers, buffer_count));
    if (got) {
      *length_bytes = *got;
      return BH_OK;
    }
    if (got.status() != Status::BUFFER_TOO_SMALL) return fail(got.error());
    // The block may be gone by now; then the answer is that there is none.
    const Result<uint64_t> length = pool->pool.length(ns, view(key));
    if (!length) return fail(length.error());
    *length_bytes = *length;
    return fail(got.error());
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

bh_status bh_reserve(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                     bh_reservation* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    if (out == nullptr) return null_argument("out");
    if (pool->forks_at_open != forks) return finish(Status::FORKED);
    // The entry comes first: once the pool has reserved, nothing may fail any more.
    const uint64_t id = ++last_reservation;
    {
      const std::lock_guard lock(pool->mutex);
      pool->reservations.emplace(id, bowhead::Reservation{});
    }
    Result<bowhead::Reservation> reserved = pool->pool.reserve(ns, view(key), length_bytes);
    bh_reservation handle{};
    const std::lock_guard lock(pool->mutex);
    if (!reserved || reserved->present) pool->reservations.erase(id);
    if (!reserved) return fail(reserved.error());
    handle.data = reserved->data;
    handle.length_bytes = reserved->length_bytes;
    handle.offset = reserved->offset;
    handle.present = reserved->present ? 1 : 0;
    if (!reserved->present) {
      handle.internal = reinterpret_cast<void*>(static_cast<uintptr_t>(id));
      pool->reservations.find(id)->second = std::move(*reserved);
    }
    *out = handle;
    return BH_OK;
  });
}

bh_status bh_commit(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&]() -> bh_status {
    return end_reservation(pool, reservation,
                           [&](bowhead::Reservation& open) { return pool->pool.commit(open); });
  });
}

bh_status bh_commit_unverified(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&]() -> bh_status {
    return end_reservation(pool, reservation, [&](bowhead::Reservation& open) {
      return pool->pool.commit(open, {bowhead::PayloadSum::By::NONE});
    });
  });
}

bh_status bh_abort(bh_pool* pool, bh_reservation* reservation) {
  return guarded(__func__, [&]() -> bh_status {
    return end_reservation(pool, reservation,
                           [&](bowhead::Reservation& open) { return pool->pool.abort(open); });
  });
}

bh_status bh_acquire(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms,
                     bh_lease* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    if (out == nullptr) return null_argument("out");
    const Result<bowhead::Lease> lease = pool->pool.acquire(ns, view(key), ttl_ms);
    if (!lease) return fail(lease.error());
    *out = {lease->data, lease->length_bytes, lease->offset, lease->stamp, lease->token};
    return BH_OK;
  });
}

bh_status bh_release(bh_pool* pool, bh_lease* lease) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (lease == nullptr) return null_argument("lease");
    bowhead::Lease open{.data = static_cast<const std::byte*>(lease->data),
                        .length_bytes = lease->length_bytes,
                        .offset = lease->offset,
                        .stamp = lease->stamp,
                        .token = lease->internal,
                        .checksum = {}};
    const Status status = pool->pool.release(open);
    lease->data = open.data;
    lease->internal = open.token;
    return finish(*pool, status);
  });
}

bh_status bh_remove(bh_pool* pool, bh_namespace_id ns, bh_key key) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_key(key); bad != BH_OK) return bad;
    return finish(*pool, pool->pool.remove(ns, view(key)), ns);
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

}  // extern "C"
