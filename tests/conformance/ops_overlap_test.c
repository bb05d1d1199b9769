/* SPDX-License-Identifier: MIT */
/*
 * In-place ops whose source lies in the memory they write: the result is what it would be if the source had
 * been copied first. Checked for all dtypes against exactly that: a clone of the source.
 */
#include <string.h>

#include "harness/test.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

typedef shoal_tensor *(*binary_op)(shoal_tensor *self, shoal_tensor *other);

enum {
    SIDE = 12,
    N_ELEMS = SIDE * SIDE
};

/* Two equal tensors [SIDE, SIDE] with small numbers that differ. */
static bool make_twins(shoal_dtype dtype, shoal_tensor *twins[2])
{
    int64_t shape[] = {N_ELEMS};
    int64_t square[] = {SIDE, SIDE};
    shoal_tensor *numbers = shoal_empty(shape, 1, SHOAL_I32);
    int32_t *data = shoal_mutable_data(numbers);
    for (int i = 0; data && i < N_ELEMS; i++) {
        data[i] = i * 7 % 31 + 1;
    }
    for (int k = 0; k < 2; k++) {
        twins[k] = shoal_view(shoal_clone(shoal_to_dtype(numbers, dtype)), square, 2);
    }
    return twins[0] && twins[1];
}

/* Views of a square that overlap each other; `which` chooses a pair. False past the last. */
static bool take_views(shoal_tensor *t, int which, shoal_tensor **self, shoal_tensor **other)
{
    int64_t flat_shape[] = {N_ELEMS};
    shoal_tensor *flat = shoal_view(t, flat_shape, 1);
    switch (which) {
    case 0: /* shifted to the right */
        *self = shoal_narrow(flat, 0, 1, N_ELEMS - 1);
        *other = shoal_narrow(flat, 0, 0, N_ELEMS - 1);
        return true;
    case 1: /* shifted to the left */
        *self = shoal_narrow(flat, 0, 0, N_ELEMS - 1);
        *other = shoal_narrow(flat, 0, 1, N_ELEMS - 1);
        return true;
    case 2: /* its own transpose */
        *self = t;
        *other = shoal_transpose(t, 0, 1);
        return true;
    case 3: /* one of its rows, broadcast */
        *self = t;
        *other = shoal_select(t, 0, SIDE / 2);
        return true;
    case 4: /* one of its columns, broadcast along the other side */
        *self = t;
        *other = shoal_narrow(t, 1, SIDE - 1, 1);
        return true;
    case 5: /* one of its elements */
        *self = t;
        *other = shoal_select(shoal_select(t, 0, 3), 0, 4);
        return true;
    case 6: /* rows that interleave without meeting */
        *self = shoal_slice(t, 0, 0, SIDE, 2);
        *other = shoal_slice(t, 0, 1, SIDE, 2);
        return true;
    case 7: /* every second against the first half */
        *self = shoal_slice(flat, 0, 0, N_ELEMS, 2);
        *other = shoal_narrow(flat, 0, 0, N_ELEMS / 2);
        return true;
    case 8: /* itself */
        *self = t;
        *other = t;
        return true;
    case 9: /* backwards: the last element first */
        *self = flat;
        *other = shoal_as_strided(t, flat_shape, (int64_t[]){-1}, 1, N_ELEMS - 1);
        return true;
    default:
        return false;
    }
}

static void check_overlaps(shoal_dtype dtype, binary_op op, const char *name)
{
    for (int which = 0;; which++) {
        shoal_tensor *twins[2];
        shoal_tensor *self[2];
        shoal_tensor *other[2];
        REQUIRE_OK(shoal_scope_begin());
        REQUIRE(make_twins(dtype, twins));
        bool is_pair = take_views(twins[0], which, &self[0], &other[0]) &&
                       take_views(twins[1], which, &self[1], &other[1]);
        if (is_pair) {
            CHECK(op(self[0], other[0]) == self[0]);
            CHECK(op(self[1], shoal_clone(other[1])) == self[1]);
            const void *actual = shoal_data(twins[0]);
            const void *expected = shoal_data(twins[1]);
            REQUIRE(actual && expected);
            if (memcmp(actual, expected, N_ELEMS * shoal_dtype_bytes(dtype)) != 0) {
                test_failed(__FILE__, __LINE__, "%s of %s, overlap %d: not what a clone gives", name,
                            shoal_dtype_name(dtype), which);
            }
        }
        CHECK_OK(shoal_scope_end());
        if (!is_pair) {
            return;
        }
    }
}

TEST(overlapping_sources_are_read_first)
{
    for (int d = 1; d < DTYPE_COUNT; d++) {
        check_overlaps((shoal_dtype)d, shoal_copy_, "copy_");
        if (dtype_kind((shoal_dtype)d) == DTYPE_KIND_FLOAT8) {
            continue; /* without arithmetic */
        }
        check_overlaps((shoal_dtype)d, shoal_add_, "add_");
        check_overlaps((shoal_dtype)d, shoal_mul_, "mul_");
        if (d != SHOAL_BOOL) {
            check_overlaps((shoal_dtype)d, shoal_sub_, "sub_");
            check_overlaps((shoal_dtype)d, shoal_div_, "div_");
        }
    }
}

/* Two tensors that do not know of each other, over the same memory of the caller. */
TEST(overlap_between_storages_is_seen)
{
    int16_t memory[10];
    for (int16_t i = 0; i < 10; i++) {
        memory[i] = i;
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *low = shoal_from_memory(memory, (int64_t[]){9}, 1, SHOAL_I16, NULL, NULL, NULL);
    shoal_tensor *high = shoal_from_memory(memory + 1, (int64_t[]){9}, 1, SHOAL_I16, NULL, NULL, NULL);
    CHECK(shoal_copy_(high, low) == high);
    for (int i = 0; i < 10; i++) {
        CHECK_INT(memory[i], i == 0 ? 0 : i - 1);
    }
    CHECK(shoal_add_(low, high) == low);
    for (int i = 0; i < 9; i++) {
        CHECK_INT(memory[i], i == 0 ? 0 : 2 * i - 1);
    }
    CHECK_OK(shoal_scope_end());
}

/* Same bytes, other dtype: the elements do not line up, so the source must be read before. */
TEST(overlap_between_dtypes_is_seen)
{
    _Alignas(8) int32_t memory[8];
    int64_t expected[4];
    for (int32_t i = 0; i < 8; i++) {
        memory[i] = i + 1;
    }
    for (int i = 0; i < 4; i++) {
        expected[i] = memory[i];
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *narrow = shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *wide = shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_I64, NULL, NULL, NULL);
    CHECK(shoal_copy_(wide, narrow) == wide);
    CHECK_BYTES(memory, expected, sizeof(expected));
    CHECK_OK(shoal_scope_end());
}

typedef shoal_tensor *const *(*foreach_op)(shoal_tensor *const *self, shoal_tensor *const *other,
                                           size_t count);

static void check_pairs(foreach_op op, shoal_tensor *const *targets, shoal_tensor *const *sources,
                        const char *words)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *const *result = op(targets, sources, 2);
    if (words) {
        CHECK(!result);
        CHECK_ERROR_TEXT(words);
    } else {
        CHECK(result && result[0] == targets[0] && result[1] == targets[1]);
    }
    CHECK_STATUS(shoal_scope_end(), words ? SHOAL_ERR_INVALID : SHOAL_OK);
}

/* Whether a source was read before or after another pair was done would show in the result. Views of one tensor
   and tensors over one memory are told from those that only lie side by side; the own pair may overlap. */
TEST(sources_lie_apart_from_targets_of_other_pairs)
{
    static const foreach_op ops[] = {shoal_foreach_copy_, shoal_foreach_add_};
    int32_t memory[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t four[] = {4};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *whole = shoal_full((int64_t[]){8}, 1, 1, SHOAL_I32);
    shoal_tensor *low = shoal_narrow(whole, 0, 0, 4);
    shoal_tensor *middle = shoal_narrow(whole, 0, 3, 4);
    shoal_tensor *high = shoal_narrow(whole, 0, 4, 4);
    shoal_tensor *other = shoal_full(four, 1, 2, SHOAL_I32);
    shoal_tensor *lent = shoal_from_memory(memory, four, 1, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *lent_again = shoal_from_memory(memory + 3, four, 1, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *lent_apart = shoal_from_memory(memory + 4, four, 1, SHOAL_I32, NULL, NULL, NULL);
    REQUIRE(high && middle && lent && lent_again && lent_apart);
#define LIST(a, b) ((shoal_tensor *[]){a, b})
    for (int i = 0; i < 2; i++) {
        check_pairs(ops[i], LIST(low, other), LIST(other, middle), "source 0 shares memory with target 1");
        check_pairs(ops[i], LIST(low, other), LIST(lent, middle), "source 1 shares memory with target 0");
        check_pairs(ops[i], LIST(other, lent), LIST(lent_again, low), "source 0 shares memory with target 1");
        CHECK_INT(memory[0], 1);
        check_pairs(ops[i], LIST(low, other), LIST(lent, high), NULL);
        check_pairs(ops[i], LIST(low, lent), LIST(middle, lent_again), NULL);
        check_pairs(ops[i], LIST(other, lent), LIST(lent_apart, low), NULL);
        memory[0] = 1;
    }
#undef LIST
    CHECK_OK(shoal_scope_end());
}
