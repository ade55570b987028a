// SPDX-License-Identifier: Apache-2.0
// Trace: requests to an inference engine, each a chain of prefix blocks.
//
// A block is 512 tokens of a prompt (the last one of a request may hold fewer), named by an id.
// Equal ids mean equal tokens and equal tokens before them: an id always follows the same id. Every
// source of a Trace guarantees this, because hit rates of a prefix cache, and the models of them,
// are only defined then.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bowhead::replay {

inline constexpr uint64_t kBlockTokens = 512;

struct Request {
  uint64_t timestamp_ms = 0;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  uint32_t first_block = 0;  ///< in Trace::ids and Trace::dense
  uint32_t block_count = 0;
};

struct Trace {
  std::string source;  ///< to be shown: a file's name, or how it was generated
  std::vector<Request> requests;
  std::vector<uint64_t> ids;    ///< of all requests, one after the other
  std::vector<uint32_t> dense;  ///< the same ids, numbered from 0 in order of appearance
  uint32_t distinct_blocks = 0;

  std::span<const uint64_t> ids_of(const Request& request) const {
    return std::span(ids).subspan(request.first_block, request.block_count);
  }
  std::span<const uint32_t> dense_of(const Request& request) const {
    return std::span(dense).subspan(request.first_block, request.block_count);
  }
  uint32_t largest_request_blocks() const;
};

/// Parses a trace in Mooncake's format: one line per request, each a JSON object with `timestamp`
/// (ms), `input_length`, `output_length` (tokens) and `hash_ids`. Blank lines are skipped. At most
/// `requests_max` requests are kept (0: all), but every line is checked. Returns BAD_TRACE, with
/// name, line number and error of the first broken line.
Result<Trace> parse_trace(std::string_view text, const std::string& name, uint64_t requests_max);

/// Reads the trace from a file; "-" is standard input. Returns BAD_TRACE, SYSTEM (cannot be read).
Result<Trace> read_trace(const std::string& path, uint64_t requests_max);

}  // namespace bowhead::replay
