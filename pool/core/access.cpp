// SPDX-License-Identifier: Apache-2.0
#include "pool/core/access.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/backoff.h"
#include "base/checksum.h"

namespace bowhead::core {
namespace {

// Lock bytes lie far beyond the end of any pool, where there is no data.
constexpr int64_t kLockBase = int64_t{1} << 62;
constexpr int64_t kHostLockBase = kLockBase + (int64_t{1} << 30);
constexpr int64_t kQueueLockBase = kHostLockBase + BH_HOSTS_MAX;

uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

/// 0 if there is nothing to read.
uint64_t hash_file(const char* path) {
  std::ifstream in(path);
  std::string text;
  if (!std::getline(in, text) || text.empty()) return 0;
  return hash64(text.data(), text.size()) | 1;  // 0 means "none" in the format
}

struct flock range_lock(short type, int64_t start) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = 1;
  return lock;
}

struct flock all_locks() {
  auto lock = range_lock(F_WRLCK, kLockBase);
  lock.l_len = kHostLockBase - kLockBase + BH_HOSTS_MAX;
  return lock;
}

/// The descriptors that hold liveness locks. A child shares their open file descriptions and would
/// keep its dead parent alive, so the fork handler puts /dev/null in their place (closing them
/// would free numbers that their owners still use).
class LockDescriptors {
 public:
  static LockDescriptors& get() {
    static LockDescriptors* instance = new LockDescriptors;  // lives through exit handlers
    return *instance;
  }
  void add(int fd) {
    const std::lock_guard guard(mutex_);
    fds_.push_back(fd);
  }
  void remove(int fd) {
    const std::lock_guard guard(mutex_);
    std::erase(fds_, fd);
  }
  const volatile uint64_t* canary() const { return canary_; }

 private:
  LockDescriptors() {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOWHEAD_ASSERT(page != MAP_FAILED);
    BOWHEAD_ASSERT(madvise(page, 4096, MADV_WIPEONFORK) == 0);
    canary_ = static_cast<volatile uint64_t*>(page);
    *canary_ = 1;
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] { get().in_child(); });
  }
  void in_child() {
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd : fds_) {
      if (null_fd >= 0) (void)dup3(null_fd, fd, O_CLOEXEC);
    }
    if (null_fd >= 0) close(null_fd);
    fds_.clear();
    mutex_.unlock();
    // The canary of the parent stays wiped: handles from before the fork are dead. New handles of
    // the child get a page of their own.
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0) _exit(127);
    canary_ = static_cast<volatile uint64_t*>(page);
    *canary_ = 1;
  }

  std::mutex mutex_;
  std::vector<int> fds_;
  volatile uint64_t* canary_ = nullptr;
};

}  // namespace

NativeAccess::NativeAccess(Media& media, FlushKind flush)
    : media_(media),
      base_(media.base()),
      flush_(flush),
      lock_fd_(media.lock_fd()),
      canary_(LockDescriptors::get().canary()) {
  for (size_t i = 0; i < media_.media_count(); ++i) LockDescriptors::get().add(media_.lock_fd(i));
}

NativeAccess::~NativeAccess() {
  if (forked()) return;
  for (size_t i = 0; i < media_.media_count(); ++i)
    LockDescriptors::get().remove(media_.lock_fd(i));
  for (const auto& [id, fds] : set_fds_) {
    for (const int fd : fds) LockDescriptors::get().remove(fd);
  }
}

namespace {

/// Of a further medium of a pool that this process has open: so it is not replaced.
void show_use(int lock_fd) {
  auto shared = range_lock(F_RDLCK, kLockBase);
  (void)fcntl(lock_fd, F_OFD_SETLK, &shared);
}

}  // namespace

Result<void> NativeAccess::map_set(const SetName& name, const std::string& locator,
                                   const std::vector<Range>& ranges,
                                   const std::vector<Range>& own) {
  auto set = open_media(locator, media_.writable() ? MediaUse::STORE : MediaUse::LOOK, name);
  if (!set) return set.error();
  std::vector<int> fds;
  for (size_t i = 0; i < (*set)->media_count(); ++i) fds.push_back((*set)->lock_fd(i));
  if (auto added = media_.add_set(*std::move(set), ranges); !added) return added;
  for (const int fd : fds) {
    LockDescriptors::get().add(fd);
    show_use(fd);
  }
  set_fds_[name.id] = std::move(fds);
  for (const Range& range : ranges) {
    if (std::find(own.begin(), own.end(), range) == own.end())
      set_writable(range.offset, range.bytes, false);
  }
  return {};
}

void NativeAccess::unmap_set(uint64_t id, const std::vector<Range>& ranges) {
  for (const int fd : set_fds_[id]) LockDescriptors::get().remove(fd);
  set_fds_.erase(id);
  (void)media_.remove_set(ranges);
}

namespace {

/// All lines of the destination except the last were stored whole, past the caches.
bool streamed_whole(std::span<const ConstSpan> value) {
  for (const ConstSpan& part : value.first(value.size() - (value.empty() ? 0 : 1))) {
    if (part.size % BH_LINE_BYTES != 0) return false;
  }
  return true;
}

}  // namespace

uint64_t NativeAccess::write_payload(uint64_t to, std::span<const ConstSpan> value) {
  ChecksumCopy copy(/*streaming=*/true);
  uint64_t at = to;
  for (const ConstSpan& part : value) {
    copy.append(base_ + at, part.data, part.size);
    at += part.size;
  }
  // Streamed lines are in no cache, and the caller's fence orders them like flushed ones. Where
  // lines were streamed in parts, these come before the flush.
  const bool whole = streamed_whole(value);
  const uint64_t checksum = whole ? copy.finish_unfenced() : copy.finish();
  const uint64_t tail = whole ? at / BH_LINE_BYTES * BH_LINE_BYTES : to;
  flush(tail, at - tail);
  return checksum;
}

void NativeAccess::zero(uint64_t offset, uint64_t bytes) {
  std::memset(base_ + offset, 0, bytes);
  flush(offset, bytes);
}

uint64_t NativeAccess::read_payload(uint64_t from, uint64_t bytes, std::span<const Span> buffers,
                                    bool used_soon) const {
  ChecksumCopy copy(/*streaming=*/!used_soon);
  for (const Span& buffer : buffers) {
    const uint64_t part = std::min<uint64_t>(bytes, buffer.size);
    copy.append(buffer.data, base_ + from, part);
    from += part;
    bytes -= part;
  }
  return copy.finish_unfenced();
}

uint64_t NativeAccess::move_payload(uint64_t to, uint64_t from, uint64_t bytes) {
  const ConstSpan value[] = {{base_ + from, bytes}};
  const uint64_t checksum = write_payload(to, value);
  fence();
  return checksum;
}

uint64_t NativeAccess::sum_payload(uint64_t from, uint64_t bytes) const {
  return payload_checksum(base_ + from, bytes);
}

void NativeAccess::set_writable(uint64_t offset, uint64_t bytes, bool writable) {
  const uint64_t grain = media_.traits().page_bytes;
  const uint64_t begin = (offset + grain - 1) / grain * grain;
  const uint64_t end = (offset + bytes) / grain * grain;
  // A range that cannot be protected stays writable: rule R1 still holds, but is not enforced.
  if (end > begin) (void)media_.protect(begin, end - begin, writable);
}

uint64_t NativeAccess::now_ns() const { return clock_ns(CLOCK_BOOTTIME); }
uint64_t NativeAccess::recency_ns() const { return clock_ns(CLOCK_MONOTONIC); }
uint64_t NativeAccess::unix_ns() const { return clock_ns(CLOCK_REALTIME); }
uint64_t NativeAccess::random() const { return random_u64_from_os(); }

void NativeAccess::relax(uint32_t round) const {
  if (round < 64) {
    for (int i = 0; i < 16; ++i) cpu_relax();
  } else if (round < 256) {
    sched_yield();
  } else {
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

void NativeAccess::sleep_ns(uint64_t ns) const {
  const uint64_t until_ns = now_ns() + ns;
  const timespec until{static_cast<time_t>(until_ns / 1'000'000'000),
                       static_cast<long>(until_ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

uint64_t NativeAccess::machine_id() const {
  static const uint64_t id = hash_file("/etc/machine-id");
  return id;
}

/// SMBIOS 3.7, 7.2.1 (System UUID): all zeros or all ones mean that there is none. Some vendors
/// ship all their boards with one well-known value.
uint64_t NativeAccess::hardware_id() const {
  static const uint64_t id = [] {
    std::ifstream in("/sys/class/dmi/id/product_uuid");
    std::string text;
    if (!std::getline(in, text) || text.size() != 36) return uint64_t{0};
    for (char& letter : text) letter = static_cast<char>(std::tolower(letter));
    std::string digits = text;
    std::erase(digits, '-');
    const bool none = digits.find_first_not_of(digits.front()) == std::string::npos ||
                      text == "03000200-0400-0500-0006-000700080009";
    return none ? 0 : hash64(text.data(), text.size()) | 1;
  }();
  return id;
}

uint64_t NativeAccess::boot_id() const {
  static const uint64_t id = hash_file("/proc/sys/kernel/random/boot_id");
  return id;
}

uint64_t NativeAccess::pid() const { return static_cast<uint64_t>(getpid()); }

uint64_t NativeAccess::pid_namespace() const {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

LockResult NativeAccess::lock_process(uint32_t host, uint32_t process) {
  // Shows at each further medium that its pool is in use (create_media).
  for (size_t i = 1; i < media_.media_count(); ++i) show_use(media_.lock_fd(i));
  auto lock = range_lock(F_WRLCK, kLockBase + int64_t{host} * 4096 + process);
  return fcntl(lock_fd_, F_OFD_SETLK, &lock) == 0 ? LockResult::TAKEN : LockResult::HELD;
}

void NativeAccess::unlock_process(uint32_t host, uint32_t process) {
  auto lock = range_lock(F_UNLCK, kLockBase + int64_t{host} * 4096 + process);
  (void)fcntl(lock_fd_, F_OFD_SETLK, &lock);
}

bool NativeAccess::process_alive(uint32_t host, uint32_t process) const {
  auto lock = range_lock(F_WRLCK, kLockBase + int64_t{host} * 4096 + process);
  // If the query fails, the process counts as alive.
  return fcntl(lock_fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

namespace {

int64_t queue_lock(uint32_t host, uint32_t pair) {
  return kQueueLockBase + int64_t{host} * 256 + pair;
}

}  // namespace

LockResult NativeAccess::lock_queue(uint32_t host, uint32_t pair) {
  auto lock = range_lock(F_WRLCK, queue_lock(host, pair));
  return fcntl(lock_fd_, F_OFD_SETLK, &lock) == 0 ? LockResult::TAKEN : LockResult::HELD;
}

void NativeAccess::unlock_queue(uint32_t host, uint32_t pair) {
  auto lock = range_lock(F_UNLCK, queue_lock(host, pair));
  (void)fcntl(lock_fd_, F_OFD_SETLK, &lock);
}

bool NativeAccess::queue_held(uint32_t host, uint32_t pair) const {
  auto lock = range_lock(F_WRLCK, queue_lock(host, pair));
  return fcntl(lock_fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

LockResult NativeAccess::lock_all() {
  if (!media_.writable()) return is_locked_by_any(lock_fd_) ? LockResult::HELD : LockResult::TAKEN;
  auto lock = all_locks();
  return fcntl(lock_fd_, F_OFD_SETLK, &lock) == 0 ? LockResult::TAKEN : LockResult::HELD;
}

bool NativeAccess::is_locked_by_any(int lock_fd) {
  auto lock = all_locks();
  return fcntl(lock_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

LockResult NativeAccess::lock_host(uint32_t host, uint64_t wait_ms) {
  const uint64_t deadline_ns = now_ns() + wait_ms * 1'000'000;
  for (uint32_t round = 0;; ++round) {
    auto lock = range_lock(F_WRLCK, kHostLockBase + host);
    if (fcntl(lock_fd_, F_OFD_SETLK, &lock) == 0) return LockResult::TAKEN;
    if (now_ns() >= deadline_ns) return LockResult::HELD;
    relax(round + 200);
  }
}

void NativeAccess::unlock_host(uint32_t host) {
  auto lock = range_lock(F_UNLCK, kHostLockBase + host);
  (void)fcntl(lock_fd_, F_OFD_SETLK, &lock);
}

}  // namespace bowhead::core
