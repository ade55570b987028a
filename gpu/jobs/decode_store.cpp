// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/decode_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace bowhead::gpu {
namespace {

Error refuse(std::string why) { return {Status::INVALID_ARGUMENT, std::move(why)}; }

}  // namespace

DecodeStore::DecodeStore(Transfers& transfers, NamespaceId ns, const DecodeStoreOptions& options)
    : transfers_(transfers),
      ns_(ns),
      block_tokens_(options.block_tokens),
      block_bytes_(transfers.cache().payload_bytes(options.block_tokens)),
      most_bytes_(options.most_bytes) {}

Result<DecodeStore> DecodeStore::open(Transfers& transfers, NamespaceId ns,
                                      const DecodeStoreOptions& options) {
  const uint64_t bytes = transfers.cache().payload_bytes(options.block_tokens);
  if (bytes == 0 || bytes > kMostPayloadBytes)
    return refuse(fmt::format("blocks of {} tokens have {} bytes: 1 to {} are possible",
                              options.block_tokens, bytes, kMostPayloadBytes));
  return DecodeStore(transfers, ns, options);
}

/// Waits: blocks of a job that is not polled would not be committed.
DecodeStore::~DecodeStore() {
  for (const Running& running : running_) transfers_.wait(*running.job);
}

// ---- sequences ----

Result<DecodeStore::Sequence*> DecodeStore::find(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end() || found->second.is_ended)
    return refuse(fmt::format("sequence {}: it has not begun, or has ended", sequence));
  return &found->second;
}

/// Forgets a sequence that has ended, once all its blocks were returned.
void DecodeStore::forget(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found->second.is_ended && found->second.pending == 0) sequences_.erase(found);
}

Result<void> DecodeStore::begin(uint64_t sequence, uint32_t stored_tokens) {
  const uint32_t blocks = stored_tokens / block_tokens_;
  const auto [found, is_new] =
      sequences_.try_emplace(sequence, Sequence{stored_tokens, blocks, 0, false});
  if (is_new) return {};
  return refuse(found->second.is_ended
                    ? fmt::format("sequence {}: {} blocks of the one before are not done", sequence,
                                  found->second.pending)
                    : fmt::format("sequence {}: it has begun already", sequence));
}

Result<void> DecodeStore::append(uint64_t sequence, uint32_t tokens,
                                 std::span<const uint32_t> pages,
                                 std::span<const std::string> keys) {
  const auto found = find(sequence);
  if (!found) return found.error();
  Sequence& of = **found;
  if (tokens < of.tokens)
    return refuse(
        fmt::format("sequence {}: {} tokens, after it had {}", sequence, tokens, of.tokens));
  const uint32_t full = tokens / block_tokens_ - of.blocks;
  if (keys.size() != full)
    return refuse(fmt::format("sequence {}: {} keys, while {} blocks became full", sequence,
                              keys.size(), full));
  const uint32_t page_tokens = transfers_.cache().page_tokens;
  for (uint32_t i = 0; i < full; ++i) {
    const PagedTokens range = {pages, (of.blocks + i) * block_tokens_, block_tokens_};
    if (auto good = check_tokens(transfers_.cache(), range); !good)
      return Error{good.status(), fmt::format("sequence {}, block {}: {}", sequence, of.blocks + i,
                                              good.error().message())};
  }
  for (uint32_t i = 0; i < full; ++i) {
    // The engine's table grows and goes: only the block's part of it is kept.
    const uint32_t first = (of.blocks + i) * block_tokens_, last = first + block_tokens_ - 1;
    waiting_.push_back(
        {{sequence, of.blocks + i, keys[i], Status::OK},
         {pages.begin() + first / page_tokens, pages.begin() + last / page_tokens + 1},
         first % page_tokens});
  }
  of.tokens = tokens;
  of.blocks += full;
  of.pending += full;
  return {};
}

Result<void> DecodeStore::end(uint64_t sequence) {
  const auto found = find(sequence);
  if (!found) return found.error();
  (*found)->is_ended = true;
  forget(sequence);
  return {};
}

Result<void> DecodeStore::cancel(uint64_t sequence) {
  if (auto ended = end(sequence); !ended) return ended;
  const auto is_other = [&](const Block& block) { return block.stored.sequence != sequence; };
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), is_other);
  for (auto block = first; block != waiting_.end(); ++block) {
    block->stored.status = Status::CANCELLED;
    done_.push_back(std::move(block->stored));
  }
  waiting_.erase(first, waiting_.end());
  return {};
}

// ---- jobs ----

Result<void> DecodeStore::start(std::optional<Stream> after) {
  std::vector<BlockOfTokens> blocks;
  for (const Block& block : waiting_) {
    const uint64_t together = under_way_ + blocks.size() + 1;
    if (together > 1 && together * block_bytes_ > most_bytes_) break;
    blocks.push_back({block.stored.key, {block.pages, block.first_token, block_tokens_}});
  }
  if (blocks.empty()) return {};
  auto job = transfers_.spill(ns_, blocks, {.after = after});
  if (!job) return job.error();
  Running& running = running_.emplace_back();
  running.job = *job;
  for (size_t i = 0; i < blocks.size(); ++i) {
    running.blocks.push_back(std::move(waiting_.front().stored));
    waiting_.pop_front();
  }
  under_way_ += blocks.size();
  return {};
}

std::vector<StoredBlock> DecodeStore::poll() {
  for (Running& running : running_) {
    if (!transfers_.poll(*running.job)) continue;
    const std::span<const Status> results = transfers_.results(*running.job);
    for (size_t i = 0; i < results.size(); ++i) {
      running.blocks[i].status = results[i];
      done_.push_back(std::move(running.blocks[i]));
    }
    under_way_ -= results.size();
    running.job.reset();
  }
  std::erase_if(running_, [](const Running& running) { return running.job == nullptr; });
  std::vector<StoredBlock> done = std::exchange(done_, {});
  for (const StoredBlock& block : done) {
    --sequences_.at(block.sequence).pending;
    forget(block.sequence);
  }
  return done;
}

}  // namespace bowhead::gpu
