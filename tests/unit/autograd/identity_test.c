/* SPDX-License-Identifier: MIT */
/* The identity over many tensors. */
#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

struct watch {
    int n_calls;
    size_t n_gradients;
    double seen[4]; /* NaN: absent */
    double factor;  /* 0: leaves gradients alone */
    shoal_status status;
};

static shoal_status look(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    struct watch *watch = context;
    watch->n_calls++;
    watch->n_gradients = n_gradients;
    for (size_t i = 0; i < n_gradients && i < 4; i++) {
        watch->seen[i] = value_at(gradients[i], 0);
        if (gradients[i] && watch->factor != 0) {
            gradients[i] = shoal_mul_scalar(gradients[i], watch->factor);
        }
    }
    return watch->status == SHOAL_OK ? SHOAL_OK : shoal_fail(watch->status, "no more");
}

SCOPED_TEST(one_node_sees_all_gradients)
{
    struct watch watch = {.factor = 100};
    shoal_tensor *plain = make_vector((double[]){5}, 1);
    shoal_tensor *inputs[] = {make_leaf(1, 1, 1), NULL, plain, shoal_mul_scalar(make_leaf(1, 2, 1), 2)};
    shoal_tensor *outputs[4];
    REQUIRE_OK(shoal_identity(inputs, 4, look, &watch, outputs));
    CHECK(!outputs[1] && outputs[2] == plain && outputs[0] != inputs[0]);
    CHECK(shoal_tensor_shares_storage(outputs[0], inputs[0]) && !shoal_is_leaf(outputs[0]));
    CHECK_OK(shoal_backward(shoal_add(shoal_mul(outputs[0], outputs[3]), outputs[0]), NULL));
    CHECK_INT(watch.n_calls, 1);
    CHECK_INT(watch.n_gradients, 4);
    CHECK_DOUBLE(watch.seen[0], 5);
    CHECK_DOUBLE(watch.seen[1], (double)NAN);
    CHECK_DOUBLE(watch.seen[2], (double)NAN);
    CHECK_DOUBLE(watch.seen[3], 1);
    CHECK_DOUBLE(grad_at(inputs[0], 0), 500);
}

SCOPED_TEST(absent_gradients_are_null)
{
    struct watch watch = {.n_calls = 0};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *inputs[] = {x, make_leaf(1, 2, 1)};
    shoal_tensor *outputs[2];
    shoal_tensor *apart = shoal_mul_scalar(x, 3);
    REQUIRE_OK(shoal_identity(inputs, 2, look, &watch, outputs));
    CHECK_OK(shoal_backward(shoal_neg(outputs[1]), NULL));
    CHECK_INT(watch.n_calls, 1);
    CHECK_DOUBLE(watch.seen[0], (double)NAN);
    CHECK_DOUBLE(watch.seen[1], -1);
    CHECK(!shoal_grad(x));
    CHECK_DOUBLE(grad_at(inputs[1], 0), -1);
    /* No gradient at all: no call. */
    CHECK_OK(shoal_backward(apart, NULL));
    CHECK_INT(watch.n_calls, 1);
}

/* Its turn comes by its place in the record: after all that is newer, before all that is older. */
static shoal_status count_calls(void *context, shoal_tensor *leaf)
{
    const struct watch *watch = context;
    CHECK(shoal_grad(leaf) != NULL);
    CHECK_INT(watch->n_calls, 0);
    return SHOAL_OK;
}

SCOPED_TEST(it_runs_in_its_place)
{
    struct watch watch = {.n_calls = 0};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *weight = make_leaf(1, 4, 1);
    CHECK_OK(shoal_on_accumulated(weight, count_calls, &watch, NULL));
    shoal_tensor *before = shoal_mul_scalar(x, 2);
    shoal_tensor *inside;
    REQUIRE_OK(shoal_identity(&before, 1, look, &watch, &inside));
    CHECK_OK(shoal_backward(shoal_mul(inside, weight), NULL));
    CHECK_INT(watch.n_calls, 1);
    CHECK_DOUBLE(grad_at(x, 0), 8);
    CHECK_DOUBLE(grad_at(weight, 0), 2);
}

SCOPED_TEST(nothing_to_record)
{
    struct watch watch = {.n_calls = 0};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *list[] = {x, NULL};
    CHECK_OK(shoal_identity(NULL, 0, look, &watch, NULL));
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK_OK(shoal_identity(list, 2, look, &watch, list));
    CHECK(list[0] == x && !list[1]);
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK_OK(shoal_identity(list, 2, NULL, NULL, list));
    CHECK(list[0] != x);
    CHECK_OK(shoal_backward(list[0], NULL));
    CHECK_DOUBLE(grad_at(x, 0), 1);
    CHECK_STATUS(shoal_identity(NULL, 1, look, &watch, list), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_identity(list, 1, look, &watch, NULL), SHOAL_ERR_INVALID);
    CHECK_SCOPE_ERROR(shoal_neg_(list[0]), SHOAL_ERR_STATE, "self: this is a view");
}

SCOPED_TEST(its_hook_reports)
{
    struct watch watch = {.status = SHOAL_ERR_CANCELLED};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *y;
    REQUIRE_OK(shoal_identity(&x, 1, look, &watch, &y));
    CHECK_STATUS(shoal_backward(y, NULL), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("gradient of identity: no more");
    CHECK(!shoal_grad(x));
}
