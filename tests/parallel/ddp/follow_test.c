/* SPDX-License-Identifier: MIT */
/*
 * DDP follows a program that changes the parameters of a wrapped module: gradients are averaged whether a parameter was
 * there when the module was wrapped or came later, eager and compiled. Ranks that change different things are told.
 */
#include "fixtures/on_device.h"

#include "fixtures/late_net.h"

/* Ways to change a model ---------------------------------------------------------------------------------- */

typedef void (*changer)(struct late *late);

static void add_parameter(struct late *late)
{
    (void)CHECK_OK(shoal_module_add_parameter(late->layer, "late", late_tensor(1.0, true)));
}

static void add_child(struct late *late)
{
    (void)late_add_layer(late->net, "late");
}

static void replace(struct late *late)
{
    (void)CHECK_OK(shoal_module_set_parameter(late->net, "layer.w", late_tensor(3.0, true)));
}

static void thaw(struct late *late)
{
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(late->net, "w"), true));
}

static void freeze(struct late *late)
{
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(late->net, "w"), false));
}

static void add_buffer(struct late *late)
{
    (void)CHECK_OK(shoal_module_add_buffer(late->layer, "shift", late_tensor(1.0, false)));
}

static const struct {
    const char *name;
    changer change;
} changes[] = {
    {"a parameter that is added", add_parameter}, {"a child that is added", add_child},
    {"a parameter that is replaced", replace},    {"a parameter that is thawed", thaw},
    {"a parameter that is frozen", freeze},       {"a buffer that is added", add_buffer},
};

enum {
    N_CHANGES = sizeof changes / sizeof changes[0]
};

/* Alike ---------------------------------------------------------------------------------------------------- */

static void follow(struct rank *self, size_t index, bool is_compiled, bool reduce_unused)
{
    struct late late;
    REQUIRE(late_open(&late, self, is_compiled));
    if (changes[index].change == thaw) {
        freeze(&late);
    }
    if (late_wrap_ddp(&late, reduce_unused) && CHECK_OK(late_step(&late))) {
        late_check_means(&late);
        changes[index].change(&late);
        for (int i = 0; i < 3 && CHECK_OK(late_step(&late)); i++) {
            late_check_means(&late);
        }
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "%s, compiled %d, reduce_unused %d", changes[index].name, is_compiled,
                    reduce_unused);
    }
    late_close(&late);
}

TEST_RANKS(changes_of_all_ranks_are_followed, 2)
{
    for (size_t i = 0; i < N_CHANGES; i++) {
        for (int k = 0; k < 4 && !test_has_failed(); k++) {
            follow(self, i, k % 2 == 1, k / 2 == 1);
        }
    }
}

/* Whoever evaluates for a while may freeze all parameters. Then there is nothing to reduce, until some are thawed. */
TEST_RANKS(all_parameters_are_frozen_for_a_while, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        size_t n = 0;
        REQUIRE(late_open(&late, self, k == 1));
        CHECK_OK(shoal_module_add_buffer(late.net, "shift", late_tensor(5.0, false)));
        REQUIRE(late_wrap_ddp(&late, false));
        CHECK_OK(late_step(&late));
        shoal_tensor *const *parameters = shoal_module_parameters(late.net, &n);
        for (size_t i = 0; i < n; i++) {
            CHECK_OK(shoal_set_requires_grad(parameters[i], false));
        }
        shoal_tensor *added = late_tensor(1.0 + self->rank, false);
        CHECK_OK(shoal_module_add_parameter(late.layer, "late", added));
        shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
        for (int i = 0; i < 2; i++) {
            CHECK(shoal_module_call_one(late.net, x) != NULL);
            CHECK_DOUBLE((double)*(const float *)shoal_data(added), 1.0);
        }
        for (size_t i = 0; i < n; i++) {
            CHECK_OK(shoal_set_requires_grad(parameters[i], true));
        }
        for (int i = 0; i < 2 && CHECK_OK(late_step(&late)); i++) {
            late_check_means(&late);
        }
        late_close(&late);
    }
}

/* A child that was added, or a module inside it, may be called by itself before the wrapped module is called. */
TEST_RANKS(a_child_that_is_added_and_called_by_itself, 2)
{
    for (int k = 0; k < 4 && !test_has_failed(); k++) {
        struct late late;
        shoal_compiled *compiled = NULL;
        REQUIRE(late_open(&late, self, false));
        REQUIRE(late_wrap_ddp(&late, true));
        CHECK_OK(late_step(&late));
        shoal_module *child = late_module("child");
        shoal_module *inside = late_add_layer(child, "inside");
        CHECK_OK(shoal_module_add_child(late.layer, "late", child));
        struct late part = late;
        part.net = k / 2 == 0 ? child : inside;
        part.is_compiled = k % 2 == 1 && late_can_compile();
        CHECK_OK(shoal_compile(late.world, late_run, &part, 1, NULL, &compiled));
        part.compiled = compiled;
        for (int i = 0; i < 2 && CHECK_OK(late_step(&part)); i++) {
            late_check_means(&part);
        }
        late_add_layer(inside, "later");
        for (int i = 0; i < 2 && CHECK_OK(late_step(&part)); i++) {
            late_check_means(&part);
        }
        CHECK_OK(late_step(&late));
        late_check_means(&late);
        shoal_compiled_free(compiled);
        shoal_module_unref(child);
        late_close(&late);
    }
}

/* A child may come from another wrapped tree that is freed later. */
TEST_RANKS(a_child_that_was_in_another_wrapped_tree, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        struct late other;
        REQUIRE(late_open(&late, self, false));
        other = late;
        other.net = late_module("other");
        CHECK_OK(shoal_module_add_parameter(other.net, "w", late_tensor(1.0, true)));
        shoal_module *shared = late_add_layer(other.net, "shared");
        REQUIRE(late_wrap_ddp(&other, false));
        REQUIRE(late_wrap_ddp(&late, true));
        CHECK_OK(shoal_module_add_child(late.net, "shared", shared));
        CHECK_OK(late_step(&other)); /* the first tree is the one that is asked, as long as it lives */
        late_check_means(&other);
        shoal_module_unref(other.net);
        struct late part = late;
        part.net = shared;
        if (k == 1) {
            late_add_layer(shared, "later");
        }
        for (int i = 0; i < 2 && CHECK_OK(late_step(&part)); i++) {
            late_check_means(&part);
        }
        CHECK_OK(late_step(&late));
        late_check_means(&late);
        late_close(&late);
    }
}

/* One tensor in two places gets one gradient, the sum. */
TEST_RANKS(parameters_that_are_tied_later, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        REQUIRE(late_open(&late, self, k == 1));
        REQUIRE(late_wrap_ddp(&late, false));
        CHECK_OK(late_step(&late));
        shoal_tensor *tied = shoal_module_parameter(late.net, "w");
        CHECK_OK(shoal_module_set_parameter(late.net, "layer.w", tied));
        CHECK_OK(late_step(&late));
        late_check_gradient(tied, 2 * late_mean(&late));
        late_close(&late);
    }
}

/* New parameters begin with the values of the first rank, as those do that are there when a module is wrapped. */
TEST_RANKS(new_parameters_get_the_values_of_the_first_rank, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    shoal_tensor *replaced = late_tensor(10.0 + self->rank, true);
    CHECK_OK(shoal_module_set_parameter(late.net, "w", replaced));
    CHECK_OK(late_step(&late));
    const float *data = shoal_data(replaced);
    CHECK(data && data[0] == 10.0F);
    late_close(&late);
}

/* All parameters may be replaced by some of another device. */
TEST_RANKS(parameters_that_are_replaced_on_another_device, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    late_check_means(&late);
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        const shoal_device device = k == 0 ? SHOAL_CPU : test_device();
        static const char *const paths[] = {"w", "layer.w"};
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
            shoal_tensor *fresh = shoal_to_device(shoal_detach(late_tensor(2.0, false)), device);
            CHECK_OK(shoal_set_requires_grad(fresh, true));
            CHECK_OK(shoal_module_set_parameter(late.net, paths[i], fresh));
        }
        shoal_tensor *x = shoal_to_device(shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32), device);
        shoal_tensor *loss = NULL;
        CHECK_OK(late_run(&late, &x, 1, &loss, 1));
        late_check_means(&late);
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
            CHECK(shoal_tensor_device(shoal_grad(shoal_module_parameter(late.net, paths[i]))) == device);
        }
    }
    late_close(&late);
}

/* A gradient that was averaged before is kept, and not averaged again. */
TEST_RANKS(gradients_of_other_parameters_are_kept, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    shoal_tensor *kept = shoal_module_parameter(late.net, "w");
    CHECK_OK(late_step(&late));
    replace(&late);
    shoal_tensor *loss = NULL;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    late_check_gradient(kept, 2 * late_mean(&late));
    late_check_gradient(shoal_module_parameter(late.net, "layer.w"), late_mean(&late));
    late_close(&late);
}

/* A parameter that was averaged, left the module, got a gradient of this rank elsewhere and comes back: what it has is
   averaged, not taken for an average. */
TEST_RANKS(a_parameter_that_comes_back_brings_its_own_gradient, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        REQUIRE(late_open(&late, self, k == 1));
        REQUIRE(late_wrap_ddp(&late, false));
        shoal_tensor *first = shoal_tensor_ref(shoal_module_parameter(late.net, "layer.w"));
        CHECK_OK(late_step(&late));
        replace(&late);
        CHECK_OK(late_step(&late));
        CHECK_OK(shoal_backward(shoal_sum(shoal_mul_scalar(first, self->rank), NULL, 0, false), NULL));
        CHECK_OK(shoal_module_set_parameter(late.net, "layer.w", first));
        shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
        shoal_tensor *loss = NULL;
        late.is_compiled ? (void)CHECK_OK(shoal_compiled_run(late.compiled, &x, 1, &loss, 1))
                         : (void)CHECK_OK(late_run(&late, &x, 1, &loss, 1));
        late_check_gradient(first, 2 * late_mean(&late) + 0.5);
        if (late.is_compiled) {
            shoal_tensor_unref(loss);
        }
        shoal_tensor_unref(first);
        late_close(&late);
    }
}

/* An average that was set aside, because a backward pass without synchronization came after it, leaves with its
   parameter, too. */
TEST_RANKS(a_parameter_that_comes_back_brings_what_was_set_aside, 2)
{
    struct late late;
    shoal_tensor *loss = NULL;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    shoal_tensor *first = shoal_tensor_ref(shoal_module_parameter(late.net, "layer.w"));
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_ddp_set_sync(late.net, false));
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    late_check_gradient(first, self->rank + 1.0);
    CHECK_OK(shoal_ddp_set_sync(late.net, true));
    replace(&late);
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    late_check_gradient(first, late_mean(&late) + self->rank + 1.0);
    CHECK_OK(shoal_module_set_parameter(late.net, "layer.w", first));
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    late_check_gradient(first, 3 * late_mean(&late));
    shoal_tensor_unref(first);
    late_close(&late);
}

/* Zeros that the program has written also drop what was set aside. */
TEST_RANKS(zeros_also_drop_what_was_set_aside, 2)
{
    struct late late;
    shoal_tensor *loss = NULL;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    shoal_tensor *first = shoal_tensor_ref(shoal_module_parameter(late.net, "layer.w"));
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_ddp_set_sync(late.net, false));
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    CHECK(shoal_copy_(shoal_grad(first), late_tensor(0.0, false)) != NULL);
    CHECK_OK(shoal_ddp_set_sync(late.net, true));
    replace(&late);
    CHECK_OK(late_run(&late, &x, 1, &loss, 1));
    late_check_gradient(first, 0.0);
    shoal_tensor_unref(first);
    late_close(&late);
}

/* Hooks ---------------------------------------------------------------------------------------------------- */

static shoal_tensor *square(void *context, shoal_tensor *gradient)
{
    (void)context;
    return shoal_mul(gradient, gradient);
}

/* A hook sees this rank's gradient before it is averaged, whenever it was added, eager and compiled. */
TEST_RANKS(hooks_see_gradients_before_they_are_averaged, 2)
{
    for (int k = 0; k < 4 && !test_has_failed(); k++) {
        struct late late;
        shoal_hook *hook = NULL;
        REQUIRE(late_open(&late, self, k % 2 == 1));
        shoal_tensor *w = shoal_module_parameter(late.net, "w");
        if (k / 2 == 0) {
            CHECK_OK(shoal_on_gradient(w, square, NULL, &hook));
        }
        REQUIRE(late_wrap_ddp(&late, false));
        if (k / 2 == 1) {
            CHECK_OK(late_step(&late));
            late_check_means(&late);
            CHECK_OK(shoal_on_gradient(w, square, NULL, &hook));
        }
        CHECK_OK(late_step(&late));
        late_check_gradient(w, (1.0 + 4.0) / 2.0);
        shoal_hook_remove(hook);
        CHECK_OK(late_step(&late));
        late_check_means(&late);
        late_close(&late);
    }
}

/* Recomputing ---------------------------------------------------------------------------------------------- */

/* A shoal_recompute_function. */
static shoal_status call_net(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct late *late = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_call_one(late->net, inputs[0]);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

/* A shoal_step_function. */
static shoal_status run_recomputed(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    shoal_status status = shoal_recompute(call_net, context, NULL, inputs, n_inputs, outputs, n_outputs);
    return status == SHOAL_OK ? shoal_backward(outputs[0], NULL) : status;
}

static void check_buffer(struct late *late, double wanted)
{
    shoal_tensor *buffer = shoal_module_buffer(late->net, "shift");
    const float *data = buffer ? shoal_data(buffer) : NULL;
    CHECK(data && data[0] == (float)wanted);
}

static shoal_status step_recomputed(struct late *late, shoal_compiled *compiled)
{
    size_t n = 0;
    shoal_tensor *loss = NULL;
    shoal_tensor *const *parameters = shoal_module_parameters(late->net, &n);
    for (size_t i = 0; i < n; i++) {
        CHECK_OK(shoal_set_grad(parameters[i], NULL));
    }
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, late->self->rank + 1.0, SHOAL_F32);
    shoal_status status =
        compiled ? shoal_compiled_run(compiled, &x, 1, &loss, 1) : run_recomputed(late, &x, 1, &loss, 1);
    if (compiled) {
        shoal_tensor_unref(loss);
    }
    return status;
}

/* A net that is only called by shoal_recompute, which records nothing in its first run. */
TEST_RANKS(changes_are_followed_through_recompute, 2)
{
    for (size_t k = 0; k < 2 * N_CHANGES && !test_has_failed(); k++) {
        struct late late;
        shoal_compiled *compiled = NULL;
        REQUIRE(late_open(&late, self, false));
        CHECK_OK(shoal_module_add_buffer(late.net, "shift", late_tensor(5.0, false)));
        if (k % 2 == 1 && late_can_compile()) {
            CHECK_OK(shoal_compile(late.world, run_recomputed, &late, 1, NULL, &compiled));
        }
        if (changes[k / 2].change == thaw) {
            freeze(&late);
        }
        REQUIRE(late_wrap_ddp(&late, false));
        CHECK_OK(step_recomputed(&late, compiled));
        late_check_means(&late);
        changes[k / 2].change(&late);
        for (int i = 0; i < 2; i++) {
            shoal_tensor *shift = shoal_module_buffer(late.net, "shift");
            CHECK(shoal_copy_(shift, late_tensor(i + 10.0 * (self->rank + 1), false)) != NULL);
            CHECK_OK(step_recomputed(&late, compiled));
            late_check_means(&late);
            check_buffer(&late, i + 10.0);
        }
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "%s, compiled %d", changes[k / 2].name, compiled != NULL);
        }
        shoal_compiled_free(compiled);
        late_close(&late);
    }
}

/* Turns gradients off for a while, as a program does that computes something for a log. */
static shoal_status call_net_after_off(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                       shoal_tensor **outputs, size_t n_outputs)
{
    bool had = shoal_scope_has_grad(); /* false in the first run, true in the second */
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK_OK(shoal_scope_set_grad(had));
    return call_net(context, inputs, n_inputs, outputs, n_outputs);
}

static shoal_status call_child_after_off(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                         shoal_tensor **outputs, size_t n_outputs)
{
    struct late late = {.net = shoal_module_child_at(module, 0, NULL)};
    return call_net_after_off(&late, inputs, n_inputs, outputs, n_outputs);
}

static shoal_status turn_off(void *context, const shoal_forward_call *call)
{
    (void)context;
    (void)call;
    return shoal_scope_set_grad(false);
}

/* A module around the wrapped one. A forward function or a hook of it turns gradients off. */
static shoal_module *put_around(struct late *late, bool has_hook)
{
    shoal_module *outer = NULL;
    const shoal_module_definition definition = {.struct_size = sizeof definition,
                                                .type = "outer",
                                                .forward = has_hook ? late_forward : call_child_after_off};
    const shoal_module_hook_definition hook = {.struct_size = sizeof hook, .pre_forward = turn_off};
    CHECK_OK(shoal_module_create(&definition, &outer));
    CHECK_OK(shoal_module_add_child(outer, "net", late->net));
    if (has_hook) {
        CHECK_OK(shoal_module_add_hook(outer, &hook, NULL));
    }
    return outer;
}

/* Gradients are off in the first run. Turning them off and back to that does not make it one without gradients. */
TEST_RANKS(recompute_functions_may_turn_gradients_off_for_a_while, 2)
{
    for (int k = 0; k < 3 && !test_has_failed(); k++) {
        struct late late;
        REQUIRE(late_open(&late, self, false));
        CHECK_OK(shoal_module_add_buffer(late.net, "shift", late_tensor(5.0, false)));
        REQUIRE(late_wrap_ddp(&late, false));
        struct late around = late;
        around.net = k == 0 ? shoal_module_ref(late.net) : put_around(&late, k == 2);
        add_parameter(&late);
        for (int i = 0; i < 2; i++) {
            shoal_tensor *loss = NULL;
            shoal_tensor *shift = shoal_module_buffer(late.net, "shift");
            shoal_tensor *x = shoal_full((int64_t[]){1}, 1, self->rank + 1.0, SHOAL_F32);
            CHECK(shoal_copy_(shift, late_tensor(i + 10.0 * (self->rank + 1), false)) != NULL);
            CHECK_OK(shoal_recompute(k == 0 ? call_net_after_off : call_net, &around, NULL, &x, 1, &loss, 1));
            check_buffer(&late, i + 10.0);
            size_t n = 0;
            shoal_tensor *const *parameters = shoal_module_parameters(late.net, &n);
            for (size_t j = 0; j < n; j++) {
                CHECK_OK(shoal_set_grad(parameters[j], NULL));
            }
            CHECK_OK(shoal_backward(loss, NULL));
            late_check_means(&late);
        }
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "variant %d", k);
        }
        shoal_module_unref(around.net);
        late_close(&late);
    }
}

/* Where gradients are off around it, the net is only evaluated: ranks may do that by themselves. */
TEST_RANKS(recompute_without_gradients_sends_nothing, 2)
{
    struct late late;
    shoal_tensor *out = NULL;
    REQUIRE(late_open(&late, self, false));
    CHECK_OK(shoal_module_add_buffer(late.net, "shift", late_tensor(5.0, false)));
    REQUIRE(late_wrap_ddp(&late, false));
    if (self->rank == 0) {
        add_parameter(&late);
        CHECK_OK(shoal_scope_begin());
        CHECK_OK(shoal_scope_set_grad(false));
        shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
        CHECK_OK(shoal_recompute(call_net, &late, NULL, &x, 1, &out, 1));
        CHECK_OK(shoal_scope_end());
    }
    test_barrier(self);
    late_close(&late);
}

/* Clipping ------------------------------------------------------------------------------------------------- */

/* A new parameter that has a gradient of this rank. */
static void add_not_reduced(struct late *late)
{
    shoal_tensor *loss = NULL;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, late->self->rank + 1.0, SHOAL_F32);
    CHECK_OK(shoal_ddp_set_sync(late->net, false));
    add_parameter(late);
    loss = shoal_sum(shoal_mul(x, shoal_module_parameter(late->net, "layer.late")), NULL, 0, false);
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_OK(shoal_ddp_set_sync(late->net, true));
}

static void check_refused(struct late *late, const char *text)
{
    CHECK_STATUS(shoal_ddp_clip_grad_norm(late->net, 0.1, 2.0, false, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(text);
    CHECK_STATUS(shoal_ddp_clip_grad_value(late->net, 0.1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(text);
    late_check_gradient(shoal_module_parameter(late->net, "w"), late_mean(late));
}

TEST_RANKS(clipping_does_not_pass_over_new_parameters, 2)
{
    struct late late;
    double norm = 0.0;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    add_not_reduced(&late);
    check_refused(&late, "the gradient of parameter layer.late has not been reduced");
    CHECK_OK(late_step(&late));
    late_check_means(&late);
    CHECK_OK(shoal_ddp_clip_grad_norm(late.net, 1e9, 1.0, false, &norm));
    CHECK_DOUBLE(norm, 3 * LATE_COUNT * late_mean(&late));
    late_close(&late);
}

/* The others would clip what is whole there, and go on with other gradients. */
TEST_RANKS(clipping_is_refused_on_all_ranks, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        shoal_tensor *loss = NULL;
        REQUIRE(late_open(&late, self, false));
        REQUIRE(late_wrap_ddp(&late, false));
        CHECK_OK(late_step(&late));
        if (self->rank == 1 && k == 0) {
            add_not_reduced(&late);
        } else if (self->rank == 1) {
            shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
            CHECK_OK(shoal_ddp_set_sync(late.net, false));
            shoal_tensor *w = shoal_module_parameter(late.net, "layer.w");
            loss = shoal_sum(shoal_mul(x, w), NULL, 0, false);
            CHECK_OK(shoal_backward(loss, NULL));
            CHECK_OK(shoal_ddp_set_sync(late.net, true));
        }
        check_refused(&late, self->rank == 0 ? "another rank has a gradient that has not been reduced"
                             : k == 0        ? "the gradient of parameter layer.late has not been reduced"
                                             : "the gradient of parameter layer.w has not been reduced");
        test_barrier(self);
        late_close(&late);
    }
}

/* One rank alone ------------------------------------------------------------------------------------------- */

/* All ranks get an error, and none of them waits for the deadline. With a buffer ranks also meet on another lane. */
static void deviate(struct rank *self, size_t index, bool is_compiled, bool has_buffer)
{
    struct late late;
    REQUIRE(late_open(&late, self, is_compiled));
    if (changes[index].change == thaw) {
        freeze(&late);
    }
    if (has_buffer) {
        CHECK_OK(shoal_module_add_buffer(late.net, "first", late_tensor(1.0, false)));
    }
    if (late_wrap_ddp(&late, false) && CHECK_OK(late_step(&late)) && CHECK_OK(late_step(&late))) {
        if (self->rank == 1) {
            changes[index].change(&late);
        }
        (void)CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
        test_barrier(self); /* a rank that leaves would be another reason */
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "%s, compiled %d, with a buffer %d", changes[index].name, is_compiled,
                    has_buffer);
    }
    late_close(&late);
}

TEST_RANKS(a_change_of_one_rank_alone_is_an_error_on_all, 2)
{
    for (size_t i = 0; i < N_CHANGES; i++) {
        for (int k = 0; k < 4 && !test_has_failed(); k++) {
            deviate(self, i, k % 2 == 1, k / 2 == 1);
        }
    }
}

/* The text names what the rank that has changed its model has, on both ranks. */
static void check_text(struct rank *self, changer change, const char *other, const char *text)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    CHECK_OK(shoal_module_add_buffer(late.net, "first", late_tensor(1.0, false)));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    if (self->rank == 1) {
        change(&late);
    }
    CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(text);
    CHECK(self->rank == 0 || strstr(shoal_error_text(), other) != NULL);
    test_barrier(self);
    late_close(&late);
}

TEST_RANKS(texts_name_what_one_rank_has_changed, 2)
{
    check_text(self, replace, "has other parameters than", "changed parameters of net, new: layer.w");
    check_text(self, add_parameter, "has other parameters than",
               "changed parameters of net, new: layer.late");
    check_text(self, add_buffer, "has other buffers than", "changed buffers of net");
}

TEST_RANKS(ranks_that_replace_different_parameters, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    (void)late_add_layer(late.net, "third");
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_module_set_parameter(late.net, "third.w", late_tensor(3.0, true)));
    CHECK_OK(shoal_module_set_parameter(late.net, self->rank == 0 ? "w" : "layer.w", late_tensor(3.0, true)));
    CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(self->rank == 0 ? "replaced different parameters: w here, layer.w on rank 1"
                                     : "replaced different parameters: layer.w here, w on rank 0");
    test_barrier(self);
    late_close(&late);
}

/* Both ranks replace a parameter by one that there is already, but not by the same one. */
TEST_RANKS(ranks_that_tie_different_parameters, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    (void)late_add_layer(late.net, "third");
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_module_set_parameter(late.net, "third.w",
                                        shoal_module_parameter(late.net, self->rank == 0 ? "w" : "layer.w")));
    CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("differ in which parameters are tied");
    test_barrier(self);
    late_close(&late);
}

/* Ranks send buffers to each other by their order. */
TEST_RANKS(ranks_that_add_buffers_to_different_modules, 2)
{
    for (int k = 0; k < 2 && !test_has_failed(); k++) {
        struct late late;
        REQUIRE(late_open(&late, self, k == 1));
        CHECK_OK(shoal_module_add_buffer(late.net, "first", late_tensor(1.0, false)));
        REQUIRE(late_wrap_ddp(&late, false));
        CHECK_OK(late_step(&late));
        CHECK_OK(shoal_module_add_buffer(self->rank == 0 ? late.net : late.layer, "shift",
                                         late_tensor(1.0 + self->rank, false)));
        CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
        test_barrier(self);
        late_close(&late);
    }
}
