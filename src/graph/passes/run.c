/* SPDX-License-Identifier: MIT */
/* Runs a pass: observer, pictures, lint. */
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/ir/observer.h"
#include "graph/passes/dot.h"
#include "graph/passes/passes.h"
#include "tensor/scope.h"

/* The observer must be first: its address is cast to that of the struct. */
struct watch {
    struct observer observer;
    struct pass_dot dot;
    struct pass_changes changes;
};

static void draw_erased(struct observer *observer, struct shoal_node *node)
{
    pass_dot_erased(&((struct watch *)observer)->dot, node);
}

struct wanted {
    const char *name;
    bool is_found;
};

static shoal_status compare_name(void *context, const char *name, size_t bytes)
{
    struct wanted *wanted = context;
    if (strncmp(wanted->name, name, bytes) == 0 && wanted->name[bytes] == '\0') {
        wanted->is_found = true;
    }
    return SHOAL_OK;
}

static bool is_disabled(const struct pass *pass, const shoal_pass_options *options)
{
    struct wanted wanted = {.name = pass->name};
    return pass_each_name(options->disabled, compare_name, &wanted) == SHOAL_OK && wanted.is_found;
}

static shoal_status run_function(struct shoal_graph *graph, const struct pass *pass,
                                 const shoal_pass_options *options, shoal_pass_report *report)
{
    struct scope_callback callback = scope_callback_begin();
    return scope_callback_end(callback, "the pass", pass->run(graph, options, report, pass->context));
}

static shoal_status run_watched(struct watch *watch, struct shoal_graph *graph, const struct pass *pass,
                                const char *label, bool is_part, const shoal_pass_options *options,
                                shoal_pass_report *report)
{
    TRY(pass_dot_begin(&watch->dot, graph, options->dot_prefix, label));
    TRY(graph_observer_begin(graph, &watch->observer, label));
    size_t n_before = graph->n_nodes;
    uint32_t first_id = graph->n_ids;
    shoal_status status = is_disabled(pass, options) ? SHOAL_OK : run_function(graph, pass, options, report);
    graph_observer_end(graph, &watch->observer);
    watch->changes.n_created = graph->n_ids - first_id; /* each node that is made has a new id */
    watch->changes.n_erased = n_before + watch->changes.n_created - graph->n_nodes;
    TRY(status);
    if (!is_part) {
        TRY(shoal_graph_lint(graph));
    }
    if (watch->changes.n_created + watch->changes.n_erased > 0) {
        TRY(pass_dot_write(&watch->dot, graph));
    }
    return SHOAL_OK;
}

shoal_status pass_run(struct shoal_graph *graph, const struct pass *pass, const char *label, bool is_part,
                      const shoal_pass_options *options, shoal_pass_report *report,
                      struct pass_changes *changes_out)
{
    struct watch watch = {.observer = {.erased = options->dot_prefix ? draw_erased : NULL}};
    shoal_status status = run_watched(&watch, graph, pass, label, is_part, options, report);
    pass_dot_end(&watch.dot);
    *changes_out = watch.changes;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "pass %s", pass->name);
}
