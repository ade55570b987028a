// SPDX-License-Identifier: Apache-2.0
// The speed of fetching chosen tokens from a pool to GPU memory.
#pragma once

#include "base/status.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_rig.h"
#include "bench/report.h"

namespace bowhead::bench {

/// `fetch_tokens`: 1.5 % of a long sequence's tokens, beside one copy of as many bytes.
Result<void> measure_fetch(GpuRig& rig, const GpuBenchOptions& options, const Report& report);

}  // namespace bowhead::bench
