// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/host_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/unique_fd.h"

namespace bowhead::shim {
namespace fs = std::filesystem;
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Compares runs of digits as numbers: glibc's order of versions.
bool by_numbers(const std::string& a, const std::string& b) {
  return strverscmp(a.c_str(), b.c_str()) < 0;
}

}  // namespace

bool HostFiles::exists(const std::string& path) const {
  return access(at(path).c_str(), F_OK) == 0;
}

std::optional<std::string> HostFiles::text(const std::string& path) const {
  std::ifstream file(at(path), std::ios::binary);
  std::ostringstream content;
  // An attribute may answer a read with an error, which the stream shows as bad().
  if (!file.is_open() || !fs::is_regular_file(at(path)) || file.bad()) return std::nullopt;
  content << file.rdbuf();
  if (file.bad()) return std::nullopt;
  std::string text = content.str();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::optional<uint64_t> HostFiles::number(const std::string& path) const {
  const auto content = text(path);
  return content ? parse_number(*content) : std::nullopt;
}

std::vector<std::string> HostFiles::names(const std::string& folder,
                                          std::string_view prefix) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(at(folder), error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end(), by_numbers);
  return names;
}

std::string HostFiles::link_name(const std::string& path) const {
  std::error_code error;
  return fs::read_symlink(at(path), error).filename().string();
}

std::string HostFiles::resolved(const std::string& path) const {
  std::error_code error;
  const std::string real = fs::canonical(at(path), error).string();
  if (error) return "";
  const std::string root = root_.empty() ? "" : fs::canonical(root_, error).string();
  return real.starts_with(root) ? real.substr(root.size()) : "";
}

Result<void> HostFiles::write(const std::string& path, const std::string& text) const {
  const UniqueFd fd = open_file(at(path), O_WRONLY | O_TRUNC);
  const bool written =
      fd.get() >= 0 && ::write(fd.get(), text.data(), text.size()) == ssize_t(text.size());
  if (written) return {};
  return Error{Status::SYSTEM,
               fmt::format("cannot write '{}' to {}: {}", text, path, std::strerror(errno))};
}

std::string last_component(const std::string& path) { return fs::path(path).filename().string(); }

std::string component_with_prefix(const std::string& path, std::string_view prefix) {
  std::string found;
  for (const fs::path& part : fs::path(path)) {
    const std::string name = part.string();
    if (name.starts_with(prefix) && name.size() > prefix.size() &&
        std::all_of(name.begin() + ssize_t(prefix.size()), name.end(), is_digit))
      found = name;
  }
  return found;
}

std::optional<uint64_t> parse_number(const std::string& text) {
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  const int base = text.starts_with("0x") ? 16 : 10;
  errno = 0;
  const uint64_t value = std::strtoull(text.c_str(), nullptr, base);
  return errno == 0 ? std::optional(value) : std::nullopt;
}

}  // namespace bowhead::shim
