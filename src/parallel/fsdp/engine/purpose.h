/* SPDX-License-Identifier: MIT */
/*
 * What every collective of sharding is for (transport/purpose.h): numbers that ranks compare, and words for the error of
 * those that differ.
 */
#ifndef PARALLEL_FSDP_ENGINE_PURPOSE_H
#define PARALLEL_FSDP_ENGINE_PURPOSE_H

#include "parallel/fsdp/engine/context.h"
#include "transport/purpose.h"

/* A unit's gather, or the memory for it. Valid as long as the unit. */
struct purpose fsdp_unit_purpose(const struct fsdp_unit *unit, enum purpose_id id);

/* A unit's reduction. It also tells which of the unit's parameters take part, and the settings that it is made with. Valid
   until the unit's next one. */
struct purpose fsdp_reduction_purpose(struct fsdp_unit *unit, enum purpose_id id);

/* A call on a whole context, or on its parameters. */
struct purpose fsdp_context_purpose(const struct fsdp_context *context, enum purpose_id id);

/* A purpose as it is compared between replicas. */
struct purpose fsdp_replica_purpose(const struct fsdp_mesh *mesh, struct purpose purpose);

/* A mark between passes: also how the pass that it belongs to goes. `words` has PURPOSE_WORDS_BYTES, and is what the purpose
   points to. */
struct purpose fsdp_pass_purpose(const struct fsdp_context *context, enum purpose_id id, char *words);

#endif
