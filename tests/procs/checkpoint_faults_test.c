/* SPDX-License-Identifier: MIT */
/*
 * Saves of several ranks, of which one is killed, or is refused a request by the system, at every numbered request in
 * turn: every rank that lives gets an error or none does, and the checkpoint before or the new one is there, whole.
 */
#define STATE_LARGE_ROWS 2

#include <sys/mman.h>

#include "base/mem.h"
#include "checkpoint/directory.h"
#include "checkpoint/path.h"
#include "fixtures/file_faults.h"
#include "fixtures/saved_state.h"
#include "shoal/checkpoint.h"
#include "shoal/world.h"

#ifdef SHOAL_FAIL_POINTS

#define N_RANKS 2

/* What ranks tell the test. */
struct board {
    shoal_status statuses[N_RANKS];
    uint64_t n_passages[N_RANKS];
    char texts[N_RANKS][256];
};

struct job {
    struct scratch scratch;
    shoal_checkpoint_options options;
    bool is_background;
    struct board *board;
    int round; /* of this save; the step, too, unless it replaces */
    int found; /* of the checkpoint that was found last; 0: none */
    /* What happens. */
    int victim; /* -1: nothing */
    uint64_t number;
    int code; /* 0: it is killed */
};

static shoal_status save(const struct job *job, shoal_group *group, const struct state *state)
{
    shoal_checkpoint_saving *saving;
    if (!job->is_background) {
        return shoal_checkpoint_save(group, job->scratch.path, state->items, &job->options);
    }
    TRY(shoal_checkpoint_save_start(group, job->scratch.path, state->items, &job->options, &saving));
    return shoal_checkpoint_save_wait(saving);
}

/* A rank, in a process of its own. */
static void run_rank(const struct job *job, int rank)
{
    static char key[64];
    struct board *board = job->board;
    int code = job->code;
    (void)snprintf(key, sizeof key, "faults-%" PRIx64 "-%d", test_process_number((int)getppid()), job->round);
    double scale = test_time_scale();
    const shoal_world_options options = {.struct_size = sizeof options,
                                         .n_ranks = N_RANKS,
                                         .rank = rank,
                                         .key = key,
                                         .startup_timeout_s = 20 * scale,
                                         .timeout_s = 20 * scale,
                                         .close_timeout_s = 20 * scale};
    shoal_world *world = NULL;
    struct state state;
    REQUIRE_OK(shoal_world_open(&options, &world));
    state_open(&state, rank, N_RANKS, job->round);
    bool is_victim = rank == job->victim;
    fail_point_count_only_requests(true);
    fail_point_arm(is_victim ? job->number : 0, code == 0 ? file_faults_die : file_faults_give_code, &code);
    board->statuses[rank] = save(job, shoal_world_group(world), &state);
    board->n_passages[rank] = fail_point_passages();
    (void)snprintf(board->texts[rank], sizeof board->texts[rank], "%s", shoal_error_text());
    fail_point_arm(0, NULL, NULL);
    fail_point_count_only_requests(false);
    state_close(&state);
    (void)shoal_world_close(world);
}

static void run_job(struct job *job)
{
    pid_t children[N_RANKS];
    job->round++;
    if (!job->options.replaces) {
        job->options.step = job->round;
    }
    memset(job->board, 0xFF, sizeof *job->board);
    for (int rank = 0; rank < N_RANKS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            run_rank(job, rank);
            _exit(test_has_failed() ? 1 : 0);
        }
        REQUIRE(children[rank] > 0);
    }
    for (int rank = 0; rank < N_RANKS; rank++) {
        int status = 0;
        bool dies = rank == job->victim && job->code == 0;
        CHECK_INT(waitpid(children[rank], &status, 0), children[rank]);
        CHECK(dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                   : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* The checkpoint that is there, all of it, is that of before or of now; is_new: it must be that of now. */
static void check_found(struct job *job, bool is_new)
{
    char *path = NULL;
    char *text;
    char name[2 * PATH_MAX];
    size_t bytes = 0;
    int round = 0;
    REQUIRE_OK(directory_find(job->scratch.path, -1, &path));
    REQUIRE(path || (job->found == 0 && !is_new));
    if (!path) {
        return;
    }
    (void)snprintf(name, sizeof name, "%s/" INDEX_NAME, path);
    text = scratch_read(name, &bytes);
    const char *run = text ? strstr(text, "\"run ") : NULL;
    CHECK(run && sscanf(run, "\"run %d\"", &round) == 1);
    CHECK(round == job->round || (round == job->found && !is_new));
    job->found = round;
    state_check(path, job->options.replaces ? job->options.step : round, round);
    free(text);
    mem_free(path);
}

static void check_statuses(const struct job *job)
{
    const struct board *board = job->board;
    bool is_refused = false;
    for (int rank = 0; rank < N_RANKS; rank++) {
        if (rank == job->victim && job->code == 0) {
            continue;
        }
        is_refused = board->statuses[rank] != SHOAL_OK;
        if (is_refused && job->code != 0) {
            CHECK(strstr(board->texts[rank], strerror(job->code)) != NULL);
            CHECK_INT(board->statuses[rank], SHOAL_ERR_SYSTEM);
        }
    }
    if (job->code != 0) {
        CHECK((board->statuses[0] == SHOAL_OK) == (board->statuses[1] == SHOAL_OK));
    }
}

static void disturb(struct job *job, int code)
{
    job->scratch = scratch_make();
    job->options.struct_size = sizeof job->options;
    job->options.keep = 2;
    job->board = mmap(NULL, sizeof *job->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(job->board != MAP_FAILED);
    test_deadline(300);
    job->victim = -1;
    run_job(job); /* makes the directory, which is one request more */
    check_found(job, true);
    run_job(job);
    check_found(job, true);
    run_job(job); /* removes an old one, or replaces it */
    check_found(job, true);
    uint64_t n_passages[N_RANKS];
    memcpy(n_passages, job->board->n_passages, sizeof n_passages);
    for (int victim = 0; victim < N_RANKS; victim++) {
        for (uint64_t number = 1; number <= n_passages[victim] && !test_has_failed(); number++) {
            job->victim = victim;
            job->number = number;
            job->code = code;
            run_job(job);
            check_found(job, code != 0 && job->board->statuses[0] == SHOAL_OK);
            check_statuses(job);
            if (test_has_failed()) {
                test_failed(__FILE__, __LINE__, "rank %d, request %d of %d", victim, (int)number,
                            (int)n_passages[victim]);
            }
        }
    }
    job->victim = -1;
    run_job(job);
    check_found(job, true);
    CHECK_INT(job->board->statuses[0], SHOAL_OK);
    CHECK_INT(scratch_count(&job->scratch, ".saving"), 0);
    CHECK_INT(scratch_count(&job->scratch, ".re"), 0);
    CHECK_INT(scratch_count(&job->scratch, "step-"), job->options.replaces ? 1 : 2);
    CHECK_OK(path_remove_tree(job->scratch.path));
    (void)munmap(job->board, sizeof *job->board);
}

TEST(a_rank_is_killed_while_pieces_are_saved)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_PIECES}};
    disturb(&job, 0);
}

TEST(a_rank_is_killed_while_whole_files_are_replaced)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_WHOLE, .replaces = true, .step = 1}};
    disturb(&job, 0);
}

TEST(a_rank_is_killed_in_the_background)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_WHOLE}, .is_background = true};
    disturb(&job, 0);
}

TEST(the_disk_is_full_while_pieces_are_replaced)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_PIECES, .replaces = true, .step = 1}};
    disturb(&job, ENOSPC);
}

TEST(the_disk_is_full_while_whole_files_are_saved)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_WHOLE}};
    disturb(&job, ENOSPC);
}

TEST(the_disk_is_full_in_the_background)
{
    struct job job = {.options = {.format = SHOAL_CHECKPOINT_PIECES}, .is_background = true};
    disturb(&job, ENOSPC);
}

#else

TEST(needs_fail_points)
{
    test_skip("this build has no fail points");
}

#endif
