// SPDX-License-Identifier: Apache-2.0
// The C ABI of computations on leased blocks.
#include "ndp/request.h"

#include <cmath>
#include <optional>
#include <vector>

#include "api/support.h"
#include "driver-shim/queue_pair.h"
#include "ndp/engine.h"

#pragma GCC visibility push(default)
#include <bowhead/bowhead_ndp.h>
#pragma GCC visibility pop

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::Error;
using bowhead::Result;
using bowhead::Status;
namespace ndp = bowhead::ndp;

namespace {

/// A request whose pointers and sizes are sound, and whose leases hold.
class Request {
 public:
  bh_status open(bh_pool* pool, const bh_ndp_request* request);
  /// For operations with queries.
  bh_status set_queries();
  /// What is particular to an operation.
  ndp::Request& operation() { return operation_; }
  size_t query_count() const { return size_t{given_.query_count} * given_.head_count; }
  ndp::AnswerRoom room_of_hits(bh_ndp_hit* hits, uint32_t* counts) const;
  /// Carries it out and, if the leases lasted, tells what it read.
  bh_status run(const ndp::AnswerRoom& room, bh_ndp_report* report);

 private:
  const bh_lease& lease(size_t i) const {
    return *reinterpret_cast<const bh_lease*>(reinterpret_cast<const char*>(given_.leases) +
                                              i * given_.leases->struct_bytes);
  }
  bh_status add_blocks();
  bh_status check_leases();
  bh_status set_views();

  bh_pool* pool_ = nullptr;
  bh_ndp_request given_{};
  std::vector<ndp::StoredBlock> blocks_;
  std::vector<ndp::Visible> views_;
  ndp::Request operation_;
};

/// Room for so many elements of an answer.
template <class Element>
bh_status add_room(const char* name, Element* room, const char* count_name, size_t count,
                   std::span<std::byte>& to) {
  if (room == nullptr && count > 0) return null_argument(name);
  if (!countable<Element>(count)) return bad_count(count_name, count);
  to = std::as_writable_bytes(std::span(room, count));
  return BH_OK;
}

bh_status Request::open(bh_pool* pool, const bh_ndp_request* request) {
  if (pool == nullptr) return null_argument("pool");
  if (const bh_status bad = read_struct(request, "request", given_); bad != BH_OK) return bad;
  if (const bh_status bad = check_bounds(
          "request", {{"flags", given_.flags, BH_NDP_SKIP | BH_NDP_RECTIFY | BH_NDP_FEWEST_BYTES}});
      bad != BH_OK)
    return bad;
  if (pool->forks_at_open != forks()) return finish(Status::FORKED);
  pool_ = pool;
  if (given_.leases == nullptr) return null_argument("request->leases");
  if (given_.lease_count == 0 || !countable<bh_lease>(given_.lease_count))
    return bad_count("request->lease_count", given_.lease_count);
  if (const bh_status bad = check_struct(given_.leases, "request->leases"); bad != BH_OK)
    return bad;
  if (given_.states != nullptr) std::fill_n(given_.states, given_.lease_count, BH_NDP_READ);
  if (const bh_status bad = check_leases(); bad != BH_OK) return bad;
  return add_blocks();
}

/// All are looked at, so that the states name each that has lapsed.
bh_status Request::check_leases() {
  std::optional<size_t> first;
  Status status = Status::OK;
  for (size_t i = 0; i < given_.lease_count; ++i) {
    const Status of = pool_->pool.check_lease(open_lease(lease(i)));
    if (of == Status::OK) continue;
    if (of != Status::LAPSED || !first) {
      first = i;
      status = of;
    }
    if (of != Status::LAPSED) break;
    if (given_.states != nullptr) given_.states[i] = BH_NDP_LAPSED;
  }
  if (!first) return BH_OK;
  if (status != Status::LAPSED && status != Status::CLOSED) return finish(*pool_, status);
  return fail(static_cast<bh_status>(status), "{}: lease {}: {}", current_function, *first,
              status_text(status));
}

bh_status Request::add_blocks() {
  uint64_t next = 0;
  for (size_t i = 0; i < given_.lease_count; ++i) {
    const bh_lease& lease = this->lease(i);
    if (lease.codec > BH_CODEC_FRAME || lease.layout == nullptr)
      return fail(BH_INVALID_ARGUMENT, "{}: lease {} was changed: its codec is {}, its layout {}",
                  current_function, i, lease.codec, static_cast<const void*>(lease.layout));
    ndp::StoredBlock block{lease.layout,
                           {static_cast<const uint8_t*>(lease.data), lease.stored_bytes},
                           lease.codec == BH_CODEC_FRAME,
                           lease.length_bytes,
                           0,
                           lease.offset,
                           lease.stamp};
    const uint64_t at = given_.first_tokens == nullptr ? next : given_.first_tokens[i];
    next = at + tokens_of(block).value_or(0);
    if (at > UINT32_MAX)
      return fail(BH_INVALID_ARGUMENT, "{}: block {} begins at token {}: positions have 32 bits",
                  current_function, i, at);
    block.first_token = static_cast<uint32_t>(at);
    blocks_.push_back(block);
  }
  operation_.heads = {
      blocks_, given_.layer, given_.first_head, given_.head_count,
      (given_.flags & BH_NDP_SKIP) != 0 ? ndp::Unreadable::SKIP : ndp::Unreadable::REFUSE};
  return BH_OK;
}

/// The caller vouches for it. Empty if the request is wrong.
ndp::AnswerRoom Request::room_of_hits(bh_ndp_hit* hits, uint32_t* counts) const {
  const auto bytes = ndp::answer_bytes(operation_);
  if (!bytes) return {};
  return {{reinterpret_cast<std::byte*>(hits), bytes->first},
          {reinterpret_cast<std::byte*>(counts), bytes->second}};
}

bh_status Request::set_queries() {
  if (given_.queries == nullptr) return null_argument("request->queries");
  ndp::HeadQueries& queries = operation_.queries;
  const bowhead::KvLayout& layout = *blocks_[0].layout;
  const uint32_t channels = layout.key_channels;
  if (given_.query_count == 0 || given_.query_count > ndp::kMaxQueries)
    return fail(BH_INVALID_ARGUMENT, "{}: request->query_count is {}: 1 to {} are possible",
                current_function, given_.query_count, ndp::kMaxQueries);
  if (!bowhead::is_opaque(layout) && given_.head_count > layout.heads)
    return fail(BH_INVALID_ARGUMENT, "{}: request->head_count is {}, and the blocks have {} heads",
                current_function, given_.head_count, layout.heads);
  queries.values = {given_.queries, query_count() * channels};
  queries.count = given_.query_count;
  queries.scale =
      given_.scale == 0 ? 1 / std::sqrt(static_cast<float>(std::max(channels, 1u))) : given_.scale;
  queries.soft_cap = given_.soft_cap;
  queries.rectified = (given_.flags & BH_NDP_RECTIFY) != 0;
  queries.group = given_.group;
  if (given_.weights != nullptr)
    queries.weights = {given_.weights, query_count()};
  else if (given_.group != 0 || queries.rectified)
    return null_argument("request->weights");
  operation_.reading = (given_.flags & BH_NDP_FEWEST_BYTES) != 0 ? ndp::Reading::FEWEST_BYTES
                                                                 : ndp::Reading::ONE_PASS;
  return set_views();
}

bh_status Request::set_views() {
  if ((given_.views == nullptr) != (given_.view_count == 0))
    return fail(BH_INVALID_ARGUMENT, "{}: request->views is {}NULL, and request->view_count {}",
                current_function, given_.views == nullptr ? "" : "not ", given_.view_count);
  if (given_.views == nullptr) return BH_OK;
  if (given_.view_count > given_.query_count)
    return fail(BH_INVALID_ARGUMENT, "{}: request->view_count is {}, and query_count {}",
                current_function, given_.view_count, given_.query_count);
  for (uint32_t i = 0; i < given_.view_count; ++i) {
    const bh_ndp_view& view = given_.views[i];
    views_.push_back({view.begin, view.end == 0 ? UINT32_MAX : view.end, view.sinks});
  }
  if (given_.view_count == 1)
    operation_.queries.views = views_[0];
  else
    operation_.queries.views = std::span<const ndp::Visible>(views_);
  return BH_OK;
}

std::shared_ptr<ndp::Engine> engine_of(bh_pool& pool) {
  static const auto process = std::make_shared<ndp::ProcessEngine>();
  const std::lock_guard lock(pool.mutex);
  return pool.engine != nullptr ? pool.engine : process;
}

bh_status Request::run(const ndp::AnswerRoom& room, bh_ndp_report* report) {
  if (report != nullptr) {
    if (const bh_status bad = check_struct(report, "report"); bad != BH_OK) return bad;
  }
  ndp::Job job{operation_, room};
  const auto engine = engine_of(*pool_);
  engine->submit(job);
  engine->wait(job);
  const Result<ndp::BlocksRead>& read = *job.answer;
  // Whatever went wrong, a block that did not stay may be why.
  if (const bh_status bad = check_leases(); bad != BH_OK) return bad;
  if (!read) return fail(read.error());
  for (const size_t block : read->left_out) {
    if (given_.states != nullptr) given_.states[block] = BH_NDP_LEFT_OUT;
  }
  if (report == nullptr) return BH_OK;
  bh_ndp_report done{};
  done.left_out = static_cast<uint32_t>(read->left_out.size());
  for (const ndp::StoredBlock& block : blocks_) done.stored_bytes += block.bytes.size();
  done.read_bytes = read->bytes;
  done.engine = job.was_elsewhere ? BH_NDP_DEVICE : BH_NDP_PROCESS;
  done.engine_ns = job.device_ns;
  done.modelled_ns = job.modelled_ns;
  write_struct(done, report);
  return BH_OK;
}

}  // namespace

extern "C" {

bh_status bh_ndp_use_engine(bh_pool* pool, const bh_ndp_engine_options* options) {
  return guarded(__func__, [&]() -> bh_status {
    if (pool == nullptr) return null_argument("pool");
    bh_ndp_engine_options given{};
    if (options != nullptr) {
      if (const bh_status bad = read_struct(options, "options", given); bad != BH_OK) return bad;
    }
    if (const bh_status bad =
            check_bounds("options", {{"engine", given.engine, BH_NDP_DEVICE_OR_PROCESS}});
        bad != BH_OK)
      return bad;
    if (pool->forks_at_open != forks()) return finish(Status::FORKED);
    std::shared_ptr<ndp::Engine> engine;
    if (given.engine != BH_NDP_PROCESS) {
      bowhead::driver::QueuePairOptions of;
      if (given.request_bytes != 0) of.request_bytes = given.request_bytes;
      if (given.answer_bytes != 0) of.answer_bytes = given.answer_bytes;
      if (given.timeout_ms != 0) of.timeout_ms = given.timeout_ms;
      auto device = bowhead::driver::QueuePair::open(pool->pool, of);
      if (!device) return fail(device.error());
      if (given.engine == BH_NDP_DEVICE_OR_PROCESS)
        engine = std::make_shared<ndp::FallbackEngine>(std::move(*device));
      else
        engine = std::move(*device);
    }
    const std::lock_guard lock(pool->mutex);
    std::swap(pool->engine, engine);  // the one of before ends without the mutex
    return BH_OK;
  });
}

static_assert(sizeof(bh_ndp_hit) == sizeof(ndp::Hit) &&
              offsetof(bh_ndp_hit, token) == offsetof(ndp::Hit, token));

bh_status bh_ndp_topk(bh_pool* pool, const bh_ndp_request* request, uint32_t k, double budget_bytes,
                      bh_ndp_hit* hits, uint32_t* counts, bh_ndp_report* report) {
  return guarded(__func__, [&]() -> bh_status {
    Request of;
    if (const bh_status bad = of.open(pool, request); bad != BH_OK) return bad;
    if (const bh_status bad = of.set_queries(); bad != BH_OK) return bad;
    if (hits == nullptr) return null_argument("hits");
    if (counts == nullptr) return null_argument("counts");
    of.operation().operation = ndp::Operation::TOP_K;
    of.operation().k = k;
    of.operation().bytes_per_token = budget_bytes;
    return of.run(of.room_of_hits(hits, counts), report);
  });
}

bh_status bh_ndp_score(bh_pool* pool, const bh_ndp_request* request, float* scores,
                       size_t score_count, bh_ndp_report* report) {
  return guarded(__func__, [&]() -> bh_status {
    Request of;
    if (const bh_status bad = of.open(pool, request); bad != BH_OK) return bad;
    if (const bh_status bad = of.set_queries(); bad != BH_OK) return bad;
    if (scores == nullptr) return null_argument("scores");
    ndp::AnswerRoom room;
    if (const bh_status bad = add_room("scores", scores, "score_count", score_count, room.first);
        bad != BH_OK)
      return bad;
    of.operation().operation = ndp::Operation::SCORE;
    return of.run(room, report);
  });
}

bh_status bh_ndp_attend(bh_pool* pool, const bh_ndp_request* request, float* outputs,
                        size_t output_count, float* log_sum_exps, bh_ndp_report* report) {
  return guarded(__func__, [&]() -> bh_status {
    Request of;
    if (const bh_status bad = of.open(pool, request); bad != BH_OK) return bad;
    if (const bh_status bad = of.set_queries(); bad != BH_OK) return bad;
    if (outputs == nullptr) return null_argument("outputs");
    if (log_sum_exps == nullptr) return null_argument("log_sum_exps");
    ndp::AnswerRoom room;
    if (const bh_status bad =
            add_room("outputs", outputs, "output_count", output_count, room.first);
        bad != BH_OK)
      return bad;
    room.second = std::as_writable_bytes(std::span(log_sum_exps, of.query_count()));
    of.operation().operation = ndp::Operation::ATTEND;
    return of.run(room, report);
  });
}

bh_status bh_ndp_gather(bh_pool* pool, const bh_ndp_request* request, uint32_t part,
                        const uint32_t* tokens, size_t token_count, void* rows, size_t row_bytes,
                        bh_ndp_report* report) {
  return guarded(__func__, [&]() -> bh_status {
    Request of;
    if (const bh_status bad = of.open(pool, request); bad != BH_OK) return bad;
    if (tokens == nullptr && token_count > 0) return null_argument("tokens");
    if (!countable<uint32_t>(token_count)) return bad_count("token_count", token_count);
    ndp::AnswerRoom room;
    if (const bh_status bad =
            add_room("rows", static_cast<std::byte*>(rows), "row_bytes", row_bytes, room.first);
        bad != BH_OK)
      return bad;
    of.operation().operation = ndp::Operation::GATHER;
    of.operation().part = part;
    of.operation().tokens = {tokens, token_count};
    return of.run(room, report);
  });
}

bh_status bh_ndp_digest(bh_pool* pool, const bh_ndp_request* request, uint32_t page_tokens,
                        float* least, float* largest, size_t bound_count, bh_ndp_report* report) {
  return guarded(__func__, [&]() -> bh_status {
    Request of;
    if (const bh_status bad = of.open(pool, request); bad != BH_OK) return bad;
    if (least == nullptr) return null_argument("least");
    if (largest == nullptr) return null_argument("largest");
    ndp::AnswerRoom room;
    if (const bh_status bad = add_room("least", least, "bound_count", bound_count, room.first);
        bad != BH_OK)
      return bad;
    room.second = std::as_writable_bytes(std::span(largest, bound_count));
    of.operation().operation = ndp::Operation::DIGEST;
    of.operation().page_tokens = page_tokens;
    return of.run(room, report);
  });
}

}  // extern "C"
