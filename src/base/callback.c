/* SPDX-License-Identifier: MIT */
/* Whether a thread may wait: base/callback.h. */
#include "base/callback.h"

#include "base/error.h"

_Thread_local uint32_t callback_depth;

shoal_status callback_refuse(const char *what)
{
    if (callback_is_capturing()) {
        return error_set(SHOAL_ERR_STATE,
                         "%s cannot be called while a step is captured: a captured step can only contain ops",
                         what);
    }
    return error_set(SHOAL_ERR_STATE,
                     "%s was called in a callback and would have to wait, but callbacks run on a thread that "
                     "others wait for; start the operation instead, or wait on another thread",
                     what);
}
