// SPDX-License-Identifier: Apache-2.0
// topk: the same tokens of compressed blocks and others, and errors for what cannot be searched.
#include <bowhead/bowhead.h>
#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/random.h"
#include "tests/api/structs.h"
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

constexpr uint32_t kChannels = 64, kHeads = 2, kTokens = 300;

/// bf16 numbers; near 0, but for one token's keys.
std::string keys_with(uint32_t loud_token) {
  Random random(3);
  std::string bytes;
  for (uint32_t i = 0; i < kHeads * kTokens * kChannels; ++i) {
    float value = (static_cast<float>(random.below(2001)) - 1000) / 1000;
    if (i / kChannels % kTokens == loud_token) value *= 8;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bytes += {static_cast<char>(bits >> 16), static_cast<char>(bits >> 24)};
  }
  return bytes;
}

class TopKCommand : public CliTest {
 protected:
  void SetUp() override {
    create(shm_locator());
    write("a", keys_with(17));
    write("b", keys_with(200));
    for (const std::string ns : {"plain", "coded"}) {
      Arguments more = {"--namespace", ns, "--number", "bf16", "--channels", "64", "--heads", "2"};
      if (ns == "coded") more.insert(more.end(), {"--compress", "fast"});
      for (const std::string key : {"a", "b"}) {
        Arguments all = {"put", shm_locator(), key, path(key)};
        all.insert(all.end(), more.begin(), more.end());
        ASSERT_EQ(run(all).code, 0);
      }
    }
  }
  Outcome topk(const Arguments& more, const std::string& ns = "coded",
               const std::string& input = "") {
    Arguments all = {"topk", shm_locator(), "--namespace", ns};
    all.insert(all.end(), more.begin(), more.end());
    return run(all, input);
  }
};

TEST_F(TopKCommand, FindsTheSameInCompressedBlocks) {
  const Arguments ask = {"a", "b", "--head", "1", "--like", "17", "-k", "3", "--json"};
  const auto plain = json_of(topk(ask, "plain")), coded = json_of(topk(ask, "coded"));
  EXPECT_EQ(plain["tokens"], 600);
  ASSERT_EQ(coded["queries"].size(), 1u);
  ASSERT_EQ(coded["queries"][0]["hits"].size(), 3u);
  EXPECT_EQ(coded["queries"][0]["hits"][0]["token"], 17);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain["queries"][0]["hits"][i]["token"], coded["queries"][0]["hits"][i]["token"]);
    EXPECT_NEAR(plain["queries"][0]["hits"][i]["score"].get<double>(),
                coded["queries"][0]["hits"][i]["score"].get<double>(), 1e-2);
  }
  EXPECT_LT(coded["read_bytes"], coded["stored_bytes"]);
  EXPECT_TRUE(coded["exact"]);
}

/// Also after it was killed, and not meanwhile.
TEST_F(TopKCommand, TheDeviceFindsTheSame) {
  const Arguments ask = {"a", "b", "--like", "17", "-k", "5", "--json"};
  Arguments device = ask;
  device.push_back("--device");
  const auto hits = [&](const Arguments& of) { return json_of(topk(of))["queries"]; };
  const Outcome alone = topk(device);
  EXPECT_EQ(alone.code, 3);
  EXPECT_NE(alone.err.find("bowhead device serve"), std::string::npos) << alone.err;
  const auto device_finding = [&]() -> std::string {
    const auto json = json_of(run({"doctor", "--pool", shm_locator(), "--json"}));
    std::string all;
    for (const auto& finding : json["findings"]) {
      if (finding["subject"] == "pool " + shm_locator())
        all += fmt::format("{}: {} ({});", finding["level"].get<std::string>(),
                           finding["what"].get<std::string>(), finding["mend"].get<std::string>());
    }
    return all;
  };
  const auto expect_finding = [&](const char* part) {
    const std::string found = device_finding();
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  EXPECT_EQ(device_finding(),
            "hint: it has no device (bowhead device serve " + shm_locator() + ");");
  const auto answers = [&] { return run({"device", "ping", shm_locator()}).code == 0; };
  for (int life = 0; life < 2; ++life) {
    Running serves({"device", "serve", shm_locator()});
    ASSERT_TRUE(eventually(10, answers));
    EXPECT_EQ(hits(device), hits(ask));
    expect_finding("its device answers in");
    const std::string offset = std::to_string(
        json_of(run({"ls", shm_locator(), "--json"}))["blocks"][0]["offset"].get<uint64_t>());
    ASSERT_EQ(run({"device", "poison", shm_locator(), "--inject", offset}).code, 0);
    expect_finding("poison on 1 lines");
    EXPECT_EQ(run({"device", "serve", shm_locator()}).code, 3);  // there is one already
    EXPECT_EQ(
        json_of(run({"device", "ping", shm_locator(), "--count", "20", "--json"}))["commands"], 20);
    if (life == 0) {
      serves.signal(SIGSTOP);
      expect_finding("problem: its device does not answer");
      serves.signal(SIGKILL);
      EXPECT_EQ(serves.wait(10), 128 + SIGKILL);
      EXPECT_EQ(topk(device).code, 3);
    } else {
      serves.signal(SIGTERM);
      EXPECT_EQ(serves.wait(10), 0);
    }
  }
}

TEST_F(TopKCommand, TheDeviceTellsOfItself) {
  EXPECT_EQ(run({"device", "serve", shm_locator(), "--inject", "dro"}).code, 2);
  EXPECT_EQ(run({"device", "serve", shm_locator(), "--profile", "none"}).code, 2);
  Running serves({"device", "serve", shm_locator(), "--threads", "2", "--profile", "m2ndp"});
  ASSERT_TRUE(eventually(10, [&] { return run({"device", "ping", shm_locator()}).code == 0; }));
  const auto info = [&] { return json_of(run({"device", "info", shm_locator(), "--json"})); };
  const auto before = info();
  EXPECT_TRUE(before["troubles"].empty());
  const Outcome found = topk({"a", "b", "--device", "--json"});
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_GT(json_of(found)["modelled_ns"], 0);
  EXPECT_GT(info()["read_bytes"], before["read_bytes"]);
  EXPECT_NE(run({"device", "info", shm_locator()}).out.find("health      ok"), std::string::npos);

  EXPECT_EQ(run({"device", "poison", shm_locator()}).out, "no poison\n");
  const auto poison = [&](const char* option, const char* offset) {
    return run({"device", "poison", shm_locator(), option, offset, "--json"});
  };
  EXPECT_EQ(poison("--inject", "1048577").code, 2);  // not a line
  EXPECT_EQ(json_of(poison("--inject", "1048576"))["poison"],
            nlohmann::json::parse(R"([{"offset": 1048576, "bytes": 64}])"));
  EXPECT_EQ(info()["troubles"], nlohmann::json::parse(R"(["maintenance needed"])"));
  EXPECT_TRUE(json_of(poison("--clear", "1048576"))["poison"].empty());
  serves.signal(SIGTERM);
  EXPECT_EQ(serves.wait(10), 0);
}

TEST_F(TopKCommand, BinaryKeysAreGivenInHex) {
  EXPECT_EQ(json_of(topk({"61", "--hex", "--json"}))["tokens"], 300);
}

TEST_F(TopKCommand, TheTableSaysWhatWasRead) {
  const Outcome outcome = topk({"a", "b"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("TOKEN"), std::string::npos);
  EXPECT_NE(outcome.out.find("that 600 tokens take"), std::string::npos) << outcome.out;
}

/// A score of 5e-7 is no zero.
TEST_F(TopKCommand, TheTableShowsSmallScores) {
  std::vector<float> query(kChannels, 0.0f);
  query[0] = 1e-6f;
  write("small", std::string(reinterpret_cast<const char*>(query.data()), query.size() * 4));
  const Outcome outcome = topk({"a", "--queries", path("small"), "-k", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("e-07"), std::string::npos) << outcome.out;
}

TEST_F(TopKCommand, QueriesComeFromAFileOrStandardInput) {
  std::vector<float> queries(2 * kChannels, 0.0f);
  queries[0] = 1;
  queries[kChannels + 1] = -1;
  const std::string bytes(reinterpret_cast<const char*>(queries.data()), queries.size() * 4);
  write("queries", bytes);
  const auto of_file = json_of(topk({"a", "--queries", path("queries"), "--json"}));
  const auto of_input = json_of(topk({"a", "--queries", "-", "--json"}, "coded", bytes));
  EXPECT_EQ(of_file["queries"].size(), 2u);
  EXPECT_EQ(of_file["queries"], of_input["queries"]);
  const auto near = json_of(topk({"a", "--queries", path("queries"), "--budget", "16", "--json"}));
  EXPECT_FALSE(near["exact"]);
  EXPECT_EQ(near["queries"][1]["hits"].size(), 10u);
  const auto slow = json_of(topk({"a", "--queries", path("queries"), "--fewest-bytes", "--json"}));
  EXPECT_EQ(slow["queries"], of_file["queries"]);

  write("odd", bytes.substr(1));
  const Outcome odd = topk({"a", "--queries", path("odd")});
  EXPECT_EQ(odd.code, 2) << odd.err;
  EXPECT_NE(odd.err.find("511 bytes"), std::string::npos) << odd.err;
}

/// No command makes a namespace with scales.
TEST_F(TopKCommand, AKeyAsAQueryIsTimesItsScale) {
  using test::sized;
  bh_pool* pool = nullptr;
  ASSERT_EQ(bh_pool_open(shm_locator().c_str(), 0, &pool), BH_OK) << bh_last_error();
  auto options = sized<bh_namespace_options>();
  options.layout.number_format = BH_NUMBER_INT8;
  options.layout.order = BH_ORDER_HEADS_FIRST;
  options.layout.parts = 1;
  options.layout.layers = options.layout.heads = 1;
  options.layout.key_channels = 4;
  options.layout.scales = BH_SCALES_PER_ROW;
  options.layout.scale_format = BH_NUMBER_BF16;
  options.layout.scale_place = BH_SCALES_BEHIND_ROW;
  bh_namespace_id ns = 0;
  EXPECT_EQ(bh_namespace_open_with(pool, "scaled", "", &options, &ns), BH_OK) << bh_last_error();
  // Times 8, 1 and 4.
  const uint8_t rows[] = {1, 9, 9, 9, 0x00, 0x41, 2, 9, 9, 9, 0x80, 0x3F, 3, 9, 9, 9, 0x80, 0x40};
  const bh_const_iovec piece = {rows, sizeof rows};
  EXPECT_EQ(bh_put(pool, ns, {"s", 1}, &piece, 1), BH_OK) << bh_last_error();
  bh_pool_close(pool);
  const auto hits = json_of(topk({"s", "--like", "0", "--json"}, "scaled"))["queries"][0]["hits"];
  const std::pair<uint32_t, double> wanted[] = {{0, 7808}, {2, 3936}, {1, 980}};
  ASSERT_EQ(hits.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(hits[i]["token"], wanted[i].first);
    EXPECT_NEAR(hits[i]["score"].get<double>(), wanted[i].second, 1);
  }
}

TEST_F(TopKCommand, ADamagedBlockIsNamedByItsKey) {
  create(file_locator());
  for (const std::string key : {"a", "b"})
    ASSERT_EQ(run({"put", file_locator(), key, path(key), "--number", "bf16", "--channels", "64",
                   "--heads", "2", "--compress", "fast"})
                  .code,
              0);
  const auto listed = json_of(run({"ls", file_locator(), "--json"}));
  for (const auto& block : listed["blocks"]) {
    if (block["key"] != "b") continue;
    std::fstream file(path("pool"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(block["offset"].get<std::streamoff>());
    file.write("no frame", 8);
    ASSERT_TRUE(file.good());
  }
  const Outcome outcome = run({"topk", file_locator(), "a", "b", "--like", "0"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("key 'b'"), std::string::npos) << outcome.err;
}

TEST_F(TopKCommand, WhatCannotBeSearchedIsNamed) {
  struct Wrong {
    Arguments more;
    const char* ns;
    int code;
    const char* says;
  };
  ASSERT_EQ(run({"put", shm_locator(), "text", "--namespace", "opaque"}, "hello").code, 0);
  write("wide", std::string(4096, 'x'));
  ASSERT_EQ(run({"put", shm_locator(), "wide", path("wide"), "--namespace", "wide", "--number",
                 "bf16", "--channels", "2048"})
                .code,
            0);
  const Wrong wrongs[] = {
      {{"a", "nothing"}, "coded", 1, "'nothing'"},
      {{"a"}, "none", 1, "no namespace 'none'"},
      {{"text"}, "opaque", 3, "opaque"},
      {{"text", "--queries", path("a")}, "opaque", 3, "opaque"},
      {{"a", "--hex"}, "coded", 2, "--hex"},
      {{"a", "--layer", "1"}, "coded", 2, "layer 1"},
      {{"a", "--head", "2"}, "coded", 2, "heads"},
      {{"a", "--like", "300"}, "coded", 2, "token 300"},
      {{"a", "-k", "0"}, "coded", 2, "--best"},
      {{"a", "--budget", "-1"}, "coded", 2, "--budget"},
      {{"nothing", "--queries", path("missing")}, "coded", 3, "missing"},  // read first
      {{"wide"}, "wide", 2, "keys of 2048 channels"},
      {{"a", "--queries", "-", "--like", "1"}, "coded", 2, "--like"},
      {{}, "coded", 2, "keys"},
  };
  for (const Wrong& wrong : wrongs) {
    const Outcome outcome = topk(wrong.more, wrong.ns);
    EXPECT_EQ(outcome.code, wrong.code) << wrong.says << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(wrong.says), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace bowhead::cli_test
