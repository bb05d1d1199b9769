/* SPDX-License-Identifier: MIT */
/*
 * Computes how much of a step is exposed communication, and how much of the communication is hidden. Exposed is the
 * time in which a rank's thread only waits for a collective, or carries one itself. Collectives that are carried while
 * the thread does not wait are hidden. A collective that was posted and that no thread carries counts as neither,
 * because its progress is not known.
 */
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>

struct interval {
    double begin;
    double end;
};

struct intervals {
    struct interval *items;
    size_t n_items;
};

static int compare_intervals(const void *x, const void *y)
{
    const struct interval *a = x;
    const struct interval *b = y;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Sorted, and those that touch made one. */
static void unite(struct intervals *list)
{
    size_t n_kept = 0;
    if (list->n_items > 0) {
        qsort(list->items, list->n_items, sizeof list->items[0], compare_intervals);
    }
    for (size_t i = 0; i < list->n_items; i++) {
        struct interval *last = n_kept > 0 ? &list->items[n_kept - 1] : NULL;
        if (last && list->items[i].begin <= last->end) {
            last->end = list->items[i].end > last->end ? list->items[i].end : last->end;
        } else {
            list->items[n_kept++] = list->items[i];
        }
    }
    list->n_items = n_kept;
}

/* Those of a rank: collectives on any track, or waits on one. */
static bool collect(const struct trace *trace, size_t first, size_t end, enum trace_class class,
                    int64_t track, struct intervals *list)
{
    *list = (struct intervals){.items = calloc(end - first + 1, sizeof list->items[0])};
    if (!list->items) {
        fputs("shoal trace: there is no memory for the sums\n", stderr);
        return false;
    }
    for (size_t i = first; i < end; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->class == class && (class == CLASS_COLLECTIVE || span->track == track)) {
            double begin = class == CLASS_COLLECTIVE ? span->end - span->carried : span->begin;
            list->items[list->n_items++] = (struct interval){.begin = begin, .end = span->end};
        }
    }
    unite(list);
    return true;
}

/* How much of [begin, end) is in the list, from item *at on, which is moved on: begin only grows from call to call. */
static double measure(const struct intervals *list, size_t *at, double begin, double end)
{
    double sum = 0.0;
    while (*at < list->n_items && list->items[*at].end <= begin) {
        (*at)++;
    }
    for (size_t i = *at; i < list->n_items && list->items[i].begin < end; i++) {
        double from = list->items[i].begin > begin ? list->items[i].begin : begin;
        double to = list->items[i].end < end ? list->items[i].end : end;
        sum += to - from;
    }
    return sum;
}

/* How much of both lists is the same time, in a step. */
static double measure_both(const struct intervals *a, const struct intervals *b, size_t *at_a, size_t *at_b,
                           const struct trace_step *step)
{
    double sum = 0.0;
    while (*at_a < a->n_items && a->items[*at_a].end <= step->begin) {
        (*at_a)++;
    }
    for (size_t i = *at_a; i < a->n_items && a->items[i].begin < step->end; i++) {
        double from = a->items[i].begin > step->begin ? a->items[i].begin : step->begin;
        double to = a->items[i].end < step->end ? a->items[i].end : step->end;
        sum += measure(b, at_b, from, to);
    }
    return sum;
}

static void sum_steps(struct trace_step *steps, size_t n_steps, const struct intervals *waits,
                      const struct intervals *collectives)
{
    size_t at[4] = {0};
    for (size_t i = 0; i < n_steps; i++) {
        struct trace_step *step = &steps[i];
        step->exposed = measure(waits, &at[0], step->begin, step->end);
        step->hidden = measure(collectives, &at[1], step->begin, step->end) -
                       measure_both(waits, collectives, &at[2], &at[3], step);
    }
}

bool trace_sum_up(struct trace *trace)
{
    size_t first_span = 0;
    bool is_good = true;
    for (size_t first = 0; first < trace->n_steps && is_good;) {
        size_t n_steps = 1;
        int rank = trace->steps[first].rank;
        while (first + n_steps < trace->n_steps && trace->steps[first + n_steps].rank == rank) {
            n_steps++;
        }
        while (first_span < trace->n_spans && trace->spans[first_span].rank < rank) {
            first_span++;
        }
        size_t end_span = first_span;
        while (end_span < trace->n_spans && trace->spans[end_span].rank == rank) {
            end_span++;
        }
        struct intervals waits = {0};
        struct intervals collectives = {0};
        is_good = collect(trace, first_span, end_span, CLASS_WAIT, trace->steps[first].track, &waits) &&
                  collect(trace, first_span, end_span, CLASS_COLLECTIVE, 0, &collectives);
        if (is_good) {
            sum_steps(&trace->steps[first], n_steps, &waits, &collectives);
        }
        free(waits.items);
        free(collectives.items);
        first += n_steps;
    }
    return is_good;
}
