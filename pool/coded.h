// SPDX-License-Identifier: Apache-2.0
// CodedStore: values of compressed namespaces on their way into the core and out of it, and all
// others straight through. It knows the codec and no shared memory; the core knows it the other way
// round. Thread-safe but for construction; encodes and decodes in private memory only, which
// is kept: puts and gets allocate nothing once as many threads as now have done so with values of
// the size.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "compression/frame.h"
#include "pool/core/access.h"
#include "pool/core/core.h"

namespace bowhead {

class CodedStore {
 public:
  using Core = core::Core<core::NativeAccess>;

  explicit CodedStore(Core& core);
  ~CodedStore();
  CodedStore(const CodedStore&) = delete;
  CodedStore& operator=(const CodedStore&) = delete;

  /// As of Pool.
  Result<NamespaceId> open_namespace(const NamespaceDescription& description);
  /// What the values of a namespace are; nothing if none of this id is registered. What was found
  /// once is remembered; what was not is looked up in the pool anew, as it may have been registered
  /// by another process or host since.
  std::optional<ValueFormat> format_of(NamespaceId id);
  Status put(const core::Key& key, std::span<const ConstSpan> value);
  Result<uint64_t> get(const core::Key& key, std::span<const Span> buffers);
  Result<PrefixRead> get_prefix(const core::Key& key, uint32_t planes,
                                std::span<const Span> buffers);
  Result<StoredValue> get_stored(const core::Key& key, Span buffer);
  Result<Lease> acquire(const core::Key& key, uint64_t ttl_ms, LeaseOf of);
  Result<RecompressReport> recompress(uint64_t cold_ms);

 private:
  struct Workspace;
  class Loan;
  class ValueSink;

  /// What this handle knows of a namespace: in lists that only grow, by a compare-and-swap of the
  /// head, so that every call may look without a lock.
  struct Known {
    NamespaceId id;
    ValueFormat format;
    /// Of a value of one token; nothing if puts store values as they are.
    std::optional<compression::Shape> token;
    Known* next;
  };
  /// Ids are hashes with the last bit set.
  std::atomic<Known*>& known(NamespaceId id) { return known_[id / 2 % known_.size()]; }
  const Known* find(NamespaceId id);

  Core& core_;
  std::array<std::atomic<Known*>, 64> known_{};
  Status recompress_block(const core::Located& located, const compression::Shape& token,
                          Workspace& work, RecompressReport& report);

  std::mutex tried_mutex_;
  std::unordered_set<uint64_t> tried_;  ///< stamps of blocks that do not shrink

  std::mutex idle_mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace bowhead
