// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <future>
#include <random>

#include "gpu/kernels/check.h"
#include "tests/gpu/devices.h"

namespace bowhead::gpu {
namespace {

constexpr size_t kPageBytes = 4096;

std::vector<std::byte> random_bytes(size_t size_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// With a stream and an event, and memory that is freed automatically.
class DeviceContract : public EveryDevice {
 protected:
  void SetUp() override {
    EveryDevice::SetUp();
    if (!device_) return;
    stream_ = make_stream();
    event_ = make_event();
  }

  void TearDown() override {
    gate_->let_go();
    for (const Stream stream : streams_) device_->destroy_stream(stream);
    for (const Event event : events_) device_->destroy_event(event);
    for (void* const memory : memory_) device_->free(memory);
  }

  Stream make_stream(int priority = 0) {
    auto made = device().make_stream(priority);
    EXPECT_DONE(made);
    if (!made) return nullptr;
    return streams_.emplace_back(*made);
  }
  Event make_event() {
    auto made = device().make_event();
    EXPECT_DONE(made);
    if (!made) return nullptr;
    return events_.emplace_back(*made);
  }
  std::byte* allocate(size_t size_bytes) { return keep(device().allocate(size_bytes)); }
  std::byte* allocate_pinned(size_t size_bytes) {
    return keep(device().allocate_pinned(size_bytes));
  }

  PointerKind kind(const void* pointer) {
    auto classified = device().classify(pointer);
    EXPECT_DONE(classified);
    return classified ? *classified : PointerKind::OTHER;
  }

  void copy(void* to, const void* from, size_t size_bytes) {
    EXPECT_DONE(device().copy(to, from, size_bytes, stream_));
  }
  void finish() {
    EXPECT_DONE(device().record(event_, stream_));
    EXPECT_DONE(device().synchronize(event_));
  }
  std::vector<std::byte> read(const void* memory, size_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    copy(bytes.data(), memory, size_bytes);
    finish();
    return bytes;
  }

  /// Queues work in `stream` that is not done until let_go(), or, on a GPU, for a while.
  void keep_busy(Stream stream) {
    const size_t size_bytes = device().info().is_cpu ? 16 : size_t{64} << 20;
    const int copies = device().info().is_cpu ? 1 : 128;
    std::byte* const to = allocate(size_bytes);
    std::byte* const from = allocate_pinned(size_bytes);
    std::memset(from, 0, size_bytes);
    const size_t held = gate_->hold_next(1);
    for (int i = 0; i < copies; ++i) EXPECT_DONE(device().copy(to, from, size_bytes, stream));
    if (device().info().is_cpu) gate_->wait_for(held + 1);
  }

  /// Waits long enough for unhindered work to be done.
  void expect_waits(Event event) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    auto done = device().is_done(event);
    ASSERT_DONE(done);
    EXPECT_FALSE(*done);
  }

  Stream stream_ = nullptr;
  Event event_ = nullptr;

 private:
  std::byte* keep(Result<void*> allocated) {
    EXPECT_DONE(allocated);
    if (!allocated) return nullptr;
    memory_.push_back(*allocated);
    return static_cast<std::byte*>(*allocated);
  }

  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::vector<void*> memory_;
};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, kEveryDevice, device_name);

// ---- memory ----

TEST_P(DeviceContract, ClassifiesEveryKindOfPointer) {
  std::byte* const on_device = allocate(10'000);
  std::byte* const pinned = allocate_pinned(10'000);
  const auto heap = std::make_unique<std::byte[]>(100);
  const Mapping mapping(4 * kPageBytes);
  std::byte* const registered = mapping.data() + kPageBytes;
  ASSERT_DONE(device().register_host(registered, 2 * kPageBytes));

  EXPECT_EQ(kind(on_device), PointerKind::DEVICE);
  EXPECT_EQ(kind(on_device + 9'999), PointerKind::DEVICE);
  EXPECT_EQ(kind(pinned), PointerKind::REGISTERED);
  EXPECT_EQ(kind(pinned + 9'999), PointerKind::REGISTERED);
  EXPECT_EQ(kind(registered), PointerKind::REGISTERED);
  EXPECT_EQ(kind(registered + 2 * kPageBytes - 1), PointerKind::REGISTERED);
  EXPECT_EQ(kind(registered - 1), PointerKind::HOST);
  EXPECT_EQ(kind(registered + 2 * kPageBytes), PointerKind::HOST);
  EXPECT_EQ(kind(heap.get()), PointerKind::HOST);
  EXPECT_EQ(kind(nullptr), PointerKind::HOST);

  ASSERT_DONE(device().unregister_host(registered));
  EXPECT_EQ(kind(registered), PointerKind::HOST);
}

TEST_P(DeviceContract, AllocatesAlignedMemoryUntilThereIsNone) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate(1)) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate(257)) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate_pinned(1)) % 256, 0u);
  EXPECT_EQ(device().allocate(0).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().allocate_pinned(0).status(), Status::INVALID_ARGUMENT);
  const uint64_t all_bytes = device().info().memory_bytes;
  EXPECT_EQ(device().allocate(all_bytes + 1).status(), Status::NO_SPACE);
  device().free(nullptr);
}

TEST_P(DeviceContract, RefusesMemoryThatItCannotRegister) {
  const Mapping mapping(8 * kPageBytes);
  std::byte* const memory = mapping.data();
  EXPECT_EQ(device().register_host(nullptr, kPageBytes).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().register_host(memory, 0).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().register_host(memory + 64, kPageBytes).status(), Status::MISALIGNED);
  EXPECT_EQ(device().register_host(memory, 100).status(), Status::MISALIGNED);
  EXPECT_EQ(device().unregister_host(memory).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().device_address(memory).status(), Status::INVALID_ARGUMENT);

  std::byte* const middle = memory + 2 * kPageBytes;
  ASSERT_DONE(device().register_host(middle, 4 * kPageBytes));
  EXPECT_EQ(device().register_host(middle, 4 * kPageBytes).status(), Status::BUSY);
  EXPECT_EQ(device().register_host(memory, 8 * kPageBytes).status(), Status::BUSY);
  EXPECT_EQ(device().register_host(memory, 3 * kPageBytes).status(), Status::BUSY);
  EXPECT_EQ(device().unregister_host(middle + kPageBytes).status(), Status::INVALID_ARGUMENT);
  EXPECT_DONE(device().device_address(middle + 5));

  ASSERT_DONE(device().register_host(memory, 2 * kPageBytes)) << "beside it";
  ASSERT_DONE(device().unregister_host(memory));
  ASSERT_DONE(device().unregister_host(middle));
  EXPECT_EQ(device().unregister_host(middle).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(device().register_host(memory, 8 * kPageBytes)) << "it was let go";
  ASSERT_DONE(device().unregister_host(memory));
}

TEST_P(DeviceContract, LetsGoOfMemoryThatWasUnmapped) {
  Result<void> gone;
  // Another mapping of this process may take the same addresses at once.
  for (int tries = 0; tries < 20 && gone; ++tries) {
    auto mapping = std::make_unique<Mapping>(4 * kPageBytes);
    std::byte* const memory = mapping->data();
    ASSERT_DONE(device().register_host(memory, 4 * kPageBytes));
    mapping.reset();
    ASSERT_DONE(device().unregister_host(memory));
    gone = device().register_host(memory, 4 * kPageBytes);
    if (gone) {
      ASSERT_DONE(device().unregister_host(memory));
    }
  }
  EXPECT_EQ(gone.status(), Status::INVALID_ARGUMENT);
  EXPECT_NE(message_of(gone).find("not mapped"), std::string::npos) << message_of(gone);
  std::byte* const other = allocate(100);
  const auto bytes = random_bytes(100, 1);  // there until it was copied
  copy(other, bytes.data(), bytes.size());
  EXPECT_EQ(read(other, bytes.size()), bytes) << "nothing else is affected";
}

// ---- copies ----

TEST_P(DeviceContract, CopiesBetweenAllKindsOfMemory) {
  constexpr size_t kSizeBytes = 300'001;
  constexpr size_t kRoomBytes = 75 * kPageBytes;
  const Mapping mapping(kRoomBytes);
  ASSERT_DONE(device().register_host(mapping.data(), kRoomBytes));
  const auto heap = std::make_unique<std::byte[]>(kRoomBytes);
  const std::vector<std::byte*> ends = {allocate(kRoomBytes), allocate(kRoomBytes),
                                        allocate_pinned(kRoomBytes), mapping.data(), heap.get()};
  uint32_t seed = 0;
  for (std::byte* const from : ends) {
    for (std::byte* const to : ends) {
      if (from == to) continue;
      const auto bytes = random_bytes(kSizeBytes, ++seed);
      copy(from + 3, bytes.data(), kSizeBytes);
      copy(to + 1, from + 3, kSizeBytes);
      EXPECT_EQ(read(to + 1, kSizeBytes), bytes)
          << pointer_kind_name(kind(from)) << " to " << pointer_kind_name(kind(to));
    }
  }
  ASSERT_DONE(device().unregister_host(mapping.data()));
}

TEST_P(DeviceContract, RefusesNullAndLooksAtNothingWithoutBytes) {
  std::byte* const memory = allocate(100);
  EXPECT_EQ(device().copy(nullptr, memory, 100, stream_).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().copy(memory, nullptr, 100, stream_).status(), Status::INVALID_ARGUMENT);
  const std::vector<CopyRun> runs = {{memory, memory + 50, 10}, {nullptr, memory, 1}};
  EXPECT_EQ(device().copy_batch(runs, stream_).status(), Status::INVALID_ARGUMENT);
  EXPECT_DONE(device().copy(nullptr, nullptr, 0, stream_));
  const CopyRun nothing = {};
  EXPECT_DONE(device().copy_batch({&nothing, 1}, stream_));
  EXPECT_DONE(device().copy_batch({}, stream_));
  finish();
}

TEST_P(DeviceContract, CopiesBatches) {
  for (const Stream stream : {stream_, Stream{}}) {
    for (const size_t count : {size_t{1}, size_t{10'000}}) {
      std::mt19937 random(static_cast<uint32_t>(count));
      std::vector<size_t> sizes(count);
      size_t total_bytes = 0;
      for (size_t& size : sizes) {
        size = random() % 8 == 0 ? 0 : random() % 700;
        total_bytes += size;
      }
      sizes[0] += 1;
      total_bytes += 1;
      const auto bytes = random_bytes(total_bytes, 7);
      std::byte* const source = allocate_pinned(total_bytes);
      std::memcpy(source, bytes.data(), total_bytes);
      std::byte* const target = allocate(total_bytes);
      {
        std::vector<CopyRun> runs;
        size_t from = 0;
        size_t to = total_bytes;
        for (const size_t size : sizes) {  // the last run first
          to -= size;
          runs.push_back({target + to, source + from, size});
          from += size;
        }
        ASSERT_DONE(device().copy_batch(runs, stream));
        runs.assign(runs.size(), CopyRun{});  // gone
      }
      ASSERT_DONE(device().record(event_, stream));
      ASSERT_DONE(device().synchronize(event_));
      const auto got = read(target, total_bytes);
      size_t from = 0;
      size_t to = total_bytes;
      for (const size_t size : sizes) {
        to -= size;
        ASSERT_EQ(std::memcmp(got.data() + to, bytes.data() + from, size), 0) << from;
        from += size;
      }
    }
  }
}

// ---- order ----

TEST_P(DeviceContract, ReturnsBeforeACopyIsDone) {
  EXPECT_TRUE(*device().is_done(event_)) << "not recorded";
  keep_busy(stream_);
  ASSERT_DONE(device().record(event_, stream_));
  expect_waits(event_);
  gate_->let_go();
  ASSERT_DONE(device().synchronize(event_));
  EXPECT_TRUE(*device().is_done(event_));
}

TEST_P(DeviceContract, KeepsTheOrderOfAStream) {
  constexpr size_t kSizeBytes = 100'000;
  constexpr int kSteps = 200;
  std::byte* const memory = allocate((kSteps + 1) * kSizeBytes);
  const auto bytes = random_bytes(kSizeBytes, 1);
  keep_busy(stream_);
  std::byte* const source = allocate_pinned(kSizeBytes);
  std::memcpy(source, bytes.data(), kSizeBytes);
  copy(memory, source, kSizeBytes);
  for (int i = 0; i < kSteps; ++i) {
    copy(memory + (i + 1) * kSizeBytes, memory + i * kSizeBytes, kSizeBytes);
  }
  gate_->let_go();
  EXPECT_EQ(read(memory + kSteps * kSizeBytes, kSizeBytes), bytes);
}

TEST_P(DeviceContract, OrdersStreamsByEvents) {
  constexpr size_t kSizeBytes = 1000;
  const auto bytes = random_bytes(kSizeBytes, 2);
  std::byte* const source = allocate_pinned(kSizeBytes);
  std::memcpy(source, bytes.data(), kSizeBytes);
  std::byte* const middle = allocate(kSizeBytes);
  std::byte* const target = allocate(kSizeBytes);
  const Stream second = make_stream();
  const Event second_done = make_event();

  keep_busy(stream_);
  copy(middle, source, kSizeBytes);
  ASSERT_DONE(device().record(event_, stream_));
  ASSERT_DONE(device().wait(second, event_));
  ASSERT_DONE(device().copy(target, middle, kSizeBytes, second));
  ASSERT_DONE(device().record(second_done, second));
  expect_waits(second_done);
  gate_->let_go();
  ASSERT_DONE(device().synchronize(second_done));
  EXPECT_EQ(read(target, kSizeBytes), bytes);
}

TEST_P(DeviceContract, AnEventMeansItsLastRecord) {
  const Stream idle = make_stream();
  const Stream waiting = make_stream();
  const Event after_wait = make_event();
  ASSERT_DONE(device().wait(idle, event_)) << "not recorded: nothing to wait for";
  keep_busy(stream_);
  ASSERT_DONE(device().record(event_, stream_));
  ASSERT_DONE(device().wait(waiting, event_));
  ASSERT_DONE(device().record(after_wait, waiting));
  ASSERT_DONE(device().record(event_, idle));  // has a new meaning now
  ASSERT_DONE(device().synchronize(event_));
  expect_waits(after_wait);  // for the event's old meaning
  gate_->let_go();
  ASSERT_DONE(device().synchronize(after_wait));
}

TEST_P(DeviceContract, NotifiesOnceAllWorkBeforeIsDone) {
  std::promise<void> promise;
  std::future<void> called = promise.get_future();
  keep_busy(stream_);
  ASSERT_DONE(device().record(event_, stream_));
  // A second call would throw, and end the test.
  ASSERT_DONE(device().notify(stream_, [&] { promise.set_value(); }));
  if (device().info().is_cpu) {
    EXPECT_EQ(called.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  }
  gate_->let_go();
  ASSERT_EQ(called.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_TRUE(*device().is_done(event_));
  finish();
}

TEST_P(DeviceContract, TakesAnyPriority) {
  for (const int priority : {0, -1, -100, 100}) {
    const Stream stream = make_stream(priority);
    ASSERT_NE(stream, nullptr);
    EXPECT_DONE(device().check_stream(stream));
    EXPECT_DONE(device().record(event_, stream));
    EXPECT_DONE(device().synchronize(event_));
  }
}

TEST_P(DeviceContract, KnowsItsStreams) {
  EXPECT_DONE(device().check_stream(nullptr));
  EXPECT_DONE(device().check_stream(stream_));
  if (!device().info().is_cpu) return;  // a driver may crash on what never was a stream
  const auto other = Device::cpu();
  auto others = other->make_stream(0);
  ASSERT_DONE(others);
  EXPECT_EQ(device().check_stream(*others).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(device().record(event_, *others).status(), Status::INVALID_ARGUMENT);
  other->destroy_stream(*others);
}

TEST_P(DeviceContract, WaitsForAStreamThatIsDestroyed) {
  constexpr size_t kSizeBytes = 1 << 20;
  const auto bytes = random_bytes(kSizeBytes, 3);
  std::byte* const source = allocate_pinned(kSizeBytes);
  std::memcpy(source, bytes.data(), kSizeBytes);
  std::byte* const target = allocate_pinned(kSizeBytes);
  auto stream = device().make_stream(0);
  ASSERT_DONE(stream);
  ASSERT_DONE(device().copy(target, source, kSizeBytes, *stream));
  ASSERT_DONE(device().record(event_, *stream));
  device().destroy_stream(*stream);
  EXPECT_EQ(std::memcmp(target, source, kSizeBytes), 0);
  EXPECT_TRUE(*device().is_done(event_)) << "an event outlives the stream";
}

TEST_P(DeviceContract, AnEventCanBeDestroyedBeforeItsWaiters) {
  const Stream second = make_stream();
  keep_busy(stream_);
  auto gone = device().make_event();
  ASSERT_DONE(gone);
  ASSERT_DONE(device().record(*gone, stream_));
  ASSERT_DONE(device().wait(second, *gone));
  device().destroy_event(*gone);
  ASSERT_DONE(device().record(event_, second));
  gate_->let_go();
  ASSERT_DONE(device().synchronize(event_));
}

// ---- kernels ----

TEST_P(DeviceContract, LaunchesAfterQueuedWork) {
  constexpr uint32_t kTokens = 512;
  constexpr uint32_t kRowBytes = 16;
  constexpr size_t kSizeBytes = kTokens * kRowBytes;
  std::byte* const cache = allocate(kSizeBytes);
  std::byte* const payload = allocate_pinned(kSizeBytes);
  auto* const sums = reinterpret_cast<uint64_t*>(allocate_pinned(kPageBytes));
  auto* const pages = reinterpret_cast<uint32_t*>(allocate_pinned(kTokens * sizeof(uint32_t)));
  for (uint32_t i = 0; i < kTokens; ++i) pages[i] = kTokens - 1 - i;
  auto* const part = new (allocate_pinned(sizeof(PagedPart)))
      PagedPart{reinterpret_cast<uint8_t*>(cache), kRowBytes, kRowBytes, kRowBytes};
  auto* const block = new (allocate_pinned(sizeof(MoveBlock)))
      MoveBlock{reinterpret_cast<uint8_t*>(payload), sums, pages, 0, kTokens};
  const auto bytes = random_bytes(kSizeBytes, 4);
  std::byte* const source = allocate_pinned(kSizeBytes);
  std::memcpy(source, bytes.data(), kSizeBytes);
  {
    MovePieces work{{.parts = part,
                     .layers = 1,
                     .layer_parts = 1,
                     .heads = 1,
                     .page_tokens = 1,
                     .row_bytes = kRowBytes,
                     .unit_bytes = 16,
                     .first_layer = 0,
                     .some_layers = 1}};
    work.kind = MoveKind::TO_PAYLOAD;
    work.blocks = block;
    work.block_count = 1;
    work.most_tokens = kTokens;
    ASSERT_DONE(check(work));
    copy(cache, source, kSizeBytes);
    ASSERT_DONE(device().launch(work, stream_));
  }
  finish();
  for (uint32_t i = 0; i < kTokens; ++i) {
    ASSERT_EQ(std::memcmp(payload + i * kRowBytes, bytes.data() + pages[i] * kRowBytes, kRowBytes),
              0)
        << i;
  }
}

// ---- from many threads ----

TEST_P(DeviceContract, ServesManyThreads) {
  constexpr size_t kSizeBytes = 20'000;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const Mapping mapping(5 * kPageBytes);
      const auto bytes = random_bytes(kSizeBytes, t);
      for (int i = 0; i < 20; ++i) {
        auto stream = device().make_stream(0);
        auto event = device().make_event();
        auto memory = device().allocate(kSizeBytes);
        EXPECT_DONE(device().register_host(mapping.data(), 5 * kPageBytes));
        std::memcpy(mapping.data(), bytes.data(), kSizeBytes);
        EXPECT_DONE(device().copy(*memory, mapping.data(), kSizeBytes, *stream));
        std::vector<std::byte> got(kSizeBytes);
        EXPECT_DONE(device().copy(got.data(), *memory, kSizeBytes, *stream));
        EXPECT_DONE(device().record(*event, *stream));
        EXPECT_DONE(device().synchronize(*event));
        EXPECT_EQ(got, bytes);
        EXPECT_DONE(device().unregister_host(mapping.data()));
        device().free(*memory);
        device().destroy_event(*event);
        device().destroy_stream(*stream);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- the CPU device alone ----

TEST(CpuDevice, IsOneOfSeveralGpus) {
  const auto first = Device::cpu();
  const auto second = Device::cpu();
  auto memory = first->allocate(1000);
  auto own = second->allocate(1000);
  ASSERT_DONE(memory);
  ASSERT_DONE(own);
  EXPECT_EQ(*second->classify(*memory), PointerKind::OTHER);
  EXPECT_EQ(second->copy(*own, *memory, 1000, nullptr).status(), Status::INVALID_ARGUMENT);

  const Mapping mapping(kPageBytes);
  ASSERT_DONE(first->register_host(mapping.data(), kPageBytes));
  EXPECT_EQ(*second->classify(mapping.data()), PointerKind::REGISTERED) << "by one for all";
  EXPECT_EQ(second->register_host(mapping.data(), kPageBytes).status(), Status::BUSY);
  EXPECT_EQ(second->unregister_host(mapping.data()).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(first->unregister_host(mapping.data()));
  first->free(*memory);
  second->free(*own);
}

// A GPU's driver may or may not detect these; the CPU device does, so that tests find the caller.
TEST(CpuDevice, RefusesCopiesThatLeaveTheirMemory) {
  const auto cpu = Device::cpu();
  const Mapping mapping(4 * kPageBytes);
  std::byte* const first = mapping.data() + kPageBytes;
  ASSERT_DONE(cpu->register_host(first, kPageBytes));
  ASSERT_DONE(cpu->register_host(first + kPageBytes, kPageBytes));
  auto allocated = cpu->allocate(8 * kPageBytes);
  ASSERT_DONE(allocated);
  auto* const memory = static_cast<std::byte*>(*allocated);
  const auto copy = [&](void* to, const void* from, size_t size_bytes) {
    return cpu->copy(to, from, size_bytes, nullptr).status();
  };
  EXPECT_EQ(copy(memory, first, kPageBytes), Status::OK);
  EXPECT_EQ(copy(memory, first + kPageBytes, kPageBytes), Status::OK);
  EXPECT_EQ(copy(memory, first, kPageBytes + 1), Status::INVALID_ARGUMENT) << "two registrations";
  EXPECT_EQ(copy(first - 1, memory, 2), Status::INVALID_ARGUMENT) << "into a registration";
  EXPECT_EQ(copy(first + 2 * kPageBytes - 1, memory, 2), Status::INVALID_ARGUMENT) << "out of it";
  EXPECT_EQ(copy(memory + 8 * kPageBytes - 1, first, 2), Status::INVALID_ARGUMENT) << "the end";
  auto event = cpu->make_event();
  ASSERT_DONE(event);
  ASSERT_DONE(cpu->record(*event, nullptr));
  ASSERT_DONE(cpu->synchronize(*event));
  cpu->destroy_event(*event);
  cpu->free(*allocated);
  ASSERT_DONE(cpu->unregister_host(first));
  ASSERT_DONE(cpu->unregister_host(first + kPageBytes));
}

TEST(CpuDevice, HasLimits) {
  const auto cpu = Device::cpu({.memory_bytes = 10'000, .most_registered_bytes = 3 * kPageBytes});
  auto memory = cpu->allocate(6'000);
  ASSERT_DONE(memory);
  EXPECT_EQ(cpu->allocate(6'000).status(), Status::NO_SPACE);
  cpu->free(*memory);
  memory = cpu->allocate(6'000);
  ASSERT_DONE(memory);
  cpu->free(*memory);

  const Mapping mapping(8 * kPageBytes);
  EXPECT_EQ(cpu->register_host(mapping.data(), 4 * kPageBytes).status(), Status::LIMIT_REACHED);
  ASSERT_DONE(cpu->register_host(mapping.data(), 2 * kPageBytes));
  std::byte* const more = mapping.data() + 4 * kPageBytes;
  EXPECT_EQ(cpu->register_host(more, 2 * kPageBytes).status(), Status::LIMIT_REACHED);
  EXPECT_EQ(cpu->register_host(mapping.data(), kPageBytes).status(), Status::BUSY);
  ASSERT_DONE(cpu->register_host(more, kPageBytes)) << "a refused request takes no space";
  ASSERT_DONE(cpu->unregister_host(mapping.data()));
  ASSERT_DONE(cpu->unregister_host(more));
}

TEST(CpuDevice, AnswersEverythingWhenItIsLost) {
  const auto gate = std::make_shared<Gate>();
  gate->lose_from(1);
  const auto cpu = gated_cpu_device(gate);
  auto stream = cpu->make_stream(0);
  auto event = cpu->make_event();
  auto memory = cpu->allocate_pinned(1000);
  ASSERT_DONE(stream);
  ASSERT_DONE(event);
  ASSERT_DONE(memory);
  auto* const bytes = static_cast<std::byte*>(*memory);
  std::memset(bytes, 1, 500);
  std::memset(bytes + 500, 0, 500);
  ASSERT_DONE(cpu->copy(bytes + 500, bytes, 100, *stream));
  ASSERT_DONE(cpu->record(*event, *stream));
  ASSERT_DONE(cpu->synchronize(*event));
  // It may be refused at once or queued; it is not done in either case, and no thread waits for
  // ever.
  (void)cpu->copy(bytes + 600, bytes, 100, *stream);
  (void)cpu->copy(bytes + 700, bytes, 100, *stream);
  (void)cpu->record(*event, *stream);
  gate->wait_for(2);
  EXPECT_EQ(cpu->synchronize(*event).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->is_done(*event).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->record(*event, *stream).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->wait(*stream, *event).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->notify(*stream, [] {}).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->copy(bytes, bytes + 500, 1, *stream).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->launch({}, *stream).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->allocate(1).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->allocate_pinned(1).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->classify(bytes).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->check_stream(*stream).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->make_stream(0).status(), Status::GPU_LOST);
  EXPECT_EQ(cpu->make_event().status(), Status::GPU_LOST);
  const Mapping mapping(kPageBytes);
  EXPECT_EQ(cpu->register_host(mapping.data(), kPageBytes).status(), Status::GPU_LOST);
  cpu->destroy_stream(*stream);
  EXPECT_EQ(bytes[500], std::byte{1});
  EXPECT_EQ(bytes[600], std::byte{0});
  EXPECT_EQ(bytes[700], std::byte{0});
  cpu->destroy_event(*event);
  cpu->free(*memory);
}

TEST(CpuDevice, NotifiesAlsoWhenItIsLost) {
  const auto gate = std::make_shared<Gate>();
  gate->lose_from(gate->hold_next(1));
  const auto cpu = gated_cpu_device(gate);
  std::byte bytes[2] = {};
  ASSERT_DONE(cpu->copy(bytes, bytes + 1, 1, nullptr));
  std::promise<void> promise;
  ASSERT_DONE(cpu->notify(nullptr, [&] { promise.set_value(); }));
  gate->let_go();
  EXPECT_EQ(promise.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST(CpuDevice, FreesItsMemoryWhenItIsDestroyed) {
  const Mapping mapping(kPageBytes);
  {
    const auto cpu = Device::cpu();
    auto stream = cpu->make_stream(0);
    auto first = cpu->allocate(kPageBytes);
    auto second = cpu->allocate(kPageBytes);
    ASSERT_DONE(stream);
    ASSERT_DONE(first);
    ASSERT_DONE(second);
    ASSERT_DONE(cpu->register_host(mapping.data(), kPageBytes));
    ASSERT_DONE(cpu->copy(*first, mapping.data(), kPageBytes, nullptr));
    ASSERT_DONE(cpu->copy(*second, mapping.data(), kPageBytes, *stream));
  }
  const auto next = Device::cpu();
  EXPECT_EQ(*next->classify(mapping.data()), PointerKind::HOST);
}

// ---- opening ----

TEST(Device, SaysWhyItCannotOpen) {
  const auto opened = Device::open(9999);
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.status() == Status::NOT_SUPPORTED || opened.status() == Status::NOT_FOUND)
      << status_name(opened.status());
  EXPECT_GT(opened.error().detail.size(), 10u);
}

TEST(Device, NamesKindsOfPointers) {
  EXPECT_STREQ(pointer_kind_name(PointerKind::MANAGED), "managed");
  EXPECT_STREQ(pointer_kind_name(static_cast<PointerKind>(77)), "unknown");
}

}  // namespace
}  // namespace bowhead::gpu
