// SPDX-License-Identifier: Apache-2.0
// UniqueFd: a file descriptor with an owner, and the way in which Bowhead opens files.
#pragma once

#include <sys/types.h>

#include <string>

namespace bowhead {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

/// As open(2), closed on exec, but the descriptor is never 0, 1 or 2. A process may run without
/// standard streams, as daemons do; the file would take the lowest free number, and the output of
/// the program would be written over a pool. Negative with errno if it fails.
UniqueFd open_file(const std::string& path, int flags, mode_t mode = 0);

}  // namespace bowhead
