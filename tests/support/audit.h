// SPDX-License-Identifier: Apache-2.0
// Audit: the invariants of the metadata of a pool of one host while no process works in it. Written
// from the format's headers and the invariants, with its own arithmetic where that is short.
#pragma once

#include <string>
#include <vector>

#include "pool/core/access.h"
#include "tests/support/native_core.h"

namespace bowhead::test {

struct IndexAudit {
  std::vector<std::string> faults;
  std::vector<bh_index_entry> entries;
};

/// Only the index: words and entries agree (X2), every entry lies in its key's probe set, and word
/// 7 of each bucket counts the entries that overflowed it: exactly, or, after deaths, at least
/// (X3).
IndexAudit audit_index(const core::Context<core::NativeAccess>& context, bool exact);

struct AuditOptions {
  bool deaths = true;      ///< processes died: word 7 of a bucket may be too high (X3)
  uint64_t leases = 0;     ///< that are held
  uint64_t processes = 1;  ///< that have the pool open
};

struct AuditResult {
  std::vector<std::string> faults;
  uint64_t committed = 0;      ///< blocks
  uint64_t entries = 0;        ///< of the index
  bool usage_doubted = false;  ///< the counters of namespaces were not compared
};

/// Everything that is wrong: words left in transient states; claims, locks, leases and process
/// slots without a holder; entries and blocks that do not match one to one; free blocks whose
/// header shows a committed stamp, or that were to be wiped; wrong free counts, preferences,
/// overflow counts and counters of namespaces.
AuditResult audit(core::Core<core::NativeAccess>& core, const AuditOptions& options = {});

}  // namespace bowhead::test
