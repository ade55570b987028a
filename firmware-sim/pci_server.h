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
  /// Makes the socket, which this user alone can connect to. One that a process left behind is
  /// replaced. Returns INVALID_ARGUMENT (the path), IN_USE (a process listens there, or it is no
  /// socket), SYSTEM.
  static Result<PciServer> listen(const std::string& path);
  PciServer(PciServer&& other) noexcept
      : path_(std::exchange(other.path_, {})), listener_(std::move(other.listener_)) {}
  PciServer& operator=(PciServer&&) = delete;
  ~PciServer();  ///< removes the socket

  /// Serves machines, one after the other, until `stops`, which is asked some times a second, says
  /// so. `mappings` are those that `function` uses. Returns SYSTEM.
  Result<void> serve(VfioFunction& function, DmaMappings& mappings,
                     const std::function<bool()>& stops);

 private:
  PciServer(std::string path, UniqueFd listener)
      : path_(std::move(path)), listener_(std::move(listener)) {}

  std::string path_;
  UniqueFd listener_;
};

/// Serves the machine at the other end of a connected stream socket, until it leaves or breaks the
/// protocol, or `stops` says so. Machines that want to connect to `listener`, if it is one, are
/// turned away meanwhile.
void serve_connection(const UniqueFd& connection, const UniqueFd& listener, VfioFunction& function,
                      DmaMappings& mappings, const std::function<bool()>& stops);

}  // namespace bowhead::device
