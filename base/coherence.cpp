// SPDX-License-Identifier: Apache-2.0
#include "base/coherence.h"

#include <cstdio>
#include <cstdlib>

#include "base/assert.h"
#include "base/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bowhead {
namespace {

constexpr uintptr_t kLineBytes = 64;

struct FlushKindName {
  FlushKind kind;
  const char* name;
};
constexpr FlushKindName kNames[] = {
    {FlushKind::NONE, "none"},
    {FlushKind::CLWB, "clwb"},
    {FlushKind::CLFLUSHOPT, "clflushopt"},
    {FlushKind::CLFLUSH, "clflush"},
};

#if defined(__x86_64__)

__attribute__((target("clwb"))) void clwb_lines(uintptr_t line, uintptr_t end) {
  for (; line < end; line += kLineBytes) _mm_clwb(reinterpret_cast<void*>(line));
}

__attribute__((target("clflushopt"))) void clflushopt_lines(uintptr_t line, uintptr_t end) {
  for (; line < end; line += kLineBytes) _mm_clflushopt(reinterpret_cast<void*>(line));
}

void clflush_lines(uintptr_t line, uintptr_t end) {
  for (; line < end; line += kLineBytes) _mm_clflush(reinterpret_cast<void*>(line));
}

#else  // 64-bit Arm: dc cvac writes back, dc civac writes back and invalidates.

void clwb_lines(uintptr_t line, uintptr_t end) {
  for (; line < end; line += kLineBytes) asm volatile("dc cvac, %0" ::"r"(line) : "memory");
}

void clflushopt_lines(uintptr_t line, uintptr_t end) {
  for (; line < end; line += kLineBytes) asm volatile("dc civac, %0" ::"r"(line) : "memory");
}

void clflush_lines(uintptr_t line, uintptr_t end) { clflushopt_lines(line, end); }

#endif

void evict_lines(FlushKind kind, const void* address, size_t size, bool may_keep) {
  if (kind == FlushKind::NONE || size == 0) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(address) & ~(kLineBytes - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + size;
  if (kind == FlushKind::CLWB && !may_keep) {
    // clwb may leave the line in the cache, where the next load would find it stale.
    kind = cpu_features().clflushopt ? FlushKind::CLFLUSHOPT : FlushKind::CLFLUSH;
  }
  switch (kind) {
    case FlushKind::NONE:
      return;
    case FlushKind::CLWB:
      return clwb_lines(first, end);
    case FlushKind::CLFLUSHOPT:
      return clflushopt_lines(first, end);
    case FlushKind::CLFLUSH:
      return clflush_lines(first, end);
  }
}

}  // namespace

const char* flush_kind_name(FlushKind kind) {
  for (const FlushKindName& entry : kNames) {
    if (entry.kind == kind) return entry.name;
  }
  BOWHEAD_ASSERT(false && "a flush kind without a name");
}

std::optional<FlushKind> flush_kind_from_name(std::string_view name) {
  for (const FlushKindName& entry : kNames) {
    if (entry.name == name) return entry.kind;
  }
  return std::nullopt;
}

const std::vector<FlushKind>& supported_flush_kinds() {
  static const std::vector<FlushKind> kinds = [] {
    const CpuFeatures& cpu = cpu_features();
    std::vector<FlushKind> found;
    if (cpu.clwb) found.push_back(FlushKind::CLWB);
    if (cpu.clflushopt) found.push_back(FlushKind::CLFLUSHOPT);
    if (cpu.clflush) found.push_back(FlushKind::CLFLUSH);
    found.push_back(FlushKind::NONE);
    return found;
  }();
  return kinds;
}

FlushKind choose_flush_kind(bool beyond_host) {
  const std::vector<FlushKind>& kinds = supported_flush_kinds();
  const FlushKind fitting = beyond_host ? kinds.front() : FlushKind::NONE;
  const char* forced = std::getenv("BOWHEAD_FLUSH");
  if (forced == nullptr) return fitting;
  if (const auto kind = flush_kind_from_name(forced)) {
    for (const FlushKind supported : kinds) {
      if (supported == *kind) return *kind;
    }
    std::fprintf(stderr, "bowhead: BOWHEAD_FLUSH=%s ignored: this CPU lacks it\n", forced);
  } else {
    std::fprintf(stderr,
                 "bowhead: BOWHEAD_FLUSH=%s ignored: must be none, clwb, clflushopt or clflush\n",
                 forced);
  }
  return fitting;
}

void flush_lines(FlushKind kind, const void* address, size_t size) {
  evict_lines(kind, address, size, true);
}

void invalidate_lines(FlushKind kind, const void* address, size_t size) {
  evict_lines(kind, address, size, false);
}

void full_fence() {
#if defined(__x86_64__)
  // A locked instruction orders loads, stores, clflushopt, clwb and non-temporal stores as mfence
  // does, and is faster. The top of the stack is a line that this core owns.
  asm volatile("lock orl $0, (%%rsp)" ::: "memory", "cc");
#else
  asm volatile("dsb sy" ::: "memory");
#endif
}

void streaming_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  asm volatile("dmb ishst" ::: "memory");
#endif
}

}  // namespace bowhead
