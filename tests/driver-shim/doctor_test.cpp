// SPDX-License-Identifier: Apache-2.0
// Findings on recorded hosts, each with one thing set wrongly.
#include "driver-shim/doctor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/driver-shim/recorded_host.h"

namespace bowhead::shim_test {
namespace {

using namespace shim;

constexpr ProcessLimits kGoodLimits = {.locked_bytes = std::nullopt, .shm_bytes = 8ull << 30};

std::vector<Finding> findings_on(const RecordedHost& host, const MediaErrors& errors = {},
                                 const ProcessLimits& limits = kGoodLimits) {
  const Inventory inventory = host.inventory();
  const std::vector<Result<Health>> health(inventory.memory_devices.size(),
                                           Result<Health>(Health{}));
  return examine({host.files(), inventory, errors, health, limits});
}

/// The first finding on the subject whose sentence has the words.
const Finding* find(const std::vector<Finding>& findings, Level level, const std::string& subject,
                    const std::string& words = "") {
  for (const Finding& finding : findings) {
    if (finding.level == level && finding.subject == subject &&
        finding.what.find(words) != std::string::npos)
      return &finding;
  }
  return nullptr;
}

size_t count(const std::vector<Finding>& findings, Level level) {
  size_t found = 0;
  for (const Finding& finding : findings) found += finding.level == level;
  return found;
}

TEST(Doctor, FindsNoProblemWhereAllIsSetUp) {
  for (const char* name : {"devdax", "node", "interleaved", "persistent"}) {
    const RecordedHost host(name);
    for (const Finding& finding : findings_on(host))
      EXPECT_NE(finding.level, Level::PROBLEM) << name << ": " << finding.what;
  }
}

TEST(Doctor, ExplainsWhatIsNotOk) {
  const RecordedHost host("unused");
  for (const Finding& finding : findings_on(host)) {
    EXPECT_FALSE(finding.subject.empty());
    EXPECT_FALSE(finding.what.empty());
    EXPECT_EQ(finding.why.empty(), finding.level == Level::OK) << finding.what;
    const bool can_be_mended = finding.level == Level::PROBLEM || finding.level == Level::HINT;
    EXPECT_EQ(finding.mend.empty(), !can_be_mended) << finding.what;
  }
}

TEST(Doctor, PutsProblemsFirst) {
  const RecordedHost host("unused");
  const auto findings = findings_on(host);
  EXPECT_EQ(findings.front().level, Level::PROBLEM);
  EXPECT_EQ(findings.back().level, Level::OK);
}

TEST(Doctor, NamesDevicesWithoutRegion) {
  const RecordedHost host("unused");
  const auto findings = findings_on(host);
  EXPECT_EQ(count(findings, Level::PROBLEM), 2u);
  const Finding* problem = find(findings, Level::PROBLEM, "mem1", "no region");
  ASSERT_NE(problem, nullptr);
  EXPECT_EQ(problem->mend, "bowhead devices setup mem1");
}

TEST(Doctor, NamesDriversThatAreMissing) {
  const RecordedHost host("devdax");
  host.remove("/sys/bus/cxl/drivers/cxl_dax_region");
  const auto findings = findings_on(host);
  const Finding* problem = find(findings, Level::PROBLEM, "drivers");
  ASSERT_NE(problem, nullptr);
  EXPECT_EQ(problem->mend, "modprobe dax_cxl");
  host.remove("/sys/bus/pci/devices/0000:0d:00.0/driver");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "0000:0d:00.0", "no driver"), nullptr);
}

TEST(Doctor, NamesAnOldKernel) {
  const RecordedHost host("devdax");
  host.set("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "kernel"), nullptr);
  host.remove("/proc/sys/kernel/osrelease");
  EXPECT_NE(find(findings_on(host), Level::UNKNOWN, "kernel"), nullptr);
}

TEST(Doctor, NamesADaxDeviceWithoutDriver) {
  const RecordedHost host("no-driver");
  const auto findings = findings_on(host);
  EXPECT_EQ(count(findings, Level::PROBLEM), 1u);
  EXPECT_NE(find(findings, Level::PROBLEM, "/dev/dax0.0", "no driver"), nullptr);
}

TEST(Doctor, NamesARegionWithoutDax) {
  const RecordedHost host("devdax");
  host.remove("/sys/bus/dax/devices/dax0.0");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "region0", "no dax device"), nullptr);
  host.set("/sys/bus/cxl/devices/region0/commit", "0\n");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "region0", "not completed"), nullptr);
}

TEST(Doctor, TakesSystemMemoryOfTheFirmwareForOk) {
  const RecordedHost host("node");
  host.remove("/sys/bus/cxl/devices/dax_region0");
  host.remove("/sys/bus/dax/devices/dax0.0");
  const auto findings = findings_on(host);
  EXPECT_EQ(count(findings, Level::PROBLEM), 0u);
  EXPECT_NE(find(findings, Level::OK, "region0", "numa:1/NAME"), nullptr);
  host.remove("/sys/bus/cxl/devices/region0/resource");  // this user may not read it
  EXPECT_NE(find(findings_on(host), Level::OK, "region0", "numa:NODE/NAME"), nullptr);
}

TEST(Doctor, NeverAdvisesToDestroyWhatIsCompleteOrPersistent) {
  for (const char* name : {"devdax", "persistent"}) {
    const RecordedHost host(name);
    host.remove("/sys/bus/cxl/devices/region0/driver");
    const auto disabled = findings_on(host);
    const Finding* problem = find(disabled, Level::PROBLEM, "region0", "no driver");
    ASSERT_NE(problem, nullptr);
    EXPECT_EQ(problem->mend, "cxl enable-region region0");
    host.set("/sys/bus/cxl/devices/region0/commit", "0\n");
    const auto begun = findings_on(host);
    problem = find(begun, Level::PROBLEM, "region0", "not completed");
    ASSERT_NE(problem, nullptr);
    EXPECT_EQ(problem->mend.find("destroy-region") == std::string::npos, *name == 'p');
  }
}

TEST(Doctor, SaysHowPersistentMemoryIsUsed) {
  const RecordedHost host("persistent");
  host.remove("/sys/bus/dax/devices/dax0.0");
  auto findings = findings_on(host);
  const Finding* problem = find(findings, Level::PROBLEM, "region0", "no dax device");
  ASSERT_NE(problem, nullptr);
  EXPECT_EQ(problem->mend, "ndctl create-namespace --mode=devdax --region=region0");
  host.remove("/sys/bus/cxl/devices/region0");
  const std::string endpoint = host.inventory().memory_device("mem0")->endpoint.substr(8);
  host.set("/sys/bus/cxl/devices/decoder" + endpoint + ".0/region", "\n");
  findings = findings_on(host);
  problem = find(findings, Level::PROBLEM, "mem0", "no region");
  ASSERT_NE(problem, nullptr);
  EXPECT_NE(problem->mend.find("cxl create-region -m -t pmem -d decoder0.0 mem0"),
            std::string::npos);
}

TEST(Doctor, JudgesEachKindOfMemoryOfADevice) {
  const RecordedHost host("devdax");
  host.set("/sys/bus/cxl/devices/mem0/pmem/size", "0x40000000\n");
  auto findings = findings_on(host);
  EXPECT_NE(find(findings, Level::OK, "mem0", "the volatile memory of mem0 is in region0"),
            nullptr);
  EXPECT_NE(find(findings, Level::HINT, "mem0", "the persistent memory of mem0 is in no region"),
            nullptr);
  EXPECT_EQ(count(findings, Level::PROBLEM), 0u);
  host.set("/sys/bus/cxl/devices/mem0/pmem/size", "0x0\n");
  host.set("/sys/bus/cxl/devices/mem0/ram/size", "0x40000000\n");
  EXPECT_NE(find(findings_on(host), Level::HINT, "mem0", "512 MiB of mem0 are in no region"),
            nullptr);
  host.set("/sys/bus/cxl/devices/mem0/ram/size", "0x0\n");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "mem0", "no memory"), nullptr);
}

TEST(Doctor, FindsTheDaxDeviceOfARegionWithoutItsAddresses) {
  for (const char* name : {"devdax", "persistent"}) {
    const RecordedHost host(name);  // addresses are for root alone
    host.remove("/sys/bus/cxl/devices/region0/resource");
    host.remove("/sys/bus/dax/devices/dax0.0/resource");
    EXPECT_EQ(count(findings_on(host), Level::PROBLEM), 0u) << name;
    EXPECT_EQ(host.inventory().dax_devices.at(0).start, std::nullopt);
  }
}

TEST(Doctor, JudgesAlignment) {
  const RecordedHost host("devdax");
  const std::string align = "/sys/bus/dax/devices/dax0.0/align";
  host.set(align, "4096\n");
  EXPECT_NE(find(findings_on(host), Level::HINT, "/dev/dax0.0", "pages of 4096"), nullptr);
  host.set(align, "1073741824\n");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "/dev/dax0.0", "pages of 1073741824"), nullptr);
}

TEST(Doctor, JudgesPermissions) {
  const RecordedHost host("devdax");
  const std::string node = host.files().at("/dev/dax0.0");
  chmod(node.c_str(), 0660);
  EXPECT_NE(find(findings_on(host), Level::OK, "/dev/dax0.0"), nullptr);
  chmod(node.c_str(), 0666);
  const auto findings = findings_on(host);
  const Finding* problem = find(findings, Level::PROBLEM, "/dev/dax0.0", "every user");
  ASSERT_NE(problem, nullptr);
  EXPECT_NE(problem->mend.find("/etc/udev/rules.d/"), std::string::npos);
  host.remove("/dev/dax0.0");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "/dev/dax0.0", "cannot be opened"), nullptr);
}

TEST(Doctor, JudgesNodes) {
  const RecordedHost host("node");
  EXPECT_NE(find(findings_on(host), Level::OK, "node 1"), nullptr);
  const std::string node = "/sys/devices/system/node/node1";
  const std::string block = host.files().names(node, "memory").front();
  host.set(node + "/" + block + "/valid_zones", "Normal\n");
  EXPECT_NE(find(findings_on(host), Level::HINT, "node 1", "1 of its 4"), nullptr);
  host.set("/proc/self/status", "Mems_allowed_list:\t0\n");
  EXPECT_NE(find(findings_on(host), Level::PROBLEM, "node 1", "cpuset"), nullptr);
  host.set("/proc/self/status", "Mems_allowed_list:\t0-3\n");
  EXPECT_EQ(find(findings_on(host), Level::PROBLEM, "node 1", "cpuset"), nullptr);
}

TEST(Doctor, NamesDamagedMemoryAndWhatIsNotKnown) {
  const RecordedHost host("devdax");
  EXPECT_NE(find(findings_on(host), Level::OK, "mem0", "no damaged memory"), nullptr);
  const MediaErrors damaged{.found = {{.device = "mem0", .size_bytes = 64}}, .not_known = {}};
  EXPECT_NE(find(findings_on(host, damaged), Level::PROBLEM, "mem0", "1 damaged"), nullptr);
  const auto findings = findings_on(host, {.found = {}, .not_known = {{"", "no tracefs"}}});
  EXPECT_NE(find(findings, Level::UNKNOWN, "media errors"), nullptr);
  EXPECT_EQ(find(findings, Level::OK, "mem0", "no damaged memory"), nullptr);
}

TEST(Doctor, JudgesHealth) {
  const RecordedHost host("devdax");
  const Inventory inventory = host.inventory();
  const auto with = [&](Result<Health> health) {
    return examine({host.files(), inventory, {}, {std::move(health)}, kGoodLimits});
  };
  EXPECT_NE(find(with(Health{.warnings = {"it is hot"}}), Level::PROBLEM, "mem0", "it is hot"),
            nullptr);
  EXPECT_NE(find(with(Status::NOT_SUPPORTED), Level::UNKNOWN, "mem0", "health"), nullptr);
}

TEST(Doctor, JudgesLimitsHugePagesAndClock) {
  const RecordedHost host("devdax");
  const auto good = findings_on(host);
  for (const char* subject : {"/dev/shm", "locked memory", "huge pages", "clock"})
    EXPECT_NE(find(good, Level::OK, subject), nullptr) << subject;
  host.set("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always never [deny]\n");
  host.set("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  const auto bad = findings_on(host, {}, {.locked_bytes = 65536, .shm_bytes = 64 << 20});
  for (const char* subject : {"/dev/shm", "locked memory", "huge pages", "clock"})
    EXPECT_NE(find(bad, Level::HINT, subject), nullptr) << subject;
}

TEST(Doctor, SaysUnknownOfAHostWithoutFiles) {
  const RecordedHost host("");
  const auto findings = findings_on(host, {}, {});
  for (const char* subject : {"/dev/shm", "huge pages", "clock", "kernel"})
    EXPECT_NE(find(findings, Level::UNKNOWN, subject), nullptr) << subject;
  EXPECT_NE(find(findings, Level::HINT, "devices"), nullptr);
}

TEST(Doctor, LooksForTheDriverOfAGpu) {
  const RecordedHost host("devdax");
  const std::string gpu = "/sys/bus/pci/devices/0000:81:00.0";
  host.set(gpu + "/class", "0x030200\n");
  host.set(gpu + "/vendor", "0x10de\n");
  EXPECT_NE(find(findings_on(host), Level::HINT, "GPU", "without the driver"), nullptr);
  host.link(gpu + "/driver", "../../drivers/nvidia");
  EXPECT_NE(find(findings_on(host), Level::OK, "GPU", "1 NVIDIA"), nullptr);
}

}  // namespace
}  // namespace bowhead::shim_test
