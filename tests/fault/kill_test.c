/* SPDX-License-Identifier: MIT */
/*
 * A rank is killed, or stopped, at every numbered fail point in turn, in every operation: the others get an error that
 * names it, within a second of its death (or of the deadline), and hold nothing afterwards.
 *
 * The rank that dies is a child of the harness' rank, so that one test can lose many. A round: all open a world and
 * meet; the victim arms its k-th fail point; all run the operation and then a barrier, which shows a death that the
 * operation did not need to notice; all close. k runs over the passages that a round without death has counted.
 *
 * `make test` draws a few; SHOAL_TEST_KILLS=whole, as `make drill` sets it, is for all of them. SHOAL_TEST_DRILL names a
 * file to which a line per operation is added.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/fail_point.h"
#include "fault/fault.h"

enum stage {
    IN_OPERATION, /* armed between two barriers of the world's group */
    IN_LIFE       /* armed before the world is opened: also start-up and close */
};

struct round {
    const struct fault_op *op;
    size_t count;
    int victim;
    uint64_t number; /* of the fail point; 0: nobody dies */
    int signal;      /* SIGKILL or SIGSTOP */
    enum stage stage;
    struct rank_key key;
};

/* In memory that all see. */
struct board {
    _Atomic int64_t struck_ns;   /* when the victim was about to be struck; 0: not yet */
    _Atomic uint64_t n_passages; /* of the victim's that lived */
    char point[64];              /* where it was struck */
    _Atomic uint32_t n_named;    /* survivors whose error names the victim */
    _Atomic int64_t slowest_ns;  /* of all rounds: from the death to the error of a survivor */
    _Atomic uint32_t n_struck;
    _Atomic uint32_t has_failed; /* on some rank: all stop after the same round */
};

static double stop_timeout(void)
{
    return 0.3 * test_time_scale();
}

/* The victim ----------------------------------------------------------------------------------------------- */

static struct board *board_of_victim;
static int signal_of_victim;

static shoal_status strike(void *context, const char *name)
{
    (void)snprintf(board_of_victim->point, sizeof board_of_victim->point, "%s", name);
    atomic_store(&board_of_victim->struck_ns, clock_now_ns());
    (void)raise(signal_of_victim);
    return SHOAL_OK;
}

static shoal_status open_world(struct rank *self, const struct round *round, shoal_world **world_out)
{
    shoal_world_options options = rank_world_options(self, &round->key);
    options.startup_timeout_s = (round->stage == IN_LIFE && round->number > 0 ? 1 : 20) * test_time_scale();
    if (round->signal == SIGSTOP && round->number > 0) {
        options.timeout_s = stop_timeout();
        options.close_timeout_s = stop_timeout() / 3;
    }
    return shoal_world_open(&options, world_out);
}

static void live_as_victim(struct rank *self, const struct round *round, struct board *board)
{
    shoal_world *world;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    board_of_victim = board;
    signal_of_victim = round->signal;
    struct fault_memory memory = fault_memory_create();
    if (round->stage == IN_LIFE) {
        fail_point_arm(round->number, strike, NULL);
    }
    if (open_world(self, round, &world) != SHOAL_OK) {
        _exit(3);
    }
    shoal_group *group = shoal_world_group(world);
    shoal_status status = shoal_group_barrier(group);
    if (round->stage == IN_OPERATION) {
        fail_point_arm(round->number, strike, NULL);
    }
    if (status == SHOAL_OK) {
        status = round->op->run(group, &memory, round->count);
    }
    if (round->stage == IN_OPERATION) {
        atomic_store(&board->n_passages, fail_point_passages());
        fail_point_arm(0, NULL, NULL);
    }
    if (status == SHOAL_OK) {
        status = shoal_group_barrier(group);
    }
    shoal_status closed = shoal_world_close(world);
    if (round->stage == IN_LIFE) {
        atomic_store(&board->n_passages, fail_point_passages());
    }
    _exit(status == SHOAL_OK && closed == SHOAL_OK ? 0 : 4);
}

/* Starts the child, waits until the others are through, and ends it if it has not ended. */
static void keep_victim(struct rank *self, const struct round *round, struct board *board)
{
    pid_t child = fork();
    if (child == 0) {
        live_as_victim(self, round, board);
    }
    REQUIRE(child > 0);
    test_barrier(self);
    if (atomic_load(&board->struck_ns) != 0) {
        (void)kill(child, SIGKILL);
    }
    int wait_status = 0;
    (void)waitpid(child, &wait_status, 0);
    bool was_killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
    bool was_struck = atomic_load(&board->struck_ns) != 0;
    if (was_struck != was_killed || (!was_struck && WEXITSTATUS(wait_status) != 0)) {
        test_failed(__FILE__, __LINE__, "%s, fail point %llu (%s): the victim ended with wait status 0x%x",
                    round->op->name, (unsigned long long)round->number, board->point, (unsigned)wait_status);
    }
}

/* The survivors -------------------------------------------------------------------------------------------- */

static void note_slowest(struct board *board, int64_t ns)
{
    int64_t slowest = atomic_load(&board->slowest_ns);
    while (ns > slowest && !atomic_compare_exchange_weak(&board->slowest_ns, &slowest, ns)) {
    }
}

/* "rank 1", or one of "ranks 0, 1". */
static bool names_rank(const char *text, int rank)
{
    for (const char *at = text; (at = strstr(at, "rank"));) {
        at += strlen("rank");
        at += *at == 's';
        while (*at == ' ' || *at == ',') {
            char *end;
            long number = strtol(at + 1, &end, 10);
            if (end == at + 1) {
                break;
            }
            if (number == rank) {
                return true;
            }
            at = end;
        }
    }
    return false;
}

/*
 * What the survivor got, where somebody was struck. A death is told by name. Of one that is merely silent others may name
 * somebody who waits for it in turn; one of them, at least, waits for the right one.
 */
static void judge(const struct round *round, struct board *board, shoal_status status, const char *text,
                  int64_t ended_ns, bool was_open)
{
    double allowed = fault_patience() + (round->signal == SIGSTOP ? stop_timeout() : 0);
    if (!was_open) {
        /* One that dies before it has met the others cannot be missed before start-up ends. */
        allowed += 1 * test_time_scale();
    }
    int64_t ns = ended_ns - atomic_load(&board->struck_ns);
    shoal_status expected = round->signal == SIGSTOP ? SHOAL_ERR_TIMEOUT : SHOAL_ERR_PEER;
    bool is_right = status == expected || (!was_open && status == SHOAL_ERR_TIMEOUT);
    bool is_named = names_rank(text, round->victim);
    atomic_fetch_add(&board->n_named, is_named);
    bool is_name_right = is_named || (round->signal == SIGSTOP && strstr(text, "rank"));
    if (!is_right || !is_name_right || (double)ns * 1e-9 > allowed) {
        test_failed(__FILE__, __LINE__,
                    "%s count %zu, rank %d struck by signal %d at fail point %llu (%s): %s after %.3f s: %s",
                    round->op->name, round->count, round->victim, round->signal,
                    (unsigned long long)round->number, board->point, shoal_status_name(status),
                    (double)ns * 1e-9, text);
    }
    if (was_open) {
        note_slowest(board, ns - (round->signal == SIGSTOP ? (int64_t)(stop_timeout() * 1e9) : 0));
    }
}

static void live_as_survivor(struct rank *self, const struct round *round, struct board *board)
{
    char text[FAULT_TEXT_BYTES] = "";
    shoal_world *world = NULL;
    struct fault_memory memory = fault_memory_create();
    bool may_fail = round->number > 0;
    shoal_status status = open_world(self, round, &world);
    bool was_open = status == SHOAL_OK;
    shoal_group *group = was_open ? shoal_world_group(world) : NULL;
    if (status == SHOAL_OK) {
        status = shoal_group_barrier(group);
    }
    if (status == SHOAL_OK) {
        status = round->op->run(group, &memory, round->count);
    }
    if (status == SHOAL_OK) {
        status = shoal_group_barrier(group);
    }
    int64_t ended_ns = clock_now_ns();
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    bool was_struck = atomic_load(&board->struck_ns) != 0;
    if (status == SHOAL_OK && was_struck && round->stage == IN_OPERATION) {
        test_failed(__FILE__, __LINE__,
                    "%s count %zu: rank %d was struck at fail point %llu (%s), and nobody noticed",
                    round->op->name, round->count, round->victim, (unsigned long long)round->number,
                    board->point);
    } else if (status != SHOAL_OK && was_struck) {
        judge(round, board, status, text, ended_ns, was_open);
    } else if (status != SHOAL_OK) {
        test_failed(__FILE__, __LINE__, "%s count %zu, nobody was struck: %s: %s", round->op->name,
                    round->count, shoal_status_name(status), text);
    }
    int64_t closing_ns = clock_now_ns();
    shoal_status closed = was_open ? shoal_world_close(world) : SHOAL_OK;
    if (closed != SHOAL_OK && !(may_fail && atomic_load(&board->struck_ns) != 0)) {
        test_failed(__FILE__, __LINE__, "%s: close: %s: %s", round->op->name, shoal_status_name(closed),
                    shoal_error_text());
    }
    if (may_fail && fault_seconds_since(closing_ns) > 2 * fault_patience() + stop_timeout()) {
        test_failed(__FILE__, __LINE__, "%s: closing took %.3f s after fail point %llu (%s)", round->op->name,
                    fault_seconds_since(closing_ns), (unsigned long long)round->number, board->point);
    }
    fault_memory_free(&memory);
}

/* Rounds --------------------------------------------------------------------------------------------------- */

static uint32_t next_round; /* the same on all ranks */

static bool is_whole(void)
{
    const char *mode = getenv("SHOAL_TEST_KILLS");
    return mode && strcmp(mode, "whole") == 0;
}

/* Nobody's business but the survivors', who have all been heard. In start-up one may die before it was met. Deadlines of
   several ranks that wait for a stopped one pass together, and on a busy machine another may be named: the sample lets
   that pass. */
static void check_named(const struct round *round, const struct board *board)
{
    /* Who receives from any rank cannot tell for whom it waits. */
    bool has_names = round->op != &fault_ops[FAULT_recv_any];
    bool must_name = round->stage == IN_OPERATION && (round->signal == SIGKILL || (is_whole() && has_names));
    if (must_name && atomic_load(&board->n_named) == 0) {
        test_failed(__FILE__, __LINE__, "%s count %zu, fail point %llu (%s): nobody named rank %d",
                    round->op->name, round->count, (unsigned long long)round->number, board->point,
                    round->victim);
    }
}

/* One round; returns the passages of a victim that was not struck, 0 otherwise. */
static uint64_t run_round(struct rank *self, struct round *round)
{
    struct board *board = self->shared;
    round->key = rank_key(self, (int)next_round++);
    test_deadline(60);
    test_barrier(self);
    if (self->rank == round->victim) {
        atomic_store(&board->struck_ns, 0);
        atomic_store(&board->n_passages, 0);
        atomic_store(&board->n_named, 0);
        board->point[0] = '\0';
    }
    test_barrier(self);
    if (self->rank == round->victim) {
        keep_victim(self, round, board);
    } else {
        struct fault_holdings before = fault_holdings();
        live_as_survivor(self, round, board);
        fault_check_holdings(&before, round->op->name);
        test_barrier(self);
    }
    if (test_has_failed()) {
        atomic_store(&board->has_failed, 1);
    }
    test_barrier(self);
    if (self->rank == round->victim && atomic_load(&board->struck_ns) != 0) {
        atomic_fetch_add(&board->n_struck, 1);
        check_named(round, board);
    }
    return atomic_load(&board->struck_ns) == 0 ? atomic_load(&board->n_passages) : 0;
}

static bool has_any_failed(struct rank *self)
{
    struct board *board = self->shared;
    return atomic_load(&board->has_failed) != 0;
}

/* All fail points of a round, or a few of them. */
static void strike_everywhere(struct rank *self, struct round round, struct test_random *random)
{
    round.number = 0;
    uint64_t n_points = run_round(self, &round);
    CHECK(n_points > 0);
    uint64_t n_drawn = round.stage == IN_LIFE ? 4 : round.signal == SIGSTOP ? 1 : 2;
    uint64_t n_rounds = is_whole() || n_points < n_drawn ? n_points : n_drawn;
    for (uint64_t i = 1; i <= n_rounds && !has_any_failed(self); i++) {
        round.number = is_whole() ? i : 1 + test_random_below(random, n_points);
        (void)run_round(self, &round);
    }
}

static void report(struct rank *self, const char *name, int signal)
{
    const char *path = getenv("SHOAL_TEST_DRILL");
    struct board *board = self->shared;
    CHECK_INT(fault_files_left(), 0);
    FILE *file = path && self->rank == 0 ? fopen(path, "a") : NULL;
    if (file) {
        (void)fprintf(file, "| %s | %s | %u | %.0f ms | %s |\n", name,
                      signal == SIGKILL ? "killed" : "stopped", atomic_load(&board->n_struck),
                      (double)atomic_load(&board->slowest_ns) * 1e-6, has_any_failed(self) ? "FAIL" : "ok");
        (void)fclose(file);
    }
}

static void strike_in(struct rank *self, enum fault_op_id id, int signal, enum stage stage)
{
    const struct fault_op *op = &fault_ops[id];
    struct test_random random = test_random_begin((uint64_t)id * 64 + (uint64_t)signal);
    static const size_t counts[] = {FAULT_SMALL, FAULT_LARGE};
    /* Start-up and close are the same for all counts. */
    for (int i = 0; i < (stage == IN_LIFE ? 1 : 2) && !has_any_failed(self); i++) {
        int first = is_whole() ? 0 : (int)test_random_below(&random, FAULT_RANKS);
        int last = is_whole() ? FAULT_RANKS - 1 : first;
        for (int victim = first; victim <= last && !has_any_failed(self); victim++) {
            struct round round = {
                .op = op, .count = counts[i], .victim = victim, .signal = signal, .stage = stage};
            strike_everywhere(self, round, &random);
        }
    }
    test_barrier(self);
    report(self, stage == IN_LIFE ? "start-up to close" : op->name, signal);
}

#define FAULT_OP(name, call)                                  \
    TEST_PROCESSES(killed_in_##name, FAULT_RANKS)             \
    {                                                         \
        strike_in(self, FAULT_##name, SIGKILL, IN_OPERATION); \
    }
#include "fault/ops.def"
#undef FAULT_OP

TEST_PROCESSES(killed_from_start_to_close, FAULT_RANKS)
{
    strike_in(self, FAULT_all_reduce, SIGKILL, IN_LIFE);
}

/* A stopped rank is noticed by deadlines only, which takes its time: `make test` does it to two operations. */
static void stop_in(struct rank *self, enum fault_op_id id)
{
    struct test_random random = test_random_begin(99);
    unsigned drawn = (unsigned)test_random_below(&random, FAULT_OP_COUNT);
    if (!is_whole() && ((unsigned)id + FAULT_OP_COUNT - drawn) % FAULT_OP_COUNT >= 2) {
        test_skip("not drawn");
        return;
    }
    strike_in(self, id, SIGSTOP, IN_OPERATION);
}

#define FAULT_OP(name, call)                       \
    TEST_PROCESSES(stopped_in_##name, FAULT_RANKS) \
    {                                              \
        stop_in(self, FAULT_##name);               \
    }
#include "fault/ops.def"
#undef FAULT_OP
