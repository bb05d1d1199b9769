/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic on shapes and strides against brute force: every oracle here walks all indices one by one, so it
 * shares no idea with src/tensor/layout.c.
 */
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "tensor/layout.h"

enum {
    MAX_WALK = 4096,
    N_RANDOM = 20000
};

/* Offsets of all elements in row-major order; the layout has at most MAX_WALK of them. */
static int64_t walk(const struct layout *layout, int64_t offsets[MAX_WALK])
{
    int64_t index[SHOAL_MAX_DIMS] = {0};
    int64_t n = 0;
    for (int i = 0; i < layout->n_dims; i++) {
        if (layout->shape[i] == 0) {
            return 0;
        }
    }
    for (;;) {
        int64_t at = layout->offset;
        for (int i = 0; i < layout->n_dims; i++) {
            at += index[i] * layout->strides[i];
        }
        offsets[n++] = at;
        int dim = layout->n_dims - 1;
        while (dim >= 0 && ++index[dim] == layout->shape[dim]) {
            index[dim--] = 0;
        }
        if (dim < 0) {
            return n;
        }
    }
}

static int64_t product(int n_dims, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        count *= shape[i];
    }
    return count;
}

/* Row-major, then bent: dimensions exchanged, repeated, reversed, stepped over, strides of size 1 made up. */
static struct layout random_layout(struct test_random *random, int64_t max_size)
{
    static const int64_t odd_strides[] = {0, 1, 2, 3, 5, -1, -2, 7, 1000};
    struct layout layout = {.n_dims = (int)test_random_below(random, 6)};
    int64_t stride = 1;
    for (int i = layout.n_dims - 1; i >= 0; i--) {
        layout.shape[i] = (int64_t)test_random_below(random, (uint64_t)max_size + 1);
        if (layout.shape[i] == 0 && test_random_below(random, 8) != 0) {
            layout.shape[i] = 1;
        }
        layout.strides[i] = stride;
        stride *= layout.shape[i] > 0 ? layout.shape[i] : 1;
    }
    uint64_t n_bends = test_random_below(random, 4);
    for (uint64_t k = 0; k < n_bends && layout.n_dims > 0; k++) {
        int a = (int)test_random_below(random, (uint64_t)layout.n_dims);
        int b = (int)test_random_below(random, (uint64_t)layout.n_dims);
        struct layout old = layout;
        switch (test_random_below(random, 5)) {
        case 0:
            layout.shape[a] = old.shape[b];
            layout.shape[b] = old.shape[a];
            layout.strides[a] = old.strides[b];
            layout.strides[b] = old.strides[a];
            break;
        case 1:
            layout.strides[a] = 0;
            break;
        case 2:
            layout.strides[a] = -layout.strides[a];
            break;
        case 3:
            layout.strides[a] *= 2;
            break;
        default:
            layout.strides[a] =
                odd_strides[test_random_below(random, sizeof(odd_strides) / sizeof(odd_strides[0]))];
            break;
        }
    }
    layout.offset = (int64_t)test_random_below(random, 50);
    return layout;
}

/* Counting --------------------------------------------------------------------------------------------- */

TEST(count_multiplies_and_refuses_overflow)
{
    int64_t count = -7;
    CHECK_OK(layout_count(0, NULL, &count));
    CHECK_INT(count, 1);
    CHECK_OK(layout_count(3, (int64_t[]){2, 3, 4}, &count));
    CHECK_INT(count, 24);
    CHECK_OK(layout_count(2, (int64_t[]){INT64_MAX, 1}, &count));
    CHECK_INT(count, INT64_MAX);
    CHECK_OK(layout_count(3, (int64_t[]){INT64_MAX, INT64_MAX, 0}, &count));
    CHECK_INT(count, 0);
    CHECK_OK(layout_count(3, (int64_t[]){0, INT64_MAX, INT64_MAX}, &count));
    CHECK_INT(count, 0);
    count = -7;
    CHECK_STATUS(layout_count(2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 31}, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("[4294967296, 2147483648]");
    CHECK_STATUS(layout_count(2, (int64_t[]){INT64_MAX, 2}, &count), SHOAL_ERR_INVALID);
    /* 2^64 wraps to 0 and 2^65 + something to a small number: neither may look like a count. */
    CHECK_STATUS(layout_count(2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32}, &count), SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_count(3, (int64_t[]){INT64_C(6700417), INT64_C(6700417) * 641, 641}, &count),
                 SHOAL_ERR_INVALID);
    CHECK_INT(count, -7);
}

TEST(count_names_the_bad_argument)
{
    int64_t count = -7;
    CHECK_STATUS(layout_count(-1, NULL, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_dims: -1");
    CHECK_STATUS(layout_count(SHOAL_MAX_DIMS + 1, (int64_t[9]){0}, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_dims: 9");
    CHECK_STATUS(layout_count(1, NULL, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shape is NULL");
    CHECK_STATUS(layout_count(3, (int64_t[]){2, -3, 0}, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("-3");
    CHECK_ERROR_TEXT("dimension 1");
    CHECK_STATUS(layout_count(2, (int64_t[]){0, INT64_MIN}, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("-9223372036854775808");
    CHECK_INT(count, -7);
}

TEST(format_fits_the_longest_numbers)
{
    char text[LAYOUT_TEXT_BYTES];
    int64_t numbers[SHOAL_MAX_DIMS];
    for (int i = 0; i < SHOAL_MAX_DIMS; i++) {
        numbers[i] = INT64_MIN;
    }
    CHECK_STRING(layout_format(text, 0, numbers), "[]");
    CHECK_STRING(layout_format(text, 2, (int64_t[]){-1, 20}), "[-1, 20]");
    layout_format(text, SHOAL_MAX_DIMS, numbers);
    CHECK_INT(strlen(text), 8 * 20 + 7 * 2 + 2);
    CHECK(text[strlen(text) - 1] == ']');
}

/* Strides ---------------------------------------------------------------------------------------------- */

TEST(filled_strides_are_contiguous)
{
    struct test_random random = test_random_begin(1);
    int64_t offsets[MAX_WALK];
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        struct layout layout = random_layout(&random, 4);
        layout.offset = 0;
        layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
        CHECK(layout_is_contiguous(layout.n_dims, layout.shape, layout.strides));
        int64_t n = walk(&layout, offsets);
        for (int64_t i = 0; i < n; i++) {
            CHECK_INT(offsets[i], i);
        }
    }
}

TEST(filled_strides_never_overflow)
{
    int64_t strides[4];
    int64_t shape[] = {0, INT64_MAX, INT64_MAX, 3};
    layout_fill_strides(4, shape, strides);
    CHECK_INT(strides[3], 1);
    CHECK_INT(strides[2], 3);
    CHECK(strides[1] > 0 && strides[0] > 0);
    CHECK(layout_is_contiguous(4, shape, strides));
}

TEST(contiguous_means_walking_by_ones)
{
    struct test_random random = test_random_begin(2);
    int64_t offsets[MAX_WALK];
    int n_contiguous = 0;
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        struct layout layout = random_layout(&random, 3);
        int64_t n = walk(&layout, offsets);
        bool expected = true;
        for (int64_t i = 0; i < n; i++) {
            expected = expected && offsets[i] == layout.offset + i;
        }
        n_contiguous += expected;
        CHECK_INT(layout_is_contiguous(layout.n_dims, layout.shape, layout.strides), expected);
    }
    CHECK(n_contiguous > N_RANDOM / 20);
}

TEST(contiguous_check_survives_huge_strides)
{
    CHECK(!layout_is_contiguous(3, (int64_t[]){2, INT64_MAX / 2, 2}, (int64_t[]){INT64_MIN, INT64_MAX, 0}));
    CHECK(layout_is_contiguous(1, (int64_t[]){1}, (int64_t[]){INT64_MIN}));
}

TEST(self_overlap_is_never_missed)
{
    struct test_random random = test_random_begin(3);
    int64_t offsets[MAX_WALK];
    int n_clean = 0;
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        struct layout layout = random_layout(&random, 3);
        int64_t n = walk(&layout, offsets);
        bool overlaps = false;
        for (int64_t i = 0; i < n && !overlaps; i++) {
            for (int64_t j = 0; j < i && !overlaps; j++) {
                overlaps = offsets[i] == offsets[j];
            }
        }
        bool answer = layout_may_self_overlap(layout.n_dims, layout.shape, layout.strides);
        CHECK(answer || !overlaps);
        n_clean += !answer;
    }
    CHECK(n_clean > N_RANDOM / 4);
}

/* A wrong "true" here would make ordinary in-place operations fail. */
TEST(ordinary_layouts_do_not_self_overlap)
{
    CHECK(!layout_may_self_overlap(0, NULL, NULL));
    CHECK(!layout_may_self_overlap(3, (int64_t[]){2, 3, 4}, (int64_t[]){12, 4, 1}));
    CHECK(!layout_may_self_overlap(3, (int64_t[]){4, 2, 3}, (int64_t[]){1, 12, 4}));
    CHECK(!layout_may_self_overlap(2, (int64_t[]){2, 3}, (int64_t[]){-10, -3}));
    CHECK(!layout_may_self_overlap(3, (int64_t[]){2, 1, 3}, (int64_t[]){3, 0, 1}));
    CHECK(!layout_may_self_overlap(2, (int64_t[]){0, 3}, (int64_t[]){0, 0}));
    CHECK(layout_may_self_overlap(1, (int64_t[]){2}, (int64_t[]){0}));
    CHECK(layout_may_self_overlap(2, (int64_t[]){2, 3}, (int64_t[]){1, -1}));
}

TEST(extent_is_the_lowest_and_highest_offset)
{
    struct test_random random = test_random_begin(4);
    int64_t offsets[MAX_WALK];
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        struct layout layout = random_layout(&random, 4);
        int64_t n = walk(&layout, offsets);
        int64_t low = layout.offset;
        int64_t high = layout.offset - (n == 0);
        for (int64_t i = 0; i < n; i++) {
            low = offsets[i] < low ? offsets[i] : low;
            high = offsets[i] > high ? offsets[i] : high;
        }
        int64_t first;
        int64_t end;
        CHECK_OK(layout_extent(layout.n_dims, layout.shape, layout.strides, layout.offset, &first, &end));
        CHECK_INT(first, low);
        CHECK_INT(end, high + 1);
    }
}

TEST(extent_refuses_overflow)
{
    int64_t first = -7;
    int64_t end = -7;
    CHECK_STATUS(layout_extent(1, (int64_t[]){3}, (int64_t[]){INT64_MAX}, 0, &first, &end),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("9223372036854775807");
    CHECK_ERROR_TEXT("dimension 0");
    CHECK_STATUS(layout_extent(1, (int64_t[]){3}, (int64_t[]){INT64_MIN}, 0, &first, &end),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_extent(1, (int64_t[]){2}, (int64_t[]){INT64_MAX}, 0, &first, &end),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_extent(1, (int64_t[]){2}, (int64_t[]){1}, INT64_MAX - 1, &first, &end),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_extent(2, (int64_t[]){2, 2}, (int64_t[]){INT64_MIN, -1}, 0, &first, &end),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_extent(0, NULL, NULL, INT64_MAX, &first, &end), SHOAL_ERR_INVALID);
    CHECK_INT(first, -7);
    CHECK_INT(end, -7);
    CHECK_OK(layout_extent(2, (int64_t[]){1, 0}, (int64_t[]){INT64_MAX, INT64_MIN}, 5, &first, &end));
    CHECK_INT(first, 5);
    CHECK_INT(end, 5);
}

/* Dimensions and shapes -------------------------------------------------------------------------------- */

TEST(dims_count_from_both_ends)
{
    for (int n_dims = 1; n_dims <= SHOAL_MAX_DIMS; n_dims++) {
        for (int dim = -n_dims - 2; dim < n_dims + 2; dim++) {
            int got = -99;
            shoal_status status = layout_normalise_dim("dim", dim, n_dims, &got);
            bool is_good = dim >= -n_dims && dim < n_dims;
            CHECK_STATUS(status, is_good ? SHOAL_OK : SHOAL_ERR_INVALID);
            CHECK_INT(got, !is_good ? -99 : dim < 0 ? dim + n_dims : dim);
        }
    }
    int got = -99;
    CHECK_STATUS(layout_normalise_dim("dim_b", INT64_MIN, 3, &got), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dim_b: -9223372036854775808");
    CHECK_ERROR_TEXT("-3..2");
    CHECK_STATUS(layout_normalise_dim("dim", INT64_C(1) << 32, 3, &got), SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_normalise_dim("dim", 0, 0, &got), SHOAL_ERR_INVALID);
    CHECK_INT(got, -99);
}

TEST(minus_one_takes_what_is_left)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    CHECK_OK(layout_infer_shape(24, 3, (int64_t[]){2, -1, 4}, shape));
    CHECK_INT(shape[1], 3);
    CHECK_OK(layout_infer_shape(1, 0, NULL, shape));
    CHECK_OK(layout_infer_shape(0, 2, (int64_t[]){-1, 5}, shape));
    CHECK_INT(shape[0], 0);
    CHECK_OK(layout_infer_shape(0, 2, (int64_t[]){0, 5}, shape));
    CHECK_OK(layout_infer_shape(6, 2, (int64_t[]){6, 1}, shape));
    CHECK_INT(shape[0], 6);
    shape[0] = -9;
    CHECK_STATUS(layout_infer_shape(24, 2, (int64_t[]){-1, -1}, shape), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("[-1, -1]");
    CHECK_STATUS(layout_infer_shape(24, 2, (int64_t[]){-1, 5}, shape), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("24");
    CHECK_STATUS(layout_infer_shape(0, 2, (int64_t[]){-1, 0}, shape), SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_infer_shape(24, 2, (int64_t[]){-2, 12}, shape), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("-2");
    CHECK_STATUS(layout_infer_shape(24, 2, (int64_t[]){5, 5}, shape), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("25");
    CHECK_STATUS(layout_infer_shape(0, 3, (int64_t[]){-1, INT64_MAX, 2}, shape), SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_infer_shape(1, 9, (int64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1}, shape), SHOAL_ERR_INVALID);
    CHECK_STATUS(layout_infer_shape(1, -1, NULL, shape), SHOAL_ERR_INVALID);
    CHECK_INT(shape[0], -9);
}

struct broadcast_row {
    int a_dims;
    int64_t a[4];
    int b_dims;
    int64_t b[4];
    int n_dims; /* -1: does not broadcast */
    int64_t shape[4];
};

TEST(shapes_broadcast_as_in_numpy)
{
    static const struct broadcast_row rows[] = {
        {0, {0}, 0, {0}, 0, {0}},
        {0, {0}, 1, {3}, 1, {3}},
        {0, {0}, 1, {0}, 1, {0}},
        {1, {1}, 1, {0}, 1, {0}},
        {1, {2}, 1, {0}, -1, {0}},
        {1, {3}, 1, {3}, 1, {3}},
        {1, {3}, 1, {4}, -1, {0}},
        {2, {2, 3}, 1, {3}, 2, {2, 3}},
        {2, {2, 3}, 1, {2}, -1, {0}},
        {2, {2, 1}, 2, {1, 3}, 2, {2, 3}},
        {2, {1, 1}, 3, {4, 1, 5}, 3, {4, 1, 5}},
        {3, {8, 1, 6}, 3, {1, 7, 1}, 3, {8, 7, 6}},
        {4, {8, 1, 6, 1}, 3, {7, 1, 5}, 4, {8, 7, 6, 5}},
        {2, {2, 1}, 3, {8, 4, 3}, -1, {0}},
        {2, {0, 1}, 2, {1, 0}, 2, {0, 0}},
        {2, {0, 2}, 2, {3, 2}, -1, {0}},
    };
    for (size_t k = 0; k < 2 * sizeof(rows) / sizeof(rows[0]); k++) {
        const struct broadcast_row *row = &rows[k / 2];
        bool is_swapped = k % 2 == 1;
        int n_dims = -7;
        int64_t shape[SHOAL_MAX_DIMS];
        shoal_status status = layout_broadcast(
            is_swapped ? row->b_dims : row->a_dims, is_swapped ? row->b : row->a,
            is_swapped ? row->a_dims : row->b_dims, is_swapped ? row->a : row->b, &n_dims, shape);
        CHECK_STATUS(status, row->n_dims < 0 ? SHOAL_ERR_INVALID : SHOAL_OK);
        CHECK_INT(n_dims, row->n_dims < 0 ? -7 : row->n_dims);
        for (int i = 0; i < row->n_dims && n_dims == row->n_dims; i++) {
            CHECK_INT(shape[i], row->shape[i]);
        }
    }
}

TEST(broadcast_error_names_both_shapes_and_overflow_is_seen)
{
    int n_dims = -7;
    int64_t shape[SHOAL_MAX_DIMS];
    CHECK_STATUS(layout_broadcast(2, (int64_t[]){2, 3}, 1, (int64_t[]){4}, &n_dims, shape),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("[2, 3]");
    CHECK_ERROR_TEXT("[4]");
    CHECK_ERROR_TEXT("3 against 4");
    CHECK_STATUS(layout_broadcast(2, (int64_t[]){INT64_MAX, 1}, 1, (int64_t[]){2}, &n_dims, shape),
                 SHOAL_ERR_INVALID);
    CHECK_INT(n_dims, -7);
}

TEST(broadcast_strides_walk_the_small_tensor)
{
    int64_t strides[4];
    layout_broadcast_strides(2, (int64_t[]){1, 3}, (int64_t[]){77, 1}, 4, (int64_t[]){2, 4, 5, 3}, strides);
    CHECK_INT(strides[0], 0);
    CHECK_INT(strides[1], 0);
    CHECK_INT(strides[2], 0);
    CHECK_INT(strides[3], 1);
    layout_broadcast_strides(0, NULL, NULL, 1, (int64_t[]){5}, strides);
    CHECK_INT(strides[0], 0);
    layout_broadcast_strides(1, (int64_t[]){5}, (int64_t[]){-3}, 1, (int64_t[]){5}, strides);
    CHECK_INT(strides[0], -3);
}

/* Views ------------------------------------------------------------------------------------------------ */

/* Cuts `count` into random factors, ones included. */
static int random_factors(struct test_random *random, int64_t count, int64_t *shape)
{
    int n_dims = 0;
    while (n_dims < SHOAL_MAX_DIMS - 1 && (count > 1 || test_random_below(random, 3) == 0)) {
        int64_t divisors[MAX_WALK];
        size_t n = 0;
        for (int64_t d = 1; d <= count; d++) {
            if (count % d == 0) {
                divisors[n++] = d;
            }
        }
        shape[n_dims] = divisors[test_random_below(random, n)];
        count /= shape[n_dims++];
    }
    if (count > 1) {
        shape[n_dims++] = count;
    }
    return n_dims;
}

/* The definition: the stride of each new dimension is forced by its first step; do they explain all elements? */
static bool view_exists(const struct layout *old, int n_dims, const int64_t *shape)
{
    int64_t offsets[MAX_WALK];
    int64_t walked[MAX_WALK];
    int64_t n = walk(old, offsets);
    struct layout view = {.n_dims = n_dims, .offset = old->offset};
    int64_t step = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        view.shape[i] = shape[i];
        view.strides[i] = shape[i] > 1 ? offsets[step] - offsets[0] : 0;
        step *= shape[i];
    }
    return walk(&view, walked) == n && memcmp(offsets, walked, (size_t)n * sizeof(offsets[0])) == 0;
}

TEST(view_is_allowed_exactly_when_strides_exist)
{
    struct test_random random = test_random_begin(5);
    int64_t before[MAX_WALK];
    int64_t after[MAX_WALK];
    int n_views = 0;
    int n_copies = 0;
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        struct layout old = random_layout(&random, 4);
        int64_t count = product(old.n_dims, old.shape);
        if (count == 0) {
            continue;
        }
        struct layout view = {.offset = old.offset};
        view.n_dims = random_factors(&random, count, view.shape);
        bool answer = layout_view_strides(&old, view.n_dims, view.shape, view.strides);
        CHECK_INT(answer, view_exists(&old, view.n_dims, view.shape));
        if (answer) {
            CHECK_INT(walk(&view, after), walk(&old, before));
            CHECK_BYTES(after, before, (size_t)count * sizeof(before[0]));
        }
        n_views += answer;
        n_copies += !answer;
    }
    CHECK(n_views > N_RANDOM / 10);
    CHECK(n_copies > N_RANDOM / 10);
}

TEST(view_of_nothing_is_always_allowed)
{
    struct layout old = {.n_dims = 2, .shape = {0, 3}, .strides = {17, -5}};
    int64_t strides[SHOAL_MAX_DIMS];
    CHECK(layout_view_strides(&old, 3, (int64_t[]){4, 0, INT64_MAX}, strides));
    CHECK(layout_is_contiguous(3, (int64_t[]){4, 0, INT64_MAX}, strides));
    CHECK(layout_view_strides(&old, 1, (int64_t[]){0}, strides));
}
