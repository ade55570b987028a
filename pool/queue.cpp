// SPDX-License-Identifier: Apache-2.0
#include "pool/queue.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/assert.h"

namespace bowhead {

namespace {

constexpr uint32_t kPriorityMax = 255;

}  // namespace

Result<std::unique_ptr<Queue>> Queue::open(const QueueOptions& options) {
  if (options.threads < 1 || options.threads > 64)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("a queue has 1 to 64 threads, not {}", options.threads)};
  if (options.jobs_max < 1 || options.jobs_max > 1u << 20)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("a queue has 1 to 1,048,576 jobs, not {}", options.jobs_max)};
  std::unique_ptr<Queue> queue(new Queue(options.jobs_max));
  queue->fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (queue->fd_ < 0)
    return Error{Status::SYSTEM,
                 fmt::format("eventfd: {}", std::generic_category().message(errno))};
  queue->running_.reserve(options.threads);
  try {
    for (uint32_t i = 0; i < options.threads; ++i)
      queue->threads_.emplace_back([q = queue.get()] { q->work(); });
  } catch (const std::system_error& error) {
    return Error{Status::SYSTEM, fmt::format("a thread of the queue: {}", error.what())};
  }
  return queue;
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    waiting_.clear();
    waiting_count_ = 0;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (fd_ >= 0) close(fd_);
}

Result<uint64_t> Queue::submit(Job job) {
  BOWHEAD_ASSERT(job.priority <= kPriorityMax);
  const std::lock_guard lock(mutex_);
  if (waiting_count_ + running_.size() + done_.size() >= jobs_max_)
    return Error{Status::LIMIT_REACHED,
                 fmt::format("all {} jobs of the queue are submitted and not yet reported ({} of "
                             "them have ended): poll the queue, then submit again",
                             jobs_max_, done_.size())};
  const uint64_t number = ++last_number_;
  Jobs& jobs = waiting_[job.priority];
  if (spare_.empty()) spare_.try_emplace(number);
  auto node = spare_.extract(spare_.begin());
  node.key() = number;
  node.mapped() = {std::move(job), number};
  jobs.insert(jobs.end(), std::move(node));
  ++waiting_count_;
  if (idle_ > 0) work_.notify_one();
  return number;
}

size_t Queue::poll(std::span<JobReport> out) {
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(out.size(), done_.size());
  for (size_t i = 0; i < count; ++i) {
    auto node = done_.extract(done_.begin());
    const Numbered& one = node.mapped();
    out[i] = {one.number, one.job.context, one.job.operation, one.result};
    node.key() = one.number;
    spare_.insert(std::move(node));
  }
  // Jobs that were announced come first.
  const size_t announced = done_.size() + count - quiet_;
  if (count >= announced) {
    quiet_ = done_.size();
    uint64_t ignored = 0;
    // EAGAIN: the caller has read the eventfd, which it should not.
    if (announced > 0 && read(fd_, &ignored, sizeof ignored) < 0) BOWHEAD_ASSERT(errno == EAGAIN);
  }
  return count;
}

Status Queue::cancel(uint64_t number) {
  std::function<JobResult()> cancelled;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  for (auto& [priority, jobs] : waiting_) {
    auto found = jobs.extract(number);
    if (found.empty()) continue;
    --waiting_count_;
    found.mapped().job.run.swap(cancelled);
    end(std::move(found), {Status::CANCELLED});
    // No worker is about to take the next job: they may all be busy for long.
    if (quiet_ > 0) announce();
    return Status::OK;
  }
  return Status::NOT_FOUND;
}

Status Queue::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const uint64_t last = last_number_;
  ++drainers_;
  const bool drained =
      ended_.wait_for(lock, std::min(timeout, std::chrono::milliseconds(1ll << 40)),
                      [&] { return !unfinished_up_to(last); });
  --drainers_;
  return drained ? Status::OK : Status::BUSY;
}

bool Queue::unfinished_up_to(uint64_t number) const {
  const auto is = [&](uint64_t one) { return one <= number; };
  return std::ranges::any_of(running_, is) || std::ranges::any_of(waiting_, [&](const auto& jobs) {
           return !jobs.second.empty() && is(jobs.second.begin()->first);
         });
}

/// The jobs of which the first is to be started next; null: none waits.
auto Queue::next() -> Jobs* {
  const auto found = std::ranges::find_if(waiting_, [](auto& one) { return !one.second.empty(); });
  return found == waiting_.end() ? nullptr : &found->second;
}

/// The body of a worker.
void Queue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    work_.wait(lock, [&] { return closing_ || waiting_count_ > 0; });
    --idle_;
    if (closing_) return;
    Jobs& jobs = *next();
    auto mine = jobs.extract(jobs.begin());
    --waiting_count_;
    Numbered& one = mine.mapped();
    // A job that came since was started before the quick one that end() saw.
    if (!one.job.quick && quiet_ > 0) announce();
    running_.push_back(one.number);
    lock.unlock();
    const JobResult result = one.job.run();
    one.job.run = nullptr;  // what it holds is destroyed without the lock
    lock.lock();
    std::erase(running_, one.number);
    end(std::move(mine), result);
  }
}

/// With the mutex held.
void Queue::end(Jobs::node_type one, JobResult result) {
  one.mapped().result = result;
  one.key() = ++ends_;
  done_.insert(done_.end(), std::move(one));
  ++quiet_;
  const Jobs* jobs = next();
  const bool another_soon = jobs != nullptr && jobs->begin()->second.job.quick;
  if (!another_soon || quiet_ >= kQuickMax) announce();
  if (drainers_ > 0) ended_.notify_all();
}

/// The eventfd counts announcements; poll() clears it with the last announced job.
void Queue::announce() {
  const bool readable = done_.size() > quiet_;
  quiet_ = 0;
  const uint64_t one = 1;
  if (!readable) BOWHEAD_ASSERT(write(fd_, &one, sizeof one) == sizeof one);
}

}  // namespace bowhead
