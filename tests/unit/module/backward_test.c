/* SPDX-License-Identifier: MIT */
/*
 * What a wrapper around modules can hang on backward, with public calls only: a function before the backward pass of a
 * module, when the gradient of any of its outputs first arrives; one after it, when the gradients of its inputs are
 * complete; one at the end. Sharded parameters live on these three.
 */
#include "unit/module/fixture.h"

/* The wrapper ------------------------------------------------------------------------------------------ */

struct wrapper {
    struct journal *journal;
    const char *name;
    bool is_in_backward; /* between the first gradient and the end of its backward pass */
    bool *is_end_queued; /* shared by all: one hook for the end is enough */
    shoal_tensor *parameter;
    double gradient_at_post; /* NaN: none yet */
};

static void note_step(struct wrapper *wrapper, const char *step)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%s%s", step, wrapper->name);
    note(wrapper->journal, text);
}

static shoal_status end_backward(void *context)
{
    struct wrapper *wrapper = context;
    note(wrapper->journal, "end");
    *wrapper->is_end_queued = false;
    return SHOAL_OK;
}

static shoal_tensor *before_backward(void *context, shoal_tensor *gradient)
{
    struct wrapper *wrapper = context;
    if (!wrapper->is_in_backward) {
        wrapper->is_in_backward = true;
        note_step(wrapper, "pre_");
        if (!*wrapper->is_end_queued) {
            *wrapper->is_end_queued = true;
            CHECK_OK(shoal_on_backward_end(end_backward, wrapper));
        }
    }
    return NULL;
}

static shoal_status after_backward(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    struct wrapper *wrapper = context;
    wrapper->is_in_backward = false;
    wrapper->gradient_at_post = grad_at(wrapper->parameter, 0);
    note_step(wrapper, "post_");
    return SHOAL_OK;
}

static shoal_status before_forward(void *context, const shoal_forward_call *call)
{
    return shoal_identity(call->inputs, call->n_inputs, after_backward, context, call->inputs);
}

/* Leaves keep hooks for ever, so that an output that is one goes through an identity first. */
static shoal_status after_forward(void *context, const shoal_forward_call *call)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        shoal_tensor **output = &call->outputs[i];
        if (!shoal_scope_has_grad() || !shoal_requires_grad(*output)) {
            continue;
        }
        shoal_status status =
            shoal_is_leaf(*output) ? shoal_identity(output, 1, NULL, NULL, output) : SHOAL_OK;
        if (status == SHOAL_OK) {
            status = shoal_on_gradient(*output, before_backward, context, NULL);
        }
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

static void wrap(shoal_module *module, struct wrapper *wrapper)
{
    CHECK_OK(shoal_module_add_hook(module,
                                   &(shoal_module_hook_definition){
                                       .struct_size = sizeof(shoal_module_hook_definition),
                                       .pre_forward = before_forward,
                                       .pre_place = SHOAL_HOOK_FIRST,
                                       .post_forward = after_forward,
                                       .post_place = SHOAL_HOOK_LAST,
                                       .context = wrapper,
                                   },
                                   NULL));
}

/* A module of two inputs and two outputs: y = a * w, z = (a + b) * w, b may be absent ---------------------- */

static shoal_status fork_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *w = shoal_module_parameter(module, "weight");
    outputs[0] = shoal_mul(inputs[0], w);
    outputs[1] = shoal_mul(inputs[1] ? shoal_add(inputs[0], inputs[1]) : inputs[0], w);
    return SHOAL_OK;
}

struct net {
    struct journal journal;
    bool is_end_queued;
    struct wrapper wrappers[3]; /* fork, and two scales */
    shoal_module *modules[3];
    shoal_tensor *weights[3];
};

static void make_net(struct net *net)
{
    static const char *const names[] = {"F", "A", "B"};
    *net = (struct net){.is_end_queued = false};
    for (int i = 0; i < 3; i++) {
        net->weights[i] = make_leaf(1, i + 2, 0);
        net->modules[i] = i == 0 ? NULL : make_scale(net->weights[i]);
        net->wrappers[i] = (struct wrapper){.journal = &net->journal,
                                            .name = names[i],
                                            .is_end_queued = &net->is_end_queued,
                                            .parameter = net->weights[i]};
    }
    CHECK_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                            .type = "fork",
                                                            .forward = fork_forward,
                                                            .n_inputs = 2,
                                                            .n_outputs = 2},
                                 &net->modules[0]));
    CHECK_OK(shoal_module_add_parameter(net->modules[0], "weight", net->weights[0]));
    for (int i = 0; i < 3; i++) {
        wrap(net->modules[i], &net->wrappers[i]);
    }
}

static void free_net(struct net *net)
{
    for (int i = 0; i < 3; i++) {
        shoal_module_unref(net->modules[i]);
    }
}

static void call_fork(struct net *net, shoal_tensor *a, shoal_tensor *b, shoal_tensor *outputs[2])
{
    CHECK_OK(shoal_module_call(net->modules[0], (shoal_tensor *[]){a, b}, 2, outputs, 2));
}

/* Tests ------------------------------------------------------------------------------------------------ */

SCOPED_TEST(before_after_and_end)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_leaf(1, 10, 0);
    shoal_tensor *h = shoal_module_call_one(net.modules[1], x);
    shoal_tensor *y = shoal_module_call_one(net.modules[2], h);
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_STRING(net.journal.text, "pre_B post_B pre_A post_A end");
    /* Gradients of a module's parameters are there when its backward pass ends. */
    CHECK_DOUBLE(net.wrappers[2].gradient_at_post, 30);
    CHECK_DOUBLE(net.wrappers[1].gradient_at_post, 40);
    CHECK_DOUBLE(grad_at(x, 0), 12);
    free_net(&net);
}

/* The first module of a network: nothing comes after it in backward but the end. */
SCOPED_TEST(no_input_needs_a_gradient)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_vector((double[]){10}, 1);
    shoal_tensor *y = shoal_module_call_one(net.modules[2], shoal_module_call_one(net.modules[1], x));
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_STRING(net.journal.text, "pre_B post_B pre_A end");
    CHECK(net.wrappers[1].is_in_backward); /* the end has to do the rest */
    CHECK_DOUBLE(grad_at(net.weights[1], 0), 40);
    free_net(&net);
}

/* Whichever output is used, and in whatever order, the first gradient is noticed before the inside is walked. */
SCOPED_TEST(any_output_is_enough)
{
    static const struct {
        bool uses[2];
        bool has_b;
        double gradient; /* of the weight: 10 by the first output, 10 or 17 by the second */
    } rows[] = {
        {{true, false}, true, 10},  {{false, true}, true, 17},  {{true, true}, true, 27},
        {{true, false}, false, 10}, {{false, true}, false, 10}, {{true, true}, false, 20},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net net;
        shoal_tensor *outputs[2];
        make_net(&net);
        shoal_tensor *a = make_leaf(1, 10, 0);
        shoal_tensor *b = rows[i].has_b ? make_leaf(1, 7, 0) : NULL;
        call_fork(&net, a, b, outputs);
        shoal_tensor *loss = !rows[i].uses[1]   ? outputs[0]
                             : !rows[i].uses[0] ? outputs[1]
                                                : shoal_add(outputs[1], outputs[0]);
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_STRING(net.journal.text, "pre_F post_F end");
        CHECK_DOUBLE(net.wrappers[0].gradient_at_post, rows[i].gradient);
        CHECK((b && shoal_grad(b)) == (rows[i].has_b && rows[i].uses[1]));
        free_net(&net);
    }
}

/* Outputs used far apart: one by a module in between, one at the very end. */
SCOPED_TEST(outputs_used_at_different_times)
{
    struct net net;
    shoal_tensor *outputs[2];
    make_net(&net);
    call_fork(&net, make_leaf(1, 10, 0), NULL, outputs);
    shoal_tensor *y = shoal_module_call_one(net.modules[1], outputs[0]);
    shoal_tensor *z = shoal_module_call_one(net.modules[2], shoal_add(y, outputs[1]));
    CHECK_OK(shoal_backward(z, NULL));
    CHECK_STRING(net.journal.text, "pre_B post_B pre_A post_A pre_F post_F end");
    free_net(&net);
}

SCOPED_TEST(a_module_that_is_not_used_hears_nothing)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_leaf(1, 10, 0);
    shoal_tensor *unused = shoal_module_call_one(net.modules[1], x);
    CHECK_OK(shoal_backward(shoal_module_call_one(net.modules[2], x), NULL));
    CHECK(unused && !net.wrappers[1].is_in_backward);
    CHECK_STRING(net.journal.text, "pre_B post_B end");
    free_net(&net);
}

/*
 * Two forwards, one backward pass: before and after come once for each. The gradient of a parameter is added once a
 * backward pass, when nothing more can come: the first "after" has none yet.
 */
SCOPED_TEST(two_forwards_before_one_backward)
{
    struct net net;
    shoal_tensor *losses[2];
    make_net(&net);
    for (int i = 0; i < 2; i++) {
        shoal_tensor *x = make_leaf(1, 10 + i, 0);
        losses[i] = shoal_module_call_one(net.modules[2], shoal_module_call_one(net.modules[1], x));
    }
    CHECK_OK(shoal_backward(shoal_add(losses[0], losses[1]), NULL));
    CHECK_STRING(net.journal.text, "pre_B post_B pre_A post_A pre_B post_B pre_A post_A end");
    CHECK_DOUBLE(net.wrappers[1].gradient_at_post, 4 * 21);
    free_net(&net);
}

static shoal_tensor *twin_of(shoal_tensor *weight)
{
    return require_grad(shoal_detach(weight));
}

/* A parameter that is another leaf for every forward has its own gradient after each. */
SCOPED_TEST(a_leaf_for_every_forward)
{
    struct net net;
    shoal_tensor *twins[2];
    shoal_tensor *losses[2];
    make_net(&net);
    for (int i = 0; i < 2; i++) {
        twins[i] = twin_of(net.weights[1]);
        CHECK_OK(shoal_module_set_parameter(net.modules[1], "weight", twins[i]));
        losses[i] = shoal_module_call_one(net.modules[1], make_leaf(1, 10 + i, 0));
    }
    net.wrappers[1].parameter = twins[1];
    CHECK_OK(shoal_backward(shoal_add(losses[0], losses[1]), NULL));
    CHECK_STRING(net.journal.text, "pre_A post_A pre_A post_A end");
    CHECK_DOUBLE(net.wrappers[1].gradient_at_post, 11);
    CHECK_DOUBLE(grad_at(twins[0], 0), 10);
    CHECK(!shoal_grad(net.weights[1]));
    free_net(&net);
}

/* Two backward passes, each with its own end. */
SCOPED_TEST(the_end_comes_once_a_backward)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_leaf(1, 10, 0);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_backward(shoal_module_call_one(net.modules[1], x), NULL));
    }
    CHECK_STRING(net.journal.text, "pre_A post_A end pre_A post_A end");
    CHECK_DOUBLE(net.wrappers[1].gradient_at_post, 20);
    free_net(&net);
}

/* A module that hands out an input and a parameter as they are. */
static shoal_status giving_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = inputs[0];
    outputs[1] = shoal_module_parameter(module, "weight");
    return SHOAL_OK;
}

SCOPED_TEST(outputs_that_nobody_made)
{
    struct journal journal = {""};
    bool is_end_queued = false;
    shoal_tensor *weight = make_leaf(1, 5, 0);
    struct wrapper wrapper = {
        .journal = &journal, .name = "G", .is_end_queued = &is_end_queued, .parameter = weight};
    shoal_module *module;
    REQUIRE_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                              .type = "giving",
                                                              .forward = giving_forward,
                                                              .n_outputs = 2},
                                   &module));
    CHECK_OK(shoal_module_add_parameter(module, "weight", weight));
    wrap(module, &wrapper);
    for (int i = 0; i < 2; i++) {
        shoal_tensor *outputs[2];
        shoal_tensor *x = make_leaf(1, 3, 0);
        CHECK_OK(shoal_module_call(module, &x, 1, outputs, 2));
        CHECK_OK(shoal_backward(shoal_mul(outputs[0], outputs[1]), NULL));
        CHECK_DOUBLE(grad_at(x, 0), 5);
    }
    CHECK_STRING(journal.text, "pre_G post_G end pre_G post_G end");
    CHECK_DOUBLE(grad_at(weight, 0), 6);
    shoal_module_unref(module);
}

/* Changing an output in place, or losing it, takes nothing away. */
SCOPED_TEST(outputs_changed_in_place_or_gone)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_leaf(1, 10, 0);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *y = shoal_mul_scalar_(shoal_module_call_one(net.modules[1], x), 2);
    shoal_tensor *loss = shoal_scope_keep(shoal_neg(y));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_STRING(net.journal.text, "pre_A post_A end");
    CHECK_DOUBLE(grad_at(x, 0), -6);
    free_net(&net);
}

static shoal_status call_module(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    return shoal_module_call(context, inputs, n_inputs, outputs, n_outputs);
}

/* Recomputed modules: the first run records nothing, the second one everything, inside the backward pass. */
SCOPED_TEST(recomputed_modules)
{
    struct net net;
    make_net(&net);
    shoal_tensor *x = make_leaf(1, 10, 0);
    shoal_tensor *h;
    shoal_tensor *y;
    REQUIRE_OK(shoal_recompute(call_module, net.modules[1], NULL, &x, 1, &h, 1));
    REQUIRE_OK(shoal_recompute(call_module, net.modules[2], NULL, &h, 1, &y, 1));
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_STRING(net.journal.text, "pre_B post_B pre_A post_A end");
    CHECK_DOUBLE(net.wrappers[1].gradient_at_post, 40);
    CHECK_DOUBLE(grad_at(x, 0), 12);
    free_net(&net);
}

/* A module that recomputes its inside: its own hooks are outside of that. */
static shoal_status run_inside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(context, "weight"));
    return SHOAL_OK;
}

static shoal_status recomputing_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                        shoal_tensor **outputs, size_t n_outputs)
{
    return shoal_recompute(run_inside, module, NULL, inputs, n_inputs, outputs, n_outputs);
}

SCOPED_TEST(modules_that_recompute_their_inside)
{
    struct journal journal = {""};
    bool is_end_queued = false;
    shoal_tensor *weight = make_leaf(1, 5, 0);
    struct wrapper wrapper = {
        .journal = &journal, .name = "R", .is_end_queued = &is_end_queued, .parameter = weight};
    shoal_module *module = make_module("recomputing", recomputing_forward, NULL);
    CHECK_OK(shoal_module_add_parameter(module, "weight", weight));
    wrap(module, &wrapper);
    shoal_tensor *x = make_leaf(1, 3, 0);
    CHECK_OK(shoal_backward(shoal_module_call_one(module, x), NULL));
    CHECK_STRING(journal.text, "pre_R post_R end");
    CHECK_DOUBLE(wrapper.gradient_at_post, 3);
    CHECK_DOUBLE(grad_at(x, 0), 5);
    shoal_module_unref(module);
}

/* With gradients off nothing is hung anywhere. */
SCOPED_TEST(without_gradients_nothing_happens)
{
    struct net net;
    make_net(&net);
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *y = shoal_module_call_one(net.modules[1], make_leaf(1, 10, 0));
    CHECK_OK(shoal_scope_set_grad(true));
    CHECK(!shoal_requires_grad(y));
    CHECK_STRING(net.journal.text, "");
    free_net(&net);
}

static shoal_status in_place_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_mul_scalar_(inputs[0], 2);
    return SHOAL_OK;
}

/* The price of the identity: what a forward function could change in place is a view once it is wrapped. */
SCOPED_TEST(wrapped_inputs_are_views)
{
    struct journal journal = {""};
    bool is_end_queued = false;
    struct wrapper wrapper = {.journal = &journal, .name = "I", .is_end_queued = &is_end_queued};
    shoal_module *module = make_module("in_place", in_place_forward, NULL);
    shoal_tensor *x = make_leaf(1, 3, 0);
    CHECK_DOUBLE(value_at(shoal_module_call_one(module, shoal_neg(x)), 0), -6);
    wrap(module, &wrapper);
    CHECK_SCOPE_ERROR(shoal_module_call_one(module, shoal_neg(x)), SHOAL_ERR_STATE,
                      "in_place: mul_scalar_: self: this is a view");
    shoal_module_unref(module);
}
