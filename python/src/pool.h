// SPDX-License-Identifier: Apache-2.0
// Pool and Namespace of bowhead_kv, and what its other classes share.
//
// The GIL guards every member; it is released only while a function of the C ABI runs. Use counts
// those calls, so that close() waits for them: closing must overlap no other call on a handle.
#pragma once

#include <bowhead/bowhead.h>
#include <nanobind/nanobind.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "python/src/gil.h"
#include "python/src/types.h"

namespace bowhead::python {

namespace nb = nanobind;

/// The number of forks between the process that loaded the module and this one.
unsigned forks();

/// A handle of the C ABI that may be closed while other threads use it, and that a child of a
/// fork must not use.
template <class Handle>
class Guarded {
 public:
  /// While one exists, take() waits. Not in the child of a fork, which may have inherited a lock.
  class Use {
   public:
    explicit Use(Guarded& guarded) : guarded_(guarded.was_forked() ? nullptr : &guarded) {
      if (guarded_ == nullptr) return;
      const std::lock_guard lock(guarded_->mutex_);
      ++guarded_->users_;
    }
    ~Use() {
      if (guarded_ == nullptr) return;
      const std::lock_guard lock(guarded_->mutex_);
      if (--guarded_->users_ == 0) guarded_->unused_.notify_all();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Guarded* const guarded_;
  };

  /// While one exists, other threads that make one wait, without the GIL. So who finds a handle
  /// closed knows that closing has ended, and an object that another thread closes is not destroyed
  /// meanwhile. The first of them keeps the GIL.
  class Closing {
   public:
    explicit Closing(Guarded& guarded) : mutex_(guarded.closing_, std::defer_lock) {
      if (guarded.was_forked() || mutex_.try_lock()) return;
      without_gil([this] { mutex_.lock(); });
    }

   private:
    std::unique_lock<std::recursive_mutex> mutex_;  // closing may run Python code that closes
  };

  explicit Guarded(std::string name) : name_(std::move(name)) {}

  void set(Handle* handle) { handle_ = handle; }
  bool is_open() const { return handle_ != nullptr; }
  bool was_forked() const { return forks_ != forks(); }
  const std::string& name() const { return name_; }

  /// Raises Error unless the handle can be used.
  Handle* get() const {
    if (handle_ == nullptr) raise_error(BH_CLOSED, (name_ + " is closed; open it again").c_str());
    if (was_forked())
      raise_error(BH_FORKED,
                  (name_ + " was opened before fork(); open it again in this process").c_str());
    return handle_;
  }

  /// Calls body(handle) without the GIL.
  template <class Body>
  bh_status run(Body&& body) {
    Handle* handle = get();
    const Use use(*this);
    return without_gil([&] { return body(handle); });
  }

  /// run() that overlaps no other call; those that begin meanwhile find the handle closed.
  template <class Body>
  bh_status run_alone(Body&& body) {
    get();
    Handle* handle = take();
    const bh_status status = without_gil([&] { return body(handle); });
    set(handle);
    return status;
  }

  /// The handle, to be closed by the caller once; NULL if it is closed already. No call on it
  /// overlaps, and none will begin.
  Handle* take() {
    Handle* handle = std::exchange(handle_, nullptr);
    if (handle != nullptr) wait_for_users();
    return handle;
  }

  void wait_for_users() {
    if (users_ == 0 || was_forked()) return;
    without_gil([this] {
      std::unique_lock lock(mutex_);
      unused_.wait(lock, [this] { return users_ == 0; });
    });
  }

 private:
  const std::string name_;
  const unsigned forks_ = forks();
  Handle* handle_ = nullptr;
  std::recursive_mutex closing_;
  int users_ = 0;
  std::mutex mutex_;  // of users_: take() waits for it without the GIL
  std::condition_variable unused_;
};

/// What must be closed before its pool: queues, readers of events, transfers. close() calls
/// drop_part() before it releases the GIL.
class PartOfPool {
 public:
  virtual ~PartOfPool() = default;
  virtual void close() = 0;
};

class Pool {
 public:
  /// `mirror_bytes`: none: the default; 0: no mirror.
  Pool(const std::string& locator, std::optional<uint32_t> host, bool observe,
       std::optional<uint64_t> mirror_bytes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const std::string& locator() const { return locator_; }
  bool is_closed() const { return !handle_.is_open(); }
  bool was_forked() const { return handle_.was_forked(); }

  template <class Body>
  bh_status run(Body&& body) {
    return handle_.run(std::forward<Body>(body));
  }

  /// Raises BufferError while memory of the pool is in use.
  void close();
  void leave();

  /// Views of the memory of leases and reservations, which closing would unmap.
  void add_view() { ++views_; }
  void drop_view() { --views_; }
  bool has_views() const { return views_ != 0; }

  /// The pool is not closed before the result is destroyed.
  Guarded<bh_pool>::Use use() { return Guarded<bh_pool>::Use(handle_); }

  void add_part(PartOfPool* part) { parts_.insert(part); }
  void drop_part(PartOfPool* part) { parts_.erase(part); }

 private:
  void check_views(const char* what) const;

  const std::string locator_;
  Guarded<bh_pool> handle_;
  size_t views_ = 0;
  std::set<PartOfPool*> parts_;  // open
};

/// A Python object of a pool, which keeps that alive.
class OfPool {
 public:
  explicit OfPool(nb::object pool) : object_(std::move(pool)), pool_(nb::cast<Pool*>(object_)) {}

  Pool& operator*() const { return *pool_; }
  Pool* operator->() const { return pool_; }
  nb::object object() const { return object_; }

 private:
  nb::object object_;
  Pool* pool_;
};

struct Namespace {
  OfPool pool;
  bh_namespace_id id;
  std::string name;
};

void bind_pool(nb::module_& module);
void bind_inspection(nb::module_& module, nb::class_<Pool>& pool, nb::class_<Namespace>& ns);
void bind_values(nb::class_<Namespace>& ns);
void bind_lease(nb::module_& module, nb::class_<Namespace>& ns);
void bind_reservation(nb::module_& module, nb::class_<Namespace>& ns);
void bind_care(nb::class_<Pool>& pool);
void bind_queue(nb::module_& module, nb::class_<Pool>& pool);
void bind_events(nb::module_& module, nb::class_<Pool>& pool);
void bind_encoder(nb::module_& module);
void bind_gpu(nb::module_& module);
void bind_ndp(nb::module_& module);

}  // namespace bowhead::python
