// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace bowhead {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

int UniqueFd::release() { return std::exchange(fd_, -1); }

UniqueFd open_file(const std::string& path, int flags, mode_t mode) {
  // Free numbers below 3 are taken while the file is opened, by descriptors that no thread can
  // write to: moving the file away from there afterwards would leave it there for an instant.
  UniqueFd below[3];
  for (UniqueFd& fd : below) {
    fd = UniqueFd(open("/", O_PATH | O_CLOEXEC));
    if (fd.get() < 0 || fd.get() > 2) break;
  }
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, mode));
  if (file.get() < 0 || file.get() > 2) return file;
  // Another thread has closed a standard stream just now, or there are no more descriptors.
  UniqueFd moved(fcntl(file.get(), F_DUPFD_CLOEXEC, 3));
  return moved;
}

}  // namespace bowhead
