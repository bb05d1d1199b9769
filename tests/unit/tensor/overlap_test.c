/* SPDX-License-Identifier: MIT */
/* Which views share memory, against their bytes marked one by one. */
#include <string.h>

#include "harness/test.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/tensor.h"

enum {
    N_BYTES = 960, /* a multiple of the sizes of all dtypes used */
    N_RANDOM = 20000
};

static void mark(const shoal_tensor *tensor, unsigned char marks[N_BYTES])
{
    const struct layout *layout = &tensor->layout;
    size_t element_bytes = dtype_bytes(tensor->dtype);
    memset(marks, 0, N_BYTES);
    for (int64_t i = 0; i < tensor->count; i++) {
        int64_t rest = i;
        int64_t at = layout->offset;
        for (int d = layout->n_dims - 1; d >= 0; d--) {
            at += rest % layout->shape[d] * layout->strides[d];
            rest /= layout->shape[d];
        }
        memset(marks + (size_t)at * element_bytes, 1, element_bytes);
    }
}

static bool share(const shoal_tensor *a, const shoal_tensor *b)
{
    unsigned char x[N_BYTES];
    unsigned char y[N_BYTES];
    mark(a, x);
    mark(b, y);
    for (int i = 0; i < N_BYTES; i++) {
        if (x[i] && y[i]) {
            return true;
        }
    }
    return false;
}

/* Any sizes, strides and offset that stay inside; strides are more often those of something sliced. */
static shoal_tensor *random_view(struct test_random *random, shoal_tensor *base)
{
    int64_t n = N_BYTES / (int64_t)dtype_bytes(base->dtype);
    int64_t shape[4];
    int64_t strides[4];
    int n_dims = (int)test_random_below(random, 5);
    int64_t reach = 0;
    int64_t low = 0;
    int64_t step = 1 + (int64_t)test_random_below(random, 3);
    for (int i = n_dims - 1; i >= 0; i--) {
        shape[i] = test_random_below(random, 32) > 0 ? 1 + (int64_t)test_random_below(random, 4) : 0;
        strides[i] = test_random_below(random, 3) > 0 ? step : (int64_t)test_random_below(random, 12);
        strides[i] = test_random_below(random, 6) > 0 ? strides[i] : -strides[i];
        step = strides[i] * (shape[i] + (int64_t)test_random_below(random, 2));
        step = step < 0 ? -step : step;
        int64_t span = shape[i] > 1 ? strides[i] * (shape[i] - 1) : 0;
        low += span < 0 ? -span : 0;
        reach += span < 0 ? -span : span;
    }
    if (reach >= n) {
        return NULL;
    }
    int64_t room = n - reach < 30 ? n - reach : 30;
    int64_t offset = low + (int64_t)test_random_below(random, (uint64_t)room);
    return shoal_as_strided(base, shape, strides, n_dims, offset);
}

TEST(sharing_memory_is_told_exactly)
{
    static const shoal_dtype dtypes[] = {SHOAL_U8, SHOAL_BF16, SHOAL_F32, SHOAL_F64};
    static _Alignas(16) unsigned char memory[N_BYTES];
    struct test_random random = test_random_begin(7);
    int n_sharing = 0;
    int n_between = 0;
    for (int k = 0; k < N_RANDOM && !test_has_failed(); k++) {
        shoal_tensor *views[2];
        REQUIRE_OK(shoal_scope_begin());
        for (int i = 0; i < 2; i++) {
            shoal_dtype dtype = dtypes[test_random_below(&random, 4)];
            int64_t count = N_BYTES / (int64_t)dtype_bytes(dtype);
            /* Two storages over the same memory. */
            views[i] = random_view(&random, shoal_from_memory(memory, &count, 1, dtype, NULL, NULL, NULL));
        }
        if (views[0] && views[1]) {
            bool is_sharing = share(views[0], views[1]);
            CHECK_INT(tensor_overlaps(views[0], views[1]), is_sharing);
            CHECK_INT(tensor_overlaps(views[1], views[0]), is_sharing);
            n_sharing += is_sharing;
            n_between += !is_sharing && tensor_may_overlap(views[0], views[1]);
        }
        CHECK_OK(shoal_scope_end());
    }
    CHECK(n_sharing > N_RANDOM / 8 && n_between > N_RANDOM / 32);
}

TEST(slices_lie_between_each_other)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){1000, 1000, 4}, 3, SHOAL_F32);
    shoal_tensor *left = shoal_narrow(t, 1, 0, 500);
    shoal_tensor *right = shoal_narrow(t, 1, 500, 500);
    shoal_tensor *middle = shoal_narrow(t, 1, 499, 2);
    CHECK(!tensor_overlaps(left, right));
    CHECK(tensor_overlaps(left, middle));
    CHECK(tensor_overlaps(middle, right));
    CHECK(!tensor_overlaps(shoal_slice(t, 0, 0, 1000, 2), shoal_slice(t, 0, 1, 1000, 2)));
    CHECK(tensor_overlaps(shoal_slice(t, 0, 0, 1000, 2), shoal_slice(t, 0, 1, 1000, 3)));
    CHECK(!tensor_overlaps(shoal_transpose(left, 0, 2), shoal_narrow(right, 2, 3, 1)));
    CHECK(!tensor_overlaps(shoal_narrow(t, 2, 1, 1), shoal_narrow(t, 2, 2, 2)));
    CHECK(tensor_overlaps(t, middle));
    CHECK(tensor_overlaps(left, left));
    CHECK(!tensor_overlaps(left, shoal_zeros((int64_t[]){3}, 1, SHOAL_F32)));
    CHECK(!tensor_overlaps(left, shoal_narrow(left, 0, 0, 0)));
    CHECK_OK(shoal_scope_end());
}

/* Tensors without memory have places too: those of their storages. */
TEST(without_memory_views_of_one_storage_can_share)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){4, 4}, 2, SHOAL_F32);
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK(tensor_overlaps(shoal_narrow(t, 1, 0, 2), shoal_narrow(t, 1, 1, 2)));
    CHECK(!tensor_overlaps(shoal_narrow(t, 1, 0, 2), shoal_narrow(t, 1, 2, 2)));
    CHECK_OK(shoal_scope_end());
}

/* Strides that have nothing to do with each other: no answer in time is "they may". */
TEST(a_search_that_takes_too_long_gives_up)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){8000000}, 1, SHOAL_U8);
    const int64_t sizes[4] = {30, 30, 30, 30};
    shoal_tensor *a = shoal_as_strided(t, sizes, (int64_t[]){60014, 60022, 60026, 60038}, 4, 0);
    shoal_tensor *b = shoal_as_strided(t, sizes, (int64_t[]){60082, 60106, 60118, 60122}, 4, 30001);
    REQUIRE(a && b);
    CHECK(!tensor_overlaps(a, b)); /* even and odd: the common divisor knows */
    shoal_tensor *c = shoal_as_strided(t, sizes, (int64_t[]){60083, 60106, 60118, 60122}, 4, 30001);
    (void)tensor_overlaps(a, c); /* whatever it says, it says so */
    CHECK_OK(shoal_scope_end());
}
