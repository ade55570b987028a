// SPDX-License-Identifier: Apache-2.0
// Searches for keys in frames: one of a frame that an encoder wrote gives exactly the result of a
// search of its decoded rows; one of any bytes ends, with as many hits as there are.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/assert.h"
#include "compression/frame.h"
#include "ndp/numbers.h"
#include "ndp/plane_keys.h"
#include "tests/fuzz/input.h"
#include "tests/support/reseal.h"

namespace bowhead::ndp {
namespace {

using compression::Decoder;
using compression::Encoder;
using compression::Profile;
using compression::Shape;

constexpr size_t kMostBytes = 1 << 18;

struct Wanted {
  uint32_t outer, first_token, k;
  uint32_t first_channel, channels;  ///< as far as there are so many
  double bytes_per_token;
  Reading reading;
  Visible visible;
  uint32_t query_count;
  std::vector<float> queries;  ///< as many as there are; repeated
};

/// Small whole numbers, or any bits.
Wanted take_wanted(fuzz::Input& input) {
  Wanted wanted;
  wanted.outer = input.take<uint8_t>() % 4;
  wanted.first_token = input.take<uint8_t>();
  wanted.k = 1 + input.take<uint8_t>();
  wanted.bytes_per_token = (1 + input.take<uint8_t>()) / 8.0;
  wanted.visible = {input.take<uint8_t>(), input.take<uint16_t>(), input.take<uint8_t>()};
  const auto kind = input.take<uint8_t>();
  wanted.query_count = 1 + kind % 4;
  const uint32_t head = kind / 8 % 16;  // 0: all channels together
  wanted.first_channel = head * 8;
  wanted.channels = head == 0 ? kMaxChannels : head % 4 * 8 + 4;
  wanted.reading = kind / 4 % 2 == 0 ? Reading::ONE_PASS : Reading::FEWEST_BYTES;
  for (int i = 0; i < 8; ++i) {
    const auto bits = input.take<uint32_t>();
    wanted.queries.push_back(kind < 128 ? static_cast<float>(static_cast<int8_t>(bits))
                                        : std::bit_cast<float>(bits));
  }
  return wanted;
}

/// As plane_keys.h defines them.
std::vector<Hit> best_of_rows(const PlaneKeys& keys, const std::vector<uint8_t>& rows,
                              const Queries& queries, uint32_t query, const Wanted& wanted) {
  std::vector<Hit> hits;
  for (uint32_t t = 0; t < keys.tokens(); ++t) {
    const uint8_t* value = &rows[t * keys.shape().row_bytes() + keys.row_begin()];
    double sum = 0;
    for (uint32_t c = 0; c < keys.channels(); ++c, value += element_bytes(keys.number()))
      sum += static_cast<double>(queries.floats(query)[c]) *
             static_cast<double>(load_number(keys.number(), value));
    const uint32_t token = wanted.first_token + t;
    if (wanted.visible.has(token))
      hits.push_back({static_cast<float>(sum * static_cast<double>(queries.scale())), token});
  }
  std::sort(hits.begin(), hits.end(), better);
  hits.resize(std::min<size_t>(hits.size(), wanted.k));
  return hits;
}

bool same_hit(const Hit& a, const Hit& b) {
  return a.token == b.token && (a.score == b.score || (std::isnan(a.score) && std::isnan(b.score)));
}

/// `rows`: the decoded keys, which the search must find the best of; none if no encoder wrote the
/// frame: then any hits will do.
void search(const PlaneKeys& keys, const std::vector<uint8_t>* rows, const Wanted& wanted) {
  std::vector<float> values(size_t{wanted.query_count} * keys.channels());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = wanted.queries[(i + i / 8) % wanted.queries.size()];
  const auto queries =
      Queries::of(values, wanted.query_count, keys.channels(), 0.125f, keys.number()).value();
  const PlaneKeys* block = &keys;
  const auto exact = exact_top_k(queries, {&block, 1}, wanted.visible, wanted.k, wanted.reading);
  const auto near = approximate_top_k(queries, {&block, 1}, wanted.visible, wanted.k,
                                      wanted.bytes_per_token, wanted.reading);
  for (const auto* answer : {&exact, &near})
    BOWHEAD_ASSERT(*answer || (rows == nullptr && (answer->status() == Status::DAMAGED ||
                                                   answer->status() == Status::UNSUPPORTED_CODEC)));
  if (!exact || !near) return;
  uint32_t seen = 0;
  for (uint32_t t = 0; t < keys.tokens(); ++t)
    seen += wanted.visible.has(wanted.first_token + t) ? 1 : 0;
  const size_t count = std::min(seen, wanted.k);
  for (uint32_t q = 0; q < wanted.query_count; ++q) {
    std::vector<Hit> right;
    if (rows != nullptr) right = best_of_rows(keys, *rows, queries, q, wanted);
    BOWHEAD_ASSERT(rows == nullptr || std::equal(right.begin(), right.end(), exact->hits[q].begin(),
                                                 exact->hits[q].end(), same_hit));
    std::set<uint32_t> tokens;
    for (const Hit& hit : near->hits[q]) {
      BOWHEAD_ASSERT(wanted.visible.has(hit.token));
      BOWHEAD_ASSERT(hit.token - wanted.first_token < keys.tokens());
      tokens.insert(hit.token);
    }
    BOWHEAD_ASSERT(tokens.size() == count && near->hits[q].size() == count);
    BOWHEAD_ASSERT(exact->hits[q].size() == count);
  }
}

/// Two parts of the channels together give what each of them gives alone.
void search_halves(const PlaneKeys& keys, bool encoded, const Wanted& wanted) {
  const uint32_t middle = std::min(keys.channels() / 2, kMaxChannels);
  const PlaneKeys parts[] = {
      keys.head(0, middle).value(),
      keys.head(middle, std::min(keys.channels() - middle, kMaxChannels)).value()};
  std::vector<Queries> queries;
  const PlaneKeys* blocks[2];
  std::vector<HeadKeys> heads;
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<float> values(parts[i].channels(), wanted.queries[i]);
    queries.push_back(Queries::of(values, 1, parts[i].channels(), 0.125f, keys.number()).value());
    blocks[i] = &parts[i];
  }
  for (size_t i = 0; i < 2; ++i) heads.push_back({&queries[i], {&blocks[i], 1}});
  const auto near =
      top_k_of_heads(heads, wanted.visible, wanted.k, wanted.bytes_per_token, wanted.reading);
  const auto both = top_k_of_heads(heads, wanted.visible, wanted.k, {}, wanted.reading);
  BOWHEAD_ASSERT(!encoded || (near && both));
  if (!near || !both) return;
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<Hit>& hits = both->hits[i][0];
    BOWHEAD_ASSERT(near->hits[i][0].size() == hits.size());
    const auto one = exact_top_k(queries[i], heads[i].blocks, wanted.visible, wanted.k);
    BOWHEAD_ASSERT(!encoded || (one && std::equal(hits.begin(), hits.end(), one->hits[0].begin(),
                                                  one->hits[0].end(), same_hit)));
  }
}

void check_frame(const std::vector<uint8_t>& frame, bool encoded, const Wanted& wanted) {
  const auto info = compression::frame_info(frame);
  if (info && info->shape.size_bytes() > kMostBytes) return;
  const auto keys = PlaneKeys::open(frame, wanted.outer, wanted.first_token);
  const Status status = keys ? Status::OK : keys.status();
  if (!info) {
    BOWHEAD_ASSERT(status == info.status());
    return;
  }
  const Shape& shape = info->shape;
  if (compression::number_of(shape.number) == nullptr || wanted.outer >= shape.outer) {
    BOWHEAD_ASSERT(status == Status::INVALID_ARGUMENT);
    return;
  }
  BOWHEAD_ASSERT(keys || status == Status::DAMAGED || status == Status::UNSUPPORTED_CODEC);
  std::vector<uint8_t> rows(shape.tokens * shape.row_bytes());
  const Status decoded = Decoder().decode_tokens(frame, wanted.outer, 0, shape.tokens, rows);
  BOWHEAD_ASSERT(keys || decoded != Status::OK);
  BOWHEAD_ASSERT(!encoded || decoded == Status::OK);
  if (!keys) return;
  const uint32_t first = wanted.first_channel % shape.channels;
  const PlaneKeys head =
      keys->head(first, std::min({wanted.channels, shape.channels - first, kMaxChannels})).value();
  search(head, encoded ? &rows : nullptr, wanted);
  if (shape.channels > 1) search_halves(*keys, encoded, wanted);
}

/// {number format, channels, rotary, profile}, then values.
std::vector<uint8_t> take_encoded(fuzz::Input& input) {
  Shape shape;
  shape.number = static_cast<NumberFormat>(1 + input.take<uint8_t>() % 5);
  shape.outer = 1;
  const auto channels = input.take<uint8_t>(), rotary = input.take<uint8_t>();
  shape.channels = 1 + channels % 140u;
  const uint32_t heads = 1 + rotary / 2 % 8u;
  if (rotary % 2 != 0 && shape.channels % 2 == 0)
    shape.rotary = compression::rotary_of(10000, shape.channels);
  shape.channels *= heads;
  const Profile profile = input.take<uint8_t>() % 2 != 0 ? Profile::DENSE : Profile::FAST;
  const std::string_view bytes = input.take_bytes(kMostBytes);
  shape.tokens = static_cast<uint32_t>(bytes.size() / shape.row_bytes());
  if (shape.tokens == 0) return {};
  std::vector<uint8_t> frame(frame_bound(shape));
  frame.resize(Encoder(profile)
                   .encode(shape,
                           {reinterpret_cast<const uint8_t*>(bytes.data()), shape.size_bytes()},
                           frame)
                   .value());
  return frame;
}

}  // namespace
}  // namespace bowhead::ndp

/// {kind: a frame, a frame whose checksums are corrected, values}, the query, then the data.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bowhead;
  fuzz::Input input(data, size);
  const uint32_t what = input.take<uint8_t>() % 3;
  ndp::Wanted wanted = ndp::take_wanted(input);
  std::vector<uint8_t> frame;
  if (what == 2) {
    frame = ndp::take_encoded(input);
    wanted.outer = 0;
  } else {
    const std::string_view bytes = input.take_bytes(size);
    frame.assign(bytes.begin(), bytes.end());
    if (what == 1) compression::reseal(frame);
  }
  frame.shrink_to_fit();  // so that a sanitizer sees reads past the end
  ndp::check_frame(frame, what == 2, wanted);
  return 0;
}
