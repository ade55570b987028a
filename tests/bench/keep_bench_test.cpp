// SPDX-License-Identifier: Apache-2.0
// If all attention goes to a few early tokens, a choice by mass finds them, and the most recent
// tokens do not include them.
#include "bench/keep_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/captured_run.h"

namespace bowhead::bench {
namespace {

constexpr uint32_t kTokens = 200, kQueries = 80;

std::string bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return {static_cast<char>(bits >> 16), static_cast<char>(bits >> 24)};
}

class KeepBench : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "bowhead-keep-bench-test-" + std::to_string(getpid());
    std::filesystem::create_directories(folder_ + "/data/set");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/data/set/" + name, std::ios::binary) << content;
  }
  /// Keys and values of 8 channels; tokens 40 to 43 get all attention, and have different values.
  void write_set(const char* value_shape) const {
    std::string keys, values, queries, positions;
    for (uint32_t t = 0; t < kTokens; ++t) {
      const bool heavy = t >= 40 && t < 44;
      for (uint32_t c = 0; c < 8; ++c) {
        keys += bf16(c == 0 && heavy ? 60.0f : 0.0f);
        values += bf16(heavy ? 1.0f : -1.0f);
      }
    }
    for (uint32_t i = 0; i < 2 * kQueries * 8; ++i) queries += bf16(i % 8 == 0 ? 1.0f : 0.0f);
    for (uint32_t i = 0; i < kQueries; ++i) {
      const uint32_t at = kTokens - kQueries + i;
      for (int shift = 0; shift < 32; shift += 8) positions += static_cast<char>(at >> shift);
    }
    write("meta.json",
          std::string(R"({"files": {"k": {"tensor": "k", "dtype": "bf16", "shape": [1, 1, 200, 8]},
                       "v": {"tensor": "v", "dtype": "bf16", "shape": )") +
              value_shape + R"(},
                       "q": {"tensor": "q", "dtype": "bf16", "shape": [1, 2, 80, 8]}}})");
    write("k", keys);
    write("v", values);
    write("q", queries);
    write("qpos.u32.bin", positions);
  }
  int run() {
    return captured_([&] { return run_keep_bench({folder_ + "/data", true, "the test"}); });
  }

  std::string folder_;
  CapturedRun captured_{"keep-bench-test-out"};
};

TEST_F(KeepBench, MassFindsTokensThatAreNotRecent) {
  write_set("[1, 1, 200, 8]");
  ASSERT_EQ(run(), 0);
  std::map<std::string, double> error, mass;
  for (const auto& line : captured_.lines()) {
    if (line["kept"] != 0.125) continue;
    error[line["choice"]] = line["output_error"];
    mass[line["choice"]] = line["mass_kept"];
    EXPECT_EQ(line["queries"], kQueries / 4 * 2);
    EXPECT_EQ(line["heads"], 1);
  }
  for (const char* choice : {"accumulated", "window", "best"}) {
    EXPECT_LT(error[choice], 0.01) << choice;
    EXPECT_GT(mass[choice], 0.99) << choice;
  }
  EXPECT_NEAR(error["recent"], 2, 0.01);
  EXPECT_LT(mass["recent"], 0.01);
}

TEST_F(KeepBench, RefusesInputThatDoesNotFit) {
  write_set("[1, 2, 100, 8]");
  EXPECT_EQ(run(), 2);
  std::filesystem::remove(folder_ + "/data/set/q");
  EXPECT_NE(run(), 0);
}

}  // namespace
}  // namespace bowhead::bench
