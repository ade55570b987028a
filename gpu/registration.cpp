// SPDX-License-Identifier: Apache-2.0
#include "gpu/registration.h"

#include <fmt/format.h>

namespace bowhead::gpu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kChunkUnitBytes = uint64_t{2} << 20;  // huge pages are never cut

}  // namespace

Result<std::unique_ptr<Registration>> Registration::create(Device& device, ConstSpan memory,
                                                           uint64_t chunk_bytes) {
  if (!memory.data || memory.size == 0) {
    return Error{Status::INVALID_ARGUMENT, "registration: there is no memory to register"};
  }
  if (chunk_bytes == 0 || chunk_bytes % kChunkUnitBytes != 0) {
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("registration: chunk_bytes is {}, has to be a multiple of 2 MiB", chunk_bytes)};
  }
  if (reinterpret_cast<uintptr_t>(memory.data) % kPageBytes != 0 || memory.size % kPageBytes != 0) {
    return Error{Status::MISALIGNED,
                 fmt::format("registration: {} bytes at {}: both have to be multiples of 4 KiB",
                             memory.size, static_cast<const void*>(memory.data))};
  }
  // A pool's mapping is writable; it is const for those who should not write to it themselves.
  return std::unique_ptr<Registration>(
      new Registration(device, const_cast<std::byte*>(memory.data), memory.size, chunk_bytes));
}

Registration::Registration(Device& device, std::byte* base, uint64_t size_bytes,
                           uint64_t chunk_bytes)
    : device_(device),
      base_(base),
      size_bytes_(size_bytes),
      chunk_bytes_(chunk_bytes),
      chunks_(std::make_unique<Chunk[]>(chunk_count())) {}

Registration::~Registration() {
  stop();
  for (uint64_t i = 0; i < chunk_count(); ++i) {
    // Relaxed: nobody else is left. A GPU that is lost refuses; there is nothing else to do then.
    if (chunks_[i].state.load(std::memory_order_relaxed) != State::REGISTERED) continue;
    (void)device_.unregister_host(base_ + i * chunk_bytes_);
  }
}

Result<void> Registration::ensure(uint64_t offset, uint64_t size_bytes) {
  if (!contains(offset, size_bytes)) {
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("registration: {} bytes at {} are not in the mapping of {}",
                             size_bytes, offset, size_bytes_)};
  }
  if (size_bytes == 0) return {};
  const uint64_t last = (offset + size_bytes - 1) / chunk_bytes_;
  uint64_t index = offset / chunk_bytes_;
  while (index <= last &&
         chunks_[index].state.load(std::memory_order_acquire) == State::REGISTERED) {
    ++index;
  }
  if (index > last) return {};

  std::unique_lock lock(mutex_);
  ++ensuring_;
  Result<void> result;
  for (; index <= last && result; ++index) result = settle(index, lock);
  --ensuring_;
  changed_.notify_all();
  return result;
}

Result<void*> Registration::device_address(uint64_t offset) const {
  if (offset < size_bytes_) {
    const Chunk& chunk = chunks_[offset / chunk_bytes_];
    if (chunk.state.load(std::memory_order_acquire) == State::REGISTERED) {
      return static_cast<std::byte*>(chunk.device_address) + offset % chunk_bytes_;
    }
  }
  return Error{
      Status::INVALID_ARGUMENT,
      fmt::format("registration: the byte at {} is not registered; ensure() comes first", offset)};
}

Result<void*> Registration::reach(uint64_t offset, uint64_t size_bytes) {
  if (auto ensured = ensure(offset, size_bytes); !ensured) return ensured.error();
  const auto first = device_address(offset);
  if (!first) return first;
  auto* const begin = static_cast<std::byte*>(*first);
  const uint64_t next = (offset / chunk_bytes_ + 1) * chunk_bytes_;
  for (uint64_t at = next; at < offset + size_bytes; at += chunk_bytes_) {
    const auto address = device_address(at);
    if (!address) return address;
    if (*address != begin + (at - offset))
      return Error{Status::NOT_SUPPORTED,
                   fmt::format("registration: the device has the chunk at {} apart from the one "
                               "before it",
                               at)};
  }
  return *first;
}

void Registration::register_rest() {
  const std::lock_guard thread_lock(thread_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (is_running_) return;
    is_running_ = true;
    is_stopping_ = false;
  }
  if (thread_.joinable()) thread_.join();  // it has ended by itself
  thread_ = std::thread([this] { run(); });
}

void Registration::stop() {
  const std::lock_guard thread_lock(thread_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Registration::retry() {
  const std::lock_guard lock(mutex_);
  for (uint64_t i = 0; i < chunk_count(); ++i) {
    Chunk& chunk = chunks_[i];
    // Relaxed: states are written under the mutex, which is ours.
    if (chunk.state.load(std::memory_order_relaxed) != State::REFUSED) continue;
    if (chunk.refusal.status() != Status::LIMIT_REACHED) continue;
    chunk.refusal = {};
    chunk.state.store(State::UNTRIED, std::memory_order_relaxed);
  }
}

/// Registers a chunk, or finds out what became of it. The lock is held before and behind, not while
/// the driver works.
Result<void> Registration::settle(uint64_t index, std::unique_lock<std::mutex>& lock) {
  Chunk& chunk = chunks_[index];
  // Relaxed: under the mutex.
  const auto state = [&] { return chunk.state.load(std::memory_order_relaxed); };
  changed_.wait(lock, [&] { return state() != State::REGISTERING; });
  if (state() == State::UNTRIED) {
    chunk.state.store(State::REGISTERING, std::memory_order_relaxed);
    lock.unlock();
    auto registered = register_chunk(index);
    lock.lock();
    if (registered) {
      chunk.device_address = *registered;
      registered_bytes_.fetch_add(chunk_size_bytes(index), std::memory_order_relaxed);
      // Release: what was written above is there for those who do not take the mutex.
      chunk.state.store(State::REGISTERED, std::memory_order_release);
    } else {
      chunk.refusal = registered.error();
      chunk.state.store(State::REFUSED, std::memory_order_relaxed);
    }
    changed_.notify_all();
  }
  return state() == State::REGISTERED ? Result<void>() : chunk.refusal;
}

Result<void*> Registration::register_chunk(uint64_t index) {
  std::byte* const begin = base_ + index * chunk_bytes_;
  const auto named = [&](const Error& error) {
    return Error{error.status,
                 fmt::format("chunk of {} bytes at {} of the mapping: {}", chunk_size_bytes(index),
                             index * chunk_bytes_, error.message())};
  };
  auto registered = device_.register_host(begin, chunk_size_bytes(index));
  if (!registered) return named(registered.error());
  auto address = device_.device_address(begin);
  if (!address) {
    (void)device_.unregister_host(begin);  // what matters was said by device_address()
    return named(address.error());
  }
  return *address;
}

void Registration::run() {
  std::unique_lock lock(mutex_);
  for (uint64_t i = 0; i < chunk_count(); ++i) {
    changed_.wait(lock, [this] { return is_stopping_ || ensuring_ == 0; });
    if (is_stopping_) break;
    const Status status = settle(i, lock).status();
    if (status == Status::LIMIT_REACHED || status == Status::GPU_LOST) break;
  }
  is_running_ = false;
}

}  // namespace bowhead::gpu
