// SPDX-License-Identifier: Apache-2.0
// Every pair of options of every command of bowhead and bowhead-bench, on tiny pools: the exit code
// is documented, an error is reported, --json parses, no pool is left behind. Some runs of each
// command succeed, so that not all are refused for one reason. The options come from the commands
// themselves, so a new one is covered automatically; one that takes a text needs a sample below.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "bench/commands.h"
#include "tools/bowhead/commands.h"

namespace bowhead::cli_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr double kSecondsMax = 120 * BOWHEAD_TEST_TIMEOUT_FACTOR;  // one run, on a busy machine

/// The command that runs the program bowhead-bench.
const Words kBench = {"bench"};

/// A command with no commands below it.
struct Leaf {
  Words path;
  const CLI::App* app;
};

/// The leaf in GoogleTest's output and test names.
std::string name_of(const Leaf& leaf) {
  std::string name;
  for (const std::string& word : leaf.path) name += (name.empty() ? "" : "_") + word;
  return name;
}
void PrintTo(const Leaf& leaf, std::ostream* out) { *out << name_of(leaf); }

void collect(const CLI::App& app, Words path, std::vector<Leaf>& leaves) {
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  if (path == kBench && below.empty()) return;  // the program's commands take its place
  if (below.empty()) leaves.push_back({path, &app});
  for (const CLI::App* command : below) {
    Words longer = path;
    longer.push_back(command->get_name());
    collect(*command, longer, leaves);
  }
}

struct Programs {
  CLI::App bowhead, bench;
  cli::Action action;

  Programs() {
    cli::add_all_commands(bowhead, action, "");
    bench::add_all_commands(bench, action, "");
  }
};

const Programs& programs() {
  static const Programs all;
  return all;
}

std::vector<Leaf> all_leaves() {
  std::vector<Leaf> leaves;
  collect(programs().bowhead, {}, leaves);
  collect(programs().bench, kBench, leaves);
  return leaves;
}

/// Samples of options, by "command option" or "option"; POOL, NEW and FOLDER stand for objects that
/// a test created. Empty: kAlways gives the option to every command that has it.
const std::map<std::string, std::string> kSamples = {
    {"locator", "POOL"},
    {"pool_create locator", "NEW"},
    {"key", "k"},
    {"put file", "FOLDER/value"},
    {"codec file", "FOLDER/t.npy"},
    {"trace", "FOLDER/trace"},
    {"replay --pool", "POOL"},
    {"doctor --pool", "POOL"},
    {"bench_pool --pool", "NEW"},
    {"--namespace", "default"},
    {"ns_rm name", "default"},
    {"--user-metadata", "text"},
    {"topk keys", "k"},
    {"--like", "1"},
    {"--queries", "FOLDER/queries"},
    {"--output", "FOLDER/out"},
    {"--kv", "FOLDER/kv"},
    {"--data", "FOLDER/data"},
    {"--plot", "FOLDER/plot.svg"},
    {"litmus --host", "A"},
    {"--host", "0"},
    {"slot", "1"},
    {"media", "NEW"},
    {"set", "1"},
    {"device", "mem0"},
    {"socket", "FOLDER/socket"},
    {"device_serve --inject", "drop:100"},
    {"device_pci --inject", "drop:100"},
    {"--profile", "m2ndp"},
    {"--inject", "64"},
    {"--clear", "64"},
    {"--threads", "2"},
    {"bench_device --pool", "NEW"},
    {"--size", "16M"},
    {"--max-size", "32M"},
    {"--create", "16M"},
    {"--min-block", "8K"},
    {"--block-bytes", "4K"},
    {"--rounds", "5"},
    {"--dead-ms", "1000"},
    {"--evict-high", "90"},
    {"--rope-base", "10000"},
    {"--mode", "0640"},
    {"--shape", "64,64"},
    {"--outer", "2"},  // renamed, and refused with the new name
    {"--twin", "1"},   // the same
};

/// Options that keep a command short.
const std::map<std::string, Words> kAlways = {
    {"replay", {"--requests", "3"}},
    {"litmus", {"--wait", "0.2"}},
    {"bench_pool", {"--quick", "--row", "space"}},
    {"bench_codec", {"--quick"}},
    {"bench_ndp", {"--quick"}},
    {"bench_gpu", {"--quick", "--cpu-device"}},
    {"bench_device", {"--quick"}},
    {"codec", {"--quick"}},
    {"devices_setup", {"--dry-run"}},  // a test changes nothing on a host with CXL memory
};

/// Commands that cannot succeed here: they need another host, dead or running, CXL memory, a pool
/// that can grow, or a device.
const std::set<std::string> kNeedOthers = {"pool_fence",  "litmus",      "devices_setup",
                                           "pool_grow",   "pool_drain",  "pool_shrink",
                                           "device_ping", "device_info", "device_poison"};

/// Number of options in one run, for commands that take long; for others each pair has its own run.
const std::map<std::string, size_t> kTogether = {
    {"replay", 6},    {"codec", 4},     {"topk", 4},        {"bench_pool", 9},
    {"bench_ndp", 9}, {"bench_gpu", 9}, {"bench_codec", 9}, {"bench_device", 9},
};

std::string long_name(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames()[0];
  if (!option.get_snames().empty()) return "-" + option.get_snames()[0];
  return option.get_name();
}

struct Result {
  int code = -1;  ///< 128 + n: ended by signal n; -1: had to be killed
  std::string out, err;
};

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// A command that only a signal ends.
bool is_endless(const Words& words) {
  return words[0] == "host" ||
         (words[0] == "device" && (words[1] == "serve" || words[1] == "pci")) ||
         std::find(words.begin(), words.end(), "--watch") != words.end();
}

class Pairs : public testing::TestWithParam<Leaf> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("pairs-" + std::to_string(getpid()));
    fs::create_directories(folder_ / "kv");
    // A private /dev/shm, where everything left behind is from these tests.
    private_shm_ = unshare(CLONE_NEWNS) == 0 &&
                   mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=2G") == 0;
    write("value", std::string(8192, 'v'));
    write("queries", std::string(64 * 4, '\0'));  // a float32 query of 64 channels
    std::string header = "{'descr': '<f2', 'fortran_order': False, 'shape': (64, 64), }";
    header.resize(117, ' ');
    write_capture("data/set", 128);
    write_capture("kv", 1024);
    write("t.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
                       std::string(64 * 64 * 2, '1'));
    write(
        "trace",
        "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
        "{\"timestamp\": 1, \"input_length\": 1024, \"output_length\": 5, \"hash_ids\": [1, 3]}\n");
  }
  void TearDown() override {
    for (const std::string& name : pools()) fs::remove("/dev/shm/" + name);
    fs::remove_all(folder_);
  }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  /// A set of captured tensors: tokens 112 to 127 query all.
  void write_capture(const std::string& folder, size_t tokens) const {
    fs::create_directories(folder_ / folder);
    write(folder + "/meta.json", fmt::format(R"({{"files": {{
            "k.bf16.bin": {{"tensor": "k", "dtype": "bf16", "shape": [1, 1, {0}, 8]}},
            "v.bf16.bin": {{"tensor": "v", "dtype": "bf16", "shape": [1, 1, {0}, 8]}},
            "q.bf16.bin": {{"tensor": "q", "dtype": "bf16", "shape": [1, 1, 16, 8]}}}}}})",
                                             tokens));
    write(folder + "/k.bf16.bin", std::string(tokens * 8 * 2, '\x3f'));
    write(folder + "/v.bf16.bin", std::string(tokens * 8 * 2, '\x3e'));
    write(folder + "/q.bf16.bin", std::string(16 * 8 * 2, '\x3d'));
    std::string positions;
    for (char at = 112; positions.size() < 16 * 4; ++at) positions += {at, 0, 0, 0};
    write(folder + "/qpos.u32.bin", positions);
  }
  /// Names of all objects where pools in memory lie, as far as they can be from these tests.
  std::set<std::string> pools() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("bowhead-") && (private_shm_ || name.find(tag_) != std::string::npos))
        names.insert(name);
    }
    return names;
  }

  Result run(const Words& words) const;
  void prepare(const std::string& hosts);
  std::string filled_in(std::string text) const;
  Words typed(const CLI::Option& option) const;
  void check(const Words& words, bool existing);

  const std::string tag_ = "pairs-" + std::to_string(getpid());
  fs::path folder_;
  bool private_shm_ = false;
  uint64_t succeeded_ = 0;
};

/// Runs in a forked child, which is cheaper than a program; SIGTERM stops a run that would not end.
Result Pairs::run(const Words& words) const {
  const std::string out = folder_ / "stdout", err = folder_ / "stderr";
  // `bowhead bench ARGUMENTS` and `bowhead-bench ARGUMENTS` are the same.
  const bool measures = words[0] == kBench[0];
  Words all = words;
  if (measures)
    all[0] = "bowhead-bench";
  else
    all.insert(all.begin(), "bowhead");
  const auto program = measures ? bench::run_command_line : cli::run_command_line;
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    std::vector<const char*> argv;
    for (const std::string& word : all) argv.push_back(word.c_str());
    const int code = program(static_cast<int>(argv.size()), argv.data());
    std::cout.flush();
    std::fflush(nullptr);
    _exit(code);
  }
  const bool endless = is_endless(words);
  const auto start = std::chrono::steady_clock::now();
  Result result;
  for (int status = 0, rounds = 0; result.code < 0; ++rounds) {
    if (waitpid(child, &status, WNOHANG) == child) {
      result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (endless && waited.count() > 0.3) kill(child, SIGTERM);
    if (waited.count() > kSecondsMax) {
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(rounds < 100 ? 1 : 10));
  }
  result.out = content_of(out);
  result.err = content_of(err);
  return result;
}

/// POOL with a block under "k", and nothing else.
void Pairs::prepare(const std::string& hosts) {
  for (const std::string& name : pools()) {
    if (name != "bowhead-" + tag_) fs::remove("/dev/shm/" + name);
  }
  const std::string pool = filled_in("POOL");
  if (run({"get", pool, "k", "-o", folder_ / "out"}).code == 0) return;
  const Result made = run(
      {"pool", "create", pool, "--size", "16M", "--force", "--hosts", hosts, "--settle-ms", "1"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Result stored = run(
      {"put", pool, "k", folder_ / "value", "--host", "0", "--number", "bf16", "--channels", "64"});
  ASSERT_EQ(stored.code, 0) << stored.err;
}

std::string Pairs::filled_in(std::string text) const {
  const std::pair<const char*, std::string> names[] = {
      {"POOL", "shm:" + tag_}, {"NEW", "shm:" + tag_ + "-new"}, {"FOLDER", folder_}};
  for (const auto& [name, value] : names) {
    if (const size_t at = text.find(name); at != std::string::npos)
      text.replace(at, std::string(name).size(), value);
  }
  return text;
}

/// An option as typed, with a value if it takes one.
Words Pairs::typed(const CLI::Option& option) const {
  const std::string name = long_name(option);
  Words words;
  if (!option.get_positional()) words.push_back(name);
  if (option.get_items_expected_max() == 0) return words;
  const std::string type = option.get_type_name();
  const std::map<std::string, std::string> by_type = {{"SIZE", "2M"}, {"N", "2"}, {"X", "0.5"}};
  std::string value;
  if (const auto found = kSamples.find(name_of(GetParam()) + " " + name); found != kSamples.end())
    value = found->second;
  else if (const auto named = kSamples.find(name); named != kSamples.end())
    value = named->second;
  else if (const auto typical = by_type.find(type); typical != by_type.end())
    value = typical->second;
  else if (const size_t set = type.find('{'); set != std::string::npos)
    value = type.substr(set + 1, type.find_first_of(",}-", set) - set - 1);
  EXPECT_FALSE(value.empty()) << name << " takes a text (" << type << "): give a sample of it here";
  words.push_back(filled_in(value));
  return words;
}

void expect_json(const std::string& text) {
  if (nlohmann::json::accept(text)) return;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

void Pairs::check(const Words& words, bool existing) {
  std::string line = "bowhead";
  for (const std::string& word : words) line += " " + word;
  SCOPED_TRACE(line);
  const auto given = [&](const char* option) {
    return std::find(words.begin(), words.end(), option) != words.end();
  };
  const Result result = run(words);
  ASSERT_NE(result.code, -1) << "it hangs";
  if (result.code == 0) ++succeeded_;
  const bool endless = is_endless(words) && result.code == 143;
  EXPECT_TRUE(endless || (result.code >= 0 && result.code <= 3)) << result.code << "\n"
                                                                 << result.out << result.err;
  EXPECT_TRUE(result.code < 2 || endless || result.err.find(": ") != std::string::npos)
      << "no reason is given";
  if (given("--json") && result.code < 2) expect_json(result.out);

  std::set<std::string> expected = {"bowhead-" + tag_};
  if (given("destroy") && result.code == 0) expected.clear();
  const bool creates = given("create");
  if ((creates && result.code == 0) || existing) expected.insert("bowhead-" + tag_ + "-new");
  EXPECT_EQ(pools(), expected) << "pools left behind, or gone\n" << result.err;
}

/// Sets of options such that every pair is in one of them; options that exclude each other get
/// separate sets.
std::vector<std::vector<const CLI::Option*>> rows_of(const std::vector<const CLI::Option*>& options,
                                                     size_t together) {
  const auto exclude = [](const CLI::Option* a, const CLI::Option* b) {
    return a->get_excludes().contains(const_cast<CLI::Option*>(b)) ||
           b->get_excludes().contains(const_cast<CLI::Option*>(a));
  };
  std::set<std::pair<size_t, size_t>> open;
  std::vector<std::vector<const CLI::Option*>> rows = {{}};
  for (size_t i = 0; i < options.size(); ++i) {
    rows.push_back({options[i]});
    for (size_t j = i + 1; j < options.size(); ++j) {
      if (exclude(options[i], options[j]))
        rows.push_back({options[i], options[j]});
      else
        open.insert({i, j});
    }
  }
  if (together > 2) rows.resize(1);  // the larger ones hold the single ones
  while (!open.empty()) {
    std::vector<size_t> row = {open.begin()->first, open.begin()->second};
    for (size_t k = 0; k < options.size() && row.size() < together; ++k) {
      const auto covers = [&](size_t i) { return open.contains(std::minmax(i, k)); };
      const auto clashes = [&](size_t i) { return i == k || exclude(options[i], options[k]); };
      if (std::none_of(row.begin(), row.end(), clashes) &&
          std::any_of(row.begin(), row.end(), covers))
        row.push_back(k);
    }
    rows.emplace_back();
    for (const size_t i : row) {
      rows.back().push_back(options[i]);
      for (const size_t j : row) open.erase({i, j});
    }
  }
  return rows;
}

TEST_P(Pairs, EndAsDocumented) {
  const Leaf& leaf = GetParam();
  const std::string name = name_of(leaf);
  Words base = leaf.path;
  if (const auto always = kAlways.find(name); always != kAlways.end())
    base.insert(base.end(), always->second.begin(), always->second.end());
  std::vector<const CLI::Option*> optional;
  for (const CLI::App* app = leaf.app; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string text = long_name(*option);
      if (text == "--help" || text == "--version" ||
          std::find(base.begin(), base.end(), text) != base.end())
        continue;
      if (app != leaf.app && leaf.app->get_option_no_throw(text) != nullptr) continue;
      if (!option->get_required()) {
        optional.push_back(option);
        continue;
      }
      const Words words = typed(*option);
      base.insert(base.end(), words.begin(), words.end());
    }
  }
  const auto together = kTogether.find(name);
  const auto rows = rows_of(optional, together == kTogether.end() ? 2 : together->second);
  const bool own_pool = std::find(base.begin(), base.end(), filled_in("POOL")) != base.end();
  const bool makes = name == "pool_create";
  for (const char* hosts : {"1", "3"}) {
    if (std::string(hosts) == "3" && !own_pool && !makes) break;
    for (const auto& row : rows) {
      Words words = base;
      std::set<const CLI::Option*> wanted(row.begin(), row.end());
      for (bool grew = true; grew;) {
        const size_t before = wanted.size();
        for (const CLI::Option* option : std::set(wanted)) {
          for (CLI::Option* needed : option->get_needs()) wanted.insert(needed);
        }
        grew = wanted.size() > before;
      }
      for (const CLI::Option* option : optional) {  // positional ones in their order
        if (!wanted.contains(option)) continue;
        const Words more = typed(*option);
        words.insert(words.end(), more.begin(), more.end());
      }
      // Pools are created at an unused locator, and where a pool exists already.
      const bool existing = makes && std::string(hosts) == "3";
      ASSERT_NO_FATAL_FAILURE(prepare(makes ? "1" : hosts));
      if (existing) run({"pool", "create", filled_in("NEW"), "--size", "16M"});
      check(words, existing);
      if (HasFatalFailure()) return;
    }
    fs::remove("/dev/shm/bowhead-" + tag_);
  }
  EXPECT_TRUE(succeeded_ > 0 || kNeedOthers.contains(name)) << "all were refused";
}

void check_examples(const CLI::App& app, const std::string& name) {
  if (name == "bowhead bench") return;  // its help is that of the program bowhead-bench
  EXPECT_NE(app.help().find("\n  " + name), std::string::npos) << app.help();
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    check_examples(*command, name + " " + command->get_name());
}

// Also of a command that only has others below it: its help has an example of one of them.
TEST(Help, HasAnExampleOfTheCommand) {
  check_examples(programs().bowhead, "bowhead");
  check_examples(programs().bench, "bowhead-bench");
}

TEST(Help, ThePageOfTheCommandLineListsEveryCommand) {
  std::ifstream file(BOWHEAD_CLI_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::vector<Leaf> leaves;
  collect(programs().bowhead, {}, leaves);
  for (const Leaf& leaf : leaves) {
    const std::string command = fmt::format("\n    bowhead {} ", fmt::join(leaf.path, " "));
    EXPECT_NE(page.find(command), std::string::npos) << command;
  }
}

INSTANTIATE_TEST_SUITE_P(Commands, Pairs, testing::ValuesIn(all_leaves()),
                         [](const auto& at) { return name_of(at.param); });

}  // namespace
}  // namespace bowhead::cli_test
