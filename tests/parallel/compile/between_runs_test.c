/* SPDX-License-Identifier: MIT */
/* Compiled steps beside eager ones where something between two runs changes that a graph could miss. */
#include "fixtures/module_net.h"
#include "shoal/compile.h"
#include "shoal/ddp.h"
#include "tensor/tensor.h"

enum {
    N_TENSORS = 4
};

struct model {
    shoal_tensor *t[N_TENSORS];
    int64_t shape[2];
};

typedef void (*between)(struct model *model, int number);

static bool same(const shoal_tensor *a, const shoal_tensor *b)
{
    if (!a || !b) {
        return a == b;
    }
    if (shoal_tensor_count(a) != shoal_tensor_count(b) || a->dtype != b->dtype) {
        return false;
    }
    (void)CHECK_OK(shoal_scope_begin());
    const void *x = shoal_data(shoal_contiguous((shoal_tensor *)(uintptr_t)a));
    const void *y = shoal_data(shoal_contiguous((shoal_tensor *)(uintptr_t)b));
    bool is = tensor_bytes(a) == 0 || (x && y && memcmp(x, y, tensor_bytes(a)) == 0);
    (void)CHECK_OK(shoal_scope_end());
    return is;
}

static void model_make(struct model *model, bool leaves)
{
    for (int i = 0; i < N_TENSORS; i++) {
        model->t[i] = net_numbers((uint32_t)(50 + i), (int64_t[]){4, 5}, 2);
        (void)CHECK_OK(shoal_set_requires_grad(model->t[i], leaves));
    }
}

static void compare(const struct model *a, const struct model *b, int number)
{
    for (int i = 0; i < N_TENSORS; i++) {
        if (!same(a->t[i], b->t[i])) {
            test_failed(__FILE__, __LINE__, "run %d: tensor %d", number, i);
        }
        if (!same(shoal_grad(a->t[i]), shoal_grad(b->t[i]))) {
            test_failed(__FILE__, __LINE__, "run %d: gradient %d", number, i);
        }
    }
}

static size_t n_compiles; /* of the last run_beside */

/* The step, run eagerly on one model and compiled on the other. `needs`: the input is a leaf. */
static void run_beside(shoal_step_function step, bool leaves, bool needs, between change, int n_runs,
                       size_t n_outputs)
{
    struct model eager;
    struct model other;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&eager, leaves);
    model_make(&other, leaves);
    REQUIRE_OK(shoal_compile(NULL, step, &other, n_outputs, NULL, &compiled));
    for (int n = 0; n < n_runs; n++) {
        shoal_tensor *want[4] = {NULL};
        shoal_tensor *got[4] = {NULL};
        shoal_tensor *x = net_numbers((uint32_t)(500 + n), (int64_t[]){4, 5}, 2);
        shoal_tensor *y = net_numbers((uint32_t)(500 + n), (int64_t[]){4, 5}, 2);
        (void)CHECK_OK(shoal_set_requires_grad(x, needs));
        (void)CHECK_OK(shoal_set_requires_grad(y, needs));
        (void)CHECK_OK(step(&eager, &x, 1, want, n_outputs));
        if (CHECK_OK(shoal_compiled_run(compiled, &y, 1, got, n_outputs))) {
            for (size_t i = 0; i < n_outputs; i++) {
                if (!same(want[i], got[i])) {
                    test_failed(__FILE__, __LINE__, "run %d: output %zu", n, i);
                }
                shoal_tensor_unref(got[i]);
            }
        }
        if (!same(x, y) || !same(shoal_grad(x), shoal_grad(y))) {
            test_failed(__FILE__, __LINE__, "run %d: input", n);
        }
        compare(&eager, &other, n);
        if (change) {
            change(&eager, n);
            change(&other, n);
            compare(&eager, &other, n + 100);
        }
    }
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    (void)CHECK_OK(shoal_compiled_get_report(compiled, &report));
    n_compiles = report.n_compiles;
    shoal_compiled_free(compiled);
    compare(&eager, &other, 1000);
    REQUIRE_OK(shoal_scope_end());
}

#define STEP(name)                                                                        \
    static shoal_status name(void *context, shoal_tensor *const *inputs, size_t n_inputs, \
                             shoal_tensor **outputs, size_t n_outputs)
#define UNUSED ((void)n_inputs, (void)n_outputs, (void)inputs)

static void clear(struct model *model, int number)
{
    (void)number;
    for (int i = 0; i < N_TENSORS; i++) {
        (void)CHECK_OK(shoal_set_grad(model->t[i], NULL));
    }
}

STEP(product)
{
    struct model *m = context;
    UNUSED;
    shoal_tensor *a = shoal_mul(inputs[0], m->t[0]);
    shoal_tensor *b = shoal_mul(shoal_add(a, m->t[1]), m->t[2]);
    outputs[0] = shoal_sum(shoal_mul(b, b), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

TEST(input_gradients_go_to_the_input_of_the_run)
{
    run_beside(product, true, true, clear, 3, 1);
}

TEST(input_gradients_add)
{
    run_beside(product, true, true, NULL, 3, 1);
}

/* Gradients that are one and the same */

STEP(plain_sum)
{
    struct model *m = context;
    UNUSED;
    outputs[0] =
        shoal_sum(shoal_add(shoal_add(m->t[0], m->t[1]), shoal_add(m->t[2], inputs[0])), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

static void clip(struct model *model, int number)
{
    (void)CHECK_OK(shoal_scope_begin());
    (void)CHECK_OK(shoal_scope_set_grad(false));
    for (int i = 0; i < 3; i++) {
        CHECK(shoal_mul_scalar_(shoal_grad(model->t[i]), 0.5 + i));
        CHECK(shoal_add_(model->t[i], shoal_grad(model->t[i])));
    }
    (void)CHECK_OK(shoal_scope_end());
    if (number % 2) {
        clear(model, number);
    }
}

TEST(gradients_that_are_the_same_are_clipped_apart)
{
    run_beside(plain_sum, true, false, clip, 5, 1);
}

/* Gradients in one buffer */

static void one_buffer(struct model *model, int number)
{
    shoal_tensor *flats[2] = {shoal_zeros((int64_t[]){40}, 1, SHOAL_F32),
                              shoal_zeros((int64_t[]){40}, 1, SHOAL_F32)};
    for (int i = 0; i < 2; i++) {
        shoal_tensor *flat = flats[number % 2 ? i : 0];
        (void)CHECK_OK(
            shoal_set_grad(model->t[i], shoal_view(shoal_narrow(flat, 0, 20 * i, 20), (int64_t[]){4, 5}, 2)));
    }
}

static void two_buffers(struct model *model, int number)
{
    one_buffer(model, number + 1);
}

TEST(gradients_that_share_a_buffer_first)
{
    run_beside(product, true, false, one_buffer, 5, 1);
}

TEST(gradients_that_share_a_buffer_later)
{
    run_beside(product, true, false, two_buffers, 5, 1);
    (void)CHECK_INT(n_compiles, 3);
}

/* The step looks at the old gradient */

STEP(old_gradient)
{
    struct model *m = context;
    UNUSED;
    shoal_tensor *old = shoal_grad(m->t[0]);
    outputs[1] = old ? shoal_mul_scalar(old, 2.0) : NULL;
    for (int i = 0; i < 3; i++) {
        shoal_status status = shoal_set_grad(m->t[i], NULL);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return product(context, inputs, n_inputs, outputs, 1);
}

TEST(old_gradients_are_read_and_removed)
{
    run_beside(old_gradient, true, false, NULL, 5, 2);
}

STEP(zero_gradient)
{
    struct model *m = context;
    UNUSED;
    for (int i = 0; i < 3; i++) {
        shoal_tensor *g = shoal_grad(m->t[i]);
        if (g && !shoal_mul_scalar_(g, 0.25)) {
            return shoal_scope_error();
        }
    }
    outputs[1] = shoal_grad(m->t[1]);
    return product(context, inputs, n_inputs, outputs, 1);
}

TEST(old_gradients_are_scaled)
{
    run_beside(zero_gradient, true, false, NULL, 5, 2);
}

/* It only looks whether there is one. */
STEP(asks_for_gradient)
{
    struct model *m = context;
    UNUSED;
    outputs[0] = shoal_mul_scalar(inputs[0], shoal_grad(m->t[0]) ? 2.0 : 3.0);
    return shoal_scope_error();
}

static void set_and_remove(struct model *model, int number)
{
    shoal_tensor *gradient = (number / 2) % 2 == 0 ? shoal_zeros((int64_t[]){4, 5}, 2, SHOAL_F32) : NULL;
    (void)CHECK_OK(shoal_set_grad(model->t[0], gradient));
}

TEST(gradients_that_are_asked_for)
{
    run_beside(asks_for_gradient, true, false, set_and_remove, 8, 1);
    CHECK_INT(n_compiles, 2);
}

STEP(two_backwards)
{
    struct model *m = context;
    UNUSED;
    shoal_status status = product(context, inputs, n_inputs, outputs, 1);
    outputs[1] = shoal_clone(shoal_grad(m->t[0]));
    outputs[2] = shoal_grad(m->t[0]);
    return status == SHOAL_OK ? product(context, inputs, n_inputs, &outputs[3], 1) : status;
}

TEST(several_backwards)
{
    run_beside(two_backwards, true, false, NULL, 3, 4);
    run_beside(two_backwards, true, false, clear, 3, 4);
}

/* Buffers */

STEP(swap)
{
    struct model *m = context;
    UNUSED;
    shoal_tensor *a = shoal_clone(m->t[0]);
    (void)shoal_copy_(m->t[0], m->t[1]);
    (void)shoal_copy_(m->t[1], m->t[2]);
    (void)shoal_copy_(m->t[2], a);
    outputs[0] = m->t[1];
    outputs[1] = m->t[1];
    outputs[2] = m->t[3];
    outputs[3] = shoal_narrow(inputs[0], 0, 1, 2);
    return shoal_scope_error();
}

TEST(buffers_change_places)
{
    run_beside(swap, false, false, NULL, 4, 4);
}

STEP(chain)
{
    struct model *m = context;
    UNUSED;
    shoal_tensor *row = shoal_select(m->t[0], 0, 1);
    shoal_tensor *all = shoal_view(m->t[0], (int64_t[]){20}, 1);
    (void)shoal_add_(m->t[0], inputs[0]);
    (void)shoal_add_(row, shoal_select(m->t[1], 0, 0));
    shoal_tensor *kept = shoal_clone(row);
    (void)shoal_mul_(m->t[0], m->t[0]);
    (void)shoal_copy_(shoal_view(inputs[0], (int64_t[]){20}, 1), all);
    (void)shoal_add_scalar_(row, 1.0);
    outputs[0] = kept;
    outputs[1] = all;
    outputs[2] = row;
    outputs[3] = inputs[0];
    return shoal_scope_error();
}

TEST(views_of_buffers)
{
    run_beside(chain, false, false, NULL, 4, 4);
}

STEP(ignores_all)
{
    (void)context;
    UNUSED;
    outputs[0] = NULL;
    outputs[1] = inputs[0];
    return SHOAL_OK;
}

TEST(an_input_goes_through)
{
    run_beside(ignores_all, false, false, NULL, 3, 2);
}

STEP(ignores_input)
{
    struct model *m = context;
    UNUSED;
    outputs[0] = shoal_neg(m->t[0]);
    return SHOAL_OK;
}

TEST(an_input_that_is_not_used)
{
    run_beside(ignores_input, false, false, NULL, 3, 1);
}

/* Freezing */

static void thaw(struct model *model, int number)
{
    clear(model, number);
    (void)CHECK_OK(shoal_set_requires_grad(model->t[0], number % 2));
}

TEST(frozen_and_thawed)
{
    run_beside(product, true, false, thaw, 5, 1);
}

STEP(flat_leaf)
{
    struct model *m = context;
    UNUSED;
    outputs[0] = shoal_sum(shoal_mul(shoal_mul(inputs[0], m->t[0]), m->t[1]), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

/* Leaves that are parts of one buffer. */
static void flat_leaves(struct model *model)
{
    shoal_tensor *flat = net_numbers(77, (int64_t[]){8, 5}, 2);
    for (int i = 0; i < 2; i++) {
        model->t[i] = shoal_detach(shoal_narrow(flat, 0, 4 * i, 4));
        (void)CHECK_OK(shoal_set_requires_grad(model->t[i], i == 1));
    }
}

TEST(leaves_in_one_buffer_thaw)
{
    struct model m[2];
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        model_make(&m[i], true);
        flat_leaves(&m[i]);
    }
    REQUIRE_OK(shoal_compile(NULL, flat_leaf, &m[1], 1, NULL, &compiled));
    for (int n = 0; n < 3; n++) {
        shoal_tensor *x = net_numbers((uint32_t)(500 + n), (int64_t[]){4, 5}, 2);
        shoal_tensor *out = NULL;
        (void)CHECK_OK(flat_leaf(&m[0], &x, 1, &out, 1));
        (void)CHECK_OK(shoal_compiled_run(compiled, &x, 1, &out, 1));
        shoal_tensor_unref(out);
        compare(&m[0], &m[1], n);
        for (int i = 0; i < 2; i++) {
            clear(&m[i], n);
            (void)CHECK_OK(shoal_set_requires_grad(m[i].t[0], n == 0));
        }
    }
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

/* Outputs as inputs */

STEP(recurrent)
{
    struct model *m = context;
    UNUSED;
    outputs[0] = shoal_add(shoal_mul(inputs[0], m->t[0]), m->t[1]);
    return SHOAL_OK;
}

TEST(outputs_are_the_next_inputs)
{
    struct model m;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&m, false);
    REQUIRE_OK(shoal_compile(NULL, recurrent, &m, 1, NULL, &compiled));
    shoal_tensor *h = net_numbers(9, (int64_t[]){4, 5}, 2);
    shoal_tensor *want = h;
    shoal_tensor *got = shoal_tensor_ref(h);
    for (int n = 0; n < 4; n++) {
        shoal_tensor *next = NULL;
        (void)CHECK_OK(recurrent(&m, &want, 1, &want, 1));
        (void)CHECK_OK(shoal_compiled_run(compiled, &got, 1, &next, 1));
        shoal_tensor_unref(got);
        got = next;
        CHECK(same(want, got));
    }
    shoal_tensor_unref(got);
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

/* Versions */

STEP(writes)
{
    struct model *m = context;
    UNUSED;
    (void)shoal_add_(m->t[0], inputs[0]);
    (void)shoal_mul_scalar_(shoal_select(m->t[1], 0, 1), 0.5);
    outputs[0] = NULL;
    return shoal_scope_error();
}

TEST(versions_count)
{
    struct model m;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&m, false);
    REQUIRE_OK(shoal_compile(NULL, writes, &m, 1, NULL, &compiled));
    shoal_tensor *x = net_numbers(9, (int64_t[]){4, 5}, 2);
    for (int n = 0; n < 3; n++) {
        shoal_tensor *out;
        uint64_t first = shoal_tensor_version(m.t[0]);
        uint64_t second = shoal_tensor_version(m.t[1]);
        (void)CHECK_OK(shoal_compiled_run(compiled, &x, 1, &out, 1));
        CHECK(shoal_tensor_version(m.t[0]) > first);
        CHECK(shoal_tensor_version(m.t[1]) > second);
    }
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

TEST(input_gradients_where_the_first_has_none)
{
    struct model m;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&m, true);
    REQUIRE_OK(shoal_compile(NULL, product, &m, 1, NULL, &compiled));
    shoal_tensor *x[3];
    for (int n = 0; n < 3; n++) {
        shoal_tensor *out = NULL;
        x[n] = net_numbers((uint32_t)(9 + n), (int64_t[]){4, 5}, 2);
        (void)CHECK_OK(shoal_set_requires_grad(x[n], true));
        (void)CHECK_OK(shoal_compiled_run(compiled, &x[n], 1, &out, 1));
        shoal_tensor_unref(out);
        for (int i = 0; i <= n; i++) {
            if ((shoal_grad(x[i]) != NULL) != (i == n)) {
                test_failed(__FILE__, __LINE__, "run %d: input %d", n, i);
            }
        }
        (void)CHECK_OK(shoal_set_grad(x[n], NULL));
        (void)CHECK_OK(shoal_set_grad(x[0], NULL));
        clear(&m, n);
    }
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    (void)CHECK_OK(shoal_compiled_get_report(compiled, &report));
    (void)CHECK_INT(report.n_compiles, 1);
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

/* Gradients that the user makes */

static void halves(struct model *model, int number)
{
    const int64_t shape[2] = {4, 5};
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(
            shoal_set_grad(model->t[i], shoal_full(shape, 2, 0.5, number % 2 ? SHOAL_BF16 : SHOAL_F64)));
    }
}

TEST(gradients_of_other_dtypes)
{
    run_beside(product, true, false, halves, 5, 1);
}

static void turned(struct model *model, int number)
{
    const int64_t shape[2] = {5, 4};
    for (int i = 0; i < 3; i++) {
        shoal_tensor *g = shoal_transpose(net_numbers((uint32_t)number, shape, 2), 0, 1);
        (void)CHECK_OK(shoal_set_grad(model->t[i], g));
    }
}

TEST(gradients_that_are_turned)
{
    run_beside(product, true, false, turned, 4, 1);
}

static void one_for_all(struct model *model, int number)
{
    const int64_t shape[2] = {4, 5};
    shoal_tensor *g = net_numbers((uint32_t)number, shape, 2);
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(shoal_set_grad(model->t[i], number % 2 ? g : shoal_clone(g)));
    }
}

TEST(gradients_that_are_one_tensor)
{
    run_beside(product, true, false, one_for_all, 5, 1);
    (void)CHECK_INT(n_compiles, 3); /* none, each its own, one for all */
}

/* Outputs */

STEP(gives_parameters)
{
    struct model *m = context;
    UNUSED;
    outputs[1] = m->t[0];
    outputs[2] = shoal_transpose(m->t[1], 0, 1);
    shoal_status status = product(context, inputs, n_inputs, outputs, 1);
    outputs[3] = shoal_grad(m->t[2]);
    return status;
}

TEST(parameters_and_gradients_as_outputs)
{
    run_beside(gives_parameters, true, false, NULL, 4, 4);
    run_beside(gives_parameters, true, false, clear, 4, 4);
    run_beside(gives_parameters, true, false, clip, 4, 4);
}

/* Failing */

static bool fails;

STEP(may_fail)
{
    UNUSED;
    shoal_status status = product(context, inputs, n_inputs, outputs, 1);
    if (status == SHOAL_OK && fails) {
        CHECK_OK(shoal_set_grad(((struct model *)context)->t[0], NULL));
        CHECK_OK(shoal_scope_begin());
        return SHOAL_ERR_INVALID;
    }
    return status;
}

TEST(a_step_that_fails_first)
{
    struct model m;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&m, true);
    shoal_tensor *x = net_numbers(9, (int64_t[]){4, 5}, 2);
    shoal_tensor *out = NULL;
    REQUIRE_OK(shoal_compile(NULL, may_fail, &m, 1, NULL, &compiled));
    REQUIRE_OK(shoal_compiled_run(compiled, &x, 1, &out, 1));
    shoal_tensor_unref(out);
    shoal_tensor *before[3];
    uint64_t versions[3];
    for (int i = 0; i < 3; i++) {
        before[i] = shoal_grad(m.t[i]);
        versions[i] = shoal_tensor_version(before[i]);
    }
    fails = true;
    out = NULL;
    CHECK(shoal_compiled_run(compiled, &x, 1, &out, 1) != SHOAL_OK);
    CHECK(out == NULL);
    fails = false;
    for (int i = 0; i < 3; i++) {
        CHECK(shoal_grad(m.t[i]) == before[i]);
        CHECK(shoal_tensor_version(before[i]) == versions[i]);
    }
    if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &out, 1))) {
        shoal_tensor_unref(out);
    }
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

/* Memory */

static void count_end(void *context, void *data)
{
    free(data);
    ++*(int *)context;
}

TEST(gradients_are_not_kept)
{
    struct model m;
    int n_freed = 0;
    const int64_t shape[2] = {4, 5};
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    model_make(&m, true);
    shoal_tensor *x = net_numbers(9, shape, 2);
    REQUIRE_OK(shoal_compile(NULL, product, &m, 1, NULL, &compiled));
    for (int n = 0; n < 3; n++) {
        shoal_tensor *out = NULL;
        REQUIRE_OK(shoal_scope_begin());
        for (int i = 0; i < 3; i++) {
            float *data = calloc(20, sizeof *data);
            REQUIRE(data);
            CHECK_OK(shoal_set_grad(m.t[i],
                                    shoal_from_memory(data, shape, 2, SHOAL_F32, NULL, count_end, &n_freed)));
        }
        REQUIRE_OK(shoal_scope_end());
        if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &out, 1))) {
            shoal_tensor_unref(out);
        }
        clear(&m, n);
        CHECK_INT(n_freed, 3 * (n + 1));
    }
    shoal_compiled_free(compiled);
    REQUIRE_OK(shoal_scope_end());
}

/* What the first run refuses is refused in later ones. */
static shoal_status add_both(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    (void)context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_add(inputs[0], inputs[1]);
    return SHOAL_OK;
}

TEST(inputs_of_later_runs)
{
    shoal_compiled *compiled = NULL;
    shoal_tensor *sum = NULL;
    const int64_t shape[] = {4};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full(shape, 1, 1.0, SHOAL_F32);
    shoal_tensor *leaf = shoal_full(shape, 1, 2.0, SHOAL_F32);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    shoal_tensor *result = shoal_mul(leaf, leaf);
    REQUIRE_OK(shoal_compile(NULL, add_both, NULL, 1, NULL, &compiled));
    REQUIRE_OK(shoal_compiled_run(compiled, (shoal_tensor *[]){x, leaf}, 2, &sum, 1));
    shoal_tensor_unref(sum);
    CHECK_STATUS(shoal_compiled_run(compiled, (shoal_tensor *[]){x, result}, 2, &sum, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("input 1 is a result of recorded operations");
    CHECK_STATUS(shoal_compiled_run(compiled, (shoal_tensor *[]){x, x}, 2, &sum, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("inputs 0 and 1 share memory");
    shoal_compiled_free(compiled);
    CHECK_OK(shoal_scope_end());
}
