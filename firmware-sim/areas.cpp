// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/areas.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

namespace bowhead::device {

Result<void> Areas::open() {
  NamespaceDescription description;
  description.name = "bowhead.device";
  description.description = "memory between devices and those that ask them";
  const auto opened = pool_.open_namespace(description);
  if (!opened) return opened.error();
  namespace_ = *opened;
  return {};
}

Result<Area> Areas::reserve(uint64_t bytes) {
  static std::atomic<uint64_t> next{0};
  const std::string key = fmt::format("{}-{}-{}", use_, getpid(), next.fetch_add(1));
  auto reservation = pool_.reserve(namespace_, key, bytes);
  if (!reservation) return reservation.error();
  return Area(pool_, std::move(*reservation));
}

}  // namespace bowhead::device
