// SPDX-License-Identifier: Apache-2.0
// The replay on small pools: its report, that it finds wrong bytes, and its errors for bad input.
#include <chrono>
#include <cmath>
#include <set>

#include "base/random.h"
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class Replay : public CliTest {
 protected:
  Outcome replay(const Arguments& more) const {
    Arguments arguments = {"replay", "--pool", shm_locator()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
};

constexpr const char* kTrace =
    "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
    "{\"timestamp\": 1, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}\n"
    "{\"timestamp\": 2, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [1, 4]}\n";

TEST_F(Replay, AGivenTraceIsServedToTheLastBlock) {
  write("trace", kTrace);
  const Outcome outcome = replay(
      {path("trace"), "--create", "32M", "--workers", "1", "--json", "--block-bytes", "48K"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["requests"], 3);
  EXPECT_EQ(json["blocks_asked"], 7);
  EXPECT_EQ(json["blocks_distinct"], 4);
  EXPECT_EQ(json["blocks_hit"], 3);
  EXPECT_EQ(json["blocks_put"], 4);
  EXPECT_EQ(json["tokens_saved"], 1024 + 512);
  EXPECT_EQ(json["tokens_asked"], 3100);
  EXPECT_EQ(json["bytes_verified"], 3 * 49152);
  EXPECT_EQ(json["bytes_in"], 4 * 49152);
  EXPECT_EQ(json["wrong_bytes"], 0);
  EXPECT_DOUBLE_EQ(json["hit_rate"], 3.0 / 7);
  EXPECT_DOUBLE_EQ(json["hit_rate_lru"], 3.0 / 7);
  EXPECT_DOUBLE_EQ(json["hit_rate_best"], 3.0 / 7);
  EXPECT_DOUBLE_EQ(json["hit_rate_infinite"], 3.0 / 7);
  EXPECT_EQ(json["latency"]["get"]["count"], 3);
  EXPECT_GT(json["copy_limit"]["gb_per_s"], 0);
  EXPECT_GE(json["copy_limit"]["rounds"], 5);
  EXPECT_GT(json["in_gb_per_s"], 0);
  EXPECT_EQ(json["per_worker"].size(), 1u);
  EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "--create takes it away again";
}

TEST_F(Replay, OneWorkerHitsLikeIdealLruAndNeverMoreThanTheBestPossible) {
  const Outcome outcome = replay({"--create", "48M", "--workers", "1", "--json", "--block-bytes",
                                  "16K", "--requests", "2500", "--self-test"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_GT(json["blocks_evicted"], 1000);
  EXPECT_LT(json["hit_rate_lru"], json["hit_rate_best"]);
  EXPECT_LT(json["hit_rate_best"].get<double>(), json["hit_rate_infinite"].get<double>() + 1e-9);
  EXPECT_NEAR(json["hit_rate"].get<double>(), json["hit_rate_lru"].get<double>(), 0.02);
  EXPECT_LT(json["hit_rate"].get<double>(), json["hit_rate_best"].get<double>());
  EXPECT_EQ(json["wrong_bytes"], 0);
  EXPECT_EQ(json["self_test"]["passed"], true);
  EXPECT_EQ(json["self_test"]["flipped_found"], 32);
  EXPECT_EQ(json["self_test"]["foreign_found"], 32);
}

TEST_F(Replay, ALargePoolHitsLikeAnEndlessOneAndThenEverything) {
  create(shm_locator(), "128M");
  const Arguments same = {"--workers",  "1",   "--json",     "--block-bytes", "16K",
                          "--requests", "300", "--generate", "agent"};
  const auto cold = json_of(replay(same));
  EXPECT_EQ(cold["hit_rate"], cold["hit_rate_infinite"]);
  EXPECT_EQ(cold["blocks_warm"], 0);
  const auto warm = json_of(replay(same));
  EXPECT_EQ(warm["hit_rate"], 1.0);
  EXPECT_EQ(warm["blocks_warm"], cold["blocks_distinct"]);
  EXPECT_EQ(run({"pool", "check", shm_locator(), "--payload"}).code, 0);
}

TEST_F(Replay, ManyWorkersShareOnePool) {
  const auto json = json_of(replay({"--create", "64M", "--workers", "5", "--json", "--block-bytes",
                                    "16K", "--requests", "2000", "--keep"}));
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["requests"], 2000);
  ASSERT_EQ(json["per_worker"].size(), 5u);
  uint64_t requests = 0;
  for (const auto& worker : json["per_worker"]) requests += worker["requests"].get<uint64_t>();
  EXPECT_EQ(requests, 2000u);
  EXPECT_EQ(run({"pool", "check", shm_locator(), "--payload"}).code, 0) << "--keep keeps it";
}

TEST_F(Replay, WrongContentUnderAGoodKeyIsFoundAndNamed) {
  write("trace", kTrace);
  create(shm_locator());
  const Arguments arguments = {path("trace"), "--workers", "1", "--block-bytes", "16K"};
  ASSERT_EQ(replay(arguments).code, 0);
  const auto block = json_of(run({"ls", shm_locator(), "--json"}))["blocks"][1];
  const std::string key = block["key"];
  const std::string ns = block["namespace"];
  ASSERT_EQ(run({"rm", shm_locator(), key, "--namespace", ns}).code, 0);
  ASSERT_EQ(run({"put", shm_locator(), key, "--namespace", ns}, std::string(16384, 'x')).code, 0);
  const Outcome outcome = replay(arguments);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_NE(outcome.out.find("WRONG: block "), std::string::npos) << outcome.out;
  Arguments as_json = arguments;
  as_json.push_back("--json");
  const Outcome again = replay(as_json);
  EXPECT_EQ(again.code, 1);
  const auto json = json_of(again);
  EXPECT_EQ(json["good"], false);
  EXPECT_GE(json["wrong_blocks"], 1);
  EXPECT_GT(json["wrong_bytes"], 16000);
  EXPECT_EQ(json["wrong"].size(), json["wrong_blocks"].get<size_t>());
}

TEST_F(Replay, RealTensorsMakeOtherContent) {
  std::filesystem::create_directory(folder_ / "model");
  write("model/k.bf16.bin", std::string(100'000, 'k'));
  write("trace", kTrace);
  const auto json = json_of(replay(
      {path("trace"), "--create", "32M", "--workers", "1", "--kv", folder_.string(), "--json"}));
  EXPECT_EQ(json["good"], true);
  EXPECT_TRUE(json["content"].get<std::string>().starts_with("tensors")) << json["content"];
  const Outcome none = replay({"--create", "32M", "--kv", path("nothing")});
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.err.find("nothing"), std::string::npos) << none.err;
  EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "nothing was created";
}

/// A set of captured tensors: two layers, two heads of 16 channels, two queries for each.
class ReplayNdp : public Replay {
 protected:
  void SetUp() override {
    Replay::SetUp();
    std::filesystem::create_directories(folder_ / "kv");
    write("kv/meta.json", R"({"files": {
      "k": {"tensor": "k", "dtype": "bf16", "shape": [2, 2, 1024, 16]},
      "v": {"tensor": "v", "dtype": "bf16", "shape": [2, 2, 1024, 16]},
      "q": {"tensor": "q", "dtype": "bf16", "shape": [2, 4, 4, 16]}}})");
    write("kv/k", numbers(2 * 2 * 1024 * 16));
    write("kv/v", numbers(2 * 2 * 1024 * 16));
    write("kv/q", numbers(2 * 4 * 4 * 16));
    write("kv/qpos.u32.bin", std::string("\0\2\0\0\1\2\0\0\2\2\0\0\3\2\0\0", 16));
    write("trace", kTrace);
  }
  /// bf16 numbers between -4 and 4.
  std::string numbers(size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      bytes.push_back(static_cast<char>(random_.below(256)));
      bytes.push_back(static_cast<char>((random_.below(2) << 7) + 0x3e + random_.below(3)));
    }
    return bytes;
  }
  Outcome steps(Arguments more) const {
    for (const std::string& word :
         {path("trace"), std::string("--create"), std::string("32M"), std::string("--ndp")})
      more.push_back(word);
    return replay(more);
  }
  Random random_{1};
};

TEST_F(ReplayNdp, StepsOnADeviceAreRight) {
  const Outcome outcome = steps({"--kv", path("kv"), "--steps", "2", "-k", "20", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const auto json = json_of(outcome);
  const auto of = json["decode_steps"];
  EXPECT_EQ(json["block_bytes"], 2 * 2 * 2 * 512 * 16 * 2);
  EXPECT_EQ(of["model"], "kv");
  EXPECT_EQ(of["captured"], true);
  EXPECT_EQ(of["steps"], 6);
  EXPECT_EQ(of["context_tokens"], (2 + 3 + 2) * 512.0 / 3);
  EXPECT_EQ(of["wrong_answers"], 0);
  EXPECT_EQ(of["recall"], 1.0);
  EXPECT_GT(of["mass"], 0);
  EXPECT_LT(of["mass"], 1);
  // For each layer the best keys, and the values of two heads.
  EXPECT_EQ(of["computed_device"], 6 * 2 * (1 + 2));
  EXPECT_EQ(of["computed_process"], 0);
  EXPECT_EQ(of["requests"], 3);
  EXPECT_EQ(of["requests_shortened"], 0);
  EXPECT_EQ(of["requests_without"], 0);
  EXPECT_EQ(of["measured"]["count"], 6);
  EXPECT_DOUBLE_EQ(of["restore_bytes_per_token"].get<double>() * 15,
                   7 * json["block_bytes"].get<double>());
  std::set<std::string> searches;
  for (const auto& modelled : of["modelled"]) {
    EXPECT_EQ(modelled["link_bytes_without"], of["context_bytes"]) << modelled;
    EXPECT_LT(modelled["link_bytes"], of["context_bytes"]) << modelled;
    EXPECT_LT(modelled["us"], modelled["us_without"]) << modelled;
    searches.insert(modelled["searches"]);
  }
  EXPECT_EQ(searches, (std::set<std::string>{"device", "host"}));
}

TEST_F(ReplayNdp, FewerBytesFindLess) {
  const auto recall = [&](const char* budget) {
    const Outcome outcome =
        steps({"--kv", path("kv"), "--compress", "fast", "--budget", budget, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    return json_of(outcome)["decode_steps"]["recall"].get<double>();
  };
  const double least = recall("3"), most = recall("30");
  EXPECT_LT(least, most);
  EXPECT_GT(least, 0.1);
  EXPECT_GT(most, 0.9);
}

TEST_F(ReplayNdp, OneStepMayTakeAllKeys) {
  const auto json = json_of(steps({"--kv", path("kv"), "--best", "100000", "--json"}));
  EXPECT_EQ(json["good"], true);
  EXPECT_NEAR(json["decode_steps"]["mass"].get<double>(), 1, 1e-6);
}

TEST_F(ReplayNdp, WrongAnswersOfADeviceAreFound) {
  create(shm_locator(), "32M");
  // Each computation alone, and all: best keys and values of two layers, of two heads.
  for (const std::string fault : {"corrupt:1:1", "corrupt:2:1", "corrupt:3:1", "corrupt:1"}) {
    Running serves({"device", "serve", shm_locator(), "--inject", fault});
    ASSERT_TRUE(eventually(10, [&] { return run({"device", "ping", shm_locator()}).code == 0; }));
    const Outcome outcome =
        replay({path("trace"), "--kv", path("kv"), "--ndp", "--requests", "1", "--json"});
    EXPECT_EQ(outcome.code, 1) << fault << outcome.err;
    EXPECT_GE(json_of(outcome)["decode_steps"]["wrong_answers"], fault == "corrupt:1" ? 6 : 1)
        << fault;
    serves.signal(SIGTERM);
    EXPECT_EQ(serves.wait(10), 0);
  }
}

TEST_F(ReplayNdp, ADeviceThatHangsDelaysLittle) {
  create(shm_locator(), "32M");
  Running serves({"device", "serve", shm_locator()});
  ASSERT_TRUE(eventually(10, [&] { return run({"device", "ping", shm_locator()}).code == 0; }));
  serves.signal(SIGSTOP);
  const auto begun = std::chrono::steady_clock::now();
  const auto json = json_of(replay({path("trace"), "--kv", path("kv"), "--ndp", "--json"}));
  // Once ten seconds, not for each of the twelve times that a step waits.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["decode_steps"]["computed_device"], 0);
  EXPECT_EQ(json["decode_steps"]["steps"], 3);
  serves.signal(SIGKILL);
}

TEST_F(ReplayNdp, RequestsWithoutBlocksAreCounted) {
  write("trace",
        "{\"timestamp\": 0, \"input_length\": 100, \"output_length\": 0, \"hash_ids\": []}\n"
        "{\"timestamp\": 0, \"input_length\": 900, \"output_length\": 0, \"hash_ids\": [1, 2]}\n");
  const auto json = json_of(steps({"--kv", path("kv"), "--json"}));
  const auto of = json["decode_steps"];
  EXPECT_EQ(of["requests"], 1);
  EXPECT_EQ(of["requests_without"], 1);
  EXPECT_TRUE(of["restore_bytes_per_token"].is_null()) << of;
}

TEST_F(ReplayNdp, SyntheticTensorsAreNamedSo) {
  const Outcome outcome = steps({"--workers", "2", "--hosts", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_NE(outcome.out.find("say nothing about a model"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("modelled, not measured"), std::string::npos) << outcome.out;
  // Columns stand under their headings.
  const size_t headings = outcome.out.find("MODELLED DEVICE");
  const size_t row = outcome.out.find("\ncxl-pnm ") + 1;
  const auto column = [&](size_t line, const char* text) {
    return outcome.out.find(text, line) - line;
  };
  EXPECT_EQ(column(headings, "SEARCHES"), column(row, "device")) << outcome.out;
  EXPECT_EQ(column(headings, "FASTER\n") + 6, column(row, " x\n") + 2) << outcome.out;
}

TEST_F(ReplayNdp, RefusesWhatIsNoSetOfTensors) {
  const auto refused = [&](const char* part) {
    const Outcome outcome = steps({"--kv", path("kv")});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "nothing was created";
  };
  const std::string good = read("kv/k");
  write("kv/k", good.substr(2) + "\x80\x7f");
  refused("number 65535 of its keys is not finite");
  write("kv/k", good);
  write("kv/qpos.u32.bin", std::string("\0\2\0\0", 4));
  refused("qpos.u32.bin has 1 positions");
  write("kv/q", "short");
  refused("it has 5 bytes");
  write("kv/meta.json", R"({"files": {}})");
  refused("no set has keys, values and queries");
  std::filesystem::remove(path("kv/meta.json"));
  refused("meta.json");
}

TEST_F(Replay, ABrokenTraceIsNamedBeforeAnythingIsTouched) {
  write("bad", std::string(kTrace) + "{\"timestamp\": 3, \"input_length\": 1");
  for (const Arguments& more : {Arguments{"--create", "32M"}, Arguments{}}) {
    Arguments arguments = {path("bad")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = replay(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(outcome.err.starts_with("bowhead: " + path("bad") + ":4: not valid JSON"))
        << outcome.err;
    EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "something was created";
  }
  EXPECT_EQ(replay({path("missing"), "--create", "32M"}).code, 3);
}

TEST_F(Replay, AFullPoolThatDoesNotEvictIsNotAnError) {
  create(shm_locator(), "16M", {"--no-evict"});
  const Outcome outcome =
      replay({"--workers", "2", "--json", "--block-bytes", "64K", "--requests", "300"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_GT(json["blocks_no_space"], 100);
  EXPECT_EQ(json["blocks_evicted"], 0);
  EXPECT_EQ(json["wrong_bytes"], 0);
}

TEST_F(Replay, TheSelfTestSaysWhenItHasTooLittle) {
  write("trace",
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, "
        "\"hash_ids\": [1]}\n");
  const Outcome outcome = replay({path("trace"), "--create", "32M", "--self-test"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("self-test needs"), std::string::npos) << outcome.err;
}

TEST_F(Replay, TheSelfTestOfSeveralHostsFindsAllAndLeavesNothing) {
  const Outcome outcome = replay({"--create", "64M", "--hosts", "3", "--requests", "200",
                                  "--block-bytes", "16K", "--self-test", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = json_of(outcome)["self_test"];
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["flipped_injected"], 32);
  EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "it is still there";
}

TEST_F(Replay, NoFailureLeavesThePoolThatWasMade) {
  write("trace", kTrace);
  for (const Arguments& failing :
       {Arguments{path("trace"), "--self-test"},              // too few blocks
        Arguments{"--requests", "9", "--block-bytes", "1G"},  // larger than the pool
        Arguments{"--requests", "9", "--host", "5"}}) {       // no such slot
    Arguments arguments = failing;
    arguments.insert(arguments.end(), {"--create", "32M"});
    const Outcome outcome = replay(arguments);
    EXPECT_NE(outcome.code, 0) << outcome.out;
    EXPECT_LE(outcome.code, 3) << outcome.err;
    EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << outcome.err;
  }
}

TEST_F(Replay, APoolThatIsDestroyedMeanwhileIsNamedAsSuch) {
  const std::pair<const char*, const char*> commands[] = {
      {"replay --workers 1 --requests 1000000 --block-bytes 16K --pool", "puts"},
      {"pool recompress --cold 0 --watch", "processes_live"}};
  for (const auto& [command, at_work] : commands) {
    create(shm_locator(), "32M");
    const Outcome outcome =
        shell("p=" + shm_locator() + "; exec 2>&1; $B " + command + " $p & worker=$!; n=0\n" +
              "until $B pool info $p --json | grep -q '\"" + at_work + "\": [1-9]'; do\n" +
              "  n=$((n + 1)); [ $n -lt 600 ] || break; sleep 0.1\n" +
              "done; $B pool destroy --force $p > /dev/null; wait $worker");
    EXPECT_EQ(outcome.code, 3) << outcome.out;
    EXPECT_NE(outcome.out.find("the pool was destroyed or replaced"), std::string::npos)
        << outcome.out;
  }
}

TEST_F(Replay, TheReportForPeopleHasItAll) {
  write("trace", kTrace);
  const Outcome outcome = replay({path("trace"), "--create", "32M", "--workers", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"HIT RATE", "this pool", "ideal LRU", "best possible", "endless cache",
                           "SPEED", "P99.9", "OF LIMIT", "WORKER", "prefill saved", "evicted",
                           "verified 192.00 KiB (196,608 bytes): 0 wrong bytes"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
}

}  // namespace
}  // namespace bowhead::cli_test
