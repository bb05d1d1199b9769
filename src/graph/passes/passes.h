/* SPDX-License-Identifier: MIT */
/* Finds passes by name (shoal/compile.h) and runs them: observed, drawn and checked by lint. */
#ifndef GRAPH_PASSES_PASSES_H
#define GRAPH_PASSES_PASSES_H

#include "graph/ir/graph.h"
#include "shoal/compile.h"

#define PASS(name, function, doc)                                                       \
    shoal_status pass_##function(shoal_graph *graph, const shoal_pass_options *options, \
                                 shoal_pass_report *report, void *context);
#include "graph/passes/passes.def"
#undef PASS

/* The context of the passes in passes.def. A pass that consists of others runs them through it. */
struct pass_services {
    /* Runs a pass by name; `label` names it in origins and pictures. */
    shoal_status (*run)(struct shoal_graph *graph, const char *name, size_t bytes, const char *label,
                        const shoal_pass_options *options, shoal_pass_report *report);
};

struct pass {
    const char *name;
    const char *doc;
    shoal_pass_function run;
    void *context;
};

/* Finds a pass by the first `bytes` bytes of `name`. SHOAL_ERR_INVALID, with the nearest name: there is none. */
shoal_status pass_find(const char *name, size_t bytes, const struct pass **pass_out);

/* Calls `visit` with each name of a list separated by commas, without spaces around names. Empty names are left out.
   NULL is an empty list. Stops at the first failure. */
typedef shoal_status (*pass_visit)(void *context, const char *name, size_t bytes);
shoal_status pass_each_name(const char *names, pass_visit visit, void *context);

/* What one pass changed. */
struct pass_changes {
    size_t n_created;
    size_t n_erased;
};

/*
 * Runs a pass, unless it is disabled: under an observer with that label, with pictures if the options ask for them, and
 * with lint afterwards. If it is a part of another pass (is_part), lint runs only after that one. `options` must be
 * complete and checked. *changes_out is set even if the pass fails.
 */
shoal_status pass_run(struct shoal_graph *graph, const struct pass *pass, const char *label, bool is_part,
                      const shoal_pass_options *options, shoal_pass_report *report,
                      struct pass_changes *changes_out);

#endif
