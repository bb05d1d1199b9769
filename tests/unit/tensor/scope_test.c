/* SPDX-License-Identifier: MIT */
/* Scopes: what they own, what they remember, and whose they are. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal_compat/torch.h"
#include "shoal/dlpack.h"
#include "shoal/module.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/tensor.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

static void count_call(void *context, void *data)
{
    atomic_fetch_add((_Atomic int *)context, 1);
}

/* A tensor that tells when it dies. */
static shoal_tensor *make_counted(_Atomic int *n_deleted)
{
    static int32_t memory[2];
    return shoal_from_memory(memory, (int64_t[]){2}, 1, SHOAL_I32, NULL, count_call, n_deleted);
}

/* Owning ----------------------------------------------------------------------------------------------- */

TEST(tensors_die_with_their_scope)
{
    _Atomic int n_deleted = 0;
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 100; i++) {
        REQUIRE(make_counted(&n_deleted));
    }
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE(make_counted(&n_deleted));
    CHECK_INT(n_deleted, 0);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 1);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 101);
}

TEST(a_view_keeps_the_memory_after_its_base_is_gone)
{
    _Atomic int n_deleted = 0;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *view = shoal_scope_keep(shoal_narrow(make_counted(&n_deleted), 0, 1, 1));
    CHECK(view);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    CHECK(shoal_data(view));
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 1);
}

TEST(a_kept_tensor_belongs_to_the_parent)
{
    _Atomic int n_deleted = 0;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = make_counted(&n_deleted);
    REQUIRE(tensor);
    CHECK(shoal_scope_keep(tensor) == tensor);
    /* The innermost scope does not own it any more, so a second call changes nothing. */
    CHECK(shoal_scope_keep(tensor) == tensor);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    CHECK(shoal_scope_keep(tensor) == tensor);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 1);
}

TEST(many_kept_tensors_keep_their_places)
{
    enum {
        N = 50
    };
    _Atomic int n_deleted[N] = {0};
    shoal_tensor *tensors[N];
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE(shoal_zeros((int64_t[]){1}, 1, SHOAL_F32));
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < N; i++) {
        tensors[i] = make_counted(&n_deleted[i]);
        REQUIRE(tensors[i]);
    }
    for (int i = N - 1; i >= 0; i -= 3) {
        CHECK(shoal_scope_keep(tensors[i]) == tensors[i]);
    }
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N; i++) {
        CHECK_INT(n_deleted[i], (N - 1 - i) % 3 != 0);
    }
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N; i++) {
        CHECK_INT(n_deleted[i], 1);
    }
}

TEST(keeping_without_a_parent_is_an_error_and_changes_nothing)
{
    _Atomic int n_deleted = 0;
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_scope_keep(make_counted(&n_deleted)));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("scope_keep");
    CHECK_INT(n_deleted, 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_INT(n_deleted, 1);
    CHECK(!shoal_scope_keep(NULL));
    CHECK_ERROR_TEXT("no scope");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_scope_keep(NULL));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("NULL");
}

TEST(a_reference_outlives_all_scopes)
{
    _Atomic int n_deleted = 0;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = make_counted(&n_deleted);
    CHECK(shoal_tensor_ref(tensor) == tensor);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    REQUIRE_OK(shoal_scope_begin());
    /* Nobody's now: it is returned as it is. */
    CHECK(shoal_scope_keep(tensor) == tensor);
    shoal_tensor *again = shoal_contiguous(tensor);
    CHECK(again == tensor);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(n_deleted, 0);
    shoal_tensor_unref(tensor);
    CHECK_INT(n_deleted, 1);
    CHECK(!shoal_tensor_ref(NULL));
    shoal_tensor_unref(NULL);
}

TEST(a_tensor_of_an_outer_scope_survives_being_an_inner_result)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *outer = shoal_zeros((int64_t[]){3}, 1, SHOAL_F32);
    REQUIRE(outer);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_contiguous(outer) == outer);
    CHECK(shoal_add_scalar_(outer, 2) == outer);
    CHECK_OK(shoal_scope_end());
    const float *data = shoal_data(outer);
    REQUIRE(data);
    CHECK_DOUBLE((double)data[2], 2.0);
    CHECK_OK(shoal_scope_end());
}

/* Errors ----------------------------------------------------------------------------------------------- */

TEST(without_a_scope_tensor_calls_fail)
{
    static float memory[1];
    CHECK(!shoal_from_memory(memory, NULL, 0, SHOAL_F32, NULL, NULL, NULL));
    CHECK_ERROR_TEXT("no scope");
    CHECK(!shoal_zeros((int64_t[]){1}, 1, SHOAL_F32));
    CHECK_ERROR_TEXT("no scope");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("scope_end");
    CHECK_STATUS(shoal_scope_set_grad(true), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK(shoal_scope_has_grad());
    /* A failing call leaves nothing behind that the next success shows. */
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STRING(shoal_error_text(), "");
    CHECK_OK(shoal_scope_end());
    CHECK_STRING(shoal_error_text(), "");
}

TEST(the_first_error_stays_and_stops_the_scope)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *good = shoal_zeros((int64_t[]){3}, 1, SHOAL_F32);
    REQUIRE(good);
    uint64_t version = shoal_tensor_version(good);
    CHECK(!shoal_select(good, 0, 17));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("select");
    CHECK_ERROR_TEXT("17");
    /* Everything after returns NULL at once: nothing allocated, nothing changed, the first error kept. */
    size_t blocks = test_live_blocks();
    static float memory[1];
    _Atomic int n_deleted = 0;
    CHECK(!shoal_add_scalar_(good, 1));
    CHECK_ERROR_TEXT("17");
    CHECK(!shoal_narrow(good, 5, 5, 5));
    CHECK(!shoal_from_memory(memory, NULL, 0, SHOAL_F32, NULL, count_call, &n_deleted));
    CHECK(!shoal_scope_keep(good));
    size_t count = 99;
    CHECK(!shoal_chunk(good, 2, 0, &count));
    CHECK_INT(test_live_blocks(), blocks);
    CHECK_INT(shoal_tensor_version(good), version);
    /* Looking at data still works; looking at a NULL tells the first error. */
    CHECK(shoal_data(good));
    CHECK(!shoal_data(NULL));
    CHECK_ERROR_TEXT("17");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("17");
    CHECK_INT(n_deleted, 0);
}

/* Calls that need no scope are given what a failed call gave: its reason is theirs. */
TEST(a_library_leaves_its_errors_in_the_scope)
{
    CHECK_STATUS(shoal_scope_fail(shoal_fail(SHOAL_ERR_INVALID, "no scope yet")), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("no scope yet");
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_scope_fail(shoal_fail(SHOAL_ERR_INVALID, "options: wrong")), SHOAL_ERR_INVALID);
    CHECK(shoal_empty((int64_t[]){1}, 1, SHOAL_F32) == NULL);
    CHECK_STATUS(shoal_scope_fail(shoal_fail(SHOAL_ERR_STATE, "a later one")), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options: wrong");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("options: wrong");
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_scope_fail(SHOAL_OK), SHOAL_ERR_INTERNAL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INTERNAL);
}

TEST(a_missing_tensor_has_the_reason_of_its_scope)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *missing = shoal_zeros((int64_t[]){-17}, 1, SHOAL_F32);
    struct DLManagedTensor *managed;
    shoal_module *module;
    const shoal_module_definition definition = {.struct_size = sizeof definition, .type = "box"};
    REQUIRE(!missing);
    REQUIRE_OK(shoal_module_create(&definition, &module));
#define CHECK_REASON(call)                             \
    do {                                               \
        CHECK_STATUS((call), SHOAL_ERR_INVALID);       \
        CHECK_ERROR_TEXT("zeros: shape");              \
        CHECK(!strstr(shoal_error_text(), "is NULL")); \
    } while (0)
    CHECK_REASON(shoal_tensor_release_data(missing));
    CHECK_REASON(shoal_wait(missing));
    CHECK_REASON(shoal_tensor_set_name(missing, "x"));
    CHECK_REASON(shoal_tensor_rebind_data(missing, NULL, NULL, NULL));
    CHECK_REASON(shoal_to_dlpack(missing, &managed));
    CHECK_REASON(shoal_set_requires_grad(missing, true));
    CHECK_REASON(shoal_set_grad(missing, NULL));
    CHECK_REASON(shoal_on_gradient(missing, NULL, NULL, NULL));
    CHECK_REASON(shoal_on_accumulated(missing, NULL, NULL, NULL));
    CHECK_REASON(shoal_module_add_parameter(module, "w", missing));
    CHECK_REASON(shoal_module_add_buffer(module, "w", missing));
    CHECK_REASON(shoal_module_set_parameter(module, "w", missing));
    CHECK_REASON(shoal_module_set_buffer(module, "w", missing));
    CHECK(!shoal_mutable_data(missing));
    CHECK_ERROR_TEXT("zeros: shape");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_wait(missing), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("wait: tensor is NULL");
    CHECK_STATUS(shoal_module_add_parameter(module, "w", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_add_parameter: parameter is NULL");
    shoal_module_unref(module);
}

TEST(an_inner_error_does_not_stop_the_outer_scope)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *outer = shoal_zeros((int64_t[]){3}, 1, SHOAL_F32);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_select(outer, 7, 0));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK(shoal_neg(outer));
    CHECK_OK(shoal_scope_end());
}

TEST(an_outer_error_does_not_stop_a_scope_opened_later)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_zeros((int64_t[]){-1}, 1, SHOAL_F32));
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK(shoal_zeros((int64_t[]){1}, 1, SHOAL_F32));
    CHECK_OK(shoal_scope_end());
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

TEST(a_long_error_text_is_kept_whole_or_cut_cleanly)
{
    char text[ERROR_TEXT_BYTES];
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){1, 1, 1, 1, 1, 1, 1, 1}, 8, SHOAL_F32);
    int64_t shape[8];
    for (int i = 0; i < 8; i++) {
        shape[i] = INT64_MAX - i;
    }
    CHECK(!shoal_view(tensor, shape, 8));
    (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
    CHECK(strlen(text) > 100);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), text);
}

/* Gradient mode ---------------------------------------------------------------------------------------- */

TEST(gradient_mode_is_inherited_and_restored)
{
    CHECK(shoal_scope_has_grad());
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_scope_has_grad());
    CHECK_OK(shoal_scope_set_grad(false));
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_scope_has_grad());
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK(shoal_scope_has_grad());
    CHECK_OK(shoal_scope_end());
    CHECK(!shoal_scope_has_grad());
    CHECK_OK(shoal_scope_end());
    CHECK(shoal_scope_has_grad());
}

/* Internals -------------------------------------------------------------------------------------------- */

/* The first arrays lie in the scope itself, the others in blocks. */
TEST(scope_memory_is_aligned_and_ends_with_the_scope)
{
    enum {
        N_ARRAYS = 40
    };
    unsigned char *arrays[N_ARRAYS];
    size_t before = test_live_blocks();
    REQUIRE_OK(shoal_scope_begin());
    size_t blocks = test_live_blocks();
    for (size_t bytes = 0; bytes < N_ARRAYS; bytes++) {
        arrays[bytes] = scope_alloc(scope_current(), bytes);
        REQUIRE(arrays[bytes]);
        CHECK_INT((uintptr_t)arrays[bytes] % _Alignof(max_align_t), 0);
        memset(arrays[bytes], (int)bytes, bytes);
    }
    CHECK(test_live_blocks() > blocks);
    for (size_t bytes = 0; bytes < N_ARRAYS; bytes++) {
        for (size_t i = 0; i < bytes; i++) {
            REQUIRE(arrays[bytes][i] == bytes);
        }
    }
    CHECK(!scope_alloc(scope_current(), SIZE_MAX));
    CHECK_ERROR_TEXT("18446744073709551615");
    CHECK_OK(shoal_scope_end());
    CHECK_INT(test_live_blocks(), before);
}

/* Threads ---------------------------------------------------------------------------------------------- */

static void *use_own_scope(void *context)
{
    shoal_tensor *shared = context;
    CHECK(!shoal_zeros((int64_t[]){1}, 1, SHOAL_F32));
    CHECK_ERROR_TEXT("no scope");
    CHECK(shoal_scope_has_grad());
    for (int i = 0; i < 50; i++) {
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *sum = shoal_add(shared, shared);
        shoal_tensor *view = shoal_narrow(shared, 0, 1, 1);
        const float *data = shoal_data(sum);
        CHECK(data && data[0] == 2.0f);
        CHECK(view);
        CHECK(!shoal_select(shared, 0, 100));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    shoal_tensor_unref(shared);
    return NULL;
}

TEST(scopes_are_the_threads_own)
{
    enum {
        N_THREADS = 4
    };
    pthread_t threads[N_THREADS];
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *shared = shoal_full((int64_t[]){3}, 1, 1.0, SHOAL_F32);
    REQUIRE(shared);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, use_own_scope, shoal_tensor_ref(shared)), 0);
    }
    /* The scope may end while the others still look at the tensor: they hold references. */
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
}

static void *unref_in_turn(void *context)
{
    shoal_tensor *tensor = context;
    for (int i = 0; i < 2000; i++) {
        shoal_tensor_unref(shoal_tensor_ref(tensor));
    }
    shoal_tensor_unref(tensor);
    return NULL;
}

TEST(the_last_of_many_threads_frees)
{
    enum {
        N_THREADS = 4
    };
    _Atomic int n_deleted = 0;
    pthread_t threads[N_THREADS];
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = make_counted(&n_deleted);
    REQUIRE(tensor);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, unref_in_turn, shoal_tensor_ref(tensor)), 0);
    }
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_INT(n_deleted, 1);
}

/* Memory that runs out --------------------------------------------------------------------------------- */

static shoal_status use_nested_scopes(void *context)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        for (int i = 0; i < 10; i++) {
            (void)shoal_scope_keep(shoal_zeros((int64_t[]){i}, 1, SHOAL_F32));
        }
        status = shoal_scope_end();
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

/* In memory of its own: emptied, and used again, also inside of another. */
TEST(a_scope_in_memory_of_the_caller)
{
    static struct scope scope;
    for (int round = 0; round < 3; round++) {
        if (round == 2) {
            REQUIRE_OK(shoal_scope_begin());
            REQUIRE_OK(shoal_scope_set_grad(false));
        }
        test_fail_allocation(1, /*is_lasting=*/true);
        scope_open(&scope);
        test_fail_allocation(0, false);
        CHECK(scope_current() == &scope);
        CHECK(scope.has_grad == (round != 2));
        size_t n_live = test_live_blocks();
        for (int i = 0; i < 100; i++) {
            CHECK(shoal_zeros((int64_t[]){1000}, 1, SHOAL_F32) != NULL);
        }
        CHECK(test_live_blocks() > n_live);
        CHECK(shoal_zeros((int64_t[]){-1}, 1, SHOAL_F32) == NULL);
        CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_INVALID);
        scope_empty(&scope);
        CHECK_OK(shoal_scope_error());
        CHECK(shoal_zeros((int64_t[]){3}, 1, SHOAL_F32) != NULL);
        scope_close(&scope);
        CHECK(scope_current() != &scope);
        if (round == 2) {
            CHECK_OK(shoal_scope_end());
        }
    }
}

TEST(scopes_survive_failing_allocations)
{
    CHECK(test_sweep_allocations(use_nested_scopes, NULL) > 10);
}
