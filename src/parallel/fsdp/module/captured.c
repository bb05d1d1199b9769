/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/captured.h"

#include <string.h>

#include "autograd/leaf.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "op/box.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/factors.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/module/landed.h"
#include "parallel/fsdp/module/partial.h"
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
    const struct fsdp_unit_hooks *hooks = &unit->hooks;
    const struct setting settings[] = {
        {hooks->all_reduce != NULL, "shoal_fsdp_set_all_reduce_hook"},
        {hooks->all_gather.call != NULL, "shoal_fsdp_set_custom_all_gather"},
        {hooks->reduce_scatter.call != NULL, "shoal_fsdp_set_custom_reduce_scatter"},
        {fsdp_has_extension(unit), "shoal_fsdp_set_gather_extension"},
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
    bool waits = unit->grads.buffer && unit->grads.has_accumulated;
    return waits ? error_set(SHOAL_ERR_STATE,
                             "%s: gradients of earlier backward passes wait to be reduced "
                             "(shoal_fsdp_set_sync): call shoal_fsdp_synchronize before a capture",
                             unit->name)
                 : SHOAL_OK;
}

uint64_t fsdp_captured_state(const struct fsdp_wrapper *wrapper)
{
    const struct fsdp_unit *unit = wrapper->unit;
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
                          fsdp_has_extension(unit),
                          unit->grads.buffer && unit->grads.has_accumulated,
                          unit->grads.has_partial};
    const int words[] = {(int)config->reshard, (int)config->reshard_ranks};
    uint64_t state = hash_bytes(hash_bytes(1, flags, sizeof flags), words, sizeof words);
    for (size_t i = 0; i < wrapper->n_tensors; i++) { /* a graph does not look at leaves that have none */
        bool has_partial = leaf_gradient(wrapper->tensors[i].partial) != NULL;
        state = hash_bytes(state, &has_partial, sizeof has_partial);
    }
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
    return unit->wrapper->unit->mesh;
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
    shoal_status status =
        storage_create_borrowed(param->device, param->padded_count * dtype_bytes(param->dtype), param->shard,
                                release_shard, sharded, &storage);
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
    fsdp_landed_read_again(captured->landed);
    return SHOAL_OK;
}

/* Parameters may be frozen and thawed between steps. */
static shoal_status follow_freezing(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    bool is_required = shoal_requires_grad(tensors->sharded);
    bool is_pending = shoal_grad(tensors->full) || leaf_gradient(tensors->partial);
    if (is_pending && !is_required) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s was frozen while a gradient of it waits to be reduced", param->name);
    }
    return shoal_set_requires_grad(tensors->full, is_required);
}

/* What a collective is for, with the names of unit and parameter. Longer ones are cut. */
#define WHAT_BYTES 768

/* Adds the settings of the unit. Ranks must have the same, and some change the graph only where a step has several
   passes. */
static void add_settings(struct text *text, const struct fsdp_unit_config *config)
{
    text_add(text, "; reshard %s", fsdp_reshard_name(config->reshard));
    if (config->reshard == SHOAL_RESHARD_PARTLY) {
        text_add(text, " over %d ranks", config->reshard_ranks);
    }
    if (config->divide_factor > 0) {
        text_add(text, ", divide_factor %a", config->divide_factor);
    }
    const struct setting settings[] = {
        {!config->reshard_after_backward, "no reshard_after_backward"},
        {!config->unshard_in_backward, "no unshard_in_backward"},
        {config->sync && !config->all_reduce, "no all_reduce"},
        {config->force_sum, "force_sum"},
        {config->reduce_unused, "reduce_unused"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (settings[i].is_set) {
            text_add(text, ", %s", settings[i].name);
        }
    }
}

static void say_what(const struct fsdp_captured *unit, const struct fsdp_param *param, const char *verb,
                     char *what)
{
    const struct fsdp_wrapper *wrapper = unit->wrapper;
    struct text text = text_begin(what, WHAT_BYTES);
    text_add(&text, "%s of %.200s, parameter %.200s, of context %u", verb, wrapper->unit->name, param->name,
             (unsigned)wrapper->unit->root);
    add_settings(&text, &wrapper->unit->config);
}

/* What is gathered next comes after the tensors that the unit waits for. */
static shoal_tensor *put_after(const struct fsdp_captured *unit, shoal_tensor *value)
{
    return unit->n_after > 0
               ? BOX_ONE(control_deps, box_tensor(value), box_tensors(unit->after, unit->n_after))
               : value;
}

/* Gathers the parts that neighbours have kept, one after the other, of the parameter in one dimension. */
static shoal_status gather_kept(const struct fsdp_captured *unit, size_t index)
{
    struct fsdp_captured_param *captured = &unit->params[index];
    const struct fsdp_unit *engine = unit->wrapper->unit;
    const struct fsdp_param *param = &engine->params[index];
    shoal_tensor *value = captured->kept;
    TRY(follow_freezing(&unit->wrapper->tensors[index], param));
    char what[WHAT_BYTES];
    say_what(unit, param, "gather from neighbours", what);
    value = functional_all_gather(put_after(unit, value), 0, engine->gather.neighbours->windows.group, what);
    value = shoal_view(shoal_narrow(value, 0, 0, (int64_t)param->count), param->shape, param->n_dims);
    shoal_tensor_unref(captured->kept);
    captured->kept = NULL;
    return value ? unit->tracer->capture->rebind(unit->tracer, unit->wrapper->tensors[index].full, value)
                 : shoal_scope_error();
}

static shoal_status gather_param(const struct fsdp_captured *unit, size_t index)
{
    const struct fsdp_tensors *tensors = &unit->wrapper->tensors[index];
    const struct fsdp_param *param = &unit->wrapper->unit->params[index];
    const struct fsdp_mesh *mesh = mesh_of(unit);
    shoal_tensor *value = NULL;
    TRY(follow_freezing(tensors, param));
    TRY(find_shard(unit, index, &value));
    if (mesh->n_shards > 1) {
        value = put_after(unit, value);
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
        TRY(unit->is_kept ? gather_kept(unit, i) : gather_param(unit, i));
    }
    return SHOAL_OK;
}

/* Keeps this rank's part of a whole parameter, in memory of its own: kept_count elements and, where the parts of
   neighbours would differ in size, zeros. */
static shoal_status keep_param_part(const struct fsdp_captured *unit, size_t index)
{
    const struct fsdp_unit *engine = unit->wrapper->unit;
    const struct fsdp_param *param = &engine->params[index];
    shoal_tensor *full = unit->wrapper->tensors[index].full;
    const int64_t count[] = {(int64_t)param->count};
    size_t length =
        (size_t)mesh_of(unit)->n_shards * param->padded_count / (size_t)engine->config.reshard_ranks;
    const int64_t missing[] = {(int64_t)(length - param->kept_count)};
    shoal_tensor *part = shoal_narrow(shoal_view(shoal_detach(full), count, 1), 0, (int64_t)param->kept_begin,
                                      (int64_t)param->kept_count);
    if (missing[0] > 0) {
        shoal_tensor *pieces[] = {part, shoal_zeros(missing, 1, param->compute)};
        part = shoal_cat(pieces, 2, 0);
    } else {
        part = shoal_clone(part);
    }
    if (!part) {
        return shoal_scope_error();
    }
    unit->params[index].kept = shoal_tensor_ref(part);
    return SHOAL_OK;
}

static shoal_status keep_params(const struct fsdp_captured *unit)
{
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        TRY(keep_param_part(unit, i));
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

/* Parameters that stayed since an earlier pass of the step may have been frozen or thawed meanwhile. */
static shoal_status follow_all(const struct fsdp_captured *unit)
{
    const struct fsdp_wrapper *wrapper = unit->wrapper;
    for (size_t i = 0; wrapper->unit->step.phase == FSDP_FORWARD && i < wrapper->n_tensors; i++) {
        TRY(follow_freezing(&wrapper->tensors[i], &wrapper->unit->params[i]));
    }
    return SHOAL_OK;
}

/* The settings say that the backward pass does not read whole parameters. One that does is an error, as without a
   capture. */
static shoal_status release_params(const struct fsdp_captured *unit)
{
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        TRY(unit->tracer->capture->rebind(unit->tracer, unit->wrapper->tensors[i].full, NULL));
    }
    return SHOAL_OK;
}

static shoal_status gather(struct fsdp_unit *engine)
{
    struct fsdp_captured *unit = captured_of(engine);
    if (unit->is_gathered) {
        return follow_all(unit);
    }
    if (engine->step.phase == FSDP_PRE_BACKWARD && !engine->config.unshard_in_backward) {
        return release_params(unit);
    }
    TRY(begin_unit(unit));
    TRY(end_unit(unit, gather_params(unit)));
    unit->is_gathered = true;
    unit->is_kept = false;
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
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        shoal_tensor_unref(unit->params[i].kept);
        unit->params[i].kept = NULL;
    }
    unit->is_kept = false;
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
    struct fsdp_captured *unit = captured_of(engine);
    if (unit && unit->is_gathered && is_after_forward && engine->config.reshard == SHOAL_RESHARD_PARTLY) {
        TRY(begin_unit(unit));
        TRY(end_unit(unit, keep_params(unit)));
        unit->is_kept = true;
        unit->is_gathered = false;
        fsdp_wrapper_show_shards(unit->wrapper);
        return SHOAL_OK;
    }
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

/* How the gradients of a unit are reduced. */
static struct fsdp_factors factors_of(const struct fsdp_captured *unit)
{
    const struct fsdp_unit *engine = unit->wrapper->unit;
    const struct fsdp_mesh *mesh = mesh_of(unit);
    return fsdp_factors_choose(mesh->n_shards, mesh->n_replicas, engine->grads.dtype,
                               engine->config.divide_factor, engine->config.force_sum);
}

/* Reduces a gradient over the shards. Ranks compare whether the shard was frozen since the forward pass, and so does not
   get it. */
static shoal_tensor *scatter_gradient(const struct fsdp_captured *unit, size_t index, shoal_tensor *gradient,
                                      char what[WHAT_BYTES])
{
    const struct fsdp_unit *engine = unit->wrapper->unit;
    const struct fsdp_param *param = &engine->params[index];
    bool is_dropped = !shoal_requires_grad(unit->wrapper->tensors[index].sharded);
    const struct fsdp_mesh *mesh = mesh_of(unit);
    struct fsdp_factors factors = factors_of(unit);
    say_what(unit, param, is_dropped ? "gradient to be dropped" : "gradient", what);
    struct functional_reduce over_shards = {.op = factors.scatter, .factor = factors.premul};
    shoal_tensor *value = functional_cast(gradient, engine->grads.dtype);
    value = divide(pad(value, param, mesh), factors.before);
    return mesh->n_shards > 1 ? functional_reduce_scatter(value, over_shards, param->dim, mesh->reduce, what)
                              : value;
}

/* Reduces over the replicas. Returns this rank's part of the gradient, in the dtype of the shard. */
static shoal_tensor *reduce_replicas(const struct fsdp_captured *unit, size_t index, shoal_tensor *value,
                                     const char *what)
{
    const struct fsdp_param *param = &unit->wrapper->unit->params[index];
    const struct fsdp_mesh *mesh = mesh_of(unit);
    struct fsdp_factors factors = factors_of(unit);
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
static shoal_status land(const struct fsdp_captured *unit, size_t index, shoal_tensor *value)
{
    shoal_tensor *sharded = unit->wrapper->tensors[index].sharded;
    if (!leaf_of(sharded)) {
        return SHOAL_OK; /* frozen since */
    }
    TRY(unit->tracer->capture->note_leaf(unit->tracer, sharded));
    shoal_tensor *gradient = shoal_grad(sharded);
    if (!gradient) {
        TRY(shoal_set_grad(sharded, value));
    } else if (!shoal_add_(gradient, functional_cast(value, gradient->dtype))) {
        return shoal_scope_error();
    }
    return fsdp_landed_note(unit->tracer, unit->wrapper->unit, sharded, &unit->params[index].landed);
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

/* With reduce_unused other ranks may have a gradient where this one has none: zeros take part. */
static bool takes_part(const struct fsdp_captured *unit, size_t index)
{
    return unit->wrapper->unit->config.reduce_unused &&
           shoal_requires_grad(unit->wrapper->tensors[index].sharded);
}

/* Adds what earlier passes have reduced over the shards only. The engine cannot do that if other parameters have
   gradients now (partial.c), so a capture does not do it either. */
static shoal_status add_partial(const struct fsdp_captured *unit, size_t index, bool has_partial,
                                shoal_tensor **value)
{
    shoal_tensor *partial = leaf_gradient(unit->wrapper->tensors[index].partial);
    if (has_partial && !*value != !partial) {
        return error_set(SHOAL_ERR_STATE,
                         "%s: parameter %s has %s gradient, unlike in the previous backward pass, whose "
                         "gradients have not been reduced over the replicas yet",
                         unit->wrapper->unit->name, unit->wrapper->unit->params[index].name,
                         *value ? "a" : "no");
    }
    if (partial && *value) {
        *value = shoal_add(*value, partial);
        return *value ? SHOAL_OK : shoal_scope_error();
    }
    return SHOAL_OK;
}

/* Sets or removes what waits to be reduced over the replicas. */
static shoal_status set_partial(const struct fsdp_captured *unit, size_t index, shoal_tensor *value)
{
    TRY(fsdp_wrapper_need_partial(unit->wrapper, index));
    shoal_tensor *partial = unit->wrapper->tensors[index].partial;
    TRY(unit->tracer->capture->note_leaf(unit->tracer, partial));
    return shoal_set_grad(partial, value);
}

static shoal_status reduce_param(const struct fsdp_captured *unit, size_t index, bool has_partial)
{
    const struct fsdp_tensors *tensors = &unit->wrapper->tensors[index];
    const struct fsdp_unit *engine = unit->wrapper->unit;
    shoal_tensor *gradient;
    TRY(take_gradient(unit, index, &gradient));
    if (!gradient && takes_part(unit, index)) {
        const struct fsdp_param *param = &engine->params[index];
        gradient = shoal_zeros(param->shape, param->n_dims, engine->grads.dtype);
    }
    char what[WHAT_BYTES];
    shoal_tensor *value = gradient ? scatter_gradient(unit, index, gradient, what) : NULL;
    if (gradient && !value) {
        return shoal_scope_error();
    }
    TRY(add_partial(unit, index, has_partial, &value));
    if (!value) {
        return SHOAL_OK;
    }
    TRY(unit->tracer->capture->note_leaf(unit->tracer, tensors->full));
    if (mesh_of(unit)->replicate && !engine->config.all_reduce) {
        TRY(set_partial(unit, index, value));
        return shoal_set_grad(tensors->full, NULL);
    }
    value = reduce_replicas(unit, index, value, what);
    if (!value) {
        return shoal_scope_error();
    }
    TRY(has_partial ? set_partial(unit, index, NULL) : SHOAL_OK);
    TRY(land(unit, index, value)); /* before set_grad: `value` may be this gradient itself */
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

/* Whether a parameter of the unit takes part in a reduction now. */
static bool has_gradients(const struct fsdp_captured *unit)
{
    bool has_any = false;
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        has_any = has_any || leaf_gradient(unit->wrapper->tensors[i].full) || unit->params[i].aside ||
                  takes_part(unit, i);
    }
    return has_any;
}

static shoal_status reduce_params(const struct fsdp_captured *unit)
{
    bool syncs = unit->wrapper->unit->config.sync;
    bool has_partial = fsdp_wrapper_has_partial(unit->wrapper) && has_gradients(unit);
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < unit->wrapper->n_tensors; i++) {
        TRY(syncs ? reduce_param(unit, i, has_partial) : keep_param(unit, i));
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

/* Whether the unit owes a reduction after each run (is_owed of fsdp_unit_grads), as after the last pass of the step. */
struct owing {
    struct fsdp_unit *unit;
    bool is_owed;
};

/* The run has compared the state of the root, so the unit is still there. */
static shoal_status set_owed(void *context)
{
    const struct owing *owing = context;
    owing->unit->grads.is_owed = owing->is_owed;
    return SHOAL_OK;
}

static shoal_status need_owing(struct fsdp_captured *unit)
{
    if (unit->owing) {
        return SHOAL_OK;
    }
    struct owing *owing = mem_alloc_zeroed(1, sizeof *owing);
    if (!owing) {
        return SHOAL_ERR_NO_MEMORY;
    }
    owing->unit = unit->wrapper->unit;
    const struct op_run_end end = {.run = set_owed, .release = mem_free, .context = owing};
    shoal_status status = unit->tracer->capture->after_run(unit->tracer, &end);
    if (status != SHOAL_OK) {
        mem_free(owing);
        return status;
    }
    unit->owing = owing;
    return SHOAL_OK;
}

static shoal_status end_gradients(struct fsdp_unit *engine)
{
    struct fsdp_captured *unit = captured_of(engine);
    if (engine->config.reduce_unused || unit->was_owed) {
        TRY(need_owing(unit));
        unit->owing->is_owed = engine->config.reduce_unused && !engine->config.sync;
    }
    TRY(begin_unit(unit));
    return end_unit(unit, reduce_params(unit));
}

/* The marks between passes, by which ranks compare their order, are not part of a graph: ranks compare graphs. */
static shoal_status no_mark(struct fsdp_context *context)
{
    (void)context;
    return SHOAL_OK;
}

const struct fsdp_backend fsdp_capture_backend = {.gather = gather,
                                                  .ahead_in_forward = ahead_in_forward,
                                                  .ahead_in_backward = ahead_in_backward,
                                                  .reshard = reshard,
                                                  .give_up = give_up,
                                                  .begin_gradients = begin_gradients,
                                                  .end_gradients = end_gradients,
                                                  .begin_backward = no_mark,
                                                  .end_backward = no_mark,
                                                  .end_step = no_mark};
