/* SPDX-License-Identifier: MIT */
/* Worlds: opening in every way, what start-up refuses and says, liveness, closing. */
#include "shoal/world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/store.h"

/* A key that no other test, mode or run has: by rank 0, before the others may read it. */
static const char *agree_on_key(struct rank *self)
{
    char *key = (char *)self->shared + TEST_SHARED_BYTES - 128;
    if (self->rank == 0) {
        (void)snprintf(key, 128, "world_test %d %d %p", (int)getpid(), self->is_process, (void *)key);
    }
    test_barrier(self);
    return key;
}

static shoal_world_options options_of(struct rank *self)
{
    return (shoal_world_options){.struct_size = sizeof(shoal_world_options),
                                 .n_ranks = self->n_ranks,
                                 .rank = self->rank,
                                 .key = agree_on_key(self),
                                 .startup_timeout_s = 20};
}

TEST_RANKS(opens_and_closes, 4)
{
    shoal_world_options options = options_of(self);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_INT(shoal_world_rank(world), self->rank);
    CHECK_INT(shoal_world_n_ranks(world), self->n_ranks);
    CHECK_STRING(shoal_world_launcher(world), "options");
    CHECK_INT(shoal_group_n_ranks(shoal_world_group(world)), self->n_ranks);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}
