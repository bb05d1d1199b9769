/* SPDX-License-Identifier: MIT */
/*
 * The log of `shoal train --log`, version 1: lines of JSON. train/log.c writes it, and this reads it.
 *
 *   {"shoal_log":1,"type":"run","after":0,...}  a run begins, or goes on after so many steps: its id, which its trace
 *                                               has as "run"; that of the run with
 *                                               which it began ("began"); version, time, the path of the trace, configuration, the
 *                                               host of each rank, the meaning of each field
 *   {"step":1,"loss":5.4,...}                   a step; log_fields has the fields. Fields that a step does not have,
 *                                               and numbers that are not finite, are null or not there
 *   {"type":"ranks","after":0,"to":20,...}      for each rank means over these steps; of memory the most
 *   {"type":"memory","step":20,...}             for each rank, MB by cause (log_causes)
 *   {"type":"end","digest":"...",...}           the run has ended well, or by a signal, which is there then instead of
 *                                               the digest; "lost_step", if losses are no numbers since then; means over the middle half of its steps, of all ranks and
 *                                               in "ranks" of each
 *
 * A run that goes on overtakes lines of later steps that are there already: a reader drops them.
 */
#ifndef REPORT_LOG_H
#define REPORT_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_VERSION 1
#define LOG_BEGIN "{\"shoal_log\":"

enum log_field {
    LOG_LOSS,
    LOG_VAL_LOSS,
    LOG_LR,
    LOG_NORM,
    LOG_STEP_MS,
    LOG_COMPUTE_MS,
    LOG_EXPOSED_MS,
    LOG_HIDDEN_MS,
    LOG_OUTSIDE_MS,
    LOG_COMPUTE_MS_MAX,
    LOG_SLOWEST,
    LOG_MEMORY_MB,
    LOG_N_FIELDS
};

extern const struct log_field_row {
    const char *name;
    const char *meaning; /* also: of which rank it is */
    double scale;        /* values are whole multiples of it; 0 if they are any numbers */
} log_fields[LOG_N_FIELDS];

enum log_cause {
    LOG_PARAMETERS,
    LOG_GRADIENTS,
    LOG_OPTIMIZER,
    LOG_GATHERED,
    LOG_BUFFERS,
    LOG_REST,
    LOG_N_CAUSES
};

extern const struct log_cause_row {
    const char *name;
    const char *meaning;
} log_causes[LOG_N_CAUSES];

/* What ranks did over all steps that are there. */
struct log_rank {
    char host[64];
    double step_ms; /* means */
    double exposed_ms;
    double hidden_ms;
    double memory_mb; /* the most */
    double causes_mb[LOG_N_CAUSES];
};

struct log {
    json_t *run; /* the last line about a run */
    json_t *end; /* NULL if there is none */
    json_t *ids; /* of all runs that say theirs */
    int64_t *steps;
    double *values[LOG_N_FIELDS]; /* of each step; NAN where there is none */
    size_t n_steps;
    size_t capacity;
    struct log_rank *ranks;
    size_t n_ranks;
    bool has_ranks;   /* times of ranks are known */
    bool has_middle;  /* and are of the middle half of the last run's steps */
    bool has_causes;  /* memory by cause is known */
    size_t n_runs;    /* that went on, the first one included */
    int64_t *resumed; /* after which steps they began, n_runs of them */
    size_t n_others;  /* lines of steps of runs that began before, and that the last one does not continue */
    size_t n_overtaken; /* lines of steps that a later run repeated */
    size_t n_damaged;   /* lines that are no JSON, or not of this log */
    /* Lines that later ones may overtake; only while the log is read. */
    json_t *notes;
};

/* Says on standard error what is wrong with the file, beginning with `command`. Free it in any case. */
bool log_read(const char *command, const char *path, struct log *log);
void log_free(struct log *log);

/* Whether a trace with this id (struct trace) may be of one of the runs: also if either says nothing. */
bool log_has_run(const struct log *log, const char *id);

/* Whether the run that began with this id may go on in the log: also if either does not say how it began, and if the file
   cannot be read. */
bool log_may_go_on(const char *path, const char *began);

/* The index of a step; -1 if it is not there. */
int64_t log_find(const struct log *log, int64_t step);

/* Whether no rank before this one is on the same host. */
bool log_is_first_of_host(const struct log *log, size_t rank);

#endif
