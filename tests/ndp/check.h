// SPDX-License-Identifier: Apache-2.0
// Compares the operations with the oracle, within the tolerances that operations.h states. Without
// GoogleTest: an emulated machine has none.
#pragma once

#include <string>
#include <vector>

#include "tests/ndp/problem.h"

namespace bowhead::test {

/// Shapes of every number format, number of queries, and size.
std::vector<Shape> shapes_to_check(uint64_t seed);
std::string to_text(const Shape& shape);

/// Returns the fault, or an empty string.
std::string check_scores(const Problem& problem, const ndp::Views& views);
std::string check_top_k(const Problem& problem, const ndp::Views& views, uint32_t k);
std::string check_attention(const Problem& problem, const ndp::Views& views);
std::string check_pages(const Problem& problem, const ndp::Views& views);
/// For rows with this number of channels, a multiple of 64.
std::string check_dots(uint32_t channels, uint64_t seed);
std::string check_products(uint32_t channels, uint64_t seed);  ///< and what reaches a cut
/// For every number of hits up to 70, and some more.
std::string check_best(uint64_t seed);
/// All of the first four.
std::string check_all(const Shape& shape, uint64_t seed);

}  // namespace bowhead::test
