// SPDX-License-Identifier: Apache-2.0
// The models: small parts of the protocol between hosts, as specified, which must hold in every
// state, and with a step left out, which must be found (docs/models.md).
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/models/explorer.h"

namespace bowhead::models {

struct Case {
  std::string model, variant;
  std::string finds;  ///< part of the failure that must be found; empty: the rules hold
  std::function<Model()> make;
  bool large = false;  ///< not one of the ordinary tests

  /// For GoogleTest's output.
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.model << ", " << c.variant; }
};

void add_lease(std::vector<Case>& cases);
void add_hazard_limit(std::vector<Case>& cases);
void add_adopter(std::vector<Case>& cases);
void add_claim(std::vector<Case>& cases);
void add_channel(std::vector<Case>& cases);
void add_grant(std::vector<Case>& cases);
void add_join(std::vector<Case>& cases);
void add_succession(std::vector<Case>& cases);
void add_settled(std::vector<Case>& cases);
void add_namespaces(std::vector<Case>& cases);
void add_turns(std::vector<Case>& cases);

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto add : {add_lease, add_hazard_limit, add_settled, add_adopter, add_channel,
                         add_grant, add_claim, add_join, add_succession, add_namespaces, add_turns})
    add(cases);
  return cases;
}

}  // namespace bowhead::models
