/* SPDX-License-Identifier: MIT */
/*
 * Draws one step as a picture. Each rank has its thread, with what it runs (three levels of modules, passes and ranges)
 * and below that ops and waits, and its lanes with their collectives. The time in which a collective was issued but no
 * thread of the rank was busy with it is drawn hollow. Colours follow the reader's light or dark mode.
 */
#include "trace/trace.h"
#include "common/output.h"
#include "common/tool.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LABEL_WIDTH = 190,
    PLOT_WIDTH = 1100,
    ROW_HEIGHT = 18,
    ROW_GAP = 3,
    RANK_GAP = 14,
    TOP = 56,
    BOTTOM = 34,
    MAX_TICKS = 12, /* of the axis */
    TICK_TEXT_WIDTH = 32
};
/* What is narrower is drawn this wide, and left out where something as wide was drawn already. */
#define LEAST_WIDTH 0.4
/* A hollow part that is narrower is not told apart. */
#define LEAST_HOLLOW 1.5
/* Of a character of the text in boxes. */
#define CHARACTER_WIDTH 5.6

struct drawing {
    FILE *out;
    const struct trace *trace;
    double begin;
    double scale; /* pixels of a microsecond */
    double end;
    int y;
};

/* Colours by class and not by variable, which programs that are no browsers do not know. */
static const char *const style =
    "<style>\n"
    "svg{font:10px ui-sans-serif,system-ui,sans-serif}\n"
    ".p0,.p1{stroke-width:.6}.gather,.reduce,.other{stroke-width:0}.hollow{fill-opacity:.12;stroke-width:.8}"
    "\n"
    "text{fill:#1b1f24}.s{fill:#6b7280}.l,.p0,.p1{stroke:#d5d9de}.op{fill:#5b8def}.p0{fill:#c9d4e5}.p1{fill:#"
    "dfe6f0}"
    ".wait{fill:#d9483b}.gather{fill:#2f9e6e;stroke:#2f9e6e}.reduce{fill:#b0752a;stroke:#b0752a}"
    ".other{fill:#8a63c9;stroke:#8a63c9}\n"
    "@media(prefers-color-scheme:dark){"
    "text{fill:#e6e8eb}.s{fill:#9aa3ad}.l,.p0,.p1{stroke:#3a4149}.op{fill:#6b9bff}.p0{fill:#38465c}.p1{fill:#"
    "2b3646}"
    ".wait{fill:#f0695c}.gather{fill:#2f8a63;stroke:#45bd8a}.reduce{fill:#9a6a24;stroke:#d39a4a}"
    ".other{fill:#7552b8;stroke:#a98be0}}\n"
    "</style>\n";

/* U+FFFE and U+FFFF, which XML does not have. */
static bool is_no_character(const char *text)
{
    return memcmp(text, "\xef\xbf", 2) == 0 && ((unsigned char)text[2] & 0xfe) == 0xbe;
}

/* So many characters of a text that is UTF-8. XML has no control characters, but for tabs and line ends. */
static void put_text(FILE *out, const char *text, size_t most)
{
    static const char *const names[256] = {['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;"};
    size_t n_characters = 0;
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        n_characters += (byte & 0xc0) != 0x80;
        if (n_characters > most) {
            return;
        }
        if (names[byte]) {
            fputs(names[byte], out);
        } else if (strncmp(text, "\xef\xbf", 2) == 0 && is_no_character(text)) {
            fputc('?', out);
            text += 2;
        } else {
            fputc(byte < ' ' && !strchr("\t\n\r", byte) ? '?' : byte, out);
        }
    }
}

static size_t count_characters(const char *text)
{
    size_t n_characters = 0;
    for (; *text; text++) {
        n_characters += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n_characters;
}

/*
 * Chooses which part of a name is written into a box: all of it; the name without its type, "h.0" of "h.0 (block)"; or
 * the unit. Returns 0 if nothing fits.
 */
static size_t choose_text(const struct trace_span *span, size_t n_fitting, const char **text_out)
{
    size_t length = count_characters(span->name);
    const char *type = strstr(span->name, " (");
    *text_out = span->name;
    if (length <= n_fitting) {
        return length;
    }
    if (type && span->class == CLASS_PHASE) {
        length = (size_t)(type - span->name);
    } else if (span->unit[0]) {
        *text_out = span->unit;
        length = count_characters(span->unit);
    }
    return length <= n_fitting ? length : 0;
}

static double x_of(const struct drawing *drawing, double instant)
{
    return LABEL_WIDTH + (instant - drawing->begin) * drawing->scale;
}

/* "all_gather h.0, 3.000 ms, busy 0.500 ms, 2.0 KiB", which viewers show under the pointer. */
static void put_title(const struct drawing *drawing, const struct trace_span *span)
{
    fputs("<title>", drawing->out);
    put_text(drawing->out, span->name, 200);
    fprintf(drawing->out, ", %.3f ms", (span->end - span->begin) * 1e-3);
    if (span->carried < span->end - span->begin) {
        fprintf(drawing->out, ", busy %.3f ms", span->carried * 1e-3);
    }
    if (span->bytes > 0) {
        fprintf(drawing->out, ", %.1f KiB", (double)span->bytes / 1024.0);
    }
    fputs("</title>", drawing->out);
}

static void put_box(const struct drawing *drawing, const struct trace_span *span, const char *class,
                    double from, double width)
{
    fprintf(drawing->out, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\">", class, from,
            drawing->y, width, ROW_HEIGHT);
    if (width >= 2.0) {
        put_title(drawing, span);
    }
    fputs("</rect>\n", drawing->out);
}

/*
 * Draws a span of the current row. A collective that was issued before a thread was busy with it gets a hollow box, and
 * a filled box for the busy time. The busy time is assumed to be at the end, as in the table of sums.
 */
static void draw_boxes(const struct drawing *drawing, const struct trace_span *span, const char *class,
                       double from, double width)
{
    double busy = span->carried * drawing->scale;
    if (span->class != CLASS_COLLECTIVE || busy + LEAST_HOLLOW > width) {
        put_box(drawing, span, class, from, width);
        return;
    }
    char hollow[32];
    (void)snprintf(hollow, sizeof hollow, "%s hollow", class);
    put_box(drawing, span, hollow, from, width);
    if (span->end <= drawing->end) {
        busy = busy > LEAST_WIDTH ? busy : LEAST_WIDTH;
        put_box(drawing, span, class, from + width - busy, busy);
    }
}

/* Draws a span at the current row. *drawn_to: how far the row is drawn already. */
static void draw_span(struct drawing *drawing, const struct trace_span *span, const char *class,
                      bool has_text, double *drawn_to)
{
    double from = x_of(drawing, span->begin > drawing->begin ? span->begin : drawing->begin);
    double to = x_of(drawing, span->end < drawing->end ? span->end : drawing->end);
    double width = to - from > LEAST_WIDTH ? to - from : LEAST_WIDTH;
    if (span->end <= drawing->begin || span->begin >= drawing->end || from + width <= *drawn_to + 0.05) {
        return;
    }
    *drawn_to = from + width;
    draw_boxes(drawing, span, class, from, width);
    const char *text = NULL;
    size_t n_characters = has_text ? choose_text(span, (size_t)(width / CHARACTER_WIDTH), &text) : 0;
    if (n_characters > 0) {
        fprintf(drawing->out, "<text x=\"%.2f\" y=\"%d\">", from + 3, drawing->y + ROW_HEIGHT - 5);
        put_text(drawing->out, text, n_characters);
        fputs("</text>\n", drawing->out);
    }
}

static void put_label(const struct drawing *drawing, const char *name, const char *class)
{
    fprintf(drawing->out, "<text class=\"%s\" x=\"8\" y=\"%d\">", class, drawing->y + ROW_HEIGHT - 5);
    put_text(drawing->out, name, 34);
    fputs("</text>\n", drawing->out);
}

static void next_row(struct drawing *drawing)
{
    drawing->y += ROW_HEIGHT + ROW_GAP;
}

static void draw_row(struct drawing *drawing, const struct trace_rows *rows, const struct trace_row *row)
{
    double drawn_to = 0.0;
    enum trace_class last = CLASS_OP;
    put_label(drawing, row->label, "s");
    for (size_t i = row->first; i < row->end; i++) {
        const struct trace_span *span = &drawing->trace->spans[rows->spans[i]];
        /* Waits are drawn over ops. */
        drawn_to = span->class == last ? drawn_to : 0.0;
        last = span->class;
        draw_span(drawing, span, trace_span_class(span, row->level), row->has_text, &drawn_to);
    }
    next_row(drawing);
}

static void draw_rank(struct drawing *drawing, const struct trace_step *step, const struct trace_rows *rows)
{
    char label[64];
    (void)snprintf(label, sizeof label, "rank %d", step->rank);
    put_label(drawing, label, "r");
    next_row(drawing);
    for (size_t i = 0; i < rows->n_rows; i++) {
        draw_row(drawing, rows, &rows->rows[i]);
    }
    drawing->y += RANK_GAP;
}

static void draw_legend(const struct drawing *drawing, int64_t step)
{
    static const struct {
        const char *class;
        const char *text;
    } rows[] = {{"op", "op"},
                {"wait", "wait: exposed"},
                {"gather", "gather"},
                {"reduce", "reduction"},
                {"other", "barrier and others"},
                {"other hollow", "issued: no thread is busy with it yet"}};
    fprintf(drawing->out, "<text x=\"8\" y=\"18\">step %lld, %.3f ms</text>\n", (long long)step,
            (drawing->end - drawing->begin) * 1e-3);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int x = LABEL_WIDTH + (int)i * 120;
        fprintf(drawing->out,
                "<rect class=\"%s\" x=\"%d\" y=\"9\" width=\"11\" height=\"11\"/><text x=\"%d\" "
                "y=\"18\">%s</text>\n",
                rows[i].class, x, x + 16, rows[i].text);
    }
}

/* Ten parts or so, of 1, 2 or 5 times a power of ten. */
static double choose_tick(double length)
{
    double tick = 1e-3;
    static const double factors[] = {2.0, 2.5, 2.0};
    for (int i = 0; tick * MAX_TICKS < length; i++) {
        tick *= factors[i % 3];
    }
    return tick;
}

static void draw_axis(const struct drawing *drawing, int bottom)
{
    double length = drawing->end - drawing->begin;
    double tick = choose_tick(length);
    for (int i = 0; i <= MAX_TICKS && i * tick <= length; i++) {
        double at = i * tick;
        double x = x_of(drawing, drawing->begin + at);
        fprintf(drawing->out, "<line class=\"l\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/>", x, x,
                TOP - 18, bottom);
        if (x < LABEL_WIDTH + PLOT_WIDTH - TICK_TEXT_WIDTH) {
            fprintf(drawing->out, "<text class=\"s\" x=\"%.2f\" y=\"%d\">%g ms</text>\n", x + 2, TOP - 10,
                    at * 1e-3);
        }
    }
}

static void draw(struct drawing *drawing, int64_t number, const struct trace_rows *ranks, bool has_style)
{
    int height = TOP + BOTTOM;
    size_t n_ranks = 0;
    for (size_t i = 0; i < drawing->trace->n_steps; i++) {
        if (drawing->trace->steps[i].number == number) {
            height += ((int)ranks[n_ranks++].n_rows + 1) * (ROW_HEIGHT + ROW_GAP) + RANK_GAP;
        }
    }
    fprintf(drawing->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n%s",
            LABEL_WIDTH + PLOT_WIDTH + 12, height, LABEL_WIDTH + PLOT_WIDTH + 12, height,
            has_style ? style : "");
    draw_legend(drawing, number);
    draw_axis(drawing, height - BOTTOM);
    drawing->y = TOP;
    n_ranks = 0;
    for (size_t i = 0; i < drawing->trace->n_steps; i++) {
        if (drawing->trace->steps[i].number == number) {
            draw_rank(drawing, &drawing->trace->steps[i], &ranks[n_ranks++]);
        }
    }
    fputs("</svg>\n", drawing->out);
}

static bool list_rows(const struct trace *trace, int64_t number, struct trace_window window,
                      struct trace_rows *ranks)
{
    size_t n_ranks = 0;
    for (size_t i = 0; i < trace->n_steps; i++) {
        if (trace->steps[i].number == number &&
            !trace_list_rows(trace, &trace->steps[i], window, false, &ranks[n_ranks++])) {
            return false;
        }
    }
    return true;
}

bool trace_draw_svg(FILE *out, const struct trace *trace, int64_t number, bool has_style)
{
    struct trace_window window = trace_step_window(trace, number);
    struct drawing drawing = {.out = out, .trace = trace, .begin = window.begin, .end = window.end};
    struct trace_rows *ranks = calloc(trace->n_steps + 1, sizeof *ranks);
    drawing.scale = drawing.end > drawing.begin ? PLOT_WIDTH / (drawing.end - drawing.begin) : 0.0;
    bool is_good = ranks && list_rows(trace, number, window, ranks);
    if (is_good) {
        draw(&drawing, number, ranks, has_style);
    }
    for (size_t i = 0; ranks && i < trace->n_steps; i++) {
        trace_rows_free(&ranks[i]);
    }
    free(ranks);
    return is_good;
}

bool trace_write_svg(const struct trace *trace, int64_t number, const char *path)
{
    struct tool_output output;
    bool is_good = tool_output_open(path, &output) == SHOAL_OK;
    if (is_good && !trace_draw_svg(output.stream, trace, number, true)) {
        tool_output_drop(&output);
        fprintf(stderr, "%s: %s: there is no memory\n", tool_name(), path);
        return false;
    }
    is_good = is_good && tool_output_commit(&output) == SHOAL_OK;
    if (!is_good) {
        fprintf(stderr, "%s: %s\n", tool_name(), shoal_error_text());
    }
    return is_good;
}
