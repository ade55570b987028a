// SPDX-License-Identifier: Apache-2.0
// Memory: the lines of the pool in its medium. Cache: the lines in one machine.
//
// Between the two, everything that the hardware may do at any time: a line is fetched early and
// stays although the memory changes, a dirty line is written back late or between two stores to it,
// a clean line is dropped. Weak memory: a line that leaves the machine is in flight for a bounded
// time; other lines overtake it, but it never overtakes itself. Lines in flight arrive even if the
// machine crashes.
#pragma once

#include <bowhead/format/common.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/assert.h"
#include "pool/core/words.h"
#include "tests/sim/dice.h"

namespace bowhead::sim {

using core::Line;

class Memory {
 public:
  /// All zero, cheaply: only written lines are cleared.
  void reset(uint64_t lines) {
    for (const uint64_t line : written_) {
      lines_[line] = Line{};
      is_written_[line] = false;
    }
    written_.clear();
    if (lines_.size() < lines) {
      lines_.resize(lines);
      is_written_.resize(lines);
    }
  }
  const Line& read(uint64_t line) const { return lines_[line]; }
  void write(uint64_t line, const Line& words) {
    if (!is_written_[line]) {
      is_written_[line] = true;
      written_.push_back(line);
    }
    lines_[line] = words;
  }
  void write_word(uint64_t offset, uint64_t value) {
    Line words = lines_[offset / BH_LINE_BYTES];
    words[offset / 8 % 8] = value;
    write(offset / BH_LINE_BYTES, words);
  }

 private:
  std::vector<Line> lines_;
  std::vector<uint8_t> is_written_;
  std::vector<uint64_t> written_;
};

class Cache {
 public:
  enum class State : uint8_t { ABSENT, CLEAN, DIRTY };

  /// `drain_ns`: weak memory, in which a line takes at most this time to arrive; 0: at once.
  void reset(Memory& memory, Dice& random, uint64_t lines, uint64_t drain_ns) {
    memory_ = &memory;
    random_ = &random;
    drain_ns_ = drain_ns;
    // Zero pages: a machine touches little of a large pool.
    if (line_count_ < lines) {
      entries_.reset(static_cast<Entry*>(std::calloc(lines, sizeof(Entry))));
      BOWHEAD_ASSERT(entries_ != nullptr);
      line_count_ = lines;
    }
    on_the_way_.clear();
    lose();
  }
  /// The machine crashes.
  void lose() { ++life_; }

  uint64_t load(uint64_t offset) { return here(offset / BH_LINE_BYTES).words[offset / 8 % 8]; }
  const Line& line(uint64_t line) { return here(line).words; }
  void store(uint64_t offset, uint64_t value) {
    Entry& entry = here(offset / BH_LINE_BYTES);
    entry.words[offset / 8 % 8] = value;
    entry.dirty = true;
  }
  /// As load(), but fetches nothing.
  uint64_t peek(uint64_t offset) const {
    const Entry& entry = entries_[offset / BH_LINE_BYTES];
    const Line& words = entry.life == life_ ? entry.words : last_written(offset / BH_LINE_BYTES);
    return words[offset / 8 % 8];
  }
  /// The same for a line that only this machine writes; but before its first store, the line may be
  /// stale and of the machine that had it before.
  uint64_t peek_own(uint64_t offset) const {
    const Entry& entry = entries_[offset / BH_LINE_BYTES];
    const bool dirty = entry.life == life_ && entry.dirty;
    return (dirty ? entry.words : last_written(offset / BH_LINE_BYTES))[offset / 8 % 8];
  }
  State state(uint64_t line) const {
    const Entry& entry = entries_[line];
    if (entry.life != life_) return State::ABSENT;
    return entry.dirty ? State::DIRTY : State::CLEAN;
  }

  void fill(uint64_t line) { (void)here(line); }
  void drop(uint64_t line) { entries_[line].life = 0; }
  /// Nor is it on the way to the memory any more.
  void forget(uint64_t line) {
    drop(line);
    std::erase_if(on_the_way_, [&](const Posted& posted) { return posted.line == line; });
  }
  void write_back(uint64_t line, uint64_t now_ns) {
    Entry& entry = entries_[line];
    entry.dirty = false;
    if (drain_ns_ == 0) return memory_->write(line, entry.words);
    uint64_t due_ns = now_ns + random_->below(drain_ns_);
    for (const Posted& posted : on_the_way_) {
      if (posted.line == line) due_ns = std::max(due_ns, posted.due_ns);
    }
    on_the_way_.push_back({line, due_ns, entry.words});
  }
  /// The effect of a flush. If it does not drop the line, the line is clean afterwards.
  void flush(uint64_t line, uint64_t now_ns, bool drops) {
    if (state(line) == State::DIRTY) write_back(line, now_ns);
    if (drops) drop(line);
  }

  // ---- weak memory ----
  bool anything_on_the_way() const { return !on_the_way_.empty(); }
  /// One line arrives; any line, except that no line overtakes itself.
  void drain_one() {
    const uint64_t line = on_the_way_[random_->below(on_the_way_.size())].line;
    const auto first = std::find_if(on_the_way_.begin(), on_the_way_.end(),
                                    [&](const Posted& posted) { return posted.line == line; });
    memory_->write(line, first->words);
    on_the_way_.erase(first);
  }
  void drain_due(uint64_t now_ns) {
    if (on_the_way_.empty()) return;
    std::erase_if(on_the_way_, [&](const Posted& posted) {
      const bool due = posted.due_ns <= now_ns;
      if (due) memory_->write(posted.line, posted.words);
      return due;
    });
  }

 private:
  struct Entry {
    Line words;
    uint64_t life;  ///< of the cache when the line came in; 0: never
    bool dirty;
  };
  static_assert(std::is_trivial_v<Entry>);
  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };
  struct Posted {
    uint64_t line, due_ns;
    Line words;
  };

  const Line& last_written(uint64_t line) const {
    for (auto it = on_the_way_.rbegin(); it != on_the_way_.rend(); ++it) {
      if (it->line == line) return it->words;
    }
    return memory_->read(line);
  }
  Entry& here(uint64_t line) {
    Entry& entry = entries_[line];
    if (entry.life != life_) {
      entry.words = last_written(line);
      entry.life = life_;
      entry.dirty = false;
    }
    return entry;
  }

  Memory* memory_ = nullptr;
  Dice* random_ = nullptr;
  uint64_t drain_ns_ = 0;
  uint64_t life_ = 0;  ///< increases over all runs: nothing has to be cleared
  std::unique_ptr<Entry[], Free> entries_;
  uint64_t line_count_ = 0;
  std::vector<Posted> on_the_way_;
};

}  // namespace bowhead::sim
