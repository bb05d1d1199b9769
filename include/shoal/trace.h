/* SPDX-License-Identifier: MIT */
/*
 * Traces: a record of what each thread and each lane did when, to find out where time goes. The result is one JSON file
 * for all ranks. Perfetto (ui.perfetto.dev) and chrome://tracing draw it, and `shoal trace FILE` summarizes it.
 *
 * A program needs no change to be traced: SHOAL_TRACE=FILE in the environment traces it from its first call to its end.
 * A program can also trace a part of itself:
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
 * What is recorded: collectives, by lane, with their bytes and the unit or bucket that they belong to; waits of the
 * caller; calls of ops and modules; backward passes; compiled steps; writes of checkpoints; and ranges that the program
 * marks itself.
 *
 * The file. All ranks of a host name the same file. Each adds its events, as the process whose number is its rank, when
 * it stops the trace, closes its last world, or exits; the file is complete JSON after each of these. While a trace
 * runs, the library also handles SIGHUP, SIGINT and SIGTERM, if the program leaves them at their default: it writes the
 * file and then ends the process. A rank that is killed in another way is missing in the file, and `shoal trace` names
 * it. Ranks on another host write a file of the same name there, with the times of that host's clock.
 *
 * The path. %p stands for the number of the process, %h for the name of the host, %r for the rank in the first world,
 * %% for a percent sign: use them to get a file for each process, host or rank. A file of an earlier job is replaced.
 * If two jobs write to one file at the same time, the second uses the path with a number behind it, and says so in the
 * log. All worlds that a process opens belong to one trace.
 *
 * Times. A collective begins when it is issued (if the transport cannot post it: when a thread takes it up), or when
 * its predecessor on the lane has ended. It ends when a thread of this rank notices its end. "carried" among its
 * arguments is how many microseconds threads of this rank worked on it.
 *
 * Cost: a thread allocates memory for its events at its first event. While no trace runs, each place in the library
 * that could record costs one load.
 *
 * Ownership: paths and names are copied.
 * Threads: any. A process has one trace; ranks that are threads share it.
 * Errors: status and text. With SHOAL_TRACE errors go to the log (to standard error even if SHOAL_LOG is not set), and
 * the program goes on without a trace.
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
    size_t struct_size; /* sizeof(shoal_trace_options) */
    const char *path;   /* the file to write, required; %p, %h, %r and %% are explained above */
    /* How many events a thread keeps, of 48 bytes each: at most 2^26; 0 means 65536. If there are more, the oldest are
       dropped and counted. */
    size_t n_events;
} shoal_trace_options;
#define SHOAL_TRACE_OPTIONS_INIT SHOAL_SIZED(shoal_trace_options)

/*
 * Starts a trace. If a trace to the same path is already running, started by another rank of this process or by
 * SHOAL_TRACE, the call only counts: it ends after as many stops (one that SHOAL_TRACE started, at the end of the
 * process). SHOAL_ERR_STATE: a trace to another path is running. SHOAL_ERR_SYSTEM: the file cannot be written.
 * SHOAL_ERR_INVALID: there is no path, or a % in it is followed by another letter; n_events is too large.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_trace_start(const shoal_trace_options *options);

/*
 * Ends the trace that shoal_trace_start began, and adds this process's events to the file. SHOAL_ERR_STATE: no trace is
 * running. SHOAL_ERR_SYSTEM, SHOAL_ERR_TIMEOUT: the file could not be written, or another process keeps it locked; this
 * process's events are lost then, and what other processes wrote to the file is still there.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_trace_stop(void);

/*
 * Mark a range of the program, "load batch" for example, from shoal_trace_begin to the shoal_trace_end that belongs to
 * it, on the same thread. Ranges nest, 64 deep; deeper ones are not recorded. Nor are ranges that are open when the
 * trace starts or stops. Both calls do nothing while no trace is running.
 */
SHOAL_API void shoal_trace_begin(const char *name);
SHOAL_API void shoal_trace_end(void);

/* Says that step `step` of the program begins here and the previous one ends. `shoal trace` prints times by step. */
SHOAL_API void shoal_trace_step(int64_t step);

SHOAL_END_DECLS

#endif
