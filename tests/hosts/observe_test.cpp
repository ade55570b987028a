// SPDX-License-Identifier: Apache-2.0
// Observers store nothing: not a byte of the pool changes when an observer reads and checks all of
// it, clean or damaged, in use or with a dead process's leftovers.
#include <grp.h>
#include <sys/stat.h>

#include <thread>

#include "tests/support/hosts.h"
#include "tests/support/words.h"

namespace bowhead::test {
namespace {

constexpr uid_t kOther = 54322;

class Observe : public testing::TestWithParam<uint32_t> {
 protected:
  uint32_t hosts() const { return GetParam(); }
  std::vector<std::byte> image() const {
    return {pool_.at(0), pool_.at(pool_.superblock().geometry.total_bytes)};
  }
  /// Blocks of each host, under "HOST-NUMBER".
  void fill() {
    for (uint32_t host = 0; host < hosts(); ++host) {
      Host opened = pool_.open(host);
      for (int i = 0; i < 20; ++i) ASSERT_EQ(opened.put(fmt::format("{}-{}", host, i)), Status::OK);
    }
  }
  uint64_t payload_of(const std::string& key) {
    uint64_t offset = 0;
    auto observer = Host::observe(pool_.locator());
    EXPECT_TRUE(observer);
    EXPECT_EQ(observer->pool().list([&](const BlockInfo& block) {
      if (block.key == key) offset = block.offset;
      return true;
    }),
              Status::OK);
    return offset;
  }
  /// Everything that an observer can do. Returns the report of check().
  CheckReport look_at_everything() {
    auto observer = Host::observe(pool_.locator());
    EXPECT_TRUE(observer) << observer.error().message();
    Pool& pool = observer->pool();
    EXPECT_TRUE(pool.info());
    EXPECT_TRUE(pool.usage());
    uint64_t blocks = 0;
    EXPECT_EQ(pool.list([&](const BlockInfo&) { return ++blocks > 0; }), Status::OK);
    for (uint32_t host = 0; host < hosts(); ++host) {
      for (int i = 0; i < 20; ++i) (void)observer->get(fmt::format("{}-{}", host, i));
    }
    const std::vector<std::string_view> keys = {"0-0", "0-1", "none"};
    EXPECT_TRUE(pool.longest_prefix(observer->ns(), keys));
    auto report = pool.check(/*payload=*/true);
    EXPECT_TRUE(report);
    return report ? *report : CheckReport{};
  }

  /// No host is declared dead while a test runs, however slow the machine.
  static constexpr SharingTimes kPatient{
      .heartbeat_ms = 20, .dead_ms = 600'000, .grace_ms = 100, .settle_ms = 5, .reclaim_ms = 0};
  SharedPool pool_{GetParam(), {.evict_high_permille = 0}, kPatient};
};

TEST_P(Observe, ACleanPoolStaysAsItIs) {
  fill();
  const auto before = image();
  const CheckReport report = look_at_everything();
  EXPECT_TRUE(report.findings.empty()) << report.findings[0].what;
  EXPECT_EQ(report.blocks_checked, 20u * hosts());
  EXPECT_TRUE(image() == before);
}

TEST_P(Observe, ADamagedPoolStaysAsItIs) {
  fill();
  *pool_.at(payload_of("0-3") + 5) ^= std::byte{1};
  const auto before = image();
  const CheckReport report = look_at_everything();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_TRUE(report.findings[0].data_lost);
  EXPECT_EQ(Host::observe(pool_.locator())->get("0-3"), Status::DAMAGED);
  EXPECT_TRUE(image() == before);
}

/// A process that died in the middle of a put: the next process that stores undoes it; it is no
/// damage.
TEST_P(Observe, ADeadProcessesLeftoversStayAndAreNotAFinding) {
  fill();
  HostProcess process(pool_, 0, {[](Host& host) {
                        static std::vector<Reservation> left;
                        for (int i = 0; i < 3; ++i)
                          left.push_back(*host.pool().reserve(host.ns(), fmt::format("x{}", i), 9));
                        return host.pool().acquire(host.ns(), "0-1", 60'000).status();
                      }});
  ASSERT_EQ(process.next(), Status::OK);
  process.kill_now();
  const auto before = image();
  const CheckReport report = look_at_everything();
  EXPECT_TRUE(report.findings.empty()) << report.findings[0].what;
  EXPECT_TRUE(image() == before);
}

TEST_P(Observe, AHostOnThisMachineIsCheckedToItsAllocator) {
  fill();
  std::vector<Host> open;
  for (uint32_t host = 0; host < hosts(); ++host) open.push_back(pool_.open(host));
  const uint32_t last = hosts() - 1;
  // A committed block whose word says free.
  const uint64_t slot = pool_.layout().slot_of(payload_of(fmt::format("{}-7", last)));
  const uint64_t word = block_word(pool_.layout(), last, slot,
                                   [&](uint64_t offset) { return pool_.read<uint64_t>(offset); });
  const auto state = core::StateWord::unpack(pool_.read<uint64_t>(word));
  ASSERT_EQ(state.state, uint32_t{BH_BLOCK_COMMITTED});
  const uint64_t damaged = state.next(BH_BLOCK_FREE).pack();
  std::memcpy(pool_.at(word), &damaged, sizeof damaged);
  const CheckReport report = look_at_everything();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_NE(report.findings[0].what.find("the allocator does not know"), std::string::npos);
  EXPECT_TRUE(report.not_checked.empty()) << report.not_checked[0];
  const uint64_t good = state.pack();
  std::memcpy(pool_.at(word), &good, sizeof good);
}

TEST_P(Observe, AHostOnAnotherMachineIsReportedAsNotChecked) {
  fill();
  const uint32_t last = hosts() - 1;
  auto slot = *pool_.slot(last);
  const uint64_t machine_id = slot.machine_id;
  slot.boot_id ^= 2;
  slot.state = BH_HOST_LIVE;
  // The same machine id, as of another machine from one image; no id; another one.
  for (const uint64_t id : {machine_id, uint64_t{0}, machine_id ^ 2}) {
    slot.machine_id = id;
    pool_.write_slot(last, slot);
    const CheckReport report = look_at_everything();
    EXPECT_TRUE(report.findings.empty()) << report.findings[0].what;
    ASSERT_FALSE(report.not_checked.empty());
    EXPECT_NE(report.not_checked.back().find(fmt::format("host {}: only the machine", last)),
              std::string::npos)
        << report.not_checked.back();
  }
}

TEST_P(Observe, ReadPermissionSuffices) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  fill();
  const std::string path = "/dev/shm/bowhead-" + pool_.locator().substr(4);
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(in_child([&] {
              if (setgroups(0, nullptr) != 0 || setgid(kOther) != 0 || setuid(kOther) != 0)
                return 2;
              if (Host::open(pool_.locator(), 0)) return 3;
              auto observer = Host::observe(pool_.locator());
              if (!observer) return 4;
              const auto report = observer->pool().check(/*payload=*/true);
              if (!report || !report->findings.empty()) return 5;
              return observer->get("0-0") == Status::OK ? 0 : 6;
            }),
            0);
}

/// Blocks come, move and go while it reads.
TEST_P(Observe, APoolInUseGivesNoFalseFinding) {
  std::vector<std::unique_ptr<HostProcess>> users;
  for (uint32_t host = 0; host < hosts(); ++host) {
    const auto use = [host](Host& opened) {
      for (int round = 0;; ++round) {
        (void)opened.put(fmt::format("{}-{}", host, round % 40), 1000 + round % 7 * 30'000);
        if (round % 3 == 0) (void)opened.remove(fmt::format("{}-{}", host, round * 7 % 40));
      }
    };
    users.push_back(std::make_unique<HostProcess>(
        pool_, host, std::vector<HostProcess::Step>{[use](Host& opened) {
          std::thread(use, std::ref(opened)).detach();
          return Status::OK;
        }}));
    ASSERT_EQ(users.back()->next(), Status::OK);
  }
  ASSERT_TRUE(eventually([&] {
    auto observer = Pool::open(pool_.locator(), {.observe = true});
    return observer && observer->info()->puts > 100;
  }));
  auto observer = Pool::open(pool_.locator(), {.observe = true});
  ASSERT_TRUE(observer);
  for (int round = 0; round < 30; ++round) {
    const auto report = observer->check(/*payload=*/true);
    ASSERT_TRUE(report);
    for (const CheckFinding& finding : report->findings) ADD_FAILURE() << finding.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, Observe, testing::Values(1, 3),
                         [](const auto& at) { return std::to_string(at.param); });

}  // namespace
}  // namespace bowhead::test
