// SPDX-License-Identifier: Apache-2.0
// Both sides go through the same steps, and meet at each. Their messages to each other are
// published and acquired by the heaviest primitive, whichever is on trial.
#include "pool/litmus.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/random.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"
#include "pool/litmus_patterns.h"
#include "pool/media/media.h"

namespace bowhead {
namespace {

using core::NativeAccess;
using Patterns = LitmusPatterns<NativeAccess>;

constexpr uint64_t kMagic = 0x31736D7469Cull;  // of the messages between the sides
constexpr uint64_t kStepWaitNs = 10'000'000'000;
constexpr uint64_t kByeWaitNs = 1'000'000'000;
constexpr uint64_t kHeartbeatWaitNs = 500'000'000;  // a few heartbeats of a live host
constexpr uint32_t kYield = 64;  // round of relax() that yields the CPU and does not sleep
constexpr const char* kHostNames[] = {"A", "B"};

// Lines of an area.
constexpr uint64_t kHello = 0;
constexpr uint64_t kSteps = 1;  // two, for steps of odd and even number
constexpr uint64_t kTrials = 4;
constexpr uint64_t kCosts = kTrials + Patterns::kBytes / BH_LINE_BYTES;
constexpr uint64_t kCostLines = BH_MAIL_AREA_BYTES / BH_LINE_BYTES - kCosts;
static_assert(kCosts < BH_MAIL_AREA_BYTES / BH_LINE_BYTES);

/// In order of the report; both sides go through it alike.
constexpr FlushKind kKinds[] = {FlushKind::CLWB, FlushKind::CLFLUSHOPT, FlushKind::CLFLUSH,
                                FlushKind::NONE};

uint64_t supported_mask() {
  uint64_t mask = 0;
  for (const FlushKind kind : supported_flush_kinds()) mask |= uint64_t{1} << uint32_t(kind);
  return mask;
}

/// The heaviest that this CPU supports.
FlushKind control_kind() {
  const auto& kinds = supported_flush_kinds();  // best first, NONE last
  return kinds.size() > 1 ? kinds[kinds.size() - 2] : FlushKind::NONE;
}

struct OpenedPool {
  std::unique_ptr<Media> media;
  bh_superblock superblock{};
};

Result<OpenedPool> open_pool_below(const std::string& locator) {
  OpenedPool opened;
  auto media = open_media(locator);
  if (!media) return media.error();
  opened.media = std::move(*media);
  const auto copy = [&](uint64_t at) -> std::span<const std::byte> {
    if (opened.media->size_bytes() < at + sizeof(bh_superblock)) return {};
    return {opened.media->base() + at, sizeof(bh_superblock)};
  };
  bool second_used = false;
  auto superblock = core::read_superblock(
      copy(0), copy(BH_SUPERBLOCK_COPY_OFFSET),
      {opened.media->size_bytes(), opened.media->media_count(), opened.media->pool_id()},
      &second_used);
  if (!superblock) return superblock.error();
  if (auto ok = core::check_writable(*superblock); !ok) return ok.error();
  opened.superblock = *superblock;
  return opened;
}

/// False: another litmus of this machine runs as this host. Its lock lies beside those of pools.
bool lock_litmus(int lock_fd, uint32_t host) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = (int64_t{1} << 62) - 64 + host;
  lock.l_len = 1;
  return fcntl(lock_fd, F_OFD_SETLK, &lock) == 0;
}

/// A message from one side to the other at a step.
using Words = std::array<uint64_t, 5>;

class Side {
 public:
  Side(OpenedPool opened, std::string locator, const LitmusOptions& options)
      : locator_(std::move(locator)),
        options_(options),
        media_(std::move(opened.media)),
        layout_(opened.superblock.geometry),
        control_(*media_, control_kind()),
        own_(layout_.mail(me(), peer(), 0)),
        peer_area_(layout_.mail(peer(), me(), 0)),
        random_(random_u64_from_os()) {}
  ~Side() {
    if (saved_.empty()) return;
    for (uint64_t i = 0; i < saved_.size(); ++i)
      control_.store_line(own_ + i * BH_LINE_BYTES, saved_[i]);
    control_.publish(own_, BH_MAIL_AREA_BYTES);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  Result<LitmusReport> run() {
    if (auto ok = prepare(); !ok) return ok.error();
    if (auto ok = meet(); !ok) return ok.error();
    LitmusReport report;
    report.one_machine = control_.boot_id() != 0 && hello_word(peer_area_, 5) == control_.boot_id();
    report.in_use[me()] = choose_flush_kind(/*beyond_host=*/true);
    report.in_use[peer()] = static_cast<FlushKind>(hello_word(peer_area_, 4));
    const uint64_t both = supported_mask() & hello_word(peer_area_, 3);
    const auto count = static_cast<uint64_t>(std::popcount(both));
    for (const FlushKind kind : kKinds) {
      if ((both >> uint32_t(kind) & 1) == 0) continue;
      auto result = try_kind(kind, static_cast<uint64_t>(options_.seconds * 1e9) / count);
      if (!result) return result.error();
      report.results.push_back(*result);
    }
    say_bye();
    if (auto ok = refuse_if_open(); !ok) return ok.error();
    return report;
  }

 private:
  uint32_t me() const { return options_.host; }
  uint32_t peer() const { return 1 - options_.host; }
  bool leads() const { return me() == 0; }

  // ---- before ----

  Result<void> prepare() {
    if (auto ok = refuse_if_open(); !ok) return ok;
    if (!lock_litmus(media_->lock_fd(), me()))
      return Error{Status::IN_USE, fmt::format("another `bowhead litmus {} --host {}` is running",
                                               locator_, kHostNames[me()])};
    if (auto ok = protect(); !ok) return ok;
    if (auto ok = refuse_if_heartbeats_move(); !ok) return ok;
    control_.acquire(own_, BH_MAIL_AREA_BYTES);
    for (uint64_t at = own_; at < own_ + BH_MAIL_AREA_BYTES; at += BH_LINE_BYTES)
      saved_.push_back(control_.load_line(at));
    return {};
  }

  Result<void> refuse_if_open() const {
    if (!NativeAccess::is_locked_by_any(media_->lock_fd())) return {};
    return Error{Status::IN_USE,
                 locator_ +
                     ": processes of this machine have the pool open; litmus writes where "
                     "they do: end them first"};
  }

  /// Processes of other machines take no locks here, but their hosts have heartbeats.
  Result<void> refuse_if_heartbeats_move() const {
    const uint32_t hosts = layout_.geometry().host_count;
    const auto heartbeats = [&] {
      std::vector<uint64_t> words;
      for (uint32_t host = 0; host < hosts; ++host) {
        const uint64_t at = layout_.part(host, BH_PART_HEARTBEAT);
        control_.acquire(at, BH_LINE_BYTES);
        words.push_back(control_.load(at + offsetof(bh_host_heartbeat, heartbeat)));
      }
      return words;
    };
    const auto before = heartbeats();
    control_.sleep_ns(kHeartbeatWaitNs);
    const auto after = heartbeats();
    for (uint32_t host = 0; host < hosts; ++host) {
      if (before[host] == after[host]) continue;
      return Error{Status::IN_USE,
                   fmt::format("{}: host {} has the pool open (its heartbeat moves); litmus writes "
                               "where hosts do: end its processes first",
                               locator_, host)};
    }
    return {};
  }

  /// Only the own region can be written (rule R1).
  Result<void> protect() {
    const uint64_t grain = media_->traits().page_bytes;
    const uint64_t region = layout_.part(me(), 0);
    const uint64_t begin = region / grain * grain;
    const uint64_t end = (region + layout_.geometry().region_bytes + grain - 1) / grain * grain;
    if (auto ok = media_->protect(0, begin, /*writable=*/false); !ok) return ok;
    return media_->protect(end, media_->size_bytes() - end, /*writable=*/false);
  }

  // ---- meeting ----

  uint64_t hello_word(uint64_t area, uint64_t word) const {
    return control_.load(area + kHello * BH_LINE_BYTES + word * 8);
  }
  void store_hello(uint64_t word, uint64_t value) {
    control_.store(own_ + kHello * BH_LINE_BYTES + word * 8, value);
  }
  void publish_hello() { control_.publish(own_ + kHello * BH_LINE_BYTES, BH_LINE_BYTES); }

  /// Each writes a number of its own and the one that it sees of the other. Two that see their own
  /// number there have met, whatever an earlier run left behind.
  Result<void> meet() {
    const uint64_t nonce = random_u64_from_os() | 1;
    uint64_t seen = 0;
    const Words words = {seen, kMagic, supported_mask(),
                         uint64_t(choose_flush_kind(/*beyond_host=*/true)), control_.boot_id()};
    for (uint64_t i = 0; i < words.size(); ++i) store_hello(1 + i, words[i]);
    store_hello(0, nonce);
    publish_hello();
    const std::string waiting =
        fmt::format("waiting for host {}: run `bowhead litmus {} --host {}`", kHostNames[peer()],
                    locator_, kHostNames[peer()]);
    const uint64_t deadline_ns =
        control_.now_ns() + static_cast<uint64_t>(options_.wait_seconds * 1e9);
    for (;;) {
      control_.acquire(peer_area_ + kHello * BH_LINE_BYTES, BH_LINE_BYTES);
      const uint64_t other = hello_word(peer_area_, 0);
      if (hello_word(peer_area_, 2) == kMagic && other != seen) {
        seen = other;
        store_hello(1, seen);
        publish_hello();
      }
      if (seen != 0 && other == seen && hello_word(peer_area_, 1) == nonce) break;
      if (control_.now_ns() > deadline_ns) return peer_timed_out();
      report_progress(waiting.c_str());
      control_.sleep_ns(200'000);
    }
    base_ = ((leads() ? nonce : seen) | uint64_t{1} << 63) & ~uint64_t{0xFFFFFFFF};
    begin_ns_ = control_.now_ns();
    return {};
  }

  Error peer_timed_out() const {
    return Error{
        Status::BUSY,
        fmt::format("{}: host {} did not come within {} s: start `bowhead litmus LOCATOR "
                    "--host {}` there, on the same memory (if it runs, what one host "
                    "writes never reaches the other)",
                    locator_, kHostNames[peer()], options_.wait_seconds, kHostNames[peer()])};
  }

  void report_progress(const char* what) const {
    if (!options_.progress) return;
    const uint64_t all_ns = begin_ns_ == 0 ? 0 : static_cast<uint64_t>(options_.seconds * 1e9);
    const uint64_t done_ns = begin_ns_ == 0 ? 0 : control_.now_ns() - begin_ns_;
    options_.progress(std::min(done_ns, all_ns), all_ns, what);
  }

  // ---- steps ----

  static uint64_t step_line(uint64_t area, uint64_t step) {
    return area + (kSteps + step % 2) * BH_LINE_BYTES;
  }
  /// Steps use two lines in turn: a side that is a step ahead does not write the line still read.
  void enter(const Words& words) {
    const uint64_t line = step_line(own_, ++step_);
    for (uint64_t i = 0; i < words.size(); ++i) control_.store(line + (1 + i) * 8, words[i]);
    control_.store(line, base_ + step_);
    control_.publish(line, BH_LINE_BYTES);
  }
  bool peer_is_at(uint64_t step) const {
    const uint64_t line = step_line(peer_area_, step);
    control_.acquire(line, BH_LINE_BYTES);
    return control_.load(line) == base_ + step;
  }
  bool await_peer(uint64_t wait_ns) const {
    uint64_t deadline_ns = 0;
    for (uint32_t round = 0; !peer_is_at(step_); ++round) {
      if (round == 64) deadline_ns = control_.now_ns() + wait_ns;
      if (round > 64 && control_.now_ns() > deadline_ns) return false;
      control_.relax(std::min(round, kYield));  // a side that sleeps is late for the next trial
    }
    return true;
  }
  /// Both sides come here before either goes on; returns the other side's message.
  Result<Words> step(const Words& words = {}) {
    enter(words);
    if (!await_peer(kStepWaitNs)) return stopped_answering();
    Words answer;
    for (uint64_t i = 0; i < answer.size(); ++i)
      answer[i] = control_.load(step_line(peer_area_, step_) + (1 + i) * 8);
    return answer;
  }
  Error stopped_answering() const {
    return Error{Status::BUSY, fmt::format("{}: host {} stopped answering; start litmus anew on "
                                           "both hosts",
                                           locator_, kHostNames[peer()])};
  }
  /// Lets the other side read the last message, before the lines get back their former content.
  void say_bye() {
    enter({});
    if (await_peer(kByeWaitNs)) control_.sleep_ns(50'000'000);
  }

  // ---- trials ----

  Result<LitmusResult> try_kind(FlushKind kind, uint64_t ns) {
    LitmusResult result;
    result.kind = kind;
    NativeAccess access(*media_, kind);
    Patterns patterns(access, own_ + kTrials * BH_LINE_BYTES, peer_area_ + kTrials * BH_LINE_BYTES);
    for (uint32_t i = 0; i < kLitmusPatterns; ++i) {
      const auto pattern = static_cast<LitmusPattern>(i);
      auto tally = try_pattern(patterns, kind, pattern, ns / kLitmusPatterns);
      if (!tally) return tally.error();
      result.patterns[i] = *tally;
    }
    for (uint32_t host = 0; host < 2; ++host) {
      Words costs{};
      if (host == me()) costs = measure_costs(access);
      const auto said = step(costs);
      if (!said) return said.error();
      if (host == peer()) costs = *said;
      result.publish_ns[host] = static_cast<double>(costs[0]) / 1000;
      result.acquire_ns[host] = static_cast<double>(costs[1]) / 1000;
    }
    return result;
  }

  Result<LitmusTally> try_pattern(Patterns& patterns, FlushKind kind, LitmusPattern pattern,
                                  uint64_t ns) {
    const std::string what =
        fmt::format("{}: {}", flush_kind_name(kind), litmus_pattern_name(pattern));
    const uint64_t until_ns = control_.now_ns() + ns;
    LitmusTally tally;
    for (;;) {
      const bool more = control_.now_ns() < until_ns;
      const auto leader = step({more});
      if (!leader) return leader.error();
      if (!(leads() ? more : (*leader)[0] != 0)) return tally;
      const auto stale = try_batch(patterns, pattern);
      if (!stale) return stale.error();
      tally.rounds += Patterns::kSlots;
      tally.stale += static_cast<uint64_t>(std::popcount(*stale));
      report_progress(what.c_str());
    }
  }

  /// One trial in each slot; a bit for each that was stale. The roles change from batch to batch.
  Result<uint64_t> try_batch(Patterns& patterns, LitmusPattern pattern) {
    const uint64_t value = base_ + ++batch_;
    const bool writes = (batch_ % 2 == 0) == leads();
    if (pattern == LitmusPattern::LEASE_AGAINST_RETIRE && writes)
      for (uint32_t slot = 0; slot < Patterns::kSlots; ++slot) patterns.write_header(slot, value);
    if (auto met = step(); !met) return met.error();
    if (!writes) patterns.fetch_early();
    if (auto met = step(); !met) return met.error();

    const auto missed = try_slots(patterns, pattern, writes, value);
    if (!missed) return missed.error();
    const auto said = step({*missed});
    if (!said) return said.error();
    // A message is missed by its reader; of the other patterns both sides must miss the store.
    return pattern == LitmusPattern::MESSAGE_PASSING ? *missed | (*said)[0] : *missed & (*said)[0];
  }

  Result<uint64_t> try_slots(Patterns& patterns, LitmusPattern pattern, bool writes,
                             uint64_t value) {
    uint64_t missed = 0;
    for (uint32_t slot = 0; slot < Patterns::kSlots; ++slot) {
      pause();
      bool seen = true;
      if (pattern == LitmusPattern::STORE_BUFFERING) {
        seen = patterns.store_and_look(slot, value);
      } else if (pattern == LitmusPattern::LEASE_AGAINST_RETIRE) {
        seen = writes ? patterns.retire(slot, value) : patterns.take_lease(slot, value);
      } else if (writes) {
        patterns.write_message(slot, value);
      } else {
        const auto arrived = await_message(patterns, slot, value);
        if (!arrived) return arrived.error();
        seen = *arrived;
      }
      if (!seen) missed |= uint64_t{1} << slot;
    }
    return missed;
  }

  /// Whether the message arrived intact. Once the writer has sent all its messages, one that cannot
  /// be seen is stale.
  Result<bool> await_message(const Patterns& patterns, uint32_t slot, uint64_t value) const {
    const uint64_t deadline_ns = control_.now_ns() + kStepWaitNs;
    for (uint32_t round = 1;; ++round) {
      const bool all_written = round % 64 == 0 && peer_is_at(step_ + 1);
      const auto arrival = patterns.read_message(slot, value);
      if (arrival != Patterns::Arrival::NOT_YET) return arrival == Patterns::Arrival::RIGHT;
      if (all_written) return false;
      if (round % 64 != 0) continue;
      if (control_.now_ns() > deadline_ns) return stopped_answering();
      control_.relax(kYield);  // the writer may need this CPU
    }
  }

  /// Varies the timing of the two sides.
  void pause() {
    for (uint64_t i = random_.below(64); i > 0; --i) asm volatile("" ::: "memory");
  }

  /// Picoseconds per line: of a publish, and of an acquire with a load; the best of a few rounds.
  Words measure_costs(NativeAccess& access) const {
    constexpr uint64_t kRepeats = 5, kTimes = 2000;
    Words best = {~uint64_t{0}, ~uint64_t{0}};
    for (uint64_t repeat = 0; repeat < kRepeats; ++repeat) {
      const uint64_t begin_ns = control_.now_ns();
      for (uint64_t i = 0; i < kTimes; ++i) {
        const uint64_t line = own_ + (kCosts + i % kCostLines) * BH_LINE_BYTES;
        access.store(line, i);
        access.publish(line, BH_LINE_BYTES);
      }
      const uint64_t middle_ns = control_.now_ns();
      for (uint64_t i = 0; i < kTimes; ++i) {
        const uint64_t line = peer_area_ + (kCosts + i % kCostLines) * BH_LINE_BYTES;
        access.acquire(line, BH_LINE_BYTES);
        (void)access.load(line);
      }
      best[0] = std::min(best[0], (middle_ns - begin_ns) * 1000 / kTimes);
      best[1] = std::min(best[1], (control_.now_ns() - middle_ns) * 1000 / kTimes);
    }
    return best;
  }

  const std::string locator_;
  const LitmusOptions& options_;
  const std::unique_ptr<Media> media_;
  const core::Layout layout_;
  NativeAccess control_;
  const uint64_t own_;
  const uint64_t peer_area_;
  Random random_;
  std::vector<core::Line> saved_;  // former content of the own area
  uint64_t base_ = 0;              // base of all values of this run
  uint64_t step_ = 0;
  uint64_t batch_ = 0;
  uint64_t begin_ns_ = 0;
};

}  // namespace

const char* litmus_pattern_name(LitmusPattern pattern) {
  switch (pattern) {
    case LitmusPattern::MESSAGE_PASSING:
      return "message passing";
    case LitmusPattern::STORE_BUFFERING:
      return "store buffering";
    case LitmusPattern::LEASE_AGAINST_RETIRE:
      return "lease against retire";
  }
  BOWHEAD_ASSERT(false && "a pattern without a name");
}

bool LitmusResult::stale() const {
  return std::any_of(patterns.begin(), patterns.end(),
                     [](const LitmusTally& tally) { return tally.stale != 0; });
}

double LitmusResult::cost_ns() const {
  return std::max(publish_ns[0], publish_ns[1]) + std::max(acquire_ns[0], acquire_ns[1]);
}

std::optional<FlushKind> LitmusReport::recommended() const {
  constexpr double kMuchCheaper = 0.9;
  const LitmusResult* best = nullptr;
  const LitmusResult* used = nullptr;
  for (const LitmusResult& result : results) {
    if (result.kind == FlushKind::NONE || result.stale()) continue;
    if (best == nullptr || result.cost_ns() < best->cost_ns()) best = &result;
    if (result.kind == in_use[0] && result.kind == in_use[1]) used = &result;
  }
  if (best == nullptr) return std::nullopt;
  if (used != nullptr && best->cost_ns() > kMuchCheaper * used->cost_ns()) best = used;
  return best->kind;
}

bool LitmusReport::safe_in_use() const {
  return std::none_of(results.begin(), results.end(), [&](const LitmusResult& result) {
    return result.stale() && std::count(in_use.begin(), in_use.end(), result.kind) != 0;
  });
}

Result<LitmusReport> run_litmus(const std::string& locator, const LitmusOptions& options) {
  auto opened = open_pool_below(locator);
  if (!opened) return opened.error();
  if (opened->superblock.geometry.host_count < 2)
    return Error{Status::INVALID_ARGUMENT,
                 locator +
                     ": this pool was made for one host; make one for two with `bowhead pool "
                     "create LOCATOR --size 64M --hosts 2`"};
  Side side(std::move(*opened), locator, options);
  return side.run();
}

}  // namespace bowhead
