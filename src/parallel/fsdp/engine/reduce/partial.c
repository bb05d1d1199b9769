/* SPDX-License-Identifier: MIT */
/* Keeps gradients that were reduced over the shards, until they are reduced over the replicas. */
#include "parallel/fsdp/engine/reduce/partial.h"

#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "parallel/fsdp/engine/reduce/elements.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/reduce/scatter.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* Gradients that are kept have the layout of the backward pass that left them. A later pass can add to them only if the
   same parameters got gradients. */
static shoal_status check_partial(const struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->grads.has_partial && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced != param->is_partial) {
            return error_set(SHOAL_ERR_STATE,
                             "%s: parameter %s has %s gradient, unlike in the previous backward pass, whose "
                             "gradients have not been reduced over the replicas yet",
                             unit->name, param->name, param->is_reduced ? "a" : "no");
        }
    }
    return SHOAL_OK;
}

char *fsdp_partial_at(const struct fsdp_unit *unit, const struct fsdp_param *wanted)
{
    size_t offset = 0;
    for (const struct fsdp_param *param = unit->params; param != wanted; param++) {
        offset += param->is_partial ? fsdp_round_up(param->padded_count * dtype_bytes(unit->grads.dtype)) : 0;
    }
    return unit->grads.partial + offset;
}

shoal_status fsdp_partial_make(struct fsdp_unit *unit)
{
    size_t bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        bytes += param->is_partial ? fsdp_round_up(param->padded_count * dtype_bytes(unit->grads.dtype)) : 0;
    }
    TRY(fsdp_unit_need_memory(unit, &unit->grads.partial, &unit->grads.partial_capacity, bytes));
    unit->grads.has_partial = true;
    return SHOAL_OK;
}

shoal_status fsdp_partial_put(const struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    TRY(fsdp_unit_need_memory(unit, &unit->grads.partial, &unit->grads.partial_capacity,
                              unit->grads.output_bytes));
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        param->is_partial = param->is_reduced;
        if (!param->is_reduced) {
            continue;
        }
        char *partial = unit->grads.partial + param->output_offset;
        const char *from = fsdp_reduction_output(reduction, param);
        if (unit->grads.has_partial) {
            fsdp_add_cast(unit->grads.dtype, partial, unit->grads.dtype, from, param->padded_count);
        } else {
            memcpy(partial, from, param->padded_count * dtype_bytes(unit->grads.dtype));
        }
    }
    unit->grads.has_partial = true;
    return SHOAL_OK;
}

shoal_status fsdp_partial_add(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    for (size_t i = 0; unit->grads.has_partial && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            fsdp_add_cast(unit->grads.dtype, fsdp_reduction_output(reduction, param), unit->grads.dtype,
                          unit->grads.partial + param->output_offset, param->padded_count);
        }
    }
    unit->grads.has_partial = false;
    return SHOAL_OK;
}

void fsdp_partial_take(const struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            memcpy(fsdp_reduction_output(reduction, param), unit->grads.partial + param->output_offset,
                   param->padded_count * dtype_bytes(unit->grads.dtype));
        }
    }
    unit->grads.has_partial = false;
}
