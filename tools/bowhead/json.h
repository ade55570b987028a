// SPDX-License-Identifier: Apache-2.0
// JSON output: members in insertion order; bytes that are not UTF-8 are replaced.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace bowhead::cli {

using Json = nlohmann::ordered_json;

/// `indent` -1: on one line.
inline std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace bowhead::cli
