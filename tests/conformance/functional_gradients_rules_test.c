/* SPDX-License-Identifier: MIT */
/*
 * Rules about gradients of collectives that finite differences do not show: the numbers that PyTorch's tests
 * have, ties and NaN of min and max, what is saved for backward, and what is refused.
 */
#include <math.h>

#include "autograd/gradients.h"
#include "fixtures/functional.h"
#include "op/box.h"
#include "op/op.h"
#include "shoal_compat/torch.h"
#include "shoal/shoal.h"

#define LIST(...) ((shoal_tensor *const[]){__VA_ARGS__})

static shoal_tensor *require_grad(shoal_tensor *tensor)
{
    CHECK_OK(shoal_set_requires_grad(tensor, true));
    return tensor;
}

static shoal_tensor *leaf_of_ones(struct shape shape)
{
    return require_grad(full_of(shape, 1, SHOAL_F64));
}

/* The caller's rank everywhere. */
static shoal_tensor *leaf_of_rank(const struct functional *self, struct shape shape)
{
    return require_grad(full_of(shape, self->rank, SHOAL_F64));
}

static shoal_tensor *sum_all(shoal_tensor *tensor)
{
    return shoal_sum(tensor, NULL, 0, /*keeps_dims=*/false);
}

static void check_same(const char *file, int line, shoal_tensor *actual, shoal_tensor *expected)
{
    struct values values = values_of(expected);
    check_values(file, line, actual, &values);
}

#define CHECK_SAME(actual, expected) check_same(__FILE__, __LINE__, (actual), (expected))

/* A gradient to start from: different on every rank, looking like the result. */
static shoal_tensor *gradient_like(const struct functional *self, const shoal_tensor *result)
{
    struct shape shape = {.n_dims = shoal_tensor_n_dims(result)};
    for (int i = 0; i < shape.n_dims; i++) {
        shape.sizes[i] = shoal_tensor_shape(result)[i];
    }
    return make_input(shape, shoal_tensor_dtype(result), FORM_PLAIN, self->rank, 77);
}

/* The numbers of PyTorch's tests ----------------------------------------------------------------------- */

FUNCTIONAL(all_reduce_of_ranks, 4)
{
    shoal_tensor *x = leaf_of_rank(self, SHAPE(3, 3));
    shoal_tensor *y = shoal_all_reduce(x, SHOAL_SUM, self->group);
    CHECK(shoal_requires_grad(y));
    CHECK_FULL(y, SHAPE(3, 3), 6);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(3, 3), 4);
    x = leaf_of_rank(self, SHAPE(3, 3));
    y = shoal_all_reduce(x, SHOAL_SUM, self->group);
    shoal_tensor *gradient = gradient_like(self, y);
    CHECK_OK(shoal_backward(y, gradient));
    CHECK_SAME(shoal_grad(x), shoal_all_reduce(gradient, SHOAL_SUM, self->group));
}

typedef shoal_tensor *gather_call(shoal_tensor *self, int64_t gather_dim, shoal_group *group);

static void check_gathers(struct functional *self, gather_call *gather)
{
    for (int dim = 0; dim < 3; dim++) {
        struct shape shape = SHAPE(3, 3, 3);
        struct shape gathered = shape;
        gathered.sizes[dim] *= self->n_ranks;
        shoal_tensor *x = leaf_of_ones(shape);
        shoal_tensor *y = gather(x, dim, self->group);
        CHECK(shoal_requires_grad(y));
        CHECK_FULL(y, gathered, 1);
        CHECK_OK(shoal_backward(sum_all(y), NULL));
        CHECK_FULL(shoal_grad(x), shape, self->n_ranks);
        x = leaf_of_rank(self, shape);
        y = gather(x, dim, self->group);
        for (int p = 0; p < self->n_ranks && dim == 0; p++) {
            CHECK_FULL(shoal_narrow(y, 0, 3 * (int64_t)p, 3), shape, p);
        }
        shoal_tensor *gradient = gradient_like(self, y);
        CHECK_OK(shoal_backward(y, gradient));
        CHECK_SAME(shoal_grad(x), shoal_reduce_scatter_tensor(gradient, SHOAL_SUM, dim, self->group));
    }
}

FUNCTIONAL(all_gather_of_every_dim, 4)
{
    check_gathers(self, shoal_all_gather_tensor);
}

FUNCTIONAL(all_gather_tensor_autograd, 2)
{
    check_gathers(self, shoal_all_gather_tensor_autograd);
}

typedef shoal_tensor *scatter_call(shoal_tensor *self, shoal_reduce_op reduce, int64_t scatter_dim,
                                   shoal_group *group);

static void check_scatters(struct functional *self, scatter_call *scatter)
{
    double ranks_added_up = self->n_ranks * (self->n_ranks - 1) / 2;
    for (int dim = 0; dim < 2; dim++) {
        struct shape shape = dim == 0 ? SHAPE(16, 3) : SHAPE(3, 16);
        struct shape scattered = shape;
        scattered.sizes[dim] /= self->n_ranks;
        shoal_tensor *x = leaf_of_rank(self, shape);
        shoal_tensor *y = scatter(x, SHOAL_SUM, dim, self->group);
        CHECK(shoal_requires_grad(y));
        CHECK_FULL(y, scattered, ranks_added_up);
        CHECK_OK(shoal_backward(sum_all(y), NULL));
        CHECK_FULL(shoal_grad(x), shape, 1);
        x = leaf_of_rank(self, shape);
        y = scatter(x, SHOAL_SUM, dim, self->group);
        shoal_tensor *gradient = gradient_like(self, y);
        CHECK_OK(shoal_backward(y, gradient));
        CHECK_SAME(shoal_grad(x), shoal_all_gather_tensor(gradient, dim, self->group));
    }
}

FUNCTIONAL(reduce_scatter_of_every_dim, 4)
{
    check_scatters(self, shoal_reduce_scatter_tensor);
}

FUNCTIONAL(reduce_scatter_tensor_autograd, 2)
{
    check_scatters(self, shoal_reduce_scatter_tensor_autograd);
}

FUNCTIONAL(all_to_all_without_splits, 4)
{
    shoal_tensor *x = leaf_of_rank(self, SHAPE(4, 3));
    shoal_tensor *y = shoal_all_to_all_single(x, NULL, NULL, 0, self->group);
    for (int p = 0; p < 4; p++) {
        CHECK_FULL(shoal_narrow(y, 0, p, 1), SHAPE(1, 3), p);
    }
    shoal_tensor *gradient = gradient_like(self, y);
    CHECK_OK(shoal_backward(y, gradient));
    CHECK_SAME(shoal_grad(x), shoal_all_to_all_single(gradient, NULL, NULL, 0, self->group));
}

FUNCTIONAL(all_to_all_of_twice_ones, 2)
{
    shoal_tensor *x = leaf_of_ones(SHAPE(2, 2));
    shoal_tensor *y =
        shoal_all_to_all_single_autograd(shoal_mul_scalar(x, 2), INTS64(1, 1), INTS64(1, 1), 2, self->group);
    CHECK(shoal_requires_grad(y));
    CHECK_FULL(y, SHAPE(2, 2), 2);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(2, 2), 2);
}

FUNCTIONAL(coalesced_forms, 4)
{
    shoal_tensor *const a[] = {leaf_of_rank(self, SHAPE(2, 2)), leaf_of_rank(self, SHAPE(3))};
    shoal_tensor *const *sums = shoal_all_reduce_coalesced(a, 2, SHOAL_SUM, self->group);
    CHECK_FULL(sums[0], SHAPE(2, 2), 6);
    CHECK_FULL(sums[1], SHAPE(3), 6);
    CHECK_OK(shoal_backward(shoal_add(sum_all(sums[0]), sum_all(sums[1])), NULL));
    CHECK_FULL(shoal_grad(a[0]), SHAPE(2, 2), 4);
    CHECK_FULL(shoal_grad(a[1]), SHAPE(3), 4);

    shoal_tensor *const b[] = {leaf_of_rank(self, SHAPE(2, 2)), leaf_of_rank(self, SHAPE(3))};
    shoal_tensor *const *all = shoal_all_gather_into_tensor_coalesced(b, 2, self->group);
    CHECK_NUMBERS(all[1], SHAPE(12), 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3);
    CHECK_OK(shoal_backward(shoal_add(sum_all(all[0]), sum_all(all[1])), NULL));
    CHECK_FULL(shoal_grad(b[0]), SHAPE(2, 2), 4);
    CHECK_FULL(shoal_grad(b[1]), SHAPE(3), 4);

    shoal_tensor *const c[] = {leaf_of_rank(self, SHAPE(4, 2)), leaf_of_rank(self, SHAPE(3, 8))};
    shoal_tensor *const *parts =
        shoal_reduce_scatter_tensor_coalesced(c, 2, SHOAL_SUM, INTS64(0, 1), self->group);
    CHECK_FULL(parts[0], SHAPE(1, 2), 6);
    CHECK_FULL(parts[1], SHAPE(3, 2), 6);
    CHECK_OK(shoal_backward(shoal_add(sum_all(parts[0]), sum_all(parts[1])), NULL));
    CHECK_FULL(shoal_grad(c[0]), SHAPE(4, 2), 1);
    CHECK_FULL(shoal_grad(c[1]), SHAPE(3, 8), 1);
}

/* The names with _autograd were made because this one had no gradient, and nobody was told. */
FUNCTIONAL(all_reduce_and_a_local_tensor, 2)
{
    shoal_tensor *x = leaf_of_ones(SHAPE(4));
    shoal_tensor *y = leaf_of_ones(SHAPE(4));
    shoal_tensor *z = shoal_add(shoal_all_reduce(x, SHOAL_SUM, self->group), y);
    CHECK_OK(shoal_backward(sum_all(z), NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(4), 2);
    CHECK_FULL(shoal_grad(y), SHAPE(4), 1);
}

/* Gradients of several backward passes add up, also when the first was still on its way. */
FUNCTIONAL(backward_twice_adds_up, 2)
{
    const shoal_backward_options keeping = {.struct_size = sizeof keeping, .keeps_graph = true};
    shoal_tensor *x = leaf_of_ones(SHAPE(4));
    shoal_tensor *loss = sum_all(shoal_all_reduce(x, SHOAL_AVG, self->group));
    CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &keeping));
    CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &keeping));
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(4), 3);
}

/* One output that only some ranks use: the others take part with zeros. */
FUNCTIONAL(a_list_of_which_ranks_use_different_parts, 2)
{
    shoal_tensor *const x[] = {leaf_of_ones(SHAPE(2)), leaf_of_ones(SHAPE(3))};
    shoal_tensor *const *y = shoal_all_reduce_coalesced(x, 2, SHOAL_SUM, self->group);
    CHECK_OK(shoal_backward(sum_all(y[self->rank]), NULL));
    CHECK_FULL(shoal_grad(x[0]), SHAPE(2), 1);
    CHECK_FULL(shoal_grad(x[1]), SHAPE(3), 1);
}

/* A leaf that lies in symmetric memory itself. */
FUNCTIONAL(one_shot_of_a_leaf, 2)
{
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, 64, &symmetric));
    shoal_tensor *x = shoal_symmetric_tensor(symmetric, 0, INTS64(3), 1, SHOAL_F64);
    shoal_tensor *y = shoal_one_shot_all_reduce(require_grad(x), SHOAL_SUM, self->group);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(3), 2);
    shoal_symmetric_free(symmetric);
}

/* Ties and NaN of min and max -------------------------------------------------------------------------- */

/* One column per case: the three ranks' numbers, and whether each is the result. */
#define EXTREME_CASES(X)                        \
    X(5, 1, 2, 1, 0, 0)                         \
    X(1, 5, 5, 0, 1, 1)                         \
    X(7, 7, 7, 1, 1, 1)                         \
    X(0.0, -0.0, -9, 1, 1, 0)                   \
    X(1, NAN, 2, 0, 1, 0)                       \
    X(NAN, 9, -NAN, 1, 0, 1)                    \
    X(NAN, NAN, NAN, 1, 1, 1)                   \
    X(INFINITY, INFINITY, -INFINITY, 1, 1, 0)   \
    X(-INFINITY, -INFINITY, -INFINITY, 1, 1, 1) \
    X(INFINITY, NAN, 0, 0, 1, 0)

static const double extreme_numbers[][3] = {
#define X(a, b, c, is_a, is_b, is_c) {(double)(a), (double)(b), (double)(c)},
    EXTREME_CASES(X)
#undef X
};

static const double extreme_choices[][3] = {
#define X(a, b, c, is_a, is_b, is_c) {is_a, is_b, is_c},
    EXTREME_CASES(X)
#undef X
};

enum {
    N_EXTREMES = sizeof extreme_numbers / sizeof extreme_numbers[0]
};

/* For max; with is_min everything the other way round. */
static shoal_tensor *make_extremes(const struct functional *self, shoal_dtype dtype, bool is_min)
{
    shoal_tensor *x = shoal_empty(INTS64(N_EXTREMES), 1, dtype);
    unsigned char *data = shoal_mutable_data(x);
    for (size_t i = 0; i < N_EXTREMES; i++) {
        double number = extreme_numbers[i][self->rank];
        scalar_store(dtype, data + i * dtype_bytes(dtype), (struct scalar){.re = is_min ? -number : number});
    }
    return require_grad(x);
}

/* Every rank that has the result gets all of what flows back: 1 from the first rank, 2 from the next, 4. */
static void check_extremes(const struct functional *self, shoal_tensor *x, shoal_tensor *y)
{
    double expected[N_EXTREMES];
    int64_t count = N_EXTREMES;
    shoal_tensor *gradient = shoal_full(&count, 1, 1 << self->rank, shoal_tensor_dtype(y));
    CHECK_OK(shoal_backward(y, gradient));
    for (size_t i = 0; i < N_EXTREMES; i++) {
        expected[i] = 7 * extreme_choices[i][self->rank];
    }
    check_numbers(__FILE__, __LINE__, shoal_grad(x), SHAPE(N_EXTREMES), expected);
}

FUNCTIONAL(ties_and_nan_of_min_and_max, 3)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (int is_min = 0; is_min < 2; is_min++) {
            shoal_reduce_op reduce = is_min ? SHOAL_MIN : SHOAL_MAX;
            shoal_tensor *x = make_extremes(self, dtypes[d], is_min);
            check_extremes(self, x, shoal_all_reduce(x, reduce, self->group));
            x = make_extremes(self, dtypes[d], is_min);
            check_extremes(self, x, shoal_all_reduce_(shoal_mul_scalar(x, 1), reduce, self->group));
            x = make_extremes(self, dtypes[d], is_min);
            check_extremes(self, x, shoal_all_reduce_coalesced(LIST(x, x), 2, reduce, self->group)[1]);
        }
    }
}

/* What is saved ---------------------------------------------------------------------------------------- */

static shoal_tensor *all_to_all(shoal_tensor *x, shoal_group *group)
{
    return shoal_all_to_all_single(x, NULL, NULL, 0, group);
}

/* Ops on a [4, 2]; those that save must be the ones that say so. */
#define SAVING_CASES(X)                                                               \
    X(false, shoal_all_reduce(x, SHOAL_SUM, group))                                   \
    X(false, shoal_all_reduce(x, SHOAL_AVG, group))                                   \
    X(false, shoal_all_reduce_premul(x, 0.5, group))                                  \
    X(true, shoal_all_reduce(x, SHOAL_MAX, group))                                    \
    X(true, shoal_all_reduce(x, SHOAL_MIN, group))                                    \
    X(false, shoal_all_reduce_coalesced(&x, 1, SHOAL_SUM, group)[0])                  \
    X(true, shoal_all_reduce_coalesced(&x, 1, SHOAL_MAX, group)[0])                   \
    X(false, shoal_reduce(x, SHOAL_SUM, 1, group))                                    \
    X(false, shoal_reduce_scatter_tensor(x, SHOAL_AVG, 1, group))                     \
    X(false, shoal_reduce_scatter_tensor_coalesced(&x, 1, SHOAL_SUM, NULL, group)[0]) \
    X(false, shoal_all_gather_tensor(x, 1, group))                                    \
    X(false, shoal_all_gather_into_tensor(x, group))                                  \
    X(false, shoal_all_gather_into_tensor_coalesced(&x, 1, group)[0])                 \
    X(false, all_to_all(x, group))                                                    \
    X(false, shoal_broadcast(x, 0, group))                                            \
    X(false, shoal_permute_tensor(x, INTS64(1, 0), 2, group))                         \
    X(false, shoal_shard_dim_alltoall(x, 0, 1, group))

static const struct saving_case {
    bool saves;
    const char *text;
} saving_cases[] = {
#define X(saves, call) {saves, #call},
    SAVING_CASES(X)
#undef X
};

enum {
    N_SAVING_CASES = sizeof saving_cases / sizeof saving_cases[0]
};

static shoal_tensor *call_saving_case(size_t number, shoal_tensor *x, shoal_group *group)
{
    size_t at = 0;
#define X(saves, call)    \
    if (at++ == number) { \
        return (call);    \
    }
    SAVING_CASES(X)
#undef X
    return NULL;
}

static void change(shoal_tensor *tensor)
{
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(shoal_mul_scalar_(tensor, 3) != NULL);
    CHECK_OK(shoal_scope_set_grad(true));
}

/* Changes the input, or the result, between forward and backward. */
static void check_saving(const struct functional *self, size_t number, bool changes_result)
{
    const struct saving_case *tested = &saving_cases[number];
    CASE_BEGIN();
    shoal_tensor *x = leaf_of_rank(self, SHAPE(4, 2));
    shoal_tensor *y = call_saving_case(number, x, self->group);
    shoal_tensor *loss = sum_all(y);
    change(changes_result ? y : x);
    shoal_status status = shoal_backward(loss, NULL);
    if (status != (tested->saves ? SHOAL_ERR_STATE : SHOAL_OK)) {
        test_failed(__FILE__, __LINE__, "%s: %d after a change of the %s: %s", tested->text, (int)status,
                    changes_result ? "result" : "input", shoal_error_text());
    } else if (tested->saves) {
        CHECK_ERROR_TEXT("was saved for backward in version ");
        CHECK_ERROR_TEXT("and changed in place since: it is in version ");
    }
    CASE_END();
}

FUNCTIONAL(only_min_and_max_save_tensors, 2)
{
    for (size_t i = 0; i < N_SAVING_CASES; i++) {
        check_saving(self, i, /*changes_result=*/false);
        check_saving(self, i, /*changes_result=*/true);
    }
}

/* In place, min and max keep a copy of what they overwrite. */
FUNCTIONAL(in_place_max_saves_a_copy, 2)
{
    shoal_tensor *x = leaf_of_rank(self, SHAPE(3));
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    CHECK(shoal_all_reduce_(y, SHOAL_MAX, self->group) == y);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_FULL(shoal_grad(x), SHAPE(3), self->rank == 1 ? 4 : 0);
}

FUNCTIONAL(without_gradients_nothing_is_recorded, 2)
{
    shoal_tensor *x = leaf_of_rank(self, SHAPE(3));
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(!shoal_requires_grad(shoal_all_reduce(x, SHOAL_SUM, self->group)));
    CHECK(shoal_all_reduce_(x, SHOAL_SUM, self->group) == x);
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK(shoal_is_leaf(x) && shoal_requires_grad(x));
    CHECK_FULL(x, SHAPE(3), 1);
}

/* Refused by backward ---------------------------------------------------------------------------------- */

#define NO_GRADIENT_CASES(X)                                                                                \
    X("all_reduce with reduce product", ALL, shoal_all_reduce(x, SHOAL_PRODUCT, group))                     \
    X("all_reduce_ with reduce product", ALL, shoal_all_reduce_(shoal_clone(x), SHOAL_PRODUCT, group))      \
    X("all_reduce_coalesced with reduce product", ALL,                                                      \
      shoal_all_reduce_coalesced(&x, 1, SHOAL_PRODUCT, group)[0])                                           \
    X("all_reduce_coalesced_ with reduce product", ALL,                                                     \
      shoal_all_reduce_coalesced_(LIST(shoal_clone(x)), 1, SHOAL_PRODUCT, group)[0])                        \
    X("reduce with reduce max", LINEAR, shoal_reduce(x, SHOAL_MAX, 0, group))                               \
    X("reduce_scatter_tensor with reduce min", LINEAR, shoal_reduce_scatter_tensor(x, SHOAL_MIN, 0, group)) \
    X("reduce_scatter_tensor with reduce product", LINEAR,                                                  \
      shoal_reduce_scatter_tensor(x, SHOAL_PRODUCT, 1, group))                                              \
    X("reduce_scatter_tensor_out with reduce max", LINEAR,                                                  \
      shoal_reduce_scatter_tensor_out(x, SHOAL_MAX, group, full_of(SHAPE(2, 2), 0, SHOAL_F64)))             \
    X("reduce_scatter_tensor_inplace with reduce max", LINEAR,                                              \
      shoal_reduce_scatter_tensor_inplace(full_of(SHAPE(4, 1), 0, SHOAL_F64), x, SHOAL_MAX, 1, group))      \
    X("reduce_scatter_tensor_coalesced with reduce min", LINEAR,                                            \
      shoal_reduce_scatter_tensor_coalesced(&x, 1, SHOAL_MIN, NULL, group)[0])

#define ALL " has no gradient; sum, avg, premul_sum, min and max have"
#define LINEAR " has no gradient; sum, avg and premul_sum have"

/* The forward is fine, and so is the group afterwards. */
static void check_no_gradient(const struct functional *self, shoal_tensor *result, const char *text)
{
    CHECK(shoal_requires_grad(result));
    CHECK_STATUS(shoal_backward(sum_all(result), NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(text);
    CHECK_FULL(shoal_all_reduce(full_of(SHAPE(2), 1, SHOAL_F64), SHOAL_SUM, self->group), SHAPE(2),
               self->n_ranks);
}

FUNCTIONAL(reductions_without_gradient_say_which_have_one, 2)
{
    shoal_group *group = self->group;
    shoal_tensor *x;
#define X(text, offered, call)                     \
    CASE_BEGIN();                                  \
    x = leaf_of_rank(self, SHAPE(4, 2));           \
    check_no_gradient(self, (call), text offered); \
    CHECK(!shoal_grad(x));                         \
    CASE_END();
    NO_GRADIENT_CASES(X)
#undef X
}

FUNCTIONAL(symmetric_product_has_no_gradient, 2)
{
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, 64, &symmetric));
    shoal_tensor *x = require_grad(shoal_symmetric_tensor(symmetric, 0, INTS64(2), 1, SHOAL_F64));
    check_no_gradient(self, shoal_one_shot_all_reduce(x, SHOAL_PRODUCT, self->group),
                      "one_shot_all_reduce with reduce product" ALL);
    shoal_tensor *out = full_of(SHAPE(2), 0, SHOAL_F64);
    check_no_gradient(self, shoal_two_shot_all_reduce_out(x, SHOAL_PRODUCT, self->group, out),
                      "two_shot_all_reduce_out with reduce product" ALL);
    shoal_symmetric_free(symmetric);
}

/* Refused at the call ---------------------------------------------------------------------------------- */

/* The call leaves this error in a scope of its own. */
#define CHECK_REFUSED(call, status, words)       \
    do {                                         \
        REQUIRE_OK(shoal_scope_begin());         \
        CHECK((call) == NULL);                   \
        CHECK_STATUS(shoal_scope_end(), status); \
        CHECK_ERROR_TEXT(words);                 \
    } while (0)

/* Bits of floats: no need to wait for backward. */
FUNCTIONAL(bitwise_reductions_of_floats_are_refused, 2)
{
    shoal_tensor *x = leaf_of_rank(self, SHAPE(2));
    CHECK_REFUSED(shoal_all_reduce(x, SHOAL_BAND, self->group), SHOAL_ERR_UNSUPPORTED, "band");
    CHECK_FULL(shoal_all_reduce(x, SHOAL_SUM, self->group), SHAPE(2), 1);
}

FUNCTIONAL(point_to_point_never_drops_a_gradient, 2)
{
    TEST_NEEDS_HOST();
    const char *const text = "an input requires a gradient, but";
    shoal_tensor *leaf = leaf_of_rank(self, SHAPE(2));
    shoal_tensor *result = shoal_mul_scalar(leaf, 2);
    shoal_tensor *plain = full_of(SHAPE(2), self->rank, SHOAL_F64);
    shoal_tensor *const list[] = {leaf, result};
    int peer = 1 - self->rank;
    for (size_t i = 0; i < 2; i++) {
        const shoal_p2p_op sends[] = {{SHOAL_SEND, plain, peer, 0}, {SHOAL_SEND, list[i], peer, 0}};
        const shoal_p2p_op receives[] = {{SHOAL_RECV, plain, peer, 0}, {SHOAL_RECV, list[i], peer, 0}};
        CHECK_REFUSED(shoal_isend(list[i], peer, 0, self->group), SHOAL_ERR_UNSUPPORTED, text);
        CHECK_REFUSED(shoal_irecv(list[i], peer, 0, self->group), SHOAL_ERR_UNSUPPORTED, text);
        CHECK_REFUSED(shoal_batch_p2p_ops(sends, 2, self->group), SHOAL_ERR_UNSUPPORTED, text);
        CHECK_REFUSED(shoal_batch_p2p_ops(receives, 2, self->group), SHOAL_ERR_UNSUPPORTED,
                      "tensors[1]: this tensor requires a gradient, and receiving into it has none");
    }
    /* Nothing was sent, nothing is expected: streams are as they were. With gradients off it is allowed. */
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *sent = shoal_isend(leaf, peer, 0, self->group);
    CHECK_FULL(shoal_irecv(plain, peer, 0, self->group), SHAPE(2), peer);
    CHECK(shoal_wait_tensor(sent) == sent);
    shoal_tensor *const *both = shoal_batch_p2p_ops(
        (const shoal_p2p_op[]){{SHOAL_SEND, plain, peer, 0}, {SHOAL_RECV, leaf, peer, 0}}, 2, self->group);
    CHECK_FULL(both[1], SHAPE(2), self->rank);
    CHECK(both[1] == leaf && shoal_is_leaf(leaf) && shoal_requires_grad(leaf));
    CHECK_OK(shoal_scope_set_grad(true));
}

FUNCTIONAL(copies_into_symmetric_memory_never_drop_a_gradient, 2)
{
    const char *const text = "an input requires a gradient, but";
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, 64, &symmetric));
    shoal_tensor *place = shoal_symmetric_tensor(symmetric, 0, INTS64(2), 1, SHOAL_F64);
    shoal_tensor *out = full_of(SHAPE(2), 0, SHOAL_F64);
    shoal_tensor *x = leaf_of_rank(self, SHAPE(2));
    CHECK_REFUSED(shoal_one_shot_all_reduce_copy(place, x, SHOAL_SUM, self->group), SHOAL_ERR_UNSUPPORTED,
                  text);
    CHECK_REFUSED(shoal_one_shot_all_reduce_copy_out(place, x, SHOAL_SUM, self->group, out),
                  SHOAL_ERR_UNSUPPORTED, text);
    CHECK_FULL(place, SHAPE(2), 0);
    shoal_symmetric_free(symmetric);
}

/* Changing leaves ------------------------------------------------------------------------------------- */

#define LEAF_TEXT "this leaf requires a gradient: it cannot be changed in place"

/* Every collective that writes its first argument, on a leaf [4, 2]; `plain` is [4, 2] and no leaf. */
#define IN_PLACE_CASES(X)                                                                                  \
    X(all_reduce_, "self", shoal_all_reduce_(leaf, SHOAL_SUM, group))                                      \
    X(all_reduce_coalesced_, "tensors[1]",                                                                 \
      shoal_all_reduce_coalesced_(LIST(plain, leaf), 2, SHOAL_SUM, group))                                 \
    X(reduce_scatter_tensor_out, "out",                                                                    \
      shoal_reduce_scatter_tensor_out(shoal_cat(LIST(plain, plain), 2, 0), SHOAL_SUM, group, leaf))        \
    X(reduce_scatter_tensor_inplace, "out",                                                                \
      shoal_reduce_scatter_tensor_inplace(leaf, shoal_cat(LIST(plain, plain), 2, 1), SHOAL_SUM, 1, group)) \
    X(all_gather_tensor_inplace, "out",                                                                    \
      shoal_all_gather_tensor_inplace(leaf, shoal_narrow(plain, 1, 0, 1), 1, group))                       \
    X(all_gather_into_tensor_out, "out",                                                                   \
      shoal_all_gather_into_tensor_out(shoal_narrow(plain, 0, 0, 2), group, leaf))                         \
    X(all_gather_inplace, "outs[1]",                                                                       \
      shoal_all_gather_inplace(LIST(shoal_clone(plain), leaf), 2, plain, group))                           \
    X(all_to_all_inplace, "out", shoal_all_to_all_inplace(leaf, plain, NULL, NULL, 0, group))              \
    X(broadcast_, "self", shoal_broadcast_(leaf, 0, group))                                                \
    X(irecv, "", shoal_irecv(leaf, 0, 0, group))                                                           \
    X(one_shot_all_reduce_out, "out", shoal_one_shot_all_reduce_out(plain, SHOAL_SUM, group, leaf))        \
    X(one_shot_all_reduce_copy_out, "",                                                                    \
      shoal_one_shot_all_reduce_copy_out(plain, plain, SHOAL_SUM, group, leaf))                            \
    X(two_shot_all_reduce_, "self", shoal_two_shot_all_reduce_(leaf, SHOAL_SUM, group))                    \
    X(two_shot_all_reduce_out, "out", shoal_two_shot_all_reduce_out(plain, SHOAL_SUM, group, leaf))

FUNCTIONAL(leaves_are_not_changed_in_place, 2)
{
    shoal_group *group = self->group;
    shoal_tensor *leaf = leaf_of_rank(self, SHAPE(4, 2));
    shoal_tensor *plain = full_of(SHAPE(4, 2), 1, SHOAL_F64);
    uint64_t version = shoal_tensor_version(leaf);
    /* What has no gradient at all says that instead. */
#define X(name, argument, call)                                                      \
    if (gradients_find(shoal_op_at(OP_##name))) {                                    \
        CHECK_REFUSED(call, SHOAL_ERR_STATE, #name ": " argument ": " LEAF_TEXT);    \
    } else {                                                                         \
        CHECK_REFUSED(call, SHOAL_ERR_UNSUPPORTED,                                   \
                      #name ": an input requires a gradient, but " #name " has no"); \
    }
    IN_PLACE_CASES(X)
#undef X
    CHECK_INT(shoal_tensor_version(leaf), version);
    CHECK_FULL(shoal_all_reduce(plain, SHOAL_SUM, group), SHAPE(4, 2), 2);
}

TEST(every_collective_in_place_has_a_case)
{
    static const char *const names[] = {
#define X(name, argument, call) #name,
        IN_PLACE_CASES(X)
#undef X
    };
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        const uint32_t flags = SHOAL_OP_COLLECTIVE | SHOAL_OP_IN_PLACE;
        bool is_found = false;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            is_found = is_found || strcmp(names[k], op->name) == 0;
        }
        if (is_found != ((op->flags & flags) == flags)) {
            test_failed(__FILE__, __LINE__, "op %s: a case %s", op->name,
                        is_found ? "too much" : "is missing");
        }
    }
}

/* A change through a view would not be seen by what it looks at. */
FUNCTIONAL(views_are_not_changed_in_place, 2)
{
    const char *const text = "this is a view: while gradients are recorded it cannot be changed in place";
    shoal_tensor *x = leaf_of_rank(self, SHAPE(4));
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    shoal_tensor *room = full_of(SHAPE(8), 0, SHOAL_F64);
    CHECK_REFUSED(shoal_all_reduce_(shoal_narrow(y, 0, 0, 2), SHOAL_SUM, self->group), SHOAL_ERR_STATE, text);
    CHECK_REFUSED(shoal_all_to_all_inplace(shoal_narrow(room, 0, 0, 4), x, NULL, NULL, 0, self->group),
                  SHOAL_ERR_STATE, text);
    CHECK_FULL(shoal_all_reduce(x, SHOAL_SUM, self->group), SHAPE(4), 1);
}
