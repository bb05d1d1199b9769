/* SPDX-License-Identifier: MIT */
/*
 * Stand-ins for groups whose ranks have not met. A graph names the groups of the ranks that will run it, and meta
 * functions of its calls ask how many ranks there are. A stand-in answers that. It is closed from the beginning, so
 * every call that would communicate is refused before it looks at the world, which a stand-in does not have.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "comm/group/group.h"

static void destroy_stand_in(struct closable *closable)
{
    struct shoal_group *group = (struct shoal_group *)closable;
    mem_free(group->ranks);
    mem_free(group->tag);
    mem_free(group->key);
    mem_free(group->name);
    mem_free(group);
}

/* Makes a new string: the name between two others. */
static char *surround(const char *before, const char *name, const char *after)
{
    size_t bytes = strlen(before) + strlen(name) + strlen(after) + 1;
    char *text = mem_alloc(bytes);
    if (text) {
        (void)snprintf(text, bytes, "%s%s%s", before, name, after);
    }
    return text;
}

shoal_status group_create_stand_in(const char *name, int n_ranks, shoal_group **group_out)
{
    if (n_ranks < 1) {
        return error_set(SHOAL_ERR_INVALID, "group @%s: %d ranks, 1 or more expected", name, n_ranks);
    }
    struct shoal_group *group = mem_alloc_zeroed(1, sizeof *group);
    if (!group) {
        return SHOAL_ERR_NO_MEMORY;
    }
    closable_init(&group->closable, "group",
                  "it stands for the ranks that will run the graph, and no call can use it",
                  destroy_stand_in);
    closable_shut(&group->closable);
    group->ranks = mem_alloc_zeroed((size_t)n_ranks, sizeof *group->ranks);
    group->tag = mem_copy_string("");
    group->key = surround("@", name, "");
    group->name = surround("@", name, " of a graph");
    if (!group->ranks || !group->tag || !group->key || !group->name) {
        closable_unref(&group->closable);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_ranks; i++) {
        group->ranks[i] = -1; /* there is no world */
    }
    group->closable.name = group->name;
    group->timeout_s = &group->own_timeout_s;
    group->n_local = n_ranks;
    group->peers = (struct transport_peers){.rank = 0,
                                            .n_ranks = n_ranks,
                                            .world_ranks = group->ranks,
                                            .key = group->key,
                                            .name = group->name,
                                            .timeout_s = group->timeout_s};
    *group_out = group;
    return SHOAL_OK;
}

void group_free_stand_in(shoal_group *group)
{
    group_unref(group);
}
