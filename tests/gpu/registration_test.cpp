// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/registration.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <random>

#include "gpu/devices/pinned_range.h"
#include "tests/gpu/devices.h"
#include "tests/support/no_threads.h"
#include "tests/support/pools.h"

namespace bowhead::gpu {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
constexpr uint64_t kPageBytes = 4096;

std::unique_ptr<Registration> make(Device& device, const Mapping& mapping) {
  auto made = Registration::create(device, Span{mapping.data(), mapping.size_bytes()}, kChunkBytes);
  EXPECT_DONE(made);
  return made ? std::move(*made) : nullptr;
}

/// Waits until the thread has registered that much.
void wait_for(const Registration& registration, uint64_t registered_bytes) {
  while (registration.registered_bytes() < registered_bytes) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- every device ----

class RegistrationContract : public EveryDevice {
 protected:
  PointerKind kind(const void* pointer) {
    auto classified = device().classify(pointer);
    EXPECT_DONE(classified);
    return classified ? *classified : PointerKind::OTHER;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RegistrationContract, kEveryDevice, device_name);

TEST_P(RegistrationContract, RegistersTouchedChunksAndUnregistersThem) {
  const Mapping mapping(4 * kChunkBytes + 3 * kPageBytes);
  auto registration = make(device(), mapping);
  EXPECT_EQ(registration->registered_bytes(), 0u);
  EXPECT_EQ(registration->device_address(0).status(), Status::INVALID_ARGUMENT);

  ASSERT_DONE(registration->ensure(2 * kChunkBytes - 1, 2));  // of chunks 1 and 2
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_EQ(kind(mapping.data()), PointerKind::HOST);
  EXPECT_EQ(kind(mapping.data() + kChunkBytes), PointerKind::REGISTERED);
  EXPECT_EQ(kind(mapping.data() + 3 * kChunkBytes - 1), PointerKind::REGISTERED);
  EXPECT_EQ(kind(mapping.data() + 3 * kChunkBytes), PointerKind::HOST);
  EXPECT_EQ(registration->device_address(kChunkBytes - 1).status(), Status::INVALID_ARGUMENT);

  for (const uint64_t offset : {kChunkBytes, kChunkBytes + 5, 2 * kChunkBytes}) {
    auto address = registration->device_address(offset);
    ASSERT_DONE(address);
    EXPECT_EQ(*address, *device().device_address(mapping.data() + offset));
  }
  const auto reach = [&](uint64_t offset, uint64_t size_bytes) {
    return registration->reach(offset, size_bytes, DeviceAccess::READ_AND_WRITE);
  };
  auto reached = reach(2 * kChunkBytes - 1, 2);
  ASSERT_DONE(reached);
  EXPECT_EQ(*reached, *registration->device_address(2 * kChunkBytes - 1));
  EXPECT_EQ(reach(mapping.size_bytes(), 1).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(reach(0, 0).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(4 * kChunkBytes, 1));  // the short one
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes + 3 * kPageBytes);
  ASSERT_DONE(registration->ensure(0, mapping.size_bytes()));
  EXPECT_EQ(registration->registered_bytes(), mapping.size_bytes());

  registration.reset();
  for (uint64_t offset = 0; offset < mapping.size_bytes(); offset += kPageBytes) {
    ASSERT_EQ(kind(mapping.data() + offset), PointerKind::HOST) << offset;
  }
}

TEST_P(RegistrationContract, CopiesAcrossChunksInParts) {
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(device(), mapping);
  constexpr uint64_t kOffset = kChunkBytes - 1001;
  constexpr uint64_t kSizeBytes = 2 * kChunkBytes + 3003;
  ASSERT_DONE(registration->ensure(kOffset, kSizeBytes));
  std::mt19937 random(1);
  for (uint64_t i = 0; i < kSizeBytes; ++i) {
    mapping.data()[kOffset + i] = static_cast<std::byte>(random());
  }
  auto memory = device().allocate(kSizeBytes);
  auto stream = device().make_stream(0);
  auto event = device().make_event();
  ASSERT_DONE(memory);
  ASSERT_DONE(stream);
  ASSERT_DONE(event);
  std::vector<CopyRun> runs;
  registration->for_chunks(kOffset, kSizeBytes, [&](uint64_t offset, uint64_t size_bytes) {
    auto* const to = static_cast<std::byte*>(*memory) + (offset - kOffset);
    runs.push_back({to, mapping.data() + offset, size_bytes});
  });
  ASSERT_EQ(runs.size(), 4u);
  std::vector<std::byte> got(kSizeBytes);
  ASSERT_DONE(device().copy_batch(runs, *stream));
  ASSERT_DONE(device().copy(got.data(), *memory, kSizeBytes, *stream));
  ASSERT_DONE(device().record(*event, *stream));
  ASSERT_DONE(device().synchronize(*event));
  EXPECT_EQ(std::memcmp(got.data(), mapping.data() + kOffset, kSizeBytes), 0);
  device().free(*memory);
  device().destroy_event(*event);
  device().destroy_stream(*stream);
}

TEST_P(RegistrationContract, WithoutAThreadItSaysSoAndTriesAgainLater) {
  const Mapping mapping(2 * kChunkBytes);
  auto registration = make(device(), mapping);
  {
    const test::NoThreads none;
    EXPECT_EQ(registration->ensure(0, 1).status(), Status::SYSTEM);
    EXPECT_EQ(registration->reach(0, 1, DeviceAccess::READ).status(), Status::SYSTEM);
    EXPECT_EQ(registration->register_rest().status(), Status::SYSTEM);
  }
  EXPECT_EQ(registration->registered_bytes(), 0u);
  ASSERT_DONE(registration->ensure(0, mapping.size_bytes()));
  EXPECT_EQ(registration->registered_bytes(), mapping.size_bytes());
}

TEST_P(RegistrationContract, RegistersTheRestInTheBackground) {
  const Mapping mapping(9 * kChunkBytes + kPageBytes);
  auto registration = make(device(), mapping);
  ASSERT_DONE(registration->register_rest());
  ASSERT_DONE(registration->register_rest());  // nothing more to do
  wait_for(*registration, mapping.size_bytes());
  ASSERT_DONE(registration->ensure(0, mapping.size_bytes()));
  EXPECT_EQ(kind(mapping.data() + mapping.size_bytes() - 1), PointerKind::REGISTERED);
  ASSERT_DONE(registration->register_rest());  // finds nothing
  registration.reset();
  EXPECT_EQ(kind(mapping.data()), PointerKind::HOST);
}

TEST_P(RegistrationContract, KeepsRefusals) {
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(device(), mapping);
  std::byte* const others = mapping.data() + 2 * kChunkBytes + kPageBytes;
  ASSERT_DONE(device().register_host(others, kPageBytes));

  const auto refused = registration->ensure(0, 4 * kChunkBytes);
  ASSERT_EQ(refused.status(), Status::INVALID_ARGUMENT) << "BUSY would be: try again";
  EXPECT_NE(refused.error().detail.find("at 4194304: "), std::string::npos)
      << refused.error().detail;
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes) << "those before it";
  EXPECT_DONE(registration->device_address(kChunkBytes));
  EXPECT_EQ(registration->device_address(2 * kChunkBytes).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(3 * kChunkBytes, 1));

  ASSERT_DONE(device().unregister_host(others));
  const size_t calls = gate_->count();
  registration->retry();  // of limits
  const auto still_refused = registration->ensure(2 * kChunkBytes, 1);
  ASSERT_EQ(still_refused.status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(still_refused.error().detail, refused.error().detail);
  EXPECT_EQ(gate_->count(), calls) << "the driver was asked again";
}

TEST_P(RegistrationContract, OutlivesItsMapping) {
  auto mapping = std::make_unique<Mapping>(2 * kChunkBytes);
  auto registration = make(device(), *mapping);
  ASSERT_DONE(registration->ensure(0, kChunkBytes));
  mapping.reset();
  const auto gone = registration->ensure(kChunkBytes, 1);
  EXPECT_EQ(gone.status(), Status::INVALID_ARGUMENT);
  EXPECT_NE(message_of(gone).find("not mapped"), std::string::npos) << message_of(gone);
  registration.reset();
  const Mapping other(kPageBytes);
  ASSERT_DONE(device().register_host(other.data(), kPageBytes));
  ASSERT_DONE(device().unregister_host(other.data()));
}

TEST_P(RegistrationContract, RefusesImpossibleRequests) {
  const Mapping mapping(4 * kPageBytes);
  const auto create = [&](std::byte* data, size_t size_bytes, uint64_t chunk_bytes) {
    return Registration::create(device(), Span{data, size_bytes}, chunk_bytes).status();
  };
  EXPECT_EQ(create(nullptr, kPageBytes, kChunkBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), 0, kChunkBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), kPageBytes, 0), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), kPageBytes, kPageBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data() + 8, kPageBytes, kChunkBytes), Status::MISALIGNED);
  EXPECT_EQ(create(mapping.data(), 100, kChunkBytes), Status::MISALIGNED);

  const auto registration = make(device(), mapping);
  EXPECT_EQ(registration->ensure(4 * kPageBytes, 1).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->ensure(1, 4 * kPageBytes).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->ensure(1, UINT64_MAX).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->device_address(4 * kPageBytes).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(4 * kPageBytes, 0));
  EXPECT_EQ(registration->registered_bytes(), 0u);
  ASSERT_DONE(registration->ensure(0, 1));
  EXPECT_EQ(registration->registered_bytes(), 4 * kPageBytes);
}

// ---- with the CPU device's limits and faults ----

TEST(Registration, AsksAgainAfterALimitOnlyOnRequest) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate, {.most_registered_bytes = 3 * kChunkBytes});
  const Mapping others(kChunkBytes);
  ASSERT_DONE(cpu->register_host(others.data(), kChunkBytes));
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(*cpu, mapping);
  EXPECT_EQ(registration->ensure(0, 4 * kChunkBytes).status(), Status::LIMIT_REACHED);
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  const size_t calls = gate->count();
  EXPECT_EQ(calls, 4u) << "one for the others, two chunks, one that was refused";

  ASSERT_DONE(cpu->unregister_host(others.data()));
  EXPECT_EQ(registration->ensure(2 * kChunkBytes, 1).status(), Status::LIMIT_REACHED);
  EXPECT_EQ(gate->count(), calls);
  registration->retry();
  ASSERT_DONE(registration->ensure(2 * kChunkBytes, 1));
  EXPECT_EQ(gate->count(), calls + 1);
}

TEST(Registration, LeavesOffInTheBackgroundAtALimit) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate, {.most_registered_bytes = 2 * kChunkBytes});
  const Mapping mapping(100 * kChunkBytes);
  const auto registration = make(*cpu, mapping);
  ASSERT_DONE(registration->register_rest());
  gate->wait_for(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it could have continued by then
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_EQ(gate->count(), 3u);
}

TEST(Registration, AnswersWhileTheDriverPins) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate);
  const Mapping mapping(2 * kChunkBytes);
  const auto registration = make(*cpu, mapping);
  gate->hold_next(1);
  const auto reach = [&](uint64_t offset, uint64_t size_bytes) {
    return registration->reach(offset, size_bytes, DeviceAccess::READ).status();
  };
  // In a thread, since a call that waits would wait for ever.
  auto asked = std::async(std::launch::async, [&] { return reach(0, 2 * kChunkBytes); });
  ASSERT_EQ(asked.wait_for(std::chrono::minutes(2)), std::future_status::ready);
  EXPECT_EQ(asked.get(), Status::BUSY);
  gate->wait_for(1);
  EXPECT_EQ(reach(0, 1), Status::BUSY);
  EXPECT_EQ(registration->device_address(0).status(), Status::INVALID_ARGUMENT);
  gate->let_go();
  wait_for(*registration, 2 * kChunkBytes);
  EXPECT_EQ(reach(0, 2 * kChunkBytes), Status::OK);
  EXPECT_EQ(gate->count(), 2u) << "each chunk once";
}

TEST(Registration, RegistersRequestedChunksFirst) {
  const auto gate = std::make_shared<Gate>();
  struct Watched : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
      order.push_back(static_cast<std::byte*>(memory));
      return device_.register_host(memory, size_bytes, access);
    }
    std::vector<std::byte*> order;  ///< of the one thread that registers
  };
  const auto cpu = gated_cpu_device(gate);
  Watched watched(*cpu);
  const Mapping mapping(8 * kChunkBytes);
  {
    const auto registration = make(watched, mapping);
    gate->hold_next(1);
    ASSERT_DONE(registration->register_rest());
    gate->wait_for(1);  // the thread is at chunk 0
    EXPECT_EQ(registration->reach(5 * kChunkBytes, 3 * kChunkBytes, DeviceAccess::READ).status(),
              Status::BUSY);
    gate->let_go();
    wait_for(*registration, 8 * kChunkBytes);
  }
  std::vector<std::byte*> want;
  for (const uint64_t chunk : {0, 5, 6, 7, 1, 2, 3, 4})
    want.push_back(mapping.data() + chunk * kChunkBytes);
  EXPECT_EQ(watched.order, want);
}

TEST(Registration, WaitsForAChunkOnRequest) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate);
  const Mapping mapping(kChunkBytes);
  const auto registration = make(*cpu, mapping);
  gate->hold_next(1);
  ASSERT_DONE(registration->register_rest());
  gate->wait_for(1);
  auto transfer =
      std::async(std::launch::async, [&] { return registration->ensure(0, 1).status(); });
  EXPECT_EQ(transfer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->let_go();
  EXPECT_EQ(transfer.get(), Status::OK);
  EXPECT_EQ(gate->count(), 1u);
}

TEST(Registration, IsDestroyedWhileItRegisters) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate);
  const Mapping mapping(64 * kChunkBytes);
  auto registration = make(*cpu, mapping);
  gate->hold_next(1);
  ASSERT_DONE(registration->register_rest());
  gate->wait_for(1);
  auto destroyed = std::async(std::launch::async, [&] { registration.reset(); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->let_go();
  destroyed.get();
  EXPECT_EQ(gate->count(), 1u);
  EXPECT_EQ(*cpu->classify(mapping.data()), PointerKind::HOST);
}

TEST(Registration, RegistersEachChunkOnceForManyThreads) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate);
  constexpr uint64_t kChunks = 64;
  const Mapping mapping(kChunks * kChunkBytes);
  const auto registration = make(*cpu, mapping);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 200; ++i) {
        const uint64_t offset = random() % (mapping.size_bytes() - kChunkBytes);
        EXPECT_DONE(registration->ensure(offset, 1 + random() % kChunkBytes));
        auto address = registration->device_address(offset);
        ASSERT_DONE(address);
        EXPECT_EQ(*address, mapping.data() + offset);
      }
    });
  }
  ASSERT_DONE(registration->register_rest());
  for (std::thread& thread : threads) thread.join();
  wait_for(*registration, mapping.size_bytes());
  EXPECT_EQ(gate->count(), kChunks);
}

TEST(Registration, OutlivesALostDevice) {
  const auto gate = std::make_shared<Gate>();
  const auto cpu = gated_cpu_device(gate);
  const Mapping mapping(100 * kChunkBytes);
  auto registration = make(*cpu, mapping);
  ASSERT_DONE(registration->ensure(0, 1));
  gate->lose_from(2);
  ASSERT_DONE(registration->register_rest());
  gate->wait_for(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it could have continued by then
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_DONE(registration->ensure(0, 2 * kChunkBytes));
  EXPECT_EQ(registration->ensure(50 * kChunkBytes, 1).status(), Status::GPU_LOST);
  registration.reset();
}

/// A device that needs an explicit request for read-only memory, and separate chunks.
TEST(Registration, SaysForWhichUseAChunkIsNotRegistered) {
  struct ReadsOnly : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
      if (access == DeviceAccess::READ_AND_WRITE)
        return Error{Status::NOT_SUPPORTED, "it is read-only"};
      return device_.register_host(memory, size_bytes, access);
    }
    Result<void*> device_address(void* registered) override {
      return static_cast<std::byte*>(registered) + (1 << 20) * ++asked;
    }
    int asked = 0;
  };
  const auto cpu = Device::cpu({.registers_read_only = true});
  ReadsOnly reads_only(*cpu);
  const Mapping mapping(2 * kChunkBytes);
  const auto registration = make(reads_only, mapping);
  ASSERT_DONE(registration->ensure(0, 2 * kChunkBytes));
  ASSERT_DONE(registration->reach(0, kChunkBytes, DeviceAccess::READ));
  const auto refused = [&](uint64_t size_bytes, DeviceAccess access, const char* says) {
    const auto reached = registration->reach(0, size_bytes, access);
    EXPECT_EQ(reached.status(), Status::NOT_SUPPORTED);
    EXPECT_NE(message_of(reached).find(says), std::string::npos) << message_of(reached);
  };
  refused(1, DeviceAccess::READ_AND_WRITE, "for reading only");
  refused(kChunkBytes + 1, DeviceAccess::READ, "apart");

  const auto neither = Device::cpu();
  ReadsOnly refuses(*neither);
  const auto without = make(refuses, mapping);
  EXPECT_EQ(message_of(without->ensure(0, 1)),
            "NOT_SUPPORTED: chunk of 2097152 bytes at 0: it is read-only");
}

// ---- of a pool, as a driver pins it ----

struct PoolOfKind {
  const char* name;
  std::string (*locator)();
  uint32_t hosts;
};

std::string in_shared_memory() {
  return "file:/dev/shm/test-" + std::to_string(getpid()) + ".bowhead";
}
std::string on_a_disk() {
  return "file:" + (std::filesystem::temp_directory_path() /
                    ("test-" + std::to_string(getpid()) + ".bowhead"))
                       .string();
}

class RegistrationOfPools : public testing::TestWithParam<PoolOfKind> {
 protected:
  void SetUp() override {
    cpu_ = Device::cpu({.registers_read_only = true});
    if (!cpu_->info().pin_fault.empty()) GTEST_SKIP() << cpu_->info().pin_fault;
    CreateOptions create;
    create.size_bytes = 64 << 20;
    create.hosts = GetParam().hosts;
    const auto created = Pool::create(locator_, create);
    if (created.status() == Status::NOT_SUPPORTED) GTEST_SKIP() << message_of(created);
    ASSERT_DONE(created);
    is_created_ = true;
    auto opened = Pool::open(locator_);
    ASSERT_DONE(opened);
    pool_ = std::make_unique<Pool>(std::move(*opened));
  }
  void TearDown() override {
    pool_.reset();
    if (is_created_) {
      EXPECT_DONE(Pool::destroy(locator_, true));
    }
  }

  const std::string locator_ = GetParam().locator();
  bool is_created_ = false;
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Pool> pool_;
};
INSTANTIATE_TEST_SUITE_P(Pools, RegistrationOfPools,
                         testing::Values(PoolOfKind{"ShmOfOneHost", test::unique_locator, 1},
                                         PoolOfKind{"ShmOfTwoHosts", test::unique_locator, 2},
                                         PoolOfKind{"FileInMemoryOfOneHost", in_shared_memory, 1},
                                         PoolOfKind{"FileInMemoryOfTwoHosts", in_shared_memory, 2},
                                         PoolOfKind{"FileOnADiskOfOneHost", on_a_disk, 1},
                                         PoolOfKind{"FileOnADiskOfTwoHosts", on_a_disk, 2}),
                         [](const auto& of) { return of.param.name; });

/// Whether the kernel lets a process pin bytes of that file for writing.
bool can_be_pinned(const std::string& locator) {
  if (!locator.starts_with("file:")) return true;
  const int fd = open(locator.substr(5).c_str(), O_RDWR | O_CLOEXEC);
  void* const memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_NE(memory, MAP_FAILED) << locator;
  const bool can =
      static_cast<bool>(PinnedRange::pin(memory, kPageBytes, DeviceAccess::READ_AND_WRITE));
  munmap(memory, kPageBytes);
  close(fd);
  return can;
}

TEST_P(RegistrationOfPools, PinsEveryChunk) {
  auto registration = std::move(Registration::create(*cpu_, *pool_, kChunkBytes).value());
  const uint64_t size_bytes = registration->size_bytes();
  EXPECT_EQ(size_bytes, pool_->mapping().size);
  uint64_t refused = 0;
  for (uint64_t offset = 0; offset < size_bytes; offset += kChunkBytes)
    refused += !registration->ensure(offset, 1);
  EXPECT_EQ(refused, 0u) << "of " << size_bytes / kChunkBytes << " chunks";
  EXPECT_EQ(registration->registered_bytes(), size_bytes);
  EXPECT_DONE(registration->reach(0, size_bytes, DeviceAccess::READ));
  const auto written = registration->reach(0, size_bytes, DeviceAccess::READ_AND_WRITE);
  EXPECT_EQ(written.status(), can_be_pinned(locator_) ? Status::OK : Status::NOT_SUPPORTED)
      << message_of(written);
}

/// And can outlive the pool.
TEST_P(RegistrationOfPools, AreTheSameMemory) {
  auto registration = std::move(Registration::create(*cpu_, *pool_, kChunkBytes).value());
  ASSERT_DONE(registration->ensure(0, registration->size_bytes()));
  const auto ns = pool_->open_namespace({"test", "bytes"}).value();
  const auto value = test::bytes(100'000, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(pool_->put(ns, "key", in), Status::OK);
  auto lease = pool_->acquire(ns, "key", 60'000);
  ASSERT_DONE(lease);
  const void* const there = registration->device_address(lease->offset).value();
  EXPECT_NE(there, lease->data);
  EXPECT_EQ(std::memcmp(there, value.data(), value.size()), 0);
  ASSERT_EQ(pool_->release(*lease), Status::OK);
  pool_.reset();
  EXPECT_EQ(std::memcmp(there, value.data(), value.size()), 0);
}

}  // namespace
}  // namespace bowhead::gpu
