/* SPDX-License-Identifier: MIT */
/* Reductions of gradients: beginning one, and carrying on those that are on their way. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCTION_H
#define PARALLEL_FSDP_ENGINE_REDUCTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/engine/context.h"
#include "parallel/fsdp/engine/factors.h"
#include "shoal/work.h"

/* A reduction on its way. */
struct fsdp_reduction {
    struct fsdp_unit *unit;
    struct fsdp_block *buffer; /* what goes in; and what comes out (fsdp_reduction_output) */
    char *output;              /* of our own, output_bytes, in one piece for a hook; NULL: in the buffer */
    shoal_work *work;          /* NULL: nothing to wait for */
    struct fsdp_factors factors;
    bool all_reduces;
    bool is_all_reduce; /* what the work is: over replicas, or what the hook started */
    bool was_hooked;
    char *staged; /* memory of custom_scatter: what goes in, what comes out */
    size_t staged_bytes;
    char *scattered;
    size_t scattered_bytes;
    shoal_work *compared; /* as in struct fsdp_unit, beside custom_scatter */
    uint64_t n_gathers;   /* fsdp_count_gathers when this one began */
};

/* Memory for the gradients of a backward: zeros, or what an earlier one left. Once for each. */
shoal_status fsdp_unit_begin_grads(struct fsdp_unit *unit);
/* The backward is over: to the reduction, or kept for the next one. */
shoal_status fsdp_unit_end_grads(struct fsdp_unit *unit);
/* Before a backward: what a compiled step has left in the dtype of the reduction goes into the buffer, so that this backward is
   added to it as a whole. */
shoal_status fsdp_unit_take_cast(struct fsdp_unit *unit);
/* Likewise: with SHOAL_SHARDED_STATE this backward adds to what earlier ones have left in the buffer, as it would to a gradient on
   the tensor, so that the sums are the same. */
shoal_status fsdp_unit_lend_grads(struct fsdp_unit *unit);
/* What is kept for the replicas goes to them, without anything new. */
shoal_status fsdp_unit_reduce_partial(struct fsdp_unit *unit);
/* Ends the oldest reductions until at most `n_left` are in flight. */
shoal_status fsdp_drain(struct fsdp_context *context, size_t n_left);
/* Before a unit is gathered: a hook of the program that its gradients are landing for may write the shards, which the gather
   reads. */
shoal_status fsdp_unit_land(struct fsdp_unit *unit);
/* Gives up all of them. */
void fsdp_drop_reductions(struct fsdp_context *context);

#endif
