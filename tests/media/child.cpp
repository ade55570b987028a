// SPDX-License-Identifier: Apache-2.0
#include "tests/media/child.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bowhead {

int run_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers handle these
    signal(SIGBUS, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace bowhead
