/* SPDX-License-Identifier: MIT */
/*
 * Schedules of learning rates: a rate for each step of a training. A rate is a function of the step's number and of the
 * numbers in the schedule, and of nothing else.
 *
 * With s the step, counted from 0, w = n_warmup and n = n_steps:
 *     warm-up       s < w      lr * ((s + 1) / (w + 1))
 *     constant      s >= w     lr
 *     cosine        s >= w     min_lr + (lr - min_lr) * (1 + cos(pi * (s - w) / (n - w))) / 2; from step n on min_lr
 *     inverse_sqrt  s >= w     lr * sqrt((w + 1) / (s + 1)), but not below min_lr
 * So step 0 has a rate above 0, step w is the first with the rate lr, and step n, the first after the end, is the first
 * of a cosine with min_lr. Without warm-up w is 0.
 *
 * Bits: all of it is computed in f64 from + - * / and square roots of IEEE 754, also the cosine: with
 *     sin(t) = t - t^3 / 3! + t^5 / 5! - ... + t^17 / 17! - t^19 / 19!
 *     h = sin((pi / 2) * (s - w) / (n - w))^2    in the first half, the rate is lr - (lr - min_lr) * h
 *     h = sin((pi / 2) * (n - s) / (n - w))^2    in the second half, the rate is min_lr + (lr - min_lr) * h
 * The bits are the same for every machine and floating-point mode.
 *
 * Ownership: a schedule is a struct of the caller's.
 * Threads: one at a time per schedule that is counted up.
 * Errors: status and text. A call that fails has changed nothing.
 *
 *     shoal_nn_schedule schedule = SHOAL_NN_SCHEDULE_INIT;
 *     schedule.kind = SHOAL_NN_SCHEDULE_COSINE;
 *     schedule.lr = 3e-4;
 *     schedule.n_warmup = 2000;
 *     schedule.n_steps = 100000;
 *     schedule.min_lr = 3e-5;
 *     for (...) {
 *         ... forward, shoal_backward ...
 *         status = shoal_nn_schedule_next(&schedule, optimizer);
 *         status = shoal_nn_optimizer_step(optimizer);
 *     }
 */
#ifndef SHOAL_NN_SCHEDULE_H
#define SHOAL_NN_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/items.h"
#include "shoal/status.h"
#include "shoal_nn/optim.h"

SHOAL_BEGIN_DECLS

/* What follows the warm-up. */
typedef enum shoal_nn_schedule_kind {
    SHOAL_NN_SCHEDULE_CONSTANT = 1,
    SHOAL_NN_SCHEDULE_COSINE = 2,
    SHOAL_NN_SCHEDULE_INVERSE_SQRT = 3
} shoal_nn_schedule_kind;

typedef struct shoal_nn_schedule {
    size_t struct_size; /* sizeof(shoal_nn_schedule) */
    shoal_nn_schedule_kind kind;
    double lr;        /* the highest rate */
    int64_t n_warmup; /* steps of the warm-up; 0: none */
    int64_t n_steps;  /* COSINE: of the training, with the warm-up, and more than that. Otherwise 0 */
    double min_lr;    /* COSINE, INVERSE_SQRT: at most lr. Otherwise 0 */
    int64_t step;     /* the next one, of shoal_nn_schedule_next; saved and set by checkpoints */
} shoal_nn_schedule;
/* Fields that are set afterwards: kind and lr at least. */
#define SHOAL_NN_SCHEDULE_INIT SHOAL_SIZED(shoal_nn_schedule)

/* "constant", "cosine", "inverse_sqrt"; "?" for a number that is no kind. */
SHOAL_API const char *shoal_nn_schedule_name(shoal_nn_schedule_kind kind);

/* The rate of a step from 0 on. schedule->step is not looked at. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_at(const shoal_nn_schedule *schedule, int64_t step,
                                                             double *lr_out);

/* Gives the optimizer the rate of schedule->step, and counts that up, whether or not a step follows. With a gradient
   scaler, which skips steps, shoal_nn/scaler.h shows where to call it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_next(shoal_nn_schedule *schedule,
                                                               shoal_nn_optimizer *optimizer);

/* Adds schedule->step to a list of a checkpoint's items, as the integer called `prefix` and "step": with the prefix
   "schedule.", "schedule.step". The schedule must outlive the list. A load of a negative step is an error. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_add_items(shoal_nn_schedule *schedule,
                                                                    shoal_items *items, const char *prefix);

SHOAL_END_DECLS

#endif
