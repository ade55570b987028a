// SPDX-License-Identifier: Apache-2.0
// Parses Mooncake's JSONL. Nothing of a broken line is used: the first one ends the parse.
#include "tools/bowhead/replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "tools/program/input.h"

namespace bowhead::replay {
namespace {

using Json = nlohmann::json;

// Bounds that no valid request exceeds; they keep all later products far from overflow.
constexpr uint64_t kTokensMax = uint64_t{1} << 32;
constexpr uint64_t kTimestampMax = uint64_t{1} << 53;
constexpr uint64_t kBlocksMax = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoBlock = std::numeric_limits<uint32_t>::max();

// The library's message without its tag and its "line 1": "column 7: syntax error while ...".
std::string syntax_text(const Json::exception& error) {
  const std::string text = error.what();
  size_t at = text.find("column ");
  if (at == std::string::npos) at = text.find("] ") + 2;
  return "not valid JSON: " + text.substr(at);
}

class Parser {
 public:
  Parser(const std::string& name, uint64_t requests_max)
      : name_(name), requests_max_(requests_max) {
    trace_.source = name;
  }

  Result<void> line(std::string_view text) {
    ++line_;
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) return {};
    Json object;
    try {
      object = Json::parse(text);
    } catch (const Json::exception& error) {
      return wrong(syntax_text(error));
    }
    if (!object.is_object()) {
      return wrong(fmt::format("the line is a JSON {}, but must be an object", object.type_name()));
    }
    return request(object);
  }

  Result<Trace> finish() {
    if (trace_.requests.empty())
      return Error{Status::BAD_TRACE, name_ + ": no request in the trace"};
    return std::move(trace_);
  }

 private:
  Error wrong(const std::string& what) const {
    return Error{Status::BAD_TRACE, fmt::format("{}:{}: {}", name_, line_, what)};
  }

  Result<uint64_t> number(const Json& object, const char* field, uint64_t min, uint64_t max) const {
    const auto it = object.find(field);
    if (it == object.end()) return wrong(fmt::format("`{}` is missing", field));
    const uint64_t value = it->is_number_unsigned() ? it->get<uint64_t>() : max + 1;
    if (value < min || value > max) {
      return wrong(fmt::format("`{}` is {}, but must be an integer from {} to {}", field,
                               it->dump().substr(0, 40), min, max));
    }
    return value;
  }

  Result<void> request(const Json& object) {
    Request request;
    const auto timestamp = number(object, "timestamp", 0, kTimestampMax);
    if (!timestamp) return timestamp.error();
    const auto input = number(object, "input_length", 1, kTokensMax);
    if (!input) return input.error();
    const auto output = number(object, "output_length", 0, kTokensMax);
    if (!output) return output.error();
    request.timestamp_ms = *timestamp;
    request.input_tokens = *input;
    request.output_tokens = *output;

    const auto ids = object.find("hash_ids");
    if (ids == object.end()) return wrong("`hash_ids` is missing");
    if (!ids->is_array()) return wrong("`hash_ids` is not an array");
    // Writers differ in whether a partial last block gets an id.
    const uint64_t full = request.input_tokens / kBlockTokens;
    const uint64_t all = (request.input_tokens + kBlockTokens - 1) / kBlockTokens;
    if (ids->size() != full && ids->size() != all) {
      return wrong(
          fmt::format("`input_length` {} makes {} blocks of {} tokens, but `hash_ids` has {}",
                      request.input_tokens, all, kBlockTokens, ids->size()));
    }
    return blocks(*ids, request);
  }

  Result<void> blocks(const Json& ids, Request request) {
    if (trace_.ids.size() + ids.size() >= kBlocksMax)
      return wrong(fmt::format("more than {} blocks in the trace", kBlocksMax));
    request.first_block = static_cast<uint32_t>(trace_.ids.size());
    request.block_count = static_cast<uint32_t>(ids.size());
    const bool keep = requests_max_ == 0 || trace_.requests.size() < requests_max_;
    uint32_t previous = kNoBlock;
    for (const Json& id : ids) {
      if (!id.is_number_unsigned()) {
        return wrong(fmt::format("`hash_ids` holds {}, but ids are integers from 0 to 2^64-1",
                                 id.dump().substr(0, 40)));
      }
      const uint64_t value = id.get<uint64_t>();
      const auto [it, is_new] =
          blocks_.try_emplace(value, Block{static_cast<uint32_t>(blocks_.size()), previous, line_});
      if (!is_new && it->second.previous != previous) {
        return wrong(
            fmt::format("block id {} follows a different block than at line {}; equal ids must "
                        "mean equal prefixes",
                        value, it->second.line));
      }
      previous = it->second.dense;
      if (!keep) continue;
      trace_.ids.push_back(value);
      trace_.dense.push_back(previous);
      trace_.distinct_blocks = std::max(trace_.distinct_blocks, previous + 1);
    }
    if (keep) trace_.requests.push_back(request);
    return {};
  }

  struct Block {
    uint32_t dense;
    uint32_t previous;  // dense number of the block before it
    uint64_t line;      // where it was first seen
  };

  const std::string& name_;
  const uint64_t requests_max_;
  uint64_t line_ = 0;
  Trace trace_;
  std::unordered_map<uint64_t, Block> blocks_;
};

}  // namespace

uint32_t Trace::largest_request_blocks() const {
  uint32_t largest = 0;
  for (const Request& request : requests) largest = std::max(largest, request.block_count);
  return largest;
}

Result<Trace> parse_trace(std::string_view text, const std::string& name, uint64_t requests_max) {
  Parser parser(name, requests_max);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const auto read = parser.line(text.substr(0, end));
    if (!read) return read.error();
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parser.finish();
}

Result<Trace> read_trace(const std::string& path, uint64_t requests_max) {
  const auto text = cli::read_input(path);
  if (!text) return text.error();
  return parse_trace(*text, cli::input_name(path), requests_max);
}

}  // namespace bowhead::replay
