// SPDX-License-Identifier: Apache-2.0
// Built without C-Blosc2: its rows are missing.
#include "bench/codecs.h"

namespace bowhead::bench {

bool add_blosc_codecs(Codecs&) { return false; }

}  // namespace bowhead::bench
