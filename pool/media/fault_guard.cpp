// SPDX-License-Identifier: Apache-2.0
#include "pool/media/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>

#include "base/assert.h"

namespace bowhead {

/// A guarded mapping, or room for one: entries are used again, and never freed, since the handler
/// may be looking at them.
struct FaultGuard::Entry {
  std::atomic<bool> used{false};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  ///< 0: guards nothing. Stored last, cleared first
  std::atomic<uint64_t> page_bytes{0};
  std::atomic<uint64_t> fault{0};  ///< 0: none (packed below). Set once, before the replacement
  std::atomic<bool> stuck{false};  ///< could not be replaced: the previous handler decides
  std::atomic<uint64_t> contained_offset{0};
  std::atomic<uint64_t> contained_bytes{0};
  /// Pages that were lost there (packed below); 0: none, or not noted yet, and then not replaced.
  std::array<std::atomic<uint64_t>, kLossesMax> losses{};
  std::atomic<uint32_t> loss_count{0};  ///< places of `losses` that were taken
  Entry* next = nullptr;
};

namespace {

using Entry = FaultGuard::Entry;

std::atomic<Entry*> entries{nullptr};

// offset in small pages:48 | memory error:1 | log2 of the bytes:7 | 1, high to low.
constexpr uint64_t kSmallPage = 4096;
uint64_t pack(const MediaFault& fault) {
  return fault.offset / kSmallPage << 16 | uint64_t{fault.memory_error} << 8 |
         static_cast<uint64_t>(std::countr_zero(fault.bytes)) << 1 | 1;
}
MediaFault unpack(uint64_t word) {
  return {(word >> 16) * kSmallPage, uint64_t{1} << (word >> 1 & 0x7F), (word >> 8 & 1) != 0};
}

// ---- the handler; only what is safe in one ----

struct sigaction previous;               // written before the handler is installed
std::atomic<bool> previous_used{false};  // it asked to be called once

Entry* find(uintptr_t address) {
  for (Entry* entry = entries.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next) {
    const uintptr_t end = entry->end.load(std::memory_order_acquire);
    if (address < end && address >= entry->begin.load(std::memory_order_relaxed)) return entry;
  }
  return nullptr;
}

// By the system call itself: concurrent loads and stores there are no race, but ThreadSanitizer
// takes mmap() for a store to all of it.
bool put_zeros(uintptr_t address, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* const start = reinterpret_cast<void*>(address);
  return syscall(SYS_mmap, start, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) ==
         static_cast<long>(address);
}

bool overlap(const MediaFault& loss, uint64_t offset, uint64_t bytes) {
  return loss.offset < offset + bytes && offset < loss.offset + loss.bytes;
}

/// Zeros take the place of the pages of a memory error alone. False if they are not for values
/// alone, or there were too many. Two threads may note the same pages, which does no harm.
bool contain(Entry& entry, const MediaFault& loss) {
  const uint64_t first = entry.contained_offset.load(std::memory_order_relaxed);
  const uint64_t bytes = entry.contained_bytes.load(std::memory_order_relaxed);
  if (loss.offset < first || loss.bytes > bytes || loss.offset - first > bytes - loss.bytes)
    return false;
  const uint64_t word = pack(loss);
  const uint32_t count = entry.loss_count.load();
  bool known = false;
  for (uint32_t i = 0; i < count && !known; ++i) known = entry.losses[i].load() == word;
  if (!known) {
    uint32_t place = count;
    do {
      if (place == FaultGuard::kLossesMax) return false;
    } while (!entry.loss_count.compare_exchange_weak(place, place + 1));
    entry.losses[place].store(word);
  }
  return put_zeros(entry.begin.load(std::memory_order_relaxed) + loss.offset, loss.bytes);
}

/// True if the access shall be tried again.
bool replace_mapping(const siginfo_t& info) {
  const bool memory_error = info.si_code == BUS_MCEERR_AR || info.si_code == BUS_MCEERR_AO;
  if (!memory_error && info.si_code != BUS_ADRERR && info.si_code != BUS_OBJERR) return false;
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  Entry* entry = find(address);
  if (entry == nullptr || entry->stuck.load()) return false;
  const uintptr_t begin = entry->begin.load(std::memory_order_relaxed);
  uint64_t lost = entry->page_bytes.load(std::memory_order_relaxed);
  if (memory_error) lost = std::max(lost, uint64_t{1} << (info.si_addr_lsb & 63));
  uint64_t none = 0;
  const MediaFault fault{(address - begin) / lost * lost, lost, memory_error};
  if (memory_error && contain(*entry, fault)) return true;
  const bool first = entry->fault.compare_exchange_strong(none, pack(fault));
  // Another thread replaces the mapping, or has: the access waits, or completes. But a memory error
  // can also be one of the pages that took its place.
  if (!first && !memory_error) return true;
  if (put_zeros(begin, entry->end.load(std::memory_order_relaxed) - begin)) return true;
  entry->stuck.store(true);
  return false;
}

void call_previous(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by a process; else the instruction will fail again
  const bool once = (previous.sa_flags & static_cast<int>(SA_RESETHAND)) != 0;
  const bool used = once && previous_used.exchange(true);
  if ((previous.sa_flags & SA_SIGINFO) != 0 && !used)
    return previous.sa_sigaction(signal, info, context);
  const auto handler = used ? SIG_DFL : previous.sa_handler;
  if (handler == SIG_IGN && sent) return;  // the kernel does not let a fault be ignored
  if (handler != SIG_DFL && handler != SIG_IGN) return handler(signal);
  struct sigaction fatal {};
  fatal.sa_handler = SIG_DFL;
  (void)sigaction(signal, &fatal, nullptr);
  if (sent) (void)raise(signal);  // delivered when this handler returns
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (!replace_mapping(*info)) call_previous(signal, info, context);
  errno = saved;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

std::atomic<int> installer{0};  // the process whose thread is installing it; 0: none
bool was_installed = false;     // stored only by the installing thread

/// Installs it over any handler; later only over none at all, as after a fork that reset all
/// signals: over a handler that may call this one, each would call the other for ever.
void install_handler() {
  const int self = getpid();
  // The child of a fork in the middle finds its parent's id, and does not wait for it.
  for (int seen = installer.load(); seen == self || !installer.compare_exchange_strong(seen, self);
       seen = installer.load())
    (void)usleep(100);
  struct sigaction old {};
  BOWHEAD_ASSERT(sigaction(SIGBUS, nullptr, &old) == 0);
  const bool none = (old.sa_flags & SA_SIGINFO) == 0 && old.sa_handler == SIG_DFL;
  if (!is_ours(old) && (!was_installed || none)) {
    previous = old;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | (old.sa_flags & SA_NODEFER);
    action.sa_mask = old.sa_mask;
    BOWHEAD_ASSERT(sigaction(SIGBUS, &action, nullptr) == 0);
    was_installed = true;
  }
  installer.store(0);
}

Entry* take_entry() {
  for (Entry* entry = entries.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next) {
    if (!entry->used.exchange(true)) return entry;
  }
  auto* entry = new Entry;
  entry->used = true;
  entry->next = entries.load();
  while (!entries.compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

}  // namespace

FaultGuard::FaultGuard(void* base, uint64_t bytes, uint64_t page_bytes) : entry_(take_entry()) {
  BOWHEAD_ASSERT(std::has_single_bit(page_bytes) && page_bytes >= kSmallPage);
  install_handler();
  const auto begin = reinterpret_cast<uintptr_t>(base);
  entry_->fault.store(0);
  entry_->stuck.store(false);
  entry_->contained_bytes.store(0);
  entry_->loss_count.store(0);
  entry_->page_bytes.store(page_bytes, std::memory_order_relaxed);
  entry_->begin.store(begin, std::memory_order_relaxed);
  entry_->end.store(begin + bytes, std::memory_order_release);
  fault_ = &entry_->fault;
  losses_ = &entry_->loss_count;
}

void FaultGuard::contain(uint64_t offset, uint64_t bytes) {
  entry_->contained_offset.store(offset, std::memory_order_relaxed);
  entry_->contained_bytes.store(bytes, std::memory_order_relaxed);
}

bool FaultGuard::find_loss(uint64_t offset, uint64_t bytes) const {
  const uint32_t count = entry_->loss_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t word = entry_->losses[i].load(std::memory_order_acquire);
    if (word != 0 && overlap(unpack(word), offset, bytes)) return true;
  }
  return false;
}

void FaultGuard::forget_losses(uint64_t offset, uint64_t bytes) {
  const uint32_t count = entry_->loss_count.load();
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t word = entry_->losses[i].load();
    if (word != 0 && overlap(unpack(word), offset, bytes)) entry_->losses[i].store(0);
  }
}

void FaultGuard::reset() {
  if (entry_ == nullptr) return;
  entry_->end.store(0);
  entry_->used.store(false);
  entry_ = nullptr;
  fault_ = nullptr;
  losses_ = nullptr;
}

std::optional<MediaFault> FaultGuard::fault() const {
  const uint64_t word = entry_ == nullptr ? 0 : entry_->fault.load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  return unpack(word);
}

}  // namespace bowhead
