// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/replay/model_data.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "ndp/numbers.h"
#include "tools/bowhead/replay/trace.h"
#include "tools/program/kv_data.h"

namespace bowhead::replay {
namespace {

using namespace tensors;

KvLayout layout_of(const KvTensor& keys) {
  KvLayout layout =
      pairs_layout(keys.number, static_cast<uint16_t>(keys.layers()),
                   static_cast<uint16_t>(keys.heads()), static_cast<uint16_t>(keys.channels()));
  if (const double base = find_rotary_base(keys); base != 0) {
    layout.rotary = BH_ROTARY_HALVES;
    layout.rotary_channels = layout.key_channels;
    layout.rotary_base_thousandths = static_cast<uint64_t>(std::llround(base * 1000));
  }
  return layout;
}

std::vector<std::byte> blocks_of(const KvLayout& layout, const KvTensor& keys,
                                 const KvTensor& values) {
  const uint64_t block_bytes = payload_bytes(layout, kBlockTokens);
  std::vector<std::byte> blocks(keys.tokens() / kBlockTokens * block_bytes);
  for (uint64_t block = 0; block * block_bytes < blocks.size(); ++block) {
    for (uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (uint32_t head = 0; head < layout.heads; ++head) {
        for (uint32_t part = 0; part < 2; ++part) {
          const KvRows rows = rows_of(layout, kBlockTokens, layer, part, head);
          BOWHEAD_ASSERT(rows.stride_bytes == rows.row_bytes);
          const size_t bytes = kBlockTokens * rows.row_bytes;
          const auto all = (part == 0 ? keys : values).head(layer * layout.heads + head);
          std::memcpy(&blocks[block * block_bytes + rows.offset_bytes], &all[block * bytes], bytes);
        }
      }
    }
  }
  return blocks;
}

std::vector<float> queries_of(const KvTensor& queries) {
  std::vector<float> all;
  for (uint32_t query = 0; query < queries.tokens(); ++query) {
    for (uint32_t head = 0; head < queries.layers() * queries.heads(); ++head) {
      const auto row = queries.head(head).subspan(query * queries.row_bytes());
      for (uint32_t c = 0; c < queries.channels(); ++c)
        all.push_back(ndp::from_bf16(row[2 * c] | static_cast<uint32_t>(row[2 * c + 1]) << 8));
    }
  }
  return all;
}

Result<void> check_values(const KvSet& set, const KvTensor& tensor) {
  for (size_t i = 0; i < tensor.values.size(); i += 2) {
    const uint32_t bits = tensor.values[i] | static_cast<uint32_t>(tensor.values[i + 1]) << 8;
    if (std::isfinite(ndp::from_bf16(bits))) continue;
    return Error{Status::INVALID_ARGUMENT, fmt::format("{}: number {} of its {} is not finite",
                                                       set.name, i / 2, kv_role_name(tensor.role))};
  }
  return {};
}

Result<void> check_shape(const KvSet& set, const KvTensor& keys) {
  for (const uint32_t size : {keys.layers(), keys.heads(), keys.channels()}) {
    if (size > UINT16_MAX)
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("{}: keys of [{}]: a layout has at most {} layers, heads and channels",
                      set.name, fmt::join(keys.shape, ", "), UINT16_MAX)};
  }
  return {};
}

/// OK without data: the set has not all that is needed.
Result<ModelData> model_data_of(const KvSet& set) {
  const KvTensor* keys = find_tensor(set, KvRole::KEYS, NumberFormat::BF16);
  const KvTensor* values = find_tensor(set, KvRole::VALUES, NumberFormat::BF16);
  const KvTensor* queries = find_tensor(set, KvRole::QUERIES, NumberFormat::BF16);
  ModelData data;
  if (keys == nullptr || values == nullptr || queries == nullptr || keys->tokens() < kBlockTokens)
    return data;
  if (auto fit = check_queries(set, *keys, *queries); !fit) return fit.error();
  if (values->shape != keys->shape)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{}: values of [{}] do not go with keys of [{}]", set.name,
                             fmt::join(values->shape, ", "), fmt::join(keys->shape, ", "))};
  if (auto good = check_shape(set, *keys); !good) return good.error();
  for (const KvTensor* tensor : {keys, values, queries}) {
    if (auto good = check_values(set, *tensor); !good) return good.error();
  }
  data.name = set.name;
  data.captured = !set.synthetic;
  data.layout = layout_of(*keys);
  if (auto good = check_layout(data.layout); !good) return good.error();
  data.blocks = blocks_of(data.layout, *keys, *values);
  data.query_heads = queries->heads();
  data.query_count = queries->tokens();
  data.queries = queries_of(*queries);
  return data;
}

}  // namespace

uint64_t ModelData::block_bytes() const { return payload_bytes(layout, kBlockTokens); }

Result<ModelData> read_model_data(const std::string& folder) {
  const auto sets = read_kv_data(folder);
  if (!sets) return sets.error();
  for (const KvSet& set : *sets) {
    auto data = model_data_of(set);
    if (!data || !data->blocks.empty()) return data;
  }
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{}: no set has keys, values and queries of bf16, of {} tokens or more",
                           folder, kBlockTokens)};
}

ModelData make_model_data() { return model_data_of(make_kv_data()).value(); }

}  // namespace bowhead::replay
