// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/replay/decode_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/assert.h"
#include "driver-shim/leased_block.h"
#include "firmware-sim/wire.h"
#include "ndp/numbers.h"
#include "tools/bowhead/replay/engine.h"

namespace bowhead::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeaseMs = 60'000;

/// Of two rows of floats. Sums of eight, which compilers keep in vectors.
float dot(const float* a, const float* b, uint32_t channels) {
  std::array<float, 8> sums{};
  uint32_t c = 0;
  for (; c + 8 <= channels; c += 8) {
    for (uint32_t i = 0; i < 8; ++i) sums[i] += a[c + i] * b[c + i];
  }
  float sum = std::accumulate(sums.begin(), sums.end(), 0.0f);
  for (; c < channels; ++c) sum += a[c] * b[c];
  return sum;
}

double length_of(const float* row, uint32_t channels) {
  double sum = 0;
  for (uint32_t c = 0; c < channels; ++c) sum += double{row[c]} * row[c];
  return std::sqrt(sum);
}

}  // namespace

void StepStats::merge(const StepStats& other) {
  steps += other.steps;
  steps_lapsed += other.steps_lapsed;
  steps_damaged += other.steps_damaged;
  requests_served += other.requests_served;
  requests_shortened += other.requests_shortened;
  requests_without += other.requests_without;
  context_tokens += other.context_tokens;
  context_bytes += other.context_bytes;
  output_tokens += other.output_tokens;
  restore_bytes += other.restore_bytes;
  read_bytes += other.read_bytes;
  computed_device += other.computed_device;
  computed_process += other.computed_process;
  searches += other.searches;
  queries += other.queries;
  recall += other.recall;
  mass += other.mass;
  wrong_answers += other.wrong_answers;
  for (size_t i = 0; i < kProfilesMax; ++i) {
    modelled[i].ns += other.modelled[i].ns;
    modelled[i].ns_without += other.modelled[i].ns_without;
    modelled[i].link_bytes += other.modelled[i].link_bytes;
    modelled[i].link_bytes_without += other.modelled[i].link_bytes_without;
    modelled[i].searches_device += other.modelled[i].searches_device;
  }
  time.merge(other.time);
}

/// The leases of a request; they end with it.
class DecodeSteps::Leases {
 public:
  Leases(Pool& pool, std::vector<Lease> leases) : pool_(pool), leases_(std::move(leases)) {}
  ~Leases() { (void)release(); }
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  const std::vector<Lease>& all() const { return leases_; }
  /// LAPSED: a block did not stay as it was.
  Status release() {
    Status all = Status::OK;
    for (Lease& lease : leases_) {
      if (const Status status = pool_.release(lease); status != Status::OK) all = status;
    }
    leases_.clear();
    return all;
  }

 private:
  Pool& pool_;
  std::vector<Lease> leases_;
};

/// The requests of a step to a layer, and their answers.
struct DecodeSteps::Layer {
  struct Values {
    std::vector<uint32_t> tokens;
    std::vector<std::byte> rows;
  };

  ndp::Job find;
  std::vector<ndp::Hit> hits;  // [query head][k]
  std::vector<uint32_t> counts;
  std::vector<ndp::Job> gathers;  // by head
  std::vector<Values> values;     // likewise

  std::span<const ndp::Hit> hits_of(uint32_t query_head) const {
    const uint32_t k = find.request.k;
    return std::span(hits).subspan(size_t{query_head} * k, std::min(counts[query_head], k));
  }
};

/// A step on all modelled devices.
struct DecodeSteps::Models {
  struct One {
    device::Profile profile;
    device::Occupancy with, without;
    double ns = 0, ns_without = 0;
  };
  std::vector<One> all;
  Models() {
    for (const device::Profile& profile : device::profiles())
      all.push_back({profile, device::Occupancy(profile), device::Occupancy(profile)});
    BOWHEAD_ASSERT(all.size() <= StepStats::kProfilesMax);
  }
};

DecodeSteps::DecodeSteps(Pool& pool, NamespaceId namespace_id, const Content& content,
                         const ModelData& data, const StepOptions& options,
                         std::unique_ptr<ndp::Engine> engine, StepStats& stats)
    : pool_(pool),
      namespace_id_(namespace_id),
      content_(content),
      data_(data),
      options_(options),
      engine_(std::move(engine)),
      stats_(stats),
      scale_(1 / std::sqrt(static_cast<float>(data.layout.key_channels))) {}

DecodeSteps::~DecodeSteps() = default;

Result<void> DecodeSteps::serve(std::span<const uint64_t> ids, uint64_t output_tokens,
                                uint64_t seed) {
  std::vector<std::string> texts;
  for (const uint64_t id : ids) texts.push_back(block_key_text(id));
  const std::vector<std::string_view> keys(texts.begin(), texts.end());
  auto prefix = pool_.acquire_prefix(namespace_id_, keys, kLeaseMs);
  // LIMIT_REACHED: others hold all leases that there are.
  if (!prefix && prefix.status() != Status::LIMIT_REACHED) return prefix.error();
  Leases leases(pool_, prefix ? std::move(prefix->leases) : std::vector<Lease>());
  pending_ = {};
  blocks_.clear();
  stored_bytes_ = 0;
  for (const Lease& lease : leases.all()) {
    if (lease.length_bytes != data_.block_bytes()) break;  // the restore has found it wrong
    blocks_.push_back(
        driver::stored_block(lease, static_cast<uint32_t>(blocks_.size() * kBlockTokens)));
    stored_bytes_ += lease.stored_bytes;
  }
  if (blocks_.empty()) {
    ++stats_.requests_without;
    return {};
  }
  tokens_ = blocks_.size() * kBlockTokens;
  Random random(seed);
  Result<void> done;
  for (uint32_t step = 0; step < options_.steps && done; ++step)
    done = take_step(static_cast<uint32_t>(random.below(data_.query_count)), ids);
  const Status released = leases.release();
  if (released == Status::LAPSED || done.status() == Status::LAPSED) {
    stats_.steps_lapsed += options_.steps;
    return {};
  }
  if (done.status() == Status::DAMAGED || done.status() == Status::MEDIA_ERROR) {
    stats_.steps_damaged += options_.steps;
    return {};
  }
  if (released != Status::OK) return released;
  if (!done) return done;
  pending_.requests_served = 1;
  pending_.requests_shortened = blocks_.size() < ids.size();
  pending_.output_tokens = output_tokens;
  pending_.restore_bytes = stored_bytes_;
  stats_.merge(pending_);
  return {};
}

void DecodeSteps::score_exactly(uint32_t query, uint32_t layer, std::span<const uint64_t> ids) {
  const uint32_t channels = data_.layout.key_channels;
  const auto queries = data_.queries_of(query, layer);
  exact_.resize(size_t{data_.query_heads} * tokens_);
  longest_key_.assign(data_.layout.heads, 0);
  for (uint32_t head = 0; head < data_.layout.heads; ++head) {
    const KvRows rows = rows_of(data_.layout, kBlockTokens, layer, 0, head);
    slice_.resize(kBlockTokens * rows.row_bytes);
    keys_.resize(kBlockTokens * channels);
    for (size_t block = 0; block < blocks_.size(); ++block) {
      content_.fill(ids[block], slice_.data(), slice_.size(), rows.offset_bytes);
      for (size_t i = 0; i < keys_.size(); ++i) {
        uint16_t word;
        std::memcpy(&word, &slice_[2 * i], 2);
        keys_[i] = ndp::from_bf16(word);
      }
      for (uint32_t t = 0; t < kBlockTokens; ++t)
        longest_key_[head] =
            std::max(longest_key_[head], length_of(&keys_[size_t{t} * channels], channels));
      for (uint32_t q = head * data_.group(); q < (head + 1) * data_.group(); ++q) {
        float* const out = exact_scores(q).data() + block * kBlockTokens;
        for (uint32_t t = 0; t < kBlockTokens; ++t)
          out[t] =
              scale_ * dot(&queries[size_t{q} * channels], &keys_[size_t{t} * channels], channels);
      }
    }
  }
}

Result<void> DecodeSteps::take_step(uint32_t query, std::span<const uint64_t> ids) {
  Models models;
  uint64_t taken_ns = 0;
  for (uint32_t layer = 0; layer < data_.layout.layers; ++layer) {
    Layer of;
    const Clock::time_point start = Clock::now();
    if (auto found = find(query, layer, of); !found) return found;
    if (auto gathered = gather(layer, of); !gathered) return gathered;
    taken_ns += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
    score_exactly(query, layer, ids);
    check_hits(query, layer, of);
    check_values(layer, of, ids);
    if (auto modelled = model(of, models); !modelled) return modelled;
  }
  pending_.time.record(taken_ns);
  for (size_t i = 0; i < models.all.size(); ++i) {
    pending_.modelled[i].ns += models.all[i].ns;
    pending_.modelled[i].ns_without += models.all[i].ns_without;
  }
  ++pending_.steps;
  pending_.context_tokens += tokens_;
  pending_.context_bytes += stored_bytes_;
  return {};
}

Result<void> DecodeSteps::finish(ndp::Job& job) {
  engine_->wait(job);
  if (!*job.answer) return job.answer->error();
  ++(job.was_elsewhere ? pending_.computed_device : pending_.computed_process);
  pending_.read_bytes += (*job.answer)->bytes;
  return {};
}

Result<void> DecodeSteps::find(uint32_t query, uint32_t layer, Layer& of) {
  ndp::Request& request = of.find.request;
  request.operation = ndp::Operation::TOP_K;
  request.heads = {blocks_, layer, 0, data_.layout.heads, ndp::Unreadable::REFUSE};
  request.queries.values = data_.queries_of(query, layer);
  request.queries.count = data_.group();
  request.queries.scale = scale_;
  request.k = static_cast<uint32_t>(std::min<uint64_t>(options_.k, tokens_));
  request.bytes_per_token = options_.bytes_per_token;
  of.hits.resize(size_t{data_.query_heads} * request.k);
  of.counts.resize(data_.query_heads);
  of.find.room = {std::as_writable_bytes(std::span(of.hits)),
                  std::as_writable_bytes(std::span(of.counts))};
  engine_->submit(of.find);
  return finish(of.find);
}

Result<void> DecodeSteps::gather(uint32_t layer, Layer& of) {
  of.values.resize(data_.layout.heads);
  of.gathers.resize(data_.layout.heads);
  for (uint32_t head = 0; head < data_.layout.heads; ++head) {
    Layer::Values& values = of.values[head];
    for (uint32_t q = head * data_.group(); q < (head + 1) * data_.group(); ++q) {
      for (const ndp::Hit& hit : of.hits_of(q)) values.tokens.push_back(hit.token);
    }
    std::sort(values.tokens.begin(), values.tokens.end());
    values.tokens.erase(std::unique(values.tokens.begin(), values.tokens.end()),
                        values.tokens.end());
    values.rows.resize(values.tokens.size() * row_bytes(data_.layout, 1));
    ndp::Job& job = of.gathers[head];
    job.request.operation = ndp::Operation::GATHER;
    job.request.heads = {blocks_, layer, head, 1, ndp::Unreadable::REFUSE};
    job.request.part = 1;
    job.request.tokens = values.tokens;
    job.room.first = values.rows;
  }
  engine_->submit(of.gathers);
  Result<void> all;
  for (ndp::Job& job : of.gathers) {
    if (auto done = finish(job); !done && all) all = done;  // each is waited for
  }
  return all;
}

/// An answer has k tokens, none twice, the best first. An exact one is right if each score is, and
/// no token outside has a higher one, as far as the tolerance of scores lets that be known. Of
/// estimates no more is known.
void DecodeSteps::check_hits(uint32_t query, uint32_t layer, const Layer& of) {
  const uint32_t channels = data_.layout.key_channels, k = of.find.request.k;
  const bool is_exact = options_.bytes_per_token == 0;
  std::vector<float> order;
  for (uint32_t q = 0; q < data_.query_heads; ++q) {
    const auto exact = exact_scores(q);
    const auto row = data_.queries_of(query, layer).subspan(size_t{q} * channels, channels);
    // Of both computations, by ndp/operations.h: the sum of |q k| is at most the product of their
    // lengths. Below 2^-100 floats end.
    const double tolerance = 2 * double{ndp::kScoreTolerance} * scale_ *
                                 length_of(row.data(), channels) * longest_key_[q / data_.group()] +
                             0x1p-100;
    order.assign(exact.begin(), exact.end());
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    const double least = order[k - 1] - tolerance;
    const float largest = *std::max_element(exact.begin(), exact.end());
    double all = 0, found = 0;
    for (const float score : exact) all += std::exp(score - largest);
    const auto hits = of.hits_of(q);
    bool wrong = of.counts[q] != k;
    uint32_t good = 0;
    std::vector<uint32_t> tokens;
    for (size_t i = 0; i < hits.size(); ++i) {
      const ndp::Hit& hit = hits[i];
      if (i > 0 && !(hit.score <= hits[i - 1].score)) wrong = true;
      if (hit.token >= exact.size()) {
        wrong = true;
        continue;
      }
      tokens.push_back(hit.token);
      found += std::exp(exact[hit.token] - largest);
      good += exact[hit.token] >= least;
      if (is_exact && !(std::abs(double{hit.score} - exact[hit.token]) <= tolerance)) wrong = true;
    }
    std::sort(tokens.begin(), tokens.end());
    if (std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end()) wrong = true;
    if (is_exact && good != k) wrong = true;
    pending_.wrong_answers += wrong;
    pending_.recall += static_cast<double>(good) / k;
    pending_.mass += found / all;
    ++pending_.queries;
  }
}

void DecodeSteps::check_values(uint32_t layer, const Layer& of, std::span<const uint64_t> ids) {
  constexpr uint64_t kLineBytes = 64;
  for (uint32_t head = 0; head < data_.layout.heads; ++head) {
    const KvRows rows = rows_of(data_.layout, kBlockTokens, layer, 1, head);
    const Layer::Values& values = of.values[head];
    for (size_t i = 0; i < values.tokens.size(); ++i) {
      const uint32_t token = values.tokens[i];
      if (token >= tokens_) continue;  // counted as a wrong hit
      const uint64_t at = rows.offset_bytes + token % kBlockTokens * rows.stride_bytes;
      const uint64_t first = at / kLineBytes * kLineBytes;
      slice_.resize((at + rows.row_bytes - first + kLineBytes - 1) / kLineBytes * kLineBytes);
      content_.fill(ids[token / kBlockTokens], slice_.data(), slice_.size(), first);
      pending_.wrong_answers +=
          std::memcmp(&slice_[at - first], &values.rows[i * rows.row_bytes], rows.row_bytes) != 0;
    }
  }
}

/// Layers follow each other, and the values of a layer its scores. Without a device each layer is
/// attention of the host over all that is stored of it.
Result<void> DecodeSteps::model(const Layer& of, Models& models) {
  const auto work_of = [](const ndp::Job& job) -> Result<device::Work> {
    const auto encoded = device::encode(job.request);
    if (!encoded) return encoded.error();
    return device::work_of(job.request, **job.answer, encoded->size());
  };
  const auto find = work_of(of.find);
  if (!find) return find.error();
  std::vector<device::Work> gathers;
  for (const ndp::Job& job : of.gathers) {
    const auto work = work_of(job);
    if (!work) return work.error();
    gathers.push_back(*work);
  }
  ndp::Request attend;
  attend.operation = ndp::Operation::ATTEND;
  attend.heads = of.find.request.heads;
  attend.queries = of.find.request.queries;
  const auto without = device::work_of(attend, {{}, stored_bytes_ / data_.layout.layers}, 0);
  if (!without) return without.error();

  ++pending_.searches;
  for (size_t i = 0; i < models.all.size(); ++i) {
    Models::One& one = models.all[i];
    StepStats::Modelled& sums = pending_.modelled[i];
    const auto add = [&](const device::Work& work, device::Occupancy& occupancy,
                         device::Place place, double issued_ns, uint64_t& bytes) {
      const device::LinkBytes link = device::link_bytes(one.profile, work, place);
      bytes += link.to_device + link.to_host;
      return occupancy.add(work, place, issued_ns);
    };
    const device::Place place = place_of(one.profile, *find);
    sums.searches_device += place == device::Place::DEVICE;
    const double found_ns = add(*find, one.with, place, one.ns, sums.link_bytes);
    double gathered_ns = found_ns;
    for (const device::Work& work : gathers)
      gathered_ns = std::max(
          gathered_ns, add(work, one.with, place_of(one.profile, work), found_ns, sums.link_bytes));
    one.ns = gathered_ns;
    one.ns_without =
        add(*without, one.without, device::Place::HOST, one.ns_without, sums.link_bytes_without);
  }
  return {};
}

}  // namespace bowhead::replay
