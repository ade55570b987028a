// SPDX-License-Identifier: Apache-2.0
// Accesses that the kernel answers with SIGBUS: inside a guarded mapping they complete and are
// recorded; elsewhere the signal goes to the previous handler.
#include "pool/media/fault_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace bowhead {
namespace {

constexpr uint64_t kPage = 4096, kPages = 16;

/// A file in memory, mapped.
class Mapping {
 public:
  Mapping() : fd_(memfd_create("fault-guard", MFD_CLOEXEC)) {
    BOWHEAD_ASSERT(fd_ >= 0);
    resize(kPages);
    void* mapped = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    BOWHEAD_ASSERT(mapped != MAP_FAILED);
    bytes_ = static_cast<volatile char*>(mapped);
  }
  ~Mapping() {
    guard.reset();
    munmap(const_cast<char*>(bytes_), kPages * kPage);
    close(fd_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void watch() { guard = FaultGuard(const_cast<char*>(bytes_), kPages * kPage, kPage); }
  void resize(uint64_t pages) const {
    BOWHEAD_ASSERT(ftruncate(fd_, static_cast<off_t>(pages * kPage)) == 0);
  }
  volatile char& at(uint64_t page, uint64_t byte = 0) const { return bytes_[page * kPage + byte]; }
  char in_file(uint64_t page) const {
    char byte = 0;
    BOWHEAD_ASSERT(pread(fd_, &byte, 1, static_cast<off_t>(page * kPage)) == 1);
    return byte;
  }

  FaultGuard guard;

 private:
  int fd_;
  volatile char* bytes_ = nullptr;
};

TEST(FaultGuard, ALoadBehindTheEndOfTheFileCompletesAndIsRemembered) {
  Mapping mapping;
  mapping.watch();
  mapping.at(3) = 'a';
  EXPECT_FALSE(mapping.guard.failed());
  EXPECT_FALSE(mapping.guard.fault());
  mapping.resize(3);
  EXPECT_EQ(mapping.at(3, 17), 0);
  EXPECT_TRUE(mapping.guard.failed());
  const auto fault = mapping.guard.fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->offset, 3 * kPage);
  EXPECT_EQ(fault->bytes, kPage);
  EXPECT_FALSE(fault->memory_error);
}

TEST(FaultGuard, NoStoreAfterAFailureReachesTheFile) {
  Mapping mapping;
  mapping.watch();
  mapping.resize(8);
  mapping.at(0) = 'a';
  mapping.at(7) = 'b';
  EXPECT_FALSE(mapping.guard.failed());
  mapping.at(8, 5) = 'c';
  EXPECT_TRUE(mapping.guard.failed());
  EXPECT_EQ(mapping.at(8, 5), 'c') << "stores and loads of this process continue";
  EXPECT_EQ(mapping.at(0), 0) << "and finds nothing there any more";
  mapping.at(0) = 'd';
  mapping.at(15) = 'e';
  EXPECT_EQ(mapping.in_file(0), 'a');
  EXPECT_EQ(mapping.in_file(7), 'b');
  EXPECT_EQ(mapping.guard.fault()->offset, 8 * kPage) << "the first one";
}

/// As the kernel reports it; `log2_bytes` of the memory that is lost.
void fail_memory(volatile char& byte, short log2_bytes = 12) {
  siginfo_t info{};
  info.si_signo = SIGBUS;
  info.si_code = BUS_MCEERR_AR;
  info.si_addr = const_cast<char*>(&byte);
  info.si_addr_lsb = log2_bytes;
  BOWHEAD_ASSERT(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &info) == 0);
}

TEST(FaultGuard, AMemoryErrorAmongValuesCostsItsPages) {
  Mapping mapping;
  mapping.watch();
  for (uint64_t page = 0; page < kPages; ++page) mapping.at(page) = 'a';
  mapping.guard.contain(4 * kPage, 10 * kPage);
  EXPECT_FALSE(mapping.guard.lost(0, kPages * kPage));
  fail_memory(mapping.at(5, 100));
  fail_memory(mapping.at(5, 200));  // once more
  fail_memory(mapping.at(9), 13);
  EXPECT_FALSE(mapping.guard.failed());
  for (uint64_t page = 0; page < kPages; ++page) {
    const bool lost = page == 5 || page == 8 || page == 9;
    EXPECT_EQ(mapping.at(page), lost ? 0 : 'a') << page;
    EXPECT_EQ(mapping.guard.lost(page * kPage, kPage), lost) << page;
    EXPECT_EQ(mapping.guard.lost(page * kPage + 17, 1), lost) << page;
    mapping.at(page) = 'b';
    EXPECT_EQ(mapping.in_file(page), lost ? 'a' : 'b') << page;
  }
  EXPECT_TRUE(mapping.guard.lost(0, kPages * kPage));
  EXPECT_FALSE(mapping.guard.lost(5 * kPage, 0)) << "no bytes";
  mapping.guard.forget_losses(8 * kPage, kPage);
  EXPECT_FALSE(mapping.guard.lost(8 * kPage, 2 * kPage));
  EXPECT_TRUE(mapping.guard.lost(5 * kPage, kPage));
}

TEST(FaultGuard, AMemoryErrorThatTouchesAnythingElseEndsTheMapping) {
  const std::pair<uint64_t, short> cases[] = {{3, 12}, {14, 12}, {4, 15}, {13, 13}, {0, 16}};
  for (const auto& [page, log2_bytes] : cases) {
    Mapping mapping;
    mapping.watch();
    for (uint64_t i = 0; i < kPages; ++i) mapping.at(i) = 'a';
    mapping.guard.contain(4 * kPage, 9 * kPage);
    fail_memory(mapping.at(page), log2_bytes);
    EXPECT_TRUE(mapping.guard.failed()) << page << " " << log2_bytes;
    EXPECT_EQ(mapping.at(15), 0) << page << " " << log2_bytes;
  }
}

TEST(FaultGuard, TooManyLossesEndTheMapping) {
  constexpr uint64_t kMany = 2 * (FaultGuard::kLossesMax + 2);
  void* mapped =
      mmap(nullptr, kMany * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  {
    const FaultGuard guard = [&] {
      FaultGuard made(mapped, kMany * kPage, kPage);
      made.contain(0, kMany * kPage);
      return made;
    }();
    auto* bytes = static_cast<volatile char*>(mapped);
    for (uint64_t i = 0; i < FaultGuard::kLossesMax; ++i) {
      ASSERT_FALSE(guard.failed()) << i;
      fail_memory(bytes[2 * i * kPage]);
      ASSERT_TRUE(guard.lost(2 * i * kPage, 1)) << i;
      ASSERT_FALSE(guard.lost((2 * i + 1) * kPage, 1)) << i;
    }
    fail_memory(bytes[4 * kPage]);
    EXPECT_FALSE(guard.failed()) << "it is known already";
    fail_memory(bytes[(kMany - 1) * kPage]);
    EXPECT_TRUE(guard.failed());
  }
  munmap(mapped, kMany * kPage);
}

TEST(FaultGuard, OneMappingFailsAndTheOthersDoNot) {
  std::array<Mapping, 5> mappings;
  for (Mapping& mapping : mappings) {
    mapping.watch();
    mapping.at(2) = 'x';
  }
  mappings[3].resize(0);
  EXPECT_EQ(mappings[3].at(2), 0);
  for (size_t i = 0; i < mappings.size(); ++i) {
    EXPECT_EQ(mappings[i].guard.failed(), i == 3) << i;
    EXPECT_EQ(mappings[i].at(2), i == 3 ? 0 : 'x') << i;
  }
}

TEST(FaultGuard, EntriesAreUsedAgain) {
  for (int i = 0; i < 100; ++i) {
    Mapping mapping;
    mapping.watch();
    EXPECT_FALSE(mapping.guard.failed()) << "of the mapping before";
    mapping.resize(1);
    mapping.at(1) = 'x';
    EXPECT_TRUE(mapping.guard.failed());
  }
}

TEST(FaultGuard, AllThreadsSurviveTheSameFailure) {
  for (int round = 0; round < 20; ++round) {
    Mapping mapping;
    mapping.watch();
    std::atomic<int> running{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        ++running;
        for (uint64_t i = t; !stop; ++i)
          mapping.at(i % kPages, t) = mapping.at((i + 7) % kPages, t);
      });
    }
    while (running < 4) std::this_thread::yield();
    mapping.resize(4);
    while (!mapping.guard.failed()) std::this_thread::yield();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_GE(mapping.guard.fault()->offset, 4 * kPage);
  }
}

TEST(FaultGuard, AChildOfAForkFailsAlone) {
  Mapping mapping;
  mapping.watch();
  const pid_t child = fork();
  if (child == 0) {
    mapping.resize(2);
    mapping.at(9) = 'x';
    mapping.resize(kPages);
    _exit(mapping.guard.failed() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(mapping.guard.failed());
  mapping.at(9) = 'y';
  EXPECT_EQ(mapping.in_file(9), 'y');
}

// ---- what is not the guard's ----
// Each in a process that starts anew, where no guard was made before.

class FaultGuardDeath : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// A sanitizer's handler is a previous handler, and ends the process with a report.
bool ended_by_bus_error(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS || WTERMSIG(status) == SIGABRT
                             : WEXITSTATUS(status) != 0;
}

void touch_foreign(Mapping& foreign) {
  foreign.resize(0);
  foreign.at(5) = 'x';
}

volatile char* expected_address = nullptr;
extern "C" void exit_by_address(int signal, siginfo_t* info, void*) {
  _exit(signal == SIGBUS && info->si_addr == expected_address ? 7 : 8);
}
extern "C" void exit_with_9(int) { _exit(9); }

TEST_F(FaultGuardDeath, ThePreviousHandlerGetsFaultsOutside) {
  const auto body = [] {
    struct sigaction action {};
    action.sa_sigaction = exit_by_address;
    action.sa_flags = SA_SIGINFO;
    BOWHEAD_ASSERT(sigaction(SIGBUS, &action, nullptr) == 0);
    Mapping mapping, foreign;
    mapping.watch();
    mapping.resize(0);
    mapping.at(1) = 'x';  // this one it does not get
    expected_address = &foreign.at(5);
    touch_foreign(foreign);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(7), "");
}

TEST_F(FaultGuardDeath, AHandlerWithoutDetailsGetsItAsWell) {
  const auto body = [] {
    (void)signal(SIGBUS, exit_with_9);
    Mapping mapping, foreign;
    mapping.watch();
    touch_foreign(foreign);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(9), "");
}

TEST_F(FaultGuardDeath, WithoutAHandlerTheProcessEndsByTheSignal) {
  const auto fault = [] {
    Mapping mapping, foreign;
    mapping.watch();
    touch_foreign(foreign);
  };
  EXPECT_EXIT(fault(), ended_by_bus_error, "");
  const auto sent = [] {
    Mapping mapping;
    mapping.watch();
    (void)kill(getpid(), SIGBUS);
    for (;;) pause();
  };
  EXPECT_EXIT(sent(), ended_by_bus_error, "");
}

TEST_F(FaultGuardDeath, AnIgnoredSignalFromAProcessStaysIgnored) {
  const auto sent = [] {
    (void)signal(SIGBUS, SIG_IGN);
    Mapping mapping;
    mapping.watch();
    (void)raise(SIGBUS);
    _exit(3);
  };
  EXPECT_EXIT(sent(), testing::ExitedWithCode(3), "");
  const auto fault = [] {
    (void)signal(SIGBUS, SIG_IGN);
    Mapping mapping, foreign;
    mapping.watch();
    touch_foreign(foreign);
  };
  EXPECT_EXIT(fault(), ended_by_bus_error, "");
}

TEST_F(FaultGuardDeath, AMappingThatIsNoLongerGuardedIsForeign) {
  const auto body = [] {
    Mapping mapping;
    mapping.watch();
    mapping.guard.reset();
    touch_foreign(mapping);
  };
  EXPECT_EXIT(body(), ended_by_bus_error, "");
}

TEST_F(FaultGuardDeath, AProcessThatResetItsSignalsIsGuardedByItsNextMapping) {
  const auto body = [] {
    {
      Mapping mapping;
      mapping.watch();
    }
    (void)signal(SIGBUS, SIG_DFL);
    Mapping mapping;
    mapping.watch();
    mapping.resize(0);
    mapping.at(1) = 'x';
    _exit(mapping.guard.failed() ? 4 : 5);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(4), "");
}

}  // namespace
}  // namespace bowhead
