// SPDX-License-Identifier: Apache-2.0
// Estimates of scores from few planes (docs/ndp-topk.md, "Within a budget").
#pragma once

#include <cstdint>

namespace bowhead::ndp {

/// More planes show values so well that nothing is gained.
inline constexpr uint32_t kScaledPlanes = 4;

/// The factor, above 0 and at most 1, that brings the middles which the first `planes`, 1 to
/// kScaledPlanes, show, less the centre, nearest to the values (least squares), if these are normal
/// around the centre: by their spread, as PlaneTile::spreads() has it.
float scale_of_differences(uint8_t spread, uint32_t planes);

}  // namespace bowhead::ndp
