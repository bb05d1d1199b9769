/* SPDX-License-Identifier: MIT */
/* The ranks of one run, from their start to their end. One loop waits for output, signals and deadlines; nothing
   in it blocks. See run_job.h. */
#include "run_job.h"

#include "base/clock.h"
#include "base/error.h"
#include "run_input.h"
#include "run_output.h"
#include "run_rank.h"
#include "run_watchdog.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    EXIT_NOT_EXECUTABLE = 126, /* as shells have it */
    EXIT_NOT_FOUND = 127,
    /* Between two looks at a terminal that belongs to others. */
    TERMINAL_LOOK_MS = 500,
    OWN_POLLS = 4, /* signals, two sinks, input */
    MAX_POLLS = OWN_POLLS + RUN_MAX_RANKS * RUN_N_STREAMS,
    OWN_FILES = 64
};

struct run {
    struct run_plan plan;
    struct run_input input;
    struct run_sink sinks[RUN_N_STREAMS];
    int signals_fd;
    struct run_rank *ranks;
    int n_started;
    int n_ended;
    bool is_ending; /* a rank has failed or a signal came: the exit code is known */
    bool was_asked; /* by a signal */
    bool was_killed;
    int64_t kill_at_ns; /* DEADLINE_NEVER while nothing calls for it */
    int exit_code;
    struct pollfd polls[MAX_POLLS];
};

/* Signals ---------------------------------------------------------------------------------------------- */

enum signal_kind {
    SIGNAL_ENDS,    /* passed on; who has not ended after the grace is killed */
    SIGNAL_PASSED,  /* passed on */
    SIGNAL_STOPS,   /* passed on, then the launcher stops too */
    SIGNAL_OF_RANKS /* a rank has ended */
};

static const struct signal_row {
    int number;
    enum signal_kind kind;
    bool is_always_taken; /* even where the caller of the launcher had it ignored */
} signal_rows[] = {
    /* A shell without job control ignores SIGINT for what it starts in the background. Ranks are in groups of
       their own: were it ignored here too, nothing would end them. */
    {SIGINT, SIGNAL_ENDS, true},     {SIGTERM, SIGNAL_ENDS, true},     {SIGQUIT, SIGNAL_ENDS, true},
    {SIGHUP, SIGNAL_ENDS, false}, /* nohup */
    {SIGUSR1, SIGNAL_PASSED, false}, {SIGUSR2, SIGNAL_PASSED, false},  {SIGCONT, SIGNAL_PASSED, false},
    {SIGTSTP, SIGNAL_STOPS, false},  {SIGCHLD, SIGNAL_OF_RANKS, true},
};

#define N_SIGNAL_ROWS (sizeof signal_rows / sizeof signal_rows[0])

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* From now on these signals come through signals_fd only. */
static bool take_signals(struct run *run)
{
    sigset_t taken;
    (void)sigemptyset(&taken);
    for (size_t i = 0; i < N_SIGNAL_ROWS; i++) {
        if (signal_rows[i].is_always_taken || !is_ignored(signal_rows[i].number)) {
            (void)sigaddset(&taken, signal_rows[i].number);
        }
    }
    /* With SIGCHLD ignored, children would vanish before they can be asked how they ended. */
    (void)signal(SIGCHLD, SIG_DFL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, &run->plan.pipe_action);
    (void)sigprocmask(SIG_BLOCK, &taken, &run->plan.signal_mask);
    run->signals_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return run->signals_fd >= 0;
}

static void signal_ranks(const struct run *run, int number)
{
    for (int i = 0; i < run->n_started; i++) {
        run_rank_signal(&run->ranks[i], number);
    }
}

static void begin_end(struct run *run, int exit_code, int number)
{
    if (!run->is_ending) {
        run->is_ending = true;
        run->exit_code = exit_code;
        run->kill_at_ns = clock_deadline_after(run->plan.grace_s);
    }
    signal_ranks(run, number);
    /* A stopped rank could not even notice. */
    signal_ranks(run, SIGCONT);
}

static void end_by_signal(struct run *run, int number)
{
    /* Whoever presses Ctrl-C twice wants no grace. */
    if (run->was_asked && number == SIGINT) {
        run->kill_at_ns = clock_now_ns();
    }
    run->was_asked = true;
    begin_end(run, 128 + number, number);
}

static void handle_signal(struct run *run, int number)
{
    for (size_t i = 0; i < N_SIGNAL_ROWS; i++) {
        if (signal_rows[i].number != number) {
            continue;
        }
        switch (signal_rows[i].kind) {
        case SIGNAL_ENDS:
            end_by_signal(run, number);
            break;
        case SIGNAL_PASSED:
            signal_ranks(run, number);
            break;
        case SIGNAL_STOPS:
            signal_ranks(run, number);
            (void)raise(SIGSTOP);
            break;
        case SIGNAL_OF_RANKS: /* the loop looks anyway */
            break;
        }
    }
}

static void read_signals(struct run *run)
{
    struct signalfd_siginfo news;
    while (read(run->signals_fd, &news, sizeof news) == (ssize_t)sizeof news) {
        handle_signal(run, (int)news.ssi_signo);
    }
}

/* Ranks that end --------------------------------------------------------------------------------------- */

/* It is open, and what it gives finds room. */
static bool is_readable(const struct run_stream *stream)
{
    return stream->fd >= 0 && run_sink_is_empty(stream->sink);
}

/* What a rank has written so far, so that its last words come before what is said about it. */
static void drain_rank(struct run_rank *rank)
{
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        struct run_stream *stream = &rank->streams[i];
        while (is_readable(stream) && run_stream_read(stream)) {
        }
    }
}

static struct run_sink *error_sink(struct run *run)
{
    return run->ranks[0].streams[1].sink;
}

static void name_failed(struct run *run, struct run_rank *rank)
{
    drain_rank(rank);
    if (rank->death_signal != 0) {
        run_sink_say(error_sink(run), "%s: rank %d was killed by signal %d (%s)", run->plan.command,
                     rank->rank, rank->death_signal, strsignal(rank->death_signal));
    } else if (run->plan.tells_codes) {
        run_sink_say(error_sink(run), "%s: rank %d ended with exit code %d", run->plan.command, rank->rank,
                     rank->exit_code);
    }
}

static void look_at_ranks(struct run *run)
{
    struct run_rank *failed = NULL;
    for (int i = 0; i < run->n_started; i++) {
        struct run_rank *rank = &run->ranks[i];
        if (!run_rank_look(rank)) {
            continue;
        }
        run->n_ended++;
        /* Of several seen at once, one that was killed is the likelier cause: the others may have ended
           because they noticed. */
        if (rank->exit_code != 0 && (!failed || (failed->death_signal == 0 && rank->death_signal != 0))) {
            failed = rank;
        }
    }
    if (failed && !run->is_ending) {
        name_failed(run, failed);
        begin_end(run, failed->exit_code, SIGTERM);
    }
    if (run->n_ended == run->n_started && run->kill_at_ns == DEADLINE_NEVER) {
        run->kill_at_ns = clock_deadline_after(run->plan.grace_s); /* for what they left behind */
    }
}

static void kill_ranks(struct run *run)
{
    int n_alive = run->n_started - run->n_ended;
    signal_ranks(run, SIGKILL);
    run->was_killed = true;
    if (n_alive > 0) {
        run_sink_say(error_sink(run), "%s: %d rank%s did not end within %g s, and %s killed",
                     run->plan.command, n_alive, n_alive == 1 ? "" : "s", run->plan.grace_s,
                     n_alive == 1 ? "was" : "were");
    }
}

/* The loop --------------------------------------------------------------------------------------------- */

static bool has_open_streams(const struct run *run)
{
    for (int i = 0; i < run->n_started; i++) {
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            if (run->ranks[i].streams[j].fd >= 0) {
                return true;
            }
        }
    }
    return false;
}

static bool is_over(const struct run *run)
{
    if (run->n_ended < run->n_started) {
        return false;
    }
    if (!run_sink_is_empty(&run->sinks[0]) || !run_sink_is_empty(&run->sinks[1])) {
        /* Whoever asked for the end does not wait for a reader that has stopped reading. */
        return run->was_asked && run->was_killed;
    }
    return !has_open_streams(run);
}

/* Nobody who could write is left, unless it fled from its group: what is there now is all. */
static bool is_last_read(const struct run *run)
{
    return run->was_killed && run->n_ended == run->n_started;
}

static void poll_add(struct run *run, nfds_t *n_polls, int fd, short events)
{
    run->polls[(*n_polls)++] = (struct pollfd){.fd = fd, .events = events};
}

static void wait_for_news(struct run *run)
{
    nfds_t n_polls = 0;
    poll_add(run, &n_polls, run->signals_fd, POLLIN);
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        poll_add(run, &n_polls, run_sink_is_empty(&run->sinks[i]) ? -1 : run->sinks[i].fd, POLLOUT);
    }
    int64_t limit_ms = run_input_poll(&run->input, &run->polls[n_polls++]) ? -1 : TERMINAL_LOOK_MS;
    for (int i = 0; i < run->n_started; i++) {
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            const struct run_stream *stream = &run->ranks[i].streams[j];
            if (is_readable(stream)) {
                poll_add(run, &n_polls, stream->fd, POLLIN);
                limit_ms = is_last_read(run) ? 0 : limit_ms;
            }
        }
    }
    if (run->kill_at_ns != DEADLINE_NEVER && !run->was_killed) {
        int64_t left_ms = (run->kill_at_ns - clock_now_ns()) / 1000000 + 1;
        left_ms = left_ms < 0 ? 0 : left_ms;
        limit_ms = limit_ms < 0 || left_ms < limit_ms ? left_ms : limit_ms;
    }
    (void)poll(run->polls, n_polls, (int)limit_ms);
}

static void read_streams(struct run *run)
{
    bool is_last = is_last_read(run);
    for (int i = 0; i < run->n_started; i++) {
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            struct run_stream *stream = &run->ranks[i].streams[j];
            if (!is_readable(stream)) {
                continue;
            }
            /* Without a reader of our own output the ranks shall have none either, as in any pipeline. */
            if (stream->sink->error != 0 || (!run_stream_read(stream) && is_last)) {
                run_stream_close(stream);
            }
        }
    }
}

static void run_loop(struct run *run)
{
    look_at_ranks(run);
    while (!is_over(run)) {
        wait_for_news(run);
        read_signals(run);
        for (int i = 0; i < RUN_N_STREAMS; i++) {
            run_sink_flush(&run->sinks[i]);
        }
        read_streams(run);
        run_input_move(&run->input);
        look_at_ranks(run);
        if (!run->was_killed && clock_now_ns() >= run->kill_at_ns) {
            kill_ranks(run);
        }
    }
}

/* Start and end ---------------------------------------------------------------------------------------- */

/* Two names of one file are one sink: its lines must not mix either. */
static void open_sinks(struct run *run, struct run_sink **sinks_out)
{
    struct stat out;
    struct stat error;
    run_sink_init(&run->sinks[0], STDOUT_FILENO);
    run_sink_init(&run->sinks[1], STDERR_FILENO);
    bool is_same = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &error) == 0 &&
                   out.st_dev == error.st_dev && out.st_ino == error.st_ino;
    sinks_out[0] = &run->sinks[0];
    sinks_out[1] = is_same ? &run->sinks[0] : &run->sinks[1];
}

/* A pipe must not get the number of a standard file that happens to be closed. */
static void fill_standard_files(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* The launcher has two pipes a rank; the ranks keep the limit that they would have without it. */
static void raise_file_limit(struct run_plan *plan)
{
    rlim_t needed = (rlim_t)plan->n_ranks * RUN_N_STREAMS + OWN_FILES;
    (void)getrlimit(RLIMIT_NOFILE, &plan->file_limit);
    if (plan->file_limit.rlim_cur < needed) {
        struct rlimit raised = plan->file_limit;
        raised.rlim_cur = needed < raised.rlim_max ? needed : raised.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &raised);
    }
}

static bool make_key(char *key_out)
{
    unsigned char bytes[(RUN_KEY_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        (void)snprintf(key_out + 2 * i, 3, "%02x", bytes[i]);
    }
    return true;
}

/* 0, or the exit code of a run that did not begin. */
static int start_ranks(struct run *run)
{
    struct run_sink *sinks[RUN_N_STREAMS];
    open_sinks(run, sinks);
    for (int i = 0; i < run->plan.n_ranks; i++) {
        struct run_rank *rank = &run->ranks[i];
        *rank = (struct run_rank){.rank = i};
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            rank->streams[j].fd = -1;
            rank->streams[j].sink = sinks[j];
        }
        bool is_program = false;
        int error = run_rank_start(rank, &run->plan, &is_program);
        if (error != 0 && is_program) {
            fprintf(stderr, "%s: cannot start '%s': %s\n", run->plan.command, run->plan.program[0],
                    error_errno_text(error));
            return error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
        }
        if (error != 0) {
            fprintf(stderr, "%s: cannot start rank %d: %s\n", run->plan.command, i, error_errno_text(error));
            return TOOL_FAILED;
        }
        run->n_started++;
    }
    run_input_started(&run->input);
    return TOOL_DONE;
}

static bool prepare(struct run *run)
{
    fill_standard_files();
    raise_file_limit(&run->plan);
    run->ranks = calloc((size_t)run->plan.n_ranks, sizeof *run->ranks);
    if (!run->ranks || !make_key(run->plan.key) || !take_signals(run)) {
        return false;
    }
    /* Before the input: a pipe whose writing end the watchdog held too would never end for rank 0. */
    if (!run_watchdog_start(&run->plan.watchdog, run->plan.n_ranks) || !run_input_open(&run->input)) {
        return false;
    }
    run->plan.input_fd = run->input.rank_fd;
    return true;
}

/* Everything a rank may have left behind ends here. */
static void finish(struct run *run)
{
    signal_ranks(run, SIGKILL);
    for (int i = 0; i < run->n_started; i++) {
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            run_stream_close(&run->ranks[i].streams[j]);
        }
    }
    run_watchdog_stop(&run->plan.watchdog);
    for (int i = 0; i < run->n_started; i++) {
        run_rank_reap(&run->ranks[i]);
    }
}

static int exit_code_of(const struct run *run)
{
    int error = run->sinks[0].error;
    if (error != 0 && error != EPIPE) {
        fprintf(stderr, "%s: standard output: %s\n", run->plan.command, strerror(error));
    }
    return run->exit_code != 0 || error == 0 ? run->exit_code : TOOL_FAILED;
}

static int run_all(struct run *run)
{
    if (!prepare(run)) {
        fprintf(stderr, "%s: cannot start: %s\n", run->plan.command, error_errno_text(errno));
        return TOOL_FAILED;
    }
    run->exit_code = start_ranks(run);
    if (run->exit_code == 0) {
        run_loop(run);
    }
    finish(run);
    return exit_code_of(run);
}

static void run_fini(struct run *run)
{
    run_input_close(&run->input);
    if (run->signals_fd >= 0) {
        (void)close(run->signals_fd);
    }
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        run_sink_fini(&run->sinks[i]);
    }
    free(run->ranks);
    free(run);
}

int run_job(const struct run_plan *plan)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) {
        perror(plan->command);
        return TOOL_FAILED;
    }
    run->plan = *plan;
    run->signals_fd = -1;
    run->input.pipe_fd = -1;
    run->kill_at_ns = DEADLINE_NEVER;
    int exit_code = run_all(run);
    run_fini(run);
    return exit_code;
}
