/* SPDX-License-Identifier: MIT */
/*
 * The rows of a rank in the picture of a step: what its thread runs, by level of nesting; its ops and waits; a row for
 * each lane; and, if they are asked for, other threads. The picture of `shoal trace --svg` and the page of
 * `shoal report` draw the same rows.
 */
#include "trace/trace.h"

#include <stdlib.h>
#include <string.h>

struct building {
    const struct trace *trace;
    const struct trace_step *step;
    struct trace_window window;
    int max_levels;
    struct trace_rows *rows;
    bool is_good; /* memory has sufficed */
};

static bool is_seen(const struct building *building, const struct trace_span *span)
{
    return span->end > building->window.begin && span->begin < building->window.end;
}

static void begin_row(struct building *building, const char *label, int level, bool has_text)
{
    struct trace_rows *rows = building->rows;
    struct trace_row *larger = realloc(rows->rows, (rows->n_rows + 1) * sizeof larger[0]);
    if (!larger) {
        building->is_good = false;
        return;
    }
    rows->rows = larger;
    rows->rows[rows->n_rows++] = (struct trace_row){
        .label = label, .level = level, .has_text = has_text, .first = rows->n_spans, .end = rows->n_spans};
}

static void add_span(struct building *building, size_t index)
{
    struct trace_rows *rows = building->rows;
    if (building->is_good) {
        rows->spans[rows->n_spans++] = index;
        rows->rows[rows->n_rows - 1].end = rows->n_spans;
    }
}

/* What a thread runs, at one level of nesting. Returns whether there is anything deeper. */
static bool add_phases(struct building *building, struct trace_part part, int wanted)
{
    double ends[TRACE_MAX_LEVELS + 1]; /* of the spans that are open */
    int depth = 0;
    bool is_deeper = false;
    for (size_t i = part.first; i < part.end; i++) {
        const struct trace_span *span = &building->trace->spans[i];
        /* What began before the step, such as a range around all steps, is no part of it. */
        if (span->class != CLASS_PHASE || span->begin < building->window.begin) {
            continue;
        }
        while (depth > 0 && ends[depth - 1] <= span->begin) {
            depth--;
        }
        if (depth == wanted && is_seen(building, span)) {
            add_span(building, i);
        }
        is_deeper = is_deeper || (depth > wanted && is_seen(building, span));
        if (depth < TRACE_MAX_LEVELS) {
            ends[depth++] = span->end;
        }
    }
    return is_deeper;
}

static void add_class(struct building *building, struct trace_part part, enum trace_class class)
{
    for (size_t i = part.first; i < part.end; i++) {
        const struct trace_span *span = &building->trace->spans[i];
        if (span->class == class && is_seen(building, span)) {
            add_span(building, i);
        }
    }
}

static bool has_class(const struct building *building, struct trace_part part, enum trace_class class)
{
    for (size_t i = part.first; i < part.end; i++) {
        const struct trace_span *span = &building->trace->spans[i];
        if (span->class == class && is_seen(building, span)) {
            return true;
        }
    }
    return false;
}

/* Waits last: they are what must be seen. */
static void add_thread(struct building *building, int64_t track, const char *label, int least_levels)
{
    struct trace_part part = trace_find_spans(building->trace, building->step->rank, track);
    bool is_deeper = least_levels > 0 || has_class(building, part, CLASS_PHASE);
    for (int level = 0; level < building->max_levels && (is_deeper || level < least_levels); level++) {
        begin_row(building, level == 0 ? label : "", level, true);
        is_deeper = add_phases(building, part, level);
    }
    bool has_ops = has_class(building, part, CLASS_OP) || has_class(building, part, CLASS_WAIT);
    if (least_levels > 0 || has_ops) {
        begin_row(building, "ops and waits", -1, false);
        add_class(building, part, CLASS_OP);
        add_class(building, part, CLASS_WAIT);
    }
}

static void add_lanes(struct building *building)
{
    struct trace_part tracks = trace_find_tracks(building->trace, building->step->rank);
    for (size_t i = tracks.first; i < tracks.end; i++) {
        const struct trace_track *track = &building->trace->tracks[i];
        struct trace_part part = trace_find_spans(building->trace, building->step->rank, track->track);
        if (has_class(building, part, CLASS_COLLECTIVE)) {
            begin_row(building, track->name, -1, true);
            add_class(building, part, CLASS_COLLECTIVE);
        }
    }
}

static void add_others(struct building *building)
{
    struct trace_part tracks = trace_find_tracks(building->trace, building->step->rank);
    for (size_t i = tracks.first; i < tracks.end; i++) {
        const struct trace_track *track = &building->trace->tracks[i];
        if (track->track != building->step->track) {
            add_thread(building, track->track, track->name, 0);
        }
    }
}

bool trace_list_rows(const struct trace *trace, const struct trace_step *step, struct trace_window window,
                     bool is_whole, struct trace_rows *rows_out)
{
    struct trace_part part = trace_find_rank_spans(trace, step->rank);
    struct building building = {.trace = trace,
                                .step = step,
                                .window = window,
                                .max_levels = is_whole ? TRACE_MAX_LEVELS : TRACE_LEVELS,
                                .rows = rows_out,
                                .is_good = true};
    *rows_out = (struct trace_rows){.spans = calloc(part.end - part.first + 1, sizeof rows_out->spans[0])};
    building.is_good = rows_out->spans != NULL;
    if (building.is_good) {
        add_thread(&building, step->track, "runs", TRACE_LEVELS);
    }
    if (building.is_good) {
        add_lanes(&building);
    }
    if (building.is_good && is_whole) {
        add_others(&building);
    }
    return building.is_good;
}

void trace_rows_free(struct trace_rows *rows)
{
    free(rows->rows);
    free(rows->spans);
    *rows = (struct trace_rows){0};
}

struct trace_window trace_step_window(const struct trace *trace, int64_t number)
{
    struct trace_window window = {0.0, 0.0};
    bool has_step = false;
    for (size_t i = 0; i < trace->n_steps; i++) {
        const struct trace_step *step = &trace->steps[i];
        if (step->number == number) {
            window.begin = !has_step || step->begin < window.begin ? step->begin : window.begin;
            window.end = !has_step || step->end > window.end ? step->end : window.end;
            has_step = true;
        }
    }
    return window;
}

const char *trace_span_class(const struct trace_span *span, int level)
{
    static const char *const works[WORK_COUNT] = {
        [WORK_GATHER] = "gather", [WORK_REDUCE] = "reduce", [WORK_OTHER] = "other"};
    if (span->class == CLASS_PHASE) {
        return level % 2 == 0 ? "p0" : "p1";
    }
    if (span->class == CLASS_COLLECTIVE) {
        return works[span->work];
    }
    return span->class == CLASS_WAIT ? "wait" : "op";
}
