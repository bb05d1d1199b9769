/* SPDX-License-Identifier: MIT */
/* Packing and unpacking around communication of the program's own. */
#include "parallel/fsdp/custom.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

/* Of shards of several dtypes, so that none lies askew. */
#define BYTES_ALIGNMENT 16

/* Given -------------------------------------------------------------------------------------------------- */

static shoal_status check_functions(const char *call, bool has_call, bool has_allocate, bool has_release)
{
    if (!has_call) {
        return error_set(SHOAL_ERR_INVALID, "%s: call is NULL", call);
    }
    return has_allocate == has_release
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s is given, but %s is not", call,
                           has_allocate ? "allocate" : "release", has_allocate ? "release" : "allocate");
}

shoal_status fsdp_custom_read_gather(const char *call, const shoal_custom_all_gather *given,
                                     shoal_custom_all_gather *custom_out)
{
    *custom_out = (shoal_custom_all_gather){.call = NULL};
    if (!given) {
        return SHOAL_OK;
    }
    TRY(struct_size_read("shoal_custom_all_gather", given, sizeof(size_t), custom_out, sizeof *custom_out));
    return check_functions(call, custom_out->call, custom_out->allocate, custom_out->release);
}

shoal_status fsdp_custom_read_scatter(const char *call, const shoal_custom_reduce_scatter *given,
                                      shoal_custom_reduce_scatter *custom_out)
{
    *custom_out = (shoal_custom_reduce_scatter){.call = NULL};
    if (!given) {
        return SHOAL_OK;
    }
    TRY(struct_size_read("shoal_custom_reduce_scatter", given, sizeof(size_t), custom_out,
                         sizeof *custom_out));
    return check_functions(call, custom_out->call, custom_out->allocate, custom_out->release);
}

/* Memory ------------------------------------------------------------------------------------------------- */

static shoal_status allocate(shoal_custom_allocate function, void *context, size_t bytes, char **memory_out)
{
    error_clear();
    *memory_out = function ? function(context, bytes) : mem_alloc_aligned(bytes, FSDP_ALIGNMENT);
    if (*memory_out) {
        return SHOAL_OK;
    }
    return function ? error_set(SHOAL_ERR_NO_MEMORY, "allocate gave no memory for %zu bytes", bytes)
                    : SHOAL_ERR_NO_MEMORY;
}

static void release(shoal_custom_release function, void *context, char **memory, size_t bytes)
{
    if (*memory && function) {
        function(context, *memory, bytes);
    } else {
        mem_free(*memory);
    }
    *memory = NULL;
}

static size_t at_least_one(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

void fsdp_custom_drop_work(shoal_work **work)
{
    char text[ERROR_TEXT_BYTES];
    if (!*work) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status status = shoal_work_wait(*work, -1);
    (void)error_set(status, "%s", text);
    shoal_work_free(*work);
    *work = NULL;
}

/* Gathers ------------------------------------------------------------------------------------------------ */

/* Who gathers what. */
struct rows {
    shoal_group *group;
    size_t n_rows;
    size_t mine;
    bool is_kept;
    bool is_mixed; /* parameters of several dtypes: bytes */
    shoal_dtype dtype;
    size_t bytes; /* of a row */
};

static bool is_mixed(const struct fsdp_unit *unit)
{
    for (size_t i = 1; i < unit->n_params; i++) {
        if (unit->params[i].compute != unit->params[0].compute) {
            return true;
        }
    }
    return false;
}

/* Elements of a parameter in a row. */
static size_t count_in_row(const struct rows *rows, const struct fsdp_unit *unit,
                           const struct fsdp_param *param)
{
    return rows->is_kept ? (size_t)unit->context->mesh.n_shards * param->padded_count / rows->n_rows
                         : param->padded_count;
}

static size_t bytes_in_row(const struct rows *rows, const struct fsdp_unit *unit,
                           const struct fsdp_param *param)
{
    size_t bytes = count_in_row(rows, unit, param) * dtype_bytes(param->compute);
    return rows->is_mixed ? (bytes + BYTES_ALIGNMENT - 1) / BYTES_ALIGNMENT * BYTES_ALIGNMENT : bytes;
}

static struct rows rows_of(const struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = &unit->context->mesh;
    bool is_kept = unit->state == FSDP_KEPT;
    int n_rows = is_kept ? unit->reshard_ranks : mesh->n_shards;
    struct rows rows = {.group = is_kept ? unit->neighbours->windows.group : mesh->gather,
                        .n_rows = (size_t)n_rows,
                        .mine = (size_t)(mesh->shard % n_rows),
                        .is_kept = is_kept,
                        .is_mixed = is_mixed(unit)};
    rows.dtype = rows.is_mixed ? SHOAL_U8 : unit->params[0].compute;
    for (size_t i = 0; i < unit->n_params; i++) {
        rows.bytes += bytes_in_row(&rows, unit, &unit->params[i]);
    }
    return rows;
}

static void pack_row(const struct rows *rows, const struct fsdp_unit *unit, char *row)
{
    memset(row, 0, rows->bytes);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (rows->is_kept) {
            kernel_cast(param->compute, row, param->compute, param->kept, param->kept_count);
        } else {
            kernel_cast(param->compute, row, param->dtype, param->shard, param->padded_count);
        }
        row += bytes_in_row(rows, unit, param);
    }
}

/* Rows of a parameter without its padding: a piece of each of the outer dimension. */
static void unpack_shard(const struct fsdp_param *param, size_t w, const char *from, char *full)
{
    size_t element_bytes = dtype_bytes(param->compute);
    int64_t begin;
    int64_t end;
    fsdp_param_rows(param, (int64_t)w, &begin, &end);
    size_t piece = (size_t)((end - begin) * param->inner) * element_bytes;
    for (int64_t o = 0; o < param->outer && piece > 0; o++) {
        size_t to = (size_t)((o * param->size + begin) * param->inner) * element_bytes;
        kernel_copy(full + to, from + (size_t)o * piece, piece);
    }
}

/* Slices of the whole as it lies. */
static void unpack_kept(const struct fsdp_param *param, size_t w, size_t length, const char *from, char *full)
{
    size_t element_bytes = dtype_bytes(param->compute);
    size_t begin = w * length;
    if (begin < param->count) {
        size_t count = param->count - begin < length ? param->count - begin : length;
        kernel_copy(full + begin * element_bytes, from, count * element_bytes);
    }
}

static void unpack_row(const struct rows *rows, const struct fsdp_unit *unit, size_t w, const char *row)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        char *full = unit->full + param->window_offset;
        if (rows->is_kept) {
            unpack_kept(param, w, count_in_row(rows, unit, param), row, full);
        } else {
            unpack_shard(param, w, row, full);
        }
        row += bytes_in_row(rows, unit, param);
    }
}

static shoal_status start_gather(struct fsdp_unit *unit)
{
    const shoal_custom_all_gather *custom = &unit->custom_gather;
    struct rows rows = rows_of(unit);
    unit->staged_bytes = at_least_one(rows.n_rows * rows.bytes);
    TRY(allocate(custom->allocate, custom->context, unit->staged_bytes, &unit->staged));
    char *mine = unit->staged + rows.mine * rows.bytes;
    pack_row(&rows, unit, mine);
    error_clear();
    return custom->call(custom->context, unit->staged, mine, rows.bytes / dtype_bytes(rows.dtype), rows.dtype,
                        rows.group, &unit->gather);
}

shoal_status fsdp_custom_start_gather(struct fsdp_unit *unit)
{
    shoal_status status = start_gather(unit);
    if (status != SHOAL_OK) {
        status = error_prefix(status, "a custom all-gather");
        fsdp_custom_drop_gather(unit);
    }
    return status;
}

shoal_status fsdp_custom_end_gather(struct fsdp_unit *unit)
{
    struct rows rows = rows_of(unit);
    unit->full = mem_alloc_aligned(at_least_one(unit->window_bytes), FSDP_ALIGNMENT);
    for (size_t w = 0; unit->full && w < rows.n_rows; w++) {
        unpack_row(&rows, unit, w, unit->staged + w * rows.bytes);
    }
    fsdp_custom_drop_gather(unit);
    return unit->full ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

void fsdp_custom_drop_gather(struct fsdp_unit *unit)
{
    const shoal_custom_all_gather *custom = &unit->custom_gather;
    if (unit->staged) {
        fsdp_custom_drop_work(&unit->gather);
        release(custom->release, custom->context, &unit->staged, unit->staged_bytes);
    }
}

/* Reduce-scatters ---------------------------------------------------------------------------------------- */

static size_t count_scattered(const struct fsdp_unit *unit)
{
    size_t count = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        count += unit->params[i].is_reduced ? unit->params[i].padded_count : 0;
    }
    return count;
}

/* From a region for each parameter to a row for each rank. */
static void pack_blocks(const struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    char *to = reduction->staged;
    for (size_t w = 0; w < (size_t)unit->context->mesh.n_shards; w++) {
        for (size_t i = 0; i < unit->n_params; i++) {
            const struct fsdp_param *param = &unit->params[i];
            size_t bytes = param->padded_count * dtype_bytes(unit->reduce_dtype);
            if (param->is_reduced) {
                kernel_copy(to, reduction->buffer->data + param->reduce_offset + w * bytes, bytes);
                to += bytes;
            }
        }
    }
}

/* The input and what comes out lie in one piece each. */
static shoal_status start_scatter(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = &unit->context->mesh;
    const shoal_custom_reduce_scatter *custom = &unit->custom_scatter;
    size_t count = count_scattered(unit);
    size_t bytes = count * dtype_bytes(unit->reduce_dtype);
    reduction->scattered_bytes = at_least_one(bytes);
    reduction->staged_bytes = at_least_one((size_t)mesh->n_shards * bytes);
    TRY(allocate(custom->allocate, custom->context, reduction->staged_bytes, &reduction->staged));
    TRY(allocate(custom->allocate, custom->context, reduction->scattered_bytes, &reduction->scattered));
    pack_blocks(reduction);
    error_clear();
    return custom->call(custom->context, reduction->scattered, reduction->staged, count, unit->reduce_dtype,
                        reduction->factors.scatter, reduction->factors.premul, mesh->reduce,
                        &reduction->work);
}

shoal_status fsdp_custom_start_scatter(struct fsdp_reduction *reduction)
{
    shoal_status status = start_scatter(reduction);
    if (status != SHOAL_OK) {
        status = error_prefix(status, "a custom reduce-scatter");
        fsdp_custom_drop_work(&reduction->work);
        fsdp_custom_drop_scatter(reduction);
    }
    return status;
}

void fsdp_custom_end_scatter(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const char *from = reduction->scattered;
    for (size_t i = 0; from && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        size_t bytes = param->padded_count * dtype_bytes(unit->reduce_dtype);
        if (param->is_reduced) {
            kernel_copy(reduction->output + param->output_offset, from, bytes);
            from += bytes;
        }
    }
    fsdp_custom_drop_scatter(reduction);
}

void fsdp_custom_drop_scatter(struct fsdp_reduction *reduction)
{
    const shoal_custom_reduce_scatter *custom = &reduction->unit->custom_scatter;
    release(custom->release, custom->context, &reduction->staged, reduction->staged_bytes);
    release(custom->release, custom->context, &reduction->scattered, reduction->scattered_bytes);
}
