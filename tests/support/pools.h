// SPDX-License-Identifier: Apache-2.0
// Shared by tests of the pool: a pool in shared memory that is removed with its fixture.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"
#include "pool/pool.h"

namespace bowhead::test {

/// Deterministic content.
inline std::vector<std::byte> bytes(size_t size, uint64_t seed) {
  std::vector<std::byte> out(size);
  Random random(seed + 1);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return out;
}

/// Runs `body` in a child process and returns its result as the exit status.
inline int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// BOWHEAD_TEST_JOINED=1 in the environment: of joined media.
inline std::string unique_locator() {
  static std::atomic<int> count{0};
  // Random, since a test that was killed leaves its pool, and its pid comes again.
  const std::string one = "shm:test-" + std::to_string(getpid()) + "-" + std::to_string(count++) +
                          "-" + std::to_string(random_u64_from_os());
  return std::getenv("BOWHEAD_TEST_JOINED") != nullptr ? one + "+" + one + "-b" : one;
}

/// Makes every access to this page of the pool fail, for this handle only, as if the medium
/// returned an error.
inline void break_page(const Pool& pool, uint64_t offset) {
  constexpr uint64_t kPage = 4096;
  const int empty = memfd_create("broken", MFD_CLOEXEC);
  ASSERT_GE(empty, 0);
  auto* at = const_cast<std::byte*>(pool.mapping().data) + offset / kPage * kPage;
  // Not mmap(): ThreadSanitizer treats it as a store, and threads of the pool read the page.
  ASSERT_EQ(syscall(SYS_mmap, at, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty, 0),
            reinterpret_cast<intptr_t>(at));
  close(empty);
}

/// Reports to this process that the memory of a page failed, as the kernel does.
inline void fail_memory(const void* address) {
  siginfo_t info{};
  info.si_signo = SIGBUS;
  info.si_code = BUS_MCEERR_AR;
  info.si_addr = const_cast<void*>(address);
  info.si_addr_lsb = 12;
  ASSERT_EQ(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &info), 0);
}
inline void fail_memory(const Pool& pool, uint64_t offset) {
  fail_memory(pool.mapping().data + offset);
}

class TestPool {
 public:
  explicit TestPool(uint64_t size_bytes, CreateOptions options = {})
      : locator_(unique_locator()), owner_(getpid()) {
    options.size_bytes = size_bytes;
    auto created = Pool::create(locator_, options);
    EXPECT_TRUE(created) << created.error().message();
    open();
  }
  /// Opens a pool that another fixture created.
  explicit TestPool(std::string locator) : locator_(std::move(locator)) { open(); }
  ~TestPool() {
    pool_.clear();
    if (owner_ == getpid()) (void)Pool::destroy(locator_, true);
  }

  void open() {
    pool_.clear();
    // Without the thread that touches pages: ThreadSanitizer takes a thread that a forked child
    // makes for one of its parent.
    auto opened = Pool::open(locator_, {.prefault = false});
    EXPECT_TRUE(opened) << opened.error().message();
    pool_.push_back(std::move(opened).value());
    ns_ = *pool().open_namespace({"test", "bytes"});
  }
  void close() { pool_.clear(); }

  /// From here on keys belong to a namespace of this layout.
  void use_layout(const KvLayout& layout) {
    const std::string name = "layout " + std::to_string(hash64(&layout, sizeof(layout)));
    auto opened = pool().open_namespace({name, "", {layout}});
    ASSERT_TRUE(opened) << opened.error().message();
    ns_ = *opened;
  }

  Pool& pool() { return pool_.front(); }
  NamespaceId ns() const { return ns_; }
  const std::string& locator() const { return locator_; }
  PoolInfo info() { return *pool().info(); }

  Status put(std::string_view key, const std::vector<std::byte>& value) {
    const ConstSpan in[] = {{value.data(), value.size()}};
    return pool().put(ns_, key, in);
  }
  std::vector<std::byte> get(std::string_view key) {
    auto length = pool().length(ns_, key);
    if (!length) return {};
    std::vector<std::byte> out(*length);
    const Span to[] = {{out.data(), out.size()}};
    return pool().get(ns_, key, to) ? out : std::vector<std::byte>{};
  }
  Status get_status(std::string_view key) {
    std::vector<std::byte> out(1 << 20);
    const Span to[] = {{out.data(), out.size()}};
    return pool().get(ns_, key, to).status();
  }

  /// Damages a stored byte behind the pool's back.
  void flip_payload(std::string_view key, uint64_t at) {
    auto lease = pool().acquire(ns_, key, 60000);
    ASSERT_TRUE(lease);
    const_cast<std::byte*>(lease->data)[at] ^= std::byte{1};
    ASSERT_EQ(pool().release(*lease), Status::OK);
  }

  testing::AssertionResult check_clean() {
    auto report = pool().check(true);
    if (!report) return testing::AssertionFailure() << report.error().message();
    if (report->findings.empty()) return testing::AssertionSuccess();
    auto result = testing::AssertionFailure();
    for (const auto& finding : report->findings) result << finding.what << "; ";
    return result;
  }

 private:
  std::string locator_;
  pid_t owner_ = 0;
  std::vector<Pool> pool_;
  NamespaceId ns_ = 0;
};

}  // namespace bowhead::test
