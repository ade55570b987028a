// SPDX-License-Identifier: Apache-2.0
// The batches of the C ABI: checked by the caller's thread, executed there or by a queue.
#pragma once

#include "api/support.h"

namespace bowhead::api {

/// BH_INVALID_ARGUMENT or BH_NOT_SUPPORTED, and a sentence, for items that are malformed.
bh_status check_puts(const bh_put_item* items, size_t count);
bh_status check_gets(const bh_get_item* items, size_t count);
bh_status check_keys(const bh_key* keys, size_t count);

// Batches whose items were checked. Return the status of the batch, and add the number of items
// that failed to `failed`; keys that are not stored, for exists().
bh_status put_batch(bh_pool& pool, bh_namespace_id ns, bh_put_item* items, size_t count,
                    size_t& failed);
bh_status get_batch(bh_pool& pool, bh_namespace_id ns, bh_get_item* items, size_t count,
                    size_t& failed);
bh_status remove_batch(bh_pool& pool, bh_namespace_id ns, const bh_key* keys, size_t count,
                       bh_status* statuses, size_t& failed);
bh_status exists_batch(bh_pool& pool, bh_namespace_id ns, const bh_key* keys, size_t count,
                       uint8_t* present, size_t& failed);

}  // namespace bowhead::api
