// SPDX-License-Identifier: Apache-2.0
// Every interrupted command ends at once, with its children, and leaves the pool valid.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class Signals : public CliTest {
 protected:
  Arguments long_replay() const {
    return {"replay", "--pool",     shm_locator(), "--workers",  "3",     "--block-bytes",
            "16K",    "--generate", "multiturn",   "--requests", "200000"};
  }
  bool working(const Running& running) const {
    // Blocks appear: the workers are running. Under ThreadSanitizer on a loaded machine that takes
    // half a minute.
    return eventually(200, [&] {
      return running.children().size() == 3 &&
             run({"ls", shm_locator()}).out.find("block-") != std::string::npos;
    });
  }
  void expect_good() const {
    const Outcome check = run({"pool", "check", shm_locator(), "--payload"});
    EXPECT_EQ(check.code, 0) << check.out << check.err;
    const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}));
    EXPECT_EQ(info["hosts"][0]["processes_live"], 0);
  }
};

TEST_F(Signals, AReplayEndsPromptlyAndLeavesThePoolGood) {
  create(shm_locator(), "64M");
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Running replay(long_replay());
    ASSERT_TRUE(working(replay));
    replay.signal(number);
    EXPECT_EQ(replay.wait(30), 128 + number);
    EXPECT_TRUE(replay.group_is_gone());
    expect_good();
  }
}

TEST_F(Signals, AReplayThatIsStillMeasuringEndsToo) {
  create(shm_locator(), "64M");
  Running replay(long_replay());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  replay.signal(SIGTERM);
  EXPECT_EQ(replay.wait(30), 143);
  expect_good();
}

TEST_F(Signals, AReplayTakesThePoolItMadeWithIt) {
  Arguments arguments = long_replay();
  arguments.insert(arguments.end(), {"--create", "64M"});
  Running replay(arguments);
  ASSERT_TRUE(working(replay));
  replay.signal(SIGINT);
  EXPECT_EQ(replay.wait(30), 130);
  EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3);
}

TEST_F(Signals, AWorkerThatDiesEndsTheReplayAndHarmsNothing) {
  create(shm_locator(), "64M");
  Running replay(long_replay());
  ASSERT_TRUE(working(replay));
  const auto children = replay.children();
  ASSERT_FALSE(children.empty());
  kill(children[0], SIGKILL);
  EXPECT_EQ(replay.wait(30), 3);
  EXPECT_TRUE(replay.group_is_gone());
  expect_good();
}

TEST_F(Signals, WorkersEndWithTheirParent) {
  create(shm_locator(), "64M");
  Running replay(long_replay());
  ASSERT_TRUE(working(replay));
  replay.signal(SIGKILL);
  EXPECT_EQ(replay.wait(30), 137);
  EXPECT_TRUE(replay.group_is_gone());
  expect_good();
}

// The exit code tells whether the pool exists, whenever the signal comes: here spread over the time
// of a create, with most of them near the moment when the pool appears.
TEST_F(Signals, AnInterruptedCreateLeavesNoPool) {
  const std::string object = "/dev/shm/bowhead-" + shm_locator().substr(4);
  for (int round = 0; round < 40; ++round) {
    Running creation({"pool", "create", shm_locator(), "--size", round < 8 ? "256M" : "16M"});
    int code = -1;
    if (round < 8) {
      std::this_thread::sleep_for(std::chrono::milliseconds(round * 20));
    } else {
      ASSERT_TRUE(eventually(
          30, [&] { return std::filesystem::exists(object) || (code = creation.wait(0)) >= 0; }));
    }
    if (code < 0) {
      creation.signal(SIGTERM);
      code = creation.wait(30);
    }
    EXPECT_TRUE(code == 0 || code == 143) << code << " in round " << round;
    const int info = run({"pool", "info", shm_locator()}).code;
    EXPECT_EQ(info, code == 0 ? 0 : 3) << "in round " << round;
    // Nothing is in the way, in particular nothing unfinished that would need --force.
    EXPECT_EQ(run({"pool", "destroy", shm_locator()}).code, info);
    EXPECT_EQ(run({"pool", "destroy", shm_locator()}).code, 3);
  }
}

/// As `nohup` and the background jobs of scripts have it: what is ignored at the start stays so.
TEST_F(Signals, AnIgnoredSignalEndsNothing) {
  const std::vector<Arguments> commands = {
      {"pool", "create", shm_locator(), "--size", "256M", "--force"},
      {"replay", "--pool", shm_locator(), "--workers", "2", "--requests", "3000", "--block-bytes",
       "16K"},
      {"bench", "pool", "--quick", "--row", "alloc"}};
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    for (const Arguments& command : commands) {
      SCOPED_TRACE(command[0] + " " + strsignal(number));
      const auto before = std::signal(number, SIG_IGN);
      Running running(command);
      std::signal(number, before);
      int code = -1;
      EXPECT_TRUE(eventually(120, [&] {
        running.signal(number);
        return (code = running.wait(0)) >= 0;
      }));
      EXPECT_EQ(code, 0);
    }
  }
}

TEST_F(Signals, APutThatWaitsForItsValueEnds) {
  create(shm_locator());
  const Outcome outcome =
      shell("cd " + folder_.string() + " && mkfifo f && exec 3<>f && { $B put " + shm_locator() +
            " k <f & p=$!; sleep 0.2; kill -TERM $p; wait $p; }");
  EXPECT_EQ(outcome.code, 143) << outcome.err;
  expect_good();
}

}  // namespace
}  // namespace bowhead::cli_test
