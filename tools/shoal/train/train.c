/* SPDX-License-Identifier: MIT */
/* `shoal train`: trains a GPT on one rank or several. This file is its course; train/job.h names the others. */
#include "report/report.h"
#include "run/job.h"
#include "common/commands.h"
#include "common/place.h"
#include "common/tool.h"
#include "train/bind.h"
#include "train/interrupt.h"
#include "train/load.h"
#include "train/log.h"
#include "train/loop.h"
#include "train/outputs.h"
#include "config/merge.h"
#include "train/ranks.h"
#include "train/same.h"
#include "train/sample.h"
#include "train/save.h"
#include "train/validate.h"
#include "train/verify.h"
#include "train/whole.h"

#include "base/error.h"
#include "base/trace.h"
#include "base/try.h"
#include "shoal/group.h"
#include "shoal/trace.h"
#include "shoal_nn/nn.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SIGNAL_EXIT =
        128 /* and the number: the exit status of a run that a signal has ended, as shells have it */
};

/* What a process does by itself, before it meets other ranks. */
struct start {
    struct train_options options;
    struct train_config config; /* of --resume */
    struct train_changes changes;
    struct model_description loaded; /* of --load */
    struct train_data data;
    shoal_status status;
    char text[ERROR_TEXT_BYTES]; /* of a failure */
};

/* One rank's run. */
struct course {
    const struct start *start;
    struct train_job job;
    struct train_report report;
    struct train_result result;
    struct train_log *log;                /* on rank 0, if one is wanted */
    shoal_module *whole;                  /* on rank 0, if a sample is wanted */
    char trace_failure[ERROR_TEXT_BYTES]; /* on all ranks: why the trace was not written; "" if it was */
    char log_failure[ERROR_TEXT_BYTES];   /* of a run that a signal has ended: the same of its log and page */
};

static int say_failure(int rank, int n_ranks)
{
    if (n_ranks > 1) {
        fprintf(stderr, "shoal train: rank %d: %s\n", rank, shoal_error_text());
    } else {
        fprintf(stderr, "shoal train: %s\n", shoal_error_text());
    }
    return TOOL_FAILED;
}

/* On ranks --------------------------------------------------------------------------------------------- */

/* A rank that could not begin tells the others. */
static shoal_status meet(struct train_job *job, const struct start *start)
{
    shoal_status status = start->status;
    return train_same_status(job, status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", start->text));
}

static shoal_status prepare(struct train_job *job)
{
    TRY(train_same(job));
    TRY(train_bind(job));
    TRY(train_job_agree(job, train_data_check(job->data, job->options->context, train_job_samples(job))));
    TRY(train_same_status(job, train_sample_check(job)));
    TRY(train_save_check(job));
    TRY(train_validate_prepare(job));
    TRY(train_model_make(job));
    TRY(train_save_prepare(job));
    return train_resume(job);
}

static shoal_status start_trace_to(void *path)
{
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = path;
    return shoal_trace_start(&options);
}

/* Every rank adds its events to the file when it stops. */
static shoal_status start_trace(struct train_job *job)
{
    char *path = (char *)job->options->trace;
    return path ? train_same_status(job, train_interrupt_around(start_trace_to, path)) : SHOAL_OK;
}

/* What opening a world would start. */
static shoal_status start_trace_of_environment(void *context)
{
    (void)context;
    (void)trace_resolve();
    return SHOAL_OK;
}

/*
 * Stops the trace. If the trace cannot be written, for example because the disk is full, the training result is kept,
 * and rank 0 reports the failure at the end. The first rank that failed tells all others the reason.
 */
static shoal_status stop_trace(struct course *course)
{
    struct train_job *job = &course->job;
    if (!job->options->trace) {
        return SHOAL_OK;
    }
    shoal_status status = shoal_trace_stop();
    int64_t speaker = status == SHOAL_OK ? job->n_ranks : job->rank;
    if (status != SHOAL_OK && job->n_ranks > 1) {
        (void)snprintf(course->trace_failure, ERROR_TEXT_BYTES, "rank %d: %s", job->rank, shoal_error_text());
    } else if (status != SHOAL_OK) {
        (void)snprintf(course->trace_failure, ERROR_TEXT_BYTES, "%s", shoal_error_text());
    }
    if (job->n_ranks == 1) {
        return SHOAL_OK;
    }
    TRY(shoal_group_all_reduce(job->group, &speaker, &speaker, 1, SHOAL_I64, SHOAL_MIN));
    if (speaker == job->n_ranks) {
        return SHOAL_OK;
    }
    return shoal_group_broadcast(job->group, course->trace_failure, ERROR_TEXT_BYTES, SHOAL_U8, (int)speaker);
}

static shoal_status train(struct course *course)
{
    struct train_job *job = &course->job;
    TRY(meet(job, course->start));
    TRY(prepare(job));
    TRY(start_trace(job));
    TRY(train_log_open(job, &course->log));
    train_report_begin(&course->report, job);
    TRY(train_loop(job, &course->report, course->log, &course->result));
    if (course->result.signal != 0 && job->rank == 0) {
        train_report_interrupted(&course->report, &course->result);
        train_report_lost(&course->result);
    }
    TRY(stop_trace(course));
    if (course->result.signal != 0) {
        return SHOAL_OK; /* whoever has interrupted it does not wait for anything else */
    }
    return train_whole(job, &course->result.digest, job->options->n_sample > 0 ? &course->whole : NULL);
}

/* Afterwards, on rank 0 alone -------------------------------------------------------------------------- */

static void remove_if_empty(const char *path)
{
    struct stat about;
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0) {
        (void)unlink(path);
    }
}

/* The end of the log, and the page about it. A log that has no room does not take the result with it. */
static shoal_status finish_log(struct course *course)
{
    const struct train_options *options = course->job.options;
    train_log_end(course->log, &course->result);
    if (train_log_failure(course->log)[0] != '\0') {
        if (options->has_own_log) {
            remove_if_empty(options->log);
        }
        return error_set(SHOAL_ERR_SYSTEM, "%s", train_log_failure(course->log));
    }
    if (!options->report) {
        return SHOAL_OK;
    }
    const struct report_sources sources = {.command = "shoal train",
                                           .log = options->log,
                                           .trace = course->trace_failure[0] ? NULL : options->trace};
    if (!report_write(&sources, options->report)) {
        return error_set(SHOAL_ERR_SYSTEM, "--report: %s was not written", options->report);
    }
    if (options->has_own_log) {
        (void)unlink(options->log);
    }
    return SHOAL_OK;
}

/* Prints what came of a run that has done all its steps. */
static shoal_status show_result(struct course *course, bool *is_same)
{
    const struct train_job *job = &course->job;
    struct train_result *result = &course->result;
    bool is_whole = job->options->n_verify == job->options->n_steps;
    if (course->whole && course->report.is_shown) {
        printf("\nwhat it writes:\n");
        TRY(train_sample(job, course->whole));
    }
    train_report_end(&course->report, result);
    if (job->options->verifies) {
        TRY(train_verify(job, &course->report, is_whole ? result->digest : result->verify_digest, is_same));
    }
    if (job->options->has_json) {
        train_report_json(job, result);
    }
    return SHOAL_OK;
}

static shoal_status finish(struct course *course, bool *is_same)
{
    const struct train_job *job = &course->job;
    *is_same = true;
    if (course->result.signal == 0) {
        TRY(show_result(course, is_same));
        train_report_lost(&course->result);
        TRY(finish_log(course));
    } else if (course->log_failure[0]) {
        return error_set(SHOAL_ERR_SYSTEM, "%s", course->log_failure);
    }
    if (course->trace_failure[0]) {
        (void)fflush(stdout);
        remove_if_empty(job->options->trace);
        return error_set(SHOAL_ERR_SYSTEM, "%s", course->trace_failure);
    }
    return SHOAL_OK;
}

/* After a signal rank 0 writes these while the others wait for it in closing the world: a launcher ends all ranks once
   one has ended with a status that is not 0. */
static void finish_log_of_signal(struct course *course)
{
    if (course->result.signal != 0 && course->job.rank == 0 && finish_log(course) != SHOAL_OK) {
        (void)snprintf(course->log_failure, sizeof course->log_failure, "%s", shoal_error_text());
    }
}

/* The numbers of a job whose model is gone. */
static void drop_model(struct train_job *job)
{
    struct train_job numbers = *job;
    train_job_free(job);
    *job = (struct train_job){.options = numbers.options,
                              .data = numbers.data,
                              .gpt = numbers.gpt,
                              .mode = numbers.mode,
                              .n_replicas = numbers.n_replicas,
                              .n_parts = numbers.n_parts,
                              .n_micro = numbers.n_micro,
                              .rank = numbers.rank,
                              .n_ranks = numbers.n_ranks,
                              .n_bound = numbers.n_bound,
                              .n_params = numbers.n_params};
}

/*
 * A rank that fails alone ends at once, without closing the world: the others notice. Where all ranks fail with the
 * same reason, they close the world, so that no rank ends before rank 0 has printed the reason.
 */
static int run_in_world(const struct start *start, shoal_world *world)
{
    struct course course = {.start = start};
    train_job_init(&course.job, &start->options, &start->data, world);
    int rank = course.job.rank;
    int n_ranks = course.job.n_ranks;
    shoal_status status = train(&course);
    bool is_agreed = course.job.is_agreed;
    /* A launcher ends all ranks when one of them has failed, and names that one. Ranks that have agreed to end were asked
       by the user, who must hear why there is no checkpoint. */
    bool is_told = status == SHOAL_ERR_PEER && !is_agreed && train_interrupt_noted() == SIGTERM &&
                   course.result.signal == 0;
    bool has_reason = (rank == course.job.speaker || !is_agreed) && !is_told;
    if (status != SHOAL_OK && has_reason) {
        (void)say_failure(rank, is_agreed && rank == 0 ? 1 : n_ranks);
    }
    if (status != SHOAL_OK && !is_agreed) {
        train_log_free(course.log);
        return is_told ? SIGNAL_EXIT + SIGTERM : TOOL_FAILED;
    }
    if (status == SHOAL_OK) {
        finish_log_of_signal(&course);
    }
    drop_model(&course.job);
    shoal_status closed = shoal_world_close(world);
    if (status != SHOAL_OK) {
        train_log_free(course.log);
        return TOOL_FAILED;
    }
    bool is_same = true;
    status = closed != SHOAL_OK || rank > 0 ? closed : finish(&course, &is_same);
    shoal_module_unref(course.whole);
    train_log_free(course.log);
    if (status != SHOAL_OK) {
        return say_failure(rank, course.trace_failure[0] ? 1 : n_ranks);
    }
    return course.result.signal != 0 ? SIGNAL_EXIT + course.result.signal : is_same ? TOOL_DONE : TOOL_FAILED;
}

/*
 * Makes the C library keep freed memory. Every step allocates and frees the same blocks. By default the C library
 * returns large blocks, and the end of its heap, to the system each time, and the system clears every page again when
 * the next step touches it.
 */
static void keep_freed_memory(void)
{
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD)
    enum {
        LARGEST_BYTES = 1 << 30,
        USUAL_LARGEST_BYTES = 1 << 25 /* the most that older versions take */
    };
    if (mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES) == 0) {
        (void)mallopt(M_MMAP_THRESHOLD, USUAL_LARGEST_BYTES);
    }
    (void)mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

static shoal_status open_world(const struct train_options *options, shoal_world **world_out)
{
    TRY(shoal_nn_set_threads((int)options->n_threads));
    return shoal_world_open(NULL, world_out);
}

static int run_rank(struct start *start, const struct tool_place *place)
{
    shoal_world *world = NULL;
    struct train_options *options = &start->options;
    keep_freed_memory();
    if (options->live_columns == 0 && place->n_ranks == 1) {
        options->live_columns = train_ranks_columns();
    }
    (void)train_interrupt_around(start_trace_of_environment, NULL);
    if (open_world(options, &world) != SHOAL_OK) {
        return say_failure(place->rank, place->n_ranks);
    }
    return run_in_world(start, world);
}

/* What ranks would find, too: here it is found once, and none is started. */
static shoal_status check_rows(const struct train_options *options, const struct train_data *data)
{
    const struct tool_parts *parts = &options->accumulate;
    return train_data_check(data, options->context,
                            options->n_ranks * parts->n_outer * parts->n_inner * options->batch);
}

/* Keeps a failure for the other ranks, which have to be told. */
static void keep_failure(struct start *start, shoal_status status)
{
    start->status = status;
    if (status != SHOAL_OK) {
        (void)snprintf(start->text, sizeof start->text, "%s", shoal_error_text());
    }
}

/* What a rank, or the launcher, does with data that is open. */
static int run(struct start *start, const struct tool_place *place, int argc, char **argv)
{
    const struct train_options *options = &start->options;
    bool is_launcher = !place->is_launched && options->n_ranks > 1;
    char text[ERROR_TEXT_BYTES];
    if (start->status == SHOAL_OK && !train_outputs_are_apart(options, text, sizeof text)) {
        if (place->n_ranks == 1) {
            fprintf(stderr, "shoal train: %s\n", text);
            return TOOL_USAGE;
        }
        keep_failure(start, error_set(SHOAL_ERR_INVALID, "%s", text));
    }
    if (!is_launcher) {
        return run_rank(start, place);
    }
    bool writes_trace = options->trace != NULL;
    return check_rows(options, &start->data) == SHOAL_OK
               ? train_ranks_start((int)options->n_ranks, writes_trace, argc, argv)
               : say_failure(0, 1);
}

/* The command ------------------------------------------------------------------------------------------ */

/* --resume: the options become those of the newest checkpoint, except where others were given. */
static shoal_status take_checkpoint(struct start *start, int n_ranks)
{
    bool is_found = false;
    struct train_options *options = &start->options;
    if (!options->checkpoint) {
        return SHOAL_OK;
    }
    shoal_status status = train_config_check(options->checkpoint);
    if (status != SHOAL_OK || !options->resumes) {
        return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--checkpoint");
    }
    status = train_config_read(options->checkpoint, &start->config, &is_found);
    if (status != SHOAL_OK) {
        return error_prefix(status, "--resume");
    }
    options->changes = &start->changes;
    return is_found ? train_merge(&start->config, n_ranks, options, &start->changes) : SHOAL_OK;
}

/* A run that goes on needs no weights to begin with. */
static shoal_status take_models(struct start *start, int n_ranks)
{
    TRY(take_checkpoint(start, n_ranks));
    return start->options.load ? train_load_settle(&start->options, &start->loaded) : SHOAL_OK;
}

static shoal_status open_data(struct start *start)
{
    const struct train_config *from = start->options.from;
    shoal_status status = train_data_open(&start->options, &start->data);
    bool is_remembered = from && !train_options_given(&start->options, "--data") &&
                         !train_options_given(&start->options, "--tokens") && from->data_path[0];
    return status == SHOAL_ERR_SYSTEM && is_remembered
               ? error_prefix(status, "the data of the run in %s (--data FILE names another place)",
                              start->options.checkpoint)
               : status;
}

/* Returns false if the options are wrong together, after a message. */
static bool settle(struct start *start, const struct tool_place *place)
{
    struct train_options *options = &start->options;
    keep_failure(start, take_models(start, place->is_launched ? place->n_ranks : 0));
    if (start->status != SHOAL_OK) {
        return true;
    }
    bool is_launcher = !place->is_launched && options->n_ranks > 1;
    if (!train_options_check(options) ||
        !train_options_settle(options, is_launcher ? (int)options->n_ranks : place->n_ranks)) {
        return false;
    }
    keep_failure(start, open_data(start));
    return true;
}

int command_train(int argc, char **argv)
{
    static struct start start;
    struct tool_place place;
    int exit_status;
    start = (struct start){.data = {.fd = -1}};
    run_fill_standard_files();
    (void)setenv("SHOAL_EXPLAIN_FAULTS", "1", /*overwrite=*/0);
    if (!train_options_read(argc, argv, &start.options, &exit_status)) {
        return exit_status;
    }
    if (!tool_place_read(&place)) {
        return TOOL_FAILED;
    }
    train_interrupt_prepare(&place);
    if (!tool_place_may_start(&place, train_options_given(&start.options, "--ranks") ? "--ranks" : NULL) ||
        !tool_place_has_transport(&place, start.options.transport) || !settle(&start, &place)) {
        return TOOL_USAGE;
    }
    if (start.status != SHOAL_OK && place.n_ranks == 1) {
        (void)error_set(start.status, "%s", start.text);
        return say_failure(0, 1);
    }
    exit_status = run(&start, &place, argc, argv);
    train_data_close(&start.data);
    return exit_status;
}
