// SPDX-License-Identifier: Apache-2.0
// The command line of Bowhead: pools and their blocks, the replay of traces, compression.
#include "tools/bowhead/commands.h"

int main(int argc, char** argv) { return bowhead::cli::run_command_line(argc, argv); }
