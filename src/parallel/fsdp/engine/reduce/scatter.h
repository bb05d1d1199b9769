/* SPDX-License-Identifier: MIT */
/* The collectives of a reduction: a reduce-scatter over the shards, by the library or by an object of the
   program (shoal/fsdp_comm.h), and an all-reduce over the replicas. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_SCATTER_H
#define PARALLEL_FSDP_ENGINE_REDUCE_SCATTER_H

#include "parallel/fsdp/engine/reduce/reduction.h"

/* Where the result for a parameter is: in this rank's block of the buffer, or in separate memory if a hook
   needs one piece. */
struct address fsdp_reduction_output(const struct fsdp_reduction *reduction, const struct fsdp_param *param);

/*
 * fsdp_start_scatter starts the reduce-scatter from the buffer, as reduction->work. When that has ended well,
 * fsdp_end_scatter puts the results into the output; otherwise call fsdp_drop_scatter. Both release memory that the
 * program's object allocated.
 */
shoal_status fsdp_start_scatter(struct fsdp_reduction *reduction);
void fsdp_end_scatter(struct fsdp_reduction *reduction);
void fsdp_drop_scatter(struct fsdp_reduction *reduction);

/* Starts the all-reduce of the output over the replicas, as reduction->work. */
shoal_status fsdp_start_all_reduce(struct fsdp_reduction *reduction);

#endif
