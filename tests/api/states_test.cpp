// SPDX-License-Identifier: Apache-2.0
// Every function of the C ABI in every state of a handle and with every kind of wrong argument: it
// must return a documented status, without crash or hang. The table of functions is compared with
// the header, so that a new function without a row fails.
//
// The cells of a state run in a child process that enters the state anew and has a time limit for
// each cell; after a cell that crashes or hangs, the next child continues with the next cell.
#include <bowhead/bowhead.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <thread>

#include "tests/api/documented.h"
#include "tests/api/structs.h"
#include "tests/support/hosts.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

constexpr int kCellLimitMs = 60'000;
constexpr uint64_t kBytes = 20'000;
constexpr uint64_t kHuge[] = {UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX / 2 + 1, uint64_t{1} << 31};

enum State {
  FRESH,
  SEVERAL,
  FORKED,
  BUSY,
  FENCED,
  OBSERVED,
  LEASES_FULL,
  POOL_FULL,
  OBSERVING,
  LEFT,
  DESTROYED,
  STATES
};
constexpr const char* kStateNames[STATES] = {"Fresh",     "SeveralHosts", "Forked",     "Busy",
                                             "Fenced",    "Observed",     "LeasesFull", "PoolFull",
                                             "Observing", "Left",         "Destroyed"};

/// The objects of one cell: a stored key, a key that is not stored, and open reservations and
/// leases, some to be ended correctly and some to be misused.
struct Props {
  std::string stored, absent, room_key[2];
  bh_reservation room = sized<bh_reservation>(), misused_room = room;
  bh_lease lease = sized<bh_lease>(), misused_lease = lease;
};

struct Function;

struct Scene {
  const Function* function = nullptr;  ///< of the cell
  std::string locator;
  bh_pool* pool = nullptr;
  bh_pool* closed_last = nullptr;  ///< owner of the reservations and leases, if it is not `pool`
  bh_namespace_id ns = 0;
  bh_queue* queue = nullptr;
  bh_events* events = nullptr;
  std::vector<Props> of_cells;
  Props* own = nullptr;
  std::vector<std::string> faults;

  bh_key key() const { return {own->stored.data(), own->stored.size()}; }
  bh_key new_key() const { return {own->absent.data(), own->absent.size()}; }
  bh_status put(bh_key k, uint64_t size_bytes = kBytes) const {
    const std::vector<std::byte> value(size_bytes);
    const bh_const_iovec piece = {value.data(), value.size()};
    return bh_put(pool, ns, k, &piece, 1);
  }
  void expect(const char* call, bh_status got, bh_status wanted) {
    if (got == wanted) return;
    faults.push_back(fmt::format("{}: {}, not {} ({})", call, bh_status_name(got),
                                 bh_status_name(wanted), bh_last_error()));
  }
  /// Expects also that the header lists the status for the function of the cell.
  void expect_documented(const char* call, bh_status got, bh_status wanted);
  /// Expects that the last error names the pool and contains `part`.
  void expect_last_error(const char* part) {
    if (std::strstr(bh_last_error(), part) == nullptr ||
        std::strstr(bh_last_error(), locator.c_str()) == nullptr)
      faults.push_back(fmt::format("says '{}', not '{}' of {}", bh_last_error(), part, locator));
  }
};
#define EXPECT_STATUS(call, status) s.expect_documented(#call, call, status)
/// INVALID_ARGUMENT for a reason that the header lists for all functions. For other reasons, such
/// as a number out of range, use EXPECT_STATUS().
#define EXPECT_INVALID(call) s.expect(#call, call, BH_INVALID_ARGUMENT)

bh_create_options options_of(uint64_t size_bytes) {
  bh_create_options options{};
  options.struct_bytes = sizeof options;
  options.size_bytes = size_bytes;
  return options;
}

// ---- the functions ----

using Answers = std::array<bh_status, STATES>;

/// A function with good arguments, its status in each state, and calls of it with bad arguments.
struct Function {
  const char* name;
  bh_status (*call)(Scene& s);
  Answers answers;
  void (*misuse)(Scene& s);

  /// Whether it stores, leases or removes: an observer may not call it.
  bool stores() const { return answers[OBSERVING] != answers[FRESH]; }
};

constexpr Answers same(bh_status status) {
  Answers answers{};
  for (bh_status& answer : answers) answer = status;
  return answers;
}
/// `answers`, except in one state.
constexpr Answers but(Answers answers, State state, bh_status answer) {
  answers[state] = answer;
  return answers;
}
/// The statuses of a function that reads.
constexpr Answers reads(bh_status busy = BH_OK) {
  return {BH_OK, BH_OK, BH_FORKED, busy, BH_OK, BH_OK, BH_OK, BH_OK, BH_OK, BH_HOST_FENCED, BH_OK};
}
/// The statuses of a function that stores or leases.
constexpr Answers stores(bh_status busy, bh_status leases_full = BH_OK, bh_status pool_full = BH_OK,
                         bh_status fenced = BH_HOST_FENCED) {
  return {BH_OK,       BH_OK,     BH_FORKED,    busy,           fenced,   BH_OK,
          leases_full, pool_full, BH_READ_ONLY, BH_HOST_FENCED, BH_CLOSED};
}

/// A struct that begins with its size, and behind which no memory can be read.
template <class T>
class AtAWall {
 public:
  explicit AtAWall(uint32_t struct_bytes) {
    BOWHEAD_ASSERT(pages_ != MAP_FAILED && mprotect(page(1), kPage, PROT_NONE) == 0);
    get()->struct_bytes = struct_bytes;
  }
  ~AtAWall() { munmap(pages_, 2 * kPage); }
  AtAWall(const AtAWall&) = delete;
  AtAWall& operator=(const AtAWall&) = delete;

  T* get() { return reinterpret_cast<T*>(page(1) - sizeof(T)); }

 private:
  static constexpr size_t kPage = 4096;
  std::byte* page(size_t n) { return static_cast<std::byte*>(pages_) + n * kPage; }

  void* pages_ =
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

/// The calls that take such a struct, with none and with sizes that none has.
template <class T, class Call>
void misuse_struct(Scene& s, Call call) {
  EXPECT_INVALID(call(static_cast<T*>(nullptr)));
  for (const uint32_t struct_bytes : {0u, 4097u, uint32_t{INT32_MAX}, UINT32_MAX}) {
    AtAWall<T> of(struct_bytes);
    EXPECT_INVALID(call(of.get()));
  }
}

bh_status get(Scene& s, bh_key key, size_t room, uint64_t* length) {
  std::vector<std::byte> out(room);
  const bh_iovec piece = {out.data(), out.size()};
  return bh_get(s.pool, s.ns, key, &piece, 1, length);
}

/// Calls that take a namespace and a key, with each kind of absent or invalid one.
template <class Call>
void misuse_key(Scene& s, Call call, bh_status long_key = BH_KEY_TOO_LONG) {
  const std::string too_long(513, 'k');
  EXPECT_INVALID(call(nullptr, s.ns, s.key()));
  EXPECT_INVALID(call(s.pool, s.ns, bh_key{nullptr, 1}));
  EXPECT_INVALID(call(s.pool, 0, s.key()));
  EXPECT_INVALID(call(s.pool, s.ns + 2, s.key()));
  EXPECT_STATUS(call(s.pool, s.ns, bh_key{nullptr, 0}), long_key);
  EXPECT_STATUS(call(s.pool, s.ns, bh_key{too_long.data(), too_long.size()}), long_key);
  EXPECT_STATUS(call(s.pool, s.ns, bh_key{too_long.data(), SIZE_MAX}), long_key);
}

/// Calls that take a list of keys.
template <class Call>
void misuse_keys(Scene& s, Call call) {
  const bh_key one = s.key(), bad = {nullptr, 1};
  EXPECT_INVALID(call(nullptr, s.ns, &one, 1));
  EXPECT_INVALID(call(s.pool, s.ns, nullptr, 1));
  EXPECT_INVALID(call(s.pool, s.ns, &bad, 1));
  EXPECT_INVALID(call(s.pool, 0, &one, 1));
  EXPECT_INVALID(call(s.pool, 0, nullptr, 0));
  EXPECT_INVALID(call(s.pool, s.ns, &one, SIZE_MAX));
  EXPECT_STATUS(call(s.pool, s.ns, nullptr, 0), BH_OK);
  const std::string too_long(513, 'k');
  const bh_key odd[] = {{nullptr, 0}, {too_long.data(), SIZE_MAX}};
  EXPECT_STATUS(call(s.pool, s.ns, odd, 2), BH_OK);
}

/// Calls that end a reservation, with an invalid one.
template <class End>
void misuse_reservation(Scene& s, End end) {
  auto copy = s.own->misused_room, present = sized<bh_reservation>(), none = present;
  EXPECT_INVALID(end(nullptr, &s.own->misused_room));
  misuse_struct<bh_reservation>(s, [&](auto* room) { return end(s.pool, room); });
  EXPECT_STATUS(end(s.pool, &none), BH_CLOSED);
  EXPECT_STATUS(bh_reserve(s.pool, s.ns, s.key(), kBytes, &present), BH_OK);
  EXPECT_STATUS(end(s.pool, &present), BH_CLOSED);
  EXPECT_STATUS(end(s.pool, &s.own->misused_room), BH_OK);
  EXPECT_STATUS(end(s.pool, &s.own->misused_room), BH_CLOSED);
  EXPECT_STATUS(end(s.pool, &copy), BH_CLOSED);
}

void misuse_name(Scene& s,
                 bh_status (*open)(bh_pool*, const char*, const char*, bh_namespace_id*)) {
  const std::string name(64, 'n'), text(384, 't');
  bh_namespace_id out = 0;
  EXPECT_INVALID(open(nullptr, "n", "", &out));
  EXPECT_INVALID(open(s.pool, nullptr, "", &out));
  EXPECT_INVALID(open(s.pool, "n", nullptr, &out));
  EXPECT_INVALID(open(s.pool, "n", "", nullptr));
  EXPECT_STATUS(open(s.pool, "", "", &out), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(open(s.pool, name.c_str(), "", &out), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(open(s.pool, "n", text.c_str(), &out), BH_INVALID_ARGUMENT);
}

bh_status open_compressed(bh_pool* pool, const char* name, const char* description,
                          bh_namespace_id* out) {
  bh_namespace_options options{};
  options.struct_bytes = sizeof options;
  options.profile = BH_PROFILE_FAST;
  return bh_namespace_open_with(pool, name, description, &options, out);
}

void misuse_create(Scene& s) {
  const std::string locator = s.locator + "-new";
  bh_create_options options = options_of(32 << 20);
  EXPECT_INVALID(bh_pool_create(nullptr, &options));
  misuse_struct<bh_create_options>(s,
                                   [&](auto* of) { return bh_pool_create(locator.c_str(), of); });
  EXPECT_STATUS(bh_pool_create("", &options), BH_BAD_LOCATOR);
  EXPECT_STATUS(bh_pool_create(s.locator.c_str(), &options), BH_POOL_EXISTS);
  options.replace = 1;
  EXPECT_STATUS(bh_pool_create(s.locator.c_str(), &options), BH_IN_USE);
  options = options_of(0);
  EXPECT_STATUS(bh_pool_create(locator.c_str(), &options), BH_TOO_SMALL);
  const auto refuse = [&](auto bh_create_options::*member, uint64_t value) {
    options = options_of(32 << 20);
    options.*member = static_cast<std::decay_t<decltype(options.*member)>>(value);
    EXPECT_STATUS(bh_pool_create(locator.c_str(), &options), BH_INVALID_ARGUMENT);
  };
  for (const uint64_t huge : kHuge) {
    if (huge > uint64_t{1} << 48) refuse(&bh_create_options::size_bytes, huge);
    refuse(&bh_create_options::extent_bytes, huge);
    refuse(&bh_create_options::min_block_bytes, huge);
    if (huge > uint64_t{1} << 48) refuse(&bh_create_options::max_bytes, huge);
  }
  refuse(&bh_create_options::hosts, UINT32_MAX);
  refuse(&bh_create_options::max_bytes, 1);
  refuse(&bh_create_options::evict_high_permille, UINT32_MAX);
  refuse(&bh_create_options::evict_low_permille, 981);
  refuse(&bh_create_options::mode, UINT32_MAX);
  refuse(&bh_create_options::heartbeat_ms, UINT32_MAX);
}

void misuse_put(Scene& s) {
  const auto put = [](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    const bh_const_iovec piece = {"value", 5};
    return bh_put(pool, ns, key, &piece, 1);
  };
  misuse_key(s, put);
  const bh_const_iovec none = {nullptr, 1}, empty = {nullptr, 0};
  EXPECT_INVALID(bh_put(s.pool, s.ns, s.new_key(), nullptr, 1));
  EXPECT_INVALID(bh_put(s.pool, s.ns, s.new_key(), &none, 1));
  EXPECT_INVALID(bh_put(s.pool, s.ns, s.new_key(), &empty, SIZE_MAX));
  EXPECT_STATUS(bh_put(s.pool, s.ns, s.new_key(), nullptr, 0), BH_VALUE_TOO_LARGE);
  EXPECT_STATUS(bh_put(s.pool, s.ns, s.new_key(), &empty, 1), BH_VALUE_TOO_LARGE);
  for (const uint64_t huge : kHuge) {
    const bh_const_iovec pieces[] = {{"value", 5}, {"value", huge}, {"value", UINT64_MAX - huge}};
    for (const size_t count : {2u, 3u})
      EXPECT_STATUS(bh_put(s.pool, s.ns, s.new_key(), pieces, count), BH_VALUE_TOO_LARGE);
  }
}

void misuse_get(Scene& s) {
  uint64_t length = 0;
  const auto one = [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return bh_get(pool, ns, key, nullptr, 0, &length);
  };
  misuse_key(s, one);
  std::vector<std::byte> out(kBytes);
  const bh_iovec none = {nullptr, 1}, huge[] = {{out.data(), kBytes}, {out.data(), SIZE_MAX}};
  EXPECT_INVALID(bh_get(s.pool, s.ns, s.key(), nullptr, 1, &length));
  EXPECT_INVALID(bh_get(s.pool, s.ns, s.key(), &none, 1, &length));
  EXPECT_INVALID(bh_get(s.pool, s.ns, s.key(), huge, SIZE_MAX, &length));
  EXPECT_INVALID(bh_get(s.pool, s.ns, s.key(), huge, 1, nullptr));
  EXPECT_STATUS(bh_get(s.pool, s.ns, s.key(), nullptr, 0, &length), BH_BUFFER_TOO_SMALL);
  EXPECT_STATUS(bh_get(s.pool, s.ns, s.key(), huge, 2, &length), BH_OK);
  EXPECT_STATUS(bh_get(s.pool, s.ns, s.new_key(), huge, 1, &length), BH_NOT_FOUND);
}

void misuse_acquire(Scene& s, decltype(bh_acquire)* acquire) {
  auto lease = sized<bh_lease>();
  misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return acquire(pool, ns, key, 1000, &lease);
  });
  misuse_struct<bh_lease>(s, [&](auto* out) { return acquire(s.pool, s.ns, s.key(), 1000, out); });
  EXPECT_STATUS(acquire(s.pool, s.ns, s.key(), 0, &lease), BH_INVALID_ARGUMENT);
  for (const uint64_t huge : kHuge)
    EXPECT_STATUS(acquire(s.pool, s.ns, s.key(), huge, &lease), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(acquire(s.pool, s.ns, s.new_key(), 1000, &lease), BH_NOT_FOUND);
}

void misuse_lease(Scene& s) {
  auto none = sized<bh_lease>(), copy = s.own->misused_lease;
  EXPECT_INVALID(bh_release(nullptr, &s.own->misused_lease));
  misuse_struct<bh_lease>(s, [&](auto* lease) { return bh_release(s.pool, lease); });
  EXPECT_STATUS(bh_release(s.pool, &none), BH_CLOSED);
  EXPECT_STATUS(bh_release(s.pool, &s.own->misused_lease), BH_OK);
  EXPECT_STATUS(bh_release(s.pool, &s.own->misused_lease), BH_CLOSED);
  EXPECT_STATUS(bh_release(s.pool, &copy), BH_CLOSED);
}

void misuse_check_lease(Scene& s) {
  auto none = sized<bh_lease>(), other = s.own->misused_lease;
  other.data = &other;
  EXPECT_INVALID(bh_check_lease(nullptr, &s.own->misused_lease));
  misuse_struct<bh_lease>(s, [&](auto* lease) { return bh_check_lease(s.pool, lease); });
  EXPECT_STATUS(bh_check_lease(s.pool, &none), BH_CLOSED);
  EXPECT_STATUS(bh_check_lease(s.pool, &other), BH_CLOSED);
  EXPECT_STATUS(bh_check_lease(s.pool, &s.own->misused_lease), BH_OK);
}

void misuse_reserve(Scene& s) {
  auto out = sized<bh_reservation>();
  const auto reserve = [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return bh_reserve(pool, ns, key, kBytes, &out);
  };
  misuse_key(s, reserve);
  misuse_struct<bh_reservation>(
      s, [&](auto* room) { return bh_reserve(s.pool, s.ns, s.new_key(), kBytes, room); });
  EXPECT_STATUS(bh_reserve(s.pool, s.ns, s.new_key(), 0, &out), BH_VALUE_TOO_LARGE);
  for (const uint64_t huge : kHuge)
    EXPECT_STATUS(bh_reserve(s.pool, s.ns, s.new_key(), huge, &out), BH_VALUE_TOO_LARGE);
}

bh_put_options user_metadata(const void* data, uint64_t bytes) {
  auto options = sized<bh_put_options>();
  options.user_metadata = data;
  options.user_bytes = bytes;
  return options;
}

bh_status put_with(Scene& s, bh_pool* pool, bh_namespace_id ns, bh_key key,
                   const bh_put_options* options) {
  (void)s;
  const bh_const_iovec piece = {"value", 5};
  return bh_put_with(pool, ns, key, &piece, 1, options);
}

bh_status reserve_with(Scene& s, bh_pool* pool, bh_namespace_id ns, bh_key key,
                       const bh_put_options* options) {
  return bh_reserve_with(pool, ns, key, kBytes, options, &s.own->room);
}

void misuse_options(Scene& s, decltype(put_with)* call) {
  const auto good = user_metadata("user", 4);
  misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return call(s, pool, ns, key, &good);
  });
  misuse_struct<bh_put_options>(
      s, [&](auto* options) { return call(s, s.pool, s.ns, s.new_key(), options); });
  const auto none = user_metadata(nullptr, 1);
  EXPECT_INVALID(call(s, s.pool, s.ns, s.new_key(), &none));
  std::vector<uint64_t> sizes = {513};
  sizes.insert(sizes.end(), std::begin(kHuge), std::end(kHuge));
  for (const uint64_t bytes : sizes) {
    const auto longer = user_metadata("user", bytes);
    EXPECT_STATUS(call(s, s.pool, s.ns, s.new_key(), &longer), BH_INVALID_ARGUMENT);
  }
  auto with_attributes = sized<bh_put_options>();
  const auto call_with = [&](const bh_attributes* attributes) {
    with_attributes.attributes = attributes;
    return attributes == nullptr ? BH_INVALID_ARGUMENT
                                 : call(s, s.pool, s.ns, s.new_key(), &with_attributes);
  };
  misuse_struct<bh_attributes>(s, call_with);
  for (const auto& [member, value] :
       {std::pair(&bh_attributes::priority, 256u), std::pair(&bh_attributes::pins, 4u),
        std::pair(&bh_attributes::forks, 65536u)}) {
    auto attributes = sized<bh_attributes>();
    attributes.*member = value;
    EXPECT_STATUS(call_with(&attributes), BH_INVALID_ARGUMENT);
  }
}

void misuse_attributes(Scene& s) {
  auto attributes = sized<bh_attributes>();
  misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return bh_set_attributes(pool, ns, key, &attributes);
  });
  misuse_struct<bh_attributes>(
      s, [&](auto* of) { return bh_set_attributes(s.pool, s.ns, s.key(), of); });
  EXPECT_STATUS(bh_set_attributes(s.pool, s.ns, s.new_key(), &attributes), BH_NOT_FOUND);
  for (const auto& [member, value] :
       {std::pair(&bh_attributes::priority, 256u), std::pair(&bh_attributes::pins, 4u),
        std::pair(&bh_attributes::forks, 65536u)}) {
    attributes = sized<bh_attributes>();
    attributes.*member = value;
    EXPECT_STATUS(bh_set_attributes(s.pool, s.ns, s.key(), &attributes), BH_INVALID_ARGUMENT);
  }
}

void misuse_get_planes(Scene& s) {
  uint64_t length = 0, read = 0;
  misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return bh_get_planes(pool, ns, key, 1, nullptr, 0, &length, &read);
  });
  std::vector<std::byte> out(kBytes);
  const bh_iovec none = {nullptr, 1}, piece = {out.data(), kBytes};
  const auto planes = [&](uint32_t count, const bh_iovec* buffers, size_t buffer_count) {
    return bh_get_planes(s.pool, s.ns, s.key(), count, buffers, buffer_count, &length, nullptr);
  };
  EXPECT_STATUS(planes(0, &piece, 1), BH_INVALID_ARGUMENT);
  EXPECT_INVALID(planes(1, nullptr, 1));
  EXPECT_INVALID(planes(1, &none, 1));
  EXPECT_INVALID(bh_get_planes(s.pool, s.ns, s.key(), 1, &piece, 1, nullptr, &read));
  EXPECT_STATUS(planes(1, nullptr, 0), BH_BUFFER_TOO_SMALL);
  EXPECT_STATUS(planes(UINT32_MAX, &piece, 1), BH_OK);
}

void misuse_get_stored(Scene& s) {
  std::vector<std::byte> out(kBytes);
  uint64_t stored = 0, length = 0;
  uint32_t codec = 0;
  misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
    return bh_get_stored(pool, ns, key, out.data(), out.size(), &stored, &length, &codec);
  });
  const auto get = [&](void* to, size_t room, uint64_t* s_out, uint64_t* l_out, uint32_t* c_out) {
    return bh_get_stored(s.pool, s.ns, s.key(), to, room, s_out, l_out, c_out);
  };
  EXPECT_INVALID(get(nullptr, 1, &stored, &length, &codec));
  EXPECT_INVALID(get(out.data(), kBytes, nullptr, &length, &codec));
  EXPECT_INVALID(get(out.data(), kBytes, &stored, nullptr, &codec));
  EXPECT_INVALID(get(out.data(), kBytes, &stored, &length, nullptr));
  EXPECT_STATUS(get(nullptr, 0, &stored, &length, &codec), BH_BUFFER_TOO_SMALL);
  EXPECT_STATUS(get(out.data(), kBytes - 1, &stored, &length, &codec), BH_BUFFER_TOO_SMALL);
}

bh_status commit_summed(bh_pool* pool, bh_reservation* room) {
  const bool is_open = room != nullptr && room->data != nullptr;
  return bh_commit_summed(pool, room,
                          is_open ? bh_checksum(room->data, room->length_bytes) : uint64_t{0});
}

// ---- batches and queues ----

/// The status of a batch of one item: its own, or that of the item, which the call sets.
bh_status of_item(bh_status batch, const bh_status& item) { return batch != BH_OK ? batch : item; }

bh_status put_batch(Scene& s, bh_key key) {
  const std::vector<std::byte> value(kBytes);
  const bh_const_iovec piece = {value.data(), value.size()};
  bh_put_item item = {key, &piece, 1, nullptr, BH_SYSTEM, 0};
  return of_item(bh_put_batch(s.pool, s.ns, &item, 1), item.status);
}

bh_status get_batch(Scene& s, bh_key key, size_t room, uint64_t* length) {
  std::vector<std::byte> out(room);
  const bh_iovec piece = {out.data(), out.size()};
  bh_get_item item = {key, &piece, 1, 0, BH_SYSTEM, 0};
  const bh_status status = of_item(bh_get_batch(s.pool, s.ns, &item, 1), item.status);
  *length = item.length_bytes;
  return status;
}

bh_status remove_batch(bh_pool* pool, bh_namespace_id ns, bh_key key) {
  bh_status item = BH_SYSTEM;
  return of_item(bh_remove_batch(pool, ns, &key, 1, &item), item);
}

/// Lists of two items of which the second is malformed: nothing may be done for the first.
void misuse_batches(Scene& s) {
  const bh_const_iovec value = {"value", 5}, no_value = {nullptr, 1};
  const auto no_options = user_metadata(nullptr, 1), long_options = user_metadata("user", 513);
  const bh_put_item good = {s.new_key(), &value, 1, nullptr, BH_SYSTEM, 0};
  std::vector<bh_put_item> bad(5, good);
  bad[0].key = {nullptr, 1};
  bad[1].value = nullptr;
  bad[2].value = &no_value;
  bad[3].options = &no_options;
  bad[4].options = &long_options;
  for (const bh_put_item& second : bad) {
    bh_put_item items[] = {good, second};
    EXPECT_INVALID(bh_put_batch(s.pool, s.ns, items, 2));
    s.expect("status of an item not tried", items[0].status, BH_SYSTEM);
  }
  char out[8];
  const bh_iovec room = {out, sizeof out}, no_room = {nullptr, 1};
  const bh_get_item gets[] = {{{nullptr, 1}, &room, 1, 0, BH_SYSTEM, 0},
                              {s.key(), nullptr, 1, 0, BH_SYSTEM, 0},
                              {s.key(), &no_room, 1, 0, BH_SYSTEM, 0}};
  for (const bh_get_item& second : gets) {
    bh_get_item items[] = {{s.key(), &room, 1, 0, BH_SYSTEM, 0}, second};
    EXPECT_INVALID(bh_get_batch(s.pool, s.ns, items, 2));
    s.expect("status of an item not tried", items[0].status, BH_SYSTEM);
  }
  const bh_key keys[] = {s.key(), {nullptr, 1}};
  bh_status statuses[2];
  EXPECT_INVALID(bh_remove_batch(s.pool, s.ns, keys, 2, statuses));
  uint8_t present = 0;
  EXPECT_STATUS(bh_exists(s.pool, s.ns, keys, 1, &present), BH_OK);
  s.expect("bh_exists", present == 1 ? BH_OK : BH_NOT_FOUND, BH_OK);
}

bh_job get_job(const Scene& s, bh_get_item* item) {
  auto job = sized<bh_job>();
  job.operation = BH_JOB_GET;
  job.namespace_id = s.ns;
  job.count = 1;
  job.gets = item;
  return job;
}

/// Submits a job that gets the stored key, and waits for it.
bh_status submit_get(Scene& s) {
  std::vector<std::byte> out(kBytes);
  const bh_iovec piece = {out.data(), out.size()};
  bh_get_item item = {s.key(), &piece, 1, 0, BH_SYSTEM, 0};
  const bh_job job = get_job(s, &item);
  uint64_t number = 0;
  bh_status status = bh_queue_submit(s.queue, &job, &number);
  if (status != BH_OK) return status;
  pollfd readable = {bh_queue_fd(s.queue), POLLIN, 0};
  bh_completion done{};
  size_t count = 0;
  if (poll(&readable, 1, kCellLimitMs / 2) != 1) return BH_SYSTEM;
  status = bh_queue_poll(s.queue, &done, 1, &count);
  if (status != BH_OK || count != 1 || done.job != number) return BH_SYSTEM;
  return of_item(done.status, item.status);
}

void misuse_submit(Scene& s) {
  char out[8];
  const bh_iovec room = {out, sizeof out};
  bh_get_item get = {s.key(), &room, 1, 0, BH_OK, 0};
  bh_put_item put{};
  const bh_key key = s.key();
  bh_status status = BH_OK;
  uint8_t present = 0;
  const bh_job good = get_job(s, &get);
  EXPECT_INVALID(bh_queue_submit(nullptr, &good, nullptr));
  misuse_struct<bh_job>(s, [&](auto* job) { return bh_queue_submit(s.queue, job, nullptr); });
  const auto refuse = [&](auto change) {
    bh_job job = good;
    change(job);
    EXPECT_STATUS(bh_queue_submit(s.queue, &job, nullptr), BH_INVALID_ARGUMENT);
  };
  refuse([](bh_job& job) { job.operation = 0; });
  refuse([](bh_job& job) { job.operation = 5; });
  refuse([](bh_job& job) { job.priority = 256; });
  refuse([](bh_job& job) { job.count = 0; });
  refuse([](bh_job& job) { job.count = SIZE_MAX; });
  refuse([](bh_job& job) { job.gets = nullptr; });
  refuse([&](bh_job& job) { job.puts = &put; });
  refuse([&](bh_job& job) { job.keys = &key; });
  refuse([&](bh_job& job) { job.statuses = &status; });
  refuse([&](bh_job& job) { job.present = &present; });
  for (const uint32_t operation : {BH_JOB_PUT, BH_JOB_REMOVE, BH_JOB_EXISTS}) {
    refuse([&](bh_job& job) { job.operation = operation; });
    refuse([&](bh_job& job) {
      job.operation = operation;
      job.gets = nullptr;
      job.keys = operation == BH_JOB_PUT ? nullptr : &key;
    });
  }
  bh_job reserved = good;
  reserved.reserved = 1;
  EXPECT_STATUS(bh_queue_submit(s.queue, &reserved, nullptr), BH_NOT_SUPPORTED);
  // The namespace is looked up by the job.
  bh_job elsewhere = good;
  elsewhere.namespace_id = s.ns + 2;
  EXPECT_STATUS(bh_queue_submit(s.queue, &elsewhere, nullptr), BH_OK);
  EXPECT_STATUS(bh_queue_drain(s.queue, kCellLimitMs / 2), BH_OK);
  bh_completion done{};
  size_t count = 0;
  EXPECT_STATUS(bh_queue_poll(s.queue, &done, 1, &count), BH_OK);
  s.expect("its completion", done.status, BH_INVALID_ARGUMENT);
}

void misuse_queue_open(Scene& s) {
  bh_queue* out = nullptr;
  EXPECT_INVALID(bh_queue_open(nullptr, nullptr, &out));
  EXPECT_INVALID(bh_queue_open(s.pool, nullptr, nullptr));
  misuse_struct<bh_queue_options>(s, [&](auto* of) {
    return of == nullptr ? BH_INVALID_ARGUMENT : bh_queue_open(s.pool, of, &out);
  });
  for (const auto& [member, value] : {std::pair(&bh_queue_options::threads, 65u),
                                      std::pair(&bh_queue_options::jobs_max, (1u << 20) + 1)}) {
    auto options = sized<bh_queue_options>();
    options.*member = value;
    EXPECT_STATUS(bh_queue_open(s.pool, &options, &out), BH_INVALID_ARGUMENT);
  }
  auto options = sized<bh_queue_options>();
  options.reserved = 1;
  EXPECT_STATUS(bh_queue_open(s.pool, &options, &out), BH_NOT_SUPPORTED);
}

// ---- prefixes and events ----

bh_status acquire_prefix(Scene& s, uint64_t ttl_ms, size_t group, bh_prefix* out) {
  const bh_key keys[] = {s.key(), s.new_key()};
  bh_lease leases[] = {sized<bh_lease>(), sized<bh_lease>()};
  return bh_acquire_prefix(s.pool, s.ns, keys, 2, group, ttl_ms, leases, out);
}

void misuse_acquire_prefix(Scene& s) {
  auto out = sized<bh_prefix>();
  bh_lease leases[] = {sized<bh_lease>(), sized<bh_lease>()};
  misuse_keys(s, [&](bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t count) {
    return bh_acquire_prefix(pool, ns, keys, count, 1, 1000, leases, &out);
  });
  misuse_struct<bh_prefix>(s, [&](auto* of) { return acquire_prefix(s, 1000, 1, of); });
  misuse_struct<bh_lease>(s, [&](auto* of) {
    const bh_key key = s.key();
    return bh_acquire_prefix(s.pool, s.ns, &key, 1, 1, 1000, of, &out);
  });
  EXPECT_STATUS(acquire_prefix(s, 0, 1, &out), BH_INVALID_ARGUMENT);
  for (const uint64_t huge : kHuge)
    EXPECT_STATUS(acquire_prefix(s, huge, 1, &out), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(acquire_prefix(s, 1000, 0, &out), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(acquire_prefix(s, 1000, SIZE_MAX, &out), BH_INVALID_ARGUMENT);
  EXPECT_STATUS(acquire_prefix(s, 1000, 2, &out), BH_OK);
  s.expect("leases of half a group", out.blocks == 0 ? BH_OK : BH_DAMAGED, BH_OK);
}

int ignore_event(void*, const bh_event*) { return 0; }

bh_status read_events(Scene& s) {
  size_t count = 0;
  uint64_t lost = 0;
  return bh_events_read(s.events, 10, ignore_event, nullptr, &count, &lost);
}

void misuse_events_open(Scene& s) {
  bh_events* out = nullptr;
  EXPECT_INVALID(bh_events_open(nullptr, nullptr, &out));
  EXPECT_INVALID(bh_events_open(s.pool, nullptr, nullptr));
  misuse_struct<bh_events_options>(s, [&](auto* of) {
    return of == nullptr ? BH_INVALID_ARGUMENT : bh_events_open(s.pool, of, &out);
  });
  auto options = sized<bh_events_options>();
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4095}, (uint64_t{1} << 30) + 1, UINT64_MAX}) {
    options.capacity_bytes = bytes;
    EXPECT_STATUS(bh_events_open(s.pool, &options, &out), BH_INVALID_ARGUMENT);
  }
  options = sized<bh_events_options>();
  options.reserved = 1;
  EXPECT_STATUS(bh_events_open(s.pool, &options, &out), BH_NOT_SUPPORTED);
}

/// A list function. Each list has at least one entry; the first visit ends it.
template <class T, class List>
bh_status list(Scene& s, List call) {
  int seen = 0;
  const auto visit = [](void* context, const T* shown) {
    return shown->struct_bytes == sizeof *shown ? ++*static_cast<int*>(context) : 1000;
  };
  const bh_status status = call(s.pool, visit, &seen);
  return status != BH_OK || seen == 1 ? status : BH_DAMAGED;
}

template <class T, class List>
void misuse_list(Scene& s, List call) {
  const auto visit = [](void*, const T*) { return 0; };
  EXPECT_INVALID(call(nullptr, visit, nullptr));
  EXPECT_INVALID(call(s.pool, nullptr, nullptr));
  EXPECT_STATUS(call(s.pool, visit, nullptr), BH_OK);
}

const Function kFunctions[] = {
    {"bh_abi_version",
     [](Scene&) { return bh_abi_version() == BH_ABI_VERSION ? BH_OK : BH_SYSTEM; }, same(BH_OK),
     [](Scene&) {}},
    {"bh_status_name", [](Scene&) { return *bh_status_name(BH_OK) != 0 ? BH_OK : BH_SYSTEM; },
     same(BH_OK), [](Scene&) { (void)bh_status_name(static_cast<bh_status>(INT32_MAX)); }},
    {"bh_status_text", [](Scene&) { return *bh_status_text(BH_OK) != 0 ? BH_OK : BH_SYSTEM; },
     same(BH_OK), [](Scene&) { (void)bh_status_text(static_cast<bh_status>(INT32_MIN)); }},
    {"bh_last_error", [](Scene&) { return bh_last_error() != nullptr ? BH_OK : BH_SYSTEM; },
     same(BH_OK), [](Scene&) {}},
    {"bh_pool_create",
     [](Scene& s) {
       const std::string locator = s.locator + "-new";
       const bh_create_options options = options_of(16 << 20);
       const bh_status status = bh_pool_create(locator.c_str(), &options);
       (void)bh_pool_destroy(locator.c_str(), 1);
       return status;
     },
     same(BH_OK), misuse_create},
    {"bh_pool_open",
     [](Scene& s) {
       bh_pool* another = nullptr;
       const bh_status status = bh_pool_open(s.locator.c_str(), 0, &another);
       if (status == BH_OK) bh_pool_close(another);
       return status;
     },
     but(but(same(BH_OK), FENCED, BH_HOST_FENCED), DESTROYED, BH_NO_SUCH_POOL),
     [](Scene& s) {
       bh_pool* out = nullptr;
       EXPECT_INVALID(bh_pool_open(nullptr, 0, &out));
       EXPECT_INVALID(bh_pool_open(s.locator.c_str(), 0, nullptr));
       EXPECT_STATUS(bh_pool_open(s.locator.c_str(), 64, &out), BH_INVALID_ARGUMENT);
       EXPECT_STATUS(bh_pool_open("", 0, &out), BH_BAD_LOCATOR);
       EXPECT_STATUS(bh_pool_open("shm:no-such-pool", 0, &out), BH_NO_SUCH_POOL);
     }},
    {"bh_pool_open_with",
     [](Scene& s) {
       bh_pool* another = nullptr;
       const auto options = sized<bh_open_options>();
       const bh_status status = bh_pool_open_with(s.locator.c_str(), 0, &options, &another);
       if (status == BH_OK) bh_pool_close(another);
       return status;
     },
     but(but(same(BH_OK), FENCED, BH_HOST_FENCED), DESTROYED, BH_NO_SUCH_POOL),
     [](Scene& s) {
       bh_pool* out = nullptr;
       auto options = sized<bh_open_options>();
       EXPECT_INVALID(bh_pool_open_with(nullptr, 0, &options, &out));
       EXPECT_INVALID(bh_pool_open_with(s.locator.c_str(), 0, &options, nullptr));
       misuse_struct<bh_open_options>(
           s, [&](auto* given) { return bh_pool_open_with("shm:no-such-pool", 0, given, &out); });
       options.no_mirror = 2;
       EXPECT_INVALID(bh_pool_open_with(s.locator.c_str(), 0, &options, &out));
       options.no_mirror = 1;
       EXPECT_STATUS(bh_pool_open_with("shm:no-such-pool", 0, &options, &out), BH_NO_SUCH_POOL);
       options.mirror_bytes = 1;
       EXPECT_INVALID(bh_pool_open_with(s.locator.c_str(), 0, &options, &out));
     }},
    {"bh_pool_observe",
     [](Scene& s) {
       bh_pool* another = nullptr;
       const bh_status status = bh_pool_observe(s.locator.c_str(), &another);
       if (status == BH_OK) bh_pool_close(another);
       return status;
     },
     but(same(BH_OK), DESTROYED, BH_NO_SUCH_POOL),
     [](Scene& s) {
       bh_pool* out = nullptr;
       EXPECT_INVALID(bh_pool_observe(nullptr, &out));
       EXPECT_INVALID(bh_pool_observe(s.locator.c_str(), nullptr));
       EXPECT_STATUS(bh_pool_observe("", &out), BH_BAD_LOCATOR);
       EXPECT_STATUS(bh_pool_observe("shm:no-such-pool", &out), BH_NO_SUCH_POOL);
     }},
    {"bh_pool_fence",
     [](Scene& s) { return bh_pool_fence(s.pool, 1); },
     {BH_INVALID_ARGUMENT, BH_INVALID_ARGUMENT, BH_FORKED, BH_INVALID_ARGUMENT, BH_BUSY,
      BH_INVALID_ARGUMENT, BH_INVALID_ARGUMENT, BH_INVALID_ARGUMENT, BH_READ_ONLY, BH_HOST_FENCED,
      BH_CLOSED},
     [](Scene& s) {
       EXPECT_INVALID(bh_pool_fence(nullptr, 1));
       for (const uint32_t host : {0u, 2u, 64u, UINT32_MAX})
         EXPECT_STATUS(bh_pool_fence(s.pool, host), BH_INVALID_ARGUMENT);
     }},
    {"bh_pool_destroy", [](Scene& s) { return bh_pool_destroy(s.locator.c_str(), 0); },
     but(same(BH_IN_USE), DESTROYED, BH_NO_SUCH_POOL),
     [](Scene& s) {
       EXPECT_INVALID(bh_pool_destroy(nullptr, 0));
       EXPECT_STATUS(bh_pool_destroy("", 1), BH_BAD_LOCATOR);
       EXPECT_STATUS(bh_pool_destroy("shm:no-such-pool", 1), BH_NO_SUCH_POOL);
     }},
    {"bh_pool_mapping",
     [](Scene& s) {
       const void* base = nullptr;
       uint64_t size_bytes = 0;
       return bh_pool_mapping(s.pool, &base, &size_bytes);
     },
     but(reads(), LEFT, BH_OK),
     [](Scene& s) {
       const void* base = nullptr;
       uint64_t size_bytes = 0;
       EXPECT_INVALID(bh_pool_mapping(nullptr, &base, &size_bytes));
       EXPECT_INVALID(bh_pool_mapping(s.pool, nullptr, &size_bytes));
       EXPECT_INVALID(bh_pool_mapping(s.pool, &base, nullptr));
     }},
    {"bh_namespace_open",
     [](Scene& s) {
       bh_namespace_id out = 0;
       return bh_namespace_open(s.pool, "plain", "", &out);
     },
     but(stores(BH_BUSY), OBSERVING, BH_NOT_FOUND),
     [](Scene& s) { misuse_name(s, bh_namespace_open); }},
    {"bh_namespace_open_with",
     [](Scene& s) {
       bh_namespace_id out = 0;
       return open_compressed(s.pool, "compressed", "", &out);
     },
     but(stores(BH_BUSY), OBSERVING, BH_NOT_FOUND),
     [](Scene& s) {
       bh_namespace_id out = 0;
       misuse_struct<bh_namespace_options>(s, [&](auto* options) {
         return bh_namespace_open_with(s.pool, "n", "", options, &out);
       });
       misuse_name(s, open_compressed);
       auto options = sized<bh_namespace_options>();
       options.layout.number_format = 57;
       EXPECT_STATUS(bh_namespace_open_with(s.pool, "n", "", &options, &out), BH_INVALID_ARGUMENT);
       options = sized<bh_namespace_options>();
       options.profile = UINT32_MAX;
       EXPECT_STATUS(bh_namespace_open_with(s.pool, "n", "", &options, &out), BH_INVALID_ARGUMENT);
     }},
    {"bh_namespace_remove",
     [](Scene& s) {
       bh_namespace_id out = 0;
       const bh_status opened = bh_namespace_open(s.pool, "doomed", "", &out);
       if (opened != BH_OK && opened != BH_NOT_FOUND) return opened;
       return bh_namespace_remove(s.pool, "doomed");
     },
     stores(BH_BUSY),
     [](Scene& s) {
       EXPECT_INVALID(bh_namespace_remove(nullptr, "n"));
       EXPECT_INVALID(bh_namespace_remove(s.pool, nullptr));
       EXPECT_STATUS(bh_namespace_remove(s.pool, ""), BH_INVALID_ARGUMENT);
       EXPECT_STATUS(bh_namespace_remove(s.pool, "nothing"), BH_NOT_FOUND);
     }},
    {"bh_namespace_get_options",
     [](Scene& s) {
       auto out = sized<bh_namespace_options>();
       const bh_status status = bh_namespace_get_options(s.pool, s.ns, &out);
       return status != BH_OK || is_opaque(out.layout) ? status : BH_DAMAGED;
     },
     reads(),
     [](Scene& s) {
       auto out = sized<bh_namespace_options>();
       EXPECT_INVALID(bh_namespace_get_options(nullptr, s.ns, &out));
       EXPECT_INVALID(bh_namespace_get_options(s.pool, s.ns + 2, &out));
       misuse_struct<bh_namespace_options>(
           s, [&](auto* of) { return bh_namespace_get_options(s.pool, s.ns, of); });
     }},
    {"bh_put", [](Scene& s) { return s.put(s.new_key()); }, stores(BH_BUSY, BH_OK, BH_NO_SPACE),
     misuse_put},
    {"bh_put_with",
     [](Scene& s) {
       const auto options = user_metadata("user", 4);
       return put_with(s, s.pool, s.ns, s.new_key(), &options);
     },
     stores(BH_BUSY, BH_OK, BH_NO_SPACE), [](Scene& s) { misuse_options(s, put_with); }},
    {"bh_set_attributes",
     [](Scene& s) {
       auto attributes = sized<bh_attributes>();
       attributes.priority = 7;
       return bh_set_attributes(s.pool, s.ns, s.key(), &attributes);
     },
     stores(BH_BUSY), misuse_attributes},
    {"bh_describe",
     [](Scene& s) {
       auto out = sized<bh_block_info>();
       char user[BH_USER_BYTES_MAX];
       const bh_status status = bh_describe(s.pool, s.ns, s.key(), user, &out);
       return status != BH_OK || out.length_bytes == kBytes ? status : BH_DAMAGED;
     },
     reads(),
     [](Scene& s) {
       auto out = sized<bh_block_info>();
       misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
         return bh_describe(pool, ns, key, nullptr, &out);
       });
       misuse_struct<bh_block_info>(
           s, [&](auto* of) { return bh_describe(s.pool, s.ns, s.key(), nullptr, of); });
       EXPECT_STATUS(bh_describe(s.pool, s.ns, s.new_key(), nullptr, &out), BH_NOT_FOUND);
     }},
    {"bh_get",
     [](Scene& s) {
       uint64_t length = 0;
       return get(s, s.key(), kBytes, &length);
     },
     reads(), misuse_get},
    {"bh_put_batch", [](Scene& s) { return put_batch(s, s.new_key()); },
     stores(BH_BUSY, BH_OK, BH_NO_SPACE),
     [](Scene& s) {
       misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
         const bh_const_iovec piece = {"value", 5};
         bh_put_item item = {key, &piece, 1, nullptr, BH_SYSTEM, 0};
         return of_item(bh_put_batch(pool, ns, &item, 1), item.status);
       });
       bh_put_item item{};
       EXPECT_INVALID(bh_put_batch(s.pool, s.ns, nullptr, 1));
       EXPECT_INVALID(bh_put_batch(s.pool, s.ns, &item, SIZE_MAX));
       EXPECT_STATUS(bh_put_batch(s.pool, s.ns, nullptr, 0), BH_OK);
       misuse_batches(s);
     }},
    {"bh_get_batch",
     [](Scene& s) {
       uint64_t length = 0;
       const bh_status status = get_batch(s, s.key(), kBytes, &length);
       return status != BH_OK || length == kBytes ? status : BH_DAMAGED;
     },
     reads(),
     [](Scene& s) {
       misuse_key(s, [&](bh_pool* pool, bh_namespace_id ns, bh_key key) {
         bh_get_item item = {key, nullptr, 0, 0, BH_SYSTEM, 0};
         return of_item(bh_get_batch(pool, ns, &item, 1), item.status);
       });
       bh_get_item item{};
       EXPECT_INVALID(bh_get_batch(s.pool, s.ns, nullptr, 1));
       EXPECT_INVALID(bh_get_batch(s.pool, s.ns, &item, SIZE_MAX));
       EXPECT_STATUS(bh_get_batch(s.pool, s.ns, nullptr, 0), BH_OK);
       uint64_t length = 0;
       EXPECT_STATUS(get_batch(s, s.key(), kBytes - 1, &length), BH_BUFFER_TOO_SMALL);
       s.expect("its length", length == kBytes ? BH_OK : BH_DAMAGED, BH_OK);
       EXPECT_STATUS(get_batch(s, s.new_key(), kBytes, &length), BH_NOT_FOUND);
     }},
    {"bh_remove_batch", [](Scene& s) { return remove_batch(s.pool, s.ns, s.key()); },
     stores(BH_BUSY),
     [](Scene& s) {
       misuse_key(s, remove_batch);
       const bh_key key = s.key();
       EXPECT_INVALID(bh_remove_batch(s.pool, s.ns, &key, 1, nullptr));
       std::vector<bh_status> statuses(4);
       misuse_keys(s, [&](bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t count) {
         return bh_remove_batch(pool, ns, keys, count, statuses.data());
       });
       EXPECT_STATUS(remove_batch(s.pool, s.ns, s.new_key()), BH_NOT_FOUND);
     }},
    {"bh_acquire_prefix",
     [](Scene& s) {
       auto out = sized<bh_prefix>();
       const bh_status status = acquire_prefix(s, 60'000, 1, &out);
       return status != BH_OK || (out.blocks == 1 && out.length_bytes == kBytes) ? status
                                                                                 : BH_DAMAGED;
     },
     stores(BH_OK, BH_LIMIT_REACHED), misuse_acquire_prefix},
    {"bh_pool_get_pressure",
     [](Scene& s) {
       auto out = sized<bh_pressure>();
       const bh_status status = bh_pool_get_pressure(s.pool, &out);
       return status != BH_OK || out.used_permille > 0 ? status : BH_DAMAGED;
     },
     stores(BH_OK),
     [](Scene& s) {
       auto out = sized<bh_pressure>();
       EXPECT_INVALID(bh_pool_get_pressure(nullptr, &out));
       misuse_struct<bh_pressure>(s, [&](auto* of) { return bh_pool_get_pressure(s.pool, of); });
     }},
    {"bh_events_open",
     [](Scene& s) {
       bh_events* events = nullptr;
       const bh_status status = bh_events_open(s.pool, nullptr, &events);
       bh_events_close(events);
       return status;
     },
     but(same(BH_OK), FORKED, BH_FORKED), misuse_events_open},
    {"bh_events_fd", [](Scene& s) { return (bh_events_fd(s.events) >= 0) ? BH_OK : BH_SYSTEM; },
     same(BH_OK),
     [](Scene& s) { s.expect("-1", bh_events_fd(nullptr) == -1 ? BH_OK : BH_SYSTEM, BH_OK); }},
    {"bh_events_read", read_events, but(same(BH_OK), FORKED, BH_FORKED),
     [](Scene& s) {
       size_t count = 0;
       uint64_t lost = 0;
       EXPECT_INVALID(bh_events_read(nullptr, 1, ignore_event, nullptr, &count, &lost));
       EXPECT_INVALID(bh_events_read(s.events, 1, nullptr, nullptr, &count, &lost));
       EXPECT_INVALID(bh_events_read(s.events, 1, ignore_event, nullptr, &count, nullptr));
       EXPECT_STATUS(bh_events_read(s.events, 0, ignore_event, nullptr, nullptr, &lost), BH_OK);
       EXPECT_STATUS(bh_events_read(s.events, SIZE_MAX, ignore_event, nullptr, &count, &lost),
                     BH_OK);
     }},
    {"bh_events_close",  // the last that uses the reader
     [](Scene& s) {
       bh_events_close(std::exchange(s.events, nullptr));
       return BH_OK;
     },
     same(BH_OK), [](Scene&) { bh_events_close(nullptr); }},
    {"bh_queue_open",
     [](Scene& s) {
       bh_queue* queue = nullptr;
       const bh_status status = bh_queue_open(s.pool, nullptr, &queue);
       bh_queue_close(queue);
       return status;
     },
     but(same(BH_OK), FORKED, BH_FORKED), misuse_queue_open},
    {"bh_queue_fd", [](Scene& s) { return bh_queue_fd(s.queue) >= 0 ? BH_OK : BH_SYSTEM; },
     same(BH_OK),
     [](Scene& s) { s.expect("-1", bh_queue_fd(nullptr) == -1 ? BH_OK : BH_SYSTEM, BH_OK); }},
    {"bh_queue_submit", submit_get, reads(), misuse_submit},
    {"bh_queue_poll",
     [](Scene& s) {
       bh_completion done{};
       size_t count = 1;
       const bh_status status = bh_queue_poll(s.queue, &done, 1, &count);
       return status != BH_OK || count == 0 ? status : BH_SYSTEM;
     },
     but(same(BH_OK), FORKED, BH_FORKED),
     [](Scene& s) {
       bh_completion done{};
       size_t count = 0;
       EXPECT_INVALID(bh_queue_poll(nullptr, &done, 1, &count));
       EXPECT_INVALID(bh_queue_poll(s.queue, nullptr, 1, &count));
       EXPECT_INVALID(bh_queue_poll(s.queue, &done, 1, nullptr));
       EXPECT_STATUS(bh_queue_poll(s.queue, nullptr, 0, &count), BH_OK);
     }},
    {"bh_queue_cancel", [](Scene& s) { return bh_queue_cancel(s.queue, 1'000'000); },
     but(same(BH_NOT_FOUND), FORKED, BH_FORKED),
     [](Scene& s) {
       EXPECT_INVALID(bh_queue_cancel(nullptr, 1));
       for (const uint64_t number : kHuge)
         EXPECT_STATUS(bh_queue_cancel(s.queue, number), BH_NOT_FOUND);
     }},
    {"bh_queue_drain", [](Scene& s) { return bh_queue_drain(s.queue, kCellLimitMs / 2); },
     but(same(BH_OK), FORKED, BH_FORKED),
     [](Scene& s) {
       EXPECT_INVALID(bh_queue_drain(nullptr, 1));
       EXPECT_STATUS(bh_queue_drain(s.queue, UINT64_MAX), BH_OK);
       EXPECT_STATUS(bh_queue_drain(s.queue, 0), BH_OK);
     }},
    {"bh_queue_close",  // the last that uses the queue
     [](Scene& s) {
       bh_queue_close(std::exchange(s.queue, nullptr));
       return BH_OK;
     },
     same(BH_OK), [](Scene&) { bh_queue_close(nullptr); }},
    {"bh_exists",
     [](Scene& s) {
       const bh_key key = s.key();
       uint8_t present = 0;
       const bh_status status = bh_exists(s.pool, s.ns, &key, 1, &present);
       return status != BH_OK || present == 1 ? status : BH_NOT_FOUND;
     },
     reads(),
     [](Scene& s) {
       const bh_key key = s.key();
       EXPECT_INVALID(bh_exists(s.pool, s.ns, &key, 1, nullptr));
       uint8_t present[2];
       misuse_keys(s, [&](bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t count) {
         return bh_exists(pool, ns, keys, count, present);
       });
     }},
    {"bh_longest_prefix",
     [](Scene& s) {
       const bh_key key = s.key();
       size_t length = 0;
       const bh_status status = bh_longest_prefix(s.pool, s.ns, &key, 1, &length);
       return status != BH_OK || length == 1 ? status : BH_NOT_FOUND;
     },
     reads(),
     [](Scene& s) {
       const bh_key key = s.key();
       EXPECT_INVALID(bh_longest_prefix(s.pool, s.ns, &key, 1, nullptr));
       size_t length = 0;
       misuse_keys(s, [&](bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t count) {
         return bh_longest_prefix(pool, ns, keys, count, &length);
       });
     }},
    {"bh_reserve",
     [](Scene& s) { return bh_reserve(s.pool, s.ns, s.new_key(), kBytes, &s.own->room); },
     stores(BH_OK, BH_OK, BH_NO_SPACE), misuse_reserve},
    {"bh_reserve_with",
     [](Scene& s) {
       const auto options = user_metadata("user", 4);
       return reserve_with(s, s.pool, s.ns, s.new_key(), &options);
     },
     stores(BH_OK, BH_OK, BH_NO_SPACE), [](Scene& s) { misuse_options(s, reserve_with); }},
    {"bh_commit", [](Scene& s) { return bh_commit(s.pool, &s.own->room); },
     but(stores(BH_BUSY), OBSERVING, BH_CLOSED),
     [](Scene& s) { misuse_reservation(s, bh_commit); }},
    {"bh_commit_summed", [](Scene& s) { return commit_summed(s.pool, &s.own->room); },
     but(stores(BH_BUSY), OBSERVING, BH_CLOSED),
     [](Scene& s) { misuse_reservation(s, commit_summed); }},
    {"bh_commit_unverified", [](Scene& s) { return bh_commit_unverified(s.pool, &s.own->room); },
     but(stores(BH_BUSY), OBSERVING, BH_CLOSED),
     [](Scene& s) { misuse_reservation(s, bh_commit_unverified); }},
    {"bh_abort", [](Scene& s) { return bh_abort(s.pool, &s.own->room); },
     but(stores(BH_OK, BH_OK, BH_OK, BH_OK), OBSERVING, BH_CLOSED),
     [](Scene& s) { misuse_reservation(s, bh_abort); }},
    {"bh_checksum",
     [](Scene&) { return bh_checksum("a", 1) != bh_checksum("b", 1) ? BH_OK : BH_SYSTEM; },
     same(BH_OK), [](Scene&) { (void)bh_checksum(nullptr, 0); }},
    {"bh_layout_tokens",
     [](Scene&) {
       const bh_kv_layout opaque = {.number_format = BH_NUMBER_BYTES};
       return bh_layout_tokens(&opaque, 7) == 7 ? BH_OK : BH_SYSTEM;
     },
     same(BH_OK), [](Scene&) { EXPECT_EQ(bh_layout_tokens(nullptr, 7), 0u); }},
    {"bh_layout_row_bytes",
     [](Scene&) {
       const bh_kv_layout opaque = {.number_format = BH_NUMBER_BYTES};
       return bh_layout_row_bytes(&opaque, 0) == 0 ? BH_OK : BH_SYSTEM;
     },
     same(BH_OK), [](Scene&) { EXPECT_EQ(bh_layout_row_bytes(nullptr, 0), 0u); }},
    {"bh_acquire",
     [](Scene& s) { return bh_acquire(s.pool, s.ns, s.key(), 60'000, &s.own->lease); },
     stores(BH_OK, BH_LIMIT_REACHED), [](Scene& s) { misuse_acquire(s, bh_acquire); }},
    {"bh_acquire_stored",
     [](Scene& s) { return bh_acquire_stored(s.pool, s.ns, s.key(), 60'000, &s.own->lease); },
     stores(BH_OK, BH_LIMIT_REACHED), [](Scene& s) { misuse_acquire(s, bh_acquire_stored); }},
    {"bh_check_lease", [](Scene& s) { return bh_check_lease(s.pool, &s.own->lease); },
     stores(BH_OK, BH_OK, BH_OK, BH_LAPSED), misuse_check_lease},
    {"bh_release", [](Scene& s) { return bh_release(s.pool, &s.own->lease); },
     stores(BH_OK, BH_OK, BH_OK, BH_LAPSED), misuse_lease},
    {"bh_remove", [](Scene& s) { return bh_remove(s.pool, s.ns, s.key()); }, stores(BH_BUSY),
     [](Scene& s) {
       misuse_key(s, bh_remove);
       EXPECT_STATUS(bh_remove(s.pool, s.ns, s.new_key()), BH_NOT_FOUND);
     }},
    {"bh_touch",
     [](Scene& s) {
       const bh_key key = s.key();
       return bh_touch(s.pool, s.ns, &key, 1);
     },
     stores(BH_OK, BH_OK, BH_OK, BH_OK), [](Scene& s) { misuse_keys(s, bh_touch); }},
    {"bh_get_planes",
     [](Scene& s) {
       std::vector<std::byte> out(kBytes);
       const bh_iovec piece = {out.data(), out.size()};
       uint64_t length = 0, read = 0;
       return bh_get_planes(s.pool, s.ns, s.key(), 1, &piece, 1, &length, &read);
     },
     reads(), misuse_get_planes},
    {"bh_get_stored",
     [](Scene& s) {
       std::vector<std::byte> out(kBytes);
       uint64_t stored = 0, length = 0;
       uint32_t codec = 0;
       return bh_get_stored(s.pool, s.ns, s.key(), out.data(), out.size(), &stored, &length,
                            &codec);
     },
     reads(), misuse_get_stored},
    {"bh_pool_recompress",
     [](Scene& s) {
       auto out = sized<bh_recompress_report>();
       return bh_pool_recompress(s.pool, 0, &out);
     },
     stores(BH_OK),
     [](Scene& s) {
       auto out = sized<bh_recompress_report>();
       EXPECT_INVALID(bh_pool_recompress(nullptr, 0, &out));
       misuse_struct<bh_recompress_report>(
           s, [&](auto* report) { return bh_pool_recompress(s.pool, 0, report); });
       EXPECT_STATUS(bh_pool_recompress(s.pool, UINT64_MAX, &out), BH_OK);
     }},
    {"bh_pool_get_info",
     [](Scene& s) {
       auto out = sized<bh_pool_info>();
       const bh_status status = bh_pool_get_info(s.pool, &out);
       return status != BH_OK || out.size_bytes == 64 << 20 ? status : BH_DAMAGED;
     },
     reads(),
     [](Scene& s) {
       auto out = sized<bh_pool_info>();
       EXPECT_INVALID(bh_pool_get_info(nullptr, &out));
       misuse_struct<bh_pool_info>(s, [&](auto* info) { return bh_pool_get_info(s.pool, info); });
     }},
    {"bh_pool_list_hosts", [](Scene& s) { return list<bh_host_info>(s, bh_pool_list_hosts); },
     reads(), [](Scene& s) { misuse_list<bh_host_info>(s, bh_pool_list_hosts); }},
    {"bh_pool_list_namespaces",
     [](Scene& s) { return list<bh_namespace_info>(s, bh_pool_list_namespaces); }, reads(),
     [](Scene& s) { misuse_list<bh_namespace_info>(s, bh_pool_list_namespaces); }},
    {"bh_pool_list_blocks", [](Scene& s) { return list<bh_block_info>(s, bh_pool_list_blocks); },
     reads(), [](Scene& s) { misuse_list<bh_block_info>(s, bh_pool_list_blocks); }},
    {"bh_pool_check",
     [](Scene& s) {
       auto out = sized<bh_check_report>();
       const auto note = [](void* context, int, const char* sentence) {
         *static_cast<std::string*>(context) += sentence;
       };
       std::string findings;
       const bh_status status = bh_pool_check(s.pool, 1, note, &findings, &out);
       if (out.data_lost != 0) s.faults.push_back(findings);
       return status;
     },
     reads(),
     [](Scene& s) {
       auto out = sized<bh_check_report>();
       EXPECT_INVALID(bh_pool_check(nullptr, 0, nullptr, nullptr, &out));
       misuse_struct<bh_check_report>(
           s, [&](auto* report) { return bh_pool_check(s.pool, 0, nullptr, nullptr, report); });
     }},
    {"bh_pool_scavenge",
     [](Scene& s) {
       uint64_t found = 0;
       return bh_pool_scavenge(s.pool, &found);
     },
     stores(BH_OK, BH_OK, BH_OK, BH_OK),
     [](Scene& s) {
       EXPECT_INVALID(bh_pool_scavenge(nullptr, nullptr));
       EXPECT_STATUS(bh_pool_scavenge(s.pool, nullptr), BH_OK);
     }},
    // These end the handle, and so they come last.
    {"bh_pool_leave", [](Scene& s) { return bh_pool_leave(s.pool); },
     but(but(reads(), OBSERVING, BH_READ_ONLY), DESTROYED, BH_CLOSED),
     [](Scene& s) { EXPECT_INVALID(bh_pool_leave(nullptr)); }},
    {"bh_pool_close",
     [](Scene& s) {
       bh_pool_close(std::exchange(s.pool, nullptr));
       return BH_OK;
     },
     same(BH_OK), [](Scene&) { bh_pool_close(nullptr); }},
};
constexpr size_t kFunctionCount = std::size(kFunctions);

TEST(AbiTable, EveryFunctionOfTheHeaderHasARow) {
  std::ifstream in(BOWHEAD_HEADER);
  ASSERT_TRUE(in) << BOWHEAD_HEADER;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::regex name("\\bbh_[a-z_]+(?=\\()");
  std::set<std::string> declared, listed;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
    declared.insert(at->str());
  for (const Function& function : kFunctions) listed.insert(function.name);
  EXPECT_GT(declared.size(), 20u) << "the header is no longer read";
  EXPECT_EQ(listed, declared);
}

/// The statuses that the header lists.
struct Documented {
  std::set<std::string> anywhere;    ///< for any function
  std::set<std::string> of_storing;  ///< for functions that store, lease or remove
  std::map<std::string, std::set<std::string>> of_function;

  bool contains(const Function& function, bh_status status) const {
    const std::string name = std::string("BH_") + bh_status_name(status);
    // Its general reasons are those of EXPECT_INVALID(); each function lists its own.
    const bool general = status != BH_INVALID_ARGUMENT && anywhere.count(name) != 0;
    return status == BH_OK || general || (function.stores() && of_storing.count(name) != 0) ||
           of_function.at(function.name).count(name) != 0;
  }
};

const Documented& documented() {
  static const Documented read = [] {
    std::ifstream in(BOWHEAD_HEADER);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const size_t any = text.find("any function may return"), storing = text.find("may also return");
    const auto statuses = [&](size_t from, size_t to) {
      std::set<std::string> found;
      const std::string part = text.substr(from, to - from);
      const std::regex status("BH_[A-Z_]+");
      for (std::sregex_iterator at(part.begin(), part.end(), status), end; at != end; ++at)
        found.insert(at->str());
      return found;
    };
    BOWHEAD_ASSERT(any != std::string::npos && storing != std::string::npos && any < storing);
    return Documented{statuses(any, storing), statuses(storing, text.find("*/", storing)),
                      documented_statuses(text)};
  }();
  return read;
}

void Scene::expect_documented(const char* call, bh_status got, bh_status wanted) {
  expect(call, got, wanted);
  if (!documented().contains(*function, got))
    faults.push_back(fmt::format("{}: {} is not documented", call, bh_status_name(got)));
}

/// The header lists every status that a program must expect.
TEST(AbiTable, EveryAnswerIsDocumented) {
  EXPECT_EQ(documented().anywhere.count("BH_FORKED"), 1u) << "no longer read";
  EXPECT_EQ(documented().of_storing.count("BH_READ_ONLY"), 1u) << "no longer read";
  EXPECT_EQ(documented().of_function.at("bh_commit_summed").count("BH_INDEX_FULL"), 1u)
      << "no longer read";
  for (const Function& function : kFunctions) {
    for (const bh_status answer : function.answers) {
      EXPECT_TRUE(documented().contains(function, answer))
          << function.name << ": " << bh_status_name(answer);
    }
  }
}

// ---- the states ----

/// Other processes that create a state: each receives a start signal, answers, and keeps the state
/// until it is killed.
class Companion {
 public:
  explicit Companion(const std::function<bool()>& work) {
    int ends[2];
    BOWHEAD_ASSERT(pipe(ends) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char done = work() ? 'y' : 'n';
      (void)!write(ends[1], &done, 1);
      for (;;) pause();
    }
    close(ends[1]);
    char done = 0;
    worked_ = read(ends[0], &done, 1) == 1 && done == 'y';
    close(ends[0]);
  }
  ~Companion() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

  bool worked() const { return worked_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool worked_ = false;
};

/// Takes the locks of all keys and of the table of namespaces, and stops.
bool hold_locks(const Scene& s) {
  auto media = open_media(s.locator);
  if (!media) return false;
  bh_superblock superblock;
  std::memcpy(&superblock, (*media)->base(), sizeof superblock);
  static auto handle = std::make_unique<NativeHandle>(s.locator, superblock);
  if (!handle->attach()) return false;
  uint32_t holder = 0;
  (void)handle->core().index().try_lock({UINT64_MAX, UINT64_MAX}, &holder);
  for (const Props& props : s.of_cells) {
    for (const std::string& key : {props.stored, props.absent, props.room_key[0]})
      (void)handle->core().index().try_lock(core::Key(s.ns, key).hash, &holder);
  }
  return true;
}

bool fill_leases(const Scene& s) {
  static auto opened = Pool::open(s.locator, {.host = 0});
  if (!opened) return false;
  Status last = Status::OK;
  while (last == Status::OK) last = opened->acquire(s.ns, s.of_cells[0].stored, 600'000).status();
  return last == Status::LIMIT_REACHED;
}

/// Host 1 is open, and sees host 0, which is stopped, declared dead.
bool declare_dead(const Scene& s, pid_t of_host_0) {
  static auto opened = Pool::open(s.locator, {.host = 1});
  if (!opened) return false;
  kill(of_host_0, SIGSTOP);
  const bool ended = eventually([&] { return opened->info()->hosts[0].state == "ended"; });
  kill(of_host_0, SIGCONT);
  return ended;
}

bool observe(const Scene& s) {
  static auto opened = Pool::open(s.locator, {.host = kAnyHost, .observe = true});
  return opened && opened->length(s.ns, s.of_cells[0].stored);
}

class AbiStates : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    scene_.locator = unique_locator();
    CreateOptions options;
    options.size_bytes = 64 << 20;
    options.hosts = one_host() ? 1 : 2;
    options.evict_high_permille = 0;
    options.times = kShortTimes;
    ASSERT_TRUE(Pool::create(scene_.locator, options));
  }
  void TearDown() override { (void)bh_pool_destroy(scene_.locator.c_str(), 1); }

  State state() const { return static_cast<State>(GetParam()); }
  bool one_host() const {
    return state() == FRESH || state() == BUSY || state() == LEASES_FULL || state() == POOL_FULL ||
           state() == DESTROYED;
  }

  /// In the child: starts the companions that keep the state; false if the state cannot be entered.
  bool enter(std::vector<std::unique_ptr<Companion>>& companions);
  /// Runs the cells from `first` on; for each, writes its faults and a zero byte to `to`.
  [[noreturn]] void run_cells(size_t first, int to);
  /// Returns the index after the last cell that was answered.
  size_t run_child(size_t first);

  Scene scene_;
};

bool AbiStates::enter(std::vector<std::unique_ptr<Companion>>& companions) {
  Scene& s = scene_;
  const auto join = [&](const std::function<bool()>& work) {
    companions.push_back(std::make_unique<Companion>(work));
    return companions.back()->worked();
  };
  if (bh_pool_open(s.locator.c_str(), 0, &s.pool) != BH_OK ||
      bh_namespace_open(s.pool, "states", "", &s.ns) != BH_OK)
    return false;
  s.of_cells.resize(kFunctionCount);
  for (size_t i = 0; i < kFunctionCount; ++i) {
    Props& own = s.of_cells[i];
    const std::string name = kFunctions[i].name;
    own.stored = name + " stored";
    own.absent = name + " absent";
    s.own = &own;
    bool ready = s.put(s.key()) == BH_OK;
    for (bh_lease* lease : {&own.lease, &own.misused_lease})
      ready = ready && bh_acquire(s.pool, s.ns, s.key(), 600'000, lease) == BH_OK;
    for (const int n : {0, 1}) {
      own.room_key[n] = fmt::format("{} room {}", name, n);
      const bh_key key = {own.room_key[n].data(), own.room_key[n].size()};
      bh_reservation* room = n == 0 ? &own.room : &own.misused_room;
      ready = ready && bh_reserve(s.pool, s.ns, key, kBytes, room) == BH_OK;
    }
    if (!ready) return false;
  }
  const auto entered = [&] {
    switch (state()) {
      case BUSY:
        return join([&] { return hold_locks(s); });
      case FENCED:
        return join([&, pid = getpid()] { return declare_dead(s, pid); });
      case OBSERVED:
        return join([&] { return observe(s); });
      case LEASES_FULL:
        return join([&] { return fill_leases(s); });
      case OBSERVING:
        s.closed_last = std::exchange(s.pool, nullptr);
        return bh_pool_observe(s.locator.c_str(), &s.pool) == BH_OK;
      case POOL_FULL: {
        bh_status last = BH_OK;
        for (int i = 0; last == BH_OK; ++i) {
          const std::string text = "fill " + std::to_string(i);
          last = s.put({text.data(), text.size()});
        }
        return last == BH_NO_SPACE;
      }
      case LEFT:
        return bh_pool_leave(s.pool) == BH_OK;
      case DESTROYED:
        return bh_pool_destroy(s.locator.c_str(), 1) == BH_OK;
      default:
        return true;
    }
  };
  return entered() && bh_queue_open(s.pool, nullptr, &s.queue) == BH_OK &&
         bh_events_open(s.pool, nullptr, &s.events) == BH_OK;
}

void AbiStates::run_cells(size_t first, int to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<std::unique_ptr<Companion>> companions;
  if (!enter(companions)) {
    fmt::print(stderr, "{} cannot be entered: {}\n", kStateNames[state()], bh_last_error());
    _exit(1);
  }
  // The child of a fork has the handle of its parent, which does not change meanwhile.
  if (state() == FORKED) {
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      waitpid(child, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  for (size_t i = first; i < kFunctionCount; ++i) {
    const Function& function = kFunctions[i];
    Scene& s = scene_;
    s.own = &s.of_cells[i];
    s.faults.clear();
    s.function = &function;
    if (state() == FRESH) function.misuse(s);
    const bh_status answered = function.call(s);
    s.expect(function.name, answered, function.answers[state()]);
    // The error must name the pool: it is the pool that is closed, not an argument of the call.
    if (state() == DESTROYED && answered == BH_CLOSED) s.expect_last_error("destroyed or replaced");
    const std::string answer = fmt::format("{}", fmt::join(s.faults, "; "));
    if (write(to, answer.c_str(), answer.size() + 1) < 0) _exit(1);
  }
  _exit(0);
}

size_t AbiStates::run_child(size_t first) {
  int ends[2];
  BOWHEAD_ASSERT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) run_cells(first, ends[1]);
  close(ends[1]);
  std::string text;
  size_t at = first;
  for (pollfd readable = {ends[0], POLLIN, 0}; at < kFunctionCount;) {
    char bytes[512];
    const bool in_time = poll(&readable, 1, kCellLimitMs) == 1;
    const ssize_t got = in_time ? read(ends[0], bytes, sizeof bytes) : 0;
    for (ssize_t i = 0; i < got; ++i) {
      if (bytes[i] != 0) {
        text += bytes[i];
        continue;
      }
      EXPECT_EQ(text, "") << kFunctions[at].name;
      text.clear();
      ++at;
    }
    if (got > 0) continue;
    ADD_FAILURE() << kFunctions[at].name << (in_time ? " crashed" : " hangs");
    ++at;
    break;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  return at;
}

TEST_P(AbiStates, EveryFunctionAnswersAsDocumented) {
#if defined(__SANITIZE_THREAD__)
  // It ends the child whose new thread has the id of a thread of the parent.
  if (state() == FORKED) GTEST_SKIP() << "ThreadSanitizer knows no threads of a forked child";
#endif
  for (size_t at = 0; at < kFunctionCount && !HasFatalFailure();) at = run_child(at);
}

/// Whether a file with this string in its name is mapped. Allocates nothing: AddressSanitizer's
/// allocator does not survive a fork while another thread allocates.
bool is_mapped(const char* name) {
  static char maps[1 << 20];
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  BOWHEAD_ASSERT(file >= 0);
  size_t size = 0;
  ssize_t got = 0;
  while ((got = read(file, maps + size, sizeof maps - 1 - size)) > 0)
    size += static_cast<size_t>(got);
  close(file);
  maps[size] = 0;
  BOWHEAD_ASSERT(size + 1 < sizeof maps);
  return std::strstr(maps, name) != nullptr;
}

/// Must work at any state of the parent's threads at the fork.
TEST(AbiFork, AChildClosesInheritedHandlesAndChangesNothingElse) {
  CreateOptions options;
  options.size_bytes = 48 << 20;
  options.hosts = 2;
  options.times = kShortTimes;
  Scene s;
  s.locator = unique_locator();
  ASSERT_TRUE(Pool::create(s.locator, options));
  ASSERT_EQ(bh_pool_open(s.locator.c_str(), 0, &s.pool), BH_OK) << bh_last_error();
  ASSERT_EQ(bh_namespace_open(s.pool, "fork", "", &s.ns), BH_OK) << bh_last_error();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !stop; ++i) {
        const std::string key = fmt::format("{} {}", t, i % 50);
        auto room = sized<bh_reservation>();
        if (bh_reserve(s.pool, s.ns, {key.data(), key.size()}, kBytes, &room) == BH_OK &&
            room.present == 0) {
          EXPECT_EQ(bh_commit(s.pool, &room), BH_OK) << bh_last_error();
        }
        (void)bh_remove(s.pool, s.ns, {key.data(), key.size()});
      }
    });
  }
  const std::string object = "bowhead-" + s.locator.substr(4);
  for (int round = 0; round < 30; ++round) {
    const int status = in_child([&] {
      alarm(kCellLimitMs / 1000);
      bh_pool_close(s.pool);
      return is_mapped(object.c_str()) ? 1 : 0;
    });
    EXPECT_EQ(status, 0) << (status == 128 + SIGALRM ? "hangs" : "crashed, or is mapped still");
    if (status != 0) break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(s.put({"after", 5}), BH_OK) << bh_last_error();
  bh_pool_close(s.pool);
  EXPECT_EQ(bh_pool_destroy(s.locator.c_str(), 0), BH_OK) << bh_last_error();
}

INSTANTIATE_TEST_SUITE_P(In, AbiStates, ::testing::Range<int>(0, STATES),
                         [](const auto& of) { return kStateNames[of.param]; });

}  // namespace
}  // namespace bowhead::test
