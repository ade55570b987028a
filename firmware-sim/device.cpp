// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/device.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "firmware-sim/hotness.h"
#include "firmware-sim/mailbox.h"
#include "firmware-sim/pair.h"

namespace bowhead::device {
namespace {

using core::Message;

/// How often it is asked whether to stop, and pairs without a session are looked at; how often
/// whether processes have gone.
constexpr uint64_t kLookNs = 1'000'000;
constexpr uint64_t kCleanNs = 1'000'000'000;
/// Looks at the pairs between two at the clock, which takes as long as several pairs. Looks are 200
/// us apart at most, or as long as a piece of an operation takes between two checkpoints.
constexpr uint32_t kLooksOfTime = 8;

}  // namespace

class Device::Impl final : private MailboxDevice {
 public:
  Impl(Pool& pool, Window window, const Options& options)
      : pool_(pool),
        window_(std::move(window)),
        areas_(pool, "answers"),
        engine_(options.engine != nullptr ? *options.engine : process_engine_),
        profile_(options.profile),
        completed_(options.completed),
        threads_(std::max(options.threads, 1u)),
        idle_ns_(options.idle_ms * 1'000'000),
        hotness_(window_.pool_bytes()),
        mailbox_(facts(), *this, hotness_),
        around_{window_, mailbox_, hotness_, profile_ ? &*profile_ : nullptr},
        pairs_(size_t{window_.hosts()} * BH_DEVICE_PAIRS) {}

  Result<void> begin() {
    if (auto good = window_.become_device(); !good) return good;
    return areas_.open();
  }

  Result<void> serve(const std::function<bool()>& stops) {
    stops_ = &stops;
    stopping_ = false;
    why_ = Result<void>();
    std::vector<std::thread> others;
    try {
      for (uint32_t i = 1; i < threads_; ++i) others.emplace_back([this] { work(); });
      work();
    } catch (const std::system_error& error) {
      stopping_ = true;  // an idle thread keeps the front until it sees that
      const std::lock_guard front(front_);
      why_ = Error{Status::SYSTEM, error.what()};
    }
    for (std::thread& other : others) other.join();
    return why_;
  }

  Counters counters_now() const {
    const auto get = [](const std::atomic<uint64_t>& count) {
      return count.load(std::memory_order_relaxed);
    };
    return {get(commands_), get(refused_), get(read_bytes_), get(waiting_), get(with_area_)};
  }

  void ring() { bell_.ring(); }

 private:
  // ---- for the mailbox ----

  DeviceFacts facts() const {
    uint64_t operations = 0;
    for (uint32_t opcode = BH_DEVICE_SCORE; opcode <= BH_DEVICE_DIGEST; ++opcode)
      operations |= uint64_t{1} << opcode;
    return {.capacity_bytes = window_.pool_bytes(),
            .serial_number = window_.pool_id(),
            .firmware_revision = BOWHEAD_VERSION,
            .operations = operations,
            .request_bytes_max = kRequestBytesMax};
  }
  uint64_t now_ns() override { return window_.access().recency_ns(); }
  WorkCounters counters() override {
    const Counters now = counters_now();
    return {now.commands, now.refused, now.read_bytes, now.pairs};
  }
  /// Blocks are their hosts' to write: what lies below the poison comes back as it was.
  bool write_line(uint64_t, std::span<const std::byte, cxl::kLineBytes>) override { return true; }
  bool is_lost(uint64_t offset, uint64_t bytes) override {
    return window_.access().payload_lost(offset, bytes);
  }
  bool media_failed() override { return window_.access().media_failed(); }

  /// A task that a thread works on, or that an engine has not done yet.
  struct Running {
    Pair* pair;
    uint64_t session;
    std::unique_ptr<Task> task;
  };

  void work() {
    std::unique_lock front(front_);
    for (Backoff backoff; !stopping_;) {
      const bool some = look();
      if (Task* task = stopping_ ? nullptr : next_task()) {
        front.unlock();
        task->begin(engine_, [this, task] { return pass(*task); });
        task->set_worked_on(false);
        front.lock();
        backoff.reset();
      } else if (some) {
        backoff.reset();
      } else if (!stopping_) {
        running_.empty() ? backoff.pause(bell_) : backoff.pause_awake();
      }
    }
  }

  /// At a checkpoint of a task that this thread carries out without the front.
  Status pass(const Task& task) {
    if (task.is_cancelled() || stopping_) return Status::CANCELLED;
    if (task.is_late()) return Status::TIMED_OUT;
    const std::unique_lock front(front_, std::try_to_lock);
    if (front.owns_lock()) (void)look();
    return Status::OK;
  }

  // ---- at the front ----

  static bool computes(const Message& command) {
    const uint64_t opcode = command[BH_COMMAND_OPCODE];
    return opcode < BH_DEVICE_NOTHING ||
           opcode > BH_DEVICE_CANCEL;  // or is the mailbox's, or refused
  }

  /// Takes commands and sends completions; true: there were some. Throws nothing: it may be in the
  /// middle of an operation that it has nothing to do with.
  bool look() {
    try {
      return look_at_all();
    } catch (const std::bad_alloc&) {
      return false;  // a command may be lost; its process ends it by its time limit
    }
  }

  bool look_at_all() {
    // A device whose host is declared dead writes nothing more, as a process that commits blocks.
    const Status standing = window_.standing();
    if (standing != Status::OK) why_ = pool_.explain(standing);
    if (why_ && looks_++ % kLooksOfTime == 0) keep_up();
    if (!why_) stopping_ = true;
    if (stopping_) return false;
    bool some = end_tasks();
    uint64_t waiting = 0;
    for (const auto& pair : pairs_) {
      if (!pair) continue;
      some = take_from(*pair) || some;
      waiting += pair->waiting_count();
    }
    waiting_.store(waiting, std::memory_order_relaxed);
    return some;
  }

  bool take_from(Pair& pair) {
    const uint64_t session = pair.session();
    const auto commands = pair.take();
    if (pair.session() != session) cancel_all(pair);
    for (const Message& command : commands) take(pair, command);
    (void)pair.send();
    return !commands.empty();
  }

  void take(Pair& pair, const Message& command) {
    const bool cancels = command[BH_COMMAND_OPCODE] == BH_DEVICE_CANCEL;
    if (cancels) cancel(pair, command[BH_COMMAND_INPUT]);
    if (cancels || !computes(command)) {
      const Message completion = pair.carry_out(command);
      count(completion);
      pair.complete(completion);
      return;
    }
    auto task = std::make_unique<Task>(around_, command, pair.area());
    if (!task->is_long()) task->read();
    if (task->is_long() || (!task->is_done() && !task->is_small())) {
      pair.keep_waiting(std::move(task));
      return;
    }
    if (!task->is_done()) task->begin(engine_, {});
    if (task->is_done())
      complete(pair, *task);
    else
      running_.push_back({&pair, pair.session(), std::move(task)});
  }

  void complete(Pair& pair, const Task& task) {
    if (!task.has_completion()) return;
    count(task.completion());
    pair.complete(task.completion());
  }

  /// The command to cancel may be done already, or be unknown: then nothing is to be done.
  void cancel(const Pair& pair, uint64_t id) {
    if (Task* task = pair.waiting(id)) task->cancel();
    for (Running& running : running_) {
      if (running.pair == &pair && running.session == pair.session() && running.task->id() == id)
        running.task->cancel();
    }
  }

  /// Its process is another one, or gone.
  void cancel_all(const Pair& pair) {
    for (Running& running : running_) {
      if (running.pair == &pair) running.task->cancel();
    }
  }

  /// Completes tasks that no worker has and the engine has done; returns whether there were any.
  bool end_tasks() {
    // It must not throw while elements move; what there is no memory for is tried again.
    const auto done = [&](const Running& running) {
      if (running.task->is_worked_on()) return false;
      try {
        if (!running.task->poll(engine_)) return false;
        if (running.session != running.pair->session()) return true;
        complete(*running.pair, *running.task);
      } catch (const std::bad_alloc&) {
        return false;
      }
      (void)running.pair->send();
      return true;
    };
    return std::erase_if(running_, done) > 0;
  }

  /// The pairs take turns. Null: none waits, or there is no memory to begin one.
  Task* next_task() {
    try {
      running_.reserve(running_.size() + 1);  // before a task leaves its pair
      for (size_t i = 0; i < pairs_.size(); ++i) {
        const auto& pair = pairs_[turn_];
        turn_ = (turn_ + 1) % pairs_.size();
        if (Task* task = pair ? next_task(*pair) : nullptr) return task;
      }
    } catch (const std::bad_alloc&) {
    }
    return nullptr;
  }
  Task* next_task(Pair& pair) {
    while (auto task = pair.next_waiting()) {
      if (task->is_cancelled() || task->is_late()) {
        task->refuse(task->is_cancelled() ? Status::CANCELLED : Status::TIMED_OUT);
        complete(pair, *task);
        (void)pair.send();
        continue;
      }
      task->set_worked_on(true);
      running_.push_back({&pair, pair.session(), std::move(task)});
      return running_.back().task.get();
    }
    return nullptr;
  }

  void keep_up() {
    const uint64_t now_ns = window_.access().recency_ns();
    why_ = window_.heartbeat();
    if (now_ns - looked_ns_ > kLookNs) {
      looked_ns_ = now_ns;
      if ((*stops_)()) stopping_ = true;
      look_for_pairs();
      hotness_.advance(now_ns);
      (void)mailbox_.step();
    }
    if (now_ns - cleaned_ns_ > kCleanNs) {
      cleaned_ns_ = now_ns;
      clean(now_ns);
    }
  }

  void look_for_pairs() {
    uint64_t with_area = 0;
    for (uint32_t host = 0; host < window_.hosts(); ++host) {
      for (uint32_t number = 0; number < BH_DEVICE_PAIRS; ++number) {
        auto& pair = pairs_[host * BH_DEVICE_PAIRS + number];
        const uint64_t at = window_.commands(host, number);
        if (!pair) window_.access().acquire(at, BH_LINE_BYTES);
        if (!pair && window_.access().load(at) != 0)
          pair = std::make_unique<Pair>(window_, areas_, host, number, completed_);
        with_area += pair && pair->area() ? 1 : 0;
      }
    }
    with_area_.store(with_area, std::memory_order_relaxed);
  }

  void clean(uint64_t now_ns) {
    for (const auto& pair : pairs_) {
      if (!pair) continue;
      pair->free_if_idle(now_ns, idle_ns_);
      if (!pair->has_lost_its_process()) continue;
      pair->let_go();
      cancel_all(*pair);
    }
  }

  void count(const Message& completion) {
    commands_.fetch_add(1, std::memory_order_relaxed);
    const bool refused = (completion[BH_COMPLETION_STATUS] & UINT32_MAX) != 0;
    if (refused) refused_.fetch_add(1, std::memory_order_relaxed);
    read_bytes_.fetch_add(completion[BH_COMPLETION_READ_BYTES], std::memory_order_relaxed);
  }

  Pool& pool_;
  Window window_;
  Areas areas_;
  ndp::ProcessEngine process_engine_;
  ndp::Engine& engine_;
  const std::optional<Profile> profile_;
  const std::function<void()> completed_;
  const uint32_t threads_;
  const uint64_t idle_ns_;
  HotnessMonitor hotness_;
  Mailbox mailbox_;
  const Surroundings around_;
  const std::function<bool()>* stops_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> commands_{0}, refused_{0}, read_bytes_{0}, waiting_{0}, with_area_{0};

  Bell bell_;

  std::mutex front_;
  // Of the thread that holds the front. A task that is worked on is its worker's.
  Result<void> why_;
  std::vector<std::unique_ptr<Pair>> pairs_;  // [host][number]; null: not used yet
  std::vector<Running> running_;
  size_t turn_ = 0;
  uint32_t looks_ = 0;
  uint64_t looked_ns_ = 0, cleaned_ns_ = 0;
};

Device::Device(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Device::~Device() = default;

Result<std::unique_ptr<Device>> Device::make(Pool& pool, const Options& options) {
  auto window = Window::open(pool);
  if (!window) return window.error();
  auto impl = std::make_unique<Impl>(pool, std::move(*window), options);
  if (auto good = impl->begin(); !good) return good.error();
  return std::unique_ptr<Device>(new Device(std::move(impl)));
}

Result<void> Device::serve(const std::function<bool()>& stops) { return impl_->serve(stops); }
Counters Device::counters() const { return impl_->counters_now(); }
void Device::ring() { impl_->ring(); }

}  // namespace bowhead::device
