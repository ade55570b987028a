// SPDX-License-Identifier: Apache-2.0
// The core over mapped memory, compiled once for all tests, in native_core.cpp: a test that
// includes core.h alone compiles all of it anew. The pool itself does not use this: there, calls
// from one function of the core to another are for the compiler to put in line.
#pragma once

#include "pool/core/access.h"
#include "pool/core/core.h"

// A macro, so that declaration and definition have one list.
#define BOWHEAD_NATIVE_CORE(kind)               \
  kind template class Allocator<NativeAccess>;  \
  kind template class Attributes<NativeAccess>; \
  kind template class Core<NativeAccess>;       \
  kind template class Custody<NativeAccess>;    \
  kind template class Extents<NativeAccess>;    \
  kind template class Grants<NativeAccess>;     \
  kind template class Growth<NativeAccess>;     \
  kind template class Holdings<NativeAccess>;   \
  kind template class Hosts<NativeAccess>;      \
  kind template class Index<NativeAccess>;      \
  kind template class Inspection<NativeAccess>; \
  kind template class Joining<NativeAccess>;    \
  kind template class KeyLocks<NativeAccess>;   \
  kind template class Leases<NativeAccess>;     \
  kind template class Lookup<NativeAccess>;     \
  kind template class Mail<NativeAccess>;       \
  kind template class Membership<NativeAccess>; \
  kind template class Mirror<NativeAccess>;     \
  kind template class Namespaces<NativeAccess>; \
  kind template class Reading<NativeAccess>;    \
  kind template class Recovery<NativeAccess>;   \
  kind template class Retirement<NativeAccess>; \
  kind template class Space<NativeAccess>;      \
  kind template class Usage<NativeAccess>;      \
  kind template class Writing<NativeAccess>;

namespace bowhead::core {
BOWHEAD_NATIVE_CORE(extern)
}  // namespace bowhead::core
