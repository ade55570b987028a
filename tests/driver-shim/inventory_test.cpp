// SPDX-License-Identifier: Apache-2.0
// What is read of recorded hosts, one for each topology.
#include "driver-shim/inventory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/driver-shim/recorded_host.h"

namespace bowhead::shim_test {
namespace {

using namespace shim;

constexpr uint64_t kMib = 1 << 20;

TEST(HostFiles, ReadsNumbersAndOrdersNames) {
  const RecordedHost host("");
  host.set("/a/mem10", "0x20\n");
  host.set("/a/mem9", "17 kB\n");
  host.set("/a/other", "-1\n");
  EXPECT_EQ(host.files().names("/a", "mem"), (std::vector<std::string>{"mem9", "mem10"}));
  EXPECT_EQ(host.files().number("/a/mem10"), 32u);
  EXPECT_EQ(host.files().number("/a/mem9"), 17u);
  EXPECT_EQ(host.files().number("/a/other"), std::nullopt);
  EXPECT_EQ(host.files().text("/a/other"), "-1");
  EXPECT_EQ(host.files().text("/a"), std::nullopt);
  EXPECT_EQ(host.files().text("/missing"), std::nullopt);
  EXPECT_TRUE(host.files().names("/missing").empty());
  EXPECT_EQ(host.files().write("/missing", "1").status(), Status::SYSTEM);
}

TEST(HostFiles, FindsComponents) {
  EXPECT_EQ(component_with_prefix("/a/region0/dax_region0/dax0.0", "region"), "region0");
  EXPECT_EQ(component_with_prefix("/a/region/regions1", "region"), "");
  EXPECT_EQ(last_component("/sys/bus/dax/devices/dax0.0"), "dax0.0");
}

TEST(Inventory, OfAHostWithoutCxlIsEmpty) {
  const RecordedHost host("");
  const Inventory found = host.inventory();
  EXPECT_TRUE(found.memory_devices.empty());
  EXPECT_TRUE(found.decoders.empty());
  EXPECT_TRUE(found.regions.empty());
  EXPECT_TRUE(found.dax_devices.empty());
  EXPECT_TRUE(found.nodes.empty());
}

TEST(Inventory, HasFunctionsThatCompute) {
  const RecordedHost host("");
  const std::string folder = "/sys/bus/pci/devices/";
  host.set(folder + "0000:01:00.0/vendor", "0x1af4\n");
  host.set(folder + "0000:01:00.0/device", "0x10f8\n");
  host.set(folder + "0000:01:00.0/numa_node", "1\n");
  host.link(folder + "0000:01:00.0/driver", "../../../bus/pci/drivers/vfio-pci");
  host.set(folder + "0000:02:00.0/vendor", "0x1af4\n");
  host.set(folder + "0000:02:00.0/device", "0x1000\n");
  const auto functions = host.inventory().compute_functions;
  ASSERT_EQ(functions.size(), 1u);
  EXPECT_EQ(functions[0].pci_address, "0000:01:00.0");
  EXPECT_EQ(functions[0].node, 1);
  EXPECT_EQ(functions[0].driver, "vfio-pci");
}

TEST(Inventory, OfAVolatileDeviceAsDevdax) {
  const RecordedHost host("devdax");
  const Inventory found = host.inventory();
  ASSERT_EQ(found.memory_devices.size(), 1u);
  const MemoryDevice& device = found.memory_devices[0];
  EXPECT_EQ(device.name, "mem0");
  EXPECT_EQ(device.serial, 1u);
  EXPECT_EQ(device.volatile_bytes, 512 * kMib);
  EXPECT_EQ(device.persistent_bytes, 0u);
  EXPECT_EQ(device.pci_address, "0000:0d:00.0");
  EXPECT_EQ(device.node, -1);
  EXPECT_EQ(device.firmware, "BWFW VERSION 00");
  EXPECT_EQ(device.endpoint, "endpoint2");

  ASSERT_EQ(found.regions.size(), 1u);
  const Region& region = found.regions[0];
  EXPECT_EQ(region.kind, MemoryKind::VOLATILE);
  EXPECT_EQ(region.size_bytes, 512 * kMib);
  EXPECT_TRUE(region.committed);
  EXPECT_EQ(region.driver, "cxl_region");
  EXPECT_EQ(region.devices, std::vector<std::string>{"mem0"});

  ASSERT_EQ(found.dax_devices.size(), 1u);
  const DaxDevice& dax = found.dax_devices[0];
  EXPECT_EQ(dax.path, "/dev/dax0.0");
  EXPECT_EQ(dax.mode, DaxMode::DEVICE);
  EXPECT_EQ(dax.region, "region0");
  EXPECT_FALSE(dax.persistent);
  EXPECT_EQ(dax.start, region.start);
  EXPECT_EQ(dax.size_bytes, 512 * kMib);
  EXPECT_EQ(dax.align_bytes, 2 * kMib);
  EXPECT_EQ(dax.node, 1);
  EXPECT_TRUE(dax.can_open) << dax.why_not;
}

TEST(Inventory, HasDecodersOfAllLevels) {
  const RecordedHost host("devdax");
  uint64_t of_level[3] = {};
  for (const Decoder& decoder : host.inventory().decoders) {
    ++of_level[static_cast<int>(decoder.level)];
    if (decoder.name == "decoder0.0") {
      EXPECT_TRUE(decoder.takes_volatile);
      EXPECT_EQ(decoder.port, "root0");
      EXPECT_EQ(decoder.size_bytes, 4096 * kMib);
    }
    if (decoder.name == "decoder2.0") {
      EXPECT_EQ(decoder.device, "mem0");
      EXPECT_EQ(decoder.region, "region0");
      EXPECT_EQ(decoder.mode, MemoryKind::VOLATILE);
      EXPECT_EQ(decoder.device_bytes, 512 * kMib);
    }
    if (decoder.name == "decoder2.1") {
      EXPECT_EQ(decoder.device_bytes, 0u);
    }
  }
  EXPECT_EQ(of_level[0], 1u);
  EXPECT_EQ(of_level[1], 4u);
  EXPECT_EQ(of_level[2], 4u);
}

TEST(Inventory, OfInterleavedDevicesNamesBoth) {
  const RecordedHost host("interleaved");
  const Inventory found = host.inventory();
  ASSERT_EQ(found.memory_devices.size(), 2u);
  ASSERT_EQ(found.regions.size(), 1u);
  EXPECT_EQ(found.regions[0].ways, 2u);
  EXPECT_EQ(found.regions[0].granularity_bytes, 4096u);
  EXPECT_EQ(found.regions[0].size_bytes, 1024 * kMib);
  EXPECT_EQ(found.regions[0].devices.size(), 2u);
}

TEST(Inventory, OfAPersistentDevice) {
  const RecordedHost host("persistent");
  const Inventory found = host.inventory();
  ASSERT_EQ(found.memory_devices.size(), 1u);
  EXPECT_EQ(found.memory_devices[0].volatile_bytes, 0u);
  EXPECT_EQ(found.memory_devices[0].persistent_bytes, 512 * kMib);
  ASSERT_EQ(found.dax_devices.size(), 1u);
  EXPECT_TRUE(found.dax_devices[0].persistent);
  EXPECT_EQ(found.dax_devices[0].region, "region0");
  EXPECT_EQ(found.dax_devices[0].size_bytes, 502 * kMib);
  EXPECT_GT(found.dax_devices[0].start.value(), found.regions[0].start.value());
}

TEST(Inventory, OfMemoryThatIsANode) {
  const RecordedHost host("node");
  const Inventory found = host.inventory();
  ASSERT_EQ(found.dax_devices.size(), 1u);
  EXPECT_EQ(found.dax_devices[0].mode, DaxMode::SYSTEM);
  EXPECT_FALSE(found.dax_devices[0].can_open);
  EXPECT_EQ(found.dax_devices[0].why_not, "it is system memory of NUMA node 1");
  ASSERT_EQ(found.nodes.size(), 2u);
  EXPECT_EQ(found.nodes[0].cpus, "0");
  EXPECT_EQ(found.nodes[0].blocks_movable, 0u);
  EXPECT_EQ(found.nodes[1].cpus, "");
  EXPECT_EQ(found.nodes[1].size_bytes, 512 * kMib);
  EXPECT_EQ(found.nodes[1].blocks, 4u);
  EXPECT_EQ(found.nodes[1].blocks_movable, 4u);
}

TEST(Inventory, OfADaxDeviceWithoutDriver) {
  const RecordedHost host("no-driver");
  const Inventory found = host.inventory();
  ASSERT_EQ(found.dax_devices.size(), 1u);
  EXPECT_EQ(found.dax_devices[0].mode, DaxMode::NONE);
  EXPECT_FALSE(found.dax_devices[0].can_open);
}

TEST(Inventory, SaysWhyADeviceCannotBeOpened) {
  const RecordedHost host("devdax");
  host.remove("/dev/dax0.0");
  EXPECT_EQ(host.inventory().dax_devices[0].why_not, "No such file or directory");
  if (geteuid() == 0) GTEST_SKIP() << "root may open every file: no permission is missing";
  host.set("/dev/dax0.0", "");
  chmod(host.files().at("/dev/dax0.0").c_str(), 0400);
  EXPECT_EQ(host.inventory().dax_devices[0].why_not, "Permission denied");
}

}  // namespace
}  // namespace bowhead::shim_test
