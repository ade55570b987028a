// SPDX-License-Identifier: Apache-2.0
// Coherence: the only code that knows how stores leave a host's caches and how stale lines are
// dropped.
//
// publish = write back every line of a range, then a full fence: when it returns, memory has the
// lines and later loads are not executed before it. acquire = invalidate every line, then a full
// fence: loads after it return what memory held at or after the invalidate. Both act on whole
// 64-byte lines.
//
// The instruction is a run-time choice: published work disagrees about which one is safe on which
// hardware. FlushKind::NONE is for memory that belongs to a single coherence domain: lines stay in
// the caches, and the fences remain fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace bowhead {

enum class FlushKind : uint8_t { NONE, CLWB, CLFLUSHOPT, CLFLUSH };

/// "none", "clwb", "clflushopt", "clflush", and the reverse.
const char* flush_kind_name(FlushKind kind);
std::optional<FlushKind> flush_kind_from_name(std::string_view name);

/// The kinds that this CPU supports, best first; always contains NONE.
const std::vector<FlushKind>& supported_flush_kinds();

/// The kind for memory shared beyond this host's caches (`beyond_host`: other hosts read it, or it
/// must survive power loss): the best supported one, NONE if not beyond_host. The environment
/// variable BOWHEAD_FLUSH=none|clwb|clflushopt|clflush overrides it; a kind that the CPU lacks is
/// ignored with a line on stderr. With clwb, acquire uses clflushopt (or clflush), since clwb may
/// keep the line.
FlushKind choose_flush_kind(bool beyond_host);

/// Starts writing back / invalidating every line of [address, address+size). No fence.
void flush_lines(FlushKind kind, const void* address, size_t size);
void invalidate_lines(FlushKind kind, const void* address, size_t size);

/// Full fence: orders all earlier stores, flushes and invalidations before all later loads and
/// stores. A locked instruction on x86 (also for ThreadSanitizer, which ignores stand-alone
/// fences).
void full_fence();

/// Orders earlier non-temporal stores before later stores (sfence).
void streaming_fence();

}  // namespace bowhead
