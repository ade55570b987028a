// SPDX-License-Identifier: Apache-2.0
// How fast values come of frames in GPU memory, beside a copy that writes as many bytes there.
#pragma once

#include "base/status.h"
#include "bench/gpu_rig.h"
#include "bench/report.h"

namespace bowhead::bench {

/// Adds rows. What the device refuses; DAMAGED: values are not those that were encoded.
Result<void> measure_rebuild(GpuRig& rig, const GpuBenchOptions& options, const Report& report);

}  // namespace bowhead::bench
