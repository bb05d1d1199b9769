/* SPDX-License-Identifier: MIT */
/* Lines for people and one for programs. */
#include "train/report.h"
#include "config/merge.h"
#include "train/validate.h"

#include "base/clock.h"
#include "shoal_nn/nn.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIVE_NS 200000000                   /* between two live lines */
#define PLAIN_NS (INT64_C(10) * 1000000000) /* between two others at most, if a step does not take longer */

enum {
    N_PLAIN_LINES = 20, /* of a run */
    BAR_CELLS = 20,
    LEAST_CELLS = 4,
    LINE_BYTES = 256
};

static double to_seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

double train_report_memory_mb(void)
{
    char line[256];
    long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && kilobytes == 0 && fgets(line, sizeof line, file)) {
        (void)sscanf(line, "Pss: %ld", &kilobytes);
    }
    if (file) {
        (void)fclose(file);
    }
    return (double)kilobytes / 1024.0;
}

/* The beginning ------------------------------------------------------------------------------------------ */

static void print_split(const struct train_job *job)
{
    const struct train_options *options = job->options;
    if (job->mode == TRAIN_HSDP || job->n_replicas > 1) {
        printf("%" PRId64 " x ", job->n_replicas);
    }
    printf("%" PRId64 " x ", job->n_parts);
    if (job->n_micro > 1) {
        printf("%" PRId64 " x ", job->n_micro);
    }
    printf("%" PRId64 " rows of %" PRId64 " tokens", options->batch, options->context);
}

static void print_validation(const struct train_job *job)
{
    int64_t every = job->options->val_every;
    if (every == 1) {
        printf("validation: %s, every step\n", train_validate_text(job));
    } else {
        printf("validation: %s, every %" PRId64 " steps\n", train_validate_text(job), every);
    }
}

/* What keeps products from being as fast as the processor is. */
static void print_hint(const struct train_job *job)
{
    shoal_nn_products info = SHOAL_NN_PRODUCTS_INIT;
    bool is_bf16 = job->options->dtype == TRAIN_BF16;
    if (is_bf16 && shoal_nn_products_info(&info) == SHOAL_OK && info.hint[0]) {
        printf("products: %s\n", info.hint);
    }
}

static void print_start(const struct train_job *job)
{
    char products[TRAIN_PRODUCTS_BYTES] = "";
    train_job_products(job, products);
    printf("%s%s on %d rank%s: a GPT of %.2f million parameters (%" PRId64 " layers, width %" PRId64
           ", %" PRId64 " heads)\n",
           train_mode_name((int64_t)job->mode), job->compiled ? ", compiled," : "", job->n_ranks,
           job->n_ranks == 1 ? "" : "s", (double)job->n_params * 1e-6, job->gpt.n_layers, job->gpt.width,
           job->gpt.n_heads);
    printf("data: %s, %zu tokens; a step: ", job->data->name, job->data->n_tokens);
    print_split(job);
    printf(products[0] ? "; products: %s\n" : "%s\n", products);
    print_hint(job);
    if (job->validation) {
        print_validation(job);
    }
    if (job->schedule.step == job->options->n_steps) {
        printf("already at step %" PRId64 " of %s\n", job->schedule.step, job->options->checkpoint);
    } else if (job->schedule.step > 0) {
        printf("goes on after step %" PRId64 " of %s\n", job->schedule.step, job->options->checkpoint);
    }
    if (job->options->from && job->options->changes->split[0]) {
        printf("%s\n", job->options->changes->split);
    }
    (void)fflush(stdout);
}

void train_report_begin(struct train_report *report, const struct train_job *job)
{
    *report = (struct train_report){.job = job,
                                    .is_shown = job->rank == 0 && !job->options->has_json,
                                    .columns = job->options->live_columns,
                                    .first_step = job->schedule.step,
                                    .last_step = job->schedule.step};
    if (report->is_shown) {
        print_start(job);
    }
    report->begin_ns = clock_now_ns();
    report->last_ns = report->begin_ns;
}

/* Steps ------------------------------------------------------------------------------------------------ */

bool train_report_is_due(const struct train_report *report, int64_t step)
{
    int64_t n_steps = report->job->options->n_steps;
    int64_t apart = n_steps / N_PLAIN_LINES > 0 ? n_steps / N_PLAIN_LINES : 1;
    if (!report->is_shown || step == n_steps || step == report->first_step + 1) {
        return report->is_shown;
    }
    int64_t passed_ns = clock_now_ns() - report->last_ns;
    return report->columns > 0 ? passed_ns >= LIVE_NS : step % apart == 0 || passed_ns >= PLAIN_NS;
}

/* A bar of n_cells, at most BAR_CELLS. */
static void print_bar(char *text, size_t bytes, size_t n_cells, int64_t done, int64_t all)
{
    size_t n_full = (size_t)(done * (int64_t)n_cells / all);
    char cells[BAR_CELLS + 1];
    memset(cells, ' ', sizeof cells);
    memset(cells, '=', n_full);
    if (n_full < n_cells) {
        cells[n_full] = '>';
    }
    (void)snprintf(text, bytes, "[%.*s] ", (int)n_cells, cells);
}

/* For narrow terminals: without the first word, and one space for two. */
static void squeeze(char *text)
{
    const char *from = strncmp(text, "step ", 5) == 0 ? text + 5 : text;
    for (; *from; from++) {
        if (from[0] != ' ' || from[1] != ' ') {
            *text++ = *from;
        }
    }
    *text = '\0';
}

/* "1:05", and from an hour on "2:01:05". */
static void write_duration(int64_t seconds, char *text, size_t bytes)
{
    int64_t minutes = seconds / 60;
    if (minutes < 60) {
        (void)snprintf(text, bytes, "%" PRId64 ":%02" PRId64, minutes, seconds % 60);
    } else {
        (void)snprintf(text, bytes, "%" PRId64 ":%02" PRId64 ":%02" PRId64, minutes / 60, minutes % 60,
                       seconds % 60);
    }
}

/* What a line says, without the bar. */
static void write_line(struct train_report *report, int64_t step, const struct train_loss *loss,
                       double hidden, int64_t now_ns, char *text)
{
    const struct train_job *job = report->job;
    int64_t n_steps = job->options->n_steps;
    double step_s = to_seconds(now_ns - report->last_ns) / (double)(step - report->last_step);
    double mean_s = to_seconds(now_ns - report->begin_ns) / (double)(step - report->first_step);
    double tokens = (double)(train_job_samples(job) * job->options->context);
    char left[32];
    write_duration((int64_t)(mean_s * (double)(n_steps - step) + 0.5), left, sizeof left);
    int n = snprintf(text, LINE_BYTES, "step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  %s left",
                     loss->step, n_steps, loss->value, step_s > 0.0 ? tokens / step_s : 0.0, left);
    if (report->has_val) {
        n += snprintf(text + n, LINE_BYTES - (size_t)n, "  val %.4f", report->val);
    }
    if (hidden >= 0.0) {
        n += snprintf(text + n, LINE_BYTES - (size_t)n, "  comm %.0f%% hidden", 100.0 * hidden);
    }
    /* The most so far: gathered parameters come and go within a step, and a line comes at any point of it. */
    report->memory_mb = fmax(report->memory_mb, train_report_memory_mb());
    (void)snprintf(text + n, LINE_BYTES - (size_t)n, "  %.0f MB/rank", report->memory_mb);
}

/* Ranks write whole lines into a pipe: a live line goes one up and writes over the one before. */
static void print_live(struct train_report *report, int64_t step, char *text)
{
    char bar[BAR_CELLS + 8];
    int64_t columns = report->columns - 4; /* without brackets, a space, and the last column */
    if ((int64_t)strlen(text) + BAR_CELLS > columns) {
        squeeze(text);
    }
    int64_t n_cells = columns - (int64_t)strlen(text);
    n_cells = n_cells > BAR_CELLS ? BAR_CELLS : n_cells < LEAST_CELLS ? LEAST_CELLS : n_cells;
    int64_t n_left = columns > n_cells ? columns - n_cells : 0;
    print_bar(bar, sizeof bar, (size_t)n_cells, step, report->job->options->n_steps);
    printf("%s%s%.*s\n", report->has_live_line ? "\033[1A\033[2K" : "", bar, (int)n_left, text);
    report->has_live_line = true;
}

static void print_line(struct train_report *report, int64_t step, char *text)
{
    if (report->columns > 0) {
        print_live(report, step, text);
    } else {
        printf("%s\n", text);
    }
    (void)fflush(stdout);
}

void train_report_step(struct train_report *report, int64_t step, const struct train_loss *loss,
                       double hidden)
{
    char text[LINE_BYTES];
    int64_t now_ns = clock_now_ns();
    if (!train_report_is_due(report, step)) {
        return;
    }
    write_line(report, step, loss, hidden, now_ns, text);
    print_line(report, step, text);
    report->last_ns = clock_now_ns();
    report->last_step = step;
}

void train_report_validation(struct train_report *report, struct train_result *result, int64_t step,
                             double loss)
{
    bool is_best = result->val_best_step == 0 || loss < result->val_best;
    report->val = loss;
    report->has_val = true;
    result->val_last = loss;
    result->val_last_step = step;
    result->val_best = is_best ? loss : result->val_best;
    result->val_best_step = is_best ? step : result->val_best_step;
}

/* The end ------------------------------------------------------------------------------------------------ */

static bool mode_has_shards(enum train_mode mode)
{
    return mode == TRAIN_FSDP || mode == TRAIN_HSDP;
}

static void print_times(const struct train_result *result, int n_bound)
{
    /* Rounded first, so that what is printed adds up. */
    double step_ms = round(result->step_ms * 100.0) / 100.0;
    double exposed_ms = round(result->exposed_ms * 100.0) / 100.0;
    printf("  %-24s %.2f ms = compute %.2f ms + exposed communication %.2f ms\n", "step (middle half)",
           step_ms, step_ms - exposed_ms, exposed_ms);
    if (result->hidden >= 0.0) {
        printf("  %-24s %.0f%%\n", "communication hidden", 100.0 * result->hidden);
    }
    printf("  %-24s %.0f tokens/s\n", "speed", result->tokens_per_s);
    if (n_bound > 0) {
        printf("  %-24s %d for each rank\n", "processors", n_bound);
    }
    printf("  %-24s %.1f MB a rank at most\n", "memory", result->peak_rss_mb);
}

/* Where ranks keep shards, parameters are whole only while they are gathered; otherwise all the time. */
static void print_whole(const struct train_job *job, const struct train_result *result)
{
    double megabytes = (double)result->unsharded_bytes * 1e-6;
    const char *name = mode_has_shards(job->mode) ? "gathered parameters" : "whole parameters";
    const char *shared = result->is_unsharded_shared ? ", shared by its ranks" : ", a copy in each rank";
    printf("  %-24s %.2f MB on this machine at most%s\n", name, megabytes, job->n_ranks > 1 ? shared : "");
}

static void print_files(const struct train_options *options)
{
    if (options->checkpoint) {
        printf("  %-24s %s/step-%09" PRId64 "\n", "checkpoint", options->checkpoint, options->n_steps);
    }
    if (options->trace) {
        printf("  %-24s %s (shoal trace %s)\n", "trace", options->trace, options->trace);
    }
    if (options->log && !options->has_own_log) {
        printf("  %-24s %s (shoal report %s)\n", "log", options->log, options->log);
    }
    if (options->report) {
        printf("  %-24s %s\n", "report", options->report);
    }
}

void train_report_interrupted(const struct train_report *report, const struct train_result *result)
{
    const struct train_options *options = report->job->options;
    (void)fflush(stdout);
    if (options->checkpoint) {
        fprintf(stderr, "shoal train: interrupted at step %" PRId64 ", saved in %s\n", result->last_step,
                options->checkpoint);
    } else {
        fprintf(stderr,
                "shoal train: interrupted at step %" PRId64 ", not saved (there is no --checkpoint)\n",
                result->last_step);
    }
}

void train_report_lost(const struct train_result *result)
{
    (void)fflush(stdout);
    if (result->lost_step > 0) {
        fprintf(stderr,
                "shoal train: warning: the loss is no finite number since step %" PRId64
                ": its parameters are of no use (a lower --lr, or --clip, may help)\n",
                result->lost_step);
    }
}

void train_report_end(const struct train_report *report, const struct train_result *result)
{
    const struct train_options *options = report->job->options;
    bool has_trained = report->first_step < options->n_steps;
    if (!report->is_shown) {
        return;
    }
    printf("\n");
    if (has_trained) {
        printf("  %-24s %s on %d rank%s, %.1f s\n", "run", train_mode_name((int64_t)report->job->mode),
               report->job->n_ranks, report->job->n_ranks == 1 ? "" : "s", result->seconds);
    }
    printf("  %-24s %.4f at first, %.4f at last\n", "loss", result->loss_first, result->loss_last);
    if (result->val_last_step > 0) {
        printf("  %-24s %.4f at last, %.4f at best (after step %" PRId64 ")\n", "validation loss",
               result->val_last, result->val_best, result->val_best_step);
    }
    if (has_trained) {
        print_times(result, report->job->n_bound);
        print_whole(report->job, result);
        print_files(options);
    }
    printf("  %-24s %016" PRIx64 "\n", "digest of parameters", result->digest);
    (void)fflush(stdout);
}

/* JSON has neither NaN nor infinity. */
static const char *loss_text(double loss, char text[32])
{
    (void)snprintf(text, 32, "%.9g", loss);
    return isfinite(loss) ? text : "null";
}

void train_report_json(const struct train_job *job, const struct train_result *result)
{
    char first[32];
    char last[32];
    printf("{\"mode\": \"%s\", \"ranks\": %d, \"params\": %zu, \"steps\": %" PRId64 ", \"loss_first\": %s, "
           "\"loss_last\": %s, ",
           train_mode_name((int64_t)job->mode), job->n_ranks, job->n_params, job->options->n_steps,
           loss_text(result->loss_first, first), loss_text(result->loss_last, last));
    printf("\"step_ms_median\": %.4f, \"compute_ms_median\": %.4f, \"exposed_comm_ms_median\": %.4f, "
           "\"tokens_per_s\": %.1f, ",
           result->median_step_ms, result->median_compute_ms, result->median_exposed_ms,
           result->tokens_per_s);
    printf("\"step_ms\": %.4f, \"compute_ms\": %.4f, \"exposed_comm_ms\": %.4f, \"hidden_comm_share\": ",
           result->step_ms, result->compute_ms, result->exposed_ms);
    printf(result->hidden < 0.0 ? "null, " : "%.4f, ", result->hidden);
    if (result->val_last_step > 0) {
        printf("\"val_loss_last\": %s, \"val_loss_best\": %s, ", loss_text(result->val_last, first),
               loss_text(result->val_best, last));
    }
    printf("\"peak_rss_mb\": %.2f, \"unsharded_bytes_host\": %" PRIu64 ", \"digest\": \"%016" PRIx64 "\"}\n",
           result->peak_rss_mb, result->unsharded_bytes, result->digest);
    (void)fflush(stdout);
}
