// SPDX-License-Identifier: Apache-2.0
// Coherence: the only place that knows how stores leave a host's caches and how stale lines go.
//
// publish = write back every line of a range, then a full fence: when it returns, memory has the
// lines and later loads are not executed before it. acquire = invalidate every line, then a full
// fence: loads after it return what memory held at or after the invalidate. Both act on whole
// 64-byte lines.
//
// Which instruction does it is a run-time choice: published work disagrees on which is safe on
// which hardware. FlushKind::NONE is for memory that one coherence domain has to itself: lines
// stay where they are, and the fences remain fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace bowhead {

enum class FlushKind : uint8_t { NONE, CLWB, CLFLUSHOPT, CLFLUSH };

/// "none", "clwb", "clflushopt", "clflush" and back.
const char* flush_kind_name(FlushKind kind);
std::optional<FlushKind> flush_kind_from_name(std::string_view name);

/// What this CPU can do, best first; always contains NONE.
const std::vector<FlushKind>& supported_flush_kinds();

/// The kind for memory shared beyond this host's caches (`beyond_host`: other hosts read it, or it
/// must survive power loss): the best supported one, NONE if not beyond_host. The environment
/// variable BOWHEAD_FLUSH=none|clwb|clflushopt|clflush overrides it; a kind that the CPU lacks is
/// ignored with a line on stderr. Note: acquire on clwb falls back to clflushopt (or clflush),
/// since clwb may keep the line.
FlushKind choose_flush_kind(bool beyond_host);

/// Starts writing back / invalidating every line of [address, address+size). No fence.
void flush_lines(FlushKind kind, const void* address, size_t size);
void invalidate_lines(FlushKind kind, const void* address, size_t size);

/// Full fence: orders all earlier stores, flushes, invalidates before all later loads and stores.
/// A locked instruction on x86 (also for ThreadSanitizer, which knows no stand-alone fences).
void full_fence();

/// Orders earlier non-temporal stores before later stores (sfence).
void streaming_fence();

}  // namespace bowhead
