/* SPDX-License-Identifier: MIT */
/* Reading a trace: Chrome's format, of which complete events, marks of steps and names of threads are taken. */
#include "trace/trace.h"
#include "common/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    TRACE_VERSION = 1
};

/* Arrays ------------------------------------------------------------------------------------------------- */

/* Room for one element more in an array that grows by doubling: when its length is a power of two. */
static bool grow(void **array, size_t length, size_t element_bytes)
{
    if ((length & (length - 1)) != 0) {
        return true;
    }
    void *larger = realloc(*array, (length == 0 ? 1 : 2 * length) * element_bytes);
    if (!larger) {
        fprintf(stderr, "%s: there is no memory for the trace\n", tool_name());
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

/* Times beyond this are damaged: 30 years, in microseconds. */
#define LARGEST_TIME 1e15

static bool is_time(const json_t *value)
{
    double time = json_number_value(value);
    return json_is_number(value) && time >= -LARGEST_TIME && time <= LARGEST_TIME;
}

/* The rank and the track of an event. Returns false if they are none. */
static bool read_place(const json_t *event, int *rank_out, int64_t *track_out)
{
    const json_t *rank = json_object_get(event, "pid");
    const json_t *track = json_object_get(event, "tid");
    bool is_good = json_is_integer(rank) && json_is_integer(track) && json_integer_value(rank) >= 0 &&
                   json_integer_value(rank) <= INT_MAX && json_integer_value(track) < INT64_MAX;
    *rank_out = is_good ? (int)json_integer_value(rank) : 0;
    *track_out = json_integer_value(track);
    return is_good;
}

/* Of a member that is 0 or more; 0 otherwise. */
static uint64_t read_count(const json_t *args, const char *key)
{
    json_int_t count = json_integer_value(json_object_get(args, key));
    return count > 0 ? (uint64_t)count : 0;
}

static bool add_span(struct trace *trace, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const json_t *begin = json_object_get(event, "ts");
    const json_t *duration = json_object_get(event, "dur");
    const json_t *carried = json_object_get(args, "carried");
    struct trace_span span = {.name = text_of(event, "name"),
                              .category = text_of(event, "cat"),
                              .op = text_of(args, "op"),
                              .unit = text_of(args, "unit"),
                              .bytes = read_count(args, "bytes")};
    if (!find_class(span.category, &span.class)) {
        return true; /* of another program that wrote to the file */
    }
    if (!read_place(event, &span.rank, &span.track) || !is_time(begin) || !is_time(duration) ||
        json_number_value(duration) < 0.0) {
        trace->n_damaged++;
        return true;
    }
    span.work = find_work(span.op);
    span.begin = json_number_value(begin);
    span.end = span.begin + json_number_value(duration);
    span.carried = json_number_value(carried);
    if (!json_is_number(carried) || !(span.carried >= 0.0 && span.carried <= span.end - span.begin)) {
        span.carried = span.end - span.begin;
    }
    if (!grow((void **)&trace->spans, trace->n_spans, sizeof span)) {
        return false;
    }
    trace->spans[trace->n_spans++] = span;
    return true;
}

static bool add_step(struct trace *trace, const json_t *event)
{
    const json_t *begin = json_object_get(event, "ts");
    const json_t *number = json_object_get(json_object_get(event, "args"), "step");
    struct trace_step step = {.begin = json_number_value(begin), .number = json_integer_value(number)};
    if (!read_place(event, &step.rank, &step.track) || !is_time(begin) || !json_is_integer(number)) {
        trace->n_damaged++;
        return true;
    }
    if (!grow((void **)&trace->steps, trace->n_steps, sizeof step)) {
        return false;
    }
    trace->steps[trace->n_steps++] = step;
    return true;
}

static bool add_end(struct trace *trace, const json_t *event)
{
    const json_t *at = json_object_get(event, "ts");
    struct trace_end end = {.at = json_number_value(at)};
    int64_t track;
    if (!read_place(event, &end.rank, &track) || !is_time(at)) {
        trace->n_damaged++;
        return true;
    }
    if (!grow((void **)&trace->ends, trace->n_ends, sizeof end)) {
        return false;
    }
    trace->ends[trace->n_ends++] = end;
    return true;
}

static bool add_writer(struct trace *trace, int rank)
{
    if (!grow((void **)&trace->writers, trace->n_writers, sizeof trace->writers[0])) {
        return false;
    }
    trace->writers[trace->n_writers++] = rank;
    return true;
}

static bool add_metadata(struct trace *trace, const json_t *event)
{
    int rank;
    int64_t track;
    const json_t *args = json_object_get(event, "args");
    const char *what = text_of(event, "name");
    if (!read_place(event, &rank, &track)) {
        return true;
    }
    if (strcmp(what, "shoal_dropped") == 0 || strcmp(what, "shoal_lost") == 0) {
        trace->n_dropped += read_count(args, "count");
    }
    if (strcmp(what, "shoal_ranks") == 0) {
        int64_t n_ranks = (int64_t)read_count(args, "count");
        trace->n_world_ranks = n_ranks > trace->n_world_ranks ? n_ranks : trace->n_world_ranks;
        return add_writer(trace, rank);
    }
    if (strcmp(what, "thread_name") != 0) {
        return true;
    }
    if (!grow((void **)&trace->tracks, trace->n_tracks, sizeof trace->tracks[0])) {
        return false;
    }
    trace->tracks[trace->n_tracks++] =
        (struct trace_track){.rank = rank, .track = track, .name = text_of(args, "name")};
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
    const char *category = strcmp(phase, "i") == 0 ? text_of(event, "cat") : "";
    if (strcmp(category, "step_end") == 0) {
        return add_end(trace, event);
    }
    return strcmp(category, "step") != 0 || add_step(trace, event);
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

static int compare_ends(const void *x, const void *y)
{
    const struct trace_end *a = x;
    const struct trace_end *b = y;
    int order = ORDER(a->rank, b->rank);
    return order != 0 ? order : ORDER(a->at, b->at);
}

static int compare_tracks(const void *x, const void *y)
{
    const struct trace_track *a = x;
    const struct trace_track *b = y;
    int order = ORDER(a->rank, b->rank);
    return order != 0 ? order : ORDER(a->track, b->track);
}

static int compare_ranks(const void *x, const void *y)
{
    int a = *(const int *)x;
    int b = *(const int *)y;
    return ORDER(a, b);
}

/* The first element, of an array in order, that is not before the key. */
static size_t find_first(const void *items, size_t n_items, size_t item_bytes, const void *key,
                         int (*compare)(const void *x, const void *y))
{
    size_t low = 0;
    size_t high = n_items;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        bool is_before = compare((const char *)items + middle * item_bytes, key) < 0;
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    return low;
}

static int compare_span_places(const void *x, const void *y)
{
    const struct trace_span *a = x;
    const struct trace_span *b = y;
    int order = ORDER(a->rank, b->rank);
    return order != 0 ? order : ORDER(a->track, b->track);
}

static int compare_step_ranks(const void *x, const void *y)
{
    return ORDER(((const struct trace_step *)x)->rank, ((const struct trace_step *)y)->rank);
}

static int compare_track_ranks(const void *x, const void *y)
{
    return ORDER(((const struct trace_track *)x)->rank, ((const struct trace_track *)y)->rank);
}

#define FIND(items, n_items, key, compare) find_first((items), (n_items), sizeof(items)[0], (key), (compare))

struct trace_part trace_find_spans(const struct trace *trace, int rank, int64_t track)
{
    const struct trace_span keys[2] = {{.rank = rank, .track = track}, {.rank = rank, .track = track + 1}};
    return (struct trace_part){FIND(trace->spans, trace->n_spans, &keys[0], compare_span_places),
                               FIND(trace->spans, trace->n_spans, &keys[1], compare_span_places)};
}

static int compare_span_ranks(const void *x, const void *y)
{
    return ORDER(((const struct trace_span *)x)->rank, ((const struct trace_span *)y)->rank);
}

struct trace_part trace_find_rank_spans(const struct trace *trace, int rank)
{
    const struct trace_span keys[2] = {{.rank = rank}, {.rank = rank < INT_MAX ? rank + 1 : rank}};
    size_t end = FIND(trace->spans, trace->n_spans, &keys[1], compare_span_ranks);
    return (struct trace_part){FIND(trace->spans, trace->n_spans, &keys[0], compare_span_ranks),
                               rank < INT_MAX ? end : trace->n_spans};
}

/* Ranks are at most INT_MAX: the one behind it is a number that does not fit, and is not looked for. */
struct trace_part trace_find_steps(const struct trace *trace, int rank)
{
    const struct trace_step keys[2] = {{.rank = rank}, {.rank = rank < INT_MAX ? rank + 1 : rank}};
    size_t end = FIND(trace->steps, trace->n_steps, &keys[1], compare_step_ranks);
    return (struct trace_part){FIND(trace->steps, trace->n_steps, &keys[0], compare_step_ranks),
                               rank < INT_MAX ? end : trace->n_steps};
}

struct trace_part trace_find_tracks(const struct trace *trace, int rank)
{
    const struct trace_track keys[2] = {{.rank = rank}, {.rank = rank < INT_MAX ? rank + 1 : rank}};
    size_t end = FIND(trace->tracks, trace->n_tracks, &keys[1], compare_track_ranks);
    return (struct trace_part){FIND(trace->tracks, trace->n_tracks, &keys[0], compare_track_ranks),
                               rank < INT_MAX ? end : trace->n_tracks};
}

/* A name that was told twice is there once, and so is a rank. */
static void drop_twins(struct trace *trace)
{
    size_t n_ranks = 0;
    for (size_t i = 0; i < trace->n_writers; i++) {
        if (n_ranks == 0 || trace->writers[n_ranks - 1] != trace->writers[i]) {
            trace->writers[n_ranks++] = trace->writers[i];
        }
    }
    trace->n_writers = n_ranks;
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
    struct trace_part part = trace_find_spans(trace, rank, track);
    for (size_t i = part.first; i < part.end; i++) {
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

/* The first end of a step that its rank has told; NULL if there is none before the next step. */
static const struct trace_end *find_end(const struct trace *trace, const struct trace_step *step,
                                        bool is_last)
{
    const struct trace_end key = {.rank = step->rank, .at = step->begin};
    size_t at = FIND(trace->ends, trace->n_ends, &key, compare_ends);
    const struct trace_end *end = at < trace->n_ends ? &trace->ends[at] : NULL;
    return end && end->rank == step->rank && (is_last || end->at <= step[1].begin) ? end : NULL;
}

static bool close_steps(struct trace *trace)
{
    trace->has_no_marks = trace->n_steps == 0;
    if (trace->has_no_marks && !make_steps(trace)) {
        return false;
    }
    for (size_t i = 0; i < trace->n_steps; i++) {
        struct trace_step *step = &trace->steps[i];
        bool is_last = i + 1 == trace->n_steps || step[1].rank != step->rank;
        const struct trace_end *end = find_end(trace, step, is_last);
        step->is_open = is_last && !end;
        step->end = end             ? end->at
                    : step->is_open ? last_end(trace, step->rank, step->track, step->begin)
                                    : step[1].begin;
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
    if (trace->n_ends > 0) {
        qsort(trace->ends, trace->n_ends, sizeof trace->ends[0], compare_ends);
    }
    if (trace->n_tracks > 0) {
        qsort(trace->tracks, trace->n_tracks, sizeof trace->tracks[0], compare_tracks);
    }
    if (trace->n_writers > 0) {
        qsort(trace->writers, trace->n_writers, sizeof trace->writers[0], compare_ranks);
    }
    drop_twins(trace);
    return list_ranks(trace) && close_steps(trace);
}

/* The file ----------------------------------------------------------------------------------------------- */

/* Behind the last line that is a whole event; 0 if there is none. */
static size_t find_last_line(const char *text, size_t length)
{
    for (size_t i = length; i >= 3; i--) {
        if (memcmp(text + i - 3, "},\n", 3) == 0) {
            return i - 2;
        }
    }
    return 0;
}

/*
 * Reads a trace whose writer was killed, so that the end of the JSON is missing. Every event has a line of its own, so
 * all complete lines before the end are valid. Returns NULL if the file is not such a trace.
 */
static json_t *load_cut(FILE *file, size_t n_bytes)
{
    static const char begin[] = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"shoal\"";
    static const char end[] = "]}";
    char *text = malloc(n_bytes + sizeof end);
    json_t *document = NULL;
    if (!text) {
        return NULL;
    }
    rewind(file);
    size_t n_read = fread(text, 1, n_bytes, file);
    if (n_read > sizeof begin && memcmp(text, begin, sizeof begin - 1) == 0) {
        size_t length = find_last_line(text, n_read);
        memcpy(text + length, end, sizeof end);
        document = length > 0 ? json_loadb(text, length + sizeof end - 1, JSON_ALLOW_NUL, NULL) : NULL;
    }
    free(text);
    return document;
}

/* Words of the file, of which there may be some in the text, cannot move the cursor of a terminal. */
static void tell_error(const char *path, json_error_t *error)
{
    for (char *at = error->text; *at; at++) {
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    }
    fprintf(stderr, "%s: %s:%d: not valid JSON: %s\n", tool_name(), path, error->line, error->text);
}

static bool load_file(const char *path, FILE *file, struct trace *trace)
{
    json_error_t error;
    struct stat status;
    if (fstat(fileno(file), &status) != 0 || S_ISDIR(status.st_mode)) {
        fprintf(stderr, "%s: %s: %s\n", tool_name(), path, strerror(EISDIR));
        return false;
    }
    if (S_ISREG(status.st_mode) && status.st_size == 0) {
        fprintf(stderr, "%s: %s is empty: no rank has written to it\n", tool_name(), path);
        return false;
    }
    trace->document = json_loadf(file, JSON_ALLOW_NUL, &error);
    if (!trace->document && S_ISREG(status.st_mode)) {
        trace->document = load_cut(file, (size_t)status.st_size);
        trace->is_cut = trace->document != NULL;
    }
    if (!trace->document) {
        tell_error(path, &error);
        return false;
    }
    return true;
}

static bool load(const char *path, struct trace *trace)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "%s: %s: %s\n", tool_name(), path, strerror(errno));
        return false;
    }
    bool is_good = load_file(path, file, trace);
    (void)fclose(file);
    return is_good;
}

/* Traces of other programs have versions of their own. */
static bool check_version(const char *path, const json_t *about)
{
    const json_t *version = json_object_get(about, "version");
    bool is_ours = strcmp(text_of(about, "program"), "shoal") == 0;
    if (is_ours && version && json_integer_value(version) != TRACE_VERSION) {
        fprintf(stderr, "%s: %s has another version of the format than %d, which this program knows\n",
                tool_name(), path, TRACE_VERSION);
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
    const json_t *about = json_object_get(trace->document, "otherData");
    trace->run = text_of(about, "run");
    if (!check_version(path, about)) {
        return false;
    }
    if (!json_is_array(events)) {
        fprintf(stderr, "%s: %s: not a trace: it has no traceEvents\n", tool_name(), path);
        return false;
    }
    for (size_t i = 0; i < json_array_size(events); i++) {
        if (!add_event(trace, json_array_get(events, i))) {
            return false;
        }
    }
    if (trace->n_spans == 0) {
        fprintf(stderr, "%s: %s: it contains no events of shoal\n", tool_name(), path);
        return false;
    }
    return put_in_order(trace);
}

void trace_free(struct trace *trace)
{
    free(trace->spans);
    free(trace->steps);
    free(trace->ends);
    free(trace->tracks);
    free(trace->ranks);
    free(trace->writers);
    json_decref(trace->document);
}
