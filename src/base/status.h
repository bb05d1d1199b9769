/* SPDX-License-Identifier: MIT */
/* Asking about numbers that came from a function that is not ours. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdbool.h>

#include "shoal/status.h"

/* False for a number that is no row of status.def. */
bool status_is_known(shoal_status status);

#endif
