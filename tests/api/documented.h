// SPDX-License-Identifier: Apache-2.0
// What a header of the C ABI says of its functions.
#pragma once

#include <map>
#include <regex>
#include <set>
#include <string>

namespace bowhead::test {

/// The statuses that a header of the ABI lists for each function, directly or by reference to
/// another function.
inline std::map<std::string, std::set<std::string>> documented_statuses(const std::string& header) {
  std::map<std::string, std::set<std::string>> of;
  const std::regex name("\\b(bh_[a-z_]+)\\($"), status("BH_[A-Z_]+");
  const std::regex as_for("as for\\s[\\s*]*(bh_[a-z_]+)\\(\\)");
  const std::sregex_iterator end;
  for (size_t at = header.find("/**"); at != std::string::npos; at = header.find("/**", at + 1)) {
    const size_t over = header.find("*/", at), next = header.find_first_of("({;", over);
    const std::string text = header.substr(at, over - at);
    const std::string declared = header.substr(over, next + 1 - over);
    std::smatch function;
    if (!std::regex_search(declared, function, name)) continue;
    std::set<std::string>& statuses = of[function[1]];
    for (std::sregex_iterator one(text.begin(), text.end(), status); one != end; ++one)
      statuses.insert(one->str());
    for (std::sregex_iterator other(text.begin(), text.end(), as_for); other != end; ++other)
      statuses.merge(std::set<std::string>(of[(*other)[1]]));
  }
  return of;
}

}  // namespace bowhead::test
