/* SPDX-License-Identifier: MIT */
/* The two ways to pass a failure up. There are no others. */
#ifndef BASE_TRY_H
#define BASE_TRY_H

#include "shoal/status.h"

/* Returns the status of `call` from this function unless it is SHOAL_OK. */
#define TRY(call)                          \
    do {                                   \
        shoal_status try_status_ = (call); \
        if (try_status_ != SHOAL_OK) {     \
            return try_status_;            \
        }                                  \
    } while (0)

/* Stores the status of `call` in `status` and goes to `label` unless it is SHOAL_OK. */
#define TRY_GOTO(status, call, label) \
    do {                              \
        (status) = (call);            \
        if ((status) != SHOAL_OK) {   \
            goto label;               \
        }                             \
    } while (0)

#endif
