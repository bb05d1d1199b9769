/* SPDX-License-Identifier: MIT */
/* kernel_copy: any number of bytes, any alignment, below and above the size from which it bypasses caches. */
#include "kernel/kernel.h"

#include "base/mem.h"
#include "harness/test.h"
#include "kernel/simd.h"

#include <string.h>

enum {
    LARGE_BYTES = 9 << 20,
    GUARD_BYTES = 64
};

static void check_copy(unsigned char *dst, const unsigned char *src, size_t bytes)
{
    memset(dst - GUARD_BYTES, 0x5a, GUARD_BYTES);
    memset(dst + bytes, 0x5a, GUARD_BYTES);
    kernel_copy(dst, src, bytes);
    CHECK_BYTES(dst, src, bytes);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        CHECK(dst[-(ptrdiff_t)i - 1] == 0x5a && dst[bytes + i] == 0x5a);
    }
}

TEST(copies_every_byte_and_no_other)
{
    struct test_random random = test_random_begin(1);
    unsigned char *src = mem_alloc(LARGE_BYTES + 2 * GUARD_BYTES);
    unsigned char *dst = mem_alloc(LARGE_BYTES + 4 * GUARD_BYTES);
    if (!src || !dst) {
        test_failed(__FILE__, __LINE__, "no memory");
    } else {
        for (size_t i = 0; i < LARGE_BYTES + 2 * GUARD_BYTES; i++) {
            src[i] = (unsigned char)test_random_u64(&random);
        }
        for (size_t bytes = 0; bytes < 300; bytes++) {
            check_copy(dst + GUARD_BYTES + test_random_below(&random, 64),
                       src + test_random_below(&random, 64), bytes);
        }
        for (size_t shift = 0; shift < 64; shift += 9) {
            check_copy(dst + GUARD_BYTES + shift, src + 63 - shift, LARGE_BYTES - shift);
        }
    }
    mem_free(src);
    mem_free(dst);
}

TEST(nothing_and_onto_itself)
{
    unsigned char bytes[3] = {1, 2, 3};
    kernel_copy(NULL, NULL, 0);
    kernel_copy(bytes, bytes, sizeof(bytes));
    CHECK_BYTES(bytes, ((unsigned char[]){1, 2, 3}), 3);
}

/* Copies that are ended together: all places get the bytes, whatever their alignment. */
TEST(streams_reach_all_places)
{
    enum {
        BYTES = 5000
    };
    const struct simd_table *in_use = simd_table();
    static unsigned char source[BYTES];
    static unsigned char places[3][BYTES + 64];
    for (size_t i = 0; i < BYTES; i++) {
        source[i] = (unsigned char)(i * 7 + i / 251);
    }
    for (size_t variant = 0; simd_variant(variant); variant++) {
        simd_table_set(simd_variant(variant));
        for (size_t shift = 0; shift < 64; shift += 7) {
            memset(places, 0, sizeof places);
            for (size_t i = 0; i < 3; i++) {
                kernel_stream(places[i] + shift + i, source + i, BYTES - shift - i);
            }
            kernel_stream_end();
            for (size_t i = 0; i < 3; i++) {
                CHECK(memcmp(places[i] + shift + i, source + i, BYTES - shift - i) == 0);
                CHECK_INT(places[i][BYTES], 0);
            }
        }
    }
    simd_table_set(in_use);
}
