/* SPDX-License-Identifier: MIT */
/* The tables: times by rank, exposed communication by unit, and each step. */
#include "trace/trace.h"
#include "common/overlap.h"
#include "common/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps -------------------------------------------------------------------------------------------------- */

/* The values are in microseconds. */
static void print_times(const char *name, const struct trace_times *times)
{
    double share = overlap_share(times->exposed, times->hidden);
    printf("%6s %12.3f %12.3f %12.3f %12.3f %6.0f %%\n", name, times->step * 1e-3, times->compute * 1e-3,
           times->exposed * 1e-3, times->hidden * 1e-3, share > 0.0 ? 100.0 * share : 0.0);
}

static void print_ranks(const struct trace *trace, const int64_t *only)
{
    int slowest = 0;
    double most = -1.0;
    double least = 0.0;
    printf("%6s %12s %12s %12s %12s %8s\n", "rank", "step ms", "compute ms", "exposed ms", "hidden ms",
           "hidden");
    for (size_t i = 0; i < trace->n_ranks; i++) {
        char name[16];
        int rank = trace->ranks[i];
        struct trace_times times = trace_mean_times(trace, trace_find_steps(trace, rank), only);
        double compute = times.compute * 1e-3;
        (void)snprintf(name, sizeof name, "%d", rank);
        print_times(name, &times);
        slowest = compute > most ? rank : slowest;
        most = compute > most ? compute : most;
        least = i == 0 || compute < least ? compute : least;
    }
    struct trace_times mean = trace_mean_times(trace, (struct trace_part){0, trace->n_steps}, only);
    print_times("mean", &mean);
    if (!only) {
        puts("Means of the middle half of each rank's steps by length. Compute and exposed add up to step, "
             "and the units\nbelow to exposed.");
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
    printf("\n%8s %6s %12s %12s %12s %12s %8s\n", "step", "rank", "step ms", "compute ms", "exposed ms",
           "hidden ms", "spans");
    for (size_t i = 0; i < trace->n_steps; i++) {
        const struct trace_step *step = &trace->steps[i];
        struct trace_times times = trace_step_times(step);
        printf("%8lld %6d %12.3f %12.3f %12.3f %12.3f %8zu\n", (long long)step->number, step->rank,
               times.step * 1e-3, times.compute * 1e-3, times.exposed * 1e-3, times.hidden * 1e-3,
               trace_count_spans(trace, step));
    }
}

/* Units -------------------------------------------------------------------------------------------------- */

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

static bool print_units(const struct trace *trace, const int64_t *only)
{
    size_t n_units = 0;
    struct trace_unit *units = trace_list_units(trace, only, &n_units);
    if (!units) {
        fprintf(stderr, "%s: there is no memory for the sums\n", tool_name());
        return false;
    }
    if (n_units > 0) {
        printf("\nexposed communication by unit, ms of a step and rank (means)\n%-32s %10s %10s %10s %10s "
               "%12s\n",
               "unit", "gather", "reduce", "other", "on lanes", "KiB");
    }
    for (size_t i = 0; i < n_units; i++) {
        print_name(units[i].unit);
        printf(" %10.3f %10.3f %10.3f %10.3f %12.1f\n", units[i].exposed[WORK_GATHER] * 1e-3,
               units[i].exposed[WORK_REDUCE] * 1e-3, units[i].exposed[WORK_OTHER] * 1e-3,
               units[i].busy * 1e-3, units[i].bytes / 1024.0);
    }
    free(units);
    return true;
}

/* Operations --------------------------------------------------------------------------------------------- */

bool trace_print_ops(const struct trace *trace, const int64_t *only)
{
    size_t n_ops = 0;
    double total = 0.0;
    struct trace_op *ops = trace_list_ops(trace, only, &n_ops);
    if (!ops) {
        fprintf(stderr, "%s: there is no memory for the sums\n", tool_name());
        return false;
    }
    for (size_t i = 0; i < n_ops; i++) {
        total += ops[i].time;
    }
    printf("\noperations of the thread that marks steps, ms of a step and rank (means)\n%-32s %10s %10s %10s "
           "%8s\n",
           "operation", "ms", "backward", "calls", "share");
    for (size_t i = 0; i < n_ops; i++) {
        char name[256];
        (void)snprintf(name, sizeof name, "%s%s", ops[i].is_wait ? "wait: " : "", ops[i].name);
        print_name(name);
        printf(" %10.3f %10.3f %10.1f %6.1f %%\n", ops[i].time * 1e-3, ops[i].backward * 1e-3, ops[i].calls,
               total > 0.0 ? 100.0 * ops[i].time / total : 0.0);
    }
    free(ops);
    return true;
}

/* All of it ---------------------------------------------------------------------------------------------- */

/* Without a last step that has no end, unless it is the only one. */
static size_t count_steps(const struct trace *trace)
{
    struct trace_part part = trace_find_steps(trace, trace->n_ranks > 0 ? trace->ranks[0] : 0);
    size_t n_steps = part.end - part.first;
    return n_steps > 1 && trace->steps[part.end - 1].is_open ? n_steps - 1 : n_steps;
}

bool trace_print_table(const struct trace *trace, const char *path, const int64_t *only)
{
    printf("%s: %zu rank%s, ", path, trace->n_ranks, trace->n_ranks == 1 ? "" : "s");
    if (only) {
        printf("step %lld\n", (long long)*only);
    } else {
        size_t n_steps = count_steps(trace);
        printf("%zu step%s\n", n_steps, n_steps > 1 ? "s" : "");
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
    print_ranks(trace, only);
    return print_units(trace, only);
}
