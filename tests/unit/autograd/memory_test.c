/* SPDX-License-Identifier: MIT */
/* Every allocation of recording and walking may fail: the status says so and nothing is lost. */
#include "base/try.h"
#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

static shoal_status end_hook(void *context)
{
    return SHOAL_OK;
}

static shoal_tensor *on_gradient(void *context, shoal_tensor *gradient)
{
    return shoal_on_backward_end(end_hook, NULL) == SHOAL_OK ? shoal_mul_scalar(gradient, 2) : NULL;
}

static shoal_status on_leaf(void *context, shoal_tensor *leaf)
{
    return shoal_sub_(leaf, shoal_mul_scalar(shoal_grad(leaf), 0.1)) ? SHOAL_OK : shoal_scope_error();
}

static shoal_status on_identity(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    gradients[0] = shoal_neg(gradients[0]);
    return n_gradients == 2 ? SHOAL_OK : SHOAL_ERR_INTERNAL;
}

static shoal_status run_block(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *weight = context;
    outputs[0] = shoal_mul(shoal_mul(inputs[0], weight), inputs[1]);
    return SHOAL_OK;
}

/* Leaves with gradients on, hooked. */
static shoal_status make_leaves(shoal_tensor *leaves[3], shoal_hook **hook_out)
{
    for (int i = 0; i < 3; i++) {
        leaves[i] = shoal_full(INTS(2, 2), 2, 1 + 0.5 * i, SHOAL_F32);
        TRY(shoal_scope_error());
        TRY(shoal_set_requires_grad(leaves[i], true));
    }
    TRY(shoal_on_accumulated(leaves[1], on_leaf, NULL, NULL));
    return shoal_on_gradient(leaves[0], on_gradient, NULL, hook_out);
}

static shoal_status run_step(shoal_tensor *leaves[3])
{
    size_t n;
    shoal_tensor *outputs[2];
    TRY(shoal_identity(leaves, 2, on_identity, NULL, outputs));
    shoal_tensor *block;
    TRY(shoal_recompute(run_block, leaves[2], NULL, outputs, 2, &block, 1));
    shoal_tensor *sum =
        shoal_add_(shoal_mul_(shoal_clone(block), leaves[1]), shoal_sum(block, INTS(0), 1, false));
    shoal_tensor *const *pieces = shoal_split(sum, 1, 1, &n);
    TRY(shoal_scope_error());
    shoal_tensor *pair[] = {pieces[0], shoal_select(leaves[0], 0, 1)};
    shoal_tensor *packed = shoal_chunk_cat(pair, 1, 0, 2, SHOAL_F64);
    shoal_tensor *total = shoal_mean(shoal_mul(packed, packed), NULL, 0, false);
    TRY(shoal_scope_error());
    return shoal_backward_roots((shoal_tensor *[]){total, leaves[0]},
                                (shoal_tensor *[]){NULL, shoal_detach(leaves[2])}, 2, NULL);
}

static shoal_status train(void *context)
{
    shoal_tensor *leaves[3];
    shoal_hook *hook = NULL;
    TRY(shoal_scope_begin());
    shoal_status status = make_leaves(leaves, &hook);
    for (int i = 0; i < 2 && status == SHOAL_OK; i++) {
        status = run_step(leaves);
    }
    shoal_hook_remove(hook);
    shoal_status end_status = shoal_scope_end();
    return status == SHOAL_OK ? end_status : status;
}

TEST(a_training_step_survives_failing_allocations)
{
    REQUIRE_OK(train(NULL));
    size_t n_allocations = test_sweep_allocations(train, NULL);
    CHECK(n_allocations > 100);
}

/* After a failed walk over a kept record the record is whole: the second try gets through. */
static shoal_status walk_kept(void *context)
{
    shoal_backward_options keeping = {.struct_size = sizeof(keeping), .keeps_graph = true};
    shoal_tensor *root = context;
    return shoal_backward_roots(&root, NULL, 1, &keeping);
}

TEST(a_kept_record_survives_failing_allocations)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_tensor_ref(make_leaf(2, 3, 1));
    CHECK_OK(shoal_set_grad(x, make_vector((double[]){0, 0}, 2)));
    shoal_tensor *other = shoal_narrow(make_leaf(4, 1, 0), 0, 1, 2);
    shoal_tensor *root = shoal_tensor_ref(sum_all(shoal_mul(shoal_mul(x, x), other)));
    REQUIRE_OK(walk_kept(root)); /* from now on both leaves have a gradient, which stays */
    CHECK_OK(shoal_scope_end());
    CHECK(test_sweep_allocations(walk_kept, root) > 10);
    CHECK_OK(shoal_set_grad(x, NULL));
    CHECK_OK(shoal_backward(root, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 6);
    shoal_tensor_unref(root);
    shoal_tensor_unref(x);
}
