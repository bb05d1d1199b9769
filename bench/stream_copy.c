/* SPDX-License-Identifier: MIT */
/*
 * Do stores that bypass the cache copy faster than memcpy on this machine? What docs/design/kernels.md says
 * about streaming was measured with this program, which needs nothing of the library:
 *
 *     cc -O2 -D_GNU_SOURCE -o stream_copy bench/stream_copy.c && ./stream_copy
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void copy_function(char *dst, const char *src, size_t bytes);

static void copy_memcpy(char *dst, const char *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#if defined(__aarch64__)

#include <arm_neon.h>

struct line {
    uint8x16_t part[4];
};

static inline struct line load_line(const char *src)
{
    const uint8_t *bytes = (const uint8_t *)src;
    return (struct line){{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
}

static inline void store_line(char *dst, struct line line)
{
    uint8_t *bytes = (uint8_t *)dst;
    vst1q_u8(bytes, line.part[0]);
    vst1q_u8(bytes + 16, line.part[1]);
    vst1q_u8(bytes + 32, line.part[2]);
    vst1q_u8(bytes + 48, line.part[3]);
}

static void copy_cached(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        store_line(dst + i, load_line(src + i));
    }
}

static void copy_streamed(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        struct line line = load_line(src + i);
        __asm__ volatile("stnp %q0, %q1, [%4]\n\tstnp %q2, %q3, [%4, #32]"
                         :
                         : "w"(line.part[0]), "w"(line.part[1]), "w"(line.part[2]), "w"(line.part[3]),
                           "r"(dst + i)
                         : "memory");
    }
}

/* DC ZVA claims a line without reading it; lines of 64 bytes are assumed. */
static void copy_claimed(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        __asm__ volatile("dc zva, %0" : : "r"(dst + i) : "memory");
        store_line(dst + i, load_line(src + i));
    }
}

static const struct {
    const char *name;
    copy_function *copy;
} ways[] = {
    {"memcpy", copy_memcpy}, {"stp", copy_cached}, {"stnp", copy_streamed}, {"dc zva + stp", copy_claimed}};

#elif defined(__x86_64__)

#include <emmintrin.h>

static void copy_streamed(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 16) {
        _mm_stream_si128((__m128i *)(void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
    }
    _mm_sfence();
}

static const struct {
    const char *name;
    copy_function *copy;
} ways[] = {{"memcpy", copy_memcpy}, {"movntdq", copy_streamed}};

#endif

enum {
    WAY_COUNT = sizeof(ways) / sizeof(ways[0]),
    ROUNDS = 20,
    MOST_BYTES = 96 << 20
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void measure(char *dst, const char *src, size_t bytes)
{
    double best[WAY_COUNT];
    int repeats = bytes < (1 << 20) ? 50 : 1;
    for (int round = 0; round < ROUNDS * WAY_COUNT; round++) {
        int way = round % WAY_COUNT;
        double begin = now();
        for (int i = 0; i < repeats; i++) {
            ways[way].copy(dst, src, bytes);
        }
        double seconds = (now() - begin) / repeats;
        best[way] = round < WAY_COUNT || seconds < best[way] ? seconds : best[way];
    }
    for (int way = 0; way < WAY_COUNT; way++) {
        printf("%9zu bytes %-12s %6.1f GB/s\n", bytes, ways[way].name, 2 * (double)bytes / best[way] * 1e-9);
    }
}

int main(void)
{
    char *src = aligned_alloc(4096, MOST_BYTES);
    char *dst = aligned_alloc(4096, MOST_BYTES);
    if (!src || !dst) {
        return 1;
    }
    memset(src, 1, MOST_BYTES);
    memset(dst, 2, MOST_BYTES);
    measure(dst, src, 256 << 10);
    measure(dst, src, 8 << 20);
    measure(dst, src, MOST_BYTES);
    free(src);
    free(dst);
    return 0;
}
