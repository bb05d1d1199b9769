/* SPDX-License-Identifier: MIT */
/*
 * SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (which batch systems send before the time is over) end a run after a step, so that
 * it can be saved. A process only notes the signal; ranks tell each other with the loss of a step (train/loop.c), and stop
 * after the same one. A second signal ends the process at once.
 */
#ifndef TRAIN_INTERRUPT_H
#define TRAIN_INTERRUPT_H

#include "common/place.h"

#include "shoal/status.h"

#include <stdbool.h>

enum {
    TRAIN_N_SIGNALS = 3
};

/* At the start of the command. Signals that are ignored stay so; the others are not blocked, also if whoever started this
   process had blocked them. Until train_interrupt_begin they end the process; the first rank says so. */
void train_interrupt_prepare(const struct tool_place *place);
/* Until train_interrupt_begin: starts a trace, which heeds signals only if nobody else does. Afterwards the first rank says
   what it said before, and then leaves the signal to the trace. Returns what `start` returns. */
shoal_status train_interrupt_around(shoal_status (*start)(void *context), void *context);

/* From here on signals are noted, and a launcher that gets one waits for this rank. */
void train_interrupt_begin(void);

/* What this process tells of the signal that it has noted: a 1 in its place, and otherwise zeros. */
void train_interrupt_tell(double told[TRAIN_N_SIGNALS]);
/* The signal that at least one process has told of, from the sum over processes; 0 if none has. */
int train_interrupt_find(const double told[TRAIN_N_SIGNALS]);
/* The signal that this process has noted; 0 if there is none. */
int train_interrupt_noted(void);

/*
 * Signals do what they did before train_interrupt_prepare. If the run has ended because of one, or failed, a launcher that got
 * one waits on until this process has ended. Otherwise one that was noted does now what it did before.
 */
void train_interrupt_end(bool has_ended);

#endif
