/* SPDX-License-Identifier: MIT */
/* How a world is opened and closed: docs/design/startup.md. */
#ifndef COMM_WORLD_STARTUP_H
#define COMM_WORLD_STARTUP_H

#include <stdbool.h>

#include "shoal/status.h"
#include "shoal/world.h"

/* What shoal_world_open was asked for, checked and complete. */
struct startup_plan {
    const char *key;
    shoal_exchange exchange;
    void *exchange_context;
    bool is_by_environment; /* rank and size came from a launcher */
    const char *hosts_text; /* what the launcher says about several hosts; "" if it says nothing */
};

/*
 * Meets the other ranks. On entry the world has its rank, size, transport and timeouts; it gets its members, server,
 * client, store, regions and groups. After a failure call startup_undo, which frees what was made.
 */
shoal_status startup_with_peers(struct shoal_world *world, const struct startup_plan *plan);

/* Opens a world without peers: makes only what a rank has by itself. */
shoal_status startup_without_peers(struct shoal_world *world);

/* Frees everything that the world has, but not the world itself. Does not wait for other ranks. */
void startup_undo(struct shoal_world *world);

#endif
