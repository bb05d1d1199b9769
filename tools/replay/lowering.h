/* SPDX-License-Identifier: MIT */
/*
 * Decisions of a lowering, in words that two compilers have in common: for each collective, in the order of their starts,
 * whether it works in place or makes a new tensor, and what it works on; then the order of starts and waits. Kernels,
 * their fusion, names and numbers of buffers are left out.
 */
#ifndef REPLAY_LOWERING_H
#define REPLAY_LOWERING_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "shoal/graph.h"

#define LOWERING_TEXT_BYTES 4096
#define LOWERING_MAX_COLLECTIVES 32

struct lowering_text {
    char bytes[LOWERING_TEXT_BYTES];
    size_t length;
};

void lowering_write(struct lowering_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether something may have been cut off. */
bool lowering_is_full(const struct lowering_text *text);

/* What a collective works on. */
enum lowering_source {
    LOWERING_INPUT,    /* an input of the graph itself */
    LOWERING_COPY,     /* a copy of an input, or of a value that something else uses too */
    LOWERING_TEMPORARY /* what its producer wrote */
};

/* Collects decisions, whoever made them. */
struct lowering_decisions {
    struct lowering_text collectives;
    struct lowering_text order;
    bool is_waited[LOWERING_MAX_COLLECTIVES];
    bool hides[LOWERING_MAX_COLLECTIVES]; /* a kernel stands between start and wait */
    size_t n_started;
};

void lowering_begin(struct lowering_decisions *self, const char *name, bool is_in_place);
void lowering_add_source(struct lowering_decisions *self, enum lowering_source source);
void lowering_add_wait(struct lowering_decisions *self, size_t collective);
void lowering_add_kernel(struct lowering_decisions *self);
/* All of them in one line. */
void lowering_finish(const struct lowering_decisions *self, struct lowering_text *line);

/* A function of Inductor's recording. These return false with the reason. */

/* The graph before lowering, as text of ours. */
bool lowering_read_graph(const json_t *before, int n_ranks, struct lowering_text *graph,
                         struct lowering_text *reason);
/* What Inductor decided. */
bool lowering_read_steps(const json_t *before, const json_t *steps, struct lowering_decisions *decisions,
                         struct lowering_text *reason);
/* What we decide. */
bool lowering_decide(const struct lowering_text *graph, bool reorders, struct lowering_decisions *decisions,
                     struct lowering_text *reason);

/* The base name of a collective's target ("all_reduce"), or NULL if the target is none. */
const char *lowering_collective_name(const char *target);

#endif
