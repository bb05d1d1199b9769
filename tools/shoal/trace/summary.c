/* SPDX-License-Identifier: MIT */
/* Numbers of a trace, by rank and by unit: for the tables, and for the page of `shoal report`. */
#include "trace/trace.h"

#include <stdlib.h>
#include <string.h>

/* Ranks -------------------------------------------------------------------------------------------------- */

bool trace_is_counted(const struct trace *trace, size_t index, const int64_t *only)
{
    const struct trace_step *step = &trace->steps[index];
    return only ? step->number == *only : step->is_middle;
}

struct trace_times trace_step_times(const struct trace_step *step)
{
    double length = step->end - step->begin;
    return (struct trace_times){
        .step = length, .compute = length - step->exposed, .exposed = step->exposed, .hidden = step->hidden};
}

static void add_times(struct trace_times *sum, const struct trace_times *times)
{
    sum->step += times->step;
    sum->compute += times->compute;
    sum->exposed += times->exposed;
    sum->hidden += times->hidden;
}

static struct trace_times divide_times(const struct trace_times *sum, size_t count)
{
    double divisor = count > 0 ? (double)count : 1.0;
    return (struct trace_times){.step = sum->step / divisor,
                                .compute = sum->compute / divisor,
                                .exposed = sum->exposed / divisor,
                                .hidden = sum->hidden / divisor};
}

struct trace_times trace_mean_times(const struct trace *trace, struct trace_part part, const int64_t *only)
{
    struct trace_times sum = {0};
    size_t count = 0;
    for (size_t i = part.first; i < part.end; i++) {
        if (trace_is_counted(trace, i, only)) {
            struct trace_times times = trace_step_times(&trace->steps[i]);
            add_times(&sum, &times);
            count++;
        }
    }
    return divide_times(&sum, count);
}

/* Spans of a step ---------------------------------------------------------------------------------------- */

bool trace_is_in_step(const struct trace_span *span, const struct trace_step *step)
{
    return span->rank == step->rank && span->begin >= step->begin && span->begin < step->end;
}

size_t trace_count_spans(const struct trace *trace, const struct trace_step *step)
{
    size_t count = 0;
    struct trace_part part = trace_find_rank_spans(trace, step->rank);
    for (size_t i = part.first; i < part.end; i++) {
        count += trace_is_in_step(&trace->spans[i], step);
    }
    return count;
}

/* The step of median length ------------------------------------------------------------------------------ */

static int compare_numbers(const void *x, const void *y)
{
    double a = *(const double *)x;
    double b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *numbers, size_t count)
{
    if (count == 0) {
        return 0.0;
    }
    qsort(numbers, count, sizeof numbers[0], compare_numbers);
    return count % 2 == 1 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2.0;
}

static double length_of(const struct trace_step *step)
{
    return step->end - step->begin;
}

int64_t trace_median_step(const struct trace *trace)
{
    double *room = calloc(trace->n_steps + 1, sizeof *room);
    int64_t number = trace->n_steps > 0 ? trace->steps[0].number : 0;
    double nearest = -1.0;
    size_t count = 0;
    if (!room) {
        return number;
    }
    struct trace_part part = trace_find_steps(trace, trace->n_steps > 0 ? trace->steps[0].rank : 0);
    for (size_t i = part.first; i < part.end; i++) {
        if (trace_is_counted(trace, i, NULL)) {
            room[count++] = length_of(&trace->steps[i]);
        }
    }
    double middle = median(room, count);
    for (size_t i = part.first; i < part.end; i++) {
        double length = length_of(&trace->steps[i]);
        double distance = length > middle ? length - middle : middle - length;
        if (trace_is_counted(trace, i, NULL) && (nearest < 0.0 || distance < nearest)) {
            nearest = distance;
            number = trace->steps[i].number;
        }
    }
    free(room);
    return number;
}

/* Units -------------------------------------------------------------------------------------------------- */

static int compare_names(const void *x, const void *y)
{
    return strcmp(((const struct trace_unit *)x)->unit, ((const struct trace_unit *)y)->unit);
}

double trace_unit_exposed(const struct trace_unit *sum)
{
    return sum->exposed[WORK_GATHER] + sum->exposed[WORK_REDUCE] + sum->exposed[WORK_OTHER];
}

/* The most exposed first. */
static int compare_sums(const void *x, const void *y)
{
    double a = trace_unit_exposed(x);
    double b = trace_unit_exposed(y);
    return a > b ? -1 : a < b ? 1 : compare_names(x, y);
}

/* The step of a rank in which an instant is; NULL if there is none. */
static const struct trace_step *find_step(const struct trace *trace, int rank, double instant,
                                          const int64_t *only)
{
    size_t low = 0;
    size_t high = trace->n_steps;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct trace_step *step = &trace->steps[middle];
        bool is_before = step->rank < rank || (step->rank == rank && step->begin <= instant);
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    const struct trace_step *step = low > 0 ? &trace->steps[low - 1] : NULL;
    bool is_in = step && step->rank == rank && (step->is_open || instant < step->end);
    return is_in && trace_is_counted(trace, low - 1, only) ? step : NULL;
}

/* One for each wait and collective in the steps; then those of a unit made one. */
static size_t sum_units(const struct trace *trace, const int64_t *only, struct trace_unit *sums)
{
    size_t n_sums = 0;
    for (size_t i = 0; i < trace->n_spans; i++) {
        const struct trace_span *span = &trace->spans[i];
        bool is_wait = span->class == CLASS_WAIT;
        const struct trace_step *step = is_wait || span->class == CLASS_COLLECTIVE
                                            ? find_step(trace, span->rank, span->begin, only)
                                            : NULL;
        if (!step || (is_wait && span->track != step->track)) {
            continue;
        }
        struct trace_unit sum = {.unit = span->unit[0] ? span->unit : "(none)"};
        sum.exposed[span->work] = is_wait ? span->end - span->begin : 0.0;
        sum.busy = is_wait ? 0.0 : span->carried;
        sum.bytes = is_wait ? 0.0 : (double)span->bytes;
        sums[n_sums++] = sum;
    }
    qsort(sums, n_sums, sizeof sums[0], compare_names);
    size_t n_units = 0;
    for (size_t i = 0; i < n_sums; i++) {
        if (n_units == 0 || strcmp(sums[n_units - 1].unit, sums[i].unit) != 0) {
            sums[n_units++] = sums[i];
            continue;
        }
        for (int k = 0; k < WORK_COUNT; k++) {
            sums[n_units - 1].exposed[k] += sums[i].exposed[k];
        }
        sums[n_units - 1].busy += sums[i].busy;
        sums[n_units - 1].bytes += sums[i].bytes;
    }
    qsort(sums, n_units, sizeof sums[0], compare_sums);
    return n_units;
}

struct trace_unit *trace_list_units(const struct trace *trace, const int64_t *only, size_t *n_units_out)
{
    size_t n_counted = 0;
    struct trace_unit *units = calloc(trace->n_spans + 1, sizeof *units);
    *n_units_out = units ? sum_units(trace, only, units) : 0;
    for (size_t i = 0; i < trace->n_steps; i++) {
        n_counted += trace_is_counted(trace, i, only);
    }
    double divisor = n_counted > 0 ? (double)n_counted : 1.0;
    for (size_t i = 0; i < *n_units_out; i++) {
        for (int k = 0; k < WORK_COUNT; k++) {
            units[i].exposed[k] /= divisor;
        }
        units[i].busy /= divisor;
        units[i].bytes /= divisor;
    }
    return units;
}
