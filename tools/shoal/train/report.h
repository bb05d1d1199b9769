/* SPDX-License-Identifier: MIT */
/* What `shoal train` shows on rank 0: one live line on a terminal, plain lines otherwise, a summary, a line of JSON. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include "train/job.h"

/* What came of a run. */
struct train_result {
    double loss_first;
    double loss_last;
    int64_t lost_step; /* since which losses are no numbers; 0 if the last one is a number */
    /* Means over the middle half of the steps and over ranks, in milliseconds: compute + exposed = step. */
    double step_ms;
    double compute_ms;
    double exposed_ms;
    double hidden; /* share of communication, 0 to 1; less than 0 if there was none */
    /* Medians over steps: of the step that of the slowest rank, of the others the mean over ranks. */
    double median_step_ms;
    double median_compute_ms;
    double median_exposed_ms;
    double tokens_per_s; /* of all ranks, by the median step */
    /* The validation loss, after which steps; 0 if there was none. */
    double val_last;
    double val_best;
    int64_t val_last_step;
    int64_t val_best_step;
    double peak_rss_mb;       /* of the rank that has most */
    uint64_t unsharded_bytes; /* of whole parameters on this host, at most */
    bool is_unsharded_shared; /* by the ranks of this host; otherwise each has a copy */
    uint64_t digest;
    uint64_t verify_digest; /* after the steps that --verify repeats */
    double seconds;
    int64_t last_step; /* that was done */
    int signal;        /* that ended the run; 0 if none did */
};

/* A loss, and the step that it is of: on its way from other ranks it may be one behind. */
struct train_loss {
    int64_t step;
    double value;
};

struct train_report {
    const struct train_job *job;
    bool is_shown;      /* lines are wanted here */
    bool has_live_line; /* to be written over */
    int64_t columns;    /* of a live line; 0 means plain lines */
    int64_t first_step;
    int64_t begin_ns;
    int64_t last_ns; /* of the last line */
    int64_t last_step;
    double memory_mb; /* the most that lines have said */
    double val;       /* the newest validation loss */
    bool has_val;
};

void train_report_begin(struct train_report *report, const struct train_job *job);
/* After a step, when `step` of them are done: whether a line is due here. */
bool train_report_is_due(const struct train_report *report, int64_t step);
/* The line, if it is due. It has the number of the step that the loss is of; times are those of all `step`. hidden: the
   share of communication since the last line, less than 0 if there was none. */
void train_report_step(struct train_report *report, int64_t step, const struct train_loss *loss,
                       double hidden);
/* Notes a validation loss, for lines and for the result. */
void train_report_validation(struct train_report *report, struct train_result *result, int64_t step,
                             double loss);
/* A run that a signal has ended: after which step, and where it is saved. On standard error. */
void train_report_interrupted(const struct train_report *report, const struct train_result *result);
void train_report_end(const struct train_report *report, const struct train_result *result);
/* A run whose losses became infinite or NaN: since when. On standard error; nothing if they did not. */
void train_report_lost(const struct train_result *result);
void train_report_json(const struct train_job *job, const struct train_result *result);
/* Returns the resident memory of this process in MB, of which shared pages count for their part; 0 if it is not
   known. */
double train_report_memory_mb(void);

#endif
