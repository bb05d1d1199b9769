/* SPDX-License-Identifier: MIT */
/* Checking status values that a function outside of the library has returned. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdbool.h>

#include "shoal/status.h"

/* False for a number that is no row of status.def. */
bool status_is_known(shoal_status status);

#endif
