/* SPDX-License-Identifier: MIT */
/* Arithmetic on all dtypes against the rules written out in wide numbers, over layouts and in place. */
#include "kernel/kernel.h"

#include "oracle.h"

enum {
    BUFFER_BYTES = 1 << 17,
    MAX_ELEMS = BUFFER_BYTES / 16 - 4
};

static unsigned char a_memory[BUFFER_BYTES];
static unsigned char b_memory[BUFFER_BYTES];
static unsigned char dst_memory[BUFFER_BYTES];
static unsigned char expected_memory[BUFFER_BYTES];

static const char *const op_names[KERNEL_BINARY_COUNT] = {"add", "sub", "mul", "div"};

/* A result of f32 or f64 arithmetic: f16 and bf16 compute in f32. */
static long double real_op(enum kernel_binary op, bool is_double, long double x, long double y)
{
    volatile double wide[2] = {(double)x, (double)y};
    volatile float narrow[2] = {(float)x, (float)y};
    volatile double wide_result = op == KERNEL_ADD   ? wide[0] + wide[1]
                                  : op == KERNEL_SUB ? wide[0] - wide[1]
                                  : op == KERNEL_MUL ? wide[0] * wide[1]
                                                     : wide[0] / wide[1];
    volatile float narrow_result = op == KERNEL_ADD   ? narrow[0] + narrow[1]
                                   : op == KERNEL_SUB ? narrow[0] - narrow[1]
                                   : op == KERNEL_MUL ? narrow[0] * narrow[1]
                                                      : narrow[0] / narrow[1];
    return is_double ? (long double)wide_result : (long double)narrow_result;
}

static __int128 integer_op(enum kernel_binary op, shoal_dtype dtype, __int128 x, __int128 y)
{
    switch (op) {
    case KERNEL_ADD:
        return dtype == SHOAL_BOOL ? (x | y) : oracle_wrap(dtype, x + y);
    case KERNEL_SUB:
        return oracle_wrap(dtype, x - y);
    case KERNEL_MUL:
        /* The product of two u64 does not fit a signed 128-bit number. */
        return oracle_wrap(dtype, (__int128)((unsigned __int128)x * (unsigned __int128)y & UINT64_MAX));
    case KERNEL_DIV:
        return y == 0 ? 0 : oracle_wrap(dtype, x / y);
    case KERNEL_BINARY_COUNT:
        break;
    }
    return 0;
}

static struct oracle_number complex_op(enum kernel_binary op, bool is_double, struct oracle_number x,
                                       struct oracle_number y)
{
#define R(op_, p, q) real_op(KERNEL_##op_, is_double, (p), (q))
    struct oracle_number result = {.re = 0};
    if (op == KERNEL_ADD || op == KERNEL_SUB) {
        result.re = real_op(op, is_double, x.re, y.re);
        result.im = real_op(op, is_double, x.im, y.im);
    } else if (op == KERNEL_MUL) {
        result.re = R(SUB, R(MUL, x.re, y.re), R(MUL, x.im, y.im));
        result.im = R(ADD, R(MUL, x.re, y.im), R(MUL, x.im, y.re));
    } else {
        long double norm = R(ADD, R(MUL, y.re, y.re), R(MUL, y.im, y.im));
        result.re = R(DIV, R(ADD, R(MUL, x.re, y.re), R(MUL, x.im, y.im)), norm);
        result.im = R(DIV, R(SUB, R(MUL, x.im, y.re), R(MUL, x.re, y.im)), norm);
    }
#undef R
    return result;
}

static struct oracle_number expect_binary(enum kernel_binary op, shoal_dtype dtype, struct oracle_number x,
                                          struct oracle_number y)
{
    bool is_double = dtype == SHOAL_F64 || dtype == SHOAL_C128;
    if (x.is_integer) {
        return (struct oracle_number){.is_integer = true,
                                      .integer = integer_op(op, dtype, x.integer, y.integer)};
    }
    if (dtype_kind(dtype) == DTYPE_KIND_COMPLEX) {
        return complex_op(op, is_double, x, y);
    }
    return oracle_round_number(dtype, oracle_real(real_op(op, is_double, x.re, y.re)));
}

static void check_element(const char *op, shoal_dtype dtype, const unsigned char *actual,
                          struct oracle_number x, struct oracle_number y, struct oracle_number expected)
{
    struct oracle_number got = oracle_read(dtype, actual);
    if (!oracle_same(got, expected) || (dtype == SHOAL_BOOL && *actual > 1)) {
        test_failed(__FILE__, __LINE__, "%s %s: (%La, %La) (%La, %La) gave (%La, %La), not (%La, %La)", op,
                    shoal_dtype_name(dtype), x.re, x.im, y.re, y.im, got.re, got.im,
                    expected.is_integer ? (long double)expected.integer : expected.re, expected.im);
    }
}

struct layout {
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    struct oracle_view dst;
    struct oracle_view a;
    struct oracle_view b;
};

static struct kernel_operand operand(unsigned char *memory, const struct oracle_view *view, size_t bytes)
{
    return (struct kernel_operand){.data = address_of(memory + (size_t)view->offset * bytes),
                                   .strides = view->strides};
}

static bool is_supported(enum kernel_binary op, shoal_dtype dtype)
{
    return oracle_has_arithmetic(dtype) && (dtype != SHOAL_BOOL || op == KERNEL_ADD || op == KERNEL_MUL);
}

/* Random inputs; dst lies apart (`dst` memory) or is a, or is b. */
static void check_binary(enum kernel_binary op, shoal_dtype dtype, const struct layout *layout,
                         unsigned char *dst, struct test_random *random)
{
    size_t bytes = dtype_bytes(dtype);
    static unsigned char a_before[BUFFER_BYTES];
    static unsigned char b_before[BUFFER_BYTES];
    oracle_random_bits(random, a_memory, (size_t)layout->a.extent * bytes + 1);
    oracle_random_bits(random, b_memory, (size_t)layout->b.extent * bytes + 1);
    memcpy(a_before, a_memory, (size_t)layout->a.extent * bytes + 1);
    memcpy(b_before, b_memory, (size_t)layout->b.extent * bytes + 1);
    CHECK_OK(kernel_binary_nd(op, dtype, operand(dst, &layout->dst, bytes),
                              operand(a_memory + 1, &layout->a, bytes),
                              operand(b_memory + 1, &layout->b, bytes), layout->n_dims, layout->shape));
    int64_t index[SHOAL_MAX_DIMS] = {0};
    bool has_elements = oracle_count(layout->n_dims, layout->shape) > 0;
    while (has_elements && !test_has_failed()) {
        size_t at_a = (size_t)oracle_element_offset(&layout->a, layout->n_dims, index) * bytes;
        size_t at_b = (size_t)oracle_element_offset(&layout->b, layout->n_dims, index) * bytes;
        size_t at_dst = (size_t)oracle_element_offset(&layout->dst, layout->n_dims, index) * bytes;
        struct oracle_number x = oracle_read(dtype, a_before + 1 + at_a);
        struct oracle_number y = oracle_read(dtype, b_before + 1 + at_b);
        check_element(op_names[op], dtype, dst + at_dst, x, y, expect_binary(op, dtype, x, y));
        has_elements = oracle_next_index(layout->n_dims, layout->shape, index);
    }
}

static bool make_layout(struct layout *layout, int round, struct test_random *random)
{
    layout->n_dims = oracle_random_shape(random, 4, round % 9 == 0 ? 20 : 6, layout->shape);
    layout->dst = oracle_random_view(random, round % 2 == 0 ? ORACLE_ROW_MAJOR : ORACLE_DISTINCT,
                                     layout->n_dims, layout->shape);
    layout->a = oracle_random_view(random, round % 3 == 0 ? ORACLE_ROW_MAJOR : ORACLE_ANY, layout->n_dims,
                                   layout->shape);
    layout->b = oracle_random_view(random, round % 5 == 0 ? ORACLE_ROW_MAJOR : ORACLE_ANY, layout->n_dims,
                                   layout->shape);
    return layout->dst.extent < MAX_ELEMS && layout->a.extent < MAX_ELEMS && layout->b.extent < MAX_ELEMS &&
           oracle_count(layout->n_dims, layout->shape) < 600;
}

TEST(binary_over_random_layouts)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 4000 && !test_has_failed(); round++) {
        struct layout layout;
        shoal_dtype dtype = (shoal_dtype)(1 + round % (DTYPE_COUNT - 1));
        enum kernel_binary op = (enum kernel_binary)(round / (DTYPE_COUNT - 1) % KERNEL_BINARY_COUNT);
        if (make_layout(&layout, (int)test_random_below(&random, 90), &random) && is_supported(op, dtype)) {
            check_binary(op, dtype, &layout, dst_memory + 1, &random);
        }
    }
}

TEST(binary_in_place)
{
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < 2000 && !test_has_failed(); round++) {
        struct layout layout;
        shoal_dtype dtype = (shoal_dtype)(1 + round % (DTYPE_COUNT - 1));
        enum kernel_binary op = (enum kernel_binary)(round / (DTYPE_COUNT - 1) % KERNEL_BINARY_COUNT);
        if (!make_layout(&layout, (int)test_random_below(&random, 90), &random) || !is_supported(op, dtype)) {
            continue;
        }
        if (round % 2 == 0) {
            layout.a = layout.dst;
            check_binary(op, dtype, &layout, a_memory + 1, &random);
        } else {
            layout.b = layout.dst;
            check_binary(op, dtype, &layout, b_memory + 1, &random);
        }
    }
}

/* The three loops for rows: both operands full, and one of them a single element. */
TEST(binary_over_rows)
{
    struct test_random random = test_random_begin(3);
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        for (int op = 0; op < KERNEL_BINARY_COUNT; op++) {
            for (int shape = 0; shape < 4 && is_supported((enum kernel_binary)op, (shoal_dtype)dtype);
                 shape++) {
                int64_t count = 1 + (int64_t)test_random_below(&random, op == 0 ? 1200 : 100);
                struct layout layout = {.n_dims = 1, .shape = {count}};
                layout.dst = (struct oracle_view){.strides = {1}, .extent = count};
                layout.a = (struct oracle_view){.strides = {shape & 1}, .extent = count};
                layout.b = (struct oracle_view){.strides = {shape >> 1}, .extent = count};
                check_binary((enum kernel_binary)op, (shoal_dtype)dtype, &layout, dst_memory + 1, &random);
            }
        }
    }
}

#define CHECK_DIV(NAME, ctype, x, y, expected)                                                 \
    do {                                                                                       \
        ctype a_ = (x);                                                                        \
        ctype b_ = (y);                                                                        \
        ctype dst_ = 77;                                                                       \
        CHECK_OK(kernel_binary_nd(KERNEL_DIV, SHOAL_##NAME,                                    \
                                  (struct kernel_operand){.data = address_of(&dst_)},          \
                                  (struct kernel_operand){.data = address_of(&a_)},            \
                                  (struct kernel_operand){.data = address_of(&b_)}, 0, NULL)); \
        CHECK_INT(dst_, expected);                                                             \
    } while (0)

TEST(integer_division_never_traps)
{
    CHECK_DIV(I8, int8_t, INT8_MIN, -1, INT8_MIN);
    CHECK_DIV(I16, int16_t, INT16_MIN, -1, INT16_MIN);
    CHECK_DIV(I32, int32_t, INT32_MIN, -1, INT32_MIN);
    CHECK_DIV(I64, int64_t, INT64_MIN, -1, INT64_MIN);
    CHECK_DIV(I8, int8_t, 5, 0, 0);
    CHECK_DIV(I32, int32_t, -5, 0, 0);
    CHECK_DIV(I64, int64_t, 5, 0, 0);
    CHECK_DIV(U8, uint8_t, 5, 0, 0);
    CHECK_DIV(U64, uint64_t, 5, 0, 0);
    CHECK_DIV(I32, int32_t, -7, 2, -3);
    CHECK_DIV(I64, int64_t, 7, -2, -3);
    CHECK_DIV(U16, uint16_t, 65535, 2, 32767);
}

TEST(what_bool_does_not_have)
{
    uint8_t value = 1;
    struct kernel_operand one = {.data = address_of(&value)};
    CHECK_STATUS(kernel_binary_nd(KERNEL_SUB, SHOAL_BOOL, one, one, one, 0, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("sub");
    CHECK_STATUS(kernel_binary_nd(KERNEL_DIV, SHOAL_BOOL, one, one, one, 0, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("bool");
    CHECK_STATUS(kernel_negate_nd(SHOAL_BOOL, one, one, 0, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(kernel_scale(SHOAL_BOOL, &value, &value, 1, 0.0), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(kernel_scale(SHOAL_I32, &value, &value, 1, 0.0), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("i32");
    CHECK_INT(value, 1);
}

static struct oracle_number expect_negate(shoal_dtype dtype, struct oracle_number x)
{
    if (x.is_integer) {
        return (struct oracle_number){.is_integer = true, .integer = oracle_wrap(dtype, -x.integer)};
    }
    bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    return (struct oracle_number){.re = -x.re, .im = is_complex ? -x.im : 0};
}

TEST(negate_over_random_layouts)
{
    struct test_random random = test_random_begin(4);
    for (int round = 0; round < 2000 && !test_has_failed(); round++) {
        struct layout layout;
        shoal_dtype dtype = (shoal_dtype)(1 + round % (DTYPE_COUNT - 1));
        size_t bytes = dtype_bytes(dtype);
        if (dtype == SHOAL_BOOL || !oracle_has_arithmetic(dtype) || !make_layout(&layout, round, &random)) {
            continue;
        }
        oracle_random_bits(&random, a_memory, (size_t)layout.a.extent * bytes + 1);
        CHECK_OK(kernel_negate_nd(dtype, operand(dst_memory + 1, &layout.dst, bytes),
                                  operand(a_memory + 1, &layout.a, bytes), layout.n_dims, layout.shape));
        int64_t index[SHOAL_MAX_DIMS] = {0};
        bool has_elements = oracle_count(layout.n_dims, layout.shape) > 0;
        while (has_elements && !test_has_failed()) {
            size_t at_a = (size_t)oracle_element_offset(&layout.a, layout.n_dims, index) * bytes;
            size_t at_dst = (size_t)oracle_element_offset(&layout.dst, layout.n_dims, index) * bytes;
            struct oracle_number x = oracle_read(dtype, a_memory + 1 + at_a);
            check_element("negate", dtype, dst_memory + 1 + at_dst, x, x, expect_negate(dtype, x));
            has_elements = oracle_next_index(layout.n_dims, layout.shape, index);
        }
    }
}

/* The factor is rounded to f32 first where f32 is the accumulation type: 1/3 tells. */
TEST(scale_rounds_the_factor_then_the_product)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_C64, SHOAL_C128};
    struct test_random random = test_random_begin(5);
    for (int round = 0; round < 120 && !test_has_failed(); round++) {
        shoal_dtype dtype = dtypes[round % 6];
        bool is_double = dtype == SHOAL_F64 || dtype == SHOAL_C128;
        bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
        double factor = round % 4 == 0 ? 1.0 / 3 : test_random_unit(&random) * 100 - 50;
        size_t count = test_random_below(&random, 70);
        size_t bytes = dtype_bytes(dtype);
        oracle_random_bits(&random, a_memory, count * bytes + 1);
        memset(expected_memory, 0x5a, count * bytes + 2);
        unsigned char *dst = expected_memory + 1;
        CHECK_OK(kernel_scale(dtype, dst, a_memory + 1, count, factor));
        CHECK_INT(dst[count * bytes], 0x5a);
        for (size_t i = 0; i < count && !test_has_failed(); i++) {
            struct oracle_number x = oracle_read(dtype, a_memory + 1 + i * bytes);
            struct oracle_number y =
                oracle_real(is_double ? (long double)factor : (long double)(float)factor);
            struct oracle_number product = {.re = real_op(KERNEL_MUL, is_double, x.re, y.re),
                                            .im =
                                                is_complex ? real_op(KERNEL_MUL, is_double, x.im, y.re) : 0};
            check_element("scale", dtype, dst + i * bytes, x, y, oracle_round_number(dtype, product));
        }
        CHECK_OK(kernel_scale(dtype, a_memory + 1, a_memory + 1, count, factor));
        for (size_t i = 0; i < count; i++) {
            CHECK(oracle_same_elements(dtype, a_memory + 1 + i * bytes, dst + i * bytes));
        }
    }
}

/* What is walked before it is known to be empty multiplies these sizes: the undefined behaviour sanitizer tells. */
TEST(empty_shapes_of_any_size_are_left_alone)
{
    enum {
        N_CASES = 5
    };
    const int64_t huge = INT64_C(1) << 40;
    const int64_t most = INT64_MAX;
    const int64_t shapes[N_CASES][3] = {
        {0, huge, huge}, {huge, huge, 0}, {huge, 0, huge}, {most, most, 0}, {0, most, most}};
    /* Each is row-major for one way of counting sizes of 0: as 0, as 1, or not reached. */
    const int64_t strides[N_CASES][3] = {
        {huge, huge, 1}, {0, 0, 1}, {huge, huge, 1}, {1, 1, 1}, {0, most, 1}};
    const bool is_reduced[] = {false, true, false};
    unsigned char untouched = 0x5a;
    for (int i = 0; i < N_CASES; i++) {
        for (int k = 0; k < N_CASES; k++) {
            struct kernel_operand none = {.data = address_of(&untouched), .strides = strides[k]};
            CHECK_OK(kernel_binary_nd(KERNEL_ADD, SHOAL_F32, none, none, none, 3, shapes[i]));
            CHECK_OK(kernel_negate_nd(SHOAL_BF16, none, none, 3, shapes[i]));
            CHECK_OK(kernel_sum_nd(SHOAL_F32, none, none, 3, shapes[i], (bool[]){false, false, false}, 0));
            if (shapes[i][0] == 0 || shapes[i][2] == 0) {
                CHECK_OK(kernel_sum_nd(SHOAL_F64, none, none, 3, shapes[i], is_reduced, 0));
            }
            kernel_fill_nd(SHOAL_F32, none, 3, shapes[i], (struct kernel_scalar){.real = 0});
            kernel_copy_nd(SHOAL_F32, none, SHOAL_F32, none, 3, shapes[i]);
            kernel_copy_nd(SHOAL_F64, none, SHOAL_U8, none, 3, shapes[i]);
        }
    }
    CHECK_INT(untouched, 0x5a);
}

/* Likewise: a dimension of one element is never stepped over, so that its stride may be any number. */
TEST(strides_of_single_elements_mean_nothing)
{
    const int64_t most = INT64_MAX;
    int32_t memory[4] = {1, 2, 3, 4};
    struct kernel_operand one = {.data = address_of(memory), .strides = &most};
    CHECK_OK(kernel_binary_nd(KERNEL_ADD, SHOAL_I32, one, one, one, 1, (int64_t[]){1}));
    struct kernel_operand every_second = {.data = address_of(memory),
                                          .strides = (int64_t[]){most, 2, INT64_MIN}};
    CHECK_OK(kernel_negate_nd(SHOAL_I32, every_second, every_second, 3, (int64_t[]){1, 2, 1}));
    const int32_t expected[4] = {-2, 2, -3, 4};
    CHECK_BYTES(memory, expected, sizeof(expected));
}
