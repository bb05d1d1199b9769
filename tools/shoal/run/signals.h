/* SPDX-License-Identifier: MIT */
/*
 * Signals of the launcher and of its ranks: which the launcher takes, and when one is a second one.
 *
 * One Ctrl-C may arrive twice: the terminal sends it to the launcher and to ranks in its group, and the launcher passes it
 * on, under load much later; timeout(1) sends a signal to a process and then to its group. So signals are told apart by
 * who sent them: the kernel for the terminal, the parent, or anybody else. The first signal of each sender asks for the
 * same end. Another one of the same sender is a second signal, unless it follows at once.
 */
#ifndef RUN_SIGNALS_H
#define RUN_SIGNALS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct run_plan;

enum run_sender {
    RUN_SENDER_TERMINAL,
    RUN_SENDER_PARENT,
    RUN_SENDER_OTHER,
    RUN_N_SENDERS
};

/* By si_code and si_pid. May be called in a handler. */
enum run_sender run_sender_of(int code, pid_t pid);

/* When each sender has sent its first signal; 0 if it has not. */
struct run_senders {
    _Atomic int64_t first_ns[RUN_N_SENDERS];
};

/* Notes a signal that asks for the end; returns whether it is a second one. May be called in a handler. */
bool run_senders_note(struct run_senders *senders, enum run_sender sender, int64_t now_ns);

enum run_signal_kind {
    RUN_SIGNAL_ENDS,   /* passed on; who has not ended after the grace is killed */
    RUN_SIGNAL_PASSED, /* passed on */
    RUN_SIGNAL_STOPS,  /* passed on, then the launcher stops too */
    RUN_SIGNAL_OTHER   /* a rank has ended, or nothing */
};

enum run_signal_kind run_signal_kind(int number);

/*
 * Of the launcher: from now on its signals come through *fd_out only, except those that are ignored, which stay so here and
 * in ranks. The plan notes what ranks begin with: signals of the launcher are not blocked there, even if its caller had
 * blocked them, unless ranks unblock them themselves (has_masked_ranks). Returns false, with errno, on failure.
 */
bool run_signals_take(struct run_plan *plan, int *fd_out);

/* Of a rank, or of a process that is alone: signals that a launcher takes are not blocked from now on. */
void run_signals_unblock(void);

#endif
