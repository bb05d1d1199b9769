/* SPDX-License-Identifier: MIT */
/* Gathers where there is one shard: it is the whole parameter. Memory is needed only if parameters are cast. */
#include "base/trace.h"
#include "base/try.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/gather/encoded.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/gather/way.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"

static shoal_status start(struct fsdp_unit *unit)
{
    (void)unit;
    return SHOAL_OK;
}

static shoal_status finish(struct fsdp_unit *unit)
{
    bool needs_memory = false;
    for (size_t i = 0; i < unit->n_params; i++) {
        needs_memory =
            needs_memory || unit->params[i].extension || unit->params[i].compute != unit->params[i].dtype;
    }
    if (!needs_memory) {
        return SHOAL_OK;
    }
    TRY(fsdp_full_allocate(unit));
    uint64_t begin_ticks = trace_begin();
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (!param->extension) {
            moves_add(&moves, (struct kernel_move){.dst = fsdp_full_at(unit, param),
                                                   .src = param->shard,
                                                   .count = param->count,
                                                   .dst_dtype = param->compute,
                                                   .src_dtype = param->dtype});
        }
    }
    moves_end(&moves);
    trace_end(begin_ticks, TRACE_OP, "fsdp.cast_parameters");
    shoal_status status = fsdp_encoded_alone(unit);
    if (status != SHOAL_OK) {
        fsdp_full_free(unit);
    }
    return status;
}

const struct fsdp_gather_way fsdp_gather_alone = {.name = "alone", .start = start, .finish = finish};
