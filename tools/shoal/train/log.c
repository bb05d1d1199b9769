/* SPDX-License-Identifier: MIT */
/* Lines of the log. Those of steps are printed, the others made by jansson, which escapes texts. */
#include "train/log.h"
#include "common/output.h"
#include "train/same.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "base/try.h"
#include "base/write.h"
#include "report/log.h"
#include "shoal/group.h"
#include "shoal/version.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RANKS_NS 2000000000 /* at least, between two lines about all ranks */

enum {
    HOST_BYTES = 64,
    LINE_BYTES = 640
};

struct train_log {
    int fd;
    const char *name; /* the option that wants it */
    const char *path;
    int n_ranks; /* of which there are times: in mode none rank 0 alone */
    char *hosts; /* HOST_BYTES for each rank */
    /* Sums of slots since the last line about all ranks. */
    double *sums;
    int64_t n_summed;
    int64_t last_step;
    int64_t ranks_ns; /* when that line was written */
    double *means;    /* N_SLOTS of each rank, over the middle half of its steps; at the end of the run */
    bool has_means;
    char failure[ERROR_TEXT_BYTES];
};

/* Writing ------------------------------------------------------------------------------------------------ */

static void put(struct train_log *log, const char *text, size_t n_bytes)
{
    if (log->failure[0] != '\0') {
        return;
    }
    int code = write_all(log->fd, text, n_bytes);
    if (code != 0) {
        (void)snprintf(log->failure, sizeof log->failure, "%s: %s: a line could not be written: %s",
                       log->name, log->path, error_errno_text(code));
    }
}

/* Takes the object. */
static void put_json(struct train_log *log, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    size_t length = text ? strlen(text) : 0;
    json_decref(line);
    char *whole = text ? realloc(text, length + 2) : NULL;
    if (!whole) {
        free(text);
        (void)snprintf(log->failure, sizeof log->failure, "%s: %s: there is no memory for a line", log->name,
                       log->path);
        return;
    }
    whole[length] = '\n';
    put(log, whole, length + 1);
    free(whole);
}

static json_t *make_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* A text of the system or the user: what is not UTF-8 becomes '?'. */
static json_t *make_text(const char *text)
{
    json_t *made = text ? json_string(text) : json_null();
    char copy[PATH_MAX];
    if (made) {
        return made;
    }
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy; *at; at++) {
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    }
    return json_string(copy);
}

/* The first line ----------------------------------------------------------------------------------------- */

static json_t *make_config(const struct train_job *job)
{
    const struct train_options *options = job->options;
    json_t *config =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:I, "
                  "s:I, s:b, s:s}",
                  "mode", train_mode_name((int64_t)job->mode), "ranks", (json_int_t)job->n_ranks, "replicas",
                  (json_int_t)job->n_replicas, "parameters", (json_int_t)job->n_params, "layers",
                  (json_int_t)job->gpt.n_layers, "width", (json_int_t)job->gpt.width, "heads",
                  (json_int_t)job->gpt.n_heads, "context", (json_int_t)options->context, "vocabulary",
                  (json_int_t)job->gpt.vocabulary, "batch", (json_int_t)options->batch, "accumulate",
                  (json_int_t)job->n_micro, "steps", (json_int_t)options->n_steps, "lr", options->lr,
                  "warmup", (json_int_t)options->n_warmup, "clip", options->clip, "dropout", options->dropout,
                  "seed", (json_int_t)options->seed, "threads", (json_int_t)options->n_threads, "compile",
                  (int)options->compiles, "dtype", options->dtype == TRAIN_BF16 ? "bf16" : "f32");
    if (config) {
        (void)json_object_set_new(config, "samples_per_step", json_integer(train_job_samples(job)));
        (void)json_object_set_new(config, "data", make_text(job->data->name));
        (void)json_object_set_new(config, "tokens", json_integer((json_int_t)job->data->n_tokens));
    }
    if (config && options->val) {
        (void)json_object_set_new(config, "val", make_text(options->val));
        (void)json_object_set_new(config, "val_every", json_integer(options->val_every));
    }
    if (config && options->transport) {
        (void)json_object_set_new(config, "transport", make_text(options->transport));
    }
    return config;
}

static json_t *make_fields(void)
{
    json_t *fields = json_object();
    for (size_t i = 0; fields && i < LOG_N_FIELDS; i++) {
        (void)json_object_set_new(fields, log_fields[i].name, json_string(log_fields[i].meaning));
    }
    return fields;
}

/* Where the trace is, for `shoal report`; a path with %p, %h or %r stands for several. The file is there already. */
static json_t *make_trace(const char *path)
{
    char absolute[PATH_MAX];
    bool is_one = path && !strchr(path, '%') && realpath(path, absolute);
    return make_text(is_one ? absolute : NULL);
}

static void put_header(struct train_log *log, const struct train_job *job)
{
    char now[32] = "";
    time_t seconds = time(NULL);
    struct tm parts;
    if (gmtime_r(&seconds, &parts)) {
        (void)strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    json_t *hosts = json_array();
    for (int i = 0; hosts && i < log->n_ranks; i++) {
        (void)json_array_append_new(hosts, make_text(log->hosts + (size_t)i * HOST_BYTES));
    }
    char id[24];
    (void)snprintf(id, sizeof id, "%016" PRIx64, trace_run());
    put_json(log,
             json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:o, s:o, s:o}", "shoal_log", LOG_VERSION,
                       "type", "run", "id", id, "began", job->run, "version", shoal_version(), "time", now,
                       "trace", make_trace(job->options->trace), "after", (json_int_t)job->schedule.step,
                       "config", make_config(job), "hosts", hosts, "fields", make_fields()));
}

/* Opening ------------------------------------------------------------------------------------------------ */

static shoal_status fail_open(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "--log: %s: %s", path, error_errno_text(errno));
}

/* Whether the page can be written when the run is over. */
static shoal_status check_report(const struct train_options *options)
{
    shoal_status status = options->report ? tool_output_check(options->report) : SHOAL_OK;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--report");
}

/* A log of an earlier run is replaced, or, by a run that goes on, continued. Another file is left alone. */
static shoal_status open_file(struct train_log *log, const struct train_job *job)
{
    const char *path = job->options->log;
    bool is_continued = job->schedule.step > 0;
    char begin[sizeof LOG_BEGIN] = "";
    char last = '\n';
    struct stat about;
    log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (log->fd < 0 && errno == EACCES) {
        log->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
    }
    if (log->fd < 0 || fstat(log->fd, &about) != 0) {
        return fail_open(path);
    }
    if (!S_ISREG(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "--log: %s is not a regular file", path);
    }
    if (about.st_size > 0 &&
        (pread(log->fd, begin, sizeof begin - 1, 0) < 0 || pread(log->fd, &last, 1, about.st_size - 1) < 0)) {
        return fail_open(path);
    }
    if (about.st_size > 0 && strcmp(begin, LOG_BEGIN) != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "--log: %s is there and is no log of shoal train: it is left alone", path);
    }
    if (is_continued && about.st_size > 0 && !log_may_go_on(path, job->run)) {
        return error_set(
            SHOAL_ERR_STATE,
            "--log: %s is of another run than the one in %s: name the log of that, or another file", path,
            job->options->checkpoint);
    }
    if (!is_continued && write_resize(log->fd, 0) != 0) {
        return fail_open(path);
    }
    if (is_continued && last != '\n') {
        put(log, "\n", 1);
    }
    return SHOAL_OK;
}

static int count_ranks(const struct train_job *job)
{
    return job->mode == TRAIN_NONE ? 1 : job->n_ranks;
}

static shoal_status make_log(const struct train_job *job, struct train_log **log_out)
{
    struct train_log *log = calloc(1, sizeof *log);
    size_t n_ranks = (size_t)count_ranks(job);
    *log_out = log;
    if (log) {
        log->fd = -1;
        log->name = job->options->has_own_log ? "--report" : "--log";
        log->path = job->options->log;
        log->n_ranks = count_ranks(job);
        log->last_step = job->schedule.step;
        log->ranks_ns = clock_now_ns();
        log->hosts = calloc(n_ranks, HOST_BYTES);
        log->sums = calloc(n_ranks * N_SLOTS, sizeof log->sums[0]);
        log->means = calloc(n_ranks * N_SLOTS, sizeof log->means[0]);
    }
    return log && log->hosts && log->sums && log->means
               ? SHOAL_OK
               : error_set(SHOAL_ERR_NO_MEMORY, "no memory for the log");
}

static shoal_status gather_hosts(struct train_job *job, struct train_log *log)
{
    char host[HOST_BYTES] = "";
    (void)gethostname(host, sizeof host - 1);
    if (count_ranks(job) == 1) {
        if (log) {
            memcpy(log->hosts, host, sizeof host);
        }
        return SHOAL_OK;
    }
    return shoal_group_gather(job->group, host, log ? log->hosts : NULL, HOST_BYTES, SHOAL_U8, 0);
}

shoal_status train_log_open(struct train_job *job, struct train_log **log_out)
{
    struct train_log *log = NULL;
    *log_out = NULL;
    if (!job->options->log) {
        return SHOAL_OK;
    }
    shoal_status status = job->rank == 0 ? check_report(job->options) : SHOAL_OK;
    if (status == SHOAL_OK && job->rank == 0) {
        status = make_log(job, &log);
    }
    if (status == SHOAL_OK && job->rank == 0) {
        status = open_file(log, job);
    }
    *log_out = log;
    TRY(train_same_status(job, status));
    TRY(gather_hosts(job, log));
    if (log) {
        put_header(log, job);
    }
    return SHOAL_OK;
}

void train_log_free(struct train_log *log)
{
    if (!log) {
        return;
    }
    if (log->fd >= 0) {
        (void)close(log->fd);
    }
    free(log->hosts);
    free(log->sums);
    free(log->means);
    free(log);
}

const char *train_log_failure(const struct train_log *log)
{
    return log ? log->failure : "";
}

/* Steps -------------------------------------------------------------------------------------------------- */

/* A name and a number; JSON has neither NaN nor infinity. */
static size_t add_text(char *line, size_t at, const char *name, const char *text)
{
    int n = snprintf(line + at, LINE_BYTES - at, ",\"%s\":%s", name, text);
    return at + (size_t)(n > 0 ? n : 0);
}

static size_t add_number(char *line, size_t at, const char *name, double value, int n_digits)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.*g", n_digits, value);
    return add_text(line, at, name, isfinite(value) ? text : "null");
}

/* Milliseconds or MB, to a thousandth. */
static size_t add_amount(char *line, size_t at, enum log_field field, double value)
{
    char text[400];
    (void)snprintf(text, sizeof text, "%.3f", value);
    return add_text(line, at, log_fields[field].name, isfinite(value) ? text : "null");
}

/* Rounded to what lines say, so that they add up. */
static double round_ms(double ms)
{
    return round(ms * 1e3) * 1e-3;
}

static double compute_of(const double *slots)
{
    return round_ms(slots[SLOT_STEP]) - round_ms(slots[SLOT_EXPOSED]);
}

/* The rank that computed longest. */
static int find_slowest(const struct train_log *log, const double *slots)
{
    int slowest = 0;
    for (int i = 1; i < log->n_ranks; i++) {
        if (compute_of(slots + i * N_SLOTS) > compute_of(slots + slowest * N_SLOTS)) {
            slowest = i;
        }
    }
    return slowest;
}

static double find_most(const struct train_log *log, const double *slots, enum train_slot slot)
{
    double most = 0.0;
    for (int i = 0; i < log->n_ranks; i++) {
        most = fmax(most, slots[i * N_SLOTS + (int)slot]);
    }
    return most;
}

static json_t *list_means(const struct train_log *log, enum train_slot slot)
{
    json_t *list = json_array();
    double divisor = slot == SLOT_MEMORY || log->n_summed == 0 ? 1.0 : (double)log->n_summed;
    for (int i = 0; list && i < log->n_ranks; i++) {
        (void)json_array_append_new(list, make_number(log->sums[i * N_SLOTS + (int)slot] / divisor));
    }
    return list;
}

/* Means of all ranks over the steps since the last such line. */
static void put_ranks(struct train_log *log)
{
    if (log->n_summed == 0) {
        return;
    }
    put_json(log,
             json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "type", "ranks", "after",
                       (json_int_t)(log->last_step - log->n_summed), "to", (json_int_t)log->last_step,
                       "step_ms", list_means(log, SLOT_STEP), "exposed_ms", list_means(log, SLOT_EXPOSED),
                       "hidden_ms", list_means(log, SLOT_HIDDEN), "memory_mb", list_means(log, SLOT_MEMORY)));
    memset(log->sums, 0, (size_t)log->n_ranks * N_SLOTS * sizeof log->sums[0]);
    log->n_summed = 0;
    log->ranks_ns = clock_now_ns();
}

static void add_slots(struct train_log *log, const struct train_log_step *step)
{
    for (int i = 0; i < log->n_ranks * N_SLOTS; i++) {
        bool is_memory = i % N_SLOTS == SLOT_MEMORY;
        log->sums[i] = is_memory ? fmax(log->sums[i], step->slots[i]) : log->sums[i] + step->slots[i];
    }
    log->n_summed++;
    log->last_step = step->step;
    if (clock_now_ns() - log->ranks_ns >= RANKS_NS) {
        put_ranks(log);
    }
}

void train_log_step(struct train_log *log, const struct train_log_step *step)
{
    char line[LINE_BYTES];
    if (!log) {
        return;
    }
    int slowest = find_slowest(log, step->slots);
    size_t at = (size_t)snprintf(line, sizeof line, "{\"step\":%" PRId64, step->step);
    at = add_number(line, at, "loss", step->loss, 9);
    if (step->has_validation) {
        at = add_number(line, at, "val_loss", step->validation, 17);
    }
    at = add_number(line, at, "lr", step->lr, 9);
    at = add_number(line, at, "norm", step->norm < 0.0 ? (double)NAN : step->norm, 9);
    at = add_amount(line, at, LOG_STEP_MS, step->slots[SLOT_STEP]);
    at = add_amount(line, at, LOG_COMPUTE_MS, compute_of(step->slots));
    at = add_amount(line, at, LOG_EXPOSED_MS, step->slots[SLOT_EXPOSED]);
    at = add_amount(line, at, LOG_HIDDEN_MS, step->slots[SLOT_HIDDEN]);
    at = add_amount(line, at, LOG_OUTSIDE_MS, step->outside_ms);
    at = add_amount(line, at, LOG_COMPUTE_MS_MAX, compute_of(step->slots + slowest * N_SLOTS));
    at = add_number(line, at, "slowest", (double)slowest, 9);
    at = add_amount(line, at, LOG_MEMORY_MB, find_most(log, step->slots, SLOT_MEMORY));
    at += (size_t)snprintf(line + at, sizeof line - at, "}\n");
    put(log, line, at);
    add_slots(log, step);
}

/* Memory ------------------------------------------------------------------------------------------------- */

/* Causes, in the order of report/log.h, in bytes; the last is the rest of the process. */
static shoal_status find_causes(const struct train_job *job, double causes[LOG_N_CAUSES])
{
    shoal_fsdp_memory_report report = SHOAL_FSDP_MEMORY_REPORT_INIT;
    double elements = 0.0;
    double sum = 0.0;
    for (size_t i = 0; i < job->n_parameters; i++) {
        elements += (double)shoal_tensor_count(job->parameters[i]);
    }
    double whole = elements * (double)sizeof(float);
    causes[LOG_PARAMETERS] = whole;
    causes[LOG_GRADIENTS] = whole;
    causes[LOG_OPTIMIZER] = 2.0 * whole; /* two moments of AdamW */
    if (job->fsdp) {
        TRY(shoal_fsdp_memory(job->fsdp, &report));
        causes[LOG_PARAMETERS] = (double)report.rank_peak.shards;
        causes[LOG_GRADIENTS] = (double)report.rank_peak.gradients;
        causes[LOG_GATHERED] = (double)report.rank_peak.windows;
        causes[LOG_BUFFERS] = (double)(report.rank_peak.buffers + report.rank_peak.other);
    }
    for (int i = 0; i < LOG_REST; i++) {
        sum += causes[i];
    }
    causes[LOG_REST] = fmax(train_report_memory_mb() * 1048576.0 - sum, 0.0);
    return SHOAL_OK;
}

static json_t *make_memory(const struct train_log *log, const double *causes, int64_t step)
{
    json_t *line = json_pack("{s:s, s:I}", "type", "memory", "step", (json_int_t)step);
    for (int k = 0; line && k < LOG_N_CAUSES; k++) {
        json_t *list = json_array();
        for (int i = 0; list && i < log->n_ranks; i++) {
            (void)json_array_append_new(list, make_number(causes[i * LOG_N_CAUSES + k] / 1048576.0));
        }
        (void)json_object_set_new(line, log_causes[k].name, list);
    }
    return line;
}

shoal_status train_log_memory(struct train_log *log, const struct train_job *job, int64_t step)
{
    double own[LOG_N_CAUSES] = {0};
    double *all = calloc((size_t)job->n_ranks * LOG_N_CAUSES, sizeof *all);
    shoal_status status =
        all ? find_causes(job, own) : error_set(SHOAL_ERR_NO_MEMORY, "no memory for a line of the log");
    if (status == SHOAL_OK && count_ranks(job) > 1) {
        status = shoal_group_gather(job->group, own, all, LOG_N_CAUSES, SHOAL_F64, 0);
    } else if (status == SHOAL_OK) {
        memcpy(all, own, sizeof own);
    }
    if (status == SHOAL_OK && log) {
        put_json(log, make_memory(log, all, step));
    }
    free(all);
    return status;
}

/* The end ------------------------------------------------------------------------------------------------ */

shoal_status train_log_means(struct train_log *log, const struct train_job *job, const double *means)
{
    if (count_ranks(job) > 1) {
        TRY(shoal_group_gather(job->group, means, log ? log->means : NULL, N_SLOTS, SHOAL_F64, 0));
    } else if (log) {
        memcpy(log->means, means, N_SLOTS * sizeof means[0]);
    }
    if (log) {
        log->has_means = true;
    }
    return SHOAL_OK;
}

/* The name of the list, and its number in the log. */
static const struct {
    const char *name;
    enum train_slot slot;
} listed_means[] = {{"step_ms", SLOT_STEP}, {"exposed_ms", SLOT_EXPOSED}, {"hidden_ms", SLOT_HIDDEN}};

static json_t *make_means(const struct train_log *log)
{
    json_t *ranks = json_object();
    for (size_t i = 0; ranks && i < sizeof listed_means / sizeof listed_means[0]; i++) {
        json_t *list = json_array();
        for (int k = 0; list && k < log->n_ranks; k++) {
            (void)json_array_append_new(list,
                                        make_number(log->means[k * N_SLOTS + (int)listed_means[i].slot]));
        }
        (void)json_object_set_new(ranks, listed_means[i].name, list);
    }
    return ranks;
}

void train_log_end(struct train_log *log, const struct train_result *result)
{
    char digest[24];
    if (!log) {
        return;
    }
    put_ranks(log);
    json_t *line = json_pack("{s:s, s:I, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "type", "end", "step",
                             (json_int_t)log->last_step, "seconds", result->seconds, "loss_first",
                             make_number(result->loss_first), "loss_last", make_number(result->loss_last),
                             "step_ms", result->step_ms, "compute_ms", result->compute_ms, "exposed_ms",
                             result->exposed_ms, "hidden_share", result->hidden, "tokens_per_s",
                             result->tokens_per_s, "peak_rss_mb", result->peak_rss_mb);
    (void)snprintf(digest, sizeof digest, "%016" PRIx64, result->digest);
    if (line && log->has_means) {
        (void)json_object_set_new(line, "ranks", make_means(log));
    }
    if (line && result->lost_step > 0) {
        (void)json_object_set_new(line, "lost_step", json_integer(result->lost_step));
    }
    if (line && result->signal != 0) {
        (void)json_object_set_new(line, "signal", json_integer(result->signal));
    } else if (line) {
        (void)json_object_set_new(line, "digest", json_string(digest));
    }
    put_json(log, line);
}
