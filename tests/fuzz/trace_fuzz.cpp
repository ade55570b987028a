// SPDX-License-Identifier: Apache-2.0
// The parser of request traces on any text.
//
// An accepted trace must keep the promise on which every model of a cache relies: equal ids mean
// equal prefixes. A refusal must name the line.
#include <map>
#include <string>

#include "base/assert.h"
#include "tests/fuzz/input.h"
#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {
namespace {

void check_trace(const Trace& trace) {
  BOWHEAD_ASSERT(!trace.requests.empty() && trace.ids.size() == trace.dense.size());
  std::map<uint64_t, uint32_t> dense_of_id;
  std::map<uint64_t, uint64_t> id_before;
  uint64_t next = 0;
  for (const Request& request : trace.requests) {
    BOWHEAD_ASSERT(request.first_block == next);
    next += request.block_count;
    BOWHEAD_ASSERT(next <= trace.ids.size());
    BOWHEAD_ASSERT(request.input_tokens > 0 &&
                   request.block_count <= request.input_tokens / kBlockTokens + 1);
    const auto ids = trace.ids_of(request);
    const auto dense = trace.dense_of(request);
    for (size_t i = 0; i < ids.size(); ++i) {
      BOWHEAD_ASSERT(dense[i] < trace.distinct_blocks);
      BOWHEAD_ASSERT(dense_of_id.try_emplace(ids[i], dense[i]).first->second == dense[i]);
      const uint64_t before = i == 0 ? UINT64_MAX : dense[i - 1];
      BOWHEAD_ASSERT(id_before.try_emplace(ids[i], before).first->second == before);
    }
  }
  BOWHEAD_ASSERT(next == trace.ids.size() && dense_of_id.size() == trace.distinct_blocks);
}

void check_refusal(const Error& error, std::string_view text) {
  BOWHEAD_ASSERT(error.status == Status::BAD_TRACE && error.detail.starts_with("trace:"));
  size_t lines = 1;
  for (const char c : text) lines += c == '\n';
  const std::string rest = error.detail.substr(6);
  if (rest == " no request in the trace") return;
  const size_t line = std::stoul(rest);
  BOWHEAD_ASSERT(line >= 1 && line <= lines);
  BOWHEAD_ASSERT(rest.find(": ") != std::string::npos);
}

}  // namespace
}  // namespace bowhead::replay

/// {maximum of requests: u8}, then the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bowhead::fuzz::Input input(data, size);
  const auto requests_max = input.take<uint8_t>();
  const std::string_view text = input.take_bytes(size);
  const auto trace = bowhead::replay::parse_trace(text, "trace", requests_max);
  if (trace) {
    BOWHEAD_ASSERT(requests_max == 0 || trace->requests.size() <= requests_max);
    bowhead::replay::check_trace(*trace);
  } else {
    bowhead::replay::check_refusal(trace.error(), text);
  }
  return 0;
}
