// SPDX-License-Identifier: Apache-2.0
// Reads, writes and checks a device DAX. Tests and qemu/run --probe compile it and run it in a
// guest.
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 2 << 20, CHECKED_BYTES = 1 << 16 };

static int fail(const char* what) {
  perror(what);
  return 1;
}

// Maps the 2 MiB with `offset` of a device; NULL if that fails.
static uint8_t* map(const char* path, size_t offset) {
  const int file = open(path, O_RDWR);
  if (file < 0) {
    return NULL;
  }
  void* start = mmap(NULL, ALIGNMENT, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                     (off_t)(offset / ALIGNMENT * ALIGNMENT));
  close(file);
  return start == MAP_FAILED ? NULL : start;
}

static void copy_plain(void* to, const void* from) {
  for (size_t i = 0; i < CHECKED_BYTES / 8; ++i) {
    ((volatile uint64_t*)to)[i] = ((const volatile uint64_t*)from)[i];
  }
}

static void copy_string(void* to, const void* from) {
  size_t count = CHECKED_BYTES;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
}

static void copy_sse2(void* to, const void* from) {
  for (size_t i = 0; i < CHECKED_BYTES / 16; ++i) {
    _mm_stream_si128((__m128i*)to + i, _mm_load_si128((const __m128i*)from + i));
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) static void copy_avx2(void* to, const void* from) {
  for (size_t i = 0; i < CHECKED_BYTES / 32; ++i) {
    _mm256_store_si256((__m256i*)to + i, _mm256_load_si256((const __m256i*)from + i));
  }
}

__attribute__((target("avx512f"))) static void copy_avx512(void* to, const void* from) {
  for (size_t i = 0; i < CHECKED_BYTES / 64; ++i) {
    _mm512_store_si512((__m512i*)to + i, _mm512_load_si512((const __m512i*)from + i));
  }
}

// Copies with each kind of instruction that the processor has, to the device and back.
static int check(uint8_t* memory) {
  static _Alignas(64) uint8_t source[CHECKED_BYTES];
  static _Alignas(64) uint8_t target[CHECKED_BYTES];
  const struct {
    const char* name;
    int is_supported;
    void (*copy)(void*, const void*);
  } kinds[] = {
      {"8 bytes", 1, copy_plain},
      {"rep movsb", 1, copy_string},
      {"SSE2", 1, copy_sse2},
      {"AVX2", __builtin_cpu_supports("avx2"), copy_avx2},
      {"AVX-512", __builtin_cpu_supports("avx512f"), copy_avx512},
  };
  for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; ++kind) {
    if (!kinds[kind].is_supported) {
      continue;
    }
    printf("%s\n", kinds[kind].name);  // the last one named is the one that kills
    fflush(stdout);
    for (size_t i = 0; i < CHECKED_BYTES; ++i) {
      source[i] = (uint8_t)(i * 31 + kind);
    }
    kinds[kind].copy(memory, source);
    kinds[kind].copy(target, memory);
    if (memcmp(source, target, CHECKED_BYTES) != 0) {
      printf("wrong bytes\n");
      return 1;
    }
  }
  return 0;
}

int main(int count, char** arguments) {
  const char* action = count > 2 ? arguments[1] : "";
  const size_t offset = count > 3 ? strtoull(arguments[3], NULL, 0) : 0;
  if (strcmp(action, "check") != 0 && count != 5) {
    fprintf(stderr,
            "Usage: dax check DEVICE\n"
            "       dax write DEVICE OFFSET TEXT\n"
            "       dax read DEVICE OFFSET LENGTH\n"
            "       dax add DEVICE OFFSET COUNT  # atomically adds 1, COUNT times\n");
    return 2;
  }
  uint8_t* memory = map(arguments[2], offset);
  if (memory == NULL) {
    return fail(arguments[2]);
  }
  if (strcmp(action, "check") == 0) {
    return check(memory);
  }
  uint8_t* place = memory + offset % ALIGNMENT;
  if (strcmp(action, "add") == 0) {
    for (size_t left = strtoull(arguments[4], NULL, 0); left > 0; --left) {
      __atomic_fetch_add((uint64_t*)place, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
  }
  const size_t length =
      strcmp(action, "read") == 0 ? strtoull(arguments[4], NULL, 0) : strlen(arguments[4]);
  if (offset % ALIGNMENT + length > ALIGNMENT) {
    fprintf(stderr, "dax: the range crosses a border of 2 MiB\n");
    return 2;
  }
  if (strcmp(action, "read") == 0) {
    fwrite(place, 1, length, stdout);
  } else {
    memcpy(place, arguments[4], length);
  }
  return 0;
}
