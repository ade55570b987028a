// SPDX-License-Identifier: Apache-2.0
#include "tests/support/native_core.h"

namespace bowhead::core {
BOWHEAD_NATIVE_CORE()
}  // namespace bowhead::core
