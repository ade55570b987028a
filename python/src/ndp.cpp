// SPDX-License-Identifier: Apache-2.0
// bowhead_kv.ndp: bowhead_ndp.h as functions. Answers are arrays that own their memory.
#include <bowhead/bowhead_ndp.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/src/arguments.h"
#include "python/src/lease.h"

namespace bowhead::python {
namespace {

using Floats = nb::ndarray<nb::ro, float, nb::c_contig, nb::device::cpu>;

/// An array of a shape, which Python owns.
template <class T>
class Answer {
 public:
  explicit Answer(std::vector<size_t> shape) : shape_(std::move(shape)) {
    size_t count = 1;
    for (const size_t size : shape_) count *= size;
    values_ = std::make_unique<std::vector<T>>(count);
  }
  T* data() { return values_->data(); }
  size_t size() const { return values_->size(); }
  nb::object take() {
    auto* values = values_.release();
    const nb::capsule owner(
        values, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
    return nb::cast(
        nb::ndarray<nb::array_api, T>(values->data(), shape_.size(), shape_.data(), owner));
  }

 private:
  std::vector<size_t> shape_;
  std::unique_ptr<std::vector<T>> values_;
};

/// Positions that queries see: numbers, or one for each query.
struct Visible {
  nb::handle begin, end, sinks;
};

/// The arguments that all functions have, as keywords.
class Request {
 public:
  Request(nb::handle leases, nb::handle layer, nb::handle first_head, nb::handle first_tokens,
          bool skip_unreadable) {
    // A Prefix has its leases.
    const Items items(nb::hasattr(leases, "leases") ? leases.attr("leases") : nb::borrow(leases),
                      "leases");
    for (size_t i = 0; i < items.size(); ++i) {
      if (!nb::isinstance<Lease>(items[i]))
        raise_argument(PyExc_TypeError, "leases", i, "is no Lease: it is a " + type_of(items[i]));
      owners_.push_back(items[i]);
      const Lease& lease = *nb::inst_ptr<Lease>(items[i]);
      (void)lease.data();  // raises if it was released
      leases_.push_back(lease.lease());
      // 0 where the library will refuse it.
      tokens_.push_back(bh_layout_tokens(lease.lease().layout, lease.lease().length_bytes));
    }
    if (leases_.empty())
      raise_argument(PyExc_ValueError, "leases", kAlone, "is empty: give one or more");
    request_.layer = number<uint32_t>("layer", layer);
    request_.first_head = number<uint32_t>("first_head", first_head);
    request_.leases = leases_.data();
    request_.lease_count = leases_.size();
    states_.resize(leases_.size());
    request_.states = states_.data();
    request_.flags = skip_unreadable ? BH_NDP_SKIP : 0;
    if (first_tokens.is_none()) return;
    const Items firsts(first_tokens, "first_tokens");
    if (firsts.size() != leases_.size())
      raise_argument(PyExc_ValueError, "first_tokens", kAlone,
                     "has " + std::to_string(firsts.size()) + " positions for " +
                         std::to_string(leases_.size()) + " leases");
    for (size_t i = 0; i < firsts.size(); ++i)
      firsts_.push_back(number<uint32_t>("first_tokens", firsts[i]));
    request_.first_tokens = firsts_.data();
  }

  /// [head][query][channel], or [query][channel] of one head.
  void set_queries(nb::handle object) {
    if (!nb::try_cast(object, queries_, false) || queries_.ndim() < 2 || queries_.ndim() > 3)
      raise_argument(PyExc_TypeError, "queries", kAlone,
                     "must be float32 numbers [head][query][channel] or [query][channel], "
                     "contiguous and in CPU memory: it is a " +
                         type_of(object));
    const bool one = queries_.ndim() == 2;
    set_heads(one ? 1 : queries_.shape(0));
    const size_t count = queries_.shape(one ? 0 : 1), channels = queries_.shape(one ? 1 : 2);
    if (channels != layout().key_channels)
      raise_argument(PyExc_ValueError, "queries", kAlone,
                     "has " + std::to_string(channels) + " channels, and the keys have " +
                         std::to_string(layout().key_channels));
    if (count == 0 || count > 1024)
      raise_argument(
          PyExc_ValueError, "queries", kAlone,
          "has " + std::to_string(count) + " queries for a head: 1 to 1,024 are possible");
    request_.query_count = static_cast<uint32_t>(count);
    request_.queries = queries_.data();
  }
  void set_heads(size_t heads) {
    if (heads == 0 || heads > layout().heads)
      raise_argument(PyExc_ValueError, "heads", kAlone,
                     "is " + std::to_string(heads) + ", and the blocks have " +
                         std::to_string(layout().heads));
    request_.head_count = static_cast<uint32_t>(heads);
  }
  /// After set_queries(): [head][query], or [query] of one head.
  void set_weights(nb::handle object, nb::handle group, bool rectified) {
    if (object.is_none()) {
      if (rectified || !group.equal(nb::int_(0)))
        raise_argument(PyExc_ValueError, "weights", kAlone,
                       "are None, while sums of a group or of rectified scores need them");
      return;
    }
    if (!nb::try_cast(object, weights_, false) || weights_.size() != heads() * queries())
      raise_argument(PyExc_TypeError, "weights", kAlone,
                     "must be float32 numbers [head][query], contiguous and in CPU memory, " +
                         std::to_string(heads() * queries()) + " in all: it is a " +
                         type_of(object));
    request_.weights = weights_.data();
    request_.group = number<uint32_t>("group", group);
    if (request_.group != 0 && queries() % request_.group != 0)
      raise_argument(PyExc_ValueError, "group", kAlone,
                     "does not divide the " + std::to_string(queries()) + " queries of a head");
    if (rectified) request_.flags |= BH_NDP_RECTIFY;
  }
  void set_flag(uint32_t flag) { request_.flags |= flag; }
  /// After set_queries() and set_weights().
  void set_scores(const Visible& visible, float scale, float soft_cap) {
    const std::vector<uint32_t> begins = by_query("begin", visible.begin),
                                sinks = by_query("sinks", visible.sinks);
    std::vector<uint32_t> ends = {0};
    if (!visible.end.is_none()) {
      ends = by_query("end", visible.end);
      if (std::find(ends.begin(), ends.end(), 0u) != ends.end())
        raise_argument(PyExc_ValueError, "end", kAlone, "is 0: then nothing is visible");
    }
    views_.resize(std::max({begins.size(), ends.size(), sinks.size()}));
    for (size_t i = 0; i < views_.size(); ++i)
      views_[i] = {begins[i % begins.size()], ends[i % ends.size()], sinks[i % sinks.size()]};
    request_.views = views_.data();
    request_.view_count = static_cast<uint32_t>(views_.size());
    request_.scale = scale;
    request_.soft_cap = soft_cap;
  }

  const bh_kv_layout& layout() const { return *leases_[0].layout; }
  size_t heads() const { return request_.head_count; }
  size_t queries() const { return request_.query_count; }
  /// For each head: one of each query, or of each group that is summed.
  size_t answers() const {
    if (request_.weights == nullptr) return queries();
    return request_.group == 0 ? 1 : queries() / request_.group;
  }
  size_t all_tokens() const {
    size_t all = 0;
    for (const size_t tokens : tokens_) all += tokens;
    return all;
  }
  size_t pages(uint32_t page_tokens) const {
    size_t all = 0;
    for (const size_t tokens : tokens_)
      all += page_tokens == 0 ? 0 : (tokens + page_tokens - 1) / page_tokens;
    return all;
  }

  /// call(pool, request, report).
  template <class Call>
  void run(const Call& call) {
    const OfPool& pool = nb::inst_ptr<Lease>(owners_[0])->pool();
    check(pool->run([&](bh_pool* handle) { return call(handle, &request_, &report_); }));
  }
  nb::dict fields() const {
    nb::list left_out;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (states_[i] == BH_NDP_LEFT_OUT) left_out.append(i);
    }
    nb::dict fields;
    fields["left_out"] = left_out;
    fields["stored_bytes"] = report_.stored_bytes;
    fields["read_bytes"] = report_.read_bytes;
    fields["engine"] = report_.engine == BH_NDP_DEVICE ? "device" : "process";
    fields["engine_ns"] = report_.engine_ns;
    fields["modelled_ns"] = report_.modelled_ns;
    return fields;
  }

 private:
  /// A number for all queries, or one for each.
  std::vector<uint32_t> by_query(const char* name, nb::handle object) const {
    if (PyIndex_Check(object.ptr())) return {number<uint32_t>(name, object)};
    const Items items(object, name);
    if (items.size() != answers())
      raise_argument(PyExc_ValueError, name, kAlone,
                     "has " + std::to_string(items.size()) + " positions for " +
                         std::to_string(answers()) + " answers of a head: give one for all, or " +
                         "one for each");
    std::vector<uint32_t> all;
    for (size_t i = 0; i < items.size(); ++i) all.push_back(number<uint32_t>(name, items[i]));
    return all;
  }

  std::vector<nb::object> owners_;
  std::vector<bh_lease> leases_;
  std::vector<size_t> tokens_;
  std::vector<uint32_t> firsts_;
  std::vector<bh_ndp_view> views_;
  std::vector<uint8_t> states_;
  Floats queries_, weights_;
  bh_ndp_request request_ = {.struct_bytes = sizeof(bh_ndp_request), .head_count = 1};
  bh_ndp_report report_ = {.struct_bytes = sizeof(bh_ndp_report)};
};

nb::object topk(nb::handle leases, nb::handle queries, nb::handle k_object, nb::handle layer,
                nb::handle first_head, nb::handle first_tokens, nb::handle begin, nb::handle end,
                nb::handle sinks, float scale, float soft_cap, double budget_bytes,
                nb::handle weights, nb::handle group, bool rectified, bool fewest_bytes,
                bool skip_unreadable) {
  Request request(leases, layer, first_head, first_tokens, skip_unreadable);
  request.set_queries(queries);
  request.set_weights(weights, group, rectified);
  request.set_scores({begin, end, sinks}, scale, soft_cap);
  if (fewest_bytes) request.set_flag(BH_NDP_FEWEST_BYTES);
  const auto k = number<uint32_t>("k", k_object);
  if (k == 0 || k > 1u << 20)
    raise_argument(PyExc_ValueError, "k", kAlone, "must be 1 to 1,048,576");
  if (request.heads() * request.answers() * k > 1u << 24)
    raise_argument(PyExc_ValueError, "k", kAlone, "is too large for so many heads and queries");
  Answer<uint32_t> counts({request.heads(), request.answers()});
  Answer<uint32_t> tokens({request.heads(), request.answers(), k});
  Answer<float> scores({request.heads(), request.answers(), k});
  std::vector<bh_ndp_hit> hits(tokens.size());
  request.run([&](bh_pool* pool, const bh_ndp_request* of, bh_ndp_report* report) {
    return bh_ndp_topk(pool, of, k, budget_bytes, hits.data(), counts.data(), report);
  });
  for (size_t i = 0; i < hits.size(); ++i) {
    const bool found = i % k < counts.data()[i / k];
    tokens.data()[i] = found ? hits[i].token : UINT32_MAX;
    scores.data()[i] = found ? hits[i].score : -std::numeric_limits<float>::infinity();
  }
  nb::dict fields = request.fields();
  fields["tokens"] = tokens.take();
  fields["scores"] = scores.take();
  fields["counts"] = counts.take();
  return make("TopK", fields);
}

nb::object score(nb::handle leases, nb::handle queries, nb::handle layer, nb::handle first_head,
                 nb::handle first_tokens, nb::handle begin, nb::handle end, nb::handle sinks,
                 float scale, float soft_cap, nb::handle weights, nb::handle group, bool rectified,
                 bool skip_unreadable) {
  Request request(leases, layer, first_head, first_tokens, skip_unreadable);
  request.set_queries(queries);
  request.set_weights(weights, group, rectified);
  request.set_scores({begin, end, sinks}, scale, soft_cap);
  Answer<float> scores({request.heads(), request.answers(), request.all_tokens()});
  request.run([&](bh_pool* pool, const bh_ndp_request* of, bh_ndp_report* report) {
    return bh_ndp_score(pool, of, scores.data(), scores.size(), report);
  });
  nb::dict fields = request.fields();
  fields["scores"] = scores.take();
  return make("Scores", fields);
}

nb::object attend(nb::handle leases, nb::handle queries, nb::handle layer, nb::handle first_head,
                  nb::handle first_tokens, nb::handle begin, nb::handle end, nb::handle sinks,
                  float scale, float soft_cap, bool skip_unreadable) {
  Request request(leases, layer, first_head, first_tokens, skip_unreadable);
  request.set_queries(queries);
  request.set_scores({begin, end, sinks}, scale, soft_cap);
  if (request.layout().value_channels == 0)
    raise_argument(PyExc_ValueError, "leases", kAlone, "have keys only: nothing to attend to");
  Answer<float> outputs({request.heads(), request.queries(), request.layout().value_channels});
  Answer<float> sums({request.heads(), request.queries()});
  request.run([&](bh_pool* pool, const bh_ndp_request* of, bh_ndp_report* report) {
    return bh_ndp_attend(pool, of, outputs.data(), outputs.size(), sums.data(), report);
  });
  nb::dict fields = request.fields();
  fields["outputs"] = outputs.take();
  fields["log_sum_exps"] = sums.take();
  return make("PartialAttention", fields);
}

/// Positions as a list, or as an array such as TopK has.
std::vector<uint32_t> positions(nb::handle object) {
  nb::ndarray<nb::ro, uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(object, array, false)) return {array.data(), array.data() + array.size()};
  std::vector<uint32_t> all;
  const Items items(object, "tokens");
  for (size_t i = 0; i < items.size(); ++i) all.push_back(number<uint32_t>("tokens", items[i]));
  return all;
}

nb::object gather(nb::handle leases, nb::handle tokens_object, nb::handle part_object,
                  nb::handle layer, nb::handle first_head, nb::handle heads,
                  nb::handle first_tokens, bool skip_unreadable) {
  Request request(leases, layer, first_head, first_tokens, skip_unreadable);
  request.set_heads(number<uint32_t>("heads", heads));
  const auto part = number<uint32_t>("part", part_object);
  const std::vector<uint32_t> tokens = positions(tokens_object);
  const size_t row = bh_layout_row_bytes(&request.layout(), part);
  Answer<uint8_t> rows({request.heads(), tokens.size(), row});
  request.run([&](bh_pool* pool, const bh_ndp_request* of, bh_ndp_report* report) {
    return bh_ndp_gather(pool, of, part, tokens.data(), tokens.size(), rows.data(), rows.size(),
                         report);
  });
  nb::dict fields = request.fields();
  fields["rows"] = rows.take();
  return make("GatheredRows", fields);
}

nb::object digest(nb::handle leases, nb::handle page_object, nb::handle layer,
                  nb::handle first_head, nb::handle heads, bool skip_unreadable) {
  Request request(leases, layer, first_head, nb::none(), skip_unreadable);
  request.set_heads(number<uint32_t>("heads", heads));
  const auto page_tokens = number<uint32_t>("page_tokens", page_object);
  if (page_tokens == 0)
    raise_argument(PyExc_ValueError, "page_tokens", kAlone, "must be 1 or more");
  const size_t pages = request.pages(page_tokens), channels = request.layout().key_channels;
  Answer<float> least({request.heads(), pages, channels});
  Answer<float> largest({request.heads(), pages, channels});
  request.run([&](bh_pool* pool, const bh_ndp_request* of, bh_ndp_report* report) {
    return bh_ndp_digest(pool, of, page_tokens, least.data(), largest.data(), least.size(), report);
  });
  nb::dict fields = request.fields();
  fields["least"] = least.take();
  fields["largest"] = largest.take();
  return make("Digests", fields);
}

}  // namespace

void bind_ndp(nb::module_& module) {
  module.def("ndp_topk", &topk, any("leases"), any("queries"), any("k"), nb::kw_only(),
             any("layer") = 0, any("first_head") = 0, any("first_tokens") = nb::none(),
             any("begin") = 0, any("end") = nb::none(), any("sinks") = 0, nb::arg("scale") = 0.0f,
             nb::arg("soft_cap") = 0.0f, nb::arg("budget_bytes") = 0.0, any("weights") = nb::none(),
             any("group") = 0, nb::arg("rectified") = false, nb::arg("fewest_bytes") = false,
             nb::arg("skip_unreadable") = false);
  module.def("ndp_score", &score, any("leases"), any("queries"), nb::kw_only(), any("layer") = 0,
             any("first_head") = 0, any("first_tokens") = nb::none(), any("begin") = 0,
             any("end") = nb::none(), any("sinks") = 0, nb::arg("scale") = 0.0f,
             nb::arg("soft_cap") = 0.0f, any("weights") = nb::none(), any("group") = 0,
             nb::arg("rectified") = false, nb::arg("skip_unreadable") = false);
  module.def("ndp_attend", &attend, any("leases"), any("queries"), nb::kw_only(), any("layer") = 0,
             any("first_head") = 0, any("first_tokens") = nb::none(), any("begin") = 0,
             any("end") = nb::none(), any("sinks") = 0, nb::arg("scale") = 0.0f,
             nb::arg("soft_cap") = 0.0f, nb::arg("skip_unreadable") = false);
  module.def("ndp_gather", &gather, any("leases"), any("tokens"), any("part"), nb::kw_only(),
             any("layer") = 0, any("first_head") = 0, any("heads") = 1,
             any("first_tokens") = nb::none(), nb::arg("skip_unreadable") = false);
  module.def("ndp_digest", &digest, any("leases"), any("page_tokens"), nb::kw_only(),
             any("layer") = 0, any("first_head") = 0, any("heads") = 1,
             nb::arg("skip_unreadable") = false);
}

}  // namespace bowhead::python
