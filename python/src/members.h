// SPDX-License-Identifier: Apache-2.0
// Integer members of C structs, by name, to and from attributes of Python.
#pragma once

#include <cstdint>

#include "python/src/arguments.h"

namespace bowhead::python {

template <class Struct>
struct Member {
  const char* name;
  uint64_t (*get)(const Struct& from);
  void (*set)(Struct& to, nb::handle value);
};

#define BOWHEAD_MEMBER(Struct, member)                                          \
  Member<Struct> {                                                              \
#member, [](const Struct& from) -> uint64_t { return from.member; },          \
        [](Struct& to, nb::handle value) {                                        \
          to.member = number<decltype(to.member)>(#member, value);                \
        } \
  }

/// Adds the members to the arguments of a dataclass.
template <class Struct, size_t count>
void add_members(const Member<Struct> (&members)[count], const Struct& from, nb::dict& fields) {
  for (const Member<Struct>& member : members) fields[member.name] = member.get(from);
}

}  // namespace bowhead::python
