/* SPDX-License-Identifier: MIT */
/*
 * Which transport carries a group. Ranks 0 and 1 of these worlds believe to be on one host, rank 2 on another. The module
 * test_post (tests/modules/post.c) crosses hosts and carries barriers alone.
 */
#include "comm/group/transports.h"

#include <stdlib.h>

#include "base/processors.h"
#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Before anything reads the environment. */
__attribute__((constructor)) static void set_environment(void)
{
    (void)setenv("SHOAL_MODULE_PATH", TEST_MODULES, 1);
    (void)setenv("SHOAL_PRETEND_HOSTS", "0,0,1", 1);
}

static shoal_status open_with(struct rank *self, int round, const char *transport, shoal_world **world_out)
{
    struct rank_key key = rank_key(self, round);
    shoal_world_options options = rank_world_options(self, &key);
    options.transport = transport;
    return shoal_world_open(&options, world_out);
}

TEST_RANKS(ranks_of_one_host_need_nothing, 2)
{
    shoal_world *world = NULL;
    REQUIRE_OK(open_with(self, 0, NULL, &world));
    struct shoal_group *group = shoal_world_group(world);
    CHECK_STRING(group->peers.transport->name, "shm");
    CHECK_INT(group->peers.world->n_hosts, 1);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(shared_memory_does_not_cross_hosts, 3)
{
    shoal_world *world = NULL;
    CHECK_STATUS(open_with(self, 0, NULL, &world), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("rank 2 is on another host than rank 0 (the world has 2 hosts)");
    CHECK_ERROR_TEXT("transport shm carries ranks of one host only; SHOAL_TRANSPORT can name one");
    CHECK_STATUS(open_with(self, 1, "shm", &world), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("transport shm carries ranks of one host only");
    CHECK(world == NULL);
}

TEST_RANKS(ranks_that_ask_for_different_ones_are_told, 2)
{
    shoal_world *world = NULL;
    shoal_status status = open_with(self, 0, self->rank == 0 ? "shm" : "test_post", &world);
    CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("\"test_post\"");
    CHECK_ERROR_TEXT("\"shm\"");
    CHECK(world == NULL);
}

TEST_RANKS(a_module_carries_groups_over_hosts, 3)
{
    shoal_world *world = NULL;
    REQUIRE_OK(open_with(self, 0, "test_post", &world));
    struct shoal_group *group = shoal_world_group(world);
    CHECK_STRING(group->peers.transport->name, "test_post");
    CHECK_INT(group->peers.world->n_hosts, 2);
    CHECK_INT(group->peers.world->hosts[0], 0);
    CHECK_INT(group->peers.world->hosts[1], 0);
    CHECK_INT(group->peers.world->hosts[2], 1);
    /* Segments lie with the first member on the own host. */
    CHECK_INT(group->peers.holder, self->rank == 2 ? 2 : 0);
    CHECK(group->peers.may_spin == processors_suffice(self->rank == 2 ? 1 : 2));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(what_a_transport_lacks_is_refused, 3)
{
    shoal_world *world = NULL;
    REQUIRE_OK(open_with(self, 0, "test_post", &world));
    shoal_group *group = shoal_world_group(world);
    float value = 1.0f;
    int peer = (self->rank + 1) % self->n_ranks;
    CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_F32, peer, 0), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("transport test_post of group [0,1,2] does not support point to point");
    shoal_symmetric *symmetric = NULL;
    CHECK_STATUS(shoal_symmetric_create(group, 64, &symmetric), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("carried by transport test_post, which has no symmetric memory");
    CHECK_STATUS(shoal_symmetric_reserve(group, 64, 128, &symmetric), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("carried by transport test_post, which has no symmetric memory");
    shoal_window *window = NULL;
    CHECK_STATUS(shoal_window_create(group, 64, &window), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("which has no windows");
    CHECK(!group_has_windows(group, SHOAL_CPU));
    /* The group goes on. */
    CHECK_OK(shoal_group_barrier(group));
    CHECK_STATUS(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("only barriers");
    CHECK_OK(shoal_world_close(world));
}

TEST(a_transport_that_is_not_there_is_named)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .key = "transports", .transport = "smoke"};
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is no transport \"smoke\"");
    CHECK(world == NULL);
}

static shoal_status open_alone(const char *transport, shoal_world **world_out)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .key = "transports", .transport = transport};
    *world_out = NULL;
    return shoal_world_open(&options, world_out);
}

/* What a module returns is not believed: no status, no reason and no channel are errors that name it. */
TEST(what_a_module_returns_is_checked)
{
    static const struct {
        const char *transport;
        shoal_status status;
        const char *text;
    } flaws[] = {
        {"test_connect", SHOAL_ERR_SYSTEM, "transport test_connect: connect failed and gave no reason"},
        {"test_channel", SHOAL_ERR_INTERNAL, "transport test_channel: connect returned no channel"},
        {"test_orphan", SHOAL_ERR_INTERNAL,
         "transport test_orphan: connect returned no channel of a transport"},
        {"test_run", SHOAL_ERR_INTERNAL, "transport test_run: run returned 7, which is not a status"},
        {"test_quiet", SHOAL_ERR_SYSTEM, "transport test_quiet: run failed and gave no reason"},
    };
    shoal_world *world = NULL;
    CHECK_STATUS(open_alone("test_open", &world), SHOAL_ERR_INTERNAL);
    CHECK_ERROR_TEXT("transport test_open: open returned -777, which is not a status");
    CHECK(world == NULL);
    for (size_t i = 0; i < sizeof flaws / sizeof flaws[0]; i++) {
        REQUIRE_OK(open_alone(flaws[i].transport, &world));
        shoal_group *group = shoal_world_group(world);
        /* The first goes through the line, the second does not. */
        for (int round = 0; round < 2; round++) {
            CHECK_STATUS(shoal_group_barrier(group), flaws[i].status);
            CHECK_ERROR_TEXT(flaws[i].text);
        }
        shoal_work *work = NULL;
        shoal_status status = shoal_group_barrier_start(group, &work);
        CHECK_STATUS(status == SHOAL_OK ? shoal_work_wait(work, -1) : status, flaws[i].status);
        CHECK_ERROR_TEXT(flaws[i].text);
        shoal_work_free(work);
        CHECK_OK(shoal_world_close(world));
    }
}
