/* SPDX-License-Identifier: MIT */
/* Tensors and gradients of a unit that belongs to modules. */
#include "parallel/fsdp/module/watch.h"

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/moves.h"
#include "module/module.h"
#include "op/operand.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/reduce/landing.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/module/partial.h"
#include "parallel/fsdp/module/root.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/dtype.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Swapping ----------------------------------------------------------------------------------------------- */

static void put_in_places(const struct fsdp_tensors *tensors, shoal_tensor *tensor)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        module_put_parameter(tensors->places[i].module, tensors->places[i].index, tensor);
    }
}

/* Refuses a tensor that the program has put in the place of the shard, because it would be ignored. */
static shoal_status check_in_place(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    const struct fsdp_place *place = tensors->places;
    if (tensors->n_places == 0 ||
        shoal_module_parameter_at(place->module, place->index, NULL) == tensors->sharded) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s was replaced after its module was sharded: write its values, or load them",
                     param->name);
}

/* A tensor that is frozen loses its gradient. That is refused if an earlier backward pass left one to be reduced. */
static shoal_status check_frozen(const struct fsdp_unit *unit, const struct fsdp_tensors *tensors,
                                 const struct fsdp_param *param)
{
    if (leaf_requires_grad(tensors->sharded)) { /* most of them, and this runs several times for each unit */
        return SHOAL_OK;
    }
    bool is_in_buffer = unit->config.sharded == SHOAL_SHARDED_STATE && unit->grads.has_accumulated &&
                        param->is_reduced && param->has_whole;
    bool is_partial = (unit->grads.has_partial && param->is_partial) || leaf_gradient(tensors->partial);
    bool is_pending = is_in_buffer || is_partial;
    if (!leaf_gradient(tensors->full) && !is_pending) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s was frozen while a gradient of it waits to be reduced: reduce first "
                     "(%s, shoal_fsdp_synchronize), or give it up (shoal_fsdp_zero_grad)",
                     param->name, is_partial ? "shoal_fsdp_set_all_reduce" : "shoal_fsdp_set_sync");
}

/* The other ranks are told: their parameter may not be frozen. */
static shoal_status check_all_frozen(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < wrapper->n_tensors && status == SHOAL_OK; i++) {
        status = check_frozen(unit, &wrapper->tensors[i], &unit->params[i]);
    }
    return status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(unit, status);
}

/* Waits for writes to shards that are still in flight. */
static shoal_status before_gather(struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    TRY(check_all_frozen(unit));
    for (size_t i = 0; unit->state == FSDP_SHARDED && i < wrapper->n_tensors; i++) {
        TRY(tensor_wait_readable(wrapper->tensors[i].sharded));
        wrapper->tensors[i].gathered = shoal_tensor_version(wrapper->tensors[i].sharded);
    }
    return SHOAL_OK;
}

void fsdp_wrapper_count_changes(const struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        uint64_t version = shoal_tensor_version(tensors->sharded);
        if (tensors->full && version != tensors->counted) {
            tensors->counted = version;
            storage_bump_version(tensors->full->storage);
        }
    }
}

bool fsdp_wrapper_has_changed(const struct fsdp_wrapper *wrapper)
{
    bool has_changed = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const struct fsdp_tensors *tensors = &wrapper->tensors[i];
        has_changed = has_changed || shoal_tensor_version(tensors->sharded) != tensors->gathered;
    }
    return has_changed;
}

shoal_status fsdp_wrapper_show_full(struct fsdp_wrapper *wrapper)
{
    if (wrapper->shows_full) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(check_in_place(&wrapper->tensors[i], &wrapper->unit->params[i]));
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        put_in_places(&wrapper->tensors[i], wrapper->tensors[i].full);
    }
    wrapper->shows_full = true;
    return SHOAL_OK;
}

void fsdp_wrapper_show_shards(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; wrapper->shows_full && i < wrapper->n_tensors; i++) {
        put_in_places(&wrapper->tensors[i], wrapper->tensors[i].sharded);
    }
    wrapper->shows_full = false;
}

/* Parameters may be frozen and thawed between steps, but not between a forward pass and its backward pass. */
static shoal_status follow_freezing(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    shoal_status status = shoal_set_requires_grad(tensors->full, leaf_requires_grad(tensors->sharded));
    return status == SHOAL_ERR_STATE
               ? error_set(status, "parameter %s was frozen between its forward and its backward pass",
                           param->name)
               : status;
}

shoal_status fsdp_wrapper_follow_freezing(const struct fsdp_wrapper *wrapper)
{
    TRY(check_all_frozen(wrapper->unit));
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(follow_freezing(&wrapper->tensors[i], &wrapper->unit->params[i]));
    }
    return SHOAL_OK;
}

static shoal_status bind_full(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    TRY(check_all_frozen(unit)); /* again: the gather took time */
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        const struct fsdp_param *param = &unit->params[i];
        /* The storage is read-only. */
        TRY(storage_rebind(tensors->full->storage, fsdp_unit_param(unit, param), fsdp_keep_gathered, NULL));
        TRY(follow_freezing(tensors, param));
    }
    return fsdp_wrapper_show_full(wrapper);
}

static void hide_full(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    fsdp_wrapper_show_shards(wrapper);
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_status status = storage_release(wrapper->tensors[i].full->storage);
        (void)status; /* it cannot fail: read-only memory is not exported, so nobody else holds it */
    }
}

/* Gradients ---------------------------------------------------------------------------------------------- */

static bool has_kept(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    bool has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        has_any = has_any || leaf_gradient(wrapper->tensors[i].full);
    }
    return has_any;
}

static bool has_cast(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    bool has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const shoal_tensor *grad = leaf_gradient(wrapper->tensors[i].full);
        has_any = has_any ||
                  (grad && grad->dtype == unit->grads.dtype && unit->params[i].compute != unit->grads.dtype);
    }
    return has_any;
}

/* Without synchronization, gradients stay on the tensors of whole parameters, unless they are accumulated in another
   dtype or the unit has a buffer for them already. A buffer of the unit's own (SHOAL_SHARDED_STATE) takes those that
   lie in it in their usual layout. */
static bool stays_on_tensor(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    bool has_own = unit->config.sharded == SHOAL_SHARDED_STATE;
    return !unit->config.sync && unit->grads.dtype == param->compute &&
           (has_own ? !fsdp_is_direct(unit, param) : !unit->grads.buffer);
}

static bool is_kept(const struct fsdp_unit *unit, const struct fsdp_param *param, const shoal_tensor *grad)
{
    return stays_on_tensor(unit, param) && unit->grads.dtype == grad->dtype;
}

static void move_blocks(const struct fsdp_unit *unit, const struct fsdp_block *from, const size_t *offsets)
{
    size_t n_shards = (size_t)unit->mesh->n_shards;
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced && offsets[i] != SIZE_MAX) {
            param->is_unset = false;
            moves_copy(&moves, unit->grads.dtype, fsdp_region_of(unit, param),
                       address_add(from->data, (ptrdiff_t)offsets[i]), n_shards * param->padded_count);
        }
    }
    moves_end(&moves);
}

/* A parameter gets its first gradient after the unit began to accumulate: takes a buffer with room for it, and
   moves the other gradients there. If this fails, the step is lost, and it does not matter where gradients are. */
static shoal_status join_buffer(struct fsdp_unit *unit, size_t joining)
{
    struct fsdp_block *old = unit->grads.buffer;
    size_t *offsets = mem_alloc(unit->n_params * sizeof *offsets);
    if (!offsets) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->n_params; i++) { /* a parameter that has just joined has no gradient there */
        const struct fsdp_param *param = &unit->params[i];
        offsets[i] = param->is_reduced && !param->is_unset ? param->reduce_offset : SIZE_MAX;
    }
    bool has_accumulated = unit->grads.has_accumulated;
    unit->params[joining].is_reduced = true;
    unit->grads.buffer = NULL;
    shoal_status status = fsdp_unit_take_buffer(unit);
    if (status == SHOAL_OK) {
        move_blocks(unit, old, offsets);
        unit->grads.has_accumulated = has_accumulated;
        fsdp_pool_give_back(old);
    } else {
        unit->grads.buffer = old;
    }
    mem_free(offsets);
    return status;
}

/* Chooses the parameters that get a place in the buffer: those with a gradient and, with reduce_unused, those that only
   other ranks may have a gradient for. If there is a buffer already, others join it. */
static shoal_status choose_reduced(struct fsdp_unit *unit, const struct fsdp_wrapper *wrapper, bool *has_any)
{
    *has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const shoal_tensor *grad = leaf_gradient(wrapper->tensors[i].full);
        struct fsdp_param *param = &unit->params[i];
        bool has_grad = grad && !is_kept(unit, param, grad);
        param->is_dropped = !leaf_requires_grad(wrapper->tensors[i].sharded);
        bool has_place = grad && unit->config.sharded == SHOAL_SHARDED_STATE; /* so that none joins later */
        bool is_unused = !grad && unit->config.reduce_unused && !param->is_dropped;
        if (!unit->grads.buffer) {
            param->is_reduced = has_grad || is_unused || has_place;
        } else if (has_grad && !param->is_reduced) {
            TRY(join_buffer(unit, i));
        }
        *has_any = *has_any || has_grad || (is_unused && !stays_on_tensor(unit, param));
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

/* Gives the leaf a gradient in memory of its own. Autograd may have given it a view of memory that others use. */
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

/* Finds a gradient that was left on the tensor of the whole parameter, and moves it to memory that nobody else uses. */
static shoal_status get_pending(struct fsdp_unit *unit, size_t index, shoal_pending_gradient *pending)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    shoal_tensor *full = wrapper->tensors[index].full;
    shoal_tensor *grad = leaf_gradient(full);
    if (!grad) {
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(grad));
    TRY(make_own(full, grad));
    grad = leaf_gradient(full);
    TRY(tensor_wait_writable(grad, /*overwrites=*/false));
    storage_bump_version(grad->storage); /* whoever asks may write */
    pending->full_dtype = grad->dtype;
    pending->full_count = wrapper->unit->params[index].count;
    pending->n_blocks = 1;
    struct address data;
    TRY(tensor_address(grad, &data));
    pending->full = address_pointer(data);
    return SHOAL_OK;
}

static shoal_status lend_grad(const struct fsdp_unit *unit, const struct fsdp_param *param,
                              struct fsdp_tensors *tensors)
{
    struct storage *storage;
    shoal_tensor *grad;
    TRY(storage_create_borrowed(unit->device, param->count * dtype_bytes(param->compute),
                                fsdp_region_of(unit, param), NULL, NULL, &storage));
    TRY(tensor_create(storage, param->compute, &tensors->full->layout, &grad));
    shoal_status status = shoal_set_grad(tensors->full, grad);
    tensors->lent = status == SHOAL_OK ? storage : NULL;
    shoal_tensor_unref(grad);
    return status;
}

static shoal_status lend(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const struct fsdp_param *param = &unit->params[i];
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        if (param->is_reduced && param->has_whole && fsdp_is_direct(unit, param) && leaf_of(tensors->full) &&
            !leaf_gradient(tensors->full)) {
            TRY(lend_grad(unit, param, tensors));
        }
    }
    return SHOAL_OK;
}

static shoal_status put_grad(struct fsdp_unit *unit, struct fsdp_param *param, shoal_tensor *grad)
{
    shoal_tensor *copy = NULL;
    struct address data;
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

/* Moves a gradient from its tensor to the buffer. If the buffer's memory was lent to it, it is there already. */
static shoal_status collect_grad(struct fsdp_unit *unit, size_t index)
{
    struct fsdp_tensors *tensors = &((struct fsdp_wrapper *)unit->owner)->tensors[index];
    shoal_tensor *grad = leaf_gradient(tensors->full);
    bool is_lent = grad && grad->storage == tensors->lent;
    tensors->lent = NULL;
    if (!grad || (unit->config.sharded == SHOAL_SHARDED_STATE && is_kept(unit, &unit->params[index], grad))) {
        return SHOAL_OK;
    }
    if (is_lent) {
        TRY(tensor_wait_readable(grad));
    } else if (unit->grads.buffer) { /* there is none if no parameter has elements */
        TRY(put_grad(unit, &unit->params[index], grad));
    }
    return shoal_set_grad(tensors->full, NULL);
}

static shoal_status collect(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    bool has_any;
    TRY(fsdp_wrapper_give_partial(wrapper));
    TRY(choose_reduced(unit, wrapper, &has_any));
    if (!has_any) {
        return SHOAL_OK;
    }
    TRY(fsdp_unit_take_buffer(unit));
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(collect_grad(unit, i));
    }
    return SHOAL_OK;
}

/* Whether the gradient of a shard is the one that the library made. If not, the program has put its own there. */
static bool is_ours(const struct fsdp_tensors *tensors, const shoal_tensor *grad)
{
    const shoal_tensor *ours = tensors->shard_grad;
    return ours && grad->storage == ours->storage && grad->dtype == ours->dtype && grad->is_contiguous &&
           grad->layout.offset == ours->layout.offset;
}

/* The program still holds a gradient that it has taken from the shard: its tensor owns the memory from now on. */
static void give_away(struct fsdp_unit *unit, struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_GRADIENTS,
                       param->shard_count * dtype_bytes(param->dtype));
    shoal_tensor_unref(tensors->shard_grad);
    tensors->shard_grad = NULL;
    param->shard_grad = ADDRESS_NONE;
    param->is_grad_lent = false;
}

/* The program may have cleared or replaced the gradient of a shard, or kept ours. A gradient that it kept is given
   away; otherwise this waits for work that still reads or writes our memory. */
static shoal_status prepare_param(struct fsdp_unit *unit, struct fsdp_tensors *tensors,
                                  struct fsdp_param *param)
{
    const shoal_tensor *grad = leaf_gradient(tensors->sharded);
    shoal_tensor *ours = tensors->shard_grad;
    param->has_grad = grad && is_ours(tensors, grad);
    if (!ours) {
        return SHOAL_OK;
    }
    if (!param->has_grad &&
        (atomic_load(&ours->references) > 1 || atomic_load(&ours->storage->references) > 1)) {
        give_away(unit, tensors, param);
        return SHOAL_OK;
    }
    return tensor_wait_writable(ours, /*overwrites=*/!param->has_grad);
}

static shoal_status landing(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (unit->params[i].is_reduced) {
            TRY(prepare_param(unit, &wrapper->tensors[i], &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

static shoal_status land_grad(struct fsdp_unit *unit, size_t index)
{
    struct fsdp_tensors *tensors = &((struct fsdp_wrapper *)unit->owner)->tensors[index];
    shoal_tensor *grad = leaf_gradient(tensors->full);
    shoal_tensor *copy = NULL;
    struct address data;
    TRY(tensor_wait_readable(grad));
    if (!grad->is_contiguous) {
        TRY(copy_grad(grad, &copy));
        grad = copy;
    }
    shoal_status status = tensor_address(grad, &data);
    if (status == SHOAL_OK) {
        status = fsdp_land_whole(unit, &unit->params[index], grad->dtype, data);
    }
    shoal_tensor_unref(copy);
    return status == SHOAL_OK ? shoal_set_grad(tensors->full, NULL) : status;
}

/* Makes a tensor over the gradient of the shard. It owns that memory from now on. */
static shoal_status make_grad(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    struct storage *storage;
    TRY(storage_create_borrowed(param->device, param->shard_count * dtype_bytes(param->dtype),
                                param->shard_grad, storage_free_memory, (void *)(uintptr_t)param->device,
                                &storage));
    param->is_grad_lent = true;
    return tensor_create(storage, param->dtype, &tensors->sharded->layout, &tensors->shard_grad);
}

static shoal_status add_unrecorded(shoal_tensor *grad, shoal_tensor *sum)
{
    TRY(shoal_scope_set_grad(false));
    return shoal_add_(grad, shoal_to_dtype(sum, grad->dtype)) ? SHOAL_OK : shoal_scope_error();
}

/* Adds to a gradient that the program has put on the shard, as a backward pass does without sharding. */
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
    shoal_tensor *grad = leaf_gradient(tensors->sharded);
    if (!grad) {
        return shoal_set_grad(tensors->sharded, tensors->shard_grad);
    }
    return is_ours(tensors, grad) ? SHOAL_OK : add_to_other(grad, tensors->shard_grad);
}

static shoal_status land_param(struct fsdp_unit *unit, struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    struct leaf *leaf = leaf_of(tensors->sharded);
    if (param->is_dropped) {
        return SHOAL_OK; /* also if a hook has thawed it since: ranks have agreed that it gets none */
    }
    if (!leaf) {
        return error_set(SHOAL_ERR_STATE, "parameter %s was frozen while its gradient was reduced",
                         param->name);
    }
    if (!tensors->shard_grad) {
        TRY(make_grad(tensors, param));
    }
    tensor_forget_fences(tensors->shard_grad); /* they have ended; one that failed was overwritten */
    storage_bump_version(tensors->shard_grad->storage);
    TRY(show_grad(tensors));
    TRY(hook_list_run_leaf(&leaf->accumulated_hooks, tensors->sharded));
    if (!leaf_gradient(tensors->sharded)) { /* a hook had use for it, and dropped it: so does its memory */
        give_away(unit, tensors, param);
    }
    return SHOAL_OK;
}

static shoal_status landed(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (unit->params[i].is_reduced) {
            TRY(land_param(unit, &wrapper->tensors[i], &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

static shoal_status prepare_alone(struct fsdp_unit *unit)
{
    bool has_any;
    TRY(fsdp_wrapper_give_partial(unit->owner));
    TRY(choose_reduced(unit, unit->owner, &has_any));
    return landing(unit);
}

/* One parameter after the other, so that a hook finds the gradient in a cache. */
static shoal_status land_alone(struct fsdp_unit *unit)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    TRY(fsdp_tell_reduction(unit, prepare_alone(unit)));
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (!unit->params[i].is_reduced) {
            continue;
        }
        TRY(fsdp_tell_reduction(unit, land_grad(unit, i)));
        shoal_status status = land_param(unit, &wrapper->tensors[i], &unit->params[i]);
        if (status != SHOAL_OK) {
            return fsdp_mark_failure(unit, status);
        }
    }
    return SHOAL_OK;
}

/* By hand ------------------------------------------------------------------------------------------------ */

static bool is_closed(const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return wrapper->is_closed;
}

/* After a failed backward pass it is not known where gradients are. */
static shoal_status check_ended(const struct fsdp_unit *unit, const char *call)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return wrapper->root && wrapper->root->calls.is_end_awaited
               ? error_set(SHOAL_ERR_STATE,
                           "%s: a backward pass is running, or has failed (shoal_fsdp_reset)", call)
               : SHOAL_OK;
}

static shoal_status prepare(struct fsdp_unit *unit)
{
    return fsdp_wrapper_prepare(unit->owner);
}

static shoal_status give_partial(struct fsdp_unit *unit)
{
    return fsdp_wrapper_give_partial(unit->owner);
}

static shoal_status held(struct fsdp_unit *unit)
{
    return unit->state == FSDP_UNSHARDED ? fsdp_wrapper_show_full(unit->owner) : SHOAL_OK;
}

static shoal_status reading(struct fsdp_unit *unit, size_t index)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return tensor_wait_readable(wrapper->tensors[index].sharded);
}

static bool needs_values(const struct fsdp_unit *unit, size_t index)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return fsdp_needs_values(&wrapper->tensors[index]);
}

static shoal_status writing(struct fsdp_unit *unit, size_t index)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return tensor_wait_writable(wrapper->tensors[index].sharded, /*overwrites=*/true);
}

static void written(struct fsdp_unit *unit, size_t index)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    tensor_forget_fences(wrapper->tensors[index].sharded);
    storage_bump_version(wrapper->tensors[index].sharded->storage);
}

const struct fsdp_watch fsdp_module_watch = {.gathering = before_gather,
                                             .unsharded = bind_full,
                                             .resharding = hide_full,
                                             .is_closed = is_closed,
                                             .check_ended = check_ended,
                                             .prepare = prepare,
                                             .held = held,
                                             .reading = reading,
                                             .needs_values = needs_values,
                                             .writing = writing,
                                             .written = written,
                                             .get_pending = get_pending,
                                             .give_partial = give_partial,
                                             .has_kept = has_kept,
                                             .has_cast = has_cast,
                                             .lend = lend,
                                             .collect = collect,
                                             .land_alone = land_alone,
                                             .landing = landing,
                                             .landed = landed};
