// SPDX-License-Identifier: Apache-2.0
// bowhead-bench: measures the pool, compression, near-data processing and transfers on this
// machine.
#include "bench/commands.h"

int main(int argc, char** argv) { return bowhead::bench::run_command_line(argc, argv); }
