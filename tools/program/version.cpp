// SPDX-License-Identifier: Apache-2.0
#include "tools/program/version.h"

#include <bowhead/bowhead.h>
#include <bowhead/format/superblock.h>
#include <bowhead_commit.h>
#include <fmt/format.h>

#ifndef BOWHEAD_VERSION
#error "BOWHEAD_VERSION is defined by CMake"
#endif

namespace bowhead {

const char* built_version() { return BOWHEAD_VERSION; }

const char* built_commit() { return BOWHEAD_COMMIT; }

std::string version_text() {
  return fmt::format("bowhead {}, commit {}, ABI {}, pool format {}", built_version(),
                     built_commit(), BH_ABI_VERSION, BH_FORMAT_VERSION);
}

}  // namespace bowhead
