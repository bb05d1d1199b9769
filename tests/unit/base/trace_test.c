/* SPDX-License-Identifier: MIT */
/* Recording: what is in the file, who may start and stop, rings that overflow, threads, forks, files that resist. */
#include "base/trace.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/label.h"
#include "fixtures/scratch.h"
#include "fixtures/trace_file.h"

static void record(const char *name)
{
    uint64_t begin = trace_begin();
    trace_end(begin, TRACE_OP, name);
}

TEST(off_means_no_file_and_no_events)
{
    struct scratch scratch = scratch_make();
    CHECK(!trace_is_on());
    CHECK_INT(trace_begin(), 0);
    size_t n_before = test_count_allocations();
    record("nobody");
    shoal_trace_begin("nobody");
    shoal_trace_step(1);
    trace_step_end();
    shoal_trace_end();
    CHECK_INT(test_count_allocations(), n_before);
    CHECK_STATUS(shoal_trace_stop(), SHOAL_ERR_STATE);
    CHECK_INT(scratch_count(&scratch, ""), 0);
    scratch_remove(&scratch);
}

TEST(ranges_nest_and_steps_are_instants)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    shoal_trace_begin("open when the trace begins");
    REQUIRE_OK(trace_to(path));
    CHECK(trace_is_on());
    shoal_trace_step(7);
    shoal_trace_begin("outer");
    shoal_trace_begin("inner \"quoted\" \x01\xe9");
    record("op");
    shoal_trace_end();
    shoal_trace_end();
    shoal_trace_end();
    shoal_trace_end(); /* one too many */
    trace_step_end();
    shoal_trace_begin("open when it stops");
    REQUIRE_OK(shoal_trace_stop());
    shoal_trace_end();
    json_t *trace = trace_load(path);
    REQUIRE(trace != NULL);
    size_t at[3] = {0};
    const json_t *outer = trace_next(trace, &(struct trace_query){.name = "outer", .pid = -1}, &at[0]);
    const json_t *op = trace_next(trace, &(struct trace_query){.category = "op", .pid = 0}, &at[1]);
    const json_t *step = trace_next(trace, &(struct trace_query){.phase = "i", .pid = 0}, &at[2]);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "range", .pid = -1}), 2);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "thread_name", .pid = 0}), 1);
    REQUIRE(outer && op && step);
    CHECK(trace_begin_of(outer) <= trace_begin_of(op) && trace_end_of(op) <= trace_end_of(outer) + 0.001);
    CHECK_STRING(json_string_value(json_object_get(op, "name")), "op");
    CHECK_INT(json_integer_value(json_object_get(json_object_get(step, "args"), "step")), 7);
    CHECK(trace_begin_of(step) <= trace_begin_of(outer));
    size_t from = 0;
    const json_t *end = trace_next(trace, &(struct trace_query){.category = "step_end", .pid = 0}, &from);
    REQUIRE(end != NULL);
    CHECK_STRING(json_string_value(json_object_get(end, "ph")), "i");
    CHECK(trace_begin_of(end) >= trace_end_of(outer) - 0.001);
    json_decref(trace);
    scratch_remove(&scratch);
}

TEST(arguments_are_named)
{
    struct scratch scratch = scratch_make();
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    CHECK_STATUS(shoal_trace_start(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_trace_start(&options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("path is NULL");
    options.path = "";
    CHECK_STATUS(shoal_trace_start(&options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("path is empty");
    options.path = scratch_file(&scratch, "no/such/directory");
    CHECK_STATUS(shoal_trace_start(&options), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("no/such/directory: No such file");
    options.path = "/dev/null";
    CHECK_STATUS(shoal_trace_start(&options), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("not a regular file");
    options.n_events = (size_t)1 << 40;
    CHECK_STATUS(shoal_trace_start(&options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_events is 1099511627776");
    CHECK(!trace_is_on());
    shoal_trace_begin(NULL);
    shoal_trace_end();
    scratch_remove(&scratch);
}

TEST(starts_with_one_path_are_counted)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    REQUIRE_OK(trace_to(path));
    CHECK_OK(trace_to(path));
    CHECK_STATUS(trace_to("elsewhere"), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("path is \"elsewhere\", but a trace to");
    record("first");
    CHECK_OK(shoal_trace_stop());
    CHECK(trace_is_on());
    record("second");
    CHECK_OK(shoal_trace_stop());
    CHECK(!trace_is_on());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "op", .pid = -1}), 2);
    json_decref(trace);
    /* A later trace to the same file replaces it. */
    REQUIRE_OK(trace_to(path));
    record("third");
    CHECK_OK(shoal_trace_stop());
    trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "op", .pid = -1}), 1);
    json_decref(trace);
    scratch_remove(&scratch);
}

TEST(a_full_ring_drops_the_oldest)
{
    struct scratch scratch = scratch_make();
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = scratch_file(&scratch, "trace.json");
    options.n_events = 8;
    REQUIRE_OK(shoal_trace_start(&options));
    for (int64_t i = 0; i < 21; i++) {
        shoal_trace_step(i);
    }
    REQUIRE_OK(shoal_trace_stop());
    json_t *trace = trace_load(options.path);
    struct trace_query steps = {.phase = "i", .pid = -1};
    size_t at = 0;
    for (int i = 0; i < 8; i++) {
        const json_t *step = trace_next(trace, &steps, &at);
        REQUIRE(step != NULL);
        CHECK_INT(json_integer_value(json_object_get(json_object_get(step, "args"), "step")), 13 + i);
    }
    CHECK(!trace_next(trace, &steps, &at));
    at = 0;
    const json_t *dropped = trace_next(trace, &(struct trace_query){.name = "shoal_dropped", .pid = -1}, &at);
    CHECK_INT(json_integer_value(json_object_get(json_object_get(dropped, "args"), "count")), 13);
    json_decref(trace);
    scratch_remove(&scratch);
}

/* Threads record while the trace is started and stopped: nothing is torn, and the sanitizers have nothing to say. */
static _Atomic bool must_end;

static void *record_always(void *context)
{
    (void)context;
    while (!atomic_load(&must_end)) {
        shoal_trace_begin("busy");
        record("busy op");
        shoal_trace_end();
    }
    return NULL;
}

TEST(threads_record_while_it_starts_and_stops)
{
    struct scratch scratch = scratch_make();
    pthread_t threads[3];
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = scratch_file(&scratch, "trace.json");
    options.n_events = 100;
    atomic_store(&must_end, false);
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, record_always, NULL) == 0);
    }
    for (int i = 0; i < 20; i++) {
        CHECK_OK(shoal_trace_start(&options));
        record("mine");
        CHECK_OK(shoal_trace_stop());
    }
    atomic_store(&must_end, true);
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    json_t *trace = trace_load(options.path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "mine", .pid = 0}), 1);
    json_decref(trace);
    scratch_remove(&scratch);
}

static shoal_status trace_once(void *context)
{
    shoal_status status = trace_to(context);
    if (status == SHOAL_OK) {
        record("op");
        status = shoal_trace_stop();
    }
    return status;
}

TEST(allocations_may_fail)
{
    struct scratch scratch = scratch_make();
    char path[SCRATCH_PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s", scratch_file(&scratch, "trace.json"));
    CHECK_INT(test_sweep_allocations(trace_once, path), 3);
    /* The thread's ring cannot be made: its event is counted, and the rest of the trace is there. */
    REQUIRE_OK(trace_to(path));
    test_fail_allocation(1, true);
    record("lost");
    test_fail_allocation(0, false);
    CHECK_OK(shoal_trace_stop());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "op", .pid = -1}), 0);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "shoal_lost", .pid = 0}), 1);
    json_decref(trace);
    scratch_remove(&scratch);
}

TEST(forked_children_leave_the_trace_alone)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    REQUIRE_OK(trace_to(path));
    record("parent");
    pid_t child = fork();
    if (child == 0) {
        bool is_on = trace_is_on();
        record("child");
        bool is_refused = shoal_trace_stop() == SHOAL_ERR_STATE;
        _exit(!is_on && is_refused ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    record("parent");
    CHECK_OK(shoal_trace_stop());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "parent", .pid = -1}), 2);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = -1}), 0);
    json_decref(trace);
    scratch_remove(&scratch);
}

/* A child that is a rank of the same run as this process, and adds to its file. */
static void be_rank(int rank, const char *path, const char *name)
{
    trace_world_opened(rank, 3, 12345);
    CHECK_OK(trace_to(path));
    record(name);
    CHECK_OK(shoal_trace_stop());
    trace_world_closed();
}

struct as_rank {
    int rank;
    const char *path;
};

static void be_rank_in_child(void *context)
{
    const struct as_rank *as = context;
    be_rank(as->rank, as->path, "child");
}

TEST(ranks_add_to_one_file_and_a_cut_one_is_mended)
{
    TRACE_IN_CHILDREN();
    struct scratch scratch = scratch_make();
    char path[SCRATCH_PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s", scratch_file(&scratch, "trace.json"));
    /* What another run left is replaced. */
    CHECK(scratch_write(path, "[1, 2", 5));
    for (int rank = 0; rank < 2; rank++) {
        test_in_child(be_rank_in_child, &(struct as_rank){.rank = rank, .path = path});
    }
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 0}), 1);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 1}), 1);
    json_decref(trace);
    /* A rank was killed while it wrote: its last event is cut. */
    size_t bytes = 0;
    char *whole = scratch_read(path, &bytes);
    CHECK(whole && scratch_write(path, whole, bytes - 30));
    free(whole);
    test_in_child(be_rank_in_child, &(struct as_rank){.rank = 2, .path = path});
    trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 0}), 1);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 1}), 0);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 2}), 1);
    json_decref(trace);
    scratch_remove(&scratch);
}

static void write_too_much(void *context)
{
    const struct rlimit limit = {.rlim_cur = 4000, .rlim_max = 4000};
    trace_world_opened(1, 3, 12345);
    CHECK_OK(trace_to(context));
    for (int i = 0; i < 1000; i++) {
        record("too much");
    }
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_STATUS(shoal_trace_stop(), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("trace.json: ");
}

TEST(a_full_disk_leaves_what_others_wrote)
{
    TRACE_IN_CHILDREN();
    struct scratch scratch = scratch_make();
    char path[SCRATCH_PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s", scratch_file(&scratch, "trace.json"));
    test_in_child(be_rank_in_child, &(struct as_rank){.rank = 0, .path = path});
    test_in_child(write_too_much, path);
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "child", .pid = 0}), 1);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "too much", .pid = -1}), 0);
    json_decref(trace);
    scratch_remove(&scratch);
}

TEST(labels_are_the_same_for_the_same_text)
{
    char name[LABEL_MAX_CHARS + 40];
    uint32_t label = label_of("layers.0");
    CHECK(label != 0 && label == label_of("layers.0"));
    CHECK_STRING(label_text(label), "layers.0");
    CHECK(label_of("layers.1") != label);
    CHECK_INT(label_of(""), 0);
    CHECK_INT(label_of(NULL), 0);
    CHECK_STRING(label_text(0), "");
    CHECK_STRING(label_text(UINT32_MAX), "");
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK_INT(strlen(label_text(label_of(name))), LABEL_MAX_CHARS);
}

/* Each byte of them takes six characters. */
TEST(the_longest_names_are_written)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    char name[LABEL_MAX_CHARS + 1];
    memset(name, 0xc3, sizeof name - 1);
    name[sizeof name - 1] = '\0';
    REQUIRE_OK(trace_to(path));
    uint64_t begin = trace_begin();
    const struct trace_event event = {.begin_ticks = begin,
                                      .end_ticks = begin + 1,
                                      .bytes = INT64_MAX, /* what a reader of JSON takes */
                                      .name = label_of("reduce_scatter"),
                                      .unit = label_of(name),
                                      .track = label_of(name),
                                      .kind = TRACE_COLLECTIVE};
    trace_write(&event);
    record(name);
    CHECK_OK(shoal_trace_stop());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "op", .pid = -1}), 1);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "collective", .pid = -1}), 1);
    json_decref(trace);
    scratch_remove(&scratch);
}

/* Last: afterwards new names are all the same. */
TEST(names_without_room_share_one)
{
    char name[32];
    uint32_t last = 0;
    for (int i = 0; i < 40000; i++) {
        (void)snprintf(name, sizeof name, "some name %d", i);
        last = label_of(name);
    }
    CHECK_STRING(label_text(last), "(more names)");
    CHECK_STRING(label_text(label_of("some name 0")), "some name 0");
}
