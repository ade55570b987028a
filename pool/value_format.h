// SPDX-License-Identifier: Apache-2.0
// The layout of a namespace's values, and how puts store them (docs/compression.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/kv_layout.h"
#include "base/status.h"

namespace bowhead {

/// How much work a put does to save bytes. Numbers are those of the format (BH_PROFILE_*).
enum class CompressionProfile : uint32_t { NONE = 0, FAST = 1, BALANCED = 2, DENSE = 3 };

struct ValueFormat {
  /// The layout of a value. All zero where a namespace is opened: the registered layout; opaque
  /// values if it is new. A value of a length that the layout cannot have is opaque.
  KvLayout layout = {};
  /// NONE where a namespace is opened: the registered profile.
  CompressionProfile profile = CompressionProfile::NONE;
  /// The pool overwrites what it stored for the namespace before it frees the memory. False where a
  /// namespace is opened: as registered.
  bool wipe = false;
};

/// INVALID_ARGUMENT: no such layout or profile. NOT_SUPPORTED: a layout with a field that a later
/// version knows, or that frames cannot hold (compression::shape_of()), with a profile.
Result<void> check_format(const ValueFormat& format);

/// "fast"; "none".
const char* profile_name(CompressionProfile profile);
/// The inverse, for FAST, BALANCED, DENSE and NONE.
std::optional<CompressionProfile> profile_named(std::string_view name);

/// "dense, bf16, 32 layers of K and V, 8 heads of 128 channels, heads first"; "none".
std::string to_text(const ValueFormat& format);

}  // namespace bowhead
