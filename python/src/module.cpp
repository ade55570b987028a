// SPDX-License-Identifier: Apache-2.0
// The module bowhead_kv._native. Its functions are documented in bowhead_kv/_native.pyi.
#include <nanobind/stl/string.h>

#include "python/src/arguments.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

void create(const std::string& locator, nb::handle size_bytes, const nb::kwargs& settings) {
  bh_create_options options = {.struct_bytes = sizeof options,
                               .size_bytes = number<uint64_t>("size_bytes", size_bytes)};
  for (const auto& [key, value] : settings) {
    const std::string name = nb::cast<std::string>(key);
    bool known = false;
#define TAKE(member)                                                   \
  if (name == #member) {                                               \
    options.member = number<decltype(options.member)>(#member, value); \
    known = true;                                                      \
  }
    TAKE(hosts)
    TAKE(extent_bytes)
    TAKE(min_block_bytes)
    TAKE(replace) TAKE(no_eviction) TAKE(mode) TAKE(heartbeat_ms) TAKE(dead_ms) TAKE(grace_ms)
        TAKE(settle_ms) TAKE(reclaim_ms) TAKE(no_reclaim) TAKE(evict_high_permille)
            TAKE(evict_low_permille) TAKE(max_bytes)
#undef TAKE
                if (!known) raise_argument(PyExc_TypeError, "create()", kAlone,
                                           "has no setting '" + name + "'");
  }
  bh_status status;
  {
    const nb::gil_scoped_release release;
    status = bh_pool_create(locator.c_str(), &options);
  }
  check(status);
}

void destroy(const std::string& locator, bool force) {
  bh_status status;
  {
    const nb::gil_scoped_release release;
    status = bh_pool_destroy(locator.c_str(), force);
  }
  check(status);
}

uint64_t checksum(nb::handle buffer) {
  Buffers<bh_const_iovec> buffers("buffer");
  buffers.append(buffer, kAlone);
  if (buffers.part_count(0) != 1)
    raise_argument(PyExc_TypeError, "buffer", kAlone, "is a list; pass one buffer");
  const nb::gil_scoped_release release;
  return bh_checksum(buffers.parts(0)->data, buffers.parts(0)->size_bytes);
}

}  // namespace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // a process may end with pools open
  import_types();
  module.attr("__version__") = BOWHEAD_VERSION;
  module.def("abi_version", &bh_abi_version);
  module.def(
      "status_name", [](int status) { return bh_status_name(static_cast<bh_status>(status)); },
      nb::arg("status"));
  module.def(
      "status_text", [](int status) { return bh_status_text(static_cast<bh_status>(status)); },
      nb::arg("status"));
  module.def("create", &create, nb::arg("locator"), nb::arg("size_bytes"), nb::arg("settings"));
  module.def("destroy", &destroy, nb::arg("locator"), nb::kw_only(), nb::arg("force") = false);
  module.def("checksum", &checksum, nb::arg("buffer"));
  bind_pool(module);
}

}  // namespace bowhead::python
