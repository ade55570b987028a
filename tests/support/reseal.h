// SPDX-License-Identifier: Apache-2.0
// Corrects the checksums of a damaged frame: the damage must then be found by other checks.
#pragma once

#include <cstdint>
#include <vector>

namespace bowhead::compression {

/// All checksums that can be located by the frame's own numbers; the others do not change.
void reseal(std::vector<uint8_t>& frame);

}  // namespace bowhead::compression
