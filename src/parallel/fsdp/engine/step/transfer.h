/* SPDX-License-Identifier: MIT */
/* Moves whole parameters, and arrays of their shape, between the memory of a rank and the shards of all ranks. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_TRANSFER_H
#define PARALLEL_FSDP_ENGINE_STEP_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "shoal/fsdp.h"

struct fsdp_context;

/* Checks the number of a rank. Ranks of a mesh are counted replica by replica. */
shoal_status fsdp_check_rank(const struct fsdp_mesh *mesh, const char *what, int rank);
/* fsdp_check_full: `full` is given, as in calls in which every rank needs the whole. fsdp_check_root: `rank` exists;
   on that rank, `full` is given. */
shoal_status fsdp_check_full(const struct fsdp_param *param, const void *full);
shoal_status fsdp_check_root(const struct fsdp_mesh *mesh, const struct fsdp_param *param, const char *what,
                             int rank, const void *full);
bool fsdp_mesh_is_rank(const struct fsdp_mesh *mesh, int rank);

/* Describes how a parameter is cut. `unit` is the number of its unit, or -1. */
shoal_shard_layout fsdp_layout_of(const struct fsdp_param *param, const struct fsdp_mesh *mesh, int unit);

/* Checks indices of the dimension that is cut. If they are out of range, SHOAL_ERR_INVALID with `call` in front. */
shoal_status fsdp_check_slice(const struct fsdp_param *param, const char *call, int64_t offset,
                              int64_t length, const void *slice);

/* The bytes that the source of a broadcast or the root of a gather needs: all shards, padded. */
size_t fsdp_array_blocks_bytes(const struct fsdp_array *array, const struct fsdp_mesh *mesh);

/* The following calls are collective, and come after a comparison: all ranks make the same call. If a rank has
   no memory, all ranks fail, before anything has moved. */

/* Cuts the whole array of the source, and gives every rank its part. */
shoal_status fsdp_array_broadcast(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                                  const void *full, int source);
/* fsdp_array_broadcast for the values of a parameter. The source passes memory of fsdp_array_blocks_bytes, and, if the
   parameter is not in host memory, all ranks pass `padded` with room for padded_count elements; no other memory is
   needed. */
shoal_status fsdp_param_broadcast(const struct fsdp_param *param, const struct fsdp_mesh *mesh,
                                  const void *full, char *blocks, char *padded, int source);
/* Gathers the whole array on every rank, within each replica. */
shoal_status fsdp_array_gather(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full);
/* Gathers the whole array on one rank. */
shoal_status fsdp_array_gather_to(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full,
                                  int root);

/* Collective. Gives all ranks the bytes of the source. */
shoal_status fsdp_mesh_broadcast(const struct fsdp_mesh *mesh, void *data, size_t bytes, int source);
/* Collective. Returns this rank's status if it is a failure, otherwise the first failure of another rank. */
shoal_status fsdp_mesh_confirm(const struct fsdp_mesh *mesh, shoal_status mine);
/* The same over all ranks of a context. */
shoal_status fsdp_context_confirm(const struct fsdp_context *context, shoal_status mine);

#endif
