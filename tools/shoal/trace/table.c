/* SPDX-License-Identifier: MIT */
/* The tables: medians by rank, exposed communication by unit, and each step. */
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps -------------------------------------------------------------------------------------------------- */

/*
 * Whether a step counts. The last step of a rank extends to the rank's last event, which need not belong to that step.
 * So it counts only if it is the rank's only step, or if it was asked for.
 */
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
    struct trace_part part = trace_find_steps(trace, rank);
    for (size_t i = part.first; i < part.end; i++) {
        if (is_counted(trace, i, only)) {
            room[count++] = value_of(&trace->steps[i], column);
        }
    }
    return median(room, count);
}

/* Over all ranks and steps that count. */
static double mean_of(const struct trace *trace, enum column column, const int64_t *only)
{
    double sum = 0.0;
    size_t count = 0;
    for (size_t i = 0; i < trace->n_steps; i++) {
        if (is_counted(trace, i, only)) {
            sum += value_of(&trace->steps[i], column);
            count++;
        }
    }
    return count > 0 ? sum / (double)count : 0.0;
}

/* The values are in microseconds. */
static void print_values(const char *name, const double values[COLUMNS])
{
    double comm = values[COLUMN_EXPOSED] + values[COLUMN_HIDDEN];
    printf("%6s %12.3f %12.3f %12.3f %12.3f %6.0f %%\n", name, values[COLUMN_STEP] * 1e-3,
           values[COLUMN_COMPUTE] * 1e-3, values[COLUMN_EXPOSED] * 1e-3, values[COLUMN_HIDDEN] * 1e-3,
           comm > 0.0 ? 100.0 * values[COLUMN_HIDDEN] / comm : 0.0);
}

static void print_ranks(const struct trace *trace, const int64_t *only, double *room)
{
    int slowest = 0;
    double most = -1.0;
    double least = 0.0;
    double values[COLUMNS];
    printf("%6s %12s %12s %12s %12s %8s\n", "rank", "step ms", "compute ms", "exposed ms", "hidden ms",
           "hidden");
    for (size_t i = 0; i < trace->n_ranks; i++) {
        char name[16];
        for (int k = 0; k < COLUMNS; k++) {
            values[k] = median_of(trace, trace->ranks[i], (enum column)k, only, room);
        }
        double compute = values[COLUMN_COMPUTE] * 1e-3;
        (void)snprintf(name, sizeof name, "%d", trace->ranks[i]);
        print_values(name, values);
        slowest = compute > most ? trace->ranks[i] : slowest;
        most = compute > most ? compute : most;
        least = i == 0 || compute < least ? compute : least;
    }
    for (int k = 0; k < COLUMNS; k++) {
        values[k] = mean_of(trace, (enum column)k, only);
    }
    print_values("mean", values);
    if (!only) {
        puts("Of a rank each column is the median over its steps, so that compute and exposed need not add "
             "up to step.\n"
             "The mean is over all ranks and steps: there they do, as the units below add up to exposed.");
    }
    if (trace->n_ranks > 1) {
        printf("slowest rank: %d, which computes %.3f ms, the fastest %.3f ms\n", slowest, most, least);
    }
}

/* "missing: rank 2 of 3", "missing: ranks 1, 4-7 of 8". At most MOST_GAPS of them. */
#define MOST_GAPS 16

static void print_missing(const struct trace *trace)
{
    int64_t n_missing = trace->n_world_ranks;
    int64_t next = 0;
    size_t n_gaps = 0;
    char text[MOST_GAPS * 48] = "";
    size_t length = 0;
    for (size_t i = 0; i <= trace->n_writers; i++) {
        int64_t rank = i < trace->n_writers ? trace->writers[i] : trace->n_world_ranks;
        rank = rank < trace->n_world_ranks ? rank : trace->n_world_ranks;
        n_missing -= i < trace->n_writers && rank < trace->n_world_ranks;
        if (rank > next && n_gaps++ < MOST_GAPS) {
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%lld", length > 0 ? ", " : "",
                                       (long long)next);
            if (rank > next + 1) {
                length +=
                    (size_t)snprintf(text + length, sizeof text - length, "-%lld", (long long)(rank - 1));
            }
        }
        next = rank + 1;
    }
    if (n_missing > 0) {
        printf("missing: rank%s %s%s of %lld: killed before %s could write, or in a file of %s own\n",
               n_missing == 1 ? "" : "s", text, n_gaps > MOST_GAPS ? ", ..." : "",
               (long long)trace->n_world_ranks, n_missing == 1 ? "it" : "they",
               n_missing == 1 ? "its" : "their");
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
        struct unit_sum sum = {.unit = span->unit[0] ? span->unit : "(none)"};
        sum.exposed[span->work] = is_wait ? span->end - span->begin : 0.0;
        sum.busy = is_wait ? 0.0 : span->carried;
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

/* The first characters of a name from the file, and spaces. It cannot move the cursor of a terminal. */
static void print_name(const char *name)
{
    enum {
        WIDTH = 32
    };
    int n_characters = 0;
    for (; *name; name++) {
        unsigned char byte = (unsigned char)*name;
        bool is_first = (byte & 0xc0) != 0x80; /* of the bytes of a character */
        if (n_characters + is_first > WIDTH) {
            break;
        }
        n_characters += is_first;
        putchar(byte < ' ' || byte == 0x7f ? '?' : byte);
    }
    printf("%*s", WIDTH - n_characters, "");
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
        print_name(sums[i].unit);
        printf(" %10.3f %10.3f %10.3f %10.3f %12.1f\n", sums[i].exposed[WORK_GATHER] * scale,
               sums[i].exposed[WORK_REDUCE] * scale, sums[i].exposed[WORK_OTHER] * scale,
               sums[i].busy * scale, (double)sums[i].bytes / 1024.0 * scale * 1e3);
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
    if (trace->n_damaged > 0) {
        printf("%llu events are damaged, and left out\n", (unsigned long long)trace->n_damaged);
    }
    if (trace->is_cut) {
        puts("the file has no end: who wrote to it last was killed, and the rest of its events is not there");
    }
    print_missing(trace);
    print_ranks(trace, only, room);
    free(room);
    return print_units(trace, only, n_counted);
}
