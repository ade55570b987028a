// SPDX-License-Identifier: Apache-2.0
#include "python/src/queue.h"

#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <span>

namespace bowhead::python {
namespace {

/// The longest wait without a look for signals, such as Ctrl-C.
constexpr uint64_t kSliceMs = 100;

bh_job describe(PutBatch& batch) {
  return {.operation = BH_JOB_PUT, .count = batch.items.size(), .puts = batch.items.data()};
}
bh_job describe(GetBatch& batch) {
  return {.operation = BH_JOB_GET, .count = batch.items.size(), .gets = batch.items.data()};
}
bh_job describe(RemoveBatch& batch) {
  return {.operation = BH_JOB_REMOVE,
          .count = batch.keys.size(),
          .keys = batch.keys.data(),
          .statuses = batch.outputs.data()};
}
bh_job describe(ExistsBatch& batch) {
  return {.operation = BH_JOB_EXISTS,
          .count = batch.keys.size(),
          .keys = batch.keys.data(),
          .present = batch.outputs.data()};
}

nb::object report(const Job& job) {
  nb::object statuses = nb::list();
  nb::object lengths = nb::list();
  nb::object present = nb::list();
  if (const auto* put = std::get_if<PutBatch>(&job.batch)) statuses = put->statuses();
  if (const auto* remove = std::get_if<RemoveBatch>(&job.batch)) statuses = remove->statuses();
  if (const auto* exists = std::get_if<ExistsBatch>(&job.batch)) present = exists->present();
  if (const auto* get = std::get_if<GetBatch>(&job.batch)) {
    statuses = get->statuses();
    lengths = get->lengths();
  }
  return completion(job.ended, std::move(statuses), std::move(lengths), std::move(present));
}

template <class Batch, class... Args>
Jobs job_of(Args&&... args) {
  Jobs jobs;
  Job& job = jobs.emplace_back(std::in_place_type<Batch>, std::forward<Args>(args)...);
  if (std::get<Batch>(job.batch).keys.size() == 0)
    raise_argument(PyExc_ValueError, "keys", kAlone, "is empty; a job needs a key");
  job.self = jobs.begin();
  return jobs;
}

}  // namespace

Queue::Queue(nb::object pool, uint32_t threads, uint32_t jobs_max)
    : pool_(std::move(pool)), handle_("queue of pool " + pool_->locator()) {
  const bh_queue_options options = {
      .struct_bytes = sizeof options, .threads = threads, .jobs_max = jobs_max};
  bh_queue* opened = nullptr;
  check(pool_->run([&](bh_pool* p) { return bh_queue_open(p, &options, &opened); }));
  handle_.set(opened);
  pool_->add_part(this);
}

Queue::~Queue() { close(); }

int Queue::fileno() { return bh_queue_fd(handle_.get()); }

uint64_t Queue::submit(const Namespace& ns, Jobs job, nb::handle priority) {
  if (&*ns.pool != &*pool_)
    raise_argument(PyExc_ValueError, "ns", kAlone,
                   "is of pool " + ns.pool->locator() + " opened elsewhere; pass a namespace of " +
                       "this queue's pool");
  bh_job described = std::visit([](auto& batch) { return describe(batch); }, job.front().batch);
  described.struct_bytes = sizeof described;
  described.namespace_id = ns.id;
  described.priority = number<uint32_t>("priority", priority);
  described.context = &job.front();
  uint64_t submitted = 0;
  check(bh_queue_submit(handle_.get(), &described, &submitted));
  jobs_.splice(jobs_.end(), job);  // poll() cannot have reported it: it needs the GIL
  return submitted;
}

nb::object Queue::poll(size_t limit) {
  // First all jobs are taken: making an object may run any Python code, which may close the queue.
  Jobs reported;
  while (limit != 0) {
    std::array<bh_completion, 64> ended;
    size_t count = 0;
    const size_t room = std::min(limit, ended.size());
    check(bh_queue_poll(handle_.get(), ended.data(), room, &count));
    for (const bh_completion& one : std::span(ended).first(count)) {
      Job& job = *static_cast<Job*>(one.context);
      job.ended = one;
      reported.splice(reported.end(), jobs_, job.self);
    }
    if (count < room) break;
    limit -= count;
  }
  nb::list list;
  for (const Job& job : reported) list.append(report(job));
  return list;
}

bool Queue::cancel(uint64_t job) {
  const bh_status status = bh_queue_cancel(handle_.get(), job);
  if (status != BH_NOT_FOUND) check(status);
  return status == BH_OK;
}

bool Queue::drain(double timeout_s) {
  if (!(timeout_s >= 0 && timeout_s <= 1e9))
    raise_argument(PyExc_ValueError, "timeout_s", kAlone, "is outside 0 to 1e9");
  auto left_ms = static_cast<uint64_t>(timeout_s * 1000);
  while (true) {
    const uint64_t slice_ms = std::min(left_ms, kSliceMs);
    const bh_status status =
        handle_.run([&](bh_queue* queue) { return bh_queue_drain(queue, slice_ms); });
    if (status == BH_OK) return true;
    if (status != BH_BUSY) check(status);
    left_ms -= slice_ms;
    if (left_ms == 0) return false;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void Queue::close() {
  const Guarded<bh_queue>::Closing closing(handle_);
  if (!handle_.is_open()) return;
  pool_->drop_part(this);
  const auto use = pool_->use();  // another thread may close the pool now, and must wait
  bh_queue* handle = handle_.take();
  without_gil([&] { bh_queue_close(handle); });
  jobs_.clear();
}

void bind_queue(nb::module_& module, nb::class_<Pool>& pool) {
  nb::class_<Queue> queue(module, "Queue", nb::is_weak_referenceable());
  queue
      .def(
          "submit_put",
          [](Queue& self, const Namespace& ns, nb::handle keys, nb::handle values,
             nb::handle user_metadata, nb::handle attributes, nb::handle priority) {
            return self.submit(ns, job_of<PutBatch>(keys, values, user_metadata, attributes),
                               priority);
          },
          nb::arg("ns"), any("keys"), any("values"), nb::kw_only(),
          nb::arg("user_metadata") = nb::none(), nb::arg("attributes") = nb::none(),
          any("priority") = 0)
      .def(
          "submit_get",
          [](Queue& self, const Namespace& ns, nb::handle keys, nb::handle buffers,
             nb::handle priority) {
            return self.submit(ns, job_of<GetBatch>(keys, buffers), priority);
          },
          nb::arg("ns"), any("keys"), any("buffers"), nb::kw_only(), any("priority") = 0)
      .def(
          "submit_remove",
          [](Queue& self, const Namespace& ns, nb::handle keys, nb::handle priority) {
            return self.submit(ns, job_of<RemoveBatch>(keys), priority);
          },
          nb::arg("ns"), any("keys"), nb::kw_only(), any("priority") = 0)
      .def(
          "submit_exists",
          [](Queue& self, const Namespace& ns, nb::handle keys, nb::handle priority) {
            return self.submit(ns, job_of<ExistsBatch>(keys), priority);
          },
          nb::arg("ns"), any("keys"), nb::kw_only(), any("priority") = 0)
      .def(
          "poll",
          [](Queue& self, nb::handle limit) { return self.poll(number<size_t>("limit", limit)); },
          any("limit") = 256)
      .def(
          "cancel",
          [](Queue& self, nb::handle job) { return self.cancel(number<uint64_t>("job", job)); },
          any("job"))
      .def("drain", &Queue::drain, nb::arg("timeout_s"))
      .def("fileno", &Queue::fileno)
      .def("close", &Queue::close)
      .def_prop_ro("closed", &Queue::is_closed)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Queue& self, const nb::args&) { self.close(); });
  pool.def(
      "queue",
      [](nb::handle self, nb::handle threads, nb::handle jobs_max) {
        return std::make_unique<Queue>(nb::borrow(self), number<uint32_t>("threads", threads),
                                       number<uint32_t>("jobs_max", jobs_max));
      },
      nb::kw_only(), any("threads") = 1, any("jobs_max") = 1024);
}

}  // namespace bowhead::python
