// SPDX-License-Identifier: Apache-2.0
// The stub of file.cpp for builds without libpmem2.

#include "pool/media/medium.h"

namespace bowhead {
namespace {

Error not_built() {
  return Error{Status::NOT_SUPPORTED,
               "file: media need libpmem2, and this build is without it; use shm:NAME"};
}

}  // namespace

const MediumDriver kFileDriver = {
    "file",
    "file:/PATH (not in this build)",
    [](const std::string&, const MediaCreateOptions&) -> Result<std::unique_ptr<Medium>> {
      return not_built();
    },
    [](const std::string&, MediaUse) -> Result<std::unique_ptr<Medium>> { return not_built(); },
    [](const std::string&, const std::optional<MediaId>&) -> Result<void> { return not_built(); },
};

}  // namespace bowhead
