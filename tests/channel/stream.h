// SPDX-License-Identifier: Apache-2.0
// A stream of messages that carry their sender and number, and a judge of the messages received:
// right words, in order, each once, except as a restart allows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "pool/core/channel.h"

namespace bowhead::test {

/// The `number`-th message, from 1, of life `life` of a sender.
inline core::Message make_message(uint64_t life, uint64_t number) {
  core::Message message{life, number};
  for (uint64_t i = 2; i < message.size(); ++i) message[i] = hash64(message.data(), 16, /*seed=*/i);
  return message;
}

class Judge {
 public:
  /// Empty if the message may come now; else the error.
  std::string see(const core::Message& message) {
    const uint64_t life = message[0], number = message[1];
    if (message != make_message(life, number)) return "torn";
    std::string fault;
    if (life < life_) fault = "from an earlier life";
    if (life > life_ && number != 1) fault = "not the first of a new life";
    if (life == life_ && number > last_ + 1) fault = "some before it are missing";
    if (life == life_ && number <= last_ && !resumed_) fault = "came before";
    if (life == life_ && number <= last_ && resumed_) ++duplicates_;
    if (!fault.empty())
      return fault + ": " + std::to_string(life) + "/" + std::to_string(number) + " after " +
             std::to_string(life_) + "/" + std::to_string(last_);
    life_ = life;
    last_ = number;
    resumed_ = false;
    return {};
  }
  /// The receiver was restarted: messages that it took last may come again.
  void resume() { resumed_ = true; }

  uint64_t life() const { return life_; }
  uint64_t last() const { return last_; }
  uint64_t duplicates() const { return duplicates_; }

 private:
  uint64_t life_ = 0;
  uint64_t last_ = 0;
  uint64_t duplicates_ = 0;
  bool resumed_ = false;
};

}  // namespace bowhead::test
