// SPDX-License-Identifier: Apache-2.0
// put, get, ls, rm: values and keys of all kinds, and the errors for bad ones.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

using BlockCommands = CliTest;

std::string all_bytes(size_t size) {
  std::string value(size, '\0');
  for (size_t i = 0; i < size; ++i) value[i] = static_cast<char>(i * 7 + i / 256);
  return value;
}

TEST_F(BlockCommands, AValueGoesInByOneProcessAndComesOutByAnother) {
  create(shm_locator());
  const std::string value = all_bytes(3'000'001);
  write("value", value);
  const Outcome put = run({"put", shm_locator(), "k", path("value")});
  EXPECT_EQ(put.code, 0) << put.err;
  EXPECT_EQ(put.out, "stored 'k', 2.86 MiB (3,000,001 bytes)\n");
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, value);
  EXPECT_EQ(run({"get", shm_locator(), "k", "-o", path("out")}).code, 0);
  EXPECT_EQ(read("out"), value);

  EXPECT_EQ(run({"rm", shm_locator(), "k"}).code, 0);
  const Outcome gone = run({"get", shm_locator(), "k"});
  EXPECT_EQ(gone.code, 1);
  EXPECT_EQ(gone.out, "");
  EXPECT_NE(gone.err.find("'k'"), std::string::npos) << gone.err;
  EXPECT_EQ(run({"rm", shm_locator(), "k"}).code, 1);
}

TEST_F(BlockCommands, StandardInputIsTheDefaultAndHasAName) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), "a"}, "one").code, 0);
  EXPECT_EQ(run({"put", shm_locator(), "b", "-"}, "two").code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "a"}).out, "one");
  EXPECT_EQ(run({"get", shm_locator(), "b"}).out, "two");
}

TEST_F(BlockCommands, APresentKeyKeepsItsValueAndThePutReportsIt) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), "k"}, "first").code, 0);
  const Outcome again = run({"put", shm_locator(), "k"}, "second");
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.out.find("already present"), std::string::npos);
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "first");
}

TEST_F(BlockCommands, BinaryKeysAreGivenAndShownInHex) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), "--hex", "00ff0A"}, "v").code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "--hex", "00FF0a"}).out, "v");
  EXPECT_NE(run({"ls", shm_locator()}).out.find("hex:00ff0a"), std::string::npos);
  const Outcome bad = run({"get", shm_locator(), "--hex", "0x00"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("'0x00'"), std::string::npos);
}

TEST_F(BlockCommands, NamesAreTakenAsTheyAreShown) {
  create(shm_locator());
  const std::string name = "mod\xc3\xa8le";
  ASSERT_EQ(run({"put", shm_locator(), "k", "--namespace", name}, "v").code, 0);
  EXPECT_NE(run({"ls", shm_locator()}).out.find("hex:6d6f64c3a86c65"), std::string::npos);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "hex:6d6f64c3a86c65"}).out, "v");
  const Outcome listed = run({"ls", shm_locator(), "--namespace", "hex:6d6f64c3a86c65", "--json"});
  EXPECT_NE(listed.out.find("6d6f64c3a86c65"), std::string::npos) << listed.out;
}

TEST_F(BlockCommands, AnErrorIsOneLineWhateverItNames) {
  create(shm_locator());
  const Outcome absent = run({"get", shm_locator(), "k", "--namespace", "a\nb\x1b[2J"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_EQ(std::count(absent.err.begin(), absent.err.end(), '\n'), 1) << absent.err;
  EXPECT_EQ(absent.err.find('\x1b'), std::string::npos);
}

TEST_F(BlockCommands, NamespacesDoNotMeet) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), "k", "--namespace", "a"}, "in a").code, 0);
  EXPECT_EQ(run({"put", shm_locator(), "k"}, "in default").code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "a"}).out, "in a");
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "in default");
  const Outcome none = run({"get", shm_locator(), "k", "--namespace", "b"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("no namespace 'b'"), std::string::npos) << none.err;
  EXPECT_EQ(run({"ls", shm_locator(), "--namespace", "b"}).code, 1);
  EXPECT_EQ(run({"put", shm_locator(), "k", "--namespace", ""}, "x").code, 2);
  EXPECT_EQ(run({"put", shm_locator(), "k", "--namespace", std::string(64, 'n')}, "x").code, 2);
}

TEST_F(BlockCommands, ANewNamespaceMayBeCompressed) {
  create(shm_locator());
  std::string value;
  while (value.size() < 1'000'000) value += "all work and no play makes Jack a dull boy. ";
  write("value", value);
  const Arguments put = {"put", shm_locator(), "k", path("value"), "--namespace", "text"};
  const auto with = [&](const Arguments& more) {
    Arguments all = put;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  EXPECT_EQ(with({"--compress", "dense"}).code, 0);
  EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "text"}).out, value);
  EXPECT_EQ(run(put).code, 0);  // need not be repeated
  const Outcome other = with({"--compress", "fast"});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.err.find("'dense', not 'fast'"), std::string::npos) << other.err;
  const Outcome numbers = with({"--number", "bf16", "--channels", "64"});
  EXPECT_EQ(numbers.code, 3);
  EXPECT_NE(numbers.err.find("number_format is bytes, not bf16"), std::string::npos) << numbers.err;

  const auto block = json_of(run({"ls", shm_locator(), "--json"}))["blocks"][0];
  EXPECT_EQ(block["size_bytes"], value.size());
  EXPECT_LT(block["stored_bytes"], value.size() / 10);
  const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}))["namespaces"][0];
  EXPECT_EQ(info["profile"], "dense");
  EXPECT_EQ(info["layout"]["number_format"], "bytes");
  EXPECT_EQ(info["value_bytes"], value.size());
  EXPECT_EQ(info["stored_bytes"], block["stored_bytes"]);
  EXPECT_GT(info["ratio"], 10.0);
  EXPECT_NE(run({"pool", "info", shm_locator()}).out.find("dense"), std::string::npos);

  for (const Arguments& bad :
       {Arguments{"--compress", "most"}, Arguments{"--channels", "64"},
        Arguments{"--compress", "fast", "--number", "bf16", "--channels", "0"},
        Arguments{"--compress", "fast", "--number", "bf16", "--channels", "64", "--rope-base", "1"},
        Arguments{"--compress", "fast", "--number", "bf16"},
        Arguments{"--number", "bytes", "--channels", "64"},
        Arguments{"--number", "bf16", "--channels", "64", "--outer", "2"},
        Arguments{"--compress", "fast", "--rotary-dim", "64"}}) {
    const Outcome refused = with(bad);
    EXPECT_EQ(refused.code, 2) << bad.back() << ": " << refused.err;
  }
}

TEST_F(BlockCommands, ColdBlocksAreRecompressed) {
  create(shm_locator());
  std::string value;
  // Random digits: incompressible for LZ4, half of the size for ZSTD.
  uint64_t random = 1;
  for (int i = 0; i < 300'000; ++i) {
    random = random * 6364136223846793005u + 1;
    value += static_cast<char>('0' + (random >> 60) % 10);
  }
  write("value", value);
  EXPECT_EQ(run({"put", shm_locator(), "k", path("value"), "--compress", "fast"}).code, 0);
  const Outcome warm = run({"pool", "recompress", shm_locator(), "--cold", "3600", "--json"});
  EXPECT_EQ(json_of(warm)["recompressed"], 0);
  const auto done = json_of(run({"pool", "recompress", shm_locator(), "--cold", "0", "--json"}));
  EXPECT_EQ(done["recompressed"], 1);
  EXPECT_LT(done["after_bytes"], done["before_bytes"]);
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, value);
  const Outcome again = run({"pool", "recompress", shm_locator(), "--cold", "0"});
  EXPECT_EQ(again.out, "recompressed 0 cold blocks: 0 B became 0 B\n");
  const auto info = json_of(run({"pool", "info", shm_locator(), "--json"}));
  EXPECT_EQ(info["counters"]["recompressed"], 1);
  EXPECT_EQ(info["namespaces"][0]["stored_bytes"], done["after_bytes"]);
}

TEST_F(BlockCommands, LsListsAllOrANamespaceForPeopleAndPrograms) {
  create(shm_locator());
  EXPECT_EQ(json_of(run({"ls", shm_locator(), "--json"}))["blocks"].size(), 0u);
  run({"put", shm_locator(), "a", "--namespace", "one"}, "1");
  run({"put", shm_locator(), "b", "--namespace", "two"}, "22");
  const auto all = json_of(run({"ls", shm_locator(), "--json"}));
  EXPECT_EQ(all["locator"], shm_locator());
  EXPECT_EQ(all["blocks"].size(), 2u);
  const auto two = json_of(run({"ls", shm_locator(), "--json", "--namespace", "two"}));
  ASSERT_EQ(two["blocks"].size(), 1u);
  EXPECT_EQ(two["blocks"][0]["key"], "b");
  EXPECT_EQ(two["blocks"][0]["key_hex"], "62");
  EXPECT_EQ(two["blocks"][0]["namespace"], "two");
  EXPECT_EQ(two["blocks"][0]["size_bytes"], 2);
  EXPECT_EQ(two["blocks"][0]["offset"].get<uint64_t>() % 4096, 0u);
  EXPECT_TRUE(two["blocks"][0]["stamp"].is_string());
  const std::string text = run({"ls", shm_locator()}).out;
  EXPECT_TRUE(text.starts_with("NAMESPACE  BYTES")) << text;
}

TEST_F(BlockCommands, UserMetadataAreKeptWithTheBlock) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), "a", "--user-metadata", "session 7"}, "1").code, 0);
  EXPECT_EQ(run({"put", shm_locator(), "b", "--user-metadata", "hex:00ff"}, "1").code, 0);
  EXPECT_EQ(run({"put", shm_locator(), "c"}, "1").code, 0);
  const auto blocks = json_of(run({"ls", shm_locator(), "--json"}))["blocks"];
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0]["user_metadata"], "session 7");
  EXPECT_EQ(blocks[1]["user_metadata"], "hex:00ff");
  EXPECT_FALSE(blocks[2].contains("user_metadata"));
  EXPECT_FALSE(blocks[0].contains("attributes"));
  const Outcome longer =
      run({"put", shm_locator(), "d", "--user-metadata", std::string(513, 'u')}, "1");
  EXPECT_EQ(longer.code, 2);
  EXPECT_NE(longer.err.find("--user-metadata has 513 bytes"), std::string::npos) << longer.err;
}

TEST_F(BlockCommands, GetDescribesTheFileInJson) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, "value");
  const auto json = json_of(run({"get", shm_locator(), "k", "-o", path("f"), "--json"}));
  EXPECT_EQ(json["key"], "k");
  EXPECT_EQ(json["size_bytes"], 5);
  EXPECT_EQ(json["file"], path("f"));
  EXPECT_EQ(run({"get", shm_locator(), "k", "--json"}).code, 2);
}

TEST_F(BlockCommands, AnEmptyNameIsNotADefault) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, "value");
  EXPECT_EQ(run({"ls", shm_locator(), "--namespace", ""}).code, 1);
  for (const char* command : {"get", "rm", "put"})
    EXPECT_NE(run({command, shm_locator(), "k", "--namespace", ""}, "v").code, 0) << command;
  const Outcome get = run({"get", shm_locator(), "k", "-o", ""});
  EXPECT_EQ(get.code, 2);
  EXPECT_EQ(get.out, "");
  EXPECT_NE(get.err.find("--output"), std::string::npos) << get.err;
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "value");
}

TEST_F(BlockCommands, AMinusIsStandardOutput) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, "value");
  const Outcome get = shell("cd " + folder_.string() + " && $B get " + shm_locator() + " k -o -");
  EXPECT_EQ(get.out, "value");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_EQ(run({"get", shm_locator(), "k", "-o", "-", "--json"}).code, 2);
}

TEST_F(BlockCommands, AFullDiskLeavesTheOldFileAsItIs) {
  write("value", all_bytes(3'000'000));
  create(shm_locator());
  ASSERT_EQ(run({"put", shm_locator(), "k", path("value")}).code, 0);
  run({"put", shm_locator(), "short"}, "new");
  const Outcome outcome = shell("cd " + folder_.string() + " && p=" + shm_locator() + R"sh( &&
    unshare -m true 2> /dev/null || { echo skip; exit; }
    unshare -m /bin/sh -c '
      mkdir disk && mount -t tmpfs -o size=1M none disk && head -c 90000 value > disk/old
      head -c 90000 value > expected
      $0 get $1 k -o disk/old; echo $?; cmp disk/old expected
      $0 get $1 k -o disk/new; echo $?; ls disk
      ln -s new disk/link; $0 get $1 k -o disk/link; echo $?; test -h disk/link && echo kept
      rm -f disk/new disk/link
      $0 get $1 short -o disk/old; echo $?; cat disk/old' $B $p 2> err)sh");
  if (outcome.out == "skip\n") GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(outcome.out, "3\n3\nold\n3\nkept\n0\nnew");
  EXPECT_NE(read("err").find("cannot write disk/old: No space left"), std::string::npos)
      << read("err");
}

TEST_F(BlockCommands, AFileSystemNeedNotTakeSpaceInAdvance) {
  write("value", all_bytes(100'000));
  create(shm_locator());
  ASSERT_EQ(run({"put", shm_locator(), "k", path("value")}).code, 0);
  const Outcome outcome = shell("cd " + folder_.string() + " && p=" + shm_locator() + R"sh( &&
    unshare -m true 2> /dev/null || { echo skip; exit; }
    unshare -m /bin/sh -c '
      mkdir disk && mount -t ramfs none disk || { echo skip; exit; }
      for old in 0 1 500000; do
        head -c $old /dev/zero > disk/file; $0 get $1 k -o disk/file; echo $?; cmp disk/file value
      done
      $0 get $1 k -o disk/new; echo $?; cmp disk/new value' $B $p)sh");
  if (outcome.out == "skip\n") GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(outcome.out, "0\n0\n0\n0\n") << outcome.err;
}

TEST_F(BlockCommands, WhatIsTypedIsNeverDropped) {
  create(shm_locator());
  const auto put = [&](const Arguments& more) {
    Arguments all = {"put", shm_locator(), "k", "--namespace", "n"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all, std::string(8192, 'v'));
  };
  for (const Arguments& option :
       {Arguments{"--channels", "64"}, Arguments{"--value-channels", "64"},
        Arguments{"--layers", "1"}, Arguments{"--heads", "1"}, Arguments{"--block-tokens", "8"},
        Arguments{"--tokens-first"}, Arguments{"--rope-base", "10000"}}) {
    Arguments all = {"--number", "bytes"};
    all.insert(all.end(), option.begin(), option.end());
    const Outcome refused = put(all);
    EXPECT_EQ(refused.code, 2) << option[0] << refused.out;
    EXPECT_NE(refused.err.find(option[0]), std::string::npos) << refused.err;
  }
  ASSERT_EQ(put({"--compress", "dense", "--number", "bf16", "--channels", "64"}).code, 0);
  ASSERT_EQ(run({"rm", shm_locator(), "k", "--namespace", "n"}).code, 0);
  for (const Arguments& other : {Arguments{"--compress", "none"}, Arguments{"--compress", "fast"},
                                 Arguments{"--number", "bytes"}}) {
    const Outcome refused = put(other);
    EXPECT_EQ(refused.code, 3) << other[1] << refused.out;
    EXPECT_NE(refused.err.find(other[1]), std::string::npos) << refused.err;
    EXPECT_EQ(run({"get", shm_locator(), "k", "--namespace", "n"}).code, 1) << "it was stored";
  }
  EXPECT_EQ(put({}).code, 0);
}

TEST_F(BlockCommands, KeysAreOneTo512Bytes) {
  create(shm_locator());
  EXPECT_EQ(run({"put", shm_locator(), std::string(512, 'k')}, "v").code, 0);
  EXPECT_EQ(run({"get", shm_locator(), std::string(512, 'k')}).out, "v");
  for (const char* command : {"put", "get", "rm"}) {
    const Outcome over = run({command, shm_locator(), std::string(513, 'k')}, "v");
    EXPECT_EQ(over.code, 2) << command;
    EXPECT_NE(over.err.find("513 bytes"), std::string::npos) << over.err;
    EXPECT_EQ(run({command, shm_locator(), ""}, "v").code, 2) << command;
  }
}

TEST_F(BlockCommands, ValuesThatNoPoolTakesAreNamed) {
  create(shm_locator());
  const Outcome empty = run({"put", shm_locator(), "k", "-"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_NE(empty.err.find("standard input is empty"), std::string::npos) << empty.err;
  write("huge", "");
  std::filesystem::resize_file(path("huge"), (1ull << 30) + 1);  // sparse
  const Outcome huge = run({"put", shm_locator(), "k", path("huge")});
  EXPECT_EQ(huge.code, 2);
  EXPECT_NE(huge.err.find("huge is longer"), std::string::npos) << huge.err;
  write("large", all_bytes(40 << 20));  // more than the pool
  const Outcome large = run({"put", shm_locator(), "k", path("large")});
  EXPECT_NE(large.code, 0);
  EXPECT_NE(large.err.find("'k'"), std::string::npos) << large.err;
  const Outcome missing = run({"put", shm_locator(), "k", path("missing")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_NE(missing.err.find("missing"), std::string::npos);
  EXPECT_EQ(run({"pool", "check", shm_locator(), "--payload"}).code, 0);
}

TEST_F(BlockCommands, AFullPoolRefusesAndKeepsItsBlocks) {
  create(shm_locator(), "16M", {"--no-evict"});
  write("value", all_bytes(1 << 20));
  int stored = 0;
  Outcome put;
  while ((put = run({"put", shm_locator(), "k" + std::to_string(stored), path("value")})).code ==
         0) {
    ASSERT_LT(++stored, 17);
  }
  EXPECT_EQ(put.code, 3);
  EXPECT_NE(put.err.find("no space"), std::string::npos) << put.err;
  EXPECT_GE(stored, 13);
  for (int i = 0; i < stored; ++i) {
    EXPECT_EQ(run({"get", shm_locator(), "k" + std::to_string(i)}).out, all_bytes(1 << 20));
  }
  EXPECT_GE(json_of(run({"pool", "info", shm_locator(), "--json"}))["counters"]["no_space"], 1);
}

TEST_F(BlockCommands, AnOutputThatCannotBeWrittenIsAnError) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, all_bytes(100000));
  EXPECT_EQ(run({"get", shm_locator(), "k", "-o", path("no/such")}).code, 3);
  EXPECT_EQ(run({"get", shm_locator(), "k", "-o", "/dev/full"}).code, 3);
  const Outcome full = shell("$B get " + shm_locator() + " k > /dev/full");
  EXPECT_EQ(full.code, 3);
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
  // One that would go on says so, and ends; not twice.
  const Outcome serving = shell("$B device pci " + path("card") + " > /dev/full");
  EXPECT_EQ(serving.code, 3);
  EXPECT_EQ(serving.err, "bowhead: cannot write to standard output: No space left on device\n");
}

TEST_F(BlockCommands, AReaderThatGoesAwayIsNotAnError) {
  create(shm_locator());
  run({"put", shm_locator(), "k"}, all_bytes(2'000'000));
  const Outcome outcome =
      shell("{ $B get " + shm_locator() + " k; echo code $? >&2; } | head -c 1 > /dev/null");
  EXPECT_EQ(outcome.err, "code 0\n");
}

// The payload of a sparse pool on a full filesystem; the pages that open touches exist.
TEST_F(BlockCommands, AMediumThatFailsIsNamedWithTheBytesAndTheCause) {
  const Outcome outcome = shell("cd " + folder_.string() + R"sh( &&
    unshare -m true 2> /dev/null || { echo skip; exit; }
    unshare -m /bin/sh -e -c '
      mkdir disk && mount -t tmpfs -o size=40M none disk && p=file:$PWD/disk/pool
      $0 pool create $p --size 32M > /dev/null
      head -c 1000000 /dev/zero > value && $0 put $p k value > /dev/null
      payload=$($0 pool info $p --json | sed -n "s/.*\"payload_bytes\": \([0-9]*\).*/\1/p")
      fallocate --punch-hole -o $((33554432 - payload)) -l $payload disk/pool
      cat /dev/zero > disk/rest 2> /dev/null || true
      for command in "put $p another value" "get $p k -o /dev/null" "pool check $p --payload" \
          "replay --pool $p --requests 5"; do
        code=0; $0 $command > out 2>&1 || code=$?
        echo "$code $command: $(tail -n 1 out)"
      done' $B)sh");
  if (outcome.out == "skip\n") GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(line.starts_with("3 ")) << line;
    EXPECT_NE(line.find("/disk/pool"), std::string::npos) << line;
    EXPECT_NE(line.find("cannot be read or stored (its filesystem is full"), std::string::npos)
        << line;
  }
  EXPECT_EQ(count, 4) << outcome.out << outcome.err;
}

/// Daemons and badly written cron jobs run commands this way. A file that took the number of a
/// stream would get what the command prints: here the pool, or the file that a value is copied to.
TEST_F(BlockCommands, WithoutStandardStreamsNothingIsPrintedIntoAFile) {
  create(file_locator(), "32M", {"--hosts", "2"});
  write("value", std::string(100'000, 'v'));
  ASSERT_EQ(run({"put", file_locator(), "k", path("value"), "--host", "0"}).code, 0);
  for (const char* streams :
       {"<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    for (const char* command :
         {"get {} k --host 0", "get {} no --host 0", "rm {} no --host 1",
          "get {} k -o copy --host 0", "pool info {} --host 0 --json", "ls {}", "pool check {}"}) {
      shell(fmt::format("cd {} && $B {} {}", folder_.string(),
                        fmt::format(fmt::runtime(command), file_locator()), streams));
    }
    const Outcome check = run({"pool", "check", file_locator(), "--payload"});
    EXPECT_EQ(check.code, 0) << streams << "\n" << check.out << check.err;
    EXPECT_EQ(read("copy"), read("value")) << streams;
  }
}

}  // namespace
}  // namespace bowhead::cli_test
