// SPDX-License-Identifier: Apache-2.0
// Generates traces of two workloads that benefit from a prefix cache, from a seed.
//
// - multiturn: people talk to a chat. A session begins with one of a few system prompts (popularity
//   by Zipf's law), grows by a message and an answer a turn, pauses while the person reads and
//   thinks, and sometimes is taken up again much later. Some messages are whole documents.
// - agent: programs work on tasks. A long prompt (tools, then a project's files, both by Zipf's
//   law) is followed by many quick steps, each with a tool's output; steps fan out into branches
//   that share all that came before, or go back and try again.
// - mixed: both at once.
#pragma once

#include <cstdint>

#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

enum class Workload { MULTITURN, AGENT, MIXED };

/// The same arguments make the same trace. `requests` >= 1.
Trace generate_trace(Workload workload, uint64_t seed, uint64_t requests);

}  // namespace bowhead::replay
