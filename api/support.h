// SPDX-License-Identifier: Apache-2.0
// Shared by the functions of the C ABI: handles, checks of arguments, structs that grow, and the
// text of a thread's last error.
//
// No exception leaves a function of the ABI. No function holds a lock while the pool works; the
// table of open reservations is locked only for a look-up.
#pragma once

#pragma GCC visibility push(default)
#include <bowhead/bowhead.h>
#pragma GCC visibility pop

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "pool/pool.h"

namespace bowhead::ndp {
class Engine;
}

struct bh_pool {
  bh_pool(bowhead::Pool opened, unsigned forks) : pool(std::move(opened)), forks_at_open(forks) {}

  bowhead::Pool pool;
  const unsigned forks_at_open;
  std::mutex mutex;
  /// A reservation's key must live until its commit, so the C handle is a number in this table.
  std::unordered_map<uint64_t, bowhead::Reservation> reservations;
  /// What works on the pool on its own, by its address: bh_pool_close() ends it before the pool.
  std::unordered_map<const void*, std::function<void()>> ended_first;
  /// Carries out computations; null: the calling thread does. Ends before the pool.
  std::shared_ptr<bowhead::ndp::Engine> engine;
};

namespace bowhead::api {

/// The function of the ABI that runs in this thread, for error texts.
inline thread_local const char* current_function = "";
/// Of fixed size, so that reporting an error cannot fail.
inline thread_local char last_error[512] = "";

/// The number of forks between the process that loaded the library and this one. The child of a
/// fork must not lock a pool's mutex: a thread that no longer exists may have held it.
unsigned forks();
/// Whether forks are counted.
bool counts_forks();

template <class... Args>
bh_status fail(bh_status status, fmt::format_string<Args...> format, Args&&... args) {
  const auto end =
      fmt::format_to_n(last_error, sizeof last_error - 1, format, std::forward<Args>(args)...);
  *end.out = '\0';
  return status;
}

inline bh_status fail(const Error& error) {
  return fail(static_cast<bh_status>(error.status), "{}", error.message());
}

inline bh_status finish(Status status) {
  if (status == Status::OK) return BH_OK;
  return fail(static_cast<bh_status>(status), "{}", status_text(status));
}
inline bh_status finish(const Result<void>& result) {
  return result ? BH_OK : fail(result.error());
}
/// Where the handle knows more it gives the error: which medium failed, and why; which pool was
/// destroyed.
bh_status finish(const bh_pool& pool, Status status);
/// For a call whose other arguments were checked.
bh_status finish(const bh_pool& pool, Status status, bh_namespace_id ns);
/// Of a call that stores or removes: why there is no room, or who is in the way.
bh_status finish(bh_pool& pool, Status status, bh_namespace_id ns, const bh_key& key);

/// Runs the body of a function of the ABI; an exception becomes a status.
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

// ---- arguments ----

inline bh_status null_argument(const char* argument) {
  return fail(BH_INVALID_ARGUMENT, "{}: argument '{}' is NULL", current_function, argument);
}

bh_status check_key(const bh_key& key);

inline std::string_view view(const bh_key& key) {
  return {static_cast<const char*>(key.data), key.size_bytes};
}

/// Converts keys into a buffer that the thread keeps: batches come thousands of times a second.
/// `out` is valid until the thread's next call.
bh_status convert_keys(const bh_key* keys, size_t count, std::span<const std::string_view>& out);

bh_status check_pieces(const char* name, const bh_iovec* pieces, size_t count);
bh_status check_pieces(const char* name, const bh_const_iovec* pieces, size_t count);

/// No array is that long: the count is most likely a negative number.
template <class T>
bool countable(size_t count) {
  return count <= PTRDIFF_MAX / sizeof(T);
}
bh_status bad_count(const char* argument, size_t count);

/// For a member that must be zero: a later version may give it a meaning.
inline bh_status check_reserved(const char* of, uint32_t given) {
  if (given == 0) return BH_OK;
  return fail(BH_NOT_SUPPORTED, "{}: {}->reserved is {}; set it to 0", current_function, of, given);
}

/// A member of a structure whose values end at `most`.
struct Bounded {
  const char* member;
  uint64_t value, most;
};
/// BH_INVALID_ARGUMENT, with the structure's name and the member's, if one is beyond.
bh_status check_bounds(const char* of, std::initializer_list<Bounded> members);

/// As far as the pool needs it to end or check it.
inline Lease open_lease(const bh_lease& lease) {
  Lease open;
  open.data = static_cast<const std::byte*>(lease.data);
  open.stored_bytes = lease.stored_bytes;
  open.offset = lease.offset;
  open.token = lease.internal;
  return open;
}

/// What is stored with a value.
struct PutOptions {
  std::string_view user_metadata;
  BlockAttributes attributes;
};
bh_status read_options(const bh_put_options* options, PutOptions& out);
bh_status read_attributes(const bh_attributes* attributes, BlockAttributes& out);

// The parts of a value have the same layout in C and C++ and are passed through unchanged.
static_assert(sizeof(bh_iovec) == sizeof(Span) &&
              offsetof(bh_iovec, data) == offsetof(Span, data) &&
              offsetof(bh_iovec, size_bytes) == offsetof(Span, size));
static_assert(sizeof(bh_const_iovec) == sizeof(ConstSpan) &&
              offsetof(bh_const_iovec, data) == offsetof(ConstSpan, data) &&
              offsetof(bh_const_iovec, size_bytes) == offsetof(ConstSpan, size));

inline std::span<const Span> spans(const bh_iovec* pieces, size_t count) {
  return {reinterpret_cast<const Span*>(pieces), count};
}
inline std::span<const ConstSpan> spans(const bh_const_iovec* pieces, size_t count) {
  return {reinterpret_cast<const ConstSpan*>(pieces), count};
}

// ---- structs that begin with their size ----

/// The size in the first version: no caller's struct is smaller. A struct that grew has a
/// specialization here.
template <class T>
inline constexpr uint32_t kBytesV1 = sizeof(T);
template <>
inline constexpr uint32_t kBytesV1<bh_create_options> = 48;
template <>
inline constexpr uint32_t kBytesV1<bh_put_options> = offsetof(bh_put_options, attributes);
template <>
inline constexpr uint32_t kBytesV1<bh_pool_info> = offsetof(bh_pool_info, max_bytes);
/// No version has a longer struct. A larger number is uninitialised memory, and must not bound a
/// read or a write.
inline constexpr uint32_t kStructBytesMax = 4096;

/// Checks a caller's struct that is to be read or written.
template <class T>
bh_status check_struct(const T* given, const char* name) {
  if (given == nullptr) return null_argument(name);
  const uint32_t struct_bytes = given->struct_bytes;
  if (struct_bytes >= kBytesV1<T> && struct_bytes <= kStructBytesMax) return BH_OK;
  return fail(BH_INVALID_ARGUMENT, "{}: {}->struct_bytes is {}; set it to sizeof *{}",
              current_function, name, struct_bytes, name);
}

/// Copies the part of a caller's struct that this library knows. Unknown members must be zero: a
/// caller that requests an unknown feature must not believe that it got it.
template <class T>
bh_status read_struct(const T* given, const char* name, T& known) {
  if (const bh_status bad = check_struct(given, name); bad != BH_OK) return bad;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof known; i < given->struct_bytes; ++i) {
    if (bytes[i] == 0) continue;
    return fail(BH_NOT_SUPPORTED,
                "{}: {} has a member set at byte {} that this library (ABI {}) does not know",
                current_function, name, i, BH_ABI_VERSION);
  }
  known = {};
  std::memcpy(&known, given, std::min<size_t>(given->struct_bytes, sizeof known));
  return BH_OK;
}

/// Writes as much of `value` as the caller's struct holds; members that this library does not know
/// become zero. check_struct() must have accepted the struct.
template <class T>
void write_struct(T value, T* out) {
  const size_t given_bytes = value.struct_bytes = out->struct_bytes;
  std::memcpy(out, &value, std::min(given_bytes, sizeof value));
  if (given_bytes > sizeof value)
    std::memset(reinterpret_cast<unsigned char*>(out) + sizeof value, 0,
                given_bytes - sizeof value);
}

}  // namespace bowhead::api
