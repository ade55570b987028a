// SPDX-License-Identifier: Apache-2.0
// BOWHEAD_RACY marks a function whose plain loads may race with writers in other threads, because a
// check that follows (checksum, generation) throws away what a race spoiled. ThreadSanitizer skips
// it.
#pragma once

#define BOWHEAD_RACY __attribute__((no_sanitize("thread")))
