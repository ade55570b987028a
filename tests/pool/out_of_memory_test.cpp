// SPDX-License-Identifier: Apache-2.0
// A process that runs out of memory: every allocation of an operation fails in turn. The pool then
// works as before, and no block and no lease is lost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/periodic.h"
#include "pool/pool.h"
#include "pool/queue.h"
#include "tests/pool/allocations.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

constexpr size_t kKeys = 40;
constexpr size_t kBytes = 16'000;

class OutOfMemory : public ::testing::TestWithParam<bool> {  ///< compressed, and with a reader
 protected:
  void SetUp() override {
    CreateOptions options;
    options.size_bytes = 16 << 20;
    options.evict_high_permille = 0;
    ASSERT_TRUE(Pool::create(locator_, options));
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    pool_.emplace(std::move(*pool));
    NamespaceDescription description{"memory", ""};
    if (GetParam()) description.values.profile = CompressionProfile::FAST;
    const auto ns = pool_->open_namespace(description);
    ASSERT_TRUE(ns) << ns.error().message();
    ns_ = *ns;
    for (size_t i = 0; i < kKeys; ++i) names_.push_back(fmt::format("key {}", i));
    keys_.assign(names_.begin(), names_.end());
    capacity_ = fill_and_empty();
    ASSERT_GT(capacity_, 2 * kKeys);
  }
  void TearDown() override {
    pool_.reset();
    (void)Pool::destroy(locator_, true);
  }

  Status put(std::string_view key, std::string_view user_metadata = {}) {
    const ConstSpan value{reinterpret_cast<const std::byte*>(value_.data()), value_.size()};
    return pool_->put(ns_, key, {&value, 1}, user_metadata);
  }
  void put_all() {
    for (const std::string& name : names_) ASSERT_EQ(put(name, "metadata"), Status::OK);
  }
  void remove_all() {
    for (const std::string& name : names_) {
      const Status status = pool_->remove(ns_, name);
      ASSERT_TRUE(status == Status::OK || status == Status::NOT_FOUND) << status_name(status);
    }
  }
  /// How many blocks fit.
  size_t fill_and_empty() {
    size_t count = 0;
    while (put(fmt::format("fill {}", count)) == Status::OK) ++count;
    for (size_t i = 0; i < count; ++i)
      EXPECT_EQ(pool_->remove(ns_, fmt::format("fill {}", i)), Status::OK);
    return count;
  }

  /// Runs the operation with each of its allocations failing in turn.
  void try_all(const char* name, bool stored, const std::function<void()>& operation) {
    SCOPED_TRACE(name);
    // What a thread keeps from call to call is there.
    if (stored) put_all();
    operation();
    remove_all();
    for (uint64_t left = 0;; ++left) {
      ASSERT_LT(left, 1000u);
      // Its buffer grows with the first events.
      auto reader = GetParam() ? *pool_->open_events(1 << 20) : nullptr;
      if (stored) put_all();
      bool failed = false;
      allocations_left = left;
      try {
        operation();
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      failed |= allocations_left == 0;
      allocations_left = UINT64_MAX;
      remove_all();
      EXPECT_EQ(pool_->info()->hosts[0].leases_active, 0u) << "allocation " << left;
      ASSERT_EQ(fill_and_empty(), capacity_) << "allocation " << left;
      if (!failed) break;
    }
    const auto report = pool_->check(true);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->findings.empty()) << report->findings.front().what;
  }

  const std::string locator_ = unique_locator();
  const std::string value_ = std::string(kBytes, 'v');
  std::optional<Pool> pool_;
  NamespaceId ns_ = 0;
  std::vector<std::string> names_;
  std::vector<std::string_view> keys_;
  size_t capacity_ = 0;
};

TEST_P(OutOfMemory, LosesNothingInAnyOperation) {
  const ConstSpan value{reinterpret_cast<const std::byte*>(value_.data()), value_.size()};
  std::string room(kBytes, '\0');
  const Span to{reinterpret_cast<std::byte*>(room.data()), room.size()};
  try_all("put", false, [&] { (void)put(names_[0]); });
  try_all("put with user metadata", false, [&] { (void)put(names_[0], "metadata"); });
  try_all("put with a time to live", false, [&] {
    const BlockAttributes attributes{.expires_unix_s = UINT32_MAX};
    (void)pool_->put(ns_, names_[0], {&value, 1}, {}, attributes);
  });
  try_all("put a batch", false, [&] {
    std::vector<PutItem> items;
    for (const std::string_view key : keys_)
      items.push_back({.key = key, .value = {&value, 1}, .user_metadata = "metadata"});
    (void)pool_->put_batch(ns_, items);
  });
  try_all("get", true, [&] { (void)pool_->get(ns_, keys_[0], {&to, 1}); });
  try_all("get a batch", true, [&] {
    std::vector<GetItem> items;
    for (const std::string_view key : keys_) items.push_back({key, {&to, 1}});
    (void)pool_->get_batch(ns_, items);
  });
  try_all("remove", true, [&] { (void)pool_->remove(ns_, keys_[0]); });
  try_all("remove a batch", true, [&] {
    std::vector<Status> statuses(kKeys);
    (void)pool_->remove_batch(ns_, keys_, statuses);
  });
  try_all("lease", true, [&] {
    auto lease = pool_->acquire(ns_, keys_[0], 600'000, LeaseOf::STORED);
    const uint64_t left = std::exchange(allocations_left, UINT64_MAX);
    if (lease) {
      EXPECT_EQ(pool_->release(*lease), Status::OK);
    }
    allocations_left = left;
  });
  try_all("lease a prefix", true, [&] {
    auto prefix = pool_->acquire_prefix(ns_, keys_, 600'000, 2);
    const uint64_t left = std::exchange(allocations_left, UINT64_MAX);
    if (prefix) {
      for (Lease& lease : prefix->leases) EXPECT_EQ(pool_->release(lease), Status::OK);
    }
    allocations_left = left;
  });
  try_all("reserve and commit", false, [&] {
    auto reserved = pool_->reserve(ns_, keys_[0], kBytes, "metadata");
    if (!reserved) return;
    std::memcpy(reserved->data, value_.data(), kBytes);
    (void)pool_->commit(*reserved);
  });
  try_all("exists, touch", true, [&] {
    std::vector<uint8_t> present(kKeys);
    (void)pool_->exists(ns_, keys_, present);
    (void)pool_->touch(ns_, keys_);
  });
}

INSTANTIATE_TEST_SUITE_P(Values, OutOfMemory, ::testing::Bool(), [](const auto& test) {
  return test.param ? "CompressedWithAReader" : "Plain";
});

/// The end of a handle cannot fail: what it leaves undone, the next one does.
TEST(CloseOutOfMemory, TheNextHandleFindsAllSpace) {
  const std::string locator = unique_locator();
  CreateOptions options;
  options.size_bytes = 16 << 20;
  options.hosts = 2;
  options.evict_high_permille = 0;
  ASSERT_TRUE(Pool::create(locator, options));
  const std::string bytes(kBytes, 'v');
  const ConstSpan value{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
  for (uint64_t left = 0; left < 20; ++left) {
    auto pool = Pool::open(locator, {.host = 0});
    ASSERT_TRUE(pool) << pool.error().message();
    const auto ns = pool->open_namespace({"memory", ""});
    ASSERT_TRUE(ns) << ns.error().message();
    ASSERT_EQ(pool->put(*ns, "leased", {&value, 1}), Status::OK);
    ASSERT_TRUE(pool->acquire(*ns, "leased", 600'000));
    ASSERT_EQ(pool->remove(*ns, "leased"), Status::OK);
    std::optional<Pool> closing(std::move(*pool));
    allocations_left = left;
    closing.reset();
    allocations_left = UINT64_MAX;
  }
  auto pool = Pool::open(locator, {.host = 0});
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(pool->info()->blocks, 0u);
  EXPECT_EQ(pool->info()->hosts[0].leases_active, 0u);
  const auto report = pool->check(true);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->findings.empty()) << report->findings.front().what;
  pool = Status::CLOSED;
  (void)Pool::destroy(locator, true);
}

TEST(PeriodicOutOfMemory, TheNextCallComes) {
  std::atomic<int> calls{0};
  std::atomic<bool> returned{false};
  const auto periodic = Periodic::make(std::chrono::milliseconds(1), [&] {
    ++calls;
    allocations_left = 0;                     // of the thread
    ::operator delete(::operator new(1000));  // throws; a new-expression might be left out
    return returned = true;
  });
  ASSERT_TRUE(periodic);
  (*periodic)->resume();
  for (int i = 0; calls < 3 && i < 60'000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(calls, 3);
  EXPECT_FALSE(returned);
}

/// A worker without memory still reports its jobs.
TEST(QueueOutOfMemory, JobsAreReported) {
  constexpr uint32_t kJobs = 500;
  auto queue = Queue::open({.threads = 2, .jobs_max = kJobs});
  ASSERT_TRUE(queue) << queue.error().message();
  for (uint32_t i = 0; i < kJobs; ++i) {
    const auto run = [] {
      allocations_left = 0;  // of the worker, from now on
      return JobResult{};
    };
    ASSERT_TRUE((*queue)->submit({.run = run}));
  }
  ASSERT_EQ((*queue)->drain(std::chrono::seconds(60)), Status::OK);
  std::vector<JobReport> reports(kJobs);
  EXPECT_EQ((*queue)->poll(reports), kJobs);
}

}  // namespace
}  // namespace bowhead::test
