/* SPDX-License-Identifier: MIT */
/*
 * The drill: everything that ranks can do wrong to each other, and what every one of them gets. Each test is a row of
 * docs/drill.md, which `make drill` writes: SHOAL_TEST_DRILL names the file to which a row per test is added.
 *
 * A rank notes what its call returned and how long it took; at the end it closes its world and looks for what is left.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "fixtures/descriptor_calls.h"
#include "fault/fault.h"

enum {
    N = FAULT_RANKS
};

/* What one rank got. */
struct note {
    _Atomic bool is_there;
    shoal_status status;
    char text[FAULT_TEXT_BYTES];
    double seconds;
    bool has_failed; /* its checks */
    char held[96];   /* what it still holds after close */
};

/* All of it in memory that the ranks share. */
struct board {
    struct note notes[N];
    _Atomic int64_t struck_ns;
    _Atomic int rows;
};

/* A rank's side of a row. */
struct drill {
    struct rank *self;
    struct board *board;
    shoal_world *world;
    shoal_group *all;
    struct fault_memory memory;
    struct fault_holdings before;
    double timeout_s; /* of operations and of close */
};

static double short_time(void)
{
    return 0.4 * test_time_scale();
}

static struct drill drill_begin(struct rank *self)
{
    struct drill drill = {
        .self = self, .board = self->shared, .before = fault_holdings(), .timeout_s = short_time()};
    drill.memory = fault_memory_create();
    return drill;
}

static void drill_open(struct drill *drill)
{
    struct rank_key key = rank_key(drill->self, 0);
    shoal_world_options options = rank_world_options(drill->self, &key);
    options.timeout_s = drill->timeout_s;
    options.close_timeout_s = drill->timeout_s;
    REQUIRE_OK(shoal_world_open(&options, &drill->world));
    drill->all = shoal_world_group(drill->world);
    CHECK_OK(shoal_group_barrier(drill->all));
    test_barrier(drill->self);
}

/* Notes what a call gave; the first failure stays. */
static shoal_status drill_note(struct drill *drill, int64_t start_ns, shoal_status status)
{
    struct note *note = &drill->board->notes[drill->self->rank];
    if (!atomic_load(&note->is_there) || note->status == SHOAL_OK) {
        note->status = status;
        note->seconds = fault_seconds_since(start_ns);
        (void)snprintf(note->text, sizeof note->text, "%s", status == SHOAL_OK ? "" : shoal_error_text());
        atomic_store(&note->is_there, true);
    }
    return status;
}

#define NOTE(drill, call)                                 \
    do {                                                  \
        int64_t note_start_ns = clock_now_ns();           \
        (void)drill_note((drill), note_start_ns, (call)); \
    } while (0)

/* This rank must have got this, with all of the words, within so many seconds. */
static void drill_expect(struct drill *drill, shoal_status status, const char *const *words, double seconds)
{
    struct note *note = &drill->board->notes[drill->self->rank];
    CHECK_STATUS(note->status, status);
    for (; words && *words; words++) {
        if (!strstr(note->text, *words)) {
            test_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", note->text, *words);
        }
    }
    if (note->seconds > seconds * fault_patience()) {
        test_failed(__FILE__, __LINE__, "%s took %.3f s, %.3f were allowed", shoal_status_name(note->status),
                    note->seconds, seconds * fault_patience());
    }
}

/* The row ------------------------------------------------------------------------------------------------- */

static void write_rank(FILE *file, const struct note *note, int rank)
{
    if (!atomic_load(&note->is_there)) {
        (void)fprintf(file, "%srank %d: gone", rank ? "<br>" : "", rank);
        return;
    }
    (void)fprintf(file, "%srank %d: %s after %.0f ms", rank ? "<br>" : "", rank,
                  shoal_status_name(note->status), note->seconds * 1e3);
    if (note->text[0] != '\0') {
        (void)fprintf(file, ", “%s”", note->text);
    }
}

static void write_row(struct drill *drill, const char *what, bool is_ok)
{
    const char *path = getenv("SHOAL_TEST_DRILL");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) {
        return;
    }
    (void)fprintf(file, "| %s | ", what);
    for (int r = 0; r < N; r++) {
        write_rank(file, &drill->board->notes[r], r);
    }
    bool has_held = false;
    (void)fprintf(file, " | ");
    for (int r = 0; r < N; r++) {
        const char *held = drill->board->notes[r].held;
        (void)fprintf(file, "%s%s", held[0] ? "<br>" : "", held);
        has_held = has_held || held[0] != '\0';
    }
    (void)fprintf(file, "%s | %s |\n", has_held ? "" : "nothing", is_ok ? "ok" : "FAIL");
    (void)fclose(file);
}

static void note_holdings(struct drill *drill)
{
    struct note *note = &drill->board->notes[drill->self->rank];
    struct fault_holdings now = fault_holdings();
    fault_check_holdings(&drill->before, "after close");
    CHECK_INT(fault_files_left(), 0);
    if (fault_holds_more(&drill->before)) {
        (void)snprintf(note->held, sizeof note->held, "rank %d: %zd blocks, %zd descriptors, %zd bytes",
                       drill->self->rank, (ssize_t)(now.n_blocks - drill->before.n_blocks),
                       (ssize_t)(now.n_descriptors - drill->before.n_descriptors),
                       (ssize_t)(now.mapped_bytes - drill->before.mapped_bytes));
    }
}

/* Everybody closes, looks for what is left, and one of them writes the row. */
static void drill_end(struct drill *drill, const char *what)
{
    if (drill->world) {
        (void)shoal_world_close(drill->world);
    }
    fault_memory_free(&drill->memory);
    note_holdings(drill);
    drill->board->notes[drill->self->rank].has_failed = test_has_failed();
    test_barrier(drill->self);
    bool is_ok = true;
    for (int r = 0; r < N; r++) {
        is_ok = is_ok && !drill->board->notes[r].has_failed;
    }
    /* The lowest that lives is the first to come. */
    if (atomic_fetch_add(&drill->board->rows, 1) == 0) {
        write_row(drill, what, is_ok);
    }
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Ranks that disagree -------------------------------------------------------------------------------------- */

#define G (drill.all)
#define A (drill.memory.a)
#define B (drill.memory.b)

/* Rank 1 does `odd`, the others `even`; both as expressions. All get a mismatch that names both. */
#define DISAGREE(name, what, even, odd, ...)                               \
    TEST_PROCESSES(name, N)                                                \
    {                                                                      \
        struct drill drill = drill_begin(self);                            \
        drill_open(&drill);                                                \
        REQUIRE(drill.world);                                              \
        if (self->rank == 1) {                                             \
            NOTE(&drill, odd);                                             \
        } else {                                                           \
            NOTE(&drill, even);                                            \
        }                                                                  \
        drill_expect(&drill, SHOAL_ERR_MISMATCH, WORDS(__VA_ARGS__), 1.5); \
        test_barrier(self);                                                \
        drill_end(&drill, what);                                           \
    }

DISAGREE(wrong_op, "wrong op: rank 1 calls broadcast, the others all_reduce",
         shoal_group_all_reduce(G, A, B, 8, SHOAL_F32, SHOAL_SUM),
         shoal_group_broadcast(G, A, 8, SHOAL_F32, 0), "all_reduce", "broadcast")
DISAGREE(wrong_op_large, "wrong op, large: rank 1 calls all_gather, the others reduce_scatter",
         shoal_group_reduce_scatter(G, A, B, FAULT_LARGE, SHOAL_F32, SHOAL_SUM),
         shoal_group_all_gather(G, A, B, FAULT_LARGE, SHOAL_F32), "reduce_scatter", "all_gather")
DISAGREE(wrong_count, "wrong count: rank 1 says 7, the others 8",
         shoal_group_all_reduce(G, A, B, 8, SHOAL_F32, SHOAL_SUM),
         shoal_group_all_reduce(G, A, B, 7, SHOAL_F32, SHOAL_SUM), "count 8", "count 7")
DISAGREE(wrong_count_large, "wrong count, one small and the others large",
         shoal_group_all_reduce(G, A, B, FAULT_LARGE, SHOAL_F32, SHOAL_SUM),
         shoal_group_all_reduce(G, A, B, 7, SHOAL_F32, SHOAL_SUM), "count 60000", "count 7")
DISAGREE(wrong_dtype, "wrong dtype: rank 1 says f64, the others f32",
         shoal_group_all_gather(G, A, B, 8, SHOAL_F32), shoal_group_all_gather(G, A, B, 8, SHOAL_F64), "f32",
         "f64")
DISAGREE(wrong_reduce, "wrong operator: rank 1 says max, the others sum",
         shoal_group_all_reduce(G, A, B, 8, SHOAL_F32, SHOAL_SUM),
         shoal_group_all_reduce(G, A, B, 8, SHOAL_F32, SHOAL_MAX), "sum", "max")
DISAGREE(wrong_factor, "wrong factor: rank 1 says 0.5, the others 0.25",
         group_all_reduce_premul(G, A, B, 8, SHOAL_F32, 0.25),
         group_all_reduce_premul(G, A, B, 8, SHOAL_F32, 0.5), "0.5", "0.25")
DISAGREE(wrong_root, "wrong root: rank 1 says 2, the others 0", shoal_group_broadcast(G, A, 8, SHOAL_F32, 0),
         shoal_group_broadcast(G, A, 8, SHOAL_F32, 2), "root 0", "root 2")
DISAGREE(wrong_counts, "other counts of the ranks in all_gather_v",
         shoal_group_all_gather_v(G, A, B, (size_t[]){1, 2, 3}, SHOAL_F32),
         shoal_group_all_gather_v(G, A, B, (size_t[]){2, 2, 2}, SHOAL_F32), "all_gather")
DISAGREE(wrong_list, "a list of one against a list of two", fault_list(G, &drill.memory, 8),
         group_all_reduce_list(G, (shoal_part[]){{A, B, 16, SHOAL_CPU}}, 1, SHOAL_F32, SHOAL_SUM),
         "all_reduce")

/* Two calls in the other order: the first of them is where they part. */
static shoal_status two_calls(struct drill *drill, bool is_turned)
{
    shoal_status first = SHOAL_OK;
    for (int i = 0; i < 2 && first == SHOAL_OK; i++) {
        if ((i == 0) == is_turned) {
            first = shoal_group_barrier(drill->all);
        } else {
            first =
                shoal_group_all_reduce(drill->all, drill->memory.a, drill->memory.b, 8, SHOAL_F32, SHOAL_SUM);
        }
    }
    return first;
}

DISAGREE(wrong_order, "wrong order: rank 1 calls barrier and all_reduce, the others all_reduce and barrier",
         two_calls(&drill, false), two_calls(&drill, true), "all_reduce", "barrier")
DISAGREE(missing_call, "missing call: rank 1 leaves out the first of all_reduce and barrier",
         two_calls(&drill, false), shoal_group_barrier(G), "all_reduce", "barrier")
DISAGREE(extra_call, "extra call: rank 1 calls barrier before what the others call",
         shoal_group_all_reduce(G, A, B, 8, SHOAL_F32, SHOAL_SUM), two_calls(&drill, true), "all_reduce",
         "barrier")

/* Ranks that are not there --------------------------------------------------------------------------------- */

TEST_PROCESSES(missing_last_call, N)
{
    struct drill drill = drill_begin(self);
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        NOTE(&drill, SHOAL_OK);
    } else {
        NOTE(&drill, shoal_group_barrier(drill.all));
        drill_expect(&drill, SHOAL_ERR_PEER, WORDS("rank 1"), 1.0);
    }
    drill_end(&drill, "missing last call: rank 1 closes its world, the others call barrier");
}

TEST_PROCESSES(extra_last_call, N)
{
    struct drill drill = drill_begin(self);
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        NOTE(&drill, shoal_group_barrier(drill.all));
        drill_expect(&drill, SHOAL_ERR_PEER, WORDS("rank "), 1.0);
    } else {
        NOTE(&drill, SHOAL_OK);
    }
    drill_end(&drill, "extra last call: rank 1 calls barrier, the others close their worlds");
}

static void be_late(struct rank *self, const char *what, size_t count)
{
    struct drill drill = drill_begin(self);
    drill.timeout_s = 20 * test_time_scale();
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_pause(0.3);
    }
    NOTE(&drill,
         shoal_group_all_reduce(drill.all, drill.memory.a, drill.memory.b, count, SHOAL_F32, SHOAL_SUM));
    drill_expect(&drill, SHOAL_OK, NULL, 2);
    drill_end(&drill, what);
}

TEST_PROCESSES(late_rank, N)
{
    be_late(self, "late rank: rank 1 calls all_reduce 300 ms after the others", 8);
}

TEST_PROCESSES(late_rank_large, N)
{
    be_late(self, "late rank: rank 1 calls a large all_reduce 300 ms after the others", FAULT_LARGE);
}

/* The others are in the call already. `drill` has a timeout that is not what ends it. */
static void die(struct rank *self, const char *what, size_t count)
{
    struct drill drill = drill_begin(self);
    drill.timeout_s = 20 * test_time_scale();
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
        test_pause(0.1);
        (void)raise(SIGKILL);
    }
    NOTE(&drill,
         shoal_group_all_reduce(drill.all, drill.memory.a, drill.memory.b, count, SHOAL_F32, SHOAL_SUM));
    drill_expect(&drill, SHOAL_ERR_PEER, WORDS("rank 1"), 1.1);
    /* Later calls hear it at once. */
    int64_t start_ns = clock_now_ns();
    CHECK_STATUS(shoal_group_barrier(drill.all), SHOAL_ERR_PEER);
    CHECK(fault_seconds_since(start_ns) < drill.timeout_s / 4);
    drill_end(&drill, what);
}

TEST_PROCESSES(dead_rank, N)
{
    die(self, "dead rank: rank 1 is killed (-9) while the others wait in all_reduce", 8);
}

TEST_PROCESSES(dead_rank_large, N)
{
    die(self, "dead rank: rank 1 is killed (-9) while the others wait in a large all_reduce", FAULT_LARGE);
}

/* Groups without the dead one go on. */
TEST_PROCESSES(dead_rank_elsewhere, N)
{
    static const int pair[2] = {0, 2};
    struct drill drill = drill_begin(self);
    drill.timeout_s = 20 * test_time_scale();
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
        (void)raise(SIGKILL);
    }
    shoal_group *group;
    REQUIRE_OK(shoal_group_create(drill.world, pair, 2, NULL, &group));
    CHECK_STATUS(shoal_group_barrier(drill.all), SHOAL_ERR_PEER);
    NOTE(&drill, shoal_group_barrier(group));
    drill_expect(&drill, SHOAL_OK, NULL, 1);
    drill_end(&drill, "dead rank: rank 1 is killed, ranks 0 and 2 go on in a group of their own");
}

/*
 * Rank 1 calls when the others have given up. By messages, what came before that counts first (docs/design/message.md): its
 * call may find all that it needs, and the next one fails.
 */
static void all_reduce_without_1(struct drill *drill, size_t count)
{
    const struct fault_memory *memory = &drill->memory;
    NOTE(drill, shoal_group_all_reduce(drill->all, memory->a, memory->b, count, SHOAL_F32, SHOAL_SUM));
    if (drill->self->rank == 1 && rank_hears_by_messages()) {
        NOTE(drill, shoal_group_all_reduce(drill->all, memory->a, memory->b, count, SHOAL_F32, SHOAL_SUM));
    }
}

static void stop(struct rank *self, const char *what, size_t count)
{
    struct drill drill = drill_begin(self);
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_barrier(self);
        (void)raise(SIGSTOP); /* until rank 0 lets it go on */
    } else {
        test_barrier(self);
        test_pause(0.05);
    }
    all_reduce_without_1(&drill, count);
    if (self->rank == 0) {
        test_pause(0.1); /* rank 2 gets there by itself */
        test_signal(1, SIGCONT);
    }
    drill_expect(&drill, SHOAL_ERR_TIMEOUT, WORDS("rank 1", "all_reduce"), 2);
    test_barrier(self);
    drill_end(&drill, what);
}

TEST_PROCESSES(stopped_rank, N)
{
    stop(self, "stopped rank: rank 1 is stopped before all_reduce and goes on when the others have given up",
         8);
}

TEST_PROCESSES(stopped_rank_large, N)
{
    stop(self, "stopped rank: the same with a large all_reduce", FAULT_LARGE);
}

/* Giving up ------------------------------------------------------------------------------------------------ */

/* Started, and the work given up; then the world is closed. */
static void destroy(struct rank *self, const char *what, size_t count)
{
    static const int ranks[N] = {0, 1, 2};
    struct drill drill = drill_begin(self);
    drill.timeout_s = 20 * test_time_scale();
    drill_open(&drill);
    REQUIRE(drill.world);
    shoal_group *group;
    REQUIRE_OK(shoal_group_create(drill.world, ranks, N, "short-lived", &group));
    if (self->rank == 1) {
        test_pause(0.2);
    }
    shoal_work *work = NULL;
    NOTE(&drill, shoal_group_all_reduce_start(group, drill.memory.a, drill.memory.b, count, SHOAL_F32,
                                              SHOAL_SUM, &work));
    shoal_work_free(work);
    drill_expect(&drill, SHOAL_OK, NULL, 0.5);
    CHECK_OK(shoal_world_close(drill.world));
    drill.world = NULL;
    drill_end(&drill, what);
}

TEST_PROCESSES(destroy_in_flight, N)
{
    destroy(self, "destroy in flight: all_reduce is started, the work is freed, the world is closed", 8);
}

TEST_PROCESSES(destroy_in_flight_large, N)
{
    destroy(self, "destroy in flight: the same with a large all_reduce", FAULT_LARGE);
}

static void *abort_later(void *argument)
{
    test_pause(0.1);
    (void)shoal_group_abort(argument, "the user pressed a key");
    return NULL;
}

static void give_up(struct rank *self, const char *what, size_t count)
{
    pthread_t thread;
    struct drill drill = drill_begin(self);
    drill.timeout_s = 20 * test_time_scale();
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 0) {
        REQUIRE(pthread_create(&thread, NULL, abort_later, drill.all) == 0);
    }
    /* Rank 1 does not come, so that the others wait; it hears of it later. */
    if (self->rank != 1) {
        NOTE(&drill,
             shoal_group_all_reduce(drill.all, drill.memory.a, drill.memory.b, count, SHOAL_F32, SHOAL_SUM));
    }
    test_barrier(self);
    if (self->rank == 1) {
        NOTE(&drill, shoal_group_barrier(drill.all));
    }
    /* Where the news is a message it comes behind the data of the all_reduce, which rank 1 may meet first. */
    bool has_met =
        self->rank == 1 && rank_hears_by_messages() && drill.board->notes[1].status == SHOAL_ERR_MISMATCH;
    if (has_met) {
        drill_expect(&drill, SHOAL_ERR_MISMATCH, WORDS("all_reduce", "barrier"), 1);
    } else {
        drill_expect(&drill, SHOAL_ERR_CANCELLED, WORDS("the user pressed a key"), 1);
    }
    if (self->rank == 0) {
        (void)pthread_join(thread, NULL);
    }
    drill_end(&drill, what);
}

TEST_PROCESSES(abort_from_another_thread, N)
{
    give_up(self, "abort from another thread of rank 0, while ranks 0 and 2 wait in all_reduce for rank 1",
            8);
}

TEST_PROCESSES(abort_from_another_thread_large, N)
{
    give_up(self, "abort from another thread: the same with a large all_reduce", FAULT_LARGE);
}

/* Deadlines ------------------------------------------------------------------------------------------------ */

TEST_PROCESSES(timeout_in_start_up, N)
{
    struct drill drill = drill_begin(self);
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.startup_timeout_s = short_time();
    if (self->rank == 2) {
        NOTE(&drill, SHOAL_OK);
    } else {
        NOTE(&drill, shoal_world_open(&options, &drill.world));
        drill_expect(&drill, SHOAL_ERR_TIMEOUT, WORDS("rank 2"), 2);
        CHECK(drill.world == NULL);
    }
    drill_end(&drill, "timeout in start-up: rank 2 never comes");
}

TEST_PROCESSES(two_ranks_with_one_number, N)
{
    struct drill drill = drill_begin(self);
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.startup_timeout_s = short_time();
    options.rank = self->rank == 2 ? 1 : self->rank;
    NOTE(&drill, shoal_world_open(&options, &drill.world));
    CHECK(drill.world == NULL);
    CHECK(drill.board->notes[self->rank].status != SHOAL_OK);
    test_barrier(self);
    bool is_told = false;
    for (int r = 0; r < N; r++) {
        is_told = is_told || strstr(drill.board->notes[r].text, "rank 1") != NULL;
    }
    CHECK(is_told);
    drill_end(&drill, "two ranks call themselves rank 1");
}

static void time_out(struct rank *self, const char *what, size_t count)
{
    struct drill drill = drill_begin(self);
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_barrier(self); /* busy elsewhere until the others have given up */
    }
    all_reduce_without_1(&drill, count);
    drill_expect(&drill, SHOAL_ERR_TIMEOUT, WORDS("rank 1", "all_reduce", "#"), 1.5);
    if (self->rank != 1) {
        test_barrier(self);
    }
    drill_end(&drill, what);
}

TEST_PROCESSES(timeout_in_steady_state, N)
{
    time_out(self, "timeout in steady state: rank 1 does not call all_reduce", 8);
}

TEST_PROCESSES(timeout_in_steady_state_large, N)
{
    time_out(self, "timeout in steady state: rank 1 does not call a large all_reduce", FAULT_LARGE);
}

TEST_PROCESSES(timeout_in_close, N)
{
    struct drill drill = drill_begin(self);
    drill_open(&drill);
    REQUIRE(drill.world);
    if (self->rank == 1) {
        test_barrier(self);
        NOTE(&drill, SHOAL_OK);
    } else {
        NOTE(&drill, shoal_world_close(drill.world));
        drill.world = NULL;
        drill_expect(&drill, SHOAL_ERR_TIMEOUT, WORDS("rank 1"), 1.5);
        test_barrier(self);
    }
    drill_end(&drill, "timeout in close: rank 1 does not close its world");
}
