/* SPDX-License-Identifier: MIT */
/* Copies and checks extensions of gathers, and calls their functions with the rows and buffers that they work on. */
#include "parallel/fsdp/engine/state/extension.h"

#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "device/device.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* In an encoded shard each buffer begins at a multiple of this, so that it is aligned for its dtype. */
#define BUFFER_ALIGNMENT 16
/* More than any machine has, and so little that sums over parameters and ranks do not overflow. */
#define MOST_BYTES ((size_t)1 << 46)

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status check(const struct fsdp_param *param, const shoal_gather_extension *given)
{
    const char *missing = !given->name || !given->name[0] ? "name"
                          : !given->encode                ? "encode"
                          : !given->decode                ? "decode"
                          : !given->buffers               ? "buffers"
                                                          : NULL;
    if (missing) {
        return error_set(SHOAL_ERR_INVALID, "the extension has no %s", missing);
    }
    if (given->n_buffers < 1 || given->n_buffers > SHOAL_GATHER_MAX_BUFFERS) {
        return error_set(SHOAL_ERR_INVALID, "n_buffers: %zu is not within 1..%d", given->n_buffers,
                         SHOAL_GATHER_MAX_BUFFERS);
    }
    if (!given->metadata && given->metadata_bytes > 0) {
        return error_set(SHOAL_ERR_INVALID, "metadata is NULL, but metadata_bytes is %zu",
                         given->metadata_bytes);
    }
    return param->dim == 0 ? SHOAL_OK
                           : error_set(SHOAL_ERR_UNSUPPORTED,
                                       "it is cut along dimension %d, and rows of extensions are those of "
                                       "dimension 0",
                                       param->dim);
}

/* Places the buffers in an encoded shard. */
static shoal_status lay_out(const struct fsdp_param *param, struct fsdp_extension *extension)
{
    for (size_t i = 0; i < extension->given.n_buffers; i++) {
        const shoal_gather_buffer *buffer = &extension->buffers[i];
        size_t rows = extension->given.is_by_rows ? (size_t)param->chunk : 1;
        size_t bytes;
        if (!dtype_is_valid(buffer->dtype) || buffer->count == 0) {
            return error_set(SHOAL_ERR_INVALID, "buffer %zu: %zu elements of dtype %s (%d)", i, buffer->count,
                             shoal_dtype_name(buffer->dtype), (int)buffer->dtype);
        }
        if (!mem_multiply(buffer->count, dtype_bytes(buffer->dtype), &bytes) ||
            !mem_multiply(bytes, rows, &bytes) || bytes > MOST_BYTES ||
            extension->bytes > MOST_BYTES - bytes) {
            return error_set(SHOAL_ERR_INVALID, "buffer %zu: %zu elements are more than memory can hold", i,
                             buffer->count);
        }
        extension->offsets[i] = extension->bytes;
        extension->bytes += (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    }
    return SHOAL_OK;
}

static shoal_status fill(const struct fsdp_param *param, struct fsdp_extension *extension)
{
    shoal_gather_extension *given = &extension->given;
    TRY(check(param, given));
    memcpy(extension->buffers, given->buffers, given->n_buffers * sizeof extension->buffers[0]);
    extension->name = mem_copy_string(given->name);
    extension->metadata = mem_alloc(given->metadata_bytes + 1);
    if (!extension->name || !extension->metadata) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (given->metadata_bytes > 0) {
        memcpy(extension->metadata, given->metadata, given->metadata_bytes);
    }
    given->name = extension->name;
    given->metadata = extension->metadata;
    given->buffers = extension->buffers;
    return lay_out(param, extension);
}

static shoal_status check_device(const struct fsdp_param *param, shoal_device device)
{
    return device_is_host(device)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED,
                           "parameter %.128s is on device %s, but gather extensions read host memory",
                           param->name, device_name(device));
}

shoal_status fsdp_extension_check_move(const struct fsdp_param *param, shoal_device device)
{
    return param->extension ? check_device(param, device) : SHOAL_OK;
}

shoal_status fsdp_extension_create(const struct fsdp_param *param, int n_shards,
                                   const shoal_gather_extension *given, struct fsdp_extension **extension_out)
{
    TRY(check_device(param, param->device));
    struct fsdp_extension *extension = mem_alloc_zeroed(1, sizeof *extension);
    if (!extension) {
        return SHOAL_ERR_NO_MEMORY;
    }
    extension->n_shards = n_shards;
    shoal_status status =
        struct_size_read("extension", given, sizeof(size_t), &extension->given, sizeof extension->given);
    if (status == SHOAL_OK) {
        status = fill(param, extension);
    }
    if (status != SHOAL_OK) {
        fsdp_extension_free(extension);
        return status;
    }
    *extension_out = extension;
    return SHOAL_OK;
}

void fsdp_extension_free(struct fsdp_extension *extension)
{
    if (extension) {
        mem_free(extension->name);
        mem_free(extension->metadata);
        mem_free(extension);
    }
}

/* Units ------------------------------------------------------------------------------------------------ */

bool fsdp_has_extension(const struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        if (unit->params[i].extension) {
            return true;
        }
    }
    return false;
}

bool fsdp_has_whole_extension(const struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        if (unit->params[i].extension && !unit->params[i].extension->given.is_by_rows) {
            return true;
        }
    }
    return false;
}

/* Calling ------------------------------------------------------------------------------------------------ */

static shoal_gather_rows describe(const struct fsdp_param *param, int64_t first, int64_t end)
{
    const struct fsdp_extension *extension = param->extension;
    return (shoal_gather_rows){.struct_size = sizeof(shoal_gather_rows),
                               .name = param->name,
                               .first = first,
                               .count = end - first,
                               .row_count = (size_t)param->inner,
                               .dtype = param->dtype,
                               .compute = param->compute,
                               .metadata = extension->metadata,
                               .metadata_bytes = extension->given.metadata_bytes,
                               .n_shards = extension->n_shards};
}

static shoal_status name_failure(const struct fsdp_param *param, const char *what, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK
                              : error_prefix(status, "%s of extension %.64s of parameter %.128s", what,
                                             param->extension->name, param->name);
}

shoal_status fsdp_extension_encode(const struct fsdp_param *param, shoal_group *group, char *encoded)
{
    const struct fsdp_extension *extension = param->extension;
    shoal_gather_rows rows = describe(param, param->begin, param->begin + param->length);
    void *buffers[SHOAL_GATHER_MAX_BUFFERS] = {NULL};
    for (size_t i = 0; i < extension->given.n_buffers; i++) {
        buffers[i] = encoded + extension->offsets[i];
    }
    rows.group = group;
    memset(encoded, 0, extension->bytes);
    error_clear();
    return name_failure(
        param, "encode",
        extension->given.encode(extension->given.context, &rows, address_pointer(param->shard), buffers));
}

static shoal_status call_decode(const struct fsdp_param *param, const shoal_gather_rows *rows,
                                const void *const *buffers, char *out)
{
    const shoal_gather_extension *given = &param->extension->given;
    error_clear();
    callback_enter();
    shoal_status status = given->decode(given->context, rows, buffers, out);
    callback_leave();
    return name_failure(param, "decode", status);
}

shoal_status fsdp_extension_decode(const struct fsdp_param *param, int shard, const char *encoded, char *full)
{
    const struct fsdp_extension *extension = param->extension;
    const void *buffers[SHOAL_GATHER_MAX_BUFFERS] = {NULL};
    int64_t begin;
    int64_t end;
    fsdp_param_rows(param, shard, &begin, &end);
    if (begin == end) {
        return SHOAL_OK;
    }
    shoal_gather_rows rows = describe(param, begin, end);
    for (size_t i = 0; i < extension->given.n_buffers; i++) {
        buffers[i] = encoded + extension->offsets[i];
    }
    return call_decode(param, &rows, buffers,
                       full + (size_t)(begin * param->inner) * dtype_bytes(param->compute));
}

/* Puts the buffers of all ranks side by side: buffer after buffer, in each of them rank after rank. */
static void join(const struct fsdp_extension *extension, const char *encoded, size_t stride, char *joined,
                 const void **buffers)
{
    for (size_t i = 0; i < extension->given.n_buffers; i++) {
        size_t bytes = extension->buffers[i].count * dtype_bytes(extension->buffers[i].dtype);
        buffers[i] = joined;
        for (int shard = 0; shard < extension->n_shards; shard++) {
            kernel_copy(joined + (size_t)shard * bytes,
                        encoded + (size_t)shard * stride + extension->offsets[i], bytes);
        }
        size_t all = (size_t)extension->n_shards * bytes;
        joined += (all + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    }
}

static shoal_status decode_whole(const struct fsdp_param *param, const char *encoded, size_t stride,
                                 char *full)
{
    const struct fsdp_extension *extension = param->extension;
    const void *buffers[SHOAL_GATHER_MAX_BUFFERS] = {NULL};
    shoal_gather_rows rows = describe(param, 0, param->size);
    char *joined = mem_alloc_aligned((size_t)extension->n_shards * extension->bytes, FSDP_ALIGNMENT);
    if (!joined) {
        return SHOAL_ERR_NO_MEMORY;
    }
    join(extension, encoded, stride, joined, buffers);
    shoal_status status = call_decode(param, &rows, buffers, full);
    mem_free(joined);
    return status;
}

shoal_status fsdp_extension_decode_all(const struct fsdp_param *param, const char *encoded, size_t stride,
                                       char *full)
{
    if (!param->extension->given.is_by_rows) {
        return param->count > 0 ? decode_whole(param, encoded, stride, full) : SHOAL_OK;
    }
    for (int shard = 0; shard < param->extension->n_shards; shard++) {
        TRY(fsdp_extension_decode(param, shard, encoded + (size_t)shard * stride, full));
    }
    return SHOAL_OK;
}
