/* SPDX-License-Identifier: MIT */
/*
 * The collectives of a reduction: over the shards, by the library or by an object of the program (shoal/fsdp_comm.h), and
 * over the replicas.
 */
#ifndef PARALLEL_FSDP_ENGINE_SCATTER_H
#define PARALLEL_FSDP_ENGINE_SCATTER_H

#include "parallel/fsdp/engine/reduction.h"

/* Where the result for a parameter is: in its own rank's block of what went in, unless a hook wants it in one piece. */
char *fsdp_reduction_output(const struct fsdp_reduction *reduction, const struct fsdp_param *param);

/* From the buffer over the shards, with reduction->work; then, once that is over, into the output. The memory of the object
   is given back whatever happens. */
shoal_status fsdp_start_scatter(struct fsdp_reduction *reduction);
void fsdp_end_scatter(struct fsdp_reduction *reduction);
void fsdp_drop_scatter(struct fsdp_reduction *reduction);

/* The output over the replicas, with reduction->work. */
shoal_status fsdp_start_all_reduce(struct fsdp_reduction *reduction);

#endif
