// SPDX-License-Identifier: Apache-2.0
// Blocks pass through staging memory in batches: a whole batch is restored, then verified; or made,
// then put. So neither step finds its bytes in a cache by accident of order.
#include "tools/bowhead/replay/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"

namespace bowhead::replay {
namespace {

Error about(const char* call, const std::string& key, const Error& error) {
  return Error{error.status, fmt::format("{} of block {}: {}", call, key, error.message())};
}

}  // namespace

void EngineStats::merge(const EngineStats& other) {
  requests += other.requests;
  blocks_asked += other.blocks_asked;
  blocks_hit += other.blocks_hit;
  blocks_lost += other.blocks_lost;
  blocks_put += other.blocks_put;
  blocks_no_space += other.blocks_no_space;
  blocks_busy += other.blocks_busy;
  tokens_asked += other.tokens_asked;
  tokens_saved += other.tokens_saved;
  bytes_out += other.bytes_out;
  bytes_in += other.bytes_in;
  bytes_verified += other.bytes_verified;
  for (uint64_t i = 0; i < std::min<uint64_t>(other.wrong_blocks, kWrongKept); ++i) {
    if (wrong_blocks + i < kWrongKept) wrong[wrong_blocks + i] = other.wrong[i];
  }
  wrong_blocks += other.wrong_blocks;
  wrong_bytes += other.wrong_bytes;
  content_ns += other.content_ns;
  lookup.merge(other.lookup);
  get.merge(other.get);
  put.merge(other.put);
  touch.merge(other.touch);
}

std::string block_key_text(uint64_t id) { return fmt::format("block-{:016x}", id); }

bool parse_block_key(std::string_view key, uint64_t& id) {
  if (key.size() != 22 || !key.starts_with("block-")) return false;
  const auto parsed = std::from_chars(key.data() + 6, key.data() + 22, id, 16);
  return parsed.ec == std::errc() && parsed.ptr == key.data() + 22;
}

Engine::Engine(Pool& pool, NamespaceId namespace_id, const Content& content, uint64_t block_bytes,
               uint64_t staging_bytes, EngineStats& stats)
    : pool_(pool),
      namespace_id_(namespace_id),
      content_(content),
      block_bytes_(block_bytes),
      stats_(stats),
      staging_blocks_(std::max<uint64_t>(1, staging_bytes / block_bytes)) {
  staging_.resize(staging_blocks_ * block_bytes);
}

std::byte* Engine::next_buffer() {
  std::byte* const buffer = staging_.data() + staging_next_ * block_bytes_;
  staging_next_ = (staging_next_ + 1) % staging_blocks_;
  return buffer;
}

Result<void> Engine::serve(std::span<const uint64_t> ids, uint64_t input_tokens) {
  key_texts_.clear();
  for (const uint64_t id : ids) key_texts_.push_back(block_key_text(id));
  keys_.assign(key_texts_.begin(), key_texts_.end());

  const auto hits = restore(ids);
  if (!hits) return hits.error();
  const auto stored = store(ids, *hits);
  if (!stored) return stored;

  // The first block becomes the most recent, so eviction takes a prefix from its end.
  const uint64_t start = now_ns();
  const Status touched = pool_.touch(namespace_id_, keys_);
  stats_.touch.record(now_ns() - start);
  if (touched != Status::OK) return touched;

  ++stats_.requests;
  stats_.blocks_asked += ids.size();
  stats_.blocks_hit += *hits;
  stats_.tokens_asked += input_tokens;
  stats_.tokens_saved += std::min(*hits * kBlockTokens, input_tokens);
  return {};
}

// Returns how many leading blocks were restored.
Result<uint64_t> Engine::restore(std::span<const uint64_t> ids) {
  uint64_t start = now_ns();
  const auto found = pool_.longest_prefix(namespace_id_, keys_);
  stats_.lookup.record(now_ns() - start);
  if (!found) return found.error();

  struct Restored {
    std::byte* data;
    uint64_t length;
  };
  std::vector<Restored> batch;
  uint64_t restored = 0;
  bool lost = false;
  while (restored < *found && !lost) {
    batch.clear();
    while (batch.size() < staging_blocks_ && restored + batch.size() < *found && !lost) {
      const size_t at = restored + batch.size();
      const Span span{next_buffer(), block_bytes_};
      start = now_ns();
      const auto got = pool_.get(namespace_id_, keys_[at], std::span(&span, 1));
      const uint64_t elapsed = now_ns() - start;
      if (got.status() == Status::NOT_FOUND) {
        lost = true;
      } else if (got.status() == Status::BUFFER_TOO_SMALL) {
        batch.push_back({span.data, 0});  // longer than any block of the replay: all of it is wrong
      } else if (!got) {
        return about("get", key_texts_[at], got.error());
      } else {
        stats_.get.record(elapsed);
        stats_.bytes_out += *got;
        batch.push_back({span.data, *got});
      }
    }
    start = now_ns();
    for (size_t i = 0; i < batch.size(); ++i) {
      verify(ids[restored + i], batch[i].data, batch[i].length);
    }
    stats_.content_ns += now_ns() - start;
    restored += batch.size();
  }
  if (lost) ++stats_.blocks_lost;
  return restored;
}

void Engine::verify(uint64_t id, const std::byte* data, uint64_t length) {
  Difference difference = content_.compare(id, data, length);
  stats_.bytes_verified += length;
  if (length != block_bytes_) {
    if (difference.wrong_bytes == 0) difference.first_offset = length;
    difference.wrong_bytes += block_bytes_ - length;
  }
  if (difference.wrong_bytes == 0) return;
  if (stats_.wrong_blocks < EngineStats::kWrongKept) {
    stats_.wrong[stats_.wrong_blocks] = {id, difference.wrong_bytes, difference.first_offset};
  }
  ++stats_.wrong_blocks;
  stats_.wrong_bytes += difference.wrong_bytes;
}

// Makes and puts the blocks from index `first` on.
Result<void> Engine::store(std::span<const uint64_t> ids, size_t first) {
  std::vector<ConstSpan> batch;
  for (size_t at = first; at < ids.size(); at += batch.size()) {
    batch.clear();
    uint64_t start = now_ns();
    while (batch.size() < staging_blocks_ && at + batch.size() < ids.size()) {
      std::byte* const buffer = next_buffer();
      content_.fill(ids[at + batch.size()], buffer, block_bytes_);
      batch.push_back({buffer, block_bytes_});
    }
    stats_.content_ns += now_ns() - start;
    for (size_t i = 0; i < batch.size(); ++i) {
      start = now_ns();
      const Status put = pool_.put(namespace_id_, keys_[at + i], std::span(&batch[i], 1));
      const uint64_t elapsed = now_ns() - start;
      if (put == Status::NO_SPACE || put == Status::INDEX_FULL) {
        ++stats_.blocks_no_space;
      } else if (put == Status::BUSY) {
        ++stats_.blocks_busy;
      } else if (put != Status::OK) {
        return about("put", key_texts_[at + i], Error{put, {}});
      } else {
        stats_.put.record(elapsed);
        stats_.bytes_in += block_bytes_;
        ++stats_.blocks_put;
      }
    }
  }
  return {};
}

}  // namespace bowhead::replay
