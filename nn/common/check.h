/* SPDX-License-Identifier: MIT */
/* Checks of public calls that several of them make. `call` is the name of the call, `name` that of the value. */
#ifndef NN_COMMON_CHECK_H
#define NN_COMMON_CHECK_H

#include <stddef.h>

#include "shoal/op.h"
#include "shoal/status.h"

/* At least 0 and below a limit, which may be infinity. */
static inline shoal_status nn_check_number(const char *call, const char *name, double value, double below)
{
    if (!(value >= 0) || !(value < below)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %g is not at least 0 and below %g", call, name, value,
                          below);
    }
    return SHOAL_OK;
}

#endif
