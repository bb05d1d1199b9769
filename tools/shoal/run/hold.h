/* SPDX-License-Identifier: MIT */
/*
 * How ranks make the launcher wait. After a signal the launcher gives ranks a few seconds to end, and then kills them. A
 * rank that ends by itself after a signal, and has something to save first, holds: as long as any rank does, the
 * launcher waits. A second signal ends the ranks at once.
 *
 * The launcher and its ranks share an open file. Ranks that hold have a lock on it, which ends with them, however they
 * end. It has content once somebody has asked the launcher for the end: a rank that gets a signal can find out whether it
 * is that, or whether the launcher ends it because another rank has failed.
 */
#ifndef RUN_HOLD_H
#define RUN_HOLD_H

#include <stdbool.h>

/* Of the launcher: makes the file. Returns -1, with errno, if there is none. */
int run_hold_make(void);
/* Of a child that is about to become its program: leaves it the file. False, with errno, on failure. */
bool run_hold_pass(int fd);
/* Of the launcher: whether any rank holds. */
bool run_hold_is_taken(int fd);
/* Of the launcher: somebody has asked for the end. */
void run_hold_ask(int fd);

/* Of a rank. Do nothing if it was not started by a launcher that knows of this. */
void run_hold_take(void);
void run_hold_release(void);

/* Of a rank: the file; -1 if it was not started by a launcher that knows of this. */
int run_hold_find(void);
/* Whether somebody has asked the launcher for the end. May be called in a handler. */
bool run_hold_was_asked(int fd);

#endif
