// SPDX-License-Identifier: Apache-2.0
#include "ndp/request.h"

#include <fmt/format.h>

#include <algorithm>

namespace bowhead::ndp {
namespace {

std::span<float> floats(std::span<std::byte> room) {
  return {reinterpret_cast<float*>(room.data()), room.size() / sizeof(float)};
}

/// A product that ends at 2^63.
class Bytes {
 public:
  explicit Bytes(uint64_t bytes) : bytes_(bytes) {}
  Bytes operator*(uint64_t factor) const {
    uint64_t product;
    const bool large = __builtin_mul_overflow(bytes_, factor, &product);
    return Bytes(large || product > kMost ? kMost : product);
  }
  uint64_t value() const { return bytes_; }
  static constexpr uint64_t kMost = uint64_t{1} << 63;

 private:
  uint64_t bytes_;
};

uint64_t tokens_of_all(std::span<const StoredBlock> blocks) {
  uint64_t tokens = 0;
  for (const StoredBlock& block : blocks) tokens += tokens_of(block).value_or(0);
  return tokens;
}

Result<BlocksRead> find_best(const Request& request, const AnswerRoom& room) {
  const auto bytes = answer_bytes(request);
  if (!bytes) return bytes.error();
  if (room.first.size() != bytes->first || room.second.size() != bytes->second)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("room of {} and {} bytes for hits of {} and their counts of {}",
                             room.first.size(), room.second.size(), bytes->first, bytes->second)};
  auto found =
      top_k(request.heads, request.queries, request.k, request.bytes_per_token, request.reading);
  if (!found) return found.error();
  auto* hits = reinterpret_cast<Hit*>(room.first.data());
  auto* counts = reinterpret_cast<uint32_t*>(room.second.data());
  for (const std::vector<Hit>& of : found->hits) {
    std::fill(std::copy(of.begin(), of.end(), hits), hits + request.k, Hit{});
    hits += request.k;
    *counts++ = static_cast<uint32_t>(of.size());
  }
  return std::move(found->read);
}

}  // namespace

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::SCORE:
      return "score";
    case Operation::TOP_K:
      return "top-k";
    case Operation::ATTEND:
      return "attend";
    case Operation::GATHER:
      return "gather";
    case Operation::DIGEST:
      return "digest";
  }
  return "unknown operation";
}

Result<AnswerBytes> answer_bytes(const Request& request) {
  const HeadsOfBlocks& heads = request.heads;
  if (heads.blocks.empty()) return Error{Status::INVALID_ARGUMENT, "no blocks: give one or more"};
  const KvLayout& layout = *heads.blocks[0].layout;
  const Bytes floats(sizeof(float));
  const Bytes of_answers = floats * heads.heads * request.queries.answers();
  Bytes first(0), second(0);
  switch (request.operation) {
    case Operation::SCORE:
      first = of_answers * tokens_of_all(heads.blocks);
      break;
    case Operation::TOP_K:
      first = of_answers * 2 * request.k;
      second = of_answers;
      break;
    case Operation::ATTEND:
      first = of_answers * layout.value_channels;
      second = of_answers;
      break;
    case Operation::GATHER:
      first = Bytes(request.part > 1 ? 0 : row_bytes(layout, request.part)) *
              request.tokens.size() * heads.heads;
      break;
    case Operation::DIGEST: {
      const auto pages = pages_of(heads.blocks, request.page_tokens);
      if (!pages) return pages.error();
      first = second = floats * heads.heads * *pages * layout.key_channels;
      break;
    }
    default:
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("no operation has number {}", static_cast<int>(request.operation))};
  }
  if (first.value() >= Bytes::kMost || second.value() >= Bytes::kMost)
    return Error{Status::INVALID_ARGUMENT, "the answer takes 2^63 bytes or more"};
  return AnswerBytes{first.value(), second.value()};
}

Result<void> check(const Request& request) {
  switch (request.operation) {
    case Operation::SCORE:
      return check_score(request.heads, request.queries);
    case Operation::TOP_K:
      return check_top_k(request.heads, request.queries, request.k, request.bytes_per_token);
    case Operation::ATTEND:
      return check_attend(request.heads, request.queries);
    case Operation::GATHER:
      return check_gather(request.heads, request.part, request.tokens);
    case Operation::DIGEST:
      return check_digest(request.heads, request.page_tokens);
  }
  return answer_bytes(request).error();
}

namespace {

Result<BlocksRead> carry_out(const Request& request, const AnswerRoom& room) {
  switch (request.operation) {
    case Operation::SCORE:
      return score(request.heads, request.queries, floats(room.first));
    case Operation::TOP_K:
      return find_best(request, room);
    case Operation::ATTEND:
      return attend(request.heads, request.queries, floats(room.first), floats(room.second));
    case Operation::GATHER:
      return gather(request.heads, request.part, request.tokens, room.first);
    case Operation::DIGEST:
      return digest(request.heads, request.page_tokens, floats(room.first), floats(room.second));
  }
  return answer_bytes(request).error();
}

}  // namespace

Result<BlocksRead> run(const Request& request, const AnswerRoom& room,
                       const Checkpoint& checkpoint) {
  const CheckpointScope scope(checkpoint);
  auto read = carry_out(request, room);
  if (scope.status() != Status::OK) return scope.status();
  return read;
}

}  // namespace bowhead::ndp
