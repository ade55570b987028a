// SPDX-License-Identifier: Apache-2.0
// The medium fails under an open pool: its file is truncated, its filesystem is full, its device
// returns an error. The process lives, no block is reported stored that is not, and the other
// processes' blocks do not change.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>

#include "base/random.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kBytes = 50'000;

std::string file_of(const std::string& locator) {
  return "/dev/shm/bowhead-" + locator.substr(std::string("shm:").size());
}

using Value = std::vector<std::byte>;

std::string key(uint64_t n) { return "k" + std::to_string(n); }

/// All that a handle can do, as statuses by name.
std::map<std::string, Status> all_operations(Pool& pool, NamespaceId ns, Reservation& reservation,
                                             Reservation& other, Lease& lease) {
  const auto value = bytes(1000, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  std::vector<std::byte> out(kBytes);
  const Span to[] = {{out.data(), out.size()}};
  const std::string_view keys[] = {"k0", "k1"};
  uint8_t present[2];
  return {{"put", pool.put(ns, "new", in)},
          {"get", pool.get(ns, "k0", to).status()},
          {"get_prefix", pool.get_prefix(ns, "k0", 1, to).status()},
          {"get_stored", pool.get_stored(ns, "k0", to[0]).status()},
          {"length", pool.length(ns, "k0").status()},
          {"exists", pool.exists(ns, keys, present).status()},
          {"longest_prefix", pool.longest_prefix(ns, keys).status()},
          {"touch", pool.touch(ns, keys)},
          {"reserve", pool.reserve(ns, "r", 1000).status()},
          {"commit", pool.commit(reservation)},
          {"abort", pool.abort(other)},
          {"acquire", pool.acquire(ns, "k0", 1000).status()},
          {"check_lease", pool.check_lease(lease)},
          {"release", pool.release(lease)},
          {"remove", pool.remove(ns, "k0")},
          {"list", pool.list([](const BlockInfo&) { return true; })},
          {"open_namespace", pool.open_namespace({"another", "bytes"}).status()},
          {"recompress", pool.recompress(0).status()},
          {"scavenge", pool.scavenge().status()},
          {"info", pool.info().status()},
          {"usage", pool.usage().status()},
          {"check", pool.check(/*payload=*/true).status()},
          {"leave", pool.leave().status()},
          {"fence", pool.fence(0).status()}};
}

TEST(MediaFailure, AFileCutShortEndsTheHandleAndNotTheProcess) {
  TestPool t(32 << 20);
  for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(t.put(key(n), bytes(kBytes, n)), Status::OK);
  auto reservation = t.pool().reserve(t.ns(), "reserved", kBytes);
  auto other = t.pool().reserve(t.ns(), "other", kBytes);
  auto lease = t.pool().acquire(t.ns(), key(7), 60'000);
  ASSERT_TRUE(reservation && other && lease);
  EXPECT_FALSE(t.pool().media_failure());
  ASSERT_EQ(truncate(file_of(t.locator()).c_str(), 2 << 20), 0);

  // A caller's stores in place continue; the status reports the failure.
  std::memset(reservation->data, 1, kBytes);
  EXPECT_EQ(static_cast<int>(lease->data[5]), 0);
  const auto failure = t.pool().media_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status, Status::MEDIA_ERROR);
  const std::string first =
      fmt::format("bytes {} to {}", reservation->offset, reservation->offset + kPage - 1);
  for (const std::string& part : {first, t.locator(), std::string("cut short to 2097152 bytes")})
    EXPECT_NE(failure->message().find(part), std::string::npos) << failure->message();
  for (const auto& [name, status] : all_operations(t.pool(), t.ns(), *reservation, *other, *lease))
    EXPECT_EQ(status_name(status), std::string("MEDIA_ERROR")) << name;
  EXPECT_EQ(t.pool().info().error().message(), failure->message());
  t.close();
  const auto again = Pool::open(t.locator());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.status(), Status::DAMAGED) << again.error().message();
}

TEST(MediaFailure, NoOperationSucceedsBeyondTheEndOfTheFile) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  uint64_t stored = 0;
  while (stored < 300) {
    ASSERT_EQ(t.put(key(stored), bytes(kBytes, stored)), Status::OK);
    ++stored;
  }
  // The end of the payload is lost; metadata and the first blocks remain.
  ASSERT_EQ(truncate(file_of(t.locator()).c_str(), 12 << 20), 0);
  uint64_t right = 0;
  Status status = Status::OK;
  for (uint64_t n = 0; n < stored && status == Status::OK; ++n) {
    std::vector<std::byte> out(kBytes);
    const Span to[] = {{out.data(), out.size()}};
    status = t.pool().get(t.ns(), key(n), to).status();
    if (status == Status::OK) {
      EXPECT_EQ(out, bytes(kBytes, n)) << n;
      ++right;
    }
  }
  EXPECT_EQ(status, Status::MEDIA_ERROR);
  EXPECT_GT(right, 50u);
  EXPECT_EQ(t.put("new", bytes(kBytes, 1)), Status::MEDIA_ERROR);
  TestPool fresh(32 << 20, {.evict_high_permille = 0});
  ASSERT_EQ(truncate(file_of(fresh.locator()).c_str(), 12 << 20), 0);
  uint64_t puts = 0;
  for (status = Status::OK; status == Status::OK; ++puts)
    status = fresh.put(key(puts), bytes(kBytes, puts));
  EXPECT_EQ(status, Status::MEDIA_ERROR) << "after " << puts << " puts";
}

TEST(MediaFailure, AFileOnADiskIsGuardedLikeMemory) {
  const std::string path = fmt::format("{}/media-failure-{}", testing::TempDir(), getpid());
  const auto created = Pool::create("file:" + path, {.size_bytes = 16 << 20});
  if (!created && created.status() == Status::NOT_SUPPORTED) GTEST_SKIP() << "no file: medium";
  ASSERT_TRUE(created) << created.error().message();
  {
    auto pool = Pool::open("file:" + path);
    ASSERT_TRUE(pool) << pool.error().message();
    const auto ns = pool->open_namespace({"test", "bytes"});
    const auto value = bytes(kBytes, 1);
    const ConstSpan in[] = {{value.data(), value.size()}};
    ASSERT_EQ(pool->put(*ns, "k", in), Status::OK);
    ASSERT_EQ(truncate(path.c_str(), 0), 0);
    std::vector<std::byte> out(kBytes);
    const Span to[] = {{out.data(), out.size()}};
    EXPECT_EQ(pool->get(*ns, "k", to).status(), Status::MEDIA_ERROR);
    EXPECT_EQ(pool->put(*ns, "l", in), Status::MEDIA_ERROR);
  }
  unlink(path.c_str());
}

/// A page of the pool fails for one of two handles, in the middle of its work: it reports that and
/// stops; the other handle finds all stored blocks, and the first one's unfinished work is undone.
TEST(MediaFailure, AnyFailingPageLeavesTheOthersBlocksIntact) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  for (uint64_t n = 0; n < 100; ++n) ASSERT_EQ(t.put(key(n), bytes(kBytes, n)), Status::OK);
  const uint64_t pages = t.pool().mapping().size / kPage;
  Random random(12);
  uint64_t failures = 0, later = 1000;
  for (int round = 0; round < 60; ++round) {
    // Most of them among the first pages, where the metadata is.
    const uint64_t page = round % 4 == 0 ? random.below(pages) : random.below(400);
    std::vector<uint64_t> stored;
    bool failed = false;
    {
      TestPool broken(t.locator());
      auto reserved = broken.pool().reserve(broken.ns(), "reserved", kBytes);
      auto lease = broken.pool().acquire(broken.ns(), key(round), 600'000);
      ASSERT_TRUE(reserved && lease);
      break_page(broken.pool(), page * kPage);
      for (int i = 0; i < 20; ++i, ++later) {
        if (broken.put(key(later), bytes(kBytes, later)) == Status::OK) stored.push_back(later);
        const auto value = broken.get(key(i));
        EXPECT_TRUE(value.empty() || value == bytes(kBytes, i)) << page;
        (void)broken.pool().remove(broken.ns(), "nothing");
      }
      const Status said = broken.pool().info().status();
      failed = broken.pool().media_failure().has_value();
      EXPECT_EQ(said, failed ? Status::MEDIA_ERROR : Status::OK);
    }
    failures += failed;
    (void)t.pool().scavenge();
    EXPECT_EQ(t.info().hosts[0].processes_live, 1u);
    EXPECT_EQ(t.info().hosts[0].leases_active, 0u);
    for (uint64_t n = 0; n < 100; ++n)
      ASSERT_EQ(t.get(key(n)), bytes(kBytes, n)) << "page " << page;
    for (const uint64_t n : stored) {
      EXPECT_EQ(t.get(key(n)), bytes(kBytes, n)) << "page " << page << ": a put said OK";
    }
    for (uint64_t n = later - 20; n < later; ++n) (void)t.pool().remove(t.ns(), key(n));
    EXPECT_EQ(t.info().blocks, 100) << "page " << page;
    ASSERT_TRUE(t.check_clean()) << "page " << page;
  }
  EXPECT_GE(failures, 5u) << "else the test tries nothing";
}

TEST(MediaFailure, ThreadsInTheMiddleOfOperationsContinue) {
  TestPool t(32 << 20);
  for (uint64_t n = 0; n < 50; ++n) ASSERT_EQ(t.put(key(n), bytes(kBytes, n)), Status::OK);
  for (int round = 0; round < 10; ++round) {
    TestPool broken(t.locator());
    std::atomic<uint64_t> done{0};
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint64_t n = 0; !broken.pool().media_failure(); ++n, ++done) {
          const uint64_t mine = 1000 * (thread + 1) + n % 30;
          (void)broken.put(key(mine), bytes(kBytes, mine));
          const auto value = broken.get(key(n % 50));
          EXPECT_TRUE(value.empty() || value == bytes(kBytes, n % 50));
          (void)broken.pool().remove(broken.ns(), key(mine));
        }
      });
    }
    while (done < 20) std::this_thread::yield();
    ASSERT_EQ(t.pool().mapping().size, broken.pool().mapping().size);
    for (uint64_t page = 40 + static_cast<uint64_t>(round); page < 8000; page += 97)
      break_page(broken.pool(), page * kPage);
    for (std::thread& thread : threads) thread.join();
  }
  (void)t.pool().scavenge();
  for (uint64_t n = 0; n < 50; ++n) EXPECT_EQ(t.get(key(n)), bytes(kBytes, n));
  EXPECT_TRUE(t.check_clean());
}

// ---- memory errors ----

/// Where the value of a key lies in the mapping.
uint64_t offset_of(TestPool& t, const std::string& name) {
  const auto block = t.pool().describe(t.ns(), name);
  EXPECT_TRUE(block) << name;
  return block ? block->offset : 0;
}

TEST(MemoryError, CostsTheBlocksThatItHits) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  for (uint64_t n = 0; n < 100; ++n) ASSERT_EQ(t.put(key(n), bytes(kBytes, n)), Status::OK);
  const uint64_t lost = offset_of(t, key(5));
  fail_memory(t.pool(), lost + kBytes - 1);
  EXPECT_FALSE(t.pool().media_failure());
  const auto report = t.pool().check(/*payload=*/true);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->findings.size(), 1u);
  EXPECT_NE(report->findings[0].what.find("the memory of block 'k5' (50000 bytes) failed"),
            std::string::npos)
      << report->findings[0].what;
  for (uint64_t n = 0; n < 100; ++n)
    EXPECT_EQ(t.get(key(n)), n == 5 ? Value{} : bytes(kBytes, n)) << n;
  EXPECT_TRUE(t.check_clean()) << "the block was dropped";
  // No block is stored there again, until there is no other space.
  uint64_t stored = 100;
  for (Status status = Status::OK; status == Status::OK; ++stored) {
    status = t.put(key(stored), bytes(kBytes, stored));
    EXPECT_TRUE(status == Status::OK || status == Status::NO_SPACE) << status_name(status);
  }
  --stored;
  EXPECT_EQ(t.put(key(5), bytes(kBytes, 5)), Status::NO_SPACE);
  ASSERT_EQ(t.pool().remove(t.ns(), key(6)), Status::OK);
  EXPECT_EQ(t.put(key(5), bytes(kBytes, 5)), Status::OK);
  for (uint64_t n = 0; n < stored; ++n) {
    if (n == 6) continue;
    EXPECT_EQ(t.get(key(n)), bytes(kBytes, n)) << n;
    EXPECT_NE(offset_of(t, key(n)), lost) << n;
  }
  EXPECT_TRUE(t.check_clean());
  TestPool other(t.locator());
  for (uint64_t n = 0; n < stored; ++n) {
    if (n == 6) continue;
    EXPECT_EQ(other.get(key(n)), bytes(kBytes, n)) << n;
  }
  EXPECT_EQ(other.put("another", bytes(kBytes, 1)), Status::OK) << "its memory is well";
}

TEST(MemoryError, UnderALeaseAndAReservationIsReported) {
  TestPool t(32 << 20);
  for (uint64_t n = 0; n < 4; ++n) ASSERT_EQ(t.put(key(n), bytes(kBytes, n)), Status::OK);
  auto lease = t.pool().acquire(t.ns(), key(0), 60'000);
  auto whole = t.pool().acquire(t.ns(), key(1), 60'000);
  auto reserved = t.pool().reserve(t.ns(), "reserved", kBytes);
  auto unsummed = t.pool().reserve(t.ns(), "unsummed", kBytes);
  ASSERT_TRUE(lease && whole && reserved && unsummed);
  std::memset(reserved->data, 1, kBytes);
  std::memset(unsummed->data, 2, kBytes);
  ASSERT_EQ(t.pool().commit(*unsummed, {.by = PayloadSum::By::NONE}), Status::OK);
  EXPECT_FALSE(t.get("unsummed").empty());
  fail_memory(lease->data);
  fail_memory(reserved->data + kPage);
  fail_memory(t.pool(), offset_of(t, "unsummed"));
  Value copy(kBytes);
  EXPECT_EQ(t.pool().copy_leased(*lease, {copy.data(), copy.size()}), Status::DAMAGED);
  EXPECT_EQ(t.pool().copy_leased(*whole, {copy.data(), copy.size()}), Status::OK);
  EXPECT_EQ(t.pool().release(*lease), Status::LAPSED) << "what was read there may be zeros";
  EXPECT_EQ(t.pool().release(*whole), Status::OK);
  EXPECT_EQ(t.pool().commit(*reserved), Status::DAMAGED);
  EXPECT_EQ(t.get_status("reserved"), Status::NOT_FOUND);
  EXPECT_EQ(t.pool().acquire(t.ns(), "unsummed", 1000).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.get_status("unsummed"), Status::NOT_FOUND) << "no checksum shows it";
  EXPECT_EQ(t.pool().acquire(t.ns(), key(0), 1000).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.put(key(0), bytes(kBytes, 0)), Status::OK);
  EXPECT_EQ(t.get(key(0)), bytes(kBytes, 0));
  EXPECT_TRUE(t.check_clean());
  EXPECT_FALSE(t.pool().media_failure());
}

/// The source of a put, whose first load fails the memory of the target.
void* source = nullptr;
const void* target = nullptr;
struct sigaction of_the_pool;  // if it has its handler already
void fail_target(int signal, siginfo_t* info, void* context) {
  if (info->si_addr < source || info->si_addr >= static_cast<std::byte*>(source) + kPage)
    return of_the_pool.sa_sigaction(signal, info, context);
  (void)syscall(SYS_mmap, source, kPage, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  fail_memory(target);  // when this handler has returned
}

/// True in a child that could try it.
bool puts_go_elsewhere(bool batch) {
  struct sigaction action {};
  action.sa_sigaction = fail_target;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGBUS, &action, &of_the_pool) != 0) return false;
  TestPool t(32 << 20, {.evict_high_permille = 0});
  Value value = bytes(kBytes, 0);
  for (uint64_t n = 0; n < 10; ++n) {
    auto reserved = t.pool().reserve(t.ns(), "reserved", kBytes);
    if (!reserved || t.pool().abort(*reserved) != Status::OK) return false;
    target = t.pool().mapping().data + reserved->offset + kPage;
    const int empty = memfd_create("source", MFD_CLOEXEC);
    source = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, empty, 0);
    close(empty);
    // All but the page that does not exist yet, and will be zeros.
    const ConstSpan in[] = {{value.data(), kBytes - kPage},
                            {static_cast<std::byte*>(source), kPage}};
    std::memset(value.data() + kBytes - kPage, 0, kPage);
    if (batch) {
      const std::string first = "a" + key(n), second = "b" + key(n);
      PutItem items[] = {{.key = first, .value = in}, {.key = second, .value = in}};
      if (t.pool().put_batch(t.ns(), items) != Status::OK) return false;
      if (items[0].status != Status::OK || items[1].status != Status::OK) return false;
      if (t.get(first) != value || t.get(second) != value) return false;
    } else {
      if (t.pool().put(t.ns(), key(n), in) != Status::OK || t.get(key(n)) != value) return false;
      if (offset_of(t, key(n)) == reserved->offset) return false;
    }
    munmap(source, kPage);
  }
  return !t.pool().media_failure() && t.check_clean() && TestPool(t.locator()).check_clean();
}

TEST(MemoryError, APutWhoseMemoryFailsGoesElsewhere) {
  EXPECT_EQ(in_child([] { return puts_go_elsewhere(false) ? 0 : 1; }), 0);
  EXPECT_EQ(in_child([] { return puts_go_elsewhere(true) ? 0 : 1; }), 0);
}

/// Threads work while memory fails here and there: nothing that is read is wrong, for them or for
/// another process afterwards.
TEST(MemoryError, AnywhereAtAnyTimeNoByteIsWrong) {
  TestPool t(64 << 20);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, right{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread);
      while (!stop) {
        const uint64_t n = random.below(400), kind = random.below(8);
        const Value want = bytes(kBytes, n);
        if (kind < 3) {
          (void)t.put(key(n), want);
        } else if (kind == 3) {
          (void)t.pool().remove(t.ns(), key(n));
        } else if (kind == 4) {
          auto reserved = t.pool().reserve(t.ns(), key(n), kBytes);
          if (!reserved || reserved->present) continue;
          std::memcpy(reserved->data, want.data(), kBytes);
          const auto by = random.below(2) == 0 ? PayloadSum::By::NONE : PayloadSum::By::POOL;
          (void)t.pool().commit(*reserved, {.by = by});
        } else if (kind == 5) {
          auto lease = t.pool().acquire(t.ns(), key(n), 60'000);
          if (!lease) continue;
          const Value got(lease->data, lease->data + lease->stored_bytes);
          if (t.pool().release(*lease) != Status::OK) continue;
          ++(got == want ? right : wrong);
        } else {
          Value got(kBytes);
          const Span to[] = {{got.data(), got.size()}};
          if (!t.pool().get(t.ns(), key(n), to)) continue;
          ++(got == want ? right : wrong);
        }
      }
    });
  }
  Random random(9);
  for (uint64_t i = 0; i < 300; ++i) {
    // The threads get to work in between, however slow the machine is.
    for (int ms = 0; ms < 3 || (right < i / 2 && ms < 10'000); ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // Of a stored block, or of its neighbour.
    const auto block = t.pool().describe(t.ns(), key(random.below(400)));
    if (block) fail_memory(t.pool(), block->offset + random.below(2 * kBytes));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(right, 100u);
  EXPECT_FALSE(t.pool().media_failure());
  TestPool other(t.locator());
  for (uint64_t n = 0; n < 400; ++n) {
    for (TestPool* one : {&t, &other}) {
      const Value got = one->get(key(n));
      EXPECT_TRUE(got.empty() || got == bytes(kBytes, n)) << n;
    }
  }
}

// ---- a full filesystem ----

constexpr int kCannot = 77;

/// A small private tmpfs, in a private mount namespace.
bool mount_small(const char* at, const char* size) {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return false;
  return mkdir(at, 0700) == 0 && mount("tmpfs", at, "tmpfs", 0, size) == 0;
}

/// A pool whose file has holes, as a sparse copy has, on a filesystem without space for them.
int put_on_a_full_filesystem() {
  const std::string at = fmt::format("{}/full-{}", testing::TempDir(), getpid());
  if (!mount_small(at.c_str(), "size=24m")) return kCannot;
  const std::string file = at + "/pool", locator = "file:" + file;
  if (const auto made = Pool::create(locator, {.size_bytes = 16 << 20, .evict_high_permille = 0});
      !made)
    return made.status() == Status::NOT_SUPPORTED ? kCannot : 1;
  const int fd = open(file.c_str(), O_RDWR);
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 6 << 20, 10 << 20) != 0)
    return kCannot;
  close(fd);
  const int filler = open((at + "/filler").c_str(), O_WRONLY | O_CREAT, 0600);
  const std::vector<std::byte> block(1 << 20);
  while (write(filler, block.data(), block.size()) > 0) {
  }
  auto pool = Pool::open(locator);
  if (!pool) return 2;
  const auto ns = pool->open_namespace({"test", "bytes"});
  if (!ns) return 3;
  Status status = Status::OK;
  uint64_t stored = 0;
  for (; status == Status::OK; ++stored) {
    const auto value = bytes(kBytes, stored);
    const ConstSpan in[] = {{value.data(), value.size()}};
    status = pool->put(*ns, key(stored), in);
  }
  if (status != Status::MEDIA_ERROR) return 4;
  const auto failure = pool->media_failure();
  if (!failure || failure->message().find("filesystem is full") == std::string::npos) return 5;
  return 0;
}

TEST(MediaFailure, AFullFilesystemIsSaidAndSurvived) {
  const int code = in_child(put_on_a_full_filesystem);
  if (code == kCannot) GTEST_SKIP() << "cannot mount a small tmpfs with a file pool here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace bowhead::test
