// SPDX-License-Identifier: Apache-2.0
#include "ndp/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ndp/tiles.h"

namespace bowhead::ndp {
namespace {

using compression::Shape;

/// The contents of the heads of a block's frames.
struct Heads {
  Shape keys, values;  ///< no values: an empty shape
};

bool has_latent_values(const FramedKv& block) {
  return block.values.frame.empty() && block.value_channels != 0;
}

Error refuse(size_t block, const std::string& why) {
  return {Status::INVALID_ARGUMENT, fmt::format("block {}: {}", block, why)};
}
Error cannot_read(size_t block, Status status) {
  return {status, fmt::format("block {}: {}", block, status_text(status))};
}

Result<Shape> shape_of(const FramedRows& rows, const char* what, size_t block) {
  const auto info = compression::frame_info(rows.frame);
  if (!info) return cannot_read(block, info.status());
  const Shape& shape = info->shape;
  if (compression::number_of(shape.number) == nullptr)
    return refuse(block, fmt::format("a frame of bytes has no {}", what));
  if (rows.outer >= shape.outer)
    return refuse(block, fmt::format("outer index {} of a frame of {} that has {}", rows.outer,
                                     what, shape.outer));
  return shape;
}

Result<Heads> heads_of(const FramedKeys& block, size_t at) {
  auto keys = shape_of(block.keys, "keys", at);
  if (!keys) return keys.error();
  return Heads{*keys, {}};
}

Result<Heads> heads_of(const FramedKv& block, size_t at) {
  auto keys = shape_of(block.keys, "keys", at);
  if (!keys) return keys.error();
  if (has_latent_values(block)) {
    if (block.value_channels > keys->channels)
      return refuse(at, fmt::format("the first {} channels of {} as values", block.value_channels,
                                    keys->channels));
    return Heads{*keys, {}};
  }
  auto values = shape_of(block.values, "values", at);
  if (!values) return values.error();
  if (keys->tokens != values->tokens)
    return refuse(at,
                  fmt::format("keys of {} tokens and values of {}", keys->tokens, values->tokens));
  return Heads{*keys, *values};
}

/// Tokens of a block, by their number in it.
struct TokenRange {
  uint32_t first, count;
};

size_t lines_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }
size_t room_for(const Heads& heads, const TokenRange& range) {
  return lines_bytes(range.count * heads.keys.row_bytes()) +
         lines_bytes(range.count * heads.values.row_bytes());
}

/// A decoder, and what it has read.
struct Decoding {
  compression::Decoder& decoder;
  compression::ReadReport& report;
};

/// Decodes a range to `to`, which moves behind it.
Status decode(const Decoding& decoding, const FramedRows& framed, const Shape& shape,
              const TokenRange& range, uint8_t*& to, Rows& out) {
  const size_t bytes = range.count * shape.row_bytes();
  out = {shape.number,      shape.channels,
         range.count,       to,
         shape.row_bytes(), framed.scales == nullptr ? nullptr : framed.scales + range.first};
  const Status status = decoding.decoder.decode_tokens(framed.frame, framed.outer, range.first,
                                                       range.count, {to, bytes}, &decoding.report);
  to += lines_bytes(bytes);
  return status;
}

Status decode(const Decoding& decoding, const FramedKeys& block, const Heads& heads,
              const TokenRange& range, uint8_t*& to, KeySpan& out) {
  out.first_token = block.first_token + range.first;
  return decode(decoding, block.keys, heads.keys, range, to, out.keys);
}

Status decode(const Decoding& decoding, const FramedKv& block, const Heads& heads,
              const TokenRange& range, uint8_t*& to, KvSpan& out) {
  out.first_token = block.first_token + range.first;
  const Status status = decode(decoding, block.keys, heads.keys, range, to, out.keys);
  if (status != Status::OK) return status;
  if (!has_latent_values(block))
    return decode(decoding, block.values, heads.values, range, to, out.values);
  out.values = out.keys;
  out.values.channels = block.value_channels;
  return Status::OK;
}

/// The heads of all blocks, before any is decoded; none where a frame cannot be read.
template <class Framed>
Result<std::vector<std::optional<Heads>>> heads_of_all(std::span<const Framed> blocks,
                                                       Unreadable unreadable) {
  std::vector<std::optional<Heads>> all(blocks.size());
  std::vector<HeldTokens> held;
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto heads = heads_of(blocks[i], i);
    if (!heads) {
      if (unreadable == Unreadable::SKIP && is_unreadable(heads.status())) continue;
      return heads.error();
    }
    held.push_back({blocks[i].first_token, heads->keys.tokens, i});
    all[i] = *heads;
  }
  if (auto good = check_apart("block", std::move(held)); !good) return good.error();
  return all;
}

}  // namespace

template <class Rowed, class Framed, class Use>
Result<std::vector<size_t>> FrameReader::for_blocks(std::span<const Framed> blocks,
                                                    const Visible& visible, Unreadable unreadable,
                                                    const Use& use) {
  const auto heads = heads_of_all(blocks, unreadable);
  if (!heads) return heads.error();
  std::vector<size_t> left_out;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!(*heads)[i]) {
      left_out.push_back(i);
      continue;
    }
    const Heads& of = *(*heads)[i];
    std::vector<TokenRange> ranges;
    size_t room = 0;
    for_visible(blocks[i].first_token, of.keys.tokens, visible,
                [&](uint32_t first, uint32_t count) {
                  ranges.push_back({first, count});
                  room += room_for(of, ranges.back());
                });
    if (ranges.empty()) continue;
    room_.resize(std::max(room_.size(), room));
    std::vector<Rowed> rows(ranges.size());
    Status status = Status::OK;
    uint8_t* to = room_.data();
    for (size_t r = 0; r < ranges.size() && status == Status::OK; ++r)
      status = decode({decoder_, report_}, blocks[i], of, ranges[r], to, rows[r]);
    if (status == Status::OK) {
      if (auto done = use(std::span<const Rowed>(rows)); !done) return done.error();
    } else if (unreadable == Unreadable::SKIP && is_unreadable(status)) {
      left_out.push_back(i);
    } else {
      return cannot_read(i, status);
    }
  }
  return left_out;
}

Result<std::vector<size_t>> FrameReader::for_keys(std::span<const FramedKeys> blocks,
                                                  const Visible& visible, Unreadable unreadable,
                                                  const UseKeys& use) {
  return for_blocks<KeySpan>(blocks, visible, unreadable, use);
}

Result<std::vector<size_t>> FrameReader::for_keys_and_values(std::span<const FramedKv> blocks,
                                                             const Visible& visible,
                                                             Unreadable unreadable,
                                                             const UseKv& use) {
  return for_blocks<KvSpan>(blocks, visible, unreadable, use);
}

}  // namespace bowhead::ndp
