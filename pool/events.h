// SPDX-License-Identifier: Apache-2.0
// Events: blocks that this process stored, removed, evicted or dropped, for readers that may be
// slow. A reader has a buffer of its own; events that do not fit are lost, and counted. So no put
// ever waits for a reader.
//
// Thread-safe. No event is published while there is no reader, and none costs more than a test.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bowhead {

enum class EventKind : uint32_t { STORED = 1, REMOVED = 2, EVICTED = 3, DAMAGED = 4 };

struct Event {
  EventKind kind;
  uint64_t namespace_id;
  std::string_view key;            ///< valid during the call
  std::string_view user_metadata;  ///< of the block; the same
  uint64_t length_bytes;           ///< of the value
  uint64_t stamp;                  ///< of the block
};

/// The events of one reader.
class EventReader {
 public:
  ~EventReader();
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

  /// An eventfd: readable while there are events, or some were lost.
  int fd() const { return fd_; }
  /// Calls visit(event) for up to `most` events, oldest first, and returns how many; a result of
  /// false ends the call, and that event counts as read. `lost`: how many were lost since the last
  /// call, after those that are visited. One thread at a time; others wait.
  size_t read(size_t most, const std::function<bool(const Event&)>& visit, uint64_t* lost);

 private:
  friend class Events;
  explicit EventReader(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  void add(const Event& event);
  bool grow(size_t bytes);
  void lose();
  void announce();

  const size_t capacity_bytes_;
  int fd_ = -1;
  std::mutex reading_;  ///< held by read()
  std::mutex mutex_;
  std::vector<std::byte> events_;  ///< one after another: Head, key, user metadata
  std::vector<std::byte> taken_;   ///< by read(), which has not visited all of them
  size_t taken_at_ = 0;
  uint64_t lost_ = 0;
  bool announced_ = false;  ///< the eventfd is readable
};

class Events {
 public:
  /// Returns SYSTEM.
  Result<std::shared_ptr<EventReader>> open(size_t capacity_bytes);
  /// Whether there is a reader. Relaxed: a reader that was just opened may miss an event that is
  /// published at the same time; the list itself is read under the mutex.
  bool wanted() const { return readers_count_.load(std::memory_order_relaxed) > 0; }
  void publish(const Event& event) {
    for_each([&](EventReader& reader) { reader.add(event); });
  }
  /// For an event that nothing is known of: the readers are told that they lost one.
  void lose() {
    for_each([](EventReader& reader) { reader.lose(); });
  }

 private:
  template <class Visit>
  void for_each(Visit visit);

  std::mutex mutex_;
  std::vector<std::weak_ptr<EventReader>> readers_;
  std::atomic<size_t> readers_count_{0};
};

template <class Visit>
void Events::for_each(Visit visit) {
  const std::lock_guard lock(mutex_);
  bool gone = false;
  for (const auto& weak : readers_) {
    const auto reader = weak.lock();
    if (reader)
      visit(*reader);
    else
      gone = true;
  }
  if (!gone) return;
  std::erase_if(readers_, [](const auto& one) { return one.expired(); });
  readers_count_ = readers_.size();
}

}  // namespace bowhead
