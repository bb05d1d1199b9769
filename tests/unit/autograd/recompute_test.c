/* SPDX-License-Identifier: MIT */
/* Recomputing: the same bits as recording, with less kept. */
#include <string.h>

#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})
#define N_LAYERS 4

/* A layer: y = x * w + x / (w * w), with a weight that is not an input. */
struct layer {
    shoal_tensor *weight;
    int n_runs;
    int n_freed;
};

static shoal_status run_layer(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct layer *layer = context;
    shoal_tensor *w = layer->weight;
    layer->n_runs++;
    CHECK_INT(n_inputs, 1);
    CHECK_INT(n_outputs, 1);
    outputs[0] = shoal_add(shoal_mul(inputs[0], w), shoal_div(inputs[0], shoal_mul(w, w)));
    return SHOAL_OK;
}

static void free_layer(void *context)
{
    ((struct layer *)context)->n_freed++;
}

enum mode {
    PLAIN,
    RECOMPUTED,
    NESTED /* two layers in one, each recomputed inside */
};

static shoal_status run_pair(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    struct layer *layers = context;
    shoal_tensor *middle;
    shoal_status status = shoal_recompute(run_layer, &layers[0], free_layer, inputs, n_inputs, &middle, 1);
    if (status != SHOAL_OK) {
        return status;
    }
    return shoal_recompute(run_layer, &layers[1], free_layer, &middle, 1, outputs, n_outputs);
}

static shoal_tensor *run_network(struct layer layers[N_LAYERS], shoal_tensor *x, enum mode mode)
{
    for (int i = 0; i < N_LAYERS; i += mode == NESTED ? 2 : 1) {
        shoal_tensor *y = NULL;
        if (mode == PLAIN) {
            CHECK_OK(run_layer(&layers[i], &x, 1, &y, 1));
        } else if (mode == RECOMPUTED) {
            CHECK_OK(shoal_recompute(run_layer, &layers[i], free_layer, &x, 1, &y, 1));
        } else {
            CHECK_OK(shoal_recompute(run_pair, &layers[i], NULL, &x, 1, &y, 1));
        }
        x = y;
    }
    return x;
}

/* Bits of x's and all weights' gradients after two backward passes. */
struct bits {
    float values[(N_LAYERS + 1) * 3];
};

static struct bits train(enum mode mode, bool x_needs_gradient, int *n_runs_out, int *n_freed_out)
{
    struct bits bits = {{0}};
    struct layer layers[N_LAYERS] = {{NULL, 0, 0}};
    shoal_tensor *leaves[N_LAYERS + 1];
    for (int i = 0; i <= N_LAYERS; i++) {
        leaves[i] = shoal_mul_scalar(shoal_full(INTS(3), 1, 1 + 0.1 * i, SHOAL_F32), 1.1);
        if (i < N_LAYERS) {
            layers[i].weight = require_grad(leaves[i]);
        }
    }
    if (x_needs_gradient) {
        (void)require_grad(leaves[N_LAYERS]);
    }
    for (int i = 0; i < 2; i++) {
        shoal_tensor *y = run_network(layers, leaves[N_LAYERS], mode);
        CHECK_OK(shoal_backward(sum_all(shoal_mul(y, y)), NULL));
    }
    for (int i = 0; i <= N_LAYERS; i++) {
        const void *data = shoal_grad(leaves[i]) ? shoal_data(shoal_grad(leaves[i])) : NULL;
        CHECK((data != NULL) == (i < N_LAYERS || x_needs_gradient));
        if (data) {
            memcpy(&bits.values[i * 3], data, 3 * sizeof(float));
        }
    }
    *n_runs_out = layers[0].n_runs;
    *n_freed_out = layers[0].n_freed;
    return bits;
}

SCOPED_TEST(recomputing_gives_the_same_bits)
{
    for (int x_needs = 0; x_needs < 2; x_needs++) {
        int n_runs;
        int n_freed;
        struct bits plain = train(PLAIN, x_needs != 0, &n_runs, &n_freed);
        CHECK_INT(n_runs, 2);
        struct bits recomputed = train(RECOMPUTED, x_needs != 0, &n_runs, &n_freed);
        CHECK_INT(n_runs, 4);
        CHECK_INT(n_freed, 2);
        CHECK_BYTES(&recomputed, &plain, sizeof(plain));
        struct bits nested = train(NESTED, x_needs != 0, &n_runs, &n_freed);
        CHECK_INT(n_runs, 6);
        CHECK_INT(n_freed, 4);
        CHECK_BYTES(&nested, &plain, sizeof(plain));
        CHECK(plain.values[0] != 0);
    }
}

/* Blocks that a layer's output keeps alive. Without a scope nothing is spare. */
static size_t count_kept_blocks(struct layer *layer, shoal_tensor *x, bool is_recomputed)
{
    shoal_tensor *y = NULL;
    size_t n_before = test_live_blocks();
    if (!CHECK_OK(shoal_scope_begin())) {
        return 0;
    }
    if (is_recomputed) {
        CHECK_OK(shoal_recompute(run_layer, layer, NULL, &x, 1, &y, 1));
    } else {
        CHECK_OK(run_layer(layer, &x, 1, &y, 1));
    }
    (void)shoal_tensor_ref(y);
    CHECK_OK(shoal_scope_end());
    size_t n_kept = test_live_blocks() - n_before;
    shoal_tensor_unref(y);
    return n_kept;
}

TEST(nothing_inside_is_kept)
{
    REQUIRE_OK(shoal_scope_begin());
    struct layer layer = {.weight = shoal_tensor_ref(make_leaf(3, 2, 1))};
    shoal_tensor *x = shoal_tensor_ref(make_leaf(3, 1, 1));
    CHECK_OK(shoal_scope_end());
    size_t n_recorded = count_kept_blocks(&layer, x, false);
    size_t n_recomputed = count_kept_blocks(&layer, x, true);
    CHECK(n_recorded >= 6);   /* four nodes, the result, and what div saved */
    CHECK(n_recomputed <= 4); /* one node and the result, which is a view of what the function made */
    shoal_tensor_unref(layer.weight);
    shoal_tensor_unref(x);
}

SCOPED_TEST(a_kept_record_runs_again)
{
    shoal_backward_options keeping = {.struct_size = sizeof(keeping), .keeps_graph = true};
    struct layer layer = {.weight = make_leaf(3, 2, 1)};
    shoal_tensor *x = make_leaf(3, 1, 1);
    shoal_tensor *y;
    REQUIRE_OK(shoal_recompute(run_layer, &layer, free_layer, &x, 1, &y, 1));
    shoal_tensor *loss = sum_all(y);
    CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &keeping));
    CHECK_DOUBLE(grad_at(x, 0), 2.25);
    CHECK_INT(layer.n_freed, 0);
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 4.5);
    CHECK_INT(layer.n_freed, 1);
    CHECK_INT(layer.n_runs, 3);
}

/* Many inputs and outputs ------------------------------------------------------------------------------ */

static shoal_status run_mixed(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    CHECK_INT(n_inputs, 3);
    CHECK_INT(n_outputs, 4);
    CHECK(!inputs[1]);
    outputs[0] = shoal_mul(inputs[0], inputs[2]);
    outputs[1] = shoal_to_dtype(inputs[0], SHOAL_I32);
    outputs[2] = inputs[0];
    outputs[3] = outputs[0];
    return SHOAL_OK;
}

SCOPED_TEST(any_mix_of_inputs_and_outputs)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *inputs[] = {x, NULL, make_vector((double[]){5, 6}, 2)};
    shoal_tensor *outputs[4];
    REQUIRE_OK(shoal_recompute(run_mixed, NULL, NULL, inputs, 3, outputs, 4));
    CHECK(!shoal_requires_grad(outputs[1]) && shoal_requires_grad(outputs[2]) && outputs[2] != x);
    CHECK_SCOPE_ERROR(shoal_neg_(outputs[2]), SHOAL_ERR_STATE, "self: this is a view");
    shoal_tensor *total = shoal_add(shoal_mul_scalar(outputs[0], 2), shoal_add(outputs[2], outputs[3]));
    CHECK_OK(shoal_backward(sum_all(total), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 2 * 5 + 1 + 5);
    CHECK_DOUBLE(grad_at(x, 1), 2 * 6 + 1 + 6);
    CHECK(!shoal_grad(inputs[2]));
}

SCOPED_TEST(fresh_outputs_can_be_changed_in_place)
{
    struct layer layer = {.weight = make_leaf(1, 1, 1)};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *y;
    REQUIRE_OK(shoal_recompute(run_layer, &layer, NULL, &x, 1, &y, 1));
    CHECK_OK(shoal_backward(shoal_mul_scalar_(y, 3), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 6);
}

SCOPED_TEST(without_gradients_it_is_a_call)
{
    struct layer layer = {.weight = make_leaf(1, 1, 1)};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *y;
    CHECK_OK(shoal_scope_set_grad(false));
    REQUIRE_OK(shoal_recompute(run_layer, &layer, free_layer, &x, 1, &y, 1));
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK(!shoal_requires_grad(y));
    CHECK_DOUBLE(value_at(y, 0), 2);
    CHECK_INT(layer.n_freed, 1);
}

/* Hooks for the end that are asked for inside belong to the outer backward pass. */
static shoal_status note_end(void *context)
{
    ++*(int *)context;
    return SHOAL_OK;
}

struct asking {
    int n_ends;
    int n_ends_at_settling;
};

static shoal_tensor *ask_for_the_end(void *context, shoal_tensor *gradient)
{
    CHECK_OK(shoal_on_backward_end(note_end, &((struct asking *)context)->n_ends));
    return gradient;
}

static shoal_status run_asking(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(inputs[0]);
    return shoal_requires_grad(outputs[0]) ? shoal_on_gradient(outputs[0], ask_for_the_end, context, NULL)
                                           : SHOAL_OK;
}

static shoal_status note_settling(void *context, shoal_tensor *leaf)
{
    struct asking *asking = context;
    asking->n_ends_at_settling = asking->n_ends;
    return SHOAL_OK;
}

SCOPED_TEST(end_hooks_wait_for_the_outer_backward)
{
    struct asking asking = {0, -1};
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *y;
    CHECK_OK(shoal_on_accumulated(x, note_settling, &asking, NULL));
    REQUIRE_OK(shoal_recompute(run_asking, &asking, NULL, &x, 1, &y, 1));
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_INT(asking.n_ends, 1);
    CHECK_INT(asking.n_ends_at_settling, 0);
}

/* Errors ----------------------------------------------------------------------------------------------- */

struct trouble {
    int n_runs;
    int kind;
    shoal_tensor *captured;
};

static shoal_status run_trouble(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct trouble *trouble = context;
    bool is_second = trouble->n_runs++ > 0;
    outputs[0] = shoal_neg(inputs[0]);
    switch (trouble->kind) {
    case 0: /* fails with a status */
        return is_second ? shoal_fail(SHOAL_ERR_CANCELLED, "not again") : SHOAL_OK;
    case 1: /* fails inside its scope */
        outputs[0] = shoal_select(outputs[0], 0, is_second ? 9 : 0);
        return SHOAL_OK;
    case 2: /* computes something else */
        outputs[0] = is_second ? sum_all(outputs[0]) : outputs[0];
        return SHOAL_OK;
    case 3: /* forgets an output */
        outputs[0] = is_second ? NULL : outputs[0];
        return SHOAL_OK;
    default: /* uses a recorded tensor behind our back */
        outputs[0] = shoal_mul(outputs[0], trouble->captured);
        return SHOAL_OK;
    }
}

SCOPED_TEST(errors_of_the_second_run_come_out)
{
    static const struct {
        shoal_status status;
        const char *text;
    } rows[] = {
        {SHOAL_ERR_CANCELLED, "gradient of recompute: not again"},
        {SHOAL_ERR_INVALID, "gradient of recompute: select: "},
        {SHOAL_ERR_INVALID,
         "output 0 of the second run: f64 [] on cpu does not fit its tensor, f64 [2] on cpu"},
        {SHOAL_ERR_STATE, "output 0 was not set in the second run"},
        {SHOAL_ERR_STATE,
         "uses a result of mul_scalar that was recorded outside and is not one of its inputs"},
    };
    for (int i = 0; i < 5; i++) {
        shoal_tensor *x = make_leaf(2, 3, 1);
        struct trouble trouble = {.kind = i, .captured = shoal_mul_scalar(x, 2)};
        shoal_tensor *y;
        REQUIRE_OK(shoal_recompute(run_trouble, &trouble, NULL, &x, 1, &y, 1));
        CHECK_STATUS(shoal_backward(sum_all(y), NULL), rows[i].status);
        CHECK_ERROR_TEXT(rows[i].text);
        CHECK(!shoal_grad(x));
        CHECK(!shoal_in_backward() && shoal_scope_has_grad());
    }
}

SCOPED_TEST(errors_of_the_first_run_come_out)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = x;
    struct layer layer = {.weight = make_leaf(3, 1, 1)};
    CHECK_STATUS(shoal_recompute(run_layer, &layer, free_layer, &x, 1, &y, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shapes [2] and [3] do not broadcast");
    struct trouble trouble = {.kind = 3, .n_runs = 1};
    CHECK_STATUS(shoal_recompute(run_trouble, &trouble, NULL, &x, 1, &y, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("did not set output 0");
    CHECK_STATUS(shoal_recompute(NULL, NULL, NULL, &x, 1, &y, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_recompute(run_layer, &layer, NULL, NULL, 1, &y, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_recompute(run_layer, &layer, NULL, &x, 1, NULL, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_recompute(run_layer, &layer, NULL, &x, 1, &y, 0), SHOAL_ERR_INVALID);
    CHECK(y == x);
    CHECK_INT(layer.n_freed, 0);
}

static shoal_status run_in_place(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(shoal_neg_(inputs[0]));
    return SHOAL_OK;
}

SCOPED_TEST(inputs_must_not_change)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *middle = shoal_neg(x);
    shoal_tensor *y;
    struct layer layer = {.weight = make_leaf(2, 1, 1)};
    CHECK_STATUS(shoal_recompute(run_in_place, NULL, NULL, &middle, 1, &y, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("changed input 0 in place");
    REQUIRE_OK(shoal_recompute(run_layer, &layer, NULL, &middle, 1, &y, 1));
    CHECK(shoal_neg_(middle));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("gradient of recompute: input 0: f64 [2] was saved for backward in version 1");
}

TEST(a_scope_is_needed)
{
    shoal_tensor *y;
    CHECK_STATUS(shoal_recompute(run_layer, NULL, NULL, NULL, 0, &y, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("no scope is open");
}
