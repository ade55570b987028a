// SPDX-License-Identifier: Apache-2.0
// The benchmark runs, reports what docs/bench.md promises, and leaves nothing behind. No figure is
// asserted.
#include "bench/pool_bench.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "pool/media/media.h"
#include "pool/pool.h"

namespace bowhead::bench {
namespace {

class PoolBench : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.locator = "shm:bowhead-bench-test-" + std::to_string(getpid());
    options_.walk_bytes = 32u << 20;
    options_.rounds = 5;
    options_.quick = true;
    options_.json = true;
    options_.command = "the test";
    output_ = testing::TempDir() + "bowhead-bench-test-" + std::to_string(getpid());
  }
  void TearDown() override { unlink(output_.c_str()); }

  /// Starts a run in a child whose stdout goes to output_.
  pid_t start() {
    const pid_t child = fork();
    if (child != 0) return child;
    if (freopen(output_.c_str(), "w", stdout) == nullptr) _exit(99);
    _exit(run_pool_bench(options_));
  }
  int run() {
    int status = 0;
    waitpid(start(), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool pool_exists() const { return open_media(options_.locator).status() != Status::NO_SUCH_POOL; }

  PoolBenchOptions options_;
  std::string output_;
};

TEST_F(PoolBench, PrintsEveryRowAsDocumented) {
  ASSERT_EQ(run(), 0);
  std::set<std::string> rows;
  int cpus = 0;
  std::ifstream output(output_);
  for (std::string text; std::getline(output, text);) {
    const auto line = nlohmann::json::parse(text);
    EXPECT_EQ(line.at("bench"), "pool");
    EXPECT_EQ(line.at("command"), "the test");
    EXPECT_EQ(line.at("quick"), true);
    cpus = line.at("machine").at("cpus");
    EXPECT_GE(cpus, 1);
    for (const char* field : {"commit", "date", "media", "unit", "what", "parameters"}) {
      EXPECT_TRUE(line.contains(field)) << field << " in " << text;
    }
    const auto& value = line.at("value");
    EXPECT_GE(value.at("rounds"), 5) << text;
    EXPECT_GT(value.at("min"), 0) << text;
    EXPECT_LE(value.at("min"), value.at("median")) << text;
    EXPECT_LE(value.at("median"), value.at("max")) << text;
    if (line.contains("limit")) {
      EXPECT_GT(line.at("limit").at("median"), 0) << text;
      EXPECT_GT(line.at("ratio").at("median"), 0) << text;
    }
    if (line.contains("target")) {
      const auto& target = line.at("target");
      const double measured = line.at(std::string(target.at("of"))).at("median");
      const double bound = target.at("bound");
      EXPECT_EQ(target.at("met"), target.at("at_least") ? measured >= bound : measured <= bound);
    }
    rows.insert(line.at("row"));
  }
  std::set<std::string> documented = {"put",
                                      "get",
                                      "put_batch",
                                      "get_batch",
                                      "get_joined",
                                      "queue",
                                      "checksum_copy_in",
                                      "checksum_copy_out",
                                      "allocate_free_time",
                                      "space",
                                      "evict_longest",
                                      "evict_put",
                                      "exists",
                                      "open_after_crash",
                                      "open_after_reboot",
                                      "allocate_free_rate",
                                      "reserve_abort_time",
                                      "reserve_abort_rate",
                                      "lookup_hosts",
                                      "lookup_many_hosts",
                                      "put_logged",
                                      "put_flushed",
                                      "get_flushed",
                                      "adoption"};
  if (cpus > 1)
    documented.insert(
        {"rpc_one_way", "rpc_round_trip", "rpc_rate", "lookup_beside_puts", "lookup_after_puts"});
  EXPECT_EQ(rows, documented);
  EXPECT_FALSE(pool_exists());
}

TEST_F(PoolBench, RemovesItsPoolWhenInterrupted) {
  options_.walk_bytes = 256u << 20;
  options_.rows = {"copy"};
  const pid_t child = start();
  for (int i = 0; i < 2000 && !pool_exists(); ++i) usleep(5000);
  ASSERT_TRUE(pool_exists());
  ASSERT_EQ(kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM) << status;
  EXPECT_FALSE(pool_exists());
}

TEST_F(PoolBench, LeavesAForeignPoolAlone) {
  CreateOptions create;
  create.size_bytes = 16u << 20;
  ASSERT_TRUE(Pool::create(options_.locator, create));
  EXPECT_EQ(run(), 3);
  EXPECT_TRUE(Pool::open(options_.locator));
  EXPECT_TRUE(Pool::destroy(options_.locator, false));
}

TEST_F(PoolBench, LeavesAForeignPoolAloneThatWouldBeJoined) {
  const std::string second = options_.locator + "-2";
  CreateOptions create;
  create.size_bytes = 16u << 20;
  ASSERT_TRUE(Pool::create(second, create));
  EXPECT_EQ(run(), 3);
  EXPECT_FALSE(pool_exists());
  EXPECT_TRUE(Pool::open(second));
  EXPECT_TRUE(Pool::destroy(second, false));
}

TEST_F(PoolBench, RefusesUnknownRows) {
  options_.rows = {"copy", "nonsense"};
  EXPECT_EQ(run(), 2);
  options_.rows = {};
  options_.rounds = 4;
  EXPECT_EQ(run(), 2);
  EXPECT_FALSE(pool_exists());
}

}  // namespace
}  // namespace bowhead::bench
