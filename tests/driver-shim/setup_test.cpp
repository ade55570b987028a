// SPDX-License-Identifier: Apache-2.0
// Plans for recorded hosts: what is done, and what is left alone. The writes are tried in guests:
// `qemu/run one-volatile --no-setup --copy BOWHEAD -- bowhead devices setup`.
#include "driver-shim/setup.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/driver-shim/recorded_host.h"

namespace bowhead::shim_test {
namespace {

using namespace shim;

constexpr const char* kCreate = "/sys/bus/cxl/devices/decoder0.0/create_ram_region";
constexpr const char* kProbe = "/sys/bus/dax/drivers_autoprobe";
constexpr const char* kPolicy = "/sys/devices/system/memory/auto_online_blocks";

Result<SetupPlans> plan(const RecordedHost& host, const SetupChoice& choice = {}) {
  return plan_setup(host.files(), host.inventory(), choice);
}

std::string value_written(const SetupPlan& plan, const std::string& end_of_path) {
  for (const Step& step : plan.steps) {
    const bool writes = step.kind == Step::Kind::WRITE || step.kind == Step::Kind::BIND;
    if (writes && step.path.ends_with(end_of_path)) return step.value;
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
    EXPECT_EQ(value_written(made, "/drivers/device_dax"), "$dax");
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
  EXPECT_EQ(value_written(plans->plans[0], "/drivers/device_dax"), "$dax");
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
  EXPECT_EQ(value_written(made, kProbe), "0");
  EXPECT_EQ(value_written(made, "/drivers/kmem"), "$dax");
  ASSERT_EQ(made.at_end.size(), 2u);
  EXPECT_EQ(made.at_end[0].value, "1");
  EXPECT_EQ(made.at_end[1].value, "online");
}

/// What carry_out() finds on the devdax, and when a signal comes.
SetupHooks hooks(bool holds_pool = false, const std::function<bool()>& interrupted = nullptr) {
  return {.holds_pool = [=](const std::string&) { return Result<bool>(holds_pool); },
          .interrupted = interrupted ? interrupted : [] { return false; }};
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
  host.set("/sys/bus/dax/drivers/device_dax/unbind", "");
  host.set("/sys/bus/dax/drivers/device_dax/remove_id", "");
  host.set("/sys/bus/dax/drivers/kmem/new_id", "");
  host.set("/sys/bus/dax/drivers/kmem/dax0.0", "");
  host.set("/dev/dax0.0", "");
  host.set(kCreate, "region0\n");
}

TEST(Setup, CarriesThePlanOut) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  const auto dax = carry_out(host.files(), plans->plans[0], hooks());
  ASSERT_TRUE(dax) << dax.error().message();
  EXPECT_EQ(*dax, "dax0.0");
  const auto text = [&](const std::string& path) { return host.files().text(path).value_or(""); };
  EXPECT_EQ(text("/sys/bus/cxl/devices/region0/commit"), "1");
  EXPECT_EQ(text("/sys/bus/cxl/devices/region0/size"), "0x20000000");
  EXPECT_EQ(text("/sys/bus/cxl/drivers/cxl_region/bind"), "region0");
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/new_id"), "dax0.0");
  EXPECT_EQ(text(kPolicy), "online");
  EXPECT_EQ(text(kProbe), "1");
  EXPECT_EQ(text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "");
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/unbind"), "");
}

/// A kernel that binds the device when its name comes to the driver the second time, as where the
/// driver went through the devices the first time before the list had the new one.
class LateKernel {
 public:
  explicit LateKernel(const RecordedHost& host) : host_(host) { host.remove(kBound); }
  int offered() const { return offered_; }
  void look() {
    if (!host_.files().text(kNewId).value_or("").starts_with("dax0.0")) return;
    host_.set(kNewId, "");
    if (++offered_ == 2) host_.set(kBound, "");
  }

 private:
  static constexpr const char* kNewId = "/sys/bus/dax/drivers/device_dax/new_id";
  static constexpr const char* kBound = "/sys/bus/dax/drivers/device_dax/dax0.0";
  const RecordedHost& host_;
  int offered_ = 0;
};

TEST(Setup, OffersADeviceToItsDriverAgain) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  LateKernel kernel(host);
  const auto look = [&] { return kernel.look(), false; };
  const auto dax = carry_out(host.files(), plans->plans[0], hooks(false, look));
  ASSERT_TRUE(dax) << dax.error().message();
  EXPECT_EQ(kernel.offered(), 2);
}

TEST(Setup, MakesANodeOnlyOfMemoryWithoutAPool) {
  const RecordedHost host("unused");
  host.set("/sys/bus/dax/drivers/kmem/new_id", "");
  const auto plans = plan(host, {.devices = {"mem0"}, .as_node = true});
  ASSERT_TRUE(plans) << plans.error().message();
  const auto text = [&](const std::string& path) { return host.files().text(path).value_or(""); };
  prepare(host);
  const auto refused = carry_out(host.files(), plans->plans[0], hooks(true));
  EXPECT_EQ(refused.status(), Status::IN_USE);
  EXPECT_NE(refused.error().message().find("holds a pool"), std::string::npos);
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/new_id"), "dax0.0");
  EXPECT_EQ(text("/sys/bus/dax/drivers/kmem/new_id"), "");
  EXPECT_EQ(text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "");  // it stays a devdax
  EXPECT_EQ(text(kPolicy), "online");
  prepare(host);
  EXPECT_TRUE(carry_out(host.files(), plans->plans[0], hooks(false)));
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/unbind"), "dax0.0");
  EXPECT_EQ(text("/sys/bus/dax/drivers/device_dax/remove_id"), "dax0.0");
  EXPECT_EQ(text("/sys/bus/dax/drivers/kmem/new_id"), "dax0.0");
}

TEST(Setup, LeavesARegionOfAnotherProgramAlone) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  // The kernel refuses the name, since another program has made that region.
  host.remove(kCreate);
  std::filesystem::create_directories(host.files().at(kCreate));
  EXPECT_EQ(carry_out(host.files(), plans->plans[0], hooks()).status(), Status::SYSTEM);
  const std::string decoder = value_written(plans->plans[0], "/target0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "");
  EXPECT_NE(host.files().text("/sys/bus/cxl/devices/" + decoder + "/dpa_size"), "0");
  EXPECT_EQ(host.files().text(kProbe), "1");
}

TEST(Setup, AnInterruptedPlanLeavesNothing) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  const SetupPlan& made = plans->plans[0];
  const std::string deleted = "/sys/bus/cxl/devices/decoder0.0/delete_region";
  for (size_t at = 0; at < made.keep; ++at) {
    prepare(host);
    size_t asked = 0;
    const auto result = carry_out(host.files(), made, hooks(false, [&] { return asked++ == at; }));
    EXPECT_EQ(result.status(), Status::CANCELLED) << at;
    EXPECT_EQ(host.files().text(kProbe), "1") << at;
    EXPECT_EQ(host.files().text(deleted), at > made.undo[0].of ? "region0" : "") << at;
  }
}

TEST(Setup, ChoosesAWindowWithRoom) {
  const RecordedHost host("unused");
  const std::string window = "/sys/bus/cxl/devices/decoder0.0";
  // Room for one of the two devices.
  host.set(window + "/size", "0x20000000\n");
  const auto one = plan(host);
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_EQ(one->plans.size(), 1u);
  ASSERT_EQ(one->left_alone.size(), 1u);
  EXPECT_NE(one->left_alone[0].find("decoder0.0 has 0 MiB free"), std::string::npos)
      << one->left_alone[0];
  // A region that exists has it.
  host.set(host.files().resolved(window) + "/region7/size", "0x10000000\n");
  host.link("/sys/bus/cxl/devices/region7",
            "../../../devices/platform/ACPI0017:00/root0/decoder0.0/region7");
  const auto none = plan(host);
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_TRUE(none->plans.empty());
}

TEST(Setup, CountsMemoryThatTheFirmwareGaveToTheKernel) {
  const RecordedHost host("devdax");
  host.remove("/sys/bus/cxl/devices/dax_region0");
  host.remove("/sys/bus/dax/devices/dax0.0");
  const auto plans = plan(host);
  ASSERT_TRUE(plans) << plans.error().message();
  EXPECT_TRUE(plans->plans.empty());
  ASSERT_EQ(plans->left_alone.size(), 1u);
  EXPECT_NE(plans->left_alone[0].find("the firmware made"), std::string::npos)
      << plans->left_alone[0];
}

TEST(Setup, NeverAdvisesToDestroyWhatIsCompleteOrPersistent) {
  const auto reason = [](const char* name, const char* file, const char* content) {
    const RecordedHost host(name);
    if (*content == 0)
      host.remove(file);
    else
      host.set(file, content);
    return plan(host, {.devices = {"mem0"}}).error().message();
  };
  const char* driver = "/sys/bus/cxl/devices/region0/driver";
  const char* commit = "/sys/bus/cxl/devices/region0/commit";
  for (const char* name : {"devdax", "persistent"}) {
    const std::string disabled = reason(name, driver, "");
    EXPECT_NE(disabled.find("cxl enable-region region0"), std::string::npos) << disabled;
    EXPECT_EQ(disabled.find("destroy"), std::string::npos) << disabled;
  }
  EXPECT_NE(reason("devdax", commit, "0\n").find("cxl destroy-region"), std::string::npos);
  EXPECT_EQ(reason("persistent", commit, "0\n").find("destroy"), std::string::npos);
}

TEST(Setup, PassesOverDaxDevicesWithoutMemory) {
  const RecordedHost host("no-driver");
  const std::string seed = "/sys/bus/dax/devices/dax0.1";
  host.set(seed + "/size", "0\n");
  EXPECT_EQ(plan(host)->plans.size(), 1u);
  EXPECT_EQ(host.inventory().dax_devices.size(), 1u);
}

TEST(Setup, IsDoneByOneProcessAtATime) {
  const RecordedHost host("devdax");
  {
    const auto first = lock_setup(host.files());
    ASSERT_TRUE(first) << first.error().message();
    EXPECT_EQ(lock_setup(host.files()).status(), Status::IN_USE);
  }
  EXPECT_TRUE(lock_setup(host.files()));
}

TEST(Setup, UndoesWhatItBeganIfAStepFails) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  host.remove("/sys/bus/cxl/devices/region0/commit");
  const auto dax = carry_out(host.files(), plans->plans[0], hooks());
  EXPECT_EQ(dax.status(), Status::SYSTEM);
  EXPECT_NE(dax.error().message().find("region0/commit"), std::string::npos);
  const std::string decoder = value_written(plans->plans[0], "/target0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "region0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/" + decoder + "/dpa_size"), "0");
  EXPECT_EQ(host.files().text(kPolicy), "online");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/drivers/cxl_region/bind"), "");
}

/// Runs the script of a plan on the recorded host, and returns its exit status.
int run_script(const RecordedHost& host, const SetupPlan& plan) {
  std::string script = script_of(plan);
  for (const std::string folder : {"/sys/", "/dev/d"}) {
    for (size_t at = 0; (at = script.find(folder, at)) != script.npos;) {
      if (script.compare(at, 9, "/dev/null") != 0) script.insert(at, host.files().at(""));
      at += host.files().at("").size() + folder.size();
    }
  }
  const std::string file = host.files().at("/script");
  std::ofstream(file) << script;
  return std::system(("sh " + file + " 2>" + file + ".err").c_str());
}

TEST(Setup, TheScriptDoesTheSame) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  EXPECT_EQ(run_script(host, plans->plans[0]), 0);
  const auto text = [&](const std::string& path) { return host.files().text(path).value_or(""); };
  for (const Step& step : plans->plans[0].steps) {
    const bool binds = step.kind == Step::Kind::BIND;
    if ((step.kind != Step::Kind::WRITE && !binds) || step.path == kProbe) continue;
    std::string path = step.path + (binds ? "/new_id" : ""), value = step.value;
    if (const size_t at = path.find("$region"); at != path.npos) path.replace(at, 7, "region0");
    if (value == "$region") value = "region0";
    if (value == "$dax") value = "dax0.0";
    EXPECT_EQ(text(path), value) << path;
  }
  EXPECT_EQ(text(kProbe), "1");
  EXPECT_EQ(text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "");
}

TEST(Setup, TheScriptOffersADeviceToItsDriverAgain) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  LateKernel kernel(host);
  std::jthread looking([&](const std::stop_token& end) {
    for (; !end.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      kernel.look();
  });
  EXPECT_EQ(run_script(host, plans->plans[0]), 0);
  looking.request_stop();
  looking.join();
  EXPECT_EQ(kernel.offered(), 2);
}

TEST(Setup, TheScriptUndoesWhatItBeganIfAStepFails) {
  const RecordedHost host("unused");
  const auto plans = plan(host, {.devices = {"mem0"}});
  ASSERT_TRUE(plans) << plans.error().message();
  prepare(host);
  const std::string commit = "/sys/bus/cxl/devices/region0/commit";
  host.remove(commit);
  std::filesystem::create_directories(host.files().at(commit));
  EXPECT_NE(run_script(host, plans->plans[0]), 0);
  const std::string decoder = value_written(plans->plans[0], "/target0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/decoder0.0/delete_region"), "region0");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/devices/" + decoder + "/dpa_size"), "0");
  EXPECT_EQ(host.files().text(kProbe), "1");
  EXPECT_EQ(host.files().text("/sys/bus/cxl/drivers/cxl_region/bind"), "");
}

}  // namespace
}  // namespace bowhead::shim_test
