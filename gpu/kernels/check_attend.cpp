// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "gpu/kernels/attend.h"
#include "gpu/kernels/check.h"

namespace bowhead::gpu {
namespace {

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Status::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

constexpr uint64_t kMostUnits = uint64_t{1} << 31;  // warps of a launch, counted in 32 bits

Result<void> check_address(const char* name, const void* address, uint32_t alignment_bytes) {
  if (address == nullptr) return wrong("{} is null", name);
  const auto value = reinterpret_cast<uintptr_t>(address);
  if (value % alignment_bytes == 0) return {};
  return wrong("{} is {:#x}, no multiple of {}", name, value, alignment_bytes);
}

Result<void> check_channels(const char* name, uint32_t channels) {
  if (channels != 0 && channels <= kMostAttendChannels && channels % kLaneChannels == 0) return {};
  return wrong("{} is {}: multiples of {} up to {} are possible", name, channels, kLaneChannels,
               kMostAttendChannels);
}

Result<void> check_shape(const Attend& work) {
  if (work.number != NumberFormat::BF16 && work.number != NumberFormat::FP16) {
    return wrong("number is {}: bf16 and fp16 are possible", number_name(work.number));
  }
  if (work.heads == 0) return wrong("heads is 0: latent attention has 1");
  if (work.queries_per_head == 0) return wrong("queries_per_head is 0");
  if (uint64_t{work.heads} * work.queries_per_head > kMostUnits) {
    return wrong("{} heads of {} queries", work.heads, work.queries_per_head);
  }
  if (auto good = check_channels("key_channels", work.key_channels); !good) return good;
  if (auto good = check_channels("value_channels", work.value_channels); !good) return good;
  if (!std::isfinite(work.scale) || work.scale <= 0) {
    return wrong("scale is {}: a finite number above 0", work.scale);
  }
  return {};
}

Result<void> check_span(const Attend& work, uint32_t index) {
  const AttendSpan& span = work.spans[index];
  const auto named = [&](Result<void> fault) {
    return wrong("span {}: {}", index, fault.error().detail);
  };
  if (auto good = check_address("keys", span.keys, kLaneBytes); !good) return named(good);
  if (auto good = check_address("values", span.values, kLaneBytes); !good) return named(good);
  if (span.tokens == 0) return wrong("span {} has 0 tokens", index);
  const auto strides = span.layer_stride_bytes | span.token_stride_bytes | span.head_stride_bytes;
  if (strides % kLaneBytes != 0) {
    return wrong("span {}: strides of {}, {} and {} bytes are no multiples of {}", index,
                 span.layer_stride_bytes, span.token_stride_bytes, span.head_stride_bytes,
                 kLaneBytes);
  }
  return {};
}

Result<void> check_split(const Attend& work, uint32_t index) {
  const AttendSplit& split = work.splits[index];
  if (split.sequence >= work.sequences) {
    return wrong("split {} is of sequence {}, of {}", index, split.sequence, work.sequences);
  }
  if (split.tokens == 0) return wrong("split {} has 0 tokens", index);
  uint64_t there = 0;
  const uint64_t needed = uint64_t{split.first_token} + split.tokens;
  for (uint64_t span = split.first_span; span < work.span_count && there < needed; ++span) {
    if (split.first_token >= work.spans[split.first_span].tokens) break;
    there += work.spans[span].tokens;
  }
  if (there >= needed) return {};
  return wrong("split {}: tokens {} to {} from span {} on, of {}, are not there", index,
               split.first_token, needed, split.first_span, work.span_count);
}

}  // namespace

Result<void> check(const Attend& work) {
  if (auto good = check_shape(work); !good) return good;
  if (attend_units(work) > kMostUnits) {
    return wrong("{} splits of {} heads of {} queries are more than one launch can do",
                 work.split_count, work.heads, work.queries_per_head);
  }
  if (work.split_count == 0) return {};
  if (auto good = check_address("queries", work.queries, kLaneBytes); !good) return good;
  if ((work.query_stride_bytes | work.query_head_stride_bytes) % kLaneBytes != 0) {
    return wrong("queries have strides of {} and {} bytes, no multiples of {}",
                 work.query_stride_bytes, work.query_head_stride_bytes, kLaneBytes);
  }
  if (auto good = check_address("outputs", work.outputs, kLaneBytes); !good) return good;
  if (auto good = check_address("log_sum_exps", work.log_sum_exps, 4); !good) return good;
  if (work.spans == nullptr) return wrong("spans is null");
  if (work.splits == nullptr) return wrong("splits is null");
  for (uint32_t i = 0; i < work.span_count; ++i) {
    if (auto good = check_span(work, i); !good) return good;
  }
  for (uint32_t i = 0; i < work.split_count; ++i) {
    if (auto good = check_split(work, i); !good) return good;
  }
  return {};
}

Result<void> check(const MergePartials& work) {
  if (work.source_count > MergePartials::kMostSources) {
    return wrong("source_count is {}: at most {}", work.source_count, MergePartials::kMostSources);
  }
  if (work.channels == 0 || work.channels % 4 != 0) {
    return wrong("channels is {}, no multiple of 4", work.channels);
  }
  if (uint64_t{work.sequences} * work.heads > kMostUnits) {
    return wrong("{} heads of {} sequences are more than one launch can merge", work.heads,
                 work.sequences);
  }
  if (work.number != NumberFormat::BF16 && work.number != NumberFormat::FP16 &&
      work.number != NumberFormat::FP32) {
    return wrong("number is {}: bf16, fp16 and fp32 are possible", number_name(work.number));
  }
  if (work.sequences == 0 || work.heads == 0) return {};
  if (auto good = check_address("outputs", work.outputs, 4); !good) return good;
  if (work.log_sum_exps != nullptr) {
    if (auto good = check_address("log_sum_exps", work.log_sum_exps, 4); !good) return good;
  }
  for (uint32_t i = 0; i < work.source_count; ++i) {
    const MergeSource& source = work.sources[i];
    const auto named = [&](Result<void> fault) {
      return wrong("source {}: {}", i, fault.error().detail);
    };
    if (auto good = check_address("outputs", source.outputs, kLaneBytes); !good) return named(good);
    if (auto good = check_address("log_sum_exps", source.log_sum_exps, 4); !good)
      return named(good);
    for (uint32_t s = 0; source.first_partials != nullptr && s < work.sequences; ++s) {
      if (source.first_partials[s] > source.first_partials[s + 1]) {
        return wrong("source {}: partials of sequence {} are those from {} to {}", i, s,
                     source.first_partials[s], source.first_partials[s + 1]);
      }
    }
  }
  return {};
}

}  // namespace bowhead::gpu
