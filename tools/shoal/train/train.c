/* SPDX-License-Identifier: MIT */
/* `shoal train`: trains a GPT on one rank or several. This file is its course; train/job.h names the others. */
#include "run/job.h"
#include "common/commands.h"
#include "common/tool.h"
#include "train/bind.h"
#include "train/load.h"
#include "train/loop.h"
#include "train/ranks.h"
#include "train/same.h"
#include "train/sample.h"
#include "train/save.h"
#include "train/verify.h"
#include "train/whole.h"

#include "base/error.h"
#include "base/try.h"
#include "bootstrap/meet/environment.h"
#include "shoal/group.h"
#include "shoal/trace.h"
#include "shoal_nn/nn.h"

#include <malloc.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* One rank's run. */
struct course {
    struct train_job job;
    struct train_report report;
    struct train_result result;
    shoal_module *whole;                  /* on rank 0, if a sample is wanted */
    char trace_failure[ERROR_TEXT_BYTES]; /* on all ranks: why the trace was not written; "" if it was */
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

static shoal_status prepare(struct train_job *job)
{
    TRY(train_same(job));
    TRY(train_bind(job));
    if (job->options->load) {
        TRY(train_same_status(job, train_load_shape(job)));
    }
    TRY(train_job_agree(job, train_data_check(job->data, job->options->context, train_job_samples(job))));
    TRY(train_same_status(job, train_sample_check(job)));
    TRY(train_save_check(job));
    TRY(train_model_make(job));
    TRY(train_save_prepare(job));
    return train_resume(job);
}

/* Every rank adds its events to the file when it stops. */
static shoal_status start_trace(struct train_job *job)
{
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = job->options->trace;
    return options.path ? train_same_status(job, shoal_trace_start(&options)) : SHOAL_OK;
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
    TRY(prepare(job));
    TRY(start_trace(job));
    train_report_begin(&course->report, job);
    TRY(train_loop(job, &course->report, &course->result));
    TRY(stop_trace(course));
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

static shoal_status finish(struct course *course, bool *is_same)
{
    const struct train_job *job = &course->job;
    struct train_result *result = &course->result;
    bool is_whole = job->options->n_verify == job->options->n_steps;
    *is_same = true;
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
    if (course->trace_failure[0]) {
        (void)fflush(stdout);
        remove_if_empty(job->options->trace);
        return error_set(SHOAL_ERR_SYSTEM, "%s", course->trace_failure);
    }
    return SHOAL_OK;
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
static int run_in_world(const struct train_options *options, const struct train_data *data,
                        shoal_world *world)
{
    struct course course = {0};
    train_job_init(&course.job, options, data, world);
    int rank = course.job.rank;
    int n_ranks = course.job.n_ranks;
    shoal_status status = train(&course);
    bool is_agreed = course.job.is_agreed;
    bool has_reason = rank == course.job.speaker || !is_agreed;
    if (status != SHOAL_OK && has_reason) {
        (void)say_failure(rank, is_agreed && rank == 0 ? 1 : n_ranks);
    }
    if (status != SHOAL_OK && !is_agreed) {
        return TOOL_FAILED;
    }
    drop_model(&course.job);
    shoal_status closed = shoal_world_close(world);
    if (status != SHOAL_OK) {
        return TOOL_FAILED;
    }
    bool is_same = true;
    status = closed != SHOAL_OK || rank > 0 ? closed : finish(&course, &is_same);
    shoal_module_unref(course.whole);
    return status != SHOAL_OK ? say_failure(rank, course.trace_failure[0] ? 1 : n_ranks)
           : is_same          ? TOOL_DONE
                              : TOOL_FAILED;
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

static int run_rank(struct train_options *options, const struct train_data *data,
                    const struct environment *environment)
{
    shoal_world *world = NULL;
    keep_freed_memory();
    if (options->live_columns == 0 && environment->n_ranks == 1) {
        options->live_columns = train_ranks_columns();
    }
    if (open_world(options, &world) != SHOAL_OK) {
        return say_failure(environment->rank, environment->n_ranks);
    }
    return run_in_world(options, data, world);
}

/* What ranks would find, too: here it is found once, and none is started. */
static shoal_status check_rows(const struct train_options *options, const struct train_data *data)
{
    const struct train_parts *parts = &options->accumulate;
    return train_data_check(data, options->context,
                            options->n_ranks * parts->n_outer * parts->n_inner * options->batch);
}

/* What a rank, or the launcher, does with data that is open. */
static int run(struct train_options *options, const struct train_data *data,
               const struct environment *environment, int argc, char **argv)
{
    bool is_launcher = environment->n_ranks == 1 && options->n_ranks > 1;
    if (options->trace && train_data_is_file(data, options->trace)) {
        fprintf(stderr, "shoal train: --trace %s would write over the data\n", options->trace);
        return TOOL_USAGE;
    }
    if (!is_launcher) {
        return run_rank(options, data, environment);
    }
    bool writes_trace = options->trace != NULL;
    return check_rows(options, data) == SHOAL_OK
               ? train_ranks_start((int)options->n_ranks, writes_trace, argc, argv)
               : say_failure(0, 1);
}

/* The command ------------------------------------------------------------------------------------------ */

int command_train(int argc, char **argv)
{
    struct train_options options;
    struct train_data data;
    struct environment environment;
    int exit_status;
    run_fill_standard_files();
    if (!train_options_read(argc, argv, &options, &exit_status)) {
        return exit_status;
    }
    if (environment_read(&environment) != SHOAL_OK) {
        return say_failure(0, 1);
    }
    int n_ranks =
        environment.n_ranks == 1 && options.n_ranks > 1 ? (int)options.n_ranks : environment.n_ranks;
    if (!train_options_settle(&options, n_ranks)) {
        return TOOL_USAGE;
    }
    if (train_data_open(&options, &data) != SHOAL_OK) {
        return say_failure(environment.rank, environment.n_ranks);
    }
    exit_status = run(&options, &data, &environment, argc, argv);
    train_data_close(&data);
    return exit_status;
}
