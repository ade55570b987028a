// SPDX-License-Identifier: Apache-2.0
// What operators do to a pool: check, recompress, scavenge, fence; and its mapping, for devices.
#include <string>
#include <vector>

#include "python/src/arguments.h"
#include "python/src/members.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

#define MEMBER(member) BOWHEAD_MEMBER(bh_check_report, member)
const Member<bh_check_report> check_members[] = {
    MEMBER(findings),       MEMBER(data_lost),     MEMBER(not_checked),
    MEMBER(blocks_checked), MEMBER(bytes_checked), MEMBER(blocks_unverified),
};
#undef MEMBER

#define MEMBER(member) BOWHEAD_MEMBER(bh_recompress_report, member)
const Member<bh_recompress_report> recompress_members[] = {
    MEMBER(cold_blocks),
    MEMBER(recompressed),
    MEMBER(before_bytes),
    MEMBER(after_bytes),
};
#undef MEMBER

nb::object list_of(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(nb::str(text.data(), text.size()));
  return list;
}

nb::object check_pool(Pool& self, bool payloads) {
  struct {
    std::vector<std::string> findings;
    std::vector<std::string> not_checked;
  } texts;
  bh_check_report from = {.struct_bytes = sizeof from};
  const auto visit = [](void* context, int is_finding, const char* sentence) {
    auto& to = *static_cast<decltype(texts)*>(context);
    (is_finding != 0 ? to.findings : to.not_checked).emplace_back(sentence);
  };
  check(
      self.run([&](bh_pool* pool) { return bh_pool_check(pool, payloads, visit, &texts, &from); }));
  nb::dict fields;
  add_members(check_members, from, fields);
  fields["finding_texts"] = list_of(texts.findings);
  fields["not_checked_texts"] = list_of(texts.not_checked);
  return make("CheckReport", fields);
}

nb::object recompress(Pool& self, nb::handle cold_ms) {
  const auto age_ms = number<uint64_t>("cold_ms", cold_ms);
  bh_recompress_report from = {.struct_bytes = sizeof from};
  check(self.run([&](bh_pool* pool) { return bh_pool_recompress(pool, age_ms, &from); }));
  nb::dict fields;
  add_members(recompress_members, from, fields);
  return make("RecompressReport", fields);
}

uint64_t scavenge(Pool& self) {
  uint64_t found = 0;
  check(self.run([&](bh_pool* pool) { return bh_pool_scavenge(pool, &found); }));
  return found;
}

void fence(Pool& self, nb::handle host) {
  const auto slot = number<uint32_t>("host", host);
  check(self.run([&](bh_pool* pool) { return bh_pool_fence(pool, slot); }));
}

nb::object mapping(Pool& self) {
  const void* base = nullptr;
  uint64_t size_bytes = 0;
  check(self.run([&](bh_pool* pool) { return bh_pool_mapping(pool, &base, &size_bytes); }));
  nb::dict fields;
  fields["address"] = reinterpret_cast<uintptr_t>(base);
  fields["size_bytes"] = size_bytes;
  return make("Mapping", fields);
}

}  // namespace

void bind_care(nb::class_<Pool>& pool) {
  pool.def("check", &check_pool, nb::kw_only(), nb::arg("payloads") = false)
      .def("recompress", &recompress, any("cold_ms"))
      .def("scavenge", &scavenge)
      .def("fence", &fence, any("host"))
      .def("mapping", &mapping);
}

}  // namespace bowhead::python
