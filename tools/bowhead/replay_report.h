// SPDX-License-Identifier: Apache-2.0
// What a replay has to say, for people and for programs. The fields: docs/replay.md.
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

/// No wrong byte came back, and the self-test, if there was one, missed nothing.
bool replay_good(const ReplayRun& run);

std::string replay_text(const ReplayRun& run);
std::string replay_json(const ReplayRun& run);

}  // namespace bowhead::cli
