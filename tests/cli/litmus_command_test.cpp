// SPDX-License-Identifier: Apache-2.0
// bowhead litmus from outside: two processes that find each other, and wrong usage.
#include <unistd.h>

#include <csignal>
#include <tuple>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class LitmusCommand : public CliTest {
 protected:
  /// Runs both hosts at once; the output of B goes to `b`.
  Outcome run_both(const std::string& more) const {
    return shell("$B litmus " + shm_locator() + " --host B " + more + " >" + path("b") +
                 " & $B litmus " + shm_locator() + " --host a " + more +
                 "; a=$?; wait $!; echo $? >" + path("b-code") + "; exit $a");
  }
};

TEST_F(LitmusCommand, BothHostsPrintTheSameReport) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const Outcome a = run_both("--seconds 0.5");
  EXPECT_EQ(a.code, 0) << a.out << a.err;
  EXPECT_EQ(read("b-code"), "0\n");
  EXPECT_EQ(read("b"), a.out);
  EXPECT_NE(a.out.find("Recommended: "), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("one machine"), std::string::npos) << a.out;
}

TEST_F(LitmusCommand, PrintsJson) {
  create(shm_locator(), "32M", {"--hosts", "3"});
  const Outcome a = run_both("--seconds 0.3 --json");
  ASSERT_EQ(a.code, 0) << a.out << a.err;
  EXPECT_EQ(read("b"), a.out);
  const auto json = json_of(a);
  EXPECT_EQ(json["locator"], shm_locator());
  EXPECT_EQ(json["one_machine"], true);
  EXPECT_EQ(json["safe_in_use"], true);
  EXPECT_EQ(json["in_use"].size(), 2u);
  ASSERT_FALSE(json["primitives"].empty());
  for (const auto& primitive : json["primitives"]) {
    EXPECT_EQ(primitive["stale"], false);
    EXPECT_EQ(primitive["publish_ns"].size(), 2u);
    EXPECT_EQ(primitive["acquire_ns"].size(), 2u);
    ASSERT_EQ(primitive["patterns"].size(), 3u);
    for (const auto& pattern : primitive["patterns"]) EXPECT_GT(pattern["rounds"], 0);
  }
}

TEST_F(LitmusCommand, UsesTheEnvironmentsPrimitive) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const Outcome a = shell("export BOWHEAD_FLUSH=clflush; $B litmus " + shm_locator() +
                          " --host B --seconds 0.3 >/dev/null & BOWHEAD_FLUSH=none $B litmus " +
                          shm_locator() + " --host A --seconds 0.3 --json; wait");
  EXPECT_EQ(json_of(a)["in_use"][0], "none");
  EXPECT_EQ(json_of(a)["in_use"][1], "clflush");
}

TEST_F(LitmusCommand, WrongUsageIsNamed) {
  create(shm_locator(), "32M");
  const std::vector<std::tuple<Arguments, int, std::string>> lines = {
      {{"litmus"}, 2, "locator"},
      {{"litmus", shm_locator()}, 2, "--host"},
      {{"litmus", shm_locator(), "--host", "C"}, 2, "--host"},
      {{"litmus", shm_locator(), "--host", "A", "--seconds", "0"}, 2, "--seconds"},
      {{"litmus", shm_locator(), "--host", "A", "--wait", "x"}, 2, "--wait"},
      {{"litmus", shm_locator(), "--host", "A"}, 2, "--hosts 2"},
      {{"litmus", "shm:", "--host", "A"}, 2, "shm:"},
      {{"litmus", shm_locator() + "-none", "--host", "A"}, 3, "-none"}};
  for (const auto& [arguments, code, named] : lines) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << named << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("bowhead: ")) << outcome.err;
  }
}

TEST_F(LitmusCommand, SaysWhatToStartOnTheOtherHost) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const Outcome outcome = run({"litmus", shm_locator(), "--host", "B", "--wait", "0.2"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("--host A"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"pool", "check", shm_locator()}).code, 0);
}

TEST_F(LitmusCommand, InterruptedItLeavesThePoolGood) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  {
    Running a({"litmus", shm_locator(), "--host", "A"});
    Running b({"litmus", shm_locator(), "--host", "B"});
    usleep(1'500'000);
    a.signal(SIGINT);
    EXPECT_EQ(a.wait(30), 130);
    EXPECT_EQ(b.wait(30), 3) << "it notices that the other one is gone";
  }
  EXPECT_EQ(run({"pool", "check", shm_locator()}).code, 0);
  EXPECT_EQ(run_both("--seconds 0.3").code, 0);
}

}  // namespace
}  // namespace bowhead::cli_test
