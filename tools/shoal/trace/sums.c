/* SPDX-License-Identifier: MIT */
/* Computes what became of each step (common/overlap.h), from the waits and collectives of a trace. */
#include "trace/trace.h"
#include "common/overlap.h"
#include "common/tool.h"

#include <stdio.h>
#include <stdlib.h>

/* Those of a rank: collectives on any track, or waits on one. */
static bool collect(const struct trace *trace, size_t first, size_t end, enum trace_class class,
                    int64_t track, struct overlap_intervals *list)
{
    *list = (struct overlap_intervals){.items = calloc(end - first + 1, sizeof list->items[0])};
    if (!list->items) {
        fprintf(stderr, "%s: there is no memory for the sums\n", tool_name());
        return false;
    }
    for (size_t i = first; i < end; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->class == class && (class == CLASS_COLLECTIVE || span->track == track)) {
            double begin = class == CLASS_COLLECTIVE ? span->end - span->carried : span->begin;
            list->items[list->n_items++] = (struct overlap_interval){.begin = begin, .end = span->end};
        }
    }
    overlap_unite(list);
    return true;
}

static void sum_steps(struct trace_step *steps, size_t n_steps, const struct overlap_intervals *waits,
                      const struct overlap_intervals *collectives)
{
    struct overlap_cursor cursor = {{0}};
    for (size_t i = 0; i < n_steps; i++) {
        struct overlap_sums sums = overlap_sum_up(waits, collectives, steps[i].begin, steps[i].end, &cursor);
        steps[i].exposed = sums.exposed;
        steps[i].hidden = sums.hidden;
    }
}

/*
 * Chooses the steps of a rank that tables count. A last step without an end extends to the rank's last event, which need
 * not belong to that step, so it counts only if it is the only one.
 */
static bool choose_steps(struct trace_step *steps, size_t n_steps)
{
    size_t n_whole = n_steps > 1 && steps[n_steps - 1].is_open ? n_steps - 1 : n_steps;
    double *lengths = calloc(n_steps, sizeof *lengths);
    size_t *order = calloc(n_steps, sizeof *order);
    bool *is_middle = calloc(n_steps, sizeof *is_middle);
    bool is_good = lengths && order && is_middle;
    for (size_t i = 0; is_good && i < n_steps; i++) {
        lengths[i] = steps[i].end - steps[i].begin;
    }
    if (is_good) {
        (void)overlap_find_middle(lengths, n_whole, order, is_middle);
    } else {
        fprintf(stderr, "%s: there is no memory for the sums\n", tool_name());
    }
    for (size_t i = 0; is_good && i < n_steps; i++) {
        steps[i].is_middle = is_middle[i];
    }
    free(lengths);
    free(order);
    free(is_middle);
    return is_good;
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
        struct overlap_intervals waits = {0};
        struct overlap_intervals collectives = {0};
        is_good = collect(trace, first_span, end_span, CLASS_WAIT, trace->steps[first].track, &waits) &&
                  collect(trace, first_span, end_span, CLASS_COLLECTIVE, 0, &collectives);
        if (is_good) {
            sum_steps(&trace->steps[first], n_steps, &waits, &collectives);
            is_good = choose_steps(&trace->steps[first], n_steps);
        }
        free(waits.items);
        free(collectives.items);
        first += n_steps;
    }
    return is_good;
}
