// SPDX-License-Identifier: Apache-2.0
// PciServer: a Unix socket at which virtual machines find a PCI function, by the vfio-user protocol
// (vfio_user.h). One machine at a time has it; others are turned away.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "firmware-sim/vfio_user.h"

namespace bowhead::device {

class PciServer {
 public:
  using Say = std::function<void(const std::string&)>;
  /// Makes the socket, which this user alone can connect to. One that a process left behind is
  /// replaced. Returns INVALID_ARGUMENT (the path), IN_USE (a process listens there, or it is no
  /// socket), SYSTEM.
  static Result<PciServer> listen(const std::string& path);
  PciServer(PciServer&& other) noexcept
      : path_(std::exchange(other.path_, {})),
        inode_(other.inode_),
        listener_(std::move(other.listener_)) {}
  PciServer& operator=(PciServer&&) = delete;
  ~PciServer();  ///< removes the socket, unless another one has taken its place

  /// Serves machines, one after the other, until `stops`, which is asked some times a second, says
  /// so. `mappings` are those that `function` uses. `say` is told who comes and goes. Returns
  /// SYSTEM.
  Result<void> serve(VfioFunction& function, DmaMappings& mappings,
                     const std::function<bool()>& stops, const Say& say = {});

 private:
  PciServer(std::string path, uint64_t inode, UniqueFd listener)
      : path_(std::move(path)), inode_(inode), listener_(std::move(listener)) {}

  std::string path_;
  uint64_t inode_;  // of the socket's name
  UniqueFd listener_;
};

/// Serves the machine at the other end of a connected stream socket, until it leaves or breaks the
/// protocol, or `stops` says so. Machines that want to connect to `listener`, if it is one, are
/// turned away meanwhile. Returns how the machine broke the protocol; "": it did not.
std::string serve_connection(const UniqueFd& connection, const UniqueFd& listener,
                             VfioFunction& function, DmaMappings& mappings,
                             const std::function<bool()>& stops);

}  // namespace bowhead::device
