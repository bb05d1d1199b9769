/* SPDX-License-Identifier: MIT */
/*
 * Signals that end a process which is traced. A launcher sends SIGTERM to the ranks that are left when one was killed,
 * and a terminal SIGINT: both end a process without its exit handlers, and the trace of what led there would be lost.
 * So while a trace runs, SIGHUP, SIGINT and SIGTERM first write the file, and then end the process as they would have.
 * Only where the program leaves them to the system: a handler of its own, and a signal that it ignores, stay as they
 * are.
 *
 * A handler must not write the file: it may interrupt a thread that records. It wakes a thread that does.
 */
#ifndef BASE_TRACE_SIGNAL_H
#define BASE_TRACE_SIGNAL_H

/*
 * From now on these signals call `write`, on a thread of their own, before they end the process. One caller at a time,
 * here and below. Returns an errno, 0 for none.
 */
int trace_signal_take(void (*write)(void));

/* They are the system's again, and the thread is gone. Not by `write`; who calls may hold what `write` waits for. */
void trace_signal_release(void);

/* In a forked child, which has no such thread: the signals are the system's again. */
void trace_signal_forget(void);

#endif
