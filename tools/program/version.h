// SPDX-License-Identifier: Apache-2.0
// The version, commit and formats of this build.
#pragma once

#include <string>

namespace bowhead {

/// The project's version, "0.2.0".
const char* built_version();

/// The commit of the sources; "unknown" outside a checkout.
const char* built_commit();

/// The answer to --version: version, commit, ABI and pool format.
std::string version_text();

}  // namespace bowhead
