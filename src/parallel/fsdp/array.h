/* SPDX-License-Identifier: MIT */
/* Arrays that are cut like a parameter, for lists of items. */
#ifndef PARALLEL_FSDP_ARRAY_H
#define PARALLEL_FSDP_ARRAY_H

#include "shoal/fsdp_unit.h"

/* Tells how an array that is cut like the parameter lies, also when the world is closed. SHOAL_ERR_INVALID: `data`, this
   rank's part of the array, holds the values of the parameter itself, or is NULL although the part has elements. Error
   texts begin with `call`. */
shoal_status fsdp_array_layout(const char *call, const shoal_fsdp_param *param, const void *data,
                               shoal_shard_layout *layout_out);

#endif
