// SPDX-License-Identifier: Apache-2.0
// Creates, opens and removes media at any locator.
//
// Paths of file: are put into a private folder, so that no input reaches a file that matters; valid
// names of shm: and numa: get a prefix.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/assert.h"
#include "pool/media/media.h"
#include "tests/fuzz/input.h"

namespace bowhead {
namespace {

constexpr uint64_t kMediumBytes = 2 << 20;

/// An empty folder that is removed at exit.
class Folder {
 public:
  Folder() {
    BOWHEAD_ASSERT(mkdtemp(path_.data()) != nullptr);
    BOWHEAD_ASSERT(mkdir((path() + "/folder").c_str(), 0700) == 0);
  }
  ~Folder() {
    (void)rmdir((path() + "/folder").c_str());
    (void)rmdir(path().c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "bowhead-fuzz-XXXXXX";
};

bool valid_name(const std::string& name) {
  if (name.empty() || name.size() > 200) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

/// The parts of a locator of joined media.
std::vector<std::string> parts_of(const std::string& locator) {
  std::vector<std::string> parts = {""};
  for (size_t at = 0; at < locator.size(); ++at) {
    const auto joins = [&](const char* scheme) { return locator.find(scheme, at) == at; };
    if (joins("+shm:") || joins("+file:") || joins("+numa:") || joins("+dax:"))
      parts.emplace_back();
    else
      parts.back() += locator[at];
  }
  return parts;
}

/// One medium's locator made harmless; empty if it would leave the folder.
std::string tamed(const std::string& locator, const std::string& folder) {
  if (locator.starts_with("file:/")) {
    if ((locator + "/").find("/../") != std::string::npos) return {};
    return "file:" + folder + locator.substr(5);
  }
  if (locator.starts_with("shm:") && valid_name(locator.substr(4)) && locator.size() < 150)
    return "shm:fuzz-" + std::to_string(getpid()) + "-" + locator.substr(4);
  if (locator.starts_with("numa:0/") && valid_name(locator.substr(7)) && locator.size() < 150)
    return "numa:0/fuzz-" + std::to_string(getpid()) + "-" + locator.substr(7);
  // No input may reach a device.
  if (locator.starts_with("dax:") && locator.find("dax", 4) != std::string::npos) return {};
  return locator;
}

size_t entries_in(const std::string& folder) {
  DIR* directory = opendir(folder.c_str());
  BOWHEAD_ASSERT(directory != nullptr);
  size_t entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries;
}

/// In quotes: the locator, or one of several that are joined.
bool names(const std::string& text, const std::string& locator) {
  for (size_t begin = 0; begin <= locator.size(); ++begin) {
    if (begin > 0 && locator[begin - 1] != '+') continue;
    for (size_t end = begin; end <= locator.size(); ++end) {
      if (end < locator.size() && locator[end] != '+') continue;
      if (text.find("'" + locator.substr(begin, end - begin) + "'") != std::string::npos)
        return true;
    }
  }
  return false;
}

void check_failed(const Error& error, const std::set<Status>& possible,
                  const std::string& locator) {
  BOWHEAD_ASSERT(possible.contains(error.status) && !error.detail.empty());
  if (error.status == Status::BAD_LOCATOR) BOWHEAD_ASSERT(names(error.detail, locator));
}

void check_locator(const std::vector<std::string>& parts, const std::string& folder) {
  std::string locator = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) locator += "+" + parts[i];
  const uint64_t bytes = parts.size() * kMediumBytes;
  const size_t entries = entries_in(folder);
  auto made = create_media(locator, {.size_bytes = bytes});
  if (!made) {
    check_failed(made.error(),
                 {Status::BAD_LOCATOR, Status::NOT_SUPPORTED, Status::POOL_EXISTS, Status::SYSTEM},
                 locator);
    BOWHEAD_ASSERT(entries_in(folder) == entries && "a failure left something behind");
    const auto opened = open_media(locator);
    if (!opened)
      check_failed(opened.error(),
                   {Status::BAD_LOCATOR, Status::NOT_SUPPORTED, Status::NO_SUCH_POOL,
                    Status::NOT_A_POOL, Status::SYSTEM},
                   locator);
    return;
  }
  for (const std::string& part : parts)
    BOWHEAD_ASSERT(part.starts_with("shm:")
                       ? valid_name(part.substr(4))
                       : part.starts_with("file:") || part.starts_with("numa:0/"));
  BOWHEAD_ASSERT((*made)->size_bytes() == bytes);
  (*made)->base()[bytes - 1] = std::byte{7};
  auto opened = open_media(locator);
  BOWHEAD_ASSERT(opened && (*opened)->base()[bytes - 1] == std::byte{7});
  BOWHEAD_ASSERT(create_media(locator, {.size_bytes = bytes}).status() == Status::POOL_EXISTS);
  BOWHEAD_ASSERT(remove_media(locator));
  BOWHEAD_ASSERT(open_media(locator).status() == Status::NO_SUCH_POOL);
  BOWHEAD_ASSERT(entries_in(folder) == entries);
}

}  // namespace
}  // namespace bowhead

/// The locator.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bowhead::Folder folder;
  auto parts = bowhead::parts_of(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string& part : parts) {
    part = bowhead::tamed(part, folder.path());
    if (part.empty()) return 0;
  }
  bowhead::check_locator(parts, folder.path());
  return 0;
}
