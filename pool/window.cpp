// SPDX-License-Identifier: Apache-2.0
#include "pool/window.h"

#include <fmt/format.h>

#include <bitset>
#include <cstring>
#include <mutex>

#include "pool/core/device_place.h"
#include "pool/pool_impl.h"

namespace bowhead {
namespace {

constexpr uint32_t kDevicePlace = BH_DEVICE_PAIRS;  ///< behind the pairs of host 0
static_assert(BH_DEVICE_PAIRS * 2 * BH_DEVICE_QUEUE_BYTES == 65536, "ring_bytes of version 2");

}  // namespace

class Window::State {
 public:
  explicit State(Pool::Impl& of) : pool(of), among_hosts(of.core().context()) {}
  ~State() {
    if (pool.forked()) return;
    if (mine[kDevicePlace] && shared()) among_hosts.leave();
    for (uint32_t place = 0; place <= kDevicePlace; ++place) {
      if (mine[place]) give_back(place);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Access& access() const { return pool.core().context().access; }
  const core::Layout& layout() const { return pool.core().context().layout; }
  uint32_t host() const { return pool.core().context().host; }
  /// Whose lock it is: there is one device for all hosts of a machine.
  uint32_t holder(uint32_t place) const { return place == kDevicePlace ? 0 : host(); }

  bool take(uint32_t place) {
    Pool::Impl::QueuePlaces& places = pool.queue_places();
    const std::lock_guard lock(places.mutex);
    if (places.taken[place] || access().lock_queue(holder(place), place) != core::LockResult::TAKEN)
      return false;
    places.taken[place] = mine[place] = true;
    return true;
  }
  void give_back(uint32_t place) {
    Pool::Impl::QueuePlaces& places = pool.queue_places();
    const std::lock_guard lock(places.mutex);
    places.taken[place] = mine[place] = false;
    access().unlock_queue(holder(place), place);
  }
  /// The hosts may be those of several machines.
  bool shared() const { return !pool.core().context().alone(); }

  /// By this process or another one.
  bool is_taken(uint32_t place) {
    Pool::Impl::QueuePlaces& places = pool.queue_places();
    const std::lock_guard lock(places.mutex);
    return places.taken[place] || access().queue_held(holder(place), place);
  }
  /// In the grain of the mapping, which may have more of the other host's region.
  Result<void> open_to_stores(uint64_t completions) const {
    const uint64_t grain = pool.media().traits().page_bytes;
    const uint64_t begin = completions / grain * grain;
    const uint64_t end = (completions + BH_DEVICE_QUEUE_BYTES + grain - 1) / grain * grain;
    return pool.media().protect(begin, end - begin, /*writable=*/true);
  }

  Pool::Impl& pool;
  std::bitset<kDevicePlace + 1> mine;  ///< of this object
  core::DevicePlace<Access> among_hosts;
  uint64_t looked_ns = 0, heartbeat_ns = 0;
  bool is_elsewhere = false;  ///< when it was looked for last
};

Result<Window> Window::open(Pool& pool) {
  Pool::Impl& impl = *pool.impl_;
  if (auto why = impl.barred()) return *std::move(why);
  if ((impl.superblock().compat & BH_FEATURE_RINGS) == 0)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{}: an earlier version made the pool, without queues of devices: "
                             "create it anew",
                             impl.locator())};
  return Window(std::make_unique<State>(impl));
}

Window::Window(std::unique_ptr<State> state) : state_(std::move(state)) {}
Window::Window(Window&&) noexcept = default;
Window::~Window() = default;

Window::Access& Window::access() { return state_->access(); }
uint32_t Window::host() const { return state_->host(); }
uint32_t Window::hosts() const { return state_->layout().geometry().host_count; }

uint64_t Window::pool_id() const { return state_->pool.superblock().pool_id[0]; }
uint64_t Window::pool_bytes() const { return core::offset_end(state_->layout().geometry()); }

uint64_t Window::commands(uint32_t host, uint32_t pair) const {
  BOWHEAD_ASSERT(host < hosts() && pair < BH_DEVICE_PAIRS);
  return state_->layout().part(host, BH_PART_RINGS) + pair * 2 * BH_DEVICE_QUEUE_BYTES;
}
uint64_t Window::completions(uint32_t host, uint32_t pair) const {
  return commands(host, pair) + BH_DEVICE_QUEUE_BYTES;
}

uint64_t Window::device_word(uint32_t host) const {
  BOWHEAD_ASSERT(host < hosts());
  return core::DevicePlace<Access>::word_at(state_->layout(), host);
}

Result<uint32_t> Window::take_pair() {
  for (uint32_t pair = 0; pair < BH_DEVICE_PAIRS; ++pair) {
    if (state_->take(pair)) return pair;
  }
  return Error{Status::LIMIT_REACHED,
               fmt::format("all {} queue pairs of host {} are taken by processes that use the "
                           "device",
                           BH_DEVICE_PAIRS, host())};
}

void Window::give_back(uint32_t pair) { state_->give_back(pair); }
bool Window::is_taken(uint32_t pair) const { return state_->is_taken(pair); }

Result<void> Window::become_device() {
  if (!state_->take(kDevicePlace))
    return Error{Status::IN_USE, "another process serves the pool as its device"};
  if (const auto host = state_->shared() ? state_->among_hosts.claim() : std::nullopt) {
    state_->give_back(kDevicePlace);
    return Error{Status::IN_USE, fmt::format("host {} serves the pool as its device", *host)};
  }
  // Rule R1 by the mapping: these lines of other hosts are the device's to write.
  for (uint32_t of = 0; of < hosts(); ++of) {
    for (uint32_t pair = 0; of != host() && pair < BH_DEVICE_PAIRS; ++pair) {
      if (auto good = state_->open_to_stores(completions(of, pair)); !good) return good;
    }
  }
  return {};
}

Result<void> Window::heartbeat() {
  if (!state_->shared()) return {};
  const uint64_t now_ns = access().now_ns();
  if (now_ns - state_->heartbeat_ns < core::DevicePlace<Access>::kHeartbeatNs / 2) return {};
  state_->heartbeat_ns = now_ns;
  if (const auto host = state_->among_hosts.heartbeat())
    return Error{Status::IN_USE, fmt::format("host {} serves the pool as its device too", *host)};
  return {};
}

bool Window::has_device() {
  if (state_->is_taken(kDevicePlace)) return true;
  if (!state_->shared()) return false;
  constexpr uint64_t kLookNs = 20'000'000;
  const uint64_t now_ns = access().now_ns();
  if (now_ns - state_->looked_ns > kLookNs) {
    state_->looked_ns = now_ns;
    state_->is_elsewhere = state_->among_hosts.is_elsewhere();
  }
  return state_->is_elsewhere;
}

Status Window::standing() const { return state_->pool.core().membership.standing(); }

bool Window::is_payload(uint64_t offset, uint64_t bytes) const {
  const core::Layout& layout = state_->layout();
  const bh_geometry& g = layout.geometry();
  if (bytes == 0 || offset < g.payload_offset) return false;
  const uint64_t first = (offset - g.payload_offset) / g.extent_bytes;
  const uint64_t within = offset - layout.extent_offset(first);
  if (first >= layout.extent_end() ||
      bytes > (layout.extent_end() - first) * g.extent_bytes - within)
    return false;
  for (uint64_t e = first; e * g.extent_bytes < offset - g.payload_offset + bytes; ++e) {
    if (!layout.has_extent(e)) return false;
  }
  return true;
}

bool Window::is_block(const bh_device_block& block) const {
  const core::Layout& layout = state_->layout();
  if (!layout.valid_block(block.offset, block.stored_bytes) ||
      !is_payload(block.offset, block.stored_bytes))
    return false;
  const uint64_t at = layout.header(layout.slot_of(block.offset));
  Access& access = state_->access();
  access.acquire(at, BH_LINE_BYTES);
  const core::Line line = access.load_line(at);
  bh_block_header header;
  std::memcpy(&header, line.data(), sizeof header);
  return (block.stamp & ((1u << BH_STAMP_STATE_BITS) - 1)) == BH_STAMP_COMMITTED &&
         header.stamp == block.stamp && state_->pool.core().context().sealer.check(line, at) &&
         header.stored_bytes == block.stored_bytes && header.length_bytes == block.length_bytes &&
         header.codec == block.codec;
}

}  // namespace bowhead
