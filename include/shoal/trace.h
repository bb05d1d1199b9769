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
 * Recorded are collectives by lane (with bytes, and the unit or bucket that they belong to), waits of the caller,
 * calls of ops and modules, backward passes, compiled steps, writes of checkpoints, and the program's own ranges.
 *
 * All ranks name the same file: each adds its events to it, as the process whose number is the rank, when it stops,
 * when its last world is closed, and when the process exits. The file is complete after each of these. SIGHUP, SIGINT
 * and SIGTERM, with which terminals and launchers end ranks, also write it before they end the process: while a trace
 * runs the library handles them, if the program leaves them at their default. A rank that is killed otherwise is
 * missing in the file, and hinders nobody; `shoal trace` names it. Ranks on other machines write the file of that name
 * there, and their times are those of that machine's clock.
 *
 * In the path %p stands for the number of the process, %h for the name of the host, %r for the rank in the first
 * world, and %% for a percent sign: a file for each process, host or rank. A file of an earlier job is replaced. If
 * two jobs write to one file at the same time, the second one to write goes to a file beside it, the path and a
 * number, and says so in the log. Worlds that a process opens in turn belong to one trace.
 *
 * A collective's time begins when it is issued (if the transport can post it; otherwise when a thread takes it up), or
 * when the one before it on its lane has ended, and ends when a thread of this rank sees that it has ended, which may
 * be later than it has. "carried" among its arguments is how many microseconds threads of this rank spent on it.
 *
 * Each thread keeps its last events in memory that it takes at its first one. While nothing is traced a place in the
 * library that could record costs one load.
 *
 * Ownership: paths and names are copied.
 * Threads: any. The trace is the process's: ranks that are threads share it.
 * Errors: SHOAL_TRACE tells them through the log, on standard error even where SHOAL_LOG is not set, and the program
 * goes on without a trace.
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
    const char *path; /* of the file; an old one is replaced. %p, %h, %r and %% are explained above */
    size_t n_events;  /* that a thread keeps; older ones are dropped and counted. 0: 65536; 48 bytes each */
} shoal_trace_options;
#define SHOAL_TRACE_OPTIONS_INIT SHOAL_SIZED(shoal_trace_options)

/*
 * Begins to trace. While a trace with the same path runs, which another rank of this process or SHOAL_TRACE began, the
 * call only counts: as many stops end it. SHOAL_ERR_STATE while one with another path runs; SHOAL_ERR_SYSTEM if the
 * file cannot be written; SHOAL_ERR_INVALID for another letter behind a %.
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
