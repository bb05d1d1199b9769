/* SPDX-License-Identifier: MIT */
/*
 * Charts of the page as SVG, for readers without JavaScript; with it, page.js draws the same, in the width of the
 * window and zoomed. Where a pixel has several steps, a band goes from the lowest value to the highest, and a line
 * through their mean.
 */
#ifndef REPORT_CHART_H
#define REPORT_CHART_H

#include "report/log.h"

#include <stdio.h>

enum {
    CHART_MAX_SERIES = 3
};

/* A row of the table of charts. */
struct chart {
    const char *name;  /* of the chart, in the page */
    const char *title; /* for people */
    const char *unit;  /* behind values; "" if there is none */
    bool is_half;      /* two of these stand side by side */
    bool is_stacked;   /* values of a series are added to those before it */
    bool from_zero;    /* the axis begins there, and leaves out a few very high values */
    struct chart_series {
        enum log_field field;
        const char *label;
    } series[CHART_MAX_SERIES];
    size_t n_series;
};

extern const struct chart charts[];
extern const size_t n_charts;

/* Whether there is anything to draw. */
bool chart_has_values(const struct chart *chart, const struct log *log);
/* Returns false if memory runs out. */
bool chart_draw(FILE *out, const struct chart *chart, const struct log *log);
/* The value as people read it: "2.0375", "14.22". */
void chart_number(FILE *out, enum log_field field, double value);

#endif
