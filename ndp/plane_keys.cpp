// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_keys.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compression/frame_parts.h"
#include "ndp/kernels.h"

namespace bowhead::ndp {
namespace {

using namespace compression;

Result<void> check_open(const Shape& shape, uint32_t outer, uint32_t first_token) {
  const auto refuse = [](std::string why) {
    return Error{Status::INVALID_ARGUMENT, std::move(why)};
  };
  if (number_of(shape.number) == nullptr) return refuse("a frame of bytes holds no keys");
  if (outer >= shape.outer)
    return refuse(fmt::format("outer index {} of a frame that has {}", outer, shape.outer));
  if (uint64_t{first_token} + shape.tokens > std::numeric_limits<uint32_t>::max())
    return refuse(fmt::format("a frame of {} tokens from {} on: positions have 32 bits",
                              shape.tokens, first_token));
  return {};
}

}  // namespace

Result<PlaneKeys> PlaneKeys::open(ConstBytes bytes, uint32_t outer, uint32_t first_token,
                                  const Views& views) {
  if (const auto info = frame_info(bytes); !info) return info.error();
  // From here on one copy of the header counts: the bytes may be those of another block by now.
  const auto frame = open_frame(bytes);
  if (!frame) return frame.error();
  const Shape& shape = frame->shape;
  if (auto good = check_open(shape, outer, first_token); !good) return good.error();

  PlaneKeys keys;
  keys.frame_ = bytes;
  keys.shape_ = shape;
  keys.outer_ = outer;
  keys.first_token_ = first_token;
  keys.channels_ = shape.channels;
  keys.head_bytes_ = frame->head_bytes();
  const Tiling& tiling = frame->tiling;
  keys.tiles_.reserve(tiling.tiles_per_outer);
  uint64_t index = tiling.tile_of(outer, 0), at = frame->offset_of(index);
  for (uint32_t begin = 0; begin < shape.tokens; ++index) {
    const ConstBytes coded = frame->tile_at(index, at);
    if (coded.empty()) return Status::DAMAGED;
    const uint32_t tokens = tiling.tokens_of(shape.tokens, index);
    const bool wanted = views.have_some(first_token + begin, tokens);
    Tile& tile = keys.tiles_.emplace_back(Tile{at, coded.size(), begin, tokens, wanted, {}});
    if (wanted && coded[0] > BH_TILE_SEARCHABLE) return Status::UNSUPPORTED_CODEC;
    if (wanted && coded[0] == BH_TILE_SEARCHABLE) {
      auto planes = PlaneTile::open(shape, coded, tokens);
      if (!planes) return planes.error();
      tile.planes = std::move(*planes);
    }
    at += coded.size();
    begin += tokens;
  }
  return keys;
}

Result<PlaneKeys> PlaneKeys::head(uint32_t first_channel, uint32_t channels) const {
  if (channels == 0 || uint64_t{first_channel} + channels > channels_)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("channels {} to {} of keys of {}", first_channel,
                             uint64_t{first_channel} + channels, channels_)};
  PlaneKeys head = *this;
  if (channels == channels_) return head;
  head.first_channel_ += first_channel;
  head.channels_ = channels;
  for (Tile& tile : head.tiles_) {
    if (tile.planes) tile.planes = tile.planes->cut(first_channel, channels);
  }
  return head;
}

}  // namespace bowhead::ndp
