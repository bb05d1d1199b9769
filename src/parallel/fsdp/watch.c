/* SPDX-License-Identifier: MIT */
/* Tensors and gradients of a unit that belongs to modules. */
#include "parallel/fsdp/watch.h"

#include <string.h>

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/operand.h"
#include "parallel/fsdp/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/dtype.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Taking turns ------------------------------------------------------------------------------------------- */

static shoal_status put_in_places(const struct fsdp_tensors *tensors, shoal_tensor *tensor)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        TRY(shoal_module_set_parameter(tensors->places[i].module, tensors->places[i].name, tensor));
    }
    return SHOAL_OK;
}

/* Somebody may have put another tensor there, which nobody would look at any more. */
static shoal_status check_in_place(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    const struct fsdp_place *place = &tensors->places[0];
    if (shoal_module_parameter(place->module, place->name) == tensors->sharded) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s was replaced after its module was sharded: write its values, or load them",
                     param->name);
}

/* A tensor that is frozen loses its gradient, which an earlier backward may have left there to be reduced. */
static shoal_status check_frozen(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    if (!shoal_grad(tensors->full) || shoal_requires_grad(tensors->sharded)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s was frozen while a gradient of it waits to be reduced: reduce first "
                     "(fully_shard_set_sync, fully_shard_synchronize), or give it up (fully_shard_zero_grad)",
                     param->name);
}

/* Writes to shards may still be on their way. */
static shoal_status before_gather(struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(check_frozen(&wrapper->tensors[i], &unit->params[i]));
    }
    for (size_t i = 0; unit->state == FSDP_SHARDED && i < wrapper->n_tensors; i++) {
        TRY(tensor_wait_readable(wrapper->tensors[i].sharded));
    }
    return SHOAL_OK;
}

static shoal_status show_full(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(check_in_place(&wrapper->tensors[i], &unit->params[i]));
        TRY(check_frozen(&wrapper->tensors[i], &unit->params[i])); /* since the gather began */
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        const struct fsdp_param *param = &unit->params[i];
        void *data = (void *)(uintptr_t)fsdp_unit_param(unit, param); /* forward functions only read it */
        TRY(storage_rebind(tensors->full->storage, data, fsdp_keep_gathered, NULL));
        /* Parameters may be frozen and thawed between steps. */
        TRY(shoal_set_requires_grad(tensors->full, shoal_requires_grad(tensors->sharded)));
        TRY(put_in_places(tensors, tensors->full));
    }
    wrapper->shows_full = true;
    return SHOAL_OK;
}

static void hide_full(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_status status = put_in_places(&wrapper->tensors[i], wrapper->tensors[i].sharded);
        if (status == SHOAL_OK) {
            status = storage_release(wrapper->tensors[i].full->storage);
        }
        (void)status; /* a tensor of the same kind fits wherever one was; only an export keeps the memory */
    }
    wrapper->shows_full = false;
}

/* Gradients ---------------------------------------------------------------------------------------------- */

static bool has_kept(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    bool has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        has_any = has_any || shoal_grad(wrapper->tensors[i].full);
    }
    return has_any;
}

static bool is_kept(const struct fsdp_unit *unit, const shoal_tensor *grad)
{
    return !unit->reduces && unit->reduce_dtype == grad->dtype && !unit->buffer;
}

static void move_blocks(const struct fsdp_unit *unit, const struct fsdp_buffer *from, const size_t *offsets)
{
    size_t n_shards = (size_t)unit->context->mesh.n_shards;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced && offsets[i] != SIZE_MAX) {
            memcpy(unit->buffer->data + param->reduce_offset, from->data + offsets[i],
                   n_shards * param->padded_count * dtype_bytes(unit->reduce_dtype));
        }
    }
}

/* A parameter that had no gradient when the unit began to accumulate: a buffer with room for it, to which the others
   move. After a failure the step is lost, and with it whatever is where. */
static shoal_status join_buffer(struct fsdp_unit *unit, size_t joining)
{
    struct fsdp_buffer *old = unit->buffer;
    size_t *offsets = mem_alloc(unit->n_params * sizeof *offsets);
    if (!offsets) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        offsets[i] = unit->params[i].is_reduced ? unit->params[i].reduce_offset : SIZE_MAX;
    }
    bool has_accumulated = unit->has_accumulated;
    unit->params[joining].is_reduced = true;
    unit->buffer = NULL;
    shoal_status status = fsdp_unit_take_buffer(unit);
    if (status == SHOAL_OK) {
        move_blocks(unit, old, offsets);
        unit->has_accumulated = has_accumulated;
        fsdp_buffers_release(old);
    } else {
        unit->buffer = old;
    }
    mem_free(offsets);
    return status;
}

/* The first time a buffer is laid out for those that have one, and those that ranks may differ in; later others join. */
static shoal_status choose_reduced(struct fsdp_unit *unit, const struct fsdp_wrapper *wrapper, bool *has_any)
{
    *has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const shoal_tensor *grad = shoal_grad(wrapper->tensors[i].full);
        struct fsdp_param *param = &unit->params[i];
        bool has_grad = grad && !is_kept(unit, grad);
        bool is_unused = !grad && unit->reduces_unused && shoal_requires_grad(wrapper->tensors[i].sharded);
        if (!unit->buffer) {
            param->is_reduced = has_grad || is_unused;
        } else if (has_grad && !param->is_reduced) {
            TRY(join_buffer(unit, i));
        }
        bool would_be_kept = !unit->reduces && param->compute == unit->reduce_dtype && !unit->buffer;
        *has_any = *has_any || has_grad || (is_unused && !would_be_kept);
    }
    return SHOAL_OK;
}

static shoal_status copy_grad(shoal_tensor *grad, shoal_tensor **copy_out)
{
    shoal_tensor *copy;
    TRY(tensor_create_empty(grad->storage->device, grad->dtype, grad->layout.n_dims, grad->layout.shape,
                            &copy));
    shoal_status status = op_copy_into(copy, grad);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(copy);
        return status;
    }
    *copy_out = copy;
    return SHOAL_OK;
}

/* Leaves keep views of what they were given, which others may have, too. */
static shoal_status make_own(shoal_tensor *leaf, shoal_tensor *grad)
{
    shoal_tensor *copy;
    if (grad->is_contiguous && atomic_load(&grad->storage->references) == 1) {
        return SHOAL_OK;
    }
    TRY(copy_grad(grad, &copy));
    shoal_status status = shoal_set_grad(leaf, copy);
    shoal_tensor_unref(copy);
    return status;
}

shoal_status fsdp_watch_get_pending(struct fsdp_wrapper *wrapper, size_t index,
                                    shoal_pending_gradient *pending)
{
    shoal_tensor *full = wrapper->tensors[index].full;
    shoal_tensor *grad = shoal_grad(full);
    if (!grad) {
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(grad));
    TRY(make_own(full, grad));
    grad = shoal_grad(full);
    TRY(tensor_wait_writable(grad, /*overwrites=*/false));
    storage_bump_version(grad->storage); /* whoever asks may write */
    pending->full_dtype = grad->dtype;
    pending->full_count = wrapper->unit->params[index].count;
    pending->n_blocks = 1;
    return tensor_address(grad, &pending->full);
}

static shoal_status put_grad(struct fsdp_unit *unit, struct fsdp_param *param, shoal_tensor *grad)
{
    shoal_tensor *copy = NULL;
    void *data;
    TRY(tensor_wait_readable(grad));
    if (!grad->is_contiguous) {
        TRY(copy_grad(grad, &copy));
        grad = copy;
    }
    shoal_status status = tensor_address(grad, &data);
    if (status == SHOAL_OK) {
        fsdp_unit_put_grad(unit, param, grad->dtype, data);
    }
    shoal_tensor_unref(copy);
    return status;
}

static shoal_status collect(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    bool has_any;
    TRY(choose_reduced(unit, wrapper, &has_any));
    if (!has_any) {
        return SHOAL_OK;
    }
    TRY(fsdp_unit_take_buffer(unit));
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_tensor *grad = shoal_grad(wrapper->tensors[i].full);
        if (grad && unit->buffer) { /* there is none for parameters without elements alone */
            TRY(put_grad(unit, &unit->params[i], grad));
        }
        if (grad) {
            TRY(shoal_set_grad(wrapper->tensors[i].full, NULL));
        }
    }
    return SHOAL_OK;
}

/* Otherwise somebody has put a gradient of his own on the shard. */
static bool is_ours(const struct fsdp_tensors *tensors, const shoal_tensor *grad)
{
    const shoal_tensor *ours = tensors->shard_grad;
    return ours && grad->storage == ours->storage && grad->dtype == ours->dtype && grad->is_contiguous &&
           grad->layout.offset == ours->layout.offset;
}

/* Somebody has kept a gradient that is no longer on the shard: the memory is his. */
static void give_away(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    shoal_tensor_unref(tensors->shard_grad);
    tensors->shard_grad = NULL;
    param->shard_grad = NULL;
    param->is_grad_lent = false;
}

/* Gradients are cleared, replaced and kept by whoever has the tensors. Our memory may be read or written by work that
   is still on its way. */
static shoal_status prepare_param(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    const shoal_tensor *grad = shoal_grad(tensors->sharded);
    shoal_tensor *ours = tensors->shard_grad;
    param->has_grad = grad && is_ours(tensors, grad);
    if (!ours) {
        return SHOAL_OK;
    }
    if (!param->has_grad &&
        (atomic_load(&ours->references) > 1 || atomic_load(&ours->storage->references) > 1)) {
        give_away(tensors, param);
        return SHOAL_OK;
    }
    return tensor_wait_writable(ours, /*overwrites=*/!param->has_grad);
}

static shoal_status landing(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (unit->params[i].is_reduced) {
            TRY(prepare_param(&wrapper->tensors[i], &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

static void free_memory(void *context, void *data)
{
    (void)context;
    mem_free(data);
}

/* A tensor over the gradient, which owns it from now on. */
static shoal_status make_grad(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    struct storage *storage;
    TRY(storage_create_borrowed(param->shard_count * dtype_bytes(param->dtype), param->shard_grad,
                                free_memory, NULL, &storage));
    param->is_grad_lent = true;
    return tensor_create(storage, param->dtype, &tensors->sharded->layout, &tensors->shard_grad);
}

static shoal_status add_unrecorded(shoal_tensor *grad, shoal_tensor *sum)
{
    TRY(shoal_scope_set_grad(false));
    return shoal_add_(grad, shoal_to_dtype(sum, grad->dtype)) ? SHOAL_OK : shoal_scope_error();
}

/* To memory of the caller's, as a leaf without sharding does. */
static shoal_status add_to_other(shoal_tensor *grad, shoal_tensor *sum)
{
    TRY(shoal_scope_begin());
    shoal_status status = add_unrecorded(grad, sum);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

static shoal_status show_grad(struct fsdp_tensors *tensors)
{
    shoal_tensor *grad = shoal_grad(tensors->sharded);
    if (!grad) {
        return shoal_set_grad(tensors->sharded, tensors->shard_grad);
    }
    return is_ours(tensors, grad) ? SHOAL_OK : add_to_other(grad, tensors->shard_grad);
}

static shoal_status land_param(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    struct leaf *leaf = leaf_of(tensors->sharded);
    if (!leaf) {
        return SHOAL_OK; /* frozen since */
    }
    if (!tensors->shard_grad) {
        TRY(make_grad(tensors, param));
    }
    tensor_forget_fences(tensors->shard_grad); /* they have ended; one that failed was overwritten */
    storage_bump_version(tensors->shard_grad->storage);
    TRY(show_grad(tensors));
    return hook_list_run_leaf(&leaf->accumulated_hooks, tensors->sharded);
}

static shoal_status landed(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (unit->params[i].is_reduced) {
            TRY(land_param(&wrapper->tensors[i], &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

const struct fsdp_watch fsdp_module_watch = {.gathering = before_gather,
                                             .unsharded = show_full,
                                             .resharding = hide_full,
                                             .has_kept = has_kept,
                                             .collect = collect,
                                             .landing = landing,
                                             .landed = landed};
