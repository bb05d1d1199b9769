/* SPDX-License-Identifier: MIT */
/* Remembers the first failure of a context: with the explicit calls, every later call then fails with the same
   reason. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_FAILURE_H
#define PARALLEL_FSDP_ENGINE_STATE_FAILURE_H

#include "parallel/fsdp/engine/state/context.h"

/* SHOAL_OK, or the failure that is remembered. Call also from calls that do not talk to other ranks. */
shoal_status fsdp_check_failure(const struct fsdp_context *context);
/* Call at the end of a collective call: puts its name before the text, and remembers a failure that is permanent. */
shoal_status fsdp_end_call(struct fsdp_context *context, const char *call, shoal_status status);

/* fsdp_check_failure and fsdp_end_call, for calls on a unit or its parameters. Modules remember nothing: their lanes
   fail again by themselves. */
shoal_status fsdp_unit_check_failure(const struct fsdp_unit *unit);
shoal_status fsdp_unit_end_call(struct fsdp_unit *unit, const char *call, shoal_status status);

#endif
