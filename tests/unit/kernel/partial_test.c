/* SPDX-License-Identifier: MIT */
/* Folds in several places give the bits of one kernel_reduce, for every operator and dtype, with any bits as elements. */
#include "kernel/kernel.h"

#include "base/error.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "tensor/dtype.h"

#include <string.h>

enum {
    N_SOURCES = 20, /* more than fit into one group of the kernel */
    COUNT = 1100,   /* more than one block */
    MAX_BYTES = 16
};

static unsigned char sources[N_SOURCES][COUNT * MAX_BYTES];
static unsigned char partials[2][COUNT * MAX_BYTES];
static unsigned char expected[COUNT * MAX_BYTES];
static unsigned char result[COUNT * MAX_BYTES];

/* Sources end here in turn: places of one, of several, and of more than a group. */
static const size_t place_ends[] = {1, 3, N_SOURCES};

static bool is_nan(shoal_dtype dtype, const unsigned char *element)
{
    double value = 0.0;
    if (dtype_kind(dtype) != DTYPE_KIND_FLOAT) {
        return false;
    }
    kernel_cast(SHOAL_F64, &value, dtype, element, 1);
    return value != value;
}

static void fill_sources(void)
{
    struct test_random random = test_random_begin(3);
    for (size_t s = 0; s < N_SOURCES; s++) {
        for (size_t i = 0; i < sizeof sources[s]; i++) {
            sources[s][i] = (unsigned char)test_random_u64(&random);
        }
    }
}

static void fold_in_places(shoal_reduce_op op, shoal_dtype dtype, size_t n_sources)
{
    const void *all[N_SOURCES];
    for (size_t s = 0; s < n_sources; s++) {
        all[s] = sources[s];
    }
    CHECK_OK(kernel_reduce(op, dtype, expected, all, n_sources, COUNT, 0.7));
    const void *before = NULL;
    size_t begin = 0;
    for (size_t place = 0; begin < n_sources; place++) {
        size_t end = place_ends[place] < n_sources ? place_ends[place] : n_sources;
        unsigned char *partial = partials[place % 2];
        CHECK_OK(kernel_partial_fold(op, dtype, partial, before, all + begin, end - begin, COUNT, 0.7));
        before = partial;
        begin = end;
    }
    kernel_partial_finish(op, dtype, result, before, n_sources, COUNT);
}

static size_t count_differences(shoal_dtype dtype)
{
    bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype real = dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    shoal_dtype part = is_complex ? real : dtype;
    size_t n_parts = is_complex ? 2 * COUNT : COUNT;
    size_t bytes = dtype_bytes(part);
    size_t n_differences = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const unsigned char *a = expected + i * bytes;
        const unsigned char *b = result + i * bytes;
        n_differences += memcmp(a, b, bytes) != 0 && !(is_nan(part, a) && is_nan(part, b));
    }
    return n_differences;
}

TEST(folds_in_places_have_the_bits_of_one)
{
    static const size_t counts[] = {1, 2, 5, N_SOURCES};
    fill_sources();
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        for (int op = 0; op <= SHOAL_PREMUL_SUM; op++) {
            if (kernel_reduce_check((shoal_reduce_op)op, (shoal_dtype)dtype) != SHOAL_OK) {
                error_clear();
                continue;
            }
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                fold_in_places((shoal_reduce_op)op, (shoal_dtype)dtype, counts[i]);
                CHECK_INT((int)count_differences((shoal_dtype)dtype), 0);
            }
        }
    }
}

TEST(partials_of_half_precision_are_single)
{
    CHECK_INT((int)kernel_partial_bytes(SHOAL_SUM, SHOAL_BF16), 4);
    CHECK_INT((int)kernel_partial_bytes(SHOAL_AVG, SHOAL_F16), 4);
    CHECK_INT((int)kernel_partial_bytes(SHOAL_SUM, SHOAL_F64), 8);
    CHECK_INT((int)kernel_partial_bytes(SHOAL_AVG, SHOAL_I32), 8);
    CHECK_INT((int)kernel_partial_bytes(SHOAL_AVG, SHOAL_U64), 16);
    CHECK_INT((int)kernel_partial_bytes(SHOAL_SUM, SHOAL_U64), 8);
    CHECK(kernel_reduce_has_order(SHOAL_MIN, SHOAL_F32));
    CHECK(!kernel_reduce_has_order(SHOAL_SUM, SHOAL_I8));
}
