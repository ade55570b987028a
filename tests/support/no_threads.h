// SPDX-License-Identifier: Apache-2.0
// While one lives, the system gives this process no new thread: the stack that each would get has
// no room in its address space. Limits of the process do not bind root.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace bowhead::test {

class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge = before_;
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 48), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~NoThreads() { EXPECT_EQ(pthread_setattr_default_np(&before_), 0); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace bowhead::test
