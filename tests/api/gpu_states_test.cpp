// SPDX-License-Identifier: Apache-2.0
// Every function of the C ABI for GPUs in every state of its handles, and with wrong arguments: it
// must return a documented status, without crash or hang. The table is compared with the header, so
// that a new function without a row fails.
#include <fstream>
#include <iterator>

#include "tests/api/documented.h"
#include "tests/api/gpu_fixture.h"

namespace bowhead::test {
namespace {

constexpr unsigned kLimitS = 60;

enum State { FRESH, FORKED, POOL_CLOSED, LOST, STATES };
constexpr const char* kStateNames[STATES] = {"Fresh", "Forked", "PoolClosed", "Lost"};

/// The handles of a cell. The jobs were started in the state FRESH.
struct Scene {
  bh_pool* pool = nullptr;
  bh_namespace_id ns = 0;
  bh_gpu* gpu = nullptr;
  bh_gpu_memory *memory = nullptr, *other_memory = nullptr;
  bh_gpu_transfers* transfers = nullptr;
  bh_gpu_job *restore = nullptr, *spill = nullptr;  ///< of one block; the spill waits for layers
  Pages* pages = nullptr;
  Pages* unregistered = nullptr;
  std::vector<bh_gpu_block> blocks;  ///< the third is not stored
  std::vector<std::string> faults;

  void expect(const char* call, bh_status got, bh_status wanted) {
    if (got != wanted)
      faults.push_back(fmt::format("{}: {}, not {} ({})", call, bh_status_name(got),
                                   bh_status_name(wanted), bh_last_error()));
  }
};
#define EXPECT_STATUS(call, status) s.expect(#call, call, BH_##status)

template <class T, class Call>
void misuse_struct(Scene& s, Call call) {
  EXPECT_STATUS(call(static_cast<T*>(nullptr)), INVALID_ARGUMENT);
  for (const uint32_t struct_bytes : {0u, 4097u, UINT32_MAX}) {
    T of{};
    of.struct_bytes = struct_bytes;
    EXPECT_STATUS(call(&of), INVALID_ARGUMENT);
  }
}

/// A struct with a member behind its end, as of a later version.
template <class T>
struct Longer {
  T known = {};
  uint64_t later = 1;
};

// ---- functions with several arguments ----

bh_status open_transfers(const Scene& s, const bh_gpu_cache* cache,
                         const bh_gpu_transfers_options* options = nullptr) {
  bh_gpu_transfers* out = nullptr;
  const bh_status status = bh_gpu_transfers_open(s.pool, s.gpu, s.memory, cache, options, &out);
  bh_gpu_transfers_close(out);
  return status;
}

void misuse_transfers_open(Scene& s) {
  bh_gpu_transfers* out = nullptr;
  const bh_gpu_cache* const cache = &s.pages->cache;
  EXPECT_STATUS(bh_gpu_transfers_open(nullptr, s.gpu, s.memory, cache, nullptr, &out),
                INVALID_ARGUMENT);
  EXPECT_STATUS(bh_gpu_transfers_open(s.pool, nullptr, s.memory, cache, nullptr, &out),
                INVALID_ARGUMENT);
  EXPECT_STATUS(bh_gpu_transfers_open(s.pool, s.gpu, nullptr, cache, nullptr, &out),
                INVALID_ARGUMENT);
  EXPECT_STATUS(bh_gpu_transfers_open(s.pool, s.gpu, s.memory, cache, nullptr, nullptr),
                INVALID_ARGUMENT);
  // Not the pool's memory.
  EXPECT_STATUS(bh_gpu_transfers_open(s.pool, s.gpu, s.other_memory, cache, nullptr, &out),
                INVALID_ARGUMENT);
  misuse_struct<bh_gpu_cache>(s, [&](auto* of) { return open_transfers(s, of); });
  misuse_struct<bh_gpu_transfers_options>(s, [&](auto* of) {
    return of == nullptr ? BH_INVALID_ARGUMENT : open_transfers(s, cache, of);
  });
  Longer<bh_gpu_transfers_options> later;
  later.known.struct_bytes = sizeof later;
  EXPECT_STATUS(open_transfers(s, cache, &later.known), NOT_SUPPORTED);
  auto options = sized<bh_gpu_transfers_options>();
  options.reserved = 1;
  EXPECT_STATUS(open_transfers(s, cache, &options), NOT_SUPPORTED);

  const auto with = [&](auto change) {
    bh_gpu_cache changed = *cache;
    change(changed);
    return open_transfers(s, &changed);
  };
  EXPECT_STATUS(with([](auto& of) { of.parts = nullptr; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { --of.part_count; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.part_count = SIZE_MAX; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.pages = 0; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.pages = UINT32_MAX; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.page_tokens = 0; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.reserved = 1; }), NOT_SUPPORTED);
  EXPECT_STATUS(with([](auto& of) { of.layout.reserved[3] = 1; }), NOT_SUPPORTED);
  EXPECT_STATUS(with([](auto& of) { of.layout.number_format = 99; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.layout.value_channels = 3; }), NOT_SUPPORTED);
  EXPECT_STATUS(with([](auto& of) {
                  of.layout = kOpaqueLayout;
                  of.part_count = 0;
                }),
                NOT_SUPPORTED);
  std::vector<bh_gpu_part> parts = s.pages->parts;
  const auto with_part = [&](auto change) {
    parts = s.pages->parts;
    change(parts[1]);
    return with([&](auto& of) { of.parts = parts.data(); });
  };
  EXPECT_STATUS(with_part([](auto& of) { of.base = nullptr; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with_part([](auto& of) { of.page_stride_bytes = 0; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with_part([](auto& of) { of.token_stride_bytes = SIZE_MAX; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with_part([](auto& of) { of.head_stride_bytes = SIZE_MAX / 2 + 1; }),
                INVALID_ARGUMENT);
  // Memory that the device does not reach.
  EXPECT_STATUS(with_part([&](auto& of) { of.base = s.unregistered->memory->data(); }),
                INVALID_ARGUMENT);
}

using Start = decltype(bh_gpu_spill);

bh_status start(Start* start, const Scene& s, const std::vector<bh_gpu_block>& blocks,
                const bh_gpu_job_options* options = nullptr) {
  bh_gpu_job* job = nullptr;
  const bh_status status = start(s.transfers, s.ns, blocks.data(), blocks.size(), options, &job);
  bh_gpu_job_free(job);
  return status;
}

void misuse_blocks(Scene& s, Start* call) {
  const auto with = [&](auto change) {
    bh_gpu_block changed = s.blocks[2];
    change(changed);
    return start(call, s, {s.blocks[2], changed});
  };
  EXPECT_STATUS(with([](auto& of) { of.key.data = nullptr; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.pages = nullptr; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.page_count = 0; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.page_count = SIZE_MAX; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.tokens = 0; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.tokens = UINT32_MAX; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.first_token = UINT32_MAX; }), INVALID_ARGUMENT);
  std::vector<uint32_t> pages(s.blocks[2].pages, s.blocks[2].pages + s.blocks[2].page_count);
  pages.back() = UINT32_MAX;
  EXPECT_STATUS(with([&](auto& of) { of.pages = pages.data(); }), INVALID_ARGUMENT);
  auto put = sized<bh_put_options>();
  put.user_bytes = 1;
  EXPECT_STATUS(with([&](auto& of) { of.options = &put; }), INVALID_ARGUMENT);
  put = sized<bh_put_options>();
  const bh_status of_good_options = with([&](auto& of) { of.options = &put; });
  s.expect("options", of_good_options, call == bh_gpu_spill ? BH_OK : BH_INVALID_ARGUMENT);
  // Keys that no block can have are the block's own fault, and read no further than a key goes.
  EXPECT_STATUS(with([](auto& of) { of.key.size_bytes = 0; }), OK);
  const std::string long_key(513, 'k');
  EXPECT_STATUS(with([&](auto& of) { of.key = {long_key.data(), SIZE_MAX}; }), OK);
}

void misuse_start(Scene& s, Start* call) {
  bh_gpu_job* job = nullptr;
  const bh_gpu_block* const one = &s.blocks[2];
  EXPECT_STATUS(call(nullptr, s.ns, one, 1, nullptr, &job), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.transfers, s.ns, nullptr, 1, nullptr, &job), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.transfers, s.ns, one, SIZE_MAX, nullptr, &job), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.transfers, s.ns, one, 1, nullptr, nullptr), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.transfers, s.ns + 2, one, 1, nullptr, &job), INVALID_ARGUMENT);
  bh_namespace_id other = 0;
  EXPECT_STATUS(bh_namespace_open(s.pool, "opaque", "", &other), OK);
  EXPECT_STATUS(call(s.transfers, other, one, 1, nullptr, &job), LAYOUT_MISMATCH);
  EXPECT_STATUS(bh_namespace_remove(s.pool, "opaque"), OK);
  EXPECT_STATUS(call(s.transfers, other, one, 1, nullptr, &job), NAMESPACE_GONE);
  misuse_blocks(s, call);
  misuse_struct<bh_gpu_job_options>(s, [&](auto* of) {
    return of == nullptr ? BH_INVALID_ARGUMENT : start(call, s, {*one}, of);
  });
  Longer<bh_gpu_job_options> later;
  later.known.struct_bytes = sizeof later;
  EXPECT_STATUS(start(call, s, {*one}, &later.known), NOT_SUPPORTED);
  const auto with = [&](auto change) {
    auto options = sized<bh_gpu_job_options>();
    change(options);
    return start(call, s, {*one}, &options);
  };
  int not_a_stream = 0;
  EXPECT_STATUS(with([](auto& of) { of.reserved = 1; }), NOT_SUPPORTED);
  EXPECT_STATUS(with([](auto& of) { of.path = 3; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.urgent = 2; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.after_stream = 2; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.lease_ms = 600'001; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([&](auto& of) { of.stream = &not_a_stream; }), INVALID_ARGUMENT);
  EXPECT_STATUS(with([&](auto& of) {
                  of.after_stream = 1;
                  of.stream = &not_a_stream;
                }),
                INVALID_ARGUMENT);
  EXPECT_STATUS(with([](auto& of) { of.layers_at_once = UINT32_MAX; }), OK);
  EXPECT_STATUS(call(s.transfers, s.ns, nullptr, 0, nullptr, &job), OK);
  bh_gpu_job_free(job);
}

void misuse_layer(Scene& s, decltype(bh_gpu_job_wait_layer)* call, bh_gpu_job* right,
                  bh_gpu_job* wrong) {
  int not_a_stream = 0;
  EXPECT_STATUS(call(nullptr, 0, nullptr), INVALID_ARGUMENT);
  EXPECT_STATUS(call(wrong, 0, nullptr), INVALID_ARGUMENT);
  EXPECT_STATUS(call(right, s.pages->cache.layout.layers, nullptr), INVALID_ARGUMENT);
  EXPECT_STATUS(call(right, UINT32_MAX, nullptr), INVALID_ARGUMENT);
  EXPECT_STATUS(call(right, 0, &not_a_stream), INVALID_ARGUMENT);
}

void misuse_register_memory(Scene& s) {
  bh_gpu_memory* out = nullptr;
  gpu::Mapping memory(8192);
  const auto call = [&](bh_gpu* gpu, void* data, uint64_t size_bytes) {
    return bh_gpu_register_memory(gpu, data, size_bytes, &out);
  };
  EXPECT_STATUS(call(nullptr, memory.data(), 8192), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.gpu, nullptr, 8192), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.gpu, memory.data(), 0), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.gpu, memory.data() + 1, 4096), MISALIGNED);
  EXPECT_STATUS(call(s.gpu, memory.data(), 4097), MISALIGNED);
  EXPECT_STATUS(call(s.gpu, memory.data(), uint64_t{0} - 4096), INVALID_ARGUMENT);
  EXPECT_STATUS(call(s.gpu, s.pages->memory->data(), 4096), INVALID_ARGUMENT);  // registered
  EXPECT_STATUS(bh_gpu_register_memory(s.gpu, memory.data(), 8192, nullptr), INVALID_ARGUMENT);
}

// ---- the table ----

struct Function {
  const char* name;
  bh_status (*call)(Scene& s);
  std::array<bh_status, STATES> answers;
  void (*misuse)(Scene& s);
};

constexpr std::array<bh_status, STATES> kAlways = {BH_OK, BH_OK, BH_OK, BH_OK};
constexpr std::array<bh_status, STATES> kForked = {BH_OK, BH_FORKED, BH_OK, BH_OK};
constexpr std::array<bh_status, STATES> kLost = {BH_OK, BH_FORKED, BH_OK, BH_GPU_LOST};
constexpr std::array<bh_status, STATES> kWork = {BH_OK, BH_FORKED, BH_CLOSED, BH_GPU_LOST};
constexpr std::array<bh_status, STATES> kLooks = {BH_OK, BH_FORKED, BH_CLOSED, BH_OK};

const Function kFunctions[] = {
    {"bh_gpu_open",
     [](Scene&) {
       bh_gpu* gpu = nullptr;
       const bh_status status = bh_gpu_open(UINT32_MAX, &gpu);
       return status == BH_NOT_FOUND || status == BH_NOT_SUPPORTED ? BH_OK : BH_SYSTEM;
     },
     kAlways, [](Scene& s) { EXPECT_STATUS(bh_gpu_open(0, nullptr), INVALID_ARGUMENT); }},
    {"bh_gpu_open_cpu",
     [](Scene&) {
       bh_gpu* gpu = nullptr;
       const bh_status status = bh_gpu_open_cpu(&gpu);
       bh_gpu_close(gpu);
       return status;
     },
     kAlways, [](Scene& s) { EXPECT_STATUS(bh_gpu_open_cpu(nullptr), INVALID_ARGUMENT); }},
    {"bh_gpu_get_info",
     [](Scene& s) {
       auto info = sized<bh_gpu_info>();
       return bh_gpu_get_info(s.gpu, &info);
     },
     kForked,
     [](Scene& s) {
       auto info = sized<bh_gpu_info>();
       EXPECT_STATUS(bh_gpu_get_info(nullptr, &info), INVALID_ARGUMENT);
       misuse_struct<bh_gpu_info>(s, [&](auto* out) { return bh_gpu_get_info(s.gpu, out); });
     }},
    {"bh_gpu_synchronize", [](Scene& s) { return bh_gpu_synchronize(s.gpu, nullptr); }, kLost,
     [](Scene& s) {
       EXPECT_STATUS(bh_gpu_synchronize(nullptr, nullptr), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_synchronize(s.gpu, &s), INVALID_ARGUMENT);
     }},
    {"bh_gpu_register_pool",
     [](Scene& s) {
       bh_gpu_memory* memory = nullptr;
       // A pool that was closed is no argument.
       if (s.pool == nullptr) return BH_OK;
       const bh_status status = bh_gpu_register_pool(s.gpu, s.pool, 0, &memory);
       bh_gpu_memory_close(memory);
       return status;
     },
     kForked,
     [](Scene& s) {
       bh_gpu_memory* out = nullptr;
       EXPECT_STATUS(bh_gpu_register_pool(nullptr, s.pool, 0, &out), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_register_pool(s.gpu, nullptr, 0, &out), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_register_pool(s.gpu, s.pool, 0, nullptr), INVALID_ARGUMENT);
       for (const uint64_t chunk_bytes : {uint64_t{1}, uint64_t{3} << 20, UINT64_MAX})
         EXPECT_STATUS(bh_gpu_register_pool(s.gpu, s.pool, chunk_bytes, &out), INVALID_ARGUMENT);
     }},
    {"bh_gpu_register_memory",
     [](Scene& s) {
       gpu::Mapping memory(4096);
       bh_gpu_memory* out = nullptr;
       const bh_status status = bh_gpu_register_memory(s.gpu, memory.data(), 4096, &out);
       bh_gpu_memory_close(out);
       return status;
     },
     kLost, misuse_register_memory},
    {"bh_gpu_memory_ensure", [](Scene& s) { return bh_gpu_memory_ensure(s.memory, 0, 4096); },
     kForked,
     [](Scene& s) {
       EXPECT_STATUS(bh_gpu_memory_ensure(nullptr, 0, 1), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_memory_ensure(s.memory, UINT64_MAX, 1), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_memory_ensure(s.memory, 1, UINT64_MAX), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_memory_ensure(s.memory, 0, 0), OK);
     }},
    {"bh_gpu_memory_register_rest", [](Scene& s) { return bh_gpu_memory_register_rest(s.memory); },
     kForked,
     [](Scene& s) { EXPECT_STATUS(bh_gpu_memory_register_rest(nullptr), INVALID_ARGUMENT); }},
    {"bh_gpu_memory_retry", [](Scene& s) { return bh_gpu_memory_retry(s.memory); }, kForked,
     [](Scene& s) { EXPECT_STATUS(bh_gpu_memory_retry(nullptr), INVALID_ARGUMENT); }},
    {"bh_gpu_memory_get_info",
     [](Scene& s) {
       auto info = sized<bh_gpu_memory_info>();
       return bh_gpu_memory_get_info(s.memory, &info);
     },
     kForked,
     [](Scene& s) {
       auto info = sized<bh_gpu_memory_info>();
       EXPECT_STATUS(bh_gpu_memory_get_info(nullptr, &info), INVALID_ARGUMENT);
       misuse_struct<bh_gpu_memory_info>(
           s, [&](auto* out) { return bh_gpu_memory_get_info(s.memory, out); });
     }},
    {"bh_gpu_transfers_open",
     [](Scene& s) { return s.pool == nullptr ? BH_OK : open_transfers(s, &s.pages->cache); }, kLost,
     misuse_transfers_open},
    {"bh_gpu_transfers_get_info",
     [](Scene& s) {
       auto info = sized<bh_gpu_transfers_info>();
       return bh_gpu_transfers_get_info(s.transfers, &info);
     },
     kLooks,
     [](Scene& s) {
       auto info = sized<bh_gpu_transfers_info>();
       EXPECT_STATUS(bh_gpu_transfers_get_info(nullptr, &info), INVALID_ARGUMENT);
       misuse_struct<bh_gpu_transfers_info>(
           s, [&](auto* out) { return bh_gpu_transfers_get_info(s.transfers, out); });
     }},
    {"bh_gpu_transfers_fd",
     [](Scene& s) { return bh_gpu_transfers_fd(s.transfers) >= 0 ? BH_OK : BH_SYSTEM; }, kAlways,
     [](Scene& s) {
       if (bh_gpu_transfers_fd(nullptr) != -1) s.faults.emplace_back("a descriptor of NULL");
     }},
    {"bh_gpu_spill", [](Scene& s) { return start(bh_gpu_spill, s, {s.blocks[2]}); }, kWork,
     [](Scene& s) { misuse_start(s, bh_gpu_spill); }},
    {"bh_gpu_restore", [](Scene& s) { return start(bh_gpu_restore, s, {s.blocks[1]}); }, kWork,
     [](Scene& s) { misuse_start(s, bh_gpu_restore); }},
    {"bh_gpu_job_wait_layer", [](Scene& s) { return bh_gpu_job_wait_layer(s.restore, 0, nullptr); },
     kLost, [](Scene& s) { misuse_layer(s, bh_gpu_job_wait_layer, s.restore, s.spill); }},
    {"bh_gpu_job_layer_ready", [](Scene& s) { return bh_gpu_job_layer_ready(s.spill, 0, nullptr); },
     kLost, [](Scene& s) { misuse_layer(s, bh_gpu_job_layer_ready, s.spill, s.restore); }},
    {"bh_gpu_poll",
     [](Scene& s) {
       size_t count = 0;
       bh_gpu_completion done{};
       return bh_gpu_poll(s.transfers, &done, 1, &count);
     },
     kLooks,
     [](Scene& s) {
       size_t count = 0;
       EXPECT_STATUS(bh_gpu_poll(nullptr, nullptr, 0, &count), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_poll(s.transfers, nullptr, 1, &count), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_poll(s.transfers, nullptr, 0, nullptr), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_poll(s.transfers, nullptr, 0, &count), OK);
     }},
    {"bh_gpu_job_cancel", [](Scene& s) { return bh_gpu_job_cancel(s.spill); }, kForked,
     [](Scene& s) { EXPECT_STATUS(bh_gpu_job_cancel(nullptr), INVALID_ARGUMENT); }},
    {"bh_gpu_job_wait", [](Scene& s) { return bh_gpu_job_wait(s.restore, UINT64_MAX); }, kForked,
     [](Scene& s) {
       EXPECT_STATUS(bh_gpu_job_wait(nullptr, 0), INVALID_ARGUMENT);
       bh_gpu_job* job = nullptr;
       auto options = sized<bh_gpu_job_options>();
       options.layers_at_once = 1;
       EXPECT_STATUS(bh_gpu_spill(s.transfers, s.ns, &s.blocks[2], 1, &options, &job), OK);
       EXPECT_STATUS(bh_gpu_job_wait(job, 0), BUSY);
       bh_gpu_result result{};
       EXPECT_STATUS(bh_gpu_job_results(job, &result, 1), BUSY);
       bh_gpu_job_free(job);
     }},
    {"bh_gpu_job_results",
     [](Scene& s) {
       bh_gpu_result result{};
       return bh_gpu_job_results(s.restore, &result, 1);
     },
     kForked,
     [](Scene& s) {
       bh_gpu_result results[2] = {};
       EXPECT_STATUS(bh_gpu_job_results(nullptr, results, 1), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_job_results(s.restore, nullptr, 1), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_job_results(s.restore, results, 2), INVALID_ARGUMENT);
       EXPECT_STATUS(bh_gpu_job_results(s.restore, results, 0), INVALID_ARGUMENT);
     }},
    // These end a handle, and so they come last.
    {"bh_gpu_job_free",
     [](Scene& s) {
       bh_gpu_job_free(s.restore);
       bh_gpu_job_free(s.spill);
       return BH_OK;
     },
     kAlways, [](Scene&) { bh_gpu_job_free(nullptr); }},
    {"bh_gpu_transfers_close",
     [](Scene& s) {
       bh_gpu_transfers_close(std::exchange(s.transfers, nullptr));
       return BH_OK;
     },
     kAlways, [](Scene&) { bh_gpu_transfers_close(nullptr); }},
    {"bh_gpu_memory_close",
     [](Scene& s) {
       bh_gpu_memory_close(std::exchange(s.memory, nullptr));
       return BH_OK;
     },
     kAlways, [](Scene&) { bh_gpu_memory_close(nullptr); }},
    {"bh_gpu_close",
     [](Scene& s) {
       bh_gpu_close(std::exchange(s.gpu, nullptr));
       return BH_OK;
     },
     kAlways, [](Scene&) { bh_gpu_close(nullptr); }},
};

std::string header() {
  std::ifstream in(BOWHEAD_GPU_HEADER);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(GpuAbiTable, EveryFunctionOfTheHeaderHasARowAndDocumentsItsAnswers) {
  const std::string text = header();
  const auto statuses = documented_statuses(text);
  ASSERT_GT(statuses.size(), 20u) << "the header is no longer read";
  ASSERT_EQ(statuses.at("bh_gpu_restore").count("BH_LAYOUT_MISMATCH"), 1u) << "no longer read";
  std::set<std::string> declared, listed;
  const std::regex name("\\bbh_gpu_[a-z_]+(?=\\()");
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
    declared.insert(at->str());
  for (const Function& function : kFunctions) {
    listed.insert(function.name);
    for (const bh_status answer : function.answers) {
      const std::string status = std::string("BH_") + bh_status_name(answer);
      const std::set<std::string> general = {"BH_OK", "BH_FORKED", "BH_GPU_LOST"};
      EXPECT_TRUE(general.count(status) == 1 || statuses.at(function.name).count(status) == 1)
          << function.name << ": " << status;
    }
  }
  EXPECT_EQ(listed, declared);
}

class GpuAbiStates : public GpuAbi, public testing::WithParamInterface<int> {
 protected:
  State state() const { return static_cast<State>(GetParam()); }

  void enter() {
    unregistered_ = std::make_unique<Pages>(random_, pages_->cache.layout);
    blocks_ = std::make_unique<Blocks>(random_, *pages_, 3, "block");
    const std::vector<bh_gpu_block> stored = {blocks_->all[0], blocks_->all[1]};
    ASSERT_EQ(run(true, stored), std::vector<std::string>(2, "OK"));
    scene_.pages = pages_.get();
    scene_.unregistered = unregistered_.get();
    scene_.blocks = blocks_->all;
    auto options = sized<bh_gpu_job_options>();
    options.layers_at_once = 1;
    scene_.spill = start(true, {blocks_->all[2]}, &options);
    const size_t next = gate_->hold_next(1000);
    scene_.restore = start(false, {blocks_->all[0]}, &options);
    if (state() == LOST) {
      gate_->lose_from(next);
      gate_->let_go();
      gate_->wait_for(next + 1);
      while (bh_gpu_synchronize(gpu_, nullptr) == BH_OK) std::this_thread::yield();
    }
    if (state() != FORKED) gate_->let_go();
    if (state() == POOL_CLOSED) bh_pool_close(std::exchange(pool_, nullptr));
    scene_.pool = pool_;
    scene_.ns = ns_;
    scene_.gpu = std::exchange(gpu_, nullptr);
    scene_.memory = std::exchange(memory_, nullptr);
    scene_.other_memory = cache_memory_;
    scene_.transfers = std::exchange(transfers_, nullptr);
  }
  /// Calls each function, and each with wrong arguments while the handles are good. Returns the
  /// faults.
  std::string run_cells() {
    std::string faults;
    for (const Function& function : kFunctions) {
      scene_.faults.clear();
      if (state() == FRESH) function.misuse(scene_);
      scene_.expect(function.name, function.call(scene_), function.answers[state()]);
      for (const std::string& fault : scene_.faults)
        faults += fmt::format("{}: {}\n", function.name, fault);
    }
    return faults;
  }

  std::unique_ptr<Pages> unregistered_;
  std::unique_ptr<Blocks> blocks_;
  Scene scene_;
};

TEST_P(GpuAbiStates, EveryFunctionAnswersAsDocumented) {
#if defined(__SANITIZE_THREAD__)
  // It ends the child whose new thread has the id of a thread of the parent.
  if (state() == FORKED) GTEST_SKIP() << "ThreadSanitizer knows no threads of a forked child";
#endif
  ASSERT_NO_FATAL_FAILURE(enter());
  if (state() != FORKED) {
    EXPECT_EQ(run_cells(), "");
    return;
  }
  const int status = in_child([&] {
    alarm(kLimitS);
    const std::string faults = run_cells();
    fmt::print(stderr, "{}", faults);
    return faults.empty() ? 0 : 1;
  });
  EXPECT_EQ(status, 0) << (status == 128 + SIGALRM ? "hangs" : "crashed, or answered otherwise");
  // The parent's are as before: jobs that were under way at the fork are done.
  gate_->let_go();
  EXPECT_EQ(end(std::exchange(scene_.restore, nullptr), 1), std::vector<std::string>(1, "OK"));
  for (uint32_t layer = 0; layer < pages_->cache.layout.layers; ++layer)
    EXPECT_OK(bh_gpu_job_layer_ready(scene_.spill, layer, nullptr));
  EXPECT_EQ(end(scene_.spill, 1), std::vector<std::string>(1, "OK"));
  gpu_ = scene_.gpu;
  memory_ = scene_.memory;
  transfers_ = scene_.transfers;
}

INSTANTIATE_TEST_SUITE_P(In, GpuAbiStates, testing::Range<int>(0, STATES),
                         [](const auto& of) { return kStateNames[of.param]; });

}  // namespace
}  // namespace bowhead::test
