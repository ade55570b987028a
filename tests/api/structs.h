// SPDX-License-Identifier: Apache-2.0
// The structs of the C ABI with their sizes set.
#pragma once

#include <bowhead/bowhead.h>

namespace bowhead::test {

template <class T>
T sized() {
  T of{};
  of.struct_bytes = sizeof of;
  return of;
}

}  // namespace bowhead::test
