/* SPDX-License-Identifier: MIT */
/*
 * The loop over steps. The mean loss of all ranks arrives one step late: it is reduced while the next step computes,
 * and nobody waits for it. In mode none it is computed at the end, so that ranks do not communicate while they train.
 */
#include "train/loop.h"
#include "train/comm.h"
#include "train/save.h"
#include "train/whole.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "shoal/group.h"
#include "shoal/trace.h"
#include "shoal/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

struct loop {
    struct train_job *job;
    struct train_report *report;
    struct train_result *result;
    struct train_waits waits;
    int64_t first;   /* number of the first step */
    int64_t n_steps; /* to do */
    int64_t *step_ns;
    int64_t *waited_ns; /* of each step */
    double *losses;     /* of each step: this process's sum, then that of all ranks */
    shoal_work *work;   /* the sum of the last step, on its way */
    int64_t begin_ns;
};

/* Losses ----------------------------------------------------------------------------------------------- */

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

static shoal_status finish_loss(struct loop *loop)
{
    shoal_status status = loop->work ? shoal_work_wait(loop->work, -1.0) : SHOAL_OK;
    shoal_work_free(loop->work);
    loop->work = NULL;
    return status;
}

static shoal_status start_loss(struct loop *loop, int64_t index)
{
    double *loss = &loop->losses[index];
    TRY(finish_loss(loop));
    if (!has_peers(loop->job)) {
        return SHOAL_OK;
    }
    return shoal_group_all_reduce_start(loop->job->group, loss, loss, 1, SHOAL_F64, SHOAL_SUM, &loop->work);
}

static double mean_loss(const struct loop *loop, int64_t index)
{
    return loop->losses[index] / count_passes(loop->job);
}

/* Steps ------------------------------------------------------------------------------------------------ */

/* After a step: the checkpoint and the digest that are due. */
static shoal_status keep_state(struct loop *loop)
{
    struct train_job *job = loop->job;
    const struct train_options *options = job->options;
    int64_t step = job->schedule.step;
    bool is_last = step == options->n_steps;
    if (options->checkpoint && (is_last || (options->every > 0 && step % options->every == 0))) {
        TRY(finish_loss(loop));
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
    if (is_awaited) {
        TRY(finish_loss(loop));
    }
    bool is_there = !loop->work || shoal_work_test(loop->work);
    const struct train_loss loss = {.step = is_there ? step : step - 1,
                                    .value = mean_loss(loop, is_there ? index : index - 1)};
    train_report_step(loop->report, step, &loss, train_waits_ns(&loop->waits));
    return SHOAL_OK;
}

static shoal_status run_step(struct loop *loop, int64_t index)
{
    int64_t waited_ns = train_waits_ns(&loop->waits);
    int64_t begin_ns = clock_now_ns();
    shoal_trace_step(loop->first + index);
    TRY(train_step(loop->job, &loop->losses[index]));
    TRY(start_loss(loop, index));
    loop->step_ns[index] = clock_now_ns() - begin_ns;
    loop->waited_ns[index] = train_waits_ns(&loop->waits) - waited_ns;
    TRY(keep_state(loop));
    return show_step(loop, index);
}

/* What came of it -------------------------------------------------------------------------------------- */

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static double find_median_ms(int64_t *times, int64_t n_times)
{
    qsort(times, (size_t)n_times, sizeof(times[0]), compare_times);
    int64_t upper = times[n_times / 2];
    int64_t lower = times[(n_times - 1) / 2];
    return (double)(lower + upper) * 0.5e-6;
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

enum {
    MEAN_STEP,
    MEAN_COMPUTE,
    MEAN_EXPOSED,
    MEAN_FIRST, /* losses in mode none */
    MEAN_LAST,
    N_MEANS
};

static shoal_status find_times(struct loop *loop, double means[N_MEANS])
{
    struct rusage usage = {0};
    struct train_result *result = loop->result;
    (void)getrusage(RUSAGE_SELF, &usage);
    result->peak_rss_mb = (double)usage.ru_maxrss / 1024.0;
    result->seconds = (double)(clock_now_ns() - loop->begin_ns) * 1e-9;
    if (loop->n_steps > 0) {
        means[MEAN_FIRST] = mean_loss(loop, 0);
        means[MEAN_LAST] = mean_loss(loop, loop->n_steps - 1);
        means[MEAN_EXPOSED] = find_median_ms(loop->waited_ns, loop->n_steps);
        means[MEAN_STEP] = find_median_ms(loop->step_ns, loop->n_steps);
        means[MEAN_COMPUTE] = means[MEAN_STEP] - means[MEAN_EXPOSED];
    }
    return find_unsharded(loop->job, result);
}

static shoal_status find_result(struct loop *loop)
{
    struct train_job *job = loop->job;
    struct train_result *result = loop->result;
    double means[N_MEANS] = {0};
    TRY(find_times(loop, means));
    double step_ms = means[MEAN_STEP];
    if (job->n_ranks > 1) {
        TRY(shoal_group_all_reduce(job->group, &step_ms, &step_ms, 1, SHOAL_F64, SHOAL_MAX));
        TRY(shoal_group_all_reduce(job->group, means, means, N_MEANS, SHOAL_F64, SHOAL_AVG));
        TRY(shoal_group_all_reduce(job->group, &result->peak_rss_mb, &result->peak_rss_mb, 1, SHOAL_F64,
                                   SHOAL_MAX));
    }
    result->loss_first = loop->first > 0 ? job->saved.loss_first : means[MEAN_FIRST];
    result->loss_last = loop->n_steps == 0 ? job->saved.loss_last : means[MEAN_LAST];
    result->step_ms = step_ms;
    result->compute_ms = means[MEAN_COMPUTE];
    result->exposed_ms = means[MEAN_EXPOSED];
    double tokens = (double)(train_job_samples(job) * job->options->context);
    result->tokens_per_s = result->step_ms > 0.0 ? tokens / (result->step_ms * 1e-3) : 0.0;
    return SHOAL_OK;
}

/* Over the last steps, which the record still has. */
static void find_hidden(struct loop *loop)
{
    int64_t n_last = loop->n_steps < 8 ? loop->n_steps : 8;
    int64_t since_ns = clock_now_ns();
    int64_t waited_ns = 0;
    for (int64_t i = loop->n_steps - n_last; i < loop->n_steps; i++) {
        since_ns -= loop->step_ns[i];
        waited_ns += loop->waited_ns[i];
    }
    int64_t all_ns = has_peers(loop->job) ? train_comm_ns(loop->job->world, since_ns) : 0;
    double hidden = all_ns > 0 ? 1.0 - (double)waited_ns / (double)all_ns : -1.0;
    loop->result->hidden = all_ns > 0 && hidden < 0.0 ? 0.0 : hidden;
}

static shoal_status run_loop(struct loop *loop)
{
    struct train_job *job = loop->job;
    loop->begin_ns = clock_now_ns();
    loop->waits = train_waits_begin();
    for (int64_t i = 0; i < loop->n_steps; i++) {
        TRY(run_step(loop, i));
    }
    TRY(finish_loss(loop));
    find_hidden(loop);
    TRY(train_save_finish(job));
    return find_result(loop);
}

/* After a failure: the sum of a loss may still be in flight, and needs its memory. Keeps the error's text. */
static shoal_status drop_loss(struct loop *loop, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (!loop->work) {
        return status;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)!finish_loss(loop);
    return error_set(status, "%s", text);
}

shoal_status train_loop(struct train_job *job, struct train_report *report, struct train_result *result)
{
    struct loop loop = {.job = job, .report = report, .result = result, .first = job->schedule.step};
    int64_t n_left = job->options->n_steps - loop.first;
    loop.n_steps = n_left > 0 ? n_left : 0;
    size_t n_items = (size_t)loop.n_steps + 1;
    loop.step_ns = calloc(n_items, sizeof(loop.step_ns[0]));
    loop.waited_ns = calloc(n_items, sizeof(loop.waited_ns[0]));
    loop.losses = calloc(n_items, sizeof(loop.losses[0]));
    shoal_status status =
        loop.step_ns && loop.waited_ns && loop.losses
            ? run_loop(&loop)
            : error_set(SHOAL_ERR_NO_MEMORY, "no memory for the times of %lld steps", (long long)n_left);
    status = drop_loss(&loop, status);
    free(loop.step_ns);
    free(loop.waited_ns);
    free(loop.losses);
    return status;
}
