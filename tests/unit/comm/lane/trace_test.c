/* SPDX-License-Identifier: MIT */
/*
 * What a trace says of collectives that were posted: they begin when they are issued, and do not overlap on their lane.
 */
#include "fixtures/rank_world.h"
#include "fixtures/shared_directory.h"
#include "fixtures/trace_file.h"

enum {
    N_POSTED = 3
};

/* Issues them inside a range, does something else, and waits for them in pieces. */
static void post_and_wait(shoal_group *group)
{
    double values[N_POSTED] = {1.0, 2.0, 3.0};
    shoal_work *works[N_POSTED] = {NULL};
    shoal_trace_begin("issuing");
    for (int i = 0; i < N_POSTED; i++) {
        CHECK_OK(
            shoal_group_all_reduce_start(group, &values[i], &values[i], 1, SHOAL_F64, SHOAL_SUM, &works[i]));
    }
    shoal_trace_end();
    shoal_trace_begin("computing");
    shoal_trace_end();
    while (!shoal_work_test(works[N_POSTED - 1])) {
    }
    for (int i = 0; i < N_POSTED; i++) {
        CHECK_OK(shoal_work_wait(works[i], -1.0));
        shoal_work_free(works[i]);
    }
}

static void check_rank(const json_t *trace, int rank)
{
    struct trace_query posted = {.category = "collective", .name = "all_reduce", .pid = rank};
    size_t at = 0;
    const json_t *issuing = trace_next(trace, &(struct trace_query){.name = "issuing", .pid = rank}, &at);
    double end_before = 0.0;
    at = 0;
    REQUIRE(issuing != NULL);
    for (int i = 0; i < N_POSTED; i++) {
        const json_t *event = trace_next(trace, &posted, &at);
        REQUIRE(event != NULL);
        double carried = json_number_value(json_object_get(json_object_get(event, "args"), "carried"));
        double begin = trace_begin_of(event);
        /* Each as soon as it is issued; behind another one when that has ended. */
        CHECK(begin >= trace_begin_of(issuing));
        CHECK(begin <= (i == 0 ? trace_end_of(issuing) : trace_end_of(event)));
        CHECK(begin >= end_before - 0.002);
        CHECK(i == 0 || begin <= end_before + 0.002);
        CHECK(carried > 0.0 && carried <= trace_end_of(event) - begin + 0.002);
        end_before = trace_end_of(event);
    }
    CHECK(!trace_next(trace, &posted, &at));
}

TEST_PROCESSES(posted_collectives_begin_when_they_are_issued, 2)
{
    const char *directory = share_directory(self);
    const char *path = inside(directory, "trace.json");
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(trace_to(path));
    post_and_wait(shoal_world_group(world));
    CHECK_OK(shoal_trace_stop());
    test_barrier(self);
    if (self->rank == 0) {
        json_t *trace = trace_load(path);
        REQUIRE(trace != NULL);
        check_rank(trace, 0);
        check_rank(trace, 1);
        json_decref(trace);
    }
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}
