/* SPDX-License-Identifier: MIT */
/* What functions of the user's may do wrong: scopes, statuses, gradients that are not theirs, foreign tensors. */
#include "shoal/op.h"
#include "unit/autograd/fixture.h"

static shoal_tensor *leave_scope_open(void *context, shoal_tensor *gradient)
{
    CHECK_OK(shoal_scope_begin());
    return NULL;
}

static shoal_tensor *end_callers_scope(void *context, shoal_tensor *gradient)
{
    *(shoal_status *)context = shoal_scope_end();
    return NULL;
}

static shoal_tensor *scale_in_place(void *context, shoal_tensor *gradient)
{
    return shoal_mul_scalar_(gradient, 10);
}

SCOPED_TEST(a_hook_that_leaves_a_scope_open_is_told)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK_OK(shoal_on_gradient(x, leave_scope_open, NULL, NULL));
    CHECK_STATUS(shoal_backward(sum_all(x), NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the hook left a scope open");
}

SCOPED_TEST(a_hook_can_not_end_a_scope_it_did_not_open)
{
    shoal_status status = SHOAL_OK;
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK_OK(shoal_on_gradient(x, end_callers_scope, &status, NULL));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STATUS(status, SHOAL_ERR_STATE);
    CHECK_DOUBLE(grad_at(x, 1), 1);
}

SCOPED_TEST(a_hook_can_not_write_into_a_gradient_that_others_share)
{
    shoal_tensor *a = make_leaf(2, 1, 1);
    shoal_tensor *b = make_leaf(2, 1, 1);
    CHECK_OK(shoal_on_gradient(a, scale_in_place, NULL, NULL));
    shoal_tensor *ones = make_vector((double[]){1, 1}, 2);
    CHECK_STATUS(shoal_backward(shoal_add(a, b), ones), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("changed its gradient in place");
}

static shoal_status return_bare_status(void *context, shoal_tensor *leaf)
{
    return *(const shoal_status *)context;
}

SCOPED_TEST(a_status_without_text_gets_one)
{
    static shoal_status cancelled = SHOAL_ERR_CANCELLED;
    static shoal_status unknown = (shoal_status)42;
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK_OK(shoal_on_accumulated(x, return_bare_status, &cancelled, NULL));
    CHECK_STATUS(shoal_backward(sum_all(x), NULL), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("the hook returned SHOAL_ERR_CANCELLED");
    shoal_tensor *y = make_leaf(2, 1, 1);
    CHECK_OK(shoal_on_accumulated(y, return_bare_status, &unknown, NULL));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the hook returned 42, which is not a status");
}

static shoal_status recompute_badly(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(inputs[0]);
    return *(const bool *)context ? shoal_scope_begin() : shoal_scope_end();
}

SCOPED_TEST(a_recomputed_function_with_unbalanced_scopes_is_told)
{
    static bool opens = true;
    static bool ends = false;
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *output;
    CHECK_STATUS(shoal_recompute(recompute_badly, &opens, NULL, &x, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the function left a scope open");
    CHECK_STATUS(shoal_recompute(recompute_badly, &ends, NULL, &x, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("was not opened by this callback");
}

/* A registered op in each of its bad ways. */
static shoal_tensor *foreign;

static shoal_status meta_same(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status meta_foreign(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output_view(call, foreign, (int64_t[]){1}, (int64_t[]){1}, 1, 0);
}

static shoal_status end_scope(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    return shoal_scope_end();
}

SCOPED_TEST(registered_ops_are_watched)
{
    const shoal_op *op;
    shoal_value result;
    size_t n_blocks = test_live_blocks();
    shoal_op_definition ends = {.struct_size = sizeof(ends),
                                .name = "callback.ends",
                                .signature = "tensor self -> tensor",
                                .meta = meta_same,
                                .kernel = end_scope,
                                .doc = "Ends a scope that is not its own."};
    shoal_op_definition looks = {.struct_size = sizeof(looks),
                                 .name = "callback.looks",
                                 .signature = "tensor self -> tensor",
                                 .flags = SHOAL_OP_VIEW,
                                 .meta = meta_foreign,
                                 .doc = "Looks at a tensor it was not given."};
    shoal_value x = {.kind = SHOAL_VALUE_TENSOR, .count = 1};
    REQUIRE_OK(shoal_op_register(&ends, &op));
    const shoal_op *looking;
    REQUIRE_OK(shoal_op_register(&looks, &looking));
    test_keep_blocks(test_live_blocks() - n_blocks);
    foreign = make_leaf(2, 1, 1);
    REQUIRE_OK(shoal_scope_begin());
    x.as.tensor = make_vector((double[]){1, 2}, 2);
    CHECK_STATUS(shoal_op_call(op, &x, 1, &result), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("was not opened by this callback");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    REQUIRE_OK(shoal_scope_begin());
    x.as.tensor = make_vector((double[]){1, 2}, 2);
    CHECK_STATUS(shoal_op_call(looking, &x, 1, &result), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("not an argument");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    shoal_op_definition comma = ends;
    comma.name = "callback.comma";
    comma.saves = "self, result";
    CHECK_STATUS(shoal_op_register(&comma, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("separated by spaces");
    shoal_op_definition flags = ends;
    flags.name = "callback.flags";
    flags.flags = 1u << 20;
    CHECK_STATUS(shoal_op_register(&flags, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0x100000");
}
