// SPDX-License-Identifier: Apache-2.0
#include "tests/ndp/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/random.h"
#include "ndp/kernels.h"
#include "ndp/operations.h"

namespace bowhead::test {

using ndp::Hit;
using ndp::Views;
using ndp::Visible;

namespace {

OracleVisible as_oracle(const Visible& visible) {
  return {visible.begin, visible.end, visible.sinks};
}

/// The tolerance of operations.h, plus the loss where numbers are denormal.
double error_of_score(const Problem& p, uint32_t q, uint32_t token) {
  std::vector<Part> parts = {{p.shape().number, p.shape().key_channels, false}};
  parts.insert(parts.end(), p.shape().more_keys.begin(), p.shape().more_keys.end());
  double reach = 0;
  auto query = p.query(q).begin();
  auto key = p.sequence().keys[token].begin();
  for (const Part& part : parts) {
    reach += oracle_reach({query, query + part.channels}, {key, key + part.channels}, p.scale(),
                          part.number == NumberFormat::INT8);
    query += part.channels;
    key += part.channels;
  }
  return ndp::kScoreTolerance * reach + 1e-30;
}

/// The first half of the spans, and the others.
template <class Span>
std::pair<std::vector<Span>, std::vector<Span>> halves(const std::vector<Span>& spans) {
  const auto middle = spans.begin() + static_cast<long>(spans.size() / 2);
  return {{spans.begin(), middle}, {middle, spans.end()}};
}

}  // namespace

std::vector<Shape> shapes_to_check(uint64_t seed) {
  Random random(seed);
  std::vector<Shape> shapes;
  for (const NumberFormat number : {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                    NumberFormat::FP8_E5M2, NumberFormat::INT8}) {
    for (const uint32_t queries : {1u, 2u, 3u, 7u, 8u, 17u}) {
      Shape shape{.number = number, .queries = queries};
      shape.key_channels = random.below(2) == 0 ? 64 << random.below(2)
                                                : 1 + static_cast<uint32_t>(random.below(200));
      shape.value_channels = random.below(2) == 0 ? 64 << random.below(2)
                                                  : 1 + static_cast<uint32_t>(random.below(200));
      shape.latent = random.below(4) == 0;
      if (shape.latent) shape.value_channels = std::min(shape.value_channels, shape.key_channels);
      shape.tokens = 1 + static_cast<uint32_t>(random.below(300));
      shape.most_in_a_span = 1 + static_cast<uint32_t>(random.below(150));
      shape.with_scales = random.below(2) == 0;
      shape.float_queries = random.below(2) == 0;
      shape.soft_cap = random.below(3) == 0 ? 0.5f + static_cast<float>(random.below(30)) : 0;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

std::string to_text(const Shape& s) {
  return fmt::format(
      "{}, {} {} queries of {} channels, {} tokens in spans of up to {}, values of "
      "{}{}{}, cap {}",
      number_name(s.number), s.queries, s.float_queries ? "float" : "bf16", s.key_channels,
      s.tokens, s.most_in_a_span, s.value_channels, s.latent ? ", latent" : "",
      s.with_scales ? ", scales" : "", s.soft_cap);
}

std::string check_scores(const Problem& p, const Views& views) {
  const auto spans = p.key_spans();
  std::vector<float> scores(size_t{p.shape().queries} * p.shape().tokens);
  if (const auto done = ndp::score(p.queries(), spans, views, scores); !done)
    return "score: " + done.error().message();
  for (uint32_t q = 0; q < p.shape().queries; ++q) {
    const float* at = &scores[size_t{q} * p.shape().tokens];
    for (const auto& span : spans) {
      for (uint32_t i = 0; i < span.keys.tokens; ++i, ++at) {
        const uint32_t token = span.first_token + i;
        const bool seen = oracle_sees(as_oracle(views.of(q)), token);
        const double want =
            seen ? oracle_score(p.query(q), p.sequence().keys[token], p.scale(), p.shape().soft_cap)
                 : -std::numeric_limits<double>::infinity();
        if (seen ? !(std::abs(*at - want) <= error_of_score(p, q, token)) : !(*at == want))
          return fmt::format("score of query {} and token {}: {}, not {}", q, token, *at, want);
      }
    }
  }
  return "";
}

namespace {

/// The right hits, except where scores are too close, and in order.
std::string check_hits(const Problem& p, const Visible& visible, uint32_t q, uint32_t k,
                       std::span<const Hit> hits) {
  const auto order = oracle_order(p.sequence(), p.query(q), p.scale(), as_oracle(visible));
  const size_t wanted = std::min<size_t>(k, order.size());
  if (hits.size() != wanted) return fmt::format("{} hits, not {}", hits.size(), wanted);
  std::vector<bool> seen(p.shape().tokens);
  for (size_t i = 0; i < hits.size(); ++i) {
    const uint32_t token = hits[i].token;
    if (token >= seen.size() || seen[token]) return fmt::format("token {} twice, or none", token);
    seen[token] = true;
    if (i > 0 && !better(hits[i - 1], hits[i])) return fmt::format("hit {} is out of order", i);
    if (!oracle_sees(as_oracle(visible), token)) return fmt::format("hit {} is not visible", token);
    const double exact = oracle_score(p.query(q), p.sequence().keys[token], p.scale());
    const double error = error_of_score(p, q, token);
    if (!(std::abs(hits[i].score - exact) <= error))
      return fmt::format("hit {} has score {}, not {}", token, hits[i].score, exact);
    if (exact < order[wanted - 1].score - error - error_of_score(p, q, order[wanted - 1].token))
      return fmt::format("token {} is a hit with {}, the last should have {}", token, exact,
                         order[wanted - 1].score);
  }
  return "";
}

}  // namespace

std::string check_top_k(const Problem& p, const Views& views, uint32_t k) {
  const auto queries = p.queries();
  auto whole = ndp::TopK::of(queries.count(), k).value();
  auto first = whole, second = whole;
  const auto spans = p.key_spans();
  const auto parts = halves(spans);
  for (const auto& done : {whole.add(queries, spans, views), first.add(queries, parts.first, views),
                           second.add(queries, parts.second, views), second.merge(first)}) {
    if (!done) return "top-k: " + done.error().message();
  }
  for (uint32_t q = 0; q < queries.count(); ++q) {
    const std::string wrong = check_hits(p, views.of(q), q, k, whole.hits(q));
    if (!wrong.empty()) return fmt::format("the best {} of query {}: {}", k, q, wrong);
    if (!std::ranges::equal(whole.hits(q), second.hits(q)))
      return fmt::format("the best {} of query {} differ when merged", k, q);
  }
  return "";
}

namespace {

std::string compare(const Problem& p, const Views& views, const ndp::Attention& attention,
                    const char* what) {
  for (uint32_t q = 0; q < p.shape().queries; ++q) {
    const OracleAttention want = oracle_attention(p.sequence(), p.query(q), p.scale(),
                                                  as_oracle(views.of(q)), p.shape().soft_cap);
    double error = 0;
    for (uint32_t token = 0; token < p.shape().tokens; ++token)
      error = std::max(error, error_of_score(p, q, token));
    const float lse = attention.log_sum_exp(q);
    if (!(lse == want.log_sum_exp ||
          std::abs(lse - want.log_sum_exp) <=
              ndp::kExpTolerance * std::max(1.0, std::abs(want.log_sum_exp)) + error))
      return fmt::format("{}: log-sum-exp {} of query {}, not {}", what, lse, q, want.log_sum_exp);
    std::vector<float> output(p.shape().all_value_channels());
    if (attention.output(q, output) != Status::OK) return "no output";
    for (uint32_t c = 0; c < output.size(); ++c) {
      const double most = (ndp::kWeightTolerance + 2 * error) * want.reach[c] + 1e-30;
      if (!(std::abs(output[c] - want.output[c]) <= most))
        return fmt::format("{}: output {} of query {} and channel {}, not {} within {}", what,
                           output[c], q, c, want.output[c], most);
    }
  }
  return "";
}

std::string check_mass(const Problem& p, const Views& views, const ndp::Attention& attention) {
  const auto queries = p.queries();
  std::vector<float> lse, mass(p.shape().tokens);
  for (uint32_t q = 0; q < queries.count(); ++q) lse.push_back(attention.log_sum_exp(q));
  const auto spans = p.key_spans();
  if (const auto done = ndp::add_mass(queries, spans, views, lse, mass); !done)
    return "mass: " + done.error().message();
  std::vector<double> want(p.shape().tokens), reach(p.shape().tokens);
  for (uint32_t q = 0; q < queries.count(); ++q) {
    const auto one = oracle_attention(p.sequence(), p.query(q), p.scale(), as_oracle(views.of(q)),
                                      p.shape().soft_cap);
    double error = 0;
    for (uint32_t t = 0; t < want.size(); ++t) error = std::max(error, error_of_score(p, q, t));
    for (uint32_t t = 0; t < want.size(); ++t) {
      if (one.weights[t] == 0) continue;
      want[t] += one.weights[t];
      reach[t] += one.weights[t] *
                  (2 * ndp::kExpTolerance * std::max(1.0, std::abs(one.log_sum_exp)) + 3 * error);
    }
  }
  size_t at = 0;
  for (const auto& span : spans) {
    for (uint32_t t = span.first_token; t < span.first_token + span.keys.tokens; ++t, ++at) {
      if (!(std::abs(mass[at] - want[t]) <= reach[t] + 1e-30))
        return fmt::format("mass {} of token {}, not {}", mass[at], t, want[t]);
    }
  }
  return "";
}

}  // namespace

std::string check_attention(const Problem& p, const Views& views) {
  const auto queries = p.queries();
  auto whole = ndp::Attention::of(queries.count(), p.shape().all_value_channels()).value();
  auto first = whole, second = whole, remote = whole;
  const auto parts = halves(p.spans());
  for (const auto& done :
       {whole.add(queries, p.spans(), views), first.add(queries, parts.first, views),
        second.add(queries, parts.second, views)}) {
    if (!done) return "attention: " + done.error().message();
  }
  std::vector<float> outputs(size_t{queries.count()} * p.shape().all_value_channels()), lse;
  for (uint32_t q = 0; q < queries.count(); ++q) {
    const std::span<float> all(outputs);
    if (first.output(q, all.subspan(q * p.shape().all_value_channels(),
                                    p.shape().all_value_channels())) != Status::OK)
      return "no output";
    lse.push_back(first.log_sum_exp(q));
  }
  if (!remote.merge(outputs, lse) || !remote.merge(second) || !first.merge(second))
    return "parts do not merge";
  for (const auto& [attention, what] :
       {std::pair(&whole, "whole"), {&first, "merged"}, {&remote, "merged by outputs"}}) {
    if (const std::string wrong = compare(p, views, *attention, what); !wrong.empty()) return wrong;
  }
  return check_mass(p, views, whole);
}

std::string check_pages(const Problem& p, const Views& views) {
  constexpr uint32_t kPageTokens = 16;
  const auto queries = p.queries();
  std::vector<ndp::Digests> digests;
  for (const auto& span : p.key_spans()) {
    auto one = ndp::digest(span, kPageTokens);
    if (!one) return "digest: " + one.error().message();
    digests.push_back(std::move(*one));
  }
  const auto pages = ndp::select_pages(queries, digests, views, 1u << 20);
  if (!pages) return "pages: " + pages.error().message();
  const auto sees_any = [&](uint32_t token) {
    bool any = false;
    for (uint32_t q = 0; q < queries.count(); ++q)
      any |= oracle_sees(as_oracle(views.of(q)), token);
    return any;
  };
  uint32_t found = 0, all = 0;
  for (uint32_t token = 0; token < p.shape().tokens; ++token) all += sees_any(token);
  for (const Hit& page : *pages) {
    for (const auto& d : digests) {
      if (page.token < d.first_token || page.token >= d.first_token + d.tokens) continue;
      const uint32_t end = std::min(page.token + kPageTokens, d.first_token + d.tokens);
      for (uint32_t token = page.token; token < end; ++token) {
        found += sees_any(token);
        for (uint32_t q = 0; q < queries.count(); ++q) {
          if (!oracle_sees(as_oracle(views.of(q)), token)) continue;
          const double score = oracle_score(p.query(q), p.sequence().keys[token], p.scale());
          if (score > page.score + error_of_score(p, q, token))
            return fmt::format("page at {}: token {} has {}, more than {}", page.token, token,
                               score, page.score);
        }
      }
    }
  }
  return found == all ? "" : fmt::format("pages show {} of {} tokens", found, all);
}

std::string check_dots(uint32_t channels, uint64_t seed) {
  constexpr uint32_t kRows = 9;
  Random random(seed);
  std::vector<float> query(channels), sums(kRows);
  std::vector<int16_t> rows(size_t{kRows} * channels);
  for (float& value : query) value = static_cast<float>(random.below(1u << 25)) - (1 << 24);
  for (int16_t& value : rows) value = static_cast<int16_t>(random.next());
  ndp::kernels().dots(query.data(), rows.data(), kRows, channels, sums.data());
  for (uint32_t i = 0; i < kRows; ++i) {
    double sum = 0, sizes = 0;
    for (uint32_t c = 0; c < channels; ++c) {
      const double product = double{query[c]} * rows[size_t{i} * channels + c];
      sum += product;
      sizes += std::abs(product);
    }
    if (std::abs(sums[i] - sum) > (channels / 4 + 4) * 0x1p-24 * sizes)
      return fmt::format("{} channels: the sum of row {} is {} and not {}", channels, i, sums[i],
                         sum);
  }
  return "";
}

namespace {

/// Of rows of sums: with cuts at sums, below all and above all.
std::string check_reaching(std::span<const int32_t> sums, Random& random) {
  constexpr uint32_t kQueries = ndp::kProductQueries;
  const auto rows = static_cast<uint32_t>(sums.size() / kQueries);
  std::array<int32_t, kQueries> cuts, counts, wanted_counts;
  for (uint32_t q = 0; q < kQueries; ++q) {
    const uint64_t row = random.below(rows + 2);
    cuts[q] = row < rows    ? sums[row * kQueries + q]
              : row == rows ? std::numeric_limits<int32_t>::min()
                            : std::numeric_limits<int32_t>::max();
    counts[q] = wanted_counts[q] = static_cast<int32_t>(random.below(100));
  }
  std::vector<uint32_t> reaching(rows), wanted;
  for (uint32_t i = 0; i < rows; ++i) {
    bool some = false;
    for (uint32_t q = 0; q < kQueries; ++q) {
      const bool reaches = sums[size_t{i} * kQueries + q] >= cuts[q];
      wanted_counts[q] += reaches;
      some |= reaches;
    }
    if (some) wanted.push_back(i);
  }
  ndp::kernels().count_reaching(sums.data(), rows, cuts.data(), counts.data());
  reaching.resize(ndp::kernels().rows_reaching(sums.data(), rows, cuts.data(), reaching.data()));
  if (counts != wanted_counts)
    return fmt::format("{} sums of each query: wrong counts of those that reach a cut", rows);
  if (reaching != wanted)
    return fmt::format("{} of {} rows reach a cut, and not {}", reaching.size(), rows,
                       wanted.size());
  return "";
}

}  // namespace

std::string check_products(uint32_t channels, uint64_t seed) {
  constexpr uint32_t kRows = 9, kQueries = ndp::kProductQueries;
  Random random(seed);
  // As large as sums allow: 31 bits for all products.
  const uint64_t most_query = std::min<uint64_t>((1u << 31) / channels / 0x7FFF, 0x7FFF);
  const auto within = [&](uint64_t most) {
    return static_cast<int16_t>(static_cast<int64_t>(random.below(2 * most)) -
                                static_cast<int64_t>(most) + 1);
  };
  std::vector<int16_t> queries(size_t{kQueries} * channels), rows(size_t{kRows} * channels);
  for (int16_t& value : queries) value = within(most_query);
  for (int16_t& value : rows) value = within(0x7FFF);
  std::vector<int32_t> sums(size_t{kRows} * kQueries);
  ndp::kernels().products({queries.data(), rows.data(), kRows, channels}, sums.data());
  for (uint32_t i = 0; i < kRows; ++i) {
    for (uint32_t q = 0; q < kQueries; ++q) {
      int64_t sum = 0;
      for (uint32_t c = 0; c < channels; ++c)
        sum += int64_t{queries[size_t{q} * channels + c]} * rows[size_t{i} * channels + c];
      if (sums[size_t{i} * kQueries + q] != sum)
        return fmt::format("{} channels: the product of row {} and query {} is {} and not {}",
                           channels, i, q, sums[size_t{i} * kQueries + q], sum);
    }
  }
  for (uint32_t some = 0; some <= kRows; ++some) {
    const std::string fault = check_reaching(std::span(sums).first(some * kQueries), random);
    if (!fault.empty()) return fault;
  }
  return "";
}

namespace {

/// The order of hits, by its words.
bool comes_first(const Hit& a, const Hit& b) {
  if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  if (std::isnan(a.score) || a.score == b.score) return a.token < b.token;
  return a.score > b.score;
}

/// Of unlike tokens, in any order: scores with many ties, infinities and NaN, or near each other.
std::vector<Hit> make_hits(size_t count, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::array<float, 7> special = {
      0.0f, -0.0f, 1.0f, -1.0f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  const uint64_t kind = random.below(3);
  std::vector<Hit> hits;
  auto token = static_cast<uint32_t>(random.below(2) == 0 ? 0 : 0xFFFF0000);
  for (size_t i = 0; i < count; ++i) {
    const auto some = static_cast<float>(random.below(1u << 20));
    const float score = kind == 0   ? special[random.below(special.size())]
                        : kind == 1 ? 1 + some * 0x1p-23f
                                    : (some - 0x1p19f) * 1e-3f;
    hits.push_back({score, token});
    token += 1 + static_cast<uint32_t>(random.below(3));
  }
  for (size_t i = hits.size(); i > 1; --i) std::swap(hits[i - 1], hits[random.below(i)]);
  return hits;
}

}  // namespace

std::string check_best(uint64_t seed) {
  Random random(seed);
  ndp::BestHits chooser;
  for (size_t round = 1; round <= 300; ++round) {
    const size_t count = round <= 70 ? round : 1 + random.below(3000);
    std::vector<Hit> hits = make_hits(count, random), sorted = hits;
    const size_t k = 1 + random.below(count);
    std::sort(sorted.begin(), sorted.end(), comes_first);
    std::vector<Hit> wanted = hits;
    std::erase_if(wanted, [&](const Hit& hit) { return comes_first(sorted[k - 1], hit); });
    const Hit last = chooser.keep(hits, k);
    for (size_t i = 0; i < k; ++i) {
      if (hits[i].token != wanted[i].token)
        return fmt::format("seed {}: hit {} of the best {} of {} is token {} and not {}", seed, i,
                           k, count, hits[i].token, wanted[i].token);
    }
    if (last.token != sorted[k - 1].token)
      return fmt::format("seed {}: the last of the best {} of {} is token {} and not {}", seed, k,
                         count, last.token, sorted[k - 1].token);
  }
  return "";
}

std::string check_all(const Shape& shape, uint64_t seed) {
  const Problem p(shape, seed);
  Random random(seed);
  const auto some = [&] { return static_cast<uint32_t>(random.below(shape.tokens + 1)); };
  // Of a draft: each sees one token more than the one before. And all unlike.
  std::vector<Visible> draft, unlike;
  for (uint32_t q = 0; q < shape.queries; ++q) {
    draft.push_back({.end = shape.tokens / 2 + q});
    unlike.push_back({some(), some(), some() / 4});
  }
  for (const auto& [views, name] :
       {std::pair(Views(), "all"),
        {Visible{.end = some()}, "first"},
        {Visible{.begin = some(), .sinks = some()}, "last, and sinks"},
        {Visible{.begin = some(), .end = some(), .sinks = 4}, "middle, and sinks"},
        {std::span<const Visible>(draft), "those of a draft"},
        {std::span<const Visible>(unlike), "unlike"}}) {
    for (const std::string& wrong :
         {check_scores(p, views), check_top_k(p, views, 1), check_top_k(p, views, 7),
          check_top_k(p, views, shape.tokens + 5), check_attention(p, views),
          check_pages(p, views)}) {
      if (!wrong.empty())
        return fmt::format("{}; tokens {}; seed {}: {}", to_text(shape), name, seed, wrong);
    }
  }
  return "";
}

}  // namespace bowhead::test
