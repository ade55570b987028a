// SPDX-License-Identifier: Apache-2.0
// The C ABI of events.
#include <memory>

#include "api/support.h"

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::Event;
using bowhead::EventReader;
using bowhead::Status;

struct bh_events {
  std::shared_ptr<EventReader> reader;
  unsigned forks_at_open;
};

static_assert(BH_EVENT_STORED == static_cast<uint32_t>(bowhead::EventKind::STORED) &&
              BH_EVENT_REMOVED == static_cast<uint32_t>(bowhead::EventKind::REMOVED) &&
              BH_EVENT_EVICTED == static_cast<uint32_t>(bowhead::EventKind::EVICTED) &&
              BH_EVENT_DAMAGED == static_cast<uint32_t>(bowhead::EventKind::DAMAGED));

extern "C" {

bh_status bh_events_open(bh_pool* pool, const bh_events_options* options, bh_events** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    if (out == nullptr) return null_argument("out");
    uint64_t capacity_bytes = 4u << 20;
    if (options != nullptr) {
      bh_events_options known;
      if (const bh_status bad = read_struct(options, "options", known); bad != BH_OK) return bad;
      if (const bh_status bad = check_reserved("options", known.reserved); bad != BH_OK) return bad;
      if (known.capacity_bytes != 0) capacity_bytes = known.capacity_bytes;
    }
    if (capacity_bytes < 4096 || capacity_bytes > 1u << 30)
      return fail(BH_INVALID_ARGUMENT,
                  "{}: options->capacity_bytes is {}; use 4,096 to 1,073,741,824", current_function,
                  capacity_bytes);
    auto reader = pool->pool.open_events(capacity_bytes);
    if (!reader) return fail(reader.error());
    *out = new bh_events{std::move(*reader), forks()};
    return BH_OK;
  });
}

int bh_events_fd(const bh_events* events) { return events == nullptr ? -1 : events->reader->fd(); }

bh_status bh_events_read(bh_events* events, size_t most,
                         int (*visit)(void* context, const bh_event* event), void* context,
                         size_t* count, uint64_t* lost) {
  return guarded(__func__, [&]() -> bh_status {
    if (events == nullptr) return null_argument("events");
    if (visit == nullptr) return null_argument("visit");
    if (lost == nullptr) return null_argument("lost");
    if (events->forks_at_open != forks()) return finish(Status::FORKED);
    uint64_t lost_now = 0;
    const size_t visited = events->reader->read(
        most,
        [&](const Event& one) {
          bh_event shown{};
          shown.struct_bytes = sizeof shown;
          shown.kind = static_cast<uint32_t>(one.kind);
          shown.namespace_id = one.namespace_id;
          shown.key = {one.key.data(), one.key.size()};
          shown.user_metadata = one.user_metadata.data();
          shown.user_bytes = one.user_metadata.size();
          shown.length_bytes = one.length_bytes;
          shown.stamp = one.stamp;
          return visit(context, &shown) == 0;
        },
        &lost_now);
    if (count != nullptr) *count = visited;
    *lost = lost_now;
    return BH_OK;
  });
}

void bh_events_close(bh_events* events) {
  if (events == nullptr) return;
  // A thread of the parent may have held the reader's locks at the fork: the child leaves it alone.
  if (events->forks_at_open != forks()) new std::shared_ptr<EventReader>(std::move(events->reader));
  delete events;
}

}  // extern "C"
