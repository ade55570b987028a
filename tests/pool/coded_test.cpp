// SPDX-License-Identifier: Apache-2.0
// Compressed namespaces: only the bytes that blocks occupy change.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "compression/frame.h"
#include "pool/coded.h"
#include "pool/pool.h"
#include "tests/support/pools.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_pool.h"

namespace bowhead {
namespace {

using compression::Shape;
using test::TestPool;
using TensorContent = compression::Content;
using Value = std::vector<std::byte>;

constexpr ValueFormat kKeys{keys_layout(NumberFormat::BF16, 64, 2), CompressionProfile::DENSE};

KvLayout turned(KvLayout layout, uint16_t channels, uint64_t base) {
  layout.rotary = BH_ROTARY_HALVES;
  layout.rotary_channels = channels;
  layout.rotary_base_thousandths = base * 1000;
  return layout;
}

Value tensor(const ValueFormat& of, uint64_t length_bytes, uint64_t seed,
             TensorContent content = TensorContent::NORMAL) {
  const auto values =
      compression::make_tensor(*compression::shape_of(of.layout, length_bytes), content, seed);
  Value out(values.size());
  std::memcpy(out.data(), values.data(), values.size());
  return out;
}

/// A pool, and a compressed namespace in it.
class CodedPool : public TestPool {
 public:
  explicit CodedPool(const ValueFormat& values = kKeys, CreateOptions options = {})
      : TestPool(64 << 20, options), ns_(open_coded(values)) {}
  explicit CodedPool(const std::string& locator) : TestPool(locator), ns_(open_coded({})) {}

  NamespaceId coded_ns() const { return ns_; }
  Status put(std::string_view key, const Value& value) {
    const ConstSpan in[] = {{value.data(), value.size()}};
    return pool().put(ns_, key, in);
  }
  Result<Value> get(std::string_view key) {
    const auto length = pool().length(ns_, key);
    if (!length) return length.error();
    Value out(*length);
    const Span to[] = {{out.data(), out.size()}};
    const auto got = pool().get(ns_, key, to);
    if (!got) return got.error();
    EXPECT_EQ(*got, *length);
    return out;
  }
  BlockInfo block(std::string_view key) {
    std::optional<BlockInfo> found;
    EXPECT_EQ(pool().list([&](const BlockInfo& block) {
      if (block.namespace_id == ns_ && block.key == key) found = block;
      return !found;
    }),
              Status::OK);
    EXPECT_TRUE(found) << key;
    return found.value_or(BlockInfo{});
  }
  std::byte* stored(std::string_view key) {
    return const_cast<std::byte*>(pool().mapping().data) + block(key).offset;
  }

 private:
  NamespaceId open_coded(const ValueFormat& values) {
    const auto opened = pool().open_namespace({"coded", "a model", values});
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? *opened : 0;
  }

  NamespaceId ns_;
};

TEST(Coded, EveryNumberFormatIsRestoredBitForBit) {
  for (const auto number : {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                            NumberFormat::FP8_E5M2, NumberFormat::INT8, NumberFormat::BYTES}) {
    for (const auto profile :
         {CompressionProfile::FAST, CompressionProfile::BALANCED, CompressionProfile::DENSE}) {
      ValueFormat values{keys_layout(number, 128, 3), profile};
      if (number != NumberFormat::BYTES) values.layout = turned(values.layout, 128, 500000);
      CodedPool t(values);
      for (const TensorContent content : compression::kContents) {
        const Value value = tensor(values, 3 * 128 * 2 * 100, 1, content);
        const std::string key = fmt::format("k{}", static_cast<int>(content));
        ASSERT_EQ(t.put(key, value), Status::OK);
        const auto got = t.get(key);
        ASSERT_TRUE(got) << got.error().message();
        EXPECT_EQ(*got, value) << to_text(values) << ", content " << static_cast<int>(content);
      }
      EXPECT_TRUE(t.check_clean());
    }
  }
}

TEST(Coded, TakesFewerBytesAndCountsThoseOfTheValue) {
  CodedPool t;
  const Value value = tensor(kKeys, 256 << 10, 1);
  const auto before = t.info();
  ASSERT_EQ(t.put("k", value), Status::OK);
  const auto block = t.block("k");
  EXPECT_EQ(block.length_bytes, value.size());
  EXPECT_LT(block.stored_bytes, value.size() * 3 / 4);
  EXPECT_EQ(*t.pool().length(t.coded_ns(), "k"), value.size());
  const auto after = t.info();
  EXPECT_EQ(after.bytes_in - before.bytes_in, value.size());
  EXPECT_LT(after.used_bytes - before.used_bytes, static_cast<int64_t>(value.size() * 3 / 4));
  ASSERT_TRUE(t.get("k"));
  EXPECT_EQ(t.info().bytes_out - before.bytes_out, value.size());
  ASSERT_EQ(t.put("k", value), Status::OK);
  EXPECT_EQ(t.info().puts_present, before.puts_present + 1);
}

TEST(Coded, UsageGivesTheSpaceOfEachNamespace) {
  CodedPool t;
  const Value value = tensor(kKeys, 256 << 10, 1), noise = test::bytes(100000, 1);
  ASSERT_EQ(t.put("k", value), Status::OK);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  ASSERT_EQ(t.TestPool::put("raw", noise), Status::OK);
  const auto usage = t.pool().usage();
  ASSERT_TRUE(usage);
  ASSERT_EQ(usage->size(), 2u);
  for (const NamespaceUsage& one : *usage) {
    if (one.id == t.ns()) {
      EXPECT_EQ(one.blocks, 1);
      EXPECT_EQ(one.value_bytes, static_cast<int64_t>(noise.size()));
      EXPECT_EQ(one.stored_bytes, static_cast<int64_t>(noise.size()));
      EXPECT_EQ(one.block_bytes, 25 * 4096);
    } else {
      EXPECT_EQ(one.id, t.coded_ns());
      EXPECT_EQ(one.blocks, 2);
      EXPECT_EQ(one.value_bytes, static_cast<int64_t>(value.size() + noise.size()));
      EXPECT_EQ(one.stored_bytes, static_cast<int64_t>(t.block("k").stored_bytes + noise.size()));
    }
  }
  int64_t taken = 0;
  for (const NamespaceUsage& one : *usage) taken += one.block_bytes;
  EXPECT_EQ(taken, t.info().used_bytes);
}

TEST(Coded, FramesOfLargeValuesShareFewSizesOfBlock) {
  CodedPool t;
  for (uint64_t seed = 0; seed < 12; ++seed)
    ASSERT_EQ(t.put(fmt::format("k{}", seed), tensor(kKeys, (1 << 20) + (seed + 1) * 4096, seed)),
              Status::OK);
  // Slabs of one size each: the frames of values of a size are a few KiB apart.
  EXPECT_EQ(t.info().used_bytes % (64 << 10), 0);
}

TEST(Coded, ScatteredBuffersAreOneValue) {
  CodedPool t;
  const Value value = tensor(kKeys, 96 << 10, 4);
  const ConstSpan in[] = {{value.data(), 1},
                          {value.data() + 1, 0},
                          {value.data() + 1, 40000},
                          {value.data() + 40001, value.size() - 40001}};
  ASSERT_EQ(t.pool().put(t.coded_ns(), "k", in), Status::OK);
  ASSERT_LT(t.block("k").stored_bytes, value.size());
  Value out(value.size() + 100);
  const Span to[] = {{nullptr, 0}, {out.data(), 33333}, {out.data() + 33333, out.size() - 33333}};
  const auto length = t.pool().get(t.coded_ns(), "k", to);
  ASSERT_TRUE(length);
  EXPECT_EQ(*length, value.size());
  out.resize(value.size());
  EXPECT_EQ(out, value);
  const Span small[] = {{out.data(), 40000}, {out.data() + 40000, value.size() - 40001}};
  EXPECT_EQ(t.pool().get(t.coded_ns(), "k", small).status(), Status::BUFFER_TOO_SMALL);
}

TEST(Coded, IncompressibleValuesStayPlainAndCanBeLeased) {
  CodedPool t;
  const Value noise = test::bytes(64 << 10, 3);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  EXPECT_EQ(t.block("noise").stored_bytes, noise.size());
  EXPECT_EQ(*t.get("noise"), noise);
  auto lease = t.pool().acquire(t.coded_ns(), "noise", 1000);
  ASSERT_TRUE(lease);
  EXPECT_EQ(std::memcmp(lease->data, noise.data(), noise.size()), 0);
  EXPECT_EQ(t.pool().release(*lease), Status::OK);
  // A frame of it would be smaller, but not the block: the smallest block of the pool has 16 KiB.
  const Value small = tensor(kKeys, 12 << 10, 1);
  ASSERT_EQ(t.put("small", small), Status::OK);
  EXPECT_EQ(t.block("small").stored_bytes, small.size());
}

TEST(Coded, AValueThatIsNotATensorIsCompressedAsBytes) {
  CodedPool t;
  Value value = test::bytes(100001, 1);
  std::fill(value.begin(), value.begin() + 60000, std::byte{7});
  ASSERT_EQ(t.put("k", value), Status::OK);
  EXPECT_LT(t.block("k").stored_bytes, 60000u);
  EXPECT_EQ(*t.get("k"), value);
}

TEST(Coded, CodedBlocksAreNotLeasedAsPlainValues) {
  CodedPool t;
  ASSERT_EQ(t.put("k", tensor(kKeys, 64 << 10, 1)), Status::OK);
  EXPECT_EQ(t.pool().acquire(t.coded_ns(), "k", 1000).status(), Status::CODED);
  // A block that is filled in place stays uncompressed.
  const Value value = tensor(kKeys, 64 << 10, 2);
  auto room = t.pool().reserve(t.coded_ns(), "in-place", value.size());
  ASSERT_TRUE(room);
  std::memcpy(room->data, value.data(), value.size());
  ASSERT_EQ(t.pool().commit(*room), Status::OK);
  EXPECT_EQ(t.block("in-place").stored_bytes, value.size());
  EXPECT_EQ(*t.get("in-place"), value);
  EXPECT_TRUE(t.pool().acquire(t.coded_ns(), "in-place", 1000));
}

/// Its holder reads the frame in place.
TEST(Coded, ALeaseDescribesTheStoredBytes) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1);
  const Value noise = tensor(kKeys, 4096, 2, TensorContent::RANDOM);
  ASSERT_EQ(t.put("k", value), Status::OK);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  const KvLayout layout = t.pool().value_format(t.coded_ns())->layout;

  auto frame = t.pool().acquire(t.coded_ns(), "k", 60'000, LeaseOf::STORED);
  ASSERT_TRUE(frame) << frame.error().message();
  EXPECT_EQ(frame->codec, BH_CODEC_FRAME);
  EXPECT_EQ(frame->length_bytes, value.size());
  EXPECT_EQ(frame->stored_bytes, t.block("k").stored_bytes);
  EXPECT_EQ(difference(*frame->layout, layout), std::nullopt);
  const auto* in_place = reinterpret_cast<const uint8_t*>(frame->data);
  Value decoded(value.size());
  ASSERT_EQ(
      compression::Decoder().decode({in_place, frame->stored_bytes},
                                    {reinterpret_cast<uint8_t*>(decoded.data()), decoded.size()}),
      Status::OK);
  EXPECT_TRUE(decoded == value);

  Value copy(frame->stored_bytes);
  EXPECT_EQ(t.pool().copy_leased(*frame, {copy.data(), copy.size() - 1}), Status::BUFFER_TOO_SMALL);
  EXPECT_EQ(t.pool().copy_leased(*frame, {copy.data(), copy.size()}), Status::OK);
  EXPECT_EQ(std::memcmp(copy.data(), frame->data, copy.size()), 0);
  EXPECT_EQ(*frame->checksum, payload_checksum(copy.data(), copy.size()));
  t.stored("k")[5] ^= std::byte{1};
  EXPECT_EQ(t.pool().copy_leased(*frame, {copy.data(), copy.size()}), Status::DAMAGED);
  EXPECT_EQ(t.pool().release(*frame), Status::OK);
  EXPECT_EQ(t.pool().copy_leased(*frame, {copy.data(), copy.size()}), Status::CLOSED);

  const auto raw = t.pool().acquire(t.coded_ns(), "noise", 60'000, LeaseOf::STORED);
  ASSERT_TRUE(raw);
  EXPECT_EQ(raw->codec, BH_CODEC_RAW);
  EXPECT_EQ(raw->stored_bytes, noise.size());
  EXPECT_EQ(raw->length_bytes, noise.size());
}

TEST(Coded, TheFirstThatOpensDecides) {
  CodedPool t;
  EXPECT_EQ(*t.pool().open_namespace({"coded", "a model"}), t.coded_ns());
  EXPECT_EQ(*t.pool().open_namespace({"coded", "a model", kKeys}), t.coded_ns());
  ValueFormat other = kKeys;
  other.profile = CompressionProfile::FAST;
  const auto refused = t.pool().open_namespace({"coded", "a model", other});
  ASSERT_EQ(refused.status(), Status::NAMESPACE_MISMATCH);
  const std::string text = refused.error().message();
  EXPECT_NE(text.find("'dense', not 'fast'"), std::string::npos) << text;
  for (const PoolInfo::Namespace& ns : t.info().namespaces)
    EXPECT_EQ(to_text(ns.values), ns.name == "coded" ? to_text(kKeys) : "none");
}

/// Changes each field alone.
TEST(Layouts, AnotherThanTheStoredOneIsRefused) {
  KvLayout layout = turned(keys_layout(NumberFormat::BF16, 64, 2), 32, 10'000);
  layout.parts = 2;
  layout.value_channels = 64;
  layout.model_layers = layout.model_heads = 8;
  const std::pair<const char*, void (*)(KvLayout&)> changes[] = {
      {"number_format is bf16, not fp16", [](KvLayout& l) { l.number_format = BH_NUMBER_FP16; }},
      {"order is heads first, not tokens first",
       [](KvLayout& l) { l.order = BH_ORDER_TOKENS_FIRST; }},
      {"parts is 2, not 1", [](KvLayout& l) { l.parts = 1; }},
      {"layers is 1, not 2", [](KvLayout& l) { l.layers = 2; }},
      {"heads is 2, not 4", [](KvLayout& l) { l.heads = 4; }},
      {"key_channels is 64, not 128", [](KvLayout& l) { l.key_channels = 128; }},
      {"value_channels is 64, not 32", [](KvLayout& l) { l.value_channels = 32; }},
      {"block_tokens is 0, not 256", [](KvLayout& l) { l.block_tokens = 256; }},
      {"scales is 0, not 1",
       [](KvLayout& l) {
         l.scales = BH_SCALES_PER_TOKEN;
         l.scale_format = BH_NUMBER_FP32;
       }},
      {"rotary is halves, not interleaved", [](KvLayout& l) { l.rotary = BH_ROTARY_INTERLEAVED; }},
      {"rotary_first is 0, not 32", [](KvLayout& l) { l.rotary_first = 32; }},
      {"rotary_channels is 32, not 64", [](KvLayout& l) { l.rotary_channels = 64; }},
      {"rotary_base_thousandths is 10000000, not 500000000",
       [](KvLayout& l) { l.rotary_base_thousandths = 500'000'000; }},
      {"first_layer is 0, not 4", [](KvLayout& l) { l.first_layer = 4; }},
      {"model_layers is 8, not 16", [](KvLayout& l) { l.model_layers = 16; }},
      {"first_head is 0, not 2", [](KvLayout& l) { l.first_head = 2; }},
      {"model_heads is 8, not 16", [](KvLayout& l) { l.model_heads = 16; }},
      {"number_format is bf16, not bytes", [](KvLayout& l) { l = kOpaqueLayout; }}};
  TestPool t(32 << 20);
  const auto ns = t.pool().open_namespace({"tensors", "", {layout}});
  ASSERT_TRUE(ns) << ns.error().message();
  for (const auto& [text, change] : changes) {
    KvLayout other = layout;
    change(other);
    const auto refused = t.pool().open_namespace({"tensors", "", {other}});
    ASSERT_EQ(refused.status(), Status::LAYOUT_MISMATCH) << text;
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
  }
  EXPECT_EQ(*t.pool().open_namespace({"tensors", "", {layout}}), *ns);
  EXPECT_EQ(*t.pool().open_namespace({"tensors", ""}), *ns) << "takes what is there";
  EXPECT_EQ(t.pool().open_namespace({"test", "bytes", {layout}}).status(), Status::LAYOUT_MISMATCH)
      << "of opaque values";
}

TEST(Layouts, ThatNoBlockCanHaveAreRefused) {
  TestPool t(32 << 20);
  const auto refuse = [&](Status status, const ValueFormat& one) {
    EXPECT_EQ(t.pool().open_namespace({"bad", "", one}).status(), status) << to_text(one);
  };
  const KvLayout keys = keys_layout(NumberFormat::BF16, 64);
  KvLayout odd = keys;
  odd.number_format = 0;
  refuse(Status::INVALID_ARGUMENT, {odd});
  odd = keys;
  odd.order = 2;
  refuse(Status::INVALID_ARGUMENT, {odd});
  refuse(Status::INVALID_ARGUMENT, {keys, CompressionProfile{9}});
  odd = keys_layout(NumberFormat::FP32, 64);
  refuse(Status::NOT_SUPPORTED, {odd, CompressionProfile::FAST});
  odd = keys_layout(NumberFormat::BF16, 1024, 64);
  odd.order = BH_ORDER_TOKENS_FIRST;
  refuse(Status::NOT_SUPPORTED, {odd, CompressionProfile::FAST});
  odd = keys;
  odd.scales = BH_SCALES_PER_TOKEN;
  odd.scale_format = BH_NUMBER_FP32;
  odd.scale_place = BH_SCALES_BEHIND_PART;
  refuse(Status::NOT_SUPPORTED, {odd, CompressionProfile::FAST});
  EXPECT_TRUE(t.pool().open_namespace({"good", "", {odd}}));
}

TEST(Coded, AnotherProcessCompressesAndReadsWithoutTheOptions) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1), theirs = tensor(kKeys, 64 << 10, 2);
  ASSERT_EQ(t.put("k", value), Status::OK);
  const int status = test::in_child([&] {
    CodedPool child(t.locator());
    const auto got = child.get("k");
    if (!got || *got != value) return 1;
    return child.put("theirs", theirs) == Status::OK ? 0 : 2;
  });
  ASSERT_EQ(status, 0);
  EXPECT_LT(t.block("theirs").stored_bytes, theirs.size());
  EXPECT_EQ(*t.get("theirs"), theirs);
  // Nor does a handle that only got the id.
  auto plain = Pool::open(t.locator());
  ASSERT_TRUE(plain);
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(plain->put(t.coded_ns(), "by-id", in), Status::OK);
  EXPECT_LT(t.block("by-id").stored_bytes, value.size());
}

TEST(Coded, FewPlanesShowAValueRoughlyAndReadLess) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1), noise = test::bytes(64 << 10, 3);
  ASSERT_EQ(t.put("k", value), Status::OK);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  const uint64_t stored = t.block("k").stored_bytes;
  Value out(value.size());
  const Span to[] = {{out.data(), 1000}, {out.data() + 1000, out.size() - 1000}};
  const auto error_of = [&] {
    double sum = 0;
    for (size_t i = 0; i < out.size(); i += 2) {
      uint16_t seen, right;
      std::memcpy(&seen, &out[i], 2);
      std::memcpy(&right, &value[i], 2);
      sum += std::abs(compression::value_of(NumberFormat::BF16, seen) -
                      compression::value_of(NumberFormat::BF16, right));
    }
    return sum;
  };
  double last_error = 1e300;
  uint64_t last_read = 0;
  for (const uint32_t planes : {3u, 5u, 8u, 9u}) {
    const auto read = t.pool().get_prefix(t.coded_ns(), "k", planes, to);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->length_bytes, value.size());
    EXPECT_GT(read->read_bytes, last_read);
    EXPECT_LT(read->read_bytes, stored);
    EXPECT_LT(error_of(), last_error);
    last_read = read->read_bytes;
    last_error = error_of();
  }
  const auto all = t.pool().get_prefix(t.coded_ns(), "k", 99, to);
  ASSERT_TRUE(all);
  EXPECT_EQ(out, value);
  EXPECT_EQ(all->read_bytes, stored);
  const auto plain = t.pool().get_prefix(t.coded_ns(), "noise", 1, to);
  ASSERT_TRUE(plain);
  EXPECT_EQ(out, noise);
  EXPECT_EQ(plain->read_bytes, noise.size());
  // Damage in bytes that are not read is not found; in bytes that are, the block is dropped.
  t.stored("k")[stored - 1] ^= std::byte{1};
  EXPECT_TRUE(t.pool().get_prefix(t.coded_ns(), "k", 3, to));
  t.stored("k")[100] ^= std::byte{1};
  EXPECT_EQ(t.pool().get_prefix(t.coded_ns(), "k", 8, to).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.info().damaged, 1u);
  EXPECT_EQ(t.pool().get_prefix(t.coded_ns(), "k", 0, to).status(), Status::INVALID_ARGUMENT);
}

/// Without a checksum of its own the value is not checked against the key: a frame of another key
/// is returned.
TEST(Coded, ValuesAreGivenAsTheyAreStored) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1);
  const Value noise = tensor(kKeys, 4096, 2, TensorContent::RANDOM);
  ASSERT_EQ(t.put("k", value), Status::OK);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  Value out(value.size());
  const auto frame = t.pool().get_stored(t.coded_ns(), "k", {out.data(), out.size()});
  ASSERT_TRUE(frame) << frame.error().message();
  EXPECT_TRUE(frame->is_frame);
  EXPECT_EQ(frame->length_bytes, value.size());
  EXPECT_EQ(frame->stored_bytes, t.block("k").stored_bytes);
  Value decoded(value.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(out.data());
  ASSERT_EQ(
      compression::Decoder().decode({bytes, frame->stored_bytes},
                                    {reinterpret_cast<uint8_t*>(decoded.data()), decoded.size()}),
      Status::OK);
  EXPECT_TRUE(decoded == value);
  EXPECT_EQ(t.pool().get_stored(t.coded_ns(), "k", {out.data(), frame->stored_bytes - 1}).status(),
            Status::BUFFER_TOO_SMALL);

  const auto raw = t.pool().get_stored(t.coded_ns(), "noise", {out.data(), out.size()});
  ASSERT_TRUE(raw);
  EXPECT_FALSE(raw->is_frame);
  EXPECT_EQ(raw->stored_bytes, noise.size());
  EXPECT_TRUE(std::equal(noise.begin(), noise.end(), out.begin()));

  t.stored("k")[5] ^= std::byte{1};
  EXPECT_EQ(t.pool().get_stored(t.coded_ns(), "k", {out.data(), out.size()}).status(),
            Status::NOT_FOUND);
  EXPECT_EQ(t.pool().get_stored(t.coded_ns(), "k", {out.data(), out.size()}).status(),
            Status::NOT_FOUND);
}

TEST(Coded, PartsOfABlockThatWasReusedMeanwhileAreRefused) {
  test::TinyPool pool;
  test::NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  const Value ours(20'000, std::byte{1}), others(20'000, std::byte{2});
  const ConstSpan value{ours.data(), ours.size()}, other{others.data(), others.size()};
  const core::Key key(test::kNamespace, "ours");
  ASSERT_EQ(handle.core().writing.put(key, {&value, 1}), Status::OK);
  for (const bool meanwhile : {false, true}) {
    Value got(ours.size());
    const auto length = handle.core().reading.get_parts(
        key, [&](const bh_block_header& /*header*/, const auto& read) {
          if (meanwhile) {
            EXPECT_EQ(handle.core().writing.remove(key), Status::OK);
          }
          for (int n = 0; meanwhile && n < 40; ++n)
            (void)handle.core().writing.put(core::Key(test::kNamespace, fmt::format("{}", n)),
                                            {&other, 1});
          read(0, Span{got.data(), got.size()});
          return Status::OK;
        });
    EXPECT_EQ(got, meanwhile ? others : ours);
    EXPECT_EQ(length.has_value(), !meanwhile);
  }
  handle.detach();
}

TEST(Coded, APrefixWithADamagedPlaneIsAMiss) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1);
  ASSERT_EQ(t.put("k", value), Status::OK);
  t.stored("k")[3000] ^= std::byte{1};
  Value got(value.size());
  const Span to{got.data(), got.size()};
  EXPECT_EQ(t.pool().get_prefix(t.coded_ns(), "k", 3, {&to, 1}).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.info().hits, 0u);
  EXPECT_EQ(t.info().damaged, 1u);
}

// ---- recompression ----

constexpr ValueFormat kFastKeys{kKeys.layout, CompressionProfile::FAST};

TEST(Coded, ColdBlocksBecomeDenser) {
  CodedPool t(ValueFormat{{}, CompressionProfile::FAST});
  // Random digits: incompressible for LZ4, half of the size for ZSTD.
  Value value = test::bytes(512 << 10, 1);
  for (std::byte& byte : value) byte = std::byte('0' + static_cast<int>(byte) % 10);
  std::fill(value.begin(), value.begin() + (128 << 10), std::byte{'0'});
  const Value noise = test::bytes(64 << 10, 1);
  ASSERT_EQ(t.put("coded", value), Status::OK);
  ASSERT_EQ(t.put("noise", noise), Status::OK);
  auto room = t.pool().reserve(t.coded_ns(), "in-place", value.size());
  ASSERT_TRUE(room);
  std::memcpy(room->data, value.data(), value.size());
  ASSERT_EQ(t.pool().commit(*room), Status::OK);
  ASSERT_EQ(t.TestPool::put("other", value), Status::OK);
  const uint64_t fast_bytes = t.block("coded").stored_bytes;
  const auto before = t.info();

  const auto warm = t.pool().recompress(3'600'000);
  ASSERT_TRUE(warm);
  EXPECT_EQ(warm->cold_blocks, 0u);
  const auto done = t.pool().recompress(0);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->cold_blocks, 3u);
  EXPECT_EQ(done->recompressed, 2u);
  EXPECT_EQ(done->before_bytes, fast_bytes + value.size());
  const auto after = t.info();
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_EQ(after.recompressed, 2u);
  EXPECT_LT(after.used_bytes, before.used_bytes);
  EXPECT_LT(t.block("coded").stored_bytes, fast_bytes);
  EXPECT_EQ(t.block("coded").stored_bytes, t.block("in-place").stored_bytes);
  for (const char* key : {"coded", "in-place"}) EXPECT_EQ(*t.get(key), value);
  EXPECT_EQ(*t.get("noise"), noise);
  EXPECT_EQ(t.TestPool::get("other"), value);
  EXPECT_EQ(t.pool().recompress(0)->cold_blocks, 0u);  // nor the noise a second time
  EXPECT_TRUE(t.check_clean());
}

/// A batch of look-ups takes long, and blocks get another place meanwhile; none is ever missing.
/// (longest_prefix() does the same, but marks what it finds as used, which keeps it as it is.)
TEST(Coded, BatchesOfLookUpsFindWhatIsRecompressed) {
  CodedPool t(kFastKeys);
  constexpr size_t kBlocks = 100;
  std::vector<std::string> names;
  for (size_t i = 0; i < kBlocks; ++i) names.push_back(fmt::format("k{}", i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const Value value = tensor(kFastKeys, 64 << 10, 1);
  std::atomic<bool> is_done{false};
  for (int round = 0; round < 20; ++round) {
    for (const auto& key : keys) {
      auto room = t.pool().reserve(t.coded_ns(), key, value.size());
      ASSERT_TRUE(room);
      std::memcpy(room->data, value.data(), value.size());
      ASSERT_EQ(t.pool().commit(*room), Status::OK);
    }
    is_done = false;
    uint64_t asked = 0, found = 0;
    std::thread reader([&] {
      while (!is_done) {
        std::array<uint8_t, kBlocks> present{};
        asked += kBlocks;
        found += *t.pool().exists(t.coded_ns(), keys, present);
      }
    });
    const auto done = t.pool().recompress(0);
    is_done = true;
    reader.join();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->recompressed, kBlocks);
    EXPECT_EQ(found, asked);
    for (const auto& key : keys) ASSERT_EQ(t.pool().remove(t.coded_ns(), key), Status::OK);
  }
}

TEST(Coded, LeasedBlocksAreNotRecompressed) {
  CodedPool t(kFastKeys);
  const Value value = tensor(kFastKeys, 64 << 10, 1);
  auto room = t.pool().reserve(t.coded_ns(), "k", value.size());
  std::memcpy(room->data, value.data(), value.size());
  ASSERT_EQ(t.pool().commit(*room), Status::OK);
  auto lease = t.pool().acquire(t.coded_ns(), "k", 60'000);
  ASSERT_TRUE(lease);
  EXPECT_EQ(t.pool().recompress(0)->recompressed, 0u);
  EXPECT_EQ(t.pool().release(*lease), Status::OK);
  EXPECT_EQ(t.pool().recompress(0)->recompressed, 1u);
  EXPECT_EQ(*t.get("k"), value);
}

TEST(Coded, ADamagedBlockIsDroppedAndNotRecompressed) {
  CodedPool t(kFastKeys);
  ASSERT_EQ(t.put("k", tensor(kFastKeys, 64 << 10, 1)), Status::OK);
  t.stored("k")[1000] ^= std::byte{1};
  EXPECT_EQ(t.pool().recompress(0)->recompressed, 0u);
  EXPECT_EQ(t.get("k").status(), Status::NOT_FOUND);
  EXPECT_EQ(t.info().damaged, 1u);
}

/// There is no free extent for the new size: its space comes from blocks recompressed before.
TEST(Coded, AFullPoolShrinksWithoutEvicting) {
  CodedPool t(kFastKeys, {.evict_high_permille = 0});
  uint64_t count = 0;
  std::vector<Value> values;
  for (uint64_t seed = 0; seed < 8; ++seed)
    values.push_back(tensor(kFastKeys, 128 << 10, seed, TensorContent::NORMAL));
  for (;; ++count) {
    auto room = t.pool().reserve(t.coded_ns(), fmt::format("k{}", count), 128 << 10);
    if (!room) break;
    std::memcpy(room->data, values[count % 8].data(), 128 << 10);
    ASSERT_EQ(t.pool().commit(*room), Status::OK);
  }
  // One slab is emptied, so that there is space to begin with.
  for (uint64_t i = 0; i < 16; ++i)
    ASSERT_EQ(t.pool().remove(t.coded_ns(), fmt::format("k{}", i)), Status::OK);
  const auto before = t.info();
  uint64_t done = 0;
  // Several passes: the blocks move meanwhile.
  while (const uint64_t now = t.pool().recompress(0)->recompressed) done += now;
  EXPECT_EQ(done, count - 16);
  const auto after = t.info();
  EXPECT_EQ(after.evictions, 0u);
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_LT(after.used_bytes, before.used_bytes * 3 / 4);
  for (uint64_t i = 16; i < count; ++i)
    ASSERT_EQ(*t.get(fmt::format("k{}", i)), values[i % 8]) << i;
  EXPECT_TRUE(t.check_clean());
}

TEST(Coded, RecompressionEvictsNothing) {
  CodedPool t(kFastKeys);
  const Value value = tensor(kFastKeys, 128 << 10, 1, TensorContent::NORMAL);
  uint64_t count = 0;
  for (; t.info().evictions == 0; ++count) {
    auto room = t.pool().reserve(t.coded_ns(), fmt::format("k{}", count), value.size());
    ASSERT_TRUE(room);
    std::memcpy(room->data, value.data(), value.size());
    ASSERT_EQ(t.pool().commit(*room), Status::OK);
  }
  // One slab is emptied, so that there is space to begin with.
  for (uint64_t i = count - 32; i < count; ++i)
    ASSERT_EQ(t.pool().remove(t.coded_ns(), fmt::format("k{}", i)), Status::OK);
  const auto before = t.info();
  uint64_t done = 0;
  while (const uint64_t now = t.pool().recompress(0)->recompressed) done += now;
  const auto after = t.info();
  EXPECT_GT(done, before.blocks / 2);
  EXPECT_EQ(after.recompressed, done);
  EXPECT_EQ(after.evictions, before.evictions);
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_TRUE(t.check_clean());
}

TEST(Coded, AFlippedByteIsAMissAndTheBlockIsDropped) {
  CodedPool t;
  const Value value = tensor(kKeys, 64 << 10, 1);
  for (const uint64_t at : {0ul, 5ul, 100ul, 20000ul}) {
    ASSERT_EQ(t.put("k", value), Status::OK);
    t.stored("k")[at] ^= std::byte{4};
    EXPECT_EQ(t.pool().check(true)->findings.size(), 1u);
    EXPECT_EQ(t.get("k").status(), Status::NOT_FOUND) << at;
    EXPECT_TRUE(t.check_clean());
  }
  EXPECT_EQ(t.info().damaged, 4u);
}

}  // namespace
}  // namespace bowhead
