/* SPDX-License-Identifier: MIT */
/* Sums over intervals of waits and of collectives. */
#include "common/overlap.h"

#include <stdlib.h>

static int compare_intervals(const void *x, const void *y)
{
    const struct overlap_interval *a = x;
    const struct overlap_interval *b = y;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

void overlap_unite(struct overlap_intervals *list)
{
    size_t n_kept = 0;
    if (list->n_items > 0) {
        qsort(list->items, list->n_items, sizeof list->items[0], compare_intervals);
    }
    for (size_t i = 0; i < list->n_items; i++) {
        struct overlap_interval *last = n_kept > 0 ? &list->items[n_kept - 1] : NULL;
        if (last && list->items[i].begin <= last->end) {
            last->end = list->items[i].end > last->end ? list->items[i].end : last->end;
        } else {
            list->items[n_kept++] = list->items[i];
        }
    }
    list->n_items = n_kept;
}

/* How much of [begin, end) is in the list, from item *at on, which is moved on: begin only grows from call to call. */
static double measure(const struct overlap_intervals *list, size_t *at, double begin, double end)
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

/* How much of both lists is the same time, between two instants. */
static double measure_both(const struct overlap_intervals *a, const struct overlap_intervals *b, size_t *at_a,
                           size_t *at_b, struct overlap_interval within)
{
    double sum = 0.0;
    while (*at_a < a->n_items && a->items[*at_a].end <= within.begin) {
        (*at_a)++;
    }
    for (size_t i = *at_a; i < a->n_items && a->items[i].begin < within.end; i++) {
        double from = a->items[i].begin > within.begin ? a->items[i].begin : within.begin;
        double to = a->items[i].end < within.end ? a->items[i].end : within.end;
        sum += measure(b, at_b, from, to);
    }
    return sum;
}

struct overlap_sums overlap_sum_up(const struct overlap_intervals *waits,
                                   const struct overlap_intervals *collectives, double begin, double end,
                                   struct overlap_cursor *cursor)
{
    const struct overlap_interval within = {begin, end};
    struct overlap_sums sums = {.exposed = measure(waits, &cursor->at[0], begin, end)};
    sums.hidden = measure(collectives, &cursor->at[1], begin, end) -
                  measure_both(waits, collectives, &cursor->at[2], &cursor->at[3], within);
    return sums;
}

double overlap_share(double exposed, double hidden)
{
    double all = exposed + hidden;
    return all > 0.0 ? hidden / all : -1.0;
}

/* The lengths that are compared; qsort has no other way to reach them. */
static _Thread_local const double *compared;

static int compare_lengths(const void *x, const void *y)
{
    double a = compared[*(const size_t *)x];
    double b = compared[*(const size_t *)y];
    return a < b ? -1 : a > b;
}

size_t overlap_find_middle(const double *lengths, size_t n_lengths, size_t *order, bool *is_middle)
{
    size_t n_dropped = (n_lengths + 1) / 4; /* at each end */
    for (size_t i = 0; i < n_lengths; i++) {
        order[i] = i;
    }
    compared = lengths;
    if (n_lengths > 0) {
        qsort(order, n_lengths, sizeof order[0], compare_lengths);
    }
    for (size_t i = 0; i < n_lengths; i++) {
        is_middle[order[i]] = i >= n_dropped && i < n_lengths - n_dropped;
    }
    return n_lengths - 2 * n_dropped;
}
