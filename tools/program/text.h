// SPDX-License-Identifier: Apache-2.0
// Numbers, keys and tables as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bowhead::cli {

/// "4.00 GiB", "512 B".
std::string human_bytes(uint64_t bytes);

/// "4.00 GiB (4,294,967,296 bytes)": readable and exact.
std::string exact_bytes(uint64_t bytes);

/// "1,234,567".
std::string grouped(uint64_t number);

/// "850 ns", "12.3 us", "4.56 ms", "1.20 s".
std::string duration_text(uint64_t ns);

std::string hex_text(std::string_view bytes);

/// The bytes of a string of hexadecimal digits; empty if it is not one.
std::optional<std::string> parse_hex(std::string_view digits);

/// True if every byte is printable ASCII.
bool is_printable(std::string_view key);

/// The key or name itself if it is printable and does not begin with "hex:"; else "hex:" and its
/// digits. No two keys have one text.
std::string key_text(std::string_view key);

/// The key or name of a text of key_text(); any other text is one itself.
std::string from_key_text(const std::string& text);

/// With control characters as "\xDD", for a message of one line.
std::string one_line(std::string_view text);

/// "name:  value" lines with the values aligned.
class Fields {
 public:
  void add(std::string name, std::string value);
  std::string text() const;

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

/// Columns under headings; a heading that begins with '>' is aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : rows_{std::move(headings)} {}
  /// As many as there are headings (asserted).
  void add(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace bowhead::cli
