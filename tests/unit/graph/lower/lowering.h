/* SPDX-License-Identifier: MIT */
/* Graphs from text, lowered, as text. */
#ifndef TESTS_UNIT_GRAPH_LOWERING_H
#define TESTS_UNIT_GRAPH_LOWERING_H

#include <stdio.h>
#include <string.h>

#include "graph/plan/plan.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "unit/graph/run/plan_check.h"

enum {
    LOWER_TEXT_BYTES = 1 << 16
};

struct lower_text {
    size_t length;
    char bytes[LOWER_TEXT_BYTES];
};

static inline int lower_take_text(void *context, const char *text, size_t bytes)
{
    struct lower_text *whole = context;
    if (whole->length + bytes >= sizeof whole->bytes) {
        return 1;
    }
    memcpy(whole->bytes + whole->length, text, bytes);
    whole->length += bytes;
    whole->bytes[whole->length] = '\0';
    return 0;
}

/* The plan of a graph for one rank of two or more, checked; NULL, with a failed check, when there is none. options may be NULL. */
static inline struct shoal_plan *lower_parse(const char *text, const shoal_compile_options *options, int rank)
{
    shoal_compile_options defaults = SHOAL_COMPILE_OPTIONS_INIT;
    struct plan_target target = {.rank = rank};
    struct shoal_plan *plan = NULL;
    shoal_graph *graph = NULL;
    if (!CHECK_OK(shoal_graph_parse(text, strlen(text), &graph))) {
        return NULL;
    }
    (void)CHECK_OK(shoal_graph_lint(graph));
    if (CHECK_OK(plan_lower(graph, options ? options : &defaults, &target, &plan))) {
        (void)CHECK_OK(plan_check(plan));
    }
    shoal_graph_free(graph);
    return plan;
}

static inline const char *lower_print(const struct shoal_plan *plan, struct lower_text *text)
{
    text->length = 0;
    text->bytes[0] = '\0';
    if (plan) {
        (void)CHECK_OK(shoal_plan_print(plan, lower_take_text, text));
    }
    return text->bytes;
}

/* The plan for a rank must print exactly so. */
static inline void lower_check(const char *graph, const shoal_compile_options *options, int rank,
                               const char *expected)
{
    static struct lower_text text;
    struct shoal_plan *plan = lower_parse(graph, options, rank);
    if (strcmp(lower_print(plan, &text), expected) != 0) {
        test_failed(__FILE__, __LINE__, "the plan is\n%s\nexpected\n%s", text.bytes, expected);
    }
    plan_destroy(plan);
}

#endif
