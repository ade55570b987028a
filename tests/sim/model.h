// SPDX-License-Identifier: Apache-2.0
// Model: what a run knows of the truth, and judges by. Which bytes were ever put under which key,
// who holds which block, and who reads where in place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/plan.h"

namespace bowhead::sim {

class World;
struct Process;

class Model {
 public:
  static constexpr uint64_t kNamespace = 77;

  void reset(const Plan& plan);

  /// Some keys are so long that they need a larger block.
  const std::string& key(uint32_t index) const { return keys_[index].name; }
  /// A version of its own for every put: no two puts have the same bytes.
  uint32_t new_version(uint32_t key, uint32_t host);
  void accept(uint32_t key, uint32_t version) { keys_[key].puts[version].accepted = true; }
  /// Some put of the key said that it was done.
  bool accepted(uint32_t key) const {
    return std::any_of(keys_[key].puts.begin(), keys_[key].puts.end(),
                       [](const Put& put) { return put.accepted; });
  }
  void refuse(uint32_t key, uint32_t version) { keys_[key].puts[version].refused = true; }
  std::vector<std::byte> value(uint32_t key, uint32_t version) const;
  /// What is wrong with bytes that were got under a key: nothing if one of its puts put them.
  /// `host`: whose.
  std::string judge(uint32_t key, std::span<const std::byte> bytes, uint32_t* host) const;

  // ---- blocks ----
  /// A process writes to a block, or has reserved it: nobody else may have it, or read it in place.
  void hold(World& world, Process& process, uint64_t offset, uint64_t bytes);
  void end_hold(Process& process, uint64_t offset);
  void add_lease(World& world, Process& process, uint64_t token, uint64_t offset, uint64_t ttl_ns);
  void end_lease(Process& process, uint64_t token);

 private:
  struct Put {
    uint32_t host;
    bool refused;   ///< it failed: nobody may ever get its bytes
    bool accepted;  ///< it said that it is done
  };
  struct Key {
    std::string name;
    std::vector<Put> puts;
  };
  struct Holder {
    Process* process;
    uint32_t life;
    uint64_t offset;
  };
  struct LeaseHolder {
    Holder holder;
    uint64_t token, until_ns;
  };

  static bool holds(const Holder& holder);

  uint64_t seed_ = 0;
  std::vector<Key> keys_;
  std::vector<Holder> holders_;
  std::vector<LeaseHolder> leases_;
};

}  // namespace bowhead::sim
