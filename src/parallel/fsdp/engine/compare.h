/* SPDX-License-Identifier: MIT */
/*
 * Barriers that compare a call before it does anything; and, once ranks were found to differ on one lane, how those that
 * wait on another are told.
 */
#ifndef PARALLEL_FSDP_ENGINE_COMPARE_H
#define PARALLEL_FSDP_ENGINE_COMPARE_H

#include "parallel/fsdp/engine/context.h"
#include "parallel/fsdp/engine/param.h"
#include "parallel/fsdp/engine/purpose.h"

/*
 * Collective over shards and replicas: all ranks make this call, with these arguments, or SHOAL_ERR_MISMATCH on all. What
 * calls that are made by hand begin with, so that nothing has changed if ranks differ.
 */
shoal_status fsdp_compare(const struct fsdp_mesh *mesh, const struct purpose *purpose);

/* The same for a call on a parameter, the `index`-th of what the purpose names. `rank`: its root or source; -1: none. */
shoal_status fsdp_compare_param(const struct fsdp_mesh *mesh, const struct purpose *purpose,
                                const struct fsdp_param *param, size_t index, int rank);

/* The same for an array that is cut like the parameter. */
shoal_status fsdp_compare_array(const struct fsdp_mesh *mesh, const struct purpose *purpose,
                                const struct fsdp_array *array, size_t index, int rank);

/* The part of fsdp_compare among replicas, where there are some. */
shoal_status fsdp_compare_replicas(const struct fsdp_mesh *mesh, const struct purpose *purpose);

/* With the error text of `status`, of a call on a lane: if ranks were found to differ, those that wait on the other lanes
   are told. Returns status, with the text. */
shoal_status fsdp_tell(const struct fsdp_mesh *mesh, shoal_status status);
/* The same after a gather, which may have been on the lane of neighbours. */
shoal_status fsdp_tell_of(const struct fsdp_unit *unit, shoal_status status);
/* The same after a reduction; the text begins with the unit. Nothing for SHOAL_OK. */
shoal_status fsdp_tell_reduction(const struct fsdp_unit *unit, shoal_status status);
/* All lanes are told, with the error text, which stays. Returns status. */
shoal_status fsdp_tell_lanes(const struct fsdp_mesh *mesh, shoal_status status);

#endif
