// SPDX-License-Identifier: Apache-2.0
// The timing model of the simulated device: how long a request would take on modelled hardware.
// Every time here is modelled, none is measured; whatever shows one says so.
//
// The model is a roofline. A request keeps some resources busy, each for its bytes or multiply-adds
// over the rate of the resource. All of them work at the same time, so the request takes as long as
// the busiest one, and a round trip over the link. Apart from `start_ns` that is a lower bound: it
// knows no bank conflicts, no refresh, and no wait of one resource for another within a request.
// It was chosen since publications have its rates and seldom the parameters of finer models, and
// since most results of published devices that stream lie within 20 % of it (docs/device-timing.md
// has them, and those that do not).
//
// Rates are in GB/s, which are bytes per ns. Pure arithmetic: nothing here reads a clock.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ndp/request.h"

namespace bowhead::device {

/// Modelled hardware: the memory, the link to it, and what computes next to it.
struct Profile {
  const char* name;         ///< for options
  const char* description;  ///< for help texts
  double to_device_gb_s;    ///< payload that the link carries to the device
  double to_host_gb_s;      ///< and to the host, at the same time
  double round_trip_ns;     ///< from a load of the host to its data, on an idle device
  double media_gb_s;        ///< from the memory to the units, all together
  double gmac_s;            ///< 10^9 multiply-adds per second, all units; 0: it does not compute
  uint32_t units;      ///< each with its share of the memory, of the rates, and one head a time
  double start_ns;     ///< of a unit, for each head
  double decode_gb_s;  ///< rows out of frames, all units; 0: it does not decode
};

/// All of them. Sources of every number: docs/device-timing.md.
std::span<const Profile> profiles();
/// INVALID_ARGUMENT, with the names that exist: there is none of this name.
Result<Profile> profile_named(std::string_view name);

/// The host that computes where the device does not: one socket (sources as above).
struct Host {
  double memory_gb_s;
  double gmac_s;
  double decode_gb_s;
};
extern const Host kModelledHost;

/// The cost of a request.
struct Work {
  uint64_t request_bytes = 0;  ///< to the device
  uint64_t answer_bytes = 0;   ///< to the host
  uint64_t read_bytes = 0;     ///< of blocks, as they are stored
  uint64_t row_bytes = 0;      ///< of the rows that it is about, decoded
  uint64_t decoded_bytes = 0;  ///< of these, those that lie in frames
  double multiply_adds = 0;
  uint32_t heads = 1;  ///< which units can take each on its own; all cost the same
};

/// The cost of a request that has read this. `request_bytes`: of its encoding (wire.h). Rows are
/// those at the positions of a GATHER, all keys of a DIGEST, else those that a query may see.
/// Multiply-adds are those of dot products and of weighted sums of values; DIGEST counts one for
/// each number. Exponentials, soft caps and the choice of hits count nothing; a search by planes
/// counts as a scan. Statuses of ndp::answer_bytes().
Result<Work> work_of(const ndp::Request& request, const ndp::BlocksRead& read,
                     uint64_t request_bytes);

/// Where the computation is.
enum class Place {
  DEVICE,  ///< request and answer cross the link
  HOST     ///< the blocks cross the link: as rows if the device decodes, else as they are stored
};
/// DEVICE if this hardware can do it: it computes, and decodes if there are frames. Else HOST.
Place place_of(const Profile& profile, const Work& work);

struct LinkBytes {
  uint64_t to_device = 0, to_host = 0;
};
LinkBytes link_bytes(const Profile& profile, const Work& work, Place place);

/// Requests that share one device, in the order in which they are issued. Each resource serves them
/// one after another, so that however many are in flight, none is faster than its rate. Not
/// thread-safe.
class Occupancy {
 public:
  explicit Occupancy(const Profile& profile, const Host& host = kModelledHost);
  /// When the host has the answer to a request that it issues at `issued_ns`, both on a clock of
  /// the caller. `place` is HOST or what place_of() says.
  double add(const Work& work, Place place, double issued_ns);

 private:
  double add_to_units(const Work& work, double issued_ns);
  double stream_from_units(const Work& work, double issued_ns);

  Profile profile_;
  Host host_;
  // Busy until then, ns.
  double to_device_ = 0, to_host_ = 0, host_busy_ = 0;
  std::vector<double> units_;  // a heap, the first to be free in front
};

/// The time of a request alone on an idle device.
double modelled_ns(const Profile& profile, const Work& work, Place place,
                   const Host& host = kModelledHost);

}  // namespace bowhead::device
