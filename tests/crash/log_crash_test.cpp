// SPDX-License-Identifier: Apache-2.0
// A process of a host dies before and after every store of an operation that changes the index, the
// stores to the change log among them. Another host, which follows by the log, finds what a look-up
// in the index itself finds, and goes on following: no death leaves a gap in the log.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/crash/crash_access.h"
#include "tests/support/counted_hosts.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::Key;
using CrashCore = core::Core<CrashAccess>;

class LogCrash : public testing::Test {
 protected:
  using Act = std::function<Status(CrashCore&, const std::string& key)>;

  void SetUp() override {
    const core::Layout& layout = pool_.layout();
    reader_.access().watch(layout.part(1, BH_PART_INDEX),
                           layout.geometry().parts[BH_PART_INDEX].bytes);
    reader_.work();
    (void)in_batch("no key");  // only who asks has a mirror
    for (int i = 0; i < 4; ++i) reader_.work();
    ASSERT_LE(loads_of_absent_keys(), 1u) << "the reader has no mirror";
  }

  bool in_batch(const std::string& key) {
    const std::string_view keys[] = {key};
    uint8_t present = 0;
    reader_.core().lookup.exists(kNamespace, keys, &present);
    return present != 0;
  }
  bool in_index(const std::string& key) {
    return reader_.core().lookup.locate(Key(kNamespace, key)).has_value();
  }
  /// Lines of the index of host 1 that a batch of absent keys loads: few, if it is mirrored.
  uint64_t loads_of_absent_keys() {
    std::vector<std::string> texts;
    for (int i = 0; i < 64; ++i) texts.push_back(fmt::format("absent-{}", i));
    const std::vector<std::string_view> keys(texts.begin(), texts.end());
    std::vector<uint8_t> present(keys.size());
    reader_.access().take_loads();
    EXPECT_EQ(reader_.core().lookup.exists(kNamespace, keys, present.data()), 0u);
    return reader_.access().take_loads();
  }

  /// In a process of host 1 that dies at the point. False if it came to its end before.
  bool dies_in(const Act& act, const std::string& key, uint64_t point, Side side) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(30);
      auto media = open_media(pool_.locator());
      CrashAccess access(**media, FlushKind::NONE);
      CrashCore core(access, pool_.superblock(), 1);
      if (!core.joining.attach({})) _exit(2);
      CrashAccess::plan().arm(point, side);
      const Status status = act(core, key);
      CrashAccess::plan().disarm();
      core.joining.detach();
      _exit(status == Status::OK ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    EXPECT_EQ(status, 0);
    return false;
  }

  /// `prepare` is done by another process of the host, before each death.
  void die_everywhere(const std::function<void(const std::string& key)>& prepare, const Act& act) {
    uint64_t deaths = 0;
    for (const Side side : {Side::BEFORE, Side::AFTER}) {
      bool dies = true;
      for (uint64_t point = 1; dies && !HasFailure(); ++point) {
        const std::string text =
            fmt::format("{}-{}", side == Side::BEFORE ? "before" : "after", point);
        SCOPED_TRACE(text);
        prepare(text);
        (void)in_batch(text);
        dies = dies_in(act, text, point, side);
        deaths += dies;
        put(text + " next");
        EXPECT_TRUE(in_batch(text + " next")) << "stored after the death";
        put(text);
        EXPECT_TRUE(in_batch(text)) << "put again, while the dead process's work is not undone";
        survivor_.core().recovery.scavenge_dead();
        EXPECT_EQ(in_batch(text), in_index(text)) << "after scavenging";
        EXPECT_LE(loads_of_absent_keys(), 2u) << "the reader follows no more";
        for (const std::string& key : {text, text + " next"}) (void)remove(survivor_.core(), key);
      }
    }
    EXPECT_GT(deaths, 50u);
    fmt::print("{} deaths\n", deaths);
  }
  void put(const std::string& key) {
    ASSERT_EQ(test::put(survivor_.core(), key, std::vector<std::byte>(64)), Status::OK);
  }

  const SharedPool pool_{2, {.evict_high_permille = 0}, kPatient};
  CountedHost reader_{pool_, 0};
  CountedHost survivor_{pool_, 1};
};

TEST_F(LogCrash, InAPut) {
  die_everywhere([](const std::string&) {},
                 [](CrashCore& core, const std::string& key) {
                   return test::put(core, key, std::vector<std::byte>(64));
                 });
}

TEST_F(LogCrash, InARemoval) {
  die_everywhere([this](const std::string& key) { put(key); },
                 [](CrashCore& core, const std::string& key) { return remove(core, key); });
}

}  // namespace
}  // namespace bowhead::test
