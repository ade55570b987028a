// SPDX-License-Identifier: Apache-2.0
#include "tests/driver-shim/recorded_host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace bowhead::shim_test {
namespace fs = std::filesystem;

RecordedHost::RecordedHost(const std::string& name)
    : folder_(fs::temp_directory_path() /
              ("bowhead-host-" + name + "-" + std::to_string(getpid()))),
      files_(folder_.string()) {
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  if (name.empty()) return;
  std::ifstream recorded(std::string(BOWHEAD_RECORDED_HOSTS) + "/" + name);
  EXPECT_TRUE(recorded.is_open()) << name;
  std::string path;
  std::string content;
  const auto finish = [&] {
    if (!path.empty()) set(path, content);
    path.clear();
    content.clear();
  };
  for (std::string line; std::getline(recorded, line);) {
    if (line.starts_with("  ")) {
      content += line.substr(2) + "\n";
      continue;
    }
    finish();
    const size_t arrow = line.find(" -> ");
    if (arrow != std::string::npos)
      link(line.substr(0, arrow), line.substr(arrow + 4));
    else if (line.ends_with('/'))
      fs::create_directories(files_.at(line));
    else
      path = line;
  }
  finish();
}

RecordedHost::~RecordedHost() { fs::remove_all(folder_); }

void RecordedHost::set(const std::string& path, const std::string& content) const {
  const fs::path file = files_.at(path);
  fs::create_directories(file.parent_path());
  std::ofstream(file) << content;
}

void RecordedHost::remove(const std::string& path) const { fs::remove_all(files_.at(path)); }

void RecordedHost::link(const std::string& path, const std::string& target) const {
  const fs::path file = files_.at(path);
  fs::create_directories(file.parent_path());
  fs::create_symlink(target, file);
}

}  // namespace bowhead::shim_test
