// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/queue_pair.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/backoff.h"
#include "base/checksum.h"
#include "driver-shim/pci_card.h"
#include "driver-shim/pieces.h"
#include "firmware-sim/areas.h"
#include "firmware-sim/wire.h"
#include "pool/window.h"

namespace bowhead::driver {
namespace {

using core::Message;
using device::Area;
using ndp::Job;

constexpr size_t kAtOnce = 64;  // messages
constexpr uint64_t kSentenceBytes = 512;
constexpr uint64_t kNsOfMs = 1'000'000;
/// How often it is asked whether there is a device, while something is under way.
constexpr uint64_t kLookNs = 2 * kNsOfMs;
/// How often a PCI function is looked for while there is no device, and how long one may take.
constexpr uint64_t kSeekNs = 500 * kNsOfMs, kEnableNs = 5'000 * kNsOfMs;
/// How long the memory for requests may take.
constexpr uint64_t kSpaceNs = 3'000 * kNsOfMs;
/// A device for which nothing came or went for this long may sleep. To ring takes some 50 us.
constexpr uint64_t kAwakeNs = 2 * kNsOfMs;
/// How long one that waits for a job is awake before it waits for a signal, and for that at most.
constexpr uint64_t kBusyNs = 2 * kNsOfMs;
constexpr int kSignalMs = 2;
constexpr size_t kJobsMax = size_t{1} << 19;
constexpr uint32_t kLivesMax = 3;  ///< of the device, that a job is sent to

/// What was sent, or is to be sent.
struct Command {
  enum class Kind : uint8_t { FREE, JOB, ATTACH, CANCEL, EMPTY, MAIL };
  Kind kind = Kind::FREE;
  bool is_sent = false;
  uint32_t lives = 0;  ///< that it was sent to
  uint64_t number = 0;
  Job* job = nullptr;  ///< null: no thread waits for it
  bool is_cancelled = false;
  uint64_t end_ns = 0;        ///< by the job's time limit; 0: it has none
  uint64_t needed_bytes = 0;  ///< for the request, once that is known
  uint64_t request_at = 0, request_bytes = 0;
  uint64_t answer_at = 0, answer_bytes = 0;
  ndp::AnswerBytes parts;
};

Error device_lost(const char* why) {
  return {Status::DEVICE_LOST, fmt::format("the device {}; the pool is intact", why)};
}

}  // namespace

class QueuePair::Impl {
 public:
  Impl(Pool& pool, const PoolInfo& info, Window window, uint32_t pair,
       const QueuePairOptions& options)
      : window_(std::move(window)),
        card_(shim::HostFiles(), info),
        areas_(pool, "requests"),
        options_{Pieces::lines(options.request_bytes), Pieces::lines(options.answer_bytes),
                 options.timeout_ms},
        channel_(window_.access(), window_.commands(window_.host(), pair),
                 window_.completions(window_.host(), pair), BH_DEVICE_QUEUE_BYTES),
        next_serial_(window_.access().random() >> (kIndexBits + 1)) {}
  ~Impl() {
    // In a forked child it is the parent's, whose thread may hold the mutex.
    if (window_.access().forked()) return;
    const std::lock_guard lock(mutex_);
    if (is_attached_ && window_.standing() == Status::OK)
      (void)channel_.send(Message{0, to_session(BH_DEVICE_DETACH)});
    // The memory for requests goes: the device reads what it finds there, and believes nothing.
  }

  Result<void> begin() {
    if (auto good = areas_.open(); !good) return good;
    auto requests = reserve();
    if (!requests) return requests.error();
    requests_.emplace(std::move(*requests));
    request_pieces_.reset(requests_->bytes());
    channel_.open();
    session_ = channel_.peer_session();
    await_card();
    return {};
  }

  void submit(std::span<Job> jobs) {
    for (Job& job : jobs) {
      job.answer.reset();
      job.was_elsewhere = false;
      job.device_ns = job.modelled_ns = 0;
    }
    if (window_.access().forked()) {
      for (Job& job : jobs) job.answer = Status::FORKED;
      return;
    }
    const std::lock_guard lock(mutex_);
    for (Job& job : jobs) {
      try {
        enqueue(job);
      } catch (const std::bad_alloc&) {
        job.answer = Error{Status::LIMIT_REACHED, {}};
      }
    }
    progress();
  }

  bool poll(Job& job) {
    if (window_.access().forked()) return true;
    const std::lock_guard lock(mutex_);
    if (job.answer) return true;
    end_if_late(job, progress());
    return job.answer.has_value();
  }

  void wait(Job& job) {
    Backoff backoff;
    for (const uint64_t begin_ns = window_.access().recency_ns(); !poll(job);) {
      const auto event =
          window_.access().recency_ns() - begin_ns > kBusyNs ? event_of_card() : nullptr;
      if (!event)
        backoff.pause();
      else if (!poll(job))  // it may have been done before a signal was asked for
        await(*event);
    }
  }

  void cancel(Job& job) {
    if (window_.access().forked()) return;
    const std::lock_guard lock(mutex_);
    if (job.answer) return;
    Command& command = of(job);
    if (!command.is_sent) {
      finish(command, Status::CANCELLED);
      return;
    }
    command.is_cancelled = true;
    cancels_.push_back(command.number);
    progress();
  }

  Result<void> ping(uint64_t count, uint64_t depth) {
    if (window_.access().forked()) return Status::FORKED;
    std::unique_lock lock(mutex_);
    Backoff backoff;
    while (empty_ != nullptr) pause(lock, backoff);  // another thread's
    Empty empty{count, depth, deadline_ns(0), next_serial_};
    empty_ = &empty;
    while (empty.done < count && !empty.lost) {
      const uint64_t before = empty.done;
      const uint64_t now_ns = progress();
      if (empty.done != before) {
        empty.end_ns = now_ns + limit_ns(0);
        backoff.reset();
      } else if (now_ns > empty.end_ns) {
        break;
      } else {
        pause(lock, backoff);
      }
    }
    empty_ = nullptr;
    if (window_.access().media_failed()) return Status::MEDIA_ERROR;
    if (empty.lost) return *empty.lost;
    if (empty.done < count) return no_answer();
    return {};
  }

  Result<cxl::Reply> send_mail(uint16_t opcode, std::span<const std::byte> input) {
    if (window_.access().forked()) return Status::FORKED;
    if (input.size() > cxl::kPayloadBytesMax)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("a mailbox command of {} bytes: {} at most", input.size(),
                               cxl::kPayloadBytesMax)};
    std::unique_lock lock(mutex_);
    Backoff backoff;
    while (mail_ != nullptr) pause(lock, backoff);  // another thread's
    Mail mail;
    const bh_device_mail head{opcode, {}};
    cxl::append(mail.bytes, head);
    mail.bytes.insert(mail.bytes.end(), input.begin(), input.end());
    mail_ = &mail;
    const uint64_t end_ns = deadline_ns(0);
    for (;;) {
      const bool is_late = progress() > end_ns;
      if (mail.reply || is_late) break;
      pause(lock, backoff);
    }
    mail_ = nullptr;
    if (window_.access().media_failed()) return Status::MEDIA_ERROR;
    if (!mail.reply) return no_answer();
    return *std::move(mail.reply);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr uint32_t kIndexBits = 20;  // of a number; the others count commands

  /// Empty commands that a thread wants.
  struct Empty {
    uint64_t count, depth, end_ns, first_serial;
    uint64_t sent = 0, done = 0;
    std::optional<Error> lost;
  };

  /// A mailbox command that a thread wants. Unlike a request it may change something: it is sent
  /// once.
  struct Mail {
    std::vector<std::byte> bytes;
    uint64_t number = 0;  ///< once it is sent
    std::optional<Result<cxl::Reply>> reply;
  };

  /// A host that has no space asks others, which give it some within some heartbeats.
  Result<Area> reserve() {
    const uint64_t end_ns = window_.access().recency_ns() + kSpaceNs;
    for (;;) {
      auto area = areas_.reserve(options_.request_bytes);
      if (area.status() != Status::NO_SPACE || window_.hosts() == 1) return area;
      if (window_.access().recency_ns() > end_ns)
        return Error{Status::NO_SPACE,
                     fmt::format("host {} has no {} bytes of space for requests, and no other host "
                                 "gives it some: one that has space must be up",
                                 window_.host(), options_.request_bytes)};
      window_.access().sleep_ns(10 * kNsOfMs);
    }
  }

  Error no_answer() const {
    return device_lost(card_.is_starting() ? "is still starting" : "does not answer");
  }
  Error device_gone() const {
    if (card_.trouble().empty())
      return device_lost("does not run: start it with `bowhead device serve`");
    return device_lost(
        fmt::format("does not run, and as a PCI function it cannot: {}", card_.trouble()).c_str());
  }

  /// Unless another device serves the pool.
  void seek_card(uint64_t now_ns) {
    if (sought_ns_ != 0 && now_ns - sought_ns_ < kSeekNs) return;
    sought_ns_ = now_ns;
    card_.seek(/*may_enable=*/!window_.has_device());
  }
  void await_card() {
    const uint64_t begin_ns = window_.access().recency_ns();
    seek_card(begin_ns);
    for (Backoff backoff; card_.is_starting(); backoff.pause()) {
      if (window_.access().recency_ns() - begin_ns > kEnableNs) break;
    }
    card_.note_failure();
  }
  /// What the process would say to a request that cannot be sent.
  static Error refusal(const Job& job, Error otherwise) {
    auto good = ndp::check(job.request);
    return good ? std::move(otherwise) : good.error();
  }
  static size_t index_of(uint64_t number) { return number & ((1u << kIndexBits) - 1); }

  uint64_t limit_ns(uint64_t limit_ms) const {
    constexpr uint64_t kMostMs = uint64_t{1} << 40;
    return std::min(limit_ms == 0 ? options_.timeout_ms : limit_ms, kMostMs) * kNsOfMs;
  }
  uint64_t deadline_ns(uint64_t limit_ms) {
    return window_.access().recency_ns() + limit_ns(limit_ms);
  }

  /// Lets other threads go on.
  static void pause(Lock& lock, Backoff& backoff) {
    lock.unlock();
    backoff.pause();
    lock.lock();
  }

  // ---- commands ----

  Command& add(Command::Kind kind) {
    size_t index = commands_.size();
    if (free_.empty()) {
      BOWHEAD_ASSERT(index < (1u << kIndexBits));
      free_.reserve(index + 1);  // to give it back throws nothing
      commands_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Command& command = commands_[index];
    command = Command{};
    command.kind = kind;
    command.number = next_number(index);
    return command;
  }
  uint64_t next_number(size_t index) { return next_serial_++ << kIndexBits | index; }

  /// Of a job that is not done.
  Command& of(const Job& job) {
    Command& command = commands_[index_of(job.ticket)];
    BOWHEAD_ASSERT(command.number == job.ticket && command.job == &job);
    return command;
  }

  void give_back_memory(Command& command) {
    if (command.request_bytes == 0) return;
    request_pieces_.give_back(command.request_at);
    if (is_attached_) answer_pieces_.give_back(command.answer_at);
    command.request_bytes = 0;
  }

  void remove(Command& command) {
    give_back_memory(command);
    free_.push_back(static_cast<uint32_t>(index_of(command.number)));
    command = Command{};
  }

  void finish(Command& command, Result<ndp::BlocksRead> answer) {
    // Loads may have returned zeros, and stores may be lost.
    if (window_.access().media_failed()) answer = Status::MEDIA_ERROR;
    std::exchange(command.job, nullptr)->answer = std::move(answer);
    if (!command.is_sent) std::erase(waiting_, static_cast<uint32_t>(index_of(command.number)));
    remove(command);
  }

  void enqueue(Job& job) {
    const auto parts = ndp::answer_bytes(job.request);
    if (!parts) {
      job.answer = refusal(job, parts.error());
    } else if (job.room.first.size() != parts->first || job.room.second.size() != parts->second) {
      job.answer = refusal(job, {Status::INVALID_ARGUMENT,
                                 fmt::format("room of {} and {} bytes for an answer of {} and {}",
                                             job.room.first.size(), job.room.second.size(),
                                             parts->first, parts->second)});
    } else if (commands_.size() - free_.size() >= kJobsMax) {
      job.answer = Error{Status::LIMIT_REACHED,
                         fmt::format("{} jobs of this queue pair are not done yet", kJobsMax)};
    } else {
      Command& command = add(Command::Kind::JOB);
      try {
        waiting_.push_back(static_cast<uint32_t>(index_of(command.number)));
      } catch (const std::bad_alloc&) {
        remove(command);
        throw;
      }
      command.job = &job;
      command.parts = *parts;
      if (job.time_limit_ms != 0) command.end_ns = deadline_ns(job.time_limit_ms);
      if (waiting_.size() == 1) heard_ns_ = window_.access().recency_ns();
      command.answer_bytes =
          std::max<uint64_t>(device::AnswerPlaces(*parts).left_out +
                                 job.request.heads.blocks.size() * sizeof(uint32_t),
                             kSentenceBytes);
      job.ticket = command.number;
    }
  }

  /// By its own time limit.
  void end_if_late(Job& job, uint64_t now_ns) {
    if (job.answer) return;
    Command& command = of(job);
    if (command.end_ns != 0 && now_ns > command.end_ns)
      abandon(command, Error{Status::TIMED_OUT, {}});
  }

  /// The memory of one that was sent stays with it until it completes (P1).
  void abandon(Command& command, const Error& why) {
    if (!command.is_sent) {
      finish(command, why);
      return;
    }
    std::exchange(command.job, nullptr)->answer = why;
    cancels_.push_back(command.number);
  }

  /// A device that has not answered for the time limit of the pair. The command that it has had
  /// longest is lost then: those behind it may wait for long ones, and have time from when it ends.
  /// What waits to be sent is lost if nothing has come or gone for as long.
  void end_unanswered(uint64_t now_ns) {
    while (!sent_.empty() && !is_under_way(sent_.front())) {
      sent_.pop_front();
      oldest_ns_ = now_ns;
    }
    if (!sent_.empty() && now_ns > oldest_ns_ + limit_ns(0))
      abandon(commands_[index_of(sent_.front())], no_answer());
    if (now_ns > heard_ns_ + limit_ns(0)) {
      forget_attach();
      end_waiting(no_answer());
    }
  }
  /// The command may be lost: the next job sends another. A late completion of it counts for
  /// nothing (P3), and the device frees that area when it takes the next one.
  void forget_attach() {
    if (attach_number_ != 0) remove(commands_[index_of(std::exchange(attach_number_, 0))]);
  }
  bool is_under_way(uint64_t number) const {
    const Command& command = commands_[index_of(number)];
    return command.number == number && command.job != nullptr && command.is_sent;
  }

  // ---- both ways ----

  /// Returns the time. Throws nothing: jobs of other threads end here, too.
  uint64_t progress() {
    const uint64_t now_ns = window_.access().recency_ns();
    try {
      // A host that left, or was declared dead, stores nothing: its memory may be another's by now.
      if (const Status standing = window_.standing(); standing != Status::OK) {
        give_up(Error{standing, {}});
        return now_ns;
      }
      harvest();
      if (now_ns - looked_ns_ > kLookNs) {
        looked_ns_ = now_ns;
        if (is_gone(now_ns)) give_up(device_gone());
        end_unanswered(now_ns);
      }
      send_waiting(now_ns);
    } catch (const std::bad_alloc&) {
      // What could not be done is tried again.
    }
    return now_ns;
  }

  /// No device runs, none is about to, or none can be reached.
  bool is_gone(uint64_t now_ns) {
    if (window_.access().media_failed()) return true;
    if (window_.has_device()) return false;
    seek_card(now_ns);
    return !card_.is_starting() && !card_.serves();
  }

  /// Nothing can be asked.
  void give_up(const Error& why) {
    lose();
    end_waiting(why);
    if (empty_ != nullptr) empty_->lost = why;
    if (mail_ != nullptr && !mail_->reply) mail_->reply = why;
  }

  void end_waiting(const Error& why) {
    for (const uint32_t index : std::exchange(waiting_, {})) {
      Command& command = commands_[index];
      finish_surely(command, command.is_cancelled ? Error{Status::CANCELLED, {}} : why);
    }
  }
  /// Without the sentence, if there is no memory for it.
  void finish_surely(Command& command, const Error& why) {
    try {
      finish(command, why);
    } catch (const std::bad_alloc&) {
      finish(command, Error{why.status, {}});
    }
  }

  /// Commands of a device that has ended: it no longer writes to their memory. Requests change
  /// nothing: the next one is asked again.
  void lose() {
    std::vector<std::pair<uint64_t, uint32_t>> again;  // by their numbers, in their order
    again.reserve(commands_.size());  // before anything is changed: the rest does not throw
    is_attached_ = false;
    answer_pieces_.reset(0);
    cancels_.clear();
    attach_number_ = 0;
    sent_.clear();
    for (uint32_t i = 0; i < commands_.size(); ++i) {
      Command& command = commands_[i];
      if (command.kind == Command::Kind::FREE || !command.is_sent) continue;
      if (command.job == nullptr) {
        remove(command);
      } else if (command.is_cancelled) {
        finish(command, Status::CANCELLED);
      } else if (command.lives >= kLivesMax) {
        finish(command, Error{Status::DEVICE_LOST, {}});  // it was started anew again and again
      } else {
        again.emplace_back(command.number, i);
        give_back_memory(command);
        command.is_sent = false;
        command.number = next_number(i);  // the next device may carry out both (P3)
        command.job->ticket = command.number;
      }
    }
    std::sort(again.rbegin(), again.rend());
    for (const auto& [number, index] : again) {
      try {
        waiting_.push_front(index);
      } catch (const std::bad_alloc&) {
        finish(commands_[index], Error{Status::LIMIT_REACHED, {}});
      }
    }
    heard_ns_ = window_.access().recency_ns();
    if (empty_ != nullptr) empty_->sent = empty_->done;
    if (mail_ != nullptr && mail_->number != 0 && !mail_->reply)
      mail_->reply = Error{Status::DEVICE_LOST, {}};  // which may have carried it out
  }

  void harvest() {
    std::array<Message, kAtOnce> some;
    const size_t taken = channel_.poll(some);
    if (channel_.peer_session() != session_) {
      lose();
      session_ = channel_.peer_session();
    }
    for (size_t i = 0; i < taken; ++i) {
      try {
        complete(some[i]);
      } catch (const std::bad_alloc&) {
        end_without_memory(some[i][BH_COMPLETION_ID]);
      }
    }
    if (taken > 0) heard_ns_ = active_ns_ = window_.access().recency_ns();
  }

  /// A command that was completed, while this process had no memory for the answer.
  void end_without_memory(uint64_t number) {
    Command& command = commands_[index_of(number)];
    if (command.job != nullptr)
      finish(command, Error{Status::LIMIT_REACHED, {}});
    else
      remove(command);
  }

  void complete(const Message& completion) {
    const uint64_t number = completion[BH_COMPLETION_ID];
    const size_t index = index_of(number);
    if (index >= commands_.size()) return;
    Command& command = commands_[index];
    // It comes a second time, or after the device that took it was given up, or is nonsense (P3).
    if (command.kind == Command::Kind::FREE || command.number != number || !command.is_sent) return;
    const auto status = static_cast<Status>(completion[BH_COMPLETION_STATUS] & UINT32_MAX);
    if (status == Status::CLOSED && command.request_bytes != 0) {
      // The device freed the area of this pair while it was idle. It carries out no command that
      // was sent since; all of them are sent again once there is another area.
      if (mail_ != nullptr) mail_->number = 0;
      lose();
      return;
    }
    switch (command.kind) {
      case Command::Kind::EMPTY:
        if (empty_ != nullptr && number >> kIndexBits >= empty_->first_serial) ++empty_->done;
        break;
      case Command::Kind::ATTACH:
        attached(completion);
        break;
      case Command::Kind::MAIL:
        if (mail_ != nullptr && mail_->number == number)
          mail_->reply = take_reply(completion, command);
        break;
      case Command::Kind::JOB:
        if (command.job == nullptr) break;
        command.job->was_elsewhere = true;
        command.job->device_ns = completion[BH_COMPLETION_TIME_NS];
        command.job->modelled_ns = completion[BH_COMPLETION_MODELLED_NS];
        finish(command, take_answer(completion, command));
        return;
      default:
        break;
    }
    remove(command);
  }

  // ---- to the device ----

  void send_waiting(uint64_t now_ns) {
    std::array<Message, kAtOnce> some;
    for (bool more = true; more;) {
      const size_t room = std::min<uint64_t>(channel_.free_slots(), some.size());
      size_t count = 0;
      try {
        while (count < room && next_message(some[count])) ++count;
        more = count == some.size();
      } catch (const std::bad_alloc&) {
        more = false;  // those before it count as sent
      }
      const size_t sent = channel_.send({some.data(), count});
      BOWHEAD_ASSERT(sent == count);  // this is the one thread that sends
      if (count > 0) ring(now_ns);
    }
  }

  /// Readable when there are completions from now on; null where there are no interrupts.
  std::shared_ptr<const UniqueFd> event_of_card() {
    const std::lock_guard lock(mutex_);
    auto event = card_.event();
    if (event) card_.signal_completion();
    return event;
  }
  /// Another thread may take the signal.
  static void await(const UniqueFd& event) {
    pollfd one{event.get(), POLLIN, 0};
    (void)::poll(&one, 1, kSignalMs);
    uint64_t count;
    (void)!read(event.get(), &count, sizeof count);
  }

  void ring(uint64_t now_ns) {
    if (now_ns - std::exchange(active_ns_, now_ns) > kAwakeNs) card_.ring();
  }

  bool next_message(Message& message) {
    if (!cancels_.empty()) {
      Command& command = add(Command::Kind::CANCEL);
      command.is_sent = true;
      message = {command.number, to_session(BH_DEVICE_CANCEL), cancels_.front()};
      cancels_.pop_front();
      return true;
    }
    if (mail_ != nullptr && mail_->number == 0 && !mail_->reply) return next_mail(message);
    if (!waiting_.empty() && next_job(message)) return true;
    if (empty_ != nullptr && empty_->sent < empty_->count &&
        empty_->sent - empty_->done < empty_->depth) {
      Command& command = add(Command::Kind::EMPTY);
      command.is_sent = true;
      ++empty_->sent;
      message = {command.number, to_session(BH_DEVICE_NOTHING)};
      return true;
    }
    return false;
  }

  /// That of the first job that waits, or of what it needs. Those without room are refused, and
  /// those for which there is none now keep the others waiting.
  bool next_job(Message& message) {
    while (!waiting_.empty()) {
      if (!is_attached_) return attach(message);
      Command& command = commands_[waiting_.front()];
      const bool knows_size = command.needed_bytes != 0;
      if (knows_size && !request_pieces_.has(command.needed_bytes)) return false;
      std::optional<Error> refused;
      try {
        const auto bytes = device::encode(command.job->request);
        if (auto room = bytes ? check_room(bytes->size(), command.answer_bytes) : bytes.error();
            !room) {
          refused = refusal(*command.job, room.error());
        } else {
          command.needed_bytes = bytes->size();
          sent_.push_back(command.number);  // first, since it may throw
          if (!store(command, *bytes)) {
            sent_.pop_back();
            return false;
          }
        }
      } catch (const std::bad_alloc&) {
        refused = Error{Status::LIMIT_REACHED, {}};
      }
      if (refused) {
        finish(command, *refused);
        continue;
      }
      waiting_.pop_front();
      command.is_sent = true;
      ++command.lives;
      heard_ns_ = window_.access().recency_ns();
      if (sent_.size() == 1) oldest_ns_ = heard_ns_;
      message = message_of(command, static_cast<uint64_t>(command.job->request.operation));
      message[BH_COMMAND_DEADLINE_MS] = command.job->time_limit_ms;
      return true;
    }
    return false;
  }

  bool next_mail(Message& message) {
    if (!is_attached_) return attach(message);
    const uint64_t answer_bytes = sizeof(bh_device_mail) + cxl::kPayloadBytesMax;
    if (auto room = check_room(mail_->bytes.size(), answer_bytes); !room) {
      mail_->reply = room.error();
      return false;
    }
    Command& command = add(Command::Kind::MAIL);
    command.answer_bytes = answer_bytes;
    if (!store(command, mail_->bytes)) {
      remove(command);
      return false;
    }
    command.is_sent = true;
    mail_->number = command.number;
    message = message_of(command, BH_DEVICE_MAILBOX);
    return true;
  }

  /// Takes memory for both ways, and stores the request there. False: there is none now.
  bool store(Command& command, std::span<const std::byte> bytes) {
    const auto request_at = request_pieces_.take(bytes.size());
    if (!request_at) return false;
    const auto answer_at = answer_pieces_.take(command.answer_bytes);
    if (!answer_at) {
      request_pieces_.give_back(*request_at);
      return false;
    }
    command.request_at = *request_at;
    command.request_bytes = bytes.size();
    command.answer_at = *answer_at;
    std::memcpy(requests_->data() + *request_at, bytes.data(), bytes.size());
    window_.access().publish(requests_->offset() + *request_at, bytes.size());
    return true;
  }

  /// The opcode word of a command to the session of the device that this process follows.
  uint64_t to_session(uint64_t opcode) const { return session_ << 32 | opcode; }

  Message message_of(const Command& command, uint64_t opcode) const {
    return {command.number,
            to_session(opcode),
            requests_->offset() + command.request_at,
            command.request_bytes,
            command.answer_at,
            command.answer_bytes,
            0};
  }

  Result<void> check_room(uint64_t request_bytes, uint64_t answer_bytes) const {
    const auto refuse = [](const char* which, uint64_t bytes, uint64_t room) {
      return Error{Status::LIMIT_REACHED,
                   fmt::format("the {} takes {} bytes: this queue pair has room for {}", which,
                               bytes, room)};
    };
    if (Pieces::lines(request_bytes) > requests_->bytes())
      return refuse("request", request_bytes, requests_->bytes());
    if (Pieces::lines(answer_bytes) > options_.answer_bytes)
      return refuse("answer", answer_bytes, options_.answer_bytes);
    return {};
  }

  bool attach(Message& message) {
    if (attach_number_ != 0) return false;
    Command& command = add(Command::Kind::ATTACH);
    attach_number_ = command.number;
    heard_ns_ = window_.access().recency_ns();
    command.is_sent = true;
    message = {command.number, to_session(BH_DEVICE_ATTACH)};
    message[BH_COMMAND_ROOM] = options_.answer_bytes;
    return true;
  }

  void attached(const Message& completion) {
    attach_number_ = 0;
    const auto status = static_cast<Status>(completion[BH_COMPLETION_STATUS] & UINT32_MAX);
    answers_offset_ = completion[BH_COMPLETION_BYTES];
    std::optional<Error> why;
    if (status != Status::OK)
      why = Error{Status::LIMIT_REACHED,
                  fmt::format("the device has no area of {} bytes for answers: {}",
                              options_.answer_bytes, status_text(status))};
    else if (!window_.is_payload(answers_offset_, options_.answer_bytes))
      why = device_lost("gave an area that is not in the pool");
    if (!why) answer_pieces_.reset(options_.answer_bytes);
    is_attached_ = !why;
    if (why) end_waiting(*why);
    if (why && mail_ != nullptr && mail_->number == 0) mail_->reply = *why;
  }

  // ---- from the device ----

  /// The answer is in answer_ then.
  Result<void> fetch_answer(const Message& completion, const Command& command) {
    const uint64_t bytes = completion[BH_COMPLETION_BYTES];
    const uint64_t at = answers_offset_ + command.answer_at;
    if (bytes > command.answer_bytes) return device_lost("gave an answer that has no room");
    window_.access().acquire(at, bytes);
    const std::byte* from = window_.access().payload(at);
    // A copy: if the device has died, the pool may reuse this memory at any time.
    answer_.assign(from, from + bytes);
    if (hash64(answer_.data(), answer_.size()) != completion[BH_COMPLETION_SUM])
      return device_lost("gave an answer that was overwritten");
    const auto status = static_cast<Status>(completion[BH_COMPLETION_STATUS] & UINT32_MAX);
    if (status == Status::OK) return {};
    const std::string why(reinterpret_cast<const char*>(answer_.data()), answer_.size());
    return Error{status, why.empty() ? status_text(status) : why};
  }

  Result<cxl::Reply> take_reply(const Message& completion, const Command& command) {
    if (auto fetched = fetch_answer(completion, command); !fetched) return fetched.error();
    bh_device_mail head;
    if (answer_.size() < sizeof head) return device_lost("gave an answer of another size");
    std::memcpy(&head, answer_.data(), sizeof head);
    return cxl::Reply{static_cast<cxl::ReturnCode>(head.code),
                      {answer_.begin() + sizeof head, answer_.end()}};
  }

  Result<ndp::BlocksRead> take_answer(const Message& completion, const Command& command) {
    if (auto fetched = fetch_answer(completion, command); !fetched) return fetched.error();
    const uint64_t left_out = completion[BH_COMPLETION_STATUS] >> 32;
    const size_t blocks = command.job->request.heads.blocks.size();
    const ndp::AnswerRoom& room = command.job->room;
    const device::AnswerPlaces places(command.parts);
    if (answer_.size() != places.left_out + left_out * sizeof(uint32_t) || left_out > blocks)
      return device_lost("gave an answer of another size");
    std::copy_n(answer_.data(), room.first.size(), room.first.data());
    std::copy_n(answer_.data() + places.second, room.second.size(), room.second.data());
    ndp::BlocksRead read;
    read.bytes = completion[BH_COMPLETION_READ_BYTES];
    for (uint64_t i = 0; i < left_out; ++i) {
      uint32_t block;
      std::memcpy(&block, &answer_[places.left_out + i * sizeof block], sizeof block);
      if (block >= blocks) return device_lost("left out a block that there is not");
      read.left_out.push_back(block);
    }
    return read;
  }

  Window window_;
  PciCard card_;
  device::Areas areas_;
  const QueuePairOptions options_;

  std::mutex mutex_;
  Window::Channel channel_;
  uint64_t session_ = 0;
  uint64_t looked_ns_ = 0;  // whether there is a device
  uint64_t sought_ns_ = 0;  // when a card was sought; 0: never
  uint64_t active_ns_ = 0;  // when messages came or went last
  std::optional<Area> requests_;
  Pieces request_pieces_, answer_pieces_;
  uint64_t answers_offset_ = 0;
  bool is_attached_ = false;
  uint64_t attach_number_ = 0;  // of the ATTACH that is under way; 0: none is
  uint64_t next_serial_;
  std::deque<Command> commands_;
  std::vector<uint32_t> free_;    // of them
  std::deque<uint32_t> waiting_;  // of them: jobs to be sent
  std::deque<uint64_t> sent_;     // numbers of jobs, in their order; some are done by now
  uint64_t oldest_ns_ = 0;        // since when the first of them has been it
  uint64_t heard_ns_ = 0;         // when something came, or went
  std::deque<uint64_t> cancels_;  // numbers of commands
  Empty* empty_ = nullptr;        // of the thread that pings
  Mail* mail_ = nullptr;          // of the thread that sends one
  std::vector<std::byte> answer_;
};

QueuePair::QueuePair(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
QueuePair::~QueuePair() = default;

Result<std::unique_ptr<QueuePair>> QueuePair::open(Pool& pool, const QueuePairOptions& options) {
  auto window = Window::open(pool);
  if (!window) return window.error();
  const auto pair = window->take_pair();
  if (!pair) return pair.error();
  const auto info = pool.info();
  if (!info) return info.error();
  auto impl = std::make_unique<Impl>(pool, *info, std::move(*window), *pair, options);
  if (auto good = impl->begin(); !good) return good.error();
  return std::unique_ptr<QueuePair>(new QueuePair(std::move(impl)));
}

void QueuePair::submit(std::span<Job> jobs) { impl_->submit(jobs); }
bool QueuePair::poll(Job& job) { return impl_->poll(job); }
void QueuePair::wait(Job& job) { impl_->wait(job); }
void QueuePair::cancel(Job& job) { impl_->cancel(job); }
Result<void> QueuePair::ping(uint64_t count, uint64_t depth) { return impl_->ping(count, depth); }
Result<cxl::Reply> QueuePair::send(uint16_t opcode, std::span<const std::byte> input) {
  return impl_->send_mail(opcode, input);
}

}  // namespace bowhead::driver
