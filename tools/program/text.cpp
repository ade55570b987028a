// SPDX-License-Identifier: Apache-2.0
// Only formatting; nothing here prints.
#include "tools/program/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace bowhead::cli {

constexpr std::string_view kHex = "hex:";

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.9996 would print as 1024.00.
  while (value >= 1023.995 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string exact_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  return fmt::format("{} ({} bytes)", human_bytes(bytes), grouped(bytes));
}

std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string duration_text(uint64_t ns) {
  const double value = static_cast<double>(ns);
  if (ns < 1000) return fmt::format("{} ns", ns);
  if (ns < 1000 * 1000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 1000 * 1000 * 1000) return fmt::format("{:.2f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string hex_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::optional<std::string> parse_hex(std::string_view digits) {
  const auto nibble = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    const int high = nibble(digits[i]);
    const int low = nibble(digits[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

bool is_printable(std::string_view key) {
  return std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string key_text(std::string_view key) {
  const bool as_it_is = is_printable(key) && !key.starts_with(kHex);
  return as_it_is ? std::string(key) : std::string(kHex) + hex_text(key);
}

std::string from_key_text(const std::string& text) {
  if (!text.starts_with(kHex)) return text;
  const auto key = parse_hex(std::string_view(text).substr(kHex.size()));
  return key && key_text(*key) == text ? *key : text;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      line += fmt::format("\\x{:02x}", byte);
    else
      line += c;
  }
  return line;
}

void Fields::add(std::string name, std::string value) {
  rows_.emplace_back(std::move(name), std::move(value));
}

std::string Fields::text() const {
  size_t width = 0;
  for (const auto& [name, value] : rows_) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : rows_) text += fmt::format("{:<{}}  {}\n", name, width, value);
  return text;
}

void Table::add(std::vector<std::string> cells) {
  BOWHEAD_ASSERT(cells.size() == rows_[0].size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths(rows_[0].size());
  std::vector<bool> right(rows_[0].size());
  auto rows = rows_;
  for (size_t column = 0; column < widths.size(); ++column) {
    std::string& heading = rows[0][column];
    right[column] = !heading.empty() && heading[0] == '>';
    if (right[column]) heading.erase(0, 1);
    for (const auto& row : rows) widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < widths.size(); ++column) {
      if (column > 0) line += "  ";
      line += right[column] ? fmt::format("{:>{}}", row[column], widths[column])
                            : fmt::format("{:<{}}", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace bowhead::cli
