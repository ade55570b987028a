// SPDX-License-Identifier: Apache-2.0
// The faster path is the one with the lower measured cost, and measurements are kept.
#include "gpu/devices/path_costs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gpu/devices/pcie_link.h"
#include "tests/gpu/devices.h"

namespace bowhead::gpu {
namespace {

/// A kernel at 50 GB/s after 10 us; copies at 60 GB/s after 20 us, of which each takes 1 us.
PathCosts costs_of_a_gpu() {
  PathCosts::Direction costs;
  costs.kernel_ns = 10'000;
  costs.kernel_byte_ns = {0.4, 0.2, 0.1, 0.02, 0.02};
  costs.copies_ns = 20'000;
  for (size_t i = 0; i < costs.copy_ns.size(); ++i)
    costs.copy_ns[i] = std::max(1000.0, static_cast<double>(PathCosts::kRunBytes[i]) / 60);
  return {costs, costs, {}};
}

TEST(PathCosts, SendLongRunsByCopiesIfThereAreEnoughBytes) {
  const PathCosts costs = costs_of_a_gpu();
  constexpr uint64_t kMuch = 64 << 20;
  for (const uint64_t run : {1u, 64u, 160u, 4096u, 20480u})
    EXPECT_EQ(costs.faster(true, 16, run, kMuch), Path::KERNEL) << run;
  for (const uint64_t run : {128u << 10, 1u << 20, 2u << 20, 64u << 20})
    EXPECT_EQ(costs.faster(true, 16, run, kMuch), Path::COPIES) << run;
  EXPECT_EQ(costs.faster(true, 16, 256 << 10, 256 << 10), Path::KERNEL);
  EXPECT_EQ(costs.faster(true, 2, 20480, kMuch), Path::COPIES) << "small units";
}

TEST(PathCosts, AreThoseOfTheDirection) {
  PathCosts costs = costs_of_a_gpu();
  costs.restore.kernel_byte_ns.fill(0.001);
  EXPECT_EQ(costs.faster(true, 16, 2 << 20, 64 << 20), Path::COPIES);
  EXPECT_EQ(costs.faster(false, 16, 2 << 20, 64 << 20), Path::KERNEL);
}

TEST(PathCosts, AreKeptAndDoubted) {
  const PathCosts costs = costs_of_a_gpu();
  const auto again = PathCosts::from_json(costs.to_json());
  ASSERT_DONE(again);
  EXPECT_EQ(again->spill.kernel_byte_ns, costs.spill.kernel_byte_ns);
  EXPECT_EQ(again->restore.copy_ns, costs.restore.copy_ns);
  EXPECT_EQ(again->spill.kernel_ns, costs.spill.kernel_ns);
  EXPECT_EQ(again->spill.copies_ns, costs.spill.copies_ns);
  std::string other = costs.to_json();
  other.replace(other.find("\"version\": 1"), 12, "\"version\": 2");
  const std::string cut = costs.to_json().substr(0, 100);
  for (const std::string& text : {std::string(), std::string("[]"), cut, other})
    EXPECT_EQ(PathCosts::from_json(text).status(), Status::DAMAGED) << text;
}

class MeasuredCosts : public EveryDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, MeasuredCosts, kEveryDevice, device_name);

TEST_P(MeasuredCosts, SayThatShortRunsTakeLongerByCopies) {
  const auto costs = measure_path_costs(device());
  ASSERT_DONE(costs);
  for (const PathCosts::Direction& one : {costs->spill, costs->restore}) {
    EXPECT_GT(one.kernel_ns, 0);
    EXPECT_GT(one.copies_ns, 0);
    EXPECT_GT(one.kernel_byte_ns[0], 0);
    // The CPU device's copies cost nothing compared with its sums, and, on a loaded machine, with
    // what else happens in the measurement: the difference may be 0.
    if (device().info().is_cpu) continue;
    EXPECT_GT(one.copy_ns.back(), 0);
    EXPECT_GT(one.copy_ns.front() / 128, one.copy_ns.back() / (2 << 20));
  }
}

TEST_P(MeasuredCosts, AreThoseOfTheFirstTime) {
  const auto first = path_costs(device()), again = path_costs(device());
  ASSERT_DONE(first);
  ASSERT_DONE(again);
  EXPECT_EQ(first->to_json(), again->to_json());
}

TEST(MeasuredCostsOfACpuDevice, NameMissingParts) {
  const auto cpu = Device::cpu({.memory_bytes = 4096});
  EXPECT_EQ(measure_path_costs(*cpu).status(), Status::NO_SPACE);
}

// ---- kept for all processes of a host ----

/// A folder that is removed with the test.
class KeptCosts : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "bowhead-costs-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    cache_.folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(cache_.folder); }

  /// Work that a device does to measure its costs, when no other has; returns its amount.
  size_t work_of_one(uint64_t memory_bytes = uint64_t{1} << 30) {
    const auto gate = std::make_shared<Gate>();
    const auto cpu = gated_cpu_device(gate, {.memory_bytes = memory_bytes});
    const auto costs = path_costs(*cpu, cache_);
    EXPECT_DONE(costs);
    if (costs) because_ = costs->assumed_because;
    return gate->count();
  }
  std::filesystem::path file() const {
    return cache_.file_for({.name = "cpu", .is_cpu = true, .link = "none", .driver = "none"});
  }
  int locked() const {
    std::filesystem::path lock = file();
    lock += ".lock";
    const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    EXPECT_EQ(flock(fd, LOCK_EX), 0);
    return fd;
  }

  PathCostsCache cache_{{}, std::chrono::minutes(5)};
  std::string because_;
};

TEST_F(KeptCosts, AreMeasuredOnce) {
  EXPECT_GT(work_of_one(), 0);
  EXPECT_TRUE(std::filesystem::exists(file()));
  EXPECT_EQ(work_of_one(), 0);
  std::ofstream(file()) << "{}";
  EXPECT_GT(work_of_one(), 0) << "the kept costs are damaged";
}

/// Like the ranks of an engine: all start at once, on GPUs of one kind.
TEST_F(KeptCosts, AreMeasuredByOneOfAllProcesses) {
  int start[2];
  ASSERT_EQ(pipe(start), 0);
  std::vector<pid_t> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    char go = 0;
    close(start[1]);
    (void)!read(start[0], &go, 1);  // ends when the parent closes it
    const size_t work = work_of_one();
    _exit(HasFailure() || !because_.empty() ? 2 : work != 0);
  }
  close(start[0]);
  close(start[1]);
  int measured = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    ASSERT_EQ(waitpid(rank, &status, 0), rank);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_LE(WEXITSTATUS(status), 1);
    measured += WEXITSTATUS(status);
  }
  EXPECT_EQ(measured, 1);
}

TEST_F(KeptCosts, AreAssumedWhereAnotherMeasuresForTooLong) {
  const int other = locked();
  cache_.wait = std::chrono::milliseconds(30);
  EXPECT_EQ(work_of_one(), 0);
  EXPECT_NE(because_.find(".lock"), std::string::npos) << because_;
  EXPECT_FALSE(std::filesystem::exists(file()));
  close(other);
  EXPECT_GT(work_of_one(), 0);
  EXPECT_EQ(because_, "");
}

TEST_F(KeptCosts, DoNotWaitForTheDead) {
  int held[2];
  ASSERT_EQ(pipe(held), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    (void)locked();
    (void)!write(held[1], "x", 1);
    for (;;) pause();
  }
  char is_held = 0;
  ASSERT_EQ(read(held[0], &is_held, 1), 1);
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_GT(work_of_one(), 0);
  EXPECT_EQ(because_, "");
  close(held[0]);
  close(held[1]);
}

TEST_F(KeptCosts, AreAssumedWhereTheDeviceIsFull) {
  EXPECT_EQ(work_of_one(4096), 0);
  EXPECT_NE(because_.find("64 MiB"), std::string::npos) << because_;
  EXPECT_FALSE(std::filesystem::exists(file()));
  EXPECT_GT(work_of_one(), 0) << "assumed costs are not kept";
}

TEST_F(KeptCosts, AreMeasuredWhereNothingCanBeKept) {
  cache_.folder = "/proc/no such folder";
  EXPECT_GT(work_of_one(), 0);
  EXPECT_EQ(because_, "");
}

TEST_F(KeptCosts, AreOfAHostAGpuALinkAndADriver) {
  const DeviceInfo info{.name = "NVIDIA H200", .link = "32.0 GT/s x16", .driver = "13.0"};
  DeviceInfo other_gpu = info, other_link = info, other_driver = info;
  other_gpu.name = "NVIDIA B200";
  other_link.link = "32.0 GT/s x8";
  other_driver.driver = "13.1";
  const auto file = cache_.file_for(info);
  for (const DeviceInfo& other : {other_gpu, other_link, other_driver})
    EXPECT_NE(cache_.file_for(other), file);
  std::array<char, 256> host = {};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const std::string begin = std::string("gpu-paths-") + host.data();
  EXPECT_EQ(file.filename().string().substr(0, begin.size()), begin);
}

// ---- links ----

/// Devices as Linux presents them: a GPU behind a port.
class PcieLink : public KeptCosts {
 protected:
  void SetUp() override {
    KeptCosts::SetUp();
    std::filesystem::create_directories(gpu());
    std::filesystem::create_directories(devices());
    std::filesystem::create_directory_symlink(gpu(), devices() / "0000:41:00.0");
  }
  std::filesystem::path devices() const { return cache_.folder / "bus"; }
  std::filesystem::path port() const { return cache_.folder / "pci0000:40" / "0000:40:01.1"; }
  std::filesystem::path gpu() const { return port() / "0000:41:00.0"; }
  std::string link() const { return pcie_link("0000:41:00.0", devices()); }
};

TEST_F(PcieLink, IsTheBestThatBothEndsAgreeOn) {
  EXPECT_EQ(link(), "unknown");
  std::ofstream(gpu() / "max_link_speed") << "32.0 GT/s PCIe\n";
  EXPECT_EQ(link(), "unknown");
  std::ofstream(gpu() / "current_link_width") << "8\n";
  std::ofstream(gpu() / "current_link_speed") << "2.5 GT/s PCIe\n";
  EXPECT_EQ(link(), "32.0 GT/s x8");
  std::ofstream(port() / "max_link_speed") << "16.0 GT/s PCIe\n";
  EXPECT_EQ(link(), "16.0 GT/s x8");
  EXPECT_EQ(pcie_link("0000:41:00.1", devices()), "unknown");
  EXPECT_EQ(pcie_link("", devices()), "unknown");
}

}  // namespace
}  // namespace bowhead::gpu
