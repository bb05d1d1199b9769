/* SPDX-License-Identifier: MIT */
/* Passes by name (shoal/compile.h), and how one is run: observed, drawn, linted. */
#ifndef GRAPH_PASSES_H
#define GRAPH_PASSES_H

#include "graph/graph.h"
#include "shoal/compile.h"

#define PASS(name, function, doc)                                                       \
    shoal_status pass_##function(shoal_graph *graph, const shoal_pass_options *options, \
                                 shoal_pass_report *report, void *context);
#include "graph/passes.def"
#undef PASS

/* What passes of passes.def get as their context: a pass that is made of others does not know where they come from. */
struct pass_services {
    /* Runs a pass by name; `label` is what its observer and pictures call it. */
    shoal_status (*run)(struct shoal_graph *graph, const char *name, size_t bytes, const char *label,
                        const shoal_pass_options *options, shoal_pass_report *report);
};

struct pass {
    const char *name;
    const char *doc;
    shoal_pass_function run;
    void *context;
};

/* SHOAL_ERR_INVALID, naming the nearest, when there is none. `bytes` of the name count. */
shoal_status pass_find(const char *name, size_t bytes, const struct pass **pass_out);

/* Calls `visit` with each name of a list that is separated by commas, without spaces around it; empty names are left
   out. NULL is an empty list. Ends at the first failure. */
typedef shoal_status (*pass_visit)(void *context, const char *name, size_t bytes);
shoal_status pass_each_name(const char *names, pass_visit visit, void *context);

/* What one pass changed. */
struct pass_changes {
    size_t n_created;
    size_t n_erased;
};

/*
 * Runs a pass unless it is disabled: under an observer with that label, drawn if options say so, and linted afterwards.
 * A part of another pass is not linted: that one is. `options` are complete and checked. What it changed is told even
 * if it failed.
 */
shoal_status pass_run(struct shoal_graph *graph, const struct pass *pass, const char *label, bool is_part,
                      const shoal_pass_options *options, shoal_pass_report *report,
                      struct pass_changes *changes_out);

#endif
