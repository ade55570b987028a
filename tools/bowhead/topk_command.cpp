// SPDX-License-Identifier: Apache-2.0
// bowhead topk: the tokens whose keys score highest for a query, found where the blocks lie.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/leased_block.h"
#include "driver-shim/queue_pair.h"
#include "ndp/engine.h"
#include "ndp/numbers.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/input.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

constexpr uint64_t kLeaseMs = 60'000;

struct Arguments {
  std::string locator, namespace_name = "default";
  std::vector<std::string> keys;
  bool hex = false;
  uint32_t layer = 0, head = 0, k = 10;
  std::optional<uint32_t> like;
  std::string queries;  // a file
  double budget_bytes = 0;
  bool fewest_bytes = false, device = false;
  bool json = false;
};

/// The leases of a run; they end with it.
class Leases {
 public:
  explicit Leases(Pool& pool) : pool_(pool) {}
  ~Leases() { (void)release(); }
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  Result<void> take(NamespaceId ns, const std::vector<std::string>& keys) {
    uint64_t next = 0;
    for (const std::string& key : keys) {
      auto lease = pool_.acquire(ns, key, kLeaseMs, LeaseOf::STORED);
      if (!lease)
        return Error{lease.status(),
                     fmt::format("key '{}': {}", key_text(key), lease.error().message())};
      ndp::StoredBlock block = driver::stored_block(*lease, static_cast<uint32_t>(next));
      block.name = fmt::format("key '{}'", key_text(key));
      leases_.push_back(std::move(*lease));
      next += ndp::tokens_of(block).value_or(0);
      blocks_.push_back(std::move(block));
      if (next > UINT32_MAX)
        return Error{Status::INVALID_ARGUMENT, "more tokens than positions of 32 bits: give fewer"};
    }
    return {};
  }
  const std::vector<ndp::StoredBlock>& blocks() const { return blocks_; }
  uint64_t stored_bytes() const {
    uint64_t bytes = 0;
    for (const ndp::StoredBlock& block : blocks_) bytes += block.bytes.size();
    return bytes;
  }
  uint64_t tokens() const {
    uint64_t all = 0;
    for (const ndp::StoredBlock& block : blocks_) all += ndp::tokens_of(block).value_or(0);
    return all;
  }
  /// Whether all blocks stayed as they were.
  Result<void> release() {
    Result<void> all;
    for (size_t i = 0; i < leases_.size(); ++i) {
      const Status status = pool_.release(leases_[i]);
      if (status == Status::OK || !all) continue;
      all = status == Status::LAPSED
                ? Error{status, fmt::format("{}: it did not stay while it was read: try again",
                                            blocks_[i].name)}
                : Error{status, {}};
    }
    leases_.clear();
    return all;
  }

 private:
  Pool& pool_;
  std::vector<Lease> leases_;
  std::vector<ndp::StoredBlock> blocks_;
};

Result<std::string> read_queries(const std::string& path) {
  auto bytes = read_input(path, uint64_t{ndp::kMaxQueries} * ndp::kMaxChannels * sizeof(float));
  if (bytes || bytes.status() != Status::VALUE_TOO_LARGE) return bytes;
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{} is longer than {} queries of {} float32 numbers", input_name(path),
                           ndp::kMaxQueries, ndp::kMaxChannels)};
}

Result<std::vector<float>> queries_of(const std::string& path, const std::string& bytes,
                                      uint32_t channels) {
  const size_t query_bytes = channels * sizeof(float);
  if (bytes.empty() || bytes.size() % query_bytes != 0 ||
      bytes.size() / query_bytes > ndp::kMaxQueries)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("{} has {} bytes: queries are float32 numbers, {} of each, so {} bytes, and up "
                    "to {} queries",
                    input_name(path), bytes.size(), channels, query_bytes, ndp::kMaxQueries)};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The scale of a token's key. Blocks that have scales are never compressed.
float scale_of(const ndp::HeadsOfBlocks& heads, uint32_t token) {
  float scale = 1;
  for (const ndp::StoredBlock& block : heads.blocks) {
    const auto tokens = ndp::tokens_of(block);
    if (block.framed || !tokens || block.bytes.size() != block.value_bytes) continue;
    if (token < block.first_token || token - block.first_token >= *tokens) continue;
    if (!scales_of(*block.layout, *tokens, heads.layer, 0, heads.first_head)) continue;
    ndp::load_scales(*block.layout, block.bytes.data(), static_cast<uint32_t>(*tokens), heads.layer,
                     0, heads.first_head, token - block.first_token, {&scale, 1});
  }
  return scale;
}

/// The key of a token as a query.
Result<std::vector<float>> query_like(const ndp::HeadsOfBlocks& heads, uint32_t token) {
  const KvLayout& layout = *heads.blocks[0].layout;
  std::vector<std::byte> row(row_bytes(layout, 0));
  if (auto read = ndp::gather(heads, 0, {&token, 1}, row); !read) return read.error();
  const float scale = scale_of(heads, token);
  std::vector<float> query;
  for (uint32_t c = 0; c < layout.key_channels; ++c)
    query.push_back(ndp::load_number(number_format(layout),
                                     reinterpret_cast<const uint8_t*>(row.data()) +
                                         size_t{c} * element_bytes(number_format(layout))) *
                    scale);
  return query;
}

struct Found {
  ndp::BlockHits best;
  uint64_t modelled_ns;
};

void print_hits(const Found& answer, const Leases& leases, double seconds) {
  const ndp::BlockHits& found = answer.best;
  Table table({">QUERY", ">RANK", ">TOKEN", ">SCORE"});
  for (size_t q = 0; q < found.hits.size(); ++q) {
    for (size_t i = 0; i < found.hits[q].size(); ++i)
      table.add({std::to_string(q), std::to_string(i + 1), grouped(found.hits[q][i].token),
                 fmt::format("{:.6g}", found.hits[q][i].score)});
  }
  print(table.text());
  print(fmt::format("read {} of {} that {} tokens take, in {:.2f} ms\n",
                    exact_bytes(found.read.bytes), exact_bytes(leases.stored_bytes()),
                    grouped(leases.tokens()), seconds * 1e3));
  if (answer.modelled_ns != 0)
    print(fmt::format("the modelled device takes {:.2f} us (no measurement)\n",
                      static_cast<double>(answer.modelled_ns) * 1e-3));
}

void print_hits_json(const Arguments& a, const Found& answer, const Leases& leases,
                     double seconds) {
  const ndp::BlockHits& found = answer.best;
  Json queries = Json::array();
  for (const auto& hits : found.hits) {
    Json all = Json::array();
    for (const ndp::Hit& hit : hits) all.push_back({{"token", hit.token}, {"score", hit.score}});
    queries.push_back({{"hits", all}});
  }
  const Json out = {{"locator", a.locator},
                    {"namespace", key_text(a.namespace_name)},
                    {"layer", a.layer},
                    {"head", a.head},
                    {"tokens", leases.tokens()},
                    {"exact", a.budget_bytes == 0},
                    {"device", a.device},
                    {"queries", queries},
                    {"stored_bytes", leases.stored_bytes()},
                    {"read_bytes", found.read.bytes},
                    {"seconds", seconds},
                    {"modelled_ns", answer.modelled_ns}};
  print(json_text(out, 2) + "\n");
}

Result<std::vector<std::string>> keys_of(const Arguments& a) {
  std::vector<std::string> keys;
  for (const std::string& typed : a.keys) {
    const auto bytes = a.hex ? parse_hex(typed) : typed;
    if (!bytes)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("--hex: '{}' is not an even number of hexadecimal digits", typed)};
    keys.push_back(*bytes);
  }
  return keys;
}

Result<std::unique_ptr<ndp::Engine>> engine_of(const Arguments& a, Pool& pool) {
  if (!a.device) return std::unique_ptr<ndp::Engine>(std::make_unique<ndp::ProcessEngine>());
  auto pair = driver::QueuePair::open(pool);
  if (!pair) return pair.error();
  return std::unique_ptr<ndp::Engine>(std::move(*pair));
}

Result<Found> find(ndp::Engine& engine, const ndp::Request& request) {
  const auto bytes = ndp::answer_bytes(request);
  if (!bytes) return bytes.error();
  std::vector<ndp::Hit> hits(bytes->first / sizeof(ndp::Hit));
  std::vector<uint32_t> counts(bytes->second / sizeof(uint32_t));
  ndp::Job job{
      request,
      {std::as_writable_bytes(std::span(hits)), std::as_writable_bytes(std::span(counts))}};
  engine.submit(job);
  engine.wait(job);
  if (!*job.answer) return job.answer->error();
  Found found{{{}, **job.answer}, job.modelled_ns};
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto first = hits.begin() + static_cast<std::ptrdiff_t>(i * request.k);
    found.best.hits.emplace_back(first, first + std::min(counts[i], request.k));
  }
  return found;
}

int run_topk(const Arguments& a) {
  const auto keys = keys_of(a);
  if (!keys) return fail(keys.error());
  // Before blocks are leased: standard input may take its time.
  const auto input = a.queries.empty() ? std::string() : read_queries(a.queries);
  if (!input) return fail(input.error());
  auto pool = open_pool(a.locator);
  if (!pool) return fail(pool.error(), a.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), a.locator);
  const auto ns = std::find_if(info->namespaces.begin(), info->namespaces.end(),
                               [&](const auto& of) { return of.name == a.namespace_name; });
  if (ns == info->namespaces.end())
    return fail({Status::NOT_FOUND,
                 fmt::format("{} has no namespace '{}'", a.locator, key_text(a.namespace_name))});
  const std::string where = fmt::format("{}, namespace '{}'", a.locator, key_text(ns->name));
  Leases leases(*pool);
  if (auto taken = leases.take(ns->id, *keys); !taken) return fail(*pool, taken.error(), where);

  const ndp::HeadsOfBlocks heads{leases.blocks(), a.layer, a.head, 1, ndp::Unreadable::REFUSE};
  if (is_opaque(*leases.blocks()[0].layout))
    return fail({Status::NOT_SUPPORTED,
                 where + ": its values are opaque: topk needs a namespace that was made with "
                         "--number and --channels"});
  const uint32_t channels = leases.blocks()[0].layout->key_channels;
  const auto last = static_cast<uint32_t>(std::max<uint64_t>(leases.tokens(), 1) - 1);
  const auto values = a.queries.empty() ? query_like(heads, a.like.value_or(last))
                                        : queries_of(a.queries, *input, channels);
  if (!values) return fail(*pool, values.error(), where);
  const ndp::HeadQueries queries{*values,
                                 static_cast<uint32_t>(values->size() / channels),
                                 1 / std::sqrt(static_cast<float>(channels)),
                                 {}};
  const auto engine = engine_of(a, *pool);
  if (!engine) return fail(*pool, engine.error(), where);
  ndp::Request request;
  request.operation = ndp::Operation::TOP_K;
  request.heads = heads;
  request.queries = queries;
  request.k = a.k;
  request.bytes_per_token = a.budget_bytes;
  request.reading = a.fewest_bytes ? ndp::Reading::FEWEST_BYTES : ndp::Reading::ONE_PASS;
  const auto start = std::chrono::steady_clock::now();
  const auto found = find(**engine, request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (const auto kept = leases.release(); !kept) return fail(*pool, kept.error(), where);
  if (!found) return fail(*pool, found.error(), where);
  a.json ? print_hits_json(a, *found, leases, took.count())
         : print_hits(*found, leases, took.count());
  return kOk;
}

}  // namespace

void add_topk_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "topk", "Find the tokens whose keys score highest for a query, where the blocks lie");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->add_option("keys", a->keys, "Keys of the blocks, in the order of the sequence")
      ->required();
  command->add_flag("--hex", a->hex, "The keys are given as hexadecimal digits, for binary keys");
  command->add_option("--namespace", a->namespace_name, "Namespace of the keys")
      ->capture_default_str()
      ->transform(from_key_text);
  add_number(*command, "--layer", a->layer, "Layer in the blocks, from 0 (default 0)",
             {0, UINT16_MAX});
  add_number(*command, "--head", a->head, "KV head in the blocks, from 0 (default 0)",
             {0, UINT16_MAX});
  add_number(*command, "-k,--best", a->k, "Number of tokens to find (default 10)",
             {1, ndp::TopK::kMaxK});
  auto* like = command->add_option("--like", a->like,
                                   "Take the key of this token as the query (default: the last)");
  like->transform(whole_number({0, UINT32_MAX}))->type_name("TOKEN");
  command
      ->add_option("--queries", a->queries,
                   "File of queries, float32 [query][channel]; - is standard input")
      ->excludes(like);
  add_real(*command, "--budget", a->budget_bytes,
           "Estimate, from about so many bytes for each token (default: exact, whatever it takes)",
           {0, 1e6});
  command->add_flag("--fewest-bytes", a->fewest_bytes,
                    "Read in small steps, only where it helps: takes longer");
  command->add_flag("--device", a->device,
                    "Ask the device of the pool (bowhead device serve), and not this process");
  command->add_flag("--json", a->json, "As JSON");
  command->footer(R"(
Blocks may be compressed or not. Compressed blocks of 256 tokens or more are searched by the first
bits of their numbers, and only the likeliest tokens are read in full; the answer is exact.

Examples:
  bowhead topk shm:demo b0 b1 b2 --namespace kv --layer 3 --head 1 -k 5
  bowhead topk shm:demo b0 --namespace kv --like 17
  bowhead topk shm:demo b0 --namespace kv --queries q.f32 --budget 16 --json)");
  command->callback([a, &action] { action = [a] { return run_topk(*a); }; });
}

}  // namespace bowhead::cli
