/* SPDX-License-Identifier: MIT */
/* A world without start-up, servers or peers: enough for groups on a transport that needs none of them. */
#ifndef TEST_SMALL_WORLD_H
#define TEST_SMALL_WORLD_H

#include <string.h>

#include "comm/group.h"
#include "comm/world.h"
#include "harness/test.h"
#include "transport/transport.h"

/* False: no memory. */
static inline bool small_world_open(struct shoal_world *world, int rank, int n_ranks,
                                    const struct transport *transport)
{
    memset(world, 0, sizeof *world);
    world->rank = rank;
    world->n_ranks = n_ranks;
    world->launcher = "test";
    world->transport = transport;
    world->timeout_s = 30.0;
    world->groups = groups_create();
    return world->groups != NULL;
}

static inline void small_world_close(struct shoal_world *world)
{
    groups_free(world->groups);
    world->groups = NULL;
}

#endif
