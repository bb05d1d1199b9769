/* SPDX-License-Identifier: MIT */
/*
 * Hooks of shoal_on_accumulated on shards, in compiled steps. They are functions of the program, so no graph has them: they
 * run after each run of the step, in the order in which gradients land. That is the same as in an eager step only if
 * the step does nothing more with the shard and its gradient after they landed; a step that does is refused.
 */
#ifndef PARALLEL_FSDP_MODULE_LANDED_H
#define PARALLEL_FSDP_MODULE_LANDED_H

#include "op/tracer.h"
#include "parallel/fsdp/module/wrapper.h"

/* What a hook needs; the graph owns it. */
struct fsdp_landed;

/* A gradient has landed on the shard, in a capture: runs hooks, or adds them to what is done after each run. *landed is
   NULL, or what an earlier landing in the same capture has made. */
shoal_status fsdp_landed_note(struct op_tracer *tracer, struct fsdp_unit *unit, shoal_tensor *sharded,
                              struct fsdp_landed **landed);
/* The shard is read again in the same step. NULL is allowed. */
void fsdp_landed_read_again(struct fsdp_landed *landed);

#endif
