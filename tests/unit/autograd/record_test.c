/* SPDX-License-Identifier: MIT */
/* What is recorded and what is refused: leaves, in-place changes, views, versions, gradient mode. */
#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* Leaves ----------------------------------------------------------------------------------------------- */

SCOPED_TEST(leaves_and_results)
{
    shoal_tensor *plain = make_vector((double[]){1, 2}, 2);
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *y = shoal_mul(x, plain);
    CHECK(!shoal_requires_grad(plain) && shoal_is_leaf(plain));
    CHECK(shoal_requires_grad(x) && shoal_is_leaf(x));
    CHECK(shoal_requires_grad(y) && !shoal_is_leaf(y));
    CHECK(!shoal_requires_grad(NULL) && !shoal_grad(NULL) && !shoal_grad(x) && !shoal_grad(y));
    CHECK_STATUS(shoal_set_requires_grad(y, true), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("result of recorded operations");
    CHECK_STATUS(shoal_set_requires_grad(y, false), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_set_requires_grad(NULL, true), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_set_requires_grad(x, true));
    CHECK_OK(shoal_set_requires_grad(x, false));
    CHECK_OK(shoal_set_requires_grad(x, false));
    CHECK(!shoal_requires_grad(x));
}

SCOPED_TEST(only_floats_can_be_leaves)
{
    static const struct {
        shoal_dtype dtype;
        bool is_allowed;
    } rows[] = {{SHOAL_F64, true},  {SHOAL_F32, true},   {SHOAL_F16, true}, {SHOAL_BF16, true},
                {SHOAL_I64, false}, {SHOAL_BOOL, false}, {SHOAL_C64, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        shoal_tensor *tensor = shoal_zeros(INTS(2), 1, rows[i].dtype);
        CHECK_STATUS(shoal_set_requires_grad(tensor, true),
                     rows[i].is_allowed ? SHOAL_OK : SHOAL_ERR_INVALID);
        CHECK_INT(shoal_requires_grad(tensor), rows[i].is_allowed);
    }
}

SCOPED_TEST(set_grad_checks_and_keeps)
{
    shoal_tensor *x = make_leaf(3, 1, 1);
    shoal_tensor *gradient = make_vector((double[]){1, 2, 3}, 3);
    CHECK_OK(shoal_set_grad(x, gradient));
    CHECK(shoal_tensor_shares_storage(shoal_grad(x), gradient));
    CHECK_DOUBLE(grad_at(x, 2), 3);
    CHECK_STATUS(shoal_set_grad(x, make_vector((double[]){1, 2}, 2)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gradient is f64 [2] on cpu, but the leaf is f64 [3] on cpu");
    CHECK_STATUS(shoal_set_grad(x, shoal_zeros(INTS(3), 1, SHOAL_I32)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_set_grad(x, shoal_empty_on(INTS(3), 1, SHOAL_F64, SHOAL_META)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_set_grad(x, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("requires a gradient itself");
    CHECK_STATUS(shoal_set_grad(gradient, gradient), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("does not require a gradient");
    CHECK_STATUS(shoal_set_grad(shoal_neg(x), gradient), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("is a result, not a leaf");
    CHECK_OK(shoal_set_grad(gradient, NULL)); /* what has no gradient may lose it */
    CHECK_OK(shoal_set_grad(shoal_neg(x), NULL));
    CHECK_STATUS(shoal_set_grad(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_DOUBLE(grad_at(x, 2), 3);
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_DOUBLE(value_at(gradient, 2), 4);
    CHECK_OK(shoal_set_grad(x, NULL));
    CHECK(!shoal_grad(x));
}

/* A kept gradient that is recorded into would keep leaf, gradient and record alive for ever. */
SCOPED_TEST(a_gradient_is_not_part_of_the_record)
{
    shoal_tensor *x = make_leaf(3, 1, 1);
    shoal_tensor *gradient = make_vector((double[]){1, 2, 3}, 3);
    CHECK_OK(shoal_set_grad(x, gradient));
    CHECK(shoal_add_(gradient, x));
    CHECK(shoal_requires_grad(gradient) && !shoal_requires_grad(shoal_grad(x)));
    CHECK_SCOPE_ERROR(shoal_add_(shoal_grad(x), x), SHOAL_ERR_STATE, "self: this is a view");
}

/* Gradient mode ---------------------------------------------------------------------------------------- */

SCOPED_TEST(nothing_is_recorded_with_gradients_off)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(!shoal_requires_grad(shoal_mul(x, x)));
    CHECK(shoal_add_(x, x));
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK_DOUBLE(value_at(x, 1), 4);
    CHECK(shoal_is_leaf(x) && shoal_requires_grad(x));
}

SCOPED_TEST(detach_cuts_the_record)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_mul(x, x);
    shoal_tensor *cut = shoal_detach(y);
    CHECK(!shoal_requires_grad(cut) && shoal_is_leaf(cut) && shoal_tensor_shares_storage(cut, y));
    CHECK_OK(shoal_backward(sum_all(shoal_mul(x, cut)), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 9);
    CHECK_DOUBLE(grad_at(x, 1), 16);
    CHECK_SCOPE_ERROR(shoal_detach(NULL), SHOAL_ERR_INVALID, "detach: tensor is NULL");
}

SCOPED_TEST(integer_results_have_no_history)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK(!shoal_requires_grad(shoal_to_dtype(x, SHOAL_I32)));
    CHECK(shoal_copy_(shoal_zeros(INTS(2), 1, SHOAL_I64), x));
    CHECK_SCOPE_ERROR(shoal_to_dtype(x, SHOAL_C128), SHOAL_ERR_UNSUPPORTED, "gradients of c128 results");
}

/* What is handed through is no step: a leaf stays a leaf. */
SCOPED_TEST(handing_through_records_nothing)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK(shoal_contiguous(x) == x);
    CHECK(shoal_to_dtype(x, SHOAL_F64) == x);
    CHECK(shoal_is_leaf(x));
}

/* In place --------------------------------------------------------------------------------------------- */

SCOPED_TEST(a_leaf_is_not_changed_in_place)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    CHECK_SCOPE_ERROR(shoal_mul_scalar_(x, 2), SHOAL_ERR_STATE,
                      "mul_scalar_: self: this leaf requires a gradient");
    CHECK_SCOPE_ERROR(shoal_copy_(x, shoal_zeros(INTS(2), 1, SHOAL_F64)), SHOAL_ERR_STATE, "self: this leaf");
    CHECK_DOUBLE(value_at(x, 1), 2);
    CHECK_INT(shoal_tensor_version(x), 1);
}

SCOPED_TEST(a_view_is_not_changed_in_place_while_recording)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *buffer = shoal_zeros(INTS(4), 1, SHOAL_F64);
    shoal_tensor *half = shoal_narrow(buffer, 0, 0, 2);
    CHECK_SCOPE_ERROR(shoal_copy_(half, x), SHOAL_ERR_STATE, "copy_: self: this is a view");
    CHECK_SCOPE_ERROR(shoal_neg_(shoal_view(shoal_mul(x, x), INTS(2, 1), 2)), SHOAL_ERR_STATE,
                      "neg_: self: this is a view");
    CHECK(shoal_add_scalar_(half, 1));
    CHECK_DOUBLE(value_at(buffer, 1), 1);
}

SCOPED_TEST(in_place_chains)
{
    shoal_tensor *x = make_leaf(3, 2, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    shoal_tensor *same = shoal_add_scalar_(shoal_mul_(shoal_neg_(y), x), 5); /* 5 - 2 x^2 */
    CHECK(same == y && !shoal_is_leaf(y));
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_DOUBLE(value_at(y, 0), -3);
    CHECK_DOUBLE(grad_at(x, 0), -8);
    CHECK_DOUBLE(grad_at(x, 2), -16);
}

/* A buffer that is written every step must not collect the records of all steps. */
TEST(an_overwritten_buffer_forgets)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_tensor_ref(make_leaf(3, 2, 1));
    shoal_tensor *buffer = shoal_tensor_ref(shoal_zeros(INTS(3), 1, SHOAL_F64));
    CHECK_OK(shoal_scope_end());
    size_t n_blocks = 0; /* without a scope nothing is spare */
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(shoal_set_grad(x, NULL));
        CHECK(shoal_copy_(buffer, shoal_mul_scalar(x, i)));
        CHECK_OK(shoal_backward(sum_all(buffer), NULL));
        CHECK_OK(shoal_scope_end());
        CHECK_DOUBLE(grad_at(x, 1), i);
        if (i == 0) {
            n_blocks = test_live_blocks();
        }
        CHECK_INT(test_live_blocks(), n_blocks);
    }
    shoal_tensor_unref(buffer);
    shoal_tensor_unref(x);
}

SCOPED_TEST(one_call_changes_a_tensor_once)
{
    shoal_tensor *x = make_leaf(3, 2, 1);
    shoal_tensor *y = shoal_neg(x);
    shoal_tensor *twice[] = {y, y};
    CHECK_SCOPE_ERROR(shoal_foreach_add_(twice, (shoal_tensor *[]){x, x}, 2), SHOAL_ERR_STATE,
                      "self[1]: this is also self[0]");
}

/* y -> N1, y saved by N2, N3 changes y: no cycle may keep them alive (the harness counts blocks). */
SCOPED_TEST(no_cycles_through_saved_tensors)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    shoal_tensor *z = shoal_mul(y, y);
    CHECK(shoal_add_(y, z));
    shoal_tensor *buffer = shoal_zeros(INTS(2), 1, SHOAL_F64);
    CHECK(shoal_add_(buffer, shoal_mul(buffer, x)));
    shoal_tensor *quotient = shoal_clone(x);
    CHECK(shoal_div_(quotient, x));
    CHECK(shoal_requires_grad(buffer) && shoal_requires_grad(quotient));
}

/* Versions --------------------------------------------------------------------------------------------- */

SCOPED_TEST(saved_data_must_not_change)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *factor = make_vector((double[]){5, 6}, 2);
    shoal_tensor *y = sum_all(shoal_mul(x, factor));
    uint64_t version = shoal_tensor_version(factor);
    CHECK_INT(version, 1);
    CHECK(shoal_mul_scalar_(factor, 2));
    CHECK_STATUS(shoal_backward(y, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(
        "gradient of mul: other: f64 [2] was saved for backward in version 1 and changed in place "
        "since: it is in version 2");
    CHECK(!shoal_grad(x));
}

SCOPED_TEST(unsaved_data_may_change)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 3);
    shoal_tensor *z = shoal_add_scalar(y, 1);
    CHECK(shoal_mul_scalar_(y, 2));
    CHECK_OK(shoal_backward(sum_all(shoal_add(y, z)), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 9);
}

SCOPED_TEST(saved_results_must_not_change)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *y = shoal_div_(shoal_mul_scalar(x, 3), x);
    CHECK(shoal_add_scalar_(y, 2));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("gradient of div_: result[0]: f64 [2] was saved for backward in version 1");
}

/* Releasing and putting memory back is no change: FSDP does that between forward and backward. */
SCOPED_TEST(rebinding_is_no_change)
{
    double values[] = {7, 8};
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 1);
    shoal_tensor *product = sum_all(shoal_mul(y, y));
    CHECK_OK(shoal_tensor_release_data(y));
    bool is_host = test_device() == SHOAL_CPU;
    CHECK_OK(shoal_tensor_rebind_data(y, is_host ? values : NULL, NULL, NULL));
    if (!is_host) {
        memcpy(test_data(y), values, sizeof values);
    }
    CHECK_OK(shoal_backward(product, NULL));
    CHECK_DOUBLE(grad_at(x, 1), 16);
}

/* Views ------------------------------------------------------------------------------------------------ */

SCOPED_TEST(a_view_taken_before_an_in_place_change_is_stale)
{
    shoal_tensor *x = make_leaf(4, 1, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    shoal_tensor *view = shoal_narrow(y, 0, 0, 2);
    CHECK(shoal_mul_(y, x));
    CHECK_SCOPE_ERROR(
        shoal_neg(view), SHOAL_ERR_STATE,
        "neg: self: the view was recorded in version 0 of its storage, which was changed in place "
        "since: it is in version 1; make the view again");
    CHECK_STATUS(shoal_backward(view, make_vector((double[]){1, 1}, 2)), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("root 0: the view was recorded in version 0");
    CHECK_OK(shoal_backward(sum_all(shoal_narrow(y, 0, 0, 2)), NULL));
    CHECK_DOUBLE(grad_at(x, 1), 8);
    CHECK_DOUBLE(grad_at(x, 2), 0);
}

SCOPED_TEST(a_view_outside_the_record_is_stale_too)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *buffer = shoal_zeros(INTS(2), 1, SHOAL_F64);
    shoal_tensor *early = shoal_view(buffer, INTS(2, 1), 2);
    shoal_tensor *leaf = require_grad(shoal_view(buffer, INTS(1, 2), 2));
    shoal_tensor *cut = shoal_detach(buffer);
    CHECK(shoal_copy_(buffer, x));
    CHECK_SCOPE_ERROR(shoal_neg(early), SHOAL_ERR_STATE, "before an in-place operation");
    CHECK_SCOPE_ERROR(shoal_neg(leaf), SHOAL_ERR_STATE,
                      "neg: self: another tensor over the storage of this leaf was changed");
    CHECK_STATUS(shoal_set_requires_grad(early, true), SHOAL_ERR_STATE);
    CHECK(shoal_neg(cut) && !shoal_requires_grad(cut));
    CHECK(shoal_requires_grad(shoal_neg(require_grad(cut))));
}

/* An optimizer's step is not recorded: views of parameters stay good. */
SCOPED_TEST(a_change_outside_the_record_leaves_views_alone)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *view = shoal_view(x, INTS(1, 2), 2);
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(shoal_mul_scalar_(x, 3));
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK_OK(shoal_backward(sum_all(shoal_mul(view, view)), NULL));
    CHECK_DOUBLE(grad_at(x, 1), 12);
}

SCOPED_TEST(meta_tensors_are_recorded)
{
    shoal_tensor *x = require_grad(shoal_empty_on(INTS(2, 3), 2, SHOAL_F32, SHOAL_META));
    shoal_tensor *y = shoal_mul_(shoal_clone(x), x);
    CHECK_OK(shoal_backward(sum_all(shoal_narrow(y, 0, 0, 1)), NULL));
    CHECK_INT(shoal_tensor_device(shoal_grad(x)), SHOAL_META);
    CHECK_INT(shoal_tensor_count(shoal_grad(x)), 6);
}

SCOPED_TEST(views_of_detached_tensors_stay_detached)
{
    shoal_tensor *x = make_leaf(4, 1, 1);
    shoal_tensor *buffer = shoal_zeros(INTS(4), 1, SHOAL_F64);
    CHECK(shoal_copy_(buffer, x) != NULL);
    shoal_tensor *view = shoal_narrow(shoal_detach(buffer), 0, 1, 2);
    CHECK(view && !shoal_requires_grad(view));
    CHECK_DOUBLE(value_at(shoal_neg(view), 1), -3);
}

/* What is new is not detached, even if it was made while gradients were off: its views must see its history. */
SCOPED_TEST(a_buffer_made_without_gradients_is_not_detached)
{
    shoal_tensor *x = make_leaf(3, 1, 1);
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *buffer = shoal_zeros(INTS(3), 1, SHOAL_F64);
    CHECK_OK(shoal_scope_set_grad(true));
    shoal_tensor *view = shoal_narrow(buffer, 0, 0, 2);
    CHECK(shoal_copy_(buffer, x));
    CHECK_SCOPE_ERROR(shoal_mul(view, view), SHOAL_ERR_STATE, "before an in-place operation");
    CHECK_OK(shoal_backward(sum_all(shoal_narrow(buffer, 0, 0, 2)), NULL));
    CHECK_DOUBLE(grad_at(x, 1), 1);
}

static shoal_status negate_first(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(inputs[0]);
    return SHOAL_OK;
}

SCOPED_TEST(recompute_and_identity_refuse_stale_views_too)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *buffer = shoal_zeros(INTS(2), 1, SHOAL_F64);
    shoal_tensor *views[] = {shoal_view(buffer, INTS(2, 1), 2), x};
    shoal_tensor *outputs[2];
    CHECK(shoal_copy_(buffer, x));
    CHECK_STATUS(shoal_recompute(negate_first, NULL, NULL, views, 1, outputs, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("before an in-place operation");
    CHECK_STATUS(shoal_identity(views, 2, NULL, NULL, outputs), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("before an in-place operation");
}

/* Only what the wanted gradients read is saved: a product with a constant does not hold on to the leaf's value. */
SCOPED_TEST(what_no_gradient_reads_may_change)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *constant = make_vector((double[]){5, 7}, 2);
    shoal_tensor *loss = sum_all(shoal_mul(x, constant));
    shoal_tensor *both = sum_all(shoal_mul(x, x));
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(shoal_mul_scalar_(x, 3));
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_DOUBLE(grad_at(x, 1), 7);
    CHECK_STATUS(shoal_backward(both, NULL), SHOAL_ERR_STATE);
}

/* 70,000 terms are more than f16 can count, and 1 / 70,000 is still a number of it. */
SCOPED_TEST(the_mean_of_many_halves_has_a_gradient)
{
    static const shoal_dtype dtypes[] = {SHOAL_F16, SHOAL_BF16};
    for (size_t i = 0; i < 2; i++) {
        shoal_tensor *x = require_grad(shoal_zeros(INTS(70000), 1, dtypes[i]));
        CHECK_OK(shoal_backward(shoal_mean(x, NULL, 0, false), NULL));
        shoal_tensor *gradient = shoal_to_dtype(shoal_grad(x), SHOAL_F64);
        CHECK(fabs(value_at(gradient, 69999) * 70000 - 1) < 0.01);
    }
}
