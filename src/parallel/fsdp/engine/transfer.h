/* SPDX-License-Identifier: MIT */
/* Parameters and arrays of their shape, as a whole, between a rank's memory and the shards of all. For both ways in. */
#ifndef PARALLEL_FSDP_ENGINE_TRANSFER_H
#define PARALLEL_FSDP_ENGINE_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/engine/lanes.h"
#include "parallel/fsdp/engine/param.h"
#include "shoal/fsdp.h"

/* Ranks of a mesh are counted replica by replica. */
shoal_status fsdp_check_rank(const struct fsdp_mesh *mesh, const char *what, int rank);
/* Whether there is memory for a whole array, on every rank; or there is such a rank, and on it there is. */
shoal_status fsdp_check_full(const struct fsdp_param *param, const void *full);
shoal_status fsdp_check_root(const struct fsdp_mesh *mesh, const struct fsdp_param *param, const char *what,
                             int rank, const void *full);
bool fsdp_mesh_is_rank(const struct fsdp_mesh *mesh, int rank);

/* What programs see of how a parameter is cut; `unit` is its unit's number, or -1. */
shoal_shard_layout fsdp_layout_of(const struct fsdp_param *param, const struct fsdp_mesh *mesh, int unit);

/* Indices of the dimension that is cut; SHOAL_ERR_INVALID, with `call` in front, if there are no such. */
shoal_status fsdp_check_slice(const struct fsdp_param *param, const char *call, int64_t offset,
                              int64_t length, const void *slice);

/* Bytes of what the source of a broadcast needs, and the root of a gather: all shards, padded. */
size_t fsdp_array_blocks_bytes(const struct fsdp_array *array, const struct fsdp_mesh *mesh);

/* These are collective, and all ranks have been found to make the same call. A rank that has no memory is an error on all
   of them, before anything has moved. */

/* The parts of the whole array that the source has, on all ranks. */
shoal_status fsdp_array_broadcast(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                                  const void *full, int source);
/* The same for the values of a parameter, with memory for the blocks on the source: needs no other. */
shoal_status fsdp_param_broadcast(const struct fsdp_param *param, const struct fsdp_mesh *mesh,
                                  const void *full, char *blocks, int source);
/* The whole, on every rank; each replica has its own. */
shoal_status fsdp_array_gather(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full);
/* The whole, on one rank. */
shoal_status fsdp_array_gather_to(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full,
                                  int root);

/* Collective: the source's bytes, everywhere. */
shoal_status fsdp_mesh_broadcast(const struct fsdp_mesh *mesh, void *data, size_t bytes, int source);
/* Collective: this rank's status if it is a failure, otherwise the first of the others'. */
shoal_status fsdp_mesh_confirm(const struct fsdp_mesh *mesh, shoal_status mine);

#endif
