/* SPDX-License-Identifier: MIT */
/* Reading a trace: Chrome's format, of which complete events, marks of steps and names of threads are taken. */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Arrays ------------------------------------------------------------------------------------------------- */

/* Room for one element more in an array that grows by doubling: when its length is a power of two. */
static bool grow(void **array, size_t length, size_t element_bytes)
{
    if ((length & (length - 1)) != 0) {
        return true;
    }
    void *larger = realloc(*array, (length == 0 ? 1 : 2 * length) * element_bytes);
    if (!larger) {
        fputs("shoal trace: there is no memory for the trace\n", stderr);
        return false;
    }
    *array = larger;
    return true;
}

/* Events ------------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static const struct {
    const char *category;
    enum trace_class class;
} classes[] = {{"op", CLASS_OP},
               {"wait", CLASS_WAIT},
               {"collective", CLASS_COLLECTIVE},
               {"module", CLASS_PHASE},
               {"backward", CLASS_PHASE},
               {"compiled", CLASS_PHASE},
               {"checkpoint", CLASS_PHASE},
               {"range", CLASS_PHASE}};

static bool find_class(const char *category, enum trace_class *class_out)
{
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (strcmp(classes[i].category, category) == 0) {
            *class_out = classes[i].class;
            return true;
        }
    }
    return false;
}

static enum trace_work find_work(const char *op)
{
    static const struct {
        const char *words;
        enum trace_work work;
    } works[] = {{"gather", WORK_GATHER}, {"reduce", WORK_REDUCE}};
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        if (strstr(op, works[i].words)) {
            return works[i].work;
        }
    }
    return WORK_OTHER;
}

static bool add_span(struct trace *trace, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    struct trace_span span = {.rank = (int)json_integer_value(json_object_get(event, "pid")),
                              .track = json_integer_value(json_object_get(event, "tid")),
                              .begin = json_number_value(json_object_get(event, "ts")),
                              .name = text_of(event, "name"),
                              .unit = text_of(args, "unit"),
                              .bytes = (uint64_t)json_integer_value(json_object_get(args, "bytes"))};
    if (!find_class(text_of(event, "cat"), &span.class)) {
        return true; /* of another program that wrote to the file */
    }
    span.work = find_work(text_of(args, "op"));
    span.end = span.begin + json_number_value(json_object_get(event, "dur"));
    if (!grow((void **)&trace->spans, trace->n_spans, sizeof span)) {
        return false;
    }
    trace->spans[trace->n_spans++] = span;
    return true;
}

static bool add_step(struct trace *trace, const json_t *event)
{
    struct trace_step step = {
        .rank = (int)json_integer_value(json_object_get(event, "pid")),
        .track = json_integer_value(json_object_get(event, "tid")),
        .begin = json_number_value(json_object_get(event, "ts")),
        .number = json_integer_value(json_object_get(json_object_get(event, "args"), "step"))};
    if (!grow((void **)&trace->steps, trace->n_steps, sizeof step)) {
        return false;
    }
    trace->steps[trace->n_steps++] = step;
    return true;
}

static bool add_metadata(struct trace *trace, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const char *what = text_of(event, "name");
    if (strcmp(what, "shoal_dropped") == 0 || strcmp(what, "shoal_lost") == 0) {
        trace->n_dropped += (uint64_t)json_integer_value(json_object_get(args, "count"));
    }
    if (strcmp(what, "thread_name") != 0) {
        return true;
    }
    if (!grow((void **)&trace->tracks, trace->n_tracks, sizeof trace->tracks[0])) {
        return false;
    }
    trace->tracks[trace->n_tracks++] =
        (struct trace_track){.rank = (int)json_integer_value(json_object_get(event, "pid")),
                             .track = json_integer_value(json_object_get(event, "tid")),
                             .name = text_of(args, "name")};
    return true;
}

static bool add_event(struct trace *trace, const json_t *event)
{
    const char *phase = text_of(event, "ph");
    if (strcmp(phase, "X") == 0) {
        return add_span(trace, event);
    }
    if (strcmp(phase, "M") == 0) {
        return add_metadata(trace, event);
    }
    bool is_step = strcmp(phase, "i") == 0 && strcmp(text_of(event, "cat"), "step") == 0;
    return !is_step || add_step(trace, event);
}

/* Order -------------------------------------------------------------------------------------------------- */

#define ORDER(a, b) ((a) < (b) ? -1 : (a) > (b))

static int compare_spans(const void *x, const void *y)
{
    const struct trace_span *a = x;
    const struct trace_span *b = y;
    int orders[] = {ORDER(a->rank, b->rank), ORDER(a->track, b->track), ORDER(a->begin, b->begin),
                    ORDER(b->end, a->end)};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (orders[i] != 0) {
            return orders[i];
        }
    }
    return strcmp(a->name, b->name);
}

static int compare_steps(const void *x, const void *y)
{
    const struct trace_step *a = x;
    const struct trace_step *b = y;
    int order = ORDER(a->rank, b->rank);
    return order != 0 ? order : ORDER(a->begin, b->begin);
}

static int compare_tracks(const void *x, const void *y)
{
    const struct trace_track *a = x;
    const struct trace_track *b = y;
    int order = ORDER(a->rank, b->rank);
    return order != 0 ? order : ORDER(a->track, b->track);
}

void trace_find_track(const struct trace *trace, int rank, int64_t track, size_t *first, size_t *end)
{
    size_t bounds[2];
    for (int i = 0; i < 2; i++) {
        size_t low = 0;
        size_t high = trace->n_spans;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            const struct trace_span *span = &trace->spans[middle];
            bool is_before = span->rank < rank || (span->rank == rank && span->track < track + i);
            low = is_before ? middle + 1 : low;
            high = is_before ? high : middle;
        }
        bounds[i] = low;
    }
    *first = bounds[0];
    *end = bounds[1];
}

/* A name that was told twice is there once. */
static void drop_twins(struct trace *trace)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < trace->n_tracks; i++) {
        if (n_kept == 0 || compare_tracks(&trace->tracks[n_kept - 1], &trace->tracks[i]) != 0) {
            trace->tracks[n_kept++] = trace->tracks[i];
        }
    }
    trace->n_tracks = n_kept;
}

static bool list_ranks(struct trace *trace)
{
    for (size_t i = 0; i < trace->n_spans; i++) {
        if (i > 0 && trace->spans[i].rank == trace->spans[i - 1].rank) {
            continue;
        }
        if (!grow((void **)&trace->ranks, trace->n_ranks, sizeof trace->ranks[0])) {
            return false;
        }
        trace->ranks[trace->n_ranks++] = trace->spans[i].rank;
    }
    return true;
}

static double last_end(const struct trace *trace, int rank, int64_t track, double least)
{
    size_t first;
    size_t end;
    trace_find_track(trace, rank, track, &first, &end);
    for (size_t i = first; i < end; i++) {
        least = trace->spans[i].end > least ? trace->spans[i].end : least;
    }
    return least;
}

/* A trace without marks is one step of each rank: of the thread with the first event. */
static bool make_steps(struct trace *trace)
{
    for (size_t i = 0; i < trace->n_spans; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (i > 0 && span->rank == trace->spans[i - 1].rank) {
            continue;
        }
        if (!grow((void **)&trace->steps, trace->n_steps, sizeof trace->steps[0])) {
            return false;
        }
        trace->steps[trace->n_steps++] =
            (struct trace_step){.rank = span->rank, .track = span->track, .begin = span->begin};
    }
    return true;
}

static bool close_steps(struct trace *trace)
{
    trace->has_no_marks = trace->n_steps == 0;
    if (trace->has_no_marks && !make_steps(trace)) {
        return false;
    }
    for (size_t i = 0; i < trace->n_steps; i++) {
        struct trace_step *step = &trace->steps[i];
        step->is_last = i + 1 == trace->n_steps || step[1].rank != step->rank;
        step->end = step->is_last ? last_end(trace, step->rank, step->track, step->begin) : step[1].begin;
    }
    return true;
}

static bool put_in_order(struct trace *trace)
{
    if (trace->n_spans > 0) {
        qsort(trace->spans, trace->n_spans, sizeof trace->spans[0], compare_spans);
    }
    if (trace->n_steps > 0) {
        qsort(trace->steps, trace->n_steps, sizeof trace->steps[0], compare_steps);
    }
    if (trace->n_tracks > 0) {
        qsort(trace->tracks, trace->n_tracks, sizeof trace->tracks[0], compare_tracks);
    }
    drop_twins(trace);
    return list_ranks(trace) && close_steps(trace);
}

/* The file ----------------------------------------------------------------------------------------------- */

static bool load(const char *path, struct trace *trace)
{
    json_error_t error;
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "shoal trace: %s: %s\n", path, strerror(errno));
        return false;
    }
    trace->document = json_loadf(file, 0, &error);
    (void)fclose(file);
    if (!trace->document) {
        fprintf(stderr, "shoal trace: %s:%d: no JSON: %s\n", path, error.line, error.text);
        return false;
    }
    return true;
}

bool trace_read(const char *path, struct trace *trace)
{
    *trace = (struct trace){0};
    if (!load(path, trace)) {
        return false;
    }
    const json_t *events =
        json_is_array(trace->document) ? trace->document : json_object_get(trace->document, "traceEvents");
    if (!json_is_array(events)) {
        fprintf(stderr, "shoal trace: %s: no trace: it has no traceEvents\n", path);
        return false;
    }
    for (size_t i = 0; i < json_array_size(events); i++) {
        if (!add_event(trace, json_array_get(events, i))) {
            return false;
        }
    }
    if (trace->n_spans == 0) {
        fprintf(stderr, "shoal trace: %s: there are no events of shoal in it\n", path);
        return false;
    }
    return put_in_order(trace);
}

void trace_free(struct trace *trace)
{
    free(trace->spans);
    free(trace->steps);
    free(trace->tracks);
    free(trace->ranks);
    json_decref(trace->document);
}
