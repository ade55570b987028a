// SPDX-License-Identifier: Apache-2.0
// Device, Memory, Transfers and Job of bowhead_kv.gpu: bowhead_gpu.h as Python classes.
#pragma once

#include <bowhead/bowhead_gpu.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "python/src/arguments.h"
#include "python/src/pool.h"

namespace bowhead::python {

class Device {
 public:
  explicit Device(std::optional<uint32_t> ordinal);  ///< none: the CPU
  ~Device() { close(); }

  template <class Body>
  bh_status run(Body&& body) {
    return handle_.run(std::forward<Body>(body));
  }
  Guarded<bh_gpu>& guarded() { return handle_; }
  bool is_closed() const { return !handle_.is_open(); }
  void close();

 private:
  Guarded<bh_gpu> handle_;
};

class Memory {
 public:
  Memory(Device& device, Pool& pool, uint64_t chunk_bytes);
  /// Holds the buffer until it is closed.
  Memory(Device& device, nb::handle buffer);
  ~Memory() { close(); }

  template <class Body>
  bh_status run(Body&& body) {
    return handle_.run(std::forward<Body>(body));
  }
  Guarded<bh_gpu_memory>& guarded() { return handle_; }
  bh_gpu_memory_info info();
  bool is_closed() const { return !handle_.is_open(); }
  void close();

 private:
  Guarded<bh_gpu_memory> handle_;
  std::optional<Buffers<bh_iovec>> buffer_;
};

class Job {
 public:
  Job(const std::string& of, bh_gpu_job* job, size_t blocks);
  ~Job() { close(); }

  template <class Body>
  bh_status run(Body&& body) {
    return handle_.run(std::forward<Body>(body));
  }
  bool wait(double timeout_s);
  nb::object results();
  void close();

 private:
  Guarded<bh_gpu_job> handle_;
  const size_t blocks_;
};

class Transfers : public PartOfPool {
 public:
  Transfers(nb::object pool, Device& device, Memory& memory, nb::object cache,
            uint64_t pinned_bytes_max);
  ~Transfers() { close(); }

  nb::object start(bool spills, const Namespace& ns, nb::handle blocks,
                   const bh_gpu_job_options& options);
  nb::object poll(size_t limit);
  int fileno() const { return bh_gpu_transfers_fd(handle_.get()); }
  nb::object info();
  nb::object cache() const { return cache_; }
  bool is_closed() const { return !handle_.is_open(); }
  void close() override;

 private:
  OfPool pool_;
  Guarded<bh_gpu_transfers> handle_;
  const nb::object cache_;  ///< has the tensors
  /// Not reported yet: the caller may have forgotten a job that still uses the pages.
  std::unordered_map<void*, nb::object> jobs_;
  uint64_t jobs_started_ = 0;
};

}  // namespace bowhead::python
