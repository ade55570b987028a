// SPDX-License-Identifier: Apache-2.0
#include "tools/program/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

/// Parses all of `text` as one number; empty if it is not one or does not fit.
template <class T, class... Base>
std::optional<T> parse(std::string_view text, Base... base) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value, base...);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

std::string range_text(Limits<uint64_t> limits) {
  if (limits.most == std::numeric_limits<uint64_t>::max())
    return fmt::format("{} or more", grouped(limits.least));
  return fmt::format("{} to {}", grouped(limits.least), grouped(limits.most));
}

/// The factor of a suffix such as K, kb or KiB, which is removed; empty if it is not one.
std::optional<uint64_t> take_unit(std::string_view& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  std::string unit(digits == std::string_view::npos ? "" : text.substr(digits));
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  text = text.substr(0, digits);
  if (unit.empty() || unit == "B") return 1;
  const size_t power = std::string_view("KMGT").find(unit[0]);
  const std::string rest = unit.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "B" && rest != "IB"))
    return std::nullopt;
  return uint64_t{1} << (10 * (power + 1));
}

}  // namespace

CLI::Validator whole_number(Limits<uint64_t> limits) {
  return CLI::Validator(
      [limits](std::string& text) {
        const auto value = parse<uint64_t>(text);
        if (!value)
          return fmt::format("'{}' is not a whole number: give {}", text, range_text(limits));
        if (*value < limits.least || *value > limits.most)
          return fmt::format("{} is out of range: give {}", text, range_text(limits));
        text = std::to_string(*value);
        return std::string();
      },
      "", "whole number");
}

CLI::Validator size_in_bytes(Limits<uint64_t> limits) {
  return CLI::Validator(
      [limits](std::string& text) {
        std::string_view digits = text;
        const auto unit = take_unit(digits);
        const auto number = unit ? parse<uint64_t>(digits) : std::nullopt;
        if (!number || *number > std::numeric_limits<uint64_t>::max() / *unit)
          return fmt::format("'{}' is not a size: give bytes, or a whole number with K, M, G or T",
                             text);
        const uint64_t bytes = *number * *unit;
        if (bytes < limits.least || bytes > limits.most)
          return fmt::format("'{}' is out of range: give {} bytes", text, range_text(limits));
        text = std::to_string(bytes);
        return std::string();
      },
      "", "size");
}

CLI::Validator real_number(Limits<double> limits) {
  return CLI::Validator(
      [limits](std::string& text) {
        const auto value = parse<double>(text);
        // Written so that NaN is refused.
        if (!value || !(*value >= limits.least && *value <= limits.most))
          return fmt::format("'{}' is not a number from {:g} to {:g}", text, limits.least,
                             limits.most);
        return std::string();
      },
      "", "number");
}

CLI::Validator octal_number(uint32_t most) {
  return CLI::Validator(
      [most](std::string& text) {
        const auto value = parse<uint32_t>(text, 8);
        if (!value || *value > most)
          return fmt::format("'{}' is not a mode: give octal digits such as 0660", text);
        text = std::to_string(*value);
        return std::string();
      },
      "", "mode");
}

CLI::Option* add_rope_options(CLI::App& command, double& base, uint64_t& dim,
                              bool& is_interleaved) {
  CLI::Option* option =
      add_real(command, "--rope-base", base,
               "Base of rotary position embedding (\"rope theta\"), if the values are keys after "
               "it, such as 500000",
               {1, 1e12});
  add_number(command, "--rotary-dim", dim, "Channels of a head that rotate together (default: all)",
             {1, 65535})
      ->needs(option);
  command
      .add_flag("--rope-interleaved", is_interleaved,
                "Rotary embedding pairs channel 2c with 2c + 1, not c with c + half")
      ->needs(option);
  return option;
}

}  // namespace bowhead::cli
