// SPDX-License-Identifier: Apache-2.0
// ns list, ns rm: namespaces are listed with their usage, and removed with their blocks.
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

using NamespaceCommands = CliTest;

TEST_F(NamespaceCommands, ListShowsUsageForPeopleAndPrograms) {
  create(shm_locator());
  EXPECT_EQ(json_of(run({"ns", "list", shm_locator(), "--json"}))["namespaces"].size(), 0u);
  run({"put", shm_locator(), "a", "--namespace", "one"}, "1");
  run({"put", shm_locator(), "b", "--namespace", "one"}, "22");
  run({"put", shm_locator(), "c", "--namespace", "two words"}, "333");
  const auto list = json_of(run({"ns", "list", shm_locator(), "--json"}));
  EXPECT_EQ(list["locator"], shm_locator());
  ASSERT_EQ(list["namespaces"].size(), 2u);
  EXPECT_EQ(list["namespaces"][0]["name"], "one");
  EXPECT_EQ(list["namespaces"][0]["blocks"], 2);
  EXPECT_EQ(list["namespaces"][0]["value_bytes"], 3);
  EXPECT_EQ(list["namespaces"][1]["name"], "two words");
  EXPECT_EQ(list["namespaces"][1]["blocks"], 1);
  const std::string text = run({"ns", "list", shm_locator()}).out;
  EXPECT_TRUE(text.starts_with("NAMESPACE")) << text;
  EXPECT_NE(text.find("two words"), std::string::npos) << text;
}

TEST_F(NamespaceCommands, UsageFollowsPutsAndRemovals) {
  create(shm_locator());
  run({"put", shm_locator(), "a", "--namespace", "one"}, "1");
  run({"put", shm_locator(), "b", "--namespace", "two"}, "22");
  run({"put", shm_locator(), "c", "--namespace", "two"}, "333");
  run({"rm", shm_locator(), "b", "--namespace", "two"});
  const auto json = json_of(run({"ns", "list", shm_locator(), "--json"}));
  ASSERT_EQ(json["namespaces"].size(), 2u);
  for (const auto& ns : json["namespaces"]) {
    EXPECT_EQ(ns["blocks"], 1);
    EXPECT_EQ(ns["value_bytes"], ns["name"] == "one" ? 1 : 3);
    EXPECT_EQ(ns["evictions"], 0);
  }
  EXPECT_EQ(json["other"]["blocks"], 0);
  EXPECT_EQ(run({"ns", "list", shm_locator()}).out.find("(other)"), std::string::npos);
  EXPECT_EQ(run({"ns", "rm", shm_locator(), "two", "--yes"}).code, 0);
  EXPECT_EQ(json_of(run({"ns", "list", shm_locator(), "--json"}))["other"]["blocks"], 0);
}

TEST_F(NamespaceCommands, RmTakesTheBlocksAndLeavesTheOthers) {
  create(shm_locator());
  run({"put", shm_locator(), "k", "--namespace", "one"}, "gone");
  run({"put", shm_locator(), "k", "--namespace", "two"}, "stays");
  const auto before = json_of(run({"pool", "info", shm_locator(), "--json"}));

  const Outcome refused = run({"ns", "rm", shm_locator(), "one"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("namespace 'one' has 1 block(s)"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--yes"), std::string::npos) << refused.err;
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "one"}).out, "gone");

  const Outcome removed = run({"ns", "rm", shm_locator(), "one", "--yes"});
  EXPECT_EQ(removed.code, 0) << removed.err;
  EXPECT_EQ(removed.out, "removed namespace 'one' (1 block(s), 4 B)\n");
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "one"}).code, 1);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "two"}).out, "stays");
  const auto left = json_of(run({"ns", "list", shm_locator(), "--json"}));
  ASSERT_EQ(left["namespaces"].size(), 1u);
  EXPECT_EQ(left["namespaces"][0]["name"], "two");
  const auto after = json_of(run({"pool", "info", shm_locator(), "--json"}));
  EXPECT_LT(after["used_bytes"].get<uint64_t>(), before["used_bytes"].get<uint64_t>());
  EXPECT_EQ(run({"pool", "check", shm_locator(), "--payload"}).code, 0);
}

TEST_F(NamespaceCommands, ARemovedNameIsANewNamespace) {
  create(shm_locator());
  run({"put", shm_locator(), "k", "--namespace", "n"}, "old");
  const auto old_id = json_of(run({"ns", "list", shm_locator(), "--json"}))["namespaces"][0]["id"];
  EXPECT_EQ(run({"ns", "rm", shm_locator(), "n", "--yes"}).code, 0);
  // Compressed, which the old one was not.
  EXPECT_EQ(
      run({"put", shm_locator(), "l", "--namespace", "n", "--compress", "balanced"}, "new").code,
      0);
  const auto list = json_of(run({"ns", "list", shm_locator(), "--json"}));
  ASSERT_EQ(list["namespaces"].size(), 1u);
  EXPECT_NE(list["namespaces"][0]["id"], old_id);
  EXPECT_EQ(list["namespaces"][0]["blocks"], 1);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "n"}).code, 1);
  EXPECT_EQ(run({"get", shm_locator(), "l", "--namespace", "n"}).out, "new");
}

TEST_F(NamespaceCommands, AnUnknownNamespaceIsNamed) {
  create(shm_locator());
  const Outcome outcome = run({"ns", "rm", shm_locator(), "none"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("'none'"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"ns", "rm", shm_locator(), ""}).code, 2);
}

/// Also with a process of the other host running, which has to hear of it.
TEST_F(NamespaceCommands, AHostRemovesTheBlocksOfAnother) {
  create(shm_locator(), "32M", {"--hosts", "2", "--no-evict"});
  ASSERT_EQ(run({"put", shm_locator(), "k", "--host", "0"}, "value").code, 0);
  ASSERT_EQ(run({"ns", "rm", shm_locator(), "default", "--yes", "--host", "1"}).code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "k"}).code, 1);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--host", "0"}).code, 1);
  const Running owner({"host", shm_locator(), "--host", "0"});
  EXPECT_TRUE(eventually(45, [&] {
    const auto listed = json_of(run({"ls", shm_locator(), "--json"}));
    for (const auto& block : listed["blocks"]) {
      if (block["key"] == "k") return false;
    }
    return true;
  }));
}

}  // namespace
}  // namespace bowhead::cli_test
