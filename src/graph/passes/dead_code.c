/* SPDX-License-Identifier: MIT */
/*
 * Removes calls and constants that have no users and no effects (graph/analysis/effects.h). Waits have an effect, so they stay,
 * and so do the starts that they wait for. A start without a wait is removed, unless it writes in place or has another
 * side effect.
 */
#include <stddef.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/analysis/effects.h"
#include "graph/ir/graph.h"
#include "graph/analysis/lint.h"
#include "graph/passes/passes.h"

shoal_status shoal_graph_remove_dead(shoal_graph *graph, size_t *n_erased_out)
{
    error_clear();
    if (n_erased_out) {
        *n_erased_out = 0;
    }
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_remove_dead: graph is NULL");
    }
    shoal_status status = graph_lint_order(graph);
    if (status != SHOAL_OK) {
        return error_prefix(status, "graph_remove_dead");
    }
    return graph_remove_dead(graph, n_erased_out);
}

shoal_status graph_remove_dead(struct shoal_graph *graph, size_t *n_erased_out)
{
    size_t n_erased = 0;
    /* Backwards, so that a node that only dead nodes use is visited after them. */
    struct shoal_node *prev;
    for (struct shoal_node *node = graph->last; node; node = prev) {
        prev = node->prev;
        if (node->n_users == 0 && effects_is_pure(node)) {
            graph_erase(node);
            n_erased++;
        }
    }
    if (n_erased_out) {
        *n_erased_out = n_erased;
    }
    return SHOAL_OK;
}

shoal_status pass_remove_dead(shoal_graph *graph, const shoal_pass_options *options,
                              shoal_pass_report *report, void *context)
{
    (void)options;
    (void)report;
    (void)context;
    TRY(graph_lint_order(graph));
    return graph_remove_dead(graph, NULL);
}
