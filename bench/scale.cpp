// SPDX-License-Identifier: Apache-2.0
// What a pool's life costs at one size: create, fill, open, open after a crash and after a reboot,
// report, check, adopt; times and the memory of the process that did it. Or what all hosts at once
// cost, each a process. For tools/scale, which compares sizes. The pools are sparse: their metadata
// are stored, their payload is never touched, so that a pool of a terabyte fits a machine of 24
// GiB.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "bench/hosts.h"
#include "bench/team.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"

// These make the media of this program sparse: they take the place of the C library's, which would
// allocate the file, of its full size already, and say that there is no space for it.
extern "C" int fallocate(int, int, off_t, off_t) { return 0; }
extern "C" int statvfs(const char*, struct statvfs* out) {
  *out = {};
  out->f_frsize = out->f_bsize = 4096;
  out->f_bfree = out->f_bavail = out->f_blocks = uint64_t{1} << 40;
  return 0;
}

namespace bowhead::bench {
namespace {

constexpr SharingTimes kTimes{.dead_ms = 5000};

struct Scale {
  std::string locator = "shm:scale";
  uint64_t size_bytes = uint64_t{64} << 30, min_block_bytes = 16384, blocks = 1'000'000;
  uint32_t hosts = 8, namespaces = 1;
  bool populate = true, together = false;
};

struct Measured {
  double seconds = 0;
  uint64_t memory_bytes = 0;  ///< private, at the end: without the pool's own pages
  double number = 0;          ///< that the step returned
  bool done = false;
};

/// Private memory that this process has now.
uint64_t private_bytes() {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  if (file == nullptr) return 0;
  char line[256];
  uint64_t kib = 0, value = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Anonymous: %lu", &value) == 1) kib = value;
  }
  std::fclose(file);
  return kib << 10;
}

/// Runs a step in a process of its own, which is killed after it if `kill_after`.
Result<Measured> run_step(const std::function<Result<double>()>& step, bool kill_after = false) {
  void* memory =
      mmap(nullptr, sizeof(Measured), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Error{Status::SYSTEM, "mmap failed"};
  auto& measured = *new (memory) Measured;
  std::fflush(nullptr);
  const int self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    die_with_parent(self);
    const uint64_t began_ns = now_ns();
    const auto number = step();
    measured.seconds = static_cast<double>(now_ns() - began_ns) * 1e-9;
    measured.memory_bytes = private_bytes();
    if (!number) fmt::print(stderr, "scale: {}\n", number.error().message());
    measured.number = number ? *number : 0;
    measured.done = bool(number);
    if (kill_after) raise(SIGKILL);
    std::fflush(nullptr);
    _exit(number ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const Measured result = measured;
  munmap(memory, sizeof(Measured));
  if (!result.done) return Error{Status::SYSTEM, "a step failed"};
  return result;
}

/// A host stores its share; nanoseconds that the puts took.
Result<double> fill_as(const Scale& scale, uint32_t host) {
  // Not closed: this process is killed with it.
  auto& open = *new auto(open_as(scale.locator, host));
  if (!open) return open.error();
  for (uint32_t n = 1; n < scale.namespaces && host == 0; ++n) {
    if (auto ns = open->pool.open_namespace({fmt::format("space {}", n), ""}); !ns)
      return ns.error();
  }
  const uint64_t began_ns = now_ns();
  if (auto all = fill(*open, host, scale.blocks, scale.hosts); !all) return all.error();
  const uint64_t ended_ns = now_ns();
  const auto unfinished =
      open->pool.reserve(open->ns, view(make_key(kHostsSeries + 1, host)), 4096);
  if (!unfinished) return unfinished.error();
  return static_cast<double>(ended_ns - began_ns);
}

/// Every host stores its share, and its process is killed in the middle of one more put.
Result<double> fill_all(const Scale& scale) {
  double filling_ns = 0;
  for (uint32_t host = 0; host < scale.hosts; ++host) {
    const auto filled = run_step([&] { return fill_as(scale, host); }, /*kill_after=*/true);
    if (!filled) return filled.error();
    filling_ns += filled->number;
  }
  return filling_ns / static_cast<double>(scale.blocks);
}

Result<double> open_it(const Scale& scale) {
  const uint64_t began_ns = now_ns();
  auto open = open_as(scale.locator, 0);
  if (!open) return open.error();
  const double seconds = static_cast<double>(now_ns() - began_ns) * 1e-9;
  const auto length = open->pool.length(open->ns, view(make_key(kHostsSeries, 0)));
  if (!length) return length.error();
  return seconds;
}

/// After a death in one of the instants that leave the counters of namespaces in doubt.
Result<double> open_in_doubt(const Scale& scale) {
  {
    auto raw = open_raw_pool(scale.locator);
    if (!raw) return raw.error();
    core::NativeAccess access(*raw->media, FlushKind::NONE);
    access.store(core::Layout(raw->superblock.geometry).part(0, BH_PART_PRIVATE) +
                     offsetof(bh_host_private, usage_doubt),
                 1);
  }
  return open_it(scale);
}

Result<double> report_info(const Scale& scale) {
  auto pool = Pool::open(scale.locator, {.observe = true});
  if (!pool) return pool.error();
  const uint64_t began_ns = now_ns();
  const auto info = pool->info();
  if (!info) return info.error();
  if (info->blocks != static_cast<int64_t>(scale.blocks))
    return wrong(fmt::format("{} blocks of {}", info->blocks, scale.blocks));
  return static_cast<double>(now_ns() - began_ns) * 1e-9;
}

Result<double> check_it(const Scale& scale) {
  auto pool = Pool::open(scale.locator, {.observe = true});
  if (!pool) return pool.error();
  const auto report = pool->check(/*payload=*/false);
  if (!report) return report.error();
  return 0;
}

/// Host 1 joins and dies; seconds from the decision about its end until its extents are host 0's.
Result<double> adopt(const Scale& scale) {
  auto open = open_as(scale.locator, 0);
  if (!open) return open.error();
  auto raw = open_raw_pool(scale.locator);
  if (!raw) return raw.error();
  const core::Layout layout(raw->superblock.geometry);
  const core::NativeAccess access(*raw->media, FlushKind::NONE);
  const auto victim = run_step(
      [&]() -> Result<double> {
        auto host = open_as(scale.locator, 1);
        if (!host) return host.error();
        usleep(500'000);
        return 0;
      },
      /*kill_after=*/true);
  if (!victim) return victim.error();
  uint64_t decided_ns = 0;
  for (const uint64_t deadline_ns = now_ns() + 600'000'000'000; now_ns() < deadline_ns;) {
    if (decided_ns == 0 &&
        core::DecideWord::unpack(access.load(layout.word(0, BH_PART_DECIDE, 1))).done)
      decided_ns = now_ns();
    bool all = decided_ns != 0;
    for (uint64_t e = core::first_extent_of(layout, 1); all && e < core::first_extent_of(layout, 2);
         ++e)
      all = core::own_state(access.load(layout.word(0, BH_PART_OWN, e))) == BH_OWN_OWN;
    if (all) return static_cast<double>(now_ns() - decided_ns) * 1e-9;
    usleep(1000);
  }
  return wrong("the extents were not adopted within 600 s");
}

/// The parts of measure_together(), which all hosts begin at the same moment.
enum Part : uint32_t { JOIN, PUT, FIND, REST, PARTS };

/// Looks for all blocks, in batches, until it has found each.
Result<void> find_all(OpenPool& open, uint64_t blocks) {
  constexpr uint64_t kBatch = 128;
  std::vector<Key> keys;
  for (uint64_t i = 0; i < blocks; ++i) keys.push_back(make_key(kHostsSeries, i));
  std::vector<std::string_view> views;
  for (const Key& key : keys) views.push_back(view(key));
  uint8_t present[kBatch];
  const uint64_t deadline_ns = now_ns() + 120'000'000'000;
  for (uint64_t at = 0; at < blocks;) {
    const auto batch = std::span(views).subspan(at, std::min(kBatch, blocks - at));
    const auto count = open.pool.exists(open.ns, batch, {present, batch.size()});
    if (!count) return count.error();
    if (*count == batch.size()) at += batch.size();
    if (now_ns() > deadline_ns) return wrong("blocks of other hosts were not found within 120 s");
  }
  return {};
}

Result<void> be_one_of_many(Member& me, const Scale& scale) {
  Result<void> result;
  std::optional<OpenPool> open;
  me.time(JOIN, [&] {
    if (auto opened = open_as(scale.locator, me.index()))
      open.emplace(std::move(*opened));
    else
      result = opened.error();
  });
  if (!result) return result;
  me.time(PUT, [&] { result = fill(*open, me.index(), scale.blocks, scale.hosts); });
  if (!result) return result;
  me.time(FIND, [&] { result = find_all(*open, scale.blocks); });
  me.time(REST, [&] {
    const auto used_s = [] {
      timespec used{};
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
      return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
    };
    const double before_s = used_s();
    usleep(5'000'000);
    me.leave(0, (used_s() - before_s) / 5);
  });
  return result;
}

Result<void> measure_together(const Scale& scale, nlohmann::ordered_json& out) {
  auto pool = BenchPool::create(scale.locator, scale.size_bytes, scale.min_block_bytes, scale.hosts,
                                SharingTimes{});
  if (!pool) return pool.error();
  const std::vector<int> cpus = this_machine().cpus;
  std::vector<int> of_hosts;
  for (uint32_t host = 0; host < scale.hosts; ++host) of_hosts.push_back(cpus[host % cpus.size()]);
  Team team(of_hosts, PARTS, 1);
  if (auto done = team.run([&](Member& me) { return be_one_of_many(me, scale); }); !done)
    return done;
  double rest_cpu = 0;
  for (uint32_t host = 0; host < scale.hosts; ++host) rest_cpu += team.number(host, 0);
  out["join_all_s"] = team.seconds(JOIN);
  out["put_all_s"] = team.seconds(PUT);
  out["find_all_s"] = team.seconds(FIND);
  out["rest_cpu_percent"] = 100 * rest_cpu / scale.hosts;
  return {};
}

Result<void> measure_life(const Scale& scale, nlohmann::ordered_json& out) {
  auto pool = std::unique_ptr<BenchPool>();
  const uint64_t began_ns = now_ns();
  auto created = BenchPool::create(scale.locator, scale.size_bytes, scale.min_block_bytes,
                                   scale.hosts, scale.hosts > 1 ? kTimes : SharingTimes{});
  if (!created) return created.error();
  pool = std::move(*created);
  out["create_s"] = static_cast<double>(now_ns() - began_ns) * 1e-9;
  {
    auto raw = open_raw_pool(scale.locator);
    if (!raw) return raw.error();
    const bh_geometry& g = raw->superblock.geometry;
    // Otherwise the kernel would allocate them within the times that are measured.
    if (scale.populate && madvise(raw->media->base(), g.payload_offset, MADV_POPULATE_WRITE) != 0)
      return wrong("no memory for the metadata of this pool");
    out["extents"] = g.extent_count;
    out["metadata_share"] = 1 - static_cast<double>(g.extent_count * g.extent_bytes) /
                                    static_cast<double>(g.total_bytes);
  }
  struct Step {
    const char* name;
    std::function<Result<double>()> run;
    bool kill_after;
    enum { TIME, NUMBER } value;
  };
  const Step steps[] = {
      {"put_ns", [&] { return fill_all(scale); }, false, Step::NUMBER},
      {"open_after_crash_s", [&] { return open_it(scale); }, false, Step::NUMBER},
      {"open_s", [&] { return open_it(scale); }, false, Step::NUMBER},
      {"open_in_doubt_s", [&] { return open_in_doubt(scale); }, false, Step::NUMBER},
      {"info_s", [&] { return report_info(scale); }, false, Step::NUMBER},
      {"check_s", [&] { return check_it(scale); }, false, Step::TIME},
      {"open_after_reboot_s",
       [&]() -> Result<double> {
         if (auto forgot = forget_boot(scale.locator); !forgot) return forgot.error();
         return open_it(scale);
       },
       false, Step::NUMBER},
      {"adopt_s", [&] { return adopt(scale); }, false, Step::NUMBER},
  };
  for (const Step& step : steps) {
    if (scale.hosts == 1 && std::string_view(step.name) == "adopt_s") continue;
    const auto measured = run_step(step.run, step.kill_after);
    if (!measured) return Error{measured.status(), fmt::format("{} failed", step.name)};
    out[step.name] = step.value == Step::TIME ? measured->seconds : measured->number;
    out[std::string(step.name) + "_memory_bytes"] = measured->memory_bytes;
    fmt::print(stderr, "{} {:.4g}\n", step.name, out[step.name].get<double>());
  }
  return {};
}

Result<void> measure(const Scale& scale) {
  nlohmann::ordered_json out{{"size_bytes", scale.size_bytes},
                             {"blocks", scale.blocks},
                             {"hosts", scale.hosts},
                             {"namespaces", scale.namespaces}};
  const auto done = scale.together ? measure_together(scale, out) : measure_life(scale, out);
  if (done) fmt::print("{}\n", out.dump());
  return done;
}

}  // namespace
}  // namespace bowhead::bench

int main(int argc, char** argv) {
  using namespace bowhead::bench;
  Scale scale;
  CLI::App app("What a pool costs at one size, on a sparse medium; one line of JSON");
  app.add_option("--pool", scale.locator, "Locator of the pool, made and removed");
  app.add_option("--size", scale.size_bytes, "Size of the pool")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--min-block", scale.min_block_bytes, "Smallest block")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--blocks", scale.blocks, "Blocks of 4 KiB that the hosts store");
  app.add_option("--hosts", scale.hosts, "Host slots")->check(CLI::Range(1, 64));
  app.add_option("--namespaces", scale.namespaces, "Namespaces")->check(CLI::Range(1, 64));
  app.add_flag("!--no-populate", scale.populate,
               "Do not allocate the memory of all metadata first: for pools whose metadata are "
               "larger than the memory");
  app.add_flag("--together", scale.together,
               "All hosts at once, each a process: join, store, find all blocks, rest");
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(scale);
  return result ? 0 : complain(result.error());
}
