// SPDX-License-Identifier: Apache-2.0
// put and get of blocks beside plain copies of the same pieces between the same memory areas.
//
// Each process has private memory to put from and to get into, a part of the pool's payload for
// plain copies (held by reservations), and blocks. Every pass walks all four areas from end to end;
// each is larger than the caches, so no pass finds data of an earlier one there.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/checksum.h"
#include "base/copy.h"
#include "base/private_memory.h"
#include "bench/rows.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kPieceBytes = 64u << 20;  // of the area for plain copies; whole blocks fit

/// The passes of a direction: the plain copies, the operation, and the copy with a checksum.
enum class Pass : uint32_t {
  LIMIT_MEMCPY,
  LIMIT_VECTOR,
  LIMIT_NONTEMPORAL,
  OPERATION,
  CHECKSUM_COPY
};
constexpr uint32_t kPasses = 5;
constexpr CopyKind kLimitKinds[] = {CopyKind::MEMCPY, CopyKind::VECTOR, CopyKind::NONTEMPORAL};
enum class Direction : uint32_t { PUT, GET };

struct Plan {
  std::string locator;
  uint64_t block_bytes;
  uint64_t walk_bytes;  // of one process
  uint32_t rounds;

  uint64_t blocks() const { return walk_bytes / block_bytes; }
  static uint32_t section(uint32_t round, Direction direction, uint32_t pass) {
    return (round * 2 + static_cast<uint32_t>(direction)) * kPasses + pass;
  }
};

/// One measuring process.
class Copier {
 public:
  Copier(Member& me, const Plan& plan, OpenPool open)
      : me_(me),
        plan_(plan),
        open_(std::move(open)),
        source_(plan.walk_bytes),
        destination_(plan.walk_bytes) {}

  Result<void> run() {
    if (source_.data() == nullptr || destination_.data() == nullptr) {
      return Error{Status::SYSTEM, "no memory for private buffers; give --size"};
    }
    Random random(me_.index() + 1);
    for (uint64_t& word : source_.words()) word = random.next();
    if (auto result = reserve_limit_area(); !result) return result;
    if (auto result = check(0); !result) return result;
    for (uint32_t round = 1; round <= plan_.rounds; ++round) {
      if (auto result = measure(round); !result) return result;
    }
    if (auto result = check(plan_.rounds + 1); !result) return result;
    for (Reservation& piece : area_) {
      if (const Status status = open_.pool.abort(piece); status != Status::OK) return status;
    }
    return {};
  }

 private:
  Result<void> reserve_limit_area() {
    for (uint64_t at = 0; at < plan_.walk_bytes; at += kPieceBytes) {
      const uint64_t size = std::min(kPieceBytes, plan_.walk_bytes - at);
      auto piece = open_.pool.reserve(open_.ns, view(make_key(1000 + me_.index(), at)), size);
      if (!piece) return piece.error();
      std::memset(piece->data, 0, size);
      area_.push_back(std::move(*piece));
    }
    return {};
  }

  std::byte* area(uint64_t at) const { return area_[at / kPieceBytes].data + at % kPieceBytes; }

  void make_keys(uint32_t round) {
    keys_.resize(plan_.blocks());
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      keys_[i] = make_key(10000 + me_.index(), round * keys_.size() + i);
    }
  }

  /// Puts and gets all bytes and compares them. Also touches every page that the rounds will use.
  Result<void> check(uint32_t round) {
    make_keys(round);
    std::memset(destination_.data(), 0xFF, plan_.walk_bytes);
    put_all();
    get_all();
    if (failed_ != Status::OK) return failed();
    if (std::memcmp(source_.data(), destination_.data(), plan_.walk_bytes) != 0) {
      return wrong(fmt::format("blocks of {} bytes were not returned exactly", plan_.block_bytes));
    }
    return remove_all();
  }

  Result<void> measure(uint32_t round) {
    make_keys(round);
    for (const Direction direction : {Direction::PUT, Direction::GET}) {
      // Each round starts with a different pass, so that the order favours none.
      for (uint32_t i = 0; i < kPasses; ++i) {
        const uint32_t pass = (round + i) % kPasses;
        me_.time(Plan::section(round - 1, direction, pass),
                 [&] { run_pass(direction, static_cast<Pass>(pass)); });
      }
    }
    if (failed_ != Status::OK) return failed();
    return remove_all();
  }

  void run_pass(Direction direction, Pass pass) {
    if (pass == Pass::OPERATION) {
      direction == Direction::PUT ? put_all() : get_all();
      return;
    }
    const uint64_t size = plan_.block_bytes;
    for (uint64_t at = 0; at < plan_.walk_bytes; at += size) {
      std::byte* to = direction == Direction::PUT ? area(at) : destination_.data() + at;
      const std::byte* from = direction == Direction::PUT ? source_.data() + at : area(at);
      if (pass == Pass::CHECKSUM_COPY) {
        ChecksumCopy copy(true);
        copy.append(to, from, size);
        (void)copy.finish();
      } else {
        copy_with(kLimitKinds[static_cast<uint32_t>(pass)], to, from, size);
      }
    }
  }

  void put_all() {
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      const ConstSpan value{source_.data() + i * plan_.block_bytes, plan_.block_bytes};
      const Status status = open_.pool.put(open_.ns, view(keys_[i]), {&value, 1});
      if (status != Status::OK) failed_ = status;
    }
  }

  void get_all() {
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      const Span buffer{destination_.data() + i * plan_.block_bytes, plan_.block_bytes};
      const auto length = open_.pool.get(open_.ns, view(keys_[i]), {&buffer, 1});
      if (!length) failed_ = length.status();
    }
  }

  Result<void> remove_all() {
    for (const Key& key : keys_) {
      const Status status = open_.pool.remove(open_.ns, view(key));
      if (status != Status::OK) return Error{status, "remove of a block that was put failed"};
    }
    return {};
  }

  Error failed() const {
    return wrong(
        fmt::format("put or get of {} bytes failed: {}", plan_.block_bytes, status_name(failed_)));
  }

  Member& me_;
  const Plan& plan_;
  OpenPool open_;
  PrivateMemory source_;
  PrivateMemory destination_;
  std::vector<Reservation> area_;
  std::vector<Key> keys_;
  Status failed_ = Status::OK;
};

/// GB/s of all processes together, by round.
std::vector<double> speeds(const Team& team, const Plan& plan, Direction direction, Pass pass) {
  std::vector<double> values;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    const double seconds =
        team.seconds(Plan::section(round, direction, static_cast<uint32_t>(pass)));
    values.push_back(static_cast<double>(plan.walk_bytes * team.count()) / seconds * 1e-9);
  }
  return values;
}

void report_direction(Bench& bench, const Team& team, const Plan& plan, Direction direction) {
  std::vector<double> limit;
  const char* kind = "";
  for (uint32_t i = 0; i < std::size(kLimitKinds); ++i) {
    const auto values = speeds(team, plan, direction, static_cast<Pass>(i));
    if (!limit.empty() && summarize(values).median <= summarize(limit).median) continue;
    limit = values;
    kind = copy_kind_name(kLimitKinds[i]);
  }
  const bool all = team.count() > 1;
  const std::string where = all ? fmt::format("{} cores", team.count()) : "one core";
  const bool small = plan.block_bytes < (256u << 10);
  const struct {
    Pass pass;
    const char* row;
    bool has_target;
  } rows[] = {{Pass::OPERATION, direction == Direction::PUT ? "put" : "get", true},
              {Pass::CHECKSUM_COPY,
               direction == Direction::PUT ? "checksum_copy_in" : "checksum_copy_out", false}};
  for (const auto& row : rows) {
    const auto values = speeds(team, plan, direction, row.pass);
    Figure figure;
    figure.row = row.row;
    figure.what = row.has_target
                      ? fmt::format("{} {}, {}", row.row, bytes_text(plan.block_bytes), where)
                      : fmt::format("  part of it: copy with checksum, {}", where);
    figure.parameters = {{"block_bytes", plan.block_bytes},
                         {"processes", team.count()},
                         {"walk_bytes", plan.walk_bytes * team.count()}};
    figure.value = summarize(values);
    figure.unit = "GB/s";
    figure.limit = Limit{kind, summarize(limit)};
    figure.ratio = ratio_of(values, limit);
    if (row.has_target) figure.target = Target{small ? 0.70 : all ? 0.90 : 0.80, true, true};
    bench.report.add(figure);
  }
}

Result<void> run_size(Bench& bench, const std::vector<int>& cpus, uint64_t block_bytes) {
  const uint64_t least = std::max<uint64_t>(1u << 30, 4 * bench.machine.last_level_cache_bytes);
  uint64_t total = bench.options.quick ? 128u << 20 : least;
  if (bench.options.walk_bytes != 0) total = bench.options.walk_bytes;
  // Whole blocks of the largest size, and at least a few of them, for every process.
  const uint64_t grain = 2u << 20;
  const uint64_t share = std::max<uint64_t>(total / cpus.size() / grain, 8) * grain;
  const Plan plan{bench.locator, block_bytes, share, bench.options.rounds};

  const uint64_t used = 2 * share * cpus.size();
  auto pool = BenchPool::create(bench.locator, used + used / 8 + (64u << 20), 16384);
  if (!pool) return pool.error();
  Team team(cpus, plan.rounds * 2 * kPasses, 0);
  auto result = team.run([&](Member& me) -> Result<void> {
    auto open = open_bench_pool(plan.locator);
    if (!open) return open.error();
    me.leave_text(media_text(open->pool));
    return Copier(me, plan, std::move(*open)).run();
  });
  if (!result) return result;
  bench.report.set_media(team.text(0));
  report_direction(bench, team, plan, Direction::PUT);
  report_direction(bench, team, plan, Direction::GET);
  return {};
}

}  // namespace

Result<void> run_copy_rows(Bench& bench) {
  std::vector<uint64_t> sizes = {256u << 10, 512u << 10, 1u << 20, 2u << 20, 16u << 10};
  if (bench.options.quick) sizes = {256u << 10, 16u << 10};
  std::vector<std::vector<int>> teams = {bench.one_cpu()};
  if (bench.machine.cpus.size() > 1) teams.push_back(bench.machine.cpus);
  for (const uint64_t size : sizes) {
    for (const std::vector<int>& cpus : teams) {
      bench.report.progress(
          fmt::format("put and get, {}, {} process(es)", bytes_text(size), cpus.size()));
      if (auto result = run_size(bench, cpus, size); !result) return result;
    }
  }
  return {};
}

}  // namespace bowhead::bench
