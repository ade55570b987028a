// SPDX-License-Identifier: Apache-2.0
// The C ABI of GPUs, on the CPU device.
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "tests/api/gpu_fixture.h"

namespace bowhead::test {
namespace {

const std::vector<std::string> kOk3(3, "OK");

TEST_F(GpuAbi, BlocksOfAnyLayoutComeBack) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    use(std::make_unique<Pages>(random));
    auto options = sized<bh_gpu_job_options>();
    options.path = static_cast<uint32_t>(seed % 3);
    options.urgent = seed % 2;
    pages_->fill(seed);
    const Blocks blocks(random, *pages_, 3, "seed " + std::to_string(seed));
    std::vector<std::vector<std::byte>> payloads;
    for (const bh_gpu_block& block : blocks.all) payloads.push_back(pages_->payload(block));
    ASSERT_EQ(run(true, blocks.all, &options), kOk3);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stored(blocks.all[i]), payloads[i]);

    Blocks elsewhere(random, *pages_, 3, "seed " + std::to_string(seed));
    pages_->fill(seed + 1000);
    ASSERT_EQ(run(false, elsewhere.all, &options), kOk3);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(pages_->payload(elsewhere.all[i]), payloads[i]);
  }
}

TEST_F(GpuAbi, ASpillStoresEachLayerOnceItIsReady) {
  const Blocks blocks(random_, *pages_, 3, "layers");
  auto options = sized<bh_gpu_job_options>();
  options.layers_at_once = 2;
  bh_gpu_job* job = start(true, blocks.all, &options);
  std::vector<std::vector<std::byte>> payloads;
  for (size_t i = 0; i < 3; ++i)
    payloads.push_back(bytes(pages_->payload(blocks.all[i]).size(), 50 + i));
  for (uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_ANSWER(bh_gpu_job_wait(job, 0), BUSY);
    // The engine computes a layer, and does not write its pages again.
    for (size_t i = 0; i < 3; ++i) pages_->write(blocks.all[i], payloads[i], layer, layer + 1);
    EXPECT_OK(bh_gpu_job_layer_ready(job, layer, nullptr));
    EXPECT_OK(bh_gpu_job_layer_ready(job, layer, nullptr));  // again: nothing happens
  }
  ASSERT_EQ(end(job, 3), kOk3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stored(blocks.all[i]), payloads[i]);

  // All are stored: the job is done, and its layers may be reported all the same.
  job = start(true, blocks.all, &options);
  EXPECT_OK(bh_gpu_job_wait(job, 0));
  EXPECT_OK(bh_gpu_job_layer_ready(job, 3, nullptr));
  EXPECT_EQ(end(job, 3), kOk3);
}

TEST_F(GpuAbi, ALayerIsThereBeforeTheNextOne) {
  const Blocks blocks(random_, *pages_, 3, "layers");
  pages_->fill(1);
  std::vector<std::vector<std::byte>> payloads;
  for (const bh_gpu_block& block : blocks.all) payloads.push_back(pages_->payload(block));
  ASSERT_EQ(run(true, blocks.all), kOk3);
  pages_->fill(2);
  auto options = sized<bh_gpu_job_options>();
  options.layers_at_once = 1;
  options.path = BH_GPU_PATH_KERNEL;  // one piece of work for each layer
  const size_t first = gate_->hold_next(100);
  bh_gpu_job* job = start(false, blocks.all, &options);
  for (uint32_t layer = 0; layer < 4; ++layer) {
    gate_->let_go(1);
    EXPECT_OK(bh_gpu_job_wait_layer(job, layer, nullptr));
    EXPECT_OK(bh_gpu_synchronize(gpu_, nullptr));
    for (size_t i = 0; i < 3; ++i) {
      pages_->for_rows(blocks.all[i], 0, layer + 1, [&](uint64_t offset, const std::byte* row) {
        ASSERT_EQ(std::memcmp(row, &payloads[i][offset], pages_->row_bytes()), 0) << layer;
      });
    }
    if (layer == 3) break;
    gate_->wait_for(first + layer + 2);  // the next layer waits at the gate
    EXPECT_ANSWER(bh_gpu_job_wait(job, 0), BUSY);
    EXPECT_ANSWER(bh_gpu_job_results(job, std::array<bh_gpu_result, 3>{}.data(), 3), BUSY);
  }
  EXPECT_OK(bh_gpu_job_wait(job, 20'000));
  EXPECT_OK(bh_gpu_job_wait_layer(job, 0, nullptr));  // done: nothing to wait for
  EXPECT_EQ(end(job, 3), kOk3);
}

TEST_F(GpuAbi, AnEventLoopLearnsOfEachJobOnce) {
  constexpr uint32_t kJobs = 20;
  const Blocks blocks(random_, *pages_, 3, "loop");
  ASSERT_EQ(run(true, {blocks.all[0], blocks.all[1]}), (std::vector<std::string>(2, "OK")));
  const int loop = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event = {.events = EPOLLIN, .data = {}};
  ASSERT_EQ(epoll_ctl(loop, EPOLL_CTL_ADD, bh_gpu_transfers_fd(transfers_), &event), 0);
  std::map<void*, bh_gpu_job*> jobs;
  std::array<int, kJobs> contexts{};
  auto options = sized<bh_gpu_job_options>();
  for (int& context : contexts) {
    options.context = &context;
    jobs[&context] = start(false, blocks.all, &options);  // the third block is not there
  }
  size_t count = 0;
  while (!jobs.empty() && epoll_wait(loop, &event, 1, 20'000) == 1) {
    std::array<bh_gpu_completion, 3> done{};  // fewer than may be done
    EXPECT_OK(bh_gpu_poll(transfers_, done.data(), done.size(), &count));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(jobs[done[i].context], done[i].job);
      EXPECT_EQ(done[i].failed, 1u);
      jobs.erase(done[i].context);
      EXPECT_EQ(end(done[i].job, 3), (std::vector<std::string>{"OK", "OK", "NOT_FOUND"}));
    }
  }
  EXPECT_TRUE(jobs.empty());
  std::array<bh_gpu_completion, 3> none{};
  EXPECT_OK(bh_gpu_poll(transfers_, none.data(), none.size(), &count));
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(epoll_wait(loop, &event, 1, 0), 0);
  close(loop);
}

TEST_F(GpuAbi, AJobWithoutWorkWakesTheLoopAsWell) {
  const Blocks blocks(random_, *pages_, 3, "absent");
  EXPECT_FALSE(is_readable(0));
  bh_gpu_job* job = start(false, blocks.all);
  EXPECT_TRUE(is_readable(0));
  bh_gpu_completion done{};
  size_t count = 0;
  EXPECT_OK(bh_gpu_poll(transfers_, &done, 1, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(done.failed, 3u);
  EXPECT_EQ(end(job, 3), std::vector<std::string>(3, "NOT_FOUND"));
  job = start(false, {});
  EXPECT_TRUE(is_readable(0));
  EXPECT_EQ(end(job, 0), std::vector<std::string>{});
}

TEST_F(GpuAbi, AWaitEndsInTimeAndAFreedJobIsNotReported) {
  const Blocks blocks(random_, *pages_, 3, "wait");
  (void)gate_->hold_next(100);
  bh_gpu_job* job = start(true, blocks.all);
  EXPECT_ANSWER(bh_gpu_job_wait(job, 30), BUSY);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate_->let_go();
  });
  bh_gpu_job_free(job);  // waits for what was queued
  opener.join();
  bh_gpu_completion done{};
  size_t count = 1;
  EXPECT_OK(bh_gpu_poll(transfers_, &done, 1, &count));
  EXPECT_EQ(count, 0u);
  EXPECT_FALSE(is_readable(0));
  for (const bh_gpu_block& block : blocks.all) EXPECT_FALSE(is_stored(block));  // it was cancelled
}

TEST_F(GpuAbi, ADamagedBlockFails) {
  const Blocks blocks(random_, *pages_, 3, "damage");
  ASSERT_EQ(run(true, blocks.all), kOk3);
  auto lease = sized<bh_lease>();
  ASSERT_OK(bh_acquire(pool_, ns_, blocks.all[1].key, 1000, &lease));
  static_cast<unsigned char*>(const_cast<void*>(lease.data))[5] ^= 1;
  ASSERT_OK(bh_release(pool_, &lease));
  for (const uint32_t path : {BH_GPU_PATH_KERNEL, BH_GPU_PATH_COPIES}) {
    auto options = sized<bh_gpu_job_options>();
    options.path = path;
    EXPECT_EQ(run(false, blocks.all, &options), (std::vector<std::string>{"OK", "DAMAGED", "OK"}));
  }
}

TEST_F(GpuAbi, ACancelledJobStoresNothing) {
  const Blocks blocks(random_, *pages_, 3, "cancel");
  (void)gate_->hold_next(100);
  bh_gpu_job* job = start(true, blocks.all);
  EXPECT_OK(bh_gpu_job_cancel(job));
  EXPECT_ANSWER(bh_gpu_job_wait(job, 0), BUSY);  // the pages are in use
  gate_->let_go();
  EXPECT_TRUE(is_readable(20'000));
  EXPECT_EQ(end(job, 3), std::vector<std::string>(3, "CANCELLED"));
  for (const bh_gpu_block& block : blocks.all) EXPECT_FALSE(is_stored(block));
}

TEST_F(GpuAbi, ACancelledSpillThatWaitsForLayersWakesTheLoop) {
  const Blocks blocks(random_, *pages_, 3, "cancel");
  auto options = sized<bh_gpu_job_options>();
  options.layers_at_once = 1;
  for (uint32_t ready = 0; ready < 3; ++ready) {
    bh_gpu_job* job = start(true, blocks.all, &options);
    for (uint32_t layer = 0; layer < ready; ++layer)
      EXPECT_OK(bh_gpu_job_layer_ready(job, layer, nullptr));
    EXPECT_ANSWER(bh_gpu_job_wait(job, 1), BUSY);
    EXPECT_FALSE(is_readable(0));
    EXPECT_OK(bh_gpu_job_cancel(job));
    EXPECT_TRUE(is_readable(20'000));
    bh_gpu_completion done{};
    size_t count = 0;
    for (int i = 0; count == 0 && is_readable(20'000) && i < 10; ++i)
      EXPECT_OK(bh_gpu_poll(transfers_, &done, 1, &count));
    EXPECT_EQ(done.job, job);
    EXPECT_OK(bh_gpu_job_layer_ready(job, ready, nullptr));  // it has ended: nothing happens
    EXPECT_EQ(end(job, 3), std::vector<std::string>(3, "CANCELLED"));
  }
}

TEST_F(GpuAbi, HandlesMayBeClosedInAnyOrder) {
  const Blocks blocks(random_, *pages_, 3, "order");
  std::array<int, 5> order = {0, 1, 2, 3, 4};
  do {
    SCOPED_TRACE(testing::PrintToString(order));
    bh_pool* pool = nullptr;
    bh_gpu* gpu = nullptr;
    bh_gpu_memory *memory = nullptr, *cache_memory = nullptr;
    bh_gpu_transfers* transfers = nullptr;
    bh_gpu_job* job = nullptr;
    Pages pages(random_, pages_->cache.layout);
    const Blocks of_order(random_, pages, 3, "order");
    ASSERT_OK(bh_pool_open(locator_.c_str(), BH_ANY_HOST, &pool));
    ASSERT_OK(bh_gpu_open_cpu(&gpu));
    ASSERT_OK(bh_gpu_register_pool(gpu, pool, 0, &memory));
    ASSERT_OK(bh_gpu_register_memory(gpu, pages.memory->data(), pages.memory->size_bytes(),
                                     &cache_memory));
    ASSERT_OK(bh_gpu_transfers_open(pool, gpu, memory, &pages.cache, nullptr, &transfers));
    ASSERT_OK(bh_gpu_spill(transfers, ns_, of_order.all.data(), 3, nullptr, &job));
    bool is_open = true;
    for (const int next : order) {
      if (next == 0) bh_pool_close(pool);
      if (next == 1) bh_gpu_close(gpu);
      if (next == 2) bh_gpu_memory_close(memory);
      if (next == 3) bh_gpu_transfers_close(transfers);
      if (next == 4) bh_gpu_job_free(std::exchange(job, nullptr));
      is_open = is_open && next != 0 && next != 3;
      if (job == nullptr) continue;
      std::array<bh_gpu_result, 3> results{};
      if (!is_open) EXPECT_OK(bh_gpu_job_results(job, results.data(), 3));
      EXPECT_OK(bh_gpu_job_wait(job, 20'000));
    }
    bh_gpu_memory_close(cache_memory);
    for (const bh_gpu_block& block : blocks.all) (void)bh_remove(pool_, ns_, block.key);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(GpuAbi, ALostGpuEndsJobsAndWakesTheLoop) {
  const Blocks blocks(random_, *pages_, 3, "lost");
  const size_t next = gate_->hold_next(100);
  bh_gpu_job* whole = start(true, blocks.all);
  gate_->lose_from(next);
  gate_->let_go();
  EXPECT_TRUE(is_readable(20'000));
  bh_gpu_completion done{};
  size_t count = 0;
  EXPECT_OK(bh_gpu_poll(transfers_, &done, 1, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(done.job, whole);
  EXPECT_EQ(end(whole, 3), std::vector<std::string>(3, "GPU_LOST"));
  for (const bh_gpu_block& block : blocks.all) EXPECT_FALSE(is_stored(block));
  bh_gpu_job* job = nullptr;
  EXPECT_ANSWER(bh_gpu_spill(transfers_, ns_, blocks.all.data(), 3, nullptr, &job), GPU_LOST);
  EXPECT_ANSWER(bh_gpu_synchronize(gpu_, nullptr), GPU_LOST);
}

TEST_F(GpuAbi, AWaitNoticesALostGpu) {
  const Blocks blocks(random_, *pages_, 3, "lost");
  const size_t next = gate_->hold_next(1);
  auto options = sized<bh_gpu_job_options>();
  options.layers_at_once = 1;
  bh_gpu_job* whole = start(true, blocks.all);
  bh_gpu_job* by_layers = start(true, {blocks.all[0]}, &options);
  std::thread loser([&] {
    gate_->lose_from(next);
    gate_->let_go();
  });
  EXPECT_EQ(end(whole, 3), std::vector<std::string>(3, "GPU_LOST"));
  loser.join();
  // It waits for a layer that cannot come; the report fails, and ends it.
  EXPECT_ANSWER(bh_gpu_job_layer_ready(by_layers, 0, nullptr), GPU_LOST);
  EXPECT_OK(bh_gpu_job_cancel(by_layers));
  EXPECT_EQ(end(by_layers, 1), std::vector<std::string>(1, "GPU_LOST"));
}

TEST_F(GpuAbi, ThreadsShareTransfers) {
  constexpr int kThreads = 3, kRounds = 40;
  std::atomic<bool> stop{false};
  std::atomic<int> reported{0};
  std::thread poller([&] {
    while (!stop) {
      std::array<bh_gpu_completion, 4> done{};
      size_t count = 0;
      EXPECT_OK(bh_gpu_poll(transfers_, done.data(), done.size(), &count));
      reported += static_cast<int>(count);
      (void)is_readable(1);
    }
  });
  std::vector<std::thread> threads;
  std::vector<Blocks> blocks;
  for (int t = 0; t < kThreads; ++t)
    blocks.emplace_back(random_, *pages_, kThreads, "threads " + std::to_string(t));
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const std::vector<bh_gpu_block> one = {blocks[t].all[0]};
        EXPECT_EQ(run(true, one), std::vector<std::string>(1, "OK"));
        EXPECT_EQ(run(false, {}), std::vector<std::string>{});
        EXPECT_OK(bh_remove(pool_, ns_, one[0].key));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  poller.join();
  EXPECT_LE(reported, 2 * kThreads * kRounds);  // others were freed first
}

TEST_F(GpuAbi, ASpilledBlockKeepsWhatIsStoredWithIt) {
  Blocks blocks(random_, *pages_, 3, "options");
  auto attributes = sized<bh_attributes>();
  attributes.priority = 7;
  auto options = sized<bh_put_options>();
  options.user_metadata = "parent";
  options.user_bytes = 6;
  options.attributes = &attributes;
  blocks.all[1].options = &options;
  ASSERT_EQ(run(true, blocks.all), kOk3);
  std::array<char, BH_USER_BYTES_MAX> metadata{};
  auto info = sized<bh_block_info>();
  ASSERT_OK(bh_describe(pool_, ns_, blocks.all[1].key, metadata.data(), &info));
  EXPECT_EQ(std::string(metadata.data(), info.user_bytes), "parent");
  EXPECT_EQ(info.attributes.priority, 7u);
  ASSERT_OK(bh_describe(pool_, ns_, blocks.all[0].key, metadata.data(), &info));
  EXPECT_EQ(info.user_bytes, 0u);
}

TEST_F(GpuAbi, StagedBlocksSayWhy) {
  bh_gpu_memory* memory = nullptr;
  bh_gpu_transfers* transfers = nullptr;
  ASSERT_OK(bh_gpu_register_pool(gpu_, pool_, 0, &memory));
  const Blocks blocks(random_, *pages_, 3, "staged");
  ASSERT_EQ(run(true, blocks.all), kOk3);
  // Another registration of the same pool, of which nothing is registered yet.
  ASSERT_OK(bh_gpu_transfers_open(pool_, gpu_, memory, &pages_->cache, nullptr, &transfers));
  bh_gpu_job* job = nullptr;
  ASSERT_OK(bh_gpu_restore(transfers, ns_, blocks.all.data(), 3, nullptr, &job));
  EXPECT_OK(bh_gpu_job_wait(job, 20'000));
  std::array<bh_gpu_result, 3> results{};
  EXPECT_OK(bh_gpu_job_results(job, results.data(), 3));
  EXPECT_EQ(results[0].staging, BH_GPU_STAGING_NOT_YET);
  bh_gpu_job_free(job);
  auto info = sized<bh_gpu_transfers_info>();
  EXPECT_OK(bh_gpu_transfers_get_info(transfers, &info));
  EXPECT_GE(info.not_yet_blocks, 1u);
  EXPECT_EQ(info.straight_blocks + info.not_yet_blocks, 3u);
  EXPECT_STREQ(info.refusal, "");
  bh_gpu_transfers_close(transfers);
  bh_gpu_memory_close(memory);

  ns_ = open_namespace(pages_->cache.layout, BH_PROFILE_FAST);
  const std::vector<std::byte> zeros(payload_bytes(pages_->cache.layout, blocks.all[0].tokens));
  const bh_const_iovec piece = {zeros.data(), zeros.size()};
  ASSERT_OK(bh_put(pool_, ns_, blocks.all[0].key, &piece, 1));
  job = start(false, {blocks.all[0]});
  EXPECT_OK(bh_gpu_job_wait(job, 20'000));
  EXPECT_OK(bh_gpu_job_results(job, results.data(), 1));
  EXPECT_EQ(results[0].staging, BH_GPU_STAGING_COMPRESSED);
  EXPECT_EQ(end(job, 1), std::vector<std::string>(1, "OK"));
  EXPECT_EQ(pages_->payload(blocks.all[0]), zeros);
  info = sized<bh_gpu_transfers_info>();
  EXPECT_OK(bh_gpu_transfers_get_info(transfers_, &info));
  EXPECT_EQ(info.compressed_blocks, 1u);
}

TEST_F(GpuAbi, TheRestOfAPoolIsRegisteredInTheBackground) {
  bh_gpu* gpu = nullptr;
  bh_gpu_memory* memory = nullptr;
  ASSERT_OK(bh_gpu_open_cpu(&gpu));
  ASSERT_OK(bh_gpu_register_pool(gpu, pool_, 2 << 20, &memory));
  auto info = sized<bh_gpu_memory_info>();
  EXPECT_OK(bh_gpu_memory_get_info(memory, &info));
  EXPECT_EQ(info.registered_bytes, 0u);
  EXPECT_OK(bh_gpu_memory_register_rest(memory));
  for (int i = 0; info.registered_bytes != info.size_bytes && i < 2000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_OK(bh_gpu_memory_get_info(memory, &info));
  }
  EXPECT_EQ(info.registered_bytes, info.size_bytes);
  EXPECT_GE(info.size_bytes, uint64_t{32} << 20);
  bh_gpu_memory_close(memory);
  bh_gpu_close(gpu);
}

TEST_F(GpuAbi, ARefusedChunkIsTriedAgainOnRequest) {
  bh_gpu limited = {gpu::Device::cpu({.most_registered_bytes = 4 << 20})};
  bh_gpu_memory *first = nullptr, *second = nullptr;
  ASSERT_OK(bh_gpu_register_pool(&limited, pool_, 2 << 20, &first));
  ASSERT_OK(bh_gpu_register_pool(&limited, pool_, 2 << 20, &second));
  EXPECT_OK(bh_gpu_memory_ensure(first, 0, 4 << 20));
  EXPECT_ANSWER(bh_gpu_memory_ensure(second, 0, 1), LIMIT_REACHED);
  bh_gpu_memory_close(first);
  EXPECT_ANSWER(bh_gpu_memory_ensure(second, 0, 1), LIMIT_REACHED);
  EXPECT_OK(bh_gpu_memory_retry(second));
  EXPECT_OK(bh_gpu_memory_ensure(second, 0, 1));
  bh_gpu_memory_close(second);
}

}  // namespace
}  // namespace bowhead::test
