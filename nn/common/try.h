/* SPDX-License-Identifier: MIT */
/* How errors are passed on: NN_TRY returns the status of a call that failed, NN_TRY_GOTO goes to the cleanup code. */
#ifndef NN_COMMON_TRY_H
#define NN_COMMON_TRY_H

#include "shoal/status.h"

#define NN_TRY(call)                  \
    do {                              \
        shoal_status tried_ = (call); \
        if (tried_ != SHOAL_OK) {     \
            return tried_;            \
        }                             \
    } while (0)

#define NN_TRY_GOTO(status, call, label) \
    do {                                 \
        (status) = (call);               \
        if ((status) != SHOAL_OK) {      \
            goto label;                  \
        }                                \
    } while (0)

#endif
