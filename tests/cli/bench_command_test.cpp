// SPDX-License-Identifier: Apache-2.0
// bowhead bench from outside: what is refused, and that help explains. What it measures is tested
// in tests/bench.
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

TEST(BenchCommand, WrongUseIsNamed) {
  const std::tuple<Arguments, int, std::string> lines[] = {
      {{"bench"}, 2, "needs a command"},
      {{"bench", "codec", "--rounds", "4"}, 2, "--rounds"},
      {{"bench", "codec", "--data", "/no/such/folder"}, 3, "/no/such/folder: No such file"},
      {{"bench", "ndp", "--rounds", "4"}, 2, "--rounds"},
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
    EXPECT_NE(outcome.out.find(std::string("  bowhead bench ") + name), std::string::npos)
        << outcome.out;
  }
}

}  // namespace
}  // namespace bowhead::cli_test
