// SPDX-License-Identifier: Apache-2.0
// The speed of decoding frames in GPU memory, beside a copy that writes as many bytes there.
#pragma once

#include "base/status.h"
#include "bench/gpu_rig.h"
#include "bench/report.h"

namespace bowhead::bench {

/// Adds rows. Returns the device's errors; DAMAGED: values differ from those that were encoded.
Result<void> measure_rebuild(GpuRig& rig, const GpuBenchOptions& options, const Report& report);

}  // namespace bowhead::bench
