/* SPDX-License-Identifier: MIT */
/* Lets the ranks of a group compare their plans before they run them. */
#ifndef GRAPH_RUN_COMPARE_H
#define GRAPH_RUN_COMPARE_H

#include <stdint.h>

#include "graph/plan/plan.h"

struct captured; /* captured.h */
struct machine;  /* graph/analysis/machine.h */

/* A group of a plan that is being made, and which plan of the group that is. */
struct compared_group {
    const char *name;
    shoal_group *group;
    uint32_t number;                 /* from 1, the same on all members */
    const struct captured *captured; /* of the graph; NULL if it was not captured */
    const struct machine *machine;   /* of the graph; NULL if no pass has asked for one */
    /* In how many rounds members tell each other, after the comparison, whether it has failed somewhere (tell_all in
       bind.c). Each rank begins with as many as its own graph may need; compare_rounds takes the largest number. */
    int64_t n_rounds;
};

/*
 * Collective over the group, even if this rank has failed to make the plan: `mine` is its status. Members compare,
 * line by line, the options, the machine of their passes, how many variants the compiled step keeps and which of them
 * gives way, the collectives that the plan makes on the group, and what wrapped modules have said that the collectives
 * of the captured step are for. If they differ, all get SHOAL_ERR_MISMATCH with the first line that differs, and the
 * group stays usable. A failure of one member is a failure of all. `plan` may be NULL if `mine` is not SHOAL_OK; the
 * call then returns `mine` and keeps the thread's error text.
 */
shoal_status compare_plans(const struct compared_group *compared, const struct shoal_plan *plan,
                           uint32_t group_index, const shoal_compile_options *options, shoal_status mine);

/* Sets n_rounds to the largest n_rounds of all members. Collective over the group. */
shoal_status compare_rounds(struct compared_group *compared);
/* Tells the other members the status of this rank. Returns `mine` if it is not SHOAL_OK, otherwise the status of a
   member that failed, or SHOAL_OK. Collective over the group. */
shoal_status compare_outcomes(const struct compared_group *compared, shoal_status mine);
/* Sets each of the group's needs to the largest of all members. Collective over the group. */
shoal_status compare_needs(const struct compared_group *compared, struct plan_group *group);

#endif
