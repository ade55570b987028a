// SPDX-License-Identifier: Apache-2.0
// The stub of numa_node.cpp for builds without libnuma.
#include "pool/media/numa_node.h"

namespace bowhead {
namespace {

Error not_built() {
  return Error{Status::NOT_SUPPORTED,
               "numa: media need libnuma, and this build is without it; use shm:NAME"};
}

}  // namespace

Result<int> parse_node(const std::string&) { return not_built(); }
Result<uint64_t> free_bytes_of_node(int) { return not_built(); }
Result<void> bind_to_node(std::byte*, uint64_t, int) { return not_built(); }
Result<void> check_is_on_node(std::byte*, uint64_t, int) { return not_built(); }

}  // namespace bowhead
