/* SPDX-License-Identifier: MIT */
/* Buffers of a device without data are refused, blocking and started. */
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

static struct collective make_call(float *value)
{
    return (struct collective){.kind = COLLECTIVE_ALL_REDUCE,
                               .dtype = SHOAL_F32,
                               .reduce = SHOAL_SUM,
                               .n_pieces = 1,
                               .single = {.send = value, .recv = value, .count = 1}};
}

TEST_RANKS(buffers_without_data_are_refused, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    static const int ranks[] = {0, 1};
    float value = 1.0f;
    for (int is_started = 0; is_started < 2; is_started++) {
        shoal_group *group = NULL;
        CHECK_OK(shoal_group_create(world, ranks, 2, is_started ? "started" : "blocking", &group));
        struct collective call = make_call(&value);
        call.pieces = &call.single;
        call.device = SHOAL_META;
        shoal_work *work = NULL;
        if (is_started) {
            /* The other rank may have been first: then the group has failed. */
            shoal_status status = lane_start(group->lane, &call, NULL, &work);
            CHECK_STATUS(status == SHOAL_OK ? shoal_work_wait(work, -1) : status, SHOAL_ERR_UNSUPPORTED);
            shoal_work_free(work);
        } else {
            CHECK_STATUS(lane_run(group->lane, &call), SHOAL_ERR_UNSUPPORTED);
        }
        CHECK_ERROR_TEXT("all_reduce: buffers on device meta, which has no data");
    }
    CHECK_OK(shoal_world_close(world));
}
