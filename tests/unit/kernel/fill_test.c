/* SPDX-License-Identifier: MIT */
/* One value everywhere in a view, and nowhere else. */
#include "kernel/kernel.h"

#include "oracle.h"

static struct kernel_scalar real(double value)
{
    return (struct kernel_scalar){.real = value};
}

static struct kernel_scalar integer(int64_t value)
{
    return (struct kernel_scalar){.is_integer = true, .integer = value};
}

TEST(scalars_follow_the_casts)
{
    unsigned char element[16];
    unsigned char expected[16];
    const double reals[] = {0.0, -0.0, 1.0 / 3, -2.75, 300.0, 1e10, -1e300, (double)NAN, (double)INFINITY};
    const int64_t integers[] = {0, 1, -1, 300, INT64_MAX, INT64_MIN, (1ll << 53) + 1};
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
            kernel_scalar_store((shoal_dtype)dtype, element, real(reals[i]));
            kernel_cast((shoal_dtype)dtype, expected, SHOAL_F64, &reals[i], 1);
            CHECK(oracle_same_elements((shoal_dtype)dtype, element, expected));
        }
        for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
            kernel_scalar_store((shoal_dtype)dtype, element, integer(integers[i]));
            kernel_cast((shoal_dtype)dtype, expected, SHOAL_I64, &integers[i], 1);
            CHECK(oracle_same_elements((shoal_dtype)dtype, element, expected));
        }
    }
}

/* An integer that a double cannot hold arrives whole. */
TEST(integers_do_not_pass_through_double)
{
    int64_t stored;
    kernel_scalar_store(SHOAL_I64, &stored, integer(INT64_MAX - 2));
    CHECK(stored == INT64_MAX - 2);
    uint64_t unsigned_stored;
    kernel_scalar_store(SHOAL_U64, &unsigned_stored, integer(-1));
    CHECK(unsigned_stored == UINT64_MAX);
}

TEST(random_views)
{
    static unsigned char memory[1 << 17];
    static unsigned char expected[1 << 17];
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 3000 && !test_has_failed(); round++) {
        int64_t shape[SHOAL_MAX_DIMS];
        int n_dims = oracle_random_shape(&random, 4, 7, shape);
        shoal_dtype dtype = (shoal_dtype)(1 + round % (DTYPE_COUNT - 1));
        struct oracle_view view =
            oracle_random_view(&random, round % 2 == 0 ? ORACLE_ROW_MAJOR : ORACLE_DISTINCT, n_dims, shape);
        struct kernel_scalar value = round % 3 == 0   ? real(0)
                                     : round % 3 == 1 ? real(-1.0 / 3)
                                                      : integer((int64_t)test_random_u64(&random));
        size_t bytes = dtype_bytes(dtype);
        size_t shift = test_random_below(&random, 3);
        size_t total = shift + (size_t)view.extent * bytes + 16;
        REQUIRE(total <= sizeof(memory));
        memset(memory, 0x5a, total);
        memset(expected, 0x5a, total);
        int64_t index[SHOAL_MAX_DIMS] = {0};
        bool has_elements = oracle_count(n_dims, shape) > 0;
        while (has_elements) {
            size_t offset = (size_t)oracle_element_offset(&view, n_dims, index) * bytes;
            kernel_scalar_store(dtype, expected + shift + offset, value);
            has_elements = oracle_next_index(n_dims, shape, index);
        }
        struct kernel_operand dst = {.data = address_of(memory + shift + (size_t)view.offset * bytes),
                                     .strides = view.strides};
        kernel_fill_nd(dtype, dst, n_dims, shape, value);
        CHECK_BYTES(memory, expected, total);
    }
}
