// SPDX-License-Identifier: Apache-2.0
// A pool on joined media, by the pool's own calls. tests/pool/CMakeLists.txt runs the tests of
// pools on joined media too.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool/media/media.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

class JoinedPool : public testing::Test {
 protected:
  std::string one(char letter) const { return base_ + "-" + letter; }
  std::string join(const std::string& letters) const {
    std::string locator;
    for (const char letter : letters) locator += (locator.empty() ? "" : "+") + one(letter);
    return locator;
  }
  std::string path(char letter) const {
    return "/dev/shm/bowhead-" + one(letter).substr(std::string("shm:").size());
  }
  void create(const std::string& letters, CreateOptions options = {}) {
    if (options.size_bytes == 0) options.size_bytes = 64 << 20;
    const auto made = Pool::create(join(letters), options);
    ASSERT_TRUE(made) << made.error().message();
  }
  void expect_error(const Error& error, Status status, const std::string& part) {
    EXPECT_EQ(error.status, status) << error.message();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
  bool exists(char letter) const { return access(path(letter).c_str(), F_OK) == 0; }
  ~JoinedPool() override {
    for (const char letter : std::string("abc")) unlink(path(letter).c_str());
  }

 private:
  const std::string base_ = "shm:joined-" + std::to_string(getpid());
};

TEST_F(JoinedPool, KeepsItsBlocksOnAllMedia) {
  create("abc");
  constexpr size_t kBytes = 3 << 20;  // over stripes of two media at least
  {
    TestPool pool(join("abc"));
    for (uint64_t n = 0; n < 10; ++n)
      ASSERT_EQ(pool.put("k" + std::to_string(n), bytes(kBytes, n)), Status::OK);
    EXPECT_NE(pool.info().media_description.find(path('c')), std::string::npos);
    EXPECT_EQ(pool.info().media_kind, "shm");
    pool.close();
    pool.open();
    for (uint64_t n = 0; n < 10; ++n)
      EXPECT_EQ(pool.get("k" + std::to_string(n)), bytes(kBytes, n)) << n;
    const auto report = pool.pool().check(/*payload=*/true);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->findings.empty());
    EXPECT_EQ(report->blocks_checked, 10u);
  }
}

TEST_F(JoinedPool, IsRefusedUnlessAllItsMediaAreGiven) {
  create("abc");
  for (const std::string letters : {"a", "ab"}) {
    const auto opened = Pool::open(join(letters));
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.status(), Status::NOT_A_POOL);
  }
  expect_error(Pool::open(one('a')).error(), Status::NOT_A_POOL,
               "lies on 3 media, and the locator names 1: give all of them, in the order of `pool "
               "create`, which was told '" +
                   join("abc") + "'");
  expect_error(Pool::open(one('b')).error(), Status::NOT_A_POOL, "this is medium 1 of pool");
  expect_error(Pool::destroy(one('a'), false).error(), Status::NOT_A_POOL, "lies on 3 media");
  EXPECT_TRUE(exists('a'));
  EXPECT_TRUE(Pool::destroy(join("abc"), false));
  EXPECT_FALSE(exists('a') || exists('b') || exists('c'));
}

TEST_F(JoinedPool, MediaOfTwoPoolsAreNoPool) {
  create("ab");
  ASSERT_EQ(rename(path('a').c_str(), path('c').c_str()), 0);
  ASSERT_EQ(unlink(path('b').c_str()), 0);
  create("ab");
  ASSERT_EQ(unlink(path('a').c_str()), 0);
  ASSERT_EQ(rename(path('c').c_str(), path('a').c_str()), 0);
  expect_error(Pool::open(join("ab")).error(), Status::NOT_A_POOL, "give media of one pool");
}

TEST_F(JoinedPool, IsNotReplacedByHalvesWhileItIsUsed) {
  create("ab");
  CreateOptions options{.size_bytes = 32 << 20};
  options.replace = true;
  {
    const auto used = Pool::open(join("ab"));
    ASSERT_TRUE(used);
    for (const std::string letters : {"ab", "a", "b", "cb", "ba", "bc"})
      EXPECT_EQ(Pool::create(join(letters), options).status(), Status::IN_USE) << letters;
    EXPECT_EQ(Pool::destroy(join("ab"), false).status(), Status::IN_USE);
  }
  EXPECT_TRUE(Pool::open(join("ab")));
  EXPECT_TRUE(Pool::create(join("ba"), options));
  EXPECT_TRUE(Pool::open(join("ba")));
  EXPECT_TRUE(Pool::create(join("cb"), options));
  EXPECT_EQ(Pool::open(join("ba")).status(), Status::NOT_A_POOL);
  EXPECT_TRUE(Pool::open(join("cb")));
}

TEST_F(JoinedPool, AnotherProcessSeesThatItWasDestroyed) {
  create("ab");
  TestPool pool(join("ab"));
  ASSERT_EQ(pool.put("k", bytes(1000, 1)), Status::OK);
  ASSERT_TRUE(Pool::destroy(join("ab"), /*force=*/true));
  EXPECT_EQ(pool.put("l", bytes(1000, 1)), Status::CLOSED);
}

TEST_F(JoinedPool, AForkedChildKeepsNoMediumInUse) {
  create("ab");
  int pipes[2], ready[2];
  ASSERT_TRUE(pipe(pipes) == 0 && pipe(ready) == 0);
  {
    const auto used = Pool::open(join("ab"));
    ASSERT_TRUE(used);
    if (fork() == 0) {
      char byte;
      close(pipes[1]);
      // The child has let go of its parent's locks once fork() returned in it.
      if (write(ready[1], "r", 1) != 1) _exit(2);
      _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);  // lives until the test lets it go
    }
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  CreateOptions options{.size_bytes = 32 << 20};
  options.replace = true;
  const auto made = Pool::create(one('b'), options);
  EXPECT_TRUE(made) << made.error().message();
  for (const int fd : {pipes[0], pipes[1], ready[0], ready[1]}) close(fd);
}

TEST_F(JoinedPool, WorksForSeveralHosts) {
  CreateOptions options{.size_bytes = 128 << 20};
  options.hosts = 2;
  create("ab", options);
  auto first = Pool::open(join("ab"), {.host = 0});
  auto second = Pool::open(join("ab"), {.host = 1});
  ASSERT_TRUE(first && second);
  const auto ns = first->open_namespace({"test", "bytes"});
  ASSERT_TRUE(ns && second->open_namespace({"test", "bytes"}));
  const auto value = bytes(5 << 20, 3);
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(first->put(*ns, "k", in), Status::OK);
  std::vector<std::byte> out(value.size());
  const Span to[] = {{out.data(), out.size()}};
  ASSERT_TRUE(second->get(*ns, "k", to));
  EXPECT_EQ(out, value);
}

}  // namespace
}  // namespace bowhead::test
