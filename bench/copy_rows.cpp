// SPDX-License-Identifier: Apache-2.0
// put and get of blocks beside plain copies of the same pieces between the same memory areas.
//
// Each process has private memory to put from and to get into, a part of the pool's payload for
// plain copies (held by reservations), and blocks. Every pass walks all four areas from end to end;
// each is larger than the caches, so no pass finds data of an earlier one there.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

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
  CHECKSUM_COPY,
  BATCH  ///< of small blocks
};
constexpr uint32_t kPasses = 6;
constexpr uint64_t kBatch = 32;
constexpr CopyKind kLimitKinds[] = {CopyKind::MEMCPY, CopyKind::VECTOR, CopyKind::NONTEMPORAL};
enum class Direction : uint32_t { PUT, GET };

struct Plan {
  std::string locator;
  uint64_t block_bytes;
  uint64_t walk_bytes;  // of one process
  uint32_t rounds;

  uint64_t blocks() const { return walk_bytes / block_bytes; }
  bool small() const { return block_bytes < (256u << 10); }
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
    for (const bool batches : {false, true}) {
      if (batches && !plan_.small()) continue;
      std::memset(destination_.data(), 0xFF, plan_.walk_bytes);
      batches ? put_batches() : put_all();
      batches ? get_batches() : get_all();
      if (failed_ != Status::OK) return failed();
      if (std::memcmp(source_.data(), destination_.data(), plan_.walk_bytes) != 0)
        return wrong(
            fmt::format("blocks of {} bytes were not returned exactly", plan_.block_bytes));
      if (auto result = remove_all(); !result) return result;
    }
    return {};
  }

  Result<void> measure(uint32_t round) {
    make_keys(round);
    for (const Direction direction : {Direction::PUT, Direction::GET}) {
      // Each round starts with a different pass, so that the order favours none.
      for (uint32_t i = 0; i < kPasses; ++i) {
        const uint32_t pass = (round + i) % kPasses;
        if (static_cast<Pass>(pass) == Pass::BATCH && !plan_.small()) continue;
        const bool stores =
            static_cast<Pass>(pass) == Pass::OPERATION || static_cast<Pass>(pass) == Pass::BATCH;
        if (stores && direction == Direction::PUT) {
          if (auto result = remove_all(); !result) return result;  // of the other pass that stores
        }
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
    if (pass == Pass::BATCH) {
      direction == Direction::PUT ? put_batches() : get_batches();
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
    stored_ = true;
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      const ConstSpan value{source_.data() + i * plan_.block_bytes, plan_.block_bytes};
      const Status status = open_.pool.put(open_.ns, view(keys_[i]), {&value, 1});
      note(status);
    }
  }

  void get_all() {
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      const Span buffer{destination_.data() + i * plan_.block_bytes, plan_.block_bytes};
      const auto length = open_.pool.get(open_.ns, view(keys_[i]), {&buffer, 1});
      note(length.status());
    }
  }

  void put_batches() {
    std::array<PutItem, kBatch> items;
    std::array<ConstSpan, kBatch> values;
    for (uint64_t first = 0; first < keys_.size(); first += kBatch) {
      const auto batch = std::span(items).first(std::min(kBatch, keys_.size() - first));
      for (uint64_t i = 0; i < batch.size(); ++i) {
        values[i] = {source_.data() + (first + i) * plan_.block_bytes, plan_.block_bytes};
        batch[i] = {view(keys_[first + i]), {&values[i], 1}};
      }
      stored_ = true;
      note(open_.pool.put_batch(open_.ns, batch));
      for (const PutItem& item : batch) note(item.status);
    }
  }

  void get_batches() {
    std::array<GetItem, kBatch> items;
    std::array<Span, kBatch> buffers;
    for (uint64_t first = 0; first < keys_.size(); first += kBatch) {
      const auto batch = std::span(items).first(std::min(kBatch, keys_.size() - first));
      for (uint64_t i = 0; i < batch.size(); ++i) {
        buffers[i] = {destination_.data() + (first + i) * plan_.block_bytes, plan_.block_bytes};
        batch[i] = {view(keys_[first + i]), {&buffers[i], 1}};
      }
      note(open_.pool.get_batch(open_.ns, batch));
      for (const GetItem& item : batch) note(item.status);
    }
  }

  void note(Status status) {
    if (status != Status::OK) failed_ = status;
  }

  /// The blocks of the keys, if they are stored.
  Result<void> remove_all() {
    if (!std::exchange(stored_, false)) return {};
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
  bool stored_ = false;  ///< the blocks of the keys
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
  const bool put = direction == Direction::PUT;
  const double of_single = plan.small() ? 0.70 : all ? 0.90 : 0.80;
  const struct {
    Pass pass;
    const char* row;
    std::string what;
    double target;  ///< 0: none
  } rows[] = {{Pass::OPERATION, put ? "put" : "get",
               fmt::format("{} {}, {}", put ? "put" : "get", bytes_text(plan.block_bytes), where),
               of_single},
              {Pass::BATCH, put ? "put_batch" : "get_batch",
               fmt::format("{} {} x {}, {}", put ? "put" : "get", kBatch,
                           bytes_text(plan.block_bytes), where),
               all ? 0 : 0.85},
              {Pass::CHECKSUM_COPY, put ? "checksum_copy_in" : "checksum_copy_out",
               fmt::format("  part of it: copy with checksum, {}", where), 0}};
  for (const auto& row : rows) {
    if (row.pass == Pass::BATCH && !plan.small()) continue;
    const auto values = speeds(team, plan, direction, row.pass);
    Figure figure;
    figure.row = row.row;
    figure.what = row.what;
    figure.parameters = {{"block_bytes", plan.block_bytes},
                         {"processes", team.count()},
                         {"walk_bytes", plan.walk_bytes * team.count()}};
    figure.value = summarize(values);
    figure.unit = "GB/s";
    figure.limit = Limit{kind, summarize(limit)};
    figure.ratio = ratio_of(values, limit);
    if (row.target != 0) figure.target = Target{row.target, true, true};
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
