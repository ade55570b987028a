/* SPDX-License-Identifier: Apache-2.0 */
/* A C11 program that uses the GPU part of libbowhead.so through its header only: blocks of a paged
 * cache are spilled and restored, on the CPU device. */
#define _POSIX_C_SOURCE 200809L

#include <bowhead/bowhead_gpu.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  LAYERS = 3,
  HEADS = 2,
  CHANNELS = 16,
  PAGE_TOKENS = 4,
  PAGES = 10,
  BLOCKS = 2,
  BLOCK_TOKENS = 12,
  ROW_BYTES = 2 * CHANNELS,
  PAGE_BYTES = PAGE_TOKENS * HEADS * ROW_BYTES,
  PART_BYTES = PAGES * PAGE_BYTES,
  CACHE_BYTES = 2 * LAYERS * PART_BYTES
};

static char locator[64];

static void remove_pool(void) { bh_pool_destroy(locator, 1); }

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #condition, \
              bh_last_error());                                                               \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

/* [layer][part][page][token][head] */
static void describe(bh_gpu_part* parts, unsigned char* base) {
  for (int i = 0; i < 2 * LAYERS; ++i) {
    parts[i].base = base + i * PART_BYTES;
    parts[i].page_stride_bytes = PAGE_BYTES;
    parts[i].token_stride_bytes = HEADS * ROW_BYTES;
    parts[i].head_stride_bytes = ROW_BYTES;
  }
}

static bh_pool* pool;
static bh_namespace_id ns;
static bh_gpu* gpu;
static bh_gpu_memory *memory, *cache_memory;
static bh_gpu_transfers* transfers;
static unsigned char* cache;

static void open_all(void) {
  const size_t whole_pages_bytes = (CACHE_BYTES + 4095) / 4096 * 4096;
  bh_create_options create = {.struct_bytes = sizeof create, .size_bytes = 32u << 20};
  bh_namespace_options format = {.struct_bytes = sizeof format};
  bh_gpu_info info = {.struct_bytes = sizeof info};
  bh_gpu_part parts[2 * LAYERS];
  bh_gpu_cache described = {.struct_bytes = sizeof described};

  CHECK(bh_pool_create(locator, &create) == BH_OK);
  atexit(remove_pool);
  format.layout.number_format = BH_NUMBER_BF16;
  format.layout.parts = 2;
  format.layout.layers = LAYERS;
  format.layout.heads = HEADS;
  format.layout.key_channels = format.layout.value_channels = CHANNELS;
  CHECK(bh_pool_open(locator, BH_ANY_HOST, &pool) == BH_OK);
  CHECK(bh_namespace_open_with(pool, "gpu", "", &format, &ns) == BH_OK);

  CHECK(bh_gpu_open_cpu(&gpu) == BH_OK);
  CHECK(bh_gpu_get_info(gpu, &info) == BH_OK);
  CHECK(info.is_cpu == 1 && strcmp(info.name, "cpu") == 0);
  CHECK(bh_gpu_register_pool(gpu, pool, 0, &memory) == BH_OK);
  CHECK(bh_gpu_memory_register_rest(memory) == BH_OK);
  CHECK(posix_memalign((void**)&cache, 4096, whole_pages_bytes) == 0);
  CHECK(bh_gpu_register_memory(gpu, cache, whole_pages_bytes, &cache_memory) == BH_OK);
  describe(parts, cache);
  described.page_tokens = PAGE_TOKENS;
  described.pages = PAGES;
  described.parts = parts;
  described.part_count = 2 * LAYERS;
  described.layout = format.layout;
  CHECK(bh_gpu_transfers_open(pool, gpu, memory, &described, NULL, &transfers) == BH_OK);
}

static void close_all(void) {
  bh_gpu_transfers_close(transfers);
  bh_gpu_memory_close(cache_memory);
  bh_gpu_memory_close(memory);
  bh_gpu_close(gpu);
  bh_pool_close(pool);
  free(cache);
}

/* Waits as an event loop does. */
static void finish(bh_gpu_job* job) {
  bh_gpu_completion done = {0};
  bh_gpu_result results[BLOCKS];
  size_t count = 0;
  while (count == 0) {
    struct pollfd readable = {bh_gpu_transfers_fd(transfers), POLLIN, 0};
    CHECK(poll(&readable, 1, 20000) == 1);
    CHECK(bh_gpu_poll(transfers, &done, 1, &count) == BH_OK);
  }
  CHECK(done.job == job && done.failed == 0);
  CHECK(bh_gpu_job_results(job, results, BLOCKS) == BH_OK);
  for (int i = 0; i < BLOCKS; ++i) CHECK(results[i].status == BH_OK);
  bh_gpu_job_free(job);
}

int main(void) {
  /* The second sequence has its tokens in other pages. */
  const uint32_t spilled[] = {7, 1, 8, 2, 5, 0}, restored[] = {3, 9, 4, 6, 0, 1};
  const char* keys[BLOCKS] = {"head", "tail"};
  bh_gpu_block blocks[BLOCKS];
  bh_gpu_job* job = NULL;
  unsigned char* before = malloc(CACHE_BYTES);

  snprintf(locator, sizeof locator, "shm:bowhead-gpu-c-program-%ld", (long)getpid());
  open_all();
  CHECK(before != NULL);
  for (int i = 0; i < CACHE_BYTES; ++i) cache[i] = (unsigned char)(i * 31 + i / 251);
  memcpy(before, cache, CACHE_BYTES);
  for (int i = 0; i < BLOCKS; ++i) {
    const bh_gpu_block block = {{keys[i], 4}, spilled, 6, (uint32_t)(i * BLOCK_TOKENS),
                                BLOCK_TOKENS, NULL};
    blocks[i] = block;
  }
  CHECK(bh_gpu_spill(transfers, ns, blocks, BLOCKS, NULL, &job) == BH_OK);
  finish(job);
  for (int i = 0; i < BLOCKS; ++i) blocks[i].pages = restored;
  CHECK(bh_gpu_restore(transfers, ns, blocks, BLOCKS, NULL, &job) == BH_OK);
  finish(job);
  for (int part = 0; part < 2 * LAYERS; ++part) {
    for (int i = 0; i < BLOCKS * BLOCK_TOKENS / PAGE_TOKENS; ++i) {
      CHECK(memcmp(cache + part * PART_BYTES + restored[i] * PAGE_BYTES,
                   before + part * PART_BYTES + spilled[i] * PAGE_BYTES, PAGE_BYTES) == 0);
    }
  }
  close_all();
  free(before);
  puts("all checks passed");
  return 0;
}
