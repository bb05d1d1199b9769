/* SPDX-License-Identifier: MIT */
/* The error that names the members that are missing: missing.h. */
#include "transport/missing.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"

void missing_add(struct missing_members *missing, int group_rank)
{
    if (missing->n_missing == 0) {
        missing->first = group_rank;
    }
    missing->n_missing++;
    /* Room for one more, and for " and N more". */
    if (missing->at + 40 < sizeof missing->names) {
        missing->at +=
            (size_t)snprintf(missing->names + missing->at, sizeof missing->names - missing->at, "%s %d",
                             missing->n_missing > 1 ? "," : "", missing->peers->world_ranks[group_rank]);
        missing->n_named++;
    }
}

shoal_status missing_fail(struct missing_members *missing, const struct collective *collective,
                          uint32_t n_calls)
{
    char call[ERROR_TEXT_BYTES];
    char last_call[64] = "has called nothing on this group";
    if (n_calls > 0) {
        (void)snprintf(last_call, sizeof last_call, "called #%" PRIu32 " last on this group", n_calls - 1);
    }
    if (missing->n_named < missing->n_missing) {
        (void)snprintf(missing->names + missing->at, sizeof missing->names - missing->at, " and %d more",
                       missing->n_missing - missing->n_named);
    }
    return error_set(SHOAL_ERR_TIMEOUT, "%s and rank%s%s did not call it; rank %d %s",
                     transport_describe_timeout(missing->peers, collective, call, sizeof call),
                     missing->n_missing > 1 ? "s" : "", missing->names,
                     missing->peers->world_ranks[missing->first], last_call);
}
