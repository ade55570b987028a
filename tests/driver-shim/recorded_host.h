// SPDX-License-Identifier: Apache-2.0
// A host whose files record.sh has printed in a guest, unpacked into a folder that ends with it.
#pragma once

#include <filesystem>
#include <string>

#include "driver-shim/doctor.h"
#include "driver-shim/inventory.h"

namespace bowhead::shim_test {

class RecordedHost {
 public:
  /// `name`: a file of hosts/. "" is a host without any file.
  explicit RecordedHost(const std::string& name);
  ~RecordedHost();
  RecordedHost(const RecordedHost&) = delete;
  RecordedHost& operator=(const RecordedHost&) = delete;

  const shim::HostFiles& files() const { return files_; }
  shim::Inventory inventory() const { return shim::read_inventory(files_); }

  /// Makes a file with its folders, or gives it another content.
  void set(const std::string& path, const std::string& content) const;
  void remove(const std::string& path) const;
  void link(const std::string& path, const std::string& target) const;

 private:
  const std::filesystem::path folder_;
  const shim::HostFiles files_;
};

}  // namespace bowhead::shim_test
