/* SPDX-License-Identifier: MIT */
/* What `shoal bench passes` measures: graphs of any size, what is done with them, and how that is checked. */
#ifndef BENCH_PASSES_H
#define BENCH_PASSES_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/graph.h"

struct bench_passes_model; /* bench/passes_capture.c */

/* One round. The graph, and the text if the case reads one, are made before the clock starts. */
struct bench_passes_round {
    shoal_graph *graph;               /* of a parser or a capture: what it gave */
    struct bench_passes_model *model; /* that is captured; NULL if there is none */
    char *text;
    size_t text_bytes;
    size_t n_nodes;       /* before */
    size_t n_starts;      /* of communication, before */
    size_t n_exposed;     /* waits directly behind their starts, before */
    size_t n_buckets;     /* that the pass has reported */
    size_t n_written;     /* bytes that were printed */
    size_t n_erased;      /* by remove_dead */
    size_t n_dead;        /* that it shall erase */
    size_t n_parsed_into; /* nodes of the text that is parsed */
};

struct bench_passes_case {
    const char *name;
    const char *section; /* of the specification of graphs */
    size_t nodes_per_unit;
    shoal_status (*build)(struct bench_passes_round *round, size_t n_units);
    shoal_status (*run)(struct bench_passes_round *round);
    size_t (*count_wrong)(const struct bench_passes_round *round);
};

extern const struct bench_passes_case bench_passes_cases[];
extern const size_t bench_passes_n_cases;

/* Capturing a step: its unit is a layer, up to 12. */
extern const struct bench_passes_case bench_passes_capturing;

/* NULL when there is none of that name. */
const struct bench_passes_case *bench_passes_find(const char *name);

/* Makes the graph of a round. What was made is freed by bench_passes_end, after a failure too. */
shoal_status bench_passes_begin(const struct bench_passes_case *one, size_t n_units,
                                struct bench_passes_round *round);
void bench_passes_end(struct bench_passes_round *round);

/* What bench_passes_capturing does. */
shoal_status bench_passes_make_model(struct bench_passes_round *round, size_t n_layers);
void bench_passes_free_model(struct bench_passes_model *model); /* NULL is allowed */
shoal_status bench_passes_capture(struct bench_passes_round *round);
size_t bench_passes_check_captured(const struct bench_passes_round *round);

#endif
