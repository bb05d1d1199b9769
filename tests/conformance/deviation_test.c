/* SPDX-License-Identifier: MIT */
/*
 * Ranks that deviate from each other in one argument, or in order, while kinds, dtypes and numbers of elements are the
 * same: every rank is told, or nothing is wrong. Programs come from seeds (deviation/generate.h); arguments.def has
 * every argument of every call that ranks make together.
 *
 * Ranks that disagree about the places of a window write to the same ones before they are told, which is nobody's data
 * (src/transport/shm/window.c). The thread sanitizer must not take that for a race between ranks that are threads.
 *
 *   SHOAL_DEVIATION_ROUNDS=20    so many programs for each compared argument; 1 by default
 *   SHOAL_DEVIATION_SEED=123     one program, which is printed
 *   SHOAL_DEVIATION_ONLY=text    only arguments whose call and name have the text in them
 *   SHOAL_DEVIATION_TABLE=1      prints how often each argument deviated, and what came of it
 */
#include "conformance/deviation/trial.h"

const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:shm_window_write\n";
}

static int64_t number_from(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && text[0] != '\0' ? strtoll(text, NULL, 10) : otherwise;
}

enum {
    N_ROWS = N_ARGUMENTS + N_DEVIATIONS /* the orders follow the arguments */
};

static const char *const order_words[N_DEVIATIONS] = {"", "two calls swapped", "a call left out",
                                                      "a call made twice"};

/* A seed says which row a program is built around. */
static struct program *make(uint64_t seed)
{
    uint64_t row = seed % N_ROWS;
    bool is_order = row >= N_ARGUMENTS;
    return program_make(seed, is_order ? NULL : &arguments[row],
                        is_order ? (enum deviation_kind)(row - N_ARGUMENTS) : DEVIATE_ARGUMENT);
}

static bool is_wanted(int row)
{
    const char *only = getenv("SHOAL_DEVIATION_ONLY");
    char name[160];
    (void)snprintf(name, sizeof name, "%s.%s", row < N_ARGUMENTS ? arguments[row].call : "order",
                   row < N_ARGUMENTS ? arguments[row].name : order_words[row - N_ARGUMENTS]);
    return row != N_ARGUMENTS && (!only || strstr(name, only));
}

/* Every compared argument belongs to a call that programs can have. */
TEST(every_compared_argument_is_generated)
{
    struct test_random random = test_random_begin(1);
    for (int i = 0; i < N_ARGUMENTS; i++) {
        if (!kind_with(&random, &arguments[i])) {
            test_failed(__FILE__, __LINE__, "no kind of call has %s of %s", arguments[i].name,
                        arguments[i].call);
        }
    }
}

static void print_row(int row, const int *counts)
{
    const struct argument *argument = row < N_ARGUMENTS ? &arguments[row] : NULL;
    (void)printf(
        "%5d %5d %5d %5d  %s %s\n", counts[VERDICT_TOLD], counts[VERDICT_LEGAL], counts[VERDICT_REFUSED],
        counts[VERDICT_WRONG] + counts[VERDICT_LATE] + counts[VERDICT_ONE_SIDED] + counts[VERDICT_UNNAMED],
        argument ? argument->call : "order", argument ? argument->name : order_words[row - N_ARGUMENTS]);
}

/* Rounds of one row; the number of programs that ran. */
static int try_row(int row, int64_t n_rounds, int *counts)
{
    int n_tried = 0;
    for (uint64_t k = 0; n_tried < n_rounds && k < 4 * (uint64_t)n_rounds + 20; k++) {
        struct program *p = make(k * N_ROWS + (uint64_t)row);
        if (p) {
            enum verdict verdict = trial(p, false);
            counts[verdict]++;
            n_tried++;
            if (verdict >= VERDICT_WRONG) {
                test_failed(__FILE__, __LINE__, "%s: SHOAL_DEVIATION_SEED=%llu", verdict_words[verdict],
                            (unsigned long long)p->seed);
            }
            program_free(p);
        }
    }
    return n_tried;
}

static void try_all(int64_t n_rounds)
{
    int n_programs = 0;
    for (int row = 0; row < N_ROWS; row++) {
        int counts[N_VERDICTS] = {0};
        int64_t n_wanted = row < N_ARGUMENTS ? n_rounds : 5 * n_rounds;
        if (!is_wanted(row)) {
            continue;
        }
        int n_tried = try_row(row, n_wanted, counts);
        n_programs += n_tried;
        CHECK_INT(n_tried, n_wanted);
        if (number_from("SHOAL_DEVIATION_TABLE", 0) != 0) {
            print_row(row, counts);
        }
    }
    (void)printf("%d programs\n", n_programs);
}

/* The oracle is right: nobody deviates, and everything is as it says. */
static void try_straight(int row, int64_t n_rounds)
{
    for (uint64_t k = 0; k < (uint64_t)n_rounds; k++) {
        struct program *p = make(k * N_ROWS + (uint64_t)row);
        if (!p) {
            continue;
        }
        p->deviation = (struct deviation){.rank = -1, .call = -1};
        if (trial(p, false) != VERDICT_LEGAL) {
            test_failed(__FILE__, __LINE__, "program %llu fails without deviation",
                        (unsigned long long)p->seed);
        }
        program_free(p);
    }
}

TEST(programs_without_deviation)
{
    int64_t n_rounds = number_from("SHOAL_DEVIATION_ROUNDS", 1);
    test_deadline(n_rounds > 1 ? 36000 : 600);
    for (int row = 0; row < N_ROWS; row++) {
        try_straight(row, is_wanted(row) ? n_rounds : 0);
    }
}

TEST(ranks_that_deviate_are_told)
{
    int64_t seed = number_from("SHOAL_DEVIATION_SEED", -1);
    int64_t n_rounds = number_from("SHOAL_DEVIATION_ROUNDS", 1);
    test_deadline(n_rounds > 1 || seed >= 0 ? 36000 : 600);
    if (seed < 0) {
        try_all(n_rounds);
        return;
    }
    struct program *p = make((uint64_t)seed);
    REQUIRE(p != NULL);
    CHECK(trial(p, true) < VERDICT_WRONG);
    program_free(p);
}
