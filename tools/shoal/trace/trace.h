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
    const char *name; /* these belong to the document */
    const char *category;
    const char *op;   /* of waits and collectives */
    const char *unit; /* "" for none */
    uint64_t bytes;
};

/* A step of a rank, from its mark to its end, or to the next mark if it has none. */
struct trace_step {
    int64_t number;
    int64_t track; /* of the thread that marked it */
    double begin;
    double end;
    /* What became of the time. */
    double exposed;
    double hidden;
    int rank;
    bool is_open;   /* the last of its rank, without an end: it is taken to end with the rank's last event */
    bool is_middle; /* of the middle half of its rank's steps by length, which tables are made of */
};

struct trace_track {
    int rank;
    int64_t track;
    const char *name;
};

/* Where a rank said that its step ends. */
struct trace_end {
    int rank;
    double at;
};

/* Spans by rank, track and begin, longer ones first; steps and tracks by rank and number. */
struct trace {
    json_t *document;
    const char *run; /* which run wrote it, as hexadecimal digits; "" if the file does not say */
    struct trace_span *spans;
    size_t n_spans;
    struct trace_step *steps;
    size_t n_steps;
    struct trace_end *ends; /* by rank and time */
    size_t n_ends;
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

/* The spans of a rank and track, or of a rank; the steps and the tracks of a rank. */
struct trace_part trace_find_spans(const struct trace *trace, int rank, int64_t track);
struct trace_part trace_find_rank_spans(const struct trace *trace, int rank);
struct trace_part trace_find_steps(const struct trace *trace, int rank);
struct trace_part trace_find_tracks(const struct trace *trace, int rank);

/* Fills in exposed, hidden and is_middle of all steps. */
bool trace_sum_up(struct trace *trace);

/* What became of a step, or means over some. Exposed and compute add up to step. */
struct trace_times {
    double step;
    double compute;
    double exposed;
    double hidden;
};
struct trace_times trace_step_times(const struct trace_step *step);

/* Whether a step counts in sums: those of the middle, or, unless `only` is NULL, those of that number. */
bool trace_is_counted(const struct trace *trace, size_t index, const int64_t *only);
/* Means over the steps of a part that count. */
struct trace_times trace_mean_times(const struct trace *trace, struct trace_part part, const int64_t *only);

/* A span belongs to the step of its rank in which it begins. */
bool trace_is_in_step(const struct trace_span *span, const struct trace_step *step);
size_t trace_count_spans(const struct trace *trace, const struct trace_step *step);

/* The communication of a unit, a bucket or a node of a plan: means of a step and rank. */
struct trace_unit {
    const char *unit;
    double exposed[WORK_COUNT];
    double busy; /* of lanes */
    double bytes;
};
double trace_unit_exposed(const struct trace_unit *unit);
/* The most exposed first, over the steps that count. The caller frees the list, which is NULL if memory runs out. */
struct trace_unit *trace_list_units(const struct trace *trace, const int64_t *only, size_t *n_units_out);

/* What the thread that marks steps did, under one name: means of a step and rank. */
struct trace_op {
    const char *name;
    bool is_wait;
    double time;     /* without that of spans inside */
    double backward; /* of it in backward passes */
    double calls;
};
/* The longest first, over the steps that count; "(outside)" is the time in no span. They add up to the step. The caller
   frees the list, which is NULL if memory runs out. */
struct trace_op *trace_list_ops(const struct trace *trace, const int64_t *only, size_t *n_ops_out);

/* step: NULL for all of them. */
bool trace_print_table(const struct trace *trace, const char *path, const int64_t *step);
bool trace_print_ops(const struct trace *trace, const int64_t *step);
void trace_print_steps(const struct trace *trace);

/* The step whose length is the median of those of the first rank; 0 without steps. */
int64_t trace_median_step(const struct trace *trace);

/* Pictures ----------------------------------------------------------------------------------------------- */

enum {
    TRACE_LEVELS = 3,     /* of nesting that a picture shows */
    TRACE_MAX_LEVELS = 12 /* that a page shows */
};

struct trace_window {
    double begin;
    double end;
};
/* From the first begin of the step to its last end, of all ranks. */
struct trace_window trace_step_window(const struct trace *trace, int64_t number);

/* A row of a rank: the spans whose numbers are at [first, end) of the list. */
struct trace_row {
    const char *label; /* "" for further levels of the row above; it belongs to the document, or is static */
    int level;         /* of nesting; -1 if the row has no phases */
    bool has_text;     /* in its boxes */
    size_t first;
    size_t end;
};

struct trace_rows {
    struct trace_row *rows;
    size_t n_rows;
    size_t *spans;
    size_t n_spans;
};

/* The rows of the step's rank, with the spans that are in the window. is_whole: with all levels and threads. Returns
   false if memory runs out. Free them in any case. */
bool trace_list_rows(const struct trace *trace, const struct trace_step *step, struct trace_window window,
                     bool is_whole, struct trace_rows *rows_out);
void trace_rows_free(struct trace_rows *rows);

/* "op", "wait", "gather": the class of a box, by which style sheets choose its colour. */
const char *trace_span_class(const struct trace_span *span, int level);

/* Draws a step. has_style: with colours, for a file of its own. Returns false if memory runs out. */
bool trace_draw_svg(FILE *out, const struct trace *trace, int64_t step, bool has_style);
/* Says on standard error why the file could not be written. */
bool trace_write_svg(const struct trace *trace, int64_t step, const char *path);

#endif
