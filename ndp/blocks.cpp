// SPDX-License-Identifier: Apache-2.0
#include "ndp/blocks.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "compression/tile_header.h"
#include "ndp/checkpoint.h"
#include "ndp/plane_keys.h"
#include "ndp/tiles.h"

namespace bowhead::ndp {
namespace {

using compression::Shape;

Error refuse(std::string why) { return {Status::INVALID_ARGUMENT, std::move(why)}; }
std::string name_of(std::span<const StoredBlock> blocks, size_t block) {
  const std::string& name = blocks[block].name;
  return name.empty() ? fmt::format("block {}", block) : name;
}
Error refuse(std::span<const StoredBlock> blocks, size_t block, const std::string& why) {
  return refuse(fmt::format("{}: {}", name_of(blocks, block), why));
}

Result<void> check_layout_of(const HeadsOfBlocks& heads) {
  const auto unsupported = [](std::string why) {
    return Error{Status::NOT_SUPPORTED, std::move(why)};
  };
  if (heads.blocks.empty()) return refuse("no blocks: give one or more");
  const KvLayout& layout = *heads.blocks[0].layout;
  if (is_opaque(layout)) return unsupported("block 0: opaque values have no heads");
  if (compression::number_of(number_format(layout)) == nullptr)
    return unsupported(
        fmt::format("block 0: operations on {} do not exist", number_name(number_format(layout))));
  if (layout.scales != BH_SCALES_NONE && layout.scale_place == BH_SCALES_ELSEWHERE)
    return unsupported("block 0: rows with scales that are not in the block");
  if (layout.scales == BH_SCALES_PER_CHANNEL)
    return unsupported("block 0: rows with a scale for each channel: multiply the queries by it");
  if (heads.layer >= layout.layers)
    return refuse(
        fmt::format("layer {} of blocks of {} layers: the first is 0", heads.layer, layout.layers));
  if (heads.heads == 0 || uint64_t{heads.first_head} + heads.heads > layout.heads)
    return refuse(fmt::format("{} heads from {} on of blocks that have {}", heads.heads,
                              heads.first_head, layout.heads));
  for (size_t i = 1; i < heads.blocks.size(); ++i) {
    if (heads.blocks[i].layout == &layout) continue;
    if (const auto text = difference(*heads.blocks[i].layout, layout))
      return refuse(heads.blocks, i, "its layout is not that of block 0: " + *text);
  }
  return {};
}

/// Blocks whose lengths and layouts are right.
class Blocks {
 public:
  /// What needs no bytes of them is checked, and then what frames say of themselves.
  static Result<Blocks> open(const HeadsOfBlocks& heads) {
    auto blocks = arrange(heads);
    if (!blocks) return blocks;
    if (auto good = blocks->check_frames(); !good) return good.error();
    return blocks;
  }
  static Result<Blocks> arrange(const HeadsOfBlocks& heads) {
    if (auto good = check_layout_of(heads); !good) return good.error();
    Blocks blocks(heads);
    std::vector<HeldTokens> held;
    for (size_t i = 0; i < heads.blocks.size(); ++i) {
      const StoredBlock& block = heads.blocks[i];
      const auto tokens = tokens_of(block);
      if (!tokens || *tokens == 0 || *tokens > std::numeric_limits<uint32_t>::max())
        return refuse(heads.blocks, i,
                      fmt::format("a value of {} bytes has no whole number of tokens of {}",
                                  block.value_bytes, to_text(*block.layout)));
      if (!block.framed && block.bytes.size() != block.value_bytes)
        return refuse(heads.blocks, i,
                      fmt::format("{} bytes are stored of a value of {}", block.bytes.size(),
                                  block.value_bytes));
      blocks.tokens_.push_back(static_cast<uint32_t>(*tokens));
      held.push_back({block.first_token, blocks.tokens_.back(), i});
    }
    if (auto good = check_apart("block", std::move(held)); !good) return good.error();
    blocks.order_.resize(blocks.count());
    std::iota(blocks.order_.begin(), blocks.order_.end(), size_t{0});
    std::sort(blocks.order_.begin(), blocks.order_.end(),
              [&](size_t a, size_t b) { return blocks.first_token(a) < blocks.first_token(b); });
    return blocks;
  }

  const KvLayout& layout() const { return *heads_.blocks[0].layout; }
  uint32_t heads() const { return heads_.heads; }
  size_t count() const { return tokens_.size(); }
  uint32_t tokens(size_t block) const { return tokens_[block]; }
  uint32_t first_token(size_t block) const { return heads_.blocks[block].first_token; }
  size_t all_tokens() const {
    size_t all = 0;
    for (const uint32_t tokens : tokens_) all += tokens;
    return all;
  }
  /// The block that holds a token.
  std::optional<size_t> holder_of(uint32_t token) const {
    const auto behind =
        std::upper_bound(order_.begin(), order_.end(), token,
                         [&](uint32_t at, size_t block) { return at < first_token(block); });
    if (behind == order_.begin()) return std::nullopt;
    const size_t block = *(behind - 1);
    if (token - first_token(block) >= tokens(block)) return std::nullopt;
    return block;
  }
  bool is_seen(size_t block, const Views& views) const {
    return views.have_some(first_token(block), tokens(block));
  }
  std::string name(size_t block) const { return name_of(heads_.blocks, block); }
  Error cannot_read(size_t block, const Error& error) const {
    return is_unreadable(error.status)
               ? Error{error.status, fmt::format("{}: {}", name(block), status_text(error.status))}
               : error;
  }
  bool is_framed(size_t block) const { return heads_.blocks[block].framed; }
  bool is_left_out(size_t block) const { return left_out_[block]; }
  bool skips() const { return heads_.unreadable == Unreadable::SKIP; }
  void leave_out(size_t block) { left_out_[block] = true; }
  void add_read(uint64_t bytes) { bytes_read_ += bytes; }
  /// Repeats an operation as long as it finds blocks that it has to leave out: then no answer has a
  /// part of them.
  template <class Operation>
  Result<void> without_unreadable(const Operation& operation) {
    for (;;) {
      const std::vector<bool> before = left_out_;
      if (auto good = operation(); !good || left_out_ == before) return good;
    }
  }
  BlocksRead read() const {
    BlocksRead all;
    for (size_t i = 0; i < left_out_.size(); ++i) {
      if (left_out_[i]) all.left_out.push_back(i);
    }
    all.bytes = bytes_read_ + reader_.bytes_read();
    return all;
  }

  /// Frames have the heads of a token side by side.
  bool together() const { return row_order(layout()) == RowOrder::TOKENS_FIRST; }
  /// Where a head's rows of a part lie in a frame.
  uint32_t outer_of(uint32_t part, uint32_t head) const {
    const uint32_t rows = heads_.layer * layout().parts + part;
    return together() ? rows : rows * layout().heads + heads_.first_head + head;
  }
  uint32_t channel_of(uint32_t part, uint32_t head) const {
    return together() ? (heads_.first_head + head) * channels(layout(), part) : 0;
  }
  compression::ConstBytes frame(size_t block) const { return heads_.blocks[block].bytes; }
  bool is_latent() const { return layout().parts == 1 && layout().value_channels != 0; }

  /// Whether opened keys are as the layout says. If the block did not stay, they may be those of
  /// another one, whose frame is good.
  bool fits(const PlaneKeys& keys, size_t block) const {
    return keys.number() == number_format(layout()) && keys.tokens() == tokens(block) &&
           keys.channels() == frame_channels();
  }

  /// Which rows of a token are wanted; those of one part are a span's keys.
  enum class Want { KEYS, VALUES, BOTH };
  /// Calls use(head, spans) once for each head, with all blocks that are values.
  template <class Use>
  Result<void> for_values(Want want, const Visible& visible, const Use& use);
  /// Calls use(head, span) for all heads of a block with visible tokens; notes it if it cannot be
  /// read and shall be left out.
  template <class Use>
  Result<void> for_rows(size_t block, Want want, const Views& views, const Use& use);
  /// The same of a block that is a value, so many of whose rows are read, and scales of visible
  /// tokens.
  template <class Use>
  Result<void> for_value(size_t block, Want want, uint64_t rows, const Visible& visible,
                         const Use& use);

 private:
  explicit Blocks(const HeadsOfBlocks& heads)
      : heads_(heads),
        left_out_(heads.blocks.size(), false),
        uncounted_heads_(heads.blocks.size()) {}

  /// Frames must be of the shape that the layout gives. Of lost blocks nothing is looked at.
  Result<void> check_frames() {
    for (size_t i = 0; i < count(); ++i) {
      if (heads_.blocks[i].lost) {
        if (!skips()) return Error{Status::DAMAGED, fmt::format("{}: its memory failed", name(i))};
        leave_out(i);
        continue;
      }
      if (!is_framed(i)) continue;
      const auto wanted = compression::shape_of(layout(), heads_.blocks[i].value_bytes);
      if (!wanted)
        return Error{wanted.status(), fmt::format("{}: {}", name(i), wanted.error().detail)};
      const auto info = compression::frame_info(frame(i));
      if (info && info->shape.has_rows_of(*wanted)) {
        const auto tiling =
            compression::tiling_of(wanted->outer, wanted->tokens, info->tile_tokens);
        uncounted_heads_[i] = compression::head_bytes_of(info->shape, tiling);
        continue;
      }
      const Status status = info ? Status::DAMAGED : info.status();
      if (skips() && is_unreadable(status)) {
        leave_out(i);
        continue;
      }
      return Error{status, info ? fmt::format("{}: its frame does not fit its layout, {}", name(i),
                                              to_text(layout()))
                                : fmt::format("{}: {}", name(i), info.error().detail)};
    }
    return {};
  }

  uint64_t visible_rows(size_t block, const Visible& visible) const {
    uint64_t rows = 0;
    for_visible(first_token(block), tokens(block), visible,
                [&](uint32_t, uint32_t count) { rows += count; });
    return rows;
  }
  /// Of the rows of a span, in memory: of visible tokens.
  struct Scales {
    std::vector<float> keys, values;
  };
  Rows read_rows(size_t block, uint32_t head, uint32_t part, uint32_t channels, uint64_t rows,
                 const Visible& visible, std::vector<float>& scales);
  KvSpan read_span(size_t block, uint32_t head, Want want, uint64_t rows, const Visible& visible,
                   Scales& scales);
  /// Of a row of a frame, of keys as of values.
  uint32_t frame_channels() const {
    return (together() ? layout().heads : 1u) * layout().key_channels;
  }
  /// The same of decoded rows.
  bool fits(size_t block, uint32_t first_token, const Rows& rows) const {
    const uint64_t end = uint64_t{first_token} + rows.tokens;
    return rows.number == number_format(layout()) && rows.channels == frame_channels() &&
           first_token >= this->first_token(block) &&
           end <= uint64_t{this->first_token(block)} + tokens(block);
  }
  template <class Use>
  Result<void> for_frame(size_t block, uint32_t first, uint32_t end, Want want,
                         const Visible& visible, const Use& use);

  HeadsOfBlocks heads_;
  std::vector<uint32_t> tokens_;
  std::vector<size_t> order_;  // of blocks, by first tokens
  std::vector<bool> left_out_;
  /// By block: bytes before the tiles of its frame, until they count as read.
  std::vector<uint64_t> uncounted_heads_;
  uint64_t bytes_read_ = 0;  // but for what reader_ reads
  FrameReader reader_;
};

/// So many of these rows count as read.
Rows Blocks::read_rows(size_t block, uint32_t head, uint32_t part, uint32_t channels, uint64_t rows,
                       const Visible& visible, std::vector<float>& scales) {
  const void* payload = heads_.blocks[block].bytes.data();
  const uint32_t tokens = tokens_[block], head_in_block = heads_.first_head + head;
  Rows all = rows_in(layout(), payload, tokens, heads_.layer, part, head_in_block);
  all.channels = channels;
  add_read(rows * all.row_bytes());
  if (layout().scales == BH_SCALES_NONE) return all;
  const bool shared = layout().scales == BH_SCALES_PER_TOKEN && head != 0;  // with the first head
  scales.resize(tokens);
  for_visible(first_token(block), tokens, visible, [&](uint32_t first, uint32_t count) {
    if (!shared) add_read(uint64_t{count} * scale_bytes(layout()));
    load_scales(layout(), payload, tokens, heads_.layer, part, head_in_block, first,
                std::span(scales).subspan(first, count));
  });
  all.scales = scales.data();
  return all;
}

/// The span of a block that is a value.
KvSpan Blocks::read_span(size_t block, uint32_t head, Want want, uint64_t rows,
                         const Visible& visible, Scales& scales) {
  const uint32_t value_part = layout().parts - 1u, value_channels = layout().value_channels;
  KvSpan span{first_token(block), {}, {}};
  if (want == Want::VALUES) {
    span.keys = read_rows(block, head, value_part, value_channels, rows, visible, scales.keys);
    return span;
  }
  span.keys = read_rows(block, head, 0, layout().key_channels, rows, visible, scales.keys);
  if (want == Want::KEYS) return span;
  if (is_latent()) {
    span.values = some_channels(span.keys, 0, value_channels);
  } else {
    span.values = read_rows(block, head, value_part, value_channels, rows, visible, scales.values);
  }
  return span;
}

template <class Use>
Result<void> Blocks::for_values(Want want, const Visible& visible, const Use& use) {
  std::vector<KvSpan> spans;
  std::vector<Scales> scales(count());
  for (uint32_t head = 0; head < heads(); ++head) {
    spans.clear();
    for (size_t b = 0; b < count(); ++b) {
      const uint64_t rows = is_framed(b) || left_out_[b] ? 0 : visible_rows(b, visible);
      if (rows != 0) spans.push_back(read_span(b, head, want, rows, visible, scales[b]));
    }
    if (auto good = use(head, std::span<const KvSpan>(spans)); !good) return good;
  }
  return {};
}

template <class Use>
Result<void> Blocks::for_rows(size_t block, Want want, const Views& views, const Use& use) {
  if (left_out_[block] || !is_seen(block, views)) return {};
  if (!is_framed(block))
    return for_value(block, want, visible_rows(block, views.any()), views.any(), use);
  const uint32_t at_once = together() ? heads() : 1;
  for (uint32_t first = 0; first < heads() && !left_out_[block]; first += at_once) {
    if (auto good = for_frame(block, first, first + at_once, want, views.any(), use); !good)
      return good;
  }
  return {};
}

template <class Use>
Result<void> Blocks::for_value(size_t block, Want want, uint64_t rows, const Visible& visible,
                               const Use& use) {
  Scales scales;
  for (uint32_t head = 0; head < heads(); ++head) {
    if (!pass_checkpoint(tokens(block))) return Status::CANCELLED;
    if (auto good = use(head, read_span(block, head, want, rows, visible, scales)); !good)
      return good;
  }
  return {};
}

/// For heads that lie in the same rows.
template <class Use>
Result<void> Blocks::for_frame(size_t block, uint32_t first, uint32_t end, Want want,
                               const Visible& visible, const Use& use) {
  if (!pass_checkpoint(tokens(block))) return Status::CANCELLED;
  add_read(std::exchange(uncounted_heads_[block], 0));
  const bool latent = is_latent();
  const uint32_t value_part = layout().parts - 1u;
  const auto use_heads = [&](uint32_t first_token, const Rows& keys,
                             const Rows& values) -> Result<void> {
    if (!fits(block, first_token, keys) || !fits(block, first_token, values))
      return Status::DAMAGED;
    for (uint32_t head = first; head < end; ++head) {
      const uint32_t part = want == Want::VALUES ? value_part : 0;
      KvSpan span{first_token, keys, values};
      span.keys = some_channels(keys, channel_of(part, head), channels(layout(), part));
      if (latent && want == Want::VALUES) span.keys.channels = layout().value_channels;
      if (want == Want::BOTH)
        span.values = some_channels(values, channel_of(value_part, head), layout().value_channels);
      if (auto good = use(head, span); !good) return good;
    }
    return {};
  };
  const FramedRows keys{frame(block), outer_of(want == Want::VALUES ? value_part : 0, first)};
  Result<std::vector<size_t>> left_out = std::vector<size_t>();
  if (want == Want::BOTH && !latent) {
    const FramedKv framed{first_token(block), keys, {frame(block), outer_of(value_part, first)}};
    left_out = reader_.for_keys_and_values(
        {&framed, 1}, visible, heads_.unreadable, [&](std::span<const KvSpan> spans) {
          Result<void> good;
          for (size_t i = 0; i < spans.size() && good; ++i)
            good = use_heads(spans[i].first_token, spans[i].keys, spans[i].values);
          return good;
        });
  } else {
    const FramedKeys framed{first_token(block), keys};
    left_out = reader_.for_keys(
        {&framed, 1}, visible, heads_.unreadable, [&](std::span<const KeySpan> spans) {
          Result<void> good;
          for (size_t i = 0; i < spans.size() && good; ++i)
            good = use_heads(spans[i].first_token, spans[i].keys, spans[i].keys);
          return good;
        });
  }
  const bool unreadable = left_out ? !left_out->empty() : is_unreadable(left_out.status());
  if (!left_out && !(skips() && unreadable)) return cannot_read(block, left_out.error());
  if (unreadable) leave_out(block);
  return {};
}

/// The queries of each head, for keys of the blocks.
Result<std::vector<Queries>> queries_of(const Blocks& blocks, const HeadQueries& queries) {
  const uint32_t channels = blocks.layout().key_channels;
  if (channels > kMaxChannels)
    return refuse(
        fmt::format("keys of {} channels: up to {} are possible", channels, kMaxChannels));
  const size_t each = size_t{queries.count} * channels;
  if (queries.count > kMaxQueries || queries.values.size() != each * blocks.heads())
    return refuse(fmt::format(
        "{} numbers as queries: {} queries of {} channels for each of {} "
        "heads have {}",
        queries.values.size(), queries.count, channels, blocks.heads(), each * blocks.heads()));
  if (!queries.weights.empty() && queries.weights.size() != size_t{queries.count} * blocks.heads())
    return refuse(fmt::format("{} weights for {} queries of each of {} heads",
                              queries.weights.size(), queries.count, blocks.heads()));
  std::vector<Queries> all;
  for (uint32_t head = 0; head < blocks.heads(); ++head) {
    auto some = Queries::of(queries.values.subspan(head * each, each), queries.count, channels,
                            queries.scale, number_format(blocks.layout()), queries.soft_cap);
    if (some && !queries.weights.empty())
      some = some->summed(queries.weights.subspan(size_t{head} * queries.count, queries.count),
                          queries.group == 0 ? queries.count : queries.group, queries.rectified);
    if (!some) return some.error();
    all.push_back(std::move(*some));
  }
  if (auto good = queries.views.check(all[0].answers()); !good) return good.error();
  return all;
}

Result<void> check_size(const char* name, size_t given, size_t wanted) {
  if (given == wanted) return {};
  return refuse(fmt::format("{} has room for {} numbers, and not {}", name, given, wanted));
}

}  // namespace

Result<BlocksRead> score(const HeadsOfBlocks& heads, const HeadQueries& queries,
                         std::span<float> scores) {
  auto blocks = Blocks::open(heads);
  if (!blocks) return blocks.error();
  const auto wanted = queries_of(*blocks, queries);
  if (!wanted) return wanted.error();
  const size_t all = blocks->all_tokens();
  const uint32_t answers = (*wanted)[0].answers();
  if (auto good = check_size("scores", scores.size(), all * answers * blocks->heads()); !good)
    return good.error();
  std::vector<float> some;
  const auto score_all = [&]() -> Result<void> {
    std::fill(scores.begin(), scores.end(), kNever);
    size_t at = 0;  // of the block's first token
    for (size_t b = 0; b < blocks->count(); at += blocks->tokens(b), ++b) {
      const auto add = [&](uint32_t head, const KvSpan& span) -> Result<void> {
        const KeySpan keys{span.first_token, span.keys};
        some.resize(size_t{answers} * keys.keys.tokens);
        if (auto good = score((*wanted)[head], {&keys, 1}, queries.views, some); !good) return good;
        const size_t first = at + span.first_token - blocks->first_token(b);
        for (uint32_t a = 0; a < answers; ++a)
          std::copy_n(&some[size_t{a} * keys.keys.tokens], keys.keys.tokens,
                      &scores[(size_t{head} * answers + a) * all + first]);
        return {};
      };
      if (auto good = blocks->for_rows(b, Blocks::Want::KEYS, queries.views, add); !good)
        return good;
    }
    return {};
  };
  if (auto good = blocks->without_unreadable(score_all); !good) return good.error();
  return blocks->read();
}

// ---- the best ----

namespace {

/// What top_k() was asked for.
struct Wanted {
  uint32_t k;
  double bytes_per_token;
  Reading reading;
};

/// The best keys of frames that are searched by their planes: of heads that lie side by side
/// together, of others one head after the other.
class PlaneBlocks {
 public:
  PlaneBlocks(Blocks& blocks, std::span<const Queries> queries, const Views& views)
      : blocks_(blocks), queries_(queries), views_(views), whole_(blocks.count()) {
    for (const Queries& of_head : queries) {
      bool finite = true;
      for (uint32_t q = 0; q < of_head.count(); ++q) finite &= of_head.is_finite(q);
      finite_.push_back(finite);
    }
  }

  /// Before anything else. Some blocks are left out then, if that is wanted.
  Result<void> open();
  bool searches(size_t block, uint32_t head) const {
    return !queries_[0].are_summed() && is_long_frame(block) &&
           (!blocks_.together() || (whole_[block] && finite_[head]));
  }
  bool searches_all(size_t block) const {
    for (uint32_t head = 0; head < blocks_.heads(); ++head) {
      if (!searches(block, head)) return false;
    }
    return true;
  }
  /// Of each head, to `best` of it.
  Result<void> search(const Wanted& wanted, std::span<TopK> best);

 private:
  Result<void> search(uint32_t first, uint32_t end, const Wanted& wanted, std::span<TopK> best);
  bool is_wanted(size_t block) const {
    return !blocks_.is_left_out(block) && blocks_.is_seen(block, views_);
  }
  bool is_long_frame(size_t block) const {
    return blocks_.is_framed(block) && blocks_.tokens(block) >= kSearchedTokens;
  }
  Result<PlaneKeys> open_keys(size_t block, uint32_t head) const;
  Result<void> open_heads(uint32_t first, uint32_t end);
  Result<void> leave_out_undecodable();
  bool can_be_cut(const PlaneKeys& whole) const;
  /// Leaves the block out, if that is wanted.
  Result<void> unreadable(size_t block, const Error& error) {
    if (!blocks_.skips() || !is_unreadable(error.status)) return blocks_.cannot_read(block, error);
    blocks_.leave_out(block);
    return {};
  }

  Blocks& blocks_;
  const std::span<const Queries> queries_;
  const Views views_;
  std::vector<bool> finite_;  // by head: all of its queries
  /// Of all heads that lie side by side. None where a tile has no bounds for one of them.
  std::vector<std::optional<PlaneKeys>> whole_;
  // Of heads that are searched together.
  std::vector<uint32_t> heads_;
  std::vector<std::vector<PlaneKeys>> keys_;  // by these heads and by blocks
  std::vector<size_t> numbers_;               // of the blocks
};

Result<PlaneKeys> PlaneBlocks::open_keys(size_t block, uint32_t head) const {
  auto keys = PlaneKeys::open(blocks_.frame(block), blocks_.outer_of(0, head),
                              blocks_.first_token(block), views_);
  if (!keys || blocks_.fits(*keys, block)) return keys;
  return Status::DAMAGED;
}

bool PlaneBlocks::can_be_cut(const PlaneKeys& whole) const {
  for (uint32_t head = 0; head < blocks_.heads(); ++head) {
    const auto keys = whole.head(blocks_.channel_of(0, head), blocks_.layout().key_channels);
    if (!keys ||
        !std::all_of(keys->tiles().begin(), keys->tiles().end(), [](const PlaneKeys::Tile& tile) {
          return !tile.opened || tile.planes.has_value();
        }))
      return false;
  }
  return true;
}

Result<void> PlaneBlocks::open() {
  const bool none = std::find(finite_.begin(), finite_.end(), true) == finite_.end();
  if (!blocks_.together() || none || queries_[0].are_summed()) return {};
  for (size_t b = 0; b < blocks_.count(); ++b) {
    if (!is_long_frame(b) || !is_wanted(b) || whole_[b]) continue;
    auto keys = open_keys(b, 0);
    if (!keys) {
      if (auto good = unreadable(b, keys.error()); !good) return good;
    } else if (can_be_cut(*keys)) {
      whole_[b] = std::move(*keys);
    }
  }
  return {};
}

/// A block is opened for all of the heads, or for none.
Result<void> PlaneBlocks::open_heads(uint32_t first, uint32_t end) {
  heads_.clear();
  for (uint32_t head = first; head < end; ++head) {
    if (!blocks_.together() || finite_[head]) heads_.push_back(head);
  }
  keys_.assign(heads_.size(), {});
  numbers_.clear();
  for (size_t b = 0; b < blocks_.count() && !heads_.empty(); ++b) {
    if (!searches(b, heads_[0]) || !is_wanted(b)) continue;
    if (!blocks_.together()) {
      auto keys = open_keys(b, heads_[0]);
      if (!keys) {
        if (auto good = unreadable(b, keys.error()); !good) return good;
        continue;
      }
      keys_[0].push_back(std::move(*keys));
    }
    for (size_t i = 0; blocks_.together() && i < heads_.size(); ++i) {
      // Cannot fail: can_be_cut() has tried it.
      keys_[i].push_back(
          whole_[b]->head(blocks_.channel_of(0, heads_[i]), blocks_.layout().key_channels).value());
    }
    numbers_.push_back(b);
  }
  return {};
}

/// As score() would: a search stops at the first one that it meets.
Result<void> PlaneBlocks::leave_out_undecodable() {
  const auto use_nothing = [](uint32_t, const KvSpan&) -> Result<void> { return {}; };
  for (size_t b = 0; b < blocks_.count(); ++b) {
    if (!is_long_frame(b)) continue;
    if (auto good = blocks_.for_rows(b, Blocks::Want::KEYS, views_, use_nothing); !good)
      return good;
  }
  return {};
}

Result<void> PlaneBlocks::search(const Wanted& wanted, std::span<TopK> best) {
  if (queries_[0].are_summed()) return {};
  const uint32_t at_once = blocks_.together() ? blocks_.heads() : 1;
  for (uint32_t head = 0; head < blocks_.heads(); head += at_once) {
    if (auto good = search(head, head + at_once, wanted, best); !good) return good;
  }
  return {};
}

/// For heads that are searched together. However many blocks are damaged, it searches twice; more
/// often only if they change meanwhile.
Result<void> PlaneBlocks::search(uint32_t first, uint32_t end, const Wanted& wanted,
                                 std::span<TopK> best) {
  for (;;) {
    if (auto good = open_heads(first, end); !good) return good;
    if (numbers_.empty()) return {};
    std::vector<std::vector<const PlaneKeys*>> keys(heads_.size());
    std::vector<HeadKeys> heads;
    for (size_t i = 0; i < heads_.size(); ++i) {
      for (const PlaneKeys& one : keys_[i]) keys[i].push_back(&one);
      heads.push_back({&queries_[heads_[i]], keys[i]});
    }
    UnreadableKeys at;
    const auto budget =
        wanted.bytes_per_token > 0 ? std::optional(wanted.bytes_per_token) : std::nullopt;
    const auto answer = top_k_of_heads(heads, views_, wanted.k, budget, wanted.reading, &at);
    blocks_.add_read(answer ? answer->bytes_read : at.bytes_read);
    if (answer) {
      for (size_t i = 0; i < heads_.size(); ++i) {
        for (uint32_t q = 0; q < answer->hits[i].size(); ++q)
          best[heads_[i]].add(q, answer->hits[i][q]);
      }
      return {};
    }
    if (!is_unreadable(answer.status())) return answer.error();
    if (auto good = unreadable(numbers_[at.block], answer.error()); !good) return good;
    if (auto good = leave_out_undecodable(); !good) return good;
  }
}

Result<void> check_top_k(const Blocks& blocks, const HeadQueries& queries, const Wanted& wanted) {
  const uint32_t k = wanted.k;
  if (!(wanted.bytes_per_token >= 0) || std::isinf(wanted.bytes_per_token))
    return refuse(
        fmt::format("{} bytes for each token: give a number above 0, or 0 for an exact "
                    "search",
                    wanted.bytes_per_token));
  constexpr uint32_t kLeastRoom = 256;  // of TopK, for a query
  const uint64_t hits = uint64_t{queries.count} * blocks.heads() * std::max(k, kLeastRoom);
  if (hits > TopK::kMaxHits)
    return refuse(
        fmt::format("the {} best of {} queries of {} heads: ask for fewer heads or "
                    "queries at once ({} hits are possible, and each query takes {})",
                    k, queries.count, blocks.heads(), TopK::kMaxHits, std::max(k, kLeastRoom)));
  return {};
}

/// hits[head][answer].
Result<void> find_best(Blocks& blocks, PlaneBlocks& planes, std::span<const Queries> queries,
                       const Views& views, const Wanted& wanted,
                       std::vector<std::vector<Hit>>& hits) {
  hits.clear();
  std::vector<TopK> best;
  for (const Queries& of_head : queries) {
    auto none = TopK::of(of_head.answers(), wanted.k);
    if (!none) return none.error();
    best.push_back(std::move(*none));
  }
  std::vector<KeySpan> keys;
  const auto add = [&](uint32_t head, std::span<const KvSpan> spans) {
    keys.clear();
    for (const KvSpan& span : spans) keys.push_back({span.first_token, span.keys});
    return best[head].add(queries[head], keys, views);
  };
  if (auto good = blocks.for_values(Blocks::Want::KEYS, views.any(), add); !good) return good;
  if (auto good = planes.open(); !good) return good;
  for (size_t b = 0; b < blocks.count(); ++b) {
    if (!blocks.is_framed(b) || planes.searches_all(b)) continue;
    const auto add_one = [&](uint32_t head, const KvSpan& span) {
      return planes.searches(b, head) ? Result<void>() : add(head, {&span, 1});
    };
    if (auto good = blocks.for_rows(b, Blocks::Want::KEYS, views, add_one); !good) return good;
  }
  if (auto good = planes.search(wanted, best); !good) return good;
  for (uint32_t head = 0; head < blocks.heads(); ++head) {
    for (uint32_t q = 0; q < queries[head].answers(); ++q) {
      const std::span<const Hit> of_query = best[head].hits(q);
      hits.emplace_back(of_query.begin(), of_query.end());
    }
  }
  return {};
}

}  // namespace

Result<BlockHits> top_k(const HeadsOfBlocks& heads, const HeadQueries& queries, uint32_t k,
                        double bytes_per_token, Reading reading) {
  const Wanted wanted{k, bytes_per_token, reading};
  auto blocks = Blocks::open(heads);
  if (!blocks) return blocks.error();
  if (auto good = check_top_k(*blocks, queries, wanted); !good) return good.error();
  const auto by_head = queries_of(*blocks, queries);
  if (!by_head) return by_head.error();
  PlaneBlocks planes(*blocks, *by_head, queries.views);
  BlockHits answer;
  const auto search_all = [&] {
    return find_best(*blocks, planes, *by_head, queries.views, wanted, answer.hits);
  };
  if (auto good = blocks->without_unreadable(search_all); !good) return good.error();
  answer.read = blocks->read();
  return answer;
}

Result<void> check_score(const HeadsOfBlocks& heads, const HeadQueries& queries) {
  const auto blocks = Blocks::arrange(heads);
  if (!blocks) return blocks.error();
  const auto wanted = queries_of(*blocks, queries);
  return wanted ? Result<void>() : wanted.error();
}

Result<void> check_top_k(const HeadsOfBlocks& heads, const HeadQueries& queries, uint32_t k,
                         double bytes_per_token) {
  const auto blocks = Blocks::arrange(heads);
  if (!blocks) return blocks.error();
  if (auto good = check_top_k(*blocks, queries, {k, bytes_per_token, {}}); !good) return good;
  const auto wanted = queries_of(*blocks, queries);
  if (!wanted) return wanted.error();
  const auto room = TopK::of((*wanted)[0].answers(), k);
  return room ? Result<void>() : room.error();
}

// ---- attention, rows, pages ----

namespace {

Result<std::vector<Queries>> queries_to_attend(const Blocks& blocks, const HeadQueries& queries) {
  if (blocks.layout().value_channels == 0)
    return refuse("blocks of keys only have nothing to attend to");
  auto wanted = queries_of(blocks, queries);
  if (!wanted) return wanted;
  if (auto good = check_single((*wanted)[0]); !good) return good.error();
  return wanted;
}

Result<size_t> row_bytes_of(const Blocks& blocks, uint32_t part) {
  const size_t bytes = part > 1 ? 0 : row_bytes(blocks.layout(), part);
  if (bytes > 0) return bytes;
  return refuse(
      fmt::format("part {} of blocks of {}: keys are 0, values 1", part, to_text(blocks.layout())));
}

}  // namespace

Result<void> check_attend(const HeadsOfBlocks& heads, const HeadQueries& queries) {
  const auto blocks = Blocks::arrange(heads);
  if (!blocks) return blocks.error();
  const auto wanted = queries_to_attend(*blocks, queries);
  return wanted ? Result<void>() : wanted.error();
}

Result<void> check_gather(const HeadsOfBlocks& heads, uint32_t part,
                          std::span<const uint32_t> tokens) {
  const auto blocks = Blocks::arrange(heads);
  if (!blocks) return blocks.error();
  if (auto bytes = row_bytes_of(*blocks, part); !bytes) return bytes.error();
  for (const uint32_t token : tokens) {
    if (!blocks->holder_of(token)) return refuse(fmt::format("no block has token {}", token));
  }
  return {};
}

Result<void> check_digest(const HeadsOfBlocks& heads, uint32_t page_tokens) {
  const auto blocks = Blocks::arrange(heads);
  if (!blocks) return blocks.error();
  const auto pages = pages_of(heads.blocks, page_tokens);
  return pages ? Result<void>() : pages.error();
}

Result<BlocksRead> attend(const HeadsOfBlocks& heads, const HeadQueries& queries,
                          std::span<float> outputs, std::span<float> log_sum_exps) {
  auto blocks = Blocks::open(heads);
  if (!blocks) return blocks.error();
  const auto wanted = queries_to_attend(*blocks, queries);
  if (!wanted) return wanted.error();
  const uint32_t channels = blocks->layout().value_channels;
  const size_t all = size_t{queries.count} * blocks->heads();
  if (auto good = check_size("outputs", outputs.size(), all * channels); !good) return good.error();
  if (auto good = check_size("log_sum_exps", log_sum_exps.size(), all); !good) return good.error();
  std::vector<Attention> partials;
  const auto add = [&](uint32_t head, std::span<const KvSpan> spans) {
    return partials[head].add((*wanted)[head], spans, queries.views);
  };
  const auto attend_to_all = [&]() -> Result<void> {
    partials.clear();
    for (uint32_t head = 0; head < blocks->heads(); ++head) {
      auto none = Attention::of(queries.count, channels);
      if (!none) return none.error();
      partials.push_back(std::move(*none));
    }
    if (auto good = blocks->for_values(Blocks::Want::BOTH, queries.views.any(), add); !good)
      return good;
    for (size_t b = 0; b < blocks->count(); ++b) {
      if (!blocks->is_framed(b)) continue;
      const auto add_one = [&](uint32_t head, const KvSpan& span) { return add(head, {&span, 1}); };
      if (auto good = blocks->for_rows(b, Blocks::Want::BOTH, queries.views, add_one); !good)
        return good;
    }
    return {};
  };
  if (auto good = blocks->without_unreadable(attend_to_all); !good) return good.error();
  for (size_t i = 0; i < all; ++i) {
    const Attention& partial = partials[i / queries.count];
    const auto query = static_cast<uint32_t>(i % queries.count);
    const Status status = partial.output(query, outputs.subspan(i * channels, channels));
    if (status != Status::OK) return status;
    log_sum_exps[i] = partial.log_sum_exp(query);
  }
  return blocks->read();
}

namespace {

/// How many unlike ones some of the tokens are, which are in order.
uint64_t unlike(std::span<const uint32_t> tokens, std::span<const size_t> some) {
  uint64_t count = 1;
  for (size_t i = 1; i < some.size(); ++i) count += tokens[some[i]] != tokens[some[i - 1]] ? 1 : 0;
  return count;
}

}  // namespace

Result<BlocksRead> gather(const HeadsOfBlocks& heads, uint32_t part,
                          std::span<const uint32_t> tokens, std::span<std::byte> rows) {
  auto blocks = Blocks::open(heads);
  if (!blocks) return blocks.error();
  const auto bytes = row_bytes_of(*blocks, part);
  if (!bytes) return bytes.error();
  const size_t row_bytes = *bytes;
  if (rows.size() != row_bytes * tokens.size() * blocks->heads())
    return refuse(fmt::format("space of {} bytes for rows, and not {}", rows.size(),
                              row_bytes * tokens.size() * blocks->heads()));
  std::vector<std::vector<size_t>> by_block(blocks->count());  // which of the tokens
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto block = blocks->holder_of(tokens[i]);
    if (!block) return refuse(fmt::format("no block has token {}", tokens[i]));
    by_block[*block].push_back(i);
  }
  for (std::vector<size_t>& of_block : by_block)
    std::sort(of_block.begin(), of_block.end(),
              [&](size_t x, size_t y) { return tokens[x] < tokens[y]; });
  constexpr Visible kNoScales{0, 0, 0};
  const auto copy_all = [&]() -> Result<void> {
    std::fill(rows.begin(), rows.end(), std::byte{0});
    for (size_t b = 0; b < blocks->count(); ++b) {
      if (by_block[b].empty() || blocks->is_left_out(b)) continue;
      const Visible wanted{tokens[by_block[b].front()], tokens[by_block[b].back()] + 1, 0};
      const auto copy = [&](uint32_t head, const KvSpan& span) -> Result<void> {
        for (const size_t i : by_block[b]) {
          if (!pass_checkpoint(1)) return Status::CANCELLED;
          const uint32_t within = tokens[i] - span.first_token;
          if (within >= span.keys.tokens) return Status::DAMAGED;  // another block's by now
          std::memcpy(&rows[(head * tokens.size() + i) * row_bytes], span.keys.row(within),
                      row_bytes);
        }
        return {};
      };
      const auto want = part == 0 ? Blocks::Want::KEYS : Blocks::Want::VALUES;
      const auto good =
          blocks->is_framed(b)
              ? blocks->for_rows(b, want, wanted, copy)
              : blocks->for_value(b, want, unlike(tokens, by_block[b]), kNoScales, copy);
      if (!good) return good;
    }
    return {};
  };
  if (auto good = blocks->without_unreadable(copy_all); !good) return good.error();
  return blocks->read();
}

Result<uint64_t> pages_of(std::span<const StoredBlock> blocks, uint32_t page_tokens) {
  if (page_tokens == 0) return refuse("pages of no token: give 1 or more");
  uint64_t pages = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto tokens = tokens_of(blocks[i]);
    if (!tokens) return refuse(blocks, i, "its length fits no number of tokens");
    pages += (*tokens + page_tokens - 1) / page_tokens;
  }
  return pages;
}

Result<BlocksRead> digest(const HeadsOfBlocks& heads, uint32_t page_tokens, std::span<float> least,
                          std::span<float> largest) {
  auto blocks = Blocks::open(heads);
  if (!blocks) return blocks.error();
  const auto pages = pages_of(heads.blocks, page_tokens);
  if (!pages) return pages.error();
  const size_t channels = blocks->layout().key_channels;
  const size_t all = *pages * channels * blocks->heads();
  if (auto good = check_size("least", least.size(), all); !good) return good.error();
  if (auto good = check_size("largest", largest.size(), all); !good) return good.error();
  const auto note_all = [&]() -> Result<void> {
    for (const std::span<float> bounds : {least, largest})
      std::fill(bounds.begin(), bounds.end(), std::numeric_limits<float>::quiet_NaN());
    size_t page = 0;
    for (size_t b = 0; b < blocks->count(); ++b) {
      const auto note = [&](uint32_t head, const KvSpan& span) -> Result<void> {
        if (span.keys.tokens != blocks->tokens(b))
          return Status::DAMAGED;  // another block's by now
        const auto bounds = digest({span.first_token, span.keys}, page_tokens);
        if (!bounds) return bounds.error();
        const auto at = static_cast<ptrdiff_t>((head * *pages + page) * channels);
        std::copy(bounds->least.begin(), bounds->least.end(), least.begin() + at);
        std::copy(bounds->largest.begin(), bounds->largest.end(), largest.begin() + at);
        return {};
      };
      if (auto good = blocks->for_rows(b, Blocks::Want::KEYS, {}, note); !good) return good;
      page += (blocks->tokens(b) + page_tokens - 1) / page_tokens;
    }
    return {};
  };
  if (auto good = blocks->without_unreadable(note_all); !good) return good.error();
  return blocks->read();
}

}  // namespace bowhead::ndp
