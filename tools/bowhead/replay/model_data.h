// SPDX-License-Identifier: Apache-2.0
// ModelData: keys, values and queries of a model, as blocks of a replay and questions to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/status.h"

namespace bowhead::replay {

/// Immutable once made.
struct ModelData {
  std::string name;               ///< of the set of tensors
  bool captured = true;           ///< from a model, not synthetic
  KvLayout layout{};              ///< of a block
  std::vector<std::byte> blocks;  ///< of kBlockTokens each, one behind the other
  uint32_t query_heads = 0;       ///< of a layer
  uint32_t query_count = 0;       ///< of each of them
  std::vector<float> queries;     ///< [query][layer][query head][channel of keys]

  uint64_t block_bytes() const;
  uint32_t group() const { return query_heads / layout.heads; }  ///< query heads of a KV head
  /// Queries of all heads of a layer, at one position of the text.
  std::span<const float> queries_of(uint32_t query, uint32_t layer) const {
    const size_t one = size_t{query_heads} * layout.key_channels;
    return std::span(queries).subspan((size_t{query} * layout.layers + layer) * one, one);
  }
};

/// The first set in a folder (tools/program/kv_data.h) with keys, values and queries of bf16 and a
/// block's tokens or more. INVALID_ARGUMENT: there is none, or a file does not match its
/// description; SYSTEM: one cannot be read.
Result<ModelData> read_model_data(const std::string& folder);

/// Synthetic tensors, the same in every run.
ModelData make_model_data();

}  // namespace bowhead::replay
