/* SPDX-License-Identifier: MIT */
/* Comparing calls that are made by hand on one parameter, or on an array of its shape. */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_COMPARE_PARAM_H
#define PARALLEL_FSDP_ENGINE_AGREE_COMPARE_PARAM_H

#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "transport/purpose.h"

/* fsdp_compare_of for a call on the `index`-th parameter of what the purpose names. `rank`: its root or source, or -1. */
shoal_status fsdp_compare_param(const struct fsdp_unit *unit, const struct purpose *purpose,
                                const struct fsdp_param *param, size_t index, int rank);

/* fsdp_compare_of for an array that is cut like the parameter; its dtype is compared, too. */
shoal_status fsdp_compare_array(const struct fsdp_unit *unit, const struct purpose *purpose,
                                const struct fsdp_array *array, size_t index, int rank);

#endif
