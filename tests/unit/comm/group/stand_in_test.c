/* SPDX-License-Identifier: MIT */
/* A group that stands for the ranks of a graph says how many there are, and refuses everything else. */
#include <string.h>

#include "comm/group/group.h"
#include "harness/test.h"
#include "shoal/collective.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/window.h"

#define REFUSED(call)                                                                       \
    do {                                                                                    \
        CHECK_STATUS(call, SHOAL_ERR_STATE);                                                \
        CHECK_ERROR_TEXT("group @shard of a graph: it stands for the ranks that will run"); \
    } while (0)

TEST(it_knows_its_size_and_name)
{
    static const int sizes[] = {1, 2, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        shoal_group *group = NULL;
        REQUIRE_OK(group_create_stand_in("shard", sizes[i], &group));
        CHECK_INT(shoal_group_n_ranks(group), sizes[i]);
        CHECK_INT(shoal_group_rank(group), 0);
        CHECK_STRING(shoal_group_name(group), "@shard");
        CHECK_STRING(group->tag, "");
        CHECK_STRING(group_text(group), "@shard of a graph");
        CHECK(!shoal_group_world(group));
        CHECK_INT(shoal_group_sequence(group), 0);
        CHECK_INT(shoal_group_world_rank(group, 0), -1);
        CHECK_INT(shoal_group_world_rank(group, sizes[i]), -1);
        CHECK_INT(shoal_group_rank_of(group, 0), -1);
        CHECK_DOUBLE(shoal_group_timeout(group), 0.0);
        group_free_stand_in(group);
    }
    group_free_stand_in(NULL);
}

TEST(it_needs_ranks)
{
    shoal_group *group = NULL;
    CHECK_STATUS(group_create_stand_in("x", 0, &group), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group @x: 0 ranks");
    CHECK_STATUS(group_create_stand_in("x", -1, &group), SHOAL_ERR_INVALID);
    CHECK(!group);
}

TEST(no_call_can_use_it)
{
    shoal_group *group = NULL;
    float buffer[4] = {0};
    shoal_work *work = NULL;
    shoal_group *lane = NULL;
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    REQUIRE_OK(group_create_stand_in("shard", 2, &group));
    REFUSED(shoal_group_barrier(group));
    REFUSED(shoal_group_barrier_start(group, &work));
    REFUSED(shoal_group_all_reduce(group, buffer, buffer, 4, SHOAL_F32, SHOAL_SUM));
    REFUSED(shoal_group_all_gather_start(group, buffer, buffer, 2, SHOAL_F32, &work));
    REFUSED(shoal_group_send(group, buffer, 4, SHOAL_F32, 1, 0));
    REFUSED(shoal_group_recv_start(group, buffer, 4, SHOAL_F32, 1, 0, &work));
    shoal_transfer transfer = {
        .direction = SHOAL_SEND, .buffer = buffer, .count = 4, .dtype = SHOAL_F32, .peer = 1};
    REFUSED(shoal_group_transfer(group, &transfer, 1));
    REFUSED(shoal_group_close(group));
    REFUSED(shoal_group_abort(group, "no"));
    REFUSED(shoal_group_error(group));
    REFUSED(shoal_group_set_timeout(group, 1.0));
    REFUSED(group_create_lane(group, 0, 2, "word", &lane));
    REFUSED(shoal_symmetric_create(group, 64, &symmetric));
    REFUSED(shoal_window_create(group, 64, &window));
    CHECK(!work && !lane && !symmetric && !window);
    group_free_stand_in(group);
}

/* With tensors that have data the kernel runs, and must not get further than the group. */
TEST(ops_on_real_tensors_refuse_it)
{
    static const char *const names[] = {"all_reduce", "all_reduce_", "one_shot_all_reduce",
                                        "two_shot_all_reduce_"};
    shoal_group *group = NULL;
    REQUIRE_OK(group_create_stand_in("shard", 2, &group));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const shoal_op *op = NULL;
        shoal_value result;
        REQUIRE_OK(shoal_op_find(names[i], &op));
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *tensor = shoal_full((int64_t[]){4}, 1, 1.0, SHOAL_F32);
        shoal_value arguments[] = {{.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor},
                                   {.kind = SHOAL_VALUE_STRING, .as.string = "sum"},
                                   {.kind = SHOAL_VALUE_GROUP, .as.group = group}};
        REFUSED(shoal_op_call(op, arguments, 3, &result));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    }
    group_free_stand_in(group);
}

static shoal_status make_and_free(void *context)
{
    shoal_group *group = NULL;
    shoal_status status = group_create_stand_in("shard", 3, &group);
    group_free_stand_in(group);
    return status;
}

TEST(memory_may_be_missing)
{
    CHECK(test_sweep_allocations(make_and_free, NULL) >= 5);
}

/* Whoever keeps it may do so for longer. */
TEST(it_lives_as_long_as_a_reference)
{
    shoal_group *group = NULL;
    REQUIRE_OK(group_create_stand_in("shard", 2, &group));
    CHECK(group_ref(group) == group);
    group_free_stand_in(group);
    CHECK_INT(shoal_group_n_ranks(group), 2);
    group_unref(group);
}
