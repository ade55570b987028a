// SPDX-License-Identifier: Apache-2.0
// The litmus between two hosts of one machine, its refusals, and its conclusions from results.
#include "pool/litmus.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "pool/core/layout.h"
#include "pool/media/media.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

class Litmus : public testing::Test {
 protected:
  Litmus() { create(2); }
  ~Litmus() override { (void)Pool::destroy(locator_, true); }

  void create(uint32_t hosts) {
    CreateOptions options;
    options.size_bytes = 32 << 20;
    options.hosts = hosts;
    options.replace = true;
    const auto created = Pool::create(locator_, options);
    ASSERT_TRUE(created) << created.error().message();
  }
  Result<LitmusReport> run(uint32_t host, double wait_seconds = 20) const {
    LitmusOptions options;
    options.host = host;
    options.seconds = 0.3;
    options.wait_seconds = wait_seconds;
    return run_litmus(locator_, options);
  }
  Error refusal(uint32_t host = 0) const {
    const auto report = run(host, /*wait_seconds=*/0.1);
    EXPECT_FALSE(report);
    return report ? Error{} : report.error();
  }

  const std::string locator_ = unique_locator();
};

TEST_F(Litmus, BothHostsReportTheSame) {
  // Requests that lie there must still be there afterwards.
  auto media = open_media(locator_);
  ASSERT_TRUE(media);
  bool second_used = false;
  const std::byte* base = (*media)->base();
  const auto superblock = core::read_superblock({base, sizeof(bh_superblock)}, {},
                                                {.bytes = (*media)->size_bytes()}, &second_used);
  ASSERT_TRUE(superblock);
  const core::Layout layout(superblock->geometry);
  std::byte* const mail[] = {(*media)->base() + layout.mail(0, 1, 0),
                             (*media)->base() + layout.mail(1, 0, 0)};
  for (int side = 0; side < 2; ++side)
    std::memcpy(mail[side], bytes(BH_MAIL_AREA_BYTES, side).data(), BH_MAIL_AREA_BYTES);

  std::unique_ptr<Result<LitmusReport>> other;
  std::thread thread([&] { other = std::make_unique<Result<LitmusReport>>(run(1)); });
  const auto report = run(0);
  thread.join();
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_TRUE(*other) << other->error().message();

  const LitmusReport& a = *report;
  const LitmusReport& b = **other;
  ASSERT_EQ(a.results.size(), supported_flush_kinds().size());
  ASSERT_EQ(a.results.size(), b.results.size());
  for (size_t i = 0; i < a.results.size(); ++i) {
    EXPECT_EQ(a.results[i].kind, b.results[i].kind);
    EXPECT_EQ(a.results[i].publish_ns, b.results[i].publish_ns);
    EXPECT_EQ(a.results[i].acquire_ns, b.results[i].acquire_ns);
    EXPECT_GT(a.results[i].cost_ns(), 0);
    for (uint32_t p = 0; p < kLitmusPatterns; ++p) {
      EXPECT_GT(a.results[i].patterns[p].rounds, 0u);
      EXPECT_EQ(a.results[i].patterns[p].rounds, b.results[i].patterns[p].rounds);
      EXPECT_EQ(a.results[i].patterns[p].stale, 0u) << "the caches of one machine are coherent";
      EXPECT_EQ(b.results[i].patterns[p].stale, 0u);
    }
  }
  EXPECT_TRUE(a.one_machine && b.one_machine);
  EXPECT_EQ(a.in_use, b.in_use);
  EXPECT_EQ(a.recommended(), b.recommended());
  for (int side = 0; side < 2; ++side)
    EXPECT_EQ(std::memcmp(mail[side], bytes(BH_MAIL_AREA_BYTES, side).data(), BH_MAIL_AREA_BYTES),
              0);
}

TEST_F(Litmus, RefusesAPoolOfOneHost) {
  create(1);
  const Error error = refusal();
  EXPECT_EQ(error.status, Status::INVALID_ARGUMENT);
  EXPECT_NE(error.message().find("--hosts 2"), std::string::npos) << error.message();
}

TEST_F(Litmus, RefusesAPoolThatIsOpen) {
  const auto pool = Pool::open(locator_);
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(refusal().status, Status::IN_USE);
}

TEST_F(Litmus, RefusesAPoolWhoseHeartbeatMoves) {
  auto media = open_media(locator_);
  ASSERT_TRUE(media);
  bool second_used = false;
  const auto superblock = core::read_superblock({(*media)->base(), sizeof(bh_superblock)}, {},
                                                {.bytes = (*media)->size_bytes()}, &second_used);
  ASSERT_TRUE(superblock);
  const uint64_t at = core::Layout(superblock->geometry).part(1, BH_PART_HEARTBEAT);
  std::atomic<bool> stop{false};
  std::thread heart([&] {
    std::atomic_ref<uint64_t> heartbeat(*reinterpret_cast<uint64_t*>((*media)->base() + at));
    while (!stop) {
      ++heartbeat;
      usleep(10'000);
    }
  });
  const Error error = refusal();
  stop = true;
  heart.join();
  EXPECT_EQ(error.status, Status::IN_USE);
  EXPECT_NE(error.message().find("host 1"), std::string::npos) << error.message();
}

TEST_F(Litmus, SaysWhatToStartWhenTheOtherHostDoesNotCome) {
  for (const uint32_t host : {0, 1}) {
    const Error error = refusal(host);
    EXPECT_EQ(error.status, Status::BUSY);
    EXPECT_NE(error.message().find(host == 0 ? "--host B" : "--host A"), std::string::npos)
        << error.message();
  }
}

TEST_F(Litmus, RefusesASecondOneAsTheSameHost) {
  std::thread first([&] { EXPECT_EQ(run(0, /*wait_seconds=*/2).status(), Status::BUSY); });
  usleep(300'000);
  const Error error = refusal();
  first.join();
  EXPECT_EQ(error.status, Status::IN_USE);
}

TEST_F(Litmus, RefusesObjectsThatAreNotPools) {
  ASSERT_TRUE(Pool::destroy(locator_, true));
  EXPECT_EQ(refusal().status, Status::NO_SUCH_POOL);
}

// ---- what is made of results ----

LitmusResult result_of(FlushKind kind, double ns, uint64_t stale) {
  LitmusResult result;
  result.kind = kind;
  for (LitmusTally& tally : result.patterns) tally = {1000, 0};
  result.patterns[1].stale = stale;
  result.publish_ns = {ns / 4, ns / 2};
  result.acquire_ns = {ns / 2, ns / 4};
  return result;
}

TEST(LitmusReport, RecommendsTheCheapestThatIsNotStale) {
  LitmusReport report;
  report.in_use = {FlushKind::CLWB, FlushKind::CLWB};
  report.results = {result_of(FlushKind::CLWB, 100, 0), result_of(FlushKind::CLFLUSHOPT, 95, 0),
                    result_of(FlushKind::CLFLUSH, 300, 0), result_of(FlushKind::NONE, 1, 5)};
  EXPECT_EQ(report.recommended(), FlushKind::CLWB) << "a small saving is no reason to change";
  EXPECT_TRUE(report.safe_in_use());
  report.results[1] = result_of(FlushKind::CLFLUSHOPT, 50, 0);
  EXPECT_EQ(report.recommended(), FlushKind::CLFLUSHOPT);
  report.results[0] = result_of(FlushKind::CLWB, 100, 1);
  report.results[1] = result_of(FlushKind::CLFLUSHOPT, 50, 1);
  EXPECT_EQ(report.recommended(), FlushKind::CLFLUSH);
  EXPECT_FALSE(report.safe_in_use());
  report.results[2] = result_of(FlushKind::CLFLUSH, 300, 1);
  EXPECT_EQ(report.recommended(), std::nullopt);
  report.results[3] = result_of(FlushKind::NONE, 1, 0);
  EXPECT_EQ(report.recommended(), std::nullopt)
      << "a primitive that flushes nothing is never recommended";
  report.in_use[1] = FlushKind::NONE;
  EXPECT_FALSE(report.safe_in_use()) << "one of the two is enough";
}

}  // namespace
}  // namespace bowhead::test
