// SPDX-License-Identifier: Apache-2.0
// The label with which each further medium of a pool starts (format/medium.h).
#pragma once

#include <bowhead/format/medium.h>

#include <span>
#include <string>

#include "base/status.h"

namespace bowhead {

class Medium;

/// Reads a label from its two copies (any bytes; one that is too short counts as missing). Returns
/// NOT_A_POOL (there is none), DAMAGED (both copies are), VERSION_UNKNOWN.
Result<bh_medium_label> parse_label(std::span<const std::byte> first,
                                    std::span<const std::byte> second);

/// The label of a medium. Returns NOT_A_POOL (it has none), DAMAGED, VERSION_UNKNOWN, MEDIA_ERROR,
/// SYSTEM. `locator` is for the message.
Result<bh_medium_label> read_label(const Medium& medium, const std::string& locator);

/// Writes both copies, to the memory itself. Returns MEDIA_ERROR, SYSTEM.
Result<void> write_label(const Medium& medium, const bh_medium_label& label);

}  // namespace bowhead
