// SPDX-License-Identifier: Apache-2.0
// A sequence of blocks in a pool, leased, and requests about it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "driver-shim/leased_block.h"
#include "ndp/request.h"
#include "pool/pool.h"

namespace bowhead::test {

inline constexpr uint32_t kHeads = 4, kChannels = 64, kLayers = 2;

inline KvLayout device_layout() {
  return pairs_layout(NumberFormat::BF16, kLayers, kHeads, kChannels);
}

/// bf16 numbers between -2 and 2.
inline std::vector<std::byte> numbers(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> all(count * 2);
  for (size_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(random.below(4001)) - 2000) / 1000;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const auto word = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&all[i * 2], &word, 2);
  }
  return all;
}

class LeasedSequence {
 public:
  /// Puts blocks of so many tokens into a namespace of device_layout(), and leases them.
  LeasedSequence(Pool& pool, const std::string& name, CompressionProfile profile,
                 std::vector<uint32_t> tokens)
      : pool_(pool) {
    ValueFormat format{device_layout()};
    format.profile = profile;
    namespace_ = pool.open_namespace({name, "", format}).value();
    uint32_t next = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string key = "block " + std::to_string(i);
      const auto value = numbers(size_t{kLayers} * 2 * kHeads * tokens[i] * kChannels, i + 1);
      const ConstSpan in[] = {{value.data(), value.size()}};
      EXPECT_EQ(pool.put(namespace_, key, in), Status::OK);
      leases_.push_back(pool.acquire(namespace_, key, 600'000, LeaseOf::STORED).value());
      blocks_.push_back(driver::stored_block(leases_.back(), next));
      next += tokens[i];
    }
    tokens_ = next;
  }
  ~LeasedSequence() {
    for (Lease& lease : leases_) (void)pool_.release(lease);
  }

  uint32_t tokens() const { return tokens_; }
  NamespaceId ns() const { return namespace_; }
  std::vector<ndp::StoredBlock>& blocks() { return blocks_; }
  std::vector<Lease>& leases() { return leases_; }
  ndp::Request request(ndp::Operation operation) const {
    ndp::Request request;
    request.operation = operation;
    request.heads = {blocks_, 1, 1, 2};
    return request;
  }

 private:
  Pool& pool_;
  NamespaceId namespace_ = 0;
  uint32_t tokens_ = 0;
  std::vector<Lease> leases_;
  std::vector<ndp::StoredBlock> blocks_;
};

/// Memory for an answer, of some pattern that no operation leaves.
struct Answer {
  explicit Answer(const ndp::Request& request) {
    const auto bytes = ndp::answer_bytes(request);
    if (!bytes) return;
    first.assign(bytes->first, std::byte{0x5A});
    second.assign(bytes->second, std::byte{0x5A});
  }
  ndp::AnswerRoom room() { return {first, second}; }
  bool operator==(const Answer&) const = default;

  std::vector<std::byte> first, second;
};

}  // namespace bowhead::test
