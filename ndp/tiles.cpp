// SPDX-License-Identifier: Apache-2.0
#include "ndp/tiles.h"

#include <fmt/format.h>

#include <vector>

namespace bowhead::ndp {

namespace {

Result<void> check_rows(const Rows& rows, const char* what, size_t block, const Queries* queries) {
  const auto refuse = [&](const std::string& why) {
    return Error{Status::INVALID_ARGUMENT, fmt::format("{} of block {}: {}", what, block, why)};
  };
  if (compression::number_of(rows.number) == nullptr)
    return refuse(fmt::format("number kind {}: it has to be one with a value, such as bf16",
                              static_cast<int>(rows.number)));
  if (rows.channels == 0 || rows.channels > kMaxChannels)
    return refuse(fmt::format("{} channels: 1 to {} are possible", rows.channels, kMaxChannels));
  if (queries != nullptr && rows.channels != queries->channels())
    return refuse(
        fmt::format("{} channels, while the queries have {}", rows.channels, queries->channels()));
  if (queries != nullptr && rows.number != queries->keys())
    return refuse(fmt::format("they are {}, while the queries are for {}", number_name(rows.number),
                              number_name(queries->keys())));
  if (rows.tokens == 0) return {};
  if (rows.data == nullptr) return refuse(fmt::format("{} tokens at a null pointer", rows.tokens));
  if (rows.stride_bytes < rows.row_bytes())
    return refuse(fmt::format("rows of {} bytes overlap at a stride of {}", rows.row_bytes(),
                              rows.stride_bytes));
  return {};
}

Result<void> check_block(const KeyBlock& block, size_t at, const Queries* queries) {
  return check_rows(block.keys, "keys", at, queries);
}
Result<void> check_block(const KvBlock& block, size_t at, const Queries* queries) {
  if (auto good = check_rows(block.keys, "keys", at, queries); !good) return good;
  if (auto good = check_rows(block.values, "values", at, nullptr); !good) return good;
  if (block.keys.tokens == block.values.tokens) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("block {} has keys of {} tokens and values of {}", at, block.keys.tokens,
                           block.values.tokens)};
}

}  // namespace

Result<void> check_parts(std::vector<Part> parts) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.end > std::numeric_limits<uint32_t>::max())
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("block {} ends at token {}: positions have 32 bits", part.block, part.end)};
    if (i > 0 && part.begin < parts[i - 1].end)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("blocks {} and {} both hold token {}", parts[i - 1].block,
                               part.block, part.begin)};
  }
  return {};
}

template <class Block>
Result<void> check_blocks(std::span<const Block> blocks, const Queries* queries) {
  std::vector<Part> parts;
  parts.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (auto good = check_block(blocks[i], i, queries); !good) return good;
    const uint64_t begin = blocks[i].first_token, tokens = blocks[i].keys.tokens;
    if (tokens != 0) parts.push_back({begin, begin + tokens, i});
  }
  return check_parts(std::move(parts));
}

template Result<void> check_blocks(std::span<const KeyBlock>, const Queries*);
template Result<void> check_blocks(std::span<const KvBlock>, const Queries*);

}  // namespace bowhead::ndp
