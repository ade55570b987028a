// SPDX-License-Identifier: Apache-2.0
// The module bowhead_kv._native. Its functions are documented in bowhead_kv/_native.pyi.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>

#include "python/src/arguments.h"
#include "python/src/members.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

#define MEMBER(member) BOWHEAD_MEMBER(bh_create_options, member)
const Member<bh_create_options> create_members[] = {
    MEMBER(hosts),
    MEMBER(extent_bytes),
    MEMBER(min_block_bytes),
    MEMBER(replace),
    MEMBER(no_eviction),
    MEMBER(mode),
    MEMBER(heartbeat_ms),
    MEMBER(dead_ms),
    MEMBER(grace_ms),
    MEMBER(settle_ms),
    MEMBER(reclaim_ms),
    MEMBER(no_reclaim),
    MEMBER(evict_high_permille),
    MEMBER(evict_low_permille),
    MEMBER(max_bytes),
};
#undef MEMBER

void create(const std::string& locator, nb::handle size_bytes, const nb::kwargs& settings) {
  bh_create_options options = {.struct_bytes = sizeof options,
                               .size_bytes = number<uint64_t>("size_bytes", size_bytes)};
  for (const auto& [key, value] : settings) {
    const std::string name = nb::cast<std::string>(key);
    const auto member = std::find_if(std::begin(create_members), std::end(create_members),
                                     [&](const auto& known) { return known.name == name; });
    if (member == std::end(create_members))
      raise_argument(PyExc_TypeError, "create()", kAlone, "has no setting '" + name + "'");
    member->set(options, value);
  }
  const char* text = c_string("locator", locator);
  check(without_gil([&] { return bh_pool_create(text, &options); }));
}

void destroy(const std::string& locator, bool force) {
  const char* text = c_string("locator", locator);
  check(without_gil([&] { return bh_pool_destroy(text, force); }));
}

uint64_t checksum(nb::handle buffer) {
  Buffers<bh_const_iovec> buffers("buffer");
  buffers.append(buffer, kAlone);
  const bh_const_iovec& part = buffers.only_part(0, kAlone);
  return without_gil([&] { return bh_checksum(part.data, part.size_bytes); });
}

}  // namespace

NB_MODULE(_native_of_main, module) {
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
  module.def("create", &create, nb::arg("locator"), any("size_bytes"), nb::arg("settings"));
  module.def("destroy", &destroy, nb::arg("locator"), nb::kw_only(), nb::arg("force") = false);
  module.def("checksum", &checksum, any("buffer"));
  bind_pool(module);
  bind_gpu(module);
  bind_ndp(module);
}

}  // namespace bowhead::python

/// What the import calls. A subinterpreter is refused before nanobind takes its types as those of
/// the whole process, which would break the main interpreter.
extern "C" NB_EXPORT PyObject* PyInit__native() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0)
    return bowhead::python::PyInit__native_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "bowhead_kv cannot be used in a subinterpreter; import it in the main one");
  return nullptr;
}
