// SPDX-License-Identifier: Apache-2.0
// bowhead replay: the command line and report of the replay.
#include <bowhead/format/common.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "tools/bowhead/cli.h"
#include "tools/bowhead/replay/generator.h"
#include "tools/bowhead/replay/model_data.h"
#include "tools/bowhead/replay/replay.h"
#include "tools/bowhead/replay_report.h"
#include "tools/program/numbers.h"

namespace bowhead::cli {
namespace {

struct Arguments {
  std::string trace_path;
  std::string kv_directory;
  std::string workload = "mixed";
  uint64_t requests = 0;
  uint64_t create_bytes = 0;
  bool keep = false;
  bool json = false;
  replay::ReplayOptions options;
  std::string command_line;
  std::string profile = "none";
  uint32_t channels = 64;
  bool ndp = false;
};

constexpr uint64_t kGeneratedRequests = 24000;

// Reads or generates the trace before any pool is touched.
Result<replay::Trace> make_trace(const Arguments& arguments) {
  if (!arguments.trace_path.empty()) {
    return replay::read_trace(arguments.trace_path, arguments.requests);
  }
  const auto workload = arguments.workload == "multiturn" ? replay::Workload::MULTITURN
                        : arguments.workload == "agent"   ? replay::Workload::AGENT
                                                          : replay::Workload::MIXED;
  return replay::generate_trace(workload, arguments.options.seed,
                                arguments.requests == 0 ? kGeneratedRequests : arguments.requests);
}

// With the ending signals blocked: run_replay() takes them.
int replay_in_pool(const Arguments& arguments, replay::ReplayOptions options,
                   const replay::Trace& trace, const replay::Content& content) {
  ProgressLine progress;
  options.progress = progress.callback();
  const auto report = replay::run_replay(trace, content, options);
  progress.clear();
  if (!report) return fail(report.error(), options.locator);
  if (report->interrupted_by != 0) {
    const bool stays = arguments.create_bytes == 0 || arguments.keep;
    say(fmt::format("interrupted after {} of {} requests; the workers have ended{}",
                    report->total.requests, trace.requests.size(),
                    stays ? " and the pool is intact" : "; the pool that --create made goes"));
    return 128 + report->interrupted_by;
  }
  const ReplayRun about{trace, content, options, *report, arguments.command_line};
  print(arguments.json ? replay_json(about) : replay_text(about));
  return replay_good(about) ? kOk : kDamage;
}

Result<std::optional<replay::ModelData>> model_of(const Arguments& arguments) {
  using Model = std::optional<replay::ModelData>;
  if (!arguments.ndp) return Model();
  if (arguments.kv_directory.empty()) return Model(replay::make_model_data());
  auto data = replay::read_model_data(arguments.kv_directory);
  if (!data) return data.error();
  return Model(*std::move(data));
}

Result<replay::Content> content_of(const Arguments& arguments, const replay::ModelData* model) {
  const uint64_t seed = arguments.options.seed;
  if (model != nullptr)
    return replay::Content::from_blocks(model->blocks, model->block_bytes(), seed,
                                        "blocks-1 of " + model->name);
  if (arguments.kv_directory.empty()) return replay::Content::generated(seed);
  return replay::Content::from_tensors(arguments.kv_directory, seed);
}

replay::ReplayOptions options_of(const Arguments& arguments, const replay::ModelData* model) {
  replay::ReplayOptions options = arguments.options;
  options.workers = std::max(options.workers, options.hosts);
  options.values.profile = *profile_named(arguments.profile);
  if (model != nullptr) {
    options.model = model;
    options.block_bytes = model->block_bytes();
    options.values.layout = model->layout;
  } else if (options.values.profile != CompressionProfile::NONE) {
    options.values.layout =
        keys_layout(NumberFormat::BF16, static_cast<uint16_t>(arguments.channels));
  }
  return options;
}

int run(const Arguments& arguments) {
  if (arguments.options.decode.bytes_per_token > 0 && arguments.profile == "none")
    return fail({Status::INVALID_ARGUMENT,
                 "--budget is for compressed blocks: give --compress another profile than none"});
  if (arguments.options.hosts != 0 && arguments.options.host != kAnyHost)
    return fail({Status::INVALID_ARGUMENT, "--hosts acts as hosts 0 and up: omit --host"});
  const auto trace = make_trace(arguments);
  if (!trace) return fail(trace.error());
  const auto data = model_of(arguments);
  if (!data) return fail(data.error());
  const replay::ModelData* const model = *data ? &**data : nullptr;
  const auto content = content_of(arguments, model);
  if (!content) return fail(content.error());
  const replay::ReplayOptions options = options_of(arguments, model);

  // From here on a signal ends the run cleanly, while the pool is created and while it is used.
  Interruption interruption;
  if (arguments.create_bytes == 0) return replay_in_pool(arguments, options, *trace, *content);
  CreateOptions create;
  create.size_bytes = arguments.create_bytes;
  create.hosts = std::max(1u, options.hosts);
  auto made = MadePool::make(options.locator, create, interruption);
  if (!made && interruption.came()) return interruption.exit_code();
  if (!made) return fail(made.error(), arguments.options.locator);
  const int code = replay_in_pool(arguments, options, *trace, *content);
  if (arguments.keep) made->keep();
  const auto destroyed = made->destroy();
  if (destroyed) return code;
  fail(destroyed.error(), arguments.options.locator);
  return code == kOk ? kEnvironment : code;
}

constexpr const char* kFooter = R"(
Requests come from TRACE (one JSON object per line: timestamp, input_length, output_length,
hash_ids; - is standard input), or are generated from a seed. Each worker is a process that acts as
an inference engine: it looks up the longest cached prefix of a request, restores those blocks,
compares every byte with the content regenerated from the block's id, and stores the missing blocks.
The report shows the hit rate beside that of an ideal LRU and of the best possible cache of the same
size, and the speed beside that of plain copies. docs/replay.md explains it in full.

With --ndp, each request is followed by tokens that are generated while keys and values stay in the
pool. The report shows recall and attention mass against exact scores, and the bytes over the link
and the time on modelled hardware, with and without the device. `bowhead device serve` may run; if
not, one more process is the device.

Exit code 1 if a wrong byte or a wrong answer was returned, or if the self-test missed an injected
fault.

Examples:
  bowhead replay --pool shm:try --create 1G --workers 2
  bowhead replay conversation.jsonl --pool shm:demo --workers 8 --block-bytes 256K --json
  bowhead replay --pool shm:try --create 1G --generate agent --requests 5000 --self-test
  bowhead replay --pool shm:try --create 1G --hosts 4
  bowhead replay --pool shm:try --create 1G --kv ./tensors --compress dense --channels 64
  bowhead replay --pool shm:try --create 2G --ndp --requests 300
  bowhead replay --pool shm:try --create 2G --ndp --kv ./tensors --compress fast --budget 32

With --compress, the hit rate is compared with caches of this pool's size without compression: the
difference is the gain of compression.)";

void add_ndp_options(CLI::App& command, Arguments& a, CLI::Option& block_bytes,
                     CLI::Option& channels, CLI::Option& compress) {
  auto* ndp = command
                  .add_flag("--ndp", a.ndp,
                            "Also generate tokens with keys and values that stay in the pool: its "
                            "device finds the best keys, and hands over their values; blocks hold "
                            "the tensors in --kv, or synthetic ones")
                  ->excludes(&block_bytes)
                  ->excludes(&channels);
  add_number(command, "--steps", a.options.decode.steps,
             "Tokens to generate for each request, 1 to 1000 (default 1)", {1, 1000})
      ->needs(ndp);
  add_number(command, "-k,--best", a.options.decode.k, "Keys to find for each query (default 64)",
             {1, ndp::TopK::kMaxK})
      ->needs(ndp);
  add_real(command, "--budget", a.options.decode.bytes_per_token,
           "Read about this many bytes per token and estimate scores, of compressed blocks "
           "(default: exact search)",
           {0, 1e6})
      ->needs(ndp)
      ->needs(&compress);
}

}  // namespace

void add_replay_command(CLI::App& app, Action& action, const std::string& command_line) {
  auto* command = app.add_subcommand("replay", "Run the requests of a trace against a pool");
  auto a = std::make_shared<Arguments>();
  a->command_line = command_line;
  auto* trace = command->add_option("trace", a->trace_path, "Trace to replay (default: generated)");
  command->add_option("--pool", a->options.locator, kLocatorHelp)->required();
  add_host_option(*command);
  add_number(*command, "--workers", a->options.workers, "Worker processes, 1 to 256", {1, 256})
      ->capture_default_str();
  add_number(
      *command, "--hosts", a->options.hosts,
      "Act as this many hosts, 1 to 64, which share only the pool: worker w is host w "
      "modulo this number. The pool must be made for as many; stores are published by flushes",
      {1, BH_HOSTS_MAX});
  auto* block_bytes = add_size(*command, "--block-bytes", a->options.block_bytes,
                               "Bytes of a 512-token block, 1 to 1G (64K)", {1, uint64_t{1} << 30});
  command
      ->add_option("--generate", a->workload,
                   "Workload to generate: multiturn, agent, or mixed (default: mixed)")
      ->check(CLI::IsMember({"multiturn", "agent", "mixed"}))
      ->excludes(trace);
  add_number(
      *command, "--requests", a->requests,
      "Stop after this many requests, at most 100 million (default: the whole trace, or 24000 "
      "generated requests)",
      {1, 100'000'000});
  add_number(*command, "--seed", a->options.seed, "Seed of generated requests and content", {})
      ->capture_default_str();
  command->add_option("--kv", a->kv_directory,
                      "Folder of tensors (k.bf16.bin, v.bf16.bin) from which content is made");
  auto* compress = command
                       ->add_option("--compress", a->profile,
                                    "Compress blocks, as bf16: fast, balanced, or dense")
                       ->check(CLI::IsMember({"none", "fast", "balanced", "dense"}));
  auto* channels = add_number(*command, "--channels", a->channels,
                              "Channels of a token in --kv, 1 to 65535, for --compress", {1, 65535})
                       ->needs(compress)
                       ->capture_default_str();
  add_ndp_options(*command, *a, *block_bytes, *channels, *compress);
  auto* create = add_size(*command, "--create", a->create_bytes,
                          "Create the pool with this size, and destroy it afterwards");
  command->add_flag("--keep", a->keep, "Keep the pool that --create made")->needs(create);
  command->add_flag("!--no-prefault", a->options.prefault,
                    "Do not touch the pages of the pool in the background");
  command->add_flag("--self-test", a->options.self_test,
                    "Afterwards damage and replace stored blocks; each must be found");
  command->add_flag("--json", a->json, "Report as JSON");
  command->footer(kFooter);
  command->callback([a, &action] {
    action = [a] {
      a->options.host = chosen_host();
      return run(*a);
    };
  });
}

}  // namespace bowhead::cli
