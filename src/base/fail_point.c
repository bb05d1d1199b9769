/* SPDX-License-Identifier: MIT */
/*
 * Counting and firing of fail points (test builds only). Arm one only while no thread passes any: tests arm, run the
 * code, and read the count afterwards.
 */
#include "base/fail_point.h"

#include <stdatomic.h>
#include <stddef.h>

#ifdef SHOAL_FAIL_POINTS

static _Atomic uint64_t n_passages;
static _Atomic uint64_t armed_number;
static _Atomic bool has_only_requests;
static fail_point_action armed_action; /* written before armed_number, read after it */
static void *armed_context;            /* written before armed_number, read after it */

void fail_point_arm(uint64_t number, fail_point_action action, void *context)
{
    atomic_store(&armed_number, 0);
    atomic_store(&n_passages, 0);
    armed_action = action;
    armed_context = context;
    atomic_store(&armed_number, action ? number : 0);
}

uint64_t fail_point_passages(void)
{
    return atomic_load(&n_passages);
}

void fail_point_count_only_requests(bool is_only)
{
    atomic_store(&has_only_requests, is_only);
}

shoal_status fail_point_pass_request(const char *name)
{
    uint64_t number = atomic_fetch_add(&n_passages, 1) + 1;
    if (number != atomic_load(&armed_number)) {
        return SHOAL_OK;
    }
    return armed_action(armed_context, name);
}

shoal_status fail_point_pass(const char *name)
{
    return atomic_load(&has_only_requests) ? SHOAL_OK : fail_point_pass_request(name);
}

#endif
