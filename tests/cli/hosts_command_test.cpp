// SPDX-License-Identifier: Apache-2.0
// The command line on pools of several hosts: --host, leave, fence, observing without joining,
// replay as several hosts.
#include <bowhead/format/superblock.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class HostCommands : public CliTest {
 protected:
  Outcome as(uint32_t host, Arguments arguments, const std::string& input = "") const {
    arguments.push_back("--host");
    arguments.push_back(std::to_string(host));
    return run(arguments, input);
  }
  nlohmann::json host_info(uint32_t host) const {
    return json_of(run({"pool", "info", shm_locator(), "--json"}))["hosts"][host];
  }
  void expect_refused(const Outcome& outcome, int code, const std::string& advice) const {
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("bowhead: " + shm_locator())) << outcome.err;
    EXPECT_NE(outcome.err.find(advice), std::string::npos) << outcome.err;
  }
};

TEST_F(HostCommands, BlocksOfOneHostAreReadAndRemovedByOthers) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  EXPECT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  EXPECT_EQ(as(1, {"get", shm_locator(), "k"}).out, "value");
  EXPECT_NE(as(1, {"ls", shm_locator()}).out.find("k"), std::string::npos);
  const Outcome again = as(1, {"put", shm_locator(), "k"}, "other");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(as(0, {"get", shm_locator(), "k"}).out, "value");
  EXPECT_EQ(as(0, {"rm", shm_locator(), "k"}).code, 0);
  EXPECT_EQ(as(1, {"get", shm_locator(), "k"}).code, 1);
  EXPECT_EQ(as(0, {"pool", "check", shm_locator(), "--payload"}).code, 0);
}

/// A removal is answered while a process has the pool open as the owner, and not otherwise.
TEST_F(HostCommands, ARemovalIsLeftToTheOwner) {
  create(shm_locator(), "32M", {"--hosts", "2", "--no-evict"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  const Outcome alone = as(1, {"rm", shm_locator(), "k"});
  EXPECT_EQ(alone.code, 3);
  EXPECT_NE(alone.err.find("key 'k' of namespace 'default': it may still be stored: host 0, which"),
            std::string::npos)
      << alone.err;
  EXPECT_NE(alone.err.find("open as that host"), std::string::npos) << alone.err;
  EXPECT_EQ(run({"get", shm_locator(), "k"}).code, 0);
  const Running owner({"host", shm_locator(), "--host", "0"});
  EXPECT_TRUE(eventually(45, [&] { return as(1, {"rm", shm_locator(), "k"}).code == 0; }));
  EXPECT_EQ(run({"get", shm_locator(), "k"}).code, 1);
}

/// While `bowhead host` runs, the host outlives its engines; it ends with a signal, the pool or its
/// own life.
TEST_F(HostCommands, AResidentHostStaysWhileEnginesComeAndGo) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  ASSERT_EQ(as(1, {"put", shm_locator(), "other"}, "value").code, 0);
  Running resident({"host", shm_locator(), "--host", "0"});
  ASSERT_TRUE(eventually(45, [&] { return host_info(0)["processes_live"] == 1; }));
  const Running watcher({"host", shm_locator(), "--host", "1"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5000));  // more than the default --dead-ms
  EXPECT_EQ(host_info(0)["state"], "live");
  EXPECT_EQ(as(1, {"rm", shm_locator(), "k"}).code, 0) << "its duties are done";
  resident.signal(SIGTERM);
  EXPECT_EQ(resident.wait(30), 0);
  EXPECT_EQ(host_info(0)["processes_live"], 0);
}

/// Also into a file or a pipe, whose reader waits for it.
TEST_F(HostCommands, AResidentHostSaysAtOnceThatItIsUp) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const std::string log = path("log");
  const Outcome outcome =
      shell("$B host " + shm_locator() + " >" + log + " & i=0; until grep -q 'is up' " + log +
            " || [ $((i += 1)) = 450 ]; do sleep 0.1; done; kill $!; wait; "
            "[ $i -lt 450 ]");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

/// Its room to grow has no memory to touch. Errors are no terminal here, so that nothing shows
/// progress.
TEST_F(HostCommands, AResidentHostStaysInAPoolThatCanGrow) {
  create(shm_locator(), "32M", {"--max-size", "1G"});
  Running resident({"host", shm_locator()});
  ASSERT_TRUE(eventually(45, [&] { return host_info(0)["processes_live"] == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // some steps of it
  resident.signal(SIGTERM);
  EXPECT_EQ(resident.wait(30), 0);
}

TEST_F(HostCommands, AResidentHostLeavesIfItIsToldTo) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  Running resident({"host", shm_locator(), "--host", "1", "--leave"});
  ASSERT_TRUE(eventually(45, [&] { return host_info(1)["state"] == "live"; }));
  resident.signal(SIGINT);
  EXPECT_EQ(resident.wait(30), 0);
  EXPECT_EQ(host_info(1)["state"], "left");
}

TEST_F(HostCommands, AResidentHostEndsWithItsPool) {
  create(shm_locator(), "32M");
  Running resident({"host", shm_locator()});
  ASSERT_TRUE(eventually(45, [&] { return host_info(0)["processes_live"] == 1; }));
  ASSERT_EQ(run({"pool", "destroy", shm_locator(), "--force"}).code, 0);
  EXPECT_EQ(resident.wait(30), 3);
  EXPECT_EQ(run({"host", shm_locator()}).code, 3);
}

/// The block of a host that died, and may still write to it: nothing may be stored there.
TEST_F(HostCommands, ARemovalThatWaitsForAFenceNamesTheHost) {
  create(shm_locator(), "32M",
         {"--hosts", "2", "--no-evict", "--dead-ms", "1000", "--reclaim-ms", "0"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  const Running other({"host", shm_locator(), "--host", "1"});
  ASSERT_TRUE(eventually(60, [&] { return host_info(0)["extents_owned"] == 0; }));
  const Outcome waits = as(1, {"rm", shm_locator(), "k"});
  expect_refused(waits, 3, "host 0 owned it when it was declared dead");
  EXPECT_NE(waits.err.find("`bowhead pool fence " + shm_locator() + " 0`"), std::string::npos)
      << waits.err;
  ASSERT_EQ(as(1, {"pool", "fence", shm_locator(), "0"}).code, 0);
  EXPECT_TRUE(eventually(60, [&] { return as(1, {"rm", shm_locator(), "k"}).code == 0; }));
}

TEST_F(HostCommands, APutWithoutRoomNamesTheHostAndWhatToDo) {
  create(shm_locator(), "32M", {"--hosts", "2", "--no-evict"});
  write("value", std::string(1 << 20, 'v'));
  Outcome put;
  for (int n = 0; put.code <= 0 && n < 40; ++n)
    put = as(0, {"put", shm_locator(), "k" + std::to_string(n), path("value")});
  EXPECT_EQ(put.code, 3);
  EXPECT_NE(put.err.find("host 0 has no space"), std::string::npos) << put.err;
  EXPECT_NE(put.err.find("try again"), std::string::npos) << put.err;
}

TEST_F(HostCommands, AnObserverDoesNotJoin) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  ASSERT_EQ(as(1, {"put", shm_locator(), "k"}, "value").code, 0);
  for (const Arguments& command :
       {Arguments{"pool", "info", shm_locator()}, Arguments{"pool", "check", shm_locator()},
        Arguments{"ls", shm_locator()}, Arguments{"get", shm_locator(), "k"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0) << command[0] << ": " << outcome.err;
  }
  EXPECT_EQ(host_info(0)["state"], "free");
  EXPECT_EQ(host_info(0)["incarnation"], 0);
  EXPECT_EQ(host_info(1)["incarnation"], 1);
  EXPECT_EQ(host_info(1)["processes_live"], 0);
}

TEST_F(HostCommands, InfoShowsTheHosts) {
  create(shm_locator(), "32M", {"--hosts", "3"});
  ASSERT_EQ(as(1, {"put", shm_locator(), "k"}, "value").code, 0);
  const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}));
  ASSERT_EQ(info["hosts"].size(), 3u);
  EXPECT_NE(info["flush"], "none") << "stores are written back";
  uint64_t owned = 0;
  for (const auto& host : info["hosts"]) {
    owned += host["extents_owned"].get<uint64_t>();
    EXPECT_EQ(host["extents_custody"], 0);
    EXPECT_EQ(host["leases_active"], 0);
  }
  EXPECT_EQ(owned, info["extent_count"]);
  EXPECT_EQ(info["hosts"][0]["state"], "free");
  EXPECT_EQ(info["hosts"][1]["state"], "live");
  EXPECT_EQ(info["hosts"][0]["format_version"], 0);
  EXPECT_EQ(info["hosts"][1]["format_version"], 2);
  EXPECT_EQ(info["hosts"][1]["features"],
            BH_FEATURES_COMPAT | BH_FEATURES_INCOMPAT | BH_FEATURES_RO_COMPAT);
  EXPECT_EQ(info["hosts"][0]["silent"], false) << "never used";
  EXPECT_EQ(info["hosts"][1]["silent"], true) << "its process ended without leaving";
  EXPECT_EQ(info["heartbeat_ms"], 100);
  const std::string text = run({"pool", "info", shm_locator()}).out;
  EXPECT_NE(text.find("CUSTODY"), std::string::npos) << text;
  EXPECT_NE(text.find("silent"), std::string::npos) << text;
  EXPECT_NE(text.find("heartbeat 100 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("got from other hosts"), std::string::npos) << text;
}

TEST_F(HostCommands, NumbersThatNoHostHasAreRefused) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  for (const Arguments& command :
       {Arguments{"pool", "info", shm_locator()}, Arguments{"put", shm_locator(), "k"},
        Arguments{"pool", "leave", shm_locator()}, Arguments{"pool", "fence", shm_locator(), "0"}})
    expect_refused(as(2, command, "v"), 2, "made for 2 host(s), numbered from 0");
  for (const char* wrong : {"64", "-1", "x", ""}) {
    const Outcome outcome = run({"pool", "info", shm_locator(), "--host", wrong});
    EXPECT_EQ(outcome.code, 2) << wrong;
    EXPECT_NE(outcome.err.find("--host"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(host_info(0)["incarnation"], 0) << "nothing was joined";
}

TEST_F(HostCommands, APoolForOneHostHasNoSecond) {
  create(shm_locator());
  expect_refused(as(1, {"put", shm_locator(), "k"}, "v"), 2, "made for 1 host(s)");
  expect_refused(as(0, {"pool", "fence", shm_locator(), "0"}), 2, "this host itself");
  EXPECT_EQ(as(0, {"put", shm_locator(), "k"}, "v").code, 0);
  EXPECT_EQ(run({"pool", "leave", shm_locator()}).code, 0) << "nothing to leave";
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "v");
}

// ---- leave ----

TEST_F(HostCommands, AHostThatLeavesPassesItsBlocksOn) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  const Outcome left = as(0, {"pool", "leave", shm_locator()});
  EXPECT_EQ(left.code, 0) << left.err;
  EXPECT_NE(left.out.find("host 0 left " + shm_locator()), std::string::npos) << left.out;
  EXPECT_EQ(host_info(0)["state"], "left");
  EXPECT_EQ(as(1, {"get", shm_locator(), "k"}).out, "value");
  const Running other({"host", shm_locator(), "--host", "1"});
  EXPECT_TRUE(eventually(45, [&] { return host_info(0)["extents_owned"] == 0; }));
  EXPECT_EQ(host_info(0)["state"], "ended");
  EXPECT_TRUE(eventually(45, [&] { return host_info(1)["extents_custody"] == 0; }))
      << "it has itself reported that it stopped";
}

TEST_F(HostCommands, NoHostLeavesWhileAProcessIsOpen) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const Running other({"host", shm_locator(), "--host", "0"});
  ASSERT_TRUE(eventually(45, [&] { return host_info(0)["processes_live"] == 1; }));
  expect_refused(as(0, {"pool", "leave", shm_locator()}), 3, "end them");
  EXPECT_EQ(host_info(0)["state"], "live");
  EXPECT_TRUE(eventually(45, [&] { return host_info(0)["silent"] == false; }));
}

// ---- fence ----

TEST_F(HostCommands, AHostThatHasLeftDoesNotJoinToLeave) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  EXPECT_NE(as(1, {"pool", "leave", shm_locator()}).out.find("nothing to leave"),
            std::string::npos);
  EXPECT_EQ(host_info(1)["incarnation"], 0);
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  ASSERT_EQ(as(0, {"pool", "leave", shm_locator()}).code, 0);
  for (const Outcome& again :
       {as(0, {"pool", "leave", shm_locator()}), run({"pool", "leave", shm_locator()})}) {
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_NE(again.out.find("nothing to leave"), std::string::npos) << again.out;
  }
  EXPECT_EQ(host_info(0)["incarnation"], 1) << "a new life began";
}

TEST_F(HostCommands, WhichOfSeveralHostsLeavesIsNotGuessed) {
  create(shm_locator(), "32M", {"--hosts", "4"});
  for (const uint32_t host : {0, 1, 2})
    ASSERT_EQ(as(host, {"put", shm_locator(), std::to_string(host)}, "value").code, 0);
  ASSERT_EQ(as(0, {"pool", "leave", shm_locator()}).code, 0);
  expect_refused(run({"pool", "leave", shm_locator()}), 2, "hosts 1, 2 have joined");
  ASSERT_EQ(as(1, {"pool", "leave", shm_locator()}).code, 0);
  const Outcome left = run({"pool", "leave", shm_locator()});
  EXPECT_EQ(left.code, 0) << left.err;
  EXPECT_NE(left.out.find("host 2 left"), std::string::npos) << left.out;
  for (const uint32_t host : {0, 1, 2}) {
    const auto info = host_info(host);
    EXPECT_TRUE(info["state"] == "left" || info["state"] == "ended") << info;
    EXPECT_EQ(info["incarnation"], 1) << "a new life began";
  }
}

TEST_F(HostCommands, OnlyADeadHostIsFenced) {
  create(shm_locator(), "32M", {"--hosts", "3"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  expect_refused(as(1, {"pool", "fence", shm_locator(), "1"}), 2, "this host itself");
  expect_refused(as(1, {"pool", "fence", shm_locator(), "3"}), 2, "out of range");
  expect_refused(as(1, {"pool", "fence", shm_locator(), "2"}), 2, "never used");
  for (const char* wrong : {"64", "-1", "x"})
    EXPECT_EQ(as(1, {"pool", "fence", shm_locator(), wrong}).code, 2) << wrong;
  {
    const Running alive({"host", shm_locator(), "--host", "0"});
    ASSERT_TRUE(eventually(45, [&] { return host_info(0)["processes_live"] == 1; }));
    const Outcome refused = as(1, {"pool", "fence", shm_locator(), "0"});
    EXPECT_EQ(refused.code, 3) << refused.out << refused.err;
    EXPECT_NE(refused.err.find("waiting until it is"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("not been declared dead"), std::string::npos) << refused.err;
  }
  // Host 1 declares it dead, since its heartbeat does not change.
  const Running other({"host", shm_locator(), "--host", "1"});
  ASSERT_TRUE(eventually(45, [&] { return host_info(0)["state"] == "ended"; }));
  EXPECT_TRUE(eventually(45, [&] { return host_info(1)["extents_custody"] != 0; }));
  const Outcome fenced = as(1, {"pool", "fence", shm_locator(), "0"});
  EXPECT_EQ(fenced.code, 0) << fenced.err;
  EXPECT_NE(fenced.out.find("host 0 has stopped writing"), std::string::npos) << fenced.out;
  EXPECT_TRUE(eventually(45, [&] { return host_info(1)["extents_custody"] == 0; }));
}

/// No other process stays for long enough to declare it dead.
TEST_F(HostCommands, FenceWaitsUntilTheHostIsDeclaredDead) {
  create(shm_locator(), "32M", {"--hosts", "3"});
  ASSERT_EQ(as(0, {"put", shm_locator(), "k"}, "value").code, 0);
  const Outcome fenced = as(2, {"pool", "fence", shm_locator(), "0"});
  EXPECT_EQ(fenced.code, 0) << fenced.err;
  EXPECT_EQ(host_info(0)["state"], "ended");
  EXPECT_EQ(as(2, {"get", shm_locator(), "k"}).out, "value");
}

// ---- replay ----

TEST_F(HostCommands, ReplayAsTwoHostsHitsTheOthersBlocks) {
  const Outcome outcome =
      run({"replay", "--pool", shm_locator(), "--create", "64M", "--keep", "--hosts", "2",
           "--workers", "2", "--json", "--block-bytes", "16K", "--requests", "1000"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_NE(json["flush"], "none");
  EXPECT_EQ(json["requests"], 1000);
  EXPECT_GT(json["blocks_hit"], 1000);
  EXPECT_GT(json["blocks_hit_elsewhere"], 100);
  EXPECT_LE(json["blocks_hit_elsewhere"], json["blocks_hit"]);
  EXPECT_EQ(json["wrong_bytes"], 0);
  EXPECT_EQ(json["per_worker"].size(), 2u);
  EXPECT_EQ(host_info(0)["incarnation"], 1);
  EXPECT_EQ(host_info(1)["incarnation"], 1);
  EXPECT_EQ(run({"pool", "check", shm_locator(), "--payload"}).code, 0);
}

TEST_F(HostCommands, ReplayOfMoreHostsHasAsManyWorkersAtLeast) {
  const auto json = json_of(run({"replay", "--pool", shm_locator(), "--create", "64M", "--hosts",
                                 "3", "--json", "--block-bytes", "16K", "--requests", "200"}));
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["hosts"], 3);
  EXPECT_GE(json["workers"], 3);
}

TEST_F(HostCommands, ReplayOfOneHostHitsNothingElsewhere) {
  const auto json = json_of(run({"replay", "--pool", shm_locator(), "--create", "32M", "--workers",
                                 "2", "--json", "--block-bytes", "16K", "--requests", "200"}));
  EXPECT_EQ(json["hosts"], 1);
  EXPECT_EQ(json["flush"], "none");
  EXPECT_EQ(json["blocks_hit_elsewhere"], 0);
}

TEST_F(HostCommands, ReplayRefusesHostsThatThePoolWasNotMadeFor) {
  create(shm_locator(), "32M", {"--hosts", "2"});
  const Outcome outcome = run({"replay", "--pool", shm_locator(), "--hosts", "3", "--requests",
                               "10", "--block-bytes", "16K"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(shm_locator() + ": host 2 is out of range"), std::string::npos)
      << outcome.err;
  for (const char* wrong : {"0", "65", "x"}) {
    const Outcome usage = run({"replay", "--pool", shm_locator(), "--hosts", wrong});
    EXPECT_EQ(usage.code, 2) << wrong;
    EXPECT_NE(usage.err.find("--hosts"), std::string::npos) << usage.err;
  }
  const Outcome both = run({"replay", "--pool", shm_locator(), "--hosts", "2", "--host", "0"});
  EXPECT_EQ(both.code, 2) << both.out;
  EXPECT_NE(both.err.find("--host"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace bowhead::cli_test
