/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/captured.h"

#include <stdio.h>
#include <string.h>

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "op/box.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/factors.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/module/watch.h"
#include "parallel/functional.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/dtype.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* What can be captured ----------------------------------------------------------------------------------- */

struct setting {
    bool is_set;
    const char *name;
};

static shoal_status check_settings(const struct fsdp_unit *unit)
{
    const struct fsdp_unit_config *config = &unit->config;
    const struct fsdp_unit_hooks *hooks = &unit->hooks;
    const struct setting settings[] = {
        {config->reshard == SHOAL_RESHARD_PARTLY, "SHOAL_RESHARD_PARTLY"},
        {!config->reshard_after_backward && !fsdp_unit_stays(unit),
         "shoal_fsdp_set_reshard_after_backward(false)"},
        {!config->unshard_in_backward, "shoal_fsdp_set_unshard_in_backward(false)"},
        {!config->all_reduce && config->sync && unit->mesh->replicate, "shoal_fsdp_set_all_reduce(false)"},
        {config->reduce_unused, "shoal_fsdp_set_reduce_unused(true)"},
        {hooks->all_reduce != NULL, "shoal_fsdp_set_all_reduce_hook"},
        {hooks->all_gather.call != NULL, "shoal_fsdp_set_custom_all_gather"},
        {hooks->reduce_scatter.call != NULL, "shoal_fsdp_set_custom_reduce_scatter"},
        {hooks->accumulated != NULL, "shoal_fsdp_set_accumulated_hook"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (settings[i].is_set) {
            return error_set(SHOAL_ERR_UNSUPPORTED, "%s: %s cannot be captured", unit->name,
                             settings[i].name);
        }
    }
    return SHOAL_OK;
}

/* Gradients that wait in the engine's own memory cannot be captured, because they are not tensors. */
static shoal_status check_pending(const struct fsdp_unit *unit)
{
    bool waits = (unit->grads.buffer && unit->grads.has_accumulated) || unit->grads.has_partial;
    return waits ? error_set(SHOAL_ERR_STATE,
                             "%s: gradients of earlier backward passes wait to be reduced (%s): call "
                             "shoal_fsdp_synchronize before a capture",
                             unit->name,
                             unit->grads.has_partial ? "shoal_fsdp_set_all_reduce" : "shoal_fsdp_set_sync")
                 : SHOAL_OK;
}

uint64_t fsdp_captured_state(const struct fsdp_unit *unit)
{
    const struct fsdp_unit_config *config = &unit->config;
    const struct fsdp_unit_hooks *hooks = &unit->hooks;
    const bool flags[] = {config->reshard_after_backward,
                          config->unshard_in_backward,
                          config->sync,
                          config->all_reduce,
                          config->force_sum,
                          config->reduce_unused,
                          hooks->all_reduce != NULL,
                          hooks->all_gather.call != NULL,
                          hooks->reduce_scatter.call != NULL,
                          hooks->accumulated != NULL,
                          unit->grads.buffer && unit->grads.has_accumulated,
                          unit->grads.has_partial};
    const int words[] = {(int)config->reshard, (int)config->reshard_ranks};
    uint64_t state = hash_bytes(hash_bytes(1, flags, sizeof flags), words, sizeof words);
    return hash_bytes(state, &config->divide_factor, sizeof config->divide_factor);
}

shoal_status fsdp_captured_check(const struct fsdp_captured *unit)
{
    TRY(check_settings(unit->wrapper->unit));
    return check_pending(unit->wrapper->unit);
}

/* Gathering ---------------------------------------------------------------------------------------------- */

static const struct fsdp_mesh *mesh_of(const struct fsdp_captured *unit)
{
    return &unit->wrapper->unit->context->mesh;
}

/* Whether shards differ in size. Only dimension 0 may be cut like this. */
static bool is_uneven(const struct fsdp_param *param, const struct fsdp_mesh *mesh)
{
    return param->chunk * mesh->n_shards != param->size;
}

static void release_shard(void *context, void *data)
{
    (void)data;
    shoal_tensor_unref(context);
}

/* Makes a tensor over the shard and its padding, which has the same size on every rank. It keeps a reference to the
   shard, which owns the memory. */
static shoal_status make_padded(const struct fsdp_tensors *tensors, const struct fsdp_param *param,
                                shoal_tensor **padded_out)
{
    struct storage *storage;
    struct layout layout = {.n_dims = param->n_dims};
    memcpy(layout.shape, param->shape, sizeof layout.shape);
    layout.shape[param->dim] = param->chunk;
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    shoal_tensor *sharded = shoal_tensor_ref(tensors->sharded);
    shoal_status status = storage_create_borrowed(param->padded_count * dtype_bytes(param->dtype),
                                                  param->shard, release_shard, sharded, &storage);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(sharded);
        return status;
    }
    return tensor_create(storage, param->dtype, &layout, padded_out);
}

static shoal_status need_padded(const struct fsdp_captured *unit, size_t index)
{
    struct fsdp_captured_param *captured = &unit->params[index];
    const struct fsdp_tensors *tensors = &unit->wrapper->tensors[index];
    const struct fsdp_param *param = &unit->wrapper->unit->params[index];
    if (!captured->padded) {
        TRY(make_padded(tensors, param, &captured->padded));
        captured->version = shoal_tensor_version(tensors->sharded);
        return unit->tracer->capture->add_input(unit->tracer, captured->padded, tensors->sharded,
                                                param->name);
    }
    return shoal_tensor_version(tensors->sharded) == captured->version
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED,
                           "%s: parameter %s is written and gathered again in one captured step, which is "
                           "supported only where all shards have the same size",
                           unit->wrapper->unit->name, param->name);
}

/* Finds what a parameter is gathered from: the padded tensor, if shards differ in size, or the shard itself. The shard
   becomes an input of the graph, under its name, when it is first used. */
static shoal_status find_shard(const struct fsdp_captured *unit, size_t index, shoal_tensor **shard_out)
{
    struct fsdp_captured_param *captured = &unit->params[index];
    *shard_out = unit->wrapper->tensors[index].sharded;
    if (is_uneven(&unit->wrapper->unit->params[index], mesh_of(unit))) {
        TRY(need_padded(unit, index));
        *shard_out = captured->padded;
    }
    captured->version = shoal_tensor_version(unit->wrapper->tensors[index].sharded);
    return SHOAL_OK;
}

/* Parameters may be frozen and thawed between steps. */
static shoal_status follow_freezing(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    bool is_required = shoal_requires_grad(tensors->sharded);
    if (shoal_grad(tensors->full) && !is_required) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s was frozen while a gradient of it waits to be reduced", param->name);
    }
    return shoal_set_requires_grad(tensors->full, is_required);
}

/* What a collective is for, with the names of unit and parameter. Longer ones are cut. */
#define WHAT_BYTES 512

static void say_what(const struct fsdp_captured *unit, const struct fsdp_param *param, const char *verb,
                     char *what)
{
    const struct fsdp_wrapper *wrapper = unit->wrapper;
    (void)snprintf(what, WHAT_BYTES, "%s of %.200s, parameter %.200s, of context %u", verb,
                   wrapper->unit->name, param->name, (unsigned)wrapper->unit->root);
}

static shoal_status gather_param(const struct fsdp_captured *unit, size_t index)
{
    const struct fsdp_tensors *tensors = &unit->wrapper->tensors[index];
    const struct fsdp_param *param = &unit->wrapper->unit->params[index];
    const struct fsdp_mesh *mesh = mesh_of(unit);
    shoal_tensor *value = NULL;
    TRY(follow_freezing(tensors, param));
    TRY(find_shard(unit, index, &value));
    if (unit->n_after > 0 && mesh->n_shards > 1) {
        value = BOX_ONE(control_deps, box_tensor(value), box_tensors(unit->after, unit->n_after));
    }
    value = functional_cast(value, param->compute);
    if (mesh->n_shards > 1) {
        char what[WHAT_BYTES];
        say_what(unit, param, "gather", what);
        value = functional_all_gather(value, param->dim, mesh->gather, what);
    }
    if (is_uneven(param, mesh)) {
        value = shoal_narrow(value, param->dim, 0, param->size);
    }
    return value ? unit->tracer->capture->rebind(unit->tracer, tensors->full, value) : shoal_scope_error();
}

static shoal_status gather_params(const struct fsdp_captured *unit)
{
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        TRY(gather_param(unit, i));
    }
    return SHOAL_OK;
}

/* Ops that are recorded between begin_unit and end_unit belong to the unit. */
static shoal_status begin_unit(const struct fsdp_captured *unit)
{
    TRY(shoal_scope_begin());
    shoal_status status = unit->tracer->capture->set_unit(unit->tracer, unit->wrapper->unit->name);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return shoal_scope_end();
    }
    return SHOAL_OK;
}

static shoal_status end_unit(const struct fsdp_captured *unit, shoal_status status)
{
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    status = shoal_scope_end();
    shoal_status reset = unit->tracer->capture->set_unit(unit->tracer, NULL); /* also after a failure */
    return status == SHOAL_OK ? reset : status;
}

/* NULL for a unit whose modules are gone. */
static struct fsdp_captured *captured_of(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return unit->watch ? wrapper->captured : NULL;
}

static shoal_status gather(struct fsdp_unit *engine)
{
    struct fsdp_captured *unit = captured_of(engine);
    if (!unit->is_gathered) {
        TRY(begin_unit(unit));
        TRY(end_unit(unit, gather_params(unit)));
        unit->is_gathered = true;
    }
    return SHOAL_OK;
}

/* Passes of the graph decide what is gathered ahead. */
static shoal_status ahead_in_forward(struct fsdp_unit *engine)
{
    (void)engine;
    return SHOAL_OK;
}

static shoal_status ahead_in_backward(struct fsdp_unit *engine, size_t place)
{
    const struct fsdp_captured *unit = captured_of(engine);
    (void)place;
    shoal_tensor_unref(unit->capture->begun);
    unit->capture->begun = shoal_tensor_ref(unit->gradient);
    return SHOAL_OK;
}

void fsdp_captured_give_up(struct fsdp_captured *unit)
{
    unit->is_gathered = false;
    fsdp_wrapper_show_shards(unit->wrapper);
}

/* Whole parameters that stay from step to step are gathered once in a captured step. */
static shoal_status give_up(struct fsdp_unit *engine, bool stays)
{
    struct fsdp_captured *unit = captured_of(engine);
    if (unit && !stays) {
        fsdp_captured_give_up(unit);
    }
    return SHOAL_OK;
}

static shoal_status reshard(struct fsdp_unit *engine, bool is_after_forward)
{
    return give_up(engine, is_after_forward && engine->config.reshard == SHOAL_RESHARD_NEVER);
}

bool fsdp_captured_has_changed(const struct fsdp_captured *unit)
{
    bool has_changed = false;
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        uint64_t version = shoal_tensor_version(unit->wrapper->tensors[i].sharded);
        has_changed = has_changed || version != unit->params[i].version;
    }
    return has_changed;
}

/* Reducing ----------------------------------------------------------------------------------------------- */

/* Divides half precision in f32, as the engine does (engine/elements.c). */
static shoal_tensor *divide(shoal_tensor *value, double divisor)
{
    if (!value || divisor == 1.0) {
        return value;
    }
    shoal_dtype dtype = value->dtype;
    bool is_half = dtype == SHOAL_F16 || dtype == SHOAL_BF16;
    value = shoal_div_scalar(is_half ? functional_cast(value, SHOAL_F32) : value, divisor);
    return functional_cast(value, dtype);
}

/* Appends rows of zeros, so that all ranks get the same number of rows. */
static shoal_tensor *pad(shoal_tensor *value, const struct fsdp_param *param, const struct fsdp_mesh *mesh)
{
    int64_t shape[SHOAL_MAX_DIMS];
    if (!value || !is_uneven(param, mesh)) {
        return value;
    }
    memcpy(shape, param->shape, sizeof shape);
    shape[param->dim] = param->chunk * mesh->n_shards - param->size;
    shoal_tensor *rows[] = {value, shoal_zeros(shape, param->n_dims, value->dtype)};
    return shoal_cat(rows, 2, param->dim);
}

/* Reduces a gradient over shards and replicas. Returns this rank's part of it, in the dtype of the shard. Ranks compare
   whether the shard was frozen since the forward pass, and so does not get it. */
static shoal_tensor *reduce_gradient(const struct fsdp_captured *unit, size_t index, shoal_tensor *gradient)
{
    const struct fsdp_unit *engine = unit->wrapper->unit;
    const struct fsdp_param *param = &engine->params[index];
    bool is_dropped = !shoal_requires_grad(unit->wrapper->tensors[index].sharded);
    const struct fsdp_mesh *mesh = mesh_of(unit);
    struct fsdp_factors factors = fsdp_factors_choose(mesh->n_shards, mesh->n_replicas, engine->grads.dtype,
                                                      engine->config.divide_factor, engine->config.force_sum);
    char what[WHAT_BYTES];
    say_what(unit, param, is_dropped ? "gradient to be dropped" : "gradient", what);
    struct functional_reduce over_shards = {.op = factors.scatter, .factor = factors.premul};
    shoal_tensor *value = functional_cast(gradient, engine->grads.dtype);
    value = divide(pad(value, param, mesh), factors.before);
    if (mesh->n_shards > 1) {
        value = functional_reduce_scatter(value, over_shards, param->dim, mesh->reduce, what);
    }
    if (mesh->replicate) {
        value = functional_all_reduce(value, (struct functional_reduce){.op = factors.all_reduce},
                                      mesh->replicate, what);
    }
    value = functional_cast(divide(value, factors.after), param->dtype);
    if (!is_uneven(param, mesh)) {
        return value;
    }
    /* The clone has memory of its own on every rank, like the gradient of an eager step. Compiled steps choose a
       variant by that. */
    return shoal_clone(param->length < param->chunk ? shoal_narrow(value, param->dim, 0, param->length)
                                                    : value);
}

/* Adds a reduced gradient to the gradient of the shard. */
static shoal_status land(const struct fsdp_captured *unit, shoal_tensor *sharded, shoal_tensor *value)
{
    struct leaf *leaf = leaf_of(sharded);
    if (!leaf) {
        return SHOAL_OK; /* frozen since */
    }
    TRY(unit->tracer->capture->note_leaf(unit->tracer, sharded));
    shoal_tensor *gradient = shoal_grad(sharded);
    if (!gradient) {
        TRY(shoal_set_grad(sharded, value));
    } else if (!shoal_add_(gradient, functional_cast(value, gradient->dtype))) {
        return shoal_scope_error();
    }
    return hook_list_run_leaf(&leaf->accumulated_hooks, sharded);
}

/* Gradients that earlier passes left in the dtype of the reduction are set aside, and added when all gradients of this
   pass have arrived. The engine adds in the same order, so rounding is the same. */
static shoal_status set_aside(const struct fsdp_captured *unit)
{
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        shoal_tensor *full = unit->wrapper->tensors[i].full;
        shoal_tensor *gradient = shoal_grad(full);
        if (gradient && gradient->dtype != unit->wrapper->unit->params[i].compute && !unit->params[i].aside) {
            TRY(unit->tracer->capture->note_leaf(unit->tracer, full));
            unit->params[i].aside = shoal_tensor_ref(gradient);
            TRY(shoal_set_grad(full, NULL));
        }
    }
    return SHOAL_OK;
}

/* Gives the sum of the gradients of this backward pass and of earlier ones; NULL if there are none. */
static shoal_status take_gradient(const struct fsdp_captured *unit, size_t index, shoal_tensor **gradient_out)
{
    struct fsdp_captured_param *param = &unit->params[index];
    shoal_tensor *gradient = shoal_grad(unit->wrapper->tensors[index].full);
    shoal_tensor *aside = param->aside;
    *gradient_out = gradient;
    if (!aside) {
        return SHOAL_OK;
    }
    gradient = gradient ? shoal_add(aside, functional_cast(gradient, aside->dtype)) : shoal_detach(aside);
    shoal_tensor_unref(aside);
    param->aside = NULL;
    *gradient_out = gradient;
    return gradient ? SHOAL_OK : shoal_scope_error();
}

static shoal_status reduce_param(const struct fsdp_captured *unit, size_t index)
{
    const struct fsdp_tensors *tensors = &unit->wrapper->tensors[index];
    shoal_tensor *gradient;
    TRY(take_gradient(unit, index, &gradient));
    if (!gradient) {
        return SHOAL_OK;
    }
    shoal_tensor *value = reduce_gradient(unit, index, gradient);
    if (!value) {
        return shoal_scope_error();
    }
    TRY(unit->tracer->capture->note_leaf(unit->tracer, tensors->full));
    TRY(land(unit, tensors->sharded, value)); /* before set_grad: `value` may be this gradient itself */
    return shoal_set_grad(tensors->full, NULL);
}

/* Keeps the gradient for a later reduction, in the dtype of the reduction, so that no digits are lost. */
static shoal_status keep_param(const struct fsdp_captured *unit, size_t index)
{
    shoal_tensor *full = unit->wrapper->tensors[index].full;
    shoal_dtype dtype = unit->wrapper->unit->grads.dtype;
    shoal_tensor *gradient;
    TRY(take_gradient(unit, index, &gradient));
    if (!gradient || (gradient == shoal_grad(full) && gradient->dtype == dtype)) {
        return SHOAL_OK;
    }
    gradient = functional_cast(gradient, dtype);
    if (!gradient) {
        return shoal_scope_error();
    }
    TRY(unit->tracer->capture->note_leaf(unit->tracer, full));
    return shoal_set_grad(full, gradient);
}

static shoal_status reduce_params(const struct fsdp_captured *unit)
{
    bool syncs = unit->wrapper->unit->config.sync;
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        TRY(syncs ? reduce_param(unit, i) : keep_param(unit, i));
    }
    return SHOAL_OK;
}

static shoal_status begin_gradients(struct fsdp_unit *engine)
{
    struct fsdp_captured *unit = captured_of(engine);
    unit->after = unit->capture->begun ? &unit->capture->begun : &unit->gradient;
    unit->n_after = 1;
    return set_aside(unit);
}

static shoal_status end_gradients(struct fsdp_unit *engine)
{
    const struct fsdp_captured *unit = captured_of(engine);
    TRY(begin_unit(unit));
    return end_unit(unit, reduce_params(unit));
}

/* The marks between passes, by which ranks compare their order, are not part of a graph: ranks compare graphs. */
static shoal_status no_mark(struct fsdp_context *context)
{
    (void)context;
    return SHOAL_OK;
}

/* Ranks compare graphs, so they do not differ in which units have a backward pass. */
const struct fsdp_backend fsdp_capture_backend = {.reduces_unused = false,
                                                  .gather = gather,
                                                  .ahead_in_forward = ahead_in_forward,
                                                  .ahead_in_backward = ahead_in_backward,
                                                  .reshard = reshard,
                                                  .give_up = give_up,
                                                  .begin_gradients = begin_gradients,
                                                  .end_gradients = end_gradients,
                                                  .begin_backward = no_mark,
                                                  .end_backward = no_mark,
                                                  .end_step = no_mark};
