// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/wire.h"

#include <bowhead/format/block.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace bowhead::device {
namespace {

using ndp::Operation;

static_assert(static_cast<int>(Operation::SCORE) == BH_DEVICE_SCORE &&
              static_cast<int>(Operation::TOP_K) == BH_DEVICE_TOP_K &&
              static_cast<int>(Operation::ATTEND) == BH_DEVICE_ATTEND &&
              static_cast<int>(Operation::GATHER) == BH_DEVICE_GATHER &&
              static_cast<int>(Operation::DIGEST) == BH_DEVICE_DIGEST);

Error refuse(std::string why) { return {Status::INVALID_ARGUMENT, std::move(why)}; }

bool has_queries(Operation operation) {
  return operation == Operation::SCORE || operation == Operation::TOP_K ||
         operation == Operation::ATTEND;
}

template <class Element>
void append(std::vector<std::byte>& to, std::span<const Element> some) {
  const auto bytes = std::as_bytes(some);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Result<void> append_blocks(std::vector<std::byte>& to, const ndp::HeadsOfBlocks& heads) {
  const KvLayout& layout = *heads.blocks[0].layout;
  for (size_t i = 0; i < heads.blocks.size(); ++i) {
    const ndp::StoredBlock& block = heads.blocks[i];
    if (block.layout != &layout) {
      if (const auto text = difference(*block.layout, layout))
        return refuse(fmt::format("block {}: its layout is not that of block 0: {}", i, *text));
    }
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    if (block.bytes.size() > kMost || block.value_bytes > kMost)
      return refuse(fmt::format("block {}: a value of {} bytes", i, block.value_bytes));
    const bh_device_block one = {
        .offset = block.offset,
        .stamp = block.stamp,
        .stored_bytes = static_cast<uint32_t>(block.bytes.size()),
        .length_bytes = static_cast<uint32_t>(block.value_bytes),
        .first_token = block.first_token,
        .codec = static_cast<uint8_t>(block.framed ? BH_CODEC_FRAME : BH_CODEC_RAW)};
    append(to, std::span(&one, 1));
  }
  return {};
}

std::vector<bh_device_view> views_of(const ndp::Views& views, uint32_t answers) {
  const auto as_stored = [](const ndp::Visible& view) {
    return bh_device_view{view.begin, view.end, view.sinks};
  };
  std::vector<bh_device_view> all;
  if (!views.are_own()) {
    if (!(views.any() == ndp::Visible{})) all.push_back(as_stored(views.any()));
    return all;
  }
  for (uint32_t i = 0; i < answers; ++i) all.push_back(as_stored(views.of(i)));
  return all;
}

}  // namespace

Result<std::vector<std::byte>> encode(const ndp::Request& request) {
  const ndp::HeadsOfBlocks& heads = request.heads;
  const ndp::HeadQueries& queries = request.queries;
  if (heads.blocks.empty()) return refuse("no blocks: give one or more");
  bh_device_request head{};
  head.operation = static_cast<uint8_t>(request.operation);
  head.flags = heads.unreadable == ndp::Unreadable::SKIP ? BH_DEVICE_SKIP : 0;
  head.layer = heads.layer;
  head.first_head = heads.first_head;
  head.head_count = heads.heads;
  head.block_count = static_cast<uint32_t>(heads.blocks.size());
  head.layout = *heads.blocks[0].layout;
  std::vector<std::byte> bytes(sizeof head);
  if (auto good = append_blocks(bytes, heads); !good) return good.error();
  if (has_queries(request.operation)) {
    const uint32_t answers = queries.answers();
    if (auto good = queries.views.check(answers); !good) return good.error();
    const auto views = views_of(queries.views, answers);
    append(bytes, std::span<const bh_device_view>(views));
    append(bytes, queries.values);
    append(bytes, queries.weights);
    head.flags |= static_cast<uint8_t>(queries.rectified ? BH_DEVICE_RECTIFY : 0);
    head.query_count = queries.count;
    head.view_count = static_cast<uint32_t>(views.size());
    head.weight_count = static_cast<uint32_t>(queries.weights.size());
    head.group = queries.group;
    head.scale = std::bit_cast<uint32_t>(queries.scale);
    head.soft_cap = std::bit_cast<uint32_t>(queries.soft_cap);
  }
  if (request.operation == Operation::TOP_K) {
    head.flags |= static_cast<uint8_t>(
        request.reading == ndp::Reading::FEWEST_BYTES ? BH_DEVICE_FEWEST_BYTES : 0);
    head.k = request.k;
    head.token_budget = std::bit_cast<uint64_t>(request.bytes_per_token);
  }
  if (request.operation == Operation::GATHER) {
    append(bytes, request.tokens);
    head.part = request.part;
    head.token_count = static_cast<uint32_t>(request.tokens.size());
  }
  if (request.operation == Operation::DIGEST) head.page_tokens = request.page_tokens;
  if (bytes.size() > kRequestBytesMax)
    return refuse(
        fmt::format("a request of {} bytes: {} are possible; ask about fewer blocks or "
                    "tokens at once",
                    bytes.size(), kRequestBytesMax));
  head.request_bytes = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

namespace {

/// The arrays behind the head, one after the other.
class Arrays {
 public:
  explicit Arrays(std::span<const std::byte> bytes) : left_(bytes) {}
  /// False: there are not as many.
  template <class Element>
  bool take(uint64_t count, std::vector<Element>& to) {
    if (count > left_.size() / sizeof(Element)) return false;
    to.resize(count);
    if (count > 0) std::memcpy(to.data(), left_.data(), count * sizeof(Element));
    left_ = left_.subspan(count * sizeof(Element));
    return true;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

template <class Struct>
bool reserved_are_zero(const Struct& of) {
  return std::all_of(std::begin(of.reserved), std::end(of.reserved),
                     [](uint8_t byte) { return byte == 0; });
}

Result<void> check_head(const bh_device_request& head, size_t bytes) {
  if (head.request_bytes != bytes)
    return refuse(
        fmt::format("a request of {} bytes, which says that it has {}", bytes, head.request_bytes));
  if (head.operation < BH_DEVICE_SCORE || head.operation > BH_DEVICE_DIGEST)
    return Error{Status::NOT_SUPPORTED, fmt::format("operation {}: this device has 1 to {}",
                                                    head.operation, BH_DEVICE_DIGEST)};
  constexpr uint8_t kFlags = BH_DEVICE_SKIP | BH_DEVICE_RECTIFY | BH_DEVICE_FEWEST_BYTES;
  if ((head.flags & ~kFlags) != 0 || !reserved_are_zero(head) || head.reserved0[0] != 0 ||
      head.reserved0[1] != 0)
    return Error{Status::NOT_SUPPORTED, "a request with flags or members of a later version"};
  return check_layout(head.layout);
}

}  // namespace

Result<DecodedRequest> DecodedRequest::decode(std::span<const std::byte> bytes) {
  DecodedRequest decoded;
  bh_device_request& head = decoded.head_;
  if (bytes.size() < sizeof head || bytes.size() > kRequestBytesMax)
    return refuse(fmt::format("a request of {} bytes: {} to {} are possible", bytes.size(),
                              sizeof head, kRequestBytesMax));
  std::memcpy(&head, bytes.data(), sizeof head);
  if (auto good = check_head(head, bytes.size()); !good) return good.error();
  const bool queries = has_queries(Operation{head.operation});
  // So that no product of counts overflows.
  if (head.head_count > std::numeric_limits<uint16_t>::max() || head.query_count > kRequestBytesMax)
    return refuse("more heads or queries than a request has room for");
  const uint64_t numbers =
      queries ? uint64_t{head.head_count} * head.query_count * head.layout.key_channels : 0;
  std::vector<bh_device_view> views;
  Arrays arrays(bytes.subspan(sizeof head));
  if (!arrays.take(head.block_count, decoded.blocks_) || !arrays.take(head.view_count, views) ||
      !arrays.take(numbers, decoded.queries_) ||
      !arrays.take(head.weight_count, decoded.weights_) ||
      !arrays.take(head.token_count, decoded.tokens_) || !arrays.at_end())
    return refuse(fmt::format(
        "a request of {} bytes, which does not have {} blocks, {} views, {} numbers of queries, {} "
        "weights and {} tokens, and nothing else",
        bytes.size(), head.block_count, head.view_count, numbers, head.weight_count,
        head.token_count));
  for (size_t i = 0; i < decoded.blocks_.size(); ++i) {
    const bh_device_block& block = decoded.blocks_[i];
    if (block.codec > BH_CODEC_FRAME || !reserved_are_zero(block))
      return Error{Status::NOT_SUPPORTED,
                   fmt::format("block {} has a codec or members of a later version", i)};
    ndp::StoredBlock& stored = decoded.stored_.emplace_back();
    stored.framed = block.codec == BH_CODEC_FRAME;
    stored.value_bytes = block.length_bytes;
    stored.first_token = block.first_token;
    stored.offset = block.offset;
    stored.stamp = block.stamp;
  }
  for (const bh_device_view& view : views)
    decoded.views_.push_back({view.begin, view.end, view.sinks});
  return decoded;
}

const ndp::Request& DecodedRequest::request() {
  for (ndp::StoredBlock& block : stored_) block.layout = &head_.layout;
  request_ = {};
  request_.operation = Operation{head_.operation};
  request_.heads = {
      stored_, head_.layer, head_.first_head, head_.head_count,
      (head_.flags & BH_DEVICE_SKIP) != 0 ? ndp::Unreadable::SKIP : ndp::Unreadable::REFUSE};
  ndp::HeadQueries& queries = request_.queries;
  queries.values = queries_;
  queries.count = head_.query_count;
  queries.scale = std::bit_cast<float>(head_.scale);
  queries.soft_cap = std::bit_cast<float>(head_.soft_cap);
  queries.weights = weights_;
  queries.group = head_.group;
  queries.rectified = (head_.flags & BH_DEVICE_RECTIFY) != 0;
  if (views_.size() == 1) queries.views = views_[0];
  if (views_.size() > 1) queries.views = std::span<const ndp::Visible>(views_);
  request_.k = head_.k;
  request_.bytes_per_token = std::bit_cast<double>(head_.token_budget);
  request_.reading = (head_.flags & BH_DEVICE_FEWEST_BYTES) != 0 ? ndp::Reading::FEWEST_BYTES
                                                                 : ndp::Reading::ONE_PASS;
  request_.part = head_.part;
  request_.tokens = tokens_;
  request_.page_tokens = head_.page_tokens;
  return request_;
}

}  // namespace bowhead::device
