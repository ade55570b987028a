// SPDX-License-Identifier: Apache-2.0
// The operations of ndp/ once more, from their formulas, slowly and in double precision, without
// any code of ndp/.
#pragma once

#include <cstdint>
#include <vector>

namespace bowhead::test {

/// A sequence for one head: the numbers of the blocks, times their scales.
struct Sequence {
  uint32_t key_channels = 0, value_channels = 0;
  std::vector<std::vector<double>> keys, values;  ///< by token
};

struct OracleVisible {
  uint64_t begin = 0, end = UINT64_MAX, sinks = 0;
};

struct OracleHit {
  double score = 0;
  uint32_t token = 0;
};

/// The value of the bits, for `kind` "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8".
double oracle_value(const char* kind, uint32_t bits);

bool oracle_sees(const OracleVisible& visible, uint64_t token);
/// A cap above 0 is a soft one.
double oracle_score(const std::vector<double>& query, const std::vector<double>& key, double scale,
                    double cap = 0);
/// Sum of |q k| times the scale, or, if `whole`, of the largest |q| and |k|: the reference for
/// relative errors of a score.
double oracle_reach(const std::vector<double>& query, const std::vector<double>& key, double scale,
                    bool whole);
/// All visible tokens, the best first.
std::vector<OracleHit> oracle_order(const Sequence& sequence, const std::vector<double>& query,
                                    double scale, const OracleVisible& visible, double cap = 0);

struct OracleAttention {
  std::vector<double> output;
  std::vector<double> reach;  ///< by channel: the sum of p |value|
  double log_sum_exp = 0;
  std::vector<double> weights;  ///< by token
};
OracleAttention oracle_attention(const Sequence& sequence, const std::vector<double>& query,
                                 double scale, const OracleVisible& visible, double cap = 0);

}  // namespace bowhead::test
