// SPDX-License-Identifier: Apache-2.0
// Gets of large blocks from a pool on joined media, beside the same gets from a pool on the first
// of them. The pools take turns, since a device holds one at a time; each round makes both anew.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/private_memory.h"
#include "bench/rows.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kBlockBytes = 16u << 20;  // eight stripes
constexpr uint32_t kPools = 2;               // on one medium, on joined media

struct Plan {
  std::string locators[kPools];
  uint64_t walk_bytes;
  uint32_t rounds;

  static uint32_t section(uint32_t round, uint32_t pool) { return round * kPools + pool; }
};

/// One measuring process.
class Reader {
 public:
  Reader(Member& me, const Plan& plan)
      : me_(me), plan_(plan), source_(plan.walk_bytes), destination_(plan.walk_bytes) {}

  Result<void> run() {
    if (source_.data() == nullptr || destination_.data() == nullptr)
      return Error{Status::SYSTEM, "no memory for private buffers"};
    Random random(1);
    for (uint64_t& word : source_.words()) word = random.next();
    for (uint32_t round = 0; round < plan_.rounds; ++round) {
      for (uint32_t i = 0; i < kPools; ++i) {
        const uint32_t pool = (round + i) % kPools;  // so that the order favours none
        if (auto result = measure(round, pool); !result) return result;
      }
    }
    return {};
  }

 private:
  /// Makes the pool, fills it, gets all of it and compares; then gets all of it once more, timed.
  Result<void> measure(uint32_t round, uint32_t number) {
    const std::string& locator = plan_.locators[number];
    const uint64_t room_bytes = plan_.walk_bytes + plan_.walk_bytes / 8 + (64u << 20);
    auto made = BenchPool::create(locator, room_bytes, 16384);
    if (!made) return made.error();
    auto open = open_bench_pool(locator);
    if (!open) return open.error();
    if (number == 1) me_.leave_text(media_text(open->pool));
    for (uint64_t at = 0; at < plan_.walk_bytes; at += kBlockBytes) {
      const ConstSpan value{source_.data() + at, kBlockBytes};
      const Status status =
          open->pool.put(open->ns, view(make_key(1, at / kBlockBytes)), {&value, 1});
      if (status != Status::OK) return Error{status, "put of a large block failed"};
    }
    std::memset(destination_.data(), 0xFF, plan_.walk_bytes);
    if (auto result = get_all(*open); !result) return result;
    if (std::memcmp(source_.data(), destination_.data(), plan_.walk_bytes) != 0)
      return wrong(fmt::format("{}: blocks were not returned exactly", locator));
    Result<void> result;
    me_.time(Plan::section(round, number), [&] { result = get_all(*open); });
    return result;
  }

  Result<void> get_all(OpenPool& open) {
    for (uint64_t at = 0; at < plan_.walk_bytes; at += kBlockBytes) {
      const Span buffer{destination_.data() + at, kBlockBytes};
      const auto length = open.pool.get(open.ns, view(make_key(1, at / kBlockBytes)), {&buffer, 1});
      if (!length) return Error{length.status(), "get of a large block failed"};
    }
    return {};
  }

  Member& me_;
  const Plan& plan_;
  PrivateMemory source_;
  PrivateMemory destination_;
};

/// Where the first of joined locators ends: at a `+` before another scheme.
size_t end_of_first(const std::string& locator) {
  for (size_t at = locator.find('+'); at != std::string::npos; at = locator.find('+', at + 1)) {
    const auto rest = locator.begin() + static_cast<ptrdiff_t>(at) + 1;
    const auto end =
        std::find_if_not(rest, locator.end(), [](unsigned char c) { return std::islower(c); });
    if (end != rest && end != locator.end() && *end == ':') return at;
  }
  return std::string::npos;
}

}  // namespace

std::string joined_locator(const std::string& locator) {
  return end_of_first(locator) != std::string::npos ? locator : fmt::format("{0}+{0}-2", locator);
}

Result<void> run_joined_rows(Bench& bench) {
  bench.report.progress("gets of large blocks, one medium and joined media");
  const std::string joined = joined_locator(bench.locator);
  Plan plan{{joined.substr(0, end_of_first(joined)), joined},
            std::max<uint64_t>(512u << 20, 4 * bench.machine.last_level_cache_bytes),
            bench.options.rounds};
  if (bench.options.quick) plan.walk_bytes = 128u << 20;
  if (bench.options.walk_bytes != 0) plan.walk_bytes = bench.options.walk_bytes;
  plan.walk_bytes = (plan.walk_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  Team team(bench.one_cpu(), plan.rounds * kPools, 0);
  if (auto result = team.run([&](Member& me) { return Reader(me, plan).run(); }); !result)
    return result;
  std::vector<double> speeds[kPools];
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    for (uint32_t pool = 0; pool < kPools; ++pool)
      speeds[pool].push_back(static_cast<double>(plan.walk_bytes) /
                             team.seconds(Plan::section(round, pool)) * 1e-9);
  }
  bench.report.set_media(team.text(0));
  Figure figure;
  figure.row = "get_joined";
  figure.what = fmt::format("get {} from joined media, one core", bytes_text(kBlockBytes));
  figure.parameters = {{"block_bytes", kBlockBytes},
                       {"walk_bytes", plan.walk_bytes},
                       {"one", plan.locators[0]},
                       {"joined", plan.locators[1]}};
  figure.value = summarize(speeds[1]);
  figure.unit = "GB/s";
  figure.limit = Limit{"one medium", summarize(speeds[0])};
  figure.ratio = ratio_of(speeds[1], speeds[0]);
  figure.target = Target{1.0, true, true};
  bench.report.add(figure);
  return {};
}

}  // namespace bowhead::bench
