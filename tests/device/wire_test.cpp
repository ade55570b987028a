// SPDX-License-Identifier: Apache-2.0
// Requests come back as they were, and bytes that are no request are refused.
#include "firmware-sim/wire.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/device/sequence.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

using device::DecodedRequest;
using device::encode;
using ndp::Operation;

class Wire : public testing::Test {
 protected:
  Wire() : pool_(64u << 20), sequence_(pool_.pool(), "plain", CompressionProfile::NONE, {30, 20}) {
    queries_.assign(size_t{2} * 3 * kChannels, 0.5f);
  }
  ndp::Request top_k() {
    ndp::Request request = sequence_.request(Operation::TOP_K);
    request.queries.values = queries_;
    request.queries.count = 3;
    request.queries.views = std::span<const ndp::Visible>(views_);
    request.queries.scale = 0.25f;
    request.queries.soft_cap = 30;
    request.k = 5;
    request.bytes_per_token = 12.5;
    request.reading = ndp::Reading::FEWEST_BYTES;
    request.heads.unreadable = ndp::Unreadable::SKIP;
    return request;
  }

  TestPool pool_;
  LeasedSequence sequence_;
  std::vector<float> queries_;
  std::vector<ndp::Visible> views_ = {{1, 40, 2}, {3, 50, 0}, {0, 50, 0}};
};

TEST_F(Wire, RequestsComeBack) {
  const ndp::Request request = top_k();
  auto decoded = DecodedRequest::decode(encode(request).value());
  ASSERT_TRUE(decoded) << decoded.error().message();
  const ndp::Request& again = decoded->request();
  EXPECT_EQ(again.operation, Operation::TOP_K);
  ASSERT_EQ(again.heads.blocks.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const ndp::StoredBlock &a = again.heads.blocks[i], &b = request.heads.blocks[i];
    EXPECT_EQ(std::memcmp(a.layout, b.layout, sizeof *a.layout), 0);
    EXPECT_EQ(std::tuple(a.offset, a.stamp, a.value_bytes, a.framed, a.first_token),
              std::tuple(b.offset, b.stamp, b.value_bytes, b.framed, b.first_token));
    EXPECT_EQ(decoded->blocks()[i].stored_bytes, b.bytes.size());
  }
  EXPECT_EQ(std::tuple(again.heads.layer, again.heads.first_head, again.heads.heads),
            std::tuple(request.heads.layer, request.heads.first_head, request.heads.heads));
  EXPECT_EQ(again.heads.unreadable, ndp::Unreadable::SKIP);
  EXPECT_TRUE(std::equal(again.queries.values.begin(), again.queries.values.end(), queries_.begin(),
                         queries_.end()));
  for (uint32_t q = 0; q < 3; ++q) EXPECT_EQ(again.queries.views.of(q), views_[q]);
  EXPECT_EQ(std::tuple(again.queries.count, again.queries.scale, again.queries.soft_cap, again.k,
                       again.bytes_per_token, again.reading),
            std::tuple(3u, 0.25f, 30.0f, 5u, 12.5, ndp::Reading::FEWEST_BYTES));
}

/// Every byte of a request, changed to anything, gives a request or a refusal.
TEST_F(Wire, ChangedBytesAreRefusedOrDecoded) {
  const auto bytes = encode(top_k()).value();
  Random random(1);
  uint32_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto changed = bytes;
    const size_t at = random.below(2) == 0 ? random.below(sizeof(bh_device_request))
                                           : random.below(changed.size());
    changed[at] ^= static_cast<std::byte>(1 + random.below(255));
    if (random.below(4) == 0) changed.resize(random.below(changed.size() + 1));
    auto decoded = DecodedRequest::decode(changed);
    if (!decoded) {
      ++refused;
      continue;
    }
    (void)ndp::answer_bytes(decoded->request());
  }
  EXPECT_GT(refused, 8'000u);
}

TEST_F(Wire, RefusesWhatIsOfALaterVersion) {
  const auto bytes = encode(top_k()).value();
  const auto status_with = [&](size_t at, uint8_t value) {
    auto changed = bytes;
    changed[at] = std::byte{value};
    return DecodedRequest::decode(changed).status();
  };
  EXPECT_EQ(status_with(offsetof(bh_device_request, operation), 6), Status::NOT_SUPPORTED);
  EXPECT_EQ(status_with(offsetof(bh_device_request, operation), 0), Status::NOT_SUPPORTED);
  EXPECT_EQ(status_with(offsetof(bh_device_request, flags), 8), Status::NOT_SUPPORTED);
  EXPECT_EQ(status_with(offsetof(bh_device_request, reserved) + 5, 1), Status::NOT_SUPPORTED);
  EXPECT_EQ(status_with(sizeof(bh_device_request) + offsetof(bh_device_block, codec), 2),
            Status::NOT_SUPPORTED);
  EXPECT_EQ(status_with(offsetof(bh_device_request, request_bytes), 1), Status::INVALID_ARGUMENT);
}

TEST_F(Wire, RefusesRequestsThatCannotBeWritten) {
  ndp::Request request = top_k();
  request.heads.blocks = {};
  EXPECT_EQ(encode(request).status(), Status::INVALID_ARGUMENT);
  request = top_k();
  views_.pop_back();
  request.queries.views = std::span<const ndp::Visible>(views_);
  EXPECT_EQ(encode(request).status(), Status::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace bowhead::test
