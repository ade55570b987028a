// SPDX-License-Identifier: Apache-2.0
// bowhead devices and doctor on this machine, whatever CXL memory it has.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

TEST(Devices, ListsThisMachine) {
  const auto json = json_of(run({"devices", "--json"}));
  for (const char* member : {"memory_devices", "decoders", "regions", "dax_devices", "nodes",
                             "media_errors", "media_errors_not_known"})
    EXPECT_TRUE(json.at(member).is_array()) << member;
  EXPECT_EQ(run({"devices"}).code, 0);
}

TEST(Devices, WatchesUntilASignalCame) {
  for (const Arguments& arguments :
       {Arguments{"devices", "--watch"}, {"devices", "--watch", "--json"}}) {
    Running watch(arguments);
    EXPECT_EQ(watch.wait(0.3), -1);
    watch.signal(SIGTERM);
    EXPECT_EQ(watch.wait(20), 0);
  }
}

TEST(Devices, SetupRefusesADeviceThatDoesNotExist) {
  const Outcome outcome = run({"devices", "setup", "mem987"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("mem987"), std::string::npos) << outcome.err;
}

TEST(Doctor, ExitsByWhatItFound) {
  const Outcome outcome = run({"doctor", "--json"});
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(outcome.code, json.at("counts").at("problem") == 0 ? 0 : 1) << outcome.err;
  size_t counted = 0;
  for (const char* level : {"problem", "hint", "unknown", "ok"})
    counted += json.at("counts").at(level).get<size_t>();
  EXPECT_EQ(counted, json.at("findings").size());
  EXPECT_GT(counted, 0u);
}

}  // namespace
}  // namespace bowhead::cli_test
