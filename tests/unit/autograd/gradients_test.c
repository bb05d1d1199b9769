/* SPDX-License-Identifier: MIT */
/*
 * Every gradient function against finite differences, in f64. A row of ops.def that needs no group,
 * has a gradient and no case here fails the suite. Each case runs with contiguous leaves, and with leaves of other strides.
 */
#include <stdio.h>
#include <string.h>

#include "autograd/gradients.h"
#include "conformance/ops/of_ranks.h"
#include "op/op.h"
#include "unit/autograd/fixture.h"

#define MAX_INPUTS 4
#define MAX_ELEMS 64
#define STEP 1e-5

struct shape {
    int n_dims;
    int64_t sizes[SHOAL_MAX_DIMS];
};

enum strides {
    CONTIGUOUS,
    TRANSPOSED, /* the last two dimensions lie the other way round in memory */
    SPACED,     /* every second element of a larger tensor */
    N_STRIDES
};

struct gradient_case {
    const char *op;
    const char *text;
    bool needs_contiguous;
    shoal_tensor *(*run)(shoal_tensor *const *x);
    size_t n_inputs;
    struct shape shapes[MAX_INPUTS];
};

/* Several outputs become one number, each with its own weight; every third is left out. */
static shoal_tensor *mix(shoal_tensor *const *list, size_t count, bool uses_all)
{
    shoal_tensor *total = NULL;
    for (size_t i = 0; list && i < count; i++) {
        if (uses_all || i % 3 != 1) {
            shoal_tensor *part =
                shoal_mul_scalar(sum_all(shoal_mul(list[i], list[i])), 1.0 + 0.25 * (double)i);
            total = total ? shoal_add(total, part) : part;
        }
    }
    return total;
}

#define LIST(...) ((shoal_tensor *[]){__VA_ARGS__})
#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* Statements around an expression with a list, whose count comes through a pointer. */
#define MIX(uses_all, call)             \
    size_t n;                           \
    shoal_tensor *const *list = (call); \
    return mix(list, list ? n : 0, uses_all)

#include "unit/autograd/gradient_cases.h"

static const struct gradient_case cases[] = {
#define CASE(op, label, contiguous, body, n, ...) \
    {#op, #op ": " #label, contiguous, run_##op##_##label, n, {__VA_ARGS__}},
    GRADIENT_CASES
#undef CASE
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

/* Inputs ----------------------------------------------------------------------------------------------- */

static int64_t count_elems(const struct shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->n_dims; i++) {
        count *= shape->sizes[i];
    }
    return count;
}

/* A tensor with the strides wanted; filled through copy_, so the order of `values` is row-major. */
static shoal_tensor *make_input(const struct shape *shape, const double *values, enum strides strides)
{
    struct shape wide = *shape;
    int n_dims = shape->n_dims;
    shoal_tensor *source =
        shoal_from_memory((void *)(uintptr_t)values, shape->sizes, n_dims, SHOAL_F64, NULL, NULL, NULL);
    shoal_tensor *tensor;
    if (strides == TRANSPOSED && n_dims >= 2) {
        wide.sizes[n_dims - 1] = shape->sizes[n_dims - 2];
        wide.sizes[n_dims - 2] = shape->sizes[n_dims - 1];
        tensor = shoal_transpose(shoal_empty(wide.sizes, n_dims, SHOAL_F64), -1, -2);
    } else if (strides == SPACED && n_dims >= 1) {
        wide.sizes[n_dims - 1] = 2 * shape->sizes[n_dims - 1];
        tensor = shoal_slice(shoal_zeros(wide.sizes, n_dims, SHOAL_F64), -1, 0, INT64_MAX, 2);
    } else {
        tensor = shoal_empty(shape->sizes, n_dims, SHOAL_F64);
    }
    return shoal_copy_(tensor, source);
}

/* What the result's elements count for in the loss. */
static shoal_tensor *weigh(shoal_tensor *result)
{
    if (!result) {
        return NULL;
    }
    shoal_tensor *weights = shoal_empty(shoal_tensor_shape(result), shoal_tensor_n_dims(result), SHOAL_F64);
    double *data = shoal_mutable_data(weights);
    for (int64_t i = 0; data && i < shoal_tensor_count(weights); i++) {
        data[i] = 0.5 + 0.125 * (double)((i * 5) % 11);
    }
    return sum_all(shoal_mul(result, weights));
}

static double evaluate(const struct gradient_case *tested, double values[MAX_INPUTS][MAX_ELEMS],
                       enum strides strides)
{
    shoal_tensor *inputs[MAX_INPUTS] = {NULL};
    double loss = (double)NAN;
    if (!CHECK_OK(shoal_scope_begin())) {
        return loss;
    }
    CHECK_OK(shoal_scope_set_grad(false));
    for (size_t i = 0; i < tested->n_inputs; i++) {
        inputs[i] = make_input(&tested->shapes[i], values[i], strides);
    }
    loss = value_at(weigh(tested->run(inputs)), 0);
    CHECK_OK(shoal_scope_end());
    return loss;
}

static void compare(const struct gradient_case *tested, double values[MAX_INPUTS][MAX_ELEMS],
                    enum strides strides, size_t input, const shoal_tensor *gradient)
{
    int64_t count = count_elems(&tested->shapes[input]);
    for (int64_t i = 0; i < count && !test_has_failed(); i++) {
        double kept = values[input][i];
        values[input][i] = kept + STEP;
        double above = evaluate(tested, values, strides);
        values[input][i] = kept - STEP;
        double below = evaluate(tested, values, strides);
        values[input][i] = kept;
        double expected = (above - below) / (2 * STEP);
        double actual = gradient ? value_at(gradient, i) : 0; /* nothing flows where all is overwritten */
        if (!(fabs(actual - expected) <= 1e-6 * (1 + fabs(expected)))) {
            test_failed(__FILE__, __LINE__, "%s: strides %d, input %zu, element %lld: %.12g, expected %.12g",
                        tested->text, (int)strides, input, (long long)i, actual, expected);
        }
    }
}

/* needs: a bit for each input that requires a gradient. */
static void check_case(const struct gradient_case *tested, enum strides strides, unsigned needs)
{
    double values[MAX_INPUTS][MAX_ELEMS];
    shoal_tensor *inputs[MAX_INPUTS] = {NULL};
    struct test_random random = test_random_begin(strlen(tested->text));
    for (size_t i = 0; i < MAX_INPUTS; i++) {
        for (size_t k = 0; k < MAX_ELEMS; k++) {
            double sign = test_random_below(&random, 2) != 0 ? 1 : -1;
            values[i][k] =
                sign * (0.5 + test_random_unit(&random)); /* never near zero: it is a divisor too */
        }
    }
    REQUIRE_OK(shoal_scope_begin());
    for (size_t i = 0; i < tested->n_inputs; i++) {
        inputs[i] = make_input(&tested->shapes[i], values[i], strides);
        if ((needs >> i & 1) != 0) {
            (void)require_grad(inputs[i]);
        }
    }
    shoal_tensor *loss = weigh(tested->run(inputs));
    if (!CHECK_OK(shoal_scope_error()) || !CHECK_OK(shoal_backward(loss, NULL))) {
        (void)fprintf(stderr, "  in %s, strides %d, needs %u\n", tested->text, (int)strides, needs);
    }
    for (size_t i = 0; i < tested->n_inputs && !test_has_failed(); i++) {
        if ((needs >> i & 1) != 0) {
            compare(tested, values, strides, i, shoal_grad(inputs[i]));
        } else {
            CHECK(!shoal_grad(inputs[i]));
        }
    }
    CHECK_OK(shoal_scope_end());
}

TEST(every_case_equals_finite_differences)
{
    for (size_t i = 0; i < N_CASES && !test_has_failed(); i++) {
        for (int strides = 0; strides < N_STRIDES; strides++) {
            if (strides == CONTIGUOUS || !cases[i].needs_contiguous) {
                check_case(&cases[i], (enum strides)strides, (1u << cases[i].n_inputs) - 1);
            }
        }
    }
}

/* A gradient function must not lean on the other input needing one too. */
TEST(every_input_alone)
{
    for (size_t i = 0; i < N_CASES && !test_has_failed(); i++) {
        for (unsigned k = 0; k < cases[i].n_inputs && cases[i].n_inputs > 1; k++) {
            check_case(&cases[i], CONTIGUOUS, 1u << k);
        }
    }
}

TEST(every_row_with_a_gradient_has_a_case)
{
    const shoal_op *op;
    for (size_t i = 0; i < OP_COUNT && (op = shoal_op_at(i)) != NULL; i++) {
        size_t n_found = 0;
        for (size_t k = 0; k < N_CASES; k++) {
            n_found += strcmp(cases[k].op, op->name) == 0 ? 1 : 0;
        }
        if (n_found == 0 && gradients_find(op) && !is_of_ranks((enum op_id)i)) {
            test_failed(__FILE__, __LINE__, "op %s has a gradient but no case", op->name);
        }
        if (n_found != 0 && !gradients_find(op)) {
            test_failed(__FILE__, __LINE__, "op %s has a case but no gradient", op->name);
        }
    }
}

/* Random shapes ---------------------------------------------------------------------------------------- */

/* Two shapes that broadcast: sizes 0..3, some 1, the first dimensions of one missing. */
static void choose_shapes(struct test_random *random, struct shape shapes[2])
{
    int n_dims = (int)test_random_below(random, 4);
    int64_t sizes[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < n_dims; i++) {
        sizes[i] = (int64_t)test_random_below(random, 8) == 0 ? 0 : 1 + (int64_t)test_random_below(random, 3);
    }
    for (int k = 0; k < 2; k++) {
        int n_missing = k == 1 && n_dims > 0 ? (int)test_random_below(random, (uint64_t)n_dims + 1) : 0;
        shapes[k].n_dims = n_dims - n_missing;
        for (int i = 0; i < shapes[k].n_dims; i++) {
            shapes[k].sizes[i] = test_random_below(random, 3) == 0 ? 1 : sizes[i + n_missing];
        }
    }
}

TEST(random_broadcasts)
{
    struct test_random random = test_random_begin(1);
    static const struct gradient_case binary[] = {
        {.op = "add", .text = "random add", .run = run_add_plain, .n_inputs = 2},
        {.op = "sub", .text = "random sub", .run = run_sub_plain, .n_inputs = 2},
        {.op = "mul", .text = "random mul", .run = run_mul_plain, .n_inputs = 2},
        {.op = "div", .text = "random div", .run = run_div_plain, .n_inputs = 2},
    };
    for (int i = 0; i < 160 && !test_has_failed(); i++) {
        struct gradient_case tested = binary[i % 4];
        choose_shapes(&random, tested.shapes);
        check_case(&tested, (enum strides)test_random_below(&random, N_STRIDES), 3);
    }
}

/* getitem hands its argument through, so no record ever calls this one; a tracer that copies might. */
SCOPED_TEST(getitem_gives_its_gradient_to_one)
{
    for (int64_t index = -3; index < 3; index++) {
        shoal_op_call_context call;
        shoal_tensor *gradient = shoal_zeros(INTS(2), 1, SHOAL_F64);
        shoal_tensor *list[3] = {gradient, gradient, gradient};
        shoal_tensor *inputs[3] = {NULL, NULL, NULL};
        const shoal_value arguments[] = {{.kind = SHOAL_VALUE_TENSORS, .count = 3, .as.tensors = list},
                                         {.kind = SHOAL_VALUE_INT, .as.integer = index}};
        op_context_init(&call, op_get(OP_getitem));
        CHECK_OK(gradient_getitem(&call, arguments, &gradient, &gradient, inputs));
        for (int64_t i = 0; i < 3; i++) {
            CHECK(inputs[i] == (i == (index + 3) % 3 ? gradient : NULL));
        }
    }
}

/* Refusals --------------------------------------------------------------------------------------------- */

SCOPED_TEST(as_strided_of_a_strided_tensor_is_refused)
{
    shoal_tensor *x = shoal_transpose(shoal_zeros(INTS(2, 3), 2, SHOAL_F64), 0, 1);
    shoal_tensor *y = shoal_as_strided(require_grad(x), INTS(2), INTS(1), 1, 0);
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("gradient of as_strided: the gradient is offered for contiguous tensors only");
}

SCOPED_TEST(as_strided_outside_its_tensor_is_refused)
{
    shoal_tensor *half = shoal_narrow(shoal_zeros(INTS(8), 1, SHOAL_F64), 0, 4, 4);
    shoal_tensor *y = shoal_as_strided(require_grad(half), INTS(2), INTS(1), 1, 3);
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("elements -1..0 of a tensor of shape [4]");
}

SCOPED_TEST(an_op_without_gradient_is_refused)
{
    shoal_tensor *x = make_leaf(4, 1, 1);
    shoal_tensor *output = shoal_zeros(INTS(8), 1, SHOAL_F64);
    CHECK_SCOPE_ERROR(
        shoal_all_gather_copy_in(output, &x, 1, 2, 0), SHOAL_ERR_UNSUPPORTED,
        "all_gather_copy_in: an input requires a gradient, but all_gather_copy_in has no gradient");
}
