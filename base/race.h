// SPDX-License-Identifier: Apache-2.0
// BOWHEAD_RACY marks a function whose plain loads may race with writers in other threads, because a
// later check (checksum, stamp) discards a result that a race spoiled. ThreadSanitizer skips it.
#pragma once

#define BOWHEAD_RACY __attribute__((no_sanitize("thread")))
