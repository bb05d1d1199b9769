/* SPDX-License-Identifier: MIT */
/*
 * What a trace and the flight record say of a sharded model: gathers and reductions of every rank by unit and bytes, ops inside
 * modules inside backward passes, lanes whose collectives do not overlap, waits; and a rank that is killed on the way.
 */
#include <signal.h>

#include "fixtures/module_net.h"
#include "fixtures/shared_directory.h"
#include "fixtures/trace_file.h"

static bool train(struct net *net, int step, int rank)
{
    if (!CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    shoal_trace_step(step);
    shoal_tensor *loss = shoal_sum(shoal_module_call_one(net->root, net_input(step, rank)), NULL, 0, false);
    (void)CHECK_OK(shoal_backward(loss, NULL));
    return CHECK_OK(shoal_scope_end());
}

/* Two steps of a net of three layers. */
static void train_net(struct rank *self, shoal_world *world)
{
    struct net net;
    REQUIRE_OK(shoal_scope_begin());
    net_make(&net, 3, NULL);
    shoal_fully_shard_options options = net_options(world);
    bool is_good = net_shard(&net, &options);
    for (int step = 0; is_good && step < 2; step++) {
        is_good = train(&net, step, self->rank);
    }
    net_free(&net);
    CHECK_OK(shoal_scope_end());
}

static void check_units(const json_t *trace, int rank)
{
    static const char *const units[] = {"net", "0", "1", "2"};
    static const char *const ops[] = {"window_gather", "all_gather"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct trace_query query = {.category = "collective", .unit = units[i], .pid = rank};
        size_t n_gathers = 0;
        for (size_t k = 0; k < 2; k++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s %s", ops[k], units[i]);
            query.name = name;
            size_t at = 0;
            for (const json_t *event; (event = trace_next(trace, &query, &at)); n_gathers++) {
                CHECK(json_integer_value(json_object_get(json_object_get(event, "args"), "bytes")) > 0);
            }
        }
        CHECK(n_gathers >= 2);
        char name[64];
        (void)snprintf(name, sizeof name, "reduce_scatter %s", units[i]);
        query.name = name;
        CHECK_INT(trace_count(trace, query), 2);
    }
}

struct span {
    int64_t track;
    double begin;
    double end;
};

/* By track, then by begin, the longer ones first. */
static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a;
    const struct span *y = b;
    if (x->track != y->track) {
        return x->track < y->track ? -1 : 1;
    }
    if (x->begin < y->begin || x->begin > y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end > y->end ? -1 : x->end < y->end;
}

/* On one track an event is inside another, or beside it. */
static void check_nesting(const json_t *trace)
{
    const struct trace_query complete = {.phase = "X", .pid = -1};
    size_t n_spans = trace_count(trace, complete);
    struct span *spans = calloc(n_spans + 1, sizeof *spans);
    size_t at = 0;
    REQUIRE(spans != NULL);
    for (size_t i = 0; i < n_spans; i++) {
        const json_t *event = trace_next(trace, &complete, &at);
        int64_t pid = json_integer_value(json_object_get(event, "pid"));
        spans[i] = (struct span){.track = pid << 32 | json_integer_value(json_object_get(event, "tid")),
                                 .begin = trace_begin_of(event),
                                 .end = trace_end_of(event)};
    }
    qsort(spans, n_spans, sizeof *spans, compare_spans);
    size_t open[64];
    size_t n_open = 0;
    for (size_t i = 0; i < n_spans && !test_has_failed(); i++) {
        /* A nanosecond, in which times are, is lost when they are read as microseconds. */
        while (n_open > 0 && (spans[open[n_open - 1]].track != spans[i].track ||
                              spans[open[n_open - 1]].end <= spans[i].begin + 0.002)) {
            n_open--;
        }
        CHECK(n_open == 0 || spans[i].end <= spans[open[n_open - 1]].end + 0.002);
        open[n_open < 63 ? n_open++ : 63] = i;
    }
    free(spans);
}

static void check_trace(const char *path)
{
    json_t *trace = trace_load(path);
    REQUIRE(trace != NULL);
    for (int rank = 0; rank < 2; rank++) {
        check_units(trace, rank);
        CHECK_INT(trace_count(trace, (struct trace_query){.category = "step", .pid = rank}), 2);
        CHECK_INT(trace_count(trace, (struct trace_query){.category = "backward", .pid = rank}), 2);
        CHECK_INT(trace_count(trace, (struct trace_query){.name = "net", .category = "module", .pid = rank}),
                  2);
        CHECK_INT(
            trace_count(trace, (struct trace_query){.name = "1 (layer)", .category = "module", .pid = rank}),
            2);
        CHECK(trace_count(trace, (struct trace_query){.name = "mul", .category = "op", .pid = rank}) >= 8);
        CHECK(trace_count(trace, (struct trace_query){.category = "wait", .pid = rank}) > 0);
        CHECK(trace_count(trace, (struct trace_query){.name = "process_name", .pid = rank}) > 0);
    }
    check_nesting(trace);
    json_decref(trace);
}

TEST_RANKS(gathers_and_reductions_have_units_and_bytes, 2)
{
    const char *directory = share_directory(self);
    const char *path = inside(directory, "trace.json");
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK_OK(trace_to(path));
    /* Ranks that are threads share the trace: all have begun before one stops, and the last one writes. */
    test_barrier(self);
    train_net(self, world);
    CHECK_OK(shoal_trace_stop());
    test_barrier(self);
    if (self->rank == 0) {
        check_trace(path);
    }
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

static int append(void *context, const char *text, size_t bytes)
{
    char *all = context;
    size_t length = strlen(all);
    if (length + bytes >= 1 << 20) {
        return -1;
    }
    memcpy(all + length, text, bytes);
    all[length + bytes] = '\0';
    return 0;
}

TEST_RANKS(the_flight_record_names_units_and_bytes, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    train_net(self, world);
    char *text = calloc(1, 1 << 20);
    REQUIRE(text != NULL);
    CHECK_OK(shoal_world_dump(world, append, text));
    json_t *record = json_loads(text, 0, NULL);
    CHECK(record != NULL);
    size_t n_gathers = 0;
    size_t n_reductions = 0;
    size_t g = 0;
    size_t c = 0;
    json_t *group = NULL;
    json_t *call = NULL;
    json_array_foreach(json_object_get(record, "groups"), g, group)
    {
        json_array_foreach(json_object_get(group, "calls"), c, call)
        {
            bool has_unit = trace_has_text(call, "unit", "1");
            bool has_bytes = json_integer_value(json_object_get(call, "bytes")) > 0;
            n_gathers += has_unit && has_bytes && trace_has_text(call, "for", "gather of");
            n_reductions += has_unit && has_bytes && trace_has_text(call, "for", "gradient reduction of");
        }
    }
    CHECK(n_gathers >= 2);
    CHECK(n_reductions >= 2);
    json_decref(record);
    free(text);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_killed_rank_hinders_nobody, 3)
{
    const char *directory = share_directory(self);
    const char *path = inside(directory, "trace.json");
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK_OK(trace_to(path));
    test_expect_death(2, SIGKILL);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    if (self->rank == 2) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_PEER);
    CHECK_OK(shoal_trace_stop());
    test_barrier(self);
    json_t *trace = trace_load(path);
    REQUIRE(trace != NULL);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(
            trace_count(trace, (struct trace_query){.name = "barrier", .category = "wait", .pid = rank}), 2);
    }
    CHECK_INT(trace_count(trace, (struct trace_query){.phase = "X", .pid = 2}), 0);
    json_decref(trace);
    (void)shoal_world_close(world);
    remove_directory(self, directory);
}
