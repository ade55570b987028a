// SPDX-License-Identifier: Apache-2.0
#include "bench/commands.h"

#include <filesystem>
#include <memory>

#include "bench/codec_bench.h"
#include "bench/gpu_bench.h"
#include "bench/keep_bench.h"
#include "bench/ndp_bench.h"
#include "bench/pool_bench.h"
#include "bench/recall_bench.h"
#include "tools/program/numbers.h"

namespace bowhead::bench {
namespace {

using cli::Action;
using cli::add_number;

constexpr const char* kFooter = R"(
A figure is the median of several rounds. Beside it stands what the machine can do at best, measured
in the same rounds. Answers are compared before anything is timed. Run nothing else meanwhile.

Examples:
  bowhead-bench pool --row copy --row alloc
  bowhead-bench codec --data kv
  bowhead-bench ndp --json
  bowhead-bench gpu --cpu-device --quick

Exit codes: 0 measured, whatever the figures; 1 wrong bytes or a wrong answer; 2 wrong usage; 3 the
pool or the system refuses; 128+n ended by signal n. `bowhead bench` runs this program. Each command
has its own help: bowhead-bench COMMAND --help.)";

void add_rounds(CLI::App& command, uint32_t& rounds) {
  add_number(command, "--rounds", rounds, "Rounds of each timed figure, 5 to 1000", {5, 1000})
      ->capture_default_str();
}

void add_pool(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("pool", "Speed, space and recovery of the pool");
  auto options = std::make_shared<PoolBenchOptions>();
  command->add_option("--pool", options->locator,
                      "Where its pools are made, one after another (default: memory)");
  command->add_option("--row", options->rows, "Only these rows of the table; may be repeated")
      ->check(CLI::IsMember(pool_bench_rows()));
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, to see that it runs: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(
      "\nExamples:\n  bowhead-bench pool\n"
      "  bowhead-bench pool --row copy --row alloc --json");
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_pool_bench(*options); }; });
}

constexpr const char* kCodecFooter = R"(
Cuts keys and values into blocks of 64 KiB and 4 KiB, and has each codec compress every block on its
own, on one core, with data that no cache holds. Every block is compared before anything is timed;
then all codecs take turns in every round, beside plain copies of the same blocks.

Ratios count all headers. Speeds are GB/s of uncompressed bytes. "of copy" is the speed beside that
of the best plain copy, round by round.

DIR has a folder for each set of captured tensors, with a meta.json (docs/bench.md). Without it the
tensors are synthetic, and so are their ratios.

Examples:
  bowhead-bench codec --data kv
  bowhead-bench codec --json)";

void add_codec(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command =
      app.add_subcommand("codec", "Ratio and speed of compression, of frames and of other codecs");
  auto options = std::make_shared<CodecBenchOptions>();
  command->add_option("--data", options->data,
                      "Folder of captured keys and values (default: synthetic ones)");
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, to see that it runs: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kCodecFooter);
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_codec_bench(*options); }; });
}

constexpr const char* kRecallFooter = R"(
Attention reads the keys that score highest. This finds for each query the 64 keys that it scores
highest, and how many of them it still finds among the scores of keys of which only the first
bit-planes were read; with the bits that this takes per value, heads and parameters included.

DIR has a folder for each set of captured tensors, with a meta.json (docs/bench.md); sets without
queries are left alone.

Example:
  bowhead-bench recall --data kv)";

void add_recall(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command =
      app.add_subcommand("recall", "Which keys are found from the first bit-planes of frames");
  auto options = std::make_shared<RecallBenchOptions>();
  command->add_option("--data", options->data, "Folder of captured keys and queries")->required();
  command->add_flag("--json", options->json, "One JSON line per number of planes");
  command->footer(kRecallFooter);
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_recall_bench(*options); }; });
}

constexpr const char* kKeepFooter = R"(
A model that may keep only some tokens of each head can keep those that got most attention so far.
The memory accumulates that mass, so that no score leaves it. This lets the captured queries look in
turn, and compares for the last quarter of them the output of attention to the kept tokens with that
to all: |difference| / |output|, the mean. What was not kept earlier could still be chosen.

DIR has a folder for each set of captured tensors, with a meta.json (docs/bench.md); sets without
keys, values and queries of bf16 are left alone.

Example:
  bowhead-bench keep --data kv)";

void add_keep(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command =
      app.add_subcommand("keep", "What attention loses where few tokens of a head are kept");
  auto options = std::make_shared<KeepBenchOptions>();
  command->add_option("--data", options->data, "Folder of captured keys, values and queries")
      ->required();
  command->add_flag("--json", options->json, "One JSON line per choice and budget");
  command->footer(kKeepFooter);
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_keep_bench(*options); }; });
}

constexpr const char* kNdpFooter = R"(
Scores of keys and the best of them, attention, digests and chosen rows, computed over blocks of 512
tokens that no cache holds: on one core, and on all with their answers merged. Answers are compared
with the scalar ones before anything is timed.

The limit is what the same cores reach in the same rounds: reading that memory, or, where that is
less, multiplying as often as the queries make it necessary. GB/s are of keys, and of values where
they are read.

Examples:
  bowhead-bench ndp
  bowhead-bench ndp --json --rounds 15)";

void add_ndp(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("ndp", "Scores, the best keys and attention near memory");
  auto options = std::make_shared<NdpBenchOptions>();
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, to see that it runs: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kNdpFooter);
  options->command = command_line;
  command->callback([options, &action] { action = [options] { return run_ndp_bench(*options); }; });
}

constexpr const char* kGpuFooter = R"(
Blocks of 16 tokens go from a paged cache in GPU memory to a pool in shared memory, and back: pages
that are one run of bytes for each layer's K and V, and rows apart from each other. What comes back
is compared before anything is timed. The limit is one copy of as many bytes between the same GPU
memory and pinned memory, by the same driver in the same rounds.

--cpu-device runs it on the CPU device instead: those figures say nothing about a GPU.

Examples:
  bowhead-bench gpu
  bowhead-bench gpu --cpu-device --quick)";

void add_gpu(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("gpu", "From GPU memory to a pool, and back");
  auto options = std::make_shared<GpuBenchOptions>();
  command->add_flag("--cpu-device", options->cpu_device, "Use the CPU device instead of a GPU");
  cli::refuse_old_option(*command, "--twin", "--cpu-device");
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, to see that it runs: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kGpuFooter);
  options->command = command_line;
  command->callback([options, &action] { action = [options] { return run_gpu_bench(*options); }; });
}

}  // namespace

void add_all_commands(CLI::App& app, Action& action, const std::string& command_line) {
  app.require_subcommand(1);
  app.footer(kFooter);
  add_pool(app, action, command_line);
  add_codec(app, action, command_line);
  add_recall(app, action, command_line);
  add_keep(app, action, command_line);
  add_ndp(app, action, command_line);
  add_gpu(app, action, command_line);
}

int run_command_line(int argc, const char* const* argv) {
  // "bowhead bench" if that command runs this program: help and reports show what was typed.
  const std::string name = std::filesystem::path(argv[0]).filename();
  CLI::App app{"Measures this build of Bowhead on this machine", name};
  Action action;
  add_all_commands(app, action, cli::typed_line(name, argc, argv));
  return cli::run_program(app, action, argc, argv);
}

}  // namespace bowhead::bench
