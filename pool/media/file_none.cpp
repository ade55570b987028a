// SPDX-License-Identifier: Apache-2.0
// The stub of file.cpp for builds without libpmem2.

#include "pool/media/drivers.h"

namespace bowhead {
namespace {

Error not_built() {
  return Error{Status::NOT_SUPPORTED,
               "file: media need libpmem2, and this build is without it; use shm:NAME"};
}

}  // namespace

const MediaDriver kFileDriver = {
    "file",
    "file:/PATH (not in this build)",
    [](const std::string&, const MediaCreateOptions&) -> Result<std::unique_ptr<Media>> {
      return not_built();
    },
    [](const std::string&, MediaUse) -> Result<std::unique_ptr<Media>> { return not_built(); },
    [](const std::string&, const std::optional<MediaId>&) -> Result<void> { return not_built(); },
};

}  // namespace bowhead
