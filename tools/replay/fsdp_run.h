/* SPDX-License-Identifier: MIT */
/* Makes the run of a plan again, with ranks as threads and through modules, and compares all its results. */
#ifndef REPLAY_FSDP_RUN_H
#define REPLAY_FSDP_RUN_H

#include "fsdp_plan.h"
#include "shoal/status.h"

/* What was compared is in the plan's checks; the status says whether the run came to its end. */
shoal_status fsdp_run(const struct fsdp_plan *plan);

#endif
