/* SPDX-License-Identifier: MIT */
/*
 * Summarizes the rounds of `shoal bench compiled`. All numbers come from pairs within a round, so whatever slows down a
 * whole round affects both sides. The ratio of exposed communication gets a 95 % confidence interval by bootstrap:
 * rounds are drawn again with replacement, the ratio of each draw is computed, and the range of the middle 95 % is
 * printed.
 */
#include "bench/compiled.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    N_DRAWINGS = 2000,
    N_CUT = N_DRAWINGS / 40 /* 2.5% on either side */
};

/* What a drawing counts in which nothing was exposed without passes: it does not tell, and is worse than any other. */
#define TELLS_NOTHING 1e6

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t n_values)
{
    qsort(values, n_values, sizeof(values[0]), compare_doubles);
    return (values[n_values / 2] + values[(n_values - 1) / 2]) * 0.5;
}

/* Of a step: the longest of any rank. */
static double longest_us(const struct bench_compiled *bench, struct measure_page *page,
                         enum bench_compiled_kind kind, int round)
{
    size_t at = (size_t)kind * (size_t)bench->n_rounds + (size_t)round;
    int64_t longest = 0;
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        int64_t time_ns = measure_page_times(page, rank)[at];
        longest = time_ns > longest ? time_ns : longest;
    }
    return (double)longest * 1e-3;
}

/* Room for one number of each round, or drawing, in each. */
struct room {
    double *steps[BENCH_COMPILED_N_KINDS];
    double *values;
    double *others;
    double *quotients;
};

static bool make_room(struct room *room, size_t n_rounds)
{
    bool is_good = true;
    for (int i = 0; i < BENCH_COMPILED_N_KINDS; i++) {
        room->steps[i] = calloc(n_rounds, sizeof(double));
        is_good = is_good && room->steps[i];
    }
    room->values = calloc(n_rounds, sizeof(double));
    room->others = calloc(n_rounds, sizeof(double));
    room->quotients = calloc(N_DRAWINGS, sizeof(double));
    return is_good && room->values && room->others && room->quotients;
}

static void free_room(struct room *room)
{
    for (int i = 0; i < BENCH_COMPILED_N_KINDS; i++) {
        free(room->steps[i]);
    }
    free(room->values);
    free(room->others);
    free(room->quotients);
}

static void find_exposed(const struct room *room, size_t n_rounds, struct bench_compiled_times *times)
{
    const double *none = room->steps[BENCH_COMPILED_NONE];
    for (size_t i = 0; i < n_rounds; i++) {
        room->values[i] = room->steps[BENCH_COMPILED_PASSES][i] - none[i];
        room->others[i] = room->steps[BENCH_COMPILED_PLAIN][i] - none[i];
    }
    times->exposed_us = median(room->values, n_rounds);
    times->exposed_us_plain = median(room->others, n_rounds);
    /* Where nothing was exposed without passes, the run does not tell what they hide: 1, which misses the bar. */
    times->exposed_ratio = times->exposed_us_plain > 0 ? times->exposed_us / times->exposed_us_plain : 1;
}

/* Of as many rounds, drawn with repetition. */
static double draw_quotient(const struct room *room, size_t n_rounds, uint64_t *state)
{
    const double *none = room->steps[BENCH_COMPILED_NONE];
    for (size_t i = 0; i < n_rounds; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        size_t at = (size_t)(*state >> 33) % n_rounds;
        room->values[i] = room->steps[BENCH_COMPILED_PASSES][at] - none[at];
        room->others[i] = room->steps[BENCH_COMPILED_PLAIN][at] - none[at];
    }
    double exposed_us_plain = median(room->others, n_rounds);
    return exposed_us_plain > 0 ? median(room->values, n_rounds) / exposed_us_plain : TELLS_NOTHING;
}

static void find_trust(const struct room *room, size_t n_rounds, struct bench_compiled_times *times)
{
    uint64_t state = 1;
    for (size_t i = 0; i < N_DRAWINGS; i++) {
        room->quotients[i] = draw_quotient(room, n_rounds, &state);
    }
    qsort(room->quotients, N_DRAWINGS, sizeof(double), compare_doubles);
    times->exposed_low = room->quotients[N_CUT];
    times->exposed_high = room->quotients[N_DRAWINGS - 1 - N_CUT];
}

static void find_times(const struct bench_compiled *bench, struct measure_page *page, struct room *room,
                       struct bench_compiled_times *times)
{
    size_t n_rounds = (size_t)bench->n_rounds;
    for (int kind = 0; kind < BENCH_COMPILED_N_KINDS; kind++) {
        for (size_t i = 0; i < n_rounds; i++) {
            room->steps[kind][i] = longest_us(bench, page, (enum bench_compiled_kind)kind, (int)i);
            room->values[i] = room->steps[kind][i];
        }
        times->step_us[kind] = median(room->values, n_rounds);
    }
    for (size_t i = 0; i < n_rounds; i++) {
        room->values[i] = room->steps[BENCH_COMPILED_PASSES][i] / room->steps[BENCH_COMPILED_EAGER][i];
    }
    times->ratio = median(room->values, n_rounds);
    find_exposed(room, n_rounds, times);
    find_trust(room, n_rounds, times);
}

bool bench_compiled_sum_up(const struct bench_compiled *bench, struct measure_page *page,
                           struct bench_compiled_times *times)
{
    struct room room = {.values = NULL};
    bool is_good = make_room(&room, (size_t)bench->n_rounds);
    if (is_good) {
        find_times(bench, page, &room, times);
    } else {
        perror("shoal bench compiled");
    }
    free_room(&room);
    return is_good;
}
