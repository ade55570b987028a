// SPDX-License-Identifier: Apache-2.0
// Messages between two processes through shared lines (pool/core/channel.h): latency and rate.
// Beside them the limits of the machine: a word sent back and forth, and a ring with two counters,
// which cannot detect a restart.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>

#include "bench/rows.h"
#include "pool/core/access.h"
#include "pool/core/channel.h"

namespace bowhead::bench {
namespace {

using core::Message;
using core::NativeAccess;
using Channel = core::Channel<NativeAccess>;

constexpr uint64_t kDepth = 128;  // messages in flight
constexpr uint64_t kBatch = 32;   // sent and received at once for the rate
constexpr uint64_t kAreaBytes = (kDepth + 1) * BH_LINE_BYTES;

struct Plan {
  std::string locator;
  FlushKind kind;
  uint32_t rounds;
  uint64_t trips;     // of a round
  uint64_t messages;  // of a round; a multiple of kBatch

  enum Part : uint32_t { PING_PONG, ROUND_TRIP, RING, STREAM };
  static constexpr uint32_t kParts = 4;
  static uint32_t section(uint32_t round, Part part) { return round * kParts + part; }
};

/// Offsets in the memory that only member `me` writes.
struct Place {
  explicit Place(uint32_t me) : channel(me * kHalf) {}
  uint64_t slot(uint64_t number) const { return slots + number % kDepth * BH_LINE_BYTES; }

  static constexpr uint64_t kHalf = kMediaGrainBytes / 2, kPage = 4096;
  const uint64_t channel;
  const uint64_t word = channel + kHalf / 2;
  const uint64_t counter = word + kPage;  // of the ring
  const uint64_t slots = counter + kPage;
};

Message message_of(uint64_t number) {
  return {number, number * 3, ~number, number << 7, number + 5, number * 11, 7};
}

class Player {
 public:
  Player(Member& me, const Plan& plan, NativeAccess& access)
      : me_(me),
        plan_(plan),
        access_(access),
        own_(me.index()),
        peer_(1 - me.index()),
        channel_(access, own_.channel, peer_.channel, kAreaBytes),
        batch_(kBatch) {}

  /// Checks the answers first: every message of the timed rounds arrives as it was sent.
  Result<void> check() {
    channel_.open();
    bool right = true;
    const auto make = [](uint64_t number, Message& message) { message = message_of(number); };
    stream(make, [&](uint64_t first, std::span<Message> taken) {
      for (uint64_t i = 0; i < taken.size(); ++i) right &= taken[i] == message_of(first + i);
    });
    if (!right) return wrong("a message arrived changed");
    const uint64_t failed = round_trips(plan_.trips);
    return failed == 0 ? Result<void>{} : wrong(fmt::format("{} wrong answers", failed));
  }

  Result<void> measure() {
    const auto make = [](uint64_t number, Message& message) { message[0] = number; };
    uint64_t failed = 0;
    const auto seen = [&](uint64_t number, std::span<Message> taken) {
      failed += taken.front()[0] != number;
    };
    for (uint32_t round = 0; round < plan_.rounds; ++round) {
      for (uint32_t i = 0; i < Plan::kParts; ++i) {
        const auto part = static_cast<Plan::Part>((round + i) % Plan::kParts);
        me_.time(Plan::section(round, part), [&] {
          if (part == Plan::PING_PONG) ping_pong(plan_.trips);
          if (part == Plan::ROUND_TRIP) failed += round_trips(plan_.trips);
          if (part == Plan::RING) ring();
          if (part == Plan::STREAM) stream(make, seen);
        });
      }
    }
    return failed == 0 ? Result<void>{} : wrong(fmt::format("{} wrong messages", failed));
  }

 private:
  bool first() const { return me_.index() == 0; }

  void publish_word(uint64_t at, uint64_t value) {
    access_.store(at, value);
    access_.publish(at, 8);
  }
  uint64_t acquire_word(uint64_t at) const {
    access_.acquire(at, 8);
    return access_.load(at);
  }

  /// Sends a word back and forth.
  void ping_pong(uint64_t trips) {
    for (const uint64_t end = thrown_ + trips; thrown_ < end;) {
      ++thrown_;
      if (first()) publish_word(own_.word, thrown_);
      while (acquire_word(peer_.word) < thrown_) {
      }
      if (!first()) publish_word(own_.word, thrown_);
    }
  }

  void send_one(const Message& message) {
    while (!channel_.send(message)) {
    }
  }
  Message take_one() {
    Message message;
    while (channel_.poll(std::span(&message, 1)) == 0) {
    }
    return message;
  }
  /// Sends questions and receives answers, or the reverse; returns the number of wrong answers.
  uint64_t round_trips(uint64_t trips) {
    uint64_t failed = 0;
    for (uint64_t id = 1; id <= trips; ++id) {
      if (first()) {
        send_one(message_of(id));
        const Message answer = take_one();
        failed += answer[0] != id || answer[1] != ~message_of(id)[1];
      } else {
        Message message = take_one();
        message[1] = ~message[1];
        send_one(message);
      }
    }
    return failed;
  }

  /// One way, in batches: the first member sends the results of make(number, message), the second
  /// calls seen(number, messages).
  template <class Make, class Seen>
  void stream(const Make& make, const Seen& seen) {
    for (uint64_t done = 0; done < plan_.messages;) {
      if (first()) {
        for (uint64_t i = 0; i < kBatch; ++i) make(done + i, batch_[i]);
        for (std::span<const Message> left(batch_); !left.empty();)
          left = left.subspan(channel_.send(left));
        done += kBatch;
      } else {
        const auto room = std::span(batch_).first(std::min(kBatch, plan_.messages - done));
        const auto taken = room.first(channel_.poll(room));
        if (taken.empty()) continue;
        seen(done, taken);
        done += taken.size();
      }
    }
  }

  /// The same through a ring whose two counters count messages written and messages taken.
  void ring() {
    for (const uint64_t end = ring_done_ + plan_.messages; ring_done_ < end;) {
      first() ? fill_ring() : drain_ring();
      ring_done_ += kBatch;
      publish_word(own_.counter, ring_done_);
    }
  }
  void fill_ring() {
    while (ring_done_ + kBatch - ring_seen_ > kDepth) ring_seen_ = acquire_word(peer_.counter);
    for (uint64_t i = 0; i < kBatch; ++i) {
      const Message message = message_of(ring_done_ + i);
      const uint64_t at = own_.slot(ring_done_ + i);
      for (uint64_t word = 0; word < 7; ++word) access_.store(at + word * 8, message[word]);
    }
    access_.publish(own_.slot(ring_done_), kBatch * BH_LINE_BYTES);
  }
  void drain_ring() {
    while (ring_seen_ < ring_done_ + kBatch) ring_seen_ = acquire_word(peer_.counter);
    access_.acquire(peer_.slot(ring_done_), kBatch * BH_LINE_BYTES);
    for (uint64_t i = 0; i < kBatch; ++i) {
      const uint64_t at = peer_.slot(ring_done_ + i);
      for (uint64_t word = 0; word < 7; ++word) batch_[i][word] = access_.load(at + word * 8);
    }
  }

  Member& me_;
  const Plan& plan_;
  NativeAccess& access_;
  const Place own_, peer_;
  Channel channel_;
  std::vector<Message> batch_;
  uint64_t thrown_ = 0;
  uint64_t ring_done_ = 0;
  uint64_t ring_seen_ = 0;  // the peer's counter, when last read
};

/// Memory that exists as long as the object.
class BenchMemory {
 public:
  explicit BenchMemory(const std::string& locator)
      : locator_(locator), media_(create_media(locator, {.size_bytes = kMediaGrainBytes})) {}
  ~BenchMemory() {
    if (media_) (void)remove_media(locator_).status();
  }
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  const Result<std::unique_ptr<Media>>& media() const { return media_; }

 private:
  const std::string locator_;
  const Result<std::unique_ptr<Media>> media_;
};

Result<void> play(Member& me, const Plan& plan) {
  auto media = open_media(plan.locator);
  if (!media) return media.error();
  NativeAccess access(**media, plan.kind);
  Player player(me, plan, access);
  if (auto right = player.check(); !right) return right;
  return player.measure();
}

struct Series {
  std::vector<double> values, limits;
};

/// `amount` divided by seconds, or seconds divided by `amount`, for each round.
Series series(const Team& team, const Plan& plan, Plan::Part part, Plan::Part limit,
              const std::function<double(double seconds)>& figure) {
  Series out;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    out.values.push_back(figure(team.seconds(Plan::section(round, part))));
    out.limits.push_back(figure(team.seconds(Plan::section(round, limit))));
  }
  return out;
}

void report(const Bench& bench, const Plan& plan, const char* row, const char* what,
            const Series& figures, const char* unit, const char* limit,
            const std::optional<Target>& target, uint64_t batch) {
  const bool coherent = plan.kind == FlushKind::NONE;
  Figure figure;
  figure.row = row;
  figure.what = fmt::format(
      "{}, {}", what,
      coherent ? "coherent" : fmt::format("not coherent ({})", flush_kind_name(plan.kind)));
  figure.parameters = {{"flush", flush_kind_name(plan.kind)},
                       {"message_bytes", BH_LINE_BYTES},
                       {"depth", kDepth},
                       {"batch", batch},
                       {"processes", 2}};
  figure.value = summarize(figures.values);
  figure.unit = unit;
  figure.limit = Limit{limit, summarize(figures.limits)};
  figure.ratio = ratio_of(figures.values, figures.limits);
  figure.target = target;
  bench.report.add(figure);
}

void report_kind(const Bench& bench, const Team& team, const Plan& plan) {
  const bool coherent = plan.kind == FlushKind::NONE;
  const auto trips = static_cast<double>(plan.trips);
  const auto messages = static_cast<double>(plan.messages);
  const auto times = [&](double trip_parts) {
    return series(team, plan, Plan::ROUND_TRIP, Plan::PING_PONG,
                  [=](double seconds) { return seconds * 1e9 / trips / trip_parts; });
  };
  report(bench, plan, "rpc_one_way", "message, one way (half a round trip)", times(2), "ns",
         "one word", Target{coherent ? 200.0 : 1200.0, false, false}, 1);
  report(bench, plan, "rpc_round_trip", "question and answer", times(1), "ns", "one word", {}, 1);
  const Series rates = series(team, plan, Plan::STREAM, Plan::RING,
                              [=](double seconds) { return messages / seconds * 1e-6; });
  report(bench, plan, "rpc_rate", "messages one way, 128 deep", rates, "M/s", "counter ring",
         Target{coherent ? 40.0 : 6.0, true, false}, kBatch);
}

Result<void> run_kind(Bench& bench, FlushKind kind) {
  const bool quick = bench.options.quick, coherent = kind == FlushKind::NONE;
  const Plan plan{bench.locator, kind, bench.options.rounds, quick ? 1'000u : 100'000u,
                  (quick      ? 1'000u
                   : coherent ? 200'000u
                              : 50'000u) *
                      kBatch};
  const BenchMemory memory(bench.locator);
  if (!memory.media()) return memory.media().error();
  bench.report.set_media(
      fmt::format("{}: {}", bench.locator, (*memory.media())->traits().description));
  bench.report.progress(fmt::format("messages, publish: {}", flush_kind_name(kind)));
  Team team({bench.machine.cpus[0], bench.machine.cpus[1]}, plan.rounds * Plan::kParts, 0);
  auto result = team.run([&](Member& me) { return play(me, plan); });
  if (result) report_kind(bench, team, plan);
  return result;
}

}  // namespace

Result<void> run_rpc_rows(Bench& bench) {
  if (bench.machine.cpus.size() < 2) {
    fmt::print(stderr,
               "bowhead: the rpc rows are skipped: they need two CPUs, but one is usable\n");
    return {};
  }
  if (auto result = run_kind(bench, FlushKind::NONE); !result) return result;
  const FlushKind best = supported_flush_kinds().front();
  return best == FlushKind::NONE ? Result<void>{} : run_kind(bench, best);
}

}  // namespace bowhead::bench
