/* SPDX-License-Identifier: MIT */
/* The tables: medians by rank, exposed communication by unit, and each step. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

/* Steps -------------------------------------------------------------------------------------------------- */

/* The last step of a rank ends with its last event, which need not be of that step: it counts only if it is the only one. */
static bool is_counted(const struct trace *trace, size_t index, const int64_t *only)
{
    const struct trace_step *step = &trace->steps[index];
    bool is_first = index == 0 || trace->steps[index - 1].rank != step->rank;
    return only ? step->number == *only : !step->is_last || is_first;
}

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

enum column {
    COLUMN_STEP,
    COLUMN_COMPUTE,
    COLUMN_EXPOSED,
    COLUMN_HIDDEN,
    COLUMNS
};

static double value_of(const struct trace_step *step, enum column column)
{
    double length = step->end - step->begin;
    switch (column) {
    case COLUMN_STEP:
        return length;
    case COLUMN_COMPUTE:
        return length - step->exposed;
    case COLUMN_EXPOSED:
        return step->exposed;
    case COLUMN_HIDDEN:
        return step->hidden;
    case COLUMNS:
        break;
    }
    return 0.0;
}

static double median_of(const struct trace *trace, int rank, enum column column, const int64_t *only,
                        double *room)
{
    size_t count = 0;
    for (size_t i = 0; i < trace->n_steps; i++) {
        if (trace->steps[i].rank == rank && is_counted(trace, i, only)) {
            room[count++] = value_of(&trace->steps[i], column);
        }
    }
    return median(room, count);
}

static void print_ranks(const struct trace *trace, const int64_t *only, double *room)
{
    int slowest = 0;
    double most = -1.0;
    double least = 0.0;
    printf("%6s %12s %12s %12s %12s %8s\n", "rank", "step ms", "compute ms", "exposed ms", "hidden ms",
           "hidden");
    for (size_t i = 0; i < trace->n_ranks; i++) {
        double values[COLUMNS];
        for (int k = 0; k < COLUMNS; k++) {
            values[k] = median_of(trace, trace->ranks[i], (enum column)k, only, room) * 1e-3;
        }
        double comm = values[COLUMN_EXPOSED] + values[COLUMN_HIDDEN];
        printf("%6d %12.3f %12.3f %12.3f %12.3f %6.0f %%\n", trace->ranks[i], values[COLUMN_STEP],
               values[COLUMN_COMPUTE], values[COLUMN_EXPOSED], values[COLUMN_HIDDEN],
               comm > 0.0 ? 100.0 * values[COLUMN_HIDDEN] / comm : 0.0);
        slowest = values[COLUMN_COMPUTE] > most ? trace->ranks[i] : slowest;
        most = values[COLUMN_COMPUTE] > most ? values[COLUMN_COMPUTE] : most;
        least = i == 0 || values[COLUMN_COMPUTE] < least ? values[COLUMN_COMPUTE] : least;
    }
    if (trace->n_ranks > 1) {
        printf("slowest rank: %d, which computes %.3f ms, the fastest %.3f ms\n", slowest, most, least);
    }
}

void trace_print_steps(const struct trace *trace)
{
    printf("\n%8s %6s %12s %12s %12s %12s\n", "step", "rank", "step ms", "compute ms", "exposed ms",
           "hidden ms");
    for (size_t i = 0; i < trace->n_steps; i++) {
        const struct trace_step *step = &trace->steps[i];
        printf("%8lld %6d", (long long)step->number, step->rank);
        for (int k = 0; k < COLUMNS; k++) {
            printf(" %12.3f", value_of(step, (enum column)k) * 1e-3);
        }
        printf("\n");
    }
}

int64_t trace_median_step(const struct trace *trace)
{
    double *room = calloc(trace->n_steps + 1, sizeof *room);
    int64_t number = trace->n_steps > 0 ? trace->steps[0].number : 0;
    double nearest = -1.0;
    if (!room) {
        return number;
    }
    double middle = median_of(trace, trace->steps[0].rank, COLUMN_STEP, NULL, room);
    for (size_t i = 0; i < trace->n_steps && trace->steps[i].rank == trace->steps[0].rank; i++) {
        double length = value_of(&trace->steps[i], COLUMN_STEP);
        double distance = length > middle ? length - middle : middle - length;
        if (is_counted(trace, i, NULL) && (nearest < 0.0 || distance < nearest)) {
            nearest = distance;
            number = trace->steps[i].number;
        }
    }
    free(room);
    return number;
}

/* Units -------------------------------------------------------------------------------------------------- */

struct unit_sum {
    const char *unit;
    double exposed[WORK_COUNT];
    double busy; /* of lanes */
    uint64_t bytes;
};

static int compare_names(const void *x, const void *y)
{
    return strcmp(((const struct unit_sum *)x)->unit, ((const struct unit_sum *)y)->unit);
}

static double exposed_of(const struct unit_sum *sum)
{
    return sum->exposed[WORK_GATHER] + sum->exposed[WORK_REDUCE] + sum->exposed[WORK_OTHER];
}

/* The most exposed first. */
static int compare_sums(const void *x, const void *y)
{
    double a = exposed_of(x);
    double b = exposed_of(y);
    return a > b ? -1 : a < b ? 1 : compare_names(x, y);
}

/* The step of a rank in which an instant is; NULL: none. */
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
    if (low == 0 || trace->steps[low - 1].rank != rank || !is_counted(trace, low - 1, only)) {
        return NULL;
    }
    return &trace->steps[low - 1];
}

/* One for each wait and collective in the steps; then those of a unit made one. */
static size_t sum_units(const struct trace *trace, const int64_t *only, struct unit_sum *sums)
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
        struct unit_sum sum = {.unit = span->unit};
        sum.exposed[span->work] = is_wait ? span->end - span->begin : 0.0;
        sum.busy = is_wait ? 0.0 : span->end - span->begin;
        sum.bytes = is_wait ? 0 : span->bytes;
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

static bool print_units(const struct trace *trace, const int64_t *only, size_t n_counted)
{
    struct unit_sum *sums = calloc(trace->n_spans + 1, sizeof *sums);
    if (!sums) {
        fputs("shoal trace: there is no memory for the sums\n", stderr);
        return false;
    }
    size_t n_units = sum_units(trace, only, sums);
    double scale = n_counted > 0 ? 1e-3 / (double)n_counted : 0.0;
    if (n_units > 0) {
        printf("\nexposed communication by unit, ms of a step and rank (means)\n%-32s %10s %10s %10s %10s "
               "%12s\n",
               "unit", "gather", "reduce", "other", "on lanes", "KiB");
    }
    for (size_t i = 0; i < n_units; i++) {
        printf("%-32.32s %10.3f %10.3f %10.3f %10.3f %12.1f\n", sums[i].unit[0] ? sums[i].unit : "(none)",
               sums[i].exposed[WORK_GATHER] * scale, sums[i].exposed[WORK_REDUCE] * scale,
               sums[i].exposed[WORK_OTHER] * scale, sums[i].busy * scale,
               (double)sums[i].bytes / 1024.0 * scale * 1e3);
    }
    free(sums);
    return true;
}

bool trace_print_table(const struct trace *trace, const char *path, const int64_t *only)
{
    double *room = calloc(trace->n_steps + 1, sizeof *room);
    size_t n_counted = 0;
    if (!room) {
        fputs("shoal trace: there is no memory for the sums\n", stderr);
        return false;
    }
    for (size_t i = 0; i < trace->n_steps; i++) {
        n_counted += is_counted(trace, i, only);
    }
    printf("%s: %zu rank%s, ", path, trace->n_ranks, trace->n_ranks == 1 ? "" : "s");
    if (only) {
        printf("step %lld\n", (long long)*only);
    } else {
        double n_steps = (double)n_counted / (double)trace->n_ranks;
        printf("%.0f step%s, medians\n", n_steps, n_steps > 1.0 ? "s" : "");
    }
    if (trace->has_no_marks) {
        puts("no step is marked (shoal_trace_step): all of a rank counts as one");
    }
    if (trace->n_dropped > 0) {
        printf("%llu older events were dropped\n", (unsigned long long)trace->n_dropped);
    }
    print_ranks(trace, only, room);
    free(room);
    return print_units(trace, only, n_counted);
}
