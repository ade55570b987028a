// SPDX-License-Identifier: Apache-2.0
// Requests as bytes (bowhead/format/device.h): how a driver writes them, and a device reads them.
#pragma once

#include <bowhead/format/device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "ndp/request.h"

namespace bowhead::device {

/// Longest request.
inline constexpr uint64_t kRequestBytesMax = uint64_t{64} << 20;

/// The request's bytes. Blocks need their offset and stamp. INVALID_ARGUMENT: no blocks, blocks of
/// unlike layouts, a value of 4 GiB or more, views of other queries, more than kRequestBytesMax.
Result<std::vector<std::byte>> encode(const ndp::Request& request);

/// A request that came from another process, with all that it names.
class DecodedRequest {
 public:
  /// Copies what it needs. Nothing is trusted: sizes, counts and reserved bytes are checked, and
  /// the operation checks the rest. Blocks have offset and stamp, and no bytes yet.
  /// INVALID_ARGUMENT, NOT_SUPPORTED (an operation, flag or layout of a later version).
  static Result<DecodedRequest> decode(std::span<const std::byte> bytes);
  DecodedRequest(DecodedRequest&&) noexcept = default;
  DecodedRequest& operator=(DecodedRequest&&) noexcept = default;

  const std::vector<bh_device_block>& blocks() const { return blocks_; }
  /// Where the stored bytes of a block are in this process.
  void set_bytes(size_t block, const uint8_t* bytes) {
    stored_[block].bytes = {bytes, blocks_[block].stored_bytes};
  }
  /// Its memory failed: it cannot be read.
  void set_lost(size_t block) { stored_[block].lost = true; }
  bool is_lost(size_t block) const { return stored_[block].lost; }
  /// Valid as long as this is, and not moved.
  const ndp::Request& request();

 private:
  DecodedRequest() = default;

  bh_device_request head_{};
  std::vector<bh_device_block> blocks_;
  std::vector<ndp::StoredBlock> stored_;
  std::vector<ndp::Visible> views_;
  std::vector<float> queries_, weights_;
  std::vector<uint32_t> tokens_;
  ndp::Request request_;
};

/// Where the parts of an answer lie: each begins at a multiple of 64 bytes.
struct AnswerPlaces {
  uint64_t second = 0, left_out = 0;  ///< the first part is at 0

  explicit AnswerPlaces(const ndp::AnswerBytes& bytes)
      : second(up(bytes.first)), left_out(up(second + bytes.second)) {}

 private:
  static uint64_t up(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
};

}  // namespace bowhead::device
