/* SPDX-License-Identifier: MIT */
/*
 * Writes to gathered parameters, which are read-only, with SHOAL_EXPLAIN_FAULTS: rank 1 says which unit it was, and
 * then ends by signal 11 as it would have done. Both ranks are children of this process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"
#include "shoal/shoal.h"

enum {
    N_RANKS = 2,
    COUNT = 1000,
    TEXT_BYTES = 4096
};

#define VOLATILE_WRITE(address) (*(volatile float *)(uintptr_t)(address) = 1.0F)

/* Rank 1 writes to the parameter of the second of two units. */
static shoal_status write_to_whole(shoal_world *world)
{
    static const float values[COUNT];
    shoal_fsdp *fsdp = NULL;
    int ids[2];
    shoal_status status = shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp);
    for (int unit = 0; unit < 2 && status == SHOAL_OK; unit++) {
        status =
            shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, values, &ids[unit]);
    }
    for (int unit = 0; unit < 2 && status == SHOAL_OK; unit++) {
        status = shoal_fsdp_pre_forward(fsdp, unit);
        if (status == SHOAL_OK && unit == 1 && shoal_world_rank(world) == 1) {
            VOLATILE_WRITE(shoal_fsdp_full_param(fsdp, ids[unit]));
        }
        status = status == SHOAL_OK ? shoal_fsdp_post_forward(fsdp, unit) : status;
    }
    return status;
}

static void handle(int number)
{
    (void)number;
    static const char text[] = "own handler\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(3);
}

/* In the child. */
static _Noreturn void fault(int rank, int errors, bool has_handler, const char *is_explained)
{
    char key[64];
    (void)snprintf(key, sizeof key, "fault %ld", (long)getppid());
    (void)setenv("SHOAL_RANK", rank == 0 ? "0" : "1", 1);
    (void)setenv("SHOAL_RANKS", "2", 1);
    (void)setenv("SHOAL_KEY", key, 1);
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)dup2(errors, STDERR_FILENO);
    (void)signal(SIGSEGV, has_handler ? handle : SIG_DFL);
    (void)signal(SIGBUS, SIG_DFL);
    (void)setenv("SHOAL_EXPLAIN_FAULTS", is_explained, 1);
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(NULL, &world);
    status = status == SHOAL_OK ? write_to_whole(world) : status;
    if (rank == 1) {
        (void)fprintf(stderr, "no fault: %s\n", status == SHOAL_OK ? "ok" : shoal_error_text());
    }
    _exit(4);
}

/* The thread sanitizer lets no child of a process with threads start threads, and the harness has one. */
static bool can_fork(void)
{
#if defined(__SANITIZE_THREAD__)
    test_skip("children with threads are not for the thread sanitizer");
    return false;
#else
    return true;
#endif
}

/* Returns how rank 1 ended, with what it said. */
static int run_child(bool has_handler, const char *is_explained, char text[TEXT_BYTES])
{
    int ends[2];
    int ended = -1;
    text[0] = '\0';
    if (pipe(ends) != 0) {
        test_failed(__FILE__, __LINE__, "no pipe");
        return -1;
    }
    (void)fflush(NULL);
    pid_t children[N_RANKS];
    for (int rank = 0; rank < N_RANKS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            fault(rank, ends[1], has_handler, is_explained);
        }
    }
    (void)close(ends[1]);
    size_t n_chars = 0;
    for (ssize_t n = 1; n > 0 && n_chars<TEXT_BYTES - 1; n_chars += n> 0 ? (size_t)n : 0) {
        n = read(ends[0], text + n_chars, TEXT_BYTES - 1 - n_chars);
    }
    text[n_chars] = '\0';
    (void)close(ends[0]);
    (void)waitpid(children[0], &ended, 0);
    (void)waitpid(children[1], &ended, 0);
    return ended;
}

static void check_contains(const char *text, const char *part, bool is_wanted)
{
    if ((strstr(text, part) != NULL) != is_wanted) {
        test_failed(__FILE__, __LINE__, "'%s' is %s: %s", part, is_wanted ? "missing" : "there", text);
    }
}

TEST(a_write_to_gathered_parameters_is_explained)
{
    char text[TEXT_BYTES];
    if (!can_fork()) {
        return;
    }
    int ended = run_child(false, "1", text);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGSEGV);
    check_contains(text, "shoal: rank 1 wrote to gathered parameters of unit 1, which are read-only", true);
    check_contains(text, "unit unit", false);
    check_contains(text, "no fault", false);
}

TEST(without_the_option_nothing_is_said)
{
    char text[TEXT_BYTES];
    if (!can_fork()) {
        return;
    }
    int ended = run_child(false, "0", text);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGSEGV);
    CHECK_STRING(text, "");
}

TEST(the_handler_of_a_program_stays)
{
    char text[TEXT_BYTES];
    if (!can_fork()) {
        return;
    }
    int ended = run_child(true, "1", text);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 3);
    CHECK_STRING(text, "own handler\n");
}
