// SPDX-License-Identifier: Apache-2.0
// Prefetching for reads.
#pragma once

namespace bowhead {

inline void prefetch_line(const void* at) {
  __builtin_prefetch(at);
  // GCC takes a function that only prefetches for one without effect, and drops the calls to it.
  asm volatile("");
}

}  // namespace bowhead
