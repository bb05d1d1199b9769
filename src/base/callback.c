/* SPDX-License-Identifier: MIT */
/* Whether a thread may wait: base/callback.h. */
#include "base/callback.h"

#include "base/error.h"

_Thread_local uint32_t callback_depth;

shoal_status callback_refuse(const char *what)
{
    if (callback_is_capturing()) {
        return error_set(SHOAL_ERR_STATE, "%s while a step is captured: ranks do only ops together then",
                         what);
    }
    return error_set(
        SHOAL_ERR_STATE,
        "%s in a callback: it would wait, and others wait for the thread that the callback runs on; "
        "start the operation instead, or wait on another thread",
        what);
}
