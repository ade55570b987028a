// SPDX-License-Identifier: Apache-2.0
// bowhead codec from outside: each kind of file, the report, wrong input.
#include <cstring>
#include <random>
#include <regex>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class CodecCommand : public CliTest {
 protected:
  /// Numbers around 1, as bf16: their top byte hardly changes, the other one never repeats itself.
  static std::string values(size_t count) {
    std::minstd_rand random(1);
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      bytes += static_cast<char>(random() >> 8);
      bytes += static_cast<char>(i % 3 == 0 ? 0x3F : 0xBF);
    }
    return bytes;
  }
  static std::string npy(const std::string& header, const std::string& data) {
    const auto size = static_cast<uint16_t>(header.size());
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(size & 0xFF) +
           static_cast<char>(size >> 8) + header + data;
  }
  static std::string safetensors(const std::string& header, const std::string& data) {
    std::string size;
    for (int i = 0; i < 8; ++i) size += static_cast<char>(uint64_t{header.size()} >> 8 * i);
    return size + header + data;
  }
  Outcome codec(const std::string& file, Arguments more = {}) const {
    Arguments all = {"codec", path(file), "--rounds", "3", "--quick"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
};

TEST_F(CodecCommand, CompressesRawNumbers) {
  write("k.bin", values(4 * 300 * 64));
  const Outcome json = codec("k.bin", {"--number", "bf16", "--shape", "4,300,64", "--rope-base",
                                       "10000", "--block-bytes", "16K", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto report = json_of(json);
  EXPECT_EQ(report["number"], "bf16");
  EXPECT_EQ(report["shape"], (std::vector<int>{4, 300, 64}));
  EXPECT_EQ(report["blocks"], 4 * 3);  // of 128, 128 and 44 tokens
  ASSERT_EQ(report["profiles"].size(), 3u);
  for (const auto& profile : report["profiles"]) {
    EXPECT_GT(profile["ratio"], 1.1);
    uint64_t bytes = profile["remainder_bytes"].get<uint64_t>() +
                     profile["exceptions_bytes"].get<uint64_t>() +
                     profile["other_bytes"].get<uint64_t>();
    for (const uint64_t plane : profile["plane_bytes"]) bytes += plane;
    EXPECT_EQ(bytes, profile["frames_bytes"]);
    EXPECT_GT(profile["decode_gb_per_s"]["median"], 0);
  }
  ASSERT_EQ(report["precisions"].size(), 8u);
  double error = 2, bits = 0;
  for (const auto& precision : report["precisions"]) {
    EXPECT_LT(precision["relative_error"], error);
    EXPECT_GT(precision["bits_read_per_value"], bits);
    error = precision["relative_error"];
    bits = precision["bits_read_per_value"];
  }
  const Outcome people =
      codec("k.bin", {"--dtype", "bf16", "--shape", "4,300,64", "--profile", "fast"});
  EXPECT_EQ(people.code, 0);
  EXPECT_NE(people.out.find("fast"), std::string::npos) << people.out;
  EXPECT_EQ(people.out.find("dense"), std::string::npos) << people.out;
}

TEST_F(CodecCommand, ReadsTheDescriptionsInFiles) {
  write("k.npy",
        npy("{'descr': '<f2', 'fortran_order': False, 'shape': (600, 64), }\n", values(600 * 64)));
  const auto array = json_of(codec("k.npy", {"--json", "--profile", "fast"}));
  EXPECT_EQ(array["number"], "fp16");
  EXPECT_EQ(array["shape"], (std::vector<int>{600, 64}));
  write("c.safetensors",
        safetensors(R"({"__metadata__":{"a":"b"},)"
                    R"("k":{"dtype":"BF16","shape":[600,64],"data_offsets":[0,76800]},)"
                    R"("w":{"dtype":"F32","shape":[2],"data_offsets":[76800,76808]}})",
                    values(38404)));
  const Outcome cache = codec("c.safetensors", {"--json", "--profile", "fast"});
  EXPECT_EQ(json_of(cache)["number"], "bf16");
  EXPECT_NE(cache.err.find("c.safetensors:w (F32) is skipped"), std::string::npos) << cache.err;
}

TEST_F(CodecCommand, PlotsErrorAgainstBits) {
  write("a&b.bin", values(4 * 300 * 64));
  const Outcome outcome = codec(
      "a&b.bin", {"--number", "bf16", "--shape", "4,300,64", "--json", "--plot", path("a.svg")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string svg = read("a.svg");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_NE(svg.find("a&amp;b.bin</text>"), std::string::npos) << svg;
  // One point for each number of planes: more bits to the right, less error further down.
  const std::regex circle("<circle cx='([0-9.]+)' cy='([0-9.]+)'");
  double x = 0, y = 0;
  uint64_t points = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), circle), end; at != end; ++at, ++points) {
    EXPECT_GT(std::stod((*at)[1]), x);
    EXPECT_GT(std::stod((*at)[2]), y);
    x = std::stod((*at)[1]);
    y = std::stod((*at)[2]);
  }
  EXPECT_EQ(points, json_of(outcome)["precisions"].size());
}

TEST_F(CodecCommand, TensorsWithoutValuesAreSkippedByName) {
  write("mixed.safetensors",
        safetensors(R"({"empty":{"dtype":"BF16","shape":[0,64],"data_offsets":[0,0]},)"
                    R"("k":{"dtype":"BF16","shape":[600,64],"data_offsets":[0,76800]},)"
                    R"("one":{"dtype":"BF16","shape":[],"data_offsets":[76800,76802]}})",
                    values(38401)));
  const Outcome mixed = codec("mixed.safetensors", {"--json", "--profile", "fast"});
  EXPECT_EQ(mixed.code, 0) << mixed.err;
  EXPECT_EQ(json_of(mixed)["shape"], (std::vector<int>{600, 64}));
  EXPECT_NE(mixed.err.find("mixed.safetensors:empty is skipped"), std::string::npos) << mixed.err;
  EXPECT_NE(mixed.err.find("mixed.safetensors:one is skipped"), std::string::npos) << mixed.err;

  write("scalar.npy", npy("{'descr': '<f2', 'fortran_order': False, 'shape': (), }", "12"));
  write("nothing.npy", npy("{'descr': '<f2', 'fortran_order': False, 'shape': (0, 4), }", ""));
  write("empty.bin", "");
  for (const auto& [file, number] :
       {std::pair("scalar.npy", "bf16"), {"nothing.npy", "bf16"}, {"empty.bin", "bytes"}}) {
    const Outcome outcome = codec(file, {"--number", number});
    EXPECT_EQ(outcome.code, 2) << file << outcome.err;
    EXPECT_NE(outcome.err.find(std::string(file) + " is skipped"), std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("no tensor"), std::string::npos) << outcome.err;
  }
}

TEST_F(CodecCommand, AShapeMayBeNestedDeeply) {
  for (const size_t depth : {2, 200'000}) {
    const std::string shape = std::string(depth, '[') + std::string(depth, ']');
    write("s.safetensors",
          safetensors(R"({"k":{"dtype":"I8","shape":)" + shape + R"(,"data_offsets":[0,4]}})",
                      "abcd"));
    const Outcome outcome = codec("s.safetensors");
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find("tensor k has shape of type array"), std::string::npos)
        << outcome.err;
    EXPECT_LT(outcome.err.size(), 1000u);
  }
}

TEST_F(CodecCommand, AShapeIsWholeNumbers) {
  for (const char* shape : {"[-4,1]", "[4.5]", "[\"4\"]", "4", "null", "[4,null]"}) {
    write("s.safetensors", safetensors(std::string(R"({"k":{"dtype":"I8","shape":)") + shape +
                                           R"(,"data_offsets":[0,4]}})",
                                       "abcd"));
    const Outcome outcome = codec("s.safetensors");
    EXPECT_EQ(outcome.code, 2) << shape << outcome.out;
    EXPECT_NE(outcome.err.find(std::string("tensor k has shape ") + shape + ","), std::string::npos)
        << outcome.err;
  }
}

TEST_F(CodecCommand, WrongInputIsNamed) {
  write("k.bin", values(64));
  write("empty.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "12345678"));
  write("fortran.npy", npy("{'descr': '<f2', 'fortran_order': True, 'shape': (2,), }", "1234"));
  write("short.safetensors", "abc");
  write("outside.safetensors",
        safetensors(R"({"k":{"dtype":"BF16","shape":[10,64],"data_offsets":[0,1280]}})", "abc"));
  const std::tuple<std::string, Arguments, int, std::string> lines[] = {
      {"none.bin", {}, 3, "none.bin"},
      {"k.bin", {}, 2, "--number"},
      {"k.bin", {"--number", "bf16"}, 2, "--shape"},
      {"k.bin", {"--number", "bf16", "--shape", "3,64"}, 2, "k.bin: it has 128 bytes, but its"},
      {"k.bin", {"--number", "bf16", "--shape", "3,64"}, 2, "takes 384"},
      {"k.bin",
       {"--number", "bf16", "--shape", "1,64", "--plot", "/no/such/folder/a.svg"},
       3,
       "/no/such/folder/a.svg: No such file"},
      {"k.bin", {"--number", "float128", "--shape", "1,64"}, 2, "--number"},
      {"k.bin",
       {"--number", "bf16", "--shape", "1,64", "--rope-base", "1e4", "--rotary-dim", "48"},
       2,
       "heads of 48"},
      {"empty.npy", {}, 2, "<f4"},
      {"fortran.npy", {}, 2, "Fortran"},
      {"short.safetensors", {}, 2, "header"},
      {"outside.safetensors", {}, 2, "outside"},
  };
  for (const auto& [file, more, code, named] : lines) {
    const Outcome outcome = codec(file, more);
    EXPECT_EQ(outcome.code, code) << file << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "") << outcome.out;
  }
}

}  // namespace
}  // namespace bowhead::cli_test
