// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pair.h"

#include <algorithm>
#include <utility>

namespace bowhead::device {
namespace {

using core::Message;

constexpr uint64_t kAreaBytesMax = uint64_t{1} << 30;
/// Commands and bytes of requests of a pair that wait: then the others stay in the queue.
constexpr size_t kWaitingMax = 256;
constexpr uint64_t kWaitingBytesMax = kRequestBytesMax;
constexpr size_t kCompletionsMax = 64;

}  // namespace

Pair::Pair(Window& window, Areas& areas, uint32_t host, uint32_t number,
           const std::function<void()>& completed)
    : window_(window),
      areas_(areas),
      host_(host),
      number_(number),
      completed_(completed),
      channel_(window.access(), window.completions(host, number), window.commands(host, number),
               BH_DEVICE_QUEUE_BYTES) {
  channel_.open();
}

std::span<const Message> Pair::take() {
  // Until its process has taken completions.
  if (!send() && completions_.size() >= kCompletionsMax) return {};
  if (waiting_.size() >= kWaitingMax || waiting_bytes_ >= kWaitingBytesMax) return {};
  const size_t taken = take_own(channel_.poll(commands_));
  is_used_ |= taken > 0;
  if (channel_.peer_session() != peer_session_) {
    peer_session_ = channel_.peer_session();
    let_go();
    completions_.clear();
  }
  return {commands_.data(), taken};
}

/// Of the first `count` commands_ keeps those that were sent to this session; returns how many.
/// Others the device before may have carried out, and a mailbox command must not be carried out
/// twice. Their process sends again what it still waits for, once it sees the new session.
size_t Pair::take_own(size_t count) {
  size_t own = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = commands_[i][BH_COMMAND_OPCODE];
    if (word >> 32 != channel_.session()) continue;
    commands_[own] = commands_[i];
    commands_[own++][BH_COMMAND_OPCODE] = word & UINT32_MAX;
  }
  return own;
}

Message Pair::carry_out(const Message& command) {
  Message completion{};
  completion[BH_COMPLETION_ID] = command[BH_COMMAND_ID];
  if (command[BH_COMMAND_OPCODE] == BH_DEVICE_ATTACH) {
    const auto offset = attach(command[BH_COMMAND_ROOM]);
    completion[BH_COMPLETION_STATUS] = static_cast<uint32_t>(offset.status());
    completion[BH_COMPLETION_BYTES] = offset ? *offset : 0;
  }
  if (command[BH_COMMAND_OPCODE] == BH_DEVICE_DETACH) area_.reset();
  return completion;
}

/// The offset of its area. Tasks that it has keep the one of before.
Result<uint64_t> Pair::attach(uint64_t bytes) {
  area_.reset();
  if (bytes == 0 || bytes > kAreaBytesMax) return Status::INVALID_ARGUMENT;
  auto area = areas_.reserve(bytes);
  if (!area) return area.error();
  area_ = std::make_shared<Area>(std::move(*area));
  return area_->offset();
}

void Pair::keep_waiting(std::unique_ptr<Task> task) {
  waiting_bytes_ += task->held_bytes();
  waiting_.push_back(std::move(task));
}

std::unique_ptr<Task> Pair::next_waiting() {
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<Task> task = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_bytes_ -= task->held_bytes();
  return task;
}

Task* Pair::waiting(uint64_t id) const {
  for (const auto& task : waiting_) {
    if (task->id() == id) return task.get();
  }
  return nullptr;
}

bool Pair::send() {
  const size_t sent = completions_.empty() ? 0 : channel_.send(completions_);
  completions_.erase(completions_.begin(),
                     completions_.begin() + static_cast<std::ptrdiff_t>(sent));
  if (sent > 0 && completed_) completed_();
  return completions_.empty();
}

bool Pair::has_lost_its_process() const {
  return host_ == window_.host() && area_ && !window_.is_taken(number_);
}

void Pair::free_if_idle(uint64_t now_ns, uint64_t idle_ns) {
  const bool is_under_way = area_.use_count() > 1;  // a task has it
  if (std::exchange(is_used_, false) || is_under_way)
    used_ns_ = now_ns;
  else if (now_ns - used_ns_ >= idle_ns)
    area_.reset();
}

void Pair::let_go() {
  ++session_;
  area_.reset();
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace bowhead::device
