// SPDX-License-Identifier: Apache-2.0
// Pools that are created over others (CreateOptions::replace) while processes create, open and
// destroy pools at the same locator: at any time there is a complete pool or none, and a store
// through a handle never goes into a pool that the handle was not opened on.
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <memory>

#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// A process that repeats an operation until the object is destroyed. It ends with 0.
class Busy {
 public:
  explicit Busy(const std::function<int()>& round) {
    void* page =
        mmap(nullptr, sizeof *stop_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stop_ = new (page) std::atomic<bool>(false);
    pid_ = fork();
    if (pid_ != 0) return;
    int result = 0;
    while (result == 0 && !stop_->load() && getppid() != 1) result = round();
    _exit(result);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    stop_->store(true);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    munmap(stop_, sizeof *stop_);
  }

 private:
  std::atomic<bool>* stop_ = nullptr;
  pid_t pid_ = -1;
};

class Replaced : public testing::Test {
 protected:
  ~Replaced() override { (void)Pool::destroy(locator_, true); }

  Result<std::string> replace(uint64_t size_bytes) {
    return Pool::create(locator_, {.size_bytes = size_bytes, .replace = true});
  }

  /// Stores a block under the size of the pool that was opened.
  int put_size(Pool& pool) {
    const auto ns = pool.open_namespace({"test", "bytes"});
    if (!ns) return ns.status() == Status::CLOSED ? 0 : 10;
    const auto value = bytes(5000, 1);
    const ConstSpan in[] = {{value.data(), value.size()}};
    const Status put = pool.put(*ns, std::to_string(pool.mapping().size), in);
    return put == Status::OK || put == Status::CLOSED ? 0 : 11;
  }

  int open_and_put() {
    auto pool = Pool::open(locator_);
    if (pool) return put_size(*pool);
    switch (pool.status()) {
      case Status::NO_SUCH_POOL:
        return 0;  // destroyed while it was opened
      case Status::BUSY:
        return 0;  // a replacement takes long on this machine
      default:
        fprintf(stderr, "%s\n", pool.error().message().c_str());
        return 12;
    }
  }

  /// The pool is complete, and holds nothing that was stored into another one.
  void expect_good_pool() {
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    const auto report = pool->check(true);
    ASSERT_TRUE(report) << report.error().message();
    for (const auto& finding : report->findings) ADD_FAILURE() << finding.what;
    const std::string size = std::to_string(pool->mapping().size);
    EXPECT_EQ(pool->list([&](const BlockInfo& block) {
      EXPECT_EQ(block.key, size);
      return true;
    }),
              Status::OK);
    EXPECT_EQ(put_size(*pool), 0);
  }

  const std::string locator_ = unique_locator();
};

TEST_F(Replaced, ByManyAtOnceIsOneWholePool) {
  for (int round = 0; round < 10; ++round) {
    {
      std::vector<std::unique_ptr<Busy>> creators;
      for (const uint64_t size : {16 * kMiB, 24 * kMiB, 48 * kMiB}) {
        creators.push_back(std::make_unique<Busy>([&] {
          for (int i = 0; i < 3; ++i) {
            const auto made = replace(size);
            if (!made && made.status() != Status::IN_USE && made.status() != Status::POOL_EXISTS) {
              fprintf(stderr, "%s\n", made.error().message().c_str());
              return 1;
            }
          }
          return 0;
        }));
      }
    }
    expect_good_pool();
  }
}

TEST_F(Replaced, WhileOthersOpenItAndStore) {
  ASSERT_TRUE(replace(16 * kMiB));
  const Busy first([&] { return open_and_put(); });
  const Busy second([&] { return open_and_put(); });
  int replaced = 0;
  for (int i = 0; i < 3000 && replaced < 40; ++i) {
    const auto made = replace((16 + 2 * (i % 8)) * kMiB);
    if (made) {
      ++replaced;
      expect_good_pool();
    } else {
      ASSERT_EQ(made.status(), Status::IN_USE) << made.error().message();
      usleep(1000);
    }
  }
  EXPECT_GT(replaced, 0);
}

TEST_F(Replaced, WhileOthersDestroyIt) {
  const Busy destroyer([&] {
    const auto gone = Pool::destroy(locator_, /*force=*/false);
    if (gone || gone.status() == Status::NO_SUCH_POOL || gone.status() == Status::IN_USE) return 0;
    fprintf(stderr, "%s\n", gone.error().message().c_str());
    return 1;
  });
  const Busy opener([&] { return open_and_put(); });
  for (int i = 0; i < 200; ++i) {
    const auto made = replace((16 + 2 * (i % 8)) * kMiB);
    if (!made) {
      ASSERT_TRUE(made.status() == Status::IN_USE || made.status() == Status::POOL_EXISTS)
          << made.error().message();
    }
  }
}

TEST_F(Replaced, InUseIsRefusedAndKept) {
  TestPool t(16 * kMiB);
  ASSERT_EQ(t.put("a", bytes(100, 1)), Status::OK);
  const auto made = Pool::create(t.locator(), {.size_bytes = 32 * kMiB, .replace = true});
  EXPECT_EQ(made.status(), Status::IN_USE);
  EXPECT_EQ(t.get("a"), bytes(100, 1));
}

TEST_F(Replaced, OneThatCannotBeMadeKeepsTheOld) {
  {
    TestPool t(16 * kMiB);
    ASSERT_EQ(t.put("a", bytes(100, 1)), Status::OK);
    t.close();
    CreateOptions options{.size_bytes = 32 * kMiB, .replace = true};
    options.cancelled = [] { return true; };
    EXPECT_EQ(Pool::create(t.locator(), options).status(), Status::CANCELLED);
    options = {.size_bytes = uint64_t{1} << 42, .replace = true};
    EXPECT_EQ(Pool::create(t.locator(), options).status(), Status::MEDIUM_FULL);
    t.open();
    EXPECT_EQ(t.get("a"), bytes(100, 1));
  }
}

/// Up to the moment when the new pool is complete and takes the name.
TEST_F(Replaced, InterruptedAtAnyMomentKeepsTheOld) {
  TestPool t(16 * kMiB);
  ASSERT_EQ(t.put("a", bytes(100, 1)), Status::OK);
  t.close();
  CreateOptions options{.size_bytes = 256 * kMiB, .replace = true};
  for (int moment = 0;; ++moment) {
    ASSERT_LT(moment, 100);
    int asked = 0;
    options.cancelled = [&] { return asked++ == moment; };
    const auto made = Pool::create(t.locator(), options);
    if (made) {
      EXPECT_GT(moment, 4) << "asked while it is allocated, and once more afterwards";
      break;
    }
    EXPECT_EQ(made.status(), Status::CANCELLED);
    t.open();
    EXPECT_EQ(t.get("a"), bytes(100, 1)) << "moment " << moment;
    t.close();
  }
}

/// Its locks cannot be tried, since it cannot be opened.
TEST_F(Replaced, OneThatCannotBeOpenedIsKept) {
  TestPool t(256 * kMiB);
  ASSERT_EQ(t.put("a", bytes(100, 1)), Status::OK);
  const std::string locator = t.locator();
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    const rlimit most{(pages << 12) + 128 * kMiB, (pages << 12) + 128 * kMiB};
    if (setrlimit(RLIMIT_AS, &most) != 0) _exit(2);
    _exit(Pool::create(locator, {.size_bytes = 16 * kMiB, .replace = true}) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve terabytes
  EXPECT_EQ(status, 0);
#endif
  EXPECT_EQ(t.get("a"), bytes(100, 1));
  EXPECT_EQ(t.put("b", bytes(100, 2)), Status::OK) << "the pool is the old one";
}

TEST_F(Replaced, IsNotDestroyedInThePlaceOfAnother) {
  const auto first = replace(16 * kMiB);
  ASSERT_TRUE(first) << first.error().message();
  const auto second = replace(16 * kMiB);
  ASSERT_TRUE(second) << second.error().message();
  const auto refused = Pool::destroy(locator_, /*force=*/true, *first);
  EXPECT_EQ(refused.status(), Status::NO_SUCH_POOL);
  {
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    EXPECT_EQ(pool->info()->pool_id, *second);
  }
  EXPECT_TRUE(Pool::destroy(locator_, /*force=*/true, *second));
}

/// An observer has no lock: it sees the old pool to its end.
TEST_F(Replaced, UnderAnObserver) {
  ASSERT_TRUE(replace(16 * kMiB));
  ASSERT_EQ(open_and_put(), 0);
  auto observer = Pool::open(locator_, {.observe = true});
  ASSERT_TRUE(observer) << observer.error().message();
  ASSERT_TRUE(replace(32 * kMiB));
  EXPECT_EQ(observer->mapping().size, 16 * kMiB);
  const auto info = observer->info();
  ASSERT_TRUE(info) << info.error().message();
  EXPECT_EQ(info->blocks, 1);
  expect_good_pool();
}

}  // namespace
}  // namespace bowhead::test
