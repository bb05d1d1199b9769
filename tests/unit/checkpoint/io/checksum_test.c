/* SPDX-License-Identifier: MIT */
/* Checksums: the published values, and the same sums however the bytes come. */
#include "checkpoint/io/checksum.h"

#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

/* XXH3 of 64 bits with seed 0. They are part of files: another library or version has to give the same. */
TEST(known_values)
{
    CHECK(checksum_block("", 0) == 0x2d06800538d394c2u);
    CHECK(checksum_block("a", 1) == 0xe6c632b61e964e1fu);
    CHECK(checksum_block("abc", 3) == 0x78af5f94892f3950u);
}

TEST(counts_blocks)
{
    CHECK_INT(checksum_n_blocks(0), 0);
    CHECK_INT(checksum_n_blocks(1), 1);
    CHECK_INT(checksum_n_blocks(CHECKSUM_BLOCK_BYTES), 1);
    CHECK_INT(checksum_n_blocks(CHECKSUM_BLOCK_BYTES + 1), 2);
    CHECK(checksum_n_blocks(UINT64_MAX) == (uint64_t)1 << 44);
}

/* Bytes in portions give the sums of whole blocks. */
TEST(portions_of_any_size)
{
    enum {
        N_BLOCKS = 3
    };
    const size_t n_bytes = N_BLOCKS * CHECKSUM_BLOCK_BYTES + 12345;
    unsigned char *bytes = malloc(n_bytes);
    REQUIRE(bytes);
    struct test_random random = test_random_begin(1);
    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] = (unsigned char)test_random_u64(&random);
    }
    for (int round = 0; round < 6 && !test_has_failed(); round++) {
        struct checksums sums = {0};
        const uint64_t largest = round == 0 ? n_bytes : (uint64_t)1 << (23 - 2 * round);
        for (size_t at = 0; at < n_bytes;) {
            size_t portion = round == 0 ? n_bytes : (size_t)test_random_below(&random, largest) + 1;
            portion = portion < n_bytes - at ? portion : n_bytes - at;
            REQUIRE_OK(checksums_add(&sums, bytes + at, portion));
            at += portion;
        }
        CHECK_INT(sums.n_sums, N_BLOCKS);
        checksums_end(&sums);
        CHECK_INT(sums.n_sums, N_BLOCKS + 1);
        for (size_t i = 0; i < sums.n_sums; i++) {
            size_t begin = i * CHECKSUM_BLOCK_BYTES;
            size_t left = n_bytes - begin;
            CHECK(sums.sums[i] ==
                  checksum_block(bytes + begin, left < CHECKSUM_BLOCK_BYTES ? left : CHECKSUM_BLOCK_BYTES));
        }
        checksums_free(&sums);
    }
    free(bytes);
}

TEST(nothing_and_whole_blocks_have_no_rest)
{
    struct checksums sums = {0};
    checksums_end(&sums);
    CHECK_INT(sums.n_sums, 0);
    CHECK_OK(checksums_add(&sums, NULL, 0));
    checksums_end(&sums);
    CHECK_INT(sums.n_sums, 0);
    char *block = calloc(1, CHECKSUM_BLOCK_BYTES);
    REQUIRE(block);
    CHECK_OK(checksums_add(&sums, block, CHECKSUM_BLOCK_BYTES));
    CHECK_INT(sums.n_sums, 1);
    checksums_end(&sums);
    CHECK_INT(sums.n_sums, 1);
    free(block);
    checksums_free(&sums);
}

TEST(every_changed_bit_is_seen)
{
    unsigned char bytes[97] = {0};
    uint64_t sum = checksum_block(bytes, sizeof bytes);
    for (size_t i = 0; i < 8 * sizeof bytes; i++) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK(checksum_block(bytes, sizeof bytes) != sum);
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
}

static shoal_status sum_some(void *context)
{
    struct checksums sums = {0};
    shoal_status status = checksums_add(&sums, context, 5);
    checksums_end(&sums);
    checksums_free(&sums);
    return status;
}

TEST(survives_failing_allocations)
{
    char bytes[5] = "text";
    CHECK(test_sweep_allocations(sum_some, bytes) >= 1);
}
