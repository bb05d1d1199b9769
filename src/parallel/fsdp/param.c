/* SPDX-License-Identifier: MIT */
/* Cutting parameters. */
#include "parallel/fsdp/param.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

static shoal_status check_dim(const struct fsdp_param *param, int n_shards)
{
    int64_t size = param->shape[param->dim];
    if (param->dim > 0 && size % n_shards != 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "parameter %s: dimension %d, which is %" PRId64
                         ", can not be cut evenly into %d; only dimension 0 may be uneven",
                         param->name, param->dim, size, n_shards);
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

shoal_status fsdp_param_init(struct fsdp_param *param, const char *name, shoal_dtype dtype, int n_dims,
                             const int64_t *shape, int dim, int shard, int n_shards)
{
    int64_t count;
    *param = (struct fsdp_param){.dtype = dtype, .compute = dtype, .n_dims = n_dims};
    TRY(dtype_check(dtype, "dtype"));
    if (n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "parameter %s has no dimension: make it one of one element, [1]",
                         name);
    }
    if (n_dims > 0 && !shape) {
        return error_set(SHOAL_ERR_INVALID, "parameter %s: shape is NULL", name);
    }
    TRY(layout_count(n_dims, shape, &count));
    shoal_status status = layout_normalise_dim("dim", dim, n_dims, &param->dim);
    if (status != SHOAL_OK) {
        return error_prefix(status, "parameter %s", name);
    }
    memcpy(param->shape, shape, (size_t)n_dims * sizeof shape[0]);
    param->count = (size_t)count;
    param->requires_grad = shoal_dtype_is_floating(dtype);
    param->name = mem_copy_string(name);
    if (!param->name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(check_dim(param, n_shards));
    cut(param, shard, n_shards);
    return SHOAL_OK;
}

void fsdp_param_free(struct fsdp_param *param)
{
    mem_free(param->name);
    if (!param->is_lent) {
        mem_free(param->shard);
    }
    if (!param->is_grad_lent) {
        mem_free(param->shard_grad);
    }
    mem_free(param->kept);
}

shoal_status fsdp_param_allocate(struct fsdp_param *param)
{
    size_t bytes = param->padded_count * dtype_bytes(param->dtype);
    param->shard = mem_alloc_aligned(bytes > 0 ? bytes : 1, FSDP_ALIGNMENT);
    if (!param->shard) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(param->shard, 0, bytes);
    return SHOAL_OK;
}

void fsdp_param_load(struct fsdp_param *param, const void *full)
{
    size_t bytes = dtype_bytes(param->dtype);
    size_t piece = fsdp_param_piece_count(param) * bytes;
    for (int64_t o = 0; o < param->outer && piece > 0; o++) {
        kernel_copy(param->shard + (size_t)o * piece,
                    (const char *)full + fsdp_param_offset(param, o) * bytes, piece);
    }
}
