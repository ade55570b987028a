// SPDX-License-Identifier: Apache-2.0
#include "tools/program/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace bowhead::cli {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

Error system_error(const char* failed, const std::string& path) {
  return {Status::SYSTEM,
          fmt::format("cannot {} {}: {}", failed, input_name(path), std::strerror(errno))};
}

}  // namespace

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : path; }

Result<bool> input_exists(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return system_error("find", path);
}

Result<std::string> read_input(const std::string& path, uint64_t most_bytes) {
  const bool standard_input = path == "-";
  const UniqueFd file = standard_input ? UniqueFd() : open_file(path, O_RDONLY);
  const int fd = standard_input ? STDIN_FILENO : file.get();
  if (fd < 0) return system_error("open", path);
  const Error too_large{Status::VALUE_TOO_LARGE,
                        fmt::format("{} has more than {} bytes", input_name(path), most_bytes)};
  struct stat status {};
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<uint64_t>(status.st_size) > most_bytes)
    return too_large;
  std::string content;
  for (;;) {
    const size_t before = content.size();
    content.resize(before + kPieceBytes);
    const ssize_t got = read(fd, content.data() + before, kPieceBytes);
    const int error = errno;
    content.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return content;
    errno = error;
    if (got < 0 && errno != EINTR) return system_error("read", path);
    if (content.size() > most_bytes) return too_large;
  }
}

}  // namespace bowhead::cli
