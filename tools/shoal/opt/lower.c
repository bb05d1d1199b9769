/* SPDX-License-Identifier: MIT */
/* `shoal opt --lower`: plans without ranks. shoal_plan_create is collective, so only its first half is used here. */
#include "opt/opt.h"

#include "graph/plan/plan.h"

#define ONE_SHOT_MAX_BYTES 131072

shoal_status opt_lower(const shoal_graph *graph, const shoal_compile_options *options, shoal_plan **plan_out)
{
    const struct plan_target target = {.rank = 0};
    shoal_compile_options complete = *options;
    if (complete.one_shot_max_bytes == 0) {
        complete.one_shot_max_bytes = ONE_SHOT_MAX_BYTES;
    }
    return plan_lower(graph, &complete, &target, plan_out);
}
