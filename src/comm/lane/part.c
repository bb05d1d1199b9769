/* SPDX-License-Identifier: MIT */
/* Connecting a part of a group: one thread at a time, and what a failure means. */
#include "comm/lane/part.h"

#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "base/wait.h"

/* Between two attempts to take the mutex from a thread that is connecting. */
#define CONNECT_NAP_NS 1000000

shoal_status part_lock_to_connect(const struct part *part, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        TRY(part->calls->failure(part->group));
        if (clock_now_ns() >= deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT,
                             "connecting group %s: another thread is connecting it, and still waits for an "
                             "answer of rank %d",
                             transport_group_name(part->peers), part->peers->holder);
        }
        wait_sleep(CONNECT_NAP_NS);
    }
    return SHOAL_OK;
}

shoal_status part_fail_unissued(const struct part *part, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (shoal_status_reach(status) == SHOAL_REACH_CALL) {
        return status;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    part->calls->poison(part->group, status, text);
    (void)error_set(status, "%s", text);
    part->calls->report(part->group);
    return status;
}
