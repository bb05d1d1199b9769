/* SPDX-License-Identifier: MIT */
/* What a program can ask of a group, and its timeout. */
#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/try.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"

int shoal_group_rank(const shoal_group *group)
{
    return group ? group->peers.rank : -1;
}

int shoal_group_n_ranks(const shoal_group *group)
{
    return group ? group->peers.n_ranks : 0;
}

const char *shoal_group_name(const shoal_group *group)
{
    return group ? group->key : "";
}

shoal_world *shoal_group_world(const shoal_group *group)
{
    return group ? group->world : NULL;
}

int shoal_group_world_rank(const shoal_group *group, int group_rank)
{
    return group && group_rank >= 0 && group_rank < group->peers.n_ranks ? group->ranks[group_rank] : -1;
}

uint64_t shoal_group_sequence(const shoal_group *group)
{
    return group && group->lane ? lane_sequence(group->lane) : 0;
}

double shoal_group_timeout(const shoal_group *group)
{
    /* Relaxed, here and below: the number stands for itself. */
    return group ? atomic_load_explicit(group->timeout_s, memory_order_relaxed) : 0.0;
}

shoal_status shoal_group_set_timeout(shoal_group *group, double seconds)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group_set_timeout: group is NULL");
    }
    TRY(group_check_open(group));
    double most = option_seconds_most(OPTION_TIMEOUT);
    if (!(seconds > 0.0 && seconds <= most)) {
        return error_set(SHOAL_ERR_INVALID,
                         "group_set_timeout: seconds is %g, more than 0 and at most %g expected", seconds,
                         most);
    }
    if (group->parent) {
        return error_set(SHOAL_ERR_INVALID,
                         "group_set_timeout: group %s is internal and uses the timeout of the group that it "
                         "was made from: set that one",
                         group->name);
    }
    atomic_store_explicit(&group->own_timeout_s, seconds, memory_order_relaxed);
    return SHOAL_OK;
}

int64_t group_deadline(const struct shoal_group *group)
{
    return clock_deadline_after(shoal_group_timeout(group));
}
