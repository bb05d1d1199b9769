/* SPDX-License-Identifier: MIT */
/*
 * The loop over steps. What ranks tell each other of a step, the loss and, for the log, times and memory of each rank,
 * arrives one step late: it is reduced while the next step computes, and nobody waits for it. In mode none the loss is
 * computed at the end, so that ranks do not communicate while they train.
 */
#include "train/loop.h"
#include "train/interrupt.h"
#include "train/log.h"
#include "train/save.h"
#include "train/times.h"
#include "train/validate.h"
#include "train/whole.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "shoal/group.h"
#include "shoal/trace.h"
#include "shoal/work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define MEMORY_NS 1000000000 /* between two looks at the memory of this process, which cost a millisecond */

/* What is reduced after a step: the loss, how many ranks have noted which signal, and behind these the slots of all
   ranks, each of which fills its own. */
enum {
    SHARED_LOSS,
    SHARED_SIGNALS,
    SHARED_SLOTS = SHARED_SIGNALS + TRAIN_N_SIGNALS
};

struct loop {
    struct train_job *job;
    struct train_report *report;
    struct train_result *result;
    struct train_times times;
    int64_t first;   /* number of the first step */
    int64_t n_steps; /* to do */
    double *losses;  /* of each step: this process's sum, then that of all ranks */
    int64_t begin_ns;
    /* What is reduced, or was for the last step. */
    shoal_work *work; /* NULL if nothing is on its way */
    double *shared;
    size_t n_shared;
    int signal; /* that a rank had noted at the end of the last step that is known; 0 if there is none */
    /* For the log, on rank 0: */
    struct train_log *log; /* NULL if there is none */
    struct train_log_step
        line;       /* of the step whose line was not written yet; its number is 0 if there is none */
    int64_t end_ns; /* when that step ended */
    double memory_mb;
    int64_t memory_ns; /* when that was read */
};

/* What ranks tell each other ------------------------------------------------------------------------------ */

static bool has_peers(const struct train_job *job)
{
    return job->n_ranks > 1 && job->mode != TRAIN_NONE;
}

/* How many backward passes the losses of a step are the sum of. */
static double count_passes(const struct train_job *job)
{
    return job->mode == TRAIN_NONE ? (double)job->n_micro
                                   : (double)(job->n_replicas * job->n_parts * job->n_micro);
}

static double mean_loss(const struct loop *loop, int64_t index)
{
    return loop->losses[index] / count_passes(loop->job);
}

/* Writes the line of the last step, which has everything now. */
static void write_line(struct loop *loop)
{
    if (!loop->log || loop->line.step == 0) {
        return;
    }
    loop->line.loss = mean_loss(loop, loop->line.step - loop->first - 1);
    loop->line.slots = loop->shared + SHARED_SLOTS;
    loop->line.outside_ms = (double)(loop->times.step_ns - loop->end_ns) * 1e-6;
    if (loop->line.outside_ms < 0.0) {
        loop->line.outside_ms =
            (double)(clock_now_ns() - loop->end_ns) * 1e-6; /* the next step has not begun */
    }
    train_log_step(loop->log, &loop->line);
    loop->line.step = 0;
}

/* Waits for what was told of step `index`. */
static shoal_status finish_shared(struct loop *loop, int64_t index)
{
    shoal_status status = loop->work ? shoal_work_wait(loop->work, -1.0) : SHOAL_OK;
    if (loop->work && status == SHOAL_OK) {
        loop->losses[index] = loop->shared[SHARED_LOSS];
        loop->signal = train_interrupt_find(loop->shared + SHARED_SIGNALS);
    }
    shoal_work_free(loop->work);
    loop->work = NULL;
    return status;
}

static void fill_slots(struct loop *loop, int64_t index)
{
    int64_t now_ns = clock_now_ns();
    const struct train_step_time *time = &loop->times.steps[index];
    double *slots = loop->shared + SHARED_SLOTS;
    for (size_t i = SHARED_SLOTS; i < loop->n_shared; i++) {
        loop->shared[i] = 0.0;
    }
    if (loop->memory_ns == 0 || now_ns - loop->memory_ns > MEMORY_NS) {
        loop->memory_mb = train_report_memory_mb();
        loop->memory_ns = now_ns;
    }
    slots += has_peers(loop->job) ? loop->job->rank * N_SLOTS : 0;
    slots[SLOT_STEP] = time->step;
    slots[SLOT_EXPOSED] = time->exposed;
    slots[SLOT_HIDDEN] = time->hidden;
    slots[SLOT_MEMORY] = loop->memory_mb;
}

/* Tells of a step that has ended; what was told of the one before has arrived. */
static shoal_status start_shared(struct loop *loop, int64_t index)
{
    loop->shared[SHARED_LOSS] = loop->losses[index];
    train_interrupt_tell(loop->shared + SHARED_SIGNALS);
    if (loop->n_shared > SHARED_SLOTS) {
        fill_slots(loop, index);
    }
    if (!has_peers(loop->job)) {
        loop->signal = train_interrupt_find(loop->shared + SHARED_SIGNALS);
        return SHOAL_OK;
    }
    return shoal_group_all_reduce_start(loop->job->group, loop->shared, loop->shared, loop->n_shared,
                                        SHOAL_F64, SHOAL_SUM, &loop->work);
}

/* Steps ------------------------------------------------------------------------------------------------ */

/*
 * Whether this step is the last one because of a signal. All ranks find the same here: they have what was told of the step
 * before, and nobody knows yet what was told of this one.
 */
static void look_for_signal(struct loop *loop, int signal, int64_t index)
{
    if (signal != 0) {
        loop->result->signal = signal;
        loop->n_steps = index + 1;
    }
}

/* After a step: the checkpoint and the digest that are due. */
static shoal_status keep_state(struct loop *loop)
{
    struct train_job *job = loop->job;
    const struct train_options *options = job->options;
    int64_t step = job->schedule.step;
    bool is_last = step == loop->first + loop->n_steps;
    if (options->checkpoint && (is_last || (options->every > 0 && step % options->every == 0))) {
        TRY(finish_shared(loop, step - loop->first - 1));
        job->saved.loss_first = loop->first == 0 ? mean_loss(loop, 0) : job->saved.loss_first;
        job->saved.loss_last = mean_loss(loop, step - loop->first - 1);
        TRY(train_save(job));
    }
    if (options->verifies && step == options->n_verify && !is_last) {
        TRY(train_whole(job, &loop->result->verify_digest, NULL));
    }
    return SHOAL_OK;
}

/*
 * Prints the line of a step. Plain lines are few, so they wait for the loss of their step; so do the first and the last
 * line. Any other live line shows the newest loss that has arrived, and the step to which it belongs.
 */
static shoal_status show_step(struct loop *loop, int64_t index)
{
    int64_t step = loop->first + index + 1;
    bool is_awaited = index == 0 || index == loop->n_steps - 1 || loop->report->columns == 0;
    if (!train_report_is_due(loop->report, step)) {
        return SHOAL_OK;
    }
    if (is_awaited || (loop->work && shoal_work_test(loop->work))) {
        TRY(finish_shared(loop, index));
    }
    const struct train_loss loss = {.step = loop->work ? step - 1 : step,
                                    .value = mean_loss(loop, loop->work ? index - 1 : index)};
    int64_t first = loop->report->last_step - loop->first;
    train_report_step(loop->report, step, &loss, train_times_share(&loop->times, first, index + 1));
    return SHOAL_OK;
}

/* After a step: the validation that is due. */
static shoal_status validate(struct loop *loop)
{
    struct train_job *job = loop->job;
    double loss = 0.0;
    if (!train_validate_is_due(job, job->schedule.step)) {
        return SHOAL_OK;
    }
    shoal_trace_begin("validation");
    shoal_status status = train_validate(job, &loss);
    shoal_trace_end();
    TRY(status);
    loop->line.has_validation = true;
    loop->line.validation = loss;
    train_report_validation(loop->report, loop->result, job->schedule.step, loss);
    return SHOAL_OK;
}

/* The step before has its line once its loss is there. */
static shoal_status begin_line(struct loop *loop, int64_t index)
{
    struct train_job *job = loop->job;
    double lr = 0.0;
    write_line(loop);
    TRY(shoal_nn_schedule_at(&job->schedule, loop->first + index, &lr));
    loop->line = (struct train_log_step){.step = loop->first + index + 1, .lr = lr, .norm = job->norm};
    loop->end_ns = clock_now_ns();
    return SHOAL_OK;
}

/* Memory is told after the first step, when all of it was allocated, and at the end. */
static shoal_status log_memory(struct loop *loop, int64_t index)
{
    bool is_due = index == 0 || index == loop->n_steps - 1;
    return is_due && loop->job->options->log ? train_log_memory(loop->log, loop->job, loop->first + index + 1)
                                             : SHOAL_OK;
}

static shoal_status run_step(struct loop *loop, int64_t index)
{
    shoal_trace_step(loop->first + index);
    train_times_begin(&loop->times);
    TRY(train_step(loop->job, &loop->losses[index]));
    TRY(finish_shared(loop, index - 1));
    train_times_end(&loop->times, index);
    trace_step_end(); /* what follows is no part of it, for `shoal trace` as for the times above */
    TRY(begin_line(loop, index));
    int signal = loop->signal;
    TRY(start_shared(loop, index));
    look_for_signal(loop, has_peers(loop->job) ? signal : loop->signal, index);
    TRY(keep_state(loop));
    TRY(validate(loop));
    TRY(show_step(loop, index));
    return log_memory(loop, index);
}

/* What came of it -------------------------------------------------------------------------------------- */

static int compare_times(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double find_median(double *times, int64_t n_times)
{
    qsort(times, (size_t)n_times, sizeof(times[0]), compare_times);
    return (times[n_times / 2] + times[(n_times - 1) / 2]) * 0.5;
}

/* Medians of the step and of its exposed communication, each for itself. */
static shoal_status find_medians(const struct loop *loop, double *step_out, double *exposed_out)
{
    double *room = calloc((size_t)loop->n_steps + 1, sizeof *room);
    if (!room) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the times of %lld steps",
                         (long long)loop->n_steps);
    }
    for (int64_t i = 0; i < loop->n_steps; i++) {
        room[i] = loop->times.steps[i].step;
    }
    *step_out = find_median(room, loop->n_steps);
    for (int64_t i = 0; i < loop->n_steps; i++) {
        room[i] = loop->times.steps[i].exposed;
    }
    *exposed_out = find_median(room, loop->n_steps);
    free(room);
    return SHOAL_OK;
}

/* Whole parameters that ranks of this host hold at most: in windows once, elsewhere once per rank. */
static shoal_status find_unsharded(const struct train_job *job, struct train_result *result)
{
    shoal_fsdp_memory_report memory = SHOAL_FSDP_MEMORY_REPORT_INIT;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    const shoal_plan *plan = shoal_compiled_plan(job->compiled);
    uint64_t window_bytes = 0;
    if (job->fsdp && plan) {
        TRY(shoal_plan_get_stats(plan, &stats));
        window_bytes = stats.window_bytes;
    } else if (job->fsdp) {
        TRY(shoal_fsdp_memory(job->fsdp, &memory));
        window_bytes = memory.host_peak.windows;
    }
    uint64_t copies_bytes = (uint64_t)job->n_params * sizeof(float) * (uint64_t)group_n_local(job->group);
    result->is_unsharded_shared = window_bytes > 0;
    result->unsharded_bytes = window_bytes > 0 ? window_bytes : copies_bytes;
    return SHOAL_OK;
}

/* Of which the mean over ranks is taken. */
enum {
    MEAN_STEP, /* over the middle half of the steps */
    MEAN_EXPOSED,
    MEAN_HIDDEN,
    MEAN_COMPUTE_MEDIAN,
    MEAN_EXPOSED_MEDIAN,
    MEAN_FIRST, /* losses in mode none */
    MEAN_LAST,
    N_MEANS
};

static shoal_status find_times(struct loop *loop, double means[N_MEANS], double *median_out)
{
    struct rusage usage = {0};
    struct train_step_time mean = {0};
    struct train_result *result = loop->result;
    (void)getrusage(RUSAGE_SELF, &usage);
    result->peak_rss_mb = (double)usage.ru_maxrss / 1024.0;
    result->seconds = (double)(clock_now_ns() - loop->begin_ns) * 1e-9;
    if (loop->n_steps > 0) {
        means[MEAN_FIRST] = mean_loss(loop, 0);
        means[MEAN_LAST] = mean_loss(loop, loop->n_steps - 1);
        TRY(find_medians(loop, median_out, &means[MEAN_EXPOSED_MEDIAN]));
        TRY(train_times_mean(&loop->times, loop->n_steps, &mean));
        means[MEAN_STEP] = mean.step;
        means[MEAN_EXPOSED] = mean.exposed;
        means[MEAN_HIDDEN] = mean.hidden;
        means[MEAN_COMPUTE_MEDIAN] = *median_out - means[MEAN_EXPOSED_MEDIAN];
    }
    return find_unsharded(loop->job, result);
}

/* Since which step losses are no finite numbers; 0 if the last one is. */
static int64_t find_lost_step(const struct loop *loop)
{
    int64_t n_good = loop->n_steps;
    if (loop->n_steps == 0) {
        return loop->first > 0 && !isfinite(loop->job->saved.loss_last) ? loop->first : 0;
    }
    while (n_good > 0 && !isfinite(loop->losses[n_good - 1])) {
        n_good--;
    }
    return n_good < loop->n_steps ? loop->first + n_good + 1 : 0;
}

static shoal_status find_result(struct loop *loop)
{
    struct train_job *job = loop->job;
    struct train_result *result = loop->result;
    double means[N_MEANS] = {0};
    double most[2] = {0}; /* the median step, and memory */
    TRY(find_times(loop, means, &most[0]));
    most[1] = result->peak_rss_mb;
    if (job->options->log) {
        const double slots[N_SLOTS] = {[SLOT_STEP] = means[MEAN_STEP],
                                       [SLOT_EXPOSED] = means[MEAN_EXPOSED],
                                       [SLOT_HIDDEN] = means[MEAN_HIDDEN]};
        TRY(train_log_means(loop->log, job, slots));
    }
    if (job->n_ranks > 1) {
        TRY(shoal_group_all_reduce(job->group, most, most, 2, SHOAL_F64, SHOAL_MAX));
        TRY(shoal_group_all_reduce(job->group, means, means, N_MEANS, SHOAL_F64, SHOAL_AVG));
    }
    result->peak_rss_mb = most[1];
    result->loss_first = loop->first > 0 ? job->saved.loss_first : means[MEAN_FIRST];
    result->loss_last = loop->n_steps == 0 ? job->saved.loss_last : means[MEAN_LAST];
    result->lost_step = find_lost_step(loop);
    result->step_ms = means[MEAN_STEP];
    result->exposed_ms = means[MEAN_EXPOSED];
    result->compute_ms = means[MEAN_STEP] - means[MEAN_EXPOSED];
    result->hidden = overlap_share(means[MEAN_EXPOSED], means[MEAN_HIDDEN]);
    result->median_step_ms = most[0];
    result->median_compute_ms = means[MEAN_COMPUTE_MEDIAN];
    result->median_exposed_ms = means[MEAN_EXPOSED_MEDIAN];
    double tokens = (double)(train_job_samples(job) * job->options->context);
    result->tokens_per_s = most[0] > 0.0 ? tokens / (most[0] * 1e-3) : 0.0;
    return SHOAL_OK;
}

static shoal_status run_steps(struct loop *loop)
{
    loop->begin_ns = clock_now_ns();
    for (int64_t i = 0; i < loop->n_steps; i++) {
        TRY(run_step(loop, i));
    }
    TRY(finish_shared(loop, loop->n_steps - 1));
    loop->result->signal = loop->signal != 0 ? loop->signal : loop->result->signal;
    write_line(loop);
    TRY(train_save_finish(loop->job));
    return find_result(loop);
}

static shoal_status run_loop(struct loop *loop)
{
    struct train_job *job = loop->job;
    size_t n_slots = job->options->log ? (has_peers(job) ? (size_t)job->n_ranks : 1) * N_SLOTS : 0;
    loop->n_shared = SHARED_SLOTS + n_slots;
    loop->losses = calloc((size_t)loop->n_steps + 1, sizeof(loop->losses[0]));
    loop->shared = calloc(loop->n_shared, sizeof(loop->shared[0]));
    if (!loop->losses || !loop->shared) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the losses of %lld steps",
                         (long long)loop->n_steps);
    }
    TRY(train_times_make(&loop->times, loop->n_steps));
    return run_steps(loop);
}

/* After a failure: a reduction may still be in flight, and needs its memory. Keeps the error's text. */
static shoal_status drop_shared(struct loop *loop, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (!loop->work) {
        return status;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)!shoal_work_wait(loop->work, -1.0);
    shoal_work_free(loop->work);
    return error_set(status, "%s", text);
}

shoal_status train_loop(struct train_job *job, struct train_report *report, struct train_log *log,
                        struct train_result *result)
{
    struct loop loop = {
        .job = job, .report = report, .log = log, .result = result, .first = job->schedule.step};
    int64_t n_left = job->options->n_steps - loop.first;
    loop.n_steps = n_left > 0 ? n_left : 0;
    bool is_interruptible = job->mode != TRAIN_NONE; /* there ranks do not tell each other anything */
    if (is_interruptible) {
        train_interrupt_begin();
    } else {
        train_interrupt_end(/*has_ended=*/true); /* a signal ends each */
    }
    shoal_status status = drop_shared(&loop, run_loop(&loop));
    result->last_step = loop.first + loop.n_steps;
    if (is_interruptible) {
        train_interrupt_end(status != SHOAL_OK || result->signal != 0);
    }
    train_times_free(&loop.times);
    free(loop.shared);
    free(loop.losses);
    return status;
}
