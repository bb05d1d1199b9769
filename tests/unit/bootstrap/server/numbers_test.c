/* SPDX-License-Identifier: MIT */
/* Numbers that ranks agree on, and names of segments that are dropped together: what closing a group stands on. */
#include "bootstrap/server/numbers.h"

#include <string.h>

#include "base/clock.h"
#include "bootstrap/server/client.h"
#include "comm/group/world.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"

static struct client_wait soon(void)
{
    return (struct client_wait){.deadline_ns = clock_deadline_after(20 * test_time_scale())};
}

/* Whoever is first decides, at the server of any rank; once forgotten, the next one does. */
TEST_RANKS(the_first_number_stays_until_it_is_forgotten, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct client_wait wait = soon();
    for (int holder = 0; holder < 3; holder++) {
        uint64_t *all = (uint64_t *)self->shared;
        for (int round = 0; round < 3; round++) {
            uint64_t number = 0;
            CHECK_OK(numbers_agree(world->client, holder,
                                   "a\x1f"
                                   "b",
                                   (uint64_t)(100 * round + self->rank + 1), &wait, &number));
            all[self->rank] = number;
            test_barrier(self);
            CHECK(all[0] == all[1] && all[1] == all[2]);
            CHECK(number > (uint64_t)(100 * round) && number <= (uint64_t)(100 * round + 3));
            uint64_t again = 0;
            CHECK_OK(numbers_agree(world->client, holder,
                                   "a\x1f"
                                   "b",
                                   7777, &wait, &again));
            CHECK_INT(again, number);
            test_barrier(self);
            if (self->rank == round) {
                CHECK_OK(numbers_forget(world->client, holder,
                                        "a\x1f"
                                        "b",
                                        wait.deadline_ns));
                CHECK_OK(numbers_forget(world->client, holder, "never", wait.deadline_ns));
            }
            test_barrier(self);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

/* Who closes a group forgets its number while another member may be asking for it. */
TEST_RANKS(numbers_are_forgotten_while_others_ask, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct client_wait wait = soon();
    for (uint64_t i = 0; i < 300 && !test_has_failed(); i++) {
        uint64_t number = UINT64_MAX;
        CHECK_OK(numbers_agree(world->client, 0, "busy", i, &wait, &number));
        CHECK(number < 300);
        if (self->rank == 0) {
            CHECK_OK(numbers_forget(world->client, 0, "busy", wait.deadline_ns));
        }
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

TEST(without_servers_the_own_number_is_it)
{
    uint64_t number = 0;
    CHECK_OK(numbers_agree(NULL, 0, "x", 12, NULL, &number));
    CHECK_INT(number, 12);
    CHECK_OK(numbers_forget(NULL, 0, "x", 0));
}

TEST(names_that_are_too_long)
{
    static char name[2000];
    memset(name, 'x', sizeof name - 1);
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    struct client_wait wait = soon();
    uint64_t number = 0;
    if (world->client) {
        CHECK_STATUS(numbers_agree(world->client, 0, name, 1, &wait, &number), SHOAL_ERR_INTERNAL);
    }
    CHECK_OK(shoal_world_close(world));
}
