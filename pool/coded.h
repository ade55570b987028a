// SPDX-License-Identifier: Apache-2.0
// CodedStore: encodes values of compressed namespaces for the core and decodes them again, and
// passes all others through. It knows the codec and no shared memory; the core knows shared memory
// and no codec. Thread-safe but for construction. Encodes and decodes in private memory only, which
// is kept: puts and gets allocate nothing once as many threads have put and got values of that
// size, with each codec.
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

  /// As Pool::open_namespace().
  Result<NamespaceId> open_namespace(const NamespaceDescription& description);
  /// The format of a namespace's values; nothing if no namespace of this id is registered. A format
  /// that was found is remembered; an unknown id is looked up again, as another process or host may
  /// have registered it since.
  std::optional<ValueFormat> format_of(NamespaceId id);
  Status put(const core::Key& key, std::span<const ConstSpan> value,
             std::string_view user_metadata = {}, const BlockAttributes& attributes = {});
  Result<uint64_t> get(const core::Key& key, std::span<const Span> buffers,
                       std::string* user_metadata = nullptr);
  /// put() and get() for up to Lookup::kBatch valid keys, pipelined.
  void put_all(NamespaceId ns, std::span<PutItem> items);
  void get_all(NamespaceId ns, std::span<GetItem> items);
  Result<PrefixRead> get_prefix(const core::Key& key, uint32_t planes,
                                std::span<const Span> buffers);
  Result<StoredValue> get_stored(const core::Key& key, Span buffer);
  Result<Lease> acquire(const core::Key& key, uint64_t ttl_ms, LeaseOf of);
  Result<RecompressReport> recompress(uint64_t cold_ms);

 private:
  struct Workspace;
  class Loan;
  class ValueSink;

  /// A namespace that this handle knows, in lists that only grow, by a compare-and-swap of the
  /// head: so every call may look without a lock.
  struct Known {
    NamespaceId id;
    ValueFormat format;
    /// The shape of one token's value; nothing if puts store values as they are.
    std::optional<compression::Shape> token;
    Known* next;
  };
  /// Ids are hashes with the last bit set.
  std::atomic<Known*>& known(NamespaceId id) { return known_[id / 2 % known_.size()]; }
  const Known* find(NamespaceId id);
  core::Content encode(const Known& ns, uint64_t key_bytes, const core::Content& raw, Loan& work);

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
