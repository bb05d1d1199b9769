/* SPDX-License-Identifier: MIT */
/*
 * What outsiders broke: ranks whose compiled steps have collectives that look alike but are for other parameters, inner
 * modules that are called by themselves after a change, and steps that change the model while they are captured.
 */
#include "fixtures/late_net.h"

/* Collectives that look alike ----------------------------------------------------------------------------- */

/* Calls the children "a" and "b" in the order of the rank. */
static shoal_status outer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    const struct late *late = shoal_module_context(module);
    const char *const names[2][2] = {{"a", "b"}, {"b", "a"}};
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *sum = NULL;
    for (int i = 0; i < 2; i++) {
        shoal_module *child = shoal_module_child(module, names[late->self->rank % 2][i]);
        shoal_tensor *part = shoal_module_call_one(child, inputs[0]);
        sum = sum ? shoal_add(sum, part) : part;
    }
    outputs[0] = sum;
    return SHOAL_OK;
}

static shoal_status run_outer(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_call_one(context, inputs[0]);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

static void refuse_other_order(struct rank *self, bool is_sharded)
{
    struct late late;
    REQUIRE(late_open(&late, self, true));
    shoal_module *outer = NULL;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "outer", .forward = outer_forward, .context = &late};
    REQUIRE_OK(shoal_module_create(&definition, &outer));
    shoal_module *children[] = {late_add_layer(outer, "a"), late_add_layer(outer, "b")};
    const shoal_fully_shard_options sharding = {.struct_size = sizeof sharding,
                                                .group = shoal_world_group(late.world)};
    const shoal_ddp_options options = {.struct_size = sizeof options, .group = shoal_world_group(late.world)};
    for (int i = 0; i < 2 && is_sharded; i++) {
        CHECK_OK(shoal_fully_shard(children[i], &sharding));
    }
    CHECK_OK(is_sharded ? shoal_fully_shard(outer, &sharding) : shoal_ddp(outer, &options));
    REQUIRE_OK(shoal_compile(late.world, run_outer, outer, 1, NULL, &compiled));
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
    CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("a");
    CHECK_ERROR_TEXT("b");
    CHECK(!shoal_grad(shoal_module_parameter(children[0], "w")));
    shoal_compiled_free(compiled);
    shoal_module_unref(outer);
    late_close(&late);
}

TEST_RANKS(gradients_in_another_order_are_refused, 2)
{
    refuse_other_order(self, false);
}

TEST_RANKS(units_in_another_order_are_refused, 2)
{
    refuse_other_order(self, true);
}

TEST_RANKS(other_parameters_that_are_frozen_are_refused, 2)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        struct late late;
        REQUIRE(late_open(&late, self, true));
        CHECK_OK(shoal_module_add_parameter(late.net, "u", late_tensor(2.0, true)));
        REQUIRE(sharded ? late_shard(&late, SHOAL_SHARDED_PARAMETERS) : late_wrap_ddp(&late, true));
        CHECK_OK(
            shoal_set_requires_grad(shoal_module_parameter(late.net, self->rank == 0 ? "w" : "u"), false));
        CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
        late_close(&late);
    }
}

/* Inner modules ------------------------------------------------------------------------------------------- */

static shoal_status call_inner(struct late *late)
{
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, late->self->rank + 1.0, SHOAL_F32);
    shoal_tensor *loss = shoal_module_call_one(late->layer, x);
    return loss ? shoal_backward(loss, NULL) : shoal_scope_error();
}

TEST_RANKS(an_inner_module_that_is_called_alone_follows, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, true));
    CHECK_OK(late_step(&late));
    shoal_tensor *replaced = late_tensor(3.0, true);
    CHECK_OK(shoal_module_set_parameter(late.layer, "w", replaced));
    CHECK_OK(call_inner(&late));
    late_check_gradient(replaced, late_mean(&late));
    late_close(&late);
}

/* A tensor that is frozen and thawed has a new leaf, which may be where the old one was. */
static shoal_status do_nothing(void *context, shoal_tensor *leaf)
{
    (void)context;
    (void)leaf;
    return SHOAL_OK;
}

TEST_RANKS(a_thawed_parameter_with_a_hook_is_averaged, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    shoal_tensor *parameters[] = {shoal_module_parameter(late.net, "w"),
                                  shoal_module_parameter(late.layer, "w")};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_set_requires_grad(parameters[i], false));
        CHECK_OK(shoal_set_requires_grad(parameters[i], true));
        CHECK_OK(shoal_on_accumulated(parameters[i], do_nothing, NULL, NULL));
    }
    CHECK_OK(late_step(&late));
    late_check_means(&late);
    late_close(&late);
}

TEST_RANKS(a_parameter_that_became_a_result_is_refused, 1)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    shoal_tensor *frozen = late_tensor(2.0, false);
    CHECK_OK(shoal_module_add_parameter(late.net, "b", frozen));
    CHECK(shoal_mul_(frozen, late_tensor(2.0, true)) != NULL);
    const shoal_ddp_options options = {.struct_size = sizeof options, .group = shoal_world_group(late.world)};
    CHECK_STATUS(shoal_ddp(late.net, &options), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("b is the result");
    late_close(&late);
}

/* One rank changes its module, both get an error, and then the other rank does the same: both go on. */
TEST_RANKS(ranks_that_differed_go_on_together, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(late_step(&late));
    if (self->rank == 0) {
        CHECK_OK(shoal_module_set_parameter(late.net, "w", late_tensor(4.0, true)));
    }
    CHECK_STATUS(late_step(&late), SHOAL_ERR_MISMATCH);
    if (self->rank == 1) {
        CHECK_OK(shoal_module_set_parameter(late.net, "w", late_tensor(4.0, true)));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(late_step(&late));
        late_check_means(&late);
    }
    late_close(&late);
}

TEST_RANKS(a_reset_drops_gradients_of_late_parameters, 2)
{
    struct late late;
    REQUIRE(late_open(&late, self, false));
    REQUIRE(late_wrap_ddp(&late, false));
    CHECK_OK(shoal_ddp_set_sync(late.net, false));
    shoal_tensor *added = late_tensor(1.0, true);
    CHECK_OK(shoal_module_add_parameter(late.layer, "late", added));
    CHECK_OK(late_step(&late));
    CHECK(shoal_grad(added));
    CHECK_OK(shoal_ddp_reset(late.net));
    CHECK(!shoal_grad(added));
    late_close(&late);
}

/* Changes in a captured step ------------------------------------------------------------------------------ */

struct changing {
    struct late late;
    int what;
    shoal_module_hook *hook;
    shoal_hook *gradient_hook;
};

static shoal_tensor *pass_on(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    return NULL;
}

static shoal_status keep_quiet(void *context, const shoal_forward_call *call)
{
    (void)context;
    (void)call;
    return SHOAL_OK;
}

static shoal_status change(struct changing *changing)
{
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .pre_forward = keep_quiet};
    struct late *late = &changing->late;
    switch (changing->what) {
    case 0:
        return shoal_module_add_buffer(late->net, "late", late_tensor(1.0, false));
    case 1:
        return shoal_module_add_child(late->net, "late", late->layer);
    case 2:
        return shoal_module_add_hook(late->net, &definition, NULL);
    case 3:
        return shoal_on_gradient(shoal_module_parameter(late->net, "w"), pass_on, NULL, NULL);
    case 4:
        shoal_module_hook_remove(changing->hook);
        changing->hook = NULL;
        return SHOAL_OK;
    default:
        shoal_hook_remove(changing->gradient_hook);
        changing->gradient_hook = NULL;
        return SHOAL_OK;
    }
}

static shoal_status run_changing(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    struct changing *changing = context;
    shoal_status status = change(changing);
    return status == SHOAL_OK ? late_run(&changing->late, inputs, n_inputs, outputs, n_outputs) : status;
}

TEST_RANKS(steps_that_change_the_model_are_refused, 1)
{
    for (int what = 0; what < 6; what++) {
        struct changing changing = {.what = what};
        const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                         .pre_forward = keep_quiet};
        shoal_compiled *compiled = NULL;
        shoal_tensor *loss = NULL;
        REQUIRE(late_open(&changing.late, self, true));
        shoal_module *net = changing.late.net;
        CHECK_OK(shoal_module_add_hook(net, &definition, &changing.hook));
        CHECK_OK(shoal_on_gradient(shoal_module_parameter(net, "w"), pass_on, NULL, &changing.gradient_hook));
        REQUIRE_OK(shoal_compile(changing.late.world, run_changing, &changing, 1, NULL, &compiled));
        shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
        if (!CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_STATE)) {
            test_failed(__FILE__, __LINE__, "change %d", what);
        }
        CHECK_ERROR_TEXT("captured step");
        shoal_compiled_free(compiled);
        shoal_module_hook_remove(changing.hook);
        shoal_hook_remove(changing.gradient_hook);
        late_close(&changing.late);
    }
}
