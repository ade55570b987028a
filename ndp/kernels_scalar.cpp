// SPDX-License-Identifier: Apache-2.0
// The definition.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ndp/kernels.h"
#include "ndp/numbers.h"

namespace bowhead::ndp {
namespace {

double dot(const float* query, const Rows& keys, uint32_t token) {
  const uint8_t* row = keys.row(token);
  const uint32_t bytes = element_bytes(keys.number);
  double sum = 0;
  for (uint32_t c = 0; c < keys.channels; ++c)
    sum += double{query[c]} * load_number(keys.number, row + size_t{c} * bytes);
  return sum;
}

void score(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
           float* scores) {
  for (uint32_t q = 0; q < queries.count(); ++q) {
    for (uint32_t i = 0; i < count; ++i) {
      const double scale = keys.scales == nullptr ? 1 : keys.scales[first + i];
      scores[q * kTileTokens + i] =
          static_cast<float>(dot(queries.floats(q), keys, first + i) * queries.scale() * scale);
    }
  }
}

void weigh(const float* weights, uint32_t queries, const Rows& values, uint32_t first,
           uint32_t count, float* sums, size_t stride) {
  const uint32_t bytes = element_bytes(values.number);
  for (uint32_t q = 0; q < queries; ++q) {
    for (uint32_t c = 0; c < values.channels; ++c) {
      double sum = sums[q * stride + c];
      for (uint32_t i = 0; i < count; ++i)
        sum += double{weights[q * kTileTokens + i]} *
               load_number(values.number, values.row(first + i) + size_t{c} * bytes);
      sums[q * stride + c] = static_cast<float>(sum);
    }
  }
}

float largest(const float* values) { return *std::max_element(values, values + kTileTokens); }

float exponentials(float* values, float largest) {
  double sum = 0;
  for (uint32_t i = 0; i < kTileTokens; ++i) {
    values[i] = std::exp(values[i] - largest);
    sum += values[i];
  }
  return static_cast<float>(sum);
}

void soft_cap(float* values, float cap) {
  for (uint32_t i = 0; i < kTileTokens; ++i)
    values[i] = static_cast<float>(cap * std::tanh(double{values[i]} / cap));
}

uint32_t select(const float* scores, uint32_t count, float least, uint32_t first_token, Hit* out) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (std::isnan(least) || scores[i] >= least) out[taken++] = {scores[i], first_token + i};
  }
  return taken;
}

void dots(const float* query, const int16_t* rows, uint32_t count, uint32_t channels, float* sums) {
  for (uint32_t i = 0; i < count; ++i, rows += channels) {
    double sum = 0;
    for (uint32_t c = 0; c < channels; ++c) sum += double{query[c]} * rows[c];
    sums[i] = static_cast<float>(sum);
  }
}

void products(const Products& in, int32_t* sums) {
  for (uint32_t i = 0; i < in.count; ++i, sums += kProductQueries) {
    const int16_t* row = in.rows + size_t{i} * in.channels;
    for (uint32_t q = 0; q < kProductQueries; ++q) {
      const int16_t* query = in.queries + size_t{q} * in.channels;
      int64_t sum = 0;
      for (uint32_t c = 0; c < in.channels; ++c) sum += int64_t{query[c]} * row[c];
      sums[q] = static_cast<int32_t>(sum);
    }
  }
}

bool reaches(const int32_t* row, const int32_t* cuts) {
  for (uint32_t q = 0; q < kProductQueries; ++q) {
    if (row[q] >= cuts[q]) return true;
  }
  return false;
}

void count_reaching(const int32_t* sums, size_t rows, const int32_t* cuts, int32_t* counts) {
  for (size_t i = 0; i < rows; ++i, sums += kProductQueries) {
    for (uint32_t q = 0; q < kProductQueries; ++q) counts[q] += sums[q] >= cuts[q];
  }
}

uint32_t rows_reaching(const int32_t* sums, uint32_t rows, const int32_t* cuts,
                       uint32_t* reaching) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < rows; ++i, sums += kProductQueries) {
    if (reaches(sums, cuts)) reaching[taken++] = i;
  }
  return taken;
}

size_t count_ranks(const uint64_t* ranks, size_t count, uint64_t cut) {
  size_t reaching = 0;
  for (size_t i = 0; i < count; ++i) reaching += ranks[i] >= cut ? 1 : 0;
  return reaching;
}

void exact(const double* queries, const double* rows, uint32_t channels, double* sums) {
  std::fill_n(sums, kExactRows * kProductQueries, 0.0);
  for (uint32_t i = 0; i < kExactRows; ++i, rows += channels, sums += kProductQueries) {
    for (uint32_t c = 0; c < channels; ++c) {
      for (uint32_t q = 0; q < kProductQueries; ++q)
        sums[q] += queries[size_t{c} * kProductQueries + q] * rows[c];
    }
  }
}

void bounds(const Rows& keys, uint32_t first, uint32_t count, float* least, float* largest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const uint32_t bytes = element_bytes(keys.number);
  for (uint32_t c = 0; c < keys.channels; ++c) {
    least[c] = kInfinity;
    largest[c] = -kInfinity;
    for (uint32_t i = first; i < first + count; ++i) {
      const float scale = keys.scales == nullptr ? 1 : keys.scales[i];
      const float value = load_number(keys.number, keys.row(i) + size_t{c} * bytes) * scale;
      const bool number = !std::isnan(value);
      least[c] = std::min(least[c], number ? value : -kInfinity);
      largest[c] = std::max(largest[c], number ? value : kInfinity);
    }
  }
}

}  // namespace

const Kernels kKernelsScalar = {"scalar",      score,       weigh, largest,  exponentials,
                                soft_cap,      select,      dots,  products, count_reaching,
                                rows_reaching, count_ranks, exact, bounds};

}  // namespace bowhead::ndp
