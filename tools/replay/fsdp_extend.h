/* SPDX-License-Identifier: MIT */
/* What PyTorch's recorded runs gather of a weight in place of its elements. */
#ifndef REPLAY_FSDP_EXTEND_H
#define REPLAY_FSDP_EXTEND_H

#include "fsdp_case.h"
#include "shoal/module.h"
#include "shoal/status.h"

/* Sets the extension that the case has for every weight of a net that is sharded. */
shoal_status fsdp_extend(const struct fsdp_case *run, shoal_module *net);

#endif
