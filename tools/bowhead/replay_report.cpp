// SPDX-License-Identifier: Apache-2.0
// Rates are bytes divided by the time spent in the pool's own calls; the time that a worker spends
// making and comparing content is reported apart.
#include "tools/bowhead/replay_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bowhead/json.h"
#include "tools/program/machine.h"
#include "tools/program/text.h"
#include "tools/program/version.h"

namespace bowhead::cli {
namespace {

using replay::EngineStats;
using replay::LatencyHistogram;
using replay::ReplayReport;

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

double gb_per_s(uint64_t bytes, uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

// Sums of each worker's speed in the pool's calls: the speed of all if they did nothing else.
struct Throughput {
  double out = 0;
  double in = 0;
};
Throughput throughput(const ReplayReport& report) {
  Throughput sum;
  for (const EngineStats& worker : report.workers) {
    sum.out += gb_per_s(worker.bytes_out, worker.get.sum_ns);
    sum.in += gb_per_s(worker.bytes_in, worker.put.sum_ns);
  }
  return sum;
}

Json latency_json(const LatencyHistogram& histogram) {
  return {{"count", histogram.count},
          {"p50_ns", histogram.quantile_ns(500)},
          {"p99_ns", histogram.quantile_ns(990)},
          {"p999_ns", histogram.quantile_ns(999)},
          {"max_ns", histogram.max_ns}};
}

Json workers_json(const ReplayReport& report) {
  Json workers = Json::array();
  for (const EngineStats& worker : report.workers) {
    workers.push_back({{"requests", worker.requests},
                       {"out_gb_per_s", gb_per_s(worker.bytes_out, worker.get.sum_ns)},
                       {"in_gb_per_s", gb_per_s(worker.bytes_in, worker.put.sum_ns)},
                       {"bytes_out", worker.bytes_out},
                       {"bytes_in", worker.bytes_in},
                       {"get_ns", worker.get.sum_ns},
                       {"put_ns", worker.put.sum_ns},
                       {"lookup_ns", worker.lookup.sum_ns},
                       {"touch_ns", worker.touch.sum_ns},
                       {"content_ns", worker.content_ns}});
  }
  return workers;
}

Json wrong_json(const EngineStats& total) {
  Json wrong = Json::array();
  for (uint64_t i = 0; i < std::min<uint64_t>(total.wrong_blocks, EngineStats::kWrongKept); ++i) {
    wrong.push_back({{"id", total.wrong[i].id},
                     {"wrong_bytes", total.wrong[i].wrong_bytes},
                     {"first_offset", total.wrong[i].first_offset}});
  }
  return wrong;
}

Json limit_json(const replay::CopyLimit& limit) {
  Json kinds;
  for (const auto& kind : limit.kinds) kinds[copy_kind_name(kind.kind)] = kind.gb_per_s;
  return {{"gb_per_s", limit.best_gb_per_s},
          {"kinds", kinds},
          {"rounds", limit.rounds},
          {"footprint_bytes", limit.footprint_bytes},
          {"beyond_cache", limit.beyond_cache}};
}

Json self_test_json(const replay::SelfTestReport& test) {
  return {{"passed", test.passed()},
          {"flipped_injected", test.flipped_injected},
          {"flipped_found", test.flipped_found},
          {"flipped_delivered", test.delivered_wrong},
          {"foreign_injected", test.foreign_injected},
          {"foreign_found", test.foreign_found}};
}

Json setup_json(const ReplayRun& run) {
  const Machine machine = this_machine();
  return {{"command", run.command_line},
          {"version", built_version()},
          {"commit", machine.commit},
          {"cpu", machine.cpu},
          {"cores", machine.cpus.size()},
          {"pool", run.options.locator},
          {"media", run.report.before.media_description},
          {"trace", run.trace.source},
          {"content", run.content.description()},
          {"workers", run.options.workers},
          {"hosts", std::max(1u, run.options.hosts)},
          {"flush", run.report.before.flush},
          {"block_bytes", run.options.block_bytes},
          {"block_tokens", replay::kBlockTokens}};
}

Json hits_json(const ReplayReport& report) {
  const EngineStats& total = report.total;
  const auto rate = [&](uint64_t hits) { return percent(hits, total.blocks_asked) / 100; };
  return {{"requests", total.requests},
          {"wall_s", report.wall_s},
          {"blocks_asked", total.blocks_asked},
          {"blocks_hit", total.blocks_hit},
          {"blocks_put", total.blocks_put},
          {"blocks_lost", total.blocks_lost},
          {"blocks_no_space", total.blocks_no_space},
          {"blocks_busy", total.blocks_busy},
          {"blocks_hit_elsewhere", report.after.hits_elsewhere - report.before.hits_elsewhere},
          {"blocks_warm", report.warm_blocks},
          {"blocks_evicted", report.after.evictions - report.before.evictions},
          {"blocks_damaged", report.after.damaged - report.before.damaged},
          {"capacity_blocks", report.capacity_blocks},
          {"footprint_bytes", report.footprint_bytes},
          {"hit_rate", rate(total.blocks_hit)},
          {"hit_rate_lru", rate(report.lru_hits)},
          {"hit_rate_best", rate(report.best_hits)},
          {"hit_rate_infinite", rate(report.infinite_hits)},
          {"tokens_asked", total.tokens_asked},
          {"tokens_saved", total.tokens_saved}};
}

Json speed_json(const ReplayReport& report) {
  const EngineStats& total = report.total;
  const Throughput rate = throughput(report);
  const double limit = report.copy_limit.best_gb_per_s;
  return {{"bytes_out", total.bytes_out},
          {"bytes_in", total.bytes_in},
          {"out_gb_per_s", rate.out},
          {"in_gb_per_s", rate.in},
          {"out_of_limit", limit == 0 ? 0 : rate.out / limit},
          {"in_of_limit", limit == 0 ? 0 : rate.in / limit},
          {"copy_limit", limit_json(report.copy_limit)},
          {"latency",
           {{"lookup", latency_json(total.lookup)},
            {"get", latency_json(total.get)},
            {"put", latency_json(total.put)},
            {"touch", latency_json(total.touch)}}},
          {"per_worker", workers_json(report)}};
}

double per(double sum, uint64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }
double per(uint64_t sum, uint64_t count) { return per(static_cast<double>(sum), count); }

/// Who searches on modelled hardware.
const char* place_text(uint64_t by_device, uint64_t all) {
  return by_device == all ? "device" : by_device == 0 ? "host" : "both";
}

Json steps_json(const ReplayRun& run) {
  const replay::StepStats& steps = run.report.steps;
  Json modelled = Json::array();
  for (size_t i = 0; i < device::profiles().size(); ++i) {
    const auto& of = steps.modelled[i];
    modelled.push_back({{"profile", device::profiles()[i].name},
                        {"searches", place_text(of.searches_device, steps.searches)},
                        {"us", per(of.ns, steps.steps) / 1e3},
                        {"us_without", per(of.ns_without, steps.steps) / 1e3},
                        {"link_bytes", per(of.link_bytes, steps.steps)},
                        {"link_bytes_without", per(of.link_bytes_without, steps.steps)}});
  }
  return {{"model", run.options.model->name},
          {"captured", run.options.model->captured},
          {"k", run.options.decode.k},
          {"exact", run.options.decode.bytes_per_token == 0},
          {"bytes_per_token", run.options.decode.bytes_per_token},
          {"steps", steps.steps},
          {"steps_lapsed", steps.steps_lapsed},
          {"steps_damaged", steps.steps_damaged},
          {"requests", steps.requests_served},
          {"requests_shortened", steps.requests_shortened},
          {"requests_without", steps.requests_without},
          {"context_tokens", per(steps.context_tokens, steps.steps)},
          {"context_bytes", per(steps.context_bytes, steps.steps)},
          {"read_bytes", per(steps.read_bytes, steps.steps)},
          {"restore_bytes_per_token",
           steps.output_tokens == 0 ? Json() : Json(per(steps.restore_bytes, steps.output_tokens))},
          {"recall", per(steps.recall, steps.queries)},
          {"mass", per(steps.mass, steps.queries)},
          {"wrong_answers", steps.wrong_answers},
          {"computed_device", steps.computed_device},
          {"computed_process", steps.computed_process},
          {"measured", latency_json(steps.time)},
          {"modelled", modelled}};
}

std::string found_text(const ReplayRun& run) {
  const replay::StepStats& steps = run.report.steps;
  const replay::StepOptions& options = run.options.decode;
  const std::string how = options.bytes_per_token == 0
                              ? std::string("exactly")
                              : fmt::format("from {} bytes a token", options.bytes_per_token);
  return fmt::format(
      "{} tokens for each query, {}; recall {:.4f}, attention mass {:.4f}{}", options.k, how,
      per(steps.recall, steps.queries), per(steps.mass, steps.queries),
      run.options.model->captured ? "" : " (synthetic tensors: they say nothing about a model)");
}

std::string modelled_text(const ReplayRun& run) {
  const replay::StepStats& steps = run.report.steps;
  Table table({"MODELLED DEVICE", "SEARCHES", ">BYTES OVER LINK", ">WITHOUT", ">SHARE", ">US",
               ">WITHOUT", ">FASTER"});
  for (size_t i = 0; i < device::profiles().size(); ++i) {
    const auto& of = steps.modelled[i];
    const double bytes = per(of.link_bytes, steps.steps),
                 without = per(of.link_bytes_without, steps.steps);
    table.add({device::profiles()[i].name, place_text(of.searches_device, steps.searches),
               human_bytes(static_cast<uint64_t>(bytes)),
               human_bytes(static_cast<uint64_t>(without)),
               fmt::format("{:.4f}", without == 0 ? 0 : bytes / without),
               fmt::format("{:.1f}", per(of.ns, steps.steps) / 1e3),
               fmt::format("{:.1f}", per(of.ns_without, steps.steps) / 1e3),
               fmt::format("{:.1f} x", of.ns == 0 ? 0 : of.ns_without / of.ns)});
  }
  return table.text() +
         "per generated token; times are modelled, not measured. Without: all keys and values come "
         "over the link for each token\n";
}

std::string steps_text(const ReplayRun& run) {
  const replay::StepStats& steps = run.report.steps;
  const auto bytes_per_step = [&](uint64_t sum) {
    return human_bytes(static_cast<uint64_t>(per(sum, steps.steps)));
  };
  Fields fields;
  fields.add("decode steps",
             fmt::format("{}, with {:.0f} tokens of context on average ({}); {} abandoned because "
                         "blocks were evicted, {} because one was damaged",
                         grouped(steps.steps), per(steps.context_tokens, steps.steps),
                         bytes_per_step(steps.context_bytes), grouped(steps.steps_lapsed),
                         grouped(steps.steps_damaged)));
  fields.add("of requests",
             fmt::format("{}; {} with leading blocks of the prompt only, and {} "
                         "without steps: the pool did not have the others",
                         grouped(steps.requests_served), grouped(steps.requests_shortened),
                         grouped(steps.requests_without)));
  if (steps.steps == 0) return fields.text();
  fields.add("found", found_text(run));
  fields.add("computed",
             fmt::format("{} times by the device, {} times in the workers; {} wrong",
                         grouped(steps.computed_device), grouped(steps.computed_process),
                         grouped(steps.wrong_answers)));
  fields.add("read", fmt::format("{} of blocks per step; median time on this machine {}",
                                 bytes_per_step(steps.read_bytes),
                                 duration_text(steps.time.quantile_ns(500))));
  std::string text = fields.text() + modelled_text(run);
  if (steps.output_tokens > 0)
    text += fmt::format(
        "If the prompt fits into GPU memory, restoring it once costs {} per generated token\n",
        human_bytes(static_cast<uint64_t>(per(steps.restore_bytes, steps.output_tokens))));
  return text;
}

std::string hits_text(const ReplayReport& report, bool with_steps) {
  const uint64_t asked = report.total.blocks_asked;
  Table table({"HIT RATE", ">BLOCKS", ">PERCENT"});
  const auto row = [&](const char* name, uint64_t hits) {
    table.add({name, grouped(hits), fmt::format("{:.2f}", percent(hits, asked))});
  };
  row("this pool", report.total.blocks_hit);
  // The pool counts the leases of decode steps, too.
  if (report.after.hosts.size() > 1 && !with_steps)
    row("  of other hosts", report.after.hits_elsewhere - report.before.hits_elsewhere);
  row("ideal LRU", report.lru_hits);
  row("best possible", report.best_hits);
  row("endless cache", report.infinite_hits);
  return table.text();
}

std::string speed_text(const ReplayReport& report) {
  const Throughput rate = throughput(report);
  const double limit = report.copy_limit.best_gb_per_s;
  Table table({"SPEED", ">GB/s", ">OF LIMIT", ">BYTES", ">P50", ">P99", ">P99.9", ">MAX"});
  const auto row = [&](const char* name, double speed, uint64_t bytes,
                       const LatencyHistogram& latency) {
    const bool moves = speed > 0;
    table.add({name, moves ? fmt::format("{:.2f}", speed) : "",
               moves && limit > 0 ? fmt::format("{:.2f}", speed / limit) : "",
               moves ? human_bytes(bytes) : "", duration_text(latency.quantile_ns(500)),
               duration_text(latency.quantile_ns(990)), duration_text(latency.quantile_ns(999)),
               duration_text(latency.max_ns)});
  };
  row("get", rate.out, report.total.bytes_out, report.total.get);
  row("put", rate.in, report.total.bytes_in, report.total.put);
  row("lookup of a prefix", 0, 0, report.total.lookup);
  row("touch of a request", 0, 0, report.total.touch);
  std::string limits;
  for (const auto& kind : report.copy_limit.kinds) {
    limits += fmt::format("{}{} {:.2f}", limits.empty() ? "" : ", ", copy_kind_name(kind.kind),
                          kind.gb_per_s);
  }
  return table.text() +
         fmt::format(
             "limit: plain copies of such blocks by {} cores at once, {} GB/s (best of {} "
             "rounds over {}{})\n",
             report.workers.size(), limits, report.copy_limit.rounds,
             human_bytes(report.copy_limit.footprint_bytes),
             report.copy_limit.beyond_cache ? "" : ", which the caches may hold");
}

std::string workers_text(const ReplayReport& report) {
  Table table({">WORKER", ">REQUESTS", ">GET GB/s", ">PUT GB/s", ">IN POOL CALLS", ">IN CONTENT"});
  for (size_t i = 0; i < report.workers.size(); ++i) {
    const EngineStats& worker = report.workers[i];
    table.add({std::to_string(i + 1), grouped(worker.requests),
               fmt::format("{:.2f}", gb_per_s(worker.bytes_out, worker.get.sum_ns)),
               fmt::format("{:.2f}", gb_per_s(worker.bytes_in, worker.put.sum_ns)),
               duration_text(worker.get.sum_ns + worker.put.sum_ns + worker.lookup.sum_ns +
                             worker.touch.sum_ns),
               duration_text(worker.content_ns)});
  }
  return table.text();
}

std::string verdict_text(const ReplayRun& run) {
  const ReplayReport& report = run.report;
  const EngineStats& total = report.total;
  std::string text = fmt::format(
      "verified {}: {} wrong bytes in {} blocks; {} blocks damaged in the pool\n",
      exact_bytes(total.bytes_verified), grouped(total.wrong_bytes), grouped(total.wrong_blocks),
      grouped(report.after.damaged - report.before.damaged));
  for (uint64_t i = 0; i < std::min<uint64_t>(total.wrong_blocks, 8); ++i) {
    text += fmt::format("WRONG: block {}: {} bytes, the first at offset {}\n", total.wrong[i].id,
                        grouped(total.wrong[i].wrong_bytes), total.wrong[i].first_offset);
  }
  if (run.options.self_test) {
    const auto& test = report.self_test;
    text += fmt::format(
        "self-test {}: {} of {} flipped blocks found and {} delivered; {} of {} blocks of wrong "
        "content found\n",
        test.passed() ? "passed" : "FAILED", test.flipped_found, test.flipped_injected,
        test.delivered_wrong, test.foreign_found, test.foreign_injected);
  }
  return text;
}

std::string setup_text(const ReplayRun& run) {
  const ReplayReport& report = run.report;
  const EngineStats& total = report.total;
  Fields fields;
  fields.add("trace", run.trace.source);
  fields.add("requests", fmt::format("{}, with {} blocks of {} tokens, {} of them distinct",
                                     grouped(total.requests), grouped(total.blocks_asked),
                                     replay::kBlockTokens, grouped(run.trace.distinct_blocks)));
  fields.add("blocks", fmt::format("{} each ({} in the pool); content: {}",
                                   exact_bytes(run.options.block_bytes),
                                   human_bytes(report.footprint_bytes), run.content.description()));
  fields.add("pool", fmt::format("{}: holds {} such blocks", report.before.locator,
                                 grouped(report.capacity_blocks)));
  fields.add("time", fmt::format("{:.1f} s with {} workers, {:.0f} requests/s", report.wall_s,
                                 report.workers.size(),
                                 static_cast<double>(total.requests) / report.wall_s));
  fields.add("prefill saved", fmt::format("{} of {} tokens, {:.2f} %", grouped(total.tokens_saved),
                                          grouped(total.tokens_asked),
                                          percent(total.tokens_saved, total.tokens_asked)));
  fields.add("stored",
             fmt::format("{} blocks; {} evicted, {} lost between lookup and get, {} found "
                         "no space, {} found the pool busy",
                         grouped(total.blocks_put),
                         grouped(report.after.evictions - report.before.evictions),
                         grouped(total.blocks_lost), grouped(total.blocks_no_space),
                         grouped(total.blocks_busy)));
  return fields.text();
}

}  // namespace

bool replay_good(const ReplayRun& run) {
  return run.report.total.wrong_blocks == 0 && run.report.steps.wrong_answers == 0 &&
         (!run.options.self_test || run.report.self_test.passed());
}

std::string replay_json(const ReplayRun& run) {
  Json json = setup_json(run);
  json["good"] = replay_good(run);
  json["blocks_distinct"] = run.trace.distinct_blocks;
  json.update(hits_json(run.report));
  json.update(speed_json(run.report));
  const EngineStats& total = run.report.total;
  json["bytes_verified"] = total.bytes_verified;
  json["wrong_blocks"] = total.wrong_blocks;
  json["wrong_bytes"] = total.wrong_bytes;
  json["wrong"] = wrong_json(total);
  if (run.options.model != nullptr) json["decode_steps"] = steps_json(run);
  if (run.options.self_test) json["self_test"] = self_test_json(run.report.self_test);
  return json_text(json, 2) + "\n";
}

std::string replay_text(const ReplayRun& run) {
  const ReplayReport& report = run.report;
  std::string text = setup_text(run);
  if (report.before.blocks > 0) {
    text += fmt::format(
        "note: the pool held {} blocks before, {} of them of this content; the "
        "models assume an empty one\n",
        grouped(static_cast<uint64_t>(report.before.blocks)), grouped(report.warm_blocks));
  }
  text += "\n" + hits_text(report, run.options.model != nullptr) + "\n" + speed_text(report) +
          "\n" + workers_text(report) + "\n";
  if (run.options.model != nullptr) text += steps_text(run) + "\n";
  return text + verdict_text(run);
}

}  // namespace bowhead::cli
