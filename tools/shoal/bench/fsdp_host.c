/* SPDX-License-Identifier: MIT */
/*
 * Measures what a unit costs on the host: a stack of tiny linear layers that are fully sharded (shoal/fully_shard.h),
 * and the same stack without sharding. Their forward and backward passes are timed in turn, and their gradients
 * compared. All ranks have the same input, so the average of their gradients is the gradient of one rank.
 */
#include "bench/fsdp.h"
#include "bench/ranks.h"

#include "base/clock.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/world.h"
#include "shoal_nn/nn.h"

#include <stdio.h>
#include <string.h>

enum {
    SIZE = 8,
    N_WARMUPS = 20
};

enum which {
    SHARDED,
    PLAIN,
    N_STACKS
};

struct host {
    const struct bench_fsdp *bench;
    struct measure_page *page;
    int rank;
    shoal_group *group;
    shoal_module *stacks[N_STACKS];
    shoal_tensor *input;
    uint64_t n_wrong;
};

static bool check(const struct host *host, shoal_status status, const char *what)
{
    return bench_ranks_check("fsdp", host->rank, status, what);
}

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status forward_layer(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_nn_linear(inputs[0], shoal_module_parameter_at(module, 0, NULL), NULL);
    return SHOAL_OK;
}

static shoal_status forward_stack(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *values = inputs[0];
    for (size_t i = 0; i < BENCH_FSDP_HOST_UNITS; i++) {
        values = shoal_module_call_one(shoal_module_child_at(module, i, NULL), values);
    }
    outputs[0] = values;
    return SHOAL_OK;
}

/* Fully sharded with options; the caller's. */
static shoal_status add_layer(shoal_module *stack, int number, const shoal_fully_shard_options *options)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "layer", .forward = forward_layer, .n_inputs = 1};
    shoal_module *layer;
    char name[16];
    shoal_tensor *weight = shoal_full((int64_t[]){SIZE, SIZE}, 2, 0.1 + 0.001 * number, SHOAL_F32);
    shoal_status status = weight ? shoal_set_requires_grad(weight, true) : shoal_scope_error();
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_module_create(&definition, &layer);
    if (status != SHOAL_OK) {
        return status;
    }
    (void)snprintf(name, sizeof(name), "%d", number);
    status = shoal_module_add_parameter(layer, "weight", weight);
    if (status == SHOAL_OK && options) {
        status = shoal_fully_shard(layer, options);
    }
    if (status == SHOAL_OK) {
        status = shoal_module_add_child(stack, name, layer);
    }
    shoal_module_unref(layer);
    return status;
}

static shoal_status make_stack(struct host *host, enum which which)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "stack", .forward = forward_stack, .n_inputs = 1};
    const shoal_fully_shard_options options = {.struct_size = sizeof(options), .group = host->group};
    shoal_status status = shoal_module_create(&definition, &host->stacks[which]);
    for (int i = 0; status == SHOAL_OK && i < BENCH_FSDP_HOST_UNITS; i++) {
        status = add_layer(host->stacks[which], i, which == SHARDED ? &options : NULL);
    }
    return status == SHOAL_OK && which == SHARDED ? shoal_fully_shard(host->stacks[which], &options) : status;
}

/* Measuring ---------------------------------------------------------------------------------------------- */

static shoal_status step(struct host *host, enum which which)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *values = shoal_module_call_one(host->stacks[which], host->input);
    status = values ? shoal_backward(shoal_sum(values, NULL, 0, false), NULL) : shoal_scope_error();
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static bool measure(struct host *host, enum which which, int round)
{
    if (!measure_page_meet(host->page, host->rank)) {
        return false;
    }
    int64_t begin_ns = clock_now_ns();
    shoal_status status = step(host, which);
    int64_t time_ns = clock_now_ns() - begin_ns;
    if (round >= 0) {
        size_t at = (size_t)which * (size_t)host->bench->n_host_rounds + (size_t)round;
        measure_page_times(host->page, host->rank)[at] = time_ns;
    }
    return check(host, status, "forward and backward of tiny layers");
}

/* Shards have the rows of the whole that are theirs. Gradients are gone afterwards. */
static bool compare_layer(struct host *host, size_t number)
{
    char path[32];
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    (void)snprintf(path, sizeof(path), "%zu.weight", number);
    if (!check(host, shoal_fsdp_get_layout(shoal_fully_shard_param(host->stacks[SHARDED], path), &layout),
               "a shard")) {
        return false;
    }
    shoal_tensor *shard = shoal_module_parameter(host->stacks[SHARDED], path);
    shoal_tensor *whole = shoal_module_parameter(host->stacks[PLAIN], path);
    const float *mine = shoal_data(shoal_grad(shard));
    const float *wanted = shoal_data(shoal_grad(whole));
    if (!mine || !wanted) {
        return check(host, SHOAL_ERR_STATE, "a gradient");
    }
    host->n_wrong +=
        memcmp(mine, wanted + layout.offset * SIZE, (size_t)layout.length * SIZE * sizeof(float)) != 0;
    return check(host, shoal_set_grad(shard, NULL), "a gradient") &&
           check(host, shoal_set_grad(whole, NULL), "a gradient");
}

static bool compare(struct host *host)
{
    bool is_good = true;
    for (size_t i = 0; is_good && i < BENCH_FSDP_HOST_UNITS; i++) {
        is_good = compare_layer(host, i);
    }
    return is_good;
}

static bool run_rounds(struct host *host)
{
    bool is_good = true;
    for (int round = -N_WARMUPS; is_good && round < host->bench->n_host_rounds; round++) {
        is_good = measure(host, SHARDED, round) && measure(host, PLAIN, round) && compare(host);
    }
    *measure_page_wrong(host->page, host->rank) = host->n_wrong;
    return is_good;
}

static bool run_in_scope(struct host *host)
{
    if (!check(host, shoal_nn_set_threads(1), "threads of the BLAS") ||
        !check(host, shoal_nn_init(), "loading the BLAS") ||
        !check(host, shoal_scope_begin(), "opening a scope")) {
        return false;
    }
    host->input = shoal_full((int64_t[]){1, SIZE}, 2, 0.5, SHOAL_F32);
    bool is_good = check(host, make_stack(host, SHARDED), "a fully sharded module") &&
                   check(host, make_stack(host, PLAIN), "a module") && run_rounds(host);
    shoal_module_unref(host->stacks[SHARDED]);
    shoal_module_unref(host->stacks[PLAIN]);
    return check(host, shoal_scope_end(), "closing the scope") && is_good;
}

static bool run_in_world(struct host *host)
{
    shoal_world *world;
    if (!check(host, bench_ranks_open_world(host->bench->ranks, host->rank, &world), "opening the world")) {
        return false;
    }
    host->group = shoal_world_group(world);
    return bench_ranks_close_world(host->bench->ranks, host->rank, world, run_in_scope(host));
}

bool bench_fsdp_run_host(const void *context, struct measure_page *page, int rank)
{
    struct host host = {.bench = context, .page = page, .rank = rank};
    return run_in_world(&host);
}
