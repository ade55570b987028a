// SPDX-License-Identifier: Apache-2.0
// bowhead bench from outside: how it finds bowhead-bench, which arguments it refuses, and its help.
// tests/bench tests the measurements.
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

TEST(BenchCommand, WrongUseIsNamed) {
  const std::tuple<Arguments, int, std::string> lines[] = {
      {{"bench"}, 2, "needs a command"},
      {{"bench", "codec", "--rounds", "4"}, 2, "--rounds"},
      {{"bench", "codec", "--data", "/no/such/folder"}, 3, "/no/such/folder: No such file"},
      {{"bench", "ndp", "--rounds", "4"}, 2, "--rounds"},
      {{"bench", "gpu", "--twin"}, 2, "--twin: was removed; use --cpu-device"},
      {{"bench", "recall"}, 2, "--data"},
      {{"bench", "recall", "--data", "/no/such/folder"}, 3, "/no/such/folder: No such file"},
      {{"bench", "keep"}, 2, "--data"},
      {{"bench", "keep", "--data", "/no/such/folder"}, 3, "/no/such/folder: No such file"},
  };
  for (const auto& [arguments, code, named] : lines) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out.find("GB/s"), std::string::npos) << outcome.out;
  }
}

TEST(BenchCommand, HelpShowsExamples) {
  for (const char* name : {"pool", "codec", "recall", "keep", "ndp"}) {
    const Outcome outcome = run({"bench", name, "--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_NE(outcome.out.find(std::string("  bowhead-bench ") + name), std::string::npos)
        << outcome.out;
  }
}

TEST(BenchCommand, HelpOfTheProgramListsItsCommands) {
  const Outcome outcome = run({"bench", "--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* text : {"Usage: bowhead bench ", "  pool ", "  gpu ", "Exit codes: 0 measured"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
}

TEST(BenchCommand, BothProgramsHaveOneVersion) {
  const Outcome command = run({"--version"});
  const Outcome bench = run({"bench", "--version"});
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(bench.out, command.out);
  EXPECT_EQ(bench.out.find("bowhead "), 0u) << bench.out;
}

/// A copy of the command in a folder without bowhead-bench, unless a test puts one there.
class BenchLookup : public CliTest {
 protected:
  BenchLookup() {
    std::filesystem::create_directories(path("bin"));
    std::filesystem::create_directories(path("on-path"));
    std::filesystem::copy_file(BOWHEAD_BINARY, path("bin/bowhead"));
  }
  /// In place of bowhead-bench: prints its name and arguments, and ends with code 7.
  void put_program(const std::string& folder) const {
    const std::string file = folder + "/bowhead-bench";
    write(file, "#!/bin/sh\necho " + folder + "; for a; do echo \"[$a]\"; done; exit 7\n");
    std::filesystem::permissions(path(file), std::filesystem::perms::owner_all);
  }
  Outcome bench(const std::string& arguments) const {
    return shell("PATH='" + path("on-path") + "' '" + path("bin/bowhead") + "' bench " + arguments);
  }
};

TEST_F(BenchLookup, WithoutTheProgramItSaysWhatToBuildOrInstall) {
  const Outcome outcome = bench("pool --quick");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "bowhead: bowhead-bench is neither in " + path("bin") +
                             " nor on PATH: build the target bowhead-bench, or install it with "
                             "`cmake --install BUILD --component bench`\n");
}

TEST_F(BenchLookup, EveryArgumentIsPassedOn) {
  put_program("on-path");
  const Outcome outcome = bench("pool --row=copy -x '' 'a b' --help --version bench -- put");
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_EQ(outcome.out,
            "on-path\n[pool]\n[--row=copy]\n[-x]\n[]\n[a b]\n[--help]\n[--version]\n[bench]\n[--]\n"
            "[put]\n");
  EXPECT_EQ(bench("").out, "on-path\n");
}

TEST_F(BenchLookup, TheOneBesideTheCommandComesFirst) {
  put_program("on-path");
  put_program("bin");
  EXPECT_EQ(bench("pool").out, "bin\n[pool]\n");
}

TEST_F(BenchLookup, AProgramThatCannotRunIsReported) {
  put_program("on-path");
  write("bin/bowhead-bench", "not executable");
  const Outcome outcome = bench("pool");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "bowhead: cannot run bowhead-bench: Permission denied\n");
}

}  // namespace
}  // namespace bowhead::cli_test
