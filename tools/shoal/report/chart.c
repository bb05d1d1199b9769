/* SPDX-License-Identifier: MIT */
#include "report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1080,
    HALF_WIDTH = 528,
    HEIGHT = 220,
    HALF_HEIGHT = 160,
    LEFT = 56,
    RIGHT = 10,
    TOP = 10,
    BOTTOM = 24,
    N_X_TICKS = 8,
    N_Y_TICKS = 4
};
/* An axis from zero reaches this much beyond the value that so many are below. */
#define USUAL_PART 0.99
#define HEADROOM 1.5

const struct chart charts[] = {
    {.name = "loss",
     .title = "Loss",
     .unit = "",
     .series = {{LOG_LOSS, "training"}, {LOG_VAL_LOSS, "validation"}},
     .n_series = 2},
    {.name = "lr",
     .title = "Learning rate",
     .unit = "",
     .is_half = true,
     .from_zero = true,
     .series = {{LOG_LR, "rate"}},
     .n_series = 1},
    {.name = "norm",
     .title = "Gradient norm",
     .unit = "",
     .is_half = true,
     .from_zero = true,
     .series = {{LOG_NORM, "norm"}},
     .n_series = 1},
    {.name = "time",
     .title = "Step time, rank 0",
     .unit = " ms",
     .is_stacked = true,
     .from_zero = true,
     .series = {{LOG_COMPUTE_MS, "compute"}, {LOG_EXPOSED_MS, "exposed communication"}},
     .n_series = 2},
    {.name = "comm",
     .title = "Communication, rank 0",
     .unit = " ms",
     .is_half = true,
     .from_zero = true,
     .series = {{LOG_EXPOSED_MS, "exposed"}, {LOG_HIDDEN_MS, "hidden"}},
     .n_series = 2},
    {.name = "memory",
     .title = "Memory, largest rank",
     .unit = " MB",
     .is_half = true,
     .from_zero = true,
     .series = {{LOG_MEMORY_MB, "memory"}},
     .n_series = 1},
};
const size_t n_charts = sizeof charts / sizeof charts[0];

/* That is drawn: sums and differences of larger numbers are infinite. */
#define LARGEST 1e300

/* Numbers ------------------------------------------------------------------------------------------------ */

void chart_number(FILE *out, enum log_field field, double value)
{
    if (!isfinite(value)) {
        fputs("\xe2\x80\x93", out); /* a dash */
    } else if (fabs(value) > 1e12) {
        fprintf(out, "%.4g", value);
    } else if (field == LOG_LOSS || field == LOG_VAL_LOSS) {
        fprintf(out, "%.4f", value);
    } else if (log_fields[field].scale > 0.0) {
        fprintf(out, "%.2f", value);
    } else {
        fprintf(out, "%.4g", value);
    }
}

/* Axes --------------------------------------------------------------------------------------------------- */

struct drawing {
    FILE *out;
    const struct log *log;
    const struct chart *chart;
    double width; /* of the plot, and its height */
    double height;
    double first; /* step at its left end, and at its right one */
    double last;
    double low; /* value at its lower end, and at its upper one */
    double high;
    double *room; /* for a value of each step */
};

static double x_of(const struct drawing *drawing, double step)
{
    double length = drawing->last - drawing->first;
    return LEFT + (length > 0.0 ? (step - drawing->first) / length : 0.5) * drawing->width;
}

static double y_of(const struct drawing *drawing, double value)
{
    double length = drawing->high - drawing->low;
    double part = length > 0.0 ? (value - drawing->low) / length : 0.5;
    part = part > 1.0 ? 1.0 : part < 0.0 ? 0.0 : part;
    return TOP + (1.0 - part) * drawing->height;
}

static double value_at(const struct drawing *drawing, size_t series, size_t index)
{
    const struct chart *chart = drawing->chart;
    double sum = 0.0;
    for (size_t i = chart->is_stacked ? 0 : series; i <= series; i++) {
        double value = drawing->log->values[chart->series[i].field][index];
        sum += value > LARGEST ? LARGEST : value < -LARGEST ? -LARGEST : value;
    }
    return sum;
}

static int compare_numbers(const void *x, const void *y)
{
    double a = *(const double *)x;
    double b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static void widen(double *low, double *high, double value)
{
    *low = value < *low ? value : *low;
    *high = value > *high ? value : *high;
}

/* 1, 2 or 5 times a power of ten, so that there are about n_ticks. */
static double choose_tick(double length, int n_ticks)
{
    double least = length / n_ticks;
    double power = pow(10.0, floor(log10(least > 0.0 ? least : 1.0)));
    double times = least / power;
    return power * (times <= 1.0 ? 1.0 : times <= 2.0 ? 2.0 : times <= 5.0 ? 5.0 : 10.0);
}

static void find_range(struct drawing *drawing)
{
    double low = HUGE_VAL;
    double high = -HUGE_VAL;
    for (size_t k = 0; k < drawing->chart->n_series; k++) {
        size_t count = 0;
        for (size_t i = 0; i < drawing->log->n_steps; i++) {
            double value = value_at(drawing, k, i);
            if (isfinite(value)) {
                drawing->room[count++] = value;
            }
        }
        qsort(drawing->room, count, sizeof drawing->room[0], compare_numbers);
        double usual = count > 0 ? drawing->room[(size_t)(USUAL_PART * (double)(count - 1))] * HEADROOM : 0.0;
        if (count > 0) {
            double most = drawing->room[count - 1];
            widen(&low, &high, drawing->chart->from_zero ? 0.0 : drawing->room[0]);
            widen(&low, &high, drawing->chart->from_zero && most > usual ? usual : most);
        }
    }
    double tick = choose_tick(high > low ? high - low : 1.0, N_Y_TICKS);
    drawing->low = high >= low ? floor(low / tick) * tick : 0.0;
    drawing->high = high >= low ? ceil(high / tick) * tick : 1.0;
    drawing->high = drawing->high > drawing->low ? drawing->high : drawing->low + tick;
}

static void draw_axes(const struct drawing *drawing)
{
    double right = LEFT + drawing->width;
    double bottom = TOP + drawing->height;
    double tick = choose_tick(drawing->high - drawing->low, N_Y_TICKS);
    for (int i = 0; drawing->low + i * tick <= drawing->high + tick * 0.01 && i < 20; i++) {
        double value = drawing->low + i * tick;
        double y = y_of(drawing, value);
        fprintf(drawing->out, "<line class=\"grid\" x1=\"%d\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                right, y, y);
        fprintf(drawing->out, "<text class=\"y\" x=\"%d\" y=\"%.1f\">%.6g</text>\n", LEFT - 8, y + 4,
                fabs(value) < tick * 1e-6 ? 0.0 : value);
    }
    int n_ticks = drawing->chart->is_half ? N_X_TICKS / 2 : N_X_TICKS;
    tick = choose_tick(drawing->last - drawing->first, n_ticks);
    tick = tick < 1.0 ? 1.0 : tick;
    double begin = ceil(drawing->first / tick) * tick;
    for (int i = 0; begin + i * tick <= drawing->last && i < 40; i++) {
        double x = x_of(drawing, begin + i * tick);
        if (x > LEFT + 48 && x < right - 56) {
            fprintf(drawing->out, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n", x, bottom + 17,
                    begin + i * tick);
        }
    }
    fprintf(drawing->out,
            "<text class=\"x first\" x=\"%d\" y=\"%.1f\">%.0f</text><text class=\"x last\" x=\"%.1f\" "
            "y=\"%.1f\">%.0f</text>\n",
            LEFT, bottom + 17, drawing->first, right, bottom + 17, drawing->last);
    for (size_t i = 1; i < drawing->log->n_runs; i++) {
        double x = x_of(drawing, (double)drawing->log->resumed[i] + 0.5);
        fprintf(drawing->out, "<line class=\"resumed\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\"/>\n", x,
                x, TOP, bottom);
    }
}

/* Series ------------------------------------------------------------------------------------------------- */

/* The steps of a pixel. */
struct bucket {
    double x;
    double low;
    double high;
    double mean;
};

/* From step *at on, which is moved on. Returns false at the end. */
static bool next_bucket(const struct drawing *drawing, size_t series, size_t *at, struct bucket *bucket)
{
    const struct log *log = drawing->log;
    double sum = 0.0;
    double x_sum = 0.0;
    size_t count = 0;
    int pixel = -1;
    *bucket = (struct bucket){.low = HUGE_VAL, .high = -HUGE_VAL};
    for (; *at < log->n_steps; (*at)++) {
        double value = value_at(drawing, series, *at);
        double x = x_of(drawing, (double)log->steps[*at]);
        if (!isfinite(value)) {
            continue;
        }
        if (pixel >= 0 && (int)x != pixel) {
            break;
        }
        pixel = (int)x;
        widen(&bucket->low, &bucket->high, value);
        sum += value;
        x_sum += x;
        count++;
    }
    bucket->x = count > 0 ? x_sum / (double)count : 0.0;
    bucket->mean = count > 0 ? sum / (double)count : 0.0;
    return count > 0;
}

static void draw_line(const struct drawing *drawing, size_t series, const struct bucket *buckets,
                      size_t count)
{
    const char *name = log_fields[drawing->chart->series[series].field].name;
    bool is_banded = false;
    for (size_t i = 0; i < count; i++) {
        is_banded = is_banded || buckets[i].high > buckets[i].low;
    }
    if (is_banded && !drawing->chart->is_stacked) {
        fprintf(drawing->out, "<path class=\"band %s\" d=\"", name);
        for (size_t i = 0; i < count; i++) {
            fprintf(drawing->out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', buckets[i].x,
                    y_of(drawing, buckets[i].high));
        }
        for (size_t i = count; i > 0; i--) {
            fprintf(drawing->out, "L%.1f %.1f", buckets[i - 1].x, y_of(drawing, buckets[i - 1].low));
        }
        fputs("Z\"/>\n", drawing->out);
    }
    fprintf(drawing->out, "<path class=\"line %s\" d=\"", name);
    for (size_t i = 0; i < count; i++) {
        fprintf(drawing->out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', buckets[i].x,
                y_of(drawing, buckets[i].mean));
    }
    fputs("\"/>\n", drawing->out);
    for (size_t i = 0; i < count && (drawing->chart->series[series].field == LOG_VAL_LOSS || count == 1);
         i++) {
        fprintf(drawing->out, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n", name,
                buckets[i].x, y_of(drawing, buckets[i].mean));
    }
}

/* Drawn from the highest sum down to the first series, each from the axis. */
static void draw_area(const struct drawing *drawing, size_t series, const struct bucket *buckets,
                      size_t count)
{
    double bottom = TOP + drawing->height;
    fprintf(drawing->out, "<path class=\"area %s\" d=\"",
            log_fields[drawing->chart->series[series].field].name);
    for (size_t i = 0; i < count; i++) {
        fprintf(drawing->out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', buckets[i].x,
                y_of(drawing, buckets[i].mean));
    }
    if (count > 0) {
        fprintf(drawing->out, "L%.1f %.1fL%.1f %.1fZ", buckets[count - 1].x, bottom, buckets[0].x, bottom);
    }
    fputs("\"/>\n", drawing->out);
}

static bool draw_series(const struct drawing *drawing, size_t series)
{
    struct bucket *buckets = calloc((size_t)drawing->width + 2, sizeof *buckets);
    size_t count = 0;
    size_t at = 0;
    while (buckets && count < (size_t)drawing->width + 2 &&
           next_bucket(drawing, series, &at, &buckets[count])) {
        count++;
    }
    if (buckets && count > 0 && drawing->chart->is_stacked) {
        draw_area(drawing, series, buckets, count);
    } else if (buckets && count > 0) {
        draw_line(drawing, series, buckets, count);
    }
    free(buckets);
    return buckets != NULL;
}

bool chart_has_values(const struct chart *chart, const struct log *log)
{
    for (size_t k = 0; k < chart->n_series; k++) {
        for (size_t i = 0; i < log->n_steps; i++) {
            if (isfinite(log->values[chart->series[k].field][i])) {
                return true;
            }
        }
    }
    return false;
}

bool chart_draw(FILE *out, const struct chart *chart, const struct log *log)
{
    int width = chart->is_half ? HALF_WIDTH : WIDTH;
    int height = chart->is_half ? HALF_HEIGHT : HEIGHT;
    struct drawing drawing = {.out = out,
                              .log = log,
                              .chart = chart,
                              .width = width - LEFT - RIGHT,
                              .height = height - TOP - BOTTOM,
                              .first = log->n_steps > 0 ? (double)log->steps[0] : 0.0,
                              .last = log->n_steps > 0 ? (double)log->steps[log->n_steps - 1] : 1.0};
    drawing.room = calloc(log->n_steps + 1, sizeof drawing.room[0]);
    bool is_good = drawing.room != NULL;
    fprintf(out, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s by step\">\n", width,
            height, chart->title);
    if (is_good) {
        find_range(&drawing);
        draw_axes(&drawing);
    }
    for (size_t k = chart->n_series; k > 0 && is_good; k--) {
        is_good = draw_series(&drawing, k - 1);
    }
    fputs("</svg>\n", out);
    free(drawing.room);
    return is_good;
}
