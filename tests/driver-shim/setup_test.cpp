// SPDX-License-Identifier: Apache-2.0
// Plans for recorded hosts: what is done, and what is left alone. The writes are tried in guests:
// `qemu/run one-volatile --no-setup --copy BOWHEAD -- bowhead devices setup`.
#include "driver-shim/setup.h"

#include <gtest/gtest.h>

#include "tests/driver-shim/recorded_host.h"

namespace bowhead::shim_test {
namespace {

using namespace shim;

constexpr const char* kCreate = "/sys/bus/cxl/devices/decoder0.0/create_ram_region";
constexpr const char* kPolicy = "/sys/devices/system/memory/auto_online_blocks";

Result<SetupPlans> plan(const RecordedHost& host, const SetupChoice& choice = {}) {
  return plan_setup(host.files(), host.inventory(), choice);
}

std::string value_written(const SetupPlan& plan, const std::string& end_of_path) {
  for (const Step& step : plan.steps) {
    if (step.kind == Step::Kind::WRITE && step.path.ends_with(end_of_path)) return step.value;
  }
  return "nothing";
}

TEST(Setup, MakesARegionOfEachDeviceInTheOrderOfSerialNumbers) {
  const RecordedHost host("unused");
  host.set("/sys/bus/cxl/devices/mem0/serial", "0x2\n");
  host.set("/sys/bus/cxl/devices/mem1/serial", "0x1\n");
  const auto plans = plan(host);
  ASSERT_TRUE(plans) << plans.error().message();
  ASSERT_EQ(plans->plans.size(), 2u);
  EXPECT_TRUE(plans->left_alone.empty());
  const Inventory found = host.inventory();
  for (uint64_t serial = 1; serial <= 2; ++serial) {
    const SetupPlan& made = plans->plans[serial - 1];
    const std::string name = made.what.substr(0, made.what.find(':'));
    EXPECT_EQ(found.memory_device(name)->serial, serial);
    EXPECT_EQ(value_written(made, "/dpa_size"), "0x20000000");
    EXPECT_EQ(value_written(made, "$region/size"), "0x20000000");
    const std::string decoder = value_written(made, "/target0");
    EXPECT_EQ(decoder, "decoder" + found.memory_device(name)->endpoint.substr(8) + ".0");
    EXPECT_EQ(value_written(made, "/drivers/device_dax/new_id"), "$dax");
  }
}

TEST(Setup, DoesWhatIsChosen) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem1"}, .as_node = false});
  ASSERT_TRUE(plans) << plans.error().message();
  ASSERT_EQ(plans->plans.size(), 1u);
  EXPECT_TRUE(plans->plans[0].what.starts_with("mem1:"));
  EXPECT_EQ(plan(host, {.devices = {"mem7"}}).status(), Status::INVALID_ARGUMENT);
}

TEST(Setup, LeavesAloneWhatIsInUse) {
  for (const char* name : {"devdax", "interleaved", "persistent", "node"}) {
    const RecordedHost host(name);
    const auto all = plan(host);
    ASSERT_TRUE(all) << name;
    EXPECT_TRUE(all->plans.empty()) << name;
    EXPECT_EQ(all->left_alone.size(), host.inventory().memory_devices.size()) << name;
    const auto chosen = plan(host, {.devices = {"mem0"}});
    EXPECT_EQ(chosen.status(), Status::IN_USE) << name;
    EXPECT_NE(chosen.error().message().find("mem0 is in region0 already; dax0.0"),
              std::string::npos)
        << chosen.error().message();
  }
}

TEST(Setup, NeverTouchesPersistentMemory) {
  const RecordedHost host("unused");
  const std::string device = "/sys/bus/cxl/devices/mem0";
  host.set(device + "/pmem/size", "0x20000000");
  host.set(device + "/ram/size", "0x0");
  const auto plans = plan(host, {.devices = {"mem0"}});
  EXPECT_EQ(plans.status(), Status::IN_USE);
  EXPECT_NE(plans.error().message().find("persistent memory only"), std::string::npos);
}

TEST(Setup, LeavesAloneWhatAnotherProgramBegan) {
  const RecordedHost host("unused");
  const std::string endpoint = host.inventory().memory_device("mem0")->endpoint;
  const std::string decoder = "decoder" + endpoint.substr(8) + ".0";
  host.set("/sys/bus/cxl/devices/" + decoder + "/dpa_size", "0x20000000");
  const auto plans = plan(host, {.devices = {"mem0"}});
  EXPECT_EQ(plans.status(), Status::IN_USE);
  EXPECT_NE(plans.error().message().find(decoder), std::string::npos) << plans.error().message();
}

TEST(Setup, CompletesADaxDeviceWithoutDriver) {
  const RecordedHost host("no-driver");
  const auto plans = plan(host);
  ASSERT_TRUE(plans) << plans.error().message();
  ASSERT_EQ(plans->plans.size(), 1u);
  EXPECT_EQ(plans->plans[0].dax, "dax0.0");
  EXPECT_EQ(value_written(plans->plans[0], "/create_ram_region"), "nothing");
  EXPECT_EQ(value_written(plans->plans[0], "/drivers/device_dax/new_id"), "$dax");
}

TEST(Setup, NamesTheDriverThatIsMissing) {
  const RecordedHost host("unused");
  const auto as_node = plan(host, {.devices = {}, .as_node = true});
  EXPECT_EQ(as_node.status(), Status::SYSTEM);
  EXPECT_NE(as_node.error().message().find("modprobe kmem"), std::string::npos);
  host.remove("/sys/bus/cxl/drivers/cxl_dax_region");
  EXPECT_NE(plan(host).error().message().find("modprobe dax_cxl"), std::string::npos);
}

TEST(Setup, NeedsAWindowOfTheHostBridge) {
  const RecordedHost host("unused");
  host.set("/sys/bus/cxl/devices/decoder0.0/target_list", "13\n");
  EXPECT_EQ(plan(host, {.devices = {"mem0"}}).status(), Status::IN_USE);
  host.set("/sys/bus/cxl/devices/decoder0.0/target_list", "12\n");
  EXPECT_TRUE(plan(host, {.devices = {"mem0"}}));
  host.set("/sys/bus/cxl/devices/decoder0.0/cap_ram", "0\n");
  EXPECT_EQ(plan(host, {.devices = {"mem0"}}).status(), Status::IN_USE);
}

TEST(Setup, ANodeIsOnlineAsMovable) {
  const RecordedHost host("unused");
  host.set("/sys/bus/dax/drivers/kmem/new_id", "");
  const auto plans = plan(host, {.devices = {"mem0"}, .as_node = true});
  ASSERT_TRUE(plans) << plans.error().message();
  const SetupPlan& made = plans->plans[0];
  EXPECT_EQ(value_written(made, kPolicy), "online_movable");
  EXPECT_EQ(value_written(made, "/drivers/kmem/new_id"), "$dax");
  ASSERT_EQ(made.at_end.size(), 1u);
  EXPECT_EQ(made.at_end[0].value, "online");
}

/// The files that the kernel would make of a new region, so that the writes have a place.
void prepare(const RecordedHost& host) {
  const std::string region = "/sys/bus/cxl/devices/region0";
  for (const char* name :
       {"interleave_granularity", "interleave_ways", "size", "target0", "commit"})
    host.set(region + "/" + name, "");
  host.set("/sys/bus/cxl/devices/decoder0.0/delete_region", "");
  host.set("/sys/bus/cxl/drivers/cxl_region/bind", "");
  host.set("/sys/bus/dax/devices/dax0.0/size", "");
  host.set("/sys/bus/dax/drivers/device_dax/new_id", "");
  host.set("/sys/bus/dax/drivers/device_dax/dax0.0", "");
  host.set(kCreate, "region0\n");
}

TEST(Setup, CarriesThePlanOut) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  const auto dax = carry_out(host.files(), plans->plans[0]);
  ASSERT_TRUE(dax) << dax.error().message();
  EXPECT_EQ(*dax, "dax0.0");
  const auto text = [&](const std::string& path) { return host.files().text(path).value_or(""); };
  EXPECT_EQ(text("/sys/bus/cxl/devices/region0/commit"), "1");
  EXPECT_EQ(text("/sys/bus/cxl/devices/region0/size"), "0x20000000");
  EXPECT_EQ(text("/sys/bus/cxl/drivers/cxl_region/bind"), "region0");
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/new_id"), "dax0.0");
  EXPECT_EQ(text(kPolicy), "online");
  EXPECT_EQ(text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "");
}

TEST(Setup, UndoesWhatItBeganIfAStepFails) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  host.remove("/sys/bus/cxl/devices/region0/commit");
  const auto dax = carry_out(host.files(), plans->plans[0]);
  EXPECT_EQ(dax.status(), Status::SYSTEM);
  EXPECT_NE(dax.error().message().find("region0/commit"), std::string::npos);
  const std::string decoder = value_written(plans->plans[0], "/target0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "region0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/" + decoder + "/dpa_size"), "0");
  EXPECT_EQ(host.files().text(kPolicy), "online");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/drivers/cxl_region/bind"), "");
}

TEST(Setup, TheScriptHasEveryStep) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  const std::string script = script_of(plans->plans[0]);
  size_t lines = 0;
  for (const char c : script) lines += c == '\n';
  // A line for each step, one more for the first, and the title.
  EXPECT_EQ(lines, plans->plans[0].steps.size() + plans->plans[0].at_end.size() + 2);
  EXPECT_NE(script.find("echo 1 >/sys/bus/cxl/devices/$region/commit\n"), std::string::npos);
}

}  // namespace
}  // namespace bowhead::shim_test
