/* SPDX-License-Identifier: MIT */
/*
 * The harness itself: faults are planted in hidden cases of this program, which then runs itself with one of
 * them chosen and looks at exit code and output. A harness that overlooks a fault passes nothing here.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "harness/harness.h"
#include "harness/test.h"

/* Planted faults ---------------------------------------------------------------------------------------- */

TEST_RANKS(planted_failing_rank, 3)
{
    CHECK_INT(self->rank == 1 ? 41 : 40, 40);
}

TEST_RANKS(planted_exit_code, 3)
{
    if (self->is_process && self->rank == 2) {
        printf("rank two says goodbye\n");
        (void)fflush(stdout);
        _exit(5);
    }
}

TEST_RANKS(planted_early_exit, 2)
{
    if (self->is_process && self->rank == 1) {
        _exit(0);
    }
}

TEST_RANKS(planted_signal, 3)
{
    if (self->is_process && self->rank == 0) {
        (void)raise(SIGKILL);
    }
    if (self->is_process) {
        /* Rank 0 is dead, so nobody gets past this. */
        test_barrier(self);
    }
}

/* Outlives its rank unless the whole group is killed; holds the output open. */
TEST_RANKS(planted_grandchild, 1)
{
    if (self->is_process && fork() == 0) {
        for (;;) {
            (void)pause();
        }
    }
}

TEST_RANKS(planted_hang, 2)
{
    test_deadline(0.2);
    if (self->rank == 1) {
        for (;;) {
            (void)pause();
        }
    }
}

TEST(planted_plain_hang)
{
    test_deadline(0.2);
    for (;;) {
        (void)pause();
    }
}

TEST_RANKS(planted_missed_barrier, 2)
{
    if (self->rank == 0) {
        test_barrier(self);
    }
}

TEST_PROCESSES(planted_refusal_to_die, 2)
{
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
    }
}

TEST_PROCESSES(planted_other_death, 2)
{
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
        (void)raise(SIGTERM);
    }
}

TEST(planted_open_descriptor)
{
    CHECK(dup(STDOUT_FILENO) >= 0);
}

TEST_RANKS(planted_rank_descriptor, 2)
{
    if (self->rank == 1) {
        CHECK(dup(STDOUT_FILENO) >= 0);
    }
}

static void *lost_block; /* known to the leak sanitizer, unknown to the library's user */

TEST(planted_leak)
{
    lost_block = mem_alloc(10);
}

TEST_RANKS(planted_rank_leak, 2)
{
    if (self->rank == 1) {
        lost_block = mem_alloc(10);
    }
}

TEST(planted_crash)
{
    (void)raise(SIGSEGV);
}

TEST(planted_seed)
{
    struct test_random random = test_random_begin(7);
    printf("drawn %llu\n", (unsigned long long)test_random_u64(&random));
    CHECK(false);
}

TEST(planted_skip)
{
    test_skip("planted reason");
}

TEST(planted_many_failures)
{
    for (int i = 0; i < 1000; i++) {
        CHECK(i < 0);
    }
}

/* Two blocks; forgets the first when the second is refused. */
static shoal_status forget_first_block(void *context)
{
    void *first = mem_alloc(1);
    if (!first) {
        return SHOAL_ERR_NO_MEMORY;
    }
    void *second = mem_alloc(1);
    if (!second) {
        lost_block = first;
        return SHOAL_ERR_NO_MEMORY;
    }
    mem_free(second);
    mem_free(first);
    return SHOAL_OK;
}

TEST(planted_sweep_leak)
{
    (void)test_sweep_allocations(forget_first_block, NULL);
}

static shoal_status blame_the_caller(void *context)
{
    void *block = mem_alloc(1);
    if (!block) {
        return error_set(SHOAL_ERR_INVALID, "planted");
    }
    mem_free(block);
    return SHOAL_OK;
}

TEST(planted_sweep_status)
{
    (void)test_sweep_allocations(blame_the_caller, NULL);
}

TEST_RANKS(planted_race, 2)
{
    int *counter = self->shared;
    for (int i = 0; i < 1000; i++) {
        *counter = *counter + 1;
    }
}

/* Running them ------------------------------------------------------------------------------------------ */

static char output[65536];

static int run_planted(const char *name, const char *setting)
{
    const char *const arguments[] = {test_program(), name, NULL};
    const char *const environment[] = {setting, NULL};
    return test_run_program(arguments, environment, output, sizeof output);
}

/* Runs a planted case, which must fail and say `words`. */
static void expect_failure(const char *name, const char *words)
{
    int code = run_planted(name, NULL);
    if (code != 1) {
        test_failed(__FILE__, __LINE__, "%s ended with %d, expected 1; its output:\n%s", name, code, output);
    }
    if (!strstr(output, words)) {
        test_failed(__FILE__, __LINE__, "%s does not say \"%s\":\n%s", name, words, output);
    }
}

static bool skips_processes(void)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("no ranks as processes under the thread sanitizer");
    }
    return HARNESS_HAS_TSAN != 0;
}

TEST(failing_rank_is_named)
{
    expect_failure("planted_failing_rank/threads", "[rank 1] ");
    CHECK(strstr(output, "is 41, expected 40") != NULL);
    CHECK(strstr(output, "[rank 0] ") == NULL);
    CHECK(strstr(output, "0 passed, 1 failed") != NULL);
}

TEST(failing_process_is_named)
{
    if (skips_processes()) {
        return;
    }
    expect_failure("planted_failing_rank/processes", "[rank 1] ");
    CHECK(strstr(output, "is 41, expected 40") != NULL);
    CHECK(strstr(output, "rank 1 ended with exit code 1") != NULL);
    CHECK(strstr(output, "rank 0 ended") == NULL);
}

TEST(exit_code_is_reported)
{
    if (skips_processes()) {
        return;
    }
    expect_failure("planted_exit_code/processes", "rank 2 ended with exit code 5");
    CHECK(strstr(output, "[rank 2] rank two says goodbye\n") != NULL);
}

TEST(early_exit_is_no_success)
{
    if (skips_processes()) {
        return;
    }
    expect_failure("planted_early_exit/processes", "rank 1 ended with exit code 0 before its test was over");
}

TEST(signal_is_reported_and_barrier_gives_up)
{
    if (skips_processes()) {
        return;
    }
    expect_failure("planted_signal/processes", "rank 0 was ended by signal 9");
    CHECK(strstr(output, "rank 1 waits in test_barrier, but rank 0 has ended") != NULL);
    CHECK(strstr(output, "rank 2 waits in test_barrier, but rank 0 has ended") != NULL);
    CHECK(strstr(output, "was killed") == NULL);
}

TEST(grandchildren_do_not_outlive_the_test)
{
    if (skips_processes()) {
        return;
    }
    /* The output would stay open, and this call wait for it, if one survived. */
    CHECK_INT(run_planted("planted_grandchild/processes", NULL), 0);
}

TEST(hang_meets_the_deadline)
{
    expect_failure("planted_hang/threads", "the deadline passed; ranks that had not finished: 1\n");
    expect_failure("planted_plain_hang", "FAIL planted_plain_hang: the deadline passed");
    if (!HARNESS_HAS_TSAN) {
        expect_failure("planted_hang/processes", "the deadline passed; ranks that had not finished: 1\n");
        CHECK(strstr(output, "rank 1 was still running and was killed") != NULL);
    }
}

TEST(missed_barrier_fails)
{
    expect_failure("planted_missed_barrier", "rank 0 waits in test_barrier, but rank 1 has ended");
}

TEST(leak_is_reported)
{
    expect_failure("planted_leak", "1 blocks of memory were lost");
    expect_failure("planted_rank_leak/threads", "1 blocks of memory were lost");
    if (!HARNESS_HAS_TSAN) {
        expect_failure("planted_rank_leak/processes", "1 blocks of memory were lost");
        CHECK(strstr(output, "rank 1 ended with exit code 1") != NULL);
    }
}

TEST(open_descriptor_is_reported)
{
    expect_failure("planted_open_descriptor", "was left open: ");
    expect_failure("planted_rank_descriptor/threads", "was left open: ");
    if (!HARNESS_HAS_TSAN) {
        expect_failure("planted_rank_descriptor/processes", "[rank 1] ");
        CHECK(strstr(output, "was left open: ") != NULL);
    }
}

TEST(expected_death_must_come)
{
    expect_failure("planted_refusal_to_die", "rank 1 came to its end, but was to be ended by signal 9");
    expect_failure("planted_other_death", "rank 1 was ended by signal 15");
}

TEST(crash_is_named)
{
    int code = run_planted("planted_crash", NULL);
    CHECK(code != 0 && code != 77);
    CHECK(strstr(output, "FAIL planted_crash: the program crashed here") != NULL);
}

TEST(sweep_finds_a_leak_on_the_error_path)
{
    expect_failure("planted_sweep_leak", "with allocation 2 failing alone the body lost 1 blocks");
}

TEST(sweep_finds_a_wrong_status)
{
    expect_failure("planted_sweep_status", "with allocation 1 failing alone the body gave SHOAL_ERR_INVALID");
}

TEST(seed_comes_again)
{
    char first[64];
    expect_failure("planted_seed", "repeat with SHOAL_TEST_SEED=");
    CHECK_INT(run_planted("planted_seed", "SHOAL_TEST_SEED=12345"), 1);
    CHECK(strstr(output, "SHOAL_TEST_SEED=12345") != NULL);
    const char *drawn = strstr(output, "drawn ");
    REQUIRE(drawn != NULL);
    (void)snprintf(first, sizeof first, "%.*s", (int)strcspn(drawn, "\n"), drawn);
    CHECK_INT(run_planted("planted_seed", "SHOAL_TEST_SEED=12345"), 1);
    CHECK(strstr(output, first) != NULL);
    CHECK_INT(run_planted("planted_seed", "SHOAL_TEST_SEED=12346"), 1);
    CHECK(strstr(output, first) == NULL);
    CHECK_INT(run_planted("planted_seed", "SHOAL_TEST_SEED=nonsense"), 2);
}

TEST(skip_gives_77)
{
    CHECK_INT(run_planted("planted_skip", NULL), 77);
    CHECK(strstr(output, "skip planted_skip: planted reason") != NULL);
}

TEST(failures_are_cut_off)
{
    expect_failure("planted_many_failures", "the others are not printed");
    CHECK(strlen(output) < 20000);
}

TEST(unknown_names_fail)
{
    CHECK_INT(run_planted("there_is_no_such_test", NULL), 1);
    /* Part of a planted name is not enough to run it. */
    CHECK_INT(run_planted("planted_lea", NULL), 1);
}

TEST(list_hides_planted_cases)
{
    CHECK_INT(run_planted("--list", NULL), 0);
    CHECK(strstr(output, "list_hides_planted_cases\n") != NULL);
    CHECK(strstr(output, "planted_leak") == NULL);
}

TEST(race_in_shared_memory_is_found)
{
    if (!HARNESS_HAS_TSAN) {
        test_skip("only the thread sanitizer finds races");
        return;
    }
    int code = run_planted("planted_race/threads", NULL);
    CHECK(code != 0);
    if (!strstr(output, "data race")) {
        test_failed(__FILE__, __LINE__, "the planted race was not found; exit code %d:\n%s", code, output);
    }
}

/* What must work ---------------------------------------------------------------------------------------- */

TEST_RANKS(barrier_orders_writes, 4)
{
    uint32_t *slots = self->shared;
    for (uint32_t round = 1; round <= 50; round++) {
        slots[self->rank] = round;
        test_barrier(self);
        for (int peer = 0; peer < self->n_ranks; peer++) {
            CHECK_INT(slots[peer], round);
        }
        test_barrier(self);
    }
}

TEST_RANKS(shared_memory_starts_zeroed, 2)
{
    test_barrier(self);
    const unsigned char *bytes = self->shared;
    size_t n_set = 0;
    for (size_t i = 0; i < TEST_SHARED_BYTES; i++) {
        n_set += bytes[i] != 0;
    }
    CHECK_INT(n_set, 0);
}

/* The others meet without the dead one, and are judged as always. */
TEST_PROCESSES(survivors_of_an_expected_death_meet, 3)
{
    test_barrier(self);
    if (self->rank == 1) {
        test_expect_death(1, SIGKILL);
        (void)raise(SIGKILL);
    }
    test_barrier(self);
    test_barrier(self);
}

/* Said by another rank, while some wait already; the signal comes from outside. */
TEST_PROCESSES(stopped_rank_goes_on_and_is_killed, 3)
{
    _Atomic uint32_t *is_on = self->shared;
    test_barrier(self);
    if (self->rank == 2) {
        (void)raise(SIGSTOP);
        atomic_store(is_on, 1);
        for (;;) {
            (void)pause();
        }
    }
    if (self->rank == 0) {
        while (atomic_load(is_on) == 0) {
            test_signal(2, SIGCONT);
            test_pause(0.001);
        }
        test_expect_death(2, SIGKILL);
        test_signal(2, SIGKILL);
    }
    test_barrier(self);
}

static shoal_status allocate_thrice(void *context)
{
    void *blocks[3] = {NULL, NULL, NULL};
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < 3 && status == SHOAL_OK; i++) {
        blocks[i] = mem_alloc(8);
        status = blocks[i] ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < 3; i++) {
        mem_free(blocks[i]);
    }
    return status;
}

TEST(sweep_counts_allocations)
{
    CHECK_INT(test_sweep_allocations(allocate_thrice, NULL), 3);
}

TEST(random_numbers_keep_their_bounds)
{
    struct test_random random = test_random_begin(1);
    for (uint64_t bound = 1; bound < 50; bound++) {
        CHECK(test_random_below(&random, bound) < bound);
        double unit = test_random_unit(&random);
        CHECK(unit >= 0.0 && unit < 1.0);
    }
    /* A bound just above a power of two is where modulo arithmetic goes wrong. */
    CHECK(test_random_below(&random, (UINT64_C(1) << 63) + 1) <= UINT64_C(1) << 63);
}
