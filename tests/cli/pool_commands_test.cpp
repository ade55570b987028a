// SPDX-License-Identifier: Apache-2.0
// pool create | info | check | destroy, the command line itself, and what lies at a locator that is
// no pool.
#include <filesystem>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

using PoolCommands = CliTest;

TEST_F(PoolCommands, EveryCommandExplainsItself) {
  const std::vector<Arguments> commands = {{},
                                           {"pool", "create"},
                                           {"pool", "info"},
                                           {"pool", "check"},
                                           {"pool", "repair"},
                                           {"pool", "recompress"},
                                           {"pool", "destroy"},
                                           {"put"},
                                           {"get"},
                                           {"ls"},
                                           {"rm"},
                                           {"replay"},
                                           {"codec"},
                                           {"litmus"},
                                           {"bench", "pool"}};
  for (Arguments command : commands) {
    command.push_back("--help");
    const Outcome help = run(command);
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find("Example"), std::string::npos) << help.out;
  }
  EXPECT_EQ(run({"--version"}).code, 0);
}

TEST_F(PoolCommands, WrongUsageIsNamed) {
  const std::vector<std::pair<Arguments, std::string>> lines = {
      {{}, "subcommand"},
      {{"frobnicate"}, "frobnicate"},
      {{"pool"}, "subcommand"},
      {{"pool", "create", shm_locator()}, "--size"},
      {{"pool", "create", shm_locator(), "--size", "4X"}, "--size"},
      {{"pool", "create", shm_locator(), "--size", "-4G"}, "--size"},
      {{"pool", "create", shm_locator(), "--size", "99999999999999999999G"}, "--size"},
      {{"pool", "create", shm_locator(), "--size", "32M", "--no-evict", "--evict-high", "90"},
       "--no-evict"},
      {{"pool", "create", shm_locator(), "--size", "32M", "--evict-high", "101"}, "--evict-high"},
      {{"pool", "info"}, "locator"},
      {{"pool", "info", shm_locator(), "--yaml"}, "--yaml"},
      {{"put", shm_locator()}, "key"},
      {{"replay", "--pool", shm_locator(), "--workers", "0"}, "--workers"},
      {{"replay", "--pool", shm_locator(), "--generate", "noise"}, "--generate"},
      {{"replay"}, "--pool"}};
  for (const auto& [arguments, named] : lines) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << named << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("bowhead: ")) << outcome.err;
  }
  EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "nothing was created";
}

TEST_F(PoolCommands, SizesThatNoPoolCanHaveAreRefused) {
  const std::vector<Arguments> wrong = {
      {"--size", "1M"},
      {"--size", "32M", "--extent", "3M"},
      {"--size", "32M", "--extent", "128M"},
      {"--size", "32M", "--min-block", "5000"},
      {"--size", "32M", "--hosts", "65"},
      {"--size", "32M", "--hosts", "0"},
      {"--size", "32M", "--evict-high", "50", "--evict-low", "60"}};
  for (const Arguments& more : wrong) {
    Arguments arguments = {"pool", "create", shm_locator()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(more) << outcome.err;
    EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "left something behind";
  }
}

TEST_F(PoolCommands, InfoShowsWhatWasAskedFor) {
  create(shm_locator(), "64M",
         {"--extent", "4M", "--min-block", "8K", "--evict-high", "90", "--evict-low", "80",
          "--hosts", "2"});
  const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}));
  EXPECT_EQ(info["size_bytes"], 64 << 20);
  EXPECT_EQ(info["extent_bytes"], 4 << 20);
  EXPECT_EQ(info["min_block_bytes"], 8192);
  EXPECT_EQ(info["evict_high_permille"], 900);
  EXPECT_EQ(info["evict_low_permille"], 800);
  EXPECT_EQ(info["hosts"].size(), 2u);
  EXPECT_EQ(info["format_version"], 1);
  EXPECT_EQ(info["media"]["kind"], "shm");
  EXPECT_EQ(info["blocks"], 0);
  EXPECT_EQ(info["second_superblock_used"], false);
  const std::string text = run({"pool", "info", shm_locator()}).out;
  EXPECT_NE(text.find("64.00 MiB (67,108,864 bytes)"), std::string::npos) << text;
  EXPECT_NE(text.find("above 90 %, down to 80 %"), std::string::npos) << text;
}

TEST_F(PoolCommands, ASizeThatIsRoundedIsSaid) {
  const Outcome created = run({"pool", "create", shm_locator(), "--size", "33M"});
  EXPECT_EQ(created.code, 0);
  EXPECT_NE(created.out.find("32.00 MiB (33,554,432 bytes)"), std::string::npos) << created.out;
  EXPECT_NE(created.err.find("multiples of 2 MiB"), std::string::npos) << created.err;
}

TEST_F(PoolCommands, CreateRefusesWhatIsThereUnlessForced) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, "v");
  const Outcome refused = run({"pool", "create", shm_locator(), "--size", "32M"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("--force"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find(shm_locator()), std::string::npos) << refused.err;
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "v");
  EXPECT_EQ(run({"pool", "create", shm_locator(), "--size", "32M", "--force"}).code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "k"}).code, 1);
}

TEST_F(PoolCommands, EveryCommandNamesALocatorWithNothingBehindIt) {
  for (const std::string& locator : {shm_locator(), file_locator()}) {
    const std::vector<Arguments> commands = {{"pool", "info", locator},
                                             {"pool", "check", locator},
                                             {"pool", "repair", locator},
                                             {"pool", "destroy", locator},
                                             {"put", locator, "k"},
                                             {"get", locator, "k"},
                                             {"ls", locator},
                                             {"rm", locator, "k"},
                                             {"replay", "--pool", locator, "--requests", "1"}};
    for (const Arguments& command : commands) {
      const Outcome outcome = run(command, "v");
      EXPECT_EQ(outcome.code, 3) << command[0] << outcome.err;
      EXPECT_NE(outcome.err.find(locator), std::string::npos) << outcome.err;
    }
  }
}

TEST_F(PoolCommands, MalformedLocatorsAreUsage) {
  for (const char* locator : {"", "nothing", "shm:", "shm:a/b", "tape:x", "file:"}) {
    const Outcome outcome = run({"pool", "info", locator});
    EXPECT_EQ(outcome.code, 2) << locator << ": " << outcome.err;
  }
}

TEST_F(PoolCommands, WhatIsNoPoolIsLeftAlone) {
  const std::string text(1 << 20, 'x');
  write("pool", text);
  for (const Arguments& command :
       {Arguments{"pool", "info", file_locator()}, Arguments{"pool", "check", file_locator()},
        Arguments{"pool", "destroy", file_locator()}, Arguments{"get", file_locator(), "k"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(path("pool")), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run({"pool", "create", file_locator(), "--size", "32M"}).code, 3);
  EXPECT_EQ(read("pool"), text);
  EXPECT_EQ(run({"pool", "create", file_locator(), "--size", "32M", "--force"}).code, 0);
  EXPECT_EQ(run({"pool", "info", file_locator()}).code, 0);
}

TEST_F(PoolCommands, AFileAndADirectory) {
  create(file_locator());
  run({"put", file_locator(), "k"}, "v");
  EXPECT_EQ(run({"get", file_locator(), "k"}).out, "v");
  EXPECT_EQ(json_of(run({"pool", "info", file_locator(), "--json"}))["media"]["kind"], "file");
  EXPECT_EQ(run({"pool", "destroy", file_locator()}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("pool")));
  EXPECT_EQ(run({"pool", "info", "file:" + folder_.string()}).code, 3);
}

TEST_F(PoolCommands, AGoodPoolChecksGood) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, "value");
  const Outcome text = run({"pool", "check", shm_locator(), "--payload"});
  EXPECT_EQ(text.code, 0) << text.out << text.err;
  EXPECT_NE(text.out.find("1 blocks checked"), std::string::npos) << text.out;
  const auto json = json_of(run({"pool", "check", shm_locator(), "--payload", "--json"}));
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["payload_verified"], true);
  EXPECT_EQ(json["blocks_checked"], 1);
  EXPECT_EQ(json["bytes_checked"], 5);
  EXPECT_EQ(json["findings"].size(), 0u);
}

TEST_F(PoolCommands, TheBenchmarkRuns) {
  const Outcome bench = run({"bench", "pool", "--quick", "--json", "--row", "alloc"});
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_NE(bench.out.find("bowhead bench pool --quick"), std::string::npos) << bench.out;
  EXPECT_EQ(run({"bench", "pool", "--row", "nothing"}).code, 2);
}

}  // namespace
}  // namespace bowhead::cli_test
