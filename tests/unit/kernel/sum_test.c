/* SPDX-License-Identifier: MIT */
/* Sums over dimensions against one loop in row-major order: for floats the order is the result. */
#include "kernel/kernel.h"

#include "kernel/half.h"
#include "oracle.h"

enum {
    BUFFER_BYTES = 1 << 18,
    MAX_ELEMS = BUFFER_BYTES / 16 - 4
};

static unsigned char src_memory[BUFFER_BYTES];
static unsigned char dst_memory[BUFFER_BYTES];
static unsigned char expected_memory[BUFFER_BYTES];

struct total {
    double re;
    double im;
    __int128 integer;
};

static void add_to(struct total *total, shoal_dtype dtype, const unsigned char *element)
{
    struct oracle_number number = oracle_read(dtype, element);
    total->re += (double)number.re;
    total->im += (double)number.im;
    if (dtype == SHOAL_BOOL) {
        total->integer |= number.integer;
    } else if (number.is_integer) {
        total->integer = oracle_wrap(dtype, total->integer + number.integer);
    }
}

static struct oracle_number finish(struct total total, shoal_dtype dtype, int64_t divisor)
{
    enum dtype_kind kind = dtype_kind(dtype);
    if (kind == DTYPE_KIND_FLOAT || kind == DTYPE_KIND_COMPLEX) {
        volatile double re = divisor != 0 ? total.re / (double)divisor : total.re;
        volatile double im = divisor != 0 ? total.im / (double)divisor : total.im;
        struct oracle_number sum = {.re = (long double)re, .im = (long double)im};
        sum = oracle_round_number(dtype, sum);
        sum.im = kind == DTYPE_KIND_COMPLEX ? sum.im : 0;
        return sum;
    }
    __int128 integer = divisor != 0 ? total.integer / divisor : total.integer;
    return (struct oracle_number){.is_integer = true, .integer = integer};
}

/* Values whose sum depends on the order: of very different sizes, both signs, now and then a special one. */
static void make_values(shoal_dtype dtype, size_t count, struct test_random *random)
{
    size_t bytes = dtype_bytes(dtype);
    bool is_special = test_random_below(random, 8) == 0;
    for (size_t i = 0; i < count; i++) {
        double value = ldexp(test_random_unit(random) - 0.5, (int)test_random_below(random, 40) - 25);
        struct dtype_c128 pair = {.re = value, .im = -value * 3};
        kernel_cast(dtype, src_memory + 1 + i * bytes,
                    dtype_kind(dtype) == DTYPE_KIND_COMPLEX ? SHOAL_C128 : SHOAL_F64, &pair, 1);
    }
    if (is_special || dtype_kind(dtype) == DTYPE_KIND_SIGNED || dtype_kind(dtype) == DTYPE_KIND_UNSIGNED ||
        dtype == SHOAL_BOOL) {
        oracle_random_bits(random, src_memory + 1, count * bytes);
    }
    for (size_t i = 0; i < count && dtype == SHOAL_BOOL && test_random_below(random, 4) != 0; i++) {
        src_memory[1 + i] = 0;
    }
}

struct layout {
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t kept_shape[SHOAL_MAX_DIMS]; /* 1 where reduced */
    bool is_reduced[SHOAL_MAX_DIMS];
    struct oracle_view dst; /* over kept_shape */
    struct oracle_view src;
};

static void reduce_dims(struct layout *layout, uint64_t mask)
{
    for (int i = 0; i < layout->n_dims; i++) {
        layout->is_reduced[i] = (mask >> i & 1) != 0;
        layout->kept_shape[i] = layout->is_reduced[i] ? 1 : layout->shape[i];
    }
}

/* The sum for one index of the kept dimensions. */
static struct oracle_number sum_naively(const struct layout *layout, shoal_dtype dtype, const int64_t *kept,
                                        int64_t divisor)
{
    struct total total = {.re = 0};
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t reduced[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < layout->n_dims; i++) {
        shape[i] = layout->is_reduced[i] ? layout->shape[i] : 1;
    }
    bool has_elements = oracle_count(layout->n_dims, shape) > 0;
    while (has_elements) {
        int64_t index[SHOAL_MAX_DIMS];
        for (int i = 0; i < layout->n_dims; i++) {
            index[i] = kept[i] + reduced[i];
        }
        int64_t offset = oracle_element_offset(&layout->src, layout->n_dims, index);
        add_to(&total, dtype, src_memory + 1 + (size_t)offset * dtype_bytes(dtype));
        has_elements = oracle_next_index(layout->n_dims, shape, reduced);
    }
    return finish(total, dtype, divisor);
}

static void check_sum(const struct layout *layout, shoal_dtype dtype, int64_t divisor,
                      struct test_random *random)
{
    size_t bytes = dtype_bytes(dtype);
    make_values(dtype, (size_t)layout->src.extent, random);
    size_t total_bytes = (size_t)layout->dst.extent * bytes + 2;
    memset(dst_memory, 0x5a, total_bytes);
    memset(expected_memory, 0x5a, total_bytes);
    int64_t dst_strides[SHOAL_MAX_DIMS];
    for (int i = 0; i < layout->n_dims; i++) {
        dst_strides[i] = layout->is_reduced[i] ? 12345 : layout->dst.strides[i];
    }
    CHECK_OK(kernel_sum_nd(
        dtype,
        (struct kernel_operand){.data = address_of(dst_memory + 1 + (size_t)layout->dst.offset * bytes),
                                .strides = dst_strides},
        (struct kernel_operand){.data = address_of(src_memory + 1 + (size_t)layout->src.offset * bytes),
                                .strides = layout->src.strides},
        layout->n_dims, layout->shape, layout->is_reduced, divisor));
    int64_t kept[SHOAL_MAX_DIMS] = {0};
    bool has_sums = oracle_count(layout->n_dims, layout->kept_shape) > 0;
    while (has_sums && !test_has_failed()) {
        int64_t offset = oracle_element_offset(&layout->dst, layout->n_dims, kept);
        unsigned char *element = dst_memory + 1 + (size_t)offset * bytes;
        struct oracle_number actual = oracle_read(dtype, element);
        struct oracle_number expected = sum_naively(layout, dtype, kept, divisor);
        if (!oracle_same(actual, expected)) {
            test_failed(__FILE__, __LINE__, "%s, %d dims, divisor %lld: %La %Lai, not %La %Lai",
                        shoal_dtype_name(dtype), layout->n_dims, (long long)divisor, actual.re, actual.im,
                        expected.is_integer ? (long double)expected.integer : expected.re, expected.im);
        }
        memset(element, 0x5a, bytes);
        has_sums = oracle_next_index(layout->n_dims, layout->kept_shape, kept);
    }
    CHECK_BYTES(dst_memory, expected_memory, total_bytes);
}

TEST(random_layouts)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 3000 && !test_has_failed(); round++) {
        struct layout layout = {.n_dims = 0};
        layout.n_dims = oracle_random_shape(&random, 4, 5, layout.shape);
        reduce_dims(&layout, test_random_u64(&random));
        layout.dst = oracle_random_view(&random, round % 2 == 0 ? ORACLE_ROW_MAJOR : ORACLE_DISTINCT,
                                        layout.n_dims, layout.kept_shape);
        layout.src = oracle_random_view(&random, round % 3 == 0 ? ORACLE_ROW_MAJOR : ORACLE_ANY,
                                        layout.n_dims, layout.shape);
        if (layout.src.extent > MAX_ELEMS || layout.dst.extent > MAX_ELEMS) {
            continue;
        }
        shoal_dtype dtype = (shoal_dtype)(1 + round % (DTYPE_COUNT - 1));
        if (!oracle_has_arithmetic(dtype)) {
            continue;
        }
        int64_t divisor =
            dtype != SHOAL_BOOL && round % 4 == 0 ? 1 + (int64_t)test_random_below(&random, 9) : 0;
        check_sum(&layout, dtype, divisor, &random);
    }
}

/* First, last, middle and all dimensions reduced, across the blocks of columns and groups of rows. */
TEST(common_layouts)
{
    static const int64_t shapes[][3] = {{1, 37, 300}, {1, 300, 9}, {1, 9, 37},
                                        {5, 6, 7},    {3, 1, 513}, {2, 17, 8}};
    struct test_random random = test_random_begin(2);
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        for (uint64_t mask = 0; mask < 8; mask++) {
            for (int dtype = 1; dtype < DTYPE_COUNT && !test_has_failed(); dtype++) {
                if (!oracle_has_arithmetic((shoal_dtype)dtype)) {
                    continue;
                }
                struct layout layout = {.n_dims = 3};
                memcpy(layout.shape, shapes[k], sizeof(shapes[k]));
                reduce_dims(&layout, mask);
                layout.dst = oracle_random_view(&random, ORACLE_ROW_MAJOR, 3, layout.kept_shape);
                layout.src = oracle_random_view(&random, ORACLE_ROW_MAJOR, 3, layout.shape);
                check_sum(&layout, (shoal_dtype)dtype, 0, &random);
            }
        }
    }
}

/* f32: 2^24 + 1 + 1 would stay in f32; f16: 2048 + 1 + 1 too; both are whole in f64. */
TEST(floats_are_added_in_f64)
{
    int64_t stride = 1;
    int64_t count = 3;
    bool is_reduced = true;
    float singles[3] = {0x1p24f, 1, 1};
    float single = 0;
    CHECK_OK(kernel_sum_nd(
        SHOAL_F32, (struct kernel_operand){.data = address_of(&single), .strides = &stride},
        (struct kernel_operand){.data = address_of(singles), .strides = &stride}, 1, &count, &is_reduced, 0));
    CHECK_DOUBLE((double)single, 0x1p24 + 2);
    uint16_t halves[3] = {half_f32_to_f16(2048), half_f32_to_f16(1), half_f32_to_f16(1)};
    uint16_t half = 0;
    CHECK_OK(kernel_sum_nd(SHOAL_F16, (struct kernel_operand){.data = address_of(&half), .strides = &stride},
                           (struct kernel_operand){.data = address_of(halves), .strides = &stride}, 1, &count,
                           &is_reduced, 3));
    CHECK_INT(half, half_f64_to_f16(2050.0 / 3));
}

TEST(no_elements_give_zero)
{
    int64_t strides[2] = {1, 1};
    int64_t shape[2] = {3, 0};
    const bool is_reduced[2] = {false, true};
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        if (!oracle_has_arithmetic((shoal_dtype)dtype)) {
            continue;
        }
        size_t bytes = 3 * dtype_bytes((shoal_dtype)dtype);
        memset(dst_memory, 0x5a, bytes + 1);
        memset(expected_memory, 0, bytes);
        expected_memory[bytes] = 0x5a;
        CHECK_OK(kernel_sum_nd((shoal_dtype)dtype,
                               (struct kernel_operand){.data = address_of(dst_memory), .strides = strides},
                               (struct kernel_operand){.data = ADDRESS_NONE, .strides = strides}, 2, shape,
                               is_reduced, dtype == SHOAL_BOOL ? 0 : 4));
        CHECK_BYTES(dst_memory, expected_memory, bytes + 1);
    }
    int64_t none[2] = {0, 2};
    CHECK_OK(kernel_sum_nd(SHOAL_F32, (struct kernel_operand){.data = ADDRESS_NONE, .strides = strides},
                           (struct kernel_operand){.data = ADDRESS_NONE, .strides = strides}, 2, none,
                           is_reduced, 0));
}

TEST(means_of_bool_are_refused)
{
    uint8_t value = 1;
    struct kernel_operand one = {.data = address_of(&value)};
    CHECK_STATUS(kernel_sum_nd(SHOAL_BOOL, one, one, 0, NULL, NULL, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("bool");
    CHECK_INT(value, 1);
}
