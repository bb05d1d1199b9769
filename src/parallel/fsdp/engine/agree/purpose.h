/* SPDX-License-Identifier: MIT */
/* The purposes of FSDP's collectives (transport/purpose.h): numbers that ranks compare, and words for the error
   text if they differ. */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_PURPOSE_H
#define PARALLEL_FSDP_ENGINE_AGREE_PURPOSE_H

#include "parallel/fsdp/engine/state/context.h"
#include "transport/purpose.h"

/* The purpose of a unit's gather, or of the memory for it. Valid as long as the unit. */
struct purpose fsdp_unit_purpose(const struct fsdp_unit *unit, enum purpose_id id);

/* The purpose of a unit's reduction. It includes which of the unit's parameters get a gradient, and the settings
   of the reduction. Valid until the unit's next one. */
struct purpose fsdp_reduction_purpose(struct fsdp_unit *unit, enum purpose_id id);

/* The purpose of a mark that says that a reduction of the unit follows. Ranks of other domains compare it, too, and their
   parameters and settings may differ. */
struct purpose fsdp_reduction_mark(const struct fsdp_unit *unit, enum purpose_id id);

/* The purpose of a call on a whole context, or on its parameters. */
struct purpose fsdp_context_purpose(const struct fsdp_context *context, enum purpose_id id);

/* Changes a purpose to the form that replicas compare: it gets their number of the model (replica_root). */
struct purpose fsdp_replica_purpose(const struct fsdp_mesh *mesh, struct purpose purpose);

/* The purpose of a mark between passes. It includes what kind of pass the mark belongs to. The purpose points
   to `words`, which has PURPOSE_WORDS_BYTES. */
struct purpose fsdp_pass_purpose(const struct fsdp_context *context, enum purpose_id id, char *words);

#endif
