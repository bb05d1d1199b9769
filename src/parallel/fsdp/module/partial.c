/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/partial.h"

#include <string.h>

#include "autograd/leaf.h"
#include "base/try.h"
#include "kernel/moves.h"
#include "op/operand.h"
#include "parallel/fsdp/engine/reduce/partial.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* The layout of a padded shard. */
static struct layout layout_of(const struct fsdp_param *param)
{
    struct layout layout = {.n_dims = param->n_dims};
    memcpy(layout.shape, param->shape, sizeof layout.shape);
    layout.shape[param->dim] = param->chunk;
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    return layout;
}

static size_t bytes_of(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return param->padded_count * dtype_bytes(unit->grads.dtype);
}

/* The leaf itself has no memory: only its gradient is used. */
shoal_status fsdp_wrapper_need_partial(const struct fsdp_wrapper *wrapper, size_t index)
{
    const struct fsdp_unit *unit = wrapper->unit;
    const struct fsdp_param *param = &unit->params[index];
    struct fsdp_tensors *tensors = &wrapper->tensors[index];
    struct storage *storage;
    if (tensors->partial) {
        return SHOAL_OK;
    }
    const struct layout layout = layout_of(param);
    TRY(storage_create_borrowed(unit->device, bytes_of(unit, param), param->shard, NULL, NULL, &storage));
    TRY(tensor_create(storage, unit->grads.dtype, &layout, &tensors->partial));
    TRY(shoal_tensor_set_name(tensors->partial, param->name));
    TRY(storage_release(tensors->partial->storage));
    return leaf_create(tensors->partial);
}

bool fsdp_wrapper_has_partial(const struct fsdp_wrapper *wrapper)
{
    bool has_any = false;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        has_any = has_any || leaf_gradient(wrapper->tensors[i].partial);
    }
    return has_any;
}

static shoal_status give_param(const struct fsdp_wrapper *wrapper, size_t index)
{
    const struct fsdp_unit *unit = wrapper->unit;
    const struct fsdp_param *param = &unit->params[index];
    shoal_tensor *leaf = wrapper->tensors[index].partial;
    shoal_tensor *gradient = leaf_gradient(leaf);
    const struct layout layout = layout_of(param);
    struct storage *storage;
    shoal_tensor *room = NULL;
    if (!gradient) {
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(gradient));
    TRY(storage_create_borrowed(unit->device, bytes_of(unit, param), fsdp_partial_at(unit, param), NULL, NULL,
                                &storage));
    TRY(tensor_create(storage, unit->grads.dtype, &layout, &room));
    shoal_status status = gradient->count > 0 ? op_copy_into(room, gradient) : SHOAL_OK;
    shoal_tensor_unref(room);
    TRY(status);
    return leaf_keep_gradient(leaf_of(leaf), NULL);
}

shoal_status fsdp_wrapper_give_partial(const struct fsdp_wrapper *wrapper)
{
    struct fsdp_unit *unit = wrapper->unit;
    if (!fsdp_wrapper_has_partial(wrapper)) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        unit->params[i].is_partial = leaf_gradient(wrapper->tensors[i].partial) != NULL;
    }
    TRY(fsdp_partial_make(unit));
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(give_param(wrapper, i));
    }
    return SHOAL_OK;
}

static shoal_status take_param(const struct fsdp_wrapper *wrapper, size_t index)
{
    const struct fsdp_unit *unit = wrapper->unit;
    const struct fsdp_param *param = &unit->params[index];
    const struct layout layout = layout_of(param);
    shoal_tensor *gradient;
    struct address data;
    TRY(fsdp_wrapper_need_partial(wrapper, index));
    TRY(tensor_create_empty(wrapper->tensors[index].sharded->storage->device, unit->grads.dtype,
                            layout.n_dims, layout.shape, &gradient));
    shoal_status status = tensor_address(gradient, &data);
    if (status == SHOAL_OK) {
        struct moves moves;
        moves_begin(&moves, unit->device);
        moves_copy(&moves, unit->grads.dtype, data, fsdp_partial_at(unit, param), param->padded_count);
        moves_end(&moves);
        status = leaf_keep_gradient(leaf_of(wrapper->tensors[index].partial), gradient);
    }
    shoal_tensor_unref(gradient);
    return status;
}

shoal_status fsdp_wrapper_take_partial(const struct fsdp_wrapper *wrapper)
{
    struct fsdp_unit *unit = wrapper->unit;
    for (size_t i = 0; unit->grads.has_partial && i < wrapper->n_tensors; i++) {
        TRY(unit->params[i].is_partial ? take_param(wrapper, i) : SHOAL_OK);
    }
    unit->grads.has_partial = false;
    return SHOAL_OK;
}
