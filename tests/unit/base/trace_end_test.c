/* SPDX-License-Identifier: MIT */
/*
 * How a trace gets into its file: at signals, while others have it, beside another job, under names with patterns.
 */
#include "base/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/label.h"
#include "base/os/os.h"
#include "fixtures/scratch.h"
#include "fixtures/trace_file.h"
#include "shoal/log.h"

static void record(const char *name)
{
    uint64_t begin = trace_begin();
    trace_end(begin, TRACE_OP, name);
}

static size_t count_named(const char *path, const char *name)
{
    json_t *trace = trace_load(path);
    size_t count = trace_count(trace, (struct trace_query){.name = name, .pid = -1});
    json_decref(trace);
    return count;
}

/* Signals -------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t n_handled;

static void count_signal(int number)
{
    (void)number;
    n_handled++;
}

/* Of a child that records, and then waits for the signal that it sends to itself. */
static int end_by_signal(const char *path, int number)
{
    pid_t child = fork();
    if (child == 0) {
        trace_world_opened(1, 3, 4711);
        if (trace_to(path) == SHOAL_OK) {
            record("before");
            (void)kill(getpid(), number);
        }
        for (;;) {
            (void)pause();
        }
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(signals_write_the_file_and_then_end_the_process)
{
    TRACE_IN_CHILDREN();
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct scratch scratch = scratch_make();
        const char *path = scratch_file(&scratch, "trace.json");
        CHECK_INT(end_by_signal(path, numbers[i]), numbers[i]);
        json_t *trace = trace_load(path);
        CHECK_INT(trace_count(trace, (struct trace_query){.name = "before", .pid = 1}), 1);
        CHECK_INT(trace_count(trace, (struct trace_query){.name = "shoal_ranks", .pid = 1}), 2);
        json_decref(trace);
        scratch_remove(&scratch);
    }
}

static void (*handler_of(int number))(int)
{
    struct sigaction action = {0};
    CHECK_INT(sigaction(number, NULL, &action), 0);
    return action.sa_handler;
}

TEST(signals_that_the_program_handles_are_left_to_it)
{
    struct scratch scratch = scratch_make();
    (void)signal(SIGTERM, count_signal);
    (void)signal(SIGHUP, SIG_IGN);
    REQUIRE_OK(trace_to(scratch_file(&scratch, "trace.json")));
    n_handled = 0;
    CHECK_INT(kill(getpid(), SIGTERM), 0);
    CHECK_INT(kill(getpid(), SIGHUP), 0);
    CHECK_INT(n_handled, 1);
    CHECK(handler_of(SIGINT) != SIG_DFL);
    (void)signal(SIGINT, count_signal); /* which comes later than the trace */
    CHECK_OK(shoal_trace_stop());
    CHECK(handler_of(SIGTERM) == count_signal);
    CHECK(handler_of(SIGHUP) == SIG_IGN);
    CHECK(handler_of(SIGINT) == count_signal);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    REQUIRE_OK(trace_to(scratch_file(&scratch, "trace.json")));
    CHECK(handler_of(SIGTERM) != SIG_DFL);
    CHECK_OK(shoal_trace_stop());
    CHECK(handler_of(SIGTERM) == SIG_DFL);
    scratch_remove(&scratch);
}

TEST(forked_children_of_a_traced_process_die_of_signals)
{
    struct scratch scratch = scratch_make();
    REQUIRE_OK(trace_to(scratch_file(&scratch, "trace.json")));
    pid_t child = fork();
    if (child == 0) {
        (void)kill(getpid(), SIGTERM);
        _exit(1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK_OK(shoal_trace_stop());
    scratch_remove(&scratch);
}

/* A file that another process has locked -------------------------------------------------------------------- */

struct holder {
    pid_t child;
    int let_go;
};

static void hold_lock(const char *path, struct holder *holder_out)
{
    int held[2];
    int let_go[2];
    char byte = 0;
    REQUIRE(pipe(held) == 0 && pipe(let_go) == 0);
    *holder_out = (struct holder){.child = fork(), .let_go = let_go[1]};
    if (holder_out->child == 0) {
        (void)close(let_go[1]);
        int fd = open(path, O_RDWR | O_CREAT, 0666);
        bool is_held = fd >= 0 && os_lock_byte(fd, 0) == 0 && write(held[1], "x", 1) == 1;
        (void)!read(let_go[0], &byte, 1); /* until the parent closes its end */
        _exit(is_held ? 0 : 1);
    }
    (void)close(held[1]);
    (void)close(let_go[0]);
    CHECK_INT(read(held[0], &byte, 1), 1);
    (void)close(held[0]);
}

static void let_lock_go(const struct holder *holder)
{
    int status = 1;
    (void)close(holder->let_go);
    CHECK(waitpid(holder->child, &status, 0) == holder->child && status == 0);
}

static void *stop_trace(void *context)
{
    *(shoal_status *)context = shoal_trace_stop();
    return NULL;
}

TEST(who_waits_for_the_file_holds_up_nobody_else)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    const char *other = scratch_file(&scratch, "other.json");
    pthread_t thread;
    shoal_status status = SHOAL_ERR_INTERNAL;
    REQUIRE_OK(trace_to(path));
    record("first");
    struct holder holder;
    hold_lock(path, &holder);
    REQUIRE(pthread_create(&thread, NULL, stop_trace, &status) == 0);
    while (trace_is_on()) {
    }
    /* Another trace is begun, and a process forked off, while that one waits. */
    CHECK_OK(trace_to(other));
    record("second");
    pid_t child = fork();
    if (child == 0) {
        _exit(trace_is_on() ? 1 : 0);
    }
    int code = 1;
    CHECK(waitpid(child, &code, 0) == child && code == 0);
    let_lock_go(&holder);
    (void)pthread_join(thread, NULL);
    CHECK_STATUS(status, SHOAL_OK);
    CHECK_OK(shoal_trace_stop());
    CHECK_INT(count_named(path, "first"), 1);
    CHECK_INT(count_named(other, "second"), 1);
    scratch_remove(&scratch);
}

static void *close_world(void *context)
{
    (void)context;
    trace_world_closed();
    return NULL;
}

TEST(events_while_the_last_world_closes_are_kept)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    pthread_t thread;
    trace_world_opened(0, 1, 99);
    REQUIRE_OK(trace_to(path));
    record("before");
    shoal_trace_begin("across");
    struct holder holder;
    hold_lock(path, &holder);
    REQUIRE(pthread_create(&thread, NULL, close_world, NULL) == 0);
    for (int i = 0; i < 1000; i++) {
        record("meanwhile");
    }
    let_lock_go(&holder);
    (void)pthread_join(thread, NULL);
    CHECK_INT(count_named(path, "before"), 1);
    shoal_trace_end();
    CHECK_OK(shoal_trace_stop());
    CHECK_INT(count_named(path, "before"), 1);
    CHECK_INT(count_named(path, "meanwhile"), 1000);
    CHECK_INT(count_named(path, "across"), 1);
    scratch_remove(&scratch);
}

enum {
    N_THREADS = 3,
    N_COUNTED = 5000
};

static void *count_events(void *context)
{
    for (int i = 0; i < N_COUNTED; i++) {
        record("counted");
    }
    return context;
}

/* Worlds that come and go while threads record: each writes the file, and no event is lost or there twice. */
TEST(worlds_in_turn_lose_nothing)
{
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    pthread_t threads[N_THREADS];
    REQUIRE_OK(trace_to(path));
    for (int i = 0; i < N_THREADS; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, count_events, NULL) == 0);
    }
    for (uint64_t run = 1; run <= 5; run++) {
        trace_world_opened(0, 1, run);
        record("in a world");
        trace_world_closed();
    }
    for (int i = 0; i < N_THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    CHECK_OK(shoal_trace_stop());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "in a world", .pid = -1}), 5);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "counted", .pid = -1}), N_THREADS * N_COUNTED);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "shoal_dropped", .pid = -1}), 0);
    json_decref(trace);
    scratch_remove(&scratch);
}

/* Several jobs, one file ------------------------------------------------------------------------------------ */

static void trace_other_job(void *context)
{
    REQUIRE_OK(trace_to(context));
    record("other");
    CHECK_OK(shoal_trace_stop());
}

static char heard[1024];

static void hear(void *context, shoal_log_level level, const char *message)
{
    (void)context;
    (void)level;
    (void)snprintf(heard, sizeof heard, "%s", message);
}

TEST(jobs_at_the_same_time_do_not_destroy_each_others_file)
{
    TRACE_IN_CHILDREN();
    struct scratch scratch = scratch_make();
    char path[SCRATCH_PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s", scratch_file(&scratch, "trace.json"));
    /* One after the other: the file is the last one's. */
    test_in_child(trace_other_job, path);
    REQUIRE_OK(trace_to(path));
    record("mine");
    CHECK_OK(shoal_trace_stop());
    CHECK_INT(count_named(path, "other"), 0);
    CHECK_INT(count_named(path, "mine"), 1);
    /* At the same time: who writes first has the file, the other one goes beside it, and says so. */
    int begin[2];
    REQUIRE(pipe(begin) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        (void)close(begin[1]);
        (void)!read(begin[0], &byte, 1);
        bool is_good = trace_to(path) == SHOAL_OK;
        record("other");
        _exit(is_good && shoal_trace_stop() == SHOAL_OK ? 0 : 1);
    }
    shoal_log_set(hear, NULL, SHOAL_LOG_WARN);
    REQUIRE_OK(trace_to(path));
    record("mine");
    (void)close(begin[0]);
    (void)close(begin[1]);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(shoal_trace_stop());
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    CHECK_INT(count_named(path, "other"), 1);
    CHECK_INT(count_named(path, "mine"), 0);
    CHECK_INT(scratch_count(&scratch, "trace.json."), 1);
    const char *beside = strstr(heard, "this trace is written to ");
    REQUIRE(beside != NULL);
    CHECK_INT(count_named(beside + strlen("this trace is written to "), "mine"), 1);
    scratch_remove(&scratch);
}

static void trace_as_rank(void *context)
{
    REQUIRE_OK(trace_to(context));
    trace_world_opened(7, 8, 5);
    record("mine");
    trace_world_closed();
    CHECK_OK(shoal_trace_stop());
}

TEST(paths_have_patterns)
{
    TRACE_IN_CHILDREN();
    struct scratch scratch = scratch_make();
    char pattern[SCRATCH_PATH_BYTES + 16];
    char name[64];
    CHECK_STATUS(trace_to("%x.json"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("%x is unknown; %p (process), %h (host), %r (rank) and %% are possible");
    CHECK_STATUS(trace_to("end%"), SHOAL_ERR_INVALID);
    REQUIRE_OK(trace_to(scratch_file(&scratch, "%p-100%%.json")));
    CHECK_OK(trace_to(scratch_file(&scratch, "%p-100%%.json")));
    record("mine");
    CHECK_OK(shoal_trace_stop());
    CHECK_OK(shoal_trace_stop());
    (void)snprintf(name, sizeof name, "%d-100%%.json", (int)getpid());
    CHECK_INT(count_named(scratch_file(&scratch, name), "mine"), 1);
    (void)snprintf(pattern, sizeof pattern, "%s", scratch_file(&scratch, "r%r.json"));
    test_in_child(trace_as_rank, pattern);
    CHECK_INT(count_named(scratch_file(&scratch, "r7.json"), "mine"), 1);
    CHECK_INT(scratch_count(&scratch, ".json"), 2);
    scratch_remove(&scratch);
}

/* Names and tracks ------------------------------------------------------------------------------------------ */

TEST(hostile_names_leave_the_file_well_formed)
{
    static const struct {
        const char *name;
        const char *written;
    } cases[] = {{"caf\xc3\xa9 \xe6\x97\xa5\xf0\x9f\x90\x9f", "caf\xc3\xa9 \xe6\x97\xa5\xf0\x9f\x90\x9f"},
                 {"a\x01\x1b[2J\x7f\n", "a??[2J??"},
                 {"\"quoted\" \\back", "\"quoted\" \\back"},
                 {"cut \xe6\x97", "cut \xef\xbf\xbd\xef\xbf\xbd"},
                 {"long \xc0\xaf", "long \xef\xbf\xbd\xef\xbf\xbd"},
                 {"half \xed\xa0\x80", "half \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"}};
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    REQUIRE_OK(trace_to(path));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        record(cases[i].name);
    }
    CHECK_OK(shoal_trace_stop());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_INT(count_named(path, cases[i].written), 1);
    }
    /* Perfetto's reader takes neither in front of a time. */
    size_t bytes = 0;
    char *text = scratch_read(path, &bytes);
    REQUIRE(text != NULL);
    size_t n_bad = 0;
    for (size_t i = 0; i + 1 < bytes; i++) {
        bool is_control = (unsigned char)text[i] < 0x20 && text[i] != '\n';
        n_bad += is_control || (text[i] == '\\' && text[i + 1] == 'u');
    }
    CHECK_INT(n_bad, 0);
    free(text);
    scratch_remove(&scratch);
}

/* As many lanes as a rank of thousands may have. A track is named when it is met; few are named twice. */
TEST(many_tracks_are_named)
{
    enum {
        N_TRACKS = 5000
    };
    struct scratch scratch = scratch_make();
    const char *path = scratch_file(&scratch, "trace.json");
    char name[32];
    REQUIRE_OK(trace_to(path));
    for (int i = 0; i < 2 * N_TRACKS; i++) {
        (void)snprintf(name, sizeof name, "lane %d", i / 2);
        uint64_t begin = trace_begin();
        const struct trace_event event = {.begin_ticks = begin,
                                          .end_ticks = begin + 10,
                                          .carried_ticks = 5,
                                          .name = label_of("all_reduce"),
                                          .track = label_of(name),
                                          .kind = TRACE_COLLECTIVE};
        trace_write(&event);
    }
    CHECK_OK(shoal_trace_stop());
    json_t *trace = trace_load(path);
    CHECK_INT(trace_count(trace, (struct trace_query){.category = "collective", .pid = -1}), 2 * N_TRACKS);
    CHECK_INT(trace_count(trace, (struct trace_query){.name = "thread_name", .pid = -1}), N_TRACKS + 1);
    json_decref(trace);
    scratch_remove(&scratch);
}
