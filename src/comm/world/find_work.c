/* SPDX-License-Identifier: MIT */
/* Finds works in flight by the memory that they use. Works know buffers as addresses, not as tensors, so tensors have no
   fences for those that the program starts itself. */
#include <stdatomic.h>

#include "comm/group/groups.h"
#include "comm/group/world.h"
#include "comm/lane/lane.h"
#include "comm/lane/uses.h"
#include "comm/lane/work.h"
#include "comm/p2p/p2p.h"

shoal_work *world_find_work(shoal_world *world, work_uses uses, void *context)
{
    const struct work_search search = {.uses = uses, .context = context};
    shoal_work *found = NULL;
    /* Relaxed: works that other threads start at this moment have no order with the caller. */
    if (atomic_load_explicit(&world->works->n_unawaited, memory_order_relaxed) == 0) {
        return NULL;
    }
    for (struct shoal_group *group = groups_walk(world->groups); group && !found; group = group->next) {
        found = lane_find_work(group->lane, &search);
        found = found ? found : p2p_find_work(group_p2p(group), &search);
    }
    groups_end_walk(world->groups);
    return found;
}
