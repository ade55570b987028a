// SPDX-License-Identifier: Apache-2.0
#include "python/src/gpu.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "python/src/members.h"

namespace bowhead::python {
namespace {

/// The longest wait without a look for signals, such as Ctrl-C.
constexpr uint64_t kSliceMs = 100;

/// A stream as engines have it: the number of a cudaStream_t, 0 for the default stream.
void* stream_of(nb::handle stream) {
  return reinterpret_cast<void*>(number<uintptr_t>("stream", stream));
}

// ---- caches and blocks ----

bh_gpu_part part_of(nb::handle part, size_t item) {
  const Items numbers(part, "parts");
  if (numbers.size() != 4)
    raise_argument(PyExc_ValueError, "parts", item,
                   "has " + std::to_string(numbers.size()) +
                       " numbers; pass an address and the strides of page, token and head");
  const auto at = [&](size_t i) { return number<uint64_t>("parts", numbers[i]); };
  return {reinterpret_cast<void*>(at(0)), at(1), at(2), at(3)};
}

/// A bowhead_kv.gpu.Cache as the C struct.
struct CacheArguments {
  explicit CacheArguments(nb::handle cache) {
    const nb::object all = cache.attr("parts");
    const Items items(all, "parts");
    for (size_t i = 0; i < items.size(); ++i) parts.push_back(part_of(items[i], i));
    described.struct_bytes = sizeof described;
    described.page_tokens = number<uint32_t>("page_tokens", cache.attr("page_tokens"));
    described.pages = number<uint32_t>("pages", cache.attr("pages"));
    described.parts = parts.data();
    described.part_count = parts.size();
    described.layout = layout_struct(cache.attr("layout"));
  }

  std::vector<bh_gpu_part> parts;
  bh_gpu_cache described = {};
};

/// Block tables, keys and what is stored with blocks, copied. A table that several blocks share is
/// copied once.
class BlockArguments {
 public:
  explicit BlockArguments(nb::handle blocks) {
    const Items items(blocks, "blocks");
    nb::list keys;
    nb::object last_table;
    for (size_t i = 0; i < items.size(); ++i) {
      const nb::object item = items[i];
      const Items fields(item, "blocks");
      if (fields.size() < 4 || fields.size() > 6)
        raise_argument(
            PyExc_ValueError, "blocks", i,
            "has " + std::to_string(fields.size()) + " fields; pass a bowhead_kv.gpu.Block");
      keys.append(fields[0]);
      const nb::object table = fields[1];
      if (!last_table.is_valid() || !table.is(last_table)) read_table(table);
      last_table = table;
      blocks_.push_back({bh_key{}, tables_.back().data(), tables_.back().size(),
                         number<uint32_t>("first_token", fields[2]),
                         number<uint32_t>("tokens", fields[3]), nullptr});
      if (fields.size() > 4) read_options(fields);
    }
    keys_.emplace(keys, "keys");
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].key = (*keys_)[i];
  }

  const bh_gpu_block* data() const { return blocks_.data(); }
  size_t size() const { return blocks_.size(); }

 private:
  struct Options {
    nb::object metadata;
    bh_attributes attributes;
    bh_put_options options;
  };

  void read_table(nb::handle table) {
    const nb::object list = nb::steal(PySequence_List(table.ptr()));
    if (!list.is_valid()) {
      PyErr_Clear();
      raise_argument(PyExc_TypeError, "pages", kAlone,
                     "is a " + type_of(table) + "; pass a list of page numbers");
    }
    const Items pages(list, "pages");
    std::vector<uint32_t>& numbers = tables_.emplace_back();
    numbers.reserve(pages.size() + 1);  // not NULL, also of an empty table
    for (size_t i = 0; i < pages.size(); ++i)
      numbers.push_back(number<uint32_t>("pages", pages[i]));
  }

  /// Of the last block.
  void read_options(const Items& fields) {
    const nb::object metadata = fields[4];
    const nb::object attributes = fields.size() > 5 ? fields[5] : nb::none();
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (!PyBytes_Check(metadata.ptr()))
      raise_argument(PyExc_TypeError, "user_metadata", kAlone,
                     "is a " + type_of(metadata) + "; pass bytes");
    PyBytes_AsStringAndSize(metadata.ptr(), &data, &size);
    if (size == 0 && attributes.is_none()) return;
    Options& kept = options_.emplace_back();
    kept.metadata = metadata;
    kept.options = {.struct_bytes = sizeof kept.options,
                    .user_metadata = data,
                    .user_bytes = static_cast<uint64_t>(size)};
    if (!attributes.is_none()) {
      kept.attributes = attributes_struct(attributes);
      kept.options.attributes = &kept.attributes;
    }
    blocks_.back().options = &kept.options;
  }

  std::optional<Keys> keys_;
  std::deque<std::vector<uint32_t>> tables_;
  std::deque<Options> options_;
  std::vector<bh_gpu_block> blocks_;
};

bh_gpu_job_options job_options(nb::handle after, bool urgent, nb::handle path,
                               nb::handle layers_at_once, nb::handle lease_ms) {
  bh_gpu_job_options options = {.struct_bytes = sizeof options};
  options.path = number<uint32_t>("path", path);
  options.urgent = urgent ? 1 : 0;
  options.layers_at_once = number<uint32_t>("layers_at_once", layers_at_once);
  options.lease_ms = number<uint64_t>("lease_ms", lease_ms);
  if (!after.is_none()) {
    options.after_stream = 1;
    options.stream = stream_of(after);
  }
  return options;
}

// ---- tensors ----

/// (address, shape, strides in bytes, bytes of an element, device type, device id) of a tensor in
/// memory of any device, by DLPack or the buffer protocol.
nb::tuple describe_tensor(nb::handle tensor) {
  const nb::object exported = export_tensor(tensor, "tensor", kAlone);
  nb::ndarray<nb::ro> imported;
  if (!nb::try_cast(exported, imported, false)) {
    PyErr_Clear();
    raise_argument(PyExc_TypeError, "tensor", kAlone,
                   "is a " + type_of(tensor) + "; pass a tensor with DLPack");
  }
  const size_t element_bytes = imported.itemsize();
  nb::list shape, strides;
  for (size_t axis = 0; axis < imported.ndim(); ++axis) {
    shape.append(imported.shape(axis));
    strides.append(imported.stride(axis) * static_cast<int64_t>(element_bytes));
  }
  return nb::make_tuple(reinterpret_cast<uintptr_t>(imported.data()), nb::tuple(shape),
                        nb::tuple(strides), element_bytes, imported.device_type(),
                        imported.device_id());
}

#define MEMBER(member) BOWHEAD_MEMBER(bh_gpu_transfers_info, member)
const Member<bh_gpu_transfers_info> transfers_members[] = {
    MEMBER(straight_blocks), MEMBER(not_yet_blocks),    MEMBER(not_reached_blocks),
    MEMBER(no_lease_blocks), MEMBER(compressed_blocks),
};
#undef MEMBER

nb::object device_info(Device& device) {
  bh_gpu_info info = {.struct_bytes = sizeof info};
  check(device.run([&](bh_gpu* gpu) { return bh_gpu_get_info(gpu, &info); }));
  nb::dict fields;
  fields["is_cpu"] = info.is_cpu != 0;
  fields["memory_bytes"] = info.memory_bytes;
  fields["decodes_lz4"] = info.decodes_lz4 != 0;
  fields["registers_read_only"] = info.registers_read_only != 0;
  fields["name"] = nb::str(info.name);
  fields["link"] = nb::str(info.link);
  fields["driver"] = nb::str(info.driver);
  fields["pin_fault"] = nb::str(info.pin_fault);
  return make("DeviceInfo", fields);
}

}  // namespace

// ---- devices ----

Device::Device(std::optional<uint32_t> ordinal)
    : handle_(ordinal ? "GPU " + std::to_string(*ordinal) : std::string("the CPU device")) {
  bh_gpu* opened = nullptr;
  check(without_gil(
      [&] { return ordinal ? bh_gpu_open(*ordinal, &opened) : bh_gpu_open_cpu(&opened); }));
  handle_.set(opened);
}

void Device::close() {
  const Guarded<bh_gpu>::Closing closing(handle_);
  bh_gpu* handle = handle_.take();
  without_gil([&] { bh_gpu_close(handle); });
}

// ---- registered memory ----

Memory::Memory(Device& device, Pool& pool, uint64_t chunk_bytes)
    : handle_("registered memory of pool " + pool.locator()) {
  bh_gpu_memory* opened = nullptr;
  bh_gpu* const gpu = device.guarded().get();
  const Guarded<bh_gpu>::Use use_of_device(device.guarded());
  check(pool.run([&](bh_pool* p) { return bh_gpu_register_pool(gpu, p, chunk_bytes, &opened); }));
  handle_.set(opened);
}

Memory::Memory(Device& device, nb::handle buffer) : handle_("registered memory") {
  buffer_.emplace("buffer").append(buffer, kAlone);
  if (buffer_->part_count(0) != 1)
    raise_argument(PyExc_TypeError, "buffer", kAlone, "is a list; pass one buffer");
  const bh_iovec part = *buffer_->parts(0);
  bh_gpu_memory* opened = nullptr;
  check(device.run([&](bh_gpu* gpu) {
    return bh_gpu_register_memory(gpu, part.data, part.size_bytes, &opened);
  }));
  handle_.set(opened);
}

bh_gpu_memory_info Memory::info() {
  bh_gpu_memory_info info = {.struct_bytes = sizeof info};
  check(run([&](bh_gpu_memory* memory) { return bh_gpu_memory_get_info(memory, &info); }));
  return info;
}

void Memory::close() {
  const Guarded<bh_gpu_memory>::Closing closing(handle_);
  bh_gpu_memory* handle = handle_.take();
  without_gil([&] { bh_gpu_memory_close(handle); });
  buffer_.reset();
}

// ---- jobs ----

Job::Job(const std::string& of, bh_gpu_job* job, size_t blocks) : handle_(of), blocks_(blocks) {
  handle_.set(job);
}

bool Job::wait(double timeout_s) {
  if (!(timeout_s >= 0 && timeout_s <= 1e9))
    raise_argument(PyExc_ValueError, "timeout_s", kAlone, "is outside 0 to 1e9");
  auto left_ms = static_cast<uint64_t>(timeout_s * 1000);
  while (true) {
    const uint64_t slice_ms = std::min(left_ms, kSliceMs);
    const bh_status status = run([&](bh_gpu_job* job) { return bh_gpu_job_wait(job, slice_ms); });
    if (status == BH_OK) return true;
    if (status != BH_BUSY) check(status);
    left_ms -= slice_ms;
    if (left_ms == 0) return false;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object Job::results() {
  std::vector<bh_gpu_result> results(blocks_);
  check(run([&](bh_gpu_job* job) { return bh_gpu_job_results(job, results.data(), blocks_); }));
  nb::list list;
  for (const bh_gpu_result& result : results) {
    nb::dict fields;
    fields["status"] = nb::borrow(status_object(result.status));
    fields["staging"] = result.staging;
    list.append(make("BlockResult", fields));
  }
  return list;
}

void Job::close() {
  const Guarded<bh_gpu_job>::Closing closing(handle_);
  bh_gpu_job* handle = handle_.take();
  without_gil([&] { bh_gpu_job_free(handle); });
}

// ---- transfers ----

Transfers::Transfers(nb::object pool, Device& device, Memory& memory, nb::object cache,
                     uint64_t pinned_bytes_max)
    : pool_(std::move(pool)),
      handle_("transfers of pool " + pool_->locator()),
      cache_(std::move(cache)) {
  const CacheArguments arguments(cache_);
  bh_gpu_transfers_options options = {.struct_bytes = sizeof options};
  options.pinned_bytes_max = pinned_bytes_max;
  bh_gpu_transfers* opened = nullptr;
  bh_gpu* const gpu = device.guarded().get();
  bh_gpu_memory* const registered = memory.guarded().get();
  const Guarded<bh_gpu>::Use use_of_device(device.guarded());
  const Guarded<bh_gpu_memory>::Use use_of_memory(memory.guarded());
  check(pool_->run([&](bh_pool* p) {
    return bh_gpu_transfers_open(p, gpu, registered, &arguments.described, &options, &opened);
  }));
  handle_.set(opened);
  pool_->add_part(this);
}

nb::object Transfers::start(bool spills, const Namespace& ns, nb::handle blocks,
                            const bh_gpu_job_options& options) {
  if (&*ns.pool != &*pool_)
    raise_argument(PyExc_ValueError, "ns", kAlone,
                   "is of pool " + ns.pool->locator() + " opened elsewhere; pass a namespace of " +
                       "the pool of these transfers");
  const BlockArguments arguments(blocks);
  bh_gpu_job* started = nullptr;
  check(handle_.run([&](bh_gpu_transfers* transfers) {
    const auto start = spills ? bh_gpu_spill : bh_gpu_restore;
    return start(transfers, ns.id, arguments.data(), arguments.size(), &options, &started);
  }));
  nb::object job = nb::cast(
      std::make_unique<Job>("job " + std::to_string(++jobs_started_) + " of " + handle_.name(),
                            started, arguments.size()));
  jobs_.emplace(started, job);
  return job;
}

nb::object Transfers::poll(size_t limit) {
  nb::list list;
  while (limit != 0) {
    std::array<bh_gpu_completion, 64> done;
    size_t count = 0;
    const size_t room = std::min(limit, done.size());
    check(handle_.run([&](bh_gpu_transfers* transfers) {
      return bh_gpu_poll(transfers, done.data(), room, &count);
    }));
    for (size_t i = 0; i < count; ++i) {
      if (const auto job = jobs_.extract(done[i].job)) list.append(job.mapped());
    }
    if (count < room) break;
    limit -= count;
  }
  return list;
}

nb::object Transfers::info() {
  bh_gpu_transfers_info info = {.struct_bytes = sizeof info};
  check(handle_.run(
      [&](bh_gpu_transfers* transfers) { return bh_gpu_transfers_get_info(transfers, &info); }));
  nb::dict fields;
  add_members(transfers_members, info, fields);
  fields["refusal"] = nb::str(info.refusal);
  fields["costs_assumed"] = nb::str(info.costs_assumed);
  return make("TransfersInfo", fields);
}

void Transfers::close() {
  const Guarded<bh_gpu_transfers>::Closing closing(handle_);
  if (!handle_.is_open()) return;
  pool_->drop_part(this);
  const auto use = pool_->use();  // another thread may close the pool now, and must wait
  bh_gpu_transfers* handle = handle_.take();
  without_gil([&] { bh_gpu_transfers_close(handle); });
  jobs_.clear();
}

// ---- the module ----

namespace {

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::is_weak_referenceable())
      .def(
          "ensure",
          [](Memory& self, nb::handle offset, nb::handle size_bytes) {
            const auto begin = number<uint64_t>("offset", offset);
            const auto size = number<uint64_t>("size_bytes", size_bytes);
            check(self.run([&](bh_gpu_memory* m) { return bh_gpu_memory_ensure(m, begin, size); }));
          },
          any("offset"), any("size_bytes"))
      .def("register_rest", [](Memory& self) { check(self.run(bh_gpu_memory_register_rest)); })
      .def("retry", [](Memory& self) { check(self.run(bh_gpu_memory_retry)); })
      .def_prop_ro("size_bytes", [](Memory& self) { return self.info().size_bytes; })
      .def_prop_ro("registered_bytes", [](Memory& self) { return self.info().registered_bytes; })
      .def("close", &Memory::close)
      .def_prop_ro("closed", &Memory::is_closed)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Memory& self, const nb::args&) { self.close(); });
}

void bind_device(nb::module_& module) {
  nb::class_<Device>(module, "Device", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](Device* self, nb::handle ordinal) {
            new (self) Device(number<uint32_t>("ordinal", ordinal));
          },
          any("ordinal") = 0)
      .def_static("cpu", [] { return std::make_unique<Device>(std::nullopt); })
      .def("info", &device_info)
      .def(
          "register_pool",
          [](Device& self, Pool& pool, nb::handle chunk_bytes) {
            return std::make_unique<Memory>(self, pool,
                                            number<uint64_t>("chunk_bytes", chunk_bytes));
          },
          nb::arg("pool"), nb::kw_only(), any("chunk_bytes") = 0)
      .def(
          "register_memory",
          [](Device& self, nb::handle buffer) { return std::make_unique<Memory>(self, buffer); },
          any("buffer"))
      .def(
          "synchronize",
          [](Device& self, nb::handle stream) {
            void* const of = stream_of(stream);
            check(self.run([&](bh_gpu* gpu) { return bh_gpu_synchronize(gpu, of); }));
          },
          any("stream") = 0)
      .def("close", &Device::close)
      .def_prop_ro("closed", &Device::is_closed)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Device& self, const nb::args&) { self.close(); });
}

void bind_job(nb::module_& module) {
  nb::class_<Job>(module, "Job", nb::is_weak_referenceable())
      .def("wait", &Job::wait, nb::arg("timeout_s"))
      .def("results", &Job::results)
      .def("cancel", [](Job& self) { check(self.run(bh_gpu_job_cancel)); })
      .def(
          "wait_layer",
          [](Job& self, nb::handle layer, nb::handle stream) {
            const auto at = number<uint32_t>("layer", layer);
            void* const of = stream_of(stream);
            check(self.run([&](bh_gpu_job* job) { return bh_gpu_job_wait_layer(job, at, of); }));
          },
          any("layer"), any("stream") = 0)
      .def(
          "layer_ready",
          [](Job& self, nb::handle layer, nb::handle stream) {
            const auto at = number<uint32_t>("layer", layer);
            void* const of = stream_of(stream);
            check(self.run([&](bh_gpu_job* job) { return bh_gpu_job_layer_ready(job, at, of); }));
          },
          any("layer"), any("stream") = 0);
}

}  // namespace

void bind_gpu(nb::module_& module) {
  module.def("describe_tensor", &describe_tensor, any("tensor"));
  bind_device(module);
  bind_memory(module);
  bind_job(module);
  nb::class_<Transfers>(module, "Transfers", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](Transfers* self, nb::object pool, Device& device, Memory& memory, nb::object cache,
             nb::handle pinned_bytes_max) {
            new (self) Transfers(std::move(pool), device, memory, std::move(cache),
                                 number<uint64_t>("pinned_bytes_max", pinned_bytes_max));
          },
          nb::arg("pool"), nb::arg("device"), nb::arg("memory"), nb::arg("cache"), nb::kw_only(),
          any("pinned_bytes_max") = 0)
      .def(
          "spill",
          [](Transfers& self, const Namespace& ns, nb::handle blocks, nb::handle after, bool urgent,
             nb::handle path, nb::handle layers_at_once) {
            return self.start(true, ns, blocks,
                              job_options(after, urgent, path, layers_at_once, nb::int_(0)));
          },
          nb::arg("ns"), any("blocks"), nb::kw_only(), nb::arg("after") = nb::none(),
          nb::arg("urgent") = false, any("path") = 0, any("layers_at_once") = 0)
      .def(
          "restore",
          [](Transfers& self, const Namespace& ns, nb::handle blocks, nb::handle after, bool urgent,
             nb::handle path, nb::handle layers_at_once, nb::handle lease_ms) {
            return self.start(false, ns, blocks,
                              job_options(after, urgent, path, layers_at_once, lease_ms));
          },
          nb::arg("ns"), any("blocks"), nb::kw_only(), nb::arg("after") = nb::none(),
          nb::arg("urgent") = false, any("path") = 0, any("layers_at_once") = 0,
          any("lease_ms") = 30'000)
      .def(
          "poll",
          [](Transfers& self, nb::handle limit) {
            return self.poll(number<size_t>("limit", limit));
          },
          any("limit") = 256)
      .def("fileno", &Transfers::fileno)
      .def("info", &Transfers::info)
      .def_prop_ro("cache", &Transfers::cache)
      .def("close", &Transfers::close)
      .def_prop_ro("closed", &Transfers::is_closed)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Transfers& self, const nb::args&) { self.close(); });
}

}  // namespace bowhead::python
