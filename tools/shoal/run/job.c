/* SPDX-License-Identifier: MIT */
/* The ranks of one run, from their start to their end. One loop waits for output, signals and deadlines; nothing
   in it blocks. See run/job.h. */
#include "run/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "run/begin.h"
#include "run/hold.h"
#include "run/input.h"
#include "run/output.h"
#include "run/rank.h"
#include "run/report.h"
#include "run/signals.h"
#include "run/watchdog.h"
#include "common/tool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    /* Between two looks at a terminal that belongs to others. */
    TERMINAL_LOOK_MS = 500,
    OWN_POLLS = 5, /* signals, two sinks, input, control */
    MAX_POLLS = OWN_POLLS + RUN_MAX_RANKS * RUN_N_STREAMS
};

/* Workers end their ranks within the grace. Who waits for them waits a little longer. */
#define AGENT_MARGIN_S 2.0
#define HOLD_LOOK_S 0.1
/* For ranks that end by themselves, from letting go of their hold to their end. */
#define LEAVE_S 1.0

struct run {
    struct run_plan plan;
    struct run_senders senders; /* of signals that ask for the end */
    struct run_input input;
    struct run_sink sinks[RUN_N_STREAMS];
    int signals_fd;
    struct run_rank *ranks;
    int n_started;
    int n_ended;
    bool is_ending;    /* a rank has failed or a signal came: the exit code is known */
    bool was_asked;    /* a signal has asked for the end */
    bool is_impatient; /* by a second one: holds do not count any more */
    bool has_no_grace; /* by a second Ctrl-C */
    bool was_told;     /* the ranks have got a signal that ends them */
    bool was_killed;
    bool has_waited;    /* for ranks that hold, which was said */
    bool has_let_leave; /* those that held have had the time to end */
    int passed; /* the last signal that was passed on, and does not end ranks by itself; 0 if none was */
    bool is_control_open; /* of a worker */
    int n_reported;       /* ranks of agents that have ended */
    int n_lost;           /* ranks of agents that ended before them */
    bool *is_reported;    /* by rank; of agents */
    int64_t tell_at_ns;   /* DEADLINE_NEVER while nothing calls for it */
    int64_t kill_at_ns;   /* DEADLINE_NEVER while nothing calls for it */
    int exit_code;
    struct pollfd polls[MAX_POLLS];
};

/* Signals ---------------------------------------------------------------------------------------------- */

static void signal_ranks(const struct run *run, int number)
{
    for (int i = 0; i < run->n_started; i++) {
        run_rank_signal(&run->ranks[i], number);
    }
}

static double kill_after_s(const struct run *run)
{
    return run->plan.grace_s + (run->plan.agents ? AGENT_MARGIN_S : 0);
}

static void tell_ranks(struct run *run, int number)
{
    if (!run->was_told) {
        run->was_told = true;
        run->kill_at_ns = clock_deadline_after(kill_after_s(run));
    }
    signal_ranks(run, number);
    /* A stopped rank could not even notice. */
    signal_ranks(run, SIGCONT);
}

static void begin_end(struct run *run, int exit_code)
{
    if (!run->is_ending) {
        run->is_ending = true;
        run->exit_code = exit_code;
    }
}

/* A rank has failed. The others end too: told to at once, or by themselves if there is patience. */
static void end_by_failure(struct run *run, int exit_code)
{
    if (run->is_ending) {
        return;
    }
    begin_end(run, exit_code);
    if (run->plan.is_patient) {
        /* A worker lets the launcher be first, which knows more. */
        double more_s = run->plan.has_control ? AGENT_MARGIN_S / 2 : 0;
        run->tell_at_ns = clock_deadline_after(run->plan.grace_s + more_s);
    } else {
        tell_ranks(run, SIGTERM);
    }
}

/* A second signal: ranks end within the grace, whatever they do. */
static void hurry(struct run *run)
{
    if (!run->is_impatient) {
        run->is_impatient = true;
        run->kill_at_ns = clock_deadline_after(kill_after_s(run));
    }
}

static void end_by_signal(struct run *run, int number, enum run_sender sender)
{
    /* Whoever presses Ctrl-C twice wants no grace. A worker whose launcher is gone, too, has waited long enough. */
    bool is_alone = run->plan.has_control && !run->is_control_open;
    bool is_second = run_senders_note(&run->senders, sender, clock_now_ns());
    bool is_again = is_second || (is_alone && run->was_asked);
    if (run->was_asked && !is_again) {
        return;
    }
    if (is_again) {
        hurry(run);
    }
    if (is_again && (number == SIGINT || is_alone)) {
        run->kill_at_ns = clock_now_ns();
        run->has_no_grace = true;
    }
    run->was_asked = true;
    begin_end(run, 128 + number);
    tell_ranks(run, number);
}

static bool has_holders(const struct run *run)
{
    for (int i = 0; run->plan.agents && i < run->n_started; i++) {
        if (run->ranks[i].is_holding && !run->ranks[i].has_ended) {
            return true;
        }
    }
    return run_hold_is_taken(run->plan.hold_fd);
}

/* Ranks may do with it what they like. Those that hold end by it, as they do by signals that ask for the end. */
static void pass_signal(struct run *run, int number, enum run_sender sender)
{
    signal_ranks(run, number);
    if (number == SIGCONT) {
        return;
    }
    signal_ranks(run, SIGCONT); /* a stopped rank could not even notice */
    run->passed = number;
    if (has_holders(run) && run_senders_note(&run->senders, sender, clock_now_ns())) {
        run->was_asked = true;
        begin_end(run, 128 + number);
        hurry(run);
    }
}

/* Not if the launcher tells it a worker: a rank may have failed on another host. */
static bool is_asked_by(const struct run *run, int number)
{
    enum run_signal_kind kind = run_signal_kind(number);
    bool is_told = run->plan.has_control && number == SIGTERM;
    return (kind == RUN_SIGNAL_ENDS || (kind == RUN_SIGNAL_PASSED && number != SIGCONT)) && !is_told;
}

static void handle_signal(struct run *run, int number, enum run_sender sender)
{
    if (is_asked_by(run, number)) {
        run_hold_ask(run->plan.hold_fd);
    }
    switch (run_signal_kind(number)) {
    case RUN_SIGNAL_ENDS:
        end_by_signal(run, number, sender);
        break;
    case RUN_SIGNAL_PASSED:
        pass_signal(run, number, sender);
        break;
    case RUN_SIGNAL_STOPS:
        signal_ranks(run, number);
        /* A worker goes on listening: it is told when to continue. */
        if (!run->plan.has_control) {
            (void)raise(SIGSTOP);
        }
        break;
    case RUN_SIGNAL_OTHER: /* the loop looks at ranks anyway */
        break;
    }
}

static void read_signals(struct run *run)
{
    struct signalfd_siginfo news;
    while (read(run->signals_fd, &news, sizeof news) == (ssize_t)sizeof news) {
        handle_signal(run, (int)news.ssi_signo, run_sender_of(news.ssi_code, (pid_t)news.ssi_pid));
    }
}

/* What the launcher tells a worker. */
static void read_control(struct run *run)
{
    unsigned char bytes[64];
    struct pollfd look = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!run->is_control_open || poll(&look, 1, 0) <= 0) {
        return;
    }
    ssize_t n_bytes = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n_bytes == 0 || (n_bytes < 0 && errno != EINTR && errno != EAGAIN)) {
        /* The launcher is gone, or whoever connected us with it. */
        run->is_control_open = false;
        end_by_signal(run, SIGTERM, RUN_SENDER_PARENT);
    }
    for (ssize_t i = 0; i < n_bytes; i++) {
        handle_signal(run, bytes[i], RUN_SENDER_PARENT);
    }
}

/* Ranks that hold (run/hold.h): the end that was asked for waits for them. */

static bool is_held(const struct run *run)
{
    return run->was_asked && !run->is_impatient && has_holders(run);
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

/* The launcher on another host names it. */
static void report_rank(struct run *run, struct run_rank *rank)
{
    char line[512];
    struct run_report report = {.rank = run->plan.first_rank + rank->rank,
                                .exit_code = rank->exit_code,
                                .death_signal = rank->death_signal};
    (void)snprintf(report.host, sizeof report.host, "%.255s", run->plan.host);
    drain_rank(rank);
    run_report_write(&report, run->plan.key, line, sizeof line);
    run_sink_say(error_sink(run), "%s", line);
}

static void name_failed(struct run *run, struct run_rank *rank)
{
    if (run->plan.host) {
        return;
    }
    drain_rank(rank);
    if (rank->death_signal != 0) {
        run_sink_say(error_sink(run), "%s: rank %d was killed by signal %d (%s)", run->plan.command,
                     rank->rank, rank->death_signal, strsignal(rank->death_signal));
    } else if (run->plan.tells_codes) {
        run_sink_say(error_sink(run), "%s: rank %d ended with exit code %d", run->plan.command, rank->rank,
                     rank->exit_code);
    }
}

/* Ranks of agents: their ends are reported (run/report.h), and come among the lines of the agent. */

/* All ranks have ended, and so should their agents. Open MPI's mpirun may wait for ever after a rank has failed. A worker
   may have something left behind by its ranks, which has the grace. */
static void expect_end(struct run *run)
{
    bool is_mpirun = !run->plan.agents[0].input;
    int64_t at_ns = clock_deadline_after(is_mpirun ? AGENT_MARGIN_S : kill_after_s(run));
    run->kill_at_ns = at_ns < run->kill_at_ns ? at_ns : run->kill_at_ns;
}

/* Whether a rank has ended because of a signal that was passed on. */
static bool is_as_asked(const struct run *run, int exit_code)
{
    return run->passed != 0 && exit_code == 128 + run->passed;
}

/* The others have the grace to do the same. */
static void end_as_asked(struct run *run)
{
    run->was_asked = true;
    begin_end(run, 128 + run->passed);
    run->kill_at_ns = clock_deadline_after(kill_after_s(run) + LEAVE_S);
}

static void take_report(struct run *run, const struct run_report *report)
{
    bool is_killed = report->death_signal != 0;
    run->is_reported[report->rank] = true;
    run->n_reported++;
    if (run->n_reported == run->plan.n_ranks_all) {
        expect_end(run);
    }
    /* One that was killed is the likelier cause, although others were faster to say that it is gone. Where several
       were, ranks name any of them. */
    bool is_cause = is_killed && !run->was_told;
    if (!run->is_ending && is_as_asked(run, report->exit_code)) {
        end_as_asked(run);
        return;
    }
    if (report->exit_code == 0 || (run->is_ending && !is_cause)) {
        return;
    }
    if (is_killed) {
        run_sink_say(error_sink(run), "%s: rank %d on %s was killed by signal %d (%s)", run->plan.command,
                     report->rank, report->host, report->death_signal, strsignal(report->death_signal));
    } else {
        run_sink_say(error_sink(run), "%s: rank %d on %s ended with exit code %d", run->plan.command,
                     report->rank, report->host, report->exit_code);
    }
    if (run->is_ending && run->exit_code <= 128) {
        run->exit_code = report->exit_code;
    }
    end_by_failure(run, report->exit_code);
}

/* How many bytes of the line are output. */
static size_t take_line(void *context, const char *line, size_t n_bytes)
{
    struct run_rank *agent = context;
    struct run *run = agent->run;
    struct run_report report;
    size_t n_before = 0;
    if (!run_report_read(line, n_bytes, run->plan.key, &n_before, &report)) {
        return n_bytes;
    }
    if (report.exit_code == RUN_REPORT_HOLDS) {
        agent->is_holding = true;
        return n_before;
    }
    if (report.rank < run->plan.n_ranks_all && !run->is_reported[report.rank]) {
        agent->n_reported++;
        take_report(run, &report);
    }
    return n_before;
}

/* An agent that has ended before its ranks were reported could not start them, or lost them. */
static void judge_agent(struct run *run, struct run_rank *agent)
{
    const struct run_agent *row = &run->plan.agents[agent->rank];
    drain_rank(agent);
    if (!run_sink_is_empty(agent->streams[0].sink) || !run_sink_is_empty(agent->streams[1].sink)) {
        return; /* there may be more to read */
    }
    agent->was_judged = true;
    int n_lost = row->n_ranks - agent->n_reported;
    if (n_lost == 0 || run->was_told) {
        return;
    }
    run->n_lost += n_lost;
    run_sink_say(error_sink(run), "%s: %s %s %d before %d of its %d rank%s", run->plan.command, row->name,
                 agent->death_signal != 0 ? "was killed by signal" : "ended with exit code",
                 agent->death_signal != 0 ? agent->death_signal : agent->exit_code, n_lost, row->n_ranks,
                 row->n_ranks == 1 ? "" : "s");
    end_by_failure(run, agent->exit_code != 0 ? agent->exit_code : TOOL_FAILED);
}

static void judge_agents(struct run *run)
{
    for (int i = 0; i < run->n_started; i++) {
        if (run->ranks[i].has_ended && !run->ranks[i].was_judged) {
            judge_agent(run, &run->ranks[i]);
        }
    }
}

/* A rank whose output nobody could take any more is not to blame. A pipeline ends without a word, as others do. */
static void end_failed(struct run *run, struct run_rank *failed)
{
    int error = run->sinks[0].error;
    bool is_ours = failed->death_signal == SIGPIPE && error != 0;
    if (!is_ours) {
        name_failed(run, failed);
    }
    end_by_failure(run, is_ours && error != EPIPE ? TOOL_FAILED : failed->exit_code);
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
        if (run->plan.host) {
            report_rank(run, rank);
        }
        /* Of several seen at once, one that was killed is the likelier cause: the others may have ended
           because they noticed. */
        if (rank->exit_code != 0 && (!failed || (failed->death_signal == 0 && rank->death_signal != 0))) {
            failed = rank;
        }
    }
    if (run->plan.agents) {
        judge_agents(run);
    } else if (failed && !run->is_ending && is_as_asked(run, failed->exit_code)) {
        end_as_asked(run);
    } else if (failed && !run->is_ending) {
        end_failed(run, failed);
    }
    if (run->n_ended == run->n_started && run->kill_at_ns == DEADLINE_NEVER) {
        run->kill_at_ns = clock_deadline_after(run->plan.grace_s); /* for what they left behind */
    }
}

static int count_alive(const struct run *run)
{
    return run->plan.agents ? run->plan.n_ranks_all - run->n_reported - run->n_lost
                            : run->n_started - run->n_ended;
}

/* Patience is over. */
static void tell_late(struct run *run)
{
    int n_alive = count_alive(run);
    if (n_alive > 0 && !run->plan.host) {
        run_sink_say(error_sink(run), "%s: %d rank%s did not end within %g s after that, and %s told to",
                     run->plan.command, n_alive, n_alive == 1 ? "" : "s", run->plan.grace_s,
                     n_alive == 1 ? "is" : "are");
    }
    tell_ranks(run, SIGTERM);
}

/* A worker ends its ranks within the grace and tells so. One that has not cannot be reached. */
static void name_silent_agents(struct run *run)
{
    for (int i = 0; i < run->n_started; i++) {
        const struct run_agent *row = &run->plan.agents[i];
        int n_unknown = row->n_ranks - run->ranks[i].n_reported;
        if (n_unknown > 0 && !run->ranks[i].has_ended) {
            run_sink_say(error_sink(run),
                         "%s: %s has not told the end of %d of its %d rank%s: does the host answer?",
                         run->plan.command, row->name, n_unknown, row->n_ranks, row->n_ranks == 1 ? "" : "s");
        }
    }
}

/* The deadline has passed, but ranks hold: it is looked at again soon. */
static void wait_for_holders(struct run *run)
{
    run->kill_at_ns = clock_deadline_after(HOLD_LOOK_S);
    run->has_let_leave = false;
    if (run->has_waited) {
        return;
    }
    run->has_waited = true;
    if (run->plan.host) {
        char line[512];
        struct run_report report = {.rank = run->plan.first_rank, .exit_code = RUN_REPORT_HOLDS};
        (void)snprintf(report.host, sizeof report.host, "%.255s", run->plan.host);
        run_report_write(&report, run->plan.key, line, sizeof line);
        run_sink_say(error_sink(run), "%s", line);
    } else {
        run_sink_say(error_sink(run), "%s: waits until ranks have saved; a second signal ends them at once",
                     run->plan.command);
    }
}

static void kill_ranks(struct run *run)
{
    int n_alive = count_alive(run);
    bool has_workers = run->plan.agents && run->plan.agents[0].input;
    if (has_workers && !run->has_no_grace) {
        name_silent_agents(run);
    }
    signal_ranks(run, SIGKILL);
    run->was_killed = true;
    if (n_alive > 0 && !run->plan.host && !has_workers) {
        run_sink_say(error_sink(run), "%s: %d rank%s did not end within %g s, and %s killed",
                     run->plan.command, n_alive, n_alive == 1 ? "" : "s", run->plan.grace_s,
                     n_alive == 1 ? "was" : "were");
    }
}

/* The deadline has passed. */
static void end_or_wait(struct run *run)
{
    if (is_held(run)) {
        wait_for_holders(run);
    } else if (run->has_waited && !run->has_let_leave && !run->is_impatient) {
        run->has_let_leave = true;
        run->kill_at_ns = clock_deadline_after(kill_after_s(run) + LEAVE_S);
    } else {
        kill_ranks(run);
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

/* The time until a deadline, or limit_ms if that is shorter; -1 is for ever. */
static int64_t limit_to(int64_t deadline_ns, int64_t limit_ms)
{
    if (deadline_ns == DEADLINE_NEVER) {
        return limit_ms;
    }
    int64_t left_ms = (deadline_ns - clock_now_ns()) / 1000000 + 1;
    left_ms = left_ms < 0 ? 0 : left_ms;
    return limit_ms < 0 || left_ms < limit_ms ? left_ms : limit_ms;
}

static void wait_for_news(struct run *run)
{
    nfds_t n_polls = 0;
    poll_add(run, &n_polls, run->signals_fd, POLLIN);
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        poll_add(run, &n_polls, run_sink_is_empty(&run->sinks[i]) ? -1 : run->sinks[i].fd, POLLOUT);
    }
    int64_t limit_ms = run_input_poll(&run->input, &run->polls[n_polls++]) ? -1 : TERMINAL_LOOK_MS;
    poll_add(run, &n_polls, run->is_control_open ? STDIN_FILENO : -1, POLLIN);
    for (int i = 0; i < run->n_started; i++) {
        for (int j = 0; j < RUN_N_STREAMS; j++) {
            const struct run_stream *stream = &run->ranks[i].streams[j];
            if (is_readable(stream)) {
                poll_add(run, &n_polls, stream->fd, POLLIN);
                limit_ms = is_last_read(run) ? 0 : limit_ms;
            }
        }
    }
    if (!run->was_killed) {
        limit_ms = limit_to(run->kill_at_ns, limit_ms);
    }
    if (!run->was_told) {
        limit_ms = limit_to(run->tell_at_ns, limit_ms);
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
        read_control(run);
        for (int i = 0; i < RUN_N_STREAMS; i++) {
            run_sink_flush(&run->sinks[i]);
        }
        read_streams(run);
        run_input_move(&run->input);
        look_at_ranks(run);
        if (!run->was_told && clock_now_ns() >= run->tell_at_ns) {
            tell_late(run);
        }
        if (!run->was_killed && clock_now_ns() >= run->kill_at_ns) {
            end_or_wait(run);
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
        if (run->plan.agents) {
            rank->run = run;
            rank->streams[1].take = take_line;
            rank->streams[1].take_context = rank;
        }
        int exit_code = run_begin_rank(rank, &run->plan);
        if (exit_code != TOOL_DONE) {
            return exit_code;
        }
        run->n_started++;
    }
    run_input_started(&run->input);
    return TOOL_DONE;
}

static bool prepare(struct run *run)
{
    run_fill_standard_files();
    run_raise_file_limit(&run->plan);
    run->ranks = calloc((size_t)run->plan.n_ranks, sizeof *run->ranks);
    run->is_reported = calloc(RUN_MAX_RANKS, sizeof *run->is_reported);
    run->is_control_open = run->plan.has_control;
    run->plan.hold_fd = run->plan.agents ? -1 : run_hold_make(); /* without one, nobody can hold */
    bool has_key = run->plan.key[0] != '\0' || run_make_key(run->plan.key);
    if (!run->ranks || !run->is_reported || !has_key || !run_signals_take(&run->plan, &run->signals_fd)) {
        return false;
    }
    /* Before the input: a pipe whose writing end the watchdog held too would never end for rank 0. */
    bool is_open = run_watchdog_start(&run->plan.watchdog, run->plan.command, run->plan.n_ranks) &&
                   run_input_open(&run->input);
    run->plan.input_fd = is_open ? run->input.rank_fd : run->plan.input_fd;
    return is_open;
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
    if (run->plan.hold_fd >= 0) {
        (void)close(run->plan.hold_fd);
    }
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        run_sink_fini(&run->sinks[i]);
    }
    free(run->is_reported);
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
    run->plan.hold_fd = -1;
    run->input.pipe_fd = -1;
    run->tell_at_ns = DEADLINE_NEVER;
    run->kill_at_ns = DEADLINE_NEVER;
    int exit_code = run_all(run);
    run_fini(run);
    return exit_code;
}
