// SPDX-License-Identifier: Apache-2.0
// The comparison of codecs and the recall of prefixes run, report what docs/bench.md promises, and
// refuse data that does not match its description. No speed is asserted.
#include "bench/codec_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/codecs.h"
#include "bench/recall_bench.h"
#include "tests/bench/captured_run.h"
#include "tools/program/kv_data.h"

namespace bowhead::bench {
namespace {

using namespace tensors;

class CodecBench : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.rounds = 5;
    options_.quick = true;
    options_.json = true;
    options_.command = "the test";
    folder_ = testing::TempDir() + "bowhead-codec-bench-test-" + std::to_string(getpid());
    std::filesystem::create_directories(folder_ + "/data/set");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int run() {
    return run([&] { return run_codec_bench(options_); });
  }
  int run_recall() {
    return run([&] { return run_recall_bench({folder_ + "/data", true, "the test"}); });
  }
  int run(const std::function<int()>& bench) { return captured_(bench); }
  std::vector<nlohmann::json> lines() const { return captured_.lines(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/data/set/" + name, std::ios::binary) << content;
  }

  CodecBenchOptions options_;
  std::string folder_;
  CapturedRun captured_{"codec-bench-test-out"};
};

TEST_F(CodecBench, MeasuresEveryCodecOnTheSameBlocks) {
  ASSERT_EQ(run(), 0);
  std::map<std::string, std::set<std::string>> rows;  // by codec
  std::map<std::string, double> ratios;               // of 64 KiB of bf16 keys
  std::set<std::string> blocks;
  for (const auto& line : lines()) {
    EXPECT_EQ(line.at("bench"), "codec");
    EXPECT_EQ(line.at("command"), "the test");
    EXPECT_EQ(line.at("quick"), true);
    for (const char* field : {"commit", "date", "machine", "what"}) {
      EXPECT_TRUE(line.contains(field)) << field << " in " << line;
    }
    const auto& parameters = line.at("parameters");
    EXPECT_EQ(parameters.at("synthetic"), true);
    const std::string codec = parameters.at("codec"), row = line.at("row");
    rows[codec].insert(row);
    blocks.insert(parameters.at("tensor").get<std::string>() + " " +
                  parameters.at("number").get<std::string>() + " " +
                  std::to_string(parameters.at("block_bytes").get<int>()));
    if (row == "ratio") {
      if (parameters.at("tensor") == "keys" && parameters.at("number") == "bf16" &&
          parameters.at("block_bytes") == 65536)
        ratios[codec] = line.at("value").at("median");
      continue;
    }
    EXPECT_EQ(line.at("unit"), "GB/s");
    EXPECT_EQ(line.at("value").at("rounds"), 5);
    EXPECT_GT(line.at("value").at("min"), 0);
    EXPECT_GT(line.at("limit").at("median"), 0);
    EXPECT_GT(line.at("ratio").at("median"), 0);
  }
  EXPECT_EQ(blocks,
            (std::set<std::string>{"keys bf16 65536", "keys bf16 4096", "keys fp16 65536",
                                   "keys fp16 4096", "values bf16 65536", "values bf16 4096",
                                   "values fp16 65536", "values fp16 4096"}));
  const std::set<std::string> all = {"ratio", "encode", "decode"};
  for (const char* codec : {"frames fast", "frames balanced", "frames dense", "lz4", "zstd -1",
                            "zstd -3", "byte shuffle+zstd -3"}) {
    EXPECT_EQ(rows[codec], all) << codec;
  }
  EXPECT_EQ(rows["planes alone"], (std::set<std::string>{"encode", "decode"}));
  EXPECT_EQ(rows["planes alone, first 5"], (std::set<std::string>{"decode"}));
  // Frames find the redundancy of such keys, and no more.
  EXPECT_GT(ratios["frames dense"], 1.45);
  EXPECT_LT(ratios["frames dense"], 1.65);
  EXPECT_GT(ratios["frames fast"], ratios["zstd -3"]);
}

TEST_F(CodecBench, NoCodecPassesWithWrongValues) {
  const KvSet made = make_kv_data();
  const KvTensor& keys = made.tensors.front();
  const compression::Shape shape{keys.number, 1, 256, keys.channels(), keys.rotary};
  const auto values = compression::ConstBytes(keys.values).first(shape.size_bytes());
  std::vector<uint8_t> coded(coded_room(values.size())), out(values.size());
  Codecs codecs;
  add_frame_codecs(codecs);
  add_plane_codecs(codecs);
  add_general_codecs(codecs);
  for (const auto& codec : codecs) {
    const size_t size = codec->encode(shape, values, coded);
    ASSERT_GT(size, 0u) << codec->name();
    ASSERT_TRUE(codec->decode(shape, compression::ConstBytes(coded).first(size), out));
    EXPECT_TRUE(codec->right(shape, values, out)) << codec->name();
    out.back() ^= 0x80;  // the sign of one value
    EXPECT_FALSE(codec->right(shape, values, out)) << codec->name();
  }
}

TEST_F(CodecBench, ReadsCapturedTensors) {
  const KvSet made = make_kv_data();
  const KvTensor& keys = made.tensors.front();
  write("meta.json", R"({"files": {
    "k.bin": {"tensor": "k", "dtype": "bf16", "shape": [1, 4, 2048, 128]},
    "x.bin": {"tensor": "k", "dtype": "float64", "shape": [1]},
    "qpos.u32.bin": {"tensor": "positions", "dtype": "uint32", "shape": [2]}}})");
  write("k.bin", {keys.values.begin(), keys.values.end()});
  write("qpos.u32.bin", std::string("\1\0\0\0\7\2\0\0", 8));
  const auto sets = read_kv_data(folder_ + "/data");
  ASSERT_TRUE(sets);
  ASSERT_EQ(sets->size(), 1u);
  EXPECT_EQ(sets->front().name, "set");
  EXPECT_EQ(sets->front().query_positions, (std::vector<uint32_t>{1, 0x207}));
  ASSERT_EQ(sets->front().tensors.size(), 1u);
  const KvTensor& read = sets->front().tensors.front();
  EXPECT_EQ(read.shape, keys.shape);
  EXPECT_EQ(read.values, keys.values);
  EXPECT_EQ(find_rotary(read), keys.rotary);

  options_.data = folder_ + "/data";
  ASSERT_EQ(run(), 0);
  for (const auto& line : lines()) {
    EXPECT_EQ(line.at("parameters").at("set"), "set");
    EXPECT_EQ(line.at("parameters").at("synthetic"), false);
    EXPECT_EQ(line.at("parameters").at("rotary_dim"), 128);
  }
}

TEST_F(CodecBench, MeasuresNumbersOfOneByteInTheBlocksThatTheyFill) {
  write("meta.json", R"({"files": {
    "a": {"tensor": "v", "dtype": "fp8_e4m3", "shape": [1, 1, 128, 64]},
    "b": {"tensor": "v", "dtype": "fp8_e5m2", "shape": [1, 1, 128, 64]},
    "c": {"tensor": "k", "dtype": "int8", "shape": [1, 1, 128, 64]}}})");
  Random random(7);
  for (const char* name : {"a", "b", "c"}) {
    std::string values(128 * 64, '\0');
    for (char& value : values) value = static_cast<char>(random.below(120));
    write(name, values);
  }
  options_.data = folder_ + "/data";
  ASSERT_EQ(run(), 0);
  std::set<std::string> measured;
  for (const auto& line : lines()) {
    const auto& parameters = line.at("parameters");
    EXPECT_EQ(parameters.at("block_bytes"), 4096);
    if (parameters.at("codec") == "frames dense" && line.at("row") == "ratio")
      measured.insert(parameters.at("number"));
    EXPECT_NE(parameters.at("codec"), "planes alone");
  }
  EXPECT_EQ(measured, (std::set<std::string>{"fp8_e4m3", "fp8_e5m2", "int8"}));
}

/// 400 keys of 8 channels, and four queries for each of two heads, in bf16. The queries use only
/// the first channel: it is 1.25 in the odd ones of the first 64 keys, and 1 in all others.
class CodecBenchRecall : public CodecBench {
 protected:
  static void add(std::string& bytes, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bytes += static_cast<char>(bits >> 16);
    bytes += static_cast<char>(bits >> 24);
  }
  void write_set(const std::string& query_shape, uint32_t position) const {
    std::string keys, queries, positions;
    Random random(5);
    for (uint32_t t = 0; t < 400; ++t) {
      for (uint32_t c = 0; c < 8; ++c) {
        const float noise = static_cast<float>(random.below(1000)) / 500 - 1;
        add(keys, c > 0 ? noise : t % 2 == 1 && t < 128 ? 1.25f : 1.0f);
      }
    }
    for (uint32_t i = 0; i < 2 * 4 * 8; ++i) add(queries, i % 8 == 0 ? 1.0f : 0.0f);
    for (const uint32_t at : {399u, 10u, 300u, position}) {
      for (int shift = 0; shift < 32; shift += 8) positions += static_cast<char>(at >> shift);
    }
    write("meta.json",
          R"({"files": {"k": {"tensor": "k", "dtype": "bf16", "shape": [1, 1, 400, 8]},
                        "q": {"tensor": "q", "dtype": "bf16", "shape": )" +
              query_shape + "}}}");
    write("k", keys);
    write("q", queries);
    write("qpos.u32.bin", positions);
  }
};

TEST_F(CodecBenchRecall, FindsMoreKeysWithMorePlanes) {
  write_set("[1, 2, 4, 8]", 350);
  ASSERT_EQ(run_recall(), 0);
  const auto reports = lines();
  ASSERT_EQ(reports.size(), 6u);
  double bits = 0;
  for (uint32_t planes = 1; planes <= 6; ++planes) {
    const auto& line = reports[planes - 1];
    EXPECT_EQ(line.at("bench"), "recall");
    EXPECT_EQ(line.at("set"), "set");
    EXPECT_EQ(line.at("number"), "bf16");
    EXPECT_EQ(line.at("planes"), planes);
    EXPECT_EQ(line.at("queries"), 3);  // the second query sees only 11 keys
    EXPECT_EQ(line.at("heads"), 2);
    EXPECT_GE(line.at("bits_read_per_value"), bits);  // short planes are verified together
    bits = line.at("bits_read_per_value");
    EXPECT_LE(line.at("share_of_frames"), 1);
  }
  EXPECT_GT(bits, reports[0].at("bits_read_per_value"));
  // 1 and 1.25 differ at the latest in the third bit below the sign, unless a centre lies between.
  EXPECT_LT(reports[0].at("recall").at("mean"), 1);
  EXPECT_EQ(reports[5].at("recall").at("min"), 1);
}

TEST_F(CodecBenchRecall, RefusesQueriesThatDoNotFit) {
  EXPECT_EQ(run_recall(), 2);  // no set
  write_set("[1, 2, 4, 8]", 400);
  EXPECT_EQ(run_recall(), 2);  // after the last key
  write_set("[1, 1, 8, 8]", 350);
  EXPECT_EQ(run_recall(), 2);  // four positions for eight queries
  write("meta.json",
        R"({"files": {"k": {"tensor": "k", "dtype": "bf16", "shape": [1, 1, 400, 8]}}})");
  EXPECT_EQ(run_recall(), 2);  // no queries
  EXPECT_TRUE(lines().empty());
}

TEST_F(CodecBench, RefusesDataThatDoesNotMatchItsDescription) {
  options_.data = folder_ + "/nothing";
  EXPECT_EQ(run(), 3);
  options_.data = folder_ + "/data";
  EXPECT_EQ(run(), 2);  // no set
  write("meta.json", "{");
  EXPECT_EQ(run(), 2);
  write("meta.json",
        R"({"files": {"k.bin": {"tensor": "k", "dtype": "bf16", "shape": [1, 1, 4, 64]}}})");
  EXPECT_EQ(run(), 3);  // no such file
  write("k.bin", "too short");
  EXPECT_EQ(run(), 2);
  EXPECT_TRUE(lines().empty());
}

}  // namespace
}  // namespace bowhead::bench
