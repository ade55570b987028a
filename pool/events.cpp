// SPDX-License-Identifier: Apache-2.0
#include "pool/events.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "base/assert.h"

namespace bowhead {

namespace {

/// An event in a buffer, followed by key and user metadata. Not aligned.
struct Head {
  EventKind kind;
  uint32_t key_bytes, user_bytes;
  uint64_t namespace_id, length_bytes, stamp;

  size_t size() const { return sizeof(Head) + key_bytes + user_bytes; }
};

}  // namespace

EventReader::~EventReader() {
  if (fd_ >= 0) close(fd_);
}

/// The eventfd is written when there is something to read for the first time, and read when all
/// has been visited.
void EventReader::add(const Event& event) {
  const Head head{event.kind,
                  static_cast<uint32_t>(event.key.size()),
                  static_cast<uint32_t>(event.user_metadata.size()),
                  event.namespace_id,
                  event.length_bytes,
                  event.stamp};
  const std::lock_guard lock(mutex_);
  const size_t at = events_.size();
  // Events that come after a lost one are lost too, until it is reported: so that the count comes
  // at the place of the gap.
  if (lost_ > 0 || !grow(at + head.size())) {
    ++lost_;
  } else {
    events_.resize(at + head.size());
    std::memcpy(events_.data() + at, &head, sizeof head);
    std::memcpy(events_.data() + at + sizeof head, event.key.data(), event.key.size());
    if (!event.user_metadata.empty())
      std::memcpy(events_.data() + at + sizeof head + event.key.size(), event.user_metadata.data(),
                  event.user_metadata.size());
  }
  announce();
}

/// Makes space for so many bytes, if they fit. Events are published in the middle of puts, which
/// must not fail there: without memory, the event is lost.
bool EventReader::grow(size_t bytes) {
  if (bytes > capacity_bytes_) return false;
  if (bytes <= events_.capacity()) return true;
  try {
    events_.reserve(std::min(capacity_bytes_, 2 * bytes));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void EventReader::lose() {
  const std::lock_guard lock(mutex_);
  ++lost_;
  announce();
}

void EventReader::announce() {
  const uint64_t one = 1;
  if (!std::exchange(announced_, true)) BOWHEAD_ASSERT(write(fd_, &one, sizeof one) == sizeof one);
}

size_t EventReader::read(size_t most, const std::function<bool(const Event&)>& visit,
                         uint64_t* lost) {
  const std::lock_guard one_reader(reading_);
  *lost = 0;
  size_t count = 0;
  for (bool more = most > 0; more && count < most;) {
    if (taken_at_ == taken_.size()) {
      taken_at_ = 0;
      taken_.clear();
      const std::lock_guard lock(mutex_);
      taken_.swap(events_);
      if (taken_.empty()) {
        *lost = std::exchange(lost_, 0);
        break;
      }
    }
    Head head;
    std::memcpy(&head, taken_.data() + taken_at_, sizeof head);
    const char* text = reinterpret_cast<const char*>(taken_.data() + taken_at_ + sizeof head);
    taken_at_ += head.size();
    ++count;
    more = visit({head.kind,
                  head.namespace_id,
                  {text, head.key_bytes},
                  {text + head.key_bytes, head.user_bytes},
                  head.length_bytes,
                  head.stamp});
  }
  const std::lock_guard lock(mutex_);
  if (announced_ && taken_at_ == taken_.size() && events_.empty() && lost_ == 0) {
    uint64_t ignored = 0;
    // EAGAIN: the caller has read the eventfd, which it should not.
    if (::read(fd_, &ignored, sizeof ignored) < 0) BOWHEAD_ASSERT(errno == EAGAIN);
    announced_ = false;
  }
  return count;
}

Result<std::shared_ptr<EventReader>> Events::open(size_t capacity_bytes) {
  std::shared_ptr<EventReader> reader(new EventReader(capacity_bytes));
  reader->fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (reader->fd_ < 0)
    return Error{Status::SYSTEM,
                 fmt::format("eventfd: {}", std::generic_category().message(errno))};
  const std::lock_guard lock(mutex_);
  std::erase_if(readers_, [](const auto& one) { return one.expired(); });
  readers_.push_back(reader);
  readers_count_ = readers_.size();
  return reader;
}

}  // namespace bowhead
