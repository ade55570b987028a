// SPDX-License-Identifier: Apache-2.0
// The share of the medium that holds committed payload when the pool returns NO_SPACE, after blocks
// of many sizes came and went for ten times the pool's size. Payload bytes are never written: space
// does not depend on them.
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "bench/rows.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kSmallest = 16u << 10;
constexpr uint64_t kLargest = 2u << 20;
constexpr uint32_t kSamples = 8;      // number of times that the pool is filled after the turnovers
constexpr uint64_t kPartRemoved = 8;  // an eighth of the payload is removed before each refill

enum class Sizes { POWERS_OF_TWO, PAGES };

struct Plan {
  std::string locator;
  uint64_t pool_bytes;
  uint32_t turnovers;
  Sizes sizes;
};

/// Puts and removes at random, and records which blocks must be stored.
class Churn {
 public:
  Churn(const Plan& plan, OpenPool open) : plan_(plan), open_(std::move(open)), random_(1) {}

  Result<void> run(Member& me) {
    if (auto result = fill(); !result) return result;
    me.leave(0, share());
    while (written_ < plan_.pool_bytes * plan_.turnovers) {
      if (auto result = refill(); !result) return result;
    }
    for (uint32_t i = 0; i < kSamples; ++i) {
      if (auto result = refill(); !result) return result;
      me.leave(1 + i, share());
    }
    const auto info = open_.pool.info();
    if (!info) return info.error();
    me.leave(1 + kSamples, static_cast<double>(info->moves));
    me.leave(2 + kSamples, static_cast<double>(info->payload_bytes));
    return check();
  }

 private:
  struct Block {
    Key key;
    uint64_t length;
  };

  double share() const {
    return static_cast<double>(stored_) / static_cast<double>(plan_.pool_bytes);
  }

  uint64_t draw() {
    if (plan_.sizes == Sizes::POWERS_OF_TWO) return kSmallest << random_.below(8);
    const double range = std::log(static_cast<double>(kLargest) / kSmallest);
    const double at = static_cast<double>(random_.below(1u << 20)) / (1u << 20);
    const auto pages = static_cast<uint64_t>(std::exp(at * range) * kSmallest / 4096);
    return std::min(pages * 4096, kLargest);
  }

  /// Puts until the pool is full. The size that did not fit is the first of the next fill: dropping
  /// it would make the mix smaller than requested.
  Result<void> fill() {
    for (;;) {
      if (next_ == 0) next_ = draw();
      const Key key = make_key(1, ++last_key_);
      auto room = open_.pool.reserve(open_.ns, view(key), next_);
      if (!room && room.status() == Status::NO_SPACE) return {};
      if (!room) return room.error();
      if (const Status status = open_.pool.commit(*room, {PayloadSum::By::NONE});
          status != Status::OK) {
        return Error{status, "commit failed"};
      }
      blocks_.push_back({key, next_});
      stored_ += next_;
      written_ += next_;
      next_ = 0;
    }
  }

  Result<void> refill() {
    const uint64_t keep = stored_ - stored_ / kPartRemoved;
    while (stored_ > keep) {
      std::swap(blocks_[random_.below(blocks_.size())], blocks_.back());
      const Status status = open_.pool.remove(open_.ns, view(blocks_.back().key));
      if (status != Status::OK) return wrong(fmt::format("remove: {}", status_name(status)));
      stored_ -= blocks_.back().length;
      blocks_.pop_back();
    }
    return fill();
  }

  /// The pool must list exactly these blocks, and no two of them may overlap.
  Result<void> check() {
    std::unordered_map<std::string, uint64_t> expected;
    for (const Block& block : blocks_) expected.emplace(view(block.key), block.length);
    std::vector<std::pair<uint64_t, uint64_t>> places;
    uint64_t matched = 0;
    const Status status = open_.pool.list([&](const BlockInfo& block) {
      const auto found = expected.find(block.key);
      matched += found != expected.end() && found->second == block.length_bytes;
      places.emplace_back(block.offset, block.offset + block.length_bytes);
      return true;
    });
    if (status != Status::OK) return Error{status, "list failed"};
    if (matched != expected.size() || places.size() != expected.size()) {
      return wrong(fmt::format("{} blocks were put, but {} are listed, {} of them as put",
                               expected.size(), places.size(), matched));
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i) {
      if (places[i].first < places[i - 1].second) {
        return wrong(fmt::format("two blocks overlap at offset {}", places[i].first));
      }
    }
    return {};
  }

  const Plan& plan_;
  OpenPool open_;
  Random random_;
  std::vector<Block> blocks_;
  uint64_t stored_ = 0;
  uint64_t written_ = 0;
  uint64_t next_ = 0;
  uint64_t last_key_ = 0;
};

Result<void> run_sizes(Bench& bench, Sizes sizes) {
  const bool powers = sizes == Sizes::POWERS_OF_TWO;
  const Plan plan{bench.locator, uint64_t{bench.options.quick ? 512u : 4096u} << 20,
                  bench.options.quick ? 2u : 10u, sizes};
  bench.report.progress(fmt::format("space after {} turnovers", plan.turnovers));
  auto pool = BenchPool::create(bench.locator, plan.pool_bytes, kSmallest);
  if (!pool) return pool.error();
  Team team(bench.one_cpu(), 0, kSamples + 3);
  const uint64_t begin = now_ns();
  auto result = team.run([&](Member& me) -> Result<void> {
    auto open = open_bench_pool(plan.locator);
    if (!open) return open.error();
    me.leave_text(media_text(open->pool));
    return Churn(plan, std::move(*open)).run(me);
  });
  if (!result) return result;
  bench.report.set_media(team.text(0));
  std::vector<double> shares;
  for (uint32_t i = 0; i < kSamples; ++i) shares.push_back(team.number(0, 1 + i));
  Figure figure;
  figure.row = "space";
  figure.what =
      fmt::format("space at NO_SPACE, {}", powers ? "powers of two" : "multiples of 4 KiB");
  figure.parameters = {{"sizes", powers ? "powers of two" : "multiples of 4 KiB"},
                       {"pool_bytes", plan.pool_bytes},
                       {"turnovers", plan.turnovers},
                       {"key_bytes", kKeyBytes},
                       {"fresh", team.number(0, 0)},
                       {"moves", team.number(0, 1 + kSamples)}};
  figure.value = summarize(shares);
  figure.unit = "of media";
  if (powers) figure.target = Target{0.97, true, false};
  figure.note = fmt::format(
      "16 KiB to 2 MiB in {}, {} turnovers in {:.1f} s; {:.3f} when first full; {:.3f} is payload "
      "area; {:.0f} blocks moved",
      bytes_text(plan.pool_bytes), plan.turnovers, static_cast<double>(now_ns() - begin) * 1e-9,
      team.number(0, 0), team.number(0, 2 + kSamples) / static_cast<double>(plan.pool_bytes),
      team.number(0, 1 + kSamples));
  bench.report.add(figure);
  return {};
}

}  // namespace

Result<void> run_space_rows(Bench& bench) {
  if (auto result = run_sizes(bench, Sizes::POWERS_OF_TWO); !result) return result;
  return run_sizes(bench, Sizes::PAGES);
}

}  // namespace bowhead::bench
