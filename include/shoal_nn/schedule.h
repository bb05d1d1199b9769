/* SPDX-License-Identifier: MIT */
/*
 * Schedules of learning rates: which rate each step of a training has. A rate depends only on the number of the step
 * and on the fields of the schedule. Call shoal_nn_schedule_next before each step of the optimizer:
 *
 *     shoal_nn_schedule schedule = SHOAL_NN_SCHEDULE_INIT;
 *     schedule.kind = SHOAL_NN_SCHEDULE_COSINE;
 *     schedule.lr = 3e-4;
 *     schedule.n_warmup = 2000;
 *     schedule.n_steps = 100000;
 *     schedule.min_lr = 3e-5;
 *     for (...) {
 *         ... forward pass, shoal_backward ...
 *         status = shoal_nn_schedule_next(&schedule, optimizer);
 *         status = shoal_nn_optimizer_step(optimizer);
 *     }
 *
 * With s the step, counted from 0, w = n_warmup and n = n_steps:
 *     warm-up       s < w      lr * ((s + 1) / (w + 1))
 *     constant      s >= w     lr
 *     cosine        s >= w     min_lr + (lr - min_lr) * (1 + cos(pi * (s - w) / (n - w))) / 2; from step n on min_lr
 *     inverse_sqrt  s >= w     lr * sqrt((w + 1) / (s + 1)), but not below min_lr
 * So step 0 has a rate above 0, and step w is the first with the rate lr. A cosine reaches min_lr at step n, the first
 * one after the training.
 *
 * Bits: rates are computed in f64 with + - * / and square roots of IEEE 754. So is the cosine, by
 *     sin(t) = t - t^3 / 3! + t^5 / 5! - ... + t^17 / 17! - t^19 / 19!
 *     h = sin((pi / 2) * (s - w) / (n - w))^2    in the first half, the rate is lr - (lr - min_lr) * h
 *     h = sin((pi / 2) * (n - s) / (n - w))^2    in the second half, the rate is min_lr + (lr - min_lr) * h
 * The bits are the same on every machine and in every floating-point mode.
 *
 * Ownership: a schedule is a struct of the caller; nothing has to be freed.
 * Threads: one at a time per schedule.
 * Errors: status and text; SHOAL_ERR_INVALID names the field that is wrong. A call that fails has changed nothing.
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
    double lr;        /* the highest rate, after the warm-up */
    int64_t n_warmup; /* steps of the warm-up; 0 means no warm-up */
    int64_t n_steps;  /* COSINE: steps of the training, the warm-up included; above n_warmup. Otherwise 0 */
    double min_lr;    /* COSINE, INVERSE_SQRT: the lowest rate after the warm-up, 0 to lr. Otherwise 0 */
    int64_t step;     /* the number of the next step, which shoal_nn_schedule_next counts */
} shoal_nn_schedule;
/* Makes all fields 0. Set at least kind and lr. */
#define SHOAL_NN_SCHEDULE_INIT SHOAL_SIZED(shoal_nn_schedule)

/* Gives the rate of any step, counted from 0. Does not read or change schedule->step. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_at(const shoal_nn_schedule *schedule, int64_t step,
                                                             double *lr_out);

/* Sets the optimizer's rate to the rate of schedule->step, and adds 1 to schedule->step, whether or not a step of the
   optimizer follows. With a gradient scaler, which skips steps, shoal_nn/scaler.h shows where to call it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_next(shoal_nn_schedule *schedule,
                                                               shoal_nn_optimizer *optimizer);

/* Adds schedule->step to a list of items (shoal/items.h), as an integer whose name is `prefix` and "step", for example
   "schedule.step". The schedule must outlive the list. A load fails if the checkpoint has a negative step. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_schedule_add_items(shoal_nn_schedule *schedule,
                                                                    shoal_items *items, const char *prefix);

SHOAL_END_DECLS

#endif
