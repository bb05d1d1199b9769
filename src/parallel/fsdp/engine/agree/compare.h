/* SPDX-License-Identifier: MIT */
/* Barriers by which ranks compare a call before it does anything. Also how ranks that wait on other lanes are
   told that ranks were found to differ on one lane. */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_COMPARE_H
#define PARALLEL_FSDP_ENGINE_AGREE_COMPARE_H

#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/agree/purpose.h"

/*
 * Collective over shards and replicas. All ranks must make this call, with these arguments; otherwise all get
 * SHOAL_ERR_MISMATCH. Calls that a program makes by hand begin with this, so nothing has changed if ranks differ.
 */
shoal_status fsdp_compare(const struct fsdp_mesh *mesh, const struct purpose *purpose);

/* The part of fsdp_compare among replicas. Call only if mesh->replicate is not NULL. */
shoal_status fsdp_compare_replicas(const struct fsdp_mesh *mesh, const struct purpose *purpose);

/* Call with the status and error text of a call on a lane. If it says that ranks differ, the other lanes fail
   with that text, so that ranks which wait on them are told. Returns `status`; the text stays. */
shoal_status fsdp_tell(const struct fsdp_mesh *mesh, shoal_status status);
/* All lanes of a mesh fail with `status` and the error text, which stays: for what has failed on this rank alone while
   others wait for it. Returns `status`. */
shoal_status fsdp_tell_mesh(const struct fsdp_mesh *mesh, shoal_status status);
/* fsdp_tell for all lanes of a context: of each domain, and the common one. With a common lane, they are told of any
   reason for which a lane has failed. */
shoal_status fsdp_tell_all(const struct fsdp_context *context, shoal_status status);
/* fsdp_tell_all after a gather, which may have been on a lane of neighbours. */
shoal_status fsdp_tell_of(const struct fsdp_unit *unit, shoal_status status);
/* fsdp_tell_all after a reduction; puts the unit's name before the text. Does nothing for SHOAL_OK. */
shoal_status fsdp_tell_reduction(const struct fsdp_unit *unit, shoal_status status);
/* All lanes fail with `status` and the error text, which stays. Returns `status`. */
shoal_status fsdp_tell_every_lane(const struct fsdp_context *context, shoal_status status);
/* The failure of any lane, if this rank knows of one. If ranks were found to differ, all lanes are told. */
shoal_status fsdp_check_lanes(const struct fsdp_context *context);

#endif
