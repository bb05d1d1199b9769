/* SPDX-License-Identifier: MIT */
/*
 * kernel_pack and kernel_unpack against their definitions, element by element: uneven rows, ranks that get
 * nothing, empty tensors, every pair of dtypes, any alignment, a range of rows, every vector table.
 */
#include "kernel/kernel.h"

#include "base/mem.h"
#include "harness/test.h"
#include "kernel/simd.h"
#include "tensor/dtype.h"

#include <stdint.h>
#include <string.h>

enum {
    MAX_ITEMS = 5,
    MAX_ITEM_ELEMS = 400,
    MAX_PACKED_ELEMS = 40000,
    MAX_ELEMENT_BYTES = 16,
    MAX_SHIFT = 7
};

static unsigned char item_buffers[MAX_ITEMS][MAX_ITEM_ELEMS * MAX_ELEMENT_BYTES + MAX_SHIFT];
static unsigned char packed[MAX_PACKED_ELEMS * MAX_ELEMENT_BYTES + MAX_SHIFT];
static unsigned char expected[MAX_PACKED_ELEMS * MAX_ELEMENT_BYTES];

TEST(the_documented_example)
{
    const float g0[6] = {0, 1, 2, 3, 4, 5};
    const float g1[2] = {10, 11};
    const float g2[1] = {20};
    const struct kernel_pack_item items[3] = {{.data = address_of(g0), .rows = 3, .row_elems = 2},
                                              {.data = address_of(g1), .rows = 2, .row_elems = 1},
                                              {.data = address_of(g2), .rows = 1, .row_elems = 1}};
    float rows[12];
    CHECK_INT(kernel_pack_row_elems(items, 3, 2), 6);
    memset(rows, 0xff, sizeof(rows));
    kernel_pack(SHOAL_F32, address_of(rows), SHOAL_F32, items, 3, 2, 0, 2);
    const float wanted[12] = {0, 1, 2, 3, 10, 20, 4, 5, 0, 0, 11, 0};
    CHECK_BYTES(rows, wanted, sizeof(wanted));
    uint16_t narrow[6];
    kernel_pack(SHOAL_BF16, address_of(narrow), SHOAL_F32, items, 3, 2, 1, 1);
    const uint16_t wanted_narrow[6] = {0x4080, 0x40a0, 0, 0, 0x4130, 0};
    CHECK_BYTES(narrow, wanted_narrow, sizeof(wanted_narrow));
}

/* Element `column` of packed row `rank`, by definition. */
static void expect_element(shoal_dtype dst_dtype, void *to, shoal_dtype src_dtype,
                           const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks,
                           int64_t rank, int64_t column)
{
    memset(to, 0, dtype_bytes(dst_dtype));
    for (size_t i = 0; i < n_items; i++) {
        int64_t chunk_rows = (items[i].rows + n_ranks - 1) / n_ranks;
        int64_t chunk_elems = chunk_rows * items[i].row_elems;
        if (column >= chunk_elems) {
            column -= chunk_elems;
            continue;
        }
        int64_t index = rank * chunk_elems + column;
        if (index < items[i].rows * items[i].row_elems) {
            const char *from =
                (const char *)address_pointer(items[i].data) + (size_t)index * dtype_bytes(src_dtype);
            kernel_cast(dst_dtype, to, src_dtype, from, 1);
        }
        return;
    }
}

static size_t make_items(struct test_random *random, shoal_dtype dtype, struct kernel_pack_item *items)
{
    size_t n_items = test_random_below(random, MAX_ITEMS + 1);
    for (size_t i = 0; i < n_items; i++) {
        unsigned char *data = item_buffers[i] + test_random_below(random, MAX_SHIFT + 1);
        items[i].data = address_of(data);
        items[i].rows = (int64_t)test_random_below(random, 20);
        items[i].row_elems = (int64_t)test_random_below(random, MAX_ITEM_ELEMS / 20 + 1);
        /* Small integers: they have a value in every dtype and differ from each other. */
        for (size_t k = 0; k < MAX_ITEM_ELEMS; k++) {
            struct kernel_scalar value = {.is_integer = true, .integer = (int64_t)(k % 113 + i + 1)};
            kernel_scalar_store(dtype, data + k * dtype_bytes(dtype), value);
        }
    }
    return n_items;
}

static void check_pack(struct test_random *random, shoal_dtype dst_dtype, shoal_dtype src_dtype)
{
    struct kernel_pack_item items[MAX_ITEMS];
    size_t n_items = make_items(random, src_dtype, items);
    int64_t n_ranks = 1 + (int64_t)test_random_below(random, 19);
    int64_t first_rank = (int64_t)test_random_below(random, (uint64_t)n_ranks);
    int64_t n_rows = (int64_t)test_random_below(random, (uint64_t)(n_ranks - first_rank + 1));
    int64_t row_elems = kernel_pack_row_elems(items, n_items, n_ranks);
    size_t element_bytes = dtype_bytes(dst_dtype);
    for (int64_t k = 0; k < n_rows * row_elems; k++) {
        expect_element(dst_dtype, expected + (size_t)k * element_bytes, src_dtype, items, n_items, n_ranks,
                       first_rank + k / row_elems, k % row_elems);
    }
    unsigned char *dst = packed + test_random_below(random, MAX_SHIFT + 1);
    size_t bytes = (size_t)(n_rows * row_elems) * element_bytes;
    memset(dst, 0xff, bytes + 16);
    kernel_pack(dst_dtype, address_of(dst), src_dtype, items, n_items, n_ranks, first_rank, n_rows);
    if (!CHECK_BYTES(dst, expected, bytes)) {
        test_failed(__FILE__, __LINE__, "%s from %s, %zu items, %lld ranks", shoal_dtype_name(dst_dtype),
                    shoal_dtype_name(src_dtype), n_items, (long long)n_ranks);
    }
    for (size_t i = 0; i < 16 && (size_t)(dst - packed) + bytes + i < sizeof(packed); i++) {
        CHECK(dst[bytes + i] == 0xff);
    }
}

/* `check` for all pairs of dtypes, with every vector table that this machine can run. */
static void check_all_pairs(uint64_t salt, void (*check)(struct test_random *random, shoal_dtype dst_dtype,
                                                         shoal_dtype src_dtype))
{
    struct test_random random = test_random_begin(salt);
    const struct simd_table *in_use = simd_table();
    const struct simd_table *table;
    for (size_t v = 0; (table = simd_variant(v)); v++) {
        simd_table_set(table);
        for (int pair = 0; pair < 8 * (DTYPE_COUNT - 1) * (DTYPE_COUNT - 1) && !test_has_failed(); pair++) {
            int dst_dtype = 1 + pair / 8 / (DTYPE_COUNT - 1);
            int src_dtype = 1 + pair / 8 % (DTYPE_COUNT - 1);
            check(&random, (shoal_dtype)dst_dtype, (shoal_dtype)src_dtype);
        }
    }
    simd_table_set(in_use);
}

TEST(packs_every_pair_of_dtypes)
{
    check_all_pairs(1, check_pack);
}

TEST(bytes_of_bool_become_0_or_1)
{
    const unsigned char values[3] = {0, 2, 255};
    const struct kernel_pack_item item = {.data = address_of(values), .rows = 3, .row_elems = 1};
    unsigned char row[4];
    kernel_pack(SHOAL_BOOL, address_of(row), SHOAL_BOOL, &item, 1, 2, 0, 2);
    CHECK_BYTES(row, ((unsigned char[]){0, 1, 1, 0}), 4);
    const struct kernel_unpack_item out = {.data = address_of(row), .elems = 3};
    kernel_unpack(SHOAL_BOOL, &out, 1, SHOAL_BOOL, address_of(values), 1);
    CHECK_BYTES(row, ((unsigned char[]){0, 1, 1}), 3);
}

static void check_unpack(struct test_random *random, shoal_dtype dst_dtype, shoal_dtype src_dtype)
{
    struct kernel_unpack_item items[MAX_ITEMS];
    size_t n_items = test_random_below(random, MAX_ITEMS + 1);
    int64_t n_rows = (int64_t)test_random_below(random, 9);
    int64_t row_elems = 0;
    for (size_t i = 0; i < n_items; i++) {
        items[i].data = address_of(item_buffers[i] + test_random_below(random, MAX_SHIFT + 1));
        items[i].elems = (int64_t)test_random_below(random, MAX_ITEM_ELEMS / 9 + 1);
        row_elems += items[i].elems;
    }
    unsigned char *src = packed + test_random_below(random, MAX_SHIFT + 1);
    for (size_t k = 0; k < (size_t)(n_rows * row_elems); k++) {
        struct kernel_scalar value = {.is_integer = true, .integer = (int64_t)(k % 127)};
        kernel_scalar_store(src_dtype, src + k * dtype_bytes(src_dtype), value);
    }
    kernel_unpack(dst_dtype, items, n_items, src_dtype, address_of(src), n_rows);
    size_t column = 0;
    for (size_t i = 0; i < n_items; i++) {
        for (size_t k = 0; k < (size_t)(n_rows * items[i].elems); k++) {
            size_t elems = (size_t)items[i].elems;
            size_t from = k / elems * (size_t)row_elems + column + k % elems;
            kernel_cast(dst_dtype, expected, src_dtype, src + from * dtype_bytes(src_dtype), 1);
            const unsigned char *actual =
                (unsigned char *)address_pointer(items[i].data) + k * dtype_bytes(dst_dtype);
            CHECK(memcmp(actual, expected, dtype_bytes(dst_dtype)) == 0);
        }
        column += (size_t)items[i].elems;
    }
}

TEST(unpacks_every_pair_of_dtypes)
{
    check_all_pairs(2, check_unpack);
}

/* Sizes beyond 2^31 elements, and products that would not fit in 64 bits if they were formed: nothing of
   these tensors is touched, because the rows asked for hold none of them. */
TEST(sizes_do_not_overflow)
{
    const struct kernel_pack_item huge[2] = {
        {.data = ADDRESS_NONE, .rows = (int64_t)1 << 40, .row_elems = 3},
        {.data = ADDRESS_NONE, .rows = (int64_t)3 << 31, .row_elems = 1}};
    CHECK_INT(kernel_pack_row_elems(huge, 2, 2), ((int64_t)3 << 39) + ((int64_t)3 << 30));
    CHECK_INT(kernel_pack_row_elems(huge, 2, INT64_MAX), 3 + 1);
    CHECK_INT(kernel_pack_row_elems(&(struct kernel_pack_item){.rows = INT64_MAX, .row_elems = 1}, 1, 2),
              ((int64_t)1 << 62));
    unsigned char row[4] = {9, 9, 9, 9};
    kernel_pack(SHOAL_U8, address_of(row), SHOAL_U8, huge, 2, INT64_MAX, INT64_MAX - 1, 1);
    CHECK_BYTES(row, ((unsigned char[]){0, 0, 0, 0}), 4);
}

/* Chunks of more than 2^31 bytes would need gigabytes; large enough to bypass the cache must do. */
TEST(large_rows_with_a_cast)
{
    size_t count = (size_t)5 << 20;
    float *values = mem_alloc(count * sizeof(*values));
    uint16_t *rows = mem_alloc((count + 4) * sizeof(*rows));
    float *back = mem_alloc((count + 4) * sizeof(*back));
    if (values && rows && back) {
        for (size_t i = 0; i < count; i++) {
            values[i] = (float)(i % 251);
        }
        const struct kernel_pack_item item = {
            .data = address_of(values), .rows = (int64_t)count, .row_elems = 1};
        int64_t row_elems = kernel_pack_row_elems(&item, 1, 3);
        kernel_pack(SHOAL_BF16, address_of(rows), SHOAL_F32, &item, 1, 3, 0, 3);
        const struct kernel_unpack_item out = {.data = address_of(back), .elems = row_elems};
        kernel_unpack(SHOAL_F32, &out, 1, SHOAL_BF16, address_of(rows), 3);
        CHECK_BYTES(back, values, count * sizeof(*values));
        CHECK_INT(3 * row_elems, count + 1);
        CHECK_DOUBLE((double)back[count], 0.0);
    } else {
        test_failed(__FILE__, __LINE__, "no memory");
    }
    mem_free(values);
    mem_free(rows);
    mem_free(back);
}
