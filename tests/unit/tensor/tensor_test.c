/* SPDX-License-Identifier: MIT */
/* Asking tensors, naming them, taking their memory away and giving it back; bounds and overlap. */
#include <stdatomic.h>
#include <string.h>

#include "base/completion.h"
#include "harness/test.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "device/device.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

static void count_call(void *context, void *data)
{
    atomic_fetch_add((_Atomic int *)context, 1);
}

/* NULL ------------------------------------------------------------------------------------------------- */

TEST(a_null_tensor_is_answered_not_followed)
{
    CHECK_INT(shoal_tensor_dtype(NULL), 0);
    CHECK_INT(shoal_tensor_device(NULL), 0);
    CHECK_INT(shoal_tensor_n_dims(NULL), 0);
    CHECK(!shoal_tensor_shape(NULL));
    CHECK(!shoal_tensor_strides(NULL));
    CHECK_INT(shoal_tensor_offset(NULL), 0);
    CHECK_INT(shoal_tensor_count(NULL), 0);
    CHECK(!shoal_tensor_is_contiguous(NULL));
    CHECK_INT(shoal_tensor_version(NULL), 0);
    CHECK(!shoal_tensor_shares_storage(NULL, NULL));
    CHECK_STRING(shoal_tensor_name(NULL), "");
    CHECK(!shoal_data(NULL));
    CHECK_ERROR_TEXT("tensor is NULL");
    CHECK(!shoal_mutable_data(NULL));
    CHECK_ERROR_TEXT("tensor is NULL");
    CHECK_STATUS(shoal_wait(NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor is NULL");
    CHECK_STATUS(shoal_tensor_set_name(NULL, "x"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_tensor_release_data(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_tensor_rebind_data(NULL, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor is NULL");
}

/* Making ----------------------------------------------------------------------------------------------- */

static void check_not_made(shoal_tensor *tensor, const char *op, const char *words)
{
    CHECK(!tensor);
    CHECK_ERROR_TEXT(op);
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_scope_begin());
}

TEST(constructors_refuse_bad_arguments)
{
    const int64_t big[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    REQUIRE_OK(shoal_scope_begin());
    check_not_made(shoal_empty((int64_t[]){2}, 1, (shoal_dtype)0), "empty", "dtype: 0");
    check_not_made(shoal_zeros((int64_t[]){2}, 1, (shoal_dtype)18), "zeros", "dtype: 18");
    check_not_made(shoal_full((int64_t[]){2}, 1, 1.0, (shoal_dtype)-4), "full", "dtype: -4");
    check_not_made(shoal_empty((int64_t[]){2, -2}, 2, SHOAL_F32), "empty", "-2");
    check_not_made(shoal_zeros(NULL, 1, SHOAL_F32), "zeros", "shape");
    check_not_made(shoal_zeros((int64_t[]){1}, -1, SHOAL_F32), "zeros", "-1");
    check_not_made(shoal_zeros((int64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, SHOAL_F32), "zeros", "9");
    check_not_made(shoal_empty(big, 2, SHOAL_I8), "empty", "[1099511627776, 1099511627776]");
    check_not_made(shoal_empty((int64_t[]){INT64_MAX / 2}, 1, SHOAL_F32), "empty", "4611686018427387903");
    check_not_made(shoal_empty_on((int64_t[]){1}, 1, SHOAL_F32, (shoal_device)7), "empty", "7");
    check_not_made(shoal_empty_on((int64_t[]){1}, 1, SHOAL_F32, (shoal_device)-1), "empty", "-1");
    CHECK_OK(shoal_scope_end());
}

TEST(too_much_memory_is_an_error_with_its_size)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_empty((int64_t[]){PTRDIFF_MAX - 8}, 1, SHOAL_I8));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_NO_MEMORY);
}

/* What is shorter than a cache line is aligned for every dtype. */
TEST(fresh_data_is_aligned_for_vectors)
{
    REQUIRE_OK(shoal_scope_begin());
    for (int64_t n = 0; n < 200; n++) {
        const void *data = shoal_data(shoal_empty(&n, 1, SHOAL_U8));
        REQUIRE(data);
        CHECK_INT((uintptr_t)data % (n < 64 ? 16 : 64), 0);
    }
    CHECK_OK(shoal_scope_end());
}

TEST(meta_tensors_have_shapes_only)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_empty_on((int64_t[]){INT64_C(1) << 40, 3}, 2, SHOAL_F32, SHOAL_META);
    REQUIRE(t);
    CHECK_INT(shoal_tensor_device(t), SHOAL_META);
    CHECK_INT(shoal_tensor_count(t), 3 * (INT64_C(1) << 40));
    CHECK(!shoal_data(t));
    CHECK_ERROR_TEXT("meta");
    CHECK_INT(shoal_tensor_version(t), 0);
    CHECK(!shoal_mutable_data(t));
    CHECK_INT(shoal_tensor_version(t), 0);
    CHECK_STATUS(shoal_tensor_release_data(t), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("meta");
    CHECK_STATUS(shoal_tensor_rebind_data(t, NULL, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_OK(shoal_scope_end());
}

/* Names ------------------------------------------------------------------------------------------------ */

TEST(names_belong_to_the_storage_and_can_be_removed)
{
    char name[] = "layers.3.weight";
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    shoal_tensor *view = shoal_narrow(t, 0, 0, 2);
    REQUIRE(view);
    CHECK_STRING(shoal_tensor_name(t), "");
    CHECK_OK(shoal_tensor_set_name(t, name));
    name[0] = 'X';
    CHECK_STRING(shoal_tensor_name(view), "layers.3.weight");
    CHECK_OK(shoal_tensor_set_name(view, shoal_tensor_name(view))); /* its own name is a legal argument */
    CHECK_STRING(shoal_tensor_name(t), "layers.3.weight");
    CHECK_OK(shoal_tensor_set_name(view, ""));
    CHECK_STRING(shoal_tensor_name(t), "");
    CHECK_OK(shoal_tensor_set_name(t, "a"));
    CHECK_OK(shoal_tensor_set_name(t, NULL));
    CHECK_STRING(shoal_tensor_name(t), "");
    CHECK_OK(shoal_scope_end());
}

/* Releasing and re-binding ----------------------------------------------------------------------------- */

TEST(released_data_is_an_error_that_names_the_tensor)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){4}, 1, 3, SHOAL_F32);
    shoal_tensor *view = shoal_narrow(t, 0, 1, 2);
    REQUIRE(view);
    CHECK_OK(shoal_tensor_set_name(t, "w.shard"));
    CHECK_OK(shoal_tensor_release_data(view));
    CHECK_INT(shoal_tensor_version(t), 0);
    CHECK(!shoal_data(t));
    CHECK_ERROR_TEXT("w.shard");
    CHECK(!shoal_data(view));
    CHECK_ERROR_TEXT("released");
    CHECK(!shoal_mutable_data(view));
    CHECK_ERROR_TEXT("w.shard");
    CHECK_INT(shoal_tensor_version(t), 0);
    /* Views of it are still only arithmetic. */
    CHECK(shoal_select(view, 0, 0));
    /* Twice is not an error: there is nothing left to give back. */
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK(!shoal_add(view, view));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("w.shard");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
}

/* Each op on a released tensor must fail before it writes anything. */
TEST(in_place_ops_on_released_data_fail)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *gone = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    shoal_tensor *here = shoal_full((int64_t[]){4}, 1, 5, SHOAL_F32);
    REQUIRE(gone && here);
    CHECK_OK(shoal_tensor_set_name(gone, "gone"));
    CHECK_OK(shoal_tensor_release_data(gone));
    for (int k = 0; k < 6; k++) {
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *pair[] = {here, gone};
        shoal_tensor *result = k == 0   ? shoal_copy_(gone, here)
                               : k == 1 ? shoal_copy_(here, gone)
                               : k == 2 ? shoal_add_(here, gone)
                               : k == 3 ? shoal_neg_(gone)
                               : k == 4 ? shoal_cat(pair, 2, 0)
                                        : shoal_sum(gone, NULL, 0, false);
        CHECK(!result);
        CHECK_ERROR_TEXT("gone");
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    }
    const float *data = shoal_data(here);
    CHECK(data && data[0] == 5.0f && data[3] == 5.0f);
    CHECK_OK(shoal_scope_end());
}

TEST(rebinding_gives_all_views_the_new_memory)
{
    _Atomic int n_deleted = 0;
    _Alignas(16) float memory[4] = {10, 20, 30, 40};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){4}, 1, 3, SHOAL_F32);
    shoal_tensor *view = shoal_narrow(t, 0, 1, 2);
    REQUIRE(view);
    (void)shoal_mutable_data(t);
    uint64_t version = shoal_tensor_version(t);
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK_OK(shoal_tensor_rebind_data(view, memory, count_call, &n_deleted));
    CHECK(shoal_data(t) == memory);
    CHECK(shoal_data(view) == memory + 1);
    CHECK_INT(shoal_tensor_version(t), version);
    /* Without releasing first: the old memory goes. */
    CHECK_OK(shoal_tensor_rebind_data(t, NULL, NULL, NULL));
    CHECK_INT(n_deleted, 1);
    float *fresh = shoal_mutable_data(t);
    REQUIRE(fresh);
    memset(fresh, 0, 4 * sizeof(float));
    CHECK(shoal_data(view) == fresh + 1);
    CHECK_INT(shoal_tensor_version(t), version + 1);
    CHECK_OK(shoal_tensor_rebind_data(t, memory, count_call, &n_deleted));
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 2);
}

TEST(rebinding_refuses_misaligned_memory_and_calls_no_deleter)
{
    _Atomic int n_deleted = 0;
    _Alignas(16) char memory[64] = {0};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){4}, 1, 3, SHOAL_F32);
    REQUIRE(t);
    CHECK_STATUS(shoal_tensor_rebind_data(t, memory + 2, count_call, &n_deleted), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("data: address");
    CHECK_ERROR_TEXT("f32");
    const float *data = shoal_data(t);
    CHECK(data && data[3] == 3.0f);
    CHECK_INT(n_deleted, 0);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
}

/* Memory replaced under work in flight must stay until that work is done. */
TEST(rebinding_in_flight_keeps_the_old_memory)
{
    _Atomic int n_deleted = 0;
    float memory[2] = {0};
    struct completion *write = completion_create();
    REQUIRE(write);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_from_memory(memory, (int64_t[]){2}, 1, SHOAL_F32, NULL, count_call, &n_deleted);
    REQUIRE(t);
    CHECK_OK(storage_add_write(t->storage, write));
    CHECK_OK(shoal_tensor_rebind_data(t, NULL, NULL, NULL));
    CHECK_INT(n_deleted, 0);
    completion_finish(write, SHOAL_OK);
    CHECK_INT(n_deleted, 1);
    CHECK(shoal_data(t));
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

static shoal_status rebind_everything(void *context)
{
    _Atomic int n_deleted = 0;
    float memory[2];
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *t = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    if (t) {
        status = shoal_tensor_rebind_data(t, memory, count_call, &n_deleted);
        CHECK(status == SHOAL_OK || shoal_data(t));
        bool is_bound = status == SHOAL_OK;
        status = is_bound ? shoal_tensor_rebind_data(t, NULL, NULL, NULL) : status;
        CHECK_INT(n_deleted, status == SHOAL_OK ? 1 : 0);
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

TEST(rebinding_survives_failing_allocations)
{
    CHECK(test_sweep_allocations(rebind_everything, NULL) >= 3);
}

/* Bounds and overlap ----------------------------------------------------------------------------------- */

TEST(views_stay_inside_the_storage)
{
    struct layout row = {.n_dims = 1, .shape = {3}, .strides = {2}, .offset = 1};
    CHECK_OK(tensor_check_bounds(6 * 4, SHOAL_F32, &row));
    CHECK_STATUS(tensor_check_bounds(6 * 4 - 1, SHOAL_F32, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1..5");
    CHECK_ERROR_TEXT("storage of 5");
    row.strides[0] = -2;
    row.offset = 4;
    CHECK_OK(tensor_check_bounds(5 * 4, SHOAL_F32, &row));
    row.offset = 3;
    CHECK_STATUS(tensor_check_bounds(5 * 4, SHOAL_F32, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("-1..3");
    struct layout nothing = {.n_dims = 1, .shape = {0}, .strides = {1}, .offset = 0};
    CHECK_OK(tensor_check_bounds(0, SHOAL_F32, &nothing));
    struct layout scalar = {.n_dims = 0, .offset = INT64_MAX};
    CHECK_STATUS(tensor_check_bounds(4, SHOAL_F32, &scalar), SHOAL_ERR_INVALID);
    scalar.offset = INT64_MIN;
    CHECK_STATUS(tensor_check_bounds(4, SHOAL_F32, &scalar), SHOAL_ERR_INVALID);
}

/* Brute force over bytes; "may" allows a wrong yes, never a wrong no. */
TEST(overlap_is_never_missed)
{
    struct test_random random = test_random_begin(11);
    int n_apart = 0;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *base = shoal_zeros((int64_t[]){24}, 1, SHOAL_I16);
    REQUIRE(base);
    for (int k = 0; k < 3000 && !test_has_failed(); k++) {
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *views[2];
        bool touched[2][24] = {{false}};
        for (int v = 0; v < 2; v++) {
            int64_t n = (int64_t)test_random_below(&random, 4);
            int64_t step = (int64_t)test_random_below(&random, 5);
            int64_t offset = (int64_t)test_random_below(&random, 8) + (v == 1 ? 4 : 0);
            views[v] = shoal_as_strided(base, &n, &step, 1, offset);
            REQUIRE(views[v]);
            for (int64_t i = 0; i < n; i++) {
                touched[v][offset + i * step] = true;
            }
        }
        bool overlaps = false;
        for (int i = 0; i < 24; i++) {
            overlaps = overlaps || (touched[0][i] && touched[1][i]);
        }
        bool answer = tensor_may_overlap(views[0], views[1]);
        CHECK(answer || !overlaps);
        CHECK_INT(answer, tensor_may_overlap(views[1], views[0]));
        n_apart += !answer;
        CHECK_OK(shoal_scope_end());
    }
    CHECK(n_apart > 100);
    CHECK_OK(shoal_scope_end());
}

/* Two storages over the same memory of the caller overlap too. */
TEST(overlap_is_seen_across_storages)
{
    int32_t memory[8] = {0};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = shoal_from_memory(memory, (int64_t[]){5}, 1, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *b = shoal_from_memory(memory + 4, (int64_t[]){4}, 1, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *c = shoal_from_memory(memory + 5, (int64_t[]){3}, 1, SHOAL_I32, NULL, NULL, NULL);
    REQUIRE(a && b && c);
    CHECK(tensor_may_overlap(a, b));
    CHECK(!tensor_may_overlap(a, c));
    CHECK(!shoal_tensor_shares_storage(a, b));
    CHECK_OK(shoal_scope_end());
}

static void check_span(const shoal_tensor *tensor, size_t first, size_t end, bool is_dense)
{
    REQUIRE(tensor);
    struct span span = tensor_span(tensor);
    CHECK_INT(span.first, first);
    CHECK_INT(span.end, end);
    CHECK_INT(span.is_dense, is_dense);
}

TEST(spans_are_the_bytes_from_first_to_last)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){2, 3}, 2, SHOAL_F32);
    check_span(t, 0, 24, true);
    check_span(shoal_transpose(t, 0, 1), 0, 24, true);
    check_span(shoal_narrow(t, 0, 1, 1), 12, 24, true);
    check_span(shoal_narrow(t, 1, 1, 1), 4, 20, false);
    check_span(shoal_narrow(t, 0, 1, 0), 0, 0, true);
    /* Six elements in three places. */
    check_span(shoal_as_strided(t, (int64_t[]){2, 3}, (int64_t[]){0, 1}, 2, 0), 0, 12, false);
    /* Four elements in three places, with a hole: as many as would fill the span. */
    check_span(shoal_as_strided(t, (int64_t[]){2, 2}, (int64_t[]){2, 2}, 2, 1), 4, 24, false);
    check_span(shoal_as_strided(t, (int64_t[]){3}, (int64_t[]){2}, 1, 1), 4, 24, false);
    check_span(shoal_zeros((int64_t[]){0}, 1, SHOAL_F32), 0, 0, true);
    check_span(shoal_zeros(NULL, 0, SHOAL_I64), 0, 8, true);
    CHECK_OK(shoal_scope_end());
}

/* Tables ----------------------------------------------------------------------------------------------- */

TEST(dtype_and_device_tables_answer_by_name)
{
    for (int d = 1; d < DTYPE_COUNT; d++) {
        shoal_dtype found = (shoal_dtype)0;
        CHECK_OK(shoal_dtype_find(shoal_dtype_name((shoal_dtype)d), &found));
        CHECK_INT(found, d);
        CHECK(shoal_dtype_bytes((shoal_dtype)d) > 0);
    }
    CHECK_INT(shoal_dtype_bytes((shoal_dtype)0), 0);
    CHECK_INT(shoal_dtype_bytes((shoal_dtype)99), 0);
    CHECK_STRING(shoal_dtype_name((shoal_dtype)-1), "?");
    CHECK(!shoal_dtype_is_floating((shoal_dtype)99));
    CHECK(!shoal_dtype_is_floating(SHOAL_C64));
    CHECK(shoal_dtype_is_floating(SHOAL_BF16));
    shoal_dtype dtype = (shoal_dtype)77;
    CHECK_STATUS(shoal_dtype_find("f31", &dtype), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("f31");
    CHECK_STATUS(shoal_dtype_find(NULL, &dtype), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_dtype_find("f32", NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_dtype_find("?", &dtype), SHOAL_ERR_INVALID);
    CHECK_INT(dtype, 77);
    shoal_reduce_op reduce = SHOAL_MAX;
    CHECK_OK(shoal_reduce_op_find("PREMUL_sum", &reduce));
    CHECK_INT(reduce, SHOAL_PREMUL_SUM);
    CHECK_STATUS(shoal_reduce_op_find("summ", &reduce), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("reduce_op_find: there is no reduce operator \"summ\"; the nearest is \"sum\"");
    CHECK_STRING(shoal_reduce_op_name((shoal_reduce_op)42), "?");
    shoal_device device = SHOAL_CPU;
    CHECK_OK(device_find("meta", &device));
    CHECK_INT(device, SHOAL_META);
    CHECK_STATUS(device_find("gpu", &device), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gpu");
}
