// SPDX-License-Identifier: Apache-2.0
#include "api/batches.h"

#include <vector>

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::GetItem;
using bowhead::PutItem;
using bowhead::Status;

namespace bowhead::api {
namespace {

/// Runs a check of item `i`; its sentence then names the item.
template <class Check>
bh_status check_item(size_t i, Check check) {
  const bh_status bad = check();
  if (bad == BH_OK) return bad;
  const std::string text = last_error;
  return fail(bad, "{} (item {})", text, i);
}

/// Buffers that a thread keeps: batches come thousands of times a second.
template <class T>
std::vector<T>& scratch() {
  thread_local std::vector<T> kept;
  kept.clear();
  return kept;
}

}  // namespace

bh_status check_puts(const bh_put_item* items, size_t count) {
  if (items == nullptr && count > 0) return null_argument("items");
  if (!countable<bh_put_item>(count)) return bad_count("items", count);
  for (size_t i = 0; i < count; ++i) {
    const bh_status bad = check_item(i, [&]() -> bh_status {
      const bh_put_item& item = items[i];
      if (const bh_status key = check_key(item.key); key != BH_OK) return key;
      if (const bh_status value = check_pieces("value", item.value, item.value_count);
          value != BH_OK)
        return value;
      PutOptions ignored;
      return item.options == nullptr ? BH_OK : read_options(item.options, ignored);
    });
    if (bad != BH_OK) return bad;
  }
  return BH_OK;
}

bh_status check_gets(const bh_get_item* items, size_t count) {
  if (items == nullptr && count > 0) return null_argument("items");
  if (!countable<bh_get_item>(count)) return bad_count("items", count);
  for (size_t i = 0; i < count; ++i) {
    const bh_status bad = check_item(i, [&]() -> bh_status {
      if (const bh_status key = check_key(items[i].key); key != BH_OK) return key;
      return check_pieces("buffers", items[i].buffers, items[i].buffer_count);
    });
    if (bad != BH_OK) return bad;
  }
  return BH_OK;
}

bh_status check_keys(const bh_key* keys, size_t count) {
  std::span<const std::string_view> ignored;
  return convert_keys(keys, count, ignored);
}

bh_status put_batch(bh_pool& pool, bh_namespace_id ns, bh_put_item* items, size_t count,
                    size_t& failed) {
  auto& puts = scratch<PutItem>();
  for (size_t i = 0; i < count; ++i) {
    const bh_put_item& item = items[i];
    PutItem put{view(item.key), spans(item.value, item.value_count)};
    if (PutOptions options; item.options != nullptr) {
      (void)read_options(item.options, options);
      put.user_metadata = options.user_metadata;
      put.attributes = options.attributes;
    }
    puts.push_back(put);
  }
  const Status status = pool.pool.put_batch(ns, puts);
  for (size_t i = 0; i < count; ++i) {
    items[i].status = static_cast<bh_status>(puts[i].status);
    failed += puts[i].status == Status::OK ? 0 : 1;
  }
  return finish(pool, status, ns);
}

bh_status get_batch(bh_pool& pool, bh_namespace_id ns, bh_get_item* items, size_t count,
                    size_t& failed) {
  auto& gets = scratch<GetItem>();
  for (size_t i = 0; i < count; ++i)
    gets.push_back({view(items[i].key), spans(items[i].buffers, items[i].buffer_count)});
  const Status status = pool.pool.get_batch(ns, gets);
  for (size_t i = 0; i < count; ++i) {
    bh_get_item& item = items[i];
    Status got = gets[i].status;
    item.length_bytes = gets[i].length_bytes;
    if (got == Status::BUFFER_TOO_SMALL) {
      // The block may be gone by now; then the status says so.
      const auto length = pool.pool.length(ns, view(item.key));
      if (length)
        item.length_bytes = *length;
      else
        got = length.status();
    }
    item.status = static_cast<bh_status>(got);
    failed += got == Status::OK ? 0 : 1;
  }
  return finish(pool, status, ns);
}

bh_status remove_batch(bh_pool& pool, bh_namespace_id ns, const bh_key* keys, size_t count,
                       bh_status* statuses, size_t& failed) {
  std::span<const std::string_view> views;
  if (const bh_status bad = convert_keys(keys, count, views); bad != BH_OK) return bad;
  std::vector<Status>& removed = scratch<Status>();
  removed.resize(count);
  const Status status = pool.pool.remove_batch(ns, views, removed);
  for (size_t i = 0; i < count; ++i) {
    statuses[i] = static_cast<bh_status>(removed[i]);
    failed += removed[i] == Status::OK ? 0 : 1;
  }
  return finish(pool, status, ns);
}

bh_status exists_batch(bh_pool& pool, bh_namespace_id ns, const bh_key* keys, size_t count,
                       uint8_t* present, size_t& failed) {
  std::span<const std::string_view> views;
  if (const bh_status bad = convert_keys(keys, count, views); bad != BH_OK) return bad;
  const auto found = pool.pool.exists(ns, views, {present, count});
  if (!found) return fail(found.error());
  failed += count - *found;
  return BH_OK;
}

}  // namespace bowhead::api

extern "C" {

bh_status bh_put_batch(bh_pool* pool, bh_namespace_id ns, bh_put_item* items, size_t item_count) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_puts(items, item_count); bad != BH_OK) return bad;
    size_t ignored = 0;
    return put_batch(*pool, ns, items, item_count, ignored);
  });
}

bh_status bh_get_batch(bh_pool* pool, bh_namespace_id ns, bh_get_item* items, size_t item_count) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (const bh_status bad = check_gets(items, item_count); bad != BH_OK) return bad;
    size_t ignored = 0;
    return get_batch(*pool, ns, items, item_count, ignored);
  });
}

bh_status bh_remove_batch(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                          bh_status* statuses) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (statuses == nullptr && key_count > 0) return null_argument("statuses");
    size_t ignored = 0;
    return remove_batch(*pool, ns, keys, key_count, statuses, ignored);
  });
}

}  // extern "C"
