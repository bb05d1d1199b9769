/* SPDX-License-Identifier: MIT */
/*
 * Aborting the group that sharded or replicated training was given, and setting its timeout: both hold for whatever the
 * library does there, although it never uses that group itself.
 */
#include "fixtures/ddp_net.h"
#include "shoal/fsdp.h"

static const int64_t shape[] = {6};

static shoal_status add_param(shoal_fsdp *fsdp)
{
    return shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, shape, NULL, NULL);
}

/* Of the second step: `has_stepped`, otherwise nothing is connected yet. */
static void check_abort(struct rank *self, int round, bool has_stepped)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, round);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_fsdp_create(group, NULL, &fsdp));
    CHECK_OK(add_param(fsdp));
    if (has_stepped) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
        CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(fsdp));
    }
    test_barrier(self); /* the others' steps have ended too */
    if (self->rank == 1) {
        test_pause(0.05); /* the others wait by then, or not: both is to be right */
        CHECK_OK(shoal_group_abort(group, "enough"));
    }
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 1: enough");
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

TEST_RANKS(abort_ends_sharded_training, 3)
{
    check_abort(self, 0, false);
    check_abort(self, 1, true);
}

TEST_RANKS(the_timeout_of_the_group_is_that_of_training, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(add_param(fsdp));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_group_set_timeout(shoal_world_group(world), 0.25));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_fsdp_pre_backward(fsdp, 0), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("0.25 s passed");
    }
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

TEST_RANKS(abort_ends_replicated_training, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 2; step++) {
        setting_step(&s, step, "before");
    }
    test_barrier(self); /* the other's step has ended too */
    if (self->rank == 1) {
        CHECK_OK(shoal_group_abort(shoal_world_group(s.world), "enough"));
    }
    CHECK_STATUS(net_backward(&s.net, 2, self->rank, 0), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 1: enough");
    test_barrier(self);
    setting_close(&s);
}
