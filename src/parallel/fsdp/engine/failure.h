/* SPDX-License-Identifier: MIT */
/* With the explicit calls, every call fails with the first reason once the group has failed: what is remembered of that. */
#ifndef PARALLEL_FSDP_ENGINE_FAILURE_H
#define PARALLEL_FSDP_ENGINE_FAILURE_H

#include "parallel/fsdp/engine/context.h"

/* Not all calls talk to others, but all fail once the group has. */
shoal_status fsdp_check_failure(const struct fsdp_context *context);
/* The end of a call that others took part in: its name begins the text, and what lasts is remembered. */
shoal_status fsdp_end_call(struct fsdp_context *context, const char *call, shoal_status status);

/* The same for calls on a unit or its parameters. Modules remember nothing: their lanes fail again. */
shoal_status fsdp_unit_check_failure(const struct fsdp_unit *unit);
shoal_status fsdp_unit_end_call(struct fsdp_unit *unit, const char *call, shoal_status status);

#endif
