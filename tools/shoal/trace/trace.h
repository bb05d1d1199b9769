/* SPDX-License-Identifier: MIT */
/* `shoal trace`: a trace as it was read, what is summed up of it, and the picture of a step. Times are microseconds. */
#ifndef TRACE_TRACE_H
#define TRACE_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum trace_class {
    CLASS_OP,
    CLASS_PHASE, /* modules, backward passes, compiled steps, checkpoints, ranges: what ops and waits happen in */
    CLASS_WAIT,
    CLASS_COLLECTIVE
};

/* What a collective does, for the columns of the table and the colours of the picture. */
enum trace_work {
    WORK_GATHER,
    WORK_REDUCE,
    WORK_OTHER,
    WORK_COUNT
};

struct trace_span {
    int rank;
    int64_t track;
    enum trace_class class;
    enum trace_work work; /* of waits and collectives */
    double begin;
    double end;
    double carried;   /* of a collective: how long a thread was busy with it, at its end */
    const char *name; /* these two belong to the document */
    const char *unit; /* "" for none */
    uint64_t bytes;
};

/* A step of a rank, from its mark to the next. */
struct trace_step {
    int rank;
    int64_t number;
    int64_t track; /* of the thread that marked it */
    double begin;
    double end;
    bool is_last; /* of its rank: ends with the last event, not with a mark */
    /* What became of the time. */
    double exposed;
    double hidden;
};

struct trace_track {
    int rank;
    int64_t track;
    const char *name;
};

/* Spans by rank, track and begin, longer ones first; steps and tracks by rank and number. */
struct trace {
    json_t *document;
    struct trace_span *spans;
    size_t n_spans;
    struct trace_step *steps;
    size_t n_steps;
    struct trace_track *tracks;
    size_t n_tracks;
    int *ranks; /* that have spans */
    size_t n_ranks;
    int *writers; /* ranks that wrote to the file, whether or not they have spans */
    size_t n_writers;
    int64_t n_world_ranks; /* that there should be; 0 if the file does not say */
    uint64_t n_dropped;
    uint64_t n_damaged; /* events that make no sense, and were left out */
    bool is_cut;        /* the file has no end */
    bool has_no_marks;  /* of steps: each rank is one step */
};

/* Says on standard error what is wrong with the file. Free it in any case. */
bool trace_read(const char *path, struct trace *trace_out);
void trace_free(struct trace *trace);

/* Part of an array: [first, end). */
struct trace_part {
    size_t first;
    size_t end;
};

/* The spans of a rank and track, and the steps and the tracks of a rank. */
struct trace_part trace_find_spans(const struct trace *trace, int rank, int64_t track);
struct trace_part trace_find_steps(const struct trace *trace, int rank);
struct trace_part trace_find_tracks(const struct trace *trace, int rank);

/* Fills in exposed and hidden of all steps. */
bool trace_sum_up(struct trace *trace);

/* step: NULL for all of them. */
bool trace_print_table(const struct trace *trace, const char *path, const int64_t *step);
void trace_print_steps(const struct trace *trace);

/* The step whose length is the median of those of the first rank; 0 without steps. */
int64_t trace_median_step(const struct trace *trace);

/* Says on standard error why the file could not be written. */
bool trace_write_svg(const struct trace *trace, int64_t step, const char *path);

#endif
