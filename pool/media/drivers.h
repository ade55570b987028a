// SPDX-License-Identifier: Apache-2.0
// The kinds of media: each turns the rest of a locator, behind its "scheme:", into a Media. The
// statuses are those of create_media(), open_media() and remove_media(); sizes were checked before.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pool/media/media.h"

namespace bowhead {

struct MediaDriver {
  std::string_view scheme;
  std::string_view usage;  ///< the form of a locator, for messages
  Result<std::unique_ptr<Media>> (*create)(const std::string& rest,
                                           const MediaCreateOptions& options);
  Result<std::unique_ptr<Media>> (*open)(const std::string& rest, MediaUse use);
  Result<void> (*remove)(const std::string& rest, const std::optional<MediaId>& only);
};

extern const MediaDriver kShmDriver;
extern const MediaDriver kFileDriver;

}  // namespace bowhead
