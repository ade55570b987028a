// SPDX-License-Identifier: Apache-2.0
// Liveness: across pid namespaces, forks and stops, up to the limit of processes, and with several
// handles in one process.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

/// A child that waits at given places until the parent lets it continue.
class Steps {
 public:
  Steps() {
    EXPECT_EQ(pipe(reached_), 0);
    EXPECT_EQ(pipe(go_), 0);
  }
  ~Steps() {
    for (const int fd : {reached_[0], reached_[1], go_[0], go_[1]}) close(fd);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // In the child.
  void reach() { EXPECT_EQ(write(reached_[1], "r", 1), 1); }
  void wait() {
    char byte = 0;
    EXPECT_EQ(read(go_[0], &byte, 1), 1);
  }
  // In the parent.
  void await() {
    char byte = 0;
    EXPECT_EQ(read(reached_[0], &byte, 1), 1);
  }
  void go_on() { EXPECT_EQ(write(go_[1], "g", 1), 1); }

 private:
  int reached_[2], go_[2];
};

pid_t start_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(body());
}
int exit_status(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
void kill_and_wait(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

constexpr size_t kBytes = 40'000;

/// Reserves, fills, waits, commits.
int put_slowly(const std::string& locator, const std::string& key, Steps& steps) {
  TestPool own(locator);
  auto reservation = own.pool().reserve(own.ns(), key, kBytes);
  if (!reservation) return 2;
  const auto value = bytes(kBytes, 1);
  std::memcpy(reservation->data, value.data(), kBytes);
  steps.reach();
  steps.wait();
  if (std::memcmp(reservation->data, value.data(), kBytes) != 0) return 3;
  return own.pool().commit(*reservation) == Status::OK ? 0 : 4;
}

// ---- pid namespaces ----

constexpr int kCannot = 77;

/// Runs `body` as the first process of a new pid namespace; kCannot if the system does not permit
/// one.
int in_new_pid_namespace(const std::function<int()>& body) {
  if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return kCannot;
  return exit_status(start_child([&] { return getpid() == 1 ? body() : 5; }));
}

bool pid_namespaces_can_be_made() {
  return exit_status(start_child([] { return in_new_pid_namespace([] { return 0; }); })) == 0;
}

TEST(Liveness, AProcessInAnotherPidNamespaceIsAlive) {
  if (!pid_namespaces_can_be_made()) GTEST_SKIP() << "this system does not permit pid namespaces";
  TestPool t(32 << 20);
  Steps steps;
  const pid_t child = start_child(
      [&] { return in_new_pid_namespace([&] { return put_slowly(t.locator(), "far", steps); }); });
  steps.await();
  EXPECT_EQ(*t.pool().scavenge(), 0u);
  EXPECT_EQ(t.info().hosts[0].processes_live, 2u);
  steps.go_on();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(t.get("far"), bytes(kBytes, 1));
}

TEST(Liveness, ADeadProcessInAnotherPidNamespaceIsScavenged) {
  if (!pid_namespaces_can_be_made()) GTEST_SKIP() << "this system does not permit pid namespaces";
  TestPool t(32 << 20);
  Steps steps;
  const pid_t child = start_child([&] {
    return in_new_pid_namespace([&] {
      (void)put_slowly(t.locator(), "far", steps);  // killed in the middle, from outside
      return 0;
    });
  });
  steps.await();
  EXPECT_GT(t.info().used_bytes, 0);
  // Its parent, in the test's namespace, knows its pid here; PR_SET_PDEATHSIG kills it too.
  kill_and_wait(child);
  for (int i = 0; i < 1000 && *t.pool().scavenge() == 0; ++i) usleep(1000);
  EXPECT_EQ(t.info().hosts[0].processes_live, 1u);
  EXPECT_EQ(t.info().used_bytes, 0);
  EXPECT_TRUE(t.check_clean());
}

// ---- forks, stops, limits ----

TEST(Liveness, AForkedChildDoesNotKeepItsDeadParentAlive) {
  TestPool t(32 << 20);
  int grandchild_pipe[2];
  ASSERT_EQ(pipe(grandchild_pipe), 0);
  const pid_t child = start_child([&] {
    TestPool own(t.locator());
    EXPECT_TRUE(own.pool().reserve(own.ns(), "k", kBytes));
    if (fork() == 0) {
      const pid_t self = getpid();
      EXPECT_EQ(write(grandchild_pipe[1], &self, sizeof self), static_cast<ssize_t>(sizeof self));
      for (;;) pause();  // outlives its parent; independent of the pool
    }
    for (;;) pause();
    return 0;
  });
  pid_t grandchild = 0;
  ASSERT_EQ(read(grandchild_pipe[0], &grandchild, sizeof grandchild),
            static_cast<ssize_t>(sizeof grandchild));
  EXPECT_EQ(t.info().hosts[0].processes_live, 2u);
  EXPECT_EQ(*t.pool().scavenge(), 0u);
  EXPECT_GT(t.info().used_bytes, 0);
  kill_and_wait(child);
  ASSERT_EQ(kill(grandchild, 0), 0);
  EXPECT_EQ(*t.pool().scavenge(), 1u);
  EXPECT_EQ(t.info().hosts[0].processes_live, 1u);
  EXPECT_EQ(t.info().used_bytes, 0);
  kill(grandchild, SIGKILL);
  close(grandchild_pipe[0]);
  close(grandchild_pipe[1]);
}

TEST(Liveness, AForkedChildLeavesItsParentAlive) {
  TestPool t(32 << 20);
  auto reservation = t.pool().reserve(t.ns(), "k", kBytes);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(exit_status(start_child([] { return 0; })), 0);
  TestPool other(t.locator());
  EXPECT_EQ(*other.pool().scavenge(), 0u);
  const auto value = bytes(kBytes, 1);
  std::memcpy(reservation->data, value.data(), kBytes);
  EXPECT_EQ(t.pool().commit(*reservation), Status::OK);
  EXPECT_EQ(other.get("k"), value);
}

TEST(Liveness, AStoppedProcessKeepsItsBlocks) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  ASSERT_EQ(t.put("leased", bytes(kBytes, 2)), Status::OK);
  Steps steps;
  const pid_t child = start_child([&] {
    TestPool own(t.locator());
    auto lease = own.pool().acquire(own.ns(), "leased", 600'000);
    if (!lease) return 5;
    const int put = put_slowly(t.locator(), "slow", steps);
    if (put != 0) return put;
    const auto value = bytes(kBytes, 2);
    if (std::memcmp(lease->data, value.data(), kBytes) != 0) return 6;
    return own.pool().release(*lease) == Status::LAPSED ? 0 : 7;  // removed meanwhile
  });
  steps.await();
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(*t.pool().scavenge(), 0u);
  ASSERT_EQ(t.pool().remove(t.ns(), "leased"), Status::OK);
  // All free blocks are taken and freed again: none of the stopped process's may be among them.
  std::vector<std::string> filled;
  while (t.put("f" + std::to_string(filled.size()), bytes(kBytes, 3)) == Status::OK)
    filled.push_back("f" + std::to_string(filled.size()));
  EXPECT_GT(filled.size(), 100u);
  for (const std::string& key : filled) EXPECT_EQ(t.pool().remove(t.ns(), key), Status::OK);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  steps.go_on();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(t.get("slow"), bytes(kBytes, 1));
  EXPECT_EQ(*t.pool().scavenge(), 0u);  // it closed its handles
  EXPECT_TRUE(t.check_clean());
}

TEST(Liveness, MoreProcessesThanThereArePlacesAreRefused) {
  TestPool t(32 << 20);
  std::vector<pid_t> children;
  for (int i = 0; i < 255; ++i) {
    Steps steps;
    children.push_back(start_child([&] {
      TestPool own(t.locator());
      EXPECT_TRUE(own.pool().reserve(own.ns(), "k" + std::to_string(i), 1000));
      steps.reach();
      for (;;) pause();
      return 0;
    }));
    steps.await();
  }
  EXPECT_EQ(t.info().hosts[0].processes_live, 256u);
  auto refused = Pool::open(t.locator());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::LIMIT_REACHED);
  EXPECT_NE(refused.error().message().find("256"), std::string::npos);

  // The slot of a dead process goes to the next one, and so does the space that it had reserved.
  kill_and_wait(children.back());
  children.pop_back();
  {
    TestPool next(t.locator());
    EXPECT_EQ(next.info().used_bytes, 254 * 16384);
    EXPECT_EQ(next.put("next", bytes(1000, 1)), Status::OK);
  }
  for (const pid_t pid : children) kill_and_wait(pid);
  EXPECT_EQ(*t.pool().scavenge(), 254u);
  EXPECT_EQ(t.get("next"), bytes(1000, 1));
  EXPECT_EQ(t.info().used_bytes, 16384);
  EXPECT_EQ(t.info().hosts[0].processes_live, 1u);
  EXPECT_TRUE(t.check_clean());
}

/// Takes all free leases; 0 if that was the whole table.
int take_all_leases(TestPool& t, uint64_t ttl_ms, std::vector<Lease>& leases) {
  for (int i = 0; i < 1024; ++i) {
    auto lease = t.pool().acquire(t.ns(), "k", ttl_ms);
    if (!lease) return 9;
    leases.push_back(*lease);
  }
  return 0;
}

TEST(Liveness, LeasesOfADeadProcessComeBackWhenTheyAreNeeded) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("k", bytes(kBytes, 1)), Status::OK);
  Steps steps;
  const pid_t child = start_child([&] {
    TestPool own(t.locator());
    std::vector<Lease> leases;
    EXPECT_EQ(take_all_leases(own, 600'000, leases), 0);
    steps.reach();
    for (;;) pause();
    return 0;
  });
  steps.await();
  EXPECT_EQ(t.info().hosts[0].leases_active, 1024u);
  EXPECT_EQ(t.pool().acquire(t.ns(), "k", 1000).status(), Status::LIMIT_REACHED);
  kill_and_wait(child);
  std::vector<Lease> leases;
  EXPECT_EQ(take_all_leases(t, 600'000, leases), 0);
  EXPECT_EQ(leases.size(), 1024u);
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::OK);
  EXPECT_TRUE(t.check_clean());
}

TEST(Liveness, ExpiredLeasesOfAStoppedProcessGiveWay) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("k", bytes(kBytes, 1)), Status::OK);
  Steps steps;
  const pid_t child = start_child([&] {
    TestPool own(t.locator());
    std::vector<Lease> leases;
    if (take_all_leases(own, 1, leases) != 0) return 5;
    steps.reach();
    steps.wait();
    for (Lease& lease : leases) {
      if (own.pool().release(lease) != Status::LAPSED) return 6;
    }
    return 0;
  });
  steps.await();
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  usleep(5000);
  std::vector<Lease> leases;
  EXPECT_EQ(take_all_leases(t, 600'000, leases), 0);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  steps.go_on();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(t.info().hosts[0].leases_active, leases.size()) << "late releases end no other lease";
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::OK);
}

TEST(Liveness, HandlesOfOneProcessAreIndependent) {
  TestPool first(32 << 20);
  auto second = std::make_unique<TestPool>(first.locator());
  TestPool third(first.locator());
  EXPECT_EQ(first.info().hosts[0].processes_live, 3u);
  ASSERT_EQ(first.put("k", bytes(kBytes, 1)), Status::OK);
  EXPECT_EQ(second->get("k"), bytes(kBytes, 1));
  auto of_first = first.pool().reserve(first.ns(), "mine", kBytes);
  auto of_second = second->pool().reserve(second->ns(), "yours", kBytes);
  auto lease = second->pool().acquire(second->ns(), "k", 60'000);
  ASSERT_TRUE(of_first && of_second && lease);
  EXPECT_NE(of_first->offset, of_second->offset);
  EXPECT_EQ(*third.pool().scavenge(), 0u);
  // Closing one handle must not affect the other. If liveness were a lock of the process, this
  // would drop all locks.
  second.reset();
  EXPECT_EQ(first.info().hosts[0].processes_live, 2u);
  EXPECT_EQ(first.info().hosts[0].leases_active, 0u);
  EXPECT_EQ(*third.pool().scavenge(), 0u);
  const int scavenged_by_child = in_child([&] {
    TestPool child(first.locator());
    return static_cast<int>(*child.pool().scavenge());
  });
  EXPECT_EQ(scavenged_by_child, 0);
  const auto value = bytes(kBytes, 4);
  std::memcpy(of_first->data, value.data(), kBytes);
  EXPECT_EQ(first.pool().commit(*of_first), Status::OK);
  EXPECT_EQ(third.get("mine"), value);
  EXPECT_EQ(third.get_status("yours"), Status::NOT_FOUND);
  EXPECT_EQ(first.info().blocks, 2);
  EXPECT_TRUE(first.check_clean());
}

}  // namespace
}  // namespace bowhead::test
