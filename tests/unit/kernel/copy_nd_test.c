/* SPDX-License-Identifier: MIT */
/* Strided copies and casts of random layouts against a loop over all indices; bytes outside stay. */
#include "kernel/kernel.h"

#include "oracle.h"

enum {
    BUFFER_BYTES = 1 << 19,
    ELEMENT_BYTES = 16
};

static unsigned char src_memory[BUFFER_BYTES];
static unsigned char dst_memory[BUFFER_BYTES];
static unsigned char expected_memory[BUFFER_BYTES];

struct layout {
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    struct oracle_view dst;
    struct oracle_view src;
};

/* Copies with the kernel and with a loop, from and to addresses that are `shift` bytes off, and compares. */
static void check_copy(shoal_dtype to, shoal_dtype from, const struct layout *layout, size_t shift,
                       struct test_random *random)
{
    int64_t to_bytes = (int64_t)dtype_bytes(to);
    int64_t from_bytes = (int64_t)dtype_bytes(from);
    size_t dst_total = (size_t)(layout->dst.extent * to_bytes) + shift;
    size_t src_total = (size_t)(layout->src.extent * from_bytes) + shift;
    REQUIRE(dst_total + 16 <= BUFFER_BYTES && src_total <= BUFFER_BYTES);
    oracle_random_bits(random, src_memory, src_total);
    memset(dst_memory, 0x5a, dst_total + 16);
    memset(expected_memory, 0x5a, dst_total + 16);

    int64_t index[SHOAL_MAX_DIMS] = {0};
    bool has_elements = oracle_count(layout->n_dims, layout->shape) > 0;
    while (has_elements) {
        int64_t dst_offset = oracle_element_offset(&layout->dst, layout->n_dims, index);
        int64_t src_offset = oracle_element_offset(&layout->src, layout->n_dims, index);
        kernel_cast(to, expected_memory + shift + dst_offset * to_bytes, from,
                    src_memory + shift + src_offset * from_bytes, 1);
        has_elements = oracle_next_index(layout->n_dims, layout->shape, index);
    }
    struct kernel_operand dst = {.data = address_of(dst_memory + shift + layout->dst.offset * to_bytes),
                                 .strides = layout->dst.strides};
    struct kernel_operand src = {.data = address_of(src_memory + shift + layout->src.offset * from_bytes),
                                 .strides = layout->src.strides};
    kernel_copy_nd(to, dst, from, src, layout->n_dims, layout->shape);
    if (memcmp(dst_memory, expected_memory, dst_total + 16) == 0) {
        return;
    }
    /* NaN payloads are free: then the elements decide, and every byte beside them. */
    for (int64_t i = 0; i < layout->dst.extent && !test_has_failed(); i++) {
        const unsigned char *actual = dst_memory + shift + i * to_bytes;
        if (!oracle_same_elements(to, actual, expected_memory + shift + i * to_bytes)) {
            test_failed(__FILE__, __LINE__, "%s to %s, %d dims, element %lld of %lld", shoal_dtype_name(from),
                        shoal_dtype_name(to), layout->n_dims, (long long)i, (long long)layout->dst.extent);
        }
    }
    CHECK_BYTES(dst_memory, expected_memory, shift);
    CHECK_BYTES(dst_memory + dst_total, expected_memory + dst_total, 16);
}

static shoal_dtype random_dtype(struct test_random *random)
{
    return (shoal_dtype)(1 + test_random_below(random, DTYPE_COUNT - 1));
}

TEST(random_layouts)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 6000 && !test_has_failed(); round++) {
        struct layout layout = {.n_dims = 0};
        layout.n_dims = oracle_random_shape(&random, 5, 6, layout.shape);
        layout.dst = oracle_random_view(&random, round % 3 == 0 ? ORACLE_ROW_MAJOR : ORACLE_DISTINCT,
                                        layout.n_dims, layout.shape);
        layout.src = oracle_random_view(&random, round % 5 == 0 ? ORACLE_ROW_MAJOR : ORACLE_ANY,
                                        layout.n_dims, layout.shape);
        if (layout.dst.extent * ELEMENT_BYTES > BUFFER_BYTES - 64 ||
            layout.src.extent * ELEMENT_BYTES > BUFFER_BYTES - 64) {
            continue;
        }
        shoal_dtype to = random_dtype(&random);
        shoal_dtype from = round % 2 == 0 ? to : random_dtype(&random);
        check_copy(to, from, &layout, test_random_below(&random, 4), &random);
    }
}

TEST(eight_dimensions)
{
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < 50 && !test_has_failed(); round++) {
        struct layout layout = {.n_dims = SHOAL_MAX_DIMS, .shape = {2, 1, 3, 2, 2, 1, 3, 2}};
        layout.dst = oracle_random_view(&random, ORACLE_DISTINCT, layout.n_dims, layout.shape);
        layout.src = oracle_random_view(&random, ORACLE_DISTINCT, layout.n_dims, layout.shape);
        if (layout.dst.extent < 4096 && layout.src.extent < 4096) {
            check_copy(SHOAL_F32, round % 2 == 0 ? SHOAL_F32 : SHOAL_BF16, &layout, 1, &random);
        }
    }
}

/* Sizes around and above the tiles of every element size, batched, with and without gaps between rows. */
TEST(transposes)
{
    static const shoal_dtype dtypes[] = {SHOAL_U8,  SHOAL_F16,  SHOAL_F32, SHOAL_F64,
                                         SHOAL_C64, SHOAL_C128, SHOAL_BOOL};
    struct test_random random = test_random_begin(3);
    for (int round = 0; round < 300 && !test_has_failed(); round++) {
        int64_t rows = 1 + (int64_t)test_random_below(&random, round % 7 == 0 ? 270 : 70);
        int64_t columns = 1 + (int64_t)test_random_below(&random, round % 7 == 0 ? 25 : 70);
        int64_t gap = (int64_t)test_random_below(&random, 3);
        struct layout layout = {
            .n_dims = 3,
            .shape = {2, rows, columns},
            .dst = {.strides = {rows * columns, columns, 1}, .extent = 2 * rows * columns},
            .src = {.strides = {(rows + gap) * columns, 1, rows + gap},
                    .extent = 2 * (rows + gap) * columns}};
        shoal_dtype to = dtypes[round % 7];
        shoal_dtype from = round % 3 == 0 ? random_dtype(&random) : to;
        check_copy(to, from, &layout, (size_t)round % 2, &random);
    }
}

/* Lines longer than the run that a cast gathers at a time. */
TEST(long_strided_lines)
{
    struct test_random random = test_random_begin(4);
    for (int dst_stride = 1; dst_stride <= 3; dst_stride++) {
        for (int src_stride = -2; src_stride <= 2; src_stride++) {
            const int64_t count = 777;
            struct layout layout = {
                .n_dims = 1,
                .shape = {count},
                .dst = {.strides = {dst_stride}, .extent = (count - 1) * dst_stride + 1},
                .src = {.strides = {src_stride},
                        .offset = src_stride < 0 ? -src_stride * (count - 1) : 0,
                        .extent = (count - 1) * (src_stride < 0 ? -src_stride : src_stride) + 1}};
            check_copy(SHOAL_F32, SHOAL_F32, &layout, 1, &random);
            check_copy(SHOAL_BF16, SHOAL_F32, &layout, 1, &random);
            check_copy(SHOAL_BOOL, SHOAL_BOOL, &layout, 0, &random);
            check_copy(SHOAL_C128, SHOAL_I8, &layout, 3, &random);
        }
    }
}

TEST(no_elements_touch_nothing)
{
    int64_t strides[2] = {1, 1};
    struct kernel_operand none = {.data = ADDRESS_NONE, .strides = strides};
    kernel_copy_nd(SHOAL_F32, none, SHOAL_F32, none, 2, (int64_t[]){3, 0});
    kernel_copy_nd(SHOAL_F32, none, SHOAL_BF16, none, 1, (int64_t[]){0});
    float value = 2;
    float copy = 1;
    kernel_copy_nd(SHOAL_F32, (struct kernel_operand){.data = address_of(&copy)}, SHOAL_F32,
                   (struct kernel_operand){.data = address_of(&value)}, 0, NULL);
    CHECK_DOUBLE((double)copy, 2);
}
