// SPDX-License-Identifier: Apache-2.0
#include "pool/compression.h"

#include <bowhead/format/block.h>
#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <cmath>

namespace bowhead {
namespace {

using compression::NumberKind;

static_assert(static_cast<int>(CompressionProfile::NONE) == BH_PROFILE_NONE &&
              static_cast<int>(CompressionProfile::FAST) == BH_PROFILE_FAST &&
              static_cast<int>(CompressionProfile::BALANCED) == BH_PROFILE_BALANCED &&
              static_cast<int>(CompressionProfile::DENSE) == BH_PROFILE_DENSE);
static_assert(static_cast<int>(NumberKind::BF16) == BH_NUMBER_BF16 &&
              static_cast<int>(NumberKind::BYTES) == BH_NUMBER_BYTES);

constexpr const char* kProfileNames[] = {"none", "fast", "balanced", "dense"};

}  // namespace

Result<compression::Rotary> checked_rotary(double base, uint32_t dim) {
  if (base == 0 && dim == 0) return compression::Rotary{};
  if (!(base > 1) || !std::isfinite(base) || dim == 0 || dim % 2 != 0 || dim > UINT16_MAX)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("rotary position embedding of base {} over {} channels: give a base "
                             "above 1, such as 500000, and an even number of channels",
                             base, dim)};
  return compression::rotary_of(base, dim);
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

std::string to_text(const Compression& c) {
  if (c.profile == CompressionProfile::NONE) return "none";
  std::string text = fmt::format("{}, {}", profile_name(c.profile), number_name(c.number));
  if (c.number == NumberKind::BYTES) return text;
  text += fmt::format(" [{}][tokens][{}]", c.outer, c.channels);
  if (c.rotary.dim == 0) return text;
  const double base = std::pow(c.rotary.ratio / std::exp2(32), -c.rotary.dim / 2.0);
  return text + fmt::format(", rotary {} of base {:.6g}", c.rotary.dim, base);
}

}  // namespace bowhead
