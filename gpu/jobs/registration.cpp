// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/registration.h"

#include <fmt/format.h>

#include <utility>

#include "base/thread.h"

namespace bowhead::gpu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kChunkUnitBytes = uint64_t{2} << 20;  // huge pages are never cut

Result<void> check_chunk_bytes(uint64_t chunk_bytes) {
  if (chunk_bytes != 0 && chunk_bytes % kChunkUnitBytes == 0) return {};
  return Error{
      Status::INVALID_ARGUMENT,
      fmt::format("registration: chunk_bytes is {}, has to be a multiple of 2 MiB", chunk_bytes)};
}

}  // namespace

// ---- open and close ----

Result<std::unique_ptr<Registration>> Registration::create(Device& device, const Pool& pool,
                                                           uint64_t chunk_bytes) {
  if (auto good = check_chunk_bytes(chunk_bytes); !good) return good.error();
  auto mapping = pool.map_again();
  if (!mapping) return mapping.error();
  return std::unique_ptr<Registration>(
      new Registration(device, std::move(mapping->mapping), {}, mapping->offset, chunk_bytes));
}

Result<std::unique_ptr<Registration>> Registration::create(Device& device, Span memory,
                                                           uint64_t chunk_bytes) {
  if (!memory.data || memory.size == 0) {
    return Error{Status::INVALID_ARGUMENT, "registration: there is no memory to register"};
  }
  if (auto good = check_chunk_bytes(chunk_bytes); !good) return good.error();
  if (reinterpret_cast<uintptr_t>(memory.data) % kPageBytes != 0 || memory.size % kPageBytes != 0) {
    return Error{Status::MISALIGNED,
                 fmt::format("registration: {} bytes at {}: both have to be multiples of 4 KiB",
                             memory.size, static_cast<const void*>(memory.data))};
  }
  // Before there is a record of each chunk.
  constexpr uint64_t kAddressesEnd = uint64_t{1} << 57;
  if (memory.size > kAddressesEnd - reinterpret_cast<uintptr_t>(memory.data))
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("registration: {} bytes at {} are more than a process can map",
                             memory.size, static_cast<const void*>(memory.data))};
  return std::unique_ptr<Registration>(new Registration(device, {}, memory, 0, chunk_bytes));
}

/// Of a mapping, or of memory of the caller.
Registration::Registration(Device& device, MediaMapping mapping, Span memory, uint64_t offset,
                           uint64_t chunk_bytes)
    : device_(device),
      mapping_(std::move(mapping)),
      base_(memory.data != nullptr ? memory.data : mapping_.base()),
      size_bytes_(memory.data != nullptr ? memory.size : mapping_.size_bytes()),
      offset_(offset),
      chunk_bytes_(chunk_bytes),
      chunks_(std::make_unique<Chunk[]>(chunk_count())) {}

Registration::~Registration() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (uint64_t i = 0; i < chunk_count(); ++i) {
    // A GPU that is lost refuses; there is nothing else to do then.
    if (has(i)) (void)device_.unregister_host(base_ + i * chunk_bytes_);
  }
}

// ---- asking ----

Result<void> Registration::check_inside(uint64_t offset, uint64_t size_bytes) const {
  const uint64_t at = offset - offset_;  // huge if it lies before
  if (at <= size_bytes_ && size_bytes <= size_bytes_ - at) return {};
  if (offset_ != 0)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("registration: {} bytes at {} lie on media by which the pool has "
                             "grown, which may go, and are not registered: they are copied through "
                             "pinned memory",
                             size_bytes, offset)};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("registration: {} bytes at {} are not in the memory of {}", size_bytes,
                           offset, size_bytes_)};
}

/// Called under the mutex, under which states are written: relaxed.
Registration::State Registration::state_of(uint64_t index) const {
  return chunks_[index].state.load(std::memory_order_relaxed);
}

/// Starts the thread if there is none. Under the mutex.
Result<void> Registration::have_thread() {
  if (thread_.joinable()) return {};
  auto thread = start_thread([this] { run(); });
  if (!thread) return thread.error();
  thread_ = std::move(*thread);
  return {};
}

/// Puts a chunk that was not requested yet behind those that were. Without a thread it stays
/// UNTRIED, so that a later call tries again. Under the mutex.
Result<void> Registration::want(uint64_t index) {
  if (state_of(index) != State::UNTRIED) return {};
  if (auto ok = have_thread(); !ok) return ok;
  chunks_[index].state.store(State::WANTED, std::memory_order_relaxed);
  wanted_.push_back(index);
  changed_.notify_all();
  return {};
}

Result<void*> Registration::reach(uint64_t offset, uint64_t size_bytes, DeviceAccess access) {
  if (auto inside = check_inside(offset, size_bytes); !inside) return inside.error();
  if (size_bytes == 0)
    return Error{Status::INVALID_ARGUMENT, "registration: no bytes are nowhere to be found"};
  const uint64_t at = offset - offset_;
  const uint64_t first = at / chunk_bytes_, last = (at + size_bytes - 1) / chunk_bytes_;
  bool have_all = true;
  for (uint64_t i = first; i <= last && have_all; ++i) have_all = has(i);
  if (!have_all) {
    const std::lock_guard lock(mutex_);
    for (uint64_t i = first; i <= last; ++i) {
      if (auto ok = want(i); !ok) return ok.error();
    }
    for (uint64_t i = first; i <= last; ++i) {
      if (state_of(i) == State::REFUSED) return chunks_[i].refusal.error();
    }
    return Error{Status::BUSY, fmt::format("registration: {} bytes at {} are being registered",
                                           size_bytes, offset)};
  }
  auto* const begin = static_cast<std::byte*>(chunks_[first].device_address);
  for (uint64_t i = first; i <= last; ++i) {
    if (access == DeviceAccess::READ_AND_WRITE && chunks_[i].access == DeviceAccess::READ)
      return Error{Status::NOT_SUPPORTED,
                   fmt::format("registration: the chunk at {} is registered for reading only",
                               offset_ + i * chunk_bytes_)};
    if (chunks_[i].device_address != begin + (i - first) * chunk_bytes_)
      return Error{Status::NOT_SUPPORTED,
                   fmt::format("registration: the device has the chunk at {} apart from the one "
                               "before it",
                               offset_ + i * chunk_bytes_)};
  }
  return begin + at % chunk_bytes_;
}

Result<void> Registration::ensure(uint64_t offset, uint64_t size_bytes) {
  if (auto inside = check_inside(offset, size_bytes); !inside) return inside;
  if (size_bytes == 0) return {};
  const uint64_t at = offset - offset_;
  const uint64_t last = (at + size_bytes - 1) / chunk_bytes_;
  uint64_t index = at / chunk_bytes_;
  while (index <= last && has(index)) ++index;
  if (index > last) return {};

  std::unique_lock lock(mutex_);
  for (; index <= last; ++index) {
    if (auto ok = want(index); !ok) return ok;
    changed_.wait(lock, [&] { return state_of(index) != State::WANTED; });
    if (state_of(index) == State::REFUSED) return chunks_[index].refusal;
  }
  return {};
}

Result<void*> Registration::device_address(uint64_t offset) const {
  const uint64_t at = offset - offset_;
  if (at < size_bytes_ && has(at / chunk_bytes_)) {
    const Chunk& chunk = chunks_[at / chunk_bytes_];
    return static_cast<std::byte*>(chunk.device_address) + at % chunk_bytes_;
  }
  return Error{
      Status::INVALID_ARGUMENT,
      fmt::format("registration: the byte at {} is not registered; ensure() comes first", offset)};
}

Result<void> Registration::register_rest() {
  const std::lock_guard lock(mutex_);
  if (auto ok = have_thread(); !ok) return ok;
  rest_at_ = 0;
  changed_.notify_all();
  return {};
}

void Registration::retry() {
  const std::lock_guard lock(mutex_);
  for (uint64_t i = 0; i < chunk_count(); ++i) {
    Chunk& chunk = chunks_[i];
    if (state_of(i) != State::REFUSED || chunk.refusal.status() != Status::LIMIT_REACHED) continue;
    chunk.refusal = {};
    chunk.state.store(State::UNTRIED, std::memory_order_relaxed);
  }
}

// ---- registering ----

/// The next chunk to register, if there is one. Under the mutex.
bool Registration::find_next(uint64_t& index) {
  if (!wanted_.empty()) {
    index = wanted_.front();
    wanted_.pop_front();
    return true;
  }
  for (; rest_at_ < chunk_count(); ++rest_at_) {
    if (state_of(rest_at_) != State::UNTRIED) continue;
    index = rest_at_++;
    return true;
  }
  return false;
}

void Registration::run() {
  std::unique_lock lock(mutex_);
  uint64_t index = 0;
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || find_next(index); });
    if (is_stopping_) return;
    settle(index, lock);
    const Status status = chunks_[index].refusal.status();
    if (status == Status::LIMIT_REACHED || status == Status::GPU_LOST) rest_at_ = chunk_count();
  }
}

/// Registers a chunk, or finds out why not. The lock is held before and after, not while the driver
/// works.
void Registration::settle(uint64_t index, std::unique_lock<std::mutex>& lock) {
  Chunk& chunk = chunks_[index];
  chunk.state.store(State::WANTED, std::memory_order_relaxed);
  lock.unlock();
  const uint64_t size_bytes = chunk_size_bytes(index);
  auto registered = register_with(chunk, base_ + index * chunk_bytes_, size_bytes);
  lock.lock();
  if (registered) {
    registered_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
    // Release: the chunk's fields are there for threads that do not take the mutex.
    chunk.state.store(State::REGISTERED, std::memory_order_release);
  } else {
    const Error& error = registered.error();
    // BUSY from reach() means that the chunk will be there; this one will not.
    chunk.refusal = Error{error.status == Status::BUSY ? Status::INVALID_ARGUMENT : error.status,
                          fmt::format("chunk of {} bytes at {}: {}", size_bytes,
                                      offset_ + index * chunk_bytes_, error.message())};
    chunk.state.store(State::REFUSED, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

/// No other thread reads the chunk's fields before it is REGISTERED.
Result<void> Registration::register_with(Chunk& chunk, std::byte* begin, uint64_t size_bytes) {
  chunk.access = DeviceAccess::READ_AND_WRITE;
  auto registered = device_.register_host(begin, size_bytes, chunk.access);
  if (registered.status() == Status::NOT_SUPPORTED && device_.info().registers_read_only) {
    chunk.access = DeviceAccess::READ;
    registered = device_.register_host(begin, size_bytes, chunk.access);
  }
  if (!registered) return registered;
  const auto address = device_.device_address(begin);
  if (!address) {
    (void)device_.unregister_host(begin);  // the error that matters is device_address()'s
    return address.error();
  }
  chunk.device_address = *address;
  return {};
}

}  // namespace bowhead::gpu
