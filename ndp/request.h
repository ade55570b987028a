// SPDX-License-Identifier: Apache-2.0
// A computation as one value: the same for the process that calls and for a device. blocks.h has
// the operations, their shapes and their statuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "ndp/blocks.h"
#include "ndp/checkpoint.h"

namespace bowhead::ndp {

/// Numbers are those of bowhead/format/device.h.
enum class Operation : uint8_t { SCORE = 1, TOP_K = 2, ATTEND = 3, GATHER = 4, DIGEST = 5 };
const char* operation_name(Operation operation);  ///< "score", "top-k", ...

struct Request {
  Operation operation = Operation::SCORE;
  HeadsOfBlocks heads;
  HeadQueries queries;  ///< of SCORE, TOP_K and ATTEND

  uint32_t k = 0;  ///< of TOP_K, with the next two
  double bytes_per_token = 0;
  Reading reading = Reading::ONE_PASS;

  uint32_t part = 0;                      ///< of GATHER, with the next one
  std::span<const uint32_t> tokens = {};  ///< positions

  uint32_t page_tokens = 0;  ///< of DIGEST
};

/// The two parts of an answer, in bytes:
///
///            first                              second
///   SCORE    scores, floats                     -
///   TOP_K    hits, Hit [head][answer][k]        how many there are, uint32_t [head][answer]
///   ATTEND   outputs, floats                    log-sum-exps, floats
///   GATHER   rows                               -
///   DIGEST   least, floats                      largest, floats
struct AnswerBytes {
  uint64_t first = 0, second = 0;
};
struct AnswerRoom {
  std::span<std::byte> first, second;
};

/// How many bytes the answer takes. INVALID_ARGUMENT: there is none, or it takes 2^63 or more.
Result<AnswerBytes> answer_bytes(const Request& request);

/// The request as it is, without the bytes of its blocks: what run() would return for good blocks
/// and the right room.
Result<void> check(const Request& request);

/// Carries it out, in the calling thread. `room` is aligned to 4 bytes. `checkpoint`, if there is
/// one, is asked now and then, and ends it with a status of its own. Statuses of the operation;
/// INVALID_ARGUMENT also: the room has another size than answer_bytes(). After an error the room
/// holds anything. Hits behind those that were found are zero.
Result<BlocksRead> run(const Request& request, const AnswerRoom& room,
                       const Checkpoint& checkpoint = {});

}  // namespace bowhead::ndp
