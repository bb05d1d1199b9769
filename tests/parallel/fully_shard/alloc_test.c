/* SPDX-License-Identifier: MIT */
/*
 * Memory that runs out anywhere in a life of sharded modules with everything in it: gathered by hand before the root is
 * known, shards that are replaced, gradients that wait and to which others join. An error each time, and nothing lost.
 */
#include "fixtures/module_net.h"

/* x * w, and later x * w + v. */
static shoal_status inner_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_outputs;
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "w"));
    if (n_inputs > 1) {
        outputs[0] = shoal_add(outputs[0], shoal_module_parameter(module, "v"));
    }
    return SHOAL_OK;
}

static shoal_status outer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    return shoal_module_call(shoal_module_child(module, "inner"), inputs, n_inputs, outputs, n_outputs);
}

static shoal_status to_f64(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_to_dtype(entry->tensor, SHOAL_F64);
    return *tensor ? SHOAL_OK : shoal_scope_error();
}

static shoal_status add_parameter(shoal_module *module, const char *name)
{
    shoal_tensor *parameter = shoal_full((const int64_t[]){3}, 1, 2.0, SHOAL_F32);
    if (!parameter) {
        return shoal_scope_error();
    }
    shoal_status status = shoal_set_requires_grad(parameter, true);
    return status == SHOAL_OK ? shoal_module_add_parameter(module, name, parameter) : status;
}

static shoal_status create(const char *type, shoal_module_forward forward, shoal_module **module_out)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = type, .forward = forward};
    return shoal_module_create(&definition, module_out);
}

/* One input, or two: then v is used as well. */
static shoal_status pass(shoal_module *outer, size_t n_inputs)
{
    shoal_tensor *out;
    shoal_tensor *x = shoal_full((const int64_t[]){3}, 1, 1.0, SHOAL_F32);
    shoal_tensor *const inputs[] = {x, x};
    if (!x || shoal_module_call(outer, inputs, n_inputs, &out, 1) != SHOAL_OK) {
        return shoal_scope_error();
    }
    shoal_tensor *loss = shoal_sum(out, NULL, 0, false);
    return loss ? shoal_backward(loss, NULL) : shoal_scope_error();
}

#define THEN(status, call) ((status) = (status) == SHOAL_OK ? (call) : (status))

static shoal_status live(shoal_module *outer, shoal_module *inner, shoal_group *group)
{
    const shoal_fully_shard_options options = {
        .struct_size = sizeof options, .group = group, .param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32};
    shoal_status status = add_parameter(inner, "w");
    THEN(status, add_parameter(inner, "v"));
    THEN(status, add_parameter(outer, "rest"));
    THEN(status, shoal_module_add_child(outer, "inner", inner));
    THEN(status, shoal_fully_shard(inner, &options));
    THEN(status, shoal_fully_shard(outer, &options));
    THEN(status, shoal_fsdp_unshard(shoal_fully_shard_unit(inner, false)));
    THEN(status, shoal_fsdp_reshard(shoal_fully_shard_unit(inner, false)));
    THEN(status, shoal_module_apply(outer, SHOAL_WALK_PARAMETERS, to_f64, NULL));
    THEN(status, shoal_fsdp_set_sync(shoal_fully_shard_unit(outer, true), false));
    THEN(status, pass(outer, 1));
    THEN(status, pass(outer, 2));
    THEN(status, shoal_fsdp_set_sync(shoal_fully_shard_unit(outer, true), true));
    THEN(status, pass(outer, 2));
    if (status == SHOAL_OK) {
        const double *w = shoal_data(shoal_grad(shoal_module_parameter(inner, "w")));
        const double *v = shoal_data(shoal_grad(shoal_module_parameter(inner, "v")));
        CHECK_DOUBLE(w[0], 3.0);
        CHECK_DOUBLE(v[0], 2.0);
    }
    return status;
}

static shoal_status live_in_scope(void *context)
{
    shoal_module *outer = NULL;
    shoal_module *inner = NULL;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    THEN(status, create("outer", outer_forward, &outer));
    THEN(status, create("inner", inner_forward, &inner));
    THEN(status, live(outer, inner, context));
    shoal_status end = shoal_scope_end();
    shoal_module_unref(inner);
    shoal_module_unref(outer);
    return status == SHOAL_OK ? end : status;
}

TEST_RANKS(any_allocation_may_fail, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK(test_sweep_allocations(live_in_scope, shoal_world_group(world)) >= 1);
    CHECK_OK(shoal_world_close(world));
}

/* The same on two ranks, without failures: values. */
TEST_RANKS(the_whole_life, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    const shoal_fully_shard_options options = {.struct_size = sizeof options,
                                               .group = shoal_world_group(world),
                                               .param_dtype = SHOAL_BF16,
                                               .reduce_dtype = SHOAL_F32};
    shoal_module *outer;
    shoal_module *inner;
    REQUIRE(CHECK_OK(shoal_scope_begin()) && CHECK_OK(create("outer", outer_forward, &outer)) &&
            CHECK_OK(create("inner", inner_forward, &inner)));
    CHECK_OK(add_parameter(inner, "w"));
    CHECK_OK(add_parameter(inner, "v"));
    CHECK_OK(shoal_module_add_child(outer, "inner", inner));
    CHECK_OK(shoal_fully_shard(inner, &options));
    CHECK_OK(shoal_fully_shard(outer, &options));
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(inner, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(inner, false)));
    for (int round = 0; round < 3; round++) {
        for (size_t micro = 0; micro < 3; micro++) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(outer, true), micro == 2));
            CHECK_OK(pass(outer, micro > 0 ? 2 : 1));
        }
        static const char *const names[] = {"w", "v"};
        for (int i = 0; i < 2; i++) {
            shoal_tensor *parameter = shoal_module_parameter(inner, names[i]);
            const float *gradient = shoal_data(shoal_grad(parameter));
            for (int64_t k = 0; k < shoal_tensor_count(parameter); k++) {
                CHECK_DOUBLE((double)gradient[k], 3.0 - i);
            }
            CHECK_OK(shoal_set_grad(parameter, NULL));
        }
    }
    shoal_module_unref(inner);
    shoal_module_unref(outer);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
