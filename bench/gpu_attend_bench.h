// SPDX-License-Identifier: Apache-2.0
// The speed of attention that reads keys and values from a pool, beside one copy of as many bytes.
#pragma once

#include "base/status.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_rig.h"
#include "bench/report.h"

namespace bowhead::bench {

/// Rows `attend_direct`. DAMAGED: an answer differs from that of ndp/ on the same bytes.
Result<void> measure_attend(GpuRig& rig, const GpuBenchOptions& options, const Report& report);

}  // namespace bowhead::bench
