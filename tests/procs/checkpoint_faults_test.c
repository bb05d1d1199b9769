/* SPDX-License-Identifier: MIT */
/*
 * Jobs of several ranks that resume and save, again and again. In each of them one rank is killed, or is refused a
 * request by the system, at a numbered request of its save (base/fail_point.h), each request of each rank in turn:
 *
 * - killed: the others get an error of the dead rank; the checkpoint before or the new one is there, whole;
 * - refused: all ranks have saved, or all of them get an error that names the file, and then the checkpoint before is
 *   there, whole, nothing is left of the new one (unless removing is what was refused), and the group can save again.
 *
 * The ranks of the next job load what they find and compare every bit, and their save removes what was left.
 *
 * `make test` takes a sample of the requests, SHOAL_TEST_SWEEP=whole (scripts/sweep.sh) takes all of them.
 */
#define STATE_LARGE_ROWS 2

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/io/path.h"
#include "fixtures/file_faults.h"
#include "fixtures/saved_state.h"
#include "shoal/checkpoint.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/world.h"

/* The thread sanitizer allows no threads in forked processes. */
#if defined(SHOAL_FAIL_POINTS) && !defined(__SANITIZE_THREAD__)

#define MAX_RANKS 3
#define KILLED 0

/* What ranks tell the test. */
struct board {
    shoal_status statuses[MAX_RANKS];
    uint64_t n_passages[MAX_RANKS];
    char texts[MAX_RANKS][512];
    char request[32]; /* that was refused */
};

struct job {
    struct scratch scratch;
    int n_ranks;
    shoal_checkpoint_options options;
    bool is_background;
    struct board *board;
    int round; /* of this save; the step, too, unless it replaces */
    int found; /* of the checkpoint that was found last; 0: none */
    /* What happens. */
    int victim; /* -1: nothing */
    uint64_t number;
    int code;        /* the request gives it, or the rank is KILLED */
    bool is_lasting; /* so do all requests of the save after it */
};

/* Checkpoints -------------------------------------------------------------------------------------------- */

/* The round of the checkpoint that is there, every byte of which is looked at; 0: none. */
static int find_round(const struct job *job)
{
    char *path = NULL;
    char name[2 * PATH_MAX];
    size_t bytes = 0;
    int round = 0;
    int64_t step;
    if (!CHECK_OK(directory_find(job->scratch.path, 0, INT64_MAX, &path, &step)) || !path) {
        return 0;
    }
    (void)snprintf(name, sizeof name, "%s/" INDEX_NAME, path);
    char *text = scratch_read(name, &bytes);
    const char *run = text ? strstr(text, "\"run ") : NULL;
    bool has_round = run && sscanf(run, "\"run %d\"", &round) == 1;
    CHECK(has_round);
    if (has_round) {
        state_check(path, job->options.replaces ? job->options.step : round, round);
    }
    free(text);
    mem_free(path);
    return round;
}

static size_t part_bytes(const struct state_tensor *tensor, int rank, int n_ranks)
{
    int64_t count = state_count(tensor);
    if (tensor->dim >= 0) {
        int64_t length = tensor->shape[tensor->dim];
        int64_t own = state_begin(length, rank + 1, n_ranks) - state_begin(length, rank, n_ranks);
        count = length == 0 ? 0 : count / length * own;
    }
    return (size_t)count * shoal_dtype_bytes(tensor->dtype);
}

/* Collective: the newest one is of that round, every bit. */
static void load(const struct job *job, shoal_group *group, int rank, int round)
{
    struct state loaded;
    struct state expected;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    state_open(&loaded, rank, job->n_ranks, 0);
    state_open(&expected, rank, job->n_ranks, round);
    if (CHECK_OK(shoal_checkpoint_load(group, job->scratch.path, loaded.items, NULL, &info))) {
        CHECK_INT(info.step, job->options.replaces ? job->options.step : round);
        CHECK_INT(loaded.epoch, round);
        CHECK_DOUBLE(loaded.loss, expected.loss);
        CHECK_STRING(loaded.run, expected.run);
        for (size_t i = 0; i < STATE_N_TENSORS; i++) {
            CHECK_BYTES(loaded.parts[i], expected.parts[i],
                        part_bytes(&state_tensors[i], rank, job->n_ranks));
        }
    }
    state_close(&loaded);
    state_close(&expected);
}

static void hear(void *context, shoal_log_level level, const char *message)
{
    atomic_int *n_heard = context;
    *n_heard += level == SHOAL_LOG_ERROR && strstr(message, "in the background failed: ") != NULL;
}

/* In the background: the log has its failure, too, for programs that never ask. */
static shoal_status save(const struct job *job, shoal_group *group, const struct state *state)
{
    static atomic_int n_heard;
    shoal_checkpoint_saving *saving;
    if (!job->is_background) {
        return shoal_checkpoint_save(group, job->scratch.path, state->items, &job->options);
    }
    n_heard = 0;
    shoal_log_set(hear, &n_heard, SHOAL_LOG_ERROR);
    shoal_status status =
        shoal_checkpoint_save_start(group, job->scratch.path, state->items, &job->options, &saving);
    if (status == SHOAL_OK) {
        status = shoal_checkpoint_save_wait(saving);
        CHECK_INT(n_heard, status != SHOAL_OK);
    }
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    return status;
}

static size_t count_left(const struct job *job)
{
    return scratch_count(&job->scratch, ".saving") + scratch_count(&job->scratch, ".re");
}

/* Ranks -------------------------------------------------------------------------------------------------- */

static bool is_any(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

static shoal_status disturb(void *context, const char *name)
{
    const struct job *job = context;
    if (job->board->request[0] == '\0') {
        (void)snprintf(job->board->request, sizeof job->board->request, "%s", name);
    }
    if (job->code == KILLED) {
        (void)raise(SIGKILL);
    }
    if (job->is_lasting) {
        fail_point_arm(1, disturb, context); /* only one thread of a rank makes requests */
    }
    errno = job->code;
    return SHOAL_ERR_SYSTEM;
}

/* Collective, after a save that was refused: all is as before, and the group goes on. */
static void go_on(const struct job *job, shoal_group *group, int rank, const struct state *state)
{
    static const char *const removals[] = {"unlink", "rmdir", NULL};
    bool may_remain = job->is_lasting || is_any(job->board->request, removals);
    if (rank == 0) {
        CHECK_INT(find_round(job), job->found);
        CHECK(may_remain || count_left(job) == 0);
    }
    CHECK_OK(shoal_group_barrier(group));
    load(job, group, rank, job->found);
    if (job->round % 2 == 0) { /* otherwise the next job's ranks load what is there now */
        CHECK_OK(save(job, group, state));
        load(job, group, rank, job->round);
    }
}

/* Between opening and closing of the world. */
static void run_saves(const struct job *job, shoal_group *group, int rank)
{
    struct state state;
    struct board *board = job->board;
    if (job->found > 0) {
        load(job, group, rank, job->found);
    }
    state_open(&state, rank, job->n_ranks, job->round);
    fail_point_count_only_requests(true);
    fail_point_arm(rank == job->victim ? job->number : 0, disturb, (void *)job);
    shoal_status status = save(job, group, &state);
    board->n_passages[rank] = fail_point_passages();
    fail_point_arm(0, NULL, NULL);
    fail_point_count_only_requests(false);
    (void)snprintf(board->texts[rank], sizeof board->texts[rank], "%s", shoal_error_text());
    board->statuses[rank] = status;
    if (job->victim >= 0 && job->code == KILLED) {
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_PEER);
    } else {
        CHECK_OK(shoal_group_barrier(group));
        if (status != SHOAL_OK) {
            go_on(job, group, rank, &state);
        }
    }
    state_close(&state);
}

/* A rank, in a process of its own. */
static void run_rank(const struct job *job, int rank)
{
    static char key[64];
    double scale = test_time_scale();
    (void)snprintf(key, sizeof key, "faults-%" PRIx64 "-%d", test_process_number((int)getppid()), job->round);
    const shoal_world_options options = {.struct_size = sizeof options,
                                         .n_ranks = job->n_ranks,
                                         .rank = rank,
                                         .key = key,
                                         .startup_timeout_s = 20 * scale,
                                         .timeout_s = 20 * scale,
                                         .close_timeout_s = 20 * scale};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    run_saves(job, shoal_world_group(world), rank);
    (void)shoal_world_close(world);
}

/* Jobs --------------------------------------------------------------------------------------------------- */

static void run_job(struct job *job)
{
    pid_t children[MAX_RANKS];
    job->round++;
    if (!job->options.replaces) {
        job->options.step = job->round;
    }
    memset(job->board, 0, sizeof *job->board);
    for (int rank = 0; rank < job->n_ranks; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            run_rank(job, rank);
            _exit(test_has_failed() ? 1 : 0);
        }
        REQUIRE(children[rank] > 0);
    }
    for (int rank = 0; rank < job->n_ranks; rank++) {
        int status = 0;
        bool dies = rank == job->victim && job->code == KILLED;
        CHECK_INT(waitpid(children[rank], &status, 0), children[rank]);
        CHECK(dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                   : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void run_undisturbed(struct job *job)
{
    job->victim = -1;
    run_job(job);
    for (int rank = 0; rank < job->n_ranks; rank++) {
        CHECK_INT(job->board->statuses[rank], SHOAL_OK);
    }
    job->found = find_round(job);
    CHECK_INT(job->found, job->round);
    CHECK_INT(count_left(job), 0);
}

static void check_killed(struct job *job)
{
    const struct board *board = job->board;
    for (int rank = 0; rank < job->n_ranks; rank++) {
        CHECK(rank == job->victim || board->statuses[rank] == SHOAL_ERR_PEER);
    }
    int found = find_round(job);
    CHECK(found == job->round || found == job->found);
    CHECK(job->victim == 0 || count_left(job) == 0); /* the first rank removes its own */
    job->found = found;
}

static void check_refused(struct job *job)
{
    static const char *const repeated[] = {"create", "fsync", "sync directory", NULL};
    const struct board *board = job->board;
    bool is_refused = board->statuses[0] != SHOAL_OK;
    CHECK(board->request[0] != '\0');
    for (int rank = 0; rank < job->n_ranks; rank++) {
        CHECK_INT(board->statuses[rank], is_refused ? SHOAL_ERR_SYSTEM : SHOAL_OK);
        if (is_refused) {
            CHECK(strstr(board->texts[rank], strerror(job->code)) != NULL);
            CHECK(strstr(board->texts[rank], job->scratch.path) != NULL);
        }
    }
    CHECK(!is_refused || job->code != EINTR || !is_any(board->request, repeated));
    int found = find_round(job);
    CHECK_INT(found, is_refused && job->round % 2 != 0 ? job->found : job->round);
    job->found = found;
}

static void run_disturbed(struct job *job, int victim, uint64_t number, int code)
{
    job->victim = victim;
    job->number = number;
    job->code = code;
    run_job(job);
    if (code == KILLED) {
        check_killed(job);
    } else {
        check_refused(job);
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "rank %d of %d, request %d (%s), error %d, round %d: %.200s", victim,
                    job->n_ranks, (int)number, job->board->request, code, job->round, job->board->texts[0]);
    }
}

/* Ways of saving ----------------------------------------------------------------------------------------- */

/* Numbers of requests are taken at this distance. */
static uint64_t distance_of_numbers(void)
{
    return test_is_whole() ? 1 : test_time_scale() > 1 ? 31 : 11;
}

/* `way` chooses where to begin, so that all ways together see all kinds of requests. */
static void sweep_way(struct job *job, int code, uint64_t way)
{
    uint64_t distance = distance_of_numbers();
    uint64_t n_passages[MAX_RANKS];
    job->scratch = scratch_make();
    job->options.struct_size = sizeof job->options;
    run_undisturbed(job);
    run_undisturbed(job); /* removes an old one, or replaces it */
    memcpy(n_passages, job->board->n_passages, sizeof n_passages);
    for (int victim = 0; victim < job->n_ranks; victim++) {
        uint64_t first = (way + (uint64_t)victim) % distance + 1;
        for (uint64_t number = first; number <= n_passages[victim] && !test_has_failed();
             number += distance) {
            run_disturbed(job, victim, number, code);
        }
    }
    if (!test_has_failed()) {
        run_undisturbed(job);
        CHECK_INT(scratch_count(&job->scratch, "step-"), 1);
    }
    CHECK_OK(path_remove_tree(job->scratch.path));
}

/* A sample takes one way of `n_skipped`. */
static void sweep(int code, bool is_lasting, uint64_t n_skipped)
{
    uint64_t way = 0;
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(board != MAP_FAILED);
    test_deadline(1200);
    int round = 0; /* keys of worlds are made of it */
    for (int n_ranks = 2; n_ranks <= MAX_RANKS; n_ranks++) {
        for (int choice = 0; choice < 8 && !test_has_failed(); choice++, way++) {
            bool replaces = (choice & 1) != 0;
            struct job job = {
                .n_ranks = n_ranks,
                .options = {.replaces = replaces,
                            .keep = replaces ? 0 : 1,
                            .step = 1,
                            .format = (choice & 2) != 0 ? SHOAL_CHECKPOINT_WHOLE : SHOAL_CHECKPOINT_PIECES},
                .is_background = (choice & 4) != 0,
                .board = board,
                .round = round,
                .is_lasting = is_lasting};
            if (test_is_whole() || way % n_skipped == 0) {
                sweep_way(&job, code, way);
            }
            round = job.round;
        }
    }
    (void)munmap(board, sizeof *board);
}

TEST(a_rank_is_killed)
{
    sweep(KILLED, /*is_lasting=*/false, 1);
}

TEST(the_disk_is_full)
{
    sweep(ENOSPC, /*is_lasting=*/false, 1);
}

TEST(the_disk_is_broken)
{
    sweep(EIO, /*is_lasting=*/false, 3);
}

TEST(a_signal_interrupts)
{
    sweep(EINTR, /*is_lasting=*/false, 3);
}

/* Until the save has ended; nothing can be removed, either. */
TEST(the_disk_stays_broken)
{
    sweep(EIO, /*is_lasting=*/true, 3);
}

#else

TEST(needs_fail_points)
{
    test_skip("this build has no fail points, or the thread sanitizer");
}

#endif
