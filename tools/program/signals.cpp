// SPDX-License-Identifier: Apache-2.0
#include "tools/program/signals.h"

#include <initializer_list>

namespace bowhead::cli {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace bowhead::cli
