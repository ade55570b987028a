// SPDX-License-Identifier: Apache-2.0
// Options whose value is a number. CLI11 reads numbers as strtoull() does: "-1" becomes 2^64-1 and
// "010" becomes 8. These options take decimal numbers within limits, and nothing else.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace bowhead::cli {

/// An inclusive range.
template <class T>
struct Limits {
  T least = 0;
  T most = std::numeric_limits<T>::max();
};

/// Validators that rewrite the number in a form that CLI11 reads correctly, or say what is wrong;
/// CLI11 prepends the name of the option.
CLI::Validator whole_number(Limits<uint64_t> limits);
/// Bytes, or a whole number with K, M, G or T.
CLI::Validator size_in_bytes(Limits<uint64_t> limits);
CLI::Validator real_number(Limits<double> limits);
/// Permission bits in octal digits.
CLI::Validator octal_number(uint32_t most);

/// `value` is an unsigned integer, or a vector of them.
template <class T>
CLI::Option* add_number(CLI::App& command, const std::string& name, T& value,
                        const std::string& help, Limits<uint64_t> limits) {
  return command.add_option(name, value, help)->transform(whole_number(limits))->type_name("N");
}
inline CLI::Option* add_size(CLI::App& command, const std::string& name, uint64_t& value,
                             const std::string& help, Limits<uint64_t> limits = {}) {
  return command.add_option(name, value, help)->transform(size_in_bytes(limits))->type_name("SIZE");
}
inline CLI::Option* add_real(CLI::App& command, const std::string& name, double& value,
                             const std::string& help, Limits<double> limits) {
  return command.add_option(name, value, help)->transform(real_number(limits))->type_name("X");
}

/// --rope-base, and --rotary-dim and --rope-interleaved, which need it; returns the first.
CLI::Option* add_rope_options(CLI::App& command, double& base, uint64_t& dim, bool& is_interleaved);

}  // namespace bowhead::cli
