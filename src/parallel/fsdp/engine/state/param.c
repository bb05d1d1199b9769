/* SPDX-License-Identifier: MIT */
/* Cuts parameters into shards. */
#include "parallel/fsdp/engine/state/param.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "device/stream.h"
#include "op/operand.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

void fsdp_write_shape(int n_dims, const int64_t *shape, char *text)
{
    size_t at = (size_t)snprintf(text, FSDP_SHAPE_BYTES, "[");
    for (int i = 0; i < n_dims; i++) {
        at += (size_t)snprintf(text + at, FSDP_SHAPE_BYTES - at, "%s%lld", i > 0 ? "," : "",
                               (long long)shape[i]);
    }
    (void)snprintf(text + at, FSDP_SHAPE_BYTES - at, "]");
}

static shoal_status check_dim(const struct fsdp_param *param, int n_shards)
{
    int64_t size = param->shape[param->dim];
    if (param->dim > 0 && size % n_shards != 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "dimension %d, which is %" PRId64
                         ", cannot be divided evenly into %d shards; only dimension 0 may be uneven",
                         param->dim, size, n_shards);
    }
    return SHOAL_OK;
}

static void cut(struct fsdp_param *param, int shard, int n_shards)
{
    param->outer = 1;
    param->inner = 1;
    for (int i = 0; i < param->dim; i++) {
        param->outer *= param->shape[i];
    }
    for (int i = param->dim + 1; i < param->n_dims; i++) {
        param->inner *= param->shape[i];
    }
    param->size = param->shape[param->dim];
    param->chunk = param->size / n_shards + (param->size % n_shards != 0);
    int64_t end;
    fsdp_param_rows(param, shard, &param->begin, &end);
    param->length = end - param->begin;
    param->shard_count = (size_t)(param->outer * param->length * param->inner);
    param->padded_count = (size_t)(param->outer * param->chunk * param->inner);
}

static shoal_status init(struct fsdp_param *param, const char *name, const int64_t *shape, int dim,
                         int n_shards)
{
    int64_t count;
    TRY(dtype_check(param->dtype, "dtype"));
    if (param->n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "it has no dimensions: give it the shape [1]");
    }
    if (param->n_dims > 0 && !shape) {
        return error_set(SHOAL_ERR_INVALID, "shape is NULL");
    }
    TRY(layout_count(param->n_dims, shape, &count));
    TRY(layout_normalise_dim("dim", dim, param->n_dims, &param->dim));
    memcpy(param->shape, shape, (size_t)param->n_dims * sizeof shape[0]);
    param->count = (size_t)count;
    param->requires_grad = shoal_dtype_is_floating(param->dtype);
    param->name = mem_copy_string(name);
    return param->name ? check_dim(param, n_shards) : SHOAL_ERR_NO_MEMORY;
}

shoal_status fsdp_param_init(struct fsdp_param *param, const char *name, shoal_dtype dtype, int n_dims,
                             const int64_t *shape, int dim, int shard, int n_shards)
{
    *param = (struct fsdp_param){.dtype = dtype, .compute = dtype, .n_dims = n_dims};
    shoal_status status = init(param, name, shape, dim, n_shards);
    if (status != SHOAL_OK) {
        return error_prefix(status, "parameter %.128s", name);
    }
    cut(param, shard, n_shards);
    return SHOAL_OK;
}

void fsdp_param_free(struct fsdp_param *param)
{
    mem_free(param->name);
    if (!param->is_lent) {
        device_memory_free(param->device, param->shard);
    }
    if (!param->is_grad_lent && !param->grad_block) {
        device_memory_free(param->device, param->shard_grad);
    }
    device_memory_free(param->device, param->kept);
    fsdp_extension_free(param->extension);
}

void fsdp_param_drop_grad(struct fsdp_param *param)
{
    if (param->grad_block) {
        fsdp_block_drop(param->grad_block);
        param->grad_block = NULL;
        param->shard_grad = ADDRESS_NONE;
    }
    param->has_grad = false;
}

shoal_status fsdp_param_allocate(struct fsdp_param *param)
{
    size_t bytes = param->padded_count * dtype_bytes(param->dtype);
    TRY(device_memory_allocate(param->device, bytes, &param->shard));
    struct moves moves;
    moves_begin(&moves, param->device);
    moves_clear(&moves, param->shard, bytes);
    moves_end(&moves);
    return SHOAL_OK;
}

shoal_status fsdp_array_load_slice(const struct fsdp_array *array, int64_t offset, int64_t length,
                                   const void *slice, bool *has_part_out)
{
    const struct fsdp_param *param = array->param;
    int64_t begin = offset > param->begin ? offset : param->begin;
    int64_t end = offset + length;
    end = end < param->begin + param->length ? end : param->begin + param->length;
    *has_part_out = begin < end;
    size_t row = (size_t)param->inner * dtype_bytes(array->dtype);
    for (int64_t o = 0; o < param->outer && row > 0 && begin < end; o++) {
        size_t at = (size_t)(o * param->length + begin - param->begin) * row;
        TRY(stream_write(array->device, address_add(array->shard, (ptrdiff_t)at),
                         (const char *)slice + (size_t)(o * length + begin - offset) * row,
                         (size_t)(end - begin) * row));
    }
    return SHOAL_OK;
}

shoal_status fsdp_array_load(const struct fsdp_array *array, const void *full)
{
    bool has_part;
    return fsdp_array_load_slice(array, 0, array->param->size, full, &has_part);
}

void fsdp_param_cut(const struct fsdp_param *param, struct address full)
{
    size_t element_bytes = dtype_bytes(param->dtype);
    size_t count = fsdp_param_piece_count(param);
    struct moves moves;
    moves_begin(&moves, param->device);
    for (int64_t o = 0; o < param->outer && count > 0; o++) {
        moves_copy(&moves, param->dtype,
                   address_add(param->shard, (ptrdiff_t)((size_t)o * count * element_bytes)),
                   address_add(full, (ptrdiff_t)(fsdp_param_offset(param, o) * element_bytes)), count);
    }
    moves_end(&moves);
}

shoal_status fsdp_array_read(const struct fsdp_array *array, void *target, double timeout_s)
{
    return op_read_bytes(array->device, target, array->shard,
                         array->param->shard_count * dtype_bytes(array->dtype), timeout_s);
}
