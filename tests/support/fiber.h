// SPDX-License-Identifier: Apache-2.0
// Fiber: a separate stack for a simulated thread, on Boost.Context.
//
// A fiber that is started again forgets what ran on it before: nothing is unwound and no destructor
// runs, as when a process is killed. Heap memory held by such a stack leaks.
#pragma once

#include <sys/mman.h>

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <new>
#include <utility>

#include "base/assert.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace bowhead::sim {

class Fiber {
 public:
  using Entry = void (*)(void*);

  Fiber() {
    stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BOWHEAD_ASSERT(stack_ != MAP_FAILED);
    BOWHEAD_ASSERT(mprotect(stack_, kGuardBytes, PROT_NONE) == 0);
  }
  ~Fiber() { munmap(stack_, kStackBytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() begins `entry(argument)`, which must never return: it ends with suspend().
  void start(Entry entry, void* argument) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(usable(), kStackBytes - kGuardBytes);
#endif
    entry_ = entry;
    argument_ = argument;
    new (&self_.fiber) boost::context::fiber(
        std::allocator_arg, Borrowed{stack_}, [this](boost::context::fiber&& scheduler) {
          new (&scheduler_.fiber) boost::context::fiber(std::move(scheduler));
          arrived(nullptr);
          entry_(argument_);
          BOWHEAD_ASSERT(false && "a fiber's entry returned");
          return std::move(scheduler_.fiber);
        });
  }

  /// From the scheduler: runs the fiber until it suspends.
  void resume() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, usable(), kStackBytes - kGuardBytes);
#endif
    new (&self_.fiber) boost::context::fiber(std::move(self_.fiber).resume());
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  /// From inside: returns to the scheduler.
  void suspend() {
    void* fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack, scheduler_bottom_, scheduler_bytes_);
#endif
    new (&scheduler_.fiber) boost::context::fiber(std::move(scheduler_.fiber).resume());
    arrived(fake_stack);
  }

 private:
  static constexpr size_t kStackBytes = 512 << 10;
  static constexpr size_t kGuardBytes = 4096;

  /// A handle that is overwritten and never destroyed: destroying one would unwind its stack.
  union Forgettable {
    Forgettable() : fiber() {}
    ~Forgettable() {}
    boost::context::fiber fiber;
  };
  struct Borrowed {
    void* stack;
    boost::context::stack_context allocate() const {
      boost::context::stack_context context;
      context.size = kStackBytes - kGuardBytes;
      context.sp = static_cast<std::byte*>(stack) + kStackBytes;
      return context;
    }
    void deallocate(boost::context::stack_context&) const noexcept {}
  };

  void* usable() const { return static_cast<std::byte*>(stack_) + kGuardBytes; }
  void arrived([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &scheduler_bottom_, &scheduler_bytes_);
#endif
  }

  void* stack_;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  Forgettable self_, scheduler_;
#if defined(__SANITIZE_ADDRESS__)
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_bytes_ = 0;
#endif
};

}  // namespace bowhead::sim
