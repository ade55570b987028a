// SPDX-License-Identifier: Apache-2.0
// Makes the checksums of a frame right again: what is wrong with it must then be found otherwise.
#pragma once

#include <cstdint>
#include <vector>

namespace bowhead::compression {

/// All checksums that the frame's own numbers let one find; what those numbers make impossible is
/// left as it is.
void reseal(std::vector<uint8_t>& frame);

}  // namespace bowhead::compression
