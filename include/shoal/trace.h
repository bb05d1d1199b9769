/* SPDX-License-Identifier: MIT */
/*
 * Where time goes: a record of what each thread and each lane did, as one file that chrome://tracing and Perfetto
 * (ui.perfetto.dev) open and `shoal trace FILE` summarises.
 *
 * SHOAL_TRACE=FILE in the environment traces a program that knows nothing of it, from its first call on. A program
 * can also trace a part of itself:
 *
 *     shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
 *     options.path = "step.json";
 *     status = shoal_trace_start(&options);
 *     for (int64_t step = 0; step < 10; step++) {
 *         shoal_trace_step(step);
 *         train();
 *     }
 *     status = shoal_trace_stop();
 *
 * Recorded are collectives by lane (with bytes, and the unit or bucket that they belong to), waits of the caller, calls
 * of ops and modules, backward passes, compiled steps, writes of checkpoints, and the program's own ranges. All ranks
 * name the same file: each adds its events to it, as the process whose number is the rank, when it stops, when its last
 * world is closed, and when the process exits. The file is complete after each of these. A rank that is killed is
 * missing in it, and hinders nobody. Ranks on other machines write the file of that name there, and their times are
 * those of that machine's clock.
 *
 * Each thread keeps its last events in memory that it takes at its first one. While nothing is traced a place in the
 * library that could record costs one load.
 *
 * Ownership: paths and names are copied.
 * Threads: any. The trace is the process's: ranks that are threads share it.
 * Errors: SHOAL_TRACE tells them through the log, and the program goes on without a trace.
 */
#ifndef SHOAL_TRACE_H
#define SHOAL_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_trace_options {
    size_t struct_size;
    const char *path; /* of the file; an old one is replaced */
    size_t n_events;  /* that a thread keeps; older ones are dropped and counted. 0: 65536; 40 bytes each */
} shoal_trace_options;
#define SHOAL_TRACE_OPTIONS_INIT SHOAL_SIZED(shoal_trace_options)

/*
 * Begins to trace. While a trace with the same path runs, which another rank of this process or SHOAL_TRACE began, the
 * call only counts: as many stops end it. SHOAL_ERR_STATE while one with another path runs; SHOAL_ERR_SYSTEM if the
 * file cannot be written.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_trace_start(const shoal_trace_options *options);

/*
 * Ends what shoal_trace_start began, and adds this process's events to the file. After a failure they are lost, and
 * what others wrote to the file is still there. SHOAL_ERR_STATE if there was no start.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_trace_stop(void);

/* Whether a trace runs. */
SHOAL_API bool shoal_trace_is_on(void);

/*
 * A range of the program's own, from begin to the end that belongs to it, on one thread; ranges nest. A range that is
 * open when the trace begins or stops is left out, and so are those that are nested deeper than 64.
 */
SHOAL_API void shoal_trace_begin(const char *name);
SHOAL_API void shoal_trace_end(void);

/* Step `step` of the program begins here, and the one before ends: `shoal trace` sums up by steps. */
SHOAL_API void shoal_trace_step(int64_t step);

SHOAL_END_DECLS

#endif
