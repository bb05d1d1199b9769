/* SPDX-License-Identifier: MIT */
/*
 * The table of operations: what the threads that mark steps did, by name. The time of a span is its own: that of spans
 * inside of it is theirs. So all rows, with what was in no span at all, add up to the steps.
 */
#include "trace/trace.h"
#include "common/tool.h"

#include <stdlib.h>
#include <string.h>

/* Spans that are open, of which one is inside the other. A deeper one counts as part of the last. */
enum {
    MAX_DEPTH = 64
};

struct open_span {
    const struct trace_span *span;
    double end;
    double inside; /* time of the spans directly inside */
};

struct walk {
    struct trace_op *ops;
    size_t n_ops;
    struct open_span open[MAX_DEPTH];
    size_t depth;
    size_t n_backward; /* of the open ones */
    double outside;    /* of all spans, in the steps */
};

/* Modules have the names of their places, of which there are many: they are one row. */
static const char *name_of(const struct trace_span *span)
{
    static const struct {
        const char *category;
        const char *name;
    } names[] = {{"module", "(modules)"},
                 {"backward", "(backward)"},
                 {"compiled", "(compiled step)"},
                 {"checkpoint", "(checkpoint)"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(span->category, names[i].category) == 0) {
            return names[i].name;
        }
    }
    return span->class == CLASS_WAIT ? span->op : span->name;
}

static bool is_backward(const struct trace_span *span)
{
    return strcmp(span->category, "backward") == 0;
}

static void close_last(struct walk *walk)
{
    const struct open_span *last = &walk->open[--walk->depth];
    double own = last->end - last->span->begin - last->inside;
    own = own > 0.0 ? own : 0.0;
    walk->n_backward -= is_backward(last->span);
    walk->ops[walk->n_ops++] = (struct trace_op){.name = name_of(last->span),
                                                 .is_wait = last->span->class == CLASS_WAIT,
                                                 .time = own,
                                                 .backward = walk->n_backward > 0 ? own : 0.0,
                                                 .calls = 1.0};
}

static void close_before(struct walk *walk, double instant)
{
    while (walk->depth > 0 && walk->open[walk->depth - 1].end <= instant) {
        close_last(walk);
    }
}

static void open_span(struct walk *walk, const struct trace_span *span, double step_end)
{
    close_before(walk, span->begin);
    if (walk->depth == MAX_DEPTH) {
        return;
    }
    double most = walk->depth > 0 ? walk->open[walk->depth - 1].end : step_end;
    double end = span->end < most ? span->end : most;
    double length = end > span->begin ? end - span->begin : 0.0;
    if (walk->depth > 0) {
        walk->open[walk->depth - 1].inside += length;
    } else {
        walk->outside -= length;
    }
    walk->n_backward += is_backward(span);
    walk->open[walk->depth++] = (struct open_span){.span = span, .end = end};
}

static void walk_step(const struct trace *trace, const struct trace_step *step, struct walk *walk)
{
    struct trace_part part = trace_find_spans(trace, step->rank, step->track);
    walk->outside += step->end - step->begin;
    for (size_t i = part.first; i < part.end; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->class != CLASS_COLLECTIVE && trace_is_in_step(span, step)) {
            open_span(walk, span, step->end);
        }
    }
    while (walk->depth > 0) {
        close_last(walk);
    }
}

static int compare_names(const void *x, const void *y)
{
    const struct trace_op *a = x;
    const struct trace_op *b = y;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (int)a->is_wait - (int)b->is_wait;
}

static int compare_times(const void *x, const void *y)
{
    double a = ((const struct trace_op *)x)->time;
    double b = ((const struct trace_op *)y)->time;
    return a > b ? -1 : a < b ? 1 : compare_names(x, y);
}

/* Those of a name become one. */
static void unite(struct walk *walk)
{
    size_t n_ops = 0;
    qsort(walk->ops, walk->n_ops, sizeof walk->ops[0], compare_names);
    for (size_t i = 0; i < walk->n_ops; i++) {
        struct trace_op *last = &walk->ops[n_ops > 0 ? n_ops - 1 : 0];
        if (n_ops == 0 || compare_names(last, &walk->ops[i]) != 0) {
            walk->ops[n_ops++] = walk->ops[i];
            continue;
        }
        last->time += walk->ops[i].time;
        last->backward += walk->ops[i].backward;
        last->calls += walk->ops[i].calls;
    }
    walk->n_ops = n_ops;
}

struct trace_op *trace_list_ops(const struct trace *trace, const int64_t *only, size_t *n_ops_out)
{
    size_t n_steps = 0;
    struct walk walk = {.ops = calloc(trace->n_spans + 1, sizeof walk.ops[0])};
    for (size_t i = 0; walk.ops && i < trace->n_steps; i++) {
        if (trace_is_counted(trace, i, only)) {
            walk_step(trace, &trace->steps[i], &walk);
            n_steps++;
        }
    }
    if (walk.ops) {
        unite(&walk);
        walk.ops[walk.n_ops++] =
            (struct trace_op){.name = "(outside)", .time = walk.outside > 0.0 ? walk.outside : 0.0};
        qsort(walk.ops, walk.n_ops, sizeof walk.ops[0], compare_times);
    }
    for (size_t i = 0; i < walk.n_ops; i++) {
        double divisor = n_steps > 0 ? (double)n_steps : 1.0;
        walk.ops[i].time /= divisor;
        walk.ops[i].backward /= divisor;
        walk.ops[i].calls /= divisor;
    }
    *n_ops_out = walk.n_ops;
    return walk.ops;
}
