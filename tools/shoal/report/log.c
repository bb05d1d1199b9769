/* SPDX-License-Identifier: MIT */
/* Reading a log line by line. Lines that make no sense are counted and left out. */
#include "report/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MAX_RANKS = 1 << 20
};

const struct log_field_row log_fields[LOG_N_FIELDS] = {
    [LOG_LOSS] = {"loss", "mean over all ranks", 0.0},
    [LOG_VAL_LOSS] = {"val_loss", "validation loss after the step, over all ranks", 0.0},
    [LOG_LR] = {"lr", "learning rate, the same on all ranks", 0.0},
    [LOG_NORM] = {"norm", "norm of all gradients before clipping, the same on all ranks", 0.0},
    [LOG_STEP_MS] = {"step_ms", "the step on rank 0: compute_ms + exposed_ms", 0.001},
    [LOG_COMPUTE_MS] = {"compute_ms", "of rank 0", 0.001},
    [LOG_EXPOSED_MS] = {"exposed_ms", "exposed communication of rank 0", 0.001},
    [LOG_HIDDEN_MS] = {"hidden_ms", "communication of rank 0 that compute hid", 0.001},
    [LOG_OUTSIDE_MS] = {"outside_ms", "of rank 0, from the step to the next: validation, checkpoints, lines",
                        0.001},
    [LOG_COMPUTE_MS_MAX] = {"compute_ms_max", "the maximum over ranks", 0.001},
    [LOG_SLOWEST] = {"slowest", "the rank that has this maximum", 1.0},
    [LOG_MEMORY_MB] = {"memory_mb", "the maximum over ranks; shared pages count for their part", 0.001},
};

const struct log_cause_row log_causes[LOG_N_CAUSES] = {
    [LOG_PARAMETERS] = {"parameters", "parameters, or this rank's shards of them"},
    [LOG_GRADIENTS] = {"gradients", "gradients of these"},
    [LOG_OPTIMIZER] = {"optimizer", "state of the optimizer"},
    [LOG_GATHERED] = {"gathered", "gathered parameters, divided by the ranks that share them, at most"},
    [LOG_BUFFERS] = {"buffers", "buffers of collectives, at most"},
    [LOG_REST] = {"rest", "activations, batches, code and libraries"},
};

/* Steps -------------------------------------------------------------------------------------------------- */

static bool make_room(struct log *log)
{
    if (log->n_steps < log->capacity) {
        return true;
    }
    size_t capacity = log->capacity == 0 ? 1024 : 2 * log->capacity;
    int64_t *steps = realloc(log->steps, capacity * sizeof steps[0]);
    if (!steps) {
        return false;
    }
    log->steps = steps;
    for (int i = 0; i < LOG_N_FIELDS; i++) {
        double *values = realloc(log->values[i], capacity * sizeof values[0]);
        if (!values) {
            return false;
        }
        log->values[i] = values;
    }
    log->capacity = capacity;
    return true;
}

/* Drops what was told of steps after this one. */
static void overtake(struct log *log, int64_t step)
{
    while (log->n_steps > 0 && log->steps[log->n_steps - 1] > step) {
        log->n_steps--;
        log->n_overtaken++;
    }
    for (size_t i = json_array_size(log->notes); i > 0; i--) {
        const json_t *note = json_array_get(log->notes, i - 1);
        const json_t *to = json_object_get(note, json_object_get(note, "to") ? "to" : "step");
        if (json_number_value(to) <= (double)step) {
            break; /* they are in order */
        }
        (void)json_array_remove(log->notes, i - 1);
    }
}

static double number_of(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static bool add_step(struct log *log, const json_t *line)
{
    int64_t step = (int64_t)json_integer_value(json_object_get(line, "step"));
    if (step < 1) {
        log->n_damaged++;
        return true;
    }
    if (log->n_steps > 0 && step <= log->steps[log->n_steps - 1]) {
        overtake(log, step - 1);
    }
    if (!make_room(log)) {
        return false;
    }
    for (int i = 0; i < LOG_N_FIELDS; i++) {
        log->values[i][log->n_steps] = number_of(line, log_fields[i].name);
    }
    log->steps[log->n_steps++] = step;
    return true;
}

int64_t log_find(const struct log *log, int64_t step)
{
    size_t low = 0;
    size_t high = log->n_steps;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        bool is_before = log->steps[middle] < step;
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    return low < log->n_steps && log->steps[low] == step ? (int64_t)low : -1;
}

bool log_is_first_of_host(const struct log *log, size_t rank)
{
    for (size_t i = 0; i < rank; i++) {
        if (strcmp(log->ranks[i].host, log->ranks[rank].host) == 0) {
            return false;
        }
    }
    return true;
}

/* Other lines -------------------------------------------------------------------------------------------- */

static const char *beginning_of(const json_t *run)
{
    const char *began = json_string_value(json_object_get(run, "began"));
    return began ? began : "";
}

/* Whether the run does not go on with the one before: logs were written into one file, one behind the other. */
static bool is_another(const struct log *log, const json_t *line)
{
    const char *began = beginning_of(line);
    const char *before = beginning_of(log->run);
    return began[0] && before[0] && strcmp(began, before) != 0;
}

/* Drops what was told of all runs before. */
static void begin_again(struct log *log)
{
    overtake(log, 0);
    log->n_others += log->n_overtaken;
    log->n_overtaken = 0;
    (void)json_array_clear(log->ids);
    (void)json_array_clear(log->notes);
    log->n_runs = 0;
}

static bool add_run(struct log *log, json_t *line)
{
    if (is_another(log, line)) {
        begin_again(log);
    }
    int64_t after = (int64_t)json_integer_value(json_object_get(line, "after"));
    int64_t *resumed = realloc(log->resumed, (log->n_runs + 1) * sizeof resumed[0]);
    if (!resumed) {
        return false;
    }
    log->resumed = resumed;
    overtake(log, after);
    log->resumed[log->n_runs++] = after;
    const char *id = json_string_value(json_object_get(line, "id"));
    if (id && json_array_append_new(log->ids, json_string(id)) != 0) {
        return false;
    }
    json_decref(log->run);
    log->run = json_incref(line);
    json_decref(log->end);
    log->end = NULL;
    return true;
}

bool log_has_run(const struct log *log, const char *id)
{
    size_t n_ids = json_array_size(log->ids);
    for (size_t i = 0; i < n_ids; i++) {
        if (strcmp(json_string_value(json_array_get(log->ids, i)), id) == 0) {
            return true;
        }
    }
    return n_ids < log->n_runs || id[0] == '\0';
}

static bool add_line(struct log *log, json_t *line)
{
    const char *type = json_string_value(json_object_get(line, "type"));
    if (json_is_integer(json_object_get(line, "step")) && !type) {
        return add_step(log, line);
    }
    if (!type || (!log->run && strcmp(type, "run") != 0)) {
        log->n_damaged++;
        return true;
    }
    if (strcmp(type, "run") == 0) {
        return add_run(log, line);
    }
    if (strcmp(type, "end") == 0) {
        json_decref(log->end);
        log->end = json_incref(line);
    }
    return json_array_append(log->notes, line) == 0;
}

/* What is told of ranks ---------------------------------------------------------------------------------- */

static bool make_ranks(struct log *log)
{
    const json_t *hosts = json_object_get(log->run, "hosts");
    log->n_ranks = json_array_size(hosts);
    if (log->n_ranks > MAX_RANKS) {
        log->n_ranks = 0;
    }
    log->ranks = calloc(log->n_ranks + 1, sizeof log->ranks[0]);
    for (size_t i = 0; log->ranks && i < log->n_ranks; i++) {
        const char *host = json_string_value(json_array_get(hosts, i));
        (void)snprintf(log->ranks[i].host, sizeof log->ranks[i].host, "%s", host ? host : "");
    }
    return log->ranks != NULL;
}

static double item_of(const json_t *note, const char *name, size_t index)
{
    const json_t *value = json_array_get(json_object_get(note, name), index);
    return json_is_number(value) ? json_number_value(value) : 0.0;
}

static void add_times(struct log_rank *rank, const json_t *note, size_t index, double n_steps)
{
    double memory_mb = item_of(note, "memory_mb", index);
    rank->step_ms += item_of(note, "step_ms", index) * n_steps;
    rank->exposed_ms += item_of(note, "exposed_ms", index) * n_steps;
    rank->hidden_ms += item_of(note, "hidden_ms", index) * n_steps;
    rank->memory_mb = memory_mb > rank->memory_mb ? memory_mb : rank->memory_mb;
}

/* Runs on other numbers of ranks are told by lines with other numbers of items, which are left out. */
static void sum_up_ranks(struct log *log)
{
    double n_all = 0.0;
    for (size_t i = 0; i < json_array_size(log->notes); i++) {
        const json_t *note = json_array_get(log->notes, i);
        bool has_times = json_array_size(json_object_get(note, "step_ms")) == log->n_ranks;
        bool has_causes = json_array_size(json_object_get(note, log_causes[0].name)) == log->n_ranks;
        double n_steps = number_of(note, "to") - number_of(note, "after");
        if (has_times && n_steps > 0.0) {
            n_all += n_steps;
        }
        for (size_t k = 0; k < log->n_ranks; k++) {
            if (has_times && n_steps > 0.0) {
                add_times(&log->ranks[k], note, k, n_steps);
            }
            for (int cause = 0; has_causes && cause < LOG_N_CAUSES; cause++) {
                log->ranks[k].causes_mb[cause] = item_of(note, log_causes[cause].name, k);
            }
        }
        log->has_causes = log->has_causes || (has_causes && log->n_ranks > 0);
    }
    log->has_ranks = n_all > 0.0 && log->n_ranks > 0;
    for (size_t k = 0; log->has_ranks && k < log->n_ranks; k++) {
        log->ranks[k].step_ms /= n_all;
        log->ranks[k].exposed_ms /= n_all;
        log->ranks[k].hidden_ms /= n_all;
    }
}

/* What the end of the run says of each rank takes the place of means over all steps. */
static void take_means(struct log *log)
{
    const json_t *means = json_object_get(log->end, "ranks");
    if (log->n_ranks == 0 || json_array_size(json_object_get(means, "step_ms")) != log->n_ranks) {
        return;
    }
    for (size_t k = 0; k < log->n_ranks; k++) {
        log->ranks[k].step_ms = item_of(means, "step_ms", k);
        log->ranks[k].exposed_ms = item_of(means, "exposed_ms", k);
        log->ranks[k].hidden_ms = item_of(means, "hidden_ms", k);
    }
    log->has_ranks = true;
    log->has_middle = true;
}

/* The file ----------------------------------------------------------------------------------------------- */

/* The line "step": 5 of "end" and "memory" is a number of steps, too, so lines are told apart by their type. */
static bool read_lines(struct log *log, FILE *file)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool is_good = true;
    while (is_good && (length = getline(&text, &capacity, file)) > 0) {
        bool is_whole = text[length - 1] == '\n';
        json_t *line = is_whole ? json_loadb(text, (size_t)length, 0, NULL) : NULL;
        if (json_is_object(line)) {
            is_good = add_line(log, line);
        } else if (length > 1) {
            log->n_damaged++;
        }
        json_decref(line);
    }
    free(text);
    return is_good;
}

static FILE *open_log(const char *command, const char *path)
{
    struct stat about;
    FILE *file = fopen(path, "re");
    if (file && fstat(fileno(file), &about) == 0 && S_ISDIR(about.st_mode)) {
        (void)fclose(file);
        file = NULL;
        errno = EISDIR;
    }
    if (!file) {
        fprintf(stderr, "%s: %s: %s\n", command, path, strerror(errno));
    }
    return file;
}

/* *is_known_out: the line is about a run and says how that began. Returns whether it began with this id. */
static bool has_begun(const char *text, size_t length, const char *began, bool *is_known_out)
{
    bool is_run = strncmp(text, LOG_BEGIN, strlen(LOG_BEGIN)) == 0;
    json_t *line = is_run ? json_loadb(text, length, 0, NULL) : NULL;
    const char *found = json_string_value(json_object_get(line, "began"));
    *is_known_out = found && found[0] != '\0';
    bool is_same = *is_known_out && strcmp(found, began) == 0;
    json_decref(line);
    return is_same;
}

bool log_may_go_on(const char *path, const char *began)
{
    char *text = NULL;
    size_t capacity = 0;
    bool is_same = false;
    bool has_other = false;
    ssize_t length;
    FILE *file = began[0] != '\0' ? fopen(path, "re") : NULL;
    while (file && !is_same && (length = getline(&text, &capacity, file)) > 0) {
        bool is_known = false;
        is_same = has_begun(text, (size_t)length, began, &is_known);
        has_other = has_other || (is_known && !is_same);
    }
    free(text);
    if (file) {
        (void)fclose(file);
    }
    return is_same || !has_other;
}

/* False, after a message, if it is no log or of a version that is not known. */
static bool check(const char *command, const char *path, const struct log *log)
{
    json_int_t version = json_integer_value(json_object_get(log->run, "shoal_log"));
    if (!log->run || version < 1) {
        fprintf(stderr, "%s: %s is no log of shoal train: it has no line {\"shoal_log\":...\n", command,
                path);
        return false;
    }
    if (version > LOG_VERSION) {
        fprintf(stderr, "%s: %s has version %lld of the format; this program knows %d\n", command, path,
                (long long)version, LOG_VERSION);
        return false;
    }
    return true;
}

bool log_read(const char *command, const char *path, struct log *log)
{
    *log = (struct log){.notes = json_array(), .ids = json_array()};
    FILE *file = open_log(command, path);
    if (!file) {
        return false;
    }
    bool is_good = log->notes && log->ids && read_lines(log, file);
    (void)fclose(file);
    if (is_good && !check(command, path, log)) {
        return false;
    }
    is_good = is_good && make_ranks(log);
    if (!is_good) {
        fprintf(stderr, "%s: %s: there is no memory for the log\n", command, path);
        return false;
    }
    sum_up_ranks(log);
    take_means(log);
    return true;
}

void log_free(struct log *log)
{
    json_decref(log->run);
    json_decref(log->end);
    json_decref(log->notes);
    json_decref(log->ids);
    free(log->steps);
    for (int i = 0; i < LOG_N_FIELDS; i++) {
        free(log->values[i]);
    }
    free(log->ranks);
    free(log->resumed);
    *log = (struct log){0};
}
