// SPDX-License-Identifier: Apache-2.0
#include "compression/centre.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/assert.h"

namespace bowhead::compression {
namespace {

constexpr uint32_t kTableBits = 10;

/// Sines of a whole turn, with the first one repeated at the end.
const std::array<int32_t, (1u << kTableBits) + 1>& sines() {
  static const auto table = [] {
    std::array<int32_t, (1u << kTableBits) + 1> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(i) / (1u << kTableBits);
      t[i] = static_cast<int32_t>(std::lround(32768 * std::sin(angle)));
    }
    return t;
  }();
  return table;
}

int16_t sine_of(uint32_t phase) {
  constexpr uint32_t kFraction = 32 - kTableBits;
  const auto& table = sines();
  const uint32_t index = phase >> kFraction;
  const int64_t part = phase & ((1u << kFraction) - 1);
  const int64_t low = table[index], high = table[index + 1];
  const int64_t value =
      low + (((high - low) * part + (int64_t{1} << (kFraction - 1))) >> kFraction);
  return static_cast<int16_t>(std::clamp<int64_t>(value, -32767, 32767));
}

int16_t saturated(int64_t value) {
  return static_cast<int16_t>(std::clamp<int64_t>(value, -32768, 32767));
}

/// Rounded product in units of 2^-15.
int32_t product(int16_t a, int16_t b) { return (int32_t{a} * b + 0x4000) >> 15; }

}  // namespace

Rotary rotary_of(double base, uint32_t dim) {
  BOWHEAD_ASSERT(dim > 0 && dim % 2 == 0 && dim < 65536 && base > 1);
  const double ratio = std::round(std::ldexp(std::pow(base, -2.0 / dim), 32));
  const auto channels = static_cast<uint16_t>(dim);
  return {.dim = channels,
          .ratio = static_cast<uint32_t>(std::clamp(ratio, 1.0, 4294967295.0)),
          .head = channels};
}

Turn turn_of(uint32_t phase) { return {sine_of(phase + (1u << 30)), sine_of(phase)}; }

std::vector<Turn> turns_of(const Rotary& rotary) {
  std::vector<Turn> turns(rotary.pairs());
  uint64_t step = rotary.step;
  for (Turn& turn : turns) {
    turn = turn_of(static_cast<uint32_t>(step));
    step = next_pair(step, rotary);
  }
  return turns;
}

void turn(const TurningCentre& t) {
  for_pairs(t.rotary, t.channels, [&](uint32_t x, uint32_t y, uint32_t pair) {
    const uint32_t at = t.rotary.interleaved ? 2 * pair : pair;
    const int16_t a = t.state[x], b = t.state[y];
    t.state[x] = saturated(product(a, t.cosines[at]) - product(b, t.sines[at]));
    t.state[y] = saturated(product(a, t.sines[at]) + product(b, t.cosines[at]));
  });
}

void CentreMaker::set_turns(const Rotary& rotary) {
  // Most makers of a thread need the same.
  static thread_local std::shared_ptr<const Turns> last;
  if (turns_ != nullptr && turns_->rotary == rotary) return;
  if (last == nullptr || last->rotary != rotary) {
    auto made = std::make_shared<Turns>();
    made->rotary = rotary;
    for (const Turn& turn : turns_of(rotary)) {
      for (uint32_t i = 0; i < (rotary.interleaved ? 2u : 1u); ++i) {
        made->cosines.push_back(turn.cosine);
        made->sines.push_back(turn.sine);
      }
    }
    last = std::move(made);
  }
  turns_ = last;
}

TurningCentre CentreMaker::make(const Number& number, std::span<const uint16_t> exponents,
                                std::span<const int16_t> amplitudes, uint32_t shift,
                                const Rotary& rotary) {
  const auto channels = static_cast<uint32_t>(exponents.size());
  state_.assign(channels + 64, 0);
  right_.assign(channels + 64, 0);
  halves_.assign(channels + 64, 0);
  factors_.assign(channels + 64, 0);
  bool has_factors = true;
  const int fraction = 13 - number.magnitude_bits;  // a vector can be longer than its components
  const int64_t unit = int64_t{1} << (static_cast<int>(shift) + fraction);
  const auto set = [&](uint32_t c, int right) {
    state_[c] = saturated(amplitudes[c] * unit);
    if (right < 0) right = 15;  // too far from any centre
    right_[c] = static_cast<int16_t>(right);
    halves_[c] = static_cast<int16_t>((1 << right) / 2);
    factors_[c] = static_cast<int16_t>(0x8000 >> right);
    has_factors &= right > 0;
  };
  const bool turns = !amplitudes.empty() && rotary.dim != 0;
  if (!turns || rotary.dim != rotary.head) {
    for (uint32_t c = 0; c < amplitudes.size(); ++c) set(c, fraction);
  }
  if (turns) {
    for_pairs(rotary, channels, [&](uint32_t x, uint32_t y, uint32_t) {
      const int larger = exponents[y] - exponents[x];
      set(x, fraction - std::max(larger, 0));
      set(y, fraction - std::max(-larger, 0));
    });
  }
  TurningCentre centre{.channels = channels, .state = state_.data(), .right = right_.data()};
  if (has_factors) {
    centre.halves = halves_.data();
    centre.factors = factors_.data();
  }
  if (!turns) return centre;
  set_turns(rotary);
  centre.rotary = rotary;
  centre.cosines = turns_->cosines.data();
  centre.sines = turns_->sines.data();
  return centre;
}

}  // namespace bowhead::compression
