// SPDX-License-Identifier: Apache-2.0
#include "api/support.h"

#include <pthread.h>

#include <atomic>
#include <vector>

namespace bowhead::api {
namespace {

std::atomic<unsigned> fork_count{0};
const int fork_hook_installed = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });

bool readable(const bh_key& key) { return key.data != nullptr || key.size_bytes == 0; }

template <class Iovec>
bh_status check_all(const char* name, const Iovec* pieces, size_t count) {
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

}  // namespace

unsigned forks() { return fork_count; }
bool counts_forks() { return fork_hook_installed == 0; }

bh_status finish(const bh_pool& pool, Status status) {
  return status == Status::OK ? BH_OK : fail(pool.pool.explain(status));
}

bh_status finish(const bh_pool& pool, Status status, bh_namespace_id ns) {
  if (status != Status::INVALID_ARGUMENT) return finish(pool, status);
  return fail(BH_INVALID_ARGUMENT,
              "{}: no namespace of this pool has id {:#018x}: use the id that bh_namespace_open "
              "gave",
              current_function, ns);
}

bh_status finish(bh_pool& pool, Status status, bh_namespace_id ns, const bh_key& key) {
  if (status != Status::NO_SPACE && status != Status::BUSY) return finish(pool, status, ns);
  return fail(pool.pool.explain(status, ns, view(key)));
}

bh_status check_key(const bh_key& key) {
  if (readable(key)) return BH_OK;
  return fail(BH_INVALID_ARGUMENT, "{}: key.data is NULL but its size is {} bytes",
              current_function, key.size_bytes);
}

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

bh_status bad_count(const char* argument, size_t count) {
  return fail(BH_INVALID_ARGUMENT, "{}: '{}' cannot have {} elements", current_function, argument,
              count);
}

bh_status read_options(const bh_put_options* options, PutOptions& out) {
  bh_put_options known;
  if (const bh_status bad = read_struct(options, "options", known); bad != BH_OK) return bad;
  if (const bh_status bad = check_reserved("options", known.reserved); bad != BH_OK) return bad;
  if (known.user_metadata == nullptr && known.user_bytes > 0)
    return null_argument("options->user_metadata");
  if (known.user_bytes > BH_USER_BYTES_MAX)
    return fail(BH_INVALID_ARGUMENT, "{}: options->user_bytes is {}, and at most {} are allowed",
                current_function, known.user_bytes, BH_USER_BYTES_MAX);
  out.user_metadata = {static_cast<const char*>(known.user_metadata), known.user_bytes};
  out.attributes = {};
  return known.attributes == nullptr ? BH_OK : read_attributes(known.attributes, out.attributes);
}

bh_status check_bounds(const char* of, std::initializer_list<Bounded> members) {
  for (const auto& [member, value, most] : members) {
    if (value > most)
      return fail(BH_INVALID_ARGUMENT, "{}: {}->{} is {}, and at most {} is allowed",
                  current_function, of, member, value, most);
  }
  return BH_OK;
}

bh_status read_attributes(const bh_attributes* attributes, BlockAttributes& out) {
  bh_attributes given;
  if (const bh_status bad = read_struct(attributes, "attributes", given); bad != BH_OK) return bad;
  if (const bh_status bad = check_reserved("attributes", given.reserved); bad != BH_OK) return bad;
  if (const bh_status bad =
          check_bounds("attributes", {{"priority", given.priority, UINT8_MAX},
                                      {"pins", given.pins, BH_PIN_SOFT | BH_PIN_HARD},
                                      {"forks", given.forks, UINT16_MAX}});
      bad != BH_OK)
    return bad;
  out = {.priority = static_cast<uint8_t>(given.priority),
         .soft_pin = (given.pins & BH_PIN_SOFT) != 0,
         .hard_pin = (given.pins & BH_PIN_HARD) != 0,
         .forks = static_cast<uint16_t>(given.forks),
         .parity_group = given.parity_group,
         .expires_unix_s = given.expires_unix_s,
         .next_use_unix_s = given.next_use_unix_s,
         .group = given.group};
  return BH_OK;
}

bh_status check_pieces(const char* name, const bh_iovec* pieces, size_t count) {
  return check_all(name, pieces, count);
}
bh_status check_pieces(const char* name, const bh_const_iovec* pieces, size_t count) {
  return check_all(name, pieces, count);
}

}  // namespace bowhead::api
