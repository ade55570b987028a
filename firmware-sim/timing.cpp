// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

namespace bowhead::device {
namespace {

// PCIe 5: 32 GT/s a lane, of 130 bits 128, of a flit of 68 bytes 64.
constexpr double kPcie5X16 = 32.0 * 16 / 8 * 128 / 130 * 64 / 68;

// "Assumed": no source was found that says it.
constexpr Profile kProfiles[] = {
    {.name = "cxl-x8",
     .description =
         "CXL 2.0 expander, PCIe 5 x8, E3.S, as measured with CacheLib; the host computes",
     // github.com/intel/CacheLib, wiki page "OCP demo configuration": all reads 17.8 GB/s; reads
     // and writes 1:1 together 27.2 GB/s, of which half are writes; 250 ns.
     .to_device_gb_s = 27.2 / 2,
     .to_host_gb_s = 17.8,
     .round_trip_ns = 250,
     // One channel of DDR5-4800, as the page has it.
     .media_gb_s = 4.8 * 8,
     .gmac_s = 0,
     .units = 1,
     .start_ns = 0,
     .decode_gb_s = 0},
    {.name = "cxl-x16",
     .description = "CXL 2.0 expander, PCIe 5 x16, by arithmetic, not measured; the host computes",
     .to_device_gb_s = kPcie5X16,
     .to_host_gb_s = kPcie5X16,
     .round_trip_ns = 250,       // assumed: that of cxl-x8
     .media_gb_s = 2 * 5.6 * 8,  // assumed: two channels of DDR5-5600
     .gmac_s = 0,
     .units = 1,
     .start_ns = 0,
     .decode_gb_s = 0},
    {.name = "cxl-pnm",
     .description = "CXL-PNM (Samsung, HPCA 2024): LPDDR5X; link and compute rate are assumed",
     .to_device_gb_s = kPcie5X16,  // assumed
     .to_host_gb_s = kPcie5X16,    // assumed
     .round_trip_ns = 250,         // assumed: that of cxl-x8
     // Park et al., HPCA 2024, pages 970 to 982, abstract: 512 GB and 1.1 TB/s.
     .media_gb_s = 1100,
     .gmac_s = 1100,  // assumed: two queries for each 16-bit number at the full rate
     .units = 1,
     .start_ns = 0,
     .decode_gb_s = 0},
    {.name = "trace",
     .description = "TRACE (arXiv 2509.03377): decodes bit-planes in the device; the host computes",
     .to_device_gb_s = kPcie5X16,  // assumed
     .to_host_gb_s = kPcie5X16,    // assumed
     .round_trip_ns = 250,         // assumed: that of cxl-x8
     // Xie et al., arXiv 2509.03377v3, abstract: the 7 nm implementation sustains 256 GB/s. It does
     // not say on which side of the decoder, so both have it.
     .media_gb_s = 256,
     .gmac_s = 0,
     .units = 1,
     .start_ns = 0,
     .decode_gb_s = 256},
    {.name = "m2ndp",
     .description = "M2NDP (MICRO 2024): general-purpose units in a CXL expander, LPDDR5",
     // Ham et al., MICRO 2024, pages 594 to 611, as its artifact has it: github.com/PSAL-POSTECH/
     // M2NDP-public at c4fb86c0. config/performance/M2NDP: flits of 8 bytes at 8 GHz; each 32 bytes
     // of data cross the link with 8 of CXL_OVERHEAD (src/mem_fetch.h).
     .to_device_gb_s = 64.0 * 32 / 40,
     .to_host_gb_s = 64.0 * 32 / 40,
     // M2NDP_300 and M2NDP_600 are named by their round trip. M2NDP has 600 cycles of 0.125 ns less
     // each way than M2NDP_300.
     .round_trip_ns = 300 - 2 * 600 * 0.125,
     // 32 channels, 16 bits wide, of LPDDR5-6400 (LPDDR5-config.cfg).
     .media_gb_s = 32 * 6.4 * 2,
     // 32 units of 4 sub-cores, one float unit of 256 bits each, 2 GHz (m2ndp.config).
     .gmac_s = 32 * 4 * 8 * 2,
     .units = 1,  // kernels that run at the same time share all 32
     .start_ns = 0,
     .decode_gb_s = 0},
    {.name = "attacc",
     .description = "AttAcc (ASPLOS 2024): one stack of HBM3, a unit in each bank, power-limited",
     // Park et al., ASPLOS 2024, pages 103 to 119, as its artifact has it: github.com/scale-snu/
     // attacc_simulator at c6000514. make_pim_config(), _io_time_energy(): NVLink 3, 600 GB/s,
     // half of it each way, for five stacks. The source counts no latency.
     .to_device_gb_s = 600.0 / 2 / 5,
     .to_host_gb_s = 600.0 / 2 / 5,
     .round_trip_ns = 0,
     // src/config.py: 670.4 GB/s of a stack, 9 times that in the banks (BW_SCALE).
     .media_gb_s = 670.4 * 9,
     // src/config.py: as many operations as bytes; a multiply-add is two.
     .gmac_s = 670.4 * 9 / 2,
     .units = 16,  // channels, which take a head each (attacc_bank.yaml, trace_gen)
     // One row opened, read and closed: 19 + 19 + 19 cycles (nRCDRD, nCL, nRP of HBM3_5.2Gbps in
     // HBM3-PIM.cpp) of 0.769 ns (ramulator_wrapper.py). Chosen after comparison with the source's
     // results without it; its size was not fitted.
     .start_ns = 57 * 0.769,
     .decode_gb_s = 0},
};

/// The tokens of a block that a request is about.
uint64_t tokens_about(const ndp::Request& request, const ndp::StoredBlock& block,
                      std::span<const uint32_t> positions) {
  const uint64_t tokens = ndp::tokens_of(block).value_or(0);
  switch (request.operation) {
    case ndp::Operation::GATHER: {
      const auto first = std::lower_bound(positions.begin(), positions.end(), block.first_token);
      const auto end = std::find_if(first, positions.end(), [&](uint32_t position) {
        return position >= block.first_token + tokens;
      });
      return static_cast<uint64_t>(end - first);
    }
    case ndp::Operation::DIGEST:
      return tokens;
    default:
      return request.queries.views.any().count_of(block.first_token, static_cast<uint32_t>(tokens));
  }
}

/// Bytes of a row of what the operation reads of each token.
uint64_t bytes_of_token(const ndp::Request& request, const KvLayout& layout) {
  if (request.operation == ndp::Operation::GATHER) return row_bytes(layout, request.part);
  const bool values = request.operation == ndp::Operation::ATTEND && layout.parts == 2;
  return row_bytes(layout, 0) + (values ? row_bytes(layout, 1) : 0);
}

/// Of one head and one block.
double multiply_adds_of(const ndp::Request& request, const ndp::StoredBlock& block) {
  const KvLayout& layout = *block.layout;
  const auto tokens = static_cast<uint32_t>(ndp::tokens_of(block).value_or(0));
  const ndp::HeadQueries& queries = request.queries;
  double products = 0;  // of a query with a token
  switch (request.operation) {
    case ndp::Operation::GATHER:
      return 0;
    case ndp::Operation::DIGEST:
      return 1.0 * tokens * layout.key_channels;
    default:
      break;
  }
  const uint32_t answers = queries.answers();
  if (answers == 0) return 0;
  if (queries.views.are_own())
    for (uint32_t i = 0; i < answers; ++i)
      products += queries.views.of(i).count_of(block.first_token, tokens);
  else
    products = 1.0 * answers * queries.views.any().count_of(block.first_token, tokens);
  products *= queries.count / answers;
  const bool values = request.operation == ndp::Operation::ATTEND;
  return products * (layout.key_channels + (values ? layout.value_channels : 0));
}

}  // namespace

// One socket of Sapphire Rapids: eight channels of DDR5-4800, 307.2 GB/s; 56 cores with 4 TFLOP/s
// of 16-bit floats (make_xpu_config() of AttAcc's artifact). Frames: 3.5 GB/s on a core
// (docs/ndp-work.md) times 56, as if it scaled.
const Host kModelledHost = {.memory_gb_s = 307.2, .gmac_s = 4000.0 / 2, .decode_gb_s = 3.5 * 56};

std::span<const Profile> profiles() { return kProfiles; }

Result<Profile> profile_named(std::string_view name) {
  std::string names;
  for (const Profile& profile : kProfiles) {
    if (name == profile.name) return profile;
    names += names.empty() ? "" : ", ";
    names += profile.name;
  }
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("no modelled device is named \"{}\"; there are: {}", name, names)};
}

Result<Work> work_of(const ndp::Request& request, const ndp::BlocksRead& read,
                     uint64_t request_bytes) {
  const auto answer = ndp::answer_bytes(request);
  if (!answer) return answer.error();
  Work work{.request_bytes = request_bytes,
            .answer_bytes = answer->first + answer->second,
            .read_bytes = read.bytes,
            .heads = request.heads.heads};
  std::vector<uint32_t> positions;
  if (request.operation == ndp::Operation::GATHER) {
    positions.assign(request.tokens.begin(), request.tokens.end());
    std::sort(positions.begin(), positions.end());
  }
  auto left_out = read.left_out.begin();
  for (size_t i = 0; i < request.heads.blocks.size(); ++i) {
    if (left_out != read.left_out.end() && *left_out == i) {
      ++left_out;
      continue;
    }
    const ndp::StoredBlock& block = request.heads.blocks[i];
    const uint64_t rows = tokens_about(request, block, positions) * request.heads.heads *
                          bytes_of_token(request, *block.layout);
    work.row_bytes += rows;
    if (block.framed) work.decoded_bytes += rows;
    work.multiply_adds += multiply_adds_of(request, block) * request.heads.heads;
  }
  return work;
}

Place place_of(const Profile& profile, const Work& work) {
  const bool decodes = work.decoded_bytes == 0 || profile.decode_gb_s > 0;
  return profile.gmac_s > 0 && decodes ? Place::DEVICE : Place::HOST;
}

LinkBytes link_bytes(const Profile& profile, const Work& work, Place place) {
  if (place == Place::DEVICE) return {work.request_bytes, work.answer_bytes};
  return {0, profile.decode_gb_s > 0 && work.decoded_bytes > 0 ? work.row_bytes : work.read_bytes};
}

Occupancy::Occupancy(const Profile& profile, const Host& host)
    : profile_(profile), host_(host), units_(profile.units, 0.0) {
  BOWHEAD_ASSERT(profile.units > 0);
}

double Occupancy::add(const Work& work, Place place, double issued_ns) {
  BOWHEAD_ASSERT(place == Place::HOST || place_of(profile_, work) == Place::DEVICE);
  const auto serve = [&](double& busy, double ns) {
    busy = std::max(busy, issued_ns) + ns;
    return busy;
  };
  const LinkBytes link = link_bytes(profile_, work, place);
  double done =
      std::max(serve(to_device_, static_cast<double>(link.to_device) / profile_.to_device_gb_s),
               serve(to_host_, static_cast<double>(link.to_host) / profile_.to_host_gb_s));
  if (place == Place::DEVICE) {
    done = std::max(done, add_to_units(work, issued_ns));
  } else {
    done = std::max(done, stream_from_units(work, issued_ns));
    // Rows are written to the host's memory as they arrive, and read from it.
    const double memory = 2 * static_cast<double>(work.row_bytes) / host_.memory_gb_s;
    const double compute = work.multiply_adds / host_.gmac_s;
    const double decode =
        profile_.decode_gb_s > 0 ? 0 : static_cast<double>(work.decoded_bytes) / host_.decode_gb_s;
    done = std::max(done, serve(host_busy_, std::max({memory, compute, decode})));
  }
  return done + profile_.round_trip_ns;
}

/// Each head goes to the unit that is free first. Returns when the last one is done.
double Occupancy::add_to_units(const Work& work, double issued_ns) {
  const double heads = std::max(work.heads, 1u), share = heads / profile_.units;
  const double media = static_cast<double>(work.read_bytes) / profile_.media_gb_s;
  const double decode =
      work.decoded_bytes == 0 ? 0 : static_cast<double>(work.decoded_bytes) / profile_.decode_gb_s;
  const double head_ns =
      profile_.start_ns + std::max({media, decode, work.multiply_adds / profile_.gmac_s}) / share;
  double done = issued_ns;
  for (uint32_t i = 0; i < heads; ++i) {
    std::pop_heap(units_.begin(), units_.end(), std::greater<>());
    units_.back() = std::max(units_.back(), issued_ns) + head_ns;
    done = std::max(done, units_.back());
    std::push_heap(units_.begin(), units_.end(), std::greater<>());
  }
  return done;
}

/// All units send their share of the blocks. Returns when the last one is done.
double Occupancy::stream_from_units(const Work& work, double issued_ns) {
  const double decode =
      profile_.decode_gb_s > 0 ? static_cast<double>(work.decoded_bytes) / profile_.decode_gb_s : 0;
  const double busy_ns =
      std::max(static_cast<double>(work.read_bytes) / profile_.media_gb_s, decode);
  double done = issued_ns;
  for (double& unit : units_) {  // the same function of each keeps the order of the heap
    unit = std::max(unit, issued_ns) + busy_ns;
    done = std::max(done, unit);
  }
  return done;
}

double modelled_ns(const Profile& profile, const Work& work, Place place, const Host& host) {
  return Occupancy(profile, host).add(work, place, 0);
}

}  // namespace bowhead::device
