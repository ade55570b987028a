// SPDX-License-Identifier: Apache-2.0
// The trace parser: its result for good lines, and its error for every kind of broken line.
#include "tools/bowhead/replay/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace bowhead::replay {
namespace {

constexpr const char* kGood =
    R"({"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 9]})"
    "\n"
    R"({"timestamp": 3, "input_length": 1024, "output_length": 0, "hash_ids": [7, 8]})"
    "\n";

// The error for a trace whose last line is `line`, after two good ones.
std::string complaint(const std::string& line) {
  const auto trace = parse_trace(kGood + line, "t.jsonl", 0);
  EXPECT_EQ(trace.status(), Status::BAD_TRACE) << line;
  return trace ? "" : trace.error().message();
}

std::string request(const std::string& timestamp, const std::string& input,
                    const std::string& output, const std::string& ids) {
  return R"({"timestamp": )" + timestamp + R"(, "input_length": )" + input +
         R"(, "output_length": )" + output + R"(, "hash_ids": )" + ids + "}";
}

TEST(Trace, KeepsTheContentOfGoodLines) {
  const auto trace = parse_trace(kGood, "t.jsonl", 0);
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->source, "t.jsonl");
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[1].timestamp_ms, 3u);
  EXPECT_EQ(trace->requests[1].input_tokens, 1024u);
  EXPECT_EQ(trace->requests[0].output_tokens, 5u);
  EXPECT_EQ(trace->ids, (std::vector<uint64_t>{7, 9, 7, 8}));
  EXPECT_EQ(trace->dense, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(trace->distinct_blocks, 3u);
  EXPECT_EQ(trace->largest_request_blocks(), 2u);
  EXPECT_EQ(trace->ids_of(trace->requests[1])[1], 8u);
}

TEST(Trace, TakesOtherLineEndsBlankLinesAndMissingLastEnd) {
  const std::string line = request("1", "512", "1", "[1]");
  const auto trace = parse_trace("\r\n" + line + "\r\n \t\n\n" + line, "t", 0);
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->requests.size(), 2u);
}

TEST(Trace, ALastBlockThatIsNotFullMayHaveNoId) {
  EXPECT_TRUE(parse_trace(request("1", "1000", "1", "[1]"), "t", 0));
  EXPECT_TRUE(parse_trace(request("1", "1000", "1", "[1, 2]"), "t", 0));
  EXPECT_TRUE(parse_trace(request("1", "100", "1", "[]"), "t", 0));
}

TEST(Trace, TakesTheLargestIds) {
  const auto trace = parse_trace(request("1", "512", "1", "[18446744073709551615]"), "t", 0);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->ids[0], UINT64_MAX);
}

TEST(Trace, KeepsAsManyRequestsAsAskedForButChecksAllLines) {
  const auto trace = parse_trace(kGood, "t", 1);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->requests.size(), 1u);
  EXPECT_EQ(trace->ids.size(), 2u);
  EXPECT_EQ(trace->distinct_blocks, 2u);
  EXPECT_EQ(parse_trace(std::string(kGood) + "x\n", "t", 1).status(), Status::BAD_TRACE);
}

TEST(Trace, NamesFileLineAndSyntaxError) {
  for (const char* line : {"x", "{", "{\"timestamp\": 1,}", "\"", "{} {}", "\xff\xfe", "[1,",
                           "{\"timestamp\": 1e999}", "nul"}) {
    const std::string said = complaint(line);
    EXPECT_TRUE(said.starts_with("t.jsonl:3: not valid JSON: ")) << said;
    EXPECT_EQ(said.find("json.exception"), std::string::npos) << said;
  }
  EXPECT_NE(complaint("{\"timestamp\": 1,}").find("column 17"), std::string::npos)
      << complaint("{\"timestamp\": 1,}");
  // A byte of zero and a line of many brackets.
  EXPECT_TRUE(complaint(std::string("{}\0", 3)).starts_with("t.jsonl:3: "));
  EXPECT_TRUE(complaint(std::string(1 << 20, '[')).starts_with("t.jsonl:3: not valid JSON: "));
}

TEST(Trace, NamesLinesThatAreNotObjects) {
  EXPECT_EQ(complaint("[1]"), "t.jsonl:3: the line is a JSON array, but must be an object");
  EXPECT_EQ(complaint("12"), "t.jsonl:3: the line is a JSON number, but must be an object");
  EXPECT_EQ(complaint("null"), "t.jsonl:3: the line is a JSON null, but must be an object");
}

TEST(Trace, NamesMissingFields) {
  EXPECT_EQ(complaint("{}"), "t.jsonl:3: `timestamp` is missing");
  EXPECT_EQ(complaint(R"({"timestamp": 1})"), "t.jsonl:3: `input_length` is missing");
  EXPECT_EQ(complaint(R"({"timestamp": 1, "input_length": 1})"),
            "t.jsonl:3: `output_length` is missing");
  EXPECT_EQ(complaint(R"({"timestamp": 1, "input_length": 1, "output_length": 1})"),
            "t.jsonl:3: `hash_ids` is missing");
}

TEST(Trace, NamesNumbersOutOfRange) {
  EXPECT_EQ(complaint(request("-1", "1", "1", "[1]")),
            "t.jsonl:3: `timestamp` is -1, but must be an integer from 0 to 9007199254740992");
  EXPECT_EQ(complaint(request("1", "0", "1", "[]")),
            "t.jsonl:3: `input_length` is 0, but must be an integer from 1 to 4294967296");
  EXPECT_EQ(complaint(request("1", "1", "1.5", "[1]")),
            "t.jsonl:3: `output_length` is 1.5, but must be an integer from 0 to 4294967296");
  EXPECT_NE(complaint(request("1", "\"9\"", "1", "[1]")).find("`input_length` is \"9\""),
            std::string::npos);
  EXPECT_NE(complaint(request("1", "18446744073709551615", "1", "[1]")).find("`input_length`"),
            std::string::npos);
  EXPECT_NE(complaint(request("1", "99999999999999999999999", "1", "[1]")).find("`input_length`"),
            std::string::npos);
}

TEST(Trace, NamesBlocksThatDoNotFit) {
  EXPECT_EQ(complaint(request("1", "1", "1", "5")), "t.jsonl:3: `hash_ids` is not an array");
  EXPECT_EQ(complaint(request("1", "2000", "1", "[1, 2]")),
            "t.jsonl:3: `input_length` 2000 makes 4 blocks of 512 tokens, but `hash_ids` has 2");
  EXPECT_NE(complaint(request("1", "512", "1", "[-4]")).find("`hash_ids` holds -4"),
            std::string::npos);
  EXPECT_NE(complaint(request("1", "512", "1", "[\"a\"]")).find("`hash_ids` holds \"a\""),
            std::string::npos);
  EXPECT_NE(complaint(request("1", "512", "1", "[[1]]")).find("`hash_ids` holds [1]"),
            std::string::npos);
}

TEST(Trace, NamesIdsWithAnotherPrefixThanBefore) {
  EXPECT_EQ(
      complaint(request("1", "1024", "1", "[9, 7]")),
      "t.jsonl:3: block id 9 follows a different block than at line 1; equal ids must mean equal "
      "prefixes");
  // Twice in one request is the same error.
  EXPECT_NE(complaint(request("1", "1536", "1", "[7, 20, 20]")).find("block id 20"),
            std::string::npos);
}

TEST(Trace, AnEmptyTraceIsBad) {
  EXPECT_EQ(parse_trace("", "t", 0).status(), Status::BAD_TRACE);
  EXPECT_EQ(parse_trace("\n\n", "t", 0).error().message(), "t: no request in the trace");
}

TEST(Trace, ReadsFilesAndNamesThoseItCannotRead) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("trace_test." + std::to_string(getpid())))
          .string();
  std::ofstream(path) << kGood;
  const auto trace = read_trace(path, 0);
  std::remove(path.c_str());
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->source, path);

  const auto missing = read_trace(path, 0);
  EXPECT_EQ(missing.status(), Status::SYSTEM);
  EXPECT_NE(missing.error().message().find(path), std::string::npos);
  const auto directory = read_trace(std::filesystem::temp_directory_path().string(), 0);
  EXPECT_EQ(directory.status(), Status::SYSTEM);
}

}  // namespace
}  // namespace bowhead::replay
