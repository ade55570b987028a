// SPDX-License-Identifier: Apache-2.0
#include "pool/value_format.h"

#include <iterator>

#include "compression/frame.h"

namespace bowhead {
namespace {

static_assert(static_cast<int>(CompressionProfile::NONE) == BH_PROFILE_NONE &&
              static_cast<int>(CompressionProfile::FAST) == BH_PROFILE_FAST &&
              static_cast<int>(CompressionProfile::BALANCED) == BH_PROFILE_BALANCED &&
              static_cast<int>(CompressionProfile::DENSE) == BH_PROFILE_DENSE);

constexpr const char* kProfileNames[] = {"none", "fast", "balanced", "dense"};

}  // namespace

Result<void> check_format(const ValueFormat& format) {
  const auto profile = static_cast<unsigned>(format.profile);
  if (profile >= std::size(kProfileNames))
    return Error{Status::INVALID_ARGUMENT,
                 "compression profile " + std::to_string(profile) + " is unknown"};
  if (!difference(format.layout, KvLayout{})) return {};
  if (auto good = check_layout(format.layout); !good) return good;
  if (format.profile == CompressionProfile::NONE) return {};
  const auto shape = compression::shape_of(format.layout, payload_bytes(format.layout, 1));
  return shape ? Result<void>{} : shape.error();
}

const char* profile_name(CompressionProfile profile) {
  const auto at = static_cast<size_t>(profile);
  return at < std::size(kProfileNames) ? kProfileNames[at] : "unknown";
}

std::optional<CompressionProfile> profile_named(std::string_view name) {
  for (size_t at = 0; at < std::size(kProfileNames); ++at) {
    if (name == kProfileNames[at]) return static_cast<CompressionProfile>(at);
  }
  return std::nullopt;
}

std::string to_text(const ValueFormat& format) {
  std::string text = profile_name(format.profile);
  if (format.wipe) text += ", wiped";
  if (!is_opaque(format.layout)) text += ", " + to_text(format.layout);
  return text;
}

}  // namespace bowhead
