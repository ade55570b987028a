// SPDX-License-Identifier: Apache-2.0
// The timing model: bounds, order, many requests at a time, the cost of requests, and published
// results, those that it misses too. Tables are printed as docs/device-timing.md has them.
#include "firmware-sim/timing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"

namespace bowhead::test {
namespace {

using namespace device;

Profile profile(const char* name) { return profile_named(name).value(); }

Profile round_numbers() {
  return {.name = "test",
          .description = "",
          .to_device_gb_s = 10,
          .to_host_gb_s = 20,
          .round_trip_ns = 300,
          .media_gb_s = 100,
          .gmac_s = 50,
          .units = 4,
          .start_ns = 7,
          .decode_gb_s = 40};
}

// ---- published results ----

struct Published {
  std::string what;
  double published_ns, modelled_ns;
  bool is_within;  // 20 %
};

void compare(const char* table, const std::vector<Published>& rows) {
  fmt::print("\n{}\n", table);
  size_t within = 0;
  for (const Published& row : rows) {
    const double ratio = row.modelled_ns / row.published_ns;
    const bool is_within = std::abs(ratio - 1) <= 0.2;
    within += is_within;
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f}{} |\n", row.what, row.published_ns / 1000,
               row.modelled_ns / 1000, ratio, is_within ? "" : " (misses)");
    EXPECT_EQ(is_within, row.is_within) << table << ", " << row.what << ": " << ratio;
  }
  fmt::print("{} of {} within 20 %\n", within, rows.size());
}

// Ham et al., MICRO 2024, artifact (github.com/PSAL-POSTECH/M2NDP-public at c4fb86c0),
// outputs/gpu_baseline.csv: simulated times of a GPU that reads from the CXL memory ("Baseline"),
// and of GPU units in the CXL memory ("GPU-NDP"). Bytes: histograms of 2^26 bytes
// (examples/benchmarks/histogram); one decoder layer of OPT with 1,024 tokens of context, of 32-bit
// numbers (scripts/make_traces.sh, scripts/aggregate_gpu_results.py, examples/benchmarks/opt).
Work decoder_layer(uint64_t hidden) {
  Work work;
  work.read_bytes = work.row_bytes = 4 * (12 * hidden * hidden + 2 * 1024 * hidden);
  work.multiply_adds = static_cast<double>(work.read_bytes) / 4;
  work.request_bytes = work.answer_bytes = 4 * hidden;
  return work;
}
Work histogram(uint64_t bins) {
  Work work;
  work.read_bytes = work.row_bytes = 1 << 26;
  work.multiply_adds = 1 << 26;
  work.answer_bytes = 4 * bins;
  return work;
}

TEST(Published, M2ndp) {
  struct {
    const char* what;
    Work work;
    double host_ns;
    double device_ns[4];
    bool device_is_within[4];
  } const workloads[] = {
      {"HISTO256",
       histogram(256),
       1357807,
       {261380, 199468, 190941, 190294},
       {false, true, true, true}},
      {"HISTO4096",
       histogram(4096),
       1475837,
       {2053723, 1069215, 549771, 229852},
       {false, false, false, false}},
      {"OPT-2.7B",
       decoder_layer(2560),
       6820933,
       {1062129, 1001975, 987487, 1216740},
       {false, true, true, false}},
      {"OPT-30B",
       decoder_layer(7168),
       50879803,
       {7562905, 6984371, 7124331, 9879473},
       {true, true, true, false}},
  };
  const char* const configurations[] = {"iso-FLOPS", "iso-area", "4xFLOPS", "16xFLOPS"};
  std::vector<Published> rows;
  for (const auto& [what, work, host_ns, device_ns, device_is_within] : workloads) {
    const Profile m2ndp = profile("m2ndp");
    rows.push_back(
        {fmt::format("{}, Baseline", what), host_ns, modelled_ns(m2ndp, work, Place::HOST), true});
    for (size_t i = 0; i < 4; ++i)
      rows.push_back({fmt::format("{}, GPU-NDP ({})", what, configurations[i]), device_ns[i],
                      modelled_ns(m2ndp, work, Place::DEVICE), device_is_within[i]});
  }
  compare("M2NDP: workload | published us | modelled us | ratio", rows);
}

// Park et al., ASPLOS 2024, artifact (github.com/scale-snu/attacc_simulator at c6000514),
// ramulator.out: cycles of 0.769 ns (src/ramulator_wrapper.py) in which a stack computes the
// attention of so many heads, each of one query and as many tokens. Where the file has a row twice,
// the first one counts, as in the source.
constexpr double kAttaccCycle = 0.769;

Work attention(uint32_t heads, uint64_t tokens, uint64_t channels, uint64_t number_bytes) {
  Work work;
  work.read_bytes = work.row_bytes = heads * tokens * channels * 2 * number_bytes;
  work.multiply_adds = static_cast<double>(heads * tokens * channels * 2);
  work.request_bytes = work.answer_bytes = heads * channels * number_bytes;
  work.heads = heads;
  return work;
}

// Units in banks, power-limited, 128 channels of 16 bits: every number of heads that the file has,
// with 128, 256, 512, 1,024, 2,048 and 4,096 tokens where it has them, and 3 heads, which it has
// with 2,049 tokens.
TEST(Published, AttaccBanks) {
  struct {
    uint32_t heads, tokens;
    uint64_t cycles;
    bool is_within = true;
  } const results[] = {
      {3, 2049, 4892, false}, {51, 2048, 16383},  {51, 4096, 33043},  {60, 2048, 16383},
      {77, 128, 1412},        {77, 256, 2370},    {77, 512, 4816},    {77, 1024, 10149},
      {77, 2048, 21732},      {84, 512, 6121},    {84, 1024, 12167},  {101, 128, 1960},
      {101, 256, 3301},       {116, 2048, 32555}, {116, 4096, 65600}, {130, 2048, 38138},
      {130, 4096, 79205},     {159, 128, 2547},   {159, 256, 4462},   {159, 512, 9757},
      {159, 1024, 19993},     {159, 2048, 40458}, {188, 2048, 49199}, {188, 4096, 99626},
      {228, 128, 4152},       {228, 256, 7503},   {228, 512, 15720},  {228, 1024, 31246},
      {228, 2048, 62915},     {243, 128, 4343},   {243, 256, 7885},   {243, 512, 16547},
      {243, 1024, 32789},     {243, 2048, 65566}, {351, 128, 6433},   {351, 256, 11156},
      {351, 512, 22707},      {351, 1024, 45019}, {351, 2048, 90426}, {396, 128, 6884},
      {396, 256, 12142},      {447, 512, 28891},  {447, 1024, 57727}, {461, 128, 8434},
      {461, 256, 14498},      {512, 512, 33157},  {512, 1024, 65705}, {584, 128, 9944},
      {584, 256, 17981},      {636, 128, 11843},  {636, 256, 20013},  {692, 128, 12939},
      {692, 256, 22314},      {2050, 128, 38732}, {2050, 256, 65518}, {2983, 128, 56462},
      {2983, 256, 95007},
  };
  std::vector<Published> rows;
  for (const auto& [heads, tokens, cycles, is_within] : results)
    rows.push_back({fmt::format("{} | {}", heads, tokens),
                    static_cast<double>(cycles) * kAttaccCycle,
                    modelled_ns(profile("attacc"), attention(heads, tokens, 128, 2), Place::DEVICE),
                    is_within});
  compare("AttAcc: heads | tokens | published us | modelled us | ratio", rows);
}

// The other devices and numbers of the same file, with 2,048 tokens. Factors of the bandwidth of a
// stack: BW_SCALE of src/config.py.
TEST(Published, AttaccOthers) {
  struct {
    const char* what;
    double factor;
    uint32_t heads, channels, number_bytes;
    uint64_t cycles;
    bool is_within;
  } const results[] = {
      {"banks, 8 bits", 9, 300, 128, 1, 39412, true},
      {"banks, 8 bits", 9, 562, 128, 1, 73904, true},
      {"banks, 8 bits", 9, 157, 160, 1, 41119, false},
      {"banks, 8 bits", 9, 292, 160, 1, 78632, false},
      {"bank groups, 16 bits", 3, 130, 128, 2, 123251, false},
      {"bank groups, 16 bits", 3, 188, 128, 2, 162803, true},
      {"bank groups, 8 bits", 3, 157, 160, 1, 84539, true},
      {"buffer, 16 bits", 1, 130, 128, 2, 344577, true},
      {"buffer, 16 bits", 1, 188, 128, 2, 435461, true},
      {"buffer, 8 bits", 1, 157, 160, 1, 226867, true},
      {"banks, no power limit, 16 bits", 16, 130, 128, 2, 28176, false},
      {"banks, no power limit, 16 bits", 16, 188, 128, 2, 36346, false},
      {"banks, no power limit, 16 bits", 16, 243, 128, 2, 48336, false},
      {"banks, no power limit, 8 bits", 16, 157, 160, 1, 29779, false},
      {"bank groups, no power limit, 16 bits", 8, 130, 128, 2, 82515, false},
      {"bank groups, no power limit, 16 bits", 8, 188, 128, 2, 108453, false},
      {"bank groups, no power limit, 8 bits", 8, 157, 160, 1, 56613, false},
  };
  std::vector<Published> rows;
  for (const auto& result : results) {
    Profile device = profile("attacc");
    device.media_gb_s *= result.factor / 9;
    device.gmac_s = device.media_gb_s / result.number_bytes;  // never the bound: one query
    rows.push_back(
        {fmt::format("{} | {} | {}", result.what, result.heads, result.channels),
         static_cast<double>(result.cycles) * kAttaccCycle,
         modelled_ns(device, attention(result.heads, 2048, result.channels, result.number_bytes),
                     Place::DEVICE),
         result.is_within});
  }
  compare("AttAcc: device | heads | channels | published us | modelled us | ratio", rows);
}

// Gu et al., ASPLOS 2025 (CENT), artifact (github.com/Yufeng98/CENT at 8c797860),
// cent_simulation/simulation_results.csv, "PIM latency" of a transformer block of Llama 2 with
// 4,096 tokens, one block for each stage. A channel has 16 banks, each with 32 bytes a ns
// (cent_power_calculator.py: tCCDL; --burst-length, --num-banks).
TEST(Published, Cent) {
  struct {
    const char* what;
    uint64_t hidden, kv, ffn;
    uint32_t channels;
    double block_ms;
  } const results[] = {
      {"Llama 2 7B", 4096, 4096, 11008, 8, 0.381391},
      {"Llama 2 13B", 5120, 5120, 13824, 16, 0.2729445},
      {"Llama 2 70B", 8192, 1024, 28672, 10, 0.927081},
  };
  std::vector<Published> rows;
  for (const auto& [what, hidden, kv, ffn, channels, block_ms] : results) {
    Profile device = round_numbers();
    device.round_trip_ns = device.start_ns = 0;
    device.units = 1;
    device.media_gb_s = channels * 16 * 32.0;
    device.gmac_s = device.media_gb_s / 2;
    Work work;
    work.read_bytes =
        2 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn + 2 * 4096 * kv);
    rows.push_back({what, block_ms * 1e6, modelled_ns(device, work, Place::DEVICE), false});
  }
  compare("CENT: block | published us | modelled us | ratio", rows);
}

// ---- the model itself ----

Work random_work(Random& random) {
  Work work;
  work.request_bytes = random.below(1 << 16);
  work.answer_bytes = random.below(1 << 20);
  work.read_bytes = random.below(1 << 24);
  work.row_bytes = work.read_bytes + random.below(1 << 24);
  work.decoded_bytes = random.below(2) == 0 ? 0 : random.below(work.row_bytes + 1);
  work.multiply_adds = static_cast<double>(random.below(1 << 30));
  work.heads = 1 + static_cast<uint32_t>(random.below(20));
  return work;
}

/// No device of these rates does all this in less.
double roofline_ns(const Profile& device, const std::vector<Work>& all, Place place) {
  double to_device = 0, to_host = 0, media = 0, compute = 0, decode = 0, host_compute = 0;
  for (const Work& work : all) {
    const LinkBytes link = link_bytes(device, work, place);
    to_device += static_cast<double>(link.to_device) / device.to_device_gb_s;
    to_host += static_cast<double>(link.to_host) / device.to_host_gb_s;
    media += static_cast<double>(work.read_bytes) / device.media_gb_s;
    if (device.decode_gb_s > 0)
      decode += static_cast<double>(work.decoded_bytes) / device.decode_gb_s;
    if (place == Place::DEVICE)
      compute += work.multiply_adds / device.gmac_s;
    else
      host_compute += work.multiply_adds / kModelledHost.gmac_s;
  }
  return std::max({to_device, to_host, media, compute, decode, host_compute});
}

TEST(Timing, OneRequestTakesItsBusiestResourceAndARoundTrip) {
  const Profile device = round_numbers();
  Work work;
  work.heads = 4;
  const double idle = 300 + 7;  // round trip, start of a unit
  work.read_bytes = 100'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), idle + 1000);
  work.multiply_adds = 100'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), idle + 2000);
  work.decoded_bytes = work.row_bytes = 120'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), idle + 3000);
  work.request_bytes = 40'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), 300 + 4000);
  work.answer_bytes = 100'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), 300 + 5000);
}

TEST(Timing, HeadsThatDoNotFillAllUnitsTakeLonger) {
  const Profile device = round_numbers();
  Work work;
  work.read_bytes = 100'000;
  work.heads = 1;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), 300 + 7 + 4000);
  work.heads = 5;  // one unit has two of them
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::DEVICE), 300 + 2 * (7 + 800));
}

TEST(Timing, TheHostComputesBehindTheLink) {
  Profile device = round_numbers();
  device.decode_gb_s = 0;
  const Host host = {.memory_gb_s = 50, .gmac_s = 1000, .decode_gb_s = 30};
  Work work;
  work.read_bytes = 100'000;
  work.row_bytes = 100'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::HOST, host), 300 + 5000);  // the link
  EXPECT_EQ(link_bytes(device, work, Place::HOST).to_host, 100'000u);
  work.row_bytes = 150'000;  // written and read
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::HOST, host), 300 + 6000);
  work.multiply_adds = 7'000'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::HOST, host), 300 + 7000);
  work.multiply_adds = 0;
  work.row_bytes = work.decoded_bytes = 240'000;
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::HOST, host), 300 + 9600);

  device.decode_gb_s = 40;  // then rows cross the link
  EXPECT_EQ(link_bytes(device, work, Place::HOST).to_host, 240'000u);
  EXPECT_DOUBLE_EQ(modelled_ns(device, work, Place::HOST, host), 300 + 12'000);
}

TEST(Timing, DevicesComputeWhatTheyCan) {
  Profile device = round_numbers();
  Work plain, framed;
  framed.decoded_bytes = 1;
  EXPECT_EQ(place_of(device, plain), Place::DEVICE);
  EXPECT_EQ(place_of(device, framed), Place::DEVICE);
  device.decode_gb_s = 0;
  EXPECT_EQ(place_of(device, plain), Place::DEVICE);
  EXPECT_EQ(place_of(device, framed), Place::HOST);
  device.gmac_s = 0;
  EXPECT_EQ(place_of(device, plain), Place::HOST);
}

TEST(Timing, MoreWorkIsNeverFasterNorBelowTheRoofline) {
  Random random(1);
  for (const Profile& device : profiles())
    for (int i = 0; i < 300; ++i) {
      const Work work = random_work(random);
      for (const Place place : {place_of(device, work), Place::HOST}) {
        const double ns = modelled_ns(device, work, place);
        EXPECT_GE(ns, device.round_trip_ns + roofline_ns(device, {work}, place) * (1 - 1e-9));
        Work more[6] = {work, work, work, work, work, work};
        more[0].request_bytes += 1 << 20;
        more[1].answer_bytes += 1 << 20;
        more[2].read_bytes += 1 << 20;
        more[3].row_bytes += 1 << 20;
        more[4].multiply_adds += 1 << 20;
        more[5].read_bytes *= 2;
        for (const Work& one : more) EXPECT_GE(modelled_ns(device, one, place), ns);
      }
    }
}

TEST(Timing, ManyRequestsAreBoundedByEachRateAndNotSimplyAdded) {
  Random random(2);
  for (const Profile& device : profiles()) {
    std::vector<Work> all;
    for (int i = 0; i < 200; ++i) all.push_back(random_work(random));
    const Place place =
        std::all_of(all.begin(), all.end(),
                    [&](const Work& work) { return place_of(device, work) == Place::DEVICE; })
            ? Place::DEVICE
            : Place::HOST;
    Occupancy occupancy(device);
    double last = 0, alone = 0;
    for (const Work& work : all) {
      const double one = modelled_ns(device, work, place);
      const double done = occupancy.add(work, place, 0);
      EXPECT_GE(done, one);
      last = std::max(last, done);
      alone += one;
    }
    EXPECT_GE(last, roofline_ns(device, all, place) * (1 - 1e-9)) << device.name;
    EXPECT_LT(last, alone) << device.name;
  }
}

TEST(Timing, RequestsInFlightHideTheRoundTripAndFillTheUnits) {
  const Profile device = round_numbers();
  Work work;  // of one head: one unit for 7 + 4,000 ns
  work.read_bytes = 100'000;
  Occupancy occupancy(device);
  for (int i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(occupancy.add(work, Place::DEVICE, 0), 300 + 4007) << i;
  EXPECT_DOUBLE_EQ(occupancy.add(work, Place::DEVICE, 0), 300 + 2 * 4007);
  // Later ones find units that are free.
  EXPECT_DOUBLE_EQ(occupancy.add(work, Place::DEVICE, 5000), 5000 + 300 + 4007);
  // The host's reads of the same memory wait for all units.
  EXPECT_DOUBLE_EQ(occupancy.add(work, Place::HOST, 5000), 5000 + 4007 + 1000 + 300);
}

// Attention of one layer to 32,768 tokens: 8 heads, 4 queries each, 128 channels of 16 bits.
TEST(Timing, NextToTheMemoryFewerBytesCrossTheLink) {
  Work work = attention(8, 32768, 128, 2);
  work.multiply_adds *= 4;
  work.request_bytes = work.answer_bytes = 8 * 4 * 128 * 4;
  for (const Profile& one : profiles())
    for (const Place place : {Place::DEVICE, Place::HOST}) {
      if (place == Place::DEVICE && place_of(one, work) == Place::HOST) continue;
      const LinkBytes link = link_bytes(one, work, place);
      const uint64_t bytes = link.to_device + link.to_host;
      EXPECT_EQ(bytes, place == Place::DEVICE ? 32'768 : work.read_bytes);
      fmt::print("| {} | {} | {} | {:.1f} |\n", one.name,
                 place == Place::DEVICE ? "device" : "host", bytes,
                 modelled_ns(one, work, place) / 1000);
    }
}

TEST(Timing, NamesOfProfiles) {
  for (const Profile& one : profiles()) {
    EXPECT_STREQ(profile_named(one.name).value().name, one.name);
    EXPECT_NE(std::string(one.description), "");
    EXPECT_GT(one.units, 0u);
    EXPECT_GE(one.media_gb_s, one.to_host_gb_s) << one.name;
  }
  const auto unknown = profile_named("cxl-x4");
  EXPECT_EQ(unknown.status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(unknown.error().message(),
            "no modelled device is named \"cxl-x4\"; there are: cxl-x8, cxl-x16, cxl-pnm, trace, "
            "m2ndp, attacc");
}

// ---- the cost of requests ----

class Cost : public testing::Test {
 protected:
  Cost() {
    for (uint32_t i = 0; i < 2; ++i) {
      ndp::StoredBlock& block = blocks_.emplace_back();
      block.layout = &layout_;
      block.value_bytes = payload_bytes(layout_, 10);
      block.first_token = 10 * i;
      block.framed = i == 1;
    }
    read_.bytes = 12345;
  }
  ndp::Request request(ndp::Operation operation) {
    ndp::Request request;
    request.operation = operation;
    request.heads = {blocks_, 1, 1, 3};
    request.queries.count = 6;
    request.k = 4;
    return request;
  }
  Work cost(const ndp::Request& request) { return work_of(request, read_, 99).value(); }

  // Rows of 128 bytes in K and 64 in V.
  KvLayout layout_ = [] {
    KvLayout layout = pairs_layout(NumberFormat::BF16, 2, 4, 64);
    layout.value_channels = 32;
    return layout;
  }();
  std::vector<ndp::StoredBlock> blocks_;
  ndp::BlocksRead read_;
};

TEST_F(Cost, Score) {
  const Work work = cost(request(ndp::Operation::SCORE));
  EXPECT_EQ(work.request_bytes, 99u);
  EXPECT_EQ(work.read_bytes, 12345u);
  EXPECT_EQ(work.answer_bytes, 3u * 6 * 20 * 4);
  EXPECT_EQ(work.row_bytes, 3u * 20 * 128);
  EXPECT_EQ(work.decoded_bytes, 3u * 10 * 128);
  EXPECT_EQ(work.multiply_adds, 3.0 * 6 * 20 * 64);
  EXPECT_EQ(work.heads, 3u);
}

TEST_F(Cost, AttendReadsValuesToo) {
  const Work work = cost(request(ndp::Operation::ATTEND));
  EXPECT_EQ(work.row_bytes, 3u * 20 * 192);
  EXPECT_EQ(work.multiply_adds, 3.0 * 6 * 20 * 96);
  EXPECT_EQ(work.answer_bytes, 3u * 6 * (32 + 1) * 4);
}

TEST_F(Cost, LatentAttentionReadsItsRowsOnce) {
  layout_.parts = 1;
  for (ndp::StoredBlock& block : blocks_) block.value_bytes = payload_bytes(layout_, 10);
  const Work work = cost(request(ndp::Operation::ATTEND));
  EXPECT_EQ(work.row_bytes, 3u * 20 * 128);
  EXPECT_EQ(work.multiply_adds, 3.0 * 6 * 20 * 96);
}

TEST_F(Cost, OnlyVisibleTokensCount) {
  ndp::Request of = request(ndp::Operation::TOP_K);
  of.queries.views = ndp::Visible{5, 12, 1};
  Work work = cost(of);
  EXPECT_EQ(work.row_bytes, 3u * 8 * 128);
  EXPECT_EQ(work.decoded_bytes, 3u * 2 * 128);
  EXPECT_EQ(work.multiply_adds, 3.0 * 6 * 8 * 64);
  EXPECT_EQ(work.answer_bytes, 3u * 6 * (4 * 8 + 4));

  const std::vector<ndp::Visible> each = {{0, 20, 0}, {0, 5, 0}};
  const std::vector<float> weights(18, 1.0f);
  of.queries.weights = weights;
  of.queries.group = 3;
  of.queries.views = std::span<const ndp::Visible>(each);
  work = cost(of);
  EXPECT_EQ(work.multiply_adds, 3.0 * 3 * (20 + 5) * 64);
  EXPECT_EQ(work.answer_bytes, 3u * 2 * (4 * 8 + 4));
}

TEST_F(Cost, GatherIsAboutItsPositions) {
  const std::vector<uint32_t> positions = {19, 3, 12, 3};
  ndp::Request of = request(ndp::Operation::GATHER);
  of.part = 1;
  of.tokens = positions;
  const Work work = cost(of);
  EXPECT_EQ(work.row_bytes, 3u * 4 * 64);
  EXPECT_EQ(work.decoded_bytes, 3u * 2 * 64);
  EXPECT_EQ(work.multiply_adds, 0);
  EXPECT_EQ(work.answer_bytes, 3u * 4 * 64);
}

TEST_F(Cost, Digest) {
  ndp::Request of = request(ndp::Operation::DIGEST);
  of.page_tokens = 4;
  const Work work = cost(of);
  EXPECT_EQ(work.row_bytes, 3u * 20 * 128);
  EXPECT_EQ(work.multiply_adds, 3.0 * 20 * 64);
  EXPECT_EQ(work.answer_bytes, 3u * 6 * 64 * 4 * 2);
}

TEST_F(Cost, BlocksThatWereLeftOutCostNothing) {
  read_.left_out = {1};
  const Work work = cost(request(ndp::Operation::SCORE));
  EXPECT_EQ(work.row_bytes, 3u * 10 * 128);
  EXPECT_EQ(work.decoded_bytes, 0u);
  EXPECT_EQ(work.multiply_adds, 3.0 * 6 * 10 * 64);
}

TEST_F(Cost, RequestsWithoutAnAnswerHaveNoCost) {
  ndp::Request of = request(ndp::Operation::SCORE);
  of.heads.blocks = {};
  EXPECT_EQ(work_of(of, read_, 0).status(), Status::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace bowhead::test
