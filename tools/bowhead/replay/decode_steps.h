// SPDX-License-Identifier: Apache-2.0
// DecodeSteps: what an engine does for a token that it generates when the keys and values of the
// tokens before it stay in the pool. For each layer a device finds the keys that score highest for
// the queries of the token (TOP_K), and hands over the values of those tokens (GATHER).
//
// Answers are compared with scores that are computed here, from content that is regenerated, and
// values byte for byte. Beside it stands what the same step would take without the device: all keys
// and values come over the link. Times that a model of hardware gives are called modelled.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "firmware-sim/timing.h"
#include "ndp/engine.h"
#include "pool/pool.h"
#include "tools/bowhead/replay/content.h"
#include "tools/bowhead/replay/histogram.h"
#include "tools/bowhead/replay/model_data.h"
#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

struct StepOptions {
  uint32_t steps = 1;          ///< for each request
  uint32_t k = 64;             ///< tokens for each query
  double bytes_per_token = 0;  ///< estimates from so many; 0: exactly
};

/// Sums over steps. Plain data, zero means empty: it lies in memory shared by processes.
struct StepStats {
  static constexpr size_t kProfilesMax = 8;

  /// On modelled hardware: one of device::profiles().
  struct Modelled {
    double ns, ns_without;
    uint64_t link_bytes, link_bytes_without;
    uint64_t searches_device;  ///< in it; the host computes the others
  };

  uint64_t steps;
  uint64_t steps_lapsed;        ///< abandoned: blocks were evicted meanwhile; in no other sum
  uint64_t steps_damaged;       ///< abandoned: a block was damaged; likewise
  uint64_t requests_served;     ///< requests of the trace with steps
  uint64_t requests_shortened;  ///< of them, those of which the pool had leading blocks only
  uint64_t requests_without;    ///< the pool had no block of them, or no lease: no steps
  uint64_t context_tokens;      ///< of all steps
  uint64_t context_bytes;       ///< of all steps: their blocks, as they are stored
  uint64_t output_tokens;       ///< of the requests, by the trace
  uint64_t restore_bytes;       ///< of the requests: their blocks, once
  uint64_t read_bytes;          ///< of blocks, next to the memory
  uint64_t computed_device;     ///< answered by a device
  uint64_t computed_process;    ///< and in the worker itself
  uint64_t searches;            ///< requests for the best keys: one for each layer of a step
  uint64_t queries;
  double recall;           ///< sums over the queries
  double mass;             ///< likewise: attention to the tokens that were found
  uint64_t wrong_answers;  ///< hits that no such query has, or other bytes of values
  std::array<Modelled, kProfilesMax> modelled;
  LatencyHistogram time;  ///< of a step, measured

  void merge(const StepStats& other);
};

/// Not thread-safe; made in the process that uses it.
class DecodeSteps {
 public:
  /// The references must outlive it.
  DecodeSteps(Pool& pool, NamespaceId namespace_id, const Content& content, const ModelData& data,
              const StepOptions& options, std::unique_ptr<ndp::Engine> engine, StepStats& stats);
  ~DecodeSteps();

  /// Steps of a request whose prompt is these blocks: of the leading ones that the pool has.
  /// `seed`: for the choice of queries. Statuses of the pool and of the engine, but for LAPSED.
  Result<void> serve(std::span<const uint64_t> ids, uint64_t output_tokens, uint64_t seed);

 private:
  class Leases;
  struct Layer;
  struct Models;

  Result<void> take_step(uint32_t query, std::span<const uint64_t> ids);
  Result<void> find(uint32_t query, uint32_t layer, Layer& of);
  Result<void> gather(uint32_t layer, Layer& of);
  void score_exactly(uint32_t query, uint32_t layer, std::span<const uint64_t> ids);
  std::span<float> exact_scores(uint32_t query_head) {
    return std::span(exact_).subspan(query_head * tokens_, tokens_);
  }
  void check_hits(uint32_t query, uint32_t layer, const Layer& of);
  void check_values(uint32_t layer, const Layer& of, std::span<const uint64_t> ids);
  Result<void> model(const Layer& of, Models& models);
  Result<void> finish(ndp::Job& job);

  Pool& pool_;
  const NamespaceId namespace_id_;
  const Content& content_;
  const ModelData& data_;
  const StepOptions options_;
  const std::unique_ptr<ndp::Engine> engine_;
  StepStats& stats_;
  const float scale_;

  // Of the request that is served.
  StepStats pending_{};
  std::vector<ndp::StoredBlock> blocks_;
  uint64_t tokens_ = 0, stored_bytes_ = 0;
  // Of the layer that is compared.
  std::vector<float> exact_;         // [query head][token]
  std::vector<double> longest_key_;  // [head]
  std::vector<std::byte> slice_;     // of a block
  std::vector<float> keys_;          // of a head of a block, as floats
};

}  // namespace bowhead::replay
