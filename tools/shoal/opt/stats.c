/* SPDX-License-Identifier: MIT */
/*
 * `shoal opt --stats`: counts nodes, collectives by kind, the bytes that they move, waits, and what a plan of the graph
 * needs; and estimates time and memory. All of it is printed as comments, which both graphs and pictures may contain.
 */
#include "opt/opt.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t count_bytes(const shoal_node *node)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < shoal_node_n_values(node); i++) {
        const shoal_tensor *value = shoal_node_value(node, i);
        n_bytes += (size_t)shoal_tensor_count(value) * shoal_dtype_bytes(shoal_tensor_dtype(value));
    }
    return n_bytes;
}

static shoal_status count_collective(struct opt_stats *stats, const shoal_node *node)
{
    const char *op = shoal_node_target(node);
    size_t i = 0;
    while (i < stats->n_kinds && strcmp(stats->kinds[i].op, op) != 0) {
        i++;
    }
    if (i == stats->n_kinds) {
        shoal_status status =
            mem_grow((void **)&stats->kinds, &stats->capacity, stats->n_kinds + 1, sizeof(stats->kinds[0]));
        if (status != SHOAL_OK) {
            return status;
        }
        stats->kinds[stats->n_kinds++] =
            (struct opt_kind){.op = shoal_op_name(shoal_node_op(node))}; /* outlives the node */
    }
    stats->kinds[i].n_calls++;
    stats->kinds[i].n_bytes += count_bytes(node);
    return SHOAL_OK;
}

static int compare_kinds(const void *a, const void *b)
{
    return strcmp(((const struct opt_kind *)a)->op, ((const struct opt_kind *)b)->op);
}

static shoal_status count_plan(const shoal_graph *graph, const shoal_compile_options *lowering,
                               struct opt_stats *stats)
{
    shoal_plan *plan = NULL;
    shoal_status status = opt_lower(graph, lowering, &plan);
    if (status == SHOAL_OK) {
        stats->plan = (shoal_plan_stats)SHOAL_PLAN_STATS_INIT;
        status = shoal_plan_get_stats(plan, &stats->plan);
        stats->has_plan = status == SHOAL_OK;
    }
    shoal_plan_free(plan);
    return status;
}

shoal_status opt_stats_count(const shoal_graph *graph, const shoal_compile_options *lowering,
                             struct opt_stats *stats)
{
    stats->n_nodes = shoal_graph_n_nodes(graph);
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        shoal_op_info info = SHOAL_OP_INFO_INIT;
        if (!shoal_node_op(node) || shoal_op_describe(shoal_node_op(node), &info) != SHOAL_OK) {
            continue;
        }
        stats->n_waits += (info.flags & SHOAL_OP_WAIT) != 0;
        shoal_status status = info.flags & SHOAL_OP_COLLECTIVE ? count_collective(stats, node) : SHOAL_OK;
        if (status != SHOAL_OK) {
            return status;
        }
    }
    if (stats->n_kinds > 0) {
        qsort(stats->kinds, stats->n_kinds, sizeof(stats->kinds[0]), compare_kinds);
    }
    return lowering ? count_plan(graph, lowering, stats) : SHOAL_OK;
}

static void print_plan(const shoal_plan_stats *plan, const char *when, FILE *out)
{
    fprintf(out, "# %s: plan: steps %zu, collectives %zu, blocking %zu, bytes %" PRIu64 "\n", when,
            plan->n_steps, plan->n_collectives, plan->n_blocking, plan->collective_bytes);
    fprintf(out, "# %s: plan: pool %zu, outputs %zu, comm %zu, windows %zu, peak %zu\n", when,
            plan->pool_bytes, plan->output_bytes, plan->comm_bytes, plan->window_bytes, plan->peak_bytes);
}

void opt_stats_print(const struct opt_stats *stats, const char *when, FILE *out)
{
    size_t n_calls = 0;
    size_t n_bytes = 0;
    for (size_t i = 0; i < stats->n_kinds; i++) {
        n_calls += stats->kinds[i].n_calls;
        n_bytes += stats->kinds[i].n_bytes;
    }
    fprintf(out, "# %s: nodes %zu, collectives %zu, bytes %zu, waits %zu\n", when, stats->n_nodes, n_calls,
            n_bytes, stats->n_waits);
    for (size_t i = 0; i < stats->n_kinds; i++) {
        fprintf(out, "# %s: %s %zu, bytes %zu\n", when, stats->kinds[i].op, stats->kinds[i].n_calls,
                stats->kinds[i].n_bytes);
    }
    if (stats->has_plan) {
        print_plan(&stats->plan, when, out);
    }
}

void opt_stats_free(struct opt_stats *stats)
{
    mem_free(stats->kinds);
}

/* Estimates -------------------------------------------------------------------------------------------- */

shoal_status opt_estimates_add(struct opt_estimates *estimates, const char *pass, const shoal_graph *graph)
{
    shoal_status status = mem_grow((void **)&estimates->rows, &estimates->capacity, estimates->n_rows + 1,
                                   sizeof(estimates->rows[0]));
    if (status == SHOAL_OK) {
        struct opt_estimate *row = &estimates->rows[estimates->n_rows];
        row->pass = pass;
        status = estimate_graph(&estimates->machine, graph, &row->estimate);
        estimates->n_rows += status == SHOAL_OK ? 1 : 0;
    }
    return status;
}

void opt_estimates_print(const struct opt_estimates *estimates, FILE *out)
{
    fprintf(out, "# estimates for %s: step is compute and exposed. Communication is all collectives, each\n",
            estimates->machine.name);
    fputs("# alone. Exposed is what they add to compute, also by their starts and where they slow compute\n"
          "# down, so it can be more than communication.\n",
          out);
    for (size_t i = 0; i < estimates->n_rows; i++) {
        const struct estimate *estimate = &estimates->rows[i].estimate;
        const char *pass = estimates->rows[i].pass;
        fprintf(out,
                "# %s%s: step %.1f us, compute %.1f us, communication %.1f us, exposed %.1f us, peak %" PRIu64
                " bytes\n",
                pass ? "after " : "before", pass ? pass : "",
                (double)(estimate->compute_ns + estimate->exposed_ns) * 1e-3,
                (double)estimate->compute_ns * 1e-3, (double)estimate->communication_ns * 1e-3,
                (double)estimate->exposed_ns * 1e-3, estimate->peak_bytes);
    }
}

void opt_estimates_free(struct opt_estimates *estimates)
{
    mem_free(estimates->rows);
}
