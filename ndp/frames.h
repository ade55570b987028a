// SPDX-License-Identifier: Apache-2.0
// Keys and values that lie in frames (compression/frame.h), for the operations of operations.h: a
// block's visible tokens are decoded to memory that stays in a near cache, and answered from there.
//
// Tokens that are not visible are not read, but for the rest of a tile. Top-k alone needs fewer
// bytes: see plane_keys.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compression/frame.h"
#include "compression/lines.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

/// The rows of one outer index of a frame: of a head, or, where the heads of a token lie side by
/// side, of all of them, which are some_channels() each.
struct FramedRows {
  compression::ConstBytes frame;
  uint32_t outer = 0;
  const float* scales = nullptr;  ///< as in Rows
};
struct FramedKeys {
  uint32_t first_token = 0;  ///< position in the sequence
  FramedRows keys;
};
struct FramedKv {
  uint32_t first_token = 0;
  FramedRows keys, values;      ///< of as many tokens; MLA: values have no frame
  uint32_t value_channels = 0;  ///< MLA: so many first channels of the keys are the values
};

/// The treatment of a frame that cannot be read: no encoder wrote it (DAMAGED), or a newer Bowhead
/// did (UNSUPPORTED_CODEC).
enum class Unreadable {
  REFUSE,  ///< an error that names the block; answers added before it are of no use
  SKIP     ///< the block is left out and named, the others are answered
};

inline bool is_unreadable(Status status) {
  return status == Status::DAMAGED || status == Status::UNSUPPORTED_CODEC;
}

/// For one thread at a time. Allocates when it meets more tokens than before.
class FrameReader {
 public:
  using UseKeys = std::function<Result<void>(std::span<const KeySpan>)>;
  using UseKv = std::function<Result<void>(std::span<const KvSpan>)>;

  /// Calls `use` once for each block that has visible tokens, with rows that have them all and no
  /// others: none is handed over of a block of which a part cannot be read. They are there until
  /// `use` returns. Returns the numbers of the blocks that were left out, in their order.
  /// INVALID_ARGUMENT, with the block's number, before anything is used: frames without rows (of
  /// bytes), of other shapes than are possible, without this outer index, two blocks hold the same
  /// token. DAMAGED, UNSUPPORTED_CODEC: as Unreadable says. An error of `use` ends it.
  Result<std::vector<size_t>> for_keys(std::span<const FramedKeys> blocks, const Visible& visible,
                                       Unreadable unreadable, const UseKeys& use);
  /// The same. INVALID_ARGUMENT also: keys and values of other numbers of tokens; more first
  /// channels than there are.
  Result<std::vector<size_t>> for_keys_and_values(std::span<const FramedKv> blocks,
                                                  const Visible& visible, Unreadable unreadable,
                                                  const UseKv& use);

  /// Bytes of tiles that all calls decoded.
  uint64_t bytes_read() const { return report_.bytes_read; }

 private:
  template <class Rowed, class Framed, class Use>
  Result<std::vector<size_t>> for_blocks(std::span<const Framed> blocks, const Visible& visible,
                                         Unreadable unreadable, const Use& use);

  compression::Decoder decoder_{compression::FrameBytes::MAY_CHANGE};
  compression::ReadReport report_;
  compression::Lines<uint8_t> room_;
};

}  // namespace bowhead::ndp
