// SPDX-License-Identifier: Apache-2.0
// Decodes any bytes as a request to a device, and carries it out on blocks of any bytes.
#include <cstring>
#include <vector>

#include "firmware-sim/wire.h"

namespace bowhead {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr uint64_t kAnswerBytesMax = 4 << 20;

}  // namespace
}  // namespace bowhead

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bowhead;  // NOLINT
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  const auto length = static_cast<uint32_t>(size);
  // A length that is wrong is refused at once.
  if (size >= sizeof length) std::memcpy(bytes.data(), &length, sizeof length);
  auto request = device::DecodedRequest::decode(bytes);
  if (!request) return 0;
  // Of blocks: what follows the request, again and again.
  std::vector<uint8_t> block(kBlockBytes);
  for (size_t i = 0; i < block.size(); ++i) block[i] = data[i % size];
  for (size_t i = 0; i < request->blocks().size(); ++i) {
    if (request->blocks()[i].stored_bytes > block.size()) return 0;
    request->set_bytes(i, block.data());
  }
  const auto room = ndp::answer_bytes(request->request());
  if (!room || room->first > kAnswerBytesMax || room->second > kAnswerBytesMax) return 0;
  std::vector<std::byte> first(room->first), second(room->second);
  (void)ndp::run(request->request(), {first, second});
  return 0;
}
