// SPDX-License-Identifier: Apache-2.0
// Trace lines that a guest's kernel printed, and what differs between two looks.
#include "driver-shim/watch.h"

#include <gtest/gtest.h>

#include "tests/driver-shim/recorded_host.h"

namespace bowhead::shim_test {
namespace {

using namespace shim;

constexpr const char* kPoisonLine =
    "            echo-158     [000] .....     9.019951: cxl_poison: memdev=mem0 host=0000:0d:00.0 "
    "serial=1 trace_type=List region=region0 region_uuid=00000000-0000-0000-0000-000000000000 "
    "hpa=0x3d0001000 hpa_alias0=0xffffffffffffffff dpa=0x1000 dpa_length=0x40 source=Internal "
    "flags= overflow_time=0";
constexpr const char* kMediaLine =
    "  irq/32-158 [000] .....     9.1: cxl_general_media: memdev=mem0 host=0000:0d:00.0 serial=1 "
    "log=Informational : time=17 len=128 flags='A | B' handle=1 : dpa=1000 "
    "type='TE State Violation' comp_id=49 72 61 comp_id_pldm_valid_flags='PLDM Entity ID | 0x48' "
    "region=region0 cme_count=0";

TEST(Trace, ParsesPoison) {
  const auto event = parse_trace_line(kPoisonLine);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->name, "cxl_poison");
  EXPECT_EQ(event->field("memdev"), "mem0");
  EXPECT_EQ(event->field("flags"), "");
  EXPECT_EQ(event->field("overflow_time"), "0");
  const RecordedHost host("devdax");
  const auto error = media_error_of(*event, host.inventory());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->device, "mem0");
  EXPECT_EQ(error->device_offset, 4096u);
  EXPECT_EQ(error->size_bytes, 64u);
  EXPECT_EQ(error->source, "Internal");
  EXPECT_EQ(error->region, "region0");
  EXPECT_EQ(error->dax, "dax0.0");
  EXPECT_EQ(error->dax_offset, 4096u);
}

TEST(Trace, ParsesQuotedValuesAndBytes) {
  const auto event = parse_trace_line(kMediaLine);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->name, "cxl_general_media");
  EXPECT_EQ(event->field("flags"), "A | B");
  EXPECT_EQ(event->field("type"), "TE State Violation");
  EXPECT_EQ(event->field("comp_id"), "49 72 61");
  EXPECT_EQ(event->field("region"), "region0");
  EXPECT_EQ(event->field("cme_count"), "0");
  EXPECT_FALSE(media_error_of(*event, {}));
}

TEST(Trace, IgnoresOtherLines) {
  for (const char* line : {"", "# tracer: nop", "CPU:0 [LOST 3 EVENTS]",
                           "  sh-1 [000] ..... 1.0: sched_switch: prev=sh", "a: cxl_"})
    EXPECT_FALSE(parse_trace_line(line)) << line;
}

TEST(MediaErrors, AreNotKnownWithoutTracing) {
  const RecordedHost host("devdax");
  const MediaErrors errors = read_media_errors(host.files(), host.inventory());
  EXPECT_TRUE(errors.found.empty());
  ASSERT_EQ(errors.not_known.size(), 1u);
  EXPECT_FALSE(errors.is_known("mem0"));
  EXPECT_TRUE(read_media_errors(host.files(), {}).not_known.empty());  // no device: nothing to know
}

TraceEvent poison(const std::string& device, uint64_t offset, const std::string& flags = "") {
  return {.name = "cxl_poison",
          .fields = {{"memdev", device},
                     {"trace_type", "List"},
                     {"dpa", std::to_string(offset)},
                     {"dpa_length", "64"},
                     {"flags", flags}}};
}

TEST(MediaErrors, SayOnceForADeviceThatTheListIsNotComplete) {
  const RecordedHost host("devdax");
  MediaErrors errors;
  errors.take("mem0",
              {.events = {poison("mem0", 0, "Overflow"), poison("mem0", 64, "Overflow"),
                          poison("mem0", 64, "Overflow")}},
              host.inventory(), nullptr);
  EXPECT_EQ(errors.found.size(), 2u);
  EXPECT_EQ(errors.not_known.size(), 1u);
  EXPECT_FALSE(errors.is_known("mem0"));
  MediaErrors cut;
  cut.take("mem1", {.events = {poison("mem1", 0)}, .lost = 3}, host.inventory(), nullptr);
  EXPECT_EQ(cut.found.size(), 1u);
  EXPECT_FALSE(cut.is_known("mem1"));
  EXPECT_TRUE(cut.is_known("mem0"));
  EXPECT_EQ(lost_events("CPU:0 [LOST 3 EVENTS]"), 3u);
  EXPECT_EQ(lost_events(" sh-1 [000] ..... 1.0: cxl_poison: a='[LOST 3 EVENTS]'"), 0u);
}

TEST(MediaErrors, OfADeviceThatIsNotKnownNowStay) {
  MediaErrors before, now;
  before.found = {{.device = "mem0", .device_offset = 64, .size_bytes = 64},
                  {.device = "mem1", .device_offset = 64, .size_bytes = 64}};
  now.not_known = {{"mem0", "it is busy"}};
  now.keep_unknown(before);
  ASSERT_EQ(now.found.size(), 1u);
  EXPECT_EQ(now.found[0].device, "mem0");
  // Not reported again once it is known.
  MediaErrors later;
  later.found = {before.found[0]};
  EXPECT_TRUE(compare(now, later).empty());
}

TEST(Watch, ReportsPartsThatComeAndGo) {
  const RecordedHost host("devdax");
  Watch watch(host.files());
  auto events = watch.poll();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, "not_known");  // poison
  EXPECT_TRUE(watch.poll().empty());
  host.remove("/dev/dax0.0");
  events = watch.poll();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, "changed");
  EXPECT_EQ(events[0].name, "dax0.0");
  host.remove("/sys/bus/dax/devices/dax0.0");
  host.remove("/sys/bus/cxl/devices/mem0");
  events = watch.poll();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[0].what, "removed");
  EXPECT_EQ(events[0].kind, "memory device");
  EXPECT_EQ(events[0].name, "mem0");
}

TEST(Watch, ReportsPoisonOnceAndItsEnd) {
  const MediaError error{.device = "mem0", .device_offset = 4096, .size_bytes = 64};
  MediaError with_dax = error;
  with_dax.dax = "dax0.0";
  const MediaErrors none, one{.found = {error}, .not_known = {}}, same{{with_dax}, {}};
  ASSERT_EQ(compare(none, one).size(), 1u);
  EXPECT_EQ(compare(none, one)[0].what, "poison");
  EXPECT_EQ(compare(none, one)[0].error, error);
  EXPECT_TRUE(compare(one, same).empty());  // another dax device has the memory now
  ASSERT_EQ(compare(one, none).size(), 1u);
  EXPECT_EQ(compare(one, none)[0].what, "poison_cleared");
  // A list that cannot be read says nothing about its entries.
  const auto gap = compare(one, {.found = {}, .not_known = {{"mem0", "why"}}});
  ASSERT_EQ(gap.size(), 1u);
  EXPECT_EQ(gap[0].what, "not_known");
}

}  // namespace
}  // namespace bowhead::shim_test
