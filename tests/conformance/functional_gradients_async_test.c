/* SPDX-License-Identifier: MIT */
/*
 * Backward does not wait for other ranks. Rank 0 walks back first; only when it has returned does rank 1 begin
 * to: a backward pass that waited for its collective would fail at the deadline. Nothing here looks at a clock.
 */
#include "fixtures/functional.h"
#include "shoal_compat/torch.h"
#include "shoal/shoal.h"
#include "tensor/tensor.h"

#define LIST(...) ((shoal_tensor *const[]){__VA_ARGS__})

static shoal_tensor *leaf_of_ones(struct shape shape)
{
    shoal_tensor *leaf = full_of(shape, 1, SHOAL_F64);
    CHECK_OK(shoal_set_requires_grad(leaf, true));
    return leaf;
}

static shoal_tensor *sum_all(shoal_tensor *tensor)
{
    return shoal_sum(tensor, NULL, 0, /*keeps_dims=*/false);
}

/* True when something that will write the tensor has not been waited for. */
static bool is_in_flight(const shoal_tensor *tensor)
{
    return tensor && atomic_load(&tensor->storage->n_fences) > 0;
}

/* Rank 0 has returned before rank 1 begins. */
static void walk_back_one_by_one(const struct functional *self, shoal_tensor *loss)
{
    CHECK_OK(shoal_scope_error());
    if (self->rank == 0) {
        CHECK_OK(shoal_backward(loss, NULL));
    }
    test_barrier(self->harness);
    if (self->rank != 0) {
        CHECK_OK(shoal_backward(loss, NULL));
    }
}

/* Every op whose gradient is one collective ------------------------------------------------------------ */

static shoal_tensor *rotate(shoal_tensor *x, shoal_group *group)
{
    return shoal_permute_tensor(x, INTS64(1, 0), 2, group);
}

/* The gradient of x, [2 * n, 2], on two ranks whose losses are the sums of their results. */
#define WAITLESS_CASES(X)                                                                                 \
    X(2, shoal_all_reduce(x, SHOAL_SUM, group))                                                           \
    X(1, shoal_all_reduce(x, SHOAL_AVG, group))                                                           \
    X(1, shoal_all_reduce_premul(x, 0.5, group))                                                          \
    X(2, shoal_all_reduce_coalesced(&x, 1, SHOAL_SUM, group)[0])                                          \
    X(1, shoal_reduce(x, SHOAL_SUM, 1, group))                                                            \
    X(1, shoal_reduce_scatter_tensor(x, SHOAL_SUM, 0, group))                                             \
    X(0.5, shoal_reduce_scatter_tensor(x, SHOAL_AVG, 1, group))                                           \
    X(1, shoal_reduce_scatter_tensor_out(x, SHOAL_SUM, group, shoal_clone(half)))                         \
    X(1, shoal_reduce_scatter_tensor_inplace(shoal_clone(half), x, SHOAL_SUM, 0, group))                  \
    X(1, shoal_reduce_scatter_tensor_coalesced(&x, 1, SHOAL_SUM, NULL, group)[0])                         \
    X(2, shoal_all_gather_tensor(x, 0, group))                                                            \
    X(2, shoal_all_gather_tensor(x, 1, group))                                                            \
    X(2, shoal_all_gather_into_tensor(x, group))                                                          \
    X(2, shoal_all_gather_into_tensor_out(x, group, shoal_cat(LIST(whole, whole), 2, 0)))                 \
    X(2, shoal_all_gather_tensor_inplace(shoal_cat(LIST(whole, whole), 2, 1), x, 1, group))               \
    X(2, shoal_all_gather_into_tensor_coalesced(&x, 1, group)[0])                                         \
    X(1, shoal_all_gather_inplace(LIST(shoal_clone(whole), shoal_clone(whole)), 2, x, group)[self->rank]) \
    X(1, shoal_all_to_all_single(x, NULL, NULL, 0, group))                                                \
    X(1, shoal_all_to_all_inplace(shoal_clone(whole), x, NULL, NULL, 0, group))                           \
    X(self->rank == 1 ? 2 : 0, shoal_broadcast(x, 1, group))                                              \
    X(self->rank == 0 ? 2 : 0, shoal_broadcast(x, 0, group))                                              \
    X(1, rotate(x, group))                                                                                \
    X(1, shoal_shard_dim_alltoall(x, 0, 1, group))                                                        \
    X(1, shoal_shard_dim_alltoall(x, 1, 0, group))

static void check_waitless(const struct functional *self, shoal_tensor *x, shoal_tensor *y, double expected,
                           const char *text)
{
    struct values values = values_of(x); /* of ones */
    walk_back_one_by_one(self, sum_all(y));
    shoal_tensor *gradient = shoal_grad(x);
    if (!gradient || test_has_failed()) {
        test_failed(__FILE__, __LINE__, "%s: gradient %p", text, (void *)gradient);
        return;
    }
    double *numbers = (double *)(void *)values.bytes;
    for (int64_t i = 0; i < shoal_tensor_count(x); i++) {
        numbers[i] *= expected;
    }
    CHECK_VALUES(gradient, &values);
}

static void check_all_waitless(const struct functional *self, int64_t n)
{
    shoal_group *group = self->group;
#define X(expected, call)                                             \
    CASE_BEGIN();                                                     \
    {                                                                 \
        shoal_tensor *x = leaf_of_ones(SHAPE(2 * n, 2));              \
        shoal_tensor *whole = full_of(SHAPE(2 * n, 2), 0, SHOAL_F64); \
        shoal_tensor *half = full_of(SHAPE(n, 2), 0, SHOAL_F64);      \
        check_waitless(self, x, (call), expected, #call);             \
        (void)whole;                                                  \
        (void)half;                                                   \
    }                                                                 \
    CASE_END();
    WAITLESS_CASES(X)
#undef X
}

FUNCTIONAL(backward_returns_before_a_late_rank_comes, 2)
{
    check_all_waitless(self, 3);
}

/* Beyond what fits anywhere in between. */
FUNCTIONAL(backward_of_much_returns_before_a_late_rank_comes, 2)
{
    check_all_waitless(self, 16384);
}

/* What leads to the leaf ------------------------------------------------------------------------------- */

/* Views on the way back are no reason to wait. */
FUNCTIONAL(views_on_the_way_do_not_wait, 2)
{
    shoal_tensor *x = leaf_of_ones(SHAPE(2, 3));
    shoal_tensor *flat = shoal_reshape(x, INTS64(6), 1);
    shoal_tensor *y = shoal_all_reduce(shoal_unsqueeze(flat, 0), SHOAL_SUM, self->group);
    walk_back_one_by_one(self, sum_all(y));
    CHECK_FULL(shoal_grad(x), SHAPE(2, 3), 2);
}

/* Several leaves and several collectives: all of them are on their way when rank 0 returns. */
FUNCTIONAL(several_leaves_do_not_wait, 2)
{
    shoal_tensor *x[4];
    shoal_tensor *loss = NULL;
    for (int i = 0; i < 4; i++) {
        x[i] = leaf_of_ones(SHAPE(5));
        shoal_tensor *part = shoal_mul_scalar(shoal_all_reduce(x[i], SHOAL_SUM, self->group), i + 1);
        loss = loss ? shoal_add(loss, part) : part;
    }
    walk_back_one_by_one(self, sum_all(loss));
    for (int i = 0; i < 4; i++) {
        CHECK_FULL(shoal_grad(x[i]), SHAPE(5), 2 * (i + 1));
    }
}

/* The gradient that a leaf has already is added to: that needs both, so it waits. */
FUNCTIONAL(adding_to_a_gradient_waits_for_it, 2)
{
    shoal_tensor *x = leaf_of_ones(SHAPE(5));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_backward(sum_all(shoal_all_reduce(x, SHOAL_SUM, self->group)), NULL));
    }
    CHECK_FULL(shoal_grad(x), SHAPE(5), 6);
}

/* The same gradient for two leaves is a copy for one of them: right, whichever waits. */
FUNCTIONAL(two_leaves_of_one_gradient, 2)
{
    shoal_tensor *x = leaf_of_ones(SHAPE(5));
    shoal_tensor *y = leaf_of_ones(SHAPE(5));
    shoal_tensor *sum = shoal_all_reduce(shoal_add(x, y), SHOAL_SUM, self->group);
    CHECK_OK(shoal_backward(sum_all(sum), NULL));
    CHECK(shoal_data(shoal_grad(x)) != shoal_data(shoal_grad(y)));
    CHECK_FULL(shoal_grad(x), SHAPE(5), 2);
    CHECK_FULL(shoal_grad(y), SHAPE(5), 2);
}

/* Leaf and loss may go while the gradient is on its way. */
FUNCTIONAL(everything_may_go_while_gradients_fly, 2)
{
    for (int i = 0; i < 20; i++) {
        CASE_BEGIN();
        shoal_tensor *x = leaf_of_ones(SHAPE(1000));
        CHECK_OK(shoal_backward(sum_all(shoal_all_reduce(x, SHOAL_SUM, self->group)), NULL));
        CASE_END();
    }
    CHECK_FULL(shoal_all_reduce(full_of(SHAPE(2), 1, SHOAL_F64), SHOAL_SUM, self->group), SHAPE(2), 2);
}

/* Hooks ------------------------------------------------------------------------------------------------ */

struct seen {
    int n_calls;
    bool was_in_flight;
    double factor;
};

static shoal_tensor *look(void *context, shoal_tensor *gradient)
{
    struct seen *seen = context;
    seen->n_calls++;
    seen->was_in_flight = is_in_flight(gradient);
    return NULL;
}

static shoal_status look_at_leaf(void *context, shoal_tensor *leaf)
{
    (void)look(context, shoal_grad(leaf));
    return SHOAL_OK;
}

/* Rank 0's hooks have run before rank 1 has begun: what they are given cannot have arrived. */
FUNCTIONAL(hooks_see_a_gradient_in_flight, 2)
{
    struct seen gradient = {0};
    struct seen accumulated = {0};
    struct seen inside = {0};
    shoal_tensor *x = leaf_of_ones(SHAPE(5));
    shoal_tensor *view = shoal_reshape(x, INTS64(5, 1), 2);
    CHECK_OK(shoal_on_gradient(x, look, &gradient, NULL));
    CHECK_OK(shoal_on_gradient(view, look, &inside, NULL));
    CHECK_OK(shoal_on_accumulated(x, look_at_leaf, &accumulated, NULL));
    walk_back_one_by_one(self, sum_all(shoal_all_reduce(view, SHOAL_SUM, self->group)));
    CHECK_INT(gradient.n_calls, 1);
    CHECK_INT(inside.n_calls, 1);
    CHECK_INT(accumulated.n_calls, 1);
    if (self->rank == 0) {
        CHECK(gradient.was_in_flight && inside.was_in_flight && accumulated.was_in_flight);
    }
    CHECK_FULL(shoal_grad(x), SHAPE(5), 2);
}

static shoal_tensor *multiply(void *context, shoal_tensor *gradient)
{
    struct seen *seen = context;
    seen->n_calls++;
    return shoal_mul_scalar(gradient, seen->factor);
}

/* A hook that uses the gradient waits for it, and gets it whole. */
FUNCTIONAL(hooks_may_use_a_gradient_in_flight, 2)
{
    struct seen seen = {.factor = 10};
    shoal_tensor *x = leaf_of_ones(SHAPE(5));
    CHECK_OK(shoal_on_gradient(x, multiply, &seen, NULL));
    shoal_tensor *loss = sum_all(shoal_all_reduce(x, SHOAL_SUM, self->group));
    if (self->rank == 1) {
        test_pause(0.05);
    }
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_INT(seen.n_calls, 1);
    CHECK_FULL(shoal_grad(x), SHAPE(5), 20);
}

/* What goes wrong -------------------------------------------------------------------------------------- */

/* Rank 1 calls something else instead: backward is long over, the gradient's first use has the error. */
TEST_RANKS(an_error_is_that_of_the_gradients_first_use, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = leaf_of_ones(SHAPE(5));
    shoal_tensor *loss = sum_all(shoal_all_reduce(x, SHOAL_SUM, group));
    CHECK_OK(shoal_scope_error());
    if (self->rank == 0) {
        CHECK_OK(shoal_backward(loss, NULL));
    }
    test_barrier(self);
    shoal_tensor *wrong = self->rank == 1 ? shoal_all_gather_tensor(x, 0, group) : shoal_grad(x);
    CHECK(wrong != NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(!shoal_data(wrong));
        CHECK_ERROR_TEXT("all_reduce");
        CHECK_ERROR_TEXT("all_gather");
    }
    /* A scope tells of what failed in it; the gradient is the leaf's. */
    CHECK_STATUS(shoal_scope_end(), self->rank == 1 ? SHOAL_ERR_MISMATCH : SHOAL_OK);
    CHECK_OK(shoal_world_close(world));
}
