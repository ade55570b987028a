// SPDX-License-Identifier: Apache-2.0
// The C ABI of errors, pools, namespaces, hosts and devices.
#include "api/support.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::Pool;
using bowhead::Result;
using bowhead::Status;

namespace {

template <class T>
T value_or(T value, T otherwise) {
  return value != 0 ? value : otherwise;
}

bowhead::CreateOptions create_options(const bh_create_options& given) {
  bowhead::CreateOptions create;
  create.size_bytes = given.size_bytes;
  create.hosts = value_or(given.hosts, create.hosts);
  create.extent_bytes = given.extent_bytes;
  create.min_block_bytes = value_or(given.min_block_bytes, create.min_block_bytes);
  create.max_bytes = given.max_bytes;
  create.evict_high_permille = value_or(given.evict_high_permille, create.evict_high_permille);
  create.evict_low_permille = given.evict_low_permille;
  if (given.no_eviction != 0) create.evict_high_permille = 0;
  create.replace = given.replace != 0;
  create.mode = value_or(given.mode, create.mode);
  bowhead::SharingTimes& times = create.times;
  times.heartbeat_ms = value_or(given.heartbeat_ms, times.heartbeat_ms);
  times.dead_ms = value_or(given.dead_ms, times.dead_ms);
  times.grace_ms = value_or(given.grace_ms, times.grace_ms);
  times.settle_ms = value_or(given.settle_ms, times.settle_ms);
  times.reclaim_ms = given.no_reclaim != 0 ? 0 : value_or(given.reclaim_ms, times.reclaim_ms);
  return create;
}

bh_status open_pool(const char* locator, const bowhead::OpenOptions& options, bh_pool** out) {
  if (locator == nullptr) return null_argument("locator");
  if (out == nullptr) return null_argument("out");
  if (!counts_forks()) return fail(BH_SYSTEM, "{}: pthread_atfork() failed", current_function);
  Result<Pool> pool = Pool::open(locator, options);
  if (!pool) return fail(pool.error());
  *out = new bh_pool(std::move(*pool), forks());
  return BH_OK;
}

bh_status open_namespace(bh_pool* pool, const char* name, const char* description,
                         const bowhead::ValueFormat& values, bh_namespace_id* out) {
  if (pool == nullptr) return null_argument("pool");
  if (name == nullptr) return null_argument("name");
  if (description == nullptr) return null_argument("description");
  if (out == nullptr) return null_argument("out");
  const Result<bowhead::NamespaceId> id = pool->pool.open_namespace({name, description, values});
  if (!id) return fail(id.error());
  *out = *id;
  return BH_OK;
}

}  // namespace

extern "C" {

// ---- errors ----

uint32_t bh_abi_version(void) { return BH_ABI_VERSION; }

const char* bh_status_name(bh_status status) {
  return bowhead::status_name(static_cast<Status>(status));
}

const char* bh_status_text(bh_status status) {
  return bowhead::status_text(static_cast<Status>(status));
}

const char* bh_last_error(void) { return last_error; }

// ---- pools ----

bh_status bh_pool_create(const char* locator, const bh_create_options* options) {
  return guarded(__func__, [&]() -> bh_status {
    if (locator == nullptr) return null_argument("locator");
    bh_create_options given;
    if (const bh_status bad = read_struct(options, "options", given); bad != BH_OK) return bad;
    if (given.reserved != 0)
      return fail(BH_NOT_SUPPORTED, "{}: options->reserved is {}; set it to 0", current_function,
                  given.reserved);
    const auto created = Pool::create(locator, create_options(given));
    return created ? BH_OK : fail(created.error());
  });
}

bh_status bh_pool_open(const char* locator, uint32_t host, bh_pool** out) {
  return guarded(__func__, [&] { return open_pool(locator, {.host = host}, out); });
}

bh_status bh_pool_open_with(const char* locator, uint32_t host, const bh_open_options* options,
                            bh_pool** out) {
  return guarded(__func__, [&]() -> bh_status {
    bh_open_options given;
    if (const bh_status bad = read_struct(options, "options", given); bad != BH_OK) return bad;
    if (given.no_mirror > 1 || (given.no_mirror == 1 && given.mirror_bytes != 0))
      return fail(
          BH_INVALID_ARGUMENT,
          "{}: options->no_mirror is {} and options->mirror_bytes is {}: set no_mirror to 1, "
          "or to 0 for a mirror",
          current_function, given.no_mirror, given.mirror_bytes);
    if (given.no_prefault > 1)
      return fail(BH_INVALID_ARGUMENT, "{}: options->no_prefault is {}: set it to 0 or 1",
                  current_function, given.no_prefault);
    if (given.reserved != 0)
      return fail(BH_NOT_SUPPORTED, "{}: options->reserved is {}; set it to 0", current_function,
                  given.reserved);
    bowhead::OpenOptions opened{.host = host, .prefault = given.no_prefault == 0};
    if (given.no_mirror == 1 || given.mirror_bytes != 0) opened.mirror_bytes = given.mirror_bytes;
    return open_pool(locator, opened, out);
  });
}

bh_status bh_pool_observe(const char* locator, bh_pool** out) {
  return guarded(__func__, [&] { return open_pool(locator, {.observe = true}, out); });
}

void bh_pool_close(bh_pool* pool) {
  if (pool == nullptr) return;
  if (pool->forks_at_open == forks()) {
    for (const auto& [of, end] : std::exchange(pool->ended_first, {})) end();
    delete pool;
  } else {
    // The table of reservations may be in the middle of a change by another thread of the parent.
    const Pool closed = std::move(pool->pool);
  }
}

bh_status bh_pool_destroy(const char* locator, int force) {
  return guarded(__func__, [&]() -> bh_status {
    if (locator == nullptr) return null_argument("locator");
    return finish(Pool::destroy(locator, force != 0));
  });
}

// ---- namespaces ----

bh_status bh_namespace_open(bh_pool* pool, const char* name, const char* description,
                            bh_namespace_id* out) {
  return guarded(__func__, [&] { return open_namespace(pool, name, description, {}, out); });
}

bh_status bh_namespace_open_with(bh_pool* pool, const char* name, const char* description,
                                 const bh_namespace_options* options, bh_namespace_id* out) {
  return guarded(__func__, [&]() -> bh_status {
    bh_namespace_options given;
    if (const bh_status bad = read_struct(options, "options", given); bad != BH_OK) return bad;
    if (const bh_status bad = check_reserved("options", given.reserved); bad != BH_OK) return bad;
    if (given.wipe > 1)
      return fail(BH_INVALID_ARGUMENT, "{}: options->wipe is {}; use 0 or 1", current_function,
                  given.wipe);
    return open_namespace(
        pool, name, description,
        {given.layout, bowhead::CompressionProfile{given.profile}, given.wipe != 0}, out);
  });
}

bh_status bh_namespace_remove(bh_pool* pool, const char* name) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (name == nullptr) return null_argument("name");
    return finish(pool->pool.remove_namespace(name));
  });
}

bh_status bh_namespace_get_options(bh_pool* pool, bh_namespace_id ns, bh_namespace_options* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const auto values = pool->pool.value_format(ns);
    if (!values) return finish(*pool, values.status(), ns);
    bh_namespace_options options{};
    options.profile = static_cast<uint32_t>(values->profile);
    options.layout = values->layout;
    options.wipe = values->wipe;
    write_struct(options, out);
    return BH_OK;
  });
}

// ---- several hosts ----

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

// ---- devices ----

bh_status bh_pool_mapping(bh_pool* pool, const void** base, uint64_t* size_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (base == nullptr) return null_argument("base");
    if (size_bytes == nullptr) return null_argument("size_bytes");
    if (pool->forks_at_open != forks()) return finish(Status::FORKED);
    const bowhead::ConstSpan mapping = pool->pool.mapping();
    *base = mapping.data;
    *size_bytes = mapping.size;
    return BH_OK;
  });
}

}  // extern "C"
