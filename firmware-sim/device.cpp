// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "firmware-sim/areas.h"
#include "firmware-sim/wire.h"
#include "pool/window.h"

namespace bowhead::device {
namespace {

using core::Message;

constexpr uint64_t kAreaBytesMax = uint64_t{1} << 30;
constexpr size_t kTakenAtOnce = 16;
/// How often pairs without a session are looked at, and whether processes have gone.
constexpr uint64_t kLookNs = 1'000'000;
constexpr uint64_t kCleanNs = 1'000'000'000;

/// What a command led to.
struct Outcome {
  Status status = Status::OK;
  uint32_t left_out = 0;
  uint64_t bytes = 0, sum = 0, read_bytes = 0;
};

}  // namespace

/// A queue pair that some process has used since the device began.
class Pair {
 public:
  Pair(Window& window, Areas& areas, uint32_t host, uint32_t number)
      : window_(window),
        areas_(areas),
        host_(host),
        number_(number),
        channel_(window.access(), window.completions(host, number), window.commands(host, number),
                 BH_DEVICE_QUEUE_BYTES) {
    channel_.open();
  }

  /// Takes some commands and answers them; returns how many. `count` gets what they did.
  template <class Count>
  size_t serve(const Count& count) {
    // Until its process has taken completions.
    if (!send() && completions_.size() >= kTakenAtOnce) return 0;
    const size_t taken = channel_.poll(commands_);
    if (channel_.peer_session() != session_) {
      session_ = channel_.peer_session();  // another process: nothing is pending
      area_.reset();
      completions_.clear();
    }
    for (size_t i = 0; i < taken; ++i) {
      const uint64_t from_ns = window_.access().recency_ns();
      const Outcome outcome = carry_out(commands_[i]);
      count(outcome.status, outcome.read_bytes);
      completions_.push_back(
          {commands_[i][BH_COMMAND_ID],
           static_cast<uint32_t>(outcome.status) | uint64_t{outcome.left_out} << 32, outcome.bytes,
           outcome.sum, outcome.read_bytes, window_.access().recency_ns() - from_ns, 0});
    }
    (void)send();
    return taken;
  }

  bool has_area() const { return area_.has_value(); }
  /// Whether its process may still be there. Of other hosts it counts as there.
  void let_go_if_gone() {
    if (host_ == window_.host() && area_ && !window_.is_taken(number_)) area_.reset();
  }

 private:
  bool send() {
    const size_t sent = completions_.empty() ? 0 : channel_.send(completions_);
    completions_.erase(completions_.begin(),
                       completions_.begin() + static_cast<std::ptrdiff_t>(sent));
    return completions_.empty();
  }

  Outcome carry_out(const Message& command) {
    switch (command[BH_COMMAND_OPCODE]) {
      case BH_DEVICE_NOTHING:
        return {};
      case BH_DEVICE_ATTACH:
        return attach(command);
      case BH_DEVICE_DETACH:
        area_.reset();
        return {};
      default:
        return compute(command);
    }
  }

  Outcome attach(const Message& command) {
    area_.reset();
    const uint64_t bytes = command[BH_COMMAND_ROOM];
    if (bytes == 0 || bytes > kAreaBytesMax) return {.status = Status::INVALID_ARGUMENT};
    auto area = areas_.reserve(bytes);
    if (!area) return {.status = area.status()};
    area_ = std::move(*area);
    return {.bytes = area_->offset()};
  }

  Outcome compute(const Message& command) {
    const uint64_t at = command[BH_COMMAND_ANSWER], room = command[BH_COMMAND_ROOM];
    if (!area_ || at % BH_LINE_BYTES != 0 || at > area_->bytes() || room > area_->bytes() - at)
      return {.status = Status::INVALID_ARGUMENT};
    auto outcome = compute(command, {area_->data() + at, room});
    if (!outcome) {
      // The sentence instead, as much as has room.
      const std::string why = outcome.error().message().substr(0, room);
      std::memcpy(area_->data() + at, why.data(), why.size());
      outcome = Outcome{.status = outcome.status(), .bytes = why.size()};
    }
    outcome->sum = hash64(area_->data() + at, outcome->bytes);
    window_.access().publish(area_->offset() + at, outcome->bytes);
    // What was stored to memory that failed has reached nobody.
    if (is_lost(area_->offset() + at, outcome->bytes)) return {.status = Status::MEDIA_ERROR};
    return *outcome;
  }

  Result<Outcome> compute(const Message& command, std::span<std::byte> answer) {
    auto decoded = read_request(command);
    if (!decoded) return decoded.error();
    const ndp::Request& request = decoded->request();
    const auto bytes = ndp::answer_bytes(request);
    if (!bytes) return bytes.error();
    const AnswerPlaces places(*bytes);
    const uint64_t left_out_max = decoded->blocks().size() * sizeof(uint32_t);
    if (places.left_out > answer.size() || answer.size() - places.left_out < left_out_max)
      return Error{Status::BUFFER_TOO_SMALL,
                   fmt::format("the answer takes {} bytes and has room of {}",
                               places.left_out + left_out_max, answer.size())};
    const auto read = ndp::run(
        request, {answer.first(bytes->first), answer.subspan(places.second, bytes->second)});
    // Whatever went wrong, a block that did not stay, or whose memory failed, may be why. The fence
    // has headers loaded after all that was read of the blocks: where they are unchanged, so were
    // the blocks.
    window_.access().fence();
    if (auto good = check_blocks(decoded->blocks()); !good) return good.error();
    for (size_t i = 0; i < decoded->blocks().size(); ++i) {
      const bh_device_block& block = decoded->blocks()[i];
      if (is_lost(block.offset, block.stored_bytes))
        return Error{Status::DAMAGED, fmt::format("block {}: its memory failed", i)};
    }
    if (!read) return read.error();
    Outcome outcome{.left_out = static_cast<uint32_t>(read->left_out.size()),
                    .bytes = places.left_out + read->left_out.size() * sizeof(uint32_t),
                    .read_bytes = read->bytes};
    for (size_t i = 0; i < read->left_out.size(); ++i) {
      const auto block = static_cast<uint32_t>(read->left_out[i]);
      std::memcpy(&answer[places.left_out + i * sizeof block], &block, sizeof block);
    }
    return outcome;
  }

  /// From a private copy: its process may change it meanwhile.
  Result<DecodedRequest> read_request(const Message& command) {
    if (command[BH_COMMAND_OPCODE] > BH_DEVICE_DIGEST || command[BH_COMMAND_OPCODE] == 0)
      return Error{Status::NOT_SUPPORTED, fmt::format("opcode {}: this device does not have it",
                                                      command[BH_COMMAND_OPCODE])};
    const uint64_t at = command[BH_COMMAND_INPUT], bytes = command[BH_COMMAND_INPUT_BYTES];
    if (bytes > kRequestBytesMax || !window_.is_payload(at, bytes))
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("an input of {} bytes at offset {} of the pool: it has to lie in the "
                      "payload",
                      bytes, at)};
    window_.access().acquire(at, bytes);
    const std::byte* from = window_.access().payload(at);
    input_.assign(from, from + bytes);
    if (is_lost(at, bytes)) return Error{Status::MEDIA_ERROR, "the memory of the request failed"};
    auto decoded = DecodedRequest::decode(input_);
    if (!decoded) return decoded;
    if (static_cast<uint64_t>(decoded->request().operation) != command[BH_COMMAND_OPCODE])
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("a command of opcode {} with a request of operation {}",
                      command[BH_COMMAND_OPCODE], static_cast<int>(decoded->request().operation))};
    if (auto good = check_blocks(decoded->blocks()); !good) return good.error();
    for (size_t i = 0; i < decoded->blocks().size(); ++i) {
      const bh_device_block& block = decoded->blocks()[i];
      window_.access().acquire(block.offset, block.stored_bytes);
      decoded->set_bytes(i,
                         reinterpret_cast<const uint8_t*>(window_.access().payload(block.offset)));
    }
    return decoded;
  }

  /// Memory failed there: what was read may be zeros.
  bool is_lost(uint64_t offset, uint64_t bytes) const {
    return window_.access().media_failed() || window_.access().payload_lost(offset, bytes);
  }

  Result<void> check_blocks(const std::vector<bh_device_block>& blocks) const {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!window_.is_block(blocks[i]))
        return Error{Status::LAPSED,
                     fmt::format("block {}: there is no such block at offset {} any more", i,
                                 blocks[i].offset)};
    }
    return {};
  }

  Window& window_;
  Areas& areas_;
  const uint32_t host_, number_;
  Window::Channel channel_;
  uint64_t session_ = 0;
  std::optional<Area> area_;
  std::array<Message, kTakenAtOnce> commands_{};
  std::vector<Message> completions_;  // that the channel had no room for
  std::vector<std::byte> input_;
};

class Device::Impl {
 public:
  Impl(Pool& pool, Window window)
      : pool_(pool),
        window_(std::move(window)),
        areas_(pool, "answers"),
        pairs_(size_t{window_.hosts()} * BH_DEVICE_PAIRS) {}

  Result<void> begin() {
    if (auto good = window_.become_device(); !good) return good;
    return areas_.open();
  }

  Result<void> serve(const std::function<bool()>& stops) {
    uint64_t looked_ns = 0, cleaned_ns = window_.access().recency_ns();
    for (uint32_t idle = 0; !stops();) {
      size_t taken = 0;
      for (const auto& pair : pairs_) {
        if (pair)
          taken += pair->serve([this](Status status, uint64_t bytes) { note(status, bytes); });
      }
      if (window_.access().media_failed()) return pool_.explain(Status::MEDIA_ERROR);
      const uint64_t now_ns = window_.access().recency_ns();
      if (now_ns - looked_ns > kLookNs) {
        look_for_pairs();
        looked_ns = now_ns;
      }
      if (now_ns - cleaned_ns > kCleanNs) {
        if (auto good = clean(); !good) return good;
        cleaned_ns = now_ns;
      }
      idle = taken > 0 ? 0 : idle + 1;
      if (idle > 0) window_.access().relax(idle);
    }
    return {};
  }

  Counters counters() const {
    return {commands_.load(std::memory_order_relaxed), refused_.load(std::memory_order_relaxed),
            read_bytes_.load(std::memory_order_relaxed),
            with_area_.load(std::memory_order_relaxed)};
  }

 private:
  void look_for_pairs() {
    uint64_t with_area = 0;
    for (uint32_t host = 0; host < window_.hosts(); ++host) {
      for (uint32_t number = 0; number < BH_DEVICE_PAIRS; ++number) {
        auto& pair = pairs_[host * BH_DEVICE_PAIRS + number];
        const uint64_t at = window_.commands(host, number);
        if (!pair) window_.access().acquire(at, BH_LINE_BYTES);
        if (!pair && window_.access().load(at) != 0)
          pair = std::make_unique<Pair>(window_, areas_, host, number);
        with_area += pair && pair->has_area() ? 1 : 0;
      }
    }
    with_area_.store(with_area, std::memory_order_relaxed);
  }

  Result<void> clean() {
    for (const auto& pair : pairs_) {
      if (pair) pair->let_go_if_gone();
    }
    const auto info = pool_.pressure();
    return info ? Result<void>{} : info.error();
  }

  void note(Status status, uint64_t read_bytes) {
    commands_.fetch_add(1, std::memory_order_relaxed);
    if (status != Status::OK) refused_.fetch_add(1, std::memory_order_relaxed);
    read_bytes_.fetch_add(read_bytes, std::memory_order_relaxed);
  }

  Pool& pool_;
  Window window_;
  Areas areas_;
  std::vector<std::unique_ptr<Pair>> pairs_;  // [host][number]; null: not used yet
  std::atomic<uint64_t> commands_{0}, refused_{0}, read_bytes_{0}, with_area_{0};
};

Device::Device(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Device::~Device() = default;

Result<std::unique_ptr<Device>> Device::make(Pool& pool) {
  auto window = Window::open(pool);
  if (!window) return window.error();
  auto impl = std::make_unique<Impl>(pool, std::move(*window));
  if (auto good = impl->begin(); !good) return good.error();
  return std::unique_ptr<Device>(new Device(std::move(impl)));
}

Result<void> Device::serve(const std::function<bool()>& stops) { return impl_->serve(stops); }
Counters Device::counters() const { return impl_->counters(); }

}  // namespace bowhead::device
