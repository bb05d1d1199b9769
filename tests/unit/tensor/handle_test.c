/* SPDX-License-Identifier: MIT */
/* SHOAL_DEBUG_HANDLES: a tensor that is used after its end is an error that says what it was and how it ended. */
#include "tensor/handle.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "shoal/shoal.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

#define SCOPE_TEXT "was used after its scope ended; keep it with shoal_scope_keep or shoal_tensor_ref"

/* A tensor whose scope has ended. */
static shoal_tensor *make_dead(const char *name)
{
    shoal_tensor *tensor = NULL;
    if (CHECK_OK(shoal_scope_begin())) {
        tensor = shoal_full(INTS(2, 3), 2, 1.0, SHOAL_F32);
        CHECK_OK(shoal_tensor_set_name(tensor, name));
        CHECK_OK(shoal_scope_end());
    }
    return tensor;
}

/* The call fails with the text of a dead tensor. */
#define CHECK_DEAD(call, words)              \
    do {                                     \
        CHECK_STATUS(call, SHOAL_ERR_STATE); \
        CHECK_ERROR_TEXT(words);             \
        CHECK_ERROR_TEXT(SCOPE_TEXT);        \
    } while (0)

/* A call without a status: the error is in its scope. */
#define CHECK_DEAD_IN_SCOPE(condition, words) \
    do {                                      \
        REQUIRE_OK(shoal_scope_begin());      \
        CHECK(condition);                     \
        CHECK_DEAD(shoal_scope_end(), words); \
    } while (0)

TEST(operations_name_what_is_gone)
{
    handle_keep(100);
    shoal_tensor *gone = make_dead("weight");
    CHECK_DEAD_IN_SCOPE(shoal_neg(gone) == NULL, "neg: self: tensor weight, f32 [2, 3], was used");
    CHECK_DEAD_IN_SCOPE(shoal_add(gone, gone) == NULL, "add: self: tensor weight");
    shoal_tensor *list[] = {gone, gone};
    CHECK_DEAD_IN_SCOPE(shoal_cat(list, 2, 0) == NULL, "cat: tensors: tensor 0 of 2: tensor weight");
    CHECK_DEAD_IN_SCOPE(shoal_neg(make_dead(NULL)) == NULL, "neg: self: tensor, f32 [2, 3], was used");
    handle_keep(0);
}

static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return SHOAL_OK;
}

static shoal_status recompute(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    (void)context;
    return forward(NULL, inputs, n_inputs, outputs, n_outputs);
}

static shoal_tensor *leave(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    return NULL;
}

static shoal_status leave_leaf(void *context, shoal_tensor *leaf)
{
    (void)context;
    (void)leaf;
    return SHOAL_OK;
}

TEST(calls_with_a_status)
{
    handle_keep(100);
    shoal_tensor *gone = make_dead("w");
    shoal_tensor *out;
    struct DLManagedTensor *managed;
    CHECK_DEAD(shoal_wait(gone), "wait: tensor w, f32 [2, 3]");
    CHECK_DEAD(shoal_tensor_set_name(gone, "x"), "set_name: tensor w");
    CHECK_DEAD(shoal_tensor_release_data(gone), "release_data: tensor w");
    CHECK_DEAD(shoal_tensor_rebind_data(gone, NULL, NULL, NULL), "rebind_data: tensor w");
    CHECK_DEAD(shoal_to_dlpack(gone, &managed), "to_dlpack: tensor w");
    CHECK_DEAD(shoal_set_requires_grad(gone, true), "set_requires_grad: tensor w");
    CHECK_DEAD(shoal_on_gradient(gone, leave, NULL, NULL), "on_gradient: tensor w");
    CHECK_DEAD(shoal_on_accumulated(gone, leave_leaf, NULL, NULL), "on_accumulated: tensor w");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *leaf = shoal_full(INTS(2, 3), 2, 1.0, SHOAL_F32);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    CHECK_DEAD(shoal_set_grad(gone, leaf), "set_grad: leaf: tensor w");
    CHECK_DEAD(shoal_set_grad(leaf, gone), "set_grad: gradient: tensor w");
    CHECK_DEAD(shoal_backward(gone, NULL), "backward: root 0: tensor w");
    CHECK_DEAD(shoal_backward(leaf, gone), "backward: the gradient of root 0: tensor w");
    CHECK_DEAD(shoal_identity(&gone, 1, NULL, NULL, &out), "identity: input 0: tensor w");
    CHECK_DEAD(shoal_recompute(recompute, NULL, NULL, &gone, 1, &out, 1), "input 0: tensor w");
    CHECK_OK(shoal_scope_end());
    handle_keep(0);
}

TEST(modules)
{
    handle_keep(100);
    shoal_tensor *gone = make_dead("w");
    shoal_tensor *out;
    shoal_module *module;
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    definition.type = "same";
    definition.forward = forward;
    REQUIRE_OK(shoal_module_create(&definition, &module));
    CHECK_DEAD(shoal_module_add_parameter(module, "p", gone), "module_add_parameter: tensor w");
    CHECK_DEAD(shoal_module_add_buffer(module, "b", gone), "module_add_buffer: tensor w");
    REQUIRE_OK(shoal_scope_begin());
    CHECK_DEAD(shoal_module_call(module, &gone, 1, &out, 1), "module_call: input 0: tensor w");
    CHECK_DEAD(shoal_scope_end(), "module_call: input 0: tensor w");
    shoal_module_unref(module);
    handle_keep(0);
}

TEST(calls_without_a_status)
{
    handle_keep(100);
    shoal_tensor *gone = make_dead("w");
    CHECK(shoal_data(gone) == NULL);
    CHECK_ERROR_TEXT("data: tensor w, f32 [2, 3], " SCOPE_TEXT);
    CHECK(shoal_mutable_data(gone) == NULL);
    CHECK_ERROR_TEXT("mutable_data: tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_dtype(gone) == 0, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_device(gone) == SHOAL_CPU, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_n_dims(gone) == 0, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_shape(gone) == NULL, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_strides(gone) == NULL, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_offset(gone) == 0, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_count(gone) == 0, "tensor w");
    CHECK_DEAD_IN_SCOPE(!shoal_tensor_is_contiguous(gone), "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_version(gone) == 0, "tensor w");
    CHECK_DEAD_IN_SCOPE(!shoal_tensor_shares_storage(gone, gone), "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_name(gone)[0] == '\0', "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_tensor_ref(gone) == NULL, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_scope_keep(gone) == NULL, "tensor w");
    CHECK_DEAD_IN_SCOPE(!shoal_requires_grad(gone), "tensor w");
    CHECK_DEAD_IN_SCOPE(!shoal_is_leaf(gone), "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_grad(gone) == NULL, "tensor w");
    CHECK_DEAD_IN_SCOPE(shoal_detach(gone) == NULL, "detach: tensor w");
    handle_keep(0);
}

TEST(references_given_up_too_often)
{
    handle_keep(100);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *kept = shoal_tensor_ref(shoal_full(INTS(4), 1, 1.0, SHOAL_I32));
    REQUIRE_OK(shoal_scope_end());
    CHECK_INT(shoal_tensor_count(kept), 4); /* referenced: alive */
    shoal_tensor_unref(kept);
    CHECK_STATUS(shoal_wait(kept), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("wait: tensor, i32 [4], was used after its last reference was given up; keep it with "
                     "shoal_tensor_ref");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor_unref(kept); /* once more */
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);

    /* The scope's own reference. */
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *owned = shoal_full(INTS(4), 1, 1.0, SHOAL_F32);
    shoal_tensor_unref(owned);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("tensor, f32 [4], was used after one shoal_tensor_unref too many, of a reference that "
                     "its scope owned");
    handle_keep(0);
}

/* What is alive is not touched, and what a dead one held is given back at once. */
TEST(only_handles_are_kept)
{
    handle_keep(10);
    size_t n_before = test_live_blocks();
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *large = shoal_full(INTS(1000, 10), 2, 1.0, SHOAL_F32);
    shoal_tensor *view = shoal_tensor_ref(shoal_select(large, 0, 5));
    REQUIRE_OK(shoal_scope_end());
    CHECK_DOUBLE((double)((const float *)shoal_data(view))[9], 1.0);
    CHECK_STATUS(shoal_wait(large), SHOAL_ERR_STATE);
    shoal_tensor_unref(view);
    /* Two blocks: a tensor with its storage, and a view. */
    CHECK(test_live_blocks() <= n_before + 2);
    handle_keep(0);
}

TEST(the_oldest_are_forgotten)
{
    handle_keep(3);
    size_t n_before = test_live_blocks();
    for (int i = 0; i < 1000; i++) {
        (void)make_dead("many");
    }
    CHECK(test_live_blocks() <= n_before + 3);
    handle_keep(0);
}

static void *make_many(void *context)
{
    (void)context;
    for (int i = 0; i < 300; i++) {
        CHECK_DEAD(shoal_wait(make_dead("t")), "wait: tensor t");
    }
    return NULL;
}

TEST(threads_share_the_ring)
{
    pthread_t threads[3];
    handle_keep(4000);
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, make_many, NULL) == 0);
    }
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    handle_keep(0);
}

/* The option ----------------------------------------------------------------------------------------------- */

TEST(planted_use_after_scope)
{
    shoal_tensor *gone = make_dead("w");
    (void)printf("%d: %s\n", (int)shoal_wait(gone), shoal_error_text());
    handle_keep(0);
}

TEST(the_environment_asks_for_it)
{
    static char output[4096];
    const char *const arguments[] = {test_program(), "planted_use_after_scope", NULL};
    const char *const environment[] = {"SHOAL_DEBUG_HANDLES=10", NULL};
    CHECK_INT(test_run_program(arguments, environment, output, sizeof output), 0);
    CHECK(strstr(output, "wait: tensor w, f32 [2, 3], " SCOPE_TEXT) != NULL);
}
