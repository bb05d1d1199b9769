/* SPDX-License-Identifier: MIT */
/* The agreement of ranks on which unit is on which mesh, and the common lane that it is made on. */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_MESHES_H
#define PARALLEL_FSDP_ENGINE_AGREE_MESHES_H

#include "parallel/fsdp/engine/state/context.h"

/*
 * Collective, if the context has several domains and this was not called before: makes the common lane, over all ranks
 * of all domains, and compares over it which unit is on which ranks. A difference is SHOAL_ERR_MISMATCH on all ranks; the
 * lanes have failed then. Call it before anything is issued on the lane of a domain.
 */
shoal_status fsdp_agree_on_meshes(struct fsdp_context *context);

#endif
