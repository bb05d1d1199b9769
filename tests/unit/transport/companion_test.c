/* SPDX-License-Identifier: MIT */
/* Comparing on a companion channel: what is the same passes, what differs is told with both calls, on every rank. */
#include "transport/companion.h"

#include "base/clock.h"
#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "transport/registry.h"

/* A channel of shm on a group that nothing else uses. */
struct session {
    shoal_world *world;
    struct channel *channel;
};

static bool open_session(struct rank *self, struct session *session)
{
    static const int ranks[] = {0, 1, 2};
    session->world = rank_world_open(self, 0);
    shoal_group *group = NULL;
    const struct transport *shm = NULL;
    return session->world && CHECK_OK(shoal_group_create(session->world, ranks, 3, "companion", &group)) &&
           CHECK_OK(transport_find("shm", &shm)) &&
           CHECK_OK(shm->connect(&group->peers, clock_deadline_after(20.0), &session->channel));
}

static void close_session(struct session *session)
{
    session->channel->transport->disconnect(session->channel);
    CHECK_OK(shoal_world_close(session->world));
}

static shoal_status meet(struct session *session, uint32_t sequence, size_t count,
                         const struct purpose *purpose)
{
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = SHOAL_BF16,
                              .reduce = SHOAL_SUM,
                              .n_pieces = 1,
                              .single = {.count = count},
                              .purpose = purpose,
                              .sequence = sequence,
                              .deadline_ns = clock_deadline_after(20.0)};
    call.pieces = &call.single;
    return companion_meet(session->channel, &call);
}

TEST_RANKS(calls_that_are_the_same_pass, 3)
{
    struct session session = {0};
    REQUIRE(open_session(self, &session));
    int64_t details[PURPOSE_DETAILS] = {0};
    struct purpose purpose = {
        .id = PURPOSE_FSDP_REDUCE, .details = details, .n_details = PURPOSE_DETAILS, .words = "layers.3"};
    for (uint32_t i = 0; i < 20; i++) {
        CHECK_OK(meet(&session, i, 100 + i, i % 2 == 0 ? NULL : &purpose));
    }
    close_session(&session);
}

TEST_RANKS(raw_calls_that_differ_are_named, 3)
{
    struct session session = {0};
    REQUIRE(open_session(self, &session));
    CHECK_OK(meet(&session, 0, 7, NULL));
    CHECK_STATUS(meet(&session, 1, self->rank == 2 ? 8 : 7, NULL), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("called all_reduce bf16 sum count 7 #1");
    CHECK_ERROR_TEXT("rank 2 called all_reduce bf16 sum count 8 #1");
    close_session(&session);
}

TEST_RANKS(purposes_that_differ_are_named, 3)
{
    struct session session = {0};
    REQUIRE(open_session(self, &session));
    struct purpose purpose = {.id = PURPOSE_FSDP_REDUCE,
                              .unit = self->rank == 0 ? 2 : 1,
                              .words = self->rank == 0 ? "layers.3" : "layers.2"};
    CHECK_STATUS(meet(&session, 0, 7, &purpose), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called gradient reduction of layers.3");
    CHECK_ERROR_TEXT("called gradient reduction of layers.2");
    close_session(&session);
}
