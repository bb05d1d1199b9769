/* SPDX-License-Identifier: MIT */
/* Tensors over the caller's memory: where elements lie, when the deleter runs, what is refused. */
#include <stdatomic.h>
#include <string.h>

#include "harness/test.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

struct deletion {
    _Atomic int count;
    void *data;
};

static void note_deletion(void *context, void *data)
{
    struct deletion *deletion = context;
    atomic_fetch_add(&deletion->count, 1);
    deletion->data = data;
}

/* Calls from_memory in a scope of its own, expects a failure with the words, and no call of the deleter. */
static void check_refused(void *data, shoal_dtype dtype, int n_dims, const int64_t *shape,
                          const int64_t *strides, const char *words)
{
    struct deletion deletion = {.count = 0};
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_from_memory(data, shape, n_dims, dtype, strides, note_deletion, &deletion));
    CHECK_ERROR_TEXT("from_memory");
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_INT(deletion.count, 0);
}

TEST(elements_are_the_callers)
{
    float values[6] = {1, 2, 3, 4, 5, 6};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_from_memory(values, (int64_t[]){2, 3}, 2, SHOAL_F32, NULL, NULL, NULL);
    REQUIRE(t);
    CHECK(shoal_data(t) == values);
    CHECK(shoal_mutable_data(t) == values);
    CHECK_INT(shoal_tensor_n_dims(t), 2);
    CHECK_INT(shoal_tensor_shape(t)[1], 3);
    CHECK_INT(shoal_tensor_strides(t)[0], 3);
    CHECK_INT(shoal_tensor_offset(t), 0);
    CHECK_INT(shoal_tensor_count(t), 6);
    CHECK_INT(shoal_tensor_dtype(t), SHOAL_F32);
    CHECK_INT(shoal_tensor_device(t), SHOAL_CPU);
    CHECK(shoal_tensor_is_contiguous(t));
    CHECK_INT(shoal_tensor_version(t), 1);
    const float *last = shoal_data(shoal_select(shoal_select(t, 0, -1), 0, -1));
    CHECK(last == &values[5]);
    CHECK_OK(shoal_scope_end());
}

TEST(every_dtype_every_position)
{
    _Alignas(64) char memory[1024];
    for (int d = 1; d < DTYPE_COUNT; d++) {
        REQUIRE_OK(shoal_scope_begin());
        size_t bytes = shoal_dtype_bytes((shoal_dtype)d);
        shoal_tensor *t = shoal_from_memory(memory, (int64_t[]){2, 3, 4}, 3, (shoal_dtype)d,
                                            (int64_t[]){1, 2, 6}, NULL, NULL);
        REQUIRE(t);
        CHECK_INT(shoal_tensor_dtype(t), d);
        CHECK_INT(t->storage->bytes, 24 * bytes);
        CHECK(!shoal_tensor_is_contiguous(t));
        shoal_tensor *element = shoal_select(shoal_select(shoal_select(t, 2, 3), 1, 2), 0, 1);
        CHECK((const char *)shoal_data(element) == memory + 23 * bytes);
        CHECK_OK(shoal_scope_end());
    }
}

TEST(negative_strides_reach_below_the_address)
{
    int16_t values[12];
    for (int16_t i = 0; i < 12; i++) {
        values[i] = i;
    }
    struct deletion deletion = {.count = 0};
    REQUIRE_OK(shoal_scope_begin());
    /* Rows backwards, columns forwards: element (0, 0) is values[8]. */
    shoal_tensor *t = shoal_from_memory(&values[8], (int64_t[]){3, 4}, 2, SHOAL_I16, (int64_t[]){-4, 1},
                                        note_deletion, &deletion);
    REQUIRE(t);
    CHECK(shoal_data(t) == &values[8]);
    CHECK_INT(t->storage->bytes, sizeof(values));
    CHECK_INT(shoal_tensor_offset(t), 8);
    const int16_t *copy = shoal_data(shoal_clone(t));
    REQUIRE(copy);
    for (int i = 0; i < 12; i++) {
        CHECK_INT(copy[i], (2 - i / 4) * 4 + i % 4);
    }
    CHECK(shoal_data(shoal_select(shoal_select(t, 0, 2), 0, 0)) == &values[0]);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(deletion.count, 1);
    CHECK(deletion.data == &values[8]);
}

TEST(zero_strides_repeat)
{
    double value = 2.5;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t =
        shoal_from_memory(&value, (int64_t[]){3, 2}, 2, SHOAL_F64, (int64_t[]){0, 0}, NULL, NULL);
    REQUIRE(t);
    CHECK_INT(t->storage->bytes, sizeof(value));
    const double *copy = shoal_data(shoal_clone(t));
    REQUIRE(copy);
    CHECK_DOUBLE(copy[5], 2.5);
    CHECK_OK(shoal_scope_end());
}

TEST(no_elements_need_no_memory)
{
    struct deletion deletion = {.count = 0};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t =
        shoal_from_memory(NULL, (int64_t[]){0, 5}, 2, SHOAL_C128, NULL, note_deletion, &deletion);
    REQUIRE(t);
    CHECK(shoal_data(t)); /* never NULL on success */
    CHECK(shoal_mutable_data(t));
    CHECK_INT(shoal_tensor_count(t), 0);
    CHECK(shoal_tensor_is_contiguous(t));
    CHECK(shoal_from_memory(NULL, (int64_t[]){0}, 1, SHOAL_F32, (int64_t[]){INT64_MIN}, NULL, NULL));
    CHECK(shoal_from_memory(NULL, (int64_t[]){INT64_MAX, INT64_MAX, 0}, 3, SHOAL_F32, NULL, NULL, NULL));
    CHECK_OK(shoal_scope_end());
    CHECK_INT(deletion.count, 1);
    CHECK(deletion.data == NULL);
}

TEST(a_scalar_has_one_element)
{
    int64_t value = -3;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_from_memory(&value, NULL, 0, SHOAL_I64, NULL, NULL, NULL);
    REQUIRE(t);
    CHECK_INT(shoal_tensor_n_dims(t), 0);
    CHECK_INT(shoal_tensor_count(t), 1);
    CHECK(shoal_data(t) == &value);
    CHECK_OK(shoal_scope_end());
}

TEST(deleter_runs_once_when_the_last_user_is_gone)
{
    char memory[4];
    struct deletion deletion = {.count = 0};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_U8, NULL, note_deletion, &deletion);
    shoal_tensor *view = shoal_tensor_ref(shoal_narrow(t, 0, 1, 2));
    REQUIRE(view);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(deletion.count, 0);
    CHECK(shoal_data(view) == memory + 1);
    shoal_tensor_unref(view);
    CHECK_INT(deletion.count, 1);
    CHECK(deletion.data == memory);
}

TEST(bad_arguments_are_named)
{
    _Alignas(16) char memory[256];
    const int64_t three[] = {3};
    check_refused(memory, (shoal_dtype)0, 1, three, NULL, "dtype: 0");
    check_refused(memory, (shoal_dtype)99, 1, three, NULL, "dtype: 99");
    check_refused(memory, (shoal_dtype)-1, 1, three, NULL, "dtype: -1");
    check_refused(memory, SHOAL_F32, -1, three, NULL, "n_dims: -1");
    check_refused(memory, SHOAL_F32, 9, (int64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1}, NULL, "n_dims: 9");
    check_refused(memory, SHOAL_F32, 1, NULL, NULL, "shape is NULL");
    check_refused(memory, SHOAL_F32, 2, (int64_t[]){2, -5}, NULL, "-5");
    check_refused(NULL, SHOAL_F32, 1, three, NULL, "data is NULL");
    check_refused(NULL, SHOAL_F32, 0, NULL, NULL, "data is NULL");
    check_refused(memory + 1, SHOAL_F32, 1, three, NULL, "aligned");
    check_refused(memory + 4, SHOAL_F64, 1, three, NULL, "f64");
    check_refused(memory + 4, SHOAL_C128, 1, three, NULL, "c128");
    check_refused(memory + 1, SHOAL_BF16, 1, three, NULL, "aligned");
    check_refused(memory + 1, SHOAL_F32, 1, (int64_t[]){0}, NULL, "aligned");
}

TEST(sizes_that_overflow_are_refused)
{
    _Alignas(16) char memory[16];
    check_refused(memory, SHOAL_U8, 2, (int64_t[]){INT64_MAX, 2}, NULL, "shape");
    check_refused(memory, SHOAL_F64, 1, (int64_t[]){INT64_MAX / 4}, NULL, "shape");
    check_refused(memory, SHOAL_F32, 1, (int64_t[]){INT64_C(1) << 62}, NULL, "4611686018427387904");
    check_refused(memory, SHOAL_U8, 1, (int64_t[]){3}, (int64_t[]){INT64_MAX}, "stride");
    check_refused(memory, SHOAL_U8, 1, (int64_t[]){3}, (int64_t[]){INT64_MIN}, "stride");
    check_refused(memory, SHOAL_F64, 1, (int64_t[]){2}, (int64_t[]){INT64_MAX / 4}, "bytes");
    check_refused(memory, SHOAL_F64, 1, (int64_t[]){2}, (int64_t[]){-(INT64_MAX / 4)}, "bytes");
    /* Each end fits, their distance does not. */
    check_refused(memory, SHOAL_U8, 3, (int64_t[]){2, 2, 2},
                  (int64_t[]){-(INT64_C(1) << 62), -(INT64_C(1) << 62), INT64_C(1) << 62}, "");
    check_refused(memory, SHOAL_U8, 2, (int64_t[]){2, 2}, (int64_t[]){INT64_MIN + 1, INT64_MAX - 1}, "");
}

static shoal_status make_from_memory(void *context)
{
    static float values[6];
    struct deletion deletion = {.count = 0};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *t =
        shoal_from_memory(values, (int64_t[]){2, 3}, 2, SHOAL_F32, NULL, note_deletion, &deletion);
    status = shoal_scope_end();
    CHECK((status == SHOAL_OK) == (t != NULL));
    CHECK_INT(deletion.count, t ? 1 : 0);
    return status;
}

TEST(from_memory_survives_failing_allocations)
{
    CHECK(test_sweep_allocations(make_from_memory, NULL) >= 3);
}
