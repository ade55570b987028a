// SPDX-License-Identifier: Apache-2.0
// pool create | info | check | destroy, the command line itself, and locators where something other
// than a pool lies.
#include <bowhead/format/superblock.h>

#include <filesystem>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

using PoolCommands = CliTest;

TEST_F(PoolCommands, HelpAndVersionGoToStandardOutput) {
  for (const Arguments& command : std::vector<Arguments>{{"--help"},
                                                         {"pool", "--help"},
                                                         {"pool", "create", "--help"},
                                                         {"bench", "pool", "--help"}}) {
    const Outcome help = run(command);
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find("Example"), std::string::npos) << help.out;
  }
  EXPECT_EQ(run({"--version"}).code, 0);
}

TEST_F(PoolCommands, WrongUsageIsNamed) {
  const std::vector<std::pair<Arguments, std::string>> lines = {
      {{}, "needs a command: pool, put"},
      {{"frobnicate"}, "frobnicate"},
      {{"pool"}, "needs a command: create, info"},
      {{"pool", "create", shm_locator(), "--size"}, "--size needs a value"},
      {{"pool", "create", shm_locator()}, "--size"},
      {{"pool", "create", shm_locator(), "--size", "32M", "--size", "32M"},
       "--size is given twice"},
      {{"pool", "create", shm_locator(), "--size=32M", "--mode=0600", "--mode", "0640"},
       "--mode is given twice"},
      {{"pool", "info", shm_locator(), "--host", "0", "--host", "1"}, "--host is given twice"},
      {{"put", shm_locator(), "k", "--rope-base", "2", "--number", "bf16", "--rope-base", "3"},
       "--rope-base is given twice"},
      {{"get", shm_locator(), "k", "-o", "a", "--output", "b"}, "--output is given twice"},
      {{"get", shm_locator(), "k", "-o"}, "--output needs a value"},
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
      {"--size", "32M", "--max-size", "16M"},
      {"--size", "32M", "--max-size", "256G"},
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

TEST_F(PoolCommands, InfoShowsTheRequestedSettings) {
  create(shm_locator(), "64M",
         {"--extent", "4M", "--min-block", "8K", "--evict-high", "90", "--evict-low", "80",
          "--hosts", "2", "--max-size", "1G"});
  const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}));
  EXPECT_EQ(info["size_bytes"], 64 << 20);
  EXPECT_EQ(info["max_bytes"], 1 << 30);
  EXPECT_EQ(info["features"]["ro_compat"], BH_FEATURE_WIPING);
  EXPECT_EQ(info["extent_bytes"], 4 << 20);
  EXPECT_EQ(info["min_block_bytes"], 8192);
  EXPECT_EQ(info["evict_high_permille"], 900);
  EXPECT_EQ(info["evict_low_permille"], 800);
  EXPECT_EQ(info["hosts"].size(), 2u);
  EXPECT_EQ(info["format_version"], 2);
  EXPECT_EQ(info["media"]["kind"], "shm");
  EXPECT_EQ(info["blocks"], 0);
  EXPECT_EQ(info["second_superblock_used"], false);
  const std::string text = run({"pool", "info", shm_locator()}).out;
  EXPECT_NE(text.find("64.00 MiB (67,108,864 bytes)"), std::string::npos) << text;
  EXPECT_NE(text.find("1.00 GiB (1,073,741,824 bytes)"), std::string::npos) << text;
  EXPECT_NE(text.find("above 90 %, down to 80 %"), std::string::npos) << text;
}

TEST_F(PoolCommands, ASizeThatIsRoundedIsSaid) {
  const Outcome created = run({"pool", "create", shm_locator(), "--size", "33M"});
  EXPECT_EQ(created.code, 0);
  EXPECT_NE(created.out.find("32.00 MiB (33,554,432 bytes)"), std::string::npos) << created.out;
  EXPECT_NE(created.err.find("multiple of 2 MiB"), std::string::npos) << created.err;
}

// Every number of every command: CLI11 alone takes -1 for 2^64-1 and 010 for 8.
TEST_F(PoolCommands, NumbersThatMakeNoSenseAreRefusedByTheNameOfTheOption) {
  create(shm_locator());
  const std::vector<std::pair<Arguments, std::vector<std::string>>> commands = {
      {{"pool", "create", shm_locator() + "-x", "--size", "32M"},
       {"--max-size", "--hosts", "--extent", "--min-block", "--evict-high", "--evict-low",
        "--dead-ms", "--settle-ms", "--reclaim-ms", "--mode"}},
      {{"pool", "create", shm_locator() + "-x"}, {"--size"}},
      {{"pool", "recompress", shm_locator()}, {"--cold"}},
      {{"put", shm_locator(), "k", "--compress", "fast", "--rope-base", "10000"},
       {"--channels", "--layers", "--rope-base", "--rotary-dim"}},
      {{"replay", "--pool", shm_locator(), "--compress", "fast"},
       {"--workers", "--hosts", "--block-bytes", "--requests", "--seed", "--channels", "--create"}},
      {{"codec", "/dev/null", "--rope-base", "10000"},
       {"--shape", "--block-bytes", "--rope-base", "--rotary-dim", "--rounds"}},
      {{"litmus", shm_locator(), "--host", "A"}, {"--seconds", "--wait"}},
      {{"bench", "pool"}, {"--rounds"}}};
  for (const auto& [command, options] : commands) {
    for (const std::string& option : options) {
      for (const char* value : {"-1", "", "x", "0x10", "1e99", "nan", "99999999999999999999"}) {
        Arguments arguments = command;
        std::erase(arguments, option == "--rope-base" ? "--rope-base" : "");
        std::erase(arguments, option == "--rope-base" ? "10000" : "");
        arguments.insert(arguments.end(), {option, value});
        const Outcome outcome = run(arguments, "v");
        EXPECT_EQ(outcome.code, 2) << option << " '" << value << "': " << outcome.err;
        EXPECT_NE(outcome.err.find(option + ": '" + value + "'"), std::string::npos) << outcome.err;
      }
    }
  }
  EXPECT_EQ(run({"pool", "info", shm_locator() + "-x"}).code, 3) << "nothing was made";
}

TEST_F(PoolCommands, SizesHaveUnits) {
  for (const char* size : {"33554432", "32768K", "32M", "32m", "32MB", "32MiB", "33554432B"}) {
    ASSERT_EQ(run({"pool", "create", shm_locator(), "--size", size, "--force"}).code, 0) << size;
    EXPECT_EQ(json_of(run({"pool", "info", shm_locator(), "--json"}))["size_bytes"], 32 << 20);
  }
  for (const char* size : {"32X", "32MK", "M", "1.5G", " 32M", "17179869184G"})
    EXPECT_EQ(run({"pool", "create", shm_locator(), "--size", size, "--force"}).code, 2) << size;
}

TEST_F(PoolCommands, TheLowWatermarkFollowsTheHighOne) {
  create(shm_locator(), "32M", {"--evict-high", "90"});
  EXPECT_NE(run({"pool", "info", shm_locator()}).out.find("above 90 %, down to 88 %"),
            std::string::npos);
  create(shm_locator(), "32M", {"--force", "--evict-high", "1"});
  const Outcome refused =
      run({"pool", "create", shm_locator(), "--size", "32M", "--force", "--evict-low", "99"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--evict-low 99 is above --evict-high 98"), std::string::npos)
      << refused.err;
}

TEST_F(PoolCommands, TheVersionDescribesTheBuild) {
  const std::string version = run({"--version"}).out;
  for (const char* part : {"bowhead ", ", commit ", ", ABI 1", ", pool format 2"})
    EXPECT_NE(version.find(part), std::string::npos) << version;
}

TEST_F(PoolCommands, ThePermissionsAreAsChosen) {
  using std::filesystem::perms;
  const auto mode = [&] {
    return static_cast<unsigned>(std::filesystem::status(path("pool")).permissions());
  };
  create(file_locator());
  EXPECT_EQ(mode(), 0600u);
  create(file_locator(), "32M", {"--force", "--mode", "0664"});
  EXPECT_EQ(mode(), 0664u) << "with any umask";
  create(file_locator(), "32M", {"--force", "--mode", "640"});
  EXPECT_EQ(mode(), 0640u);
  for (const char* bad : {"0666", "0400", "0060", "0755", "4600", "888", "0620", "rw"}) {
    const Outcome refused =
        run({"pool", "create", file_locator(), "--size", "32M", "--force", "--mode", bad});
    EXPECT_EQ(refused.code, 2) << bad;
    EXPECT_NE(refused.err.find("mode"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(mode(), 0640u);
}

TEST_F(PoolCommands, CreateRefusesToReplaceUnlessForced) {
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

TEST_F(PoolCommands, ObjectsThatAreNotPoolsAreLeftAlone) {
  const std::string text(1 << 20, 'x');
  write("pool", text);
  for (const Arguments& command :
       {Arguments{"pool", "info", file_locator()}, Arguments{"pool", "check", file_locator()},
        Arguments{"pool", "destroy", file_locator()}, Arguments{"get", file_locator(), "k"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(path("pool")), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("--force"), std::string::npos) << "the name may be a slip";
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
