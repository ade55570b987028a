// SPDX-License-Identifier: Apache-2.0
#include "compression/fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "compression/planes.h"

namespace bowhead::compression {
namespace {

constexpr uint32_t kSamples = 32;
constexpr uint32_t kManyTokens = 128;  // from this number on parameters cost little

/// By channel: the one that it rotates with, or itself.
void set_partners(const Rotary& rotary, uint32_t channels, std::vector<uint32_t>& partners) {
  partners.resize(channels);
  std::iota(partners.begin(), partners.end(), 0u);
  for_pairs(rotary, channels, [&](uint32_t x, uint32_t y, uint32_t) {
    partners[x] = y;
    partners[y] = x;
  });
}

// Without library calls, so that loops over channels are vectorized.

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::clamp(exponent + 127, 0, 254)) << 23);
}

/// Within 0.01; empty where the logarithm is not known.
float log2_roughly(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const float mantissa = std::bit_cast<float>((bits & 0x7FFFFF) | 0x3F800000);
  const auto exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 128);
  const float log = exponent + (-1.0f / 3 * mantissa + 2) * mantissa - 2.0f / 3;
  return x < 1e30f ? log : 0.0f;
}

/// Loads the values of one token as floats.
void load_row(const Number& number, const uint8_t* from, uint32_t channels, float* to) {
  if (number.exponent_bits == 8) {  // bf16
    for (uint32_t c = 0; c < channels; ++c) {
      uint16_t bits;
      std::memcpy(&bits, from + c * 2, 2);
      to[c] = std::bit_cast<float>(uint32_t{bits} << 16);
    }
    return;
  }
  if (!number.is_float()) {
    for (uint32_t c = 0; c < channels; ++c) to[c] = static_cast<int8_t>(from[c]);
    return;
  }
  // Shifts the fields to those of a float; a product corrects the bias.
  const uint32_t rest = (1u << (number.exponent_bits + number.mantissa_bits)) - 1;
  const uint32_t sign = number.element_bytes * 8u - 1;
  const float scale = std::ldexp(1.0f, 127 - ((1 << (number.exponent_bits - 1)) - 1));
  for (uint32_t c = 0; c < channels; ++c) {
    uint32_t bits = from[c * number.element_bytes];
    if (number.element_bytes == 2) bits |= uint32_t{from[c * 2 + 1]} << 8;
    to[c] =
        std::bit_cast<float>((bits & rest) << (23 - number.mantissa_bits) | (bits >> sign) << 31) *
        scale;
  }
}

}  // namespace

void raise_unit(const Number& number, uint32_t channel, uint32_t partner,
                std::span<uint16_t> exponents, Centre& centre) {
  const auto raise = [&](uint32_t c) {
    const bool can = exponents[c] + 1u < 1u << number.exponent_bits;
    if (can) ++exponents[c];
    centre.amplitudes[c] = static_cast<int16_t>(can ? centre.amplitudes[c] / 2 : 0);
    return can;
  };
  const bool can = raise(channel);
  if (partner == channel) return;
  if (!raise(partner) || !can) centre.amplitudes[channel] = centre.amplitudes[partner] = 0;
}

void CentreFitter::set_turns(uint32_t samples, uint32_t step, const Rotary& rotary) {
  const TurnKey key{samples, step, rotary};
  if (key == turned_) return;
  turned_ = key;
  const uint32_t half = rotary.pairs();
  cosines_.resize(samples * half);
  sines_.resize(samples * half);
  uint64_t per_token = rotary.step;
  for (uint32_t pair = 0; pair < half; ++pair) {
    for (uint32_t s = 0; s < samples; ++s) {
      const Turn turn = turn_of(static_cast<uint32_t>(per_token * s * step));
      cosines_[s * half + pair] = static_cast<float>(turn.cosine) / 32768;
      sines_[s * half + pair] = static_cast<float>(turn.sine) / 32768;
    }
    per_token = next_pair(per_token, rotary);
  }
}

void CentreFitter::accumulate(const Number& number, const void* values, uint32_t samples,
                              uint32_t step, uint32_t channels, const Rotary& rotary) {
  const auto* from = static_cast<const uint8_t*>(values);
  const uint32_t half = rotary.pairs();
  energy_.assign(channels, 0);
  mean_.assign(channels, 0);
  vector_.assign(channels, 0);
  const SampleSums sums{number,
                        from,
                        size_t{step} * channels * number.element_bytes,
                        samples,
                        channels,
                        rotary,
                        scale_.data(),
                        cosines_.data(),
                        sines_.data(),
                        energy_.data(),
                        mean_.data(),
                        vector_.data()};
  const auto sum_samples = plane_kernels().sum_samples;
  if (sum_samples != nullptr && sum_samples(sums)) return;
  row_.resize(channels);
  float* __restrict row = row_.data();
  float* __restrict energy = energy_.data();
  float* __restrict mean = mean_.data();
  for (uint32_t s = 0; s < samples; ++s) {
    load_row(number, from + size_t{s} * step * channels * number.element_bytes, channels, row);
    const float* __restrict scale = scale_.data();
    for (uint32_t c = 0; c < channels; ++c) {
      row[c] *= scale[c];
      energy[c] += row[c] * row[c];
      mean[c] += row[c];
    }
    if (rotary.interleaved) {
      for_pairs(rotary, channels, [&](uint32_t x, uint32_t y, uint32_t pair) {
        const float cosine = cosines_[s * half + pair], sine = sines_[s * half + pair];
        vector_[x] += row[x] * cosine + row[y] * sine;
        vector_[y] += row[y] * cosine - row[x] * sine;
      });
      continue;
    }
    for (uint32_t head = rotary.first; half != 0 && head < channels; head += rotary.head) {
      const float* __restrict x = row + head;
      const float* __restrict y = x + half;
      const float* __restrict cosine = cosines_.data() + s * half;
      const float* __restrict sine = sines_.data() + s * half;
      float* __restrict u = vector_.data() + head;
      float* __restrict v = u + half;
      for (uint32_t i = 0; i < half; ++i) {
        u[i] += x[i] * cosine[i] + y[i] * sine[i];
        v[i] += y[i] * cosine[i] - x[i] * sine[i];
      }
    }
  }
}

const Centre& CentreFitter::fit(const Number& number, const void* values, uint32_t tokens,
                                uint32_t channels, std::span<uint16_t> exponents,
                                const Rotary& rotary) {
  centre_.amplitudes.clear();
  centre_.width = 0;
  if (tokens < 8) return centre_;
  const uint32_t step = std::max(tokens / kSamples, 1u),
                 samples = std::min(tokens / step, kSamples);
  if (rotary.dim != 0) set_turns(samples, step, rotary);
  set_partners(rotary, channels, partners_);
  const int bias = number.is_float() ? (1 << (number.exponent_bits - 1)) - 1 : 0;
  scale_.assign(channels, 1);
  for (uint32_t c = 0; c < channels && number.is_float(); ++c) {
    const uint16_t largest = std::max(exponents[c], exponents[partners_[c]]);
    scale_[c] = power_of_two(number.mantissa_bits + bias - largest);
  }
  accumulate(number, values, samples, step, channels, rotary);

  // Bits that a centre saves, per token: half the logarithm of the remaining energy.
  const auto n = static_cast<float>(samples);
  float saved_by_mean = 0, saved_by_vector = 0;
  for (uint32_t c = 0; c < channels; ++c) {
    const float left = energy_[c] - mean_[c] * mean_[c] / n;
    const float saved = log2_roughly((energy_[c] + n) / (std::max(left, 0.0f) + n));
    saved_by_mean += saved;
    if (partners_[c] != c) continue;
    saved_by_vector += saved;
    vector_[c] = mean_[c];
  }
  for_pairs(rotary, channels, [&](uint32_t x, uint32_t y, uint32_t) {
    const float all = energy_[x] + energy_[y];
    const float square = vector_[x] * vector_[x] + vector_[y] * vector_[y];
    const float left = std::max(all - square / n, 0.0f);
    saved_by_vector += 2 * log2_roughly((all + n) / (left + n));
  });
  const bool turns = saved_by_vector > saved_by_mean;
  centre_.turns = turns;
  centre_.shift =
      static_cast<uint8_t>(std::max(number.magnitude_bits - (tokens >= kManyTokens ? 6 : 4), 0));
  const float cost = static_cast<float>(channels * (number.magnitude_bits - centre_.shift + 1u));
  const float gain = 0.5f * static_cast<float>(tokens) * std::max(saved_by_mean, saved_by_vector);
  if (!(gain > cost)) return centre_;

  const float unit = n * static_cast<float>(1u << centre_.shift);
  const float most = static_cast<float>(1u << (number.magnitude_bits - centre_.shift)) * 1.4f;
  uint32_t width = 0;
  for (uint32_t c = 0; c < channels; ++c) {
    // A mean is in units of its own channel.
    const float own =
        turns ? 1.0f : power_of_two(std::max(exponents[partners_[c]] - exponents[c], 0));
    const float amplitude = (turns ? vector_[c] : mean_[c] * own) / unit;
    const float clamped = std::isfinite(amplitude) ? std::clamp(amplitude, -most, most) : 0;
    const auto value = static_cast<int16_t>(clamped + std::copysign(0.5f, clamped));
    centre_.amplitudes.push_back(value);
    width = std::max(width, static_cast<uint32_t>(
                                std::bit_width(static_cast<uint16_t>(value < 0 ? ~value : value))) +
                                1);
  }
  centre_.width = static_cast<uint8_t>(width);
  if (tokens >= kManyTokens) raise_units(number, n, exponents);
  return centre_;
}

/// Raises the units of channels where 3.3 standard deviations of the difference have too many bits.
void CentreFitter::raise_units(const Number& number, float samples, std::span<uint16_t> exponents) {
  const float most = static_cast<float>(1u << number.magnitude_bits) / 3.3f;
  for (uint32_t c = 0; c < exponents.size(); ++c) {
    const uint32_t other = partners_[c];
    if (centre_.turns && other < c) continue;
    float left = energy_[c] - mean_[c] * mean_[c] / samples;
    float unit = 1;
    if (!centre_.turns) {
      unit = std::ldexp(1.0f, std::max(exponents[other] - exponents[c], 0));
    } else if (other != c) {
      left = (energy_[c] + energy_[other] -
              (vector_[c] * vector_[c] + vector_[other] * vector_[other]) / samples) /
             2;
    }
    if (std::sqrt(std::max(left, 0.0f) / samples) * unit > most)
      raise_unit(number, c, centre_.turns ? other : c, exponents, centre_);
  }
}

}  // namespace bowhead::compression
