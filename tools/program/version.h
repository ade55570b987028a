// SPDX-License-Identifier: Apache-2.0
// What this program was built from.
#pragma once

#include <string>

namespace bowhead {

/// The project's version, "0.1.0".
const char* built_version();

/// Of the sources; "unknown" outside a checkout.
const char* built_commit();

/// The answer to --version: version, commit, ABI and pool format.
std::string version_text();

}  // namespace bowhead
