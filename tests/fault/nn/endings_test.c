/* SPDX-License-Identifier: MIT */
/*
 * Endings: programs of two ranks that are drawn from a number (fixtures/ending.h) end what they have in any order,
 * after a last step that was well or failed on one rank. Nothing crashes, nothing is lost, and no call takes longer
 * than its deadline.
 *
 * Each program runs in a process of its own. SHOAL_TEST_ENDINGS says how many programs, SHOAL_TEST_ENDINGS_FIRST the
 * number of the first. What fails is printed with its number. With SHOAL_TEST_ENDINGS_LEAKS the leak sanitizer, if it
 * is built in, searches each of them.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "fixtures/ending_life.h"
#include "shoal_nn/nn.h"

enum {
    N_ENDINGS = 40
};

/* Seconds, before they are scaled, that one call and a program may take: more than any deadline of theirs. */
#define CALL_S 15.0
#define PROGRAM_S 100.0

/* Ending ------------------------------------------------------------------------------------------------- */

static void close_group(struct life *life)
{
    if (life->group && life->ending->place != ENDING_WORLD && shoal_group_close(life->group) == SHOAL_OK) {
        life->group = NULL;
    }
}

static void drop_tensors(struct life *life)
{
    for (int i = 0; i < life->n_kept; i++) {
        shoal_tensor_unref(life->kept[i]);
    }
    life->n_kept = 0;
    life->loss = NULL;
}

/* A gather that is in flight uses the window: it must have ended before the window is freed. */
static void end_gather(struct life *life)
{
    if (life->works[1]) {
        (void)!shoal_work_wait(life->works[1], -1);
    }
}

static void free_works(struct life *life)
{
    end_gather(life);
    for (int i = 0; i < 2; i++) {
        shoal_work_free(life->works[i]);
        life->works[i] = NULL;
    }
}

static void free_shared(struct life *life)
{
    end_gather(life);
    shoal_symmetric_free(life->symmetric);
    shoal_window_free(life->window);
    life->symmetric = NULL;
    life->window = NULL;
}

/* Reads through tensors that may lie in memory of a world that is closed. */
static void read_tensors(struct life *life)
{
    for (int i = 0; i < life->n_kept; i++) {
        const float *data = shoal_data(life->kept[i]);
        if (data && shoal_tensor_count(life->kept[i]) > 0) {
            life->seen += (double)data[0];
        }
    }
}

static void end_scope(struct life *life)
{
    (void)!shoal_scope_end();
    life->has_scope = false;
}

static void free_module(struct life *life)
{
    shoal_module_unref(life->root);
    life->root = NULL;
}

static void free_optimizer(struct life *life)
{
    shoal_nn_optimizer_free(life->optimizer);
    life->optimizer = NULL;
}

static void free_compiled(struct life *life)
{
    shoal_compiled_free(life->compiled);
    life->compiled = NULL;
}

static void free_fsdp(struct life *life)
{
    shoal_fsdp_free(life->fsdp);
    life->fsdp = NULL;
}

static void free_mesh(struct life *life)
{
    shoal_mesh_free(life->mesh);
    life->mesh = NULL;
}

static void abort_group(struct life *life)
{
    (void)!(life->group ? shoal_group_abort(life->group, NULL) : SHOAL_OK);
}

static void use_call(struct life *life)
{
    if (life->root || life->fsdp) {
        (void)!life_make_step(life);
    }
}

static void use_backward(struct life *life)
{
    if (life->loss) {
        (void)!shoal_backward(life->loss, NULL);
    }
}

static void use_optimizer(struct life *life)
{
    (void)!life_update(life);
}

static void use_compiled(struct life *life)
{
    if (life->compiled && life->root && shoal_scope_begin() == SHOAL_OK) {
        (void)!life_run_compiled(life);
        (void)!shoal_scope_end();
    }
}

static void use_work(struct life *life)
{
    if (life->works[0]) {
        (void)!shoal_work_wait(life->works[0], 0.01);
    }
}

/* NULL: nothing of the kind is there. */
static shoal_fsdp *find_context(const struct life *life)
{
    bool is_sharded = life->ending->wrapping != ENDING_PLAIN && life->ending->wrapping != ENDING_DDP;
    shoal_fsdp *context = life->fsdp;
    if (life->root && is_sharded) {
        (void)!shoal_fully_shard_context(life->root, &context);
    }
    return context;
}

static void use_reset(struct life *life)
{
    shoal_fsdp *context = find_context(life);
    if (context) {
        (void)!shoal_fsdp_reset(context);
    } else if (life->root && life->ending->wrapping == ENDING_DDP) {
        (void)!shoal_ddp_reset(life->root);
    }
}

static void use_unshard(struct life *life)
{
    shoal_fsdp *context = find_context(life);
    if (context) {
        (void)!shoal_fsdp_unshard(shoal_fsdp_unit_of(context, 0));
    }
}

static void (*const act_functions[ENDING_N_ACTS])(struct life *life) = {
    [ENDING_CLOSE_WORLD] = life_close_world,
    [ENDING_FREE_MODULE] = free_module,
    [ENDING_FREE_OPTIMIZER] = free_optimizer,
    [ENDING_FREE_COMPILED] = free_compiled,
    [ENDING_FREE_FSDP] = free_fsdp,
    [ENDING_DROP_TENSORS] = drop_tensors,
    [ENDING_END_SCOPE] = end_scope,
    [ENDING_FREE_WORK] = free_works,
    [ENDING_CLOSE_GROUP] = close_group,
    [ENDING_FREE_MESH] = free_mesh,
    [ENDING_FREE_SHARED] = free_shared,
    [ENDING_ABORT_GROUP] = abort_group,
    [ENDING_USE_CALL] = use_call,
    [ENDING_USE_BACKWARD] = use_backward,
    [ENDING_USE_OPTIMIZER] = use_optimizer,
    [ENDING_USE_COMPILED] = use_compiled,
    [ENDING_USE_TENSORS] = read_tensors,
    [ENDING_USE_RESET] = use_reset,
    [ENDING_USE_UNSHARD] = use_unshard,
    [ENDING_USE_WORK] = use_work};

static void end_all(struct life *life)
{
    const struct ending *ending = life->ending;
    for (int i = 0; i < ending->n_acts[life->rank]; i++) {
        enum ending_act act = ending->acts[life->rank][i];
        int64_t begin_ns = clock_now_ns();
        atomic_store(&life->board->doing[life->rank], ending_act_words[act]);
        act_functions[act](life);
        double seconds = (double)(clock_now_ns() - begin_ns) * 1e-9;
        if (seconds > CALL_S * test_time_scale()) {
            test_failed(__FILE__, __LINE__, "rank %d: %s took %.1f s", life->rank, ending_act_words[act],
                        seconds);
        }
    }
}

/* A rank and a program ----------------------------------------------------------------------------------- */

static void *live(void *context)
{
    struct life *life = context;
    life_current = life;
    life->has_scope = CHECK_OK(shoal_scope_begin());
    atomic_store(&life->board->doing[life->rank], "beginning");
    life_make_all(life);
    if (!test_has_failed()) {
        atomic_store(&life->board->doing[life->rank], "the last step");
        life_make_last_step(life);
        life_keep_all(life);
        end_all(life);
    }
    /* If a check has failed, the other rank does not wait. */
    atomic_store(&life->board->is_ready[life->rank], true);
    atomic_store(&life->board->is_over[life->rank], true);
    free(life->buffer);
    atomic_store(&life->board->doing[life->rank], NULL);
    return NULL;
}

struct program {
    struct ending ending;
    struct board *board;
    char key[64];
    struct life lives[ENDING_RANKS];
    pthread_t threads[ENDING_RANKS];
    pid_t process; /* of rank 1; 0: it is a thread */
};

/* A program that does not end says what its ranks are doing. */
static void give_up(const struct program *program)
{
    for (int i = 0; i < ENDING_RANKS; i++) {
        const char *doing = atomic_load(&program->board->doing[i]);
        test_failed(__FILE__, __LINE__, "rank %d does not end: %s", i, doing ? doing : "it has ended");
    }
    if (program->process > 0) {
        (void)kill(program->process, SIGKILL);
    }
    _exit(1);
}

static void join_thread(const struct program *program, int rank, const struct timespec *deadline)
{
    if (pthread_timedjoin_np(program->threads[rank], NULL, deadline) != 0) {
        give_up(program);
    }
}

static void join_process(const struct program *program, const struct timespec *deadline)
{
    int status = 0;
    struct timespec now = {0};
    while (waitpid(program->process, &status, WNOHANG) == 0) {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > deadline->tv_sec) {
            give_up(program);
        }
        test_pause(0.001);
    }
    enum ending_odd odd = program->ending.odd;
    bool may_die = odd == ENDING_DIE || odd == ENDING_DIE_INSIDE;
    bool has_died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!(may_die && has_died) && !(odd != ENDING_DIE && WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        test_failed(__FILE__, __LINE__, "the process of rank 1 ended with %s %d",
                    WIFSIGNALED(status) ? "signal" : "code",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

static void check_blocks(size_t n_before, const char *whose)
{
    if (test_live_blocks() != n_before) {
        test_failed(__FILE__, __LINE__, "%zu blocks of %s are lost", test_live_blocks() - n_before, whose);
    }
}

static void start_process(struct program *program)
{
    (void)fflush(NULL);
    program->process = fork();
    if (program->process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        size_t n_before = test_live_blocks();
        (void)live(&program->lives[1]);
        check_blocks(n_before, "rank 1");
        (void)fflush(NULL);
        _exit(test_has_failed() ? 1 : 0);
    }
    REQUIRE(program->process > 0);
}

/* Threads of this process. Those that are ending may still be listed. */
static int count_threads(void)
{
    int n = -1;
    for (int round = 0; n != 1 && round < 2000; round++) {
        DIR *tasks = opendir("/proc/self/task");
        n = 0;
        for (const struct dirent *entry = tasks ? readdir(tasks) : NULL; entry; entry = readdir(tasks)) {
            n += entry->d_name[0] != '.';
        }
        (void)(tasks ? closedir(tasks) : 0);
        if (n != 1) {
            test_pause(0.001);
        }
    }
    return n;
}

extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static void run_program(void *context)
{
    struct program *program = context;
    struct timespec deadline = {0};
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_nn_set_threads(1)); /* its threads life_stay */
    CHECK_INT(setenv("SHOAL_FSDP_GATHER", program->ending.copies ? "copy" : "auto", 1), 0);
    (void)clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += (time_t)(PROGRAM_S * test_time_scale());
    (void)snprintf(program->key, sizeof program->key, "endings-%" PRIx64, test_process_number((int)getpid()));
    for (int i = 0; i < ENDING_RANKS; i++) {
        program->lives[i] = (struct life){
            .ending = &program->ending, .board = program->board, .rank = i, .key = program->key};
    }
    if (program->ending.is_process) {
        start_process(program);
    }
    for (int i = 0; i < (program->ending.is_process ? 1 : ENDING_RANKS); i++) {
        REQUIRE(pthread_create(&program->threads[i], NULL, live, &program->lives[i]) == 0);
    }
    for (int i = 0; i < (program->ending.is_process ? 1 : ENDING_RANKS); i++) {
        join_thread(program, i, &deadline);
    }
    if (program->ending.is_process) {
        join_process(program, &deadline);
    }
    check_blocks(n_before, "the threads");
    CHECK_INT(count_threads(), 1);
    if (getenv("SHOAL_TEST_ENDINGS_LEAKS") && __lsan_do_recoverable_leak_check) {
        CHECK_INT(__lsan_do_recoverable_leak_check(), 0);
    }
}

static uint64_t get_number(const char *name, uint64_t or_else)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : or_else;
}

TEST(endings)
{
    uint64_t n = get_number("SHOAL_TEST_ENDINGS", N_ENDINGS);
    uint64_t first = get_number("SHOAL_TEST_ENDINGS_FIRST", 1);
    struct program *program = calloc(1, sizeof *program);
    REQUIRE(program);
    program->board =
        mmap(NULL, sizeof *program->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(program->board != MAP_FAILED);
    for (uint64_t i = 0; i < n && !test_has_failed(); i++) {
        char words[ENDING_WORDS_BYTES];
        test_deadline(2 * PROGRAM_S);
        test_progress(i, n);
        memset(program->board, 0, sizeof *program->board);
        ending_draw(first + i, &program->ending);
        test_in_child(run_program, program);
        if (test_has_failed()) {
            ending_describe(&program->ending, words);
            test_failed(__FILE__, __LINE__, "program %" PRIu64 ": %s", first + i, words);
            test_failed(__FILE__, __LINE__,
                        "repeat with SHOAL_TEST_ENDINGS=1 SHOAL_TEST_ENDINGS_FIRST=%" PRIu64, first + i);
        }
    }
    (void)munmap(program->board, sizeof *program->board);
    free(program);
}
