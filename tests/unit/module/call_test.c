/* SPDX-License-Identifier: MIT */
/* Calls: scopes, lists, errors, recursion, tracers, recomputing. */
#include "op/dispatch.h"
#include "op/tracer.h"
#include "unit/module/fixture.h"

/* A module of several inputs, one of which may be absent, and two outputs. */
static shoal_status mixed_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    CHECK_INT(n_inputs, 3);
    CHECK_INT(n_outputs, 2);
    CHECK(!outputs[0] && !outputs[1]);
    outputs[0] = inputs[1] ? shoal_add(inputs[0], inputs[1]) : shoal_neg(inputs[0]);
    outputs[1] = inputs[2];
    return SHOAL_OK;
}

static shoal_module *make_mixed(void)
{
    shoal_module *module = NULL;
    CHECK_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                            .type = "mixed",
                                                            .forward = mixed_forward,
                                                            .n_inputs = 3,
                                                            .n_outputs = 2},
                                 &module));
    return module;
}

SCOPED_TEST(many_inputs_and_outputs)
{
    shoal_module *module = make_mixed();
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *y = make_leaf(1, 4, 0);
    shoal_tensor *lists[3] = {x, y, y};
    shoal_tensor *outputs[2];
    CHECK_OK(shoal_module_call(module, lists, 3, outputs, 2));
    CHECK_DOUBLE(value_at(outputs[0], 0), 7);
    CHECK(outputs[1] == y && lists[0] == x);
    lists[1] = NULL;
    CHECK_OK(shoal_module_call(module, lists, 3, lists, 2));
    CHECK_DOUBLE(value_at(lists[0], 0), -3);
    CHECK(lists[1] == y && lists[2] == y);
    shoal_module_unref(module);
}

SCOPED_TEST(gradients_flow_through_calls)
{
    shoal_module *chain = make_module("chain", chain_forward, NULL);
    shoal_tensor *first = make_leaf(2, 2, 1);
    shoal_tensor *second = make_leaf(2, 5, 1);
    give_child(chain, "0", make_scale(first));
    give_child(chain, "1", make_scale(second));
    shoal_tensor *x = make_leaf(2, 10, 1);
    shoal_tensor *y = shoal_module_call_one(chain, x);
    CHECK_DOUBLE(value_at(y, 0), 100);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_DOUBLE(grad_at(first, 0), 50);
    CHECK_DOUBLE(grad_at(second, 1), 33);
    CHECK_DOUBLE(grad_at(x, 1), 18);
    shoal_module_unref(chain);
}

/* What a call makes dies with it, unless it is an output. */
static shoal_status wasteful_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    for (int i = 0; i < 100; i++) {
        outputs[0] = shoal_neg(inputs[0]);
    }
    return SHOAL_OK;
}

SCOPED_TEST(intermediate_tensors_die_with_the_call)
{
    shoal_module *module = make_module("wasteful", wasteful_forward, NULL);
    shoal_tensor *x = make_vector((double[]){1}, 1);
    CHECK(shoal_module_call_one(module, x)); /* warms up what scopes keep for later */
    size_t n_before = test_live_blocks();
    CHECK_DOUBLE(value_at(shoal_module_call_one(module, x), 0), -1);
    CHECK(test_live_blocks() - n_before <= 8);
    shoal_module_unref(module);
}

/* Outputs that the call did not make: an input, a parameter, one tensor twice. */
static shoal_status giving_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = inputs[0];
    outputs[1] = shoal_module_parameter(module, "weight");
    outputs[2] = outputs[3] = shoal_neg(inputs[0]);
    return SHOAL_OK;
}

SCOPED_TEST(outputs_may_be_anybodys)
{
    shoal_module *module;
    shoal_tensor *outputs[4];
    shoal_tensor *x = make_leaf(1, 1, 0);
    shoal_tensor *weight = make_leaf(1, 2, 0);
    REQUIRE_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                              .type = "giving",
                                                              .forward = giving_forward,
                                                              .n_outputs = 4},
                                   &module));
    CHECK_OK(shoal_module_add_parameter(module, "weight", weight));
    CHECK_OK(shoal_module_call(module, &x, 1, outputs, 4));
    CHECK(outputs[0] == x && outputs[1] == weight && outputs[2] == outputs[3]);
    CHECK_DOUBLE(value_at(outputs[3], 0), -1);
    CHECK_DOUBLE(value_at(outputs[0], 0), 1);
    shoal_module_unref(module);
}

/* Errors ----------------------------------------------------------------------------------------------- */

TEST(a_call_needs_a_scope)
{
    shoal_tensor *output = (shoal_tensor *)&output;
    shoal_module *module = make_module("wasteful", wasteful_forward, NULL);
    CHECK_STATUS(shoal_module_call(module, NULL, 0, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("module_call: no scope is open on this thread");
    CHECK(!output);
    CHECK(!shoal_module_call_one(module, NULL));
    shoal_module_unref(module);
}

#define CHECK_CALL_FAILS(call, words)                                   \
    do {                                                                \
        REQUIRE_OK(shoal_scope_begin());                                \
        outputs[0] = outputs[1] = x;                                    \
        shoal_status call_status = (call);                              \
        CHECK(call_status != SHOAL_OK);                                 \
        CHECK_ERROR_TEXT(words);                                        \
        CHECK_STATUS(shoal_scope_error(), call_status);                 \
        CHECK(!shoal_neg(x)); /* the scope holds the error from here */ \
        CHECK_STATUS(shoal_scope_end(), call_status);                   \
        CHECK_ERROR_TEXT(words);                                        \
    } while (0)

SCOPED_TEST(bad_calls)
{
    shoal_module *module = make_mixed();
    shoal_module *container = make_module("list", NULL, NULL);
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *inputs[4] = {x, x, x, x};
    shoal_tensor *outputs[2];
    CHECK_CALL_FAILS(shoal_module_call(NULL, inputs, 3, outputs, 2), "module_call: module is NULL");
    CHECK(!outputs[0] && !outputs[1]);
    CHECK_CALL_FAILS(shoal_module_call(module, NULL, 3, outputs, 2), "inputs is NULL");
    CHECK_CALL_FAILS(shoal_module_call(module, inputs, 3, NULL, 2), "outputs_out is NULL");
    CHECK_CALL_FAILS(shoal_module_call(module, inputs, 2, outputs, 2),
                     "n_inputs is 2, but mixed takes 3 inputs");
    CHECK(!outputs[0] && !outputs[1]);
    CHECK_CALL_FAILS(shoal_module_call(module, inputs, 4, outputs, 2),
                     "n_inputs is 4, but mixed takes 3 inputs");
    CHECK_CALL_FAILS(shoal_module_call(module, inputs, 3, outputs, 1),
                     "n_outputs is 1, but mixed has 2 outputs");
    CHECK(!outputs[0] && outputs[1] == x);
    CHECK_CALL_FAILS(shoal_module_call(container, inputs, 1, outputs, 1),
                     "list is a container: it has no forward function");
    inputs[2] = NULL;
    CHECK_CALL_FAILS(shoal_module_call(module, inputs, 3, outputs, 2),
                     "mixed: the forward function did not set output 1");
    CHECK(!outputs[0] && !outputs[1]);
    shoal_module_unref(container);
    shoal_module_unref(module);
}

/* Ways to fail, by number. */
static shoal_status failing_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_neg(inputs[0]);
    switch (*(int *)shoal_module_context(module)) {
    case 0:
        return shoal_fail(SHOAL_ERR_CANCELLED, "not today");
    case 1:
        (void)shoal_select(inputs[0], 7, 0);
        return SHOAL_OK;
    case 2: /* the first error is the cause */
        (void)shoal_select(inputs[0], 7, 0);
        return shoal_fail(SHOAL_ERR_CANCELLED, "because of that");
    case 3:
        return SHOAL_ERR_PEER;
    case 4:
        return (shoal_status)77;
    case 5:
        return shoal_scope_begin();
    default:
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
        return shoal_fail(SHOAL_ERR_CANCELLED, "still here");
    }
}

SCOPED_TEST(errors_say_where_they_happened)
{
    int way;
    shoal_module *net = make_module("net", chain_forward, NULL);
    shoal_module *chain = make_module("chain", chain_forward, NULL);
    shoal_module *failing = make_module("failing", failing_forward, &way);
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *outputs[2];
    give_child(chain, "first", make_scale(make_leaf(1, 2, 0)));
    give_child(net, "body", chain);
    for (way = 0; way < 7; way++) {
        CHECK_CALL_FAILS(shoal_module_call(failing, &x, 1, outputs, 1), "failing: ");
    }
    CHECK_OK(shoal_module_add_child(chain, "second", failing));
    way = 0;
    CHECK_CALL_FAILS(shoal_module_call(net, &x, 1, outputs, 1),
                     "net: body (chain): second (failing): not today");
    CHECK(!outputs[0]);
    shoal_module_unref(failing);
    shoal_module_unref(net);
}

/* Calls a grandchild directly, as a module with a list of layers does. */
static shoal_status reaching_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_module_call_one(shoal_module_child(module, "body.layers.1"), inputs[0]);
    return SHOAL_OK;
}

SCOPED_TEST(errors_name_the_path_from_the_caller)
{
    static const struct {
        shoal_status status;
        const char *words;
    } rows[] = {
        {SHOAL_ERR_CANCELLED, "net: body.layers.1 (failing): not today"},
        {SHOAL_ERR_INVALID, "net: body.layers.1 (failing): select: "},
        {SHOAL_ERR_INVALID, "net: body.layers.1 (failing): select: "},
        {SHOAL_ERR_PEER, "net: body.layers.1 (failing): the forward function returned SHOAL_ERR_PEER"},
        {SHOAL_ERR_INVALID, "the forward function returned 77, which is not a status"},
        {SHOAL_ERR_STATE, "the forward function left a scope open"},
        {SHOAL_ERR_CANCELLED, "still here"},
    };
    int way;
    shoal_module *net = make_module("net", reaching_forward, NULL);
    shoal_module *body = make_module("body", NULL, NULL);
    shoal_module *layers = make_module("list", NULL, NULL);
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *outputs[2];
    give_child(layers, "0", make_scale(x));
    give_child(layers, "1", make_module("failing", failing_forward, &way));
    give_child(body, "layers", layers);
    give_child(net, "body", body);
    for (way = 0; way < 7; way++) {
        CHECK_CALL_FAILS(shoal_module_call(net, &x, 1, outputs, 1), rows[way].words);
        REQUIRE_OK(shoal_scope_begin());
        CHECK_STATUS(shoal_module_call(net, &x, 1, outputs, 1), rows[way].status);
        CHECK_STATUS(shoal_scope_end(), rows[way].status);
    }
    shoal_module_unref(net);
}

SCOPED_TEST(an_earlier_error_is_the_answer)
{
    shoal_module *scale = make_scale(make_leaf(1, 2, 0));
    shoal_tensor *x = make_leaf(1, 3, 0);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_select(x, 7, 0));
    CHECK(!shoal_module_call_one(scale, x));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK(strncmp(shoal_error_text(), "select: ", 8) == 0);
    CHECK_DOUBLE(value_at(shoal_module_call_one(scale, x), 0), 6);
    shoal_module_unref(scale);
}

/* Recursion and lifetime ------------------------------------------------------------------------------- */

/* x, halved until it is below one; calls itself. */
static shoal_status halving_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *half = shoal_mul_scalar(inputs[0], 0.5);
    outputs[0] = value_at(half, 0) < 1 ? half : shoal_module_call_one(module, half);
    return SHOAL_OK;
}

SCOPED_TEST(a_module_may_call_itself)
{
    shoal_module *module = make_module("halving", halving_forward, NULL);
    shoal_tensor *x = make_leaf(1, 100, 0);
    shoal_tensor *y = shoal_module_call_one(module, x);
    CHECK_DOUBLE(value_at(y, 0), 100.0 / 128);
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 1.0 / 128);
    shoal_module_unref(module);
}

struct leaving {
    shoal_module *module;
    int n_destroyed;
    int n_destroyed_inside;
};

static void note_end(void *context)
{
    ((struct leaving *)context)->n_destroyed++;
}

static shoal_status leaving_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    struct leaving *leaving = shoal_module_context(module);
    shoal_module_unref(leaving->module);
    leaving->n_destroyed_inside = leaving->n_destroyed;
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
    return SHOAL_OK;
}

SCOPED_TEST(a_module_freed_in_its_call_lives_until_its_end)
{
    struct leaving leaving = {.n_destroyed = 0};
    REQUIRE_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                              .type = "leaving",
                                                              .forward = leaving_forward,
                                                              .context = &leaving,
                                                              .destroy = note_end},
                                   &leaving.module));
    shoal_tensor *x = make_leaf(1, 3, 0);
    CHECK_OK(shoal_module_add_parameter(leaving.module, "weight", make_leaf(1, 2, 0)));
    CHECK_DOUBLE(value_at(shoal_module_call_one(leaving.module, x), 0), 6);
    CHECK_INT(leaving.n_destroyed_inside, 0);
    CHECK_INT(leaving.n_destroyed, 1);
}

/* Gradient mode, tracers, recomputing ------------------------------------------------------------------ */

static shoal_status quiet_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *loud = shoal_neg(inputs[0]);
    shoal_status status = shoal_scope_set_grad(false);
    outputs[0] = shoal_add(loud, shoal_neg(inputs[0]));
    return status;
}

static shoal_status check_mode(void *context, const shoal_forward_call *call)
{
    CHECK(shoal_scope_has_grad() == *(bool *)context);
    return SHOAL_OK;
}

SCOPED_TEST(gradient_mode_comes_in_and_does_not_come_out)
{
    bool has_grad = true;
    shoal_module *module = make_module("quiet", quiet_forward, NULL);
    shoal_tensor *x = make_leaf(1, 3, 0);
    CHECK_OK(shoal_module_add_hook(
        module,
        &(shoal_module_hook_definition){.struct_size = sizeof(shoal_module_hook_definition),
                                        .post_forward = check_mode,
                                        .context = &has_grad},
        NULL));
    CHECK(!shoal_requires_grad(shoal_module_call_one(module, x)));
    CHECK(shoal_scope_has_grad());
    has_grad = false;
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(shoal_module_call_one(module, x));
    CHECK_OK(shoal_scope_set_grad(true));
    shoal_module_unref(module);
}

struct recorder {
    struct op_tracer tracer;
    struct journal journal;
};

static shoal_status record(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    note(&((struct recorder *)tracer)->journal, shoal_op_name(op));
    return op_execute(op, arguments, result_out);
}

SCOPED_TEST(a_tracer_sees_what_a_call_does)
{
    struct recorder recorder = {.tracer = {.call = record}};
    shoal_module *chain = make_module("chain", chain_forward, NULL);
    give_child(chain, "0", make_scale(make_leaf(1, 2, 0)));
    give_child(chain, "1", make_module("halving", halving_forward, NULL));
    shoal_tensor *x = make_leaf(1, 3, 0);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(op_set_tracer(&recorder.tracer));
    CHECK(shoal_module_call_one(chain, x));
    CHECK_OK(op_set_tracer(NULL));
    CHECK_OK(shoal_scope_end());
    CHECK_STRING(recorder.journal.text, "mul mul_scalar mul_scalar mul_scalar");
    shoal_module_unref(chain);
}

/* On tensors without data a call gives shapes. */
SCOPED_TEST(a_call_on_meta_gives_shapes)
{
    shoal_module *scale = make_scale(shoal_empty_on((int64_t[]){3}, 1, SHOAL_F64, SHOAL_META));
    shoal_tensor *y =
        shoal_module_call_one(scale, shoal_empty_on((int64_t[]){2, 3}, 2, SHOAL_F64, SHOAL_META));
    CHECK_INT(shoal_tensor_device(y), SHOAL_META);
    CHECK_INT(shoal_tensor_count(y), 6);
    shoal_module_unref(scale);
}

static shoal_status call_module(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    return shoal_module_call(context, inputs, n_inputs, outputs, n_outputs);
}

static void free_module(void *context)
{
    shoal_module_unref(context);
}

static shoal_status note_call(void *context, const shoal_forward_call *call)
{
    note(context, call->is_recompute ? "again" : shoal_scope_has_grad() ? "recorded" : "quiet");
    return SHOAL_OK;
}

SCOPED_TEST(calls_can_be_recomputed)
{
    struct journal journal = {""};
    shoal_tensor *weights[2] = {make_leaf(2, 2, 1), make_leaf(2, 5, 1)};
    shoal_module *chain = make_module("chain", chain_forward, NULL);
    shoal_module *inner = make_scale(weights[0]);
    CHECK_OK(shoal_module_add_hook(
        inner,
        &(shoal_module_hook_definition){.struct_size = sizeof(shoal_module_hook_definition),
                                        .pre_forward = note_call,
                                        .context = &journal},
        NULL));
    give_child(chain, "0", inner);
    give_child(chain, "1", make_scale(weights[1]));
    for (int is_wrapped = 0; is_wrapped < 2; is_wrapped++) {
        shoal_tensor *x = make_leaf(2, 10, 1);
        shoal_tensor *y = NULL;
        if (is_wrapped) {
            REQUIRE_OK(shoal_recompute(call_module, shoal_module_ref(chain), free_module, &x, 1, &y, 1));
        } else {
            y = shoal_module_call_one(chain, x);
        }
        CHECK_OK(shoal_backward(sum_all(shoal_mul(y, y)), NULL));
        CHECK_DOUBLE(grad_at(x, 0), 2 * 100 * 10);
        for (int i = 0; i < 2; i++) {
            CHECK_DOUBLE(grad_at(weights[i], 0), 2 * 100 * (i == 0 ? 50 : 20));
            CHECK_OK(shoal_set_grad(weights[i], NULL));
        }
    }
    CHECK_STRING(journal.text, "recorded quiet again");
    shoal_module_unref(chain);
}

/* Other functions ---------------------------------------------------------------------------------------- */

static shoal_status divide_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    CHECK_INT(n_inputs, 2);
    CHECK_INT(n_outputs, 2);
    outputs[0] = shoal_div(inputs[0], shoal_module_parameter(module, "weight"));
    outputs[1] = inputs[1];
    return SHOAL_OK;
}

static shoal_status count_call(void *context, const shoal_forward_call *call)
{
    (*(int *)context)++;
    CHECK_INT(call->n_outputs, 2);
    return SHOAL_OK;
}

SCOPED_TEST(another_function_of_a_module)
{
    int n_calls = 0;
    shoal_module *module = make_scale(make_leaf(1, 4, 0));
    shoal_tensor *x = make_leaf(1, 12, 0);
    shoal_tensor *lists[2] = {x, x};
    CHECK_OK(shoal_module_add_hook(
        module,
        &(shoal_module_hook_definition){.struct_size = sizeof(shoal_module_hook_definition),
                                        .pre_forward = count_call,
                                        .post_forward = count_call,
                                        .context = &n_calls},
        NULL));
    CHECK_OK(shoal_module_call_function(module, divide_forward, lists, 2, lists, 2));
    CHECK_DOUBLE(value_at(lists[0], 0), 3);
    CHECK(lists[1] == x);
    CHECK_INT(n_calls, 2);
    CHECK_OK(shoal_backward(sum_all(lists[0]), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 0.25);
    shoal_module_unref(module);
}

SCOPED_TEST(a_container_may_be_called_by_a_function)
{
    shoal_module *container = make_module("container", NULL, NULL);
    give_child(container, "0", make_scale(make_leaf(1, 5, 0)));
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *out;
    CHECK_OK(shoal_module_call_function(container, chain_forward, &x, 1, &out, 1));
    CHECK_DOUBLE(value_at(out, 0), 15);
    shoal_module_unref(container);
}

TEST(functions_that_are_refused)
{
    shoal_module *module = make_module("scale", scale_forward, NULL);
    shoal_tensor *lists[1] = {NULL};
    CHECK_STATUS(shoal_module_call_function(module, scale_forward, lists, 1, lists, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("module_call_function");
    const struct {
        shoal_module *module;
        shoal_module_forward function;
        shoal_tensor **inputs;
        shoal_tensor **outputs;
        size_t n_outputs;
        const char *word;
    } cases[] = {{NULL, scale_forward, lists, lists, 1, "module is NULL"},
                 {module, NULL, lists, lists, 1, "function is NULL"},
                 {module, scale_forward, NULL, lists, 1, "inputs is NULL"},
                 {module, scale_forward, lists, NULL, 1, "outputs_out is NULL"},
                 {module, scale_forward, lists, lists, 0, "n_outputs is 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(shoal_scope_begin());
        CHECK_STATUS(shoal_module_call_function(cases[i].module, cases[i].function, cases[i].inputs, 1,
                                                cases[i].outputs, cases[i].n_outputs),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].word);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    shoal_module_unref(module);
}
