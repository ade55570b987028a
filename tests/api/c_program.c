/* SPDX-License-Identifier: Apache-2.0 */
/* A C11 program that uses libbowhead.so through its header only: one process puts blocks, another
 * gets them, by copy, one by one and in a batch, and by lease. */
#define _POSIX_C_SOURCE 200809L

#include <bowhead/bowhead.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 100000, BLOCK_COUNT = 8, KEY_BYTES = 24 };

static char locator[64];
static pid_t owner; /* of the pool: the process that removes it, also after a failed check */

static void remove_pool(void) {
  if (getpid() == owner) bh_pool_destroy(locator, 1);
}

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #condition, \
              bh_last_error());                                                               \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

static bh_key make_key(char* text, int number) {
  const bh_key key = {text, KEY_BYTES};
  memset(text, 0, KEY_BYTES);
  snprintf(text, KEY_BYTES, "block-%d", number);
  return key;
}

static void fill(unsigned char* bytes, int number) {
  for (size_t i = 0; i < BLOCK_BYTES; ++i) bytes[i] = (unsigned char)(i * 31u + (size_t)number);
}

static bh_pool* open_pool(bh_namespace_id* ns) {
  bh_pool* pool = NULL;
  CHECK(bh_pool_open(locator, 0, &pool) == BH_OK);
  CHECK(bh_namespace_open(pool, "c-program", "u8[100000]", ns) == BH_OK);
  return pool;
}

/* Even blocks by put in two parts, odd ones in place. */
static void writer(void) {
  bh_namespace_id ns;
  bh_pool* pool = open_pool(&ns);
  unsigned char* bytes = malloc(BLOCK_BYTES);
  char text[KEY_BYTES];
  CHECK(bytes != NULL);
  for (int i = 0; i < BLOCK_COUNT; ++i) {
    fill(bytes, i);
    if (i % 2 == 0) {
      const bh_const_iovec pieces[2] = {{bytes, 1000}, {bytes + 1000, BLOCK_BYTES - 1000}};
      CHECK(bh_put(pool, ns, make_key(text, i), pieces, 2) == BH_OK);
      CHECK(bh_put(pool, ns, make_key(text, i), pieces, 2) == BH_OK); /* present: success */
    } else {
      bh_reservation room = {.struct_bytes = sizeof room};
      CHECK(bh_reserve(pool, ns, make_key(text, i), BLOCK_BYTES, &room) == BH_OK);
      CHECK(room.present == 0 && room.length_bytes == BLOCK_BYTES);
      memcpy(room.data, bytes, BLOCK_BYTES);
      CHECK((i % 4 == 1 ? bh_commit(pool, &room) : bh_commit_unverified(pool, &room)) == BH_OK);
      CHECK(bh_reserve(pool, ns, make_key(text, i), BLOCK_BYTES, &room) == BH_OK);
      CHECK(room.present == 1);
    }
  }
  bh_reservation room = {.struct_bytes = sizeof room};
  CHECK(bh_reserve(pool, ns, make_key(text, 99), BLOCK_BYTES, &room) == BH_OK);
  CHECK(bh_abort(pool, &room) == BH_OK);
  free(bytes);
  bh_pool_close(pool);
  exit(0);
}

static void read_by_copy(bh_pool* pool, bh_namespace_id ns) {
  unsigned char* expected = malloc(BLOCK_BYTES);
  unsigned char* got = malloc(BLOCK_BYTES);
  char text[KEY_BYTES];
  CHECK(expected != NULL && got != NULL);
  for (int i = 0; i < BLOCK_COUNT; ++i) {
    uint64_t length = 0;
    const bh_iovec pieces[2] = {{got, 77}, {got + 77, BLOCK_BYTES - 77}};
    memset(got, 0, BLOCK_BYTES);
    CHECK(bh_get(pool, ns, make_key(text, i), pieces, 2, &length) == BH_OK);
    fill(expected, i);
    CHECK(length == BLOCK_BYTES && memcmp(got, expected, BLOCK_BYTES) == 0);
    length = 0;
    CHECK(bh_get(pool, ns, make_key(text, i), pieces, 1, &length) == BH_BUFFER_TOO_SMALL);
    CHECK(length == BLOCK_BYTES);
  }
  uint64_t length = 4711;
  const bh_iovec whole = {got, BLOCK_BYTES};
  CHECK(bh_get(pool, ns, make_key(text, 99), &whole, 1, &length) == BH_NOT_FOUND);
  CHECK(length == 4711);
  free(expected);
  free(got);
}

static void read_in_a_batch(bh_pool* pool, bh_namespace_id ns) {
  unsigned char* expected = malloc(BLOCK_BYTES);
  unsigned char* got = malloc((size_t)(BLOCK_COUNT + 1) * BLOCK_BYTES);
  char texts[BLOCK_COUNT + 1][KEY_BYTES];
  bh_iovec buffers[BLOCK_COUNT + 1];
  bh_get_item items[BLOCK_COUNT + 1];
  CHECK(expected != NULL && got != NULL);
  for (int i = 0; i <= BLOCK_COUNT; ++i) {
    buffers[i] = (bh_iovec){got + (size_t)i * BLOCK_BYTES, BLOCK_BYTES};
    items[i] =
        (bh_get_item){.key = make_key(texts[i], i), .buffers = &buffers[i], .buffer_count = 1};
  }
  CHECK(bh_get_batch(pool, ns, items, BLOCK_COUNT + 1) == BH_OK);
  for (int i = 0; i < BLOCK_COUNT; ++i) {
    fill(expected, i);
    CHECK(items[i].status == BH_OK && items[i].length_bytes == BLOCK_BYTES);
    CHECK(memcmp(buffers[i].data, expected, BLOCK_BYTES) == 0);
  }
  CHECK(items[BLOCK_COUNT].status == BH_NOT_FOUND);
  free(expected);
  free(got);
}

static void read_by_lease(bh_pool* pool, bh_namespace_id ns) {
  const void* base = NULL;
  uint64_t mapped_bytes = 0;
  char text[KEY_BYTES];
  unsigned char* expected = malloc(BLOCK_BYTES);
  bh_lease lease = {.struct_bytes = sizeof lease};
  CHECK(expected != NULL);
  fill(expected, 3);
  CHECK(bh_pool_mapping(pool, &base, &mapped_bytes) == BH_OK);
  CHECK(bh_acquire(pool, ns, make_key(text, 3), 60000, &lease) == BH_OK);
  CHECK(lease.length_bytes == BLOCK_BYTES && memcmp(lease.data, expected, BLOCK_BYTES) == 0);
  CHECK(lease.offset + lease.length_bytes <= mapped_bytes);
  CHECK((const char*)base + lease.offset == (const char*)lease.data);
  CHECK(bh_release(pool, &lease) == BH_OK);
  CHECK(bh_release(pool, &lease) == BH_CLOSED);

  CHECK(bh_acquire(pool, ns, make_key(text, 99), 1000, &lease) == BH_NOT_FOUND);
  free(expected);
}

/* A block that is removed after its lease has expired. */
static void let_a_lease_lapse(bh_pool* pool, bh_namespace_id ns) {
  const struct timespec pause = {0, 50000000};
  char text[KEY_BYTES];
  bh_lease lease = {.struct_bytes = sizeof lease};
  CHECK(bh_acquire(pool, ns, make_key(text, 7), 1, &lease) == BH_OK);
  nanosleep(&pause, NULL);
  CHECK(bh_remove(pool, ns, make_key(text, 7)) == BH_OK);
  CHECK(bh_release(pool, &lease) == BH_LAPSED);
  CHECK(bh_release(pool, &lease) == BH_CLOSED);
}

static void look_up(bh_pool* pool, bh_namespace_id ns) {
  char texts[BLOCK_COUNT + 1][KEY_BYTES];
  bh_key keys[BLOCK_COUNT + 1];
  uint8_t present[BLOCK_COUNT + 1];
  size_t length = 0;
  for (int i = 0; i <= BLOCK_COUNT; ++i) keys[i] = make_key(texts[i], i);
  CHECK(bh_longest_prefix(pool, ns, keys, BLOCK_COUNT + 1, &length) == BH_OK);
  CHECK(length == BLOCK_COUNT);
  CHECK(bh_touch(pool, ns, keys, BLOCK_COUNT + 1) == BH_OK);
  CHECK(bh_remove(pool, ns, keys[5]) == BH_OK);
  CHECK(bh_remove(pool, ns, keys[5]) == BH_NOT_FOUND);
  CHECK(bh_exists(pool, ns, keys, BLOCK_COUNT + 1, present) == BH_OK);
  for (int i = 0; i <= BLOCK_COUNT; ++i) CHECK(present[i] == (i != 5 && i != BLOCK_COUNT));
  CHECK(bh_longest_prefix(pool, ns, keys, BLOCK_COUNT + 1, &length) == BH_OK);
  CHECK(length == 5);

  bh_namespace_id other;
  CHECK(bh_namespace_open(pool, "other", "u8[100000]", &other) == BH_OK);
  CHECK(bh_exists(pool, other, keys, BLOCK_COUNT, present) == BH_OK);
  CHECK(present[0] == 0);
  CHECK(bh_namespace_open(pool, "other", "fp16", &other) == BH_NAMESPACE_MISMATCH);
}

/* The argument is the locator; without one, the pool lies in shared memory. */
int main(int count, char** arguments) {
  CHECK(bh_abi_version() == BH_ABI_VERSION);
  CHECK(strcmp(bh_status_name(BH_NO_SPACE), "NO_SPACE") == 0);
  snprintf(locator, sizeof locator, "shm:bowhead-c-program-%ld", (long)getpid());
  if (count > 1) snprintf(locator, sizeof locator, "%s", arguments[1]);

  bh_create_options options = {0};
  options.struct_bytes = sizeof options;
  options.size_bytes = 64u << 20;
  CHECK(bh_pool_create(locator, &options) == BH_OK);
  owner = getpid();
  atexit(remove_pool);
  CHECK(bh_pool_create(locator, &options) == BH_POOL_EXISTS);
  CHECK(strstr(bh_last_error(), locator + 4) != NULL);

  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) writer();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

  bh_namespace_id ns;
  bh_pool* pool = open_pool(&ns);
  read_by_copy(pool, ns);
  read_in_a_batch(pool, ns);
  read_by_lease(pool, ns);
  look_up(pool, ns);
  let_a_lease_lapse(pool, ns);
  CHECK(bh_pool_destroy(locator, 0) == BH_IN_USE);
  bh_pool_close(pool);
  CHECK(bh_pool_destroy(locator, 0) == BH_OK);
  CHECK(bh_pool_destroy(locator, 0) == BH_NO_SUCH_POOL);
  puts("all checks passed");
  return 0;
}
