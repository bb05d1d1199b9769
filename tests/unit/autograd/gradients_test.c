/* SPDX-License-Identifier: MIT */
/*
 * Every gradient function against finite differences, in f64. A row of ops.def that needs no group,
 * has a gradient and no case here fails the suite. Each case runs with contiguous leaves, and with leaves of other strides.
 */
#include <string.h>

#include "autograd/gradients.h"
#include "conformance/ops/of_ranks.h"
#include "fixtures/finite_differences.h"
#include "op/op.h"
#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

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

TEST(every_case_equals_finite_differences)
{
    check_gradient_cases(cases, N_CASES);
}

/* A gradient function must not lean on the other input needing one too. */
TEST(every_input_alone)
{
    for (size_t i = 0; i < N_CASES && !test_has_failed(); i++) {
        for (unsigned k = 0; k < cases[i].n_inputs && cases[i].n_inputs > 1; k++) {
            check_gradient_case(&cases[i], CONTIGUOUS, 1u << k);
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
        check_gradient_case(&tested, (enum strides)test_random_below(&random, N_STRIDES), 3);
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
    CHECK_ERROR_TEXT("gradient of as_strided: the gradient is supported for contiguous tensors only");
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
