/* SPDX-License-Identifier: MIT */
/* A reduction finds the first rank that has failed. */
#include "common/meet.h"

#include "base/error.h"
#include "base/try.h"

#include <stdio.h>

shoal_status tool_meet(shoal_group *group, shoal_status status, int *speaker_out)
{
    char text[ERROR_TEXT_BYTES];
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    int64_t speaker = status == SHOAL_OK ? n_ranks : rank;
    *speaker_out = -1;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (n_ranks > 1) {
        TRY(shoal_group_all_reduce(group, &speaker, &speaker, 1, SHOAL_I64, SHOAL_MIN));
    }
    if (speaker == n_ranks) {
        return SHOAL_OK;
    }
    *speaker_out = (int)speaker;
    return status == SHOAL_OK ? error_set(SHOAL_ERR_STATE, "rank %d cannot go on", (int)speaker)
                              : error_set(status, "%s", text);
}
