/* SPDX-License-Identifier: MIT */
/* Parameters as a whole, or slices of them, between a rank's memory and the shards of all. For both ways in. */
#ifndef PARALLEL_FSDP_WHOLE_H
#define PARALLEL_FSDP_WHOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/mesh.h"
#include "parallel/fsdp/param.h"

/* Ranks of a mesh are counted replica by replica. */
shoal_status fsdp_check_rank(const struct fsdp_mesh *mesh, const char *call, const char *what, int rank);
bool fsdp_mesh_is_rank(const struct fsdp_mesh *mesh, int rank);

/* Indices of the dimension that is cut; SHOAL_ERR_INVALID, with `call` in front, if there are no such. */
shoal_status fsdp_check_slice(const struct fsdp_param *param, const char *call, int64_t offset,
                              int64_t length, const void *slice);
/* This rank's part of them; false: there is none. */
bool fsdp_param_load_slice(struct fsdp_param *param, int64_t offset, int64_t length, const void *slice);

/* Bytes of what the source of a broadcast needs, and the root of a gather: all shards, padded. */
size_t fsdp_param_blocks_bytes(const struct fsdp_param *param, const struct fsdp_mesh *mesh);
/* Collective: the parts of the source's whole parameter. `blocks` is such memory, on the source alone. */
shoal_status fsdp_param_broadcast(struct fsdp_param *param, const struct fsdp_mesh *mesh, const void *full,
                                  char *blocks, int source);
/* The same with memory of its own. */
shoal_status fsdp_param_broadcast_alone(struct fsdp_param *param, const struct fsdp_mesh *mesh,
                                        const void *full, int source);
/* Collective over one replica: the whole, on one rank. */
shoal_status fsdp_param_gather_to(const struct fsdp_param *param, const struct fsdp_mesh *mesh, void *full,
                                  int root);

/* Collective: the source's bytes, everywhere. */
shoal_status fsdp_mesh_broadcast(const struct fsdp_mesh *mesh, void *data, size_t bytes, int source);
/* Collective: this rank's status if it is a failure, otherwise the first of the others'. */
shoal_status fsdp_mesh_confirm(const struct fsdp_mesh *mesh, shoal_status mine);

#endif
