// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "gpu/kernels/check.h"
#include "gpu/kernels/rebuild_tiles.h"

namespace bowhead::gpu {
namespace {

using compression::Number;

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Status::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

constexpr uint64_t kMostBytes = uint64_t{1} << 32;
constexpr uint64_t kMostTileBytes = uint64_t{1} << 20;  // of values, as frames have it

Result<void> check_address(const char* name, const void* address, uintptr_t multiple) {
  if (address == nullptr) return wrong("{} is null", name);
  if (reinterpret_cast<uintptr_t>(address) % multiple == 0) return {};
  return wrong("{} is at {:#x}, no multiple of {}", name, reinterpret_cast<uintptr_t>(address),
               multiple);
}

Result<void> check_shape(const RebuildTiles& work) {
  const Number* number = compression::number_of(work.number);
  if (number == nullptr) return wrong("number is {}", number_name(work.number));
  if (work.channels == 0 || work.channels > UINT16_MAX) {
    return wrong("channels is {}: 1 to {}", work.channels, UINT16_MAX);
  }
  if (work.plane_count == 0 || work.plane_count > number->planes()) {
    return wrong("plane_count is {}: 1 to {}", work.plane_count, number->planes());
  }
  if (work.exact && work.plane_count != number->planes()) {
    return wrong("plane_count is {}, but exact values have all {}", work.plane_count,
                 number->planes());
  }
  const uint32_t turning = work.turning_channels;
  if (turning == 0) return {};
  if (turning % 2 != 0 || work.channels % turning != 0) {
    return wrong("turning_channels is {}: even, and channels, {}, a multiple of it", turning,
                 work.channels);
  }
  if (!can_turn(work.channels, turning)) {
    return wrong("turning_channels is {} of {} channels: no step has whole heads", turning,
                 work.channels);
  }
  return work.turns == nullptr ? wrong("turns is null") : Result<void>();
}

Result<void> check_memory(const RebuildTiles& work) {
  if (auto good = check_address("bytes", work.bytes, 4); !good) return good;
  if (auto good = check_address("scratch", work.scratch, 16); !good) return good;
  if (auto good = check_address("tiles", work.tiles, alignof(RebuildTile)); !good) return good;
  if (auto good = check_address("faults", work.faults, 4); !good) return good;
  if (work.size_bytes % 4 != 0 || work.size_bytes >= kMostBytes) {
    return wrong("size_bytes is {}: a multiple of 4 below 4 GiB", work.size_bytes);
  }
  return {};
}

Result<void> check_tile(const RebuildTiles& work, uint32_t index) {
  const RebuildTile& tile = work.tiles[index];
  const Number& number = *compression::number_of(work.number);
  const auto is_in = [&](uint64_t begin, uint64_t size) {
    return begin <= work.size_bytes && size <= work.size_bytes - begin;
  };
  const uint64_t values_bytes = uint64_t{tile.tokens} * work.channels * number.element_bytes;
  if (tile.tokens == 0 || values_bytes > kMostTileBytes) {
    return wrong("tile {} has {} tokens of {} channels: at most 1 MiB", index, tile.tokens,
                 work.channels);
  }
  const auto address = reinterpret_cast<uintptr_t>(tile.values);
  if (address == 0) return wrong("values of tile {} is null", index);
  if (address % number.element_bytes != 0) {
    return wrong("values of tile {} is at {:#x}, no multiple of {}", index, address,
                 number.element_bytes);
  }
  if (tile.exponent_width > 8 || tile.centre_width > 15 || tile.centre_shift > 15) {
    return wrong("tile {} has exponents of {} bits, a centre of {}, shifted by {}", index,
                 tile.exponent_width, tile.centre_width, tile.centre_shift);
  }
  if (tile.centre_turns && (work.turning_channels == 0 || tile.centre_width == 0)) {
    return wrong("tile {} has a centre that turns, but no channels do, or it has no bits", index);
  }
  const uint64_t parameters = (uint64_t{work.channels} * tile.exponent_width + 7) / 8 +
                              (uint64_t{work.channels} * tile.centre_width + 7) / 8;
  if (!is_in(tile.parameters, parameters)) {
    return wrong("parameters of tile {} are {} bytes at {} of {}", index, parameters,
                 tile.parameters, work.size_bytes);
  }
  const uint64_t plane_bytes = uint64_t{tile.tokens} * ((work.channels + 7) / 8);
  for (uint32_t i = 0; i < work.plane_count; ++i) {
    if (tile.planes[i] == RebuildTile::kAllZero || is_in(tile.planes[i], plane_bytes)) continue;
    return wrong("plane {} of tile {} is {} bytes at {} of {}", i, index, plane_bytes,
                 tile.planes[i], work.size_bytes);
  }
  if (!work.exact) return {};
  // The kernel counts bits of both in 32 bits.
  if (!is_in(tile.remainder, tile.remainder_bytes) || tile.remainder_bytes > 2 * kMostTileBytes) {
    return wrong("remainder of tile {} is {} bytes at {} of {}", index, tile.remainder_bytes,
                 tile.remainder, work.size_bytes);
  }
  if (!is_in(tile.exceptions, tile.exception_bytes)) {
    return wrong("exceptions of tile {} are {} bytes at {} of {}", index, tile.exception_bytes,
                 tile.exceptions, work.size_bytes);
  }
  return {};
}

}  // namespace

Result<void> check(const RebuildTiles& work) {
  if (auto good = check_shape(work); !good) return good;
  if (work.tile_count == 0) return {};
  if (auto good = check_memory(work); !good) return good;
  for (uint32_t i = 0; i < work.tile_count; ++i) {
    if (auto good = check_tile(work, i); !good) return good;
  }
  return {};
}

}  // namespace bowhead::gpu
