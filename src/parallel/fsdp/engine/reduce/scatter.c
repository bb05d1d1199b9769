/* SPDX-License-Identifier: MIT */
/* The collectives of a reduction. One list of regions is one collective. */
#include "parallel/fsdp/engine/reduce/scatter.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/custom.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* Where a parameter has its place in the buffer of the reduction. */
static struct address region_of(const struct fsdp_reduction *reduction, const struct fsdp_param *param)
{
    return address_add(reduction->buffer->data, (ptrdiff_t)param->reduce_offset);
}

/* By the library ----------------------------------------------------------------------------------------- */

struct address fsdp_reduction_output(const struct fsdp_reduction *reduction, const struct fsdp_param *param)
{
    const struct fsdp_unit *unit = reduction->unit;
    size_t block_bytes = param->padded_count * dtype_bytes(unit->grads.dtype);
    return address_is_none(reduction->output)
               ? address_add(region_of(reduction, param),
                             (ptrdiff_t)((size_t)unit->mesh->shard * block_bytes))
               : address_add(reduction->output, (ptrdiff_t)param->output_offset);
}

/* Lists what is reduced: for the reduce-scatter from regions of the buffer to results, for the all-reduce the results
   in place. */
static shoal_status list_parts(const struct fsdp_reduction *reduction, bool is_scatter,
                               shoal_part **parts_out, size_t *n_parts_out)
{
    const struct fsdp_unit *unit = reduction->unit;
    size_t n = 0;
    shoal_part *parts = mem_alloc(unit->n_params * sizeof *parts);
    if (!parts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            struct address recv = fsdp_reduction_output(reduction, param);
            parts[n++] =
                (shoal_part){.send = address_pointer(is_scatter ? region_of(reduction, param) : recv),
                             .recv = address_pointer(recv),
                             .count = param->padded_count};
        }
    }
    *parts_out = parts;
    *n_parts_out = n;
    return SHOAL_OK;
}

static shoal_status start_ours(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = unit->mesh;
    struct purpose purpose = fsdp_reduction_purpose(unit, PURPOSE_FSDP_REDUCE);
    struct collective call = {
        .kind = COLLECTIVE_REDUCE_SCATTER,
        .dtype = unit->grads.dtype,
        .device = unit->device,
        .reduce = reduction->factors.scatter,
        .factor = reduction->factors.scatter == SHOAL_PREMUL_SUM ? reduction->factors.premul : 0.0,
        .purpose = &purpose};
    shoal_part *parts;
    size_t n_parts;
    TRY(list_parts(reduction, true, &parts, &n_parts));
    shoal_status status = collectives_start_list(mesh->reduce, &call, parts, n_parts, &reduction->work);
    mem_free(parts);
    return status;
}

shoal_status fsdp_start_all_reduce(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    struct purpose purpose =
        fsdp_replica_purpose(unit->mesh, fsdp_reduction_purpose(unit, PURPOSE_FSDP_ALL_REDUCE));
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = unit->grads.dtype,
                              .device = unit->device,
                              .reduce = reduction->factors.all_reduce,
                              .purpose = &purpose};
    shoal_part *parts;
    size_t n_parts;
    TRY(fsdp_mark_reduction(unit, PURPOSE_FSDP_ALL_REDUCE));
    TRY(list_parts(reduction, false, &parts, &n_parts));
    shoal_status status =
        collectives_start_list(unit->mesh->replicate, &call, parts, n_parts, &reduction->work);
    mem_free(parts);
    reduction->is_all_reduce = true;
    return status;
}

/* By the program ----------------------------------------------------------------------------------------- */

static size_t count_scattered(const struct fsdp_unit *unit)
{
    size_t count = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        count += unit->params[i].is_reduced ? unit->params[i].padded_count : 0;
    }
    return count;
}

/* Copies gradients from the buffer, which has a region for each parameter, to rows, one for each rank. */
static void pack_blocks(const struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    struct address to = reduction->staged;
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t w = 0; w < (size_t)unit->mesh->n_shards; w++) {
        for (size_t i = 0; i < unit->n_params; i++) {
            const struct fsdp_param *param = &unit->params[i];
            size_t bytes = param->padded_count * dtype_bytes(unit->grads.dtype);
            if (param->is_reduced) {
                moves_copy(&moves, unit->grads.dtype, to,
                           address_add(region_of(reduction, param), (ptrdiff_t)(w * bytes)),
                           param->padded_count);
                to = address_add(to, (ptrdiff_t)bytes);
            }
        }
    }
    moves_end(&moves);
}

/* The input and the result of a custom reduce-scatter each lie in one piece. */
static shoal_status start_custom(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = unit->mesh;
    const shoal_custom_reduce_scatter *custom = &unit->hooks.reduce_scatter;
    size_t count = count_scattered(unit);
    size_t bytes = count * dtype_bytes(unit->grads.dtype);
    reduction->scattered_bytes = fsdp_custom_bytes(bytes);
    reduction->staged_bytes = fsdp_custom_bytes((size_t)mesh->n_shards * bytes);
    TRY(fsdp_custom_allocate(unit, custom->allocate, custom->context, reduction->staged_bytes,
                             &reduction->staged));
    TRY(fsdp_custom_allocate(unit, custom->allocate, custom->context, reduction->scattered_bytes,
                             &reduction->scattered));
    pack_blocks(reduction);
    struct purpose purpose = fsdp_reduction_purpose(reduction->unit, PURPOSE_FSDP_REDUCE);
    TRY(collectives_barrier_start(mesh->reduce, &purpose, &reduction->compared));
    error_clear();
    unit->context->n_callbacks++;
    shoal_status status =
        custom->call(custom->context, address_pointer(reduction->scattered),
                     address_pointer(reduction->staged), count, unit->grads.dtype, reduction->factors.scatter,
                     reduction->factors.premul, mesh->reduce, &reduction->work);
    unit->context->n_callbacks--;
    return status;
}

static shoal_status start_custom_or_fail(struct fsdp_reduction *reduction)
{
    shoal_status status = start_custom(reduction);
    if (status != SHOAL_OK) {
        status = fsdp_mark_failure(reduction->unit, error_prefix(status, "a custom reduce-scatter"));
        fsdp_custom_drop_work(&reduction->work);
        fsdp_drop_scatter(reduction);
    }
    return status;
}

shoal_status fsdp_start_scatter(struct fsdp_reduction *reduction)
{
    return reduction->unit->hooks.reduce_scatter.call ? start_custom_or_fail(reduction)
                                                      : start_ours(reduction);
}

void fsdp_end_scatter(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    struct address from = reduction->scattered;
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; !address_is_none(from) && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        size_t bytes = param->padded_count * dtype_bytes(unit->grads.dtype);
        if (param->is_reduced) {
            moves_copy(&moves, unit->grads.dtype, fsdp_reduction_output(reduction, param), from,
                       param->padded_count);
            from = address_add(from, (ptrdiff_t)bytes);
        }
    }
    moves_end(&moves);
    fsdp_drop_scatter(reduction);
}

void fsdp_drop_scatter(struct fsdp_reduction *reduction)
{
    shoal_work_free(reduction->compared);
    reduction->compared = NULL;
    const shoal_custom_reduce_scatter *custom = &reduction->unit->hooks.reduce_scatter;
    fsdp_custom_release(reduction->unit, custom->release, custom->context, &reduction->staged,
                        reduction->staged_bytes);
    fsdp_custom_release(reduction->unit, custom->release, custom->context, &reduction->scattered,
                        reduction->scattered_bytes);
}
