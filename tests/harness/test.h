/* SPDX-License-Identifier: MIT */
/*
 * Writing a test is the whole act: TEST(name) { ... } in any tests/<kind>/.../<file>_test.c registers itself.
 * Each file is one program and one ctest entry; a program's arguments choose tests (see main.c). Names that
 * begin with "planted_" run only when an argument is exactly that name: they are meant to fail.
 *
 *   TEST(add_wraps)                one body, once
 *   TEST_RANKS(ring_turns, 4)      one body on 4 ranks, run twice: ranks as threads, ranks as processes
 *   TEST_PROCESSES(rank_dies, 3)   one body on 3 ranks that are processes, under the thread sanitizer too: for
 *                                  what threads cannot do, such as dying
 *
 * A check that fails prints file, line, values, and the rank, and makes the test fail; REQUIRE also leaves the
 * function. Seeds are printed on failure and set with SHOAL_TEST_SEED.
 */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* Registration ----------------------------------------------------------------------------------------- */

struct rank {
    int rank;
    int n_ranks;
    bool is_process; /* false: a thread of the test's process */
    void *shared;    /* TEST_SHARED_BYTES of zeroed memory that all ranks see */
};

#define TEST_SHARED_BYTES 65536

struct test_case {
    const char *name;
    void (*run)(void);                   /* plain tests */
    void (*run_rank)(struct rank *self); /* ranked tests */
    int n_ranks;
    bool is_only_processes;
    const char *file;
    int line; /* tests run in the order of the file */
};

/* The file that is compiled, also for a test that a header of it defines. */
#define TEST_PLACE .file = __BASE_FILE__, .line = __LINE__

#define TEST(test_name)                                     \
    static void test_name(void);                            \
    static const struct test_case test_case_##test_name = { \
        .name = #test_name, .run = test_name, TEST_PLACE};  \
    TEST_REGISTER(test_name)                                \
    static void test_name(void)

#define TEST_RANKS(test_name, ranks)                                                \
    static void test_name(struct rank *self);                                       \
    static const struct test_case test_case_##test_name = {                         \
        .name = #test_name, .run_rank = test_name, .n_ranks = (ranks), TEST_PLACE}; \
    TEST_REGISTER(test_name)                                                        \
    static void test_name(struct rank *self)

#define TEST_PROCESSES(test_name, ranks)                                              \
    static void test_name(struct rank *self);                                         \
    static const struct test_case test_case_##test_name = {.name = #test_name,        \
                                                           .run_rank = test_name,     \
                                                           .n_ranks = (ranks),        \
                                                           .is_only_processes = true, \
                                                           TEST_PLACE};               \
    TEST_REGISTER(test_name)                                                          \
    static void test_name(struct rank *self)

/* The linker collects these; main.c walks from __start_test_cases to __stop_test_cases. */
#define TEST_REGISTER(test_name)                                                                           \
    __attribute__((used, retain,                                                                           \
                   section("test_cases"))) static const struct test_case *const test_pointer_##test_name = \
        &test_case_##test_name;

/* Checks ----------------------------------------------------------------------------------------------- */

void test_failed(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Marks the test skipped, with the reason; the program then ends with 77 if nothing failed and nothing ran.
   The test returns by itself. */
void test_skip(const char *reason);

bool test_check_int(const char *file, int line, const char *what, long long actual, long long expected);
bool test_check_double(const char *file, int line, const char *what, double actual, double expected);
bool test_check_string(const char *file, int line, const char *what, const char *actual,
                       const char *expected);
bool test_check_status(const char *file, int line, const char *what, shoal_status actual,
                       shoal_status expected);
bool test_check_bytes(const char *file, int line, const char *what, const void *actual, const void *expected,
                      size_t bytes);
/* The thread's error text contains the words. */
bool test_check_error_text(const char *file, int line, const char *words);

#define CHECK(condition) ((condition) ? (void)0 : test_failed(__FILE__, __LINE__, "%s", #condition))
#define CHECK_INT(actual, expected) \
    test_check_int(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
/* Equal as numbers; two NaNs are equal. */
#define CHECK_DOUBLE(actual, expected) test_check_double(__FILE__, __LINE__, #actual, (actual), (expected))
#define CHECK_STRING(actual, expected) test_check_string(__FILE__, __LINE__, #actual, (actual), (expected))
#define CHECK_STATUS(call, expected) test_check_status(__FILE__, __LINE__, #call, (call), (expected))
#define CHECK_OK(call) CHECK_STATUS(call, SHOAL_OK)
#define CHECK_BYTES(actual, expected, bytes) \
    test_check_bytes(__FILE__, __LINE__, #actual, (actual), (expected), (bytes))
#define CHECK_ERROR_TEXT(words) test_check_error_text(__FILE__, __LINE__, (words))

/* Like CHECK, and returns from the (void) function. */
#define REQUIRE(condition)                                     \
    do {                                                       \
        if (!(condition)) {                                    \
            test_failed(__FILE__, __LINE__, "%s", #condition); \
            return;                                            \
        }                                                      \
    } while (0)
#define REQUIRE_OK(call)       \
    do {                       \
        if (!CHECK_OK(call)) { \
            return;            \
        }                      \
    } while (0)

/* True once a check of the running test failed: for loops that would print thousands of lines. */
bool test_has_failed(void);

/* Random numbers --------------------------------------------------------------------------------------- */

struct test_random {
    uint64_t state;
};

/* Seeded from SHOAL_TEST_SEED or the program's seed, mixed with `salt`. */
struct test_random test_random_begin(uint64_t salt);
uint64_t test_random_u64(struct test_random *random);
uint64_t test_random_below(struct test_random *random, uint64_t bound); /* 0..bound-1; bound > 0 */
double test_random_unit(struct test_random *random);                    /* [0, 1) */

/* Memory ----------------------------------------------------------------------------------------------- */

/*
 * The harness owns the library's allocator. Blocks alive now; at the end of every test it must be what it was
 * at its beginning, or the test fails with the number of blocks lost. Fresh memory is filled with a pattern.
 */
size_t test_live_blocks(void);

/* So many of the blocks this test allocates stay for ever, by design (a registry that only grows). */
void test_keep_blocks(size_t count);

/* The n-th allocation from now on fails, and with `is_lasting` all later ones; 0 ends that. */
void test_fail_allocation(size_t number, bool is_lasting);

/* Allocations asked for since the last test_fail_allocation. */
size_t test_count_allocations(void);

/*
 * Runs `body` again and again, its k-th allocation failing, k = 1, 2, ... until it gets through: each run must
 * return SHOAL_ERR_NO_MEMORY or SHOAL_OK and leave no block behind. Once with only the k-th failing and once
 * with all from the k-th on. Returns the number of allocations of a clean run.
 */
size_t test_sweep_allocations(shoal_status (*body)(void *context), void *context);

/*
 * Descriptors that this process has open now; at the end of every test it must be what it was at its beginning, or
 * the test fails with their names.
 */
size_t test_open_descriptors(void);

/* Ranks ------------------------------------------------------------------------------------------------ */

/*
 * All ranks of the running ranked test meet here, except those that are expected to die. Fails, and returns, when
 * another one has ended already.
 */
void test_barrier(struct rank *self);

/*
 * The process of this rank will be ended by this signal: said before it happens, by any rank. It then fails the
 * test not to die so; barriers do not wait for that rank any more.
 */
void test_expect_death(int rank, int signal);

/* Sends a signal to the process of a rank, which has come to a barrier before: SIGSTOP, SIGCONT, SIGKILL. After
   SIGSTOP no thread of it runs any more. */
void test_signal(int rank, int signal);

/* The process of a rank that has come to a barrier before. */
int test_process(int rank);

/* Lets time pass, to be late on purpose. Never a way to wait for something. */
void test_pause(double seconds);

/*
 * A deadline for the running test, in seconds from now (default 60; times SHOAL_TEST_TIME_SCALE): past it the
 * test fails with the ranks that had not finished. Ranks that are processes are killed then; otherwise the
 * whole program ends, because threads cannot be stopped.
 */
void test_deadline(double seconds);

/*
 * The running test has done so much of its work: for those that take minutes. Costs a look at the clock, and, twice a second
 * and if SHOAL_TEST_PROGRESS names a file, a line there (scripts/progress.sh).
 */
void test_progress(uint64_t done, uint64_t total);

/* What SHOAL_TEST_TIME_SCALE says, for limits that a test checks itself. */
double test_time_scale(void);

/* SHOAL_TEST_SWEEP is "whole" (scripts/sweep.sh): everything instead of a sample. */
bool test_is_whole(void);
/*
 * Whether this run takes the case of that number, in a test that has very many and runs as threads and as processes:
 * each form takes every second case, so that all are taken once. Everything is taken in a whole sweep, and where there
 * are no processes (thread sanitizer).
 */
bool test_takes(const struct rank *self, int number);

/*
 * A process of this one's namespace as a number for keys of worlds. Names of sockets reach across namespaces of processes
 * (a container without a network of its own), where the same pid may run the same test.
 */
uint64_t test_process_number(int pid);

/* Processes -------------------------------------------------------------------------------------------- */

/*
 * Runs `body` in a forked child: failed checks in it, an exit and a signal fail this test. For code that
 * works once per process, such as reading the environment.
 */
void test_in_child(void (*body)(void *context), void *context);

/*
 * Runs a program (arguments[0], NULL at the end) and returns its exit code, or 128 + the signal that ended
 * it, or -1 when it could not be run. What it writes to standard output and error is put into `output`, cut
 * to fit and always ended. `environment` are "NAME=value" strings to add, NULL at the end; it may be NULL.
 * The address sanitizer does not look for leaks in the program.
 */
int test_run_program(const char *const *arguments, const char *const *environment, char *output,
                     size_t output_bytes);

/* The path of the running test program. */
const char *test_program(void);

#endif
