/* SPDX-License-Identifier: MIT */
/* Whether a thread may wait: base/callback.h. */
#include "base/callback.h"

#include <string.h>

#include "base/error.h"

_Thread_local uint32_t callback_depth;

/* Captures --------------------------------------------------------------------------------------------- */

static const struct captured_row {
    const char *call;
    bool is_missed;
    const char *instead;
} captured_rows[] = {
#define CAPTURED(call_, is_missed_, instead_) \
    {.call = (call_), .is_missed = (is_missed_), .instead = (instead_)},
#include "base/captured.def"
#undef CAPTURED
};

static _Thread_local const struct captured_row
    *refused; /* the first in the thread's capture that is missed, or NULL */

void callback_forget_refusal(void)
{
    refused = NULL;
}

static shoal_status set_refusal(const char *what, const struct captured_row *row, const char *behind)
{
    return error_set(
        SHOAL_ERR_STATE,
        "%s cannot be called while a step is captured: a captured step can only contain ops%s%s%s", what,
        row ? "; " : "", row ? row->instead : "", behind);
}

shoal_status callback_repeat_refusal(const char *behind)
{
    return refused ? set_refusal(refused->call, refused, behind) : SHOAL_OK;
}

/* NULL if there is no row. */
static const struct captured_row *find_row(const char *call)
{
    for (size_t i = 0; i < sizeof captured_rows / sizeof captured_rows[0]; i++) {
        if (strcmp(captured_rows[i].call, call) == 0) {
            return &captured_rows[i];
        }
    }
    return NULL;
}

static shoal_status refuse_in_capture(const char *what)
{
    const struct captured_row *row = find_row(what);
    if (row && row->is_missed && !refused) {
        refused = row;
    }
    return set_refusal(what, row, "");
}

/* Callbacks -------------------------------------------------------------------------------------------- */

shoal_status callback_refuse(const char *what)
{
    if (callback_is_capturing()) {
        return refuse_in_capture(what);
    }
    return error_set(SHOAL_ERR_STATE,
                     "%s was called in a callback and would have to wait, but callbacks run on a thread that "
                     "others wait for; start the operation instead, or wait on another thread",
                     what);
}
