// SPDX-License-Identifier: Apache-2.0
// A pool that is destroyed while processes have it open: they notice, however it was destroyed.
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

/// The ways to destroy a pool, and the time within which processes must notice.
struct Way {
  const char* name;
  void (*destroy)(const std::string& locator);
  bool at_once;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class Destroyed : public testing::TestWithParam<Way> {};

TEST_P(Destroyed, StoresAnswerClosed) {
  TestPool t(16 << 20);
  const auto value = bytes(9000, 1);
  ASSERT_EQ(t.put("a", value), Status::OK);
  auto lease = t.pool().acquire(t.ns(), "a", 60'000);
  auto room = t.pool().reserve(t.ns(), "b", 100);
  ASSERT_TRUE(lease && room);
  EXPECT_EQ(t.pool().explain(Status::CLOSED).message(), status_text(Status::CLOSED));
  GetParam().destroy(t.locator());
  if (!GetParam().at_once) {
    for (int i = 0; i < 3000 && t.put("c", value) != Status::CLOSED; ++i) usleep(10'000);
  }
  EXPECT_EQ(t.put("c", value), Status::CLOSED);
  EXPECT_EQ(t.put("a", value), Status::CLOSED);
  EXPECT_EQ(t.pool().commit(*room), Status::CLOSED);
  EXPECT_EQ(t.pool().reserve(t.ns(), "d", 100).status(), Status::CLOSED);
  EXPECT_EQ(t.pool().acquire(t.ns(), "a", 60'000).status(), Status::CLOSED);
  EXPECT_EQ(t.pool().remove(t.ns(), "a"), Status::CLOSED);
  EXPECT_EQ(t.pool().open_namespace({"other", ""}).status(), Status::CLOSED);
  EXPECT_EQ(t.pool().recompress(0).status(), Status::CLOSED);
  const std::string_view key = "a";
  EXPECT_EQ(t.pool().touch(t.ns(), {&key, 1}), Status::CLOSED);
  const std::string why = t.locator() + ": the pool was destroyed or replaced";
  for (const Error& error :
       {t.pool().explain(Status::CLOSED), t.pool().reserve(t.ns(), "d", 100).error(),
        t.pool().open_namespace({"other", ""}).error(), t.pool().scavenge().error()})
    EXPECT_NE(error.message().find(why), std::string::npos) << error.message();
  // Its content can be read, and its leases and reservations can be ended.
  EXPECT_EQ(t.get("a"), value);
  EXPECT_EQ(lease->length_bytes, value.size());
}

TEST_P(Destroyed, ANewPoolInItsPlaceIsAnotherOne) {
  TestPool t(16 << 20);
  GetParam().destroy(t.locator());
  ASSERT_TRUE(Pool::create(t.locator(), {.size_bytes = 16 << 20}));
  TestPool other(t.locator());
  const auto value = bytes(9000, 1);
  EXPECT_EQ(other.put("a", value), Status::OK);
  for (int i = 0; i < 3000 && t.put("c", value) != Status::CLOSED; ++i) usleep(10'000);
  EXPECT_EQ(t.put("c", value), Status::CLOSED);
  EXPECT_EQ(other.get("a"), value);
  EXPECT_EQ(other.get_status("c"), Status::NOT_FOUND);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Destroyed,
    testing::Values(
        Way{"destroy",
            [](const std::string& locator) {
              EXPECT_EQ(Pool::destroy(locator, false).status(), Status::IN_USE);
              EXPECT_TRUE(Pool::destroy(locator, true));
            },
            true},
        Way{"unlink",
            [](const std::string& locator) {
              EXPECT_EQ(
                  unlink(("/dev/shm/bowhead-" + locator.substr(4, locator.find('+') - 4)).c_str()),
                  0);
            },
            false}),
    [](const auto& at) { return std::string(at.param.name); });

}  // namespace
}  // namespace bowhead::test
