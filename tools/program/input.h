// SPDX-License-Identifier: Apache-2.0
// Files that a command reads as a whole.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"

namespace bowhead::cli {

/// The path as errors name it: "-" is standard input.
std::string input_name(const std::string& path);

/// Whether there is a file or directory of this name. SYSTEM if that cannot be known: a loop of
/// links, or no permission.
Result<bool> input_exists(const std::string& path);

/// All bytes of a file, or of standard input for "-". SYSTEM, with the name and the cause, if it
/// cannot be opened or read (a directory cannot); VALUE_TOO_LARGE if it has more than `most_bytes`:
/// a regular file is then not read.
Result<std::string> read_input(const std::string& path,
                               uint64_t most_bytes = std::numeric_limits<uint64_t>::max());

}  // namespace bowhead::cli
