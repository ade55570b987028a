// SPDX-License-Identifier: Apache-2.0
// The whole core against a std::map: a tiny pool that is full most of the time, keys of all
// lengths, values of all sizes, reservations and leases across all other operations, reboots in
// between.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "tests/support/audit.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::Key;

struct Value {
  uint64_t size;
  uint64_t seed;
};

class User {
 public:
  User(const TinyPool& pool, uint64_t seed, bool eviction)
      : pool_(pool), random_(seed), eviction_(eviction) {
    open();
  }

  void step() {
    switch (random_.below(12)) {
      case 0:
        return reserve_one();
      case 1:
        return end_reservation();
      case 2:
        return lease_one();
      case 3:
        return end_lease();
      case 4:
      case 5:
        return remove_one();
      case 6:
        return read_one();
      default:
        return put_one();
    }
  }

  /// Ends all reservations and leases, and checks everything.
  void check_all() {
    while (!reservations_.empty()) end_reservation();
    while (!leases_.empty()) end_lease();
    uint64_t present = 0;
    for (const auto& [key, value] : model_) present += check_value(key, value);
    const AuditResult found = audit(handle_->core(), {.deaths = false});
    for (const std::string& text : found.faults) ADD_FAILURE() << text;
    EXPECT_EQ(found.committed, present);
    EXPECT_TRUE(handle_->core().inspection.check(/*payload=*/true, {}).findings.empty());
  }
  void close() { handle_->detach(); }
  void open() {
    handle_ = std::make_unique<NativeHandle>(pool_);
    ASSERT_TRUE(handle_->attach());
  }
  uint64_t refused() const { return refused_; }
  uint64_t stored() const { return stored_; }

 private:
  struct Reserved {
    Reservation reservation;
    Value value;
  };
  struct Leased {
    Lease lease;
    std::string key;
    Value value;
  };

  std::string any_key() {
    const uint64_t n = random_.below(150);
    std::string key = fmt::format("key-{}", n);
    if (n % 5 == 0) key += std::string(n * 3, 'x');
    return key;
  }
  Value any_value() {
    const uint64_t most[] = {3000, 20'000, 70'000, 70'000, 300'000, 700'000};
    return {1 + random_.below(most[random_.below(6)]), random_.next()};
  }

  void put_one() {
    const std::string key = any_key();
    const Value value = any_value();
    const bool present = !get(handle_->core(), key).empty();
    const Status status = put(handle_->core(), key, bytes(value.size, value.seed));
    if (present) {
      EXPECT_EQ(status, Status::OK);
    } else if (status == Status::OK) {
      model_[key] = value;
      ++stored_;
    } else {
      EXPECT_EQ(status, Status::NO_SPACE);
      ++refused_;
    }
  }

  void reserve_one() {
    const std::string key = any_key();
    const Value value = any_value();
    auto reservation = handle_->core().writing.reserve(Key(kNamespace, key), value.size);
    if (!reservation || reservation->present) return;
    const auto payload = bytes(value.size, value.seed);
    std::memcpy(reservation->data, payload.data(), payload.size());
    reservations_.push_back({*reservation, value});
  }
  void end_reservation() {
    if (reservations_.empty()) return;
    Reserved reserved = take_any(reservations_);
    const std::string key = reserved.reservation.key;
    const auto payload = bytes(reserved.value.size, reserved.value.seed);
    EXPECT_EQ(std::memcmp(reserved.reservation.data, payload.data(), payload.size()), 0);
    if (random_.below(3) == 0) {
      EXPECT_EQ(handle_->core().writing.abort(reserved.reservation), Status::OK);
      return;
    }
    const bool present = !get(handle_->core(), key).empty();
    const Status status = handle_->core().writing.commit(
        reserved.reservation,
        random_.below(4) != 0 ? PayloadSum{} : PayloadSum{PayloadSum::By::NONE});
    EXPECT_TRUE(status == Status::OK || status == Status::NO_SPACE) << status_name(status);
    if (status == Status::OK && !present) model_[key] = reserved.value;
  }

  void lease_one() {
    if (leases_.size() > 4) return;
    const std::string key = any_key();
    auto lease = handle_->core().reading.acquire(Key(kNamespace, key), 60'000);
    if (!lease) return;
    ASSERT_TRUE(model_.contains(key));
    leases_.push_back({*lease, key, model_[key]});
  }
  /// Whatever happened to the block, its bytes did not change.
  void end_lease() {
    if (leases_.empty()) return;
    Leased leased = take_any(leases_);
    const auto payload = bytes(leased.value.size, leased.value.seed);
    ASSERT_EQ(leased.lease.length_bytes, payload.size());
    EXPECT_EQ(std::memcmp(leased.lease.data, payload.data(), payload.size()), 0);
    const Status status = handle_->core().reading.release(leased.lease);
    EXPECT_TRUE(status == Status::OK || status == Status::LAPSED) << status_name(status);
  }

  void remove_one() {
    const std::string key = any_key();
    const bool present = !get(handle_->core(), key).empty();
    EXPECT_EQ(remove(handle_->core(), key), present ? Status::OK : Status::NOT_FOUND);
    model_.erase(key);
  }
  void read_one() {
    const std::string key = any_key();
    const auto in_model = model_.find(key);
    if (in_model != model_.end()) {
      check_value(key, in_model->second);
    } else {
      EXPECT_TRUE(get(handle_->core(), key).empty()) << key;
    }
  }
  /// True if it is stored. Eviction may take any block.
  bool check_value(const std::string& key, const Value& value) {
    const auto got = get(handle_->core(), key);
    EXPECT_TRUE(got == bytes(value.size, value.seed) || (eviction_ && got.empty())) << key;
    return !got.empty();
  }

  template <class T>
  T take_any(std::vector<T>& from) {
    const size_t at = random_.below(from.size());
    T taken = std::move(from[at]);
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
    return taken;
  }

  const TinyPool& pool_;
  Random random_;
  const bool eviction_;
  std::unique_ptr<NativeHandle> handle_;
  std::map<std::string, Value> model_;
  std::vector<Reserved> reservations_;
  std::vector<Leased> leases_;
  uint64_t refused_ = 0, stored_ = 0;
};

void run(bool eviction) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    TinyPool pool({.extent_count = 24,
                   .index_bucket_count = 37,
                   .evict_high_permille = eviction ? 900u : 0u,
                   .evict_low_permille = eviction ? 800u : 0u});
    User user(pool, seed, eviction);
    for (int i = 0; i < 2400; ++i) {
      user.step();
      if (i % 100 == 99) user.check_all();
      if (i % 600 == 599) {
        user.close();
        if (i % 1200 == 1199) pool.forget_boot();
        user.open();
        user.check_all();
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "after step " << i;
    }
    EXPECT_GT(user.stored(), 200u);
    if (!eviction) {
      EXPECT_GT(user.refused(), 10u);
    }
    user.close();
  }
}

TEST(Core, AgreesWithAMap) { run(/*eviction=*/false); }
TEST(Core, EvictsOnlyWholeBlocks) { run(/*eviction=*/true); }

}  // namespace
}  // namespace bowhead::test
