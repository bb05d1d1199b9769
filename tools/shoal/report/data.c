/* SPDX-License-Identifier: MIT */
/*
 * Columns of the log become typed arrays, little-endian. Those whose values are multiples of a scale are u32, of which
 * the largest means that there is no value; others are f64. The validation loss, which few steps have, is a list of
 * indices and one of values.
 */
#include "report/data.h"
#include "report/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_VALUE UINT32_MAX

/* Columns ------------------------------------------------------------------------------------------------ */

static void put_u32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (unsigned char)(value >> 8 * i);
    }
}

static void put_f64(unsigned char *to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(to, (uint32_t)bits);
    put_u32(to + 4, (uint32_t)(bits >> 32));
}

static bool fits_u32(const double *values, size_t n_values, double scale)
{
    for (size_t i = 0; i < n_values; i++) {
        double n = isfinite(values[i]) ? round(values[i] / scale) : 0.0;
        if (n < 0.0 || n >= (double)NO_VALUE) {
            return false;
        }
    }
    return scale > 0.0;
}

static uint32_t to_u32(double value, double scale)
{
    return isfinite(value) ? (uint32_t)round(value / scale) : NO_VALUE;
}

/* `room` has 12 bytes for each step. */
static void put_whole(FILE *out, const double *values, size_t n_values, double scale, unsigned char *room)
{
    bool is_u32 = fits_u32(values, n_values, scale);
    size_t value_bytes = is_u32 ? 4 : 8;
    for (size_t i = 0; i < n_values && is_u32; i++) {
        put_u32(room + i * 4, to_u32(values[i], scale));
    }
    for (size_t i = 0; i < n_values && !is_u32; i++) {
        put_f64(room + i * 8, values[i]);
    }
    fprintf(out, "{\"kind\":\"%s\",\"per\":%.0f,\"data\":\"", is_u32 ? "u32" : "f64",
            is_u32 ? round(1.0 / scale) : 1.0);
    html_base64(out, room, n_values * value_bytes);
    fputs("\"}", out);
}

static void put_sparse(FILE *out, const double *values, size_t n_values, unsigned char *room)
{
    size_t count = 0;
    unsigned char *numbers = room + n_values * 8;
    for (size_t i = 0; i < n_values; i++) {
        if (isfinite(values[i])) {
            put_f64(room + count * 8, values[i]);
            put_u32(numbers + count * 4, (uint32_t)i);
            count++;
        }
    }
    fputs("{\"kind\":\"sparse\",\"at\":\"", out);
    html_base64(out, numbers, count * 4);
    fputs("\",\"data\":\"", out);
    html_base64(out, room, count * 8);
    fputs("\"}", out);
}

static bool is_consecutive(const struct log *log)
{
    return log->n_steps == 0 || log->steps[log->n_steps - 1] - log->steps[0] == (int64_t)log->n_steps - 1;
}

static void put_columns(FILE *out, const struct log *log, unsigned char *room)
{
    fprintf(out, "\"n\":%zu,\"first\":%lld,\"numbers\":", log->n_steps,
            log->n_steps > 0 ? (long long)log->steps[0] : 1);
    if (is_consecutive(log)) {
        fputs("null", out);
    } else {
        for (size_t i = 0; i < log->n_steps; i++) {
            put_f64(room + i * 8, (double)log->steps[i]);
        }
        fputs("{\"kind\":\"f64\",\"per\":1,\"data\":\"", out);
        html_base64(out, room, log->n_steps * 8);
        fputs("\"}", out);
    }
    fputs(",\"columns\":{", out);
    for (int i = 0; i < LOG_N_FIELDS; i++) {
        fprintf(out, "%s\"%s\":", i > 0 ? "," : "", log_fields[i].name);
        if (i == LOG_VAL_LOSS) {
            put_sparse(out, log->values[i], log->n_steps, room);
        } else {
            put_whole(out, log->values[i], log->n_steps, log_fields[i].scale, room);
        }
    }
    fputs("},\"resumed\":[", out);
    for (size_t i = 1; i < log->n_runs; i++) {
        fprintf(out, "%s%lld", i > 1 ? "," : "", (long long)log->resumed[i]);
    }
    fputs("]", out);
}

/* The timeline ------------------------------------------------------------------------------------------- */

struct timeline {
    FILE *out;
    const struct trace *trace;
    struct trace_window window;
};

/* [begin, length, busy, class, name, unit, bytes], times in microseconds from the begin of the window */
static void put_span(const struct timeline *timeline, const struct trace_span *span, int level)
{
    fprintf(timeline->out, "[%.3f,%.3f,%.3f,\"%s\",", span->begin - timeline->window.begin,
            span->end - span->begin,
            span->class == CLASS_COLLECTIVE ? span->carried : span->end - span->begin,
            trace_span_class(span, level));
    html_json(timeline->out, span->name);
    fputc(',', timeline->out);
    html_json(timeline->out, span->unit);
    fprintf(timeline->out, ",%llu]", (unsigned long long)span->bytes);
}

static void put_row(const struct timeline *timeline, const struct trace_rows *rows,
                    const struct trace_row *row)
{
    fputs("{\"label\":", timeline->out);
    html_json(timeline->out, row->label);
    fprintf(timeline->out, ",\"text\":%s,\"spans\":[", row->has_text ? "true" : "false");
    for (size_t i = row->first; i < row->end; i++) {
        fputs(i > row->first ? "," : "", timeline->out);
        put_span(timeline, &timeline->trace->spans[rows->spans[i]], row->level);
    }
    fputs("]}", timeline->out);
}

static bool put_rank(const struct timeline *timeline, const struct trace_step *step)
{
    struct trace_rows rows;
    bool is_good = trace_list_rows(timeline->trace, step, timeline->window, true, &rows);
    fprintf(timeline->out, "{\"rank\":%d,\"begin\":%.3f,\"end\":%.3f,\"rows\":[", step->rank,
            step->begin - timeline->window.begin, step->end - timeline->window.begin);
    for (size_t i = 0; is_good && i < rows.n_rows; i++) {
        fputs(i > 0 ? ",\n" : "", timeline->out);
        put_row(timeline, &rows, &rows.rows[i]);
    }
    fputs("]}", timeline->out);
    trace_rows_free(&rows);
    return is_good;
}

static bool put_timeline(FILE *out, const struct trace *trace, int64_t number)
{
    struct timeline timeline = {out, trace, trace_step_window(trace, number)};
    bool is_good = true;
    bool is_first = true;
    fprintf(out, ",\n\"timeline\":{\"step\":%lld,\"length\":%.3f,\"ranks\":[", (long long)number,
            timeline.window.end - timeline.window.begin);
    for (size_t i = 0; i < trace->n_steps && is_good; i++) {
        if (trace->steps[i].number == number) {
            fputs(is_first ? "" : ",\n", out);
            is_first = false;
            is_good = put_rank(&timeline, &trace->steps[i]);
        }
    }
    fputs("]}", out);
    return is_good;
}

bool data_write(FILE *out, const struct log *log, const struct trace *trace, int64_t step)
{
    unsigned char *room = calloc(log->n_steps + 1, 12);
    if (!room) {
        return false;
    }
    fputs("{", out);
    put_columns(out, log, room);
    free(room);
    bool is_good = !trace || put_timeline(out, trace, step);
    fputs("}\n", out);
    return is_good;
}
