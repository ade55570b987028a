// SPDX-License-Identifier: Apache-2.0
// Engines carry out requests: in the calling process, or elsewhere. Who asks cannot tell which but
// by the time it takes.
#pragma once

#include "ndp/request.h"

namespace bowhead::ndp {

/// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;  ///< "process", "device", ...
  /// As ndp::run(), and waits for the answer. Blocks have their offset and stamp, where the engine
  /// sees them elsewhere. An engine elsewhere returns also: LAPSED (a block did not stay),
  /// DEVICE_LOST (it does not answer; the room holds anything), LIMIT_REACHED (it has no place for
  /// a request or an answer as large).
  virtual Result<BlocksRead> run(const Request& request, const AnswerRoom& room) = 0;
};

/// In the calling thread.
class ProcessEngine final : public Engine {
 public:
  const char* name() const override { return "process"; }
  Result<BlocksRead> run(const Request& request, const AnswerRoom& room) override {
    return ndp::run(request, room);
  }
};

}  // namespace bowhead::ndp
