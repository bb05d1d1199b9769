/* SPDX-License-Identifier: MIT */
/*
 * The main function of every test program.
 *
 *   program                 runs all tests
 *   program WORD...         runs those whose name contains one of the words; "/threads" and "/processes" are
 *                           the ends of the names of ranked tests
 *   program --list          prints the names
 *
 * Ranks as processes come first: they are forked, and cannot use what threads have left behind in this process, such
 * as a device.
 *
 * A program may have the tests of several files. If its name is that of one of them without ".c", usually by a symbolic
 * link, it has the tests of that file only.
 *
 * Exit code: 0 all passed, 1 something failed, 77 nothing failed and nothing ran, 2 wrong usage.
 * Environment: SHOAL_TEST_LAUNCHED (launched.c), SHOAL_TEST_SEED, SHOAL_TEST_TIME_SCALE (factor for deadlines), SHOAL_TEST_PLAIN_MEMORY (the
 * library keeps its own allocator).
 */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

#define PLANTED_PREFIX "planted_"
#define EXIT_SKIPPED 77

/* Made by the linker around the section that TEST fills; absent in a program without tests. */
extern const struct test_case *const __start_test_cases[] __attribute__((weak, visibility("hidden")));
extern const struct test_case *const __stop_test_cases[] __attribute__((weak, visibility("hidden")));

enum launcher {
    LAUNCH_PLAIN,
    LAUNCH_THREADS,
    LAUNCH_PROCESSES,
    LAUNCH_OTHERS /* the process is one rank: launched.c */
};

/* For sorting: the tests of a program, in the order of their files. */
struct entry {
    const struct test_case *test;
};

struct totals {
    int n_outcomes[OUTCOME_SKIPPED + 1];
};

static int compare_places(const void *a, const void *b)
{
    const struct test_case *first = ((const struct entry *)a)->test;
    const struct test_case *second = ((const struct entry *)b)->test;
    int files = strcmp(first->file, second->file);
    return files != 0 ? files : (first->line > second->line) - (first->line < second->line);
}

static const char *find_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether the file has the name of the program, and ".c". */
static bool is_of_program(const struct test_case *test, const char *program)
{
    const char *file = find_base(test->file);
    size_t length = strlen(program);
    return strncmp(file, program, length) == 0 && strcmp(file + length, ".c") == 0;
}

/* Copies the tests of the file that has the program's name, or all; returns their number. */
static size_t choose_file(struct entry *tests, const char *program)
{
    size_t n_tests = (size_t)(__stop_test_cases - __start_test_cases);
    size_t n_chosen = 0;
    for (int is_any = 0; is_any < 2 && n_chosen == 0; is_any++) {
        for (size_t i = 0; i < n_tests; i++) {
            if (is_any || is_of_program(__start_test_cases[i], program)) {
                tests[n_chosen++].test = __start_test_cases[i];
            }
        }
    }
    qsort(tests, n_chosen, sizeof *tests, compare_places);
    return n_chosen;
}

static void name_test(const struct test_case *test, enum launcher launcher, char *name, size_t name_bytes)
{
    static const char *const endings[] = {[LAUNCH_PLAIN] = "",
                                          [LAUNCH_THREADS] = "/threads",
                                          [LAUNCH_PROCESSES] = "/processes",
                                          [LAUNCH_OTHERS] = ""};
    (void)snprintf(name, name_bytes, "%s%s", test->name, endings[launcher]);
}

static bool is_planted(const struct test_case *test)
{
    return strncmp(test->name, PLANTED_PREFIX, strlen(PLANTED_PREFIX)) == 0;
}

static bool is_chosen(const struct test_case *test, const char *name, int n_words, char **words)
{
    for (int i = 0; i < n_words; i++) {
        bool is_exact = strcmp(name, words[i]) == 0 || strcmp(test->name, words[i]) == 0;
        if (is_exact || (!is_planted(test) && strstr(name, words[i]))) {
            return true;
        }
    }
    return n_words == 0 && !is_planted(test);
}

static void run_body(const struct test_case *test, enum launcher launcher)
{
    if (launcher != LAUNCH_PLAIN && (test->n_ranks < 1 || test->n_ranks > HARNESS_MAX_RANKS)) {
        test_failed(__FILE__, test->line, "%d ranks; 1 to %d are possible", test->n_ranks, HARNESS_MAX_RANKS);
        return;
    }
    if (launcher == LAUNCH_PROCESSES) {
        if (HARNESS_HAS_TSAN && !test->is_only_processes) {
            test_skip("the thread sanitizer does not see what processes do to each other");
        } else {
            /* Without the watchdog: its thread would not be there in the forked ranks. */
            harness_run_processes(test);
        }
        return;
    }
    harness_watchdog_begin();
    if (launcher == LAUNCH_THREADS) {
        harness_run_threads(test);
    } else if (launcher == LAUNCH_OTHERS) {
        harness_run_launched(test);
    } else {
        test->run();
    }
    harness_watchdog_end();
}

static void run_one(const struct test_case *test, enum launcher launcher, const char *name,
                    struct totals *totals)
{
    int64_t start_ns = harness_now_ns();
    harness_progress_begin(name);
    harness_begin(name, test);
    run_body(test, launcher);
    enum outcome outcome = harness_end();
    totals->n_outcomes[outcome]++;
    double milliseconds = (double)(harness_now_ns() - start_ns) * 1e-6;
    if (outcome != OUTCOME_SKIPPED) {
        harness_print("%s %s (%.1f ms)\n", outcome == OUTCOME_PASSED ? "ok  " : "FAIL", name, milliseconds);
    }
    if (outcome == OUTCOME_FAILED) {
        harness_print("seed %llu: repeat with SHOAL_TEST_SEED=%llu %s %s\n",
                      (unsigned long long)harness_seed(), (unsigned long long)harness_seed(), test_program(),
                      name);
    }
}

enum act {
    ACT_COUNT,
    ACT_LIST,
    ACT_RUN
};

/* Counts, lists or runs what the words choose of one test: its processes, or the rest. */
static void visit_test(const struct test_case *test, bool is_forking, enum act act, int n_words, char **words,
                       struct totals *totals)
{
    enum launcher first_ranked = test->is_only_processes ? LAUNCH_PROCESSES : LAUNCH_THREADS;
    enum launcher first = test->run ? LAUNCH_PLAIN : first_ranked;
    enum launcher last = test->run ? LAUNCH_PLAIN : LAUNCH_PROCESSES;
    if (harness_launched_size() > 0) {
        if (test->run || test->n_ranks != harness_launched_size()) {
            return;
        }
        first = last = LAUNCH_OTHERS;
    }
    for (enum launcher launcher = first; launcher <= last; launcher++) {
        char name[128];
        name_test(test, launcher, name, sizeof name);
        if ((launcher == LAUNCH_PROCESSES) != is_forking || !is_chosen(test, name, n_words, words)) {
            continue;
        }
        if (act == ACT_COUNT) {
            harness_progress_count();
        } else if (act == ACT_LIST) {
            harness_print("%s\n", name);
        } else {
            run_one(test, launcher, name, totals);
        }
    }
}

static int summarize(const struct totals *totals)
{
    int n_passed = totals->n_outcomes[OUTCOME_PASSED];
    int n_failed = totals->n_outcomes[OUTCOME_FAILED];
    int n_skipped = totals->n_outcomes[OUTCOME_SKIPPED];
    harness_print("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    if (n_passed + n_failed + n_skipped == 0) {
        harness_print("no test was chosen; --list prints their names\n");
        return 1;
    }
    if (n_failed > 0) {
        return 1;
    }
    return n_passed > 0 ? 0 : EXIT_SKIPPED;
}

int main(int argc, char **argv)
{
    harness_memory_install();
    harness_set_program(argv[0]);
    bool is_listing = argc > 1 && strcmp(argv[1], "--list") == 0;
    int first_word = is_listing ? 2 : 1;
    if (argc > first_word && argv[first_word][0] == '-') {
        (void)fprintf(stderr, "usage: %s [--list] [WORD...]\n", argv[0]);
        return 2;
    }
    if (!harness_seed_read()) {
        (void)fprintf(stderr, "SHOAL_TEST_SEED is not a number\n");
        return 2;
    }
    harness_catch_crashes();
    if (!is_listing) {
        harness_print("seed %llu\n", (unsigned long long)harness_seed());
    }
    size_t n_tests = (size_t)(__stop_test_cases - __start_test_cases);
    struct entry *tests = calloc(n_tests + 1, sizeof *tests);
    if (!tests) {
        return 2;
    }
    n_tests = choose_file(tests, find_base(argv[0]));
    if (!is_listing && harness_launched_size() > 0) {
        harness_launched_begin();
    }
    struct totals totals = {{0}};
    for (enum act act = is_listing ? ACT_LIST : ACT_COUNT; act <= (is_listing ? ACT_LIST : ACT_RUN); act++) {
        for (size_t i = 0; (is_listing || act != ACT_LIST) && i < 2 * n_tests; i++) {
            visit_test(tests[i % n_tests].test, /*is_forking=*/i < n_tests, act, argc - first_word,
                       argv + first_word, &totals);
        }
    }
    free(tests);
    return is_listing ? 0 : summarize(&totals);
}
