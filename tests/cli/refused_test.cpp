// SPDX-License-Identifier: Apache-2.0
// What the system refuses: paths that cannot be read, threads, processes, memory. Each command says
// so in one line and ends with an exit code of its own; no exception ends it.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

namespace fs = std::filesystem;

class Refused : public CliTest {
 protected:
  static void expect_one_line(const Outcome& outcome) {
    EXPECT_TRUE(outcome.code == 2 || outcome.code == 3) << outcome.code << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("bowhead: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  /// The script, by a user whose processes the system limits: not root.
  static Outcome as_user(const std::string& script) {
    return shell(R"sh(
      u=; [ "$(id -u)" != 0 ] || u='setpriv --reuid 61234 --regid 61234 --clear-groups'
      $u prlimit --nproc=9 "$B" --version > /dev/null 2>&1 || { echo skip; exit; }
      )sh" + script);
  }
};

TEST_F(Refused, EveryPathThatCannotBeReadIsNamed) {
  create(shm_locator());
  ASSERT_EQ(run({"put", shm_locator(), "k"}, "v").code, 0);
  write("raw", std::string(8192, 'r'));
  const Arguments loops = {"loop", "in/x/k.bf16.bin", "in/x/meta.json"};
  const Arguments folders = {"folder", "in/y/k.bf16.bin", "in/y/meta.json"};
  for (const char* folder : {"in/x", "in/y"}) fs::create_directories(path(folder));
  for (const std::string& loop : loops) fs::create_symlink(path(loop), path(loop));
  for (const std::string& folder : folders) fs::create_directory(path(folder));
  const std::vector<Arguments> commands = {
      {"put", shm_locator(), "k2", "PATH"},
      {"get", shm_locator(), "k", "-o", "PATH"},
      {"replay", "PATH", "--pool", shm_locator()},
      {"replay", "--pool", shm_locator(), "--requests", "1", "--kv", "PATH"},
      {"codec", "PATH", "--number", "bf16", "--shape", "64,64", "--quick"},
      {"codec", path("raw"), "--number", "bf16", "--shape", "64,64", "--quick", "--plot", "PATH"},
      {"bench", "codec", "--quick", "--data", "PATH"},
      {"bench", "recall", "--data", "PATH"},
      {"pool", "info", "file:PATH"},
      {"pool", "create", "file:PATH", "--size", "32M"},
      {"pool", "create", "file:PATH", "--size", "32M", "--force"},
      {"pool", "repair", "file:PATH"}};
  // /proc/self/mem opens, even for root, and cannot be read at its begin.
  for (const std::string& bad : {path("loop"), path("folder"), std::string("/proc/self/mem"),
                                 path("loop/below"), path("raw/below")}) {
    for (Arguments command : commands) {
      for (std::string& word : command) {
        if (const size_t at = word.find("PATH"); at != std::string::npos) word.replace(at, 4, bad);
      }
      if (bad.starts_with("/proc") && command[0] != "put" && command[0] != "codec" &&
          command[1] != bad)
        continue;  // it can be written
      SCOPED_TRACE(testing::PrintToString(command));
      const Outcome outcome = run(command);
      expect_one_line(outcome);
      EXPECT_NE(outcome.err.find(bad), std::string::npos) << outcome.err;
    }
  }
  // What lies in a folder that a command reads.
  for (const char* folder : {"in/x", "in/y", "in"}) {
    const Outcome replay =
        run({"replay", "--pool", shm_locator(), "--requests", "1", "--kv", path(folder)});
    expect_one_line(replay);
    EXPECT_NE(replay.err.find(path(folder)), std::string::npos) << replay.err;
    const Outcome bench = run({"bench", "codec", "--quick", "--data", path(folder)});
    expect_one_line(bench);
    EXPECT_NE(bench.err.find(path(folder)), std::string::npos) << bench.err;
  }
  // Nor is a set left out beside one that can be read.
  fs::create_directories(path("sets/good"));
  write("sets/good/meta.json",
        R"({"files":{"k.bf16.bin":{"tensor":"k","dtype":"bf16","shape":[1,1,64,64]}}})");
  write("sets/good/k.bf16.bin", std::string(8192, 'k'));
  const Arguments with_sets = {"bench", "codec", "--quick", "--data", path("sets")};
  EXPECT_EQ(run(with_sets).code, 0) << run(with_sets).err;
  fs::create_directories(path("sets/bad"));
  fs::create_symlink(path("sets/bad/meta.json"), path("sets/bad/meta.json"));
  const Outcome bench = run(with_sets);
  expect_one_line(bench);
  EXPECT_NE(bench.err.find(path("sets/bad")), std::string::npos) << bench.err;
  EXPECT_EQ(run({"get", shm_locator(), "k"}).out, "v");
}

TEST_F(Refused, NoThreadAndNoProcessCanBeStarted) {
  fs::permissions(folder_, fs::perms::all);
  const Outcome outcome = as_user("cd " + folder_.string() + R"sh( || exit
    one=file:$PWD/one two=file:$PWD/two
    export ASAN_OPTIONS=detect_leaks=0 # LeakSanitizer needs a thread of its own
    echo value > v; head -c 8192 v /dev/zero > raw 2> /dev/null
    $u "$B" pool create $one --size 16M > /dev/null
    $u "$B" pool create $two --size 32M --hosts 2 > /dev/null
    $u "$B" put $one k v > /dev/null; $u "$B" put $two k v --host 0 > /dev/null
    check() {
      code=0; $u prlimit --nproc=$1 timeout 60 "$B" $2 > out 2> err < v || code=$?
      echo "$code $(wc -l < err) $2: $(head -n 1 err)"
    }
    for n in 2 3; do
      for p in $one $two; do
        for c in "put $p other v" "get $p k" "get $p k --host 0" "ls $p" "ls $p --host 0" \
            "rm $p other" "pool info $p --host 0" "pool check $p --host 0" \
            "pool recompress $p" "pool leave $p --host 0" "pool fence $p 1 --host 0" \
            "pool repair $p" "replay --pool $p --requests 9 --block-bytes 4K --workers 8" \
            "replay --pool $p --requests 9 --block-bytes 4K --hosts 2"; do
          check $n "$c"
        done
      done
      check $n "litmus $two --host A --wait 0.2"
      check $n "codec raw --number bf16 --shape 64,64 --quick"
    done
    for p in $one $two; do
      "$B" pool check $p --payload > /dev/null || echo "bad $p"
      "$B" get $p k | cmp - v || echo "lost in $p"
    done)sh");
  if (outcome.out == "skip\n") GTEST_SKIP() << "the binary cannot be run by another user";
  EXPECT_EQ(outcome.err, "");
  std::istringstream lines(outcome.out);
  int count = 0, refused = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const int code = std::atoi(line.c_str());
    EXPECT_TRUE(code >= 0 && code <= 3) << line;
    EXPECT_TRUE(line.find(" 0 ") == 1 || line.find(" 1 ") == 1) << line;
    refused += line.find("cannot start") != std::string::npos;
    EXPECT_TRUE(code != 3 || line.find(": bowhead: ") != std::string::npos) << line;
  }
  EXPECT_EQ(count, 60) << outcome.out;
  EXPECT_GE(refused, 10) << outcome.out;
}

TEST_F(Refused, NoMemoryIsLeftForAWorker) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space of their own";
#endif
  int done = 0, refused = 0, of_a_worker = 0;
  for (int mb = 32; mb <= 640 && done == 0; mb += 16) {
    const Outcome outcome =
        shell("prlimit --as=" + std::to_string(mb << 20) + " \"$B\" replay --pool " +
              shm_locator() + " --create 16M --requests 9 --block-bytes 4K --workers 2");
    if (outcome.code == 0) {
      ++done;
      continue;
    }
    SCOPED_TRACE(mb);
    if (outcome.code == 127) continue;  // not even the program
    expect_one_line(outcome);
    ++refused;
    of_a_worker += outcome.err.find("worker ") != std::string::npos;
    EXPECT_EQ(run({"pool", "info", shm_locator()}).code, 3) << "the pool that was made is there";
  }
  EXPECT_EQ(done, 1);
  EXPECT_GT(refused, 0);
  EXPECT_GT(of_a_worker, 0);
}

}  // namespace
}  // namespace bowhead::cli_test
