/* SPDX-License-Identifier: MIT */
/*
 * What became of the time of each step on this rank: compute and exposed communication, which add up to the step, and
 * communication that was hidden behind compute (common/overlap.h). `shoal trace` computes the same from a trace.
 */
#ifndef TRAIN_TIMES_H
#define TRAIN_TIMES_H

#include "common/overlap.h"

#include "shoal/status.h"

#include <stdint.h>

/* Milliseconds. */
struct train_step_time {
    double step;
    double exposed;
    double hidden;
};

struct train_times {
    struct train_step_time *steps; /* by number from the first step of this process */
    /* One instant in both units, to convert ticks to times. */
    uint64_t begin_ticks;
    int64_t begin_ns;
    /* The step that runs. */
    uint64_t step_ticks;
    int64_t step_ns;
    /* Room for the communication of a step. */
    struct waited_span *spans;
    struct overlap_intervals waits;
    struct overlap_intervals collectives;
};

/* For so many steps. The calling thread is the one whose waits count. */
shoal_status train_times_make(struct train_times *times, int64_t n_steps);
void train_times_free(struct train_times *times);

/* Around a step. */
void train_times_begin(struct train_times *times);
void train_times_end(struct train_times *times, int64_t index);

/* The hidden share of the communication of steps first .. end - 1; less than 0 if there was none. */
double train_times_share(const struct train_times *times, int64_t first, int64_t end);

/* Means over the middle half of n_steps steps. */
shoal_status train_times_mean(const struct train_times *times, int64_t n_steps,
                              struct train_step_time *mean_out);

#endif
