// SPDX-License-Identifier: Apache-2.0
// The files in which the kernel describes a host: sysfs, procfs, tracefs, device nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bowhead::shim {

/// All paths are absolute on the host that is described. It is this one, or a recorded one whose
/// files lie below a folder.
class HostFiles {
 public:
  /// `root`: "" for this host, else the folder that stands for "/".
  explicit HostFiles(std::string root = "") : root_(std::move(root)) {}

  /// Where the file really lies.
  std::string at(const std::string& path) const { return root_ + path; }

  bool exists(const std::string& path) const;
  /// The content without white space at its end; nullopt if it cannot be read.
  std::optional<std::string> text(const std::string& path) const;
  /// The first number of the content, decimal or 0x and hexadecimal.
  std::optional<uint64_t> number(const std::string& path) const;
  /// Names in a folder that begin with `prefix`, ordered by the numbers in them: mem2 before mem10.
  /// Empty if there is no such folder.
  std::vector<std::string> names(const std::string& folder, std::string_view prefix = "") const;
  /// The last component of a symbolic link's target; "" if there is no such link.
  std::string link_name(const std::string& path) const;
  /// The path with all symbolic links resolved; "" if it does not exist.
  std::string resolved(const std::string& path) const;
  /// Writes an existing file in one call, as attributes of sysfs need. Returns SYSTEM.
  Result<void> write(const std::string& path, const std::string& text) const;

 private:
  std::string root_;
};

/// "dax0.0" of "/sys/bus/dax/devices/dax0.0".
std::string last_component(const std::string& path);

/// The last component of a path that is `prefix` and a number, such as region0; "" if none is.
std::string component_with_prefix(const std::string& path, std::string_view prefix);

/// The number of a text, decimal or 0x and hexadecimal; nullopt if it does not begin with one.
std::optional<uint64_t> parse_number(const std::string& text);

/// Where sysfs has PCI functions.
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";

}  // namespace bowhead::shim
