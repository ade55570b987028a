// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/queue_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "firmware-sim/areas.h"
#include "firmware-sim/wire.h"
#include "pool/window.h"

namespace bowhead::driver {
namespace {

using core::Message;
using device::Area;

constexpr size_t kTakenAtOnce = 16;
/// Waiting rounds between looks whether the device is there: the first one comes before this thread
/// begins to sleep.
constexpr uint32_t kLooksForDevice = 128;

uint64_t lines(uint64_t bytes) {
  return std::max<uint64_t>((bytes + BH_LINE_BYTES - 1) / BH_LINE_BYTES, 1) * BH_LINE_BYTES;
}

/// Pieces of some bytes, in whole lines; the first place that is large enough.
class Pieces {
 public:
  void reset(uint64_t bytes) {
    free_.clear();
    if (bytes > 0) free_[0] = bytes;
  }
  std::optional<uint64_t> take(uint64_t bytes) {
    bytes = lines(bytes);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [at, size] = *it;
      free_.erase(it);
      if (size > bytes) free_[at + bytes] = size - bytes;
      return at;
    }
    return std::nullopt;
  }
  void give_back(uint64_t at, uint64_t bytes) {
    bytes = lines(bytes);
    auto next = free_.lower_bound(at);
    BOWHEAD_ASSERT(next == free_.end() || at + bytes <= next->first);
    BOWHEAD_ASSERT(next == free_.begin() || std::prev(next)->first + std::prev(next)->second <= at);
    if (next != free_.end() && at + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    free_[at] = bytes;
  }

 private:
  std::map<uint64_t, uint64_t> free_;  // bytes, by where they begin
};

/// A command that is under way.
struct Pending {
  uint64_t request_at = 0, request_bytes = 0;  ///< bytes 0: it has none
  uint64_t answer_at = 0, answer_bytes = 0;
  uint64_t epoch = 0;  ///< in which the area of the answer was given
  bool is_attach = false;
  bool is_awaited = true;  ///< by the thread that submitted it
  bool is_sent = false;
  std::optional<Message> completion;
  bool is_lost = false;
};

constexpr const char* kStartedAnew = "the device was started anew; the pool is intact";
constexpr uint32_t kLivesMax = 3;  ///< of the device, that a request is sent to

Error device_lost(const char* why) {
  return {Status::DEVICE_LOST, fmt::format("the device {}; the pool is intact", why)};
}

}  // namespace

class QueuePair::Impl {
 public:
  Impl(Pool& pool, Window window, uint32_t pair, const QueuePairOptions& options)
      : window_(std::move(window)),
        areas_(pool, "requests"),
        pair_(pair),
        options_{lines(options.request_bytes), lines(options.answer_bytes), options.timeout_ms},
        channel_(window_.access(), window_.commands(window_.host(), pair),
                 window_.completions(window_.host(), pair), BH_DEVICE_QUEUE_BYTES),
        next_id_(window_.access().random()) {}
  ~Impl() {
    // In a forked child it is the parent's, whose thread may hold the mutex.
    if (window_.access().forked()) return;
    const std::lock_guard lock(mutex_);
    if (answers_bytes_ > 0) (void)channel_.send(Message{next_id_++, BH_DEVICE_DETACH});
    // The memory for requests goes: the device reads what it finds there, and believes nothing.
  }

  Result<void> begin() {
    if (auto good = areas_.open(); !good) return good;
    auto requests = areas_.reserve(options_.request_bytes);
    if (!requests) return requests.error();
    requests_.emplace(std::move(*requests));
    request_pieces_.reset(requests_->bytes());
    channel_.open();
    session_ = channel_.peer_session();
    return {};
  }

  Result<void> ping() {
    if (window_.access().forked()) return Status::FORKED;
    std::unique_lock lock(mutex_);
    const auto done = carry_out(lock, Message{0, BH_DEVICE_NOTHING}, {});
    if (window_.access().media_failed()) return Status::MEDIA_ERROR;
    return done ? Result<void>{} : done.error();
  }

  /// Requests change nothing: one that a device took which was started anew since is asked again.
  Result<ndp::BlocksRead> run(const ndp::Request& request, const ndp::AnswerRoom& room,
                              DeviceTime& time) {
    if (window_.access().forked()) return Status::FORKED;
    for (uint32_t life = 1;; ++life) {
      auto answer = run_once(request, room, time);
      // Loads may have returned zeros, and stores may be lost.
      if (window_.access().media_failed()) return Status::MEDIA_ERROR;
      if (answer || answer.error().detail != kStartedAnew || life == kLivesMax) return answer;
    }
  }

  Result<ndp::BlocksRead> run_once(const ndp::Request& request, const ndp::AnswerRoom& room,
                                   DeviceTime& time) {
    const auto bytes = device::encode(request);
    if (!bytes) return bytes.error();
    const auto answer_bytes = ndp::answer_bytes(request);
    if (!answer_bytes) return answer_bytes.error();
    if (room.first.size() != answer_bytes->first || room.second.size() != answer_bytes->second)
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("room of {} and {} bytes for an answer of {} and {}", room.first.size(),
                      room.second.size(), answer_bytes->first, answer_bytes->second)};
    const device::AnswerPlaces places(*answer_bytes);
    std::unique_lock lock(mutex_);
    if (auto good = attach(lock); !good) return good.error();
    Pending command;
    command.request_bytes = bytes->size();
    command.answer_bytes = std::max<uint64_t>(
        places.left_out + request.heads.blocks.size() * sizeof(uint32_t), kSentenceBytes);
    const auto request_at =
        take(lock, request_pieces_, command.request_bytes, requests_->bytes(), "request");
    if (!request_at) return request_at.error();
    command.request_at = *request_at;
    const auto answer_at =
        take(lock, answer_pieces_, command.answer_bytes, answers_bytes_, "answer");
    if (!answer_at) {
      request_pieces_.give_back(command.request_at, command.request_bytes);
      return answer_at.error();
    }
    command.answer_at = *answer_at;
    command.epoch = epoch_;
    std::memcpy(requests_->data() + command.request_at, bytes->data(), bytes->size());
    window_.access().publish(requests_->offset() + command.request_at, bytes->size());
    const uint64_t answers_offset = answers_offset_;
    const auto done =
        carry_out(lock,
                  Message{0, static_cast<uint64_t>(request.operation),
                          requests_->offset() + command.request_at, command.request_bytes,
                          command.answer_at, command.answer_bytes, 0},
                  command);
    if (!done) return done.error();
    time = {(*done)[BH_COMPLETION_TIME_NS], (*done)[BH_COMPLETION_MODELLED_NS]};
    auto answer = take_answer(*done, answers_offset + command.answer_at, command.answer_bytes,
                              places, room, request.heads.blocks.size());
    give_back(command);
    return answer;
  }

 private:
  static constexpr uint64_t kSentenceBytes = 512;
  using Lock = std::unique_lock<std::mutex>;

  /// Has an area for answers of the present device.
  Result<void> attach(Lock& lock) {
    harvest();  // a device that was started anew has given no area yet
    while (answers_bytes_ == 0) {
      if (is_attaching_) {  // another thread does
        pause(lock, 0);
        continue;
      }
      is_attaching_ = true;
      Message command{0, BH_DEVICE_ATTACH};
      command[BH_COMMAND_ROOM] = options_.answer_bytes;
      const auto done = carry_out(lock, command, Pending{.is_attach = true});
      is_attaching_ = false;
      if (!done) return done.error();
      const auto status = static_cast<Status>((*done)[BH_COMPLETION_STATUS] & UINT32_MAX);
      if (status != Status::OK)
        return Error{status, fmt::format("the device has no area of {} bytes for answers: {}",
                                         options_.answer_bytes, status_text(status))};
      if (!window_.is_payload((*done)[BH_COMPLETION_BYTES], options_.answer_bytes))
        return device_lost("gave an area that is not in the pool");
      answers_offset_ = (*done)[BH_COMPLETION_BYTES];
      answers_bytes_ = options_.answer_bytes;
      answer_pieces_.reset(answers_bytes_);
    }
    return {};
  }

  /// Waits for memory that other commands have.
  Result<uint64_t> take(Lock& lock, Pieces& from, uint64_t bytes, uint64_t all, const char* what) {
    const uint64_t epoch = epoch_, end_ns = deadline_ns();
    if (lines(bytes) > all)
      return Error{
          Status::LIMIT_REACHED,
          fmt::format("the {} takes {} bytes: this queue pair has room for {}", what, bytes, all)};
    for (uint32_t round = 0;; ++round) {
      if (epoch_ != epoch) return Error{Status::DEVICE_LOST, kStartedAnew};
      if (const auto at = from.take(bytes)) return *at;
      if (window_.access().recency_ns() > end_ns) return device_lost("does not answer");
      harvest();
      if (round % kLooksForDevice == kLooksForDevice - 1 && is_gone()) lose(/*unsent=*/true);
      pause(lock, round);
    }
  }

  /// Submits a command and waits for its completion.
  Result<Message> carry_out(Lock& lock, Message command, const Pending& pending) {
    const uint64_t id = command[BH_COMMAND_ID] = next_id_++;
    const uint64_t end_ns = deadline_ns();
    pending_[id] = pending;
    for (uint32_t round = 0;; ++round) {
      harvest();
      Pending& mine = pending_[id];
      if (!mine.is_sent && !mine.is_lost) mine.is_sent = channel_.send(command);
      if (mine.completion || mine.is_lost) {
        const std::optional<Message> completion = mine.completion;
        pending_.erase(id);
        if (!completion) return Error{Status::DEVICE_LOST, kStartedAnew};
        return *completion;
      }
      if (round % kLooksForDevice == kLooksForDevice - 1 && is_gone()) {
        lose(/*unsent=*/true);
        pending_.erase(id);
        return device_lost("does not run: start it with `bowhead device serve`");
      }
      if (window_.access().recency_ns() > end_ns) {
        if (mine.is_sent)
          mine.is_awaited = false;  // P1
        else
          forget(id);
        return device_lost("does not answer");
      }
      pause(lock, round);
    }
  }

  uint64_t deadline_ns() {
    constexpr uint64_t kMostMs = uint64_t{1} << 40;
    return window_.access().recency_ns() + std::min(options_.timeout_ms, kMostMs) * 1'000'000;
  }

  /// The device has ended: of a device on another machine that is never certain.
  bool is_gone() {
    if (window_.access().media_failed()) return true;
    if (window_.has_device()) {
      session_here_ = session_;
      return false;
    }
    return window_.hosts() == 1 || (session_here_ != 0 && session_here_ == session_);
  }

  /// Lets other threads go on.
  void pause(Lock& lock, uint32_t round) {
    lock.unlock();
    window_.access().relax(round);
    lock.lock();
  }

  void harvest() {
    std::array<Message, kTakenAtOnce> some;
    const size_t taken = channel_.poll(some);
    if (channel_.peer_session() != session_) {
      session_ = channel_.peer_session();
      lose(/*unsent=*/false);
    }
    for (size_t i = 0; i < taken; ++i) {
      const auto it = pending_.find(some[i][BH_COMPLETION_ID]);
      // It comes a second time, or after the device that took it was given up, or is nonsense: what
      // its memory holds by now is not known (P1).
      if (it == pending_.end() || it->second.is_lost || it->second.completion) continue;
      it->second.completion = some[i];
      if (!it->second.is_awaited) forget(it->first);
    }
  }

  /// Gives up the commands of a device that has ended: it no longer writes to their memory.
  void lose(bool unsent) {
    ++epoch_;
    answers_bytes_ = 0;
    answer_pieces_.reset(0);
    for (auto it = pending_.begin(); it != pending_.end();) {
      Pending& command = it->second;
      // One that needs the old area would be answered there; ATTACH goes to whichever there is.
      const bool needs_area = command.request_bytes > 0;
      if (command.is_attach && command.completion) {  // an area of the device of before
        command.completion.reset();
        command.is_lost = true;
      }
      if (command.is_lost || command.completion || !(command.is_sent || unsent || needs_area)) {
        ++it;
        continue;
      }
      command.is_lost = true;
      give_back(command);
      it = command.is_awaited ? std::next(it) : pending_.erase(it);
    }
  }

  /// Frees a command that timed out.
  void forget(uint64_t id) {
    give_back(pending_[id]);
    pending_.erase(id);
  }
  void give_back(const Pending& command) {
    if (command.request_bytes == 0) return;
    request_pieces_.give_back(command.request_at, command.request_bytes);
    if (command.epoch == epoch_ && answers_bytes_ > 0)
      answer_pieces_.give_back(command.answer_at, command.answer_bytes);
  }

  Result<ndp::BlocksRead> take_answer(const Message& completion, uint64_t at, uint64_t room_bytes,
                                      const device::AnswerPlaces& places,
                                      const ndp::AnswerRoom& room, size_t blocks) {
    const uint64_t bytes = completion[BH_COMPLETION_BYTES];
    const auto status = static_cast<Status>(completion[BH_COMPLETION_STATUS] & UINT32_MAX);
    const uint64_t left_out = completion[BH_COMPLETION_STATUS] >> 32;
    if (bytes > room_bytes) return device_lost("gave an answer that has no room");
    window_.access().acquire(at, bytes);
    const std::byte* from = window_.access().payload(at);
    // A copy: if the device has died, the pool may reuse this memory at any time.
    const std::vector<std::byte> answer(from, from + bytes);
    if (hash64(answer.data(), answer.size()) != completion[BH_COMPLETION_SUM])
      return device_lost("gave an answer that was overwritten");
    if (status != Status::OK) {
      const std::string why(reinterpret_cast<const char*>(answer.data()), answer.size());
      return Error{status, why.empty() ? status_text(status) : why};
    }
    if (bytes != places.left_out + left_out * sizeof(uint32_t) || left_out > blocks)
      return device_lost("gave an answer of another size");
    std::copy_n(answer.data(), room.first.size(), room.first.data());
    std::copy_n(answer.data() + places.second, room.second.size(), room.second.data());
    ndp::BlocksRead read;
    read.bytes = completion[BH_COMPLETION_READ_BYTES];
    for (uint64_t i = 0; i < left_out; ++i) {
      uint32_t block;
      std::memcpy(&block, &answer[places.left_out + i * sizeof block], sizeof block);
      if (block >= blocks) return device_lost("left out a block that there is not");
      read.left_out.push_back(block);
    }
    return read;
  }

  Window window_;
  device::Areas areas_;
  const uint32_t pair_;
  const QueuePairOptions options_;

  std::mutex mutex_;
  Window::Channel channel_;
  uint64_t session_ = 0;
  uint64_t epoch_ = 0;         // how often all commands were given up
  uint64_t next_id_;           // no number that an earlier process used on this pair
  uint64_t session_here_ = 0;  // in which the device was on this machine
  std::optional<Area> requests_;
  Pieces request_pieces_, answer_pieces_;
  uint64_t answers_offset_ = 0, answers_bytes_ = 0;  // 0: not attached
  bool is_attaching_ = false;
  std::map<uint64_t, Pending> pending_;
};

QueuePair::QueuePair(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
QueuePair::~QueuePair() = default;

Result<std::unique_ptr<QueuePair>> QueuePair::open(Pool& pool, const QueuePairOptions& options) {
  auto window = Window::open(pool);
  if (!window) return window.error();
  const auto pair = window->take_pair();
  if (!pair) return pair.error();
  auto impl = std::make_unique<Impl>(pool, std::move(*window), *pair, options);
  if (auto good = impl->begin(); !good) return good.error();
  return std::unique_ptr<QueuePair>(new QueuePair(std::move(impl)));
}

Result<ndp::BlocksRead> QueuePair::run(const ndp::Request& request, const ndp::AnswerRoom& room) {
  DeviceTime time;
  return impl_->run(request, room, time);
}
Result<ndp::BlocksRead> QueuePair::run(const ndp::Request& request, const ndp::AnswerRoom& room,
                                       DeviceTime& time) {
  return impl_->run(request, room, time);
}
Result<void> QueuePair::ping() { return impl_->ping(); }

}  // namespace bowhead::driver
