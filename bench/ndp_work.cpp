// SPDX-License-Identifier: Apache-2.0
#include "bench/ndp_work.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <latch>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/random.h"
#include "bench/ndp_checks.h"
#include "bench/ndp_limits.h"
#include "bench/team.h"
#include "ndp/frames.h"
#include "ndp/plane_keys.h"

namespace bowhead::bench {
namespace {

using ndp::KeySpan;
using ndp::KvSpan;

class Read final : public Work {
 public:
  explicit Read(const Walk& walk) : walk_(walk) {}
  uint64_t amount() const override { return walk_.bytes(); }
  void work(size_t core) override {
    read_memory(walk_.shares[core].data(), walk_.shares[core].size());
  }

 private:
  const Walk& walk_;
};

class Multiply final : public Work {
 public:
  Multiply(NumberFormat keys, size_t cores, uint64_t count)
      : multiplication_(multiplication(keys)), count_(count), made_(cores) {}
  uint64_t amount() const override {
    uint64_t sum = 0;
    for (const Made& made : made_) sum += made.count;
    return sum;
  }
  void work(size_t core) override { made_[core].count = multiplication_.run(count_); }

 private:
  struct alignas(64) Made {
    uint64_t count = 0;
  };
  const Multiplication& multiplication_;
  const uint64_t count_;
  std::vector<Made> made_;
};

/// Spans of keys by share.
class OverSpans : public Work {
 public:
  OverSpans(const Walk& walk, uint32_t channels) : shares_(walk.spans(channels)) {}
  uint64_t amount() const override {
    uint64_t rows = 0;
    for (const auto& share : shares_) rows += share.size() * kSpanTokens;
    return rows * shares_.front().front().keys.row_bytes();
  }

 protected:
  std::vector<KeySpan> all_spans() const {
    std::vector<KeySpan> all;
    for (const auto& share : shares_) all.insert(all.end(), share.begin(), share.end());
    return all;
  }
  const std::vector<std::vector<KeySpan>> shares_;
};

class FindBest : public OverSpans {
 public:
  FindBest(const Walk& walk, uint32_t queries)
      : OverSpans(walk, kHeadChannels),
        queries_(make_queries(queries, kHeadChannels, walk.data->number())) {}
  void begin() override {
    best_.clear();
    for (size_t i = 0; i < shares_.size(); ++i) {
      auto best = ndp::TopK::of(queries_.count(), kWantedHits);
      BOWHEAD_ASSERT(best);
      best_.push_back(std::move(*best));
    }
  }
  void work(size_t core) override { BOWHEAD_ASSERT(best_[core].add(queries_, shares_[core], {})); }
  void merge() override {
    for (size_t i = 1; i < best_.size(); ++i) BOWHEAD_ASSERT(best_.front().merge(best_[i]));
    for (uint32_t q = 0; q < queries_.count(); ++q)
      BOWHEAD_ASSERT(best_.front().hits(q).size() == kWantedHits);
  }
  Result<void> check() override {
    const auto spans = all_spans();
    std::vector<float> scores(spans.size() * kSpanTokens * queries_.count());
    BOWHEAD_ASSERT(ndp::score(queries_, spans, {}, scores));
    if (auto good = check_scores(queries_, spans, scores); !good) return good;
    for (uint32_t q = 0; q < queries_.count(); ++q) {
      if (auto good = check_hits(queries_, spans, scores, q, best_.front().hits(q)); !good)
        return good;
    }
    return {};
  }

 protected:
  const ndp::Queries queries_;
  std::vector<ndp::TopK> best_;
};

/// By share: its spans in pages of an engine's cache, in random order.
std::vector<std::vector<KeySpan>> shuffled_pages(const std::vector<std::vector<KeySpan>>& shares) {
  std::vector<std::vector<KeySpan>> pages;
  Random random(1);
  for (const auto& share : shares) {
    std::vector<KeySpan>& of = pages.emplace_back();
    for (const KeySpan& span : share) {
      for (uint32_t first = 0; first < span.keys.tokens; first += kPageTokens) {
        KeySpan page{span.first_token + first, span.keys};
        page.keys.data = span.keys.row(first);
        page.keys.tokens = kPageTokens;
        if (page.keys.scales != nullptr) page.keys.scales += first;
        of.push_back(page);
      }
    }
    for (size_t i = of.size(); i > 1; --i) std::swap(of[i - 1], of[random.below(i)]);
  }
  return pages;
}

class FindInPages final : public FindBest {
 public:
  FindInPages(const Walk& walk, uint32_t queries)
      : FindBest(walk, queries), pages_(shuffled_pages(shares_)) {}
  void work(size_t core) override { BOWHEAD_ASSERT(best_[core].add(queries_, pages_[core], {})); }

 private:
  const std::vector<std::vector<KeySpan>> pages_;
};

class ReadPages final : public OverSpans {
 public:
  explicit ReadPages(const Walk& walk)
      : OverSpans(walk, kHeadChannels), pages_(shuffled_pages(shares_)) {}
  void work(size_t core) override {
    for (const KeySpan& page : pages_[core])
      read_memory(page.keys.data, page.keys.tokens * page.keys.stride_bytes);
  }

 private:
  const std::vector<std::vector<KeySpan>> pages_;
};

class Attend : public OverSpans {
 public:
  Attend(const Walk& walk, uint32_t queries)
      : OverSpans(walk, kHeadChannels),
        queries_(make_queries(queries, kHeadChannels, walk.data->number())) {
    for (const auto& share : shares_) {
      std::vector<KvSpan>& pairs = pairs_.emplace_back();
      for (size_t i = 0; i + 1 < share.size(); i += 2)
        pairs.push_back({share[i].first_token, share[i].keys, share[i + 1].keys});
    }
  }
  void begin() override {
    sums_.clear();
    for (size_t i = 0; i < shares_.size(); ++i) sums_.push_back(nothing());
  }
  void work(size_t core) override { BOWHEAD_ASSERT(sums_[core].add(queries_, pairs_[core], {})); }
  void merge() override {
    for (size_t i = 1; i < sums_.size(); ++i) BOWHEAD_ASSERT(sums_.front().merge(sums_[i]));
    std::vector<float> out(kHeadChannels);
    for (uint32_t q = 0; q < queries_.count(); ++q)
      BOWHEAD_ASSERT(sums_.front().output(q, out) == Status::OK);
  }
  /// Checks the last spans of each share: by the definition a whole pass would take too long.
  Result<void> check() override {
    auto sum = nothing();
    std::vector<KvSpan> some;
    for (const auto& pairs : pairs_) {
      some.push_back(pairs.back());
      auto more = nothing();
      BOWHEAD_ASSERT(more.add(queries_, std::span(&pairs.back(), 1), {}) && sum.merge(more));
    }
    return check_attention(queries_, some, sum);
  }

 protected:
  ndp::Attention nothing() const {
    auto sums = ndp::Attention::of(queries_.count(), kHeadChannels);
    BOWHEAD_ASSERT(sums);
    return std::move(*sums);
  }
  const ndp::Queries queries_;
  std::vector<std::vector<KvSpan>> pairs_;
  std::vector<ndp::Attention> sums_;
};

/// Frames of the fast profile, which stay where they are.
class Frames {
 public:
  compression::ConstBytes add(const ndp::Rows& rows) {
    const compression::Shape shape{rows.number, 1, rows.tokens, rows.channels, {}};
    auto& frame = frames_.emplace_back(frame_bound(shape));
    const auto bytes = encoder_.encode(shape, {rows.row(0), shape.size_bytes()}, frame);
    BOWHEAD_ASSERT(bytes);
    frame.resize(*bytes);
    frame.shrink_to_fit();
    return frame;
  }

 private:
  compression::Encoder encoder_{compression::Profile::FAST};
  std::deque<std::vector<uint8_t>> frames_;
};

class FindInFrames final : public OverSpans {
 public:
  FindInFrames(const Walk& walk, uint32_t queries, bool plain)
      : OverSpans(walk, kHeadChannels),
        plain_(plain),
        queries_(make_queries(queries, kHeadChannels, walk.data->number())),
        readers_(shares_.size()),
        framed_(shares_.size()),
        hits_(shares_.size()) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      for (const KeySpan& span : shares_[i])
        framed_[i].push_back({span.first_token, {frames_.add(span.keys)}});
    }
  }
  void work(size_t core) override {
    const std::span<const ndp::FramedKeys> all(framed_[core]);
    hits_[core].clear();
    for (size_t at = 0; at < all.size(); at += kSequenceSpans) {
      const auto sequence = all.subspan(at, std::min(kSequenceSpans, all.size() - at));
      hits_[core].push_back(plain_ ? scan(core, sequence) : search(sequence));
    }
  }
  /// Both ways find keys of the same scores, to rounding.
  Result<void> check() override {
    for (size_t i = 0; i < shares_.size(); ++i) {
      const std::span<const ndp::FramedKeys> all(framed_[i]);
      const auto some = all.first(std::min(kSequenceSpans, all.size()));
      const auto scanned = scan(i, some), searched = search(some);
      for (size_t h = 0; h < scanned.size(); ++h) {
        const float a = scanned[h].score, b = searched[h].score;
        if (!(std::abs(a - b) <= 0.01f * std::max(1.0f, std::abs(a))))
          return Error{Status::DAMAGED, "the best keys in frames differ from those of their rows"};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kSequenceSpans = kSequenceTokens / kSpanTokens;
  using Hits = std::vector<ndp::Hit>;

  Hits search(std::span<const ndp::FramedKeys> sequence) const {
    std::vector<ndp::PlaneKeys> keys;
    std::vector<const ndp::PlaneKeys*> blocks;
    keys.reserve(sequence.size());
    for (const ndp::FramedKeys& framed : sequence) {
      auto opened = ndp::PlaneKeys::open(framed.keys.frame, 0, framed.first_token);
      BOWHEAD_ASSERT(opened);
      blocks.push_back(&keys.emplace_back(std::move(*opened)));
    }
    const auto answer = ndp::exact_top_k(queries_, blocks, {}, kSequenceHits);
    BOWHEAD_ASSERT(answer);
    Hits all;
    for (const auto& of_query : answer->hits)
      all.insert(all.end(), of_query.begin(), of_query.end());
    return all;
  }
  Hits scan(size_t core, std::span<const ndp::FramedKeys> sequence) {
    auto best = ndp::TopK::of(queries_.count(), kSequenceHits).value();
    const auto done = readers_[core].for_keys(
        sequence, {}, ndp::Unreadable::REFUSE,
        [&](std::span<const KeySpan> rows) { return best.add(queries_, rows, {}); });
    BOWHEAD_ASSERT(done);
    Hits all;
    for (uint32_t q = 0; q < queries_.count(); ++q) {
      const auto of_query = best.hits(q);
      all.insert(all.end(), of_query.begin(), of_query.end());
    }
    return all;
  }

  const bool plain_;
  const ndp::Queries queries_;
  Frames frames_;
  std::vector<ndp::FrameReader> readers_;
  std::vector<std::vector<ndp::FramedKeys>> framed_;
  std::vector<std::vector<Hits>> hits_;  // by share and sequence
};

class AttendFrames final : public Attend {
 public:
  AttendFrames(const Walk& walk, uint32_t queries, bool plain)
      : Attend(walk, queries), plain_(plain), readers_(shares_.size()), framed_(shares_.size()) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      for (const KvSpan& pair : pairs_[i])
        framed_[i].push_back(
            {pair.first_token, {frames_.add(pair.keys)}, {frames_.add(pair.values)}});
    }
  }
  void work(size_t core) override {
    const auto attend = [&](std::span<const KvSpan> rows) -> Result<void> {
      if (plain_) return {};
      return sums_[core].add(queries_, rows, {});
    };
    const auto done =
        readers_[core].for_keys_and_values(framed_[core], {}, ndp::Unreadable::REFUSE, attend);
    BOWHEAD_ASSERT(done);
  }
  /// Attention to rows gives the same answer, bit for bit.
  Result<void> check() override {
    if (plain_) return {};
    std::vector<float> framed(kHeadChannels), rows(kHeadChannels);
    for (size_t i = 0; i < shares_.size(); ++i) {
      auto of_frames = nothing(), of_rows = nothing();
      const auto framed_done = readers_[i].for_keys_and_values(
          framed_[i], {}, ndp::Unreadable::REFUSE,
          [&](std::span<const KvSpan> some) { return of_frames.add(queries_, some, {}); });
      BOWHEAD_ASSERT(framed_done && of_rows.add(queries_, pairs_[i], {}));
      for (uint32_t q = 0; q < queries_.count(); ++q) {
        BOWHEAD_ASSERT(of_frames.output(q, framed) == Status::OK);
        BOWHEAD_ASSERT(of_rows.output(q, rows) == Status::OK);
        if (framed != rows || of_frames.log_sum_exp(q) != of_rows.log_sum_exp(q))
          return Error{Status::DAMAGED, "attention to frames differs from attention to their rows"};
      }
    }
    return {};
  }

 private:
  const bool plain_;
  std::vector<ndp::FrameReader> readers_;
  Frames frames_;
  std::vector<std::vector<ndp::FramedKv>> framed_;
};

class Score final : public OverSpans {
 public:
  Score(const Walk& walk, uint32_t queries, uint32_t channels)
      : OverSpans(walk, channels), queries_(make_queries(queries, channels, walk.data->number())) {
    for (const auto& share : shares_) scores_.emplace_back(share.size() * kSpanTokens * queries);
  }
  void work(size_t core) override {
    BOWHEAD_ASSERT(ndp::score(queries_, shares_[core], {}, scores_[core]));
  }
  Result<void> check() override {
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (auto good = check_scores(queries_, shares_[i], scores_[i]); !good) return good;
    }
    return {};
  }

 private:
  const ndp::Queries queries_;
  std::vector<std::vector<float>> scores_;
};

class Digest final : public OverSpans {
 public:
  explicit Digest(const Walk& walk) : OverSpans(walk, kHeadChannels), digests_(shares_.size()) {}
  void begin() override {
    for (auto& digests : digests_) digests.clear();
  }
  void work(size_t core) override {
    for (const KeySpan& span : shares_[core]) {
      auto digests = ndp::digest(span, kPageTokens);
      BOWHEAD_ASSERT(digests);
      digests_[core].push_back(std::move(*digests));
    }
  }
  Result<void> check() override {
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (auto good = check_digests(shares_[i].back(), digests_[i].back()); !good) return good;
    }
    return {};
  }

 private:
  std::vector<std::vector<ndp::Digests>> digests_;
};

class Gather final : public OverSpans {
 public:
  Gather(const Walk& walk, bool plain) : OverSpans(walk, kHeadChannels), plain_(plain) {
    Random random(1);
    for (const auto& share : shares_) {
      Wanted& wanted = wanted_.emplace_back();
      for (size_t i = 0; i < share.size() * kSpanTokens / 8; ++i) {
        const KeySpan& span = share[random.below(share.size())];
        const auto token = static_cast<uint32_t>(random.below(kSpanTokens));
        wanted.tokens.push_back(span.first_token + token);
        wanted.rows.push_back(span.keys.row(token));
      }
      wanted.out.resize(wanted.rows.size() * row_bytes());
    }
  }
  uint64_t amount() const override {
    uint64_t bytes = 0;
    for (const Wanted& wanted : wanted_) bytes += wanted.out.size();
    return bytes;
  }
  void work(size_t core) override {
    Wanted& wanted = wanted_[core];
    if (!plain_) {
      BOWHEAD_ASSERT(ndp::gather(shares_[core], wanted.tokens, wanted.out));
      return;
    }
    std::byte* to = wanted.out.data();
    for (const uint8_t* row : wanted.rows) {
      std::memcpy(to, row, row_bytes());
      to += row_bytes();
    }
  }
  Result<void> check() override {
    for (const Wanted& wanted : wanted_) {
      for (size_t i = 0; i < wanted.rows.size(); ++i) {
        if (std::memcmp(&wanted.out[i * row_bytes()], wanted.rows[i], row_bytes()) != 0)
          return Error{Status::DAMAGED, "a gathered row is wrong"};
      }
    }
    return {};
  }

 private:
  struct Wanted {
    std::vector<uint32_t> tokens;
    std::vector<const uint8_t*> rows;
    std::vector<std::byte> out;
  };
  size_t row_bytes() const { return shares_.front().front().keys.row_bytes(); }
  const bool plain_;
  std::vector<Wanted> wanted_;
};

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

Works make_read(const Walk& walk) { return std::make_unique<Read>(walk); }
Works make_multiply(NumberFormat keys, size_t cores, uint64_t count) {
  return std::make_unique<Multiply>(keys, cores, count);
}
Works make_topk(const Walk& walk, uint32_t queries) {
  return std::make_unique<FindBest>(walk, queries);
}
Works make_topk_of_pages(const Walk& walk, uint32_t queries) {
  return std::make_unique<FindInPages>(walk, queries);
}
Works make_topk_in_frames(const Walk& walk, uint32_t queries, bool plain) {
  return std::make_unique<FindInFrames>(walk, queries, plain);
}
Works make_read_of_pages(const Walk& walk) { return std::make_unique<ReadPages>(walk); }
Works make_attend(const Walk& walk, uint32_t queries) {
  return std::make_unique<Attend>(walk, queries);
}
Works make_attend_frames(const Walk& walk, uint32_t queries, bool plain) {
  return std::make_unique<AttendFrames>(walk, queries, plain);
}
Works make_score(const Walk& walk, uint32_t queries, uint32_t channels) {
  return std::make_unique<Score>(walk, queries, channels);
}
Works make_digest(const Walk& walk) { return std::make_unique<Digest>(walk); }
Works make_gather(const Walk& walk, bool plain) { return std::make_unique<Gather>(walk, plain); }

double seconds_of(Work& work, const std::vector<int>& cpus) {
  struct alignas(64) Interval {
    uint64_t begin_ns = 0, end_ns = 0;
  };
  work.begin();
  std::vector<Interval> intervals(cpus.size());
  std::latch all_there(static_cast<std::ptrdiff_t>(cpus.size()));
  std::vector<std::thread> threads;
  for (size_t core = 0; core < cpus.size(); ++core) {
    threads.emplace_back([&, core] {
      pin_to(cpus[core]);
      all_there.arrive_and_wait();
      intervals[core].begin_ns = now_ns();
      work.work(core);
      intervals[core].end_ns = now_ns();
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t begin = UINT64_MAX, end = 0;
  for (const Interval& interval : intervals) {
    begin = std::min(begin, interval.begin_ns);
    end = std::max(end, interval.end_ns);
  }
  const uint64_t merging = now_ns();
  work.merge();
  return static_cast<double>(end - begin + now_ns() - merging) * 1e-9;
}

}  // namespace bowhead::bench
