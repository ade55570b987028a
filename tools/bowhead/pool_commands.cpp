// SPDX-License-Identifier: Apache-2.0
// bowhead pool create | info | check | repair | recompress | leave | fence | destroy
#include <bowhead/format/common.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "driver-shim/pci_card.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/bowhead/namespace_commands.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

/// One day: a longer time between hosts is a typing error.
constexpr uint64_t kTimeMsMax = 24 * 3600 * 1000;

struct CreateArguments {
  std::string locator;
  CreateOptions options;
  uint32_t evict_high_percent = 98;
  uint32_t evict_low_percent = 0;  ///< 0: the pool's default
  bool no_evict = false;
};

/// If the process that has the pool open is this machine's own PCI function: says so.
Error name_card(Error error, const std::string& locator) {
  if (error.status != Status::IN_USE) return error;
  PoolInfo pool{};
  pool.locator = locator;
  driver::PciCard card(shim::HostFiles(), pool);
  card.seek(/*may_enable=*/false);
  if (!card.serves()) return error;
  return {
      Status::IN_USE,
      "the PCI function of this machine serves this pool, and lets go of it soon after the last "
      "process that has it open: try again in some seconds"};
}

int run_create(const CreateArguments& arguments) {
  CreateOptions options = arguments.options;
  const uint32_t high = arguments.evict_high_percent;
  const uint32_t low = arguments.evict_low_percent;
  if (low > high)
    return fail({Status::INVALID_ARGUMENT,
                 fmt::format("--evict-low {} is above --evict-high {}: give a lower --evict-low",
                             low, high)});
  options.evict_high_permille = arguments.no_evict ? 0 : high * 10;
  options.evict_low_permille = low * 10;
  Interruption interruption;
  ProgressLine progress;
  options.progress = progress.callback();
  options.cancelled = [&] { return interruption.came(); };
  const auto made = Pool::create(arguments.locator, options);
  progress.clear();
  if (made.status() == Status::POOL_EXISTS && !options.replace) {
    return fail({Status::POOL_EXISTS, made.error().message() + " (--force replaces it)"},
                arguments.locator);
  }
  if (!made) {
    const int code = fail(name_card(made.error(), arguments.locator), arguments.locator);
    return made.status() == Status::CANCELLED ? interruption.exit_code() : code;
  }
  // A signal from here on comes too late: the pool exists, and the exit code says so.
  auto pool = open_pool(arguments.locator, {}, /*look=*/true);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  if (info->pool_id != *made) {
    print(fmt::format("created {}; another pool has replaced it since\n", arguments.locator));
    return kOk;
  }
  print(fmt::format("created {}: {}, of which {} hold payload\n", info->locator,
                    exact_bytes(info->size_bytes), exact_bytes(info->payload_bytes)));
  if (options.size_bytes != 0 && info->size_bytes != options.size_bytes) {
    say(fmt::format("{} bytes were requested; the size of a pool is a multiple of 2 MiB",
                    grouped(options.size_bytes)));
  }
  return kOk;
}

void add_create(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("create", "Create a pool");
  auto a = std::make_shared<CreateArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_size(*command, "--size", a->options.size_bytes,
           "Size of the whole pool, such as 4G (devices: all of them by default)");
  add_size(*command, "--max-size", a->options.max_bytes,
           "Size to which the pool can grow later, by `pool grow` (default: it cannot grow)");
  add_number(*command, "--hosts", a->options.hosts, "Hosts that may share the pool, 1 to 64",
             {1, BH_HOSTS_MAX})
      ->capture_default_str();
  add_size(*command, "--extent", a->options.extent_bytes,
           "Unit of ownership, a power of two from 2M to 64M (default: from the size)",
           {2 << 20, 64 << 20});
  add_size(*command, "--min-block", a->options.min_block_bytes,
           "Smallest block, a power of two from 4K to 1M; smaller values occupy as much (default: "
           "16K)",
           {4096, 1 << 20});
  auto* high =
      add_number(*command, "--evict-high", a->evict_high_percent,
                 "Percent of use above which old blocks are evicted (default: 98)", {1, 100});
  auto* low = add_number(*command, "--evict-low", a->evict_low_percent,
                         "Percent of use at which eviction stops (default: 2 below "
                         "--evict-high)",
                         {1, 100});
  command->add_flag("--no-evict", a->no_evict, "Never evict: a full pool answers NO_SPACE")
      ->excludes(high)
      ->excludes(low);
  add_number(*command, "--dead-ms", a->options.times.dead_ms,
             "Several hosts: time without a heartbeat after which a host may be declared dead",
             {1, kTimeMsMax})
      ->capture_default_str();
  add_number(*command, "--settle-ms", a->options.times.settle_ms,
             "Several hosts: time after which a flushed line has reached the memory",
             {1, kTimeMsMax})
      ->capture_default_str();
  add_number(*command, "--reclaim-ms", a->options.times.reclaim_ms,
             "Several hosts: time after which space of a dead host is reused, for verified copies, "
             "even without `pool fence`; 0: never",
             {0, kTimeMsMax})
      ->capture_default_str();
  command
      ->add_option(
          "--mode", a->options.mode,
          "Permissions in octal: 0600 this user only, 0640 the group may read, 0660 the group "
          "may store, 0644 all users may read (default: 0600)")
      ->transform(octal_number(0777))
      ->type_name("MODE");
  command->add_flag("--force", a->options.replace,
                    "Replace what exists at the locator, unless a process has it open");
  command->footer(R"(
Examples:
  bowhead pool create shm:demo --size 4G
  bowhead pool create file:/mnt/pmem/kv --size 512G --extent 64M
  bowhead pool create shm:store --size 1G --no-evict
  bowhead pool create file:/mnt/cxl/kv --size 512G --hosts 8
  bowhead pool create dax:/dev/dax0.0 --hosts 8 --max-size 4T

All memory of the pool is allocated now, so that no later store can fail for lack of it. If the
command is interrupted, it leaves no new pool behind. With --force the old pool stays until the new
one is complete, unless there is no space for both: then the old one is removed first.)");
  command->callback([a, &action] { action = [a] { return run_create(*a); }; });
}

std::string time_text(uint64_t unix_ns) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts));
}

// The slots of hosts that are live and whose heartbeat does not move for some heartbeats.
using Silent = std::set<uint32_t>;

Result<Silent> find_silent(const Pool& pool, const PoolInfo& info) {
  constexpr uint32_t kHeartbeats = 5;
  Silent silent;
  for (const auto& host : info.hosts)
    if (info.times.heartbeat_ms != 0 && host.state == "live") silent.insert(host.slot);
  for (uint32_t i = 0; i < kHeartbeats && !silent.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(info.times.heartbeat_ms));
    const auto now = pool.heartbeats();
    if (!now) return now.error();
    std::erase_if(silent,
                  [&](uint32_t slot) { return (*now)[slot] != info.hosts[slot].heartbeat; });
  }
  return silent;
}

Json sets_json(const PoolInfo& info) {
  Json sets = Json::array();
  for (const PoolInfo::MediaSet& set : info.sets) {
    sets.push_back({{"set", set.number},
                    {"state", set.state},
                    {"locator", set.locator},
                    {"size_bytes", set.bytes},
                    {"payload_bytes", set.payload_bytes},
                    {"why_missing", set.why_missing.empty() ? Json() : Json(set.why_missing)}});
  }
  return sets;
}

Json info_json(const PoolInfo& info, const Usage& usage, const Silent& silent) {
  Json json = {{"locator", info.locator},
               {"pool_id", info.pool_id},
               {"format_version", info.format_version},
               {"created_unix_ns", info.created_unix_ns},
               {"media", {{"kind", info.media_kind}, {"description", info.media_description}}},
               {"flush", info.flush},
               {"second_superblock_used", info.second_superblock_used},
               {"size_bytes", info.size_bytes},
               {"max_bytes", info.max_bytes},
               {"sets", sets_json(info)},
               {"payload_bytes", info.payload_bytes},
               {"metadata_bytes", info.metadata_bytes},
               {"extent_bytes", info.extent_bytes},
               {"extent_count", info.extent_count},
               {"min_block_bytes", info.min_block_bytes},
               {"evict_high_permille", info.evict_high_permille},
               {"evict_low_permille", info.evict_low_permille},
               {"heartbeat_ms", info.times.heartbeat_ms},
               {"dead_ms", info.times.dead_ms},
               {"grace_ms", info.times.grace_ms},
               {"settle_ms", info.times.settle_ms},
               {"reclaim_ms", info.times.reclaim_ms},
               {"used_bytes", info.used_bytes},
               {"blocks", info.blocks},
               {"counters",
                {{"puts", info.puts},
                 {"puts_present", info.puts_present},
                 {"hits", info.hits},
                 {"misses", info.misses},
                 {"evictions", info.evictions},
                 {"removals", info.removals},
                 {"moves", info.moves},
                 {"damaged", info.damaged},
                 {"bytes_in", info.bytes_in},
                 {"bytes_out", info.bytes_out},
                 {"no_space", info.no_space},
                 {"scavenged", info.scavenged},
                 {"hits_elsewhere", info.hits_elsewhere},
                 {"recompressed", info.recompressed}}}};
  json["features"] = {
      {"compat", info.compat}, {"incompat", info.incompat}, {"ro_compat", info.ro_compat}};
  json["namespaces"] = Json::array();
  for (const auto& ns : info.namespaces) json["namespaces"].push_back(namespace_json(ns, usage));
  json["other_namespaces"] = other_usage_json(usage);
  json["hosts"] = Json::array();
  for (const auto& host : info.hosts) {
    json["hosts"].push_back({{"slot", host.slot},
                             {"state", host.state},
                             {"silent", silent.contains(host.slot)},
                             {"incarnation", host.incarnation},
                             {"extents_owned", host.extents_owned},
                             {"extents_free", host.extents_free},
                             {"extents_custody", host.extents_custody},
                             {"processes_live", host.processes_live},
                             {"leases_active", host.leases_active},
                             {"duties_late_ms", host.duties_late_ms},
                             {"mirrors", host.mirrors},
                             {"mirror_bytes", host.mirror_bytes},
                             {"mirrored_hosts", host.mirrored_hosts},
                             {"mirrors_refused", host.mirrors_refused},
                             {"format_version", host.format_version},
                             {"features", host.features}});
  }
  return json;
}

std::string sets_text(const PoolInfo& info) {
  Table sets({">SET", "STATE", ">SIZE", ">PAYLOAD", "MEDIA"});
  for (const PoolInfo::MediaSet& set : info.sets)
    sets.add({std::to_string(set.number), set.state, human_bytes(set.bytes),
              human_bytes(set.payload_bytes), set.locator});
  return sets.text();
}

/// How the processes of a host look up batches: by mirrors of the other hosts' indexes, or not.
std::string mirrors_text(const PoolInfo::Host& host) {
  std::string text = host.mirrors == 0
                         ? "-"
                         : fmt::format("{} of {} hosts, {}", host.mirrors, host.mirrored_hosts,
                                       human_bytes(host.mirror_bytes));
  if (host.mirrors_refused > 0) text += fmt::format("; {} without memory", host.mirrors_refused);
  return text;
}

std::string info_text(const PoolInfo& info, const Usage& usage, const Silent& silent) {
  const auto percent = [](double part, uint64_t whole) {
    return whole == 0 ? 0.0 : 100 * part / static_cast<double>(whole);
  };
  Fields fields;
  fields.add("pool", info.locator);
  fields.add("id", info.pool_id);
  fields.add("created", time_text(info.created_unix_ns));
  fields.add("media", fmt::format("{}: {}", info.media_kind, info.media_description));
  fields.add("published by", info.flush);
  if ((info.compat | info.incompat | info.ro_compat) != 0)
    fields.add("features", fmt::format("compat {:#x}, incompat {:#x}, ro_compat {:#x}", info.compat,
                                       info.incompat, info.ro_compat));
  fields.add("size", exact_bytes(info.size_bytes));
  if (info.max_bytes != info.size_bytes) fields.add("maximum size", exact_bytes(info.max_bytes));
  fields.add("payload",
             fmt::format("{}, {:.2f} % of the size", exact_bytes(info.payload_bytes),
                         percent(static_cast<double>(info.payload_bytes), info.size_bytes)));
  fields.add("extents",
             fmt::format("{} of {}", grouped(info.extent_count), human_bytes(info.extent_bytes)));
  fields.add("smallest block", human_bytes(info.min_block_bytes));
  fields.add("eviction",
             info.evict_high_permille == 0
                 ? "off"
                 : fmt::format("above {:g} %, down to {:g} %", info.evict_high_permille / 10.0,
                               info.evict_low_permille / 10.0));
  if (info.times.heartbeat_ms != 0)
    fields.add("times",
               fmt::format("heartbeat {} ms, dead after {} ms, leases honoured {} ms more, space "
                           "reused {}",
                           info.times.heartbeat_ms, info.times.dead_ms, info.times.grace_ms,
                           info.times.reclaim_ms == 0
                               ? "after `bowhead pool fence`"
                               : fmt::format("after {} ms", info.times.reclaim_ms)));
  fields.add("used",
             fmt::format("{}, {:.2f} % of the payload",
                         exact_bytes(static_cast<uint64_t>(std::max<int64_t>(info.used_bytes, 0))),
                         percent(static_cast<double>(info.used_bytes), info.payload_bytes)));
  fields.add("blocks", grouped(static_cast<uint64_t>(std::max<int64_t>(info.blocks, 0))));
  fields.add("put", fmt::format("{} blocks, {}; {} were present", grouped(info.puts),
                                human_bytes(info.bytes_in), grouped(info.puts_present)));
  fields.add("got", fmt::format("{} blocks, {}; {} misses", grouped(info.hits),
                                human_bytes(info.bytes_out), grouped(info.misses)));
  fields.add("evicted", grouped(info.evictions));
  fields.add("removed", grouped(info.removals));
  fields.add("moved", grouped(info.moves));
  fields.add("recompressed", grouped(info.recompressed));
  fields.add("no space", grouped(info.no_space));
  fields.add("damaged", grouped(info.damaged));
  fields.add("scavenged", grouped(info.scavenged));
  if (info.hosts.size() > 1) fields.add("got from other hosts", grouped(info.hits_elsewhere));
  std::string text = fields.text();

  if (!info.sets.empty()) text += "\n" + sets_text(info);
  if (!info.namespaces.empty()) text += "\n" + namespaces_text(info, usage);
  Table hosts({">HOST", "STATE", ">INCARNATION", ">EXTENTS", ">FREE", ">CUSTODY", ">PROCESSES",
               ">LEASES", ">DUTIES LATE", ">MIRRORS"});
  for (const auto& host : info.hosts) {
    hosts.add({std::to_string(host.slot), silent.contains(host.slot) ? "silent" : host.state,
               std::to_string(host.incarnation), grouped(host.extents_owned),
               grouped(host.extents_free), grouped(host.extents_custody),
               std::to_string(host.processes_live), std::to_string(host.leases_active),
               fmt::format("{} ms", host.duties_late_ms), mirrors_text(host)});
  }
  return text + "\n" + hosts.text();
}

int run_info(const std::string& locator, bool json) {
  auto pool = open_pool(locator, {}, /*look=*/true);
  if (!pool) return fail(pool.error(), locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), locator);
  const auto usage = pool->usage();
  if (!usage) return fail(*pool, usage.error(), locator);
  const auto silent = find_silent(*pool, *info);
  if (!silent) return fail(*pool, silent.error(), locator);
  print(json ? json_text(info_json(*info, *usage, *silent), 2) + "\n"
             : info_text(*info, *usage, *silent));
  return kOk;
}

void add_info(CLI::App& parent, Action& action) {
  struct Arguments {
    std::string locator;
    bool json = false;
  };
  auto* command = parent.add_subcommand("info", "Show a pool's settings, content and counters");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->add_flag("--json", a->json, "As JSON");
  command->footer(R"(
VALUES are the bytes that were put, IN POOL the bytes that their blocks occupy. Compression raises
the RATIO; rounding up to whole blocks lowers it. A host is `silent` if it did not leave and its
heartbeat stands still: its processes have ended or hang. Each host counts its own blocks; those of
other hosts are shown as they were some heartbeats ago. The command watches the heartbeats for up to
5 of them.

Example:
  bowhead pool info shm:demo --json)");
  command->callback([a, &action] { action = [a] { return run_info(a->locator, a->json); }; });
}

std::string check_json(const std::string& locator, bool payload, const CheckReport& report) {
  Json out = {{"locator", locator},
              {"good", report.findings.empty()},
              {"payload_verified", payload},
              {"blocks_checked", report.blocks_checked},
              {"bytes_checked", report.bytes_checked},
              {"blocks_unverified", report.blocks_unverified},
              {"findings", Json::array()},
              {"not_checked", report.not_checked}};
  for (const CheckFinding& finding : report.findings) {
    out["findings"].push_back(
        {{"what", finding.what}, {"data_lost", finding.data_lost}, {"offset", finding.offset}});
  }
  return json_text(out, 2) + "\n";
}

int run_check(const std::string& locator, bool payload, bool json) {
  ProgressLine progress;
  auto pool = open_pool(locator, progress.callback(), /*look=*/true);
  // A host that cannot join may leave a pool that can be looked at.
  if (json && pool.status() == Status::DAMAGED && chosen_host() != kAnyHost) {
    OpenOptions options;
    options.observe = true;
    options.progress = progress.callback();
    pool = Pool::open(locator, options);
  }
  if (json && pool.status() == Status::DAMAGED) {
    // What cannot be opened is a finding as well: exit code 1 has a report.
    print(
        check_json(locator, /*payload=*/false, {.findings = {{pool.error().message(), true, 0}}}));
    return kDamage;
  }
  if (!pool) return fail(pool.error(), locator);
  const auto report = pool->check(payload, progress.callback());
  progress.clear();
  if (!report) return fail(*pool, report.error(), locator);
  const bool good = report->findings.empty();
  if (json) {
    print(check_json(locator, payload, *report));
    return good ? kOk : kDamage;
  }
  for (const CheckFinding& finding : report->findings) {
    print(fmt::format("{}: {}\n", finding.data_lost ? "LOST" : "repairable", finding.what));
  }
  print(fmt::format("{}: {} blocks checked, {} of payload verified, {} wrong\n", locator,
                    grouped(report->blocks_checked), human_bytes(report->bytes_checked),
                    grouped(report->findings.size())));
  if (report->blocks_unverified > 0) {
    print(
        fmt::format("{} blocks were stored without a checksum: their payload cannot be verified\n",
                    grouped(report->blocks_unverified)));
  }
  for (const std::string& what : report->not_checked) print("not checked: " + what + "\n");
  if (good) return kOk;
  const auto info = pool->info();
  const bool missing =
      info && std::any_of(info->sets.begin(), info->sets.end(),
                          [](const PoolInfo::MediaSet& set) { return !set.why_missing.empty(); });
  print(fmt::format("`bowhead pool repair{} {}` repairs it and drops what is lost\n",
                    missing ? " --give-up-missing" : "", locator));
  return kDamage;
}

void add_check(CLI::App& parent, Action& action) {
  struct Arguments {
    std::string locator;
    bool payload = false;
    bool json = false;
  };
  auto* command = parent.add_subcommand("check", "Look for damage; stores nothing");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->add_flag("--payload", a->payload, "Also read every block and verify its checksum");
  command->add_flag("--json", a->json, "As JSON");
  command->footer(
      "\nExit code 1 if anything is wrong. Read permission suffices, and the pool may be in use.\n"
      "The report lists what could not be checked: the allocator of a host can only be read on\n"
      "that host's machine.\n\nExample:\n"
      "  bowhead pool check shm:demo --payload");
  command->callback(
      [a, &action] { action = [a] { return run_check(a->locator, a->payload, a->json); }; });
}

int run_repair(const std::string& locator, RepairOptions options) {
  ProgressLine progress;
  options.progress = progress.callback();
  const auto done = Pool::repair(locator, options);
  progress.clear();
  if (!done) return fail(done.error(), locator);
  for (const std::string& what : *done) print(what + "\n");
  return kOk;
}

void add_repair(CLI::App& parent, Action& action) {
  struct Arguments {
    std::string locator;
    RepairOptions options;
  };
  auto* command =
      parent.add_subcommand("repair", "Repair what can be repaired; drop damaged blocks");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_flag("--take-over", a->options.take_over,
                    "Accept a pool that another machine did not close cleanly");
  command->add_flag("--give-up-missing", a->options.give_up_missing,
                    "Go on without media that are missing, by which the pool had grown: the blocks "
                    "there are lost");
  command->footer(
      "\nNo process may have the pool open meanwhile.\n\nExample:\n"
      "  bowhead pool repair file:/mnt/pmem/kv");
  command->callback([a, &action] { action = [a] { return run_repair(a->locator, a->options); }; });
}

struct RecompressArguments {
  std::string locator;
  double cold_s = 60;
  bool watch = false;
  bool json = false;
};

void print_recompressed(const RecompressReport& done, bool json) {
  if (json) {
    const Json out = {{"recompressed", done.recompressed},
                      {"before_bytes", done.before_bytes},
                      {"after_bytes", done.after_bytes}};
    return print(json_text(out, -1) + "\n");
  }
  print(fmt::format("recompressed {} cold blocks: {} became {}\n", grouped(done.recompressed),
                    human_bytes(done.before_bytes), human_bytes(done.after_bytes)));
}

/// Recompresses all blocks that are cold now, also those that move meanwhile.
Result<RecompressReport> recompress_all(Pool& pool, uint64_t cold_ms) {
  RecompressReport sum;
  for (;;) {
    const auto done = pool.recompress(cold_ms);
    if (!done) return done.error();
    if (done->recompressed == 0) return sum;
    sum.recompressed += done->recompressed;
    sum.before_bytes += done->before_bytes;
    sum.after_bytes += done->after_bytes;
  }
}

int run_recompress(const RecompressArguments& arguments) {
  (void)setpriority(PRIO_PROCESS, 0, 19);  // only the CPU time that engines leave
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto cold_ms = static_cast<uint64_t>(arguments.cold_s * 1000);
  for (;;) {
    const auto done = recompress_all(*pool, cold_ms);
    if (!done) return fail(*pool, done.error(), arguments.locator);
    if (!arguments.watch || done->recompressed > 0) print_recompressed(*done, arguments.json);
    if (!arguments.watch) return kOk;
    if (const int code = finish_output(kOk); code != kOk) return code;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(std::clamp<uint64_t>(cold_ms, 100, 5000)));
  }
}

void add_recompress(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand(
      "recompress", "Compress cold blocks of compressed namespaces at a higher level");
  auto a = std::make_shared<RecompressArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  add_real(*command, "--cold", a->cold_s, "Seconds without use that make a block cold", {0, 1e9})
      ->capture_default_str();
  command->add_flag("--watch", a->watch, "Repeat until interrupted");
  command->add_flag("--json", a->json, "As JSON, one line per pass");
  command->footer(R"(
Lets puts use a fast profile: this command recompresses blocks that were not used for a while with
the profile dense, while other processes use the pool. It runs at the lowest priority, on the blocks
of one host (--host).

Example:
  bowhead pool recompress shm:demo --cold 300 --watch)");
  command->callback([a, &action] { action = [a] { return run_recompress(*a); }; });
}

/// The host that is to leave; nothing if none has joined. To act as a host that has left would
/// begin a life of it, only to end it.
Result<std::optional<uint32_t>> host_to_leave(const PoolInfo& info) {
  const auto joined = [&](uint32_t slot) {
    const std::string& state = info.hosts[slot].state;
    return state != "free" && state != "left" && state != "ended";
  };
  if (chosen_host() != kAnyHost) {
    // That the pool does not have such a host is said when it is opened.
    const bool leaves = chosen_host() >= info.hosts.size() || joined(chosen_host());
    return leaves ? std::optional(chosen_host()) : std::nullopt;
  }
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < info.hosts.size(); ++slot)
    if (joined(slot)) slots.push_back(slot);
  if (slots.size() > 1)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("hosts {} have joined: give the one that leaves with --host",
                             fmt::join(slots, ", "))};
  return slots.empty() ? std::nullopt : std::optional(slots[0]);
}

int run_leave(const std::string& locator) {
  OpenOptions options;
  options.observe = true;
  auto observer = Pool::open(locator, options);
  if (!observer) return fail(observer.error(), locator);
  const auto info = observer->info();
  if (!info) return fail(*observer, info.error(), locator);
  if (info->hosts.size() <= 1 && (chosen_host() == kAnyHost || chosen_host() == 0)) {
    print(fmt::format("{} is a pool of one host: nothing to leave\n", locator));
    return kOk;
  }
  const auto host = host_to_leave(*info);
  if (!host) return fail(host.error(), locator);
  if (!*host) {
    print(fmt::format(
        "{}: {} a member: nothing to leave\n", locator,
        chosen_host() == kAnyHost ? "no host is" : fmt::format("host {} is not", chosen_host())));
    return kOk;
  }
  options = {};
  options.host = **host;
  auto pool = Pool::open(locator, options);
  if (!pool) return fail(pool.error(), locator);
  if (const auto left = pool->leave(); !left) return fail(*pool, left.error(), locator);
  print(
      fmt::format("host {} left {}: the other hosts may take over its extents\n", **host, locator));
  return kOk;
}

void add_leave(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("leave", "Leave a pool of several hosts cleanly");
  auto locator = std::make_shared<std::string>();
  command->add_option("locator", *locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->footer(R"(
The other hosts then need not wait for a missed heartbeat, and know that this host has stopped
writing: its blocks stay, and the others own them at once. No process of this host may have the pool
open. A host that has left can join again at any time; it then owns no blocks. Without --host the
only host that has joined leaves.

Example:
  bowhead pool leave file:/mnt/cxl/kv --host 3)");
  command->callback([locator, &action] { action = [locator] { return run_leave(*locator); }; });
}

struct GrowArguments {
  std::string locator, media;
  GrowOptions options;
};

int run_grow(const GrowArguments& arguments) {
  const std::string media =
      arguments.media.starts_with('+') ? arguments.media.substr(1) : arguments.media;
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  GrowOptions options = arguments.options;
  Interruption interruption;
  ProgressLine progress;
  options.progress = progress.callback();
  options.cancelled = [&] { return interruption.came(); };
  const auto grown = pool->grow(media, options);
  progress.clear();
  if (grown.status() == Status::POOL_EXISTS && !options.replace)
    return fail({Status::POOL_EXISTS, grown.error().message() + " (--force overwrites it)"}, media);
  if (!grown) {
    const int code = fail(*pool, grown.error(), arguments.locator);
    return grown.status() == Status::CANCELLED ? interruption.exit_code() : code;
  }
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  print(fmt::format("grew {} by {}: {} more for payload, {} in all\n", arguments.locator, media,
                    human_bytes(*grown), exact_bytes(info->size_bytes)));
  return kOk;
}

void add_grow(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("grow", "Add media to a pool that is in use");
  auto a = std::make_shared<GrowArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command
      ->add_option("media", a->media, "The new media, as a locator; of several joined by + one set")
      ->required();
  add_size(*command, "--size", a->options.size_bytes,
           "Size of the new media, such as 4G (devices: all of them by default)");
  add_host_option(*command);
  command->add_flag("--force", a->options.replace, "Overwrite what the new media hold");
  command->footer(R"(
The pool must have been made with --max-size. All processes of all hosts see the new space at once;
each host must reach the media by the same locator. The new space is this host's: run the command
where a process has the pool open as this host. Other hosts get parts of it as they need them. A set
of media can be taken away again by `pool drain` and `pool shrink`; `pool info` lists the sets.

Examples:
  bowhead pool grow dax:/dev/dax0.0 dax:/dev/dax1.0
  bowhead pool grow shm:demo shm:demo-2 --size 4G)");
  command->callback([a, &action] { action = [a] { return run_grow(*a); }; });
}

/// The number of a set, which may be given by its locator too.
Result<uint32_t> set_number(Pool& pool, const std::string& given) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
  if (error == std::errc{} && end == given.data() + given.size()) return number;
  const auto info = pool.info();
  if (!info) return info.error();
  for (const PoolInfo::MediaSet& set : info->sets) {
    if (set.locator == given) return set.number;
  }
  return Error{Status::NOT_FOUND,
               fmt::format("no set of the pool has number or locator '{}'; `bowhead pool info` "
                           "lists them",
                           given)};
}

struct DrainArguments {
  std::string locator, set;
  bool undo = false;
};

int run_drain(const DrainArguments& arguments) {
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto number = set_number(*pool, arguments.set);
  if (!number) return fail(*pool, number.error(), arguments.locator);
  Interruption interruption;
  ProgressLine progress;
  const auto drained = pool->drain(*number, {.undo = arguments.undo,
                                             .progress = progress.callback(),
                                             .cancelled = [&] { return interruption.came(); }});
  progress.clear();
  if (drained.status() == Status::CANCELLED) {
    say(fmt::format(
        "interrupted: set {} takes no new blocks, and hosts go on to move those that it "
        "has; --undo lets it take blocks again",
        *number));
    return interruption.exit_code();
  }
  if (!drained) return fail(*pool, drained.error(), arguments.locator);
  print(arguments.undo
            ? fmt::format("set {} of {} takes blocks again\n", *number, arguments.locator)
            : fmt::format("set {} of {} is empty: `bowhead pool shrink {} {}` removes it\n",
                          *number, arguments.locator, arguments.locator, *number));
  return kOk;
}

void add_drain(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("drain", "Move all blocks off a set of media");
  auto a = std::make_shared<DrainArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_option("set", a->set, "Number or locator of the set, as `pool info` lists them")
      ->required();
  add_host_option(*command);
  command->add_flag("--undo", a->undo, "Let the set take blocks again");
  command->footer(R"(
Each host moves its own blocks, while the pool is in use; a pool that evicts evicts those that find
no room elsewhere. Blocks that are leased, or pinned and without room, keep the set from being
drained.

Example:
  bowhead pool drain dax:/dev/dax0.0 1)");
  command->callback([a, &action] { action = [a] { return run_drain(*a); }; });
}

int run_shrink(const DrainArguments& arguments) {
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto number = set_number(*pool, arguments.set);
  if (!number) return fail(*pool, number.error(), arguments.locator);
  if (const auto shrunk = pool->shrink(*number); !shrunk)
    return fail(*pool, shrunk.error(), arguments.locator);
  print(fmt::format("removed set {} from {}\n", *number, arguments.locator));
  return kOk;
}

void add_shrink(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("shrink", "Remove a set of media that was drained");
  auto a = std::make_shared<DrainArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_option("set", a->set, "Number or locator of the set, as `pool info` lists them")
      ->required();
  add_host_option(*command);
  command->footer(R"(
A process of a pool of one host lets go of the media at its next operation; of a pool of several
hosts all do within some heartbeats.

Example:
  bowhead pool shrink dax:/dev/dax0.0 1)");
  command->callback([a, &action] { action = [a] { return run_shrink(*a); }; });
}

/// A host that is silent is declared dead within this time, also if no process but this one has the
/// pool open.
std::chrono::milliseconds death_takes_at_most(Pool& pool) {
  const auto info = pool.info();
  if (!info) return {};
  const SharingTimes& times = info->times;
  // Each live host of a lower slot may propose first, for two heartbeats.
  return std::chrono::milliseconds(2 * times.dead_ms +
                                   (10 + 2 * info->hosts.size()) * times.heartbeat_ms);
}

int run_fence(const std::string& locator, uint32_t host) {
  Interruption interruption;
  auto pool = open_pool(locator);
  if (!pool) return fail(pool.error(), locator);
  const auto until = std::chrono::steady_clock::now() + death_takes_at_most(*pool);
  auto fenced = pool->fence(host);
  if (fenced.status() == Status::BUSY)
    say(fmt::format("host {} is not declared dead yet: waiting until it is", host));
  while (fenced.status() == Status::BUSY && std::chrono::steady_clock::now() < until) {
    if (interruption.came()) {
      say("interrupted: nothing was noted");
      return interruption.exit_code();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fenced = pool->fence(host);
  }
  if (!fenced) return fail(*pool, fenced.error(), locator);
  print(fmt::format("noted in {}: host {} has stopped writing\n", locator, host));
  return kOk;
}

void add_fence(CLI::App& parent, Action& action) {
  struct Arguments {
    std::string locator;
    uint32_t fenced = 0;
  };
  auto* command = parent.add_subcommand("fence", "Confirm that a dead host has stopped writing");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  add_number(*command, "slot", a->fenced, "Slot of the host that has stopped, 0 to 63",
             {0, BH_HOSTS_MAX - 1})
      ->required();
  command->footer(R"(
A host that was declared dead may only be slow, and may still store into the extents that it owned.
Until it is known to have stopped, blocks of these extents are served as verified copies, not
leased. Run this command, by hand or from the hook of a fabric manager, only after the machine is
powered off or disconnected from the memory: leases of these blocks rely on it. The command acts as
a live host (--host). If the host is not declared dead yet, it waits until it is, for a little more
than twice --dead-ms of the pool.

Example:
  bowhead pool fence file:/mnt/cxl/kv 3)");
  command->callback([a, &action] { action = [a] { return run_fence(a->locator, a->fenced); }; });
}

int run_destroy(const std::string& locator, bool force) {
  const auto destroyed = Pool::destroy(locator, force);
  if (destroyed.status() == Status::DAMAGED)
    return fail({Status::DAMAGED, destroyed.error().message() + " (--force removes it)"}, locator);
  if (!destroyed) return fail(name_card(destroyed.error(), locator), locator);
  print(fmt::format("destroyed {}\n", locator));
  return kOk;
}

void add_destroy(CLI::App& parent, Action& action) {
  struct Arguments {
    std::string locator;
    bool force = false;
  };
  auto* command = parent.add_subcommand("destroy", "Remove a pool and all its blocks");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_flag("--force", a->force,
                    "Remove it even if it is not a pool, is damaged, or is open in a process");
  command->footer("\nExample:\n  bowhead pool destroy shm:demo");
  command->callback([a, &action] { action = [a] { return run_destroy(a->locator, a->force); }; });
}

}  // namespace

void add_pool_commands(CLI::App& app, Action& action) {
  auto* pool = app.add_subcommand("pool", "Create, inspect, grow, check, repair, and remove pools");
  pool->require_subcommand(1);
  add_create(*pool, action);
  add_info(*pool, action);
  add_check(*pool, action);
  add_repair(*pool, action);
  add_recompress(*pool, action);
  add_grow(*pool, action);
  add_drain(*pool, action);
  add_shrink(*pool, action);
  add_leave(*pool, action);
  add_fence(*pool, action);
  add_destroy(*pool, action);
}

}  // namespace bowhead::cli
