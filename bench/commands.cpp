// SPDX-License-Identifier: Apache-2.0
#include "bench/commands.h"

#include <filesystem>
#include <memory>

#include "bench/codec_bench.h"
#include "bench/device_bench.h"
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
A figure is the median of several rounds. Beside it is the limit of the machine, measured in the
same rounds. Answers are compared before anything is timed. Run nothing else meanwhile.

Examples:
  bowhead-bench pool --row copy --row alloc
  bowhead-bench codec --data kv
  bowhead-bench ndp --json
  bowhead-bench gpu --cpu-device --quick

Exit codes: 0 measured, whatever the figures; 1 wrong bytes or a wrong answer; 2 wrong usage; 3
refused by the pool or the system; 128+n ended by signal n. `bowhead bench` runs this program. Each
command has its own help: bowhead-bench COMMAND --help.)";

void add_rounds(CLI::App& command, uint32_t& rounds) {
  add_number(command, "--rounds", rounds, "Rounds of each timed figure, 5 to 1000", {5, 1000})
      ->capture_default_str();
}

void add_pool(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("pool", "Speed, space and recovery of the pool");
  auto options = std::make_shared<PoolBenchOptions>();
  command->add_option("--pool", options->locator,
                      "Locator of its pools, created one after another (default: memory)");
  command->add_option("--row", options->rows, "Only these rows of the table; may be repeated")
      ->check(CLI::IsMember(pool_bench_rows()));
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, as a smoke test: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(
      "\nExamples:\n  bowhead-bench pool\n"
      "  bowhead-bench pool --row copy --row alloc --json");
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_pool_bench(*options); }; });
}

constexpr const char* kCodecFooter = R"(
Divides keys and values into blocks of 64 KiB and 4 KiB, and has each codec compress every block on
its own, on one core, with data that exceeds the caches. Every block is compared before anything is
timed; then all codecs take turns in every round, beside plain copies of the same blocks.

Ratios count all headers. Speeds are GB/s of uncompressed bytes. "of copy" is the ratio to the speed
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
  command->add_flag("--quick", options->quick, "Small and short, as a smoke test: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kCodecFooter);
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_codec_bench(*options); }; });
}

constexpr const char* kRecallFooter = R"(
Attention reads the keys that score highest. For each query, this command finds the 64 keys with the
highest scores, and counts how many of them it still finds if only the first bit-planes of the keys
are read; with the bits read per value, headers and parameters included.

DIR has a folder for each set of captured tensors, with a meta.json (docs/bench.md); sets without
queries are skipped.

Example:
  bowhead-bench recall --data kv)";

void add_recall(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command =
      app.add_subcommand("recall", "Recall of the best keys from the first bit-planes of frames");
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
The memory accumulates that mass, so that no score leaves it. This command runs the captured queries
in order and, for the last quarter of them, compares the output of attention to the kept tokens with
that of attention to all: the mean of |difference| / |output|. A token that was not kept earlier can
still be chosen.

DIR has a folder for each set of captured tensors, with a meta.json (docs/bench.md); sets without
keys, values and queries of bf16 are skipped.

Example:
  bowhead-bench keep --data kv)";

void add_keep(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("keep", "Error of attention if few tokens of a head are kept");
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
Scores of keys and the best of them, attention, digests and chosen rows, over blocks of 512 tokens
that exceed the caches: on one core, and on all with their answers merged. Answers are compared
with the scalar ones before anything is timed.

The limit is the speed of the same cores in the same rounds at reading that memory or, if lower, at
the multiplications that the queries need. GB/s count keys, and values where they are read.

Examples:
  bowhead-bench ndp
  bowhead-bench ndp --json --rounds 15)";

void add_ndp(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("ndp", "Scores, the best keys and attention near memory");
  auto options = std::make_shared<NdpBenchOptions>();
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, as a smoke test: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kNdpFooter);
  options->command = command_line;
  command->callback([options, &action] { action = [options] { return run_ndp_bench(*options); }; });
}

constexpr const char* kDeviceFooter = R"(
A device (bowhead device serve) runs in a process of its own, on one CPU, and its client on another:
the cost of a command without its work, a request beside the same one in the process, a small
request behind large ones, and the time until a device that was killed has a successor.

Examples:
  bowhead-bench device
  bowhead-bench device --json)";

void add_device(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("device", "Commands to a device, beside the calling process");
  auto options = std::make_shared<DeviceBenchOptions>();
  command->add_option("--pool", options->locator,
                      "Locator of its pools, created one after another (default: memory)");
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, as a smoke test: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(kDeviceFooter);
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return run_device_bench(*options); }; });
}

constexpr const char* kGpuFooter = R"(
Blocks of 16 tokens go from a paged cache in GPU memory to a pool in shared memory, and back: with
pages that are one run of bytes for each layer's K and V, and with separate rows. The restored bytes
are compared before anything is timed. The limit is one copy of as many bytes between the same GPU
memory and pinned memory, by the same driver in the same rounds.

--cpu-device runs it on the CPU device instead: those figures say nothing about a GPU.

Examples:
  bowhead-bench gpu
  bowhead-bench gpu --cpu-device --quick)";

void add_gpu(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("gpu", "Transfers from GPU memory to a pool, and back");
  auto options = std::make_shared<GpuBenchOptions>();
  command->add_flag("--cpu-device", options->cpu_device, "Use the CPU device instead of a GPU");
  cli::refuse_old_option(*command, "--twin", "--cpu-device");
  add_rounds(*command, options->rounds);
  command->add_flag("--quick", options->quick, "Small and short, as a smoke test: no result");
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
  add_device(app, action, command_line);
  add_gpu(app, action, command_line);
}

int run_command_line(int argc, const char* const* argv) {
  // "bowhead bench" if that command runs this program: help and reports show the typed name.
  const std::string name = std::filesystem::path(argv[0]).filename();
  CLI::App app{"Measures this build of Bowhead on this machine", name};
  Action action;
  add_all_commands(app, action, cli::typed_line(name, argc, argv));
  return cli::run_program(app, action, argc, argv);
}

}  // namespace bowhead::bench
