/* SPDX-License-Identifier: MIT */
/* Ranks of a group compare what they are about to run together, before they do. */
#ifndef GRAPH_COMPARE_H
#define GRAPH_COMPARE_H

#include <stdint.h>

#include "graph/plan.h"

/* A group of a plan that is being made, and which plan of the group that is. */
struct compared_group {
    const char *name;
    shoal_group *group;
    uint32_t number; /* from 1, the same on all members */
    /* How often members tell each other what has become of their plans, after they have compared them. Each says how long a way from
       group to group may be as far as it knows; the longest counts (compare_rounds). */
    int64_t n_rounds;
};

/*
 * Collective over the group, even if this rank has failed to make the plan: `mine` is its status. Members compare,
 * line by line, the collectives that the plan makes on the group, with its memory and options. If they differ, all
 * get SHOAL_ERR_MISMATCH with the first line that differs, and the group stays usable. A failure of one member is a
 * failure of all. `plan` may be NULL if `mine` is not SHOAL_OK; the call then returns `mine` and keeps the thread's
 * error text.
 */
shoal_status compare_plans(const struct compared_group *compared, const struct shoal_plan *plan,
                           uint32_t group_index, const shoal_compile_options *options, shoal_status mine);

/* Collective over the group: all members have the most rounds that one of them has. */
shoal_status compare_rounds(struct compared_group *compared);
/* Collective over the group: whether all members have got so far. SHOAL_OK, `mine`, or that of another. */
shoal_status compare_outcomes(const struct compared_group *compared, shoal_status mine);
/* The needs of the group become the most that any member has. */
shoal_status compare_needs(const struct compared_group *compared, struct plan_group *group);

#endif
