// SPDX-License-Identifier: Apache-2.0
// Keys, values and queries: captured from models, or synthetic ones like them.
//
// A folder of captured tensors has a folder per set, or is one, with a meta.json that lists its
// files:
//
//   {"files": {"k.bf16.bin": {"tensor": "k", "dtype": "bf16", "shape": [6, 2, 2048, 64]}, ...}}
//
// "k" and "v" are [layer][kv_head][token][channel], "q" is [layer][q_head][query][channel], all
// little-endian, keys and queries after rotary position embedding. qpos.u32.bin holds the token at
// which each query stands. Numbers are bf16, fp16, fp8_e4m3, fp8_e5m2 or int8; bench/narrow_data.py
// makes the last three of the first. Other files and other number formats are skipped.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "compression/frame.h"

namespace bowhead::tensors {

enum class KvRole : uint8_t { KEYS, VALUES, QUERIES };
const char* kv_role_name(KvRole role);  ///< "keys", "values", "queries"

struct KvTensor {
  std::string set;
  NumberFormat number = NumberFormat::BF16;
  KvRole role = KvRole::KEYS;
  std::array<uint32_t, 4> shape{};  ///< layers, heads, tokens or queries, channels
  compression::Rotary rotary;       ///< of keys; for captured ones see find_rotary()
  std::vector<uint8_t> values;

  uint32_t layers() const { return shape[0]; }
  uint32_t heads() const { return shape[1]; }
  uint32_t tokens() const { return shape[2]; }
  uint32_t channels() const { return shape[3]; }
  size_t row_bytes() const { return channels() * size_t{element_bytes(number)}; }
  /// Bytes of all tokens of one head.
  size_t head_bytes() const { return tokens() * row_bytes(); }
  /// `index` counts the heads of all layers.
  compression::ConstBytes head(size_t index) const {
    return compression::ConstBytes(values).subspan(index * head_bytes(), head_bytes());
  }
};

struct KvSet {
  std::string name;
  bool synthetic = false;
  std::vector<KvTensor> tensors;          ///< by number, then role
  std::vector<uint32_t> query_positions;  ///< empty: there is no qpos.u32.bin
};

/// All sets of a folder, by name, and of it itself. INVALID_ARGUMENT: a file does not match
/// meta.json, or there is no set; SYSTEM: a file cannot be read.
Result<std::vector<KvSet>> read_kv_data(const std::string& folder);

/// Keys and values with the statistics of captured ones: channels of different sizes, keys around a
/// mean that rotates by rotary position embedding, a head of values where tokens repeat. Queries
/// are bf16, and like keys: their attention says nothing about models. The same in every run.
KvSet make_kv_data();

/// Null: the set has none.
const KvTensor* find_tensor(const KvSet& set, KvRole role, NumberFormat number);
/// INVALID_ARGUMENT: by shapes and positions, these queries are not about these keys.
Result<void> check_queries(const KvSet& set, const KvTensor& keys, const KvTensor& queries);

/// The files do not give the base of the keys' rotary embedding, which an engine would know: this
/// returns the one of the usual bases with the smallest frames; 0: none has smaller ones than no
/// embedding.
double find_rotary_base(const KvTensor& keys);
/// Likewise; the embedding turns the halves of all channels.
compression::Rotary find_rotary(const KvTensor& keys);

}  // namespace bowhead::tensors
