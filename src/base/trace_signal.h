/* SPDX-License-Identifier: MIT */
/*
 * Writes the trace when a signal ends the process. A launcher sends SIGTERM to the remaining ranks when one was killed,
 * and a terminal sends SIGINT. Both end a process without its exit handlers, and the trace of what led there would be
 * lost. So while a trace runs, SIGHUP, SIGINT and SIGTERM first write the file, and then end the process as they would
 * have done. A signal for which the program has a handler of its own, or which it ignores, is left alone.
 *
 * The signal handler does not write the file itself, because it may interrupt a thread that records. It wakes a thread
 * that does.
 */
#ifndef BASE_TRACE_SIGNAL_H
#define BASE_TRACE_SIGNAL_H

/*
 * From now on these signals call `write`, on a thread of its own, before they end the process. Returns 0, or an errno.
 * Only one thread at a time may call this or the functions below.
 */
int trace_signal_take(void (*write)(void));

/* They are the system's again, and the thread is gone. Not by `write`; who calls may hold what `write` waits for. */
void trace_signal_release(void);

/* In a forked child, which has no such thread: the signals are the system's again. */
void trace_signal_forget(void);

#endif
