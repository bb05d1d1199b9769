/* SPDX-License-Identifier: MIT */
/* Which signals the launcher takes, and who has sent one. See run/signals.h. */
#include "run/signals.h"
#include "run/rank.h"

#include <signal.h>
#include <stddef.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Senders ------------------------------------------------------------------------------------------------ */

/* What the same sender sends so soon is the same signal. Processes that send it twice may be kept off their processor in
   between. A terminal does not send it twice: only a key that bounces is left out. */
static const int64_t same_ns[RUN_N_SENDERS] = {
    [RUN_SENDER_TERMINAL] = 100000000,
    [RUN_SENDER_PARENT] = 1000000000,
    [RUN_SENDER_OTHER] = 1000000000,
};

enum run_sender run_sender_of(int code, pid_t pid)
{
    if (code == SI_KERNEL) {
        return RUN_SENDER_TERMINAL;
    }
    return pid == getppid() ? RUN_SENDER_PARENT : RUN_SENDER_OTHER;
}

bool run_senders_note(struct run_senders *senders, enum run_sender sender, int64_t now_ns)
{
    int64_t first_ns = 0;
    return !atomic_compare_exchange_strong(&senders->first_ns[sender], &first_ns, now_ns) &&
           now_ns - first_ns > same_ns[sender];
}

/* The launcher's signals ----------------------------------------------------------------------------------- */

static const struct signal_row {
    int number;
    enum run_signal_kind kind;
} rows[] = {
    {SIGINT, RUN_SIGNAL_ENDS},    {SIGTERM, RUN_SIGNAL_ENDS},   {SIGQUIT, RUN_SIGNAL_ENDS},
    {SIGHUP, RUN_SIGNAL_ENDS},    {SIGUSR1, RUN_SIGNAL_PASSED}, {SIGUSR2, RUN_SIGNAL_PASSED},
    {SIGCONT, RUN_SIGNAL_PASSED}, {SIGTSTP, RUN_SIGNAL_STOPS},  {SIGCHLD, RUN_SIGNAL_OTHER},
};

#define N_ROWS (sizeof rows / sizeof rows[0])

enum run_signal_kind run_signal_kind(int number)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].number == number) {
            return rows[i].kind;
        }
    }
    return RUN_SIGNAL_OTHER;
}

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool run_signals_take(struct run_plan *plan, int *fd_out)
{
    sigset_t taken;
    (void)sigemptyset(&taken);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].number == SIGCHLD || !is_ignored(rows[i].number)) {
            (void)sigaddset(&taken, rows[i].number);
        }
    }
    /* With SIGCHLD ignored, children would vanish before they can be asked how they ended. */
    (void)signal(SIGCHLD, SIG_DFL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, &plan->pipe_action);
    (void)sigprocmask(SIG_BLOCK, &taken, &plan->signal_mask);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (plan->has_masked_ranks && rows[i].kind != RUN_SIGNAL_OTHER) {
            (void)sigaddset(&plan->signal_mask, rows[i].number);
        } else {
            (void)sigdelset(&plan->signal_mask, rows[i].number);
        }
    }
    *fd_out = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return *fd_out >= 0;
}

void run_signals_unblock(void)
{
    sigset_t all;
    (void)sigemptyset(&all);
    for (size_t i = 0; i < N_ROWS; i++) {
        (void)sigaddset(&all, rows[i].number);
    }
    (void)sigprocmask(SIG_UNBLOCK, &all, NULL);
}
