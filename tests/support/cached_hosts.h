// SPDX-License-Identifier: Apache-2.0
// CachedHosts: a memory and hosts without coherent caches, for code written over an access policy.
//
// A cache fetches lines early and keeps them, writes dirty lines back at any time (also between two
// stores to a line) and drops clean ones; a flush or an invalidate takes effect at its fence at the
// latest. All this happens between any two accesses of any host, by chance from a seed. In the
// middle of an operation of one host another can do a whole operation (`meanwhile`).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/coherence.h"
#include "base/random.h"
#include "pool/core/words.h"

namespace bowhead::test {

/// The steps that faulty code or hardware omits or reorders.
enum class Fault {
  NONE,
  NO_FLUSH,
  NO_INVALIDATE,
  NO_FENCE,
  NO_FENCE_AFTER_FLUSH,
  NO_FENCE_AFTER_INVALIDATE,
  LAST_WORD_STORED_FIRST,  ///< of a line
  LAST_WORD_LOADED_LAST    ///< of a line: the others were loaded before
};

class CachedHosts {
 public:
  CachedHosts(uint64_t bytes, uint32_t hosts, uint64_t seed)
      : memory_(bytes / BH_LINE_BYTES), hosts_(hosts), random_(seed) {}

  /// Without surprises, caches only fetch early: what is not flushed stays, what is stale stays.
  void set_surprises(bool surprises) { surprises_ = surprises; }

  /// Called at random in the middle of an operation of `host`; it runs to its end.
  std::function<void(uint32_t host)> meanwhile;

  uint64_t load(uint32_t host, uint64_t at) {
    happen(host);
    return fetched(host, at / BH_LINE_BYTES).words[at % BH_LINE_BYTES / 8];
  }
  core::Line load_line(uint32_t host, uint64_t at) {
    return fetched(host, at / BH_LINE_BYTES).words;
  }
  void store(uint32_t host, uint64_t at, uint64_t value) {
    happen(host);
    Cached& line = fetched(host, at / BH_LINE_BYTES);
    line.words[at % BH_LINE_BYTES / 8] = value;
    line.dirty = true;
  }
  void evict(uint32_t host, uint64_t at, uint64_t bytes, bool drop) {
    for (uint64_t line = at / BH_LINE_BYTES; line * BH_LINE_BYTES < at + bytes; ++line) {
      hosts_[host].pending.push_back({line, drop});
      used_[++uses_ % kUsed] = line;
    }
    happen(host);
  }
  void fence(uint32_t host) {
    do {
      apply_some(host);
      happen(host);
    } while (!hosts_[host].pending.empty());
  }
  /// A host dies: data that is only in its cache is lost.
  void lose_cache(uint32_t host) { hosts_[host] = {}; }

 private:
  struct Cached {
    core::Line words{};
    bool dirty = false;
  };
  struct Pending {
    uint64_t line;
    bool drop;
  };
  struct Host {
    std::map<uint64_t, Cached> cache;
    std::vector<Pending> pending;
  };

  Cached& fetched(uint32_t host, uint64_t line) {
    BOWHEAD_ASSERT(line < memory_.size());
    return hosts_[host].cache.try_emplace(line, Cached{memory_[line], false}).first->second;
  }
  void apply(uint32_t host, Pending pending) {
    const auto it = hosts_[host].cache.find(pending.line);
    if (it == hosts_[host].cache.end()) return;
    write_back(pending.line, it->second);
    if (pending.drop) hosts_[host].cache.erase(it);
  }
  void write_back(uint64_t line, Cached& cached) {
    if (cached.dirty) memory_[line] = cached.words;
    cached.dirty = false;
  }
  /// At random, a cache acts by itself, or another host acts.
  void happen(uint32_t actor) {
    while (random_.below(3) == 0) {
      if (meanwhile && !inside_ && random_.below(8) == 0) {
        inside_ = true;
        meanwhile(actor);
        inside_ = false;
      } else {
        surprise();
      }
    }
  }
  void surprise() {
    const auto host = static_cast<uint32_t>(random_.below(hosts_.size()));
    const uint64_t line =
        random_.below(2) == 0 ? used_[random_.below(kUsed)] : random_.below(memory_.size());
    const uint64_t what = random_.below(surprises_ ? 4 : 1);
    const auto it = hosts_[host].cache.find(line);
    if (what == 0) (void)fetched(host, line);
    if (it == hosts_[host].cache.end()) return;
    if (what == 1) write_back(line, it->second);
    if (what == 2 && !it->second.dirty) hosts_[host].cache.erase(it);
    if (what == 3) apply_some(host);
  }
  void apply_some(uint32_t host) {
    auto& pending = hosts_[host].pending;
    if (pending.empty()) return;
    const uint64_t which = random_.below(pending.size());
    apply(host, pending[which]);
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::vector<core::Line> memory_;
  std::vector<Host> hosts_;
  Random random_;
  static constexpr uint64_t kUsed = 4;
  uint64_t used_[kUsed] = {};  // lines in use now: they get more events
  uint64_t uses_ = 0;
  bool surprises_ = true;
  bool inside_ = false;
};

/// The access policy of one host, as far as code for words and lines needs it.
class CachedAccess {
 public:
  CachedAccess(CachedHosts& hosts, uint32_t host, Fault fault = Fault::NONE)
      : hosts_(hosts), host_(host), fault_(fault) {}

  uint64_t load(uint64_t at) const {
    const uint64_t line = at / BH_LINE_BYTES, word = at % BH_LINE_BYTES / 8;
    if (fault_ == Fault::LAST_WORD_LOADED_LAST && word == 7) {
      older_ = hosts_.load_line(host_, at);
      older_at_ = line;
      hosts_.evict(host_, at, 8, /*drop=*/true);  // as any cache may at any time
      hosts_.fence(host_);
    }
    return word != 7 && line == older_at_ ? older_[word] : hosts_.load(host_, at);
  }
  void store(uint64_t at, uint64_t value) {
    const uint64_t line = at / BH_LINE_BYTES;
    if (fault_ == Fault::LAST_WORD_STORED_FIRST) {
      if (at % BH_LINE_BYTES == 56) {
        sealed_.insert(line);
      } else if (sealed_.contains(line)) {
        held_back_.emplace_back(at, value);
        return;
      }
    }
    hosts_.store(host_, at, value);
    for (const auto& [earlier, word] : held_back_) hosts_.store(host_, earlier, word);
    held_back_.clear();
  }
  void flush(uint64_t at, uint64_t bytes) {
    flushed_last_ = true;
    if (fault_ != Fault::NO_FLUSH) hosts_.evict(host_, at, bytes, /*drop=*/false);
  }
  void invalidate(uint64_t at, uint64_t bytes) const {
    flushed_last_ = false;
    if (fault_ != Fault::NO_INVALIDATE) hosts_.evict(host_, at, bytes, /*drop=*/true);
  }
  void fence() const {
    const Fault here =
        flushed_last_ ? Fault::NO_FENCE_AFTER_FLUSH : Fault::NO_FENCE_AFTER_INVALIDATE;
    if (fault_ != Fault::NO_FENCE && fault_ != here) hosts_.fence(host_);
  }
  void coherence_fence() const { fence(); }
  void publish(uint64_t at, uint64_t bytes) {
    flush(at, bytes);
    coherence_fence();
  }
  void acquire(uint64_t at, uint64_t bytes) const {
    invalidate(at, bytes);
    coherence_fence();
  }
  FlushKind flush_kind() const { return FlushKind::CLFLUSHOPT; }

 private:
  CachedHosts& hosts_;
  const uint32_t host_;
  const Fault fault_;
  mutable bool flushed_last_ = false;
  std::set<uint64_t> sealed_;  // lines whose last word is used
  std::vector<std::pair<uint64_t, uint64_t>> held_back_;
  mutable core::Line older_{};
  mutable uint64_t older_at_ = ~uint64_t{0};
};

}  // namespace bowhead::test
