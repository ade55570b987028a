// SPDX-License-Identifier: Apache-2.0
// Tests that try thousands of seeds or points, for what no sanitizer sees, take every n-th of them
// where AddressSanitizer makes each ten times as slow: its own faults show in these too.
#pragma once

#include <cstdint>

namespace bowhead::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kThinning = 4;
#else
inline constexpr uint64_t kThinning = 1;
#endif

}  // namespace bowhead::test
