// SPDX-License-Identifier: Apache-2.0
// The C ABI of queues.
#include <array>
#include <memory>

#include "api/batches.h"
#include "pool/queue.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::JobResult;
using bowhead::Queue;
using bowhead::Status;

struct bh_queue {
  bh_pool* pool;
  std::unique_ptr<Queue> queue;
  unsigned forks_at_open;
};

namespace {

/// A copy of this many bytes takes some 50 us.
constexpr uint64_t kQuickBytes = 256 * 1024;
constexpr size_t kQuickKeys = 256;

bh_status check_queue(const bh_queue* queue) {
  if (queue == nullptr) return null_argument("queue");
  return queue->forks_at_open == forks() ? BH_OK : finish(Status::FORKED);
}

template <class Pieces>
uint64_t total_bytes(const Pieces* pieces, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += pieces[i].size_bytes;
  return sum;
}

bool is_quick(const bh_job& job) {
  if (job.count > kQuickKeys || job.operation == BH_JOB_REMOVE) return false;
  uint64_t bytes = 0;
  for (size_t i = 0; i < job.count && bytes <= kQuickBytes; ++i) {
    if (job.operation == BH_JOB_PUT)
      bytes += total_bytes(job.puts[i].value, job.puts[i].value_count);
    if (job.operation == BH_JOB_GET)
      bytes += total_bytes(job.gets[i].buffers, job.gets[i].buffer_count);
  }
  return bytes <= kQuickBytes;
}

/// The pointers that an operation needs, and no others.
bh_status check_pointers(const bh_job& job) {
  const struct {
    const char* name;
    const void* given;
    bool needed;
  } pointers[] = {
      {"job->puts", job.puts, job.operation == BH_JOB_PUT},
      {"job->gets", job.gets, job.operation == BH_JOB_GET},
      {"job->keys", job.keys, job.operation == BH_JOB_REMOVE || job.operation == BH_JOB_EXISTS},
      {"job->statuses", job.statuses, job.operation == BH_JOB_REMOVE},
      {"job->present", job.present, job.operation == BH_JOB_EXISTS},
  };
  for (const auto& [name, given, needed] : pointers) {
    if (needed && given == nullptr) return null_argument(name);
    if (!needed && given != nullptr)
      return fail(BH_INVALID_ARGUMENT, "{}: operation {} does not use {}: set it to NULL",
                  current_function, job.operation, name);
  }
  return BH_OK;
}

bh_status check_job(const bh_job& job) {
  if (job.operation < BH_JOB_PUT || job.operation > BH_JOB_EXISTS)
    return fail(BH_INVALID_ARGUMENT, "{}: job->operation is {}; use one of BH_JOB_*",
                current_function, job.operation);
  if (job.priority > 255)
    return fail(BH_INVALID_ARGUMENT, "{}: job->priority is {}, and at most 255 is allowed",
                current_function, job.priority);
  if (const bh_status bad = check_reserved("job", job.reserved); bad != BH_OK) return bad;
  if (job.count == 0)
    return fail(BH_INVALID_ARGUMENT, "{}: job->count is 0: a job has items or keys",
                current_function);
  if (const bh_status bad = check_pointers(job); bad != BH_OK) return bad;
  if (job.operation == BH_JOB_PUT) return check_puts(job.puts, job.count);
  if (job.operation == BH_JOB_GET) return check_gets(job.gets, job.count);
  return check_keys(job.keys, job.count);
}

JobResult run(bh_pool& pool, const bh_job& job) {
  JobResult result;
  const bh_status status = guarded("bh_queue_submit", [&]() -> bh_status {
    switch (job.operation) {
      case BH_JOB_PUT:
        return put_batch(pool, job.namespace_id, job.puts, job.count, result.failed);
      case BH_JOB_GET:
        return get_batch(pool, job.namespace_id, job.gets, job.count, result.failed);
      case BH_JOB_REMOVE:
        return remove_batch(pool, job.namespace_id, job.keys, job.count, job.statuses,
                            result.failed);
      default:
        return exists_batch(pool, job.namespace_id, job.keys, job.count, job.present,
                            result.failed);
    }
  });
  result.status = static_cast<Status>(status);
  return result;
}

}  // namespace

extern "C" {

bh_status bh_queue_open(bh_pool* pool, const bh_queue_options* options, bh_queue** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (out == nullptr) return null_argument("out");
    if (pool->forks_at_open != forks()) return finish(Status::FORKED);
    bowhead::QueueOptions settings;
    if (options != nullptr) {
      bh_queue_options known;
      if (const bh_status bad = read_struct(options, "options", known); bad != BH_OK) return bad;
      if (const bh_status bad = check_reserved("options", known.reserved); bad != BH_OK) return bad;
      if (known.threads != 0) settings.threads = known.threads;
      if (known.jobs_max != 0) settings.jobs_max = known.jobs_max;
    }
    auto queue = Queue::open(settings);
    if (!queue) return fail(queue.error());
    *out = new bh_queue{pool, std::move(*queue), forks()};
    return BH_OK;
  });
}

int bh_queue_fd(const bh_queue* queue) { return queue == nullptr ? -1 : queue->queue->fd(); }

bh_status bh_queue_submit(bh_queue* queue, const bh_job* job, uint64_t* number) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_queue(queue); bad != BH_OK) return bad;
    bh_job known;
    if (const bh_status bad = read_struct(job, "job", known); bad != BH_OK) return bad;
    if (const bh_status bad = check_job(known); bad != BH_OK) return bad;
    const auto submitted =
        queue->queue->submit({.run = [pool = queue->pool, known] { return run(*pool, known); },
                              .priority = known.priority,
                              .quick = is_quick(known),
                              .context = known.context,
                              .operation = known.operation});
    if (!submitted) return fail(submitted.error());
    if (number != nullptr) *number = *submitted;
    return BH_OK;
  });
}

bh_status bh_queue_poll(bh_queue* queue, bh_completion* out, size_t room, size_t* count) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_queue(queue); bad != BH_OK) return bad;
    if (out == nullptr && room > 0) return null_argument("out");
    if (count == nullptr) return null_argument("count");
    std::array<bowhead::JobReport, 64> reports;
    *count = 0;
    while (*count < room) {
      const auto part = std::span(reports).first(std::min(reports.size(), room - *count));
      const size_t n = queue->queue->poll(part);
      for (const bowhead::JobReport& one : part.first(n))
        out[(*count)++] = {one.number, one.context, one.result.failed,
                           static_cast<bh_status>(one.result.status), one.operation};
      if (n < part.size()) break;
    }
    return BH_OK;
  });
}

bh_status bh_queue_cancel(bh_queue* queue, uint64_t number) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_queue(queue); bad != BH_OK) return bad;
    const Status status = queue->queue->cancel(number);
    if (status == Status::OK) return BH_OK;
    return fail(BH_NOT_FOUND, "{}: job {} has started, has ended, or never was", current_function,
                number);
  });
}

bh_status bh_queue_drain(bh_queue* queue, uint64_t timeout_ms) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_queue(queue); bad != BH_OK) return bad;
    const auto timeout = std::chrono::milliseconds(std::min<uint64_t>(timeout_ms, 1ull << 40));
    if (queue->queue->drain(timeout) == Status::OK) return BH_OK;
    return fail(BH_BUSY, "{}: jobs had not ended after {} ms; they continue", current_function,
                timeout_ms);
  });
}

void bh_queue_close(bh_queue* queue) {
  if (queue == nullptr) return;
  // The threads of a queue are the parent's; the child cannot end them, and leaves the rest alone.
  if (queue->forks_at_open != forks()) (void)queue->queue.release();
  delete queue;
}

}  // extern "C"
