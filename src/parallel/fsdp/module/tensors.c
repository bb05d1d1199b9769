/* SPDX-License-Identifier: MIT */
/* Makes the tensors of shards, and adopts tensors that the program put in their place. */
#include "parallel/fsdp/module/tensors.h"

#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "device/device.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

static void free_shard(void *context, void *data)
{
    storage_free_memory(context, data);
}

/* Only the memory of shards and of gathered parameters has one of these deleters. */
bool fsdp_is_of_unit(const shoal_tensor *tensor)
{
    const struct memory *memory = tensor->storage->memory;
    return memory && (memory->deleter == free_shard || memory->deleter == fsdp_keep_gathered);
}

/* Makes a tensor over the shard. It owns the shard's memory from now on; if making it fails, the memory is freed. */
static shoal_status wrap_shard(struct fsdp_param *param, const struct layout *layout,
                               shoal_tensor **tensor_out)
{
    struct storage *storage;
    TRY(storage_create_borrowed(param->device, param->shard_count * dtype_bytes(param->dtype), param->shard,
                                free_shard, (void *)(uintptr_t)param->device, &storage));
    param->is_lent = true;
    return tensor_create(storage, param->dtype, layout, tensor_out);
}

static void shard_layout(const struct fsdp_param *param, struct layout *layout_out)
{
    *layout_out = (struct layout){.n_dims = param->n_dims};
    memcpy(layout_out->shape, param->shape, sizeof layout_out->shape);
    layout_out->shape[param->dim] = param->length;
    layout_fill_strides(layout_out->n_dims, layout_out->shape, layout_out->strides);
}

void fsdp_mark_sharded(shoal_tensor *tensor, int n_shards)
{
    tensor->has_landed = n_shards > 0;
    tensor->is_cut = n_shards > 1;
    tensor->is_replaced = false;
}

bool shoal_is_shard(const shoal_tensor *tensor)
{
    return tensor && tensor->is_cut;
}

bool shoal_is_replaced(const shoal_tensor *tensor)
{
    return tensor && tensor->is_replaced;
}

shoal_status fsdp_make_sharded(struct fsdp_tensors *tensors, struct fsdp_param *param, const char *path,
                               int n_shards)
{
    struct layout layout;
    shard_layout(param, &layout);
    TRY(wrap_shard(param, &layout, &tensors->sharded));
    fsdp_mark_sharded(tensors->sharded, n_shards);
    TRY(shoal_tensor_set_name(tensors->sharded, path));
    return shoal_requires_grad(tensors->original) ? shoal_set_requires_grad(tensors->sharded, true)
                                                  : SHOAL_OK;
}

shoal_status fsdp_take_values(struct fsdp_tensors *tensors, struct fsdp_param *param, shoal_device device)
{
    shoal_tensor *original = tensors->original;
    struct address data;
    bool has_values = device_has_data(original->storage->device);
    param->device = has_values ? original->storage->device : device;
    TRY(fsdp_param_allocate(param));
    if (!has_values) {
        tensors->needs_values = param->shard_count > 0;
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(original));
    TRY(tensor_address(original, &data));
    fsdp_param_cut(param, data);
    return SHOAL_OK;
}

bool fsdp_needs_values(const struct fsdp_tensors *tensors)
{
    return tensors->needs_values && shoal_tensor_version(tensors->sharded) == tensors->version;
}

/* Replacing ---------------------------------------------------------------------------------------------- */

/* Finds the tensor that the program put in all places of a shard. Returns NULL if there is none, or it cannot be the
   shard, which takes the same shape, contiguous memory, and nothing else in that memory. */
static shoal_tensor *find_replacement(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    struct layout layout;
    shoal_tensor *now = NULL;
    shard_layout(param, &layout);
    for (size_t i = 0; i < tensors->n_places; i++) {
        shoal_tensor *tensor =
            shoal_module_find_parameter(tensors->places[i].module, tensors->places[i].name);
        if (!tensor || tensor == tensors->sharded || (now && tensor != now)) {
            return NULL;
        }
        now = tensor;
    }
    bool fits =
        now && now->is_contiguous && now->layout.n_dims == layout.n_dims &&
        memcmp(now->layout.shape, layout.shape, (size_t)layout.n_dims * sizeof layout.shape[0]) == 0 &&
        now->storage->bytes == param->shard_count * dtype_bytes(now->dtype);
    return fits && device_has_data(now->storage->device) ? now : NULL;
}

/* Makes the program's tensor the shard. It stays the same tensor, because an optimizer may hold it, but its values move
   to memory that has room for padding. */
static shoal_status adopt_replacement(struct fsdp_tensors *tensors, struct fsdp_param *param, int n_shards,
                                      shoal_tensor *now)
{
    struct fsdp_param replaced = *param;
    struct address data;
    TRY(fsdp_extension_check_move(param, now->storage->device));
    TRY(tensor_wait_readable(now));
    TRY(tensor_address(now, &data));
    replaced.device = now->storage->device;
    replaced.dtype = replaced.compute = now->dtype;
    replaced.requires_grad = shoal_requires_grad(now);
    TRY(fsdp_param_allocate(&replaced));
    struct moves moves;
    moves_begin(&moves, replaced.device);
    moves_copy(&moves, now->dtype, replaced.shard, data, param->shard_count);
    moves_end(&moves);
    shoal_status status =
        storage_rebind(now->storage, replaced.shard, free_shard, (void *)(uintptr_t)replaced.device);
    if (status != SHOAL_OK) {
        device_memory_free(replaced.device, replaced.shard);
        return error_prefix(status, "parameter %s", param->name);
    }
    *param = replaced;
    fsdp_mark_sharded(tensors->sharded, 0);
    shoal_tensor_unref(tensors->sharded);
    tensors->sharded = shoal_tensor_ref(now);
    fsdp_mark_sharded(now, n_shards);
    tensors->version = shoal_tensor_version(now);
    tensors->needs_values = false;
    return SHOAL_OK;
}

shoal_status fsdp_adopt_replacements(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_tensor *now = find_replacement(&wrapper->tensors[i], &wrapper->unit->params[i]);
        if (now) {
            TRY(adopt_replacement(&wrapper->tensors[i], &wrapper->unit->params[i], wrapper->mesh.n_shards,
                                  now));
        }
    }
    return fsdp_unit_set_device(wrapper->unit);
}

/* Inputs and outputs ------------------------------------------------------------------------------------- */

void fsdp_cast_all(shoal_tensor **tensors, size_t n_tensors, shoal_dtype dtype)
{
    for (size_t i = 0; dtype != 0 && i < n_tensors; i++) {
        if (tensors[i] && dtype_is_real(tensors[i]->dtype)) {
            tensors[i] = shoal_to_dtype(tensors[i], dtype);
        }
    }
}

bool fsdp_needs_gradient(shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if (shoal_requires_grad(tensors[i])) {
            return true;
        }
    }
    return false;
}
