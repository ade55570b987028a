// SPDX-License-Identifier: Apache-2.0
// The report of a replay, as text and as JSON. docs/replay.md describes the fields.
#pragma once

#include <string>

#include "tools/bowhead/replay/replay.h"

namespace bowhead::cli {

struct ReplayRun {
  const replay::Trace& trace;
  const replay::Content& content;
  const replay::ReplayOptions& options;
  const replay::ReplayReport& report;
  const std::string& command_line;
};

/// No wrong byte and no wrong answer was returned, and the self-test, if it ran, missed nothing.
bool replay_good(const ReplayRun& run);

std::string replay_text(const ReplayRun& run);
std::string replay_json(const ReplayRun& run);

}  // namespace bowhead::cli
