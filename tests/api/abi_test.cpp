// SPDX-License-Identifier: Apache-2.0
// The code of the C ABI itself: arguments, handles, the text of the last error. The pool's
// behaviour is tested with the pool; c_program.c is a program that uses all of it.
#include <bowhead/bowhead.h>
#include <bowhead/format/superblock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/kv_layout.h"
#include "tests/api/structs.h"

namespace {

using bowhead::test::sized;

bh_key key_of(const std::string& text) { return {text.data(), text.size()}; }

bool error_contains(const char* part) { return std::strstr(bh_last_error(), part) != nullptr; }

#define EXPECT_REFUSED(call, argument)                        \
  do {                                                        \
    EXPECT_EQ(call, BH_INVALID_ARGUMENT);                     \
    EXPECT_TRUE(error_contains(argument)) << bh_last_error(); \
  } while (0)

bh_create_options options_of(uint64_t size_bytes) {
  bh_create_options options{};
  options.struct_bytes = sizeof options;
  options.size_bytes = size_bytes;
  return options;
}

class Abi : public ::testing::Test {
 protected:
  void SetUp() override {
    locator_ = "shm:bowhead-abi-test-" + std::to_string(getpid());
    const bh_create_options options = options_of(32u << 20);
    ASSERT_EQ(bh_pool_create(locator_.c_str(), &options), BH_OK) << bh_last_error();
    ASSERT_EQ(bh_pool_open(locator_.c_str(), 0, &pool_), BH_OK) << bh_last_error();
    ASSERT_EQ(bh_namespace_open(pool_, "test", "bytes", &ns_), BH_OK) << bh_last_error();
  }
  void TearDown() override {
    bh_pool_close(pool_);
    EXPECT_EQ(bh_pool_destroy(locator_.c_str(), 0), BH_OK) << bh_last_error();
  }

  bh_status put(const std::string& key, const std::string& value) {
    const bh_const_iovec piece = {value.data(), value.size()};
    return bh_put(pool_, ns_, key_of(key), &piece, 1);
  }

  std::string locator_;
  bh_pool* pool_ = nullptr;
  bh_namespace_id ns_ = 0;
};

bh_namespace_options keys_of(uint32_t profile) {
  bh_namespace_options options{};
  options.struct_bytes = sizeof options;
  options.profile = profile;
  options.layout.number_format = BH_NUMBER_BF16;
  options.layout.parts = 1;
  options.layout.layers = 1;
  options.layout.heads = 2;
  options.layout.key_channels = 64;
  options.layout.rotary = BH_ROTARY_HALVES;
  options.layout.rotary_channels = 64;
  options.layout.rotary_base_thousandths = 500'000'000;
  return options;
}

TEST_F(Abi, ANamespaceMayBeCompressed) {
  const bh_namespace_options keys = keys_of(BH_PROFILE_FAST), other = keys_of(BH_PROFILE_DENSE);
  bh_namespace_options wider = keys;
  wider.layout.key_channels = 128;
  bh_namespace_id again = 0;
  ASSERT_EQ(bh_namespace_open_with(pool_, "keys", "", &keys, &ns_), BH_OK) << bh_last_error();
  EXPECT_EQ(bh_namespace_open_with(pool_, "keys", "", &keys, &again), BH_OK);
  EXPECT_EQ(again, ns_);
  EXPECT_EQ(bh_namespace_open(pool_, "keys", "", &again), BH_OK);
  EXPECT_EQ(again, ns_);
  EXPECT_EQ(bh_namespace_open_with(pool_, "keys", "", &other, &again), BH_NAMESPACE_MISMATCH);
  EXPECT_TRUE(error_contains("'fast', not 'dense'")) << bh_last_error();
  EXPECT_EQ(bh_namespace_open_with(pool_, "keys", "", &wider, &again), BH_LAYOUT_MISMATCH);
  EXPECT_TRUE(error_contains("key_channels is 64, not 128")) << bh_last_error();

  const std::string value(200'000, 'v');
  ASSERT_EQ(put("k", value), BH_OK) << bh_last_error();
  std::string out(value.size(), '\0');
  const bh_iovec piece = {out.data(), out.size()};
  uint64_t length_bytes = 0;
  ASSERT_EQ(bh_get(pool_, ns_, key_of("k"), &piece, 1, &length_bytes), BH_OK) << bh_last_error();
  EXPECT_EQ(length_bytes, value.size());
  EXPECT_EQ(out, value);
  auto lease = sized<bh_lease>();
  EXPECT_EQ(bh_acquire(pool_, ns_, key_of("k"), 1000, &lease), BH_CODED);
  ASSERT_EQ(bh_acquire_stored(pool_, ns_, key_of("k"), 1000, &lease), BH_OK) << bh_last_error();
  EXPECT_EQ(lease.codec, uint32_t{BH_CODEC_FRAME});
  EXPECT_EQ(lease.length_bytes, value.size());
  EXPECT_LT(lease.stored_bytes, value.size());
  EXPECT_EQ(std::memcmp(lease.layout, &keys.layout, sizeof keys.layout), 0);
  EXPECT_EQ(bh_release(pool_, &lease), BH_OK);
}

TEST_F(Abi, NamespaceOptionsAreChecked) {
  bh_namespace_id id = 0;
  const auto open = [&](const bh_namespace_options& options) {
    return bh_namespace_open_with(pool_, "new", "", &options, &id);
  };
  EXPECT_REFUSED(bh_namespace_open_with(pool_, "new", "", nullptr, &id), "'options'");
  bh_namespace_options bad = keys_of(BH_PROFILE_FAST);
  bad.struct_bytes = sizeof bad - 1;
  EXPECT_REFUSED(open(bad), "struct_bytes");
  for (const uint32_t profile : {4u, 255u, 256u, 257u, UINT32_MAX})
    EXPECT_REFUSED(open(keys_of(profile)), ("profile " + std::to_string(profile)).c_str());
  bad = keys_of(BH_PROFILE_FAST);
  bad.layout.number_format = 57;
  EXPECT_REFUSED(open(bad), "number_format is 57");
  bad = keys_of(BH_PROFILE_FAST);
  bad.layout.rotary_channels = 96;
  EXPECT_REFUSED(open(bad), "rotary embedding ends at channel 96");
  bad = keys_of(BH_PROFILE_FAST);
  bad.layout.rotary_base_thousandths = 500;
  EXPECT_REFUSED(open(bad), "rotary_base");
  bad = keys_of(BH_PROFILE_FAST);
  bad.layout.parts = 2;
  bad.layout.value_channels = 32;
  EXPECT_EQ(open(bad), BH_NOT_SUPPORTED);
  EXPECT_TRUE(error_contains("keys have 64 channels and values 32")) << bh_last_error();
  bad.profile = BH_PROFILE_NONE;
  EXPECT_EQ(open(bad), BH_OK) << bh_last_error();
  bh_namespace_options plain{};
  plain.struct_bytes = sizeof plain;
  EXPECT_EQ(bh_namespace_open_with(pool_, "plain", "", &plain, &id), BH_OK) << bh_last_error();
}

// Of all 64 bytes, those that this version does not use included: against a namespace that has this
// layout, and where the caller leaves the layout to the namespace.
TEST_F(Abi, ALayoutThatDiffersInAnyByteIsRefused) {
  const bh_namespace_options keys = keys_of(BH_PROFILE_NONE);
  bh_namespace_options any{};
  any.struct_bytes = sizeof any;
  bh_namespace_id id = 0;
  ASSERT_EQ(bh_namespace_open_with(pool_, "keys", "", &keys, &id), BH_OK) << bh_last_error();
  ASSERT_EQ(bh_namespace_open_with(pool_, "keys", "", &any, &id), BH_OK) << bh_last_error();
  for (size_t at = 0; at < sizeof(bh_kv_layout); ++at) {
    const bool is_reserved =
        at == offsetof(bh_kv_layout, reserved0) || at >= offsetof(bh_kv_layout, reserved);
    for (bh_namespace_options other : {keys, any}) {
      reinterpret_cast<unsigned char*>(&other.layout)[at] ^= 1;
      const bh_status status = bh_namespace_open_with(pool_, "keys", "", &other, &id);
      if (is_reserved) {
        EXPECT_EQ(status, BH_NOT_SUPPORTED) << "byte " << at;
      } else {
        EXPECT_TRUE(status == BH_LAYOUT_MISMATCH || status == BH_INVALID_ARGUMENT)
            << "byte " << at << ": " << bh_status_name(status);
      }
      EXPECT_TRUE(error_contains("layout")) << "byte " << at << ": " << bh_last_error();
    }
  }
}

TEST(AbiLayout, TellsTokensAndRows) {
  // 2 layers of K and V, 3 heads: 64 channels of K and 32 of V.
  bh_kv_layout layout = bowhead::pairs_layout(bowhead::NumberFormat::BF16, 2, 3, 64);
  layout.value_channels = 32;
  EXPECT_EQ(bh_layout_row_bytes(&layout, 0), 128u);
  EXPECT_EQ(bh_layout_row_bytes(&layout, 1), 64u);
  EXPECT_EQ(bh_layout_row_bytes(&layout, 2), 0u);
  constexpr uint64_t kToken = 2 * 3 * (128 + 64);
  EXPECT_EQ(bh_layout_tokens(&layout, 16 * kToken), 16u);
  EXPECT_EQ(bh_layout_tokens(&layout, 16 * kToken + 2), 0u);
  EXPECT_EQ(bh_layout_tokens(&layout, 0), 0u);
  layout.parts = 1;
  layout.value_channels = 0;
  EXPECT_EQ(bh_layout_row_bytes(&layout, 1), 0u);
  EXPECT_EQ(bh_layout_tokens(&layout, uint64_t{5} * 2 * 3 * 128), 5u);
  layout.value_channels = 32;  // latent attention: the first of the keys
  EXPECT_EQ(bh_layout_row_bytes(&layout, 1), 64u);
  EXPECT_EQ(bh_layout_tokens(&layout, uint64_t{5} * 2 * 3 * 128), 5u);
  for (uint16_t* field : {&layout.heads, &layout.layers, &layout.key_channels}) {
    const uint16_t before = std::exchange(*field, uint16_t{0});  // no block has such a layout
    EXPECT_EQ(bh_layout_tokens(&layout, kToken), 0u);
    EXPECT_EQ(bh_layout_row_bytes(&layout, 0), 0u);
    *field = before;
  }
}

TEST(AbiStatus, NamesEveryNumberAndOthersToo) {
  EXPECT_STREQ(bh_status_name(BH_OK), "OK");
  EXPECT_STREQ(bh_status_name(BH_LAPSED), "LAPSED");
  volatile int other = 1000;  // as a C program may pass it
  EXPECT_STREQ(bh_status_name(static_cast<bh_status>(other)), "UNKNOWN");
  EXPECT_STREQ(bh_status_text(static_cast<bh_status>(other)), "unknown status");
  EXPECT_GT(std::strlen(bh_status_text(BH_NO_SPACE)), 10u);
}

TEST(AbiCreate, RefusesNullArguments) {
  const bh_create_options options = options_of(32u << 20);
  EXPECT_REFUSED(bh_pool_create(nullptr, &options), "'locator'");
  EXPECT_REFUSED(bh_pool_create("shm:x", nullptr), "'options'");
  bh_pool* pool = nullptr;
  EXPECT_REFUSED(bh_pool_open(nullptr, 0, &pool), "'locator'");
  EXPECT_REFUSED(bh_pool_open("shm:x", 0, nullptr), "'out'");
  EXPECT_REFUSED(bh_pool_destroy(nullptr, 1), "'locator'");
  bh_pool_close(nullptr);
}

TEST(AbiCreate, RefusesOptionsOfUnknownSize) {
  bh_create_options options = options_of(32u << 20);
  options.struct_bytes = 0;
  EXPECT_REFUSED(bh_pool_create("shm:bowhead-never", &options), "struct_bytes");
  options.struct_bytes = 47;  // the first version had 48
  EXPECT_REFUSED(bh_pool_create("shm:bowhead-never", &options), "struct_bytes");
}

// A program built against the first header passes a shorter struct, followed by any other data.
TEST(AbiCreate, TakesShorterOptionsAndLooksNoFurther) {
  bh_create_options options = options_of(32u << 20);
  options.struct_bytes = 48;
  options.mode = 0777;
  options.reserved = 1;
  const std::string locator = "shm:bowhead-abi-earlier-" + std::to_string(getpid());
  EXPECT_EQ(bh_pool_create(locator.c_str(), &options), BH_OK) << bh_last_error();
  EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK) << bh_last_error();
}

TEST(AbiCreate, GivesThePoolItsMode) {
  bh_create_options options = options_of(32u << 20);
  const std::string name = "bowhead-abi-mode-" + std::to_string(getpid());
  const std::string locator = "shm:" + name;
  for (const uint32_t mode : {0u, 0640u}) {
    options.mode = mode;
    EXPECT_EQ(bh_pool_create(locator.c_str(), &options), BH_OK) << bh_last_error();
    struct stat info;
    ASSERT_EQ(stat(("/dev/shm/bowhead-" + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, mode == 0 ? 0600 : mode);
    EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK) << bh_last_error();
  }
  options.mode = 0666;
  EXPECT_REFUSED(bh_pool_create(locator.c_str(), &options), "0666");
}

// A program built against a later header passes a longer struct: allowed, as long as all members
// that this library does not know are zero.
TEST(AbiCreate, TakesLongerOptionsOnlyIfTheRestIsZero) {
  struct Later {
    bh_create_options options;
    uint64_t member_of_later;
  } later{options_of(32u << 20), 0};
  later.options.struct_bytes = sizeof later;
  const std::string locator = "shm:bowhead-abi-later-" + std::to_string(getpid());
  EXPECT_EQ(bh_pool_create(locator.c_str(), &later.options), BH_OK) << bh_last_error();
  EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK) << bh_last_error();

  later.member_of_later = 1;
  EXPECT_EQ(bh_pool_create(locator.c_str(), &later.options), BH_NOT_SUPPORTED);
  EXPECT_TRUE(error_contains("byte 88")) << bh_last_error();
  EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_NO_SUCH_POOL);
}

// No option needs another one to be set with it: at the ends of its range and in between.
TEST(AbiCreate, TakesEachOptionAlone) {
  using Options = bh_create_options;
  const std::pair<uint32_t Options::*, std::vector<uint32_t>> settings[] = {
      {&Options::hosts, {1, 2}},
      {&Options::evict_high_permille, {1, 2, 20, 21, 500, 959, 960, 1000}},
      {&Options::evict_low_permille, {1, 500, 980}},
      {&Options::no_eviction, {1}},
      {&Options::replace, {1}},
      {&Options::mode, {0600, 0640}},
      {&Options::heartbeat_ms, {1, 600}},
      {&Options::dead_ms, {500, 600'000}},
      {&Options::grace_ms, {1, 600'000}},
      {&Options::settle_ms, {1, 300}},
      {&Options::reclaim_ms, {1, 600'000}},
      {&Options::no_reclaim, {1}}};
  const std::string locator = "shm:bowhead-abi-alone-" + std::to_string(getpid());
  int number = 0;
  for (const auto& [member, values] : settings) {
    for (const uint32_t value : values) {
      bh_create_options options = options_of(48u << 20);
      options.*member = value;
      ASSERT_EQ(bh_pool_create(locator.c_str(), &options), BH_OK)
          << "setting " << number << " is " << value << ": " << bh_last_error();
      bh_pool* pool = nullptr;
      auto info = sized<bh_pool_info>();
      ASSERT_EQ(bh_pool_observe(locator.c_str(), &pool), BH_OK) << bh_last_error();
      EXPECT_EQ(bh_pool_get_info(pool, &info), BH_OK) << bh_last_error();
      bh_pool_close(pool);
      EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK) << bh_last_error();
      const uint32_t high = options.no_eviction != 0 ? 0 : 980;
      EXPECT_EQ(info.evict_high_permille,
                options.evict_high_permille != 0 ? options.evict_high_permille : high);
      EXPECT_EQ(info.evict_low_permille == 0, info.evict_high_permille == 0);
      EXPECT_LE(info.evict_low_permille, info.evict_high_permille);
    }
    ++number;
  }
}

TEST(AbiCreate, TakesAMaximumSize) {
  bh_create_options options = options_of(48u << 20);
  options.max_bytes = 1u << 30;
  const std::string locator = "shm:bowhead-abi-max-" + std::to_string(getpid());
  ASSERT_EQ(bh_pool_create(locator.c_str(), &options), BH_OK) << bh_last_error();
  bh_pool* pool = nullptr;
  auto info = sized<bh_pool_info>();
  ASSERT_EQ(bh_pool_observe(locator.c_str(), &pool), BH_OK) << bh_last_error();
  EXPECT_EQ(bh_pool_get_info(pool, &info), BH_OK) << bh_last_error();
  EXPECT_EQ(info.max_bytes, 1u << 30);
  EXPECT_EQ(info.size_bytes, 48u << 20);
  EXPECT_EQ(info.compat, BH_FEATURE_RINGS);
  EXPECT_EQ(info.incompat, BH_FEATURE_GROWTH);
  EXPECT_EQ(info.ro_compat, BH_FEATURE_WIPING);
  bh_pool_close(pool);
  EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK) << bh_last_error();
}

TEST(AbiCreate, PassesThePoolsOwnRefusalsThrough) {
  bh_create_options options = options_of(1u << 20);
  EXPECT_EQ(bh_pool_create("shm:bowhead-never", &options), BH_TOO_SMALL);
  options.size_bytes = 32u << 20;
  EXPECT_EQ(bh_pool_create("nonsense", &options), BH_BAD_LOCATOR);
  EXPECT_TRUE(error_contains("nonsense")) << bh_last_error();
  bh_pool* pool = nullptr;
  EXPECT_EQ(bh_pool_open("shm:bowhead-no-such-pool", 0, &pool), BH_NO_SUCH_POOL);
  EXPECT_EQ(pool, nullptr);
  EXPECT_EQ(bh_pool_destroy("shm:bowhead-no-such-pool", 0), BH_NO_SUCH_POOL);
}

TEST_F(Abi, RefusesNullPool) {
  const bh_key key = {"k", 1};
  const bh_const_iovec in = {"v", 1};
  const bh_iovec out = {&ns_, sizeof ns_};
  uint64_t length = 0;
  size_t prefix = 0;
  uint8_t present = 0;
  const void* base = nullptr;
  bh_namespace_id ns = 0;
  auto reservation = sized<bh_reservation>();
  auto lease = sized<bh_lease>();
  EXPECT_REFUSED(bh_pool_mapping(nullptr, &base, &length), "'pool'");
  EXPECT_REFUSED(bh_namespace_open(nullptr, "a", "b", &ns), "'pool'");
  EXPECT_REFUSED(bh_put(nullptr, ns_, key, &in, 1), "'pool'");
  EXPECT_REFUSED(bh_get(nullptr, ns_, key, &out, 1, &length), "'pool'");
  EXPECT_REFUSED(bh_exists(nullptr, ns_, &key, 1, &present), "'pool'");
  EXPECT_REFUSED(bh_longest_prefix(nullptr, ns_, &key, 1, &prefix), "'pool'");
  EXPECT_REFUSED(bh_reserve(nullptr, ns_, key, 1, &reservation), "'pool'");
  EXPECT_REFUSED(bh_commit(nullptr, &reservation), "'pool'");
  EXPECT_REFUSED(bh_commit_unverified(nullptr, &reservation), "'pool'");
  EXPECT_REFUSED(bh_abort(nullptr, &reservation), "'pool'");
  EXPECT_REFUSED(bh_acquire(nullptr, ns_, key, 1000, &lease), "'pool'");
  EXPECT_REFUSED(bh_release(nullptr, &lease), "'pool'");
  EXPECT_REFUSED(bh_remove(nullptr, ns_, key), "'pool'");
  EXPECT_REFUSED(bh_touch(nullptr, ns_, &key, 1), "'pool'");
}

TEST_F(Abi, RefusesNullArguments) {
  const bh_key key = {"k", 1};
  const bh_iovec out = {&ns_, sizeof ns_};
  uint64_t length = 0;
  uint8_t present = 0;
  size_t prefix = 0;
  const void* base = nullptr;
  bh_namespace_id ns = 0;
  EXPECT_REFUSED(bh_pool_mapping(pool_, nullptr, &length), "'base'");
  EXPECT_REFUSED(bh_pool_mapping(pool_, &base, nullptr), "'size_bytes'");
  EXPECT_REFUSED(bh_namespace_open(pool_, nullptr, "b", &ns), "'name'");
  EXPECT_REFUSED(bh_namespace_open(pool_, "a", nullptr, &ns), "'description'");
  EXPECT_REFUSED(bh_namespace_open(pool_, "a", "b", nullptr), "'out'");
  EXPECT_REFUSED(bh_put(pool_, ns_, key, nullptr, 1), "'value'");
  EXPECT_REFUSED(bh_get(pool_, ns_, key, nullptr, 1, &length), "'buffers'");
  EXPECT_REFUSED(bh_get(pool_, ns_, key, &out, 1, nullptr), "'length_bytes'");
  EXPECT_REFUSED(bh_exists(pool_, ns_, nullptr, 1, &present), "'keys'");
  EXPECT_REFUSED(bh_exists(pool_, ns_, &key, 1, nullptr), "'present'");
  EXPECT_REFUSED(bh_longest_prefix(pool_, ns_, nullptr, 1, &prefix), "'keys'");
  EXPECT_REFUSED(bh_longest_prefix(pool_, ns_, &key, 1, nullptr), "'length'");
  EXPECT_REFUSED(bh_touch(pool_, ns_, nullptr, 1), "'keys'");
  EXPECT_REFUSED(bh_reserve(pool_, ns_, key, 1, nullptr), "'out'");
  EXPECT_REFUSED(bh_commit(pool_, nullptr), "'reservation'");
  EXPECT_REFUSED(bh_commit_unverified(pool_, nullptr), "'reservation'");
  EXPECT_REFUSED(bh_abort(pool_, nullptr), "'reservation'");
  EXPECT_REFUSED(bh_acquire(pool_, ns_, key, 1000, nullptr), "'out'");
  EXPECT_REFUSED(bh_release(pool_, nullptr), "'lease'");
}

TEST_F(Abi, RefusesKeysAndPiecesWithoutMemory) {
  const bh_key good = {"k", 1};
  const bh_key bad = {nullptr, 3};
  const bh_key keys[2] = {good, bad};
  const bh_const_iovec in[2] = {{"v", 1}, {nullptr, 5}};
  const bh_iovec out[2] = {{nullptr, 0}, {nullptr, 7}};
  uint8_t present[2] = {};
  uint64_t length = 0;
  size_t prefix = 0;
  auto reservation = sized<bh_reservation>();
  auto lease = sized<bh_lease>();
  EXPECT_REFUSED(bh_put(pool_, ns_, bad, in, 1), "key.data");
  EXPECT_REFUSED(bh_put(pool_, ns_, good, in, 2), "value[1]");
  EXPECT_REFUSED(bh_get(pool_, ns_, bad, nullptr, 0, &length), "key.data");
  EXPECT_REFUSED(bh_get(pool_, ns_, good, out, 2, &length), "buffers[1]");
  EXPECT_REFUSED(bh_exists(pool_, ns_, keys, 2, present), "keys[1]");
  EXPECT_REFUSED(bh_longest_prefix(pool_, ns_, keys, 2, &prefix), "keys[1]");
  EXPECT_REFUSED(bh_touch(pool_, ns_, keys, 2), "keys[1]");
  EXPECT_REFUSED(bh_reserve(pool_, ns_, bad, 1, &reservation), "key.data");
  EXPECT_REFUSED(bh_acquire(pool_, ns_, bad, 1000, &lease), "key.data");
  EXPECT_REFUSED(bh_remove(pool_, ns_, bad), "key.data");
}

TEST_F(Abi, PassesThePoolsRefusalsThrough) {
  const std::string long_key(513, 'k');
  auto reservation = sized<bh_reservation>();
  auto lease = sized<bh_lease>();
  EXPECT_EQ(put("", "v"), BH_KEY_TOO_LONG);
  EXPECT_EQ(put(long_key, "v"), BH_KEY_TOO_LONG);
  EXPECT_EQ(put("k", ""), BH_VALUE_TOO_LARGE);
  EXPECT_EQ(bh_put(pool_, ns_, key_of("k"), nullptr, 0), BH_VALUE_TOO_LARGE);
  EXPECT_EQ(bh_reserve(pool_, ns_, key_of("k"), 0, &reservation), BH_VALUE_TOO_LARGE);
  EXPECT_EQ(bh_reserve(pool_, ns_, key_of("k"), uint64_t{1} << 40, &reservation),
            BH_VALUE_TOO_LARGE);
  ASSERT_EQ(put("k", "v"), BH_OK);
  EXPECT_EQ(bh_acquire(pool_, ns_, key_of("k"), 0, &lease), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_acquire(pool_, ns_, key_of("k"), 600001, &lease), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_remove(pool_, ns_, key_of("absent")), BH_NOT_FOUND);
  EXPECT_GT(std::strlen(bh_last_error()), 10u);
  bh_namespace_id ns = 0;
  EXPECT_EQ(bh_namespace_open(pool_, "", "x", &ns), BH_INVALID_ARGUMENT);
}

TEST_F(Abi, UserMetadataAndAttributesComeBack) {
  const std::string user = "made by a test";
  auto options = sized<bh_put_options>();
  options.user_metadata = user.data();
  options.user_bytes = user.size();
  const bh_const_iovec value = {"value", 5};
  ASSERT_EQ(bh_put_with(pool_, ns_, key_of("put"), &value, 1, &options), BH_OK);
  auto room = sized<bh_reservation>();
  ASSERT_EQ(bh_reserve_with(pool_, ns_, key_of("reserved"), 5, &options, &room), BH_OK);
  ASSERT_EQ(bh_commit(pool_, &room), BH_OK);
  ASSERT_EQ(put("plain", "value"), BH_OK);
  auto attributes = sized<bh_attributes>();
  attributes.priority = 200;
  attributes.pins = BH_PIN_HARD;
  attributes.forks = 3;
  attributes.expires_unix_s = 4'000'000'000;
  attributes.group = 1ull << 63;
  ASSERT_EQ(bh_set_attributes(pool_, ns_, key_of("put"), &attributes), BH_OK);
  for (const char* key : {"put", "reserved", "plain"}) {
    const std::string text = key;
    const bool has_user = text != "plain";
    char seen[BH_USER_BYTES_MAX] = "";
    auto block = sized<bh_block_info>();
    ASSERT_EQ(bh_describe(pool_, ns_, key_of(text), seen, &block), BH_OK);
    EXPECT_EQ(block.user_bytes, has_user ? user.size() : 0);
    EXPECT_EQ(std::string(seen, block.user_bytes), has_user ? user : "");
    EXPECT_EQ(block.length_bytes, 5u);
    EXPECT_EQ(block.attributes.priority, text == "put" ? 200u : 0u);
    EXPECT_EQ(block.attributes.pins, text == "put" ? uint32_t{BH_PIN_HARD} : 0u);
    EXPECT_EQ(block.attributes.forks, text == "put" ? 3u : 0u);
    EXPECT_EQ(block.attributes.expires_unix_s, text == "put" ? 4'000'000'000u : 0u);
    EXPECT_EQ(block.attributes.group, text == "put" ? 1ull << 63 : 0u);
  }
}

TEST_F(Abi, ReservedMembersAreZero) {
  const bh_const_iovec value = {"value", 5};
  auto options = sized<bh_put_options>();
  options.reserved = 1;
  EXPECT_EQ(bh_put_with(pool_, ns_, key_of("k"), &value, 1, &options), BH_NOT_SUPPORTED);
  auto room = sized<bh_reservation>();
  EXPECT_EQ(bh_reserve_with(pool_, ns_, key_of("k"), 5, &options, &room), BH_NOT_SUPPORTED);
  ASSERT_EQ(put("k", "value"), BH_OK);
  auto attributes = sized<bh_attributes>();
  attributes.reserved = 1;
  EXPECT_EQ(bh_set_attributes(pool_, ns_, key_of("k"), &attributes), BH_NOT_SUPPORTED);
  EXPECT_NE(std::string(bh_last_error()).find("reserved"), std::string::npos);
}

TEST_F(Abi, EmptyBatchesAreFine) {
  size_t prefix = 7;
  EXPECT_EQ(bh_exists(pool_, ns_, nullptr, 0, nullptr), BH_OK);
  EXPECT_EQ(bh_longest_prefix(pool_, ns_, nullptr, 0, &prefix), BH_OK);
  EXPECT_EQ(prefix, 0u);
  EXPECT_EQ(bh_touch(pool_, ns_, nullptr, 0), BH_OK);
}

TEST_F(Abi, OutputsStayAsTheyAreOnFailure) {
  uint64_t length = 11;
  auto reservation = sized<bh_reservation>();
  auto lease = sized<bh_lease>();
  reservation.internal = &reservation;
  lease.internal = 0x5A5A5A5A;
  const bh_reservation reservation_before = reservation;
  const bh_lease lease_before = lease;
  bh_pool* pool = pool_;
  EXPECT_EQ(bh_get(pool_, ns_, key_of("absent"), nullptr, 0, &length), BH_NOT_FOUND);
  EXPECT_EQ(bh_acquire(pool_, ns_, key_of("absent"), 1000, &lease), BH_NOT_FOUND);
  EXPECT_EQ(bh_reserve(pool_, ns_, key_of("k"), 0, &reservation), BH_VALUE_TOO_LARGE);
  EXPECT_EQ(bh_pool_open("shm:bowhead-no-such-pool", 0, &pool), BH_NO_SUCH_POOL);
  EXPECT_EQ(length, 11u);
  EXPECT_EQ(std::memcmp(&reservation, &reservation_before, sizeof reservation), 0);
  EXPECT_EQ(std::memcmp(&lease, &lease_before, sizeof lease), 0);
  EXPECT_EQ(pool, pool_);
}

// A program built against a later header passes a longer struct, uninitialised but for its size:
// members that this library does not know are zero afterwards, and nothing behind is touched.
template <class T, class Call>
void expect_rest_is_zero(Call call) {
  struct Later {
    T known;
    unsigned char members_of_later[64];
    unsigned char behind[8];
  } of;
  std::memset(&of, 0xA5, sizeof of);
  of.known.struct_bytes = offsetof(Later, behind);
  ASSERT_EQ(call(&of.known), BH_OK) << bh_last_error();
  EXPECT_EQ(of.known.struct_bytes, offsetof(Later, behind));
  for (const unsigned char byte : of.members_of_later) EXPECT_EQ(byte, 0);
  for (const unsigned char byte : of.behind) EXPECT_EQ(byte, 0xA5);
}

TEST_F(Abi, OutputsOfALaterVersionEndWithZeros) {
  ASSERT_EQ(put("k", "value"), BH_OK) << bh_last_error();
  expect_rest_is_zero<bh_namespace_options>(
      [&](auto* out) { return bh_namespace_get_options(pool_, ns_, out); });
  expect_rest_is_zero<bh_reservation>([&](auto* out) {
    return bh_reserve(pool_, ns_, {"new", 3}, 100, out);
  });
  expect_rest_is_zero<bh_lease>([&](auto* out) {
    return bh_acquire(pool_, ns_, {"k", 1}, 60'000, out);
  });
  expect_rest_is_zero<bh_lease>([&](auto* out) {
    return bh_acquire_stored(pool_, ns_, {"k", 1}, 60'000, out);
  });
  expect_rest_is_zero<bh_pool_info>([&](auto* out) { return bh_pool_get_info(pool_, out); });
  expect_rest_is_zero<bh_check_report>(
      [&](auto* out) { return bh_pool_check(pool_, 0, nullptr, nullptr, out); });
  expect_rest_is_zero<bh_recompress_report>(
      [&](auto* out) { return bh_pool_recompress(pool_, 0, out); });
}

TEST_F(Abi, EndedReservationsAreClosedAlsoThroughACopy) {
  auto room = sized<bh_reservation>();
  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("a"), 100, &room), BH_OK);
  bh_reservation copy = room;
  std::memset(room.data, 'x', 100);
  EXPECT_EQ(bh_commit(pool_, &room), BH_OK);
  EXPECT_EQ(room.data, nullptr);
  EXPECT_EQ(bh_commit(pool_, &room), BH_CLOSED);
  EXPECT_EQ(bh_abort(pool_, &copy), BH_CLOSED);

  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("b"), 100, &room), BH_OK);
  EXPECT_EQ(bh_abort(pool_, &copy), BH_CLOSED);  // an old number never denotes a new reservation
  EXPECT_EQ(bh_abort(pool_, &room), BH_OK);
  EXPECT_EQ(bh_abort(pool_, &room), BH_CLOSED);

  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("a"), 100, &room), BH_OK);
  EXPECT_EQ(room.present, 1u);
  EXPECT_EQ(bh_commit(pool_, &room), BH_CLOSED);
  EXPECT_TRUE(error_contains("bh_commit")) << bh_last_error();
}

// CLOSED only while no later lease has the place of the first one in the table.
TEST_F(Abi, EndedLeasesAreClosedOrLapsedThroughACopy) {
  ASSERT_EQ(put("k", "value"), BH_OK);
  auto first = sized<bh_lease>(), second = first;
  ASSERT_EQ(bh_acquire(pool_, ns_, key_of("k"), 60'000, &first), BH_OK);
  bh_lease copy = first, late_copy = first;
  EXPECT_EQ(bh_release(pool_, &first), BH_OK);
  EXPECT_EQ(bh_release(pool_, &copy), BH_CLOSED);
  ASSERT_EQ(bh_acquire(pool_, ns_, key_of("k"), 60'000, &second), BH_OK);
  EXPECT_EQ(bh_release(pool_, &late_copy), BH_LAPSED);
  EXPECT_EQ(bh_release(pool_, &first), BH_CLOSED);
  EXPECT_EQ(bh_release(pool_, &second), BH_OK) << "the copy of another lease ended it";
}

// The bytes stay, and so a reader may finish; what it computed is to be discarded all the same.
TEST_F(Abi, ALeaseOfARemovedBlockKeepsItsBytesAndLapses) {
  const std::string value(20'000, 'v');
  ASSERT_EQ(put("k", value), BH_OK);
  auto lease = sized<bh_lease>();
  ASSERT_EQ(bh_acquire(pool_, ns_, key_of("k"), 60'000, &lease), BH_OK);
  ASSERT_EQ(bh_remove(pool_, ns_, key_of("k")), BH_OK);
  ASSERT_EQ(put("k", std::string(20'000, 'w')), BH_OK);
  EXPECT_EQ(std::memcmp(lease.data, value.data(), value.size()), 0);
  EXPECT_EQ(bh_release(pool_, &lease), BH_LAPSED);
}

TEST_F(Abi, HandlesOfAnotherPoolAreClosed) {
  const std::string locator = locator_ + "-other";
  const bh_create_options options = options_of(32u << 20);
  ASSERT_EQ(bh_pool_create(locator.c_str(), &options), BH_OK) << bh_last_error();
  bh_pool* other = nullptr;
  bh_namespace_id ns = 0;
  ASSERT_EQ(bh_pool_open(locator.c_str(), 0, &other), BH_OK) << bh_last_error();
  ASSERT_EQ(bh_namespace_open(other, "test", "bytes", &ns), BH_OK);
  auto of_pool = sized<bh_reservation>(), of_other = of_pool;
  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("k"), 100, &of_pool), BH_OK);
  ASSERT_EQ(bh_reserve(other, ns, key_of("k"), 100, &of_other), BH_OK);
  EXPECT_EQ(bh_commit(pool_, &of_other), BH_CLOSED);
  EXPECT_EQ(bh_commit(other, &of_pool), BH_CLOSED);
  EXPECT_EQ(bh_commit(pool_, &of_pool), BH_OK);
  EXPECT_EQ(bh_commit(other, &of_other), BH_OK);
  auto in_pool = sized<bh_lease>(), in_other = in_pool;
  ASSERT_EQ(bh_acquire(pool_, ns_, key_of("k"), 60000, &in_pool), BH_OK);
  ASSERT_EQ(bh_acquire(other, ns, key_of("k"), 60000, &in_other), BH_OK);
  EXPECT_EQ(bh_release(pool_, &in_other), BH_CLOSED);
  EXPECT_EQ(bh_release(other, &in_pool), BH_CLOSED);
  EXPECT_EQ(bh_release(pool_, &in_pool), BH_OK);
  EXPECT_EQ(bh_release(other, &in_other), BH_OK);
  bh_pool_close(other);
  EXPECT_EQ(bh_pool_destroy(locator.c_str(), 0), BH_OK);
}

TEST_F(Abi, ReservationsLeftOpenAreUndoneByClose) {
  auto room = sized<bh_reservation>();
  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("left"), 1u << 20, &room), BH_OK);
  bh_pool_close(pool_);
  ASSERT_EQ(bh_pool_open(locator_.c_str(), 0, &pool_), BH_OK) << bh_last_error();
  ASSERT_EQ(bh_namespace_open(pool_, "test", "bytes", &ns_), BH_OK);
  uint8_t present = 1;
  const std::string text = "left";
  const bh_key key = key_of(text);
  EXPECT_EQ(bh_exists(pool_, ns_, &key, 1, &present), BH_OK);
  EXPECT_EQ(present, 0);
  EXPECT_EQ(put("left", "value"), BH_OK) << bh_last_error();
}

TEST_F(Abi, ReservationsOfManyThreadsDoNotMix) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string text = std::to_string(t) + "/" + std::to_string(i);
        auto room = sized<bh_reservation>();
        ASSERT_EQ(bh_reserve(pool_, ns_, key_of(text), text.size(), &room), BH_OK)
            << bh_last_error();
        std::memcpy(room.data, text.data(), text.size());
        ASSERT_EQ(bh_commit(pool_, &room), BH_OK) << bh_last_error();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 200; ++i) {
      const std::string text = std::to_string(t) + "/" + std::to_string(i);
      char got[16];
      const bh_iovec piece = {got, sizeof got};
      uint64_t length = 0;
      ASSERT_EQ(bh_get(pool_, ns_, key_of(text), &piece, 1, &length), BH_OK) << text;
      EXPECT_EQ(std::string(got, length), text);
    }
  }
}

TEST_F(Abi, LastErrorBelongsToItsThread) {
  EXPECT_EQ(bh_remove(nullptr, ns_, {"k", 1}), BH_INVALID_ARGUMENT);
  const std::string mine = bh_last_error();
  std::thread([] {
    EXPECT_STREQ(bh_last_error(), "");
    EXPECT_EQ(bh_pool_destroy(nullptr, 0), BH_INVALID_ARGUMENT);
    EXPECT_TRUE(error_contains("bh_pool_destroy")) << bh_last_error();
  }).join();
  EXPECT_EQ(mine, bh_last_error());
}

TEST_F(Abi, LastErrorFitsForAnyLocator) {
  const std::string locator = "shm:" + std::string(5000, 'x');
  bh_pool* pool = nullptr;
  EXPECT_NE(bh_pool_open(locator.c_str(), 0, &pool), BH_OK);
  EXPECT_LT(std::strlen(bh_last_error()), 512u);
}

TEST_F(Abi, HandlesAreForkedInTheChild) {
  ASSERT_EQ(put("k", "value"), BH_OK);
  auto room = sized<bh_reservation>();
  ASSERT_EQ(bh_reserve(pool_, ns_, key_of("r"), 100, &room), BH_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char got[16];
    const bh_iovec piece = {got, sizeof got};
    uint64_t length = 0;
    auto other = sized<bh_reservation>();
    bool as_expected = bh_get(pool_, ns_, {"k", 1}, &piece, 1, &length) == BH_FORKED;
    as_expected = bh_reserve(pool_, ns_, {"n", 1}, 100, &other) == BH_FORKED && as_expected;
    as_expected = bh_commit(pool_, &room) == BH_FORKED && as_expected;
    as_expected = bh_abort(pool_, &room) == BH_FORKED && as_expected;
#if !defined(__SANITIZE_THREAD__)  // which ends at a thread whose id one had before the fork
    bh_pool* own = nullptr;
    bh_namespace_id ns = 0;
    as_expected = bh_pool_open(locator_.c_str(), 0, &own) == BH_OK && as_expected;
    as_expected = bh_namespace_open(own, "test", "bytes", &ns) == BH_OK && as_expected;
    as_expected = bh_get(own, ns, {"k", 1}, &piece, 1, &length) == BH_OK && as_expected;
    bh_pool_close(own);
#endif
    bh_pool_close(pool_);
    _exit(as_expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(bh_abort(pool_, &room), BH_OK) << bh_last_error();  // the child undid nothing
  EXPECT_EQ(put("k2", "value"), BH_OK);
}

}  // namespace
